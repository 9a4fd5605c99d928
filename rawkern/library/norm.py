"""layer_norm and rms_norm over the last dimensions, alone or of a sum with a residual."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from rawkern.arguments.memory import reject_layout
from rawkern.base.overrides import overridable
from rawkern.library.instances import not_a_tensor
from rawkern.library.rows import CPU_PACKS, accumulator, contiguous, looping, plan, run
from rawkern.library.sum import column_sums
from rawkern.operators import op
from rawkern.operators.batching import in_front

BACKWARD_REGISTERS = 128  # of a thread of norm_backward, at most


@overridable
def layer_norm(
    input: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Return (x - mean) / sqrt(variance + eps) * weight + bias over the last dimensions; differentiable once.

    The variance is that of the population. Half types are computed in float32 and rounded once; sums over rows, for the
    gradients of weight and bias, are the same in every run.

    Parameters
    ----------
    input : torch.Tensor
        float16, bfloat16, float32 or float64, of any strides, on the CPU or a GPU.
    normalized_shape : int or sequence of int
        The sizes of the dimensions that are normalized together, the last ones of the input.
    weight, bias : torch.Tensor, optional
        Of that shape, of the input's dtype and device.
    eps : float
        Added to the variance.

    Returns
    -------
    torch.Tensor
        Of the input's shape and dtype, contiguous.

    Raises
    ------
    TypeError
        For another dtype, or something that is not a tensor.
    ValueError
        For shapes that do not fit.
    """
    dims = _checked("layer_norm", input, normalized_shape, weight=weight, bias=bias)
    return _narrowed(lambda x, w, b: _norm(x, w, b, dims, eps, False), input, weight, bias)


