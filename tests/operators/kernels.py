"""Operators of every kind, made of the smallest kernels that show them."""

from __future__ import annotations

import torch
from torch import Tensor

import rawkern

kernels = rawkern.RawModule(r"""
#define I blockIdx.x * (long long)blockDim.x + threadIdx.x
template <class T> __global__ void mul(const T* a, const T* b, T* out, long long n) {
    long long i = I;
    if (i < n) out[i] = a[i] * b[i];
}
template <class T> __global__ void mul_backward(const T* g, const T* a, const T* b, T* ga, T* gb, long long n) {
    long long i = I;
    if (i < n) { ga[i] = g[i] * b[i]; gb[i] = g[i] * a[i]; }
}
template <class T> __global__ void scale(const T* x, T s, int shift, T* out, long long n) {
    long long i = I;
    if (i < n) out[i] = x[i] * s + shift;
}
template <class T> __global__ void square_and_cube(const T* x, T* square, T* cube, long long n) {
    long long i = I;
    if (i < n) { square[i] = x[i] * x[i]; cube[i] = square[i] * x[i]; }
}
template <class T> __global__ void unit(const T* x, T* y, T* length, long long rows, long long columns) {
    long long i = I;
    if (i >= rows) return;
    T sum = 0;
    for (long long j = 0; j < columns; j++) sum += x[i * columns + j] * x[i * columns + j];
    length[i] = sqrt(sum);
    for (long long j = 0; j < columns; j++) y[i * columns + j] = x[i * columns + j] / length[i];
}
template <class T> __global__ void unit_backward(
    const T* g, const T* y, const T* length, T* gx, long long rows, long long columns) {
    long long i = I;
    if (i >= rows) return;
    T dot = 0;
    for (long long j = 0; j < columns; j++) dot += g[i * columns + j] * y[i * columns + j];
    for (long long j = 0; j < columns; j++) {
        long long k = i * columns + j;
        gx[k] = (g[k] - y[k] * dot) / length[i];
    }
}
template <class T> __global__ void relu(T* x, long long n) {
    long long i = I;
    if (i < n && x[i] < 0) x[i] = 0;
}
template <class T> __global__ void mask(const T* g, const T* y, T* gx, long long n) {
    long long i = I;
    if (i < n) gx[i] = y[i] > 0 ? g[i] : 0;
}
template <class T> __global__ void affine(const T* x, const T* w, const T* b, T* out, long long n, long long columns) {
    long long i = I;
    if (i < n) out[i] = x[i] * (w ? w[i % columns] : T(1)) + (b ? b[i % columns] : T(0));
}
template <class T> __global__ void add_to(const T* x, T w, T* sum, long long n) {
    long long i = I;
    if (i < n) sum[i] += w * x[i];
}
""")
NAMES = {torch.float32: "float", torch.float64: "double"}


def kernel(name: str, dtype: torch.dtype) -> rawkern.RawKernel:
    return kernels.get_function(f"{name}<{NAMES[dtype]}>")


@rawkern.op("rawkern_test::mul", elementwise=True)
def mul(a: Tensor, b: Tensor) -> Tensor:
    """Return a * b; the backward launches a kernel."""
    out = torch.empty_like(a)
    kernel("mul", a.dtype).forall(a.numel())(a, b, out, a.numel())
    return out


@mul.backward
def _(ctx, grad):
    a, b = ctx.saved_tensors
    grad_a, grad_b = torch.empty_like(a), torch.empty_like(b)
    kernel("mul_backward", a.dtype).forall(a.numel())(grad, a, b, grad_a, grad_b, a.numel())
    return grad_a, grad_b


@rawkern.op("rawkern_test::smooth_mul", elementwise=True)
def smooth_mul(a: Tensor, b: Tensor) -> Tensor:
    """Return a * b; the backward is made of this operator."""
    out = torch.empty_like(a)
    kernel("mul", a.dtype).forall(a.numel())(a, b, out, a.numel())
    return out


@smooth_mul.backward
def _(ctx, grad):
    a, b = ctx.saved_tensors
    need_a, need_b = ctx.needs_input_grad
    return smooth_mul(grad, b) if need_a else None, smooth_mul(grad, a) if need_b else None


@rawkern.op("rawkern_test::scale", save=(), elementwise=True)
def scale(x: Tensor, s: float, *, shift: int = 0) -> Tensor:
    """Return x * s + shift."""
    out = torch.empty_like(x)
    kernel("scale", x.dtype).forall(x.numel())(x, s, shift, out, x.numel())
    return out


