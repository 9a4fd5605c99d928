"""Backwards whose threads can have several elements each: the same gradients however many they have."""

from __future__ import annotations

import contextlib

import pytest
import torch

import rawkern
from rawkern.gradients import launching, text
from rawkern.gradients.code.expressions import Name, infix, special
from rawkern.gradients.code.passes.thread_coarsening import coarsened
from rawkern.gradients.code.tree import Declare, If, Scope, assign, constant
from rawkern.gradients.ir import Array, Block, Kernel

INDEX = "blockIdx.x * blockDim.x + threadIdx.x"
PLANE = f"int c = {INDEX}, r = blockIdx.y * blockDim.y + threadIdx.y;"

#: Name: the body, block, grid, what conditions are left where those of a whole block hold.
KERNELS = {
    "map": (f"int i = {INDEX}; if (i < n) y[i] = x[i] * x[i];", 32, 7, ()),
    "unguarded": (f"int i = {INDEX}; y[i] = x[i] * x[i];", 32, 5, ()),
    "early": (f"unsigned int i = {INDEX}; if (i >= n) return; y[i] = x[i] * x[i] * w[i];", 32, 7, ()),
    "wide": (f"size_t i = {INDEX}; if (i < n) y[i] = x[i] * x[i];", 32, 7, ()),
    "stencil": (f"int i = {INDEX}; if (i > 0 && i < n - 1) y[i] = x[i - 1] * x[i] + x[i + 1];", 32, 7, ()),
    "shifted": (f"int i = {INDEX} + 1; if (i < n - 1) y[i] = x[i - 1] * x[i] + x[i + 1];", 32, 7, ()),
    "nested": (f"int i = {INDEX}; if (i < n) {{ if (i > 40) y[i] = x[i] * x[i]; }}", 32, 7, ()),
    "sides": (f"int i = {INDEX}; if (i < n) {{ float v = x[i]; if (i < 50) v *= v; else v = sinf(v); y[i] = v; }}",
              32, 7, ("i < 50",)),
    "data": (f"int i = {INDEX}; if (i < n) {{ if (w[i] > 0) y[i] = x[i] * x[i]; }}", 32, 7, ("w_value > 0",)),
    "hashed": (f"unsigned i = {INDEX}, h = i * 2654435761u; if (i < n && h < 0x40000000u) y[i] = x[i] * x[i];",
               32, 7, ("h < 0x40000000u",)),
    "past the first elements": (f"unsigned i = {INDEX}; if (i < n && i - 40u > 60u) y[i] = x[i] * x[i];", 32, 7, ("i - 40u > 60u",)),
    "scaled": (f"int i = {INDEX}; if (3 * i < n && 2 * i + 1 > m) y[i] = x[i] * x[i];", 32, 7, ()),
    "plane": (f"{PLANE} if (c < m && r < 9) y[r * m + c] = x[r * m + c] * x[r * m + c];", (16, 4), (4, 3), ()),
    "cross": (f"{PLANE} if (c > 0 && c < m - 1 && r > 0 && r < 8)"
              "y[r * m + c] = x[r * m + c] * x[r * m + c - 1] + x[(r + 1) * m + c] + x[(r - 1) * m + c];",
              (16, 4), (4, 3), ()),
    "slanted": (f"int c = {INDEX}, i = (int)(blockIdx.y * 4 + threadIdx.y) * m + c;"
                "if (c < m && i < n && c + 3 * (int)threadIdx.y < 40) y[i] = x[i] * x[i];",
                (16, 4), (4, 3), ("(int)threadIdx.y",)),
    "flat": (f"{PLANE} int i = r * m + c; if (i < n && c < m) y[i] = x[i] * x[i];",
             (16, 4), (4, 3), ("i < n",)),
}  # fmt: skip

#: Bodies of which each thread keeps one element, and why.
SINGLE = {
    "float4": "((float4*)y)[i] = ((float4*)x)[i];",
    "in rows": "if (i < m) { y[4 * i] = x[4 * i] * x[4 * i]; y[4 * i + 1] = x[4 * i + 1]; }",
    "a loop": "float v = 0; for (int k = 0; k < m; ++k) v += x[i] * w[k]; y[i] = v;",
    "of a warp": "float v = i < n ? x[i] : 0.f; v += __shfl_xor_sync(~0u, v, 1); if (i < n) y[i] = v * v;",
    "atomic": "if (i < n) y[i] = x[at[i]] * x[at[i]];",
}


def kernel(body: str) -> rawkern.RawKernel:
    head = 'extern "C" __global__ void f(const float* x, const float* w, const int* at, float* y, int n, int m)'
    return rawkern.RawKernel(f"{head} {{ {body} }}", "f")


