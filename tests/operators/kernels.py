"""Operators of every kind, made of the smallest kernels that show them."""

from __future__ import annotations

import torch
from torch import Tensor

import rawkern

kernels = rawkern.RawModule(r"""
template <class T> __global__ void mul(const T* a, const T* b, T* out, long long n) {
    long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < n) out[i] = a[i] * b[i];
}
template <class T> __global__ void mul_backward(const T* g, const T* a, const T* b, T* ga, T* gb, long long n) {
    long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < n) { ga[i] = g[i] * b[i]; gb[i] = g[i] * a[i]; }
}
""")
NAMES = {torch.float32: "float", torch.float64: "double"}


def kernel(name: str, dtype: torch.dtype) -> rawkern.RawKernel:
    return kernels.get_function(f"{name}<{NAMES[dtype]}>")


@rawkern.op("rawkern_test::mul", elementwise=True)
def mul(a: Tensor, b: Tensor) -> Tensor:
    """Return a * b."""
    out = torch.empty_like(a)
    kernel("mul", a.dtype).forall(a.numel())(a, b, out, a.numel())
    return out


@mul.backward
def _(ctx, grad):
    a, b = ctx.saved_tensors
    grad_a, grad_b = torch.empty_like(a), torch.empty_like(b)
    kernel("mul_backward", a.dtype).forall(a.numel())(grad, a, b, grad_a, grad_b, a.numel())
    return grad_a, grad_b