@overridable
def rms_norm(
    input: Tensor, normalized_shape: int | Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    """Return x / sqrt(mean(x * x) + eps) * weight over the last dimensions; differentiable once.

    Half types are computed in float32 and rounded once.

    Parameters
    ----------
    input, normalized_shape, weight
        As for `layer_norm`.
    eps : float, optional
        Added to the mean of the squares; by default that of the dtype it is computed in (2**-23, for float64 2**-52),
        as in torch.

    Returns
    -------
    torch.Tensor
        Of the input's shape and dtype, contiguous.

    Raises
    ------
    TypeError, ValueError
        As for `layer_norm`.
    """
    dims = _checked("rms_norm", input, normalized_shape, weight=weight)
    eps = _default_eps(input) if eps is None else eps
    return _narrowed(lambda x, w: _norm(x, w, None, dims, eps, True), input, weight)


@overridable
def add_layer_norm(
    input: Tensor,
    residual: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> tuple[Tensor, Tensor]:
    """Return ``layer_norm(s, ...)`` and s = input + residual, in one pass over memory; differentiable once.

    s is rounded to the input's dtype before it is normalized.

    Parameters
    ----------
    input, residual : torch.Tensor
        Of one shape, dtype and device, as for `layer_norm`.
    normalized_shape, weight, bias, eps
        As for `layer_norm`.

    Returns
    -------
    torch.Tensor
        The norm of the sum.
    torch.Tensor
        The sum.

    Raises
    ------
    TypeError, ValueError
        As for `layer_norm`.
    """
    dims = _checked("add_layer_norm", input, normalized_shape, residual=residual, weight=weight, bias=bias)
    return _narrowed(lambda x, r, w, b: _add_norm(x, r, w, b, dims, eps, False), input, residual, weight, bias)


@overridable
def add_rms_norm(
    input: Tensor,
    residual: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Return ``rms_norm(s, ...)`` and s = input + residual, in one pass over memory; differentiable once.

    s is rounded to the input's dtype before it is normalized.

    Parameters
    ----------
    input, residual : torch.Tensor
        Of one shape, dtype and device, as for `rms_norm`.
    normalized_shape, weight, eps
        As for `rms_norm`.

    Returns
    -------
    torch.Tensor
        The norm of the sum.
    torch.Tensor
        The sum.

    Raises
    ------
    TypeError, ValueError
        As for `rms_norm`.
    """
    dims = _checked("add_rms_norm", input, normalized_shape, residual=residual, weight=weight)
    eps = _default_eps(input) if eps is None else eps
    return _narrowed(lambda x, r, w: _add_norm(x, r, w, None, dims, eps, True), input, residual, weight)


def _narrowed(call: Callable[..., Any], x: Tensor, *others: Tensor | None) -> Any:
    """Call; where autocast leaves half types on the CPU beside float32 weights, compute in float32 and round once."""
    mixed = torch.is_autocast_enabled("cpu") and x.is_cpu and x.dtype.itemsize == 2
    if not mixed or all(t is None or t.dtype is x.dtype for t in others):
        return call(x, *others)
    found = call(*(t if t is None else t.float() for t in (x, *others)))
    return found.to(x.dtype) if isinstance(found, Tensor) else tuple(t.to(x.dtype) for t in found)


def _default_eps(x: Tensor) -> float:
    return torch.finfo(accumulator(x.dtype)).eps


def _checked(name: str, x: Any, shape: int | Sequence[int], **others: Any) -> int:
    """Return the number of normalized dimensions."""
    if not isinstance(x, Tensor):
        not_a_tensor(name, x)
    reject_layout(name, "input", x)
    shape, full = (shape,) if isinstance(shape, (int, torch.SymInt)) else tuple(shape), x.shape
    if not shape or len(shape) > len(full) or full[-len(shape) :] != shape:
        raise ValueError(f"{name}: normalized_shape is {shape}, which are not the last sizes of {tuple(full)}")
    for key, t in others.items():
        if t is None and key != "residual":
            continue
        if not isinstance(t, Tensor):
            raise TypeError(f"{name}: {key} is {type(t).__name__}, it must be a tensor")
        reject_layout(name, key, t)
        wanted = tuple(full) if key == "residual" else shape
        if t.shape != wanted:
            raise ValueError(f"{name}: {key} has shape {tuple(t.shape)}, it must be {wanted}")
        if t.dtype is not x.dtype and not torch.is_autocast_enabled(x.device.type):
            raise TypeError(f"{name}: {key} is {t.dtype}, the input is {x.dtype}; pass {key}.to({x.dtype})")
    return len(shape)


@op(
    "rawkern::norm",
    save=("x", "weight", "mean", "rstd"),
    hidden=("mean", "rstd"),
    autocast={"cuda": torch.float32},
)
def _norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, dims: int, eps: float, rms: bool
) -> tuple[Tensor, Tensor, Tensor]:
    out, _, mean, rstd = _forward(x, None, weight, bias, dims, eps, rms)
    return out, mean, rstd


@_norm.vmap
def _(
    info: Any, where: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, dims: int, eps: float, rms: bool
) -> Any:
    if where[1] is not None or where[2] is not None:
        return _norm.operator.one_by_one(info, where, x, weight, bias, dims, eps, rms)
    found = _norm.overload(in_front(x, where[0], info.batch_size), weight, bias, dims, eps, rms)
    return _of_items(info.batch_size, 1, found)


@_norm.backward
def _(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
    return _backward(ctx, grad_out, None, ctx.needs_input_grad[1:3], ctx.shapes[1:3])


@op(
    "rawkern::add_norm",
    save=("out1", "weight", "mean", "rstd"),
    hidden=("mean", "rstd"),
    autocast={"cuda": torch.float32},
)
def _add_norm(
    x: Tensor, residual: Tensor, weight: Tensor | None, bias: Tensor | None, dims: int, eps: float, rms: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return _forward(x, residual, weight, bias, dims, eps, rms)


@_add_norm.vmap
def _(
    info: Any,
    where: Any,
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    dims: int,
    eps: float,
    rms: bool,
) -> Any:
    if where[2] is not None or where[3] is not None:
        return _add_norm.operator.one_by_one(info, where, x, residual, weight, bias, dims, eps, rms)
    both = (in_front(t, d, info.batch_size) for t, d in zip((x, residual), where, strict=False))
    return _of_items(info.batch_size, 2, _add_norm.overload(*both, weight, bias, dims, eps, rms))


def _of_items(size: int, outputs: int, found: Sequence[Tensor]) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    """What the operators return for a batch, with each item's numbers of rows apart."""
    hidden = (t.view(size, t.numel() // max(size, 1)) for t in found[outputs:])
    return (*found[:outputs], *hidden), (0,) * len(found)


@_add_norm.backward
def _(ctx: Any, grad_out: Tensor | None, grad_summed: Tensor | None) -> tuple[Tensor | None, ...]:
    if grad_out is None:
        return grad_summed, grad_summed, None, None
    grad_x, *rest = _backward(ctx, grad_out, grad_summed, ctx.needs_input_grad[2:4], ctx.shapes[2:4])
    return grad_x, grad_x, *rest


def _forward(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    dims: int,
    eps: float,
    rms: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return out, x + residual (empty without a residual), mean (empty for rms) and rstd of each row."""
    x = contiguous(x)
    residual, weight, bias = _contiguous(residual, weight, bias)
    out = torch.empty_like(x)
    summed = torch.empty_like(x) if residual is not None else x.new_empty(0)
    rows, n = _sizes(x, dims)
    rstd = x.new_empty(rows, dtype=accumulator(x.dtype))
    mean = rstd.new_empty(0 if rms else rows)
    if x.numel():
        found = plan(rows, n, 1, *_there(x, residual, weight, bias), most_threads=512)
        to = None if residual is None else summed, None if rms else mean, rstd
        run("norm", "norm", x, found, rms, x, residual, weight, bias, out, *to, rows, n, eps)
    return out, summed, mean, rstd


def _backward(
    ctx: Any, grad_out: Tensor, grad_summed: Tensor | None, needs: Sequence[bool], shapes: Sequence[Any]
) -> tuple[Tensor | None, ...]:
    """Return the gradients of x (and of the residual, which is the same), weight and bias."""
    x, weight, mean, rstd = ctx.saved_tensors
    x, grad_out = contiguous(x), contiguous(grad_out)
    grad_x = torch.empty_like(x)
    rows, n = _sizes(x, ctx.dims)
    wanted = sum(needs)
    if not x.numel():
        sums = x.new_zeros((wanted, n))
    else:
        grad_summed, weight = _contiguous(grad_summed, weight)
        held = 1 if x.element_size() == 2 else 2  # the sums over rows need registers too
        found = plan(
            rows, n, 1, *_there(x, grad_out, grad_summed, weight), held=held, most_threads=256, cpu_held=CPU_PACKS
        )
        found, groups = looping(found, x.device, BACKWARD_REGISTERS)
        parts = rstd.new_empty((wanted, groups, n))
        to = grad_x, parts[0] if needs[0] else None, parts[-1] if needs[1] else None
        saved = x, weight, None if ctx.rms else mean, rstd
        run("norm", "norm_backward", x, found, ctx.rms, grad_out, grad_summed, *saved, *to, rows, n)
        sums = column_sums(parts, wanted, groups, n, x.dtype).view(wanted, n) if wanted else parts
    grads = iter(sums)
    return grad_x, *(next(grads).view(shape) if need else None for need, shape in zip(needs, shapes, strict=True))


def _sizes(x: Tensor, dims: int) -> tuple[int, int]:
    return math.prod(x.shape[: x.dim() - dims]), math.prod(x.shape[x.dim() - dims :])


def _contiguous(*tensors: Tensor | None) -> tuple[Tensor | None, ...]:
    return tuple(t if t is None else contiguous(t) for t in tensors)


def _there(*tensors: Tensor | None) -> tuple[Tensor, ...]:
    return tuple(t for t in tensors if t is not None)
