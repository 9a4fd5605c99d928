"""The points at which a gradient would be wrong in silence, each with a kernel that tells."""

from __future__ import annotations

import pytest
import torch

import rawkern
from rawkern.gradients.launching import Backward


def derived(source, block=64, **settings):
    return rawkern.RawKernel(source, "k").derive(block=block, **settings)


def test_an_index_of_one_axis_in_blocks_of_two_is_not_owned() -> None:
    source = 'extern "C" __global__ void k(const float* x, float* y) { int i = threadIdx.x; atomicAdd(&y[i], x[i] * (1 + threadIdx.y)); }'
    found = derived(source, block=(8, 4))
    assert found.atomics == 1 and derived(source, block=8).atomics == 0
    grads = found(1, (torch.rand(8), torch.zeros(8)), {"y": torch.ones(8)})
    torch.testing.assert_close(grads["x"], torch.full((8,), 10.0))


def test_threads_that_set_the_same_element_count_once() -> None:
    source = 'extern "C" __global__ void k(const float* x, float* y) { y[blockIdx.x] = x[0] * 2.0f; }'
    found = derived(source)
    assert found.exchanged == ("y",)
    grad = torch.ones(3)
    torch.testing.assert_close(found(3, (torch.rand(1), torch.zeros(3)), {"y": grad})["x"], torch.tensor([6.0]))
    assert grad.eq(1).all(), "the caller's gradient was changed"


def test_of_two_stores_the_last_counts() -> None:
    source = """extern "C" __global__ void k(const float* x, const float* z, float* y) {
        int i = threadIdx.x;
        y[i] = x[i];
        if (i < 3) y[i] = 5.0f * z[i];
        for (int t = 0; t < 3; ++t) if (i == 6) y[i] = x[t];
    }"""
    x, z, y = torch.rand(8), torch.rand(8), torch.rand(8)
    grads = derived(source, block=8)(1, (x, z, y), {"y": torch.ones(8)})
    torch.testing.assert_close(grads["x"], torch.tensor([0.0, 0, 1, 1, 1, 1, 0, 1]))
    torch.testing.assert_close(grads["z"], torch.tensor([5.0, 5, 5, 0, 0, 0, 0, 0]))


def test_a_constant_that_is_stored_last_cuts_the_gradient() -> None:
    source = """extern "C" __global__ void k(const float* x, float* y) {
        __shared__ float s[8];
        int i = threadIdx.x;
        s[i] = x[i];
        __syncthreads();
        if (i < 4) s[i] = 1.0f;
        __syncthreads();
        y[i] = s[7 - i];
    }"""
    grads = derived(source, block=8)(1, (torch.rand(8), torch.rand(8)), {"y": torch.arange(8.0)})
    torch.testing.assert_close(grads["x"], torch.tensor([0.0, 0, 0, 0, 3, 2, 1, 0]))


def test_threads_that_leave_early_still_give_back_what_they_shared() -> None:
    source = """extern "C" __global__ void k(const float* x, float* y, int n) {
        __shared__ float s[8];
        int i = threadIdx.x;
        s[i] = x[i];
        __syncthreads();
        if (i >= n) return;
        y[i] = s[7 - i];
    }"""
    grads = derived(source, block=8)(1, (torch.rand(8), torch.rand(8), 3), {"y": torch.ones(8)})
    torch.testing.assert_close(grads["x"], torch.tensor([0.0, 0, 0, 0, 0, 1, 1, 1]))


def test_a_barrier_in_a_loop_without_gradients_stays() -> None:
    source = """extern "C" __global__ void k(const float* x, float* y) {
        __shared__ float s[64];
        int i = threadIdx.x, m = 0;
        s[i] = x[i];
        for (int t = 0; t < 2; ++t) { m += t; __syncthreads(); }
        y[i] = s[63 - i] * m;
    }"""
    found = derived(source)
    with rawkern.check():
        grads = found(1, (torch.rand(64), torch.rand(64)), {"y": torch.arange(64.0)})
    torch.testing.assert_close(grads["x"], torch.arange(64.0).flip(0))


