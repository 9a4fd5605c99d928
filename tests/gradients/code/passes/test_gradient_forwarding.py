"""Gradients that a call hands on in place of writing them: of one line of a kernel, or of several."""

from __future__ import annotations

import pytest
import torch

import rawkern

HEAD = 'extern "C" __global__ void f(const float* a, const float* b, const float* w, float* y, float* z) {\n'
AT = "    int i = blockIdx.x * 64 + threadIdx.x, j = i + 32;\n"
#: What a kernel of blocks of 32 threads, with 64 elements each, does; and whose gradient is another's.
KERNELS = {
    "one line": ("for (int k = 0; k < 2; ++k) { int c = i + 32 * k; y[c] = sinf(a[c] + b[c]); }", {"b": "a"}),
    "two lines": ("y[i] = sinf(a[i] + b[i]); y[j] = cosf(a[j] + b[j]);", {"b": "a"}),
    "an output's": ("y[i] = sinf(a[i]) + b[i]; y[j] = a[j] * w[0] + b[j];", {"b": "y"}),
    "another value in one line": ("y[i] = sinf(a[i] + b[i]); y[j] = cosf(a[j] + 2 * b[j]);", {}),
    "another element in one line": ("y[i] = sinf(a[i] + b[i]); y[j] = cosf(a[j] + b[i + 33]);", {}),
    "of two outputs": ("y[i] = sinf(a[i]) + b[i]; z[j] = a[j] * w[0] + b[j];", {}),
    "read twice": ("y[i] = sinf(a[i] + b[i]); y[j] = cosf(a[j] + b[j]) * b[i];", {}),
}


@pytest.mark.parametrize("name", KERNELS)
def test_what_is_handed_on(name, device) -> None:
    body, handed = KERNELS[name]
    kernel, blocks = rawkern.RawKernel(f"{HEAD}{AT}    {body}\n}}"), 3
    derived = kernel.derive(grid=blocks, block=32, wrt=("a", "b"))
    found = {of: n for n, of in derived.handed.items()} if "a" in derived.handed else derived.handed
    assert found == handed
    draw = torch.Generator().manual_seed(2)
    a, b, w, y, z = (torch.randn(64 * blocks + 2, generator=draw).to(device) for _ in range(5))
    grads = {n: torch.randn(y.shape, generator=draw).to(device) for n in derived.outputs}
    got = derived(blocks, (a, b, w, y, z), grads)
    assert derived.verify(blocks, (a, b, w, y, z)) < 1e-6
    small = a[: 64 * blocks].clone(), b[: 64 * blocks].clone(), w, y[: 64 * blocks].clone(), z[: 64 * blocks].clone()
    if handed:  # all elements are set
        given = {n: g[: 64 * blocks].clone() for n, g in grads.items()}
        again = derived(blocks, small, given)
        for n, of in derived.handed.items():
            assert again[n].data_ptr() == (again | given)[of].data_ptr()
        for n in ("a", "b"):
            torch.testing.assert_close(again[n], got[n][: 64 * blocks])