def freed(source: str) -> str:
    """The part of a text in which nothing is asked that holds for a whole block."""
    return source.partition("#pragma unroll")[2].partition("} else {\n        for (")[0]


@pytest.mark.parametrize("name", KERNELS)
def test_any_number_of_elements(name, device, monkeypatch) -> None:
    body, block, grid, left = KERNELS[name]
    draw = torch.Generator().manual_seed(1)
    n, m = (160 if name == "unguarded" else 205), 53
    x, w, weights = (torch.randn(9 * 53 if block != 32 else n, generator=draw).to(device) for _ in range(3))
    n = x.numel()
    args = (x, w, torch.randperm(n, generator=draw).int().to(device), torch.zeros_like(x), n, m)
    derived = kernel(body).derive(block=block, grid=grid, wrt=("x",))
    inner = freed(derived.source)
    assert inner, derived.source
    asked = [line.strip() for line in inner.splitlines() if "if (" in line]
    assert len(asked) == len(left), asked
    assert all(each in line for each, line in zip(left, asked, strict=True)), asked
    found = []
    for each in (1, 3) if device == "cpu" else (1, 2, 3, 4):
        monkeypatch.setattr(launching, "_elements", lambda _, blocks, most, each=each: each if most > 1 else 1)
        with rawkern.check() if device == "cpu" else contextlib.nullcontext():
            found.append(kernel(body).derive(block=block, grid=grid, wrt=("x",))(grid, args, {"y": weights})["x"])
    monkeypatch.setattr(text, "coarsened", lambda *_: None)
    plain = kernel(body).derive(block=block, grid=grid, wrt=("x",))
    assert not freed(plain.source)
    expected = plain(grid, args, {"y": weights})["x"]
    assert expected.abs().max() > 0.1
    for each in found:  # a product and a sum may be rounded once or twice
        torch.testing.assert_close(each, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("constants", "condition", "m"),
    [
        ("const long long b = m;", "i >= b * m", 65536),
        ("const long long b = m, c = m;", "i >= b * c", 65536),
        ("const int b = m - 5u;", "i < b", 3),
    ],
)
def test_constants_are_of_their_types_in_conditions_of_a_block(constants, condition, m, monkeypatch) -> None:
    monkeypatch.setattr(launching, "_elements", lambda _, blocks, most: most)
    body = f"int i = {INDEX}; {constants} if (i < n && {condition}) y[i] = x[i] * x[i];"
    derived = kernel(body).derive(block=64, grid=16, wrt=("x",))
    assert freed(derived.source)
    args = (torch.ones(1024), torch.zeros(1), torch.zeros(1, dtype=torch.int32), torch.zeros(1024), 1024, m)
    assert derived(16, args, {"y": torch.ones(1024)})["x"].abs().max() == 0


@pytest.mark.parametrize("name", SINGLE)
def test_one_element(name) -> None:
    derived = kernel(f"int i = {INDEX}; {SINGLE[name]}").derive(block=64, grid=8, wrt=("x",))
    assert "each" not in derived.source, derived.source


def test_a_gpu_that_is_not_full_has_one_element_a_thread(monkeypatch) -> None:
    monkeypatch.setattr(launching, "_processors", lambda _: 10)
    cuda = torch.device("cuda")
    assert [launching._elements(cuda, blocks, 4) for blocks in (1, 319, 320, 10_000)] == [1, 1, 4, 4]
    assert launching._elements(torch.device("cpu"), 10_000, 4) == 1


RESIDUAL = "y[i] = x[i] * x[i] + w[i];"


@pytest.mark.parametrize(
    "body, block, grid, n, whole",
    [
        (f"int i = {INDEX}; if (i < n) {RESIDUAL}", 32, 4, 100, True),
        (f"int i = {INDEX}; if (i < n) {RESIDUAL}", 32, 4, 99, False),  # an element is left
        (f"int i = {INDEX}; if (i < n) {RESIDUAL}", 32, 3, 100, False),
        (f"int i = {INDEX}; if (i < n && x[i] > 0) {RESIDUAL}", 32, 4, 100, None),
        (f"for (int i = threadIdx.x; i < n; i += 32) {RESIDUAL}", 32, 1, 100, True),
        (f"int i = {INDEX}; if (i < n) y[i] = x[i] * x[i] + w[n - 1 - i];", 32, 4, 100, None),  # in another order
        (f"int i = {INDEX}; if (i < n) y[i] = x[i] * x[i] - w[i];", 32, 4, 100, None),
        (f"int i = {INDEX}; if (i < n) y[i] = w[i] * w[i] + w[i];", 32, 4, 100, None),
    ],
)
def test_a_gradient_that_is_the_output_s(body, block, grid, n, whole, device) -> None:
    x, w, at, y, v = (torch.randn(100, generator=torch.Generator().manual_seed(k)).to(device) for k in range(5))
    args = (x, w, at.int(), y, n, 0)
    derived = kernel(body).derive(block=block, grid=grid, wrt=("w", "x") if "x[i] * x" in body else ("w",))
    assert derived.handed == ({} if whole is None else {"w": "y"}), derived.source
    found = derived(grid, args, {"y": v})["w"]
    assert (found.data_ptr() == v.data_ptr()) == bool(whole)
    if whole is not None:
        done = torch.arange(100, device=device) < min(n, block * grid if "for" not in body else n)
        assert torch.equal(found, torch.where(done, v, 0))


