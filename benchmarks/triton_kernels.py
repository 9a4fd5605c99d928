"""Triton's kernels for comparison; a file of their own, because Triton reads its kernels' source."""

import triton
import triton.language as tl


@triton.jit
def multiply(a, b, c, n, BLOCK: tl.constexpr):
    """c = a * b; one program for BLOCK elements."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(c + i, tl.load(a + i, mask=i < n) * tl.load(b + i, mask=i < n), mask=i < n)


@triton.jit
def square(x, y, n, BLOCK: tl.constexpr):
    """y = x * x; one program for BLOCK elements."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n)
    tl.store(y + i, v * v, mask=i < n)
