"""How kernels over rows (`cuda_src/row.cuh`) are instantiated and launched: threads of a row, packs, registers."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from rawkern.base.torch_private import has_memory
from rawkern.formulas.axes import PACK_BYTES
from rawkern.library.instances import kernel

WARP, BLOCK = 32, 1024  # values of G in row.cuh, besides 1
HELD = 4  # packs of 16 bytes that a GPU thread keeps in registers, twice as many of longer rows
THREADS = 256  # of a block that does not keep a row in registers
WARPS = 4  # of a block in which each warp does a row
# On the CPU a thread keeps as many elements of short rows as it has, or so many; longer rows stay in the cache.
CPU_WIDTH, CPU_SHORT, CPU_ELEMENTS = 4, (1, 2, 4, 8), 32
CPU_PACKS = 8  # that one of a large kernel keeps at most


@dataclass(frozen=True)
class Plan:
    """An instance of a kernel over rows, and its grid.

    Attributes
    ----------
    width, held, group : int
        V, P and G of row.cuh.
    grid, block : int or tuple of ints
        At least as many groups of threads as rows.
    launchers : dict
        What `run` has found for the plan before.
    """

    width: int
    held: int
    group: int
    grid: int
    block: int | tuple[int, int]
    launchers: dict[tuple[Any, ...], Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def arguments(self) -> str:
        """The template arguments V, P and G."""
        return f"{self.width}, {self.held}, {self.group}"


def plan(
    rows: int,
    n: int,
    inner: int,
    *tensors: Tensor,
    held: int = HELD,
    most_threads: int = BLOCK,
    cpu_held: int = CPU_ELEMENTS,
) -> Plan:
    """Return how to run a kernel over `rows` rows of `n` elements that are `inner` apart.

    Parameters
    ----------
    tensors
        What the kernel reads and writes in packs, all of one dtype; the first one's counts.
    held : int
        Packs of 16 bytes that a GPU thread may keep in registers.
    most_threads : int
        Of a block that does one row.
    cpu_held : int
        Packs that a CPU thread may keep: with many of them a large kernel takes seconds to compile.
    """
    x = tensors[0]
    if not x.is_cuda:
        held = cpu_held
    if symbolic(rows, n, inner):
        return _plan(1, 1, 1, x.element_size(), x.is_cuda, 1, held, most_threads)
    width = pack_width(n, *tensors) if inner == 1 else 1
    return _plan(rows, n, inner, x.element_size(), x.is_cuda, width, held, most_threads)


def pack_width(n: int, *tensors: Tensor, cpu: int = CPU_WIDTH) -> int:
    """Return the elements of a pack where rows of `n` elements of all tensors consist of aligned packs, else 1.

    A pack has 16 bytes on a GPU; on the CPU, where neighboring threads become vectors by themselves, `cpu` elements of
    at most 4 bytes.
    """
    x = tensors[0]
    full = PACK_BYTES // x.element_size()
    if not x.is_cuda:
        full = min(cpu, full) if x.element_size() <= 4 else 1
    if full <= 1 or symbolic(n) or n % full:
        return 1
    size = full * x.element_size()
    for t in tensors:
        if not has_memory(t) or t.data_ptr() % size:
            return 1
    return full


@functools.lru_cache(maxsize=4096)
def _plan(rows: int, n: int, inner: int, itemsize: int, on_gpu: bool, width: int, held: int, most_threads: int) -> Plan:
    if inner != 1:  # neighboring threads do neighboring rows
        block = 128 if on_gpu else WARP
        return Plan(1, 0, 1, -(-rows // block), block)
    if not on_gpu:
        each = next((few for few in CPU_SHORT if n <= WARP * few), CPU_ELEMENTS)
        packed = width if width <= each else 1
        if n > WARP * each or each * itemsize > 4 * CPU_ELEMENTS or each // packed > held:
            return Plan(width if held == CPU_ELEMENTS else 1, 0, WARP, rows, WARP)
        return Plan(packed, each // packed, WARP, rows, WARP)
    elements = held * PACK_BYTES // itemsize  # of a thread
    if n <= WARP * elements:
        return Plan(width, elements // width, WARP, -(-rows // WARPS), (WARP, WARPS))
    for each in (elements, 2 * elements):
        if n <= most_threads * each:
            threads = -(-n // each)
            return Plan(width, each // width, BLOCK, rows, -(-threads // WARP) * WARP)
    return Plan(width, 0, BLOCK, rows, THREADS)


def pieces(rows: int, n: int, inner: int, *tensors: Tensor) -> tuple[Plan, int]:
    """Return a plan that cuts rows into pieces, for kernels without reductions, and the elements of a piece."""
    found = plan(rows, n, inner, *tensors, cpu_held=CPU_PACKS)
    if symbolic(rows, n, inner) or found.group != BLOCK:
        return found, n
    full = PACK_BYTES // tensors[0].element_size()
    size = THREADS * HELD * full
    held = HELD * full // found.width
    return Plan(found.width, held, BLOCK, rows * -(-n // size), THREADS), size


@functools.cache
def multiprocessors(device: torch.device) -> int:
    """How many multiprocessors a GPU has."""
    return torch.cuda.get_device_properties(device).multi_processor_count


@functools.lru_cache(maxsize=4096)
def looping(found: Plan, device: torch.device, registers: int) -> tuple[Plan, int]:
    """Return a plan with a grid that fills the device once, in which groups do several rows, and how many groups.

    On the CPU that is a fixed number, so that results do not depend on the number of threads.
    """
    per_block = found.block[1] if isinstance(found.block, tuple) else 1
    threads = found.block if isinstance(found.block, int) else found.block[0] * per_block
    most = 16 if device.type == "cpu" else max(1, min(2048, 65536 // registers) // threads) * multiprocessors(device)
    grid = min(found.grid, most)
    return replace(found, grid=grid, launchers={}), grid * per_block


def run(file: str, template: str, x: Tensor, found: Plan, flag: bool, *args: Any) -> None:
    """Launch ``template<dtype of x, V, P, G, flag>`` of ``cuda_src/file.cu``."""
    key = file, template, x.dtype, flag
    launcher = found.launchers.get(key)
    if launcher is None:
        arguments = f"{found.arguments}, {'true' if flag else 'false'}"
        launcher = found.launchers[key] = kernel(file, template, x.dtype, arguments)[found.grid, found.block]
    launcher(*args)


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """What numbers of a dtype are added in: float64 for float64, else float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def contiguous(x: Tensor) -> Tensor:
    """Return `x`, or a copy where it is not contiguous or carries the lazy negative bit."""
    if x.is_neg():
        x = x.resolve_neg()
    return x.contiguous()


def sizes(x: Tensor, dim: int) -> tuple[int, int, int]:
    """Return rows, n and inner for rows along a dimension (not negative) of a contiguous tensor; 0-d counts as 1-d."""
    if x.dim() == 0:
        return 1, 1, 1
    shape = x.shape
    inner = 1 if dim == len(shape) - 1 else math.prod(shape[dim + 1 :])
    return (shape[0] if dim == 1 else math.prod(shape[:dim])) * inner, shape[dim], inner


def symbolic(*sizes: int) -> bool:
    """Whether a size stands for any: then nothing is launched, and it must not be compared."""
    return torch.SymInt in map(type, sizes)


def wrapped(name: str, dim: int, dims: int) -> int:
    """Return a dimension as an index from 0."""
    if type(dim) is int and 0 <= dim < dims:  # quickly
        return dim
    most = max(dims, 1)
    if not isinstance(dim, int):
        raise TypeError(f"{name}: dim is {type(dim).__name__}, it must be an int")
    if not -most <= dim < most:
        raise IndexError(f"{name}: dim is {dim}, the tensor has {dims} dimensions; pass one of {-most} to {most - 1}")
    return dim % most
