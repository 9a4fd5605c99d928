"""embedding: rows of a table by index; its gradient is added up in one order, whatever the run."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from rawkern.arguments.memory import reject_layout
from rawkern.base.overrides import overridable
from rawkern.engines.devices import overlaps
from rawkern.errors import LaunchError
from rawkern.library.instances import check_index, kernel
from rawkern.library.rows import WARP, WARPS, accumulator, contiguous, multiprocessors, pack_width, symbolic
from rawkern.operators import op

CHUNK = 32  # of embedding.cu
THREADS = 256  # of a block of the backward, at most
SORTING, DIGITS = 1024, 256  # of embedding.cu
ITEMS = (4, 8, 16)  # that a sorting thread may take
# What indices are sorted as, by the number of entries: a sort takes a pass over them for each of their bytes.
KEYS = ((1 << 15, torch.int16, "short"), (1 << 31, torch.int32, "int"), (1 << 63, torch.int64, "long long"))


@overridable
def embedding(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """Return the rows of ``weight`` selected by ``input``; differentiable once, with respect to the table.

    The gradients of an entry that is named several times are added in float32 (float64 for float64), in the order of
    their positions: the same in every run.

    Parameters
    ----------
    input : torch.Tensor
        int64 or int32 indices, of any shape; 0 <= index < entries. Another index stops the kernel with an assertion.
    weight : torch.Tensor
        The table, (entries, n), float16, bfloat16, float32 or float64.
    padding_idx : int, optional
        An entry that gets no gradient; a negative one counts from the end.
    max_norm, norm_type, scale_grad_by_freq, sparse
        As in `torch.nn.functional.embedding`, but only with their defaults.

    Returns
    -------
    torch.Tensor
        The input's shape and n; of the table's dtype, contiguous.

    Raises
    ------
    TypeError
        For other dtypes, or something that is not a tensor.
    ValueError
        For another shape of the table, a padding_idx outside it, or an option that is not supported.
    IndexError
        For an index outside the table, on the CPU; on a GPU its assertion fails, and later calls report it.
    """
    for key, t in (("input", input), ("weight", weight)):
        if not isinstance(t, Tensor):
            raise TypeError(f"embedding: {key} is {type(t).__name__}, it must be a tensor")
        reject_layout("embedding", key, t)
    if input.dtype not in (torch.int64, torch.int32):
        raise TypeError(f"embedding: input is {input.dtype}, it must be int64 or int32 indices; pass input.long()")
    if weight.dim() != 2:
        raise ValueError(f"embedding: weight has shape {tuple(weight.shape)}, it must be (entries, n)")
    if max_norm is not None or scale_grad_by_freq or sparse:
        raise ValueError(
            "embedding: max_norm, scale_grad_by_freq and sparse are not supported; use torch's embedding for them"
        )
    padding = -1
    if padding_idx is not None:
        entries = weight.shape[0]
        if not -entries <= padding_idx < entries:
            raise ValueError(f"embedding: padding_idx is {padding_idx}, the table has {entries} entries")
        padding = padding_idx % entries
    return _embedding(input if input.dtype is torch.int64 else input.long(), weight, padding)


@op("rawkern::embedding", save=("index",))
def _embedding(index: Tensor, weight: Tensor, padding: int) -> Tensor:
    index, weight = index.contiguous(), contiguous(weight)
    count, (entries, n) = index.numel(), weight.shape
    out = weight.new_empty((*index.shape, n))
    width, rows, grid = pack_width(n, weight, out, cpu=1), 1, 1
    if not symbolic(count, n):
        rows = WARPS if weight.is_cuda else 1
        grid = -(-count // rows)
        if not out.numel():
            return out
    chosen = kernel("embedding", "embedding", weight.dtype, str(width))
    try:
        chosen[grid, (WARP, rows)](index, weight, out, count, entries, n)
    except LaunchError:
        check_index("embedding", "input", index, entries, "entries")
        raise
    return out


@_embedding.vmap
def _(info: Any, dims: Any, index: Tensor, weight: Tensor, padding: int) -> Any:
    if dims[1] is not None:
        return _embedding.operator.one_by_one(info, dims, index, weight, padding)
    return _embedding.overload(index.movedim(dims[0], 0), weight, padding), 0


@_embedding.backward
def _(ctx: Any, grad_out: Tensor) -> tuple[None, Tensor]:
    (index,) = ctx.saved_tensors
    entries, n = ctx.shapes[1]
    grad_out = contiguous(grad_out)
    count = index.numel()
    if not symbolic(count, n) and not grad_out.numel():
        return None, grad_out.new_zeros((entries, n))
    grad_weight = grad_out.new_empty((entries, n))
    short, key = next((dtype, name) for most, dtype, name in KEYS if symbolic(entries) or entries <= most)
    width, grid, block = pack_width(n, grad_out, grad_weight, cpu=1), (1, 1), WARP
    chunks, clearing = (count + CHUNK - 1) // CHUNK, (entries + CHUNK - 1) // CHUNK
    if not symbolic(count, n):
        packs = -(-n // width)
        block = min(THREADS, -(-packs // WARP) * WARP) if grad_out.is_cuda else WARP
        grid = (chunks, -(-packs // block))
    instance, programmatic = f"{width}, {key}", overlaps(grad_out.device)
    items = 0
    if grad_out.is_cuda and not symbolic(count, n, entries):
        items = _items(count, entries, grad_out.device)
    if items:  # which clears, too
        keys, order = index.new_empty(count, dtype=short), index.new_empty(count)
        sort = kernel("embedding", "embedding_sort", grad_out.dtype, f"{instance}, {items}", programmatic=programmatic)
        flat, bits, packs = index.reshape(-1).contiguous(), (entries - 1).bit_length(), entries * n // width
        launcher = sort[multiprocessors(grad_out.device), SORTING, sorting_bytes(items)]
        launcher(flat, keys, order, grad_weight, count, bits, packs)
        clearing = 0
    else:
        keys, order = torch.sort(index.reshape(-1).to(short), stable=True)
    edges = grad_out.new_empty((chunks, 2, n), dtype=accumulator(grad_out.dtype))
    sums = kernel("embedding", "embedding_sums", grad_out.dtype, instance, programmatic=programmatic)
    sums[(grid[0] + clearing, grid[1]), block](
        grad_out, keys, order, grad_weight, edges, count, chunks, entries, n, ctx.padding
    )
    joined = kernel("embedding", "embedding_edges", grad_out.dtype, instance, programmatic=programmatic)
    joined[grid, block](keys, edges, grad_weight, count, n, ctx.padding)
    return None, grad_weight


def sorting_bytes(items: int) -> int:
    """Return the size of Sorting<items> in embedding.cu."""
    counts = (SORTING // WARP + SORTING // DIGITS) * DIGITS
    return 2 * counts + 4 * (DIGITS // WARP + SORTING * items)


@functools.lru_cache(maxsize=1024)
def _items(count: int, entries: int, device: torch.device) -> int:
    """Return how many indices a thread of `embedding_sort` takes, 0 where one block can't sort them."""
    room = torch.cuda.get_device_properties(device).shared_memory_per_block_optin
    for items in ITEMS:
        if count <= SORTING * items and entries * SORTING * items <= 1 << 32 and sorting_bytes(items) <= room:
            return items
    return 0