def test_more_iterations_than_the_tape_has_end_the_launch() -> None:
    source = """extern "C" __global__ void k(const float* x, float* y, int n) {
        float h = 1.0f;
        for (int t = 0; t < n; ++t) h = sinf(h * x[t]);
        y[0] = h;
    }"""
    found = derived(source, block=1, max_iterations=4)
    x, y = torch.rand(6) + 0.5, torch.zeros(1)
    assert found.verify(1, (x, y, 4)) < 1e-5
    with pytest.raises(rawkern.RawkernError):
        found(1, (x, y, 6), {"y": torch.ones(1)})


def test_verify_finds_a_kernel_that_is_not_what_was_read(monkeypatch) -> None:
    found = derived(
        'extern "C" __global__ void k(const float* x, float* y) { y[threadIdx.x] = x[threadIdx.x] * x[threadIdx.x]; }'
    )
    args = (torch.rand(64), torch.zeros(64))
    twin = found._twin()
    other = rawkern.RawKernel(
        'extern "C" __global__ void k(const float* x, float* y) { y[threadIdx.x] = sinf(x[threadIdx.x]); }', "k"
    )
    monkeypatch.setattr(found, "_original", other)
    with pytest.raises(ArithmeticError, match="was not understood"):
        found.verify(1, args)
    monkeypatch.undo()
    wrong = rawkern.RawKernel(
        'extern "C" __global__ void k(const double* x, double* gx, const double* gy) { gx[threadIdx.x] += gy[threadIdx.x] * x[threadIdx.x]; }', "k")  # fmt: skip
    monkeypatch.setattr(found, "_twin", lambda: {**twin, "backward": Backward(twin["backward"].text, lambda _: wrong)})
    with pytest.raises(ArithmeticError, match="is wrong"):
        found.verify(1, args)


def test_equal_operands_of_a_maximum_share_its_gradient_whatever_is_asked_for() -> None:
    source = """extern "C" __global__ void k(const float* x, const float* w, float* y, int n) {
        int i = threadIdx.x;
        if (i >= 1 && i < n - 1) y[i] = fmaxf(x[i - 1], x[i + 1]) + fmaxf(x[i], w[i]);
    }"""
    args = torch.zeros(64), torch.zeros(64), torch.zeros(64), 64
    for wrt in (("x",), ("x", "w")):
        grads = derived(source, wrt=wrt)(1, args, {"y": torch.ones(64)})
        expected = torch.full((64,), 1.5)
        expected[[0, 1, 62, 63]] = torch.tensor([0.5, 1.0, 1.0, 0.5])
        torch.testing.assert_close(grads["x"], expected)


@pytest.mark.parametrize("last", ["sum", "largest"])
def test_of_loops_over_the_same_elements_the_first_sets_if_it_reaches_all(last) -> None:
    largest = "float m = -1e30f; for (int c = threadIdx.x; c < n; c += 32) m = fmaxf(m, x[blockIdx.x * n + c]);"
    total = (
        "float s = 0.0f; for (int c = threadIdx.x; c < n; c += 32) s += x[blockIdx.x * n + c] * x[blockIdx.x * n + c];"
    )
    loops = [largest, total] if last == "sum" else [total, largest]
    source = f"""extern "C" __global__ void k(const float* x, float* y, float* z, int n) {{
        {" ".join(loops)}
        y[blockIdx.x * 32 + threadIdx.x] = m;
        z[blockIdx.x * 32 + threadIdx.x] = s;
    }}"""
    found = derived(source, block=32)
    assert ("x" in found.sets) == (last == "sum")
    x = torch.rand(3, 70)
    grads = found(3, (x, torch.zeros(96), torch.zeros(96), 70), {"y": torch.ones(96), "z": torch.ones(96)})
    lanes = torch.nn.functional.pad(x, (0, 26), value=-1.0).view(3, 3, 32)
    expected = torch.nn.functional.one_hot(lanes.argmax(1), 3).movedim(-1, 1).reshape(3, 96)[:, :70] + 2 * x
    torch.testing.assert_close(grads["x"], expected)


