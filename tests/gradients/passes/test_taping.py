"""What loops overwrite and read again: how many numbers a tape has, and that no more are put on it."""

from __future__ import annotations

import math

import pytest
import torch

import rawkern
from rawkern.errors import LaunchError
from rawkern.gradients.launching import trips_of
from tests.gradients.cases_attention import TILED, attended, tiled


def kernel(head: str, more: str = "") -> rawkern.RawKernel:
    return rawkern.RawKernel(
        f"""extern "C" __global__ void f(const float* x, float* y, int n, int m) {{
            int i = blockIdx.x * blockDim.x + threadIdx.x;
            {more}
            {head} y[i] = y[i] * x[i] + 0.5f;
        }}""",
        "f",
    )


@pytest.mark.parametrize(
    ("head", "times"),
    [
        ("for (int j = 0; j < n; ++j)", [10]),
        ("for (int j = 2; j <= n; j += 3)", [3]),
        ("for (int j = n; j > m; j -= 2)", [3]),
        ("for (int j = n - 1; j >= 0; --j)", [10]),
        ("for (int j = 0; j < min(m, n); ++j)", [4]),
        ("for (int j = 0; j < n && j < m + 1; ++j)", [5]),
        ("for (int j = 0; j < n / m; ++j)", [2]),
        ("for (int j = threadIdx.x; j < n; j += m)", [3]),
        ("for (int j = threadIdx.x % 4; j < n; j += m)", [3]),
        ("for (int j = threadIdx.x / 4 * 4 + threadIdx.x % 4; j < n; j += m)", [3]),
        ("for (int j = (int)threadIdx.x - 5; j < n; j += m)", [4]),
        ("for (int j = ((int)threadIdx.x - 5) % 4; j < n; j += m)", [4]),
        ("for (int j = 0; j < n; j += threadIdx.x / 4 + 1)", [10]),
        ("for (int j = 0; j < (m + threadIdx.x) >> 1; ++j)", [5]),
        ("for (int j = 0; j < n / (threadIdx.x + 2); ++j)", [5]),
        ("for (int j = 0; j < n; ++j) for (int k = 0; k < j / 2; ++k)", [10, 4]),
        ("for (int j = 0; j < (threadIdx.x & -4); ++j)", [7]),
        ("for (int j = blockIdx.x; j < n; j += gridDim.x)", [4]),
        ("for (int j = 0; j < blockIdx.x + 2; ++j)", [4]),
        ("for (int j = 0; j < n; ++j) for (int k = 0; k <= j; ++k)", [10, 10]),
        ("for (int j = 0; j < m; ++j) for (int k = j; k < n; ++k)", [4, 10]),
        ("for (int j = 0; j < m; ++j) for (int k = 0; k < 3; ++k)", [4, 3]),
        ("for (long long j = 0; j < n; j += 4)", [3]),
        ("for (int j = n; j < m; ++j)", [0]),
    ],
)
def test_how_often_loops_run_at_most(head, times) -> None:
    text = kernel(head).derive(block=8, grid=3, max_iterations=16)._text
    found = trips_of(text, {"n": 10, "m": 4}, (3, 1, 1))
    assert list(found.values()) == times


def test_agrees_in_each_iteration() -> None:
    """The tape is read from the last iteration to the first, and other threads have theirs."""
    found, x, y = kernel("for (int j = 0; j < n; ++j)").derive(block=8, grid=2), torch.rand(16), torch.rand(16)
    with rawkern.check():
        grads = found(2, (x, y, 3, 0), {"y": torch.arange(16.0)})
    expected = (3 * x**2 * y + 0.5 * (2 * x + 1)) * torch.arange(16.0)
    torch.testing.assert_close(grads["x"], expected)
    torch.testing.assert_close(grads["y_before"], x**3 * torch.arange(16.0))


