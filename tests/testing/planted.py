"""Operators with one defect each, and what `check_kernel` has to say of them; and correct ones of every kind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

import rawkern

kernels = rawkern.RawModule(r"""
#include <cuda_fp16.h>
#define I blockIdx.x * (long long)blockDim.x + threadIdx.x
template <class T> __global__ void twice(const T* x, T* out, long long n) {
    long long i = I;
    if (i < n) out[i] = x[i] + x[i];
}
template <class T> __global__ void twice_and_more(const T* x, T* out, long long n) {
    long long i = I;
    if (i < n) { out[i] = x[i] + x[i]; if (i == 0) out[n + 2] = 2; }
}
template <class T> __global__ void twice_here(T* x, long long n) {
    long long i = I;
    if (i < n) x[i] = x[i] + x[i];
}
template <class T> __global__ void twice_and_clear(T* x, T* out, long long n) {
    long long i = I;
    if (i < n) { out[i] = x[i] + x[i]; if (i == 3) x[i] = 0; }
}
template <class T> __global__ void sum_of_neighbors(const T* x, T* out, long long n) {
    long long i = I;
    if (i < n) out[i] = x[i] + x[i + 1];
}
template <class T> __global__ void twice_by_the_first_warp(const T* x, T* out, long long n) {
    __shared__ T both[64];
    long long i = I;
    for (int j = threadIdx.x; threadIdx.x < 32 && j < 64 && i - threadIdx.x + j < n; j += 32)
        both[j] = x[i - threadIdx.x + j];
    if (i < n) out[i] = x[i] + both[threadIdx.x];  // a barrier is missing before
}
template <class T> __global__ void count(const T* x, T* out, long long n) {
    long long i = I;
    if (i < n) atomicAdd(out, x[i]);
}
template <class T> __global__ void squares(const T* x, T* out, long long n) {
    long long i = I;
    if (i < n) out[i] = x[i] * x[i];
}
template <class T> __global__ void squares_backward(const T* g, const T* x, T* out, long long n, T factor) {
    long long i = I;
    if (i < n) out[i] = g[i] * factor * x[i];
}
""")
NAMES = {
    torch.float16: "__half",
    torch.float32: "float",
    torch.float64: "double",
    torch.int32: "int",
    torch.int64: "long long",
}


def kernel(name: str, dtype: torch.dtype) -> rawkern.RawKernel:
    if dtype not in NAMES:
        raise TypeError(f"{name}: there is no kernel for {dtype}")
    return kernels.get_function(f"{name}<{NAMES[dtype]}>")


def launch(name: str, x: Tensor, *args: Any, blocks: int | None = None, **kwargs: Any) -> None:
    blocks = -(-x.numel() // 64) if blocks is None else blocks
    if blocks:
        kernel(name, x.dtype)((blocks,), (64,), (x, *args), **kwargs)


def reference(x: Tensor) -> Tensor:
    return 2 * x


def forgotten_barrier(x: Tensor) -> Tensor:
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    launch("twice_by_the_first_warp", x.contiguous(), out, x.numel())
    return out


# Correct --------------------------------------------------------------------------------------------------------------


def plain(x: Tensor) -> Tensor:
    """A function that launches a kernel, rejects tensors that are not contiguous, and supports float and double."""
    out = torch.empty_like(x)
    launch("twice", x, out, x.numel())
    return out


def in_place(x: Tensor) -> None:
    launch("twice_here", x, x.numel())


def squared(x: Tensor) -> Tensor:
    x = x.contiguous()
    out = torch.empty_like(x)
    kernel("squares", x.dtype).forall(x.numel())(x, out, x.numel())
    return out


@rawkern.op("rawkern_planted::squares")
def squares(x: Tensor) -> Tensor:
    return squared(x)


@squares.backward
def _(ctx: Any, grad: Tensor) -> Tensor:
    return 2 * grad * ctx.saved_tensors[0]


@rawkern.op("rawkern_planted::twice_", mutates_args=("x",))
def twice_(x: Tensor) -> None:
    """In place, by way of a copy."""
    copy = x.contiguous()
    kernel("twice_here", x.dtype).forall(x.numel())(copy, x.numel())
    if copy is not x:
        x.copy_(copy)


@twice_.backward
def _(ctx: Any, grad: Tensor) -> Tensor:
    return 2 * grad


# Wrong ----------------------------------------------------------------------------------------------------------------


def ignores_strides(x: Tensor) -> Tensor:
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    base = torch.as_strided(x, (x.numel(),), (1,))  # as a kernel with strided=True that takes no strides
    launch("twice", base, out, x.numel())
    return out


def writes_past_the_end(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    launch("twice_and_more", x, out, x.numel())
    return out


def leaves_the_last(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    launch("twice", x, out, x.numel() - 1)
    return out


def leaves_the_last_by_method(x: Tensor) -> Tensor:
    out = x.new_empty(x.shape)
    launch("twice", x, out, x.numel() - 1)
    return out


def adds_to_what_is_there(x: Tensor) -> Tensor:
    out = torch.empty(1, dtype=x.dtype, device=x.device)
    launch("count", x, out, x.numel())
    return out


def whole_blocks_only(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    launch("twice", x, out, x.numel(), blocks=x.numel() // 64)
    return out


def reads_past_the_end(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    launch("sum_of_neighbors", x, out, x.numel())
    return out


def neighbors(x: Tensor) -> Tensor:
    return torch.nn.functional.pad(x, (0, 1))[1:] + x


def empty_grid(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    kernel("twice", x.dtype)[-(-x.numel() // 64), 64](x, out, x.numel())
    return out


def no_mean_of_nothing(x: Tensor) -> Tensor:
    return 2 * x if x.numel() else torch.ones(1, dtype=x.dtype, device=x.device)


def wrong_in_half(x: Tensor) -> Tensor:
    return 2 * x if x.dtype != torch.float16 else 2.01 * x


def crashes_in_double(x: Tensor) -> Tensor:
    return {torch.float32: 2 * x, torch.float16: 2 * x, torch.bfloat16: 2 * x}[x.dtype]


@rawkern.op("rawkern_planted::first_alone")
def first_alone(x: Tensor) -> tuple[Tensor, Tensor]:
    return 2 * x, 3 * x


@first_alone.backward
def _(ctx: Any, g: Tensor, h: Tensor) -> Tensor:
    return 2 * g + 3 * h  # None where a result is not used


def ignores_strides_of_gradients(x: Tensor) -> Tensor:
    if x.dtype != torch.float32 or not x.is_contiguous():
        raise ValueError("x must be contiguous float32")
    return _IgnoresStrides.apply(x)


class _IgnoresStrides(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return plain(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return ignores_strides(grad)


def rejects_gradients(x: Tensor) -> Tensor:
    return _RejectsGradients.apply(x)


class _RejectsGradients(_IgnoresStrides):
    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return plain(grad)


_buffers: dict[Any, Tensor] = {}


def keeps_its_result(x: Tensor) -> Tensor:
    out = _buffers.setdefault((x.shape, x.dtype, x.device), torch.empty_like(x))
    launch("twice", x, out, x.numel())
    return out


def counts_into_new_memory(x: Tensor) -> Tensor:
    found = torch.empty(4, dtype=torch.int64, device=x.device)
    return found.index_add_(0, torch.arange(x.numel(), device=x.device) % 4, torch.ones_like(x, dtype=torch.int64))


def counted(x: Tensor) -> Tensor:
    return torch.bincount(torch.arange(x.numel()) % 4, minlength=4)


def random(x: Tensor) -> Tensor:
    return x + torch.rand_like(x)


def in_float(x: Tensor) -> Tensor:
    return 2.00000001 * x


def total_in_new_memory(x: Tensor) -> Tensor:
    out = torch.empty((), dtype=x.dtype, device=x.device)
    launch("count", x, out, x.numel())
    return out


def changes_its_input(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    launch("twice_and_clear", x, out, x.numel())
    return out


def on_the_default_device(x: Tensor) -> Tensor:
    out = torch.empty(x.shape, dtype=x.dtype)
    launch("twice", x, out, x.numel())
    return out


def on_the_default_stream(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    stream = torch.cuda.default_stream(x.device) if x.is_cuda else None
    launch("twice", x, out, x.numel(), stream=stream)
    return out


def waits_for_the_device(x: Tensor) -> Tensor:
    return 2 * x if x.sum().item() != 0.125 else x


_calls = [0]


def another_each_time(x: Tensor) -> Tensor:
    _calls[0] += 1
    return 2 * x * (1 + 4e-7 * (_calls[0] % 5)) if x.dtype == torch.float32 else 2 * x


@rawkern.op("rawkern_planted::wrong_gradient")
def wrong_gradient(x: Tensor) -> Tensor:
    return squared(x)


@wrong_gradient.backward
def _(ctx: Any, grad: Tensor) -> Tensor:
    (x,) = ctx.saved_tensors
    grad_x = torch.empty_like(x)
    kernel("squares_backward", x.dtype).forall(x.numel())(grad, x, grad_x, x.numel(), 1.0)
    return grad_x


@torch.library.custom_op("rawkern_planted::wrong_fake", mutates_args=())
def wrong_fake(x: Tensor) -> Tensor:
    return plain(x)


@wrong_fake.register_fake
def _(x: Tensor) -> Tensor:
    return x.new_empty((*x.shape, 1))


@torch.library.custom_op("rawkern_planted::hidden_change", mutates_args=())
def hidden_change(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    launch("twice_and_clear", x, out, x.numel())
    return out


@torch.library.custom_op("rawkern_planted::no_fake", mutates_args=())
def no_fake(x: Tensor) -> Tensor:
    return plain(x)


hidden_change.register_fake(lambda x: torch.empty_like(x))


@rawkern.op("rawkern_planted::breaks_when_compiled")
def breaks_when_compiled(x: Tensor) -> Tensor:
    return torch.ones(x.shape, dtype=x.dtype, device=x.device) if x.sum() > 1e9 else 2 * x


@dataclass(frozen=True)
class Planted:
    """A wrong operator.

    Attributes
    ----------
    checks : tuple of str
        Those that fail, all of them.
    says : str
        A regular expression for the error's text.
    """

    op: Callable[..., Any]
    checks: tuple[str, ...]
    says: str
    reference: Callable[..., Any] = reference
    options: dict[str, Any] = field(default_factory=dict)
    shape: tuple[int, ...] = (128,)
    gpu: bool = False
    on_a_gpu: tuple[tuple[str, ...], str] | None = None  # checks and words there, where they differ


PLANTED = [
    Planted(ignores_strides, ("layout",), r"layout: output\[.*\n.*every other element: x (1x2|2x1)$", shape=(6, 11)),
    Planted(
        writes_past_the_end,
        ("guard",),
        r"guard: .*(memory after out is overwritten, 2 elements from its end.*checked, )?.*out\[3\]; out has 1 ",
    ),
    Planted(leaves_the_last, ("unwritten",), r"output\[0\] is never written \(1 of 1 elements\)"),
    Planted(leaves_the_last_by_method, ("unwritten",), r"output\[0\] is never written \(1 of 1 elements\)"),
    Planted(adds_to_what_is_there, ("reference",), "is nan, it should be", lambda x: x.sum().reshape(1)),
    Planted(
        whole_blocks_only, ("size",), r"size: output\[0\] is nan, it should be.*\n.*x 1 .*\n *and with: 257 in place"
    ),
    Planted(
        reads_past_the_end,
        ("guard",),
        r"guard: OutOfBoundsError: .*x\[1\]; x has 1 element",
        neighbors,
        on_a_gpu=(("reference",), r"output\[0\] is nan, it should be"),
    ),
    Planted(empty_grid, ("empty",), r"empty: ValueError: .*grid.*\n.*x (0x1|1x0) ", shape=(6, 11)),
    Planted(no_mean_of_nothing, ("empty",), r"empty: output has shape \(1,\), not \(0,\)"),
    Planted(wrong_in_half, ("dtype",), r"dtype: output\[\d+\] is .*, it should be .*\n.*float16, contiguous: x [12]$"),
    Planted(crashes_in_double, ("dtype",), "dtype: KeyError: torch.float64"),
    Planted(changes_its_input, ("input",), r"x\[3\] is changed, which is not declared.*\n.*x 4$"),
    Planted(hidden_change, ("input", "opcheck"), r"x\[3\] is changed"),
    Planted(on_the_default_device, ("default_device",), r"with torch.set_default_device\('(meta|cuda)'\): "),
    Planted(on_the_default_stream, ("stream", "graph"), r"output\[\d+\] is nan, it should be", gpu=True),
    Planted(waits_for_the_device, ("graph",), "graph: .*Error", gpu=True),
    Planted(
        first_alone,
        ("gradient", "gradcheck"),
        r"gradient: TypeError: .*NoneType.*, if only output 0 is used\n.*x 1$",
        lambda x: (2 * x, 3 * x),
    ),
    Planted(
        ignores_strides_of_gradients,
        ("layout",),
        r"layout: the gradient of x.*\n.*contiguous: x (1x2|2x1|2x2) \(gradients transposed\)",
        shape=(6, 11),
    ),
    Planted(rejects_gradients, ("layout",), r"layout: (Type|Value)Error: .*contiguous.*\n.*\(gradients", shape=(6, 11)),
    Planted(keeps_its_result, ("repeat",), r"repeat: a call with other values changes .*\n.*x 1$"),
    Planted(counts_into_new_memory, ("reference",), r"reference: output\[\d\] is never written.*\n.*x 1$", counted),
    Planted(random, ("reference",), r"two calls with the same inputs also differ: pass random numbers, or their seed"),
    Planted(in_float, ("dtype",), r"dtype: output\[0\] is (-?[\d.]+), it should be (?!\1)-?[\d.]+\n.*x 1$"),
    Planted(total_in_new_memory, ("reference",), "output is nan, it should be", torch.sum),
    Planted(another_each_time, ("repeat",), "of two calls .* differs", options={"deterministic": True}),
    Planted(
        wrong_gradient,
        ("gradient", "gradcheck"),
        r"(?s)gradient: the gradient of x.*it should be.*gradcheck: .*float64, contiguous: x 3$",
        torch.square,
    ),
    Planted(wrong_fake, ("opcheck",), "test_faketensor"),
    Planted(no_fake, ("opcheck",), r"opcheck: \S+: test_faketensor, test_aot_dispatch_dynamic: There was no fake"),
    Planted(breaks_when_compiled, ("opcheck", "compile"), "compile: "),
]