def test_elements_that_are_read_from_the_end_are_owned() -> None:
    source = """extern "C" __global__ void k(const float* x, float* y, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (!(i >= 0 && i < n)) return;
        y[i] = x[n - 1 - i] * i;
    }"""
    found = derived(source)
    assert found.atomics == 0 and set(found.sets) == {"x"}
    grads = found(2, (torch.rand(100), torch.rand(100), 100), {"y": torch.ones(100)})
    torch.testing.assert_close(grads["x"], torch.arange(100.0).flip(0))


def test_a_sum_through_many_branches_is_derived_at_once() -> None:
    branches = " ".join(f"if (x[k] > {n}) s += x[k] * {n};" for n in range(40))
    source = f"""extern "C" __global__ void k(const float* x, float* y, int n) {{
        float s = 0.0f;
        for (int k = 0; k < n; ++k) {{ {branches} }}
        y[threadIdx.x] = s;
    }}"""
    grads = derived(source, block=1)(1, (torch.tensor([0.5, 3.5]), torch.zeros(1), 2), {"y": torch.ones(1)})
    torch.testing.assert_close(grads["x"], torch.tensor([0.0, 6.0]))


def test_an_output_that_is_set_again_has_lost_its_first_value() -> None:
    """Also if what is set then has no gradient."""
    source = """extern "C" __global__ void k(const float* x, float* y) {
        int t = threadIdx.x;
        y[t] = 2.f * x[t];
        if (t % 2) y[t] = 0.f;
        for (int j = 0; j < 2; ++j) {
            if (j == 1 && t % 3 == 0) y[t] = 1.f;
            if (j == 0 && t == 6) y[t] = x[t] * x[t];
        }
    }"""
    x, t = torch.rand(64), torch.arange(64)
    grads = rawkern.RawKernel(source, "k").derive(block=64)(1, (x, torch.empty(64)), {"y": torch.ones(64)})
    torch.testing.assert_close(grads["x"], torch.where((t % 2 == 1) | (t % 3 == 0), 0.0, 2.0))