def test_a_launch_with_more_iterations_ends_before_it_leaves_the_tape() -> None:
    found, x = kernel("for (int j = 0; j < n; ++j)").derive(block=8, grid=1), torch.rand(8)
    sizes = {"tape": torch.empty(2 * 8), "iterations": 2, "copy": x.clone(), "grad": torch.zeros(8)}
    args = [sizes.get(kind, {"x": x, "n": 3}.get(name)) for kind, name in found.parameters]
    with pytest.raises(RuntimeError, match="trap"):
        found.kernel[1, 8](*args)


def test_a_number_of_iterations_that_is_not_certain() -> None:
    found, x = kernel("for (int j = 0; j < n; j += m)").derive(block=8, grid=1), torch.rand(8)
    with pytest.raises(LaunchError, match="how many there are is not certain of n=3, m=0"):
        found(1, (x, x.clone(), 3, 0), {"y": x})
    found = kernel("for (int j = 0; j < ((int)threadIdx.x - m) / 2; ++j)").derive(block=8, grid=1)
    with pytest.raises(LaunchError, match="how many there are is not certain of n=3, m=2"):
        found(1, (x, x.clone(), 3, 2), {"y": x})


@pytest.mark.parametrize(
    ("head", "more"),
    [
        ("for (int j = 0; j < (int)x[i]; ++j)", ""),  # as often as memory says
        ("for (int j = 0; j < n; ++j)", "i /= 2;"),  # an element of two threads
        ("for (float j = 0; j < n; ++j)", ""),
        ("for (int j = 0; j < ((int)threadIdx.x & -4); ++j)", ""),  # not a rest
        ("for (int j = 0; y[i] > 0.1f; ++j)", ""),  # a condition that reads what changes
    ],
)
def test_what_no_tape_has_room_for(head, more) -> None:
    with pytest.raises(rawkern.NotDifferentiable, match="y is both read and written"):
        kernel(head, more).derive(block=8, grid=3)


# Parameters with a constant value ---------------------------------------------------------------------------------

SIZED = TILED.replace("SIZES", ", const int TILE, const int WIDTH")
BYTES = 4 * (3 * 32 + 64)


def test_tiles_of_sizes_that_are_parameters() -> None:
    given = rawkern.RawKernel(SIZED, "flash_global")
    with pytest.raises(rawkern.NotDifferentiable):
        given.derive(block=8, grid=3, shared_mem=BYTES)
    found = given.derive(block=8, grid=3, shared_mem=BYTES, constants={"TILE": 8, "WIDTH": 4}, wrt=("q", "k", "v"))
    assert "TILE = 8, WIDTH = 4" in found.source
    args = tiled(lambda *shape: torch.rand(shape) - 0.5)
    assert found.verify(3, (*args, 8, 4)) < 1e-6
    with pytest.raises(LaunchError, match=r"for WIDTH = 4, and the launch has WIDTH = 3.*'TILE': 8, 'WIDTH': 3"):
        found(3, (*args, 8, 3), {"out": args[0]})


@pytest.mark.parametrize("name", ["scale", "q", "Tile"])
def test_constants_are_integer_parameters(name) -> None:
    with pytest.raises(ValueError, match=f"'{name}', which is not an integer parameter of flash_global; it has rows"):
        rawkern.RawKernel(SIZED, "flash_global").derive(block=8, constants={name: 8}, shared_mem=BYTES)


def test_an_operator_is_derived_for_the_numbers_of_its_launch() -> None:
    kernel = rawkern.RawKernel(SIZED, "flash_global")

    @rawkern.op("tests::flash_global", backward="derive", verify=False)
    def flash(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        heads, rows, width = q.shape
        out, sums = torch.zeros_like(q), torch.zeros(heads, rows)
        maxima = torch.full((heads, rows), -math.inf)
        kernel[heads, 8, 4 * (3 * 8 * width + 64)](q, k, v, out, sums, maxima, 0.5, rows, 8, width)
        return out

    for width in (4, 3):
        own = [torch.rand(2, 16, width, requires_grad=True) for _ in range(3)]
        weights = torch.rand(2, 16, width)
        expected = torch.autograd.grad((attended(*own, scale=0.5) * weights).sum(), own)
        found = torch.autograd.grad((flash(*own) * weights).sum(), own)
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
