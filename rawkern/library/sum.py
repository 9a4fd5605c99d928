"""sum and mean over dimensions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from rawkern.base.overrides import overridable
from rawkern.engines.devices import overlaps
from rawkern.library.instances import C_NAMES, kernel, not_a_tensor
from rawkern.library.rows import (
    BLOCK,
    THREADS,
    WARP,
    WARPS,
    accumulator,
    contiguous,
    multiprocessors,
    pack_width,
    symbolic,
    wrapped,
)
from rawkern.operators import op
from rawkern.operators.batching import in_front

LOADS = 4  # of row.cuh
LONG_COLUMNS = 2048  # elements of columns that are worth more and smaller blocks
RESIDENT = {8: 5, 4: 8, 2: 8, 1: 8}  # those blocks of V columns a thread that a multiprocessor holds at once
CPU_PART = 1 << 16  # elements that are worth a block of their own on the CPU


@overridable
def sum(
    input: Tensor,
    dim: int | Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Return the sum over some or all dimensions; differentiable any number of times.

    Half types are added in float32 and rounded once. The order of additions depends on shape and device alone, so the
    result is the same in every run.

    Parameters
    ----------
    input : torch.Tensor
        float16, bfloat16, float32 or float64, of any shape and strides, on the CPU or a GPU.
    dim : int or sequence of int, optional
        The dimensions to sum over; None or () for all.
    keepdim : bool
        Whether these dimensions stay, with size 1.
    dtype : torch.dtype, optional
        The dtype to which the input is converted first.

    Returns
    -------
    torch.Tensor
        Of the input's dtype and device; 0 where nothing is added.

    Raises
    ------
    TypeError
        For another dtype, or something that is not a tensor.
    IndexError, ValueError
        There is no such dimension, or it is named twice.
    """
    return _reduced("sum", input, dim, keepdim, dtype)