OTHERS = {  # what a thread reads of y here is not for certain what it has set in the iteration of that number
    "shift": "for (int i = t; i < n; i += 32) y[i] = x[i]; for (int i = t; i < n; i += 32) z[i] = y[i + 1];",
    "bounds": "for (int i = t; i < n; i += 32) y[i] = x[i]; for (int i = t; i < n + 3; i += 32) z[i] = y[i];",
    "start": "for (int i = t; i < n; i += 32) y[i] = x[i]; for (int i = t + 1; i < n; i += 32) z[i] = y[i];",
    "transposed": "for (int i = 0; i < 4; ++i) for (int j = 0; j < 4; ++j) y[t * 16 + i * 4 + j] = x[i * 4 + j] * x[t]; for (int i = 0; i < 4; ++i) for (int j = 0; j < 4; ++j) z[t * 16 + i * 4 + j] = y[t * 16 + j * 4 + i];",
    "under": "for (int i = t; i < n; i += 32) { if (x[i] > 0.f) y[i] = x[i]; } for (int i = t; i < n; i += 32) z[i] = y[i];",
    "twice": "for (int i = t; i < n; i += 32) y[i] = x[i]; for (int r = 0; r < 2; ++r) for (int i = t; i < n; i += 32) { z[i] += y[i]; y[i] = 2.f * x[i]; }",
    "between": "for (int i = t; i < n; i += 32) y[i] = x[i]; y[t] = 5.f; for (int i = t; i < n; i += 32) z[i] = y[i];",
    "same": "for (int i = 0; i < n; ++i) y[i / 2] = x[i]; for (int i = 0; i < n; ++i) z[i] = y[i / 2];",
    "threads": "for (int i = 0; i < n; ++i) y[i] = x[i] * t; for (int i = 0; i < n; ++i) z[i] = y[i];",
    "back": "for (int i = t; i < n; i += 32) y[i] = x[i]; for (int i = t; i < n; i += 32) { z[i] = y[i]; if (i + 32 < n) y[i + 32] = 7.f; }",
    "ahead": "for (int i = t; i < n; i += 32) { if (i >= 32) y[i - 32] = 7.f; y[i] = x[i]; } for (int i = t; i < n; i += 32) z[i] = y[i];",
    "without the guard": "for (int i = 0; i < 4; ++i) if (t < n) y[i * n + t] = x[t]; for (int i = 0; i < 4; ++i) { if (t < n) z[i * n + t] = y[i * n + t]; __syncthreads(); y[i * n + t] = 7.f; }",
    "carried": "float s = 0.f; for (int i = t; i < n; i += 32) { s += x[i]; y[i] = s; } for (int i = t; i < n; i += 32) z[i] = y[i];",
    "inner": "for (int i = t; i < n; i += 32) y[i] = x[i]; for (int i = t; i < n; i += 32) for (int j = 0; j < 2; ++j) { z[i] = y[i] * j; y[i] = x[i] * x[i]; }",
    "shared since": "__shared__ float s[32]; for (int k = 0; k < n; ++k) { s[t] = x[t] * x[k]; __syncthreads(); for (int i = t; i < 32; i += 32) y[k * 32 + i] = s[31 - t] * x[i]; __syncthreads(); for (int i = t; i < 32; i += 32) z[k * 32 + i] = y[k * 32 + i]; }",
}  # fmt: skip