@pytest.mark.parametrize(
    "body, grid, same",
    [
        (f"int i = {INDEX}; if (i < n) y[i] = sinf(x[i] + w[i]);", 4, True),
        (f"int i = {INDEX}; if (i < n) y[i] = sinf(x[i] + w[i]);", 3, False),  # elements are left
        (f"int i = {INDEX}; if (i < n) y[i] = sinf(x[i] - w[i]);", 4, None),
        (f"int i = {INDEX}; if (i < n) y[i] = sinf(x[i] + w[n - 1 - i]);", 4, None),
        (f"int i = {INDEX}; if (i < n) {{ if (at[i] > 0) y[i] = sinf(x[i] + w[i]); }}", 4, None),
        (f"int i = {INDEX}; if (i < n) y[i] = sinf(x[i] + w[i]) + w[i];", 4, None),
    ],
)
def test_gradients_that_are_the_same(body, grid, same, device) -> None:
    x, w, at, y, v = (torch.randn(100, generator=torch.Generator().manual_seed(k)).to(device) for k in range(5))
    derived = kernel(body).derive(block=32, grid=grid, wrt=("x", "w"))
    assert derived.handed == ({} if same is None else {"x": "w"}), derived.source
    found = derived(grid, (x, w, at.int(), y, 100, 0), {"y": v})
    assert (found["x"].data_ptr() == found["w"].data_ptr()) == bool(same)
    if same is not None:
        expected = torch.cos(x + w) * v
        expected[32 * grid :] = 0
        torch.testing.assert_close(found["x"], expected)
        torch.testing.assert_close(found["w"], expected)


@pytest.mark.parametrize("which", range(4))
def test_pointers_that_are_no_multiples_of_16_bytes(which, device, monkeypatch) -> None:
    monkeypatch.setattr(launching, "_elements", lambda _, blocks, most: most)
    derived = kernel(f"int i = {INDEX}; if (i < n) y[i] = x[i] * w[i] * w[i];").derive(block=32, grid=20)
    tensors = [torch.randn(641, device=device)[which == k :][:640] for k in range(4)]
    x, w, y, v = tensors
    assert [t.data_ptr() % 16 for t in tensors] == [4 * (which == k) for k in range(4)]
    with rawkern.check() if device == "cpu" else contextlib.nullcontext():
        found = derived(20, (x, w, w.int(), y, 640, 0), {"y": v})
    torch.testing.assert_close(found["x"], v * w * w)
    torch.testing.assert_close(found["w"], 2 * v * x * w)


@pytest.mark.parametrize(
    "again, fits",
    [
        (constant("int", "t", Name("i") + 1), True),
        (constant("int", "t", Name("i") - 1), False),
        (constant("int", "t", Name("at")["i"]), False),
        (Declare("float", "t", Name("x")["i"]), False),
        (Declare("float", "u", also=(("t", None),)), False),
    ],
)
def test_a_name_that_means_something_else_in_another_scope(again, fits) -> None:
    """What is known of integers goes by their names."""
    inner = Kernel(
        "f", "f.cu", [("x", "float", True), ("n", "int", False)], {"x": Array("x", "float")}, [], Block(), {},
        (64, 1, 1), (None, 1, 1),
    )  # fmt: skip
    guarded = If(infix("t", "<", "n"), [assign(Name("grad_x")["i"], Name("x")["i"])])
    scopes = [Scope([first, guarded]) for first in (constant("int", "t", Name("i") + 1), again)]
    place = constant("int", "i", special("threadIdx.x") + special("blockIdx.x") * 64)
    found = coarsened(inner, [place, *scopes], set(), lambda name: name)
    assert (found is not None) == fits