@overridable
def mean(
    input: Tensor,
    dim: int | Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Return the mean over some or all dimensions; differentiable any number of times.

    Half types are added in float32 and rounded once.

    Parameters
    ----------
    input, dim, keepdim, dtype
        As for `sum`.

    Returns
    -------
    torch.Tensor
        Of the input's dtype and device; NaN where nothing is added.

    Raises
    ------
    TypeError, IndexError, ValueError
        As for `sum`.
    """
    return _reduced("mean", input, dim, keepdim, dtype)


def _reduced(name: str, x: Any, dim: Any, keepdim: bool, dtype: torch.dtype | None) -> Tensor:
    if not isinstance(x, Tensor):
        not_a_tensor(name, x)
    if dtype is not None:
        x = x.to(dtype)
    given = () if dim is None else (dim,) if isinstance(dim, int) else tuple(dim)
    dims = sorted(wrapped(name, d, x.dim()) for d in given)
    if len(set(dims)) != len(dims):
        raise ValueError(f"{name}: dim is {given}, which names a dimension twice")
    dims = [] if x.dim() == 0 else dims or list(range(x.dim()))
    out = _sum(x, dims, name == "mean")
    return out.view([1 if d in dims else size for d, size in enumerate(x.shape)]) if keepdim else out


@op("rawkern::sum", save=())
def _sum(x: Tensor, dims: list[int], average: bool) -> Tensor:
    """The sum or mean over `dims` (sorted, from 0), without these dimensions."""
    order, outer, n, inner = _arranged(x.shape, dims)
    shape = [x.shape[d] for d in range(x.dim()) if d not in dims]
    x = contiguous(x if order is None else x.permute(order))
    if not symbolic(outer, n, inner) and not x.numel():
        return x.new_full(shape, math.nan if average else 0.0)
    scale = 1 / n if average and not symbolic(n) else 1.0
    if inner == 1:
        return row_sums(x, outer, n, x.dtype, scale).view(shape)
    return column_sums(x, outer, n, inner, x.dtype, scale).view(shape)


@_sum.vmap
def _(info: Any, where: Any, x: Tensor, dims: list[int], average: bool) -> tuple[Tensor, int]:
    return _sum.overload(in_front(x, where[0], info.batch_size), [d + 1 for d in dims], average), 0


@_sum.backward
def _(ctx: Any, grad_out: Tensor) -> Tensor:
    return _spread(grad_out, list(ctx.shapes[0]), ctx.dims, ctx.average)


@op("rawkern::sum_spread", save=())
def _spread(grad_out: Tensor, shape: list[int], dims: list[int], average: bool) -> Tensor:
    """A tensor of a shape in which each element has what its sum has; for a mean divided by n."""
    order, _, n, inner = _arranged(shape, dims)
    grad_out = contiguous(grad_out)
    grad = grad_out.new_empty(shape if order is None else [shape[d] for d in order])
    scale = 1 / max(n, 1) if average and not symbolic(n) else 1.0
    width = 1 if symbolic(n, inner) or not grad.is_cuda else pack_width(n if inner == 1 else inner, grad_out, grad)
    packs = grad.numel() // width
    spread = kernel("sum", "spread", grad.dtype, str(width), programmatic=overlaps(grad.device))
    spread.forall(packs)(grad_out, grad, packs, n, inner, scale)
    return grad if order is None else grad.permute([order.index(d) for d in range(len(shape))])


@_spread.vmap
def _(info: Any, where: Any, grad_out: Tensor, shape: list[int], dims: list[int], average: bool) -> tuple[Tensor, int]:
    grad_out = in_front(grad_out, where[0], info.batch_size)
    return _spread.overload(grad_out, [info.batch_size, *shape], [d + 1 for d in dims], average), 0


@_spread.backward
def _(ctx: Any, v: Tensor) -> Tensor:
    return _sum(v, ctx.dims, ctx.average)


def _arranged(shape: Sequence[int], dims: Sequence[int]) -> tuple[list[int] | None, int, int, int]:
    """Return the order of dimensions in which `dims` lie together (None where they do), and outer, n, inner then."""
    kept = [d for d in range(len(shape)) if d not in dims]
    order, before = None, len(kept)
    if dims and dims[-1] - dims[0] + 1 == len(dims):
        before = dims[0]
    elif dims:
        order = [*kept, *dims]
    outer, n, inner = (math.prod(shape[d] for d in part) for part in (kept[:before], dims, kept[before:]))
    return order, outer, n, inner


def row_sums(x: Tensor, rows: int, n: int, dtype: torch.dtype, scale: float = 1.0) -> Tensor:
    """Return `scale` times the sums of `rows` rows of `n` elements, in `dtype`; x is contiguous, not empty."""
    width, group, threads, sums, grid = 1, WARP, WARP, 1, 1  # threads of a sum, sums of a block
    parts, size = 1, n
    if not symbolic(rows, n):
        parts = _row_parts(x, rows, n)
        width = pack_width(n, x) if x.is_cuda else 1
        size = -(-n // parts)
        packs = -(-size // width)
        if x.is_cuda and packs >= 8 * WARP:
            group, threads = BLOCK, min(THREADS, -(-packs // (LOADS * WARP)) * WARP)
        elif x.is_cuda:
            sums = WARPS
        if parts > 1:  # whole rounds of all threads, so the last parts may be empty
            round_of_all = width * LOADS * threads
            size = -(-size // round_of_all) * round_of_all
        grid = -(-rows * parts // sums)
    last = parts == 1
    out = x.new_empty(rows * parts, dtype=dtype if last else accumulator(x.dtype))
    arguments = f"{C_NAMES.get(out.dtype)}, {width}, {group}"
    add = kernel("sum", "sum_rows", x.dtype, arguments, programmatic=overlaps(x.device))
    add[grid, (threads, sums)](x, out, rows, n, parts, size, scale if last else 1.0)
    return out if last else row_sums(out, rows, parts, dtype, scale)


def column_sums(x: Tensor, outer: int, n: int, inner: int, dtype: torch.dtype, scale: float = 1.0) -> Tensor:
    """Return `scale` times the sums over n of `x`, outer x n x inner, in `dtype`; x is contiguous, not empty."""
    width, parts, sharing, grid = 1, 1, 1, 1
    if not symbolic(outer, n, inner):
        if x.is_cuda:
            width = pack_width(inner, x)
            sharing = min(WARP if n < LONG_COLUMNS else WARP // 4, 1 << (n - 1).bit_length())
        tiles = outer * -(-inner // (WARP * width))
        wanted = multiprocessors(x.device) * (RESIDENT[width] if sharing < WARP else 2) if x.is_cuda else 16
        parts = _parts(wanted, tiles, n // (16 * sharing))
        while width > 1 and 8 * tiles * parts < 7 * multiprocessors(x.device):
            width //= 2  # narrower tiles, so that there is about one for each multiprocessor
            tiles = outer * -(-inner // (WARP * width))
        grid = tiles * parts
    out = x.new_empty(outer * parts * inner, dtype=dtype if parts == 1 else accumulator(x.dtype))
    arguments = f"{C_NAMES.get(out.dtype)}, {width}"
    columns = kernel("sum", "sum_columns", x.dtype, arguments, programmatic=overlaps(x.device))
    columns[grid, (WARP, sharing)](x, out, n, inner, parts, scale if parts == 1 else 1.0)
    return out if parts == 1 else column_sums(out, outer, parts, inner, dtype, scale)


def _row_parts(x: Tensor, rows: int, n: int) -> int:
    if symbolic(rows, n):
        return 1
    if x.is_cuda:
        return _parts(8 * multiprocessors(x.device), rows, n // (16 * THREADS))
    return _parts(64, rows, n // CPU_PART)


def _parts(wanted: int, pieces: int, most: int) -> int:
    """Into how many parts each of `pieces` sums is cut so that there are about `wanted` pieces of work."""
    return max(1, min(wanted // pieces, most))