@pytest.mark.parametrize("what", OTHERS)
def test_what_others_may_have_set_is_not_read_again(what) -> None:
    """It comes from a tape or, where threads read what others set, has no derivative: for any n, or for a large one."""
    body = OTHERS[what].replace("float", "double").replace(".f", ".0")
    source = (
        f'extern "C" __global__ void k(double* y, double* z, const double* x, int n) {{ int t = threadIdx.x; {body} }}'
    )
    refused = pytest.raises(rawkern.NotDifferentiable, match=r"is both (read and written|set and added)")
    kernel, draw = rawkern.RawKernel(source), torch.Generator().manual_seed(1)
    if what in ("shift", "start", "between", "same", "threads"):
        with refused:
            kernel.derive(block=32)
        return
    found = kernel.derive(block=32)
    for n in (32,) if what == "shared since" else (8, 70):
        x, y, z, grad_y, grad_z, along = (torch.randn(1100, generator=draw, dtype=torch.float64) for _ in range(6))
        arguments = (y.clone(), z.clone(), x, n), {"y": grad_y.clone(), "z": grad_z.clone()}
        if (what == "without the guard" and n < 32) or (what in ("back", "ahead") and n > 32):
            with refused:
                found(1, *arguments)
            continue
        grad = found(1, *arguments)["x"]

        def weighted(x, y=y, z=z, n=n, grad_y=grad_y, grad_z=grad_z):
            y, z = y.clone(), z.clone()
            kernel[1, 32](y, z, x, n)
            return (grad_y * y).sum() + (grad_z * z).sum()

        difference = (weighted(x + 1e-6 * along) - weighted(x - 1e-6 * along)) / 2e-6
        torch.testing.assert_close((grad * along).sum(), difference, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("what", OTHERS)
def test_nor_of_shared_memory(what) -> None:
    """Which is read as it is, if that can be."""
    text = OTHERS[what].replace("; for", "; __syncthreads(); for")
    source = f'extern "C" __global__ void k(float* z, const float* x, int n) {{ __shared__ float y[1024]; int t = threadIdx.x; for (int i = t; i < 1024; i += 32) y[i] = x[i] * x[i]; __syncthreads(); {text} }}'
    draw = torch.Generator().manual_seed(1)
    try:
        found = derived(source, block=32)
    except rawkern.NotDifferentiable as error:
        assert "of another iteration" in str(error) or "written again" in str(error)
    else:
        found.verify(1, (torch.zeros(1200), torch.rand(1200, generator=draw), 20))


def test_what_is_added_to_elements_set_before() -> None:
    source = """extern "C" __global__ void k(float* y, const float* x, const float* b, int n) {
        int t = threadIdx.x;
        for (int i = t; i < n; i += 32) if (i < n - 2) y[i] = x[i] * x[i];
        for (int i = t; i < n; i += 32) if (i < n - 2) y[i] += b[i];
        for (int i = t; i < n; i += 32) if (i < n - 2) y[i] -= x[i] * b[i];
    }"""
    x, b = torch.rand(50), torch.rand(50)
    grads = derived(source, block=32)(1, (torch.empty(50), x, b, 50), {"y": torch.ones(50)})
    inside = torch.arange(50) < 48
    torch.testing.assert_close(grads["x"], torch.where(inside, 2 * x - b, 0.0))
    torch.testing.assert_close(grads["b"], torch.where(inside, 1 - x, 0.0))


PRODUCT = """extern "C" __global__ void k(const float* a, const float* b, float* c, int n) {
    __shared__ float ta[8][8], tb[8][8];
    int tx = threadIdx.x, ty = threadIdx.y, r = blockIdx.y * 8 + ty, col = blockIdx.x * 8 + tx;
    float sum = 0.0f;
    for (int k = 0; k < n; k += 8) {
        ta[ty][tx] = a[r * n + k + tx];
        tb[ty][tx] = b[(k + ty) * n + col];
        __syncthreads();
        for (int j = 0; j < 8; ++j) sum += ta[ty][j] * tb[j][tx];
        __syncthreads();
    }
    c[r * n + col] = sum;
}"""


def test_a_launch_for_which_an_assumption_is_false_gets_another_backward() -> None:
    found = derived(PRODUCT, block=(8, 8))
    assert "gridDim.x * 8 <= n" in found.source and not found.exchanged and "take" not in found.source
    a, b, c = torch.rand(16, 16), torch.rand(16, 16), torch.rand(16, 16)
    grads = found((2, 2), (a, b, c, 16), {"c": c})
    torch.testing.assert_close(grads["a"], c @ b.T)
    torch.testing.assert_close(grads["b"], a.T @ c)
    # Rows of 8 and two blocks: the second column of blocks sets again what the next row sets, to the same values.
    a, b, c = torch.ones(16 * 8), torch.full((8 * 16,), 3.0), torch.zeros(17 * 8)
    grads = found((2, 2), (a, b, c, 8), {"c": torch.ones(17 * 8)})
    assert float(grads["a"].sum()) == 17 * 8 * 8 * 3
    zeros = torch.zeros(16 * 8)
    with pytest.raises(RuntimeError, match="trap"):
        found.kernel[(2, 2), (8, 8)](a, b, 8, zeros, zeros.clone(), torch.ones(17 * 8))


def test_what_one_iteration_does_not_know_keeps_blocks_from_dealing_them_out() -> None:
    dealt = "deal the iterations out"
    assert derived(PRODUCT, block=(8, 8)).source.count(dealt) == 2
    for old, new in (
        ("= sum;", "= sum * sum;"),  # needs the sum
        ("sum += ta", "sum = 0.5f * sum + ta"),
        ("c[r * n + col]", "c[(r * n + col) / 2]"),  # several threads set an element
        ("k < n;", "k < n + blockIdx.x + blockIdx.y;"),  # blocks differ
    ):
        assert dealt not in derived(PRODUCT.replace(old, new), block=(8, 8)).source
    only = derived(PRODUCT.replace("k < n;", "k < n + blockIdx.y;"), block=(8, 8)).source
    assert only.count(dealt) == 1 and "atomicAdd(&grad_b" in only