@scale.backward
def _(ctx, grad):
    assert ctx.saved_tensors == () and ctx.needs_input_grad == (True, False, False)
    assert ctx.shapes[1:] == (None, None) and isinstance(ctx.shift, (int, torch.SymInt))
    return scale(grad, ctx.s)


@rawkern.op("rawkern_test::square_and_cube", save=("x", "out0"))
def square_and_cube(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return x * x and x * x * x."""
    square, cube = torch.empty_like(x), torch.empty_like(x)
    kernel("square_and_cube", x.dtype).forall(x.numel())(x, square, cube, x.numel())
    return square, cube


@square_and_cube.backward
def _(ctx, grad_square, grad_cube):
    x, square = ctx.saved_tensors
    parts = []
    if grad_square is not None:
        parts.append(scale(mul(grad_square, x), 2.0))
    if grad_cube is not None:
        parts.append(scale(mul(grad_cube, square), 3.0))
    return parts[0] if len(parts) == 1 else parts[0] + parts[1]


@rawkern.op("rawkern_test::unit", save=("out", "length"), hidden=("length",))
def unit(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rows of x, each divided by its length, which is a hidden output."""
    rows, columns = x.shape
    y, length = torch.empty_like(x), x.new_empty(rows)
    kernel("unit", x.dtype).forall(rows)(x, y, length, rows, columns)
    return y, length


@unit.backward
def _(ctx, grad):
    y, length = ctx.saved_tensors
    rows, columns = ctx.shapes[0]
    grad_x = torch.empty_like(y)
    kernel("unit_backward", y.dtype).forall(rows)(grad, y, length, grad_x, rows, columns)
    return grad_x


@rawkern.op("rawkern_test::relu_", mutates_args=("x",), elementwise=True)
def relu_(x: Tensor) -> None:
    """Set what is negative to 0."""
    kernel("relu", x.dtype).forall(x.numel())(x, x.numel())


@relu_.backward
def _(ctx, grad):
    (y,) = ctx.saved_tensors
    grad_x = torch.empty_like(y)
    kernel("mask", y.dtype).forall(y.numel())(grad, y, grad_x, y.numel())
    return grad_x


@rawkern.op("rawkern_test::affine", save=("x", "weight"))
def affine(x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
    """Return x * weight + bias over the last dimension."""
    out = torch.empty_like(x)
    kernel("affine", x.dtype).forall(x.numel())(x, weight, bias, out, x.numel(), x.shape[-1])
    return out


@affine.backward
def _(ctx, grad):
    x, weight = ctx.saved_tensors
    need_x, need_weight, need_bias = ctx.needs_input_grad
    assert (ctx.shapes[1] is None) == (weight is None)
    return (
        affine(grad, weight) if need_x else None,
        (grad * x).flatten(0, -2).sum(0) if need_weight else None,
        grad.flatten(0, -2).sum(0) if need_bias else None,
    )


@rawkern.op("rawkern_test::weighted_sum")
def weighted_sum(items: list[Tensor], weights: Tensor, factor: float = 1.0) -> Tensor:
    """Return the sum of factor * weights[i] * items[i]."""
    out = torch.zeros_like(items[0])
    for i, item in enumerate(items):
        out += factor * weights[i] * item
    return out


@weighted_sum.backward
def _(ctx, grad):
    items, weights = ctx.saved_tensors
    need_items, need_weights, _ = ctx.needs_input_grad
    assert len(need_items) == len(items) == len(ctx.shapes[0])
    grads = [ctx.factor * weights[i] * grad if need else None for i, need in enumerate(need_items)]
    return grads, torch.stack([ctx.factor * (grad * item).sum() for item in items]) if need_weights else None, None


@rawkern.op("rawkern_test::tracked", mutates_args=("total",), save=())
def tracked(x: Tensor, total: Tensor) -> Tensor:
    """Return 2 * x and add x to the total."""
    out = torch.empty_like(x)
    kernel("add_to", x.dtype).forall(x.numel())(x, 1.0, total, x.numel())
    kernel("scale", x.dtype).forall(x.numel())(x, 2.0, 0, out, x.numel())
    return out


@tracked.backward
def _(ctx, grad):
    return scale(grad, 2.0), None


@rawkern.op("rawkern_test::descend", mutates_args=("params",))
def descend(params: list[Tensor], grads: list[Tensor], rate: float) -> None:
    """Subtract rate * grads from the parameters."""
    for param, grad in zip(params, grads, strict=True):
        kernel("add_to", param.dtype).forall(param.numel())(grad, -rate, param, param.numel())
