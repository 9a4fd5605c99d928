"""How a derived backward is launched: as the forward was; or by fewer blocks, which have sums of their own, or whose
threads have several elements each."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import torch

from rawkern.base import gpus
from rawkern.base.known import keep
from rawkern.errors import LaunchError
from rawkern.gradients.code.passes.unroll import Row
from rawkern.gradients.index.trips import counted
from rawkern.gradients.index.values import Unknown, at_most, number_of
from rawkern.gradients.text import ALIGNED, Text
from rawkern.launch.occupancy import occupancy

ROOM = 32 << 10  # bytes for the sums of a block, of which several are to run on a processor at a time
MANY = 512  # threads of a block that is enough for a processor of a GPU, so that its sums may have all the memory
FULL = 8  # blocks that a processor of a GPU runs at a time, so that fewer leave it waiting
STATIC = 1 << 10  # bytes of shared memory of reductions
KEPT = 96  # registers of a thread for its part of a row, from which on too few rows are on their way at a time
KEPT_BESIDE = 64  # the same of blocks of 1024 threads with a row in shared memory: some are spilled, which costs less


@dataclass(frozen=True)
class Launch:
    """A kernel and what it needs beyond the forward's arguments and the gradients."""

    kernel: Any
    grid: tuple[int, int, int]
    shared_mem: int
    numbers: Mapping[tuple[str, str], int]  # by kind and name of a parameter
    certain: Mapping[str, tuple[int, int]]  # of gradients that are set: which numbers are for certain
    fits: bool  # whether what the text assumes of a launch's numbers holds
    handed: Mapping[str, str]  # gradients that are an output's and are not set: of which
    copies: Mapping[str, str]  # what the kernel overwrites: of which
    tapes: Mapping[str, tuple[str, int]]  # memory that it fills: of which array's type, and how many numbers
    single: Launch | None = None  # for pointers that are not multiples of 16 bytes

    def run(self, block: tuple[int, int, int], given: Sequence[Any]) -> None:
        """Launch the kernel with its arguments."""
        chosen = self
        if self.single is not None and any(t.data_ptr() % ALIGNED for t in given if isinstance(t, torch.Tensor)):
            chosen = self.single
        chosen.kernel[chosen.grid, block, chosen.shared_mem](*given)

    def given(
        self, parameters: Sequence[tuple[str, str]], named: Mapping[str, Any], grads: Mapping[str, Any]
    ) -> list[Any]:
        """The arguments of the kernel with these parameters: the forward's, variables, gradients, its own numbers."""
        return [self._one(kind, name, named, grads) for kind, name in parameters]

    def _one(self, kind: str, name: str, named: Mapping[str, Any], grads: Mapping[str, Any]) -> Any:
        if (kind, name) in self.numbers:
            return self.numbers[kind, name]
        if kind == "copy":
            return named[self.copies[name]].clone()
        if kind == "tape":
            like, count = named[self.tapes[name][0]], self.tapes[name][1]
            return torch.empty(count, dtype=summed(like.dtype), device=like.device)
        return grads[name] if kind == "grad" else named[name]


class Backward:
    """The kernels of a derived text: one for each choice of gradients that blocks add up first."""

    def __init__(self, text: Text, make: Callable[[str], Any]) -> None:
        self.text, self._make = text, make
        self._kernels: dict[tuple[Any, ...], Any] = {}
        self._launches: dict[tuple[Any, ...], Launch] = {}

    def kernel(self, *choices: Any) -> Any:
        """The kernel of these choices, those of `Text.instance`."""
        if choices not in self._kernels:
            self._kernels[choices] = self._make(self.text.instance(*choices))
        return self._kernels[choices]

    def launch(self, named: Mapping[str, Any], grid: tuple[int, int, int], kept: Set[str] = frozenset()) -> Launch:
        """What to launch for a forward with these arguments and grid; kept by their numbers and sizes.

        `kept`: gradients that are set, though they are an output's.
        """
        device = next(t.device for t in named.values() if isinstance(t, torch.Tensor))
        sizes = [v.shape if isinstance(v, torch.Tensor) else v for v in named.values() if not isinstance(v, float)]
        may = {n: of for n, of in self.text.handed if n not in kept and _alike(named[n], named[of])}
        if not all(isinstance(size, int | torch.Size | None) for size in sizes):
            return self._launch(named, grid, device, may)
        key = (grid, device, *may, *sizes)
        found = self._launches.get(key)
        if found is None:
            found = self._launch(named, grid, device, may)
            keep(self._launches, key, found)
        return found

    def _launch(
        self, named: Mapping[str, Any], grid: tuple[int, int, int], device: torch.device, may: Mapping[str, str]
    ) -> Launch:
        text = self.text
        known = self._known(named, grid, may)
        handed = known["handed"]
        set_too = tuple(n not in handed for n, _ in text.handed)
        rows = times_of(text, named, grid), _specification(device)
        if not text.sums:
            shared_mem = text.shared_mem + (staged_bytes(text, named, grid) if text.staged else 0)
            single = Launch(self.kernel((), set_too, 1, *rows), grid, shared_mem, **known)
            each = _elements(device, math.prod(grid), text.each)
            if each == 1:
                return single
            chosen = self.kernel((), set_too, each, *rows)
            return Launch(chosen, (-(-grid[0] // each), *grid[1:]), text.shared_mem, **known, single=single)
        total, threads = math.prod(grid), math.prod(text.block)
        rooms = [(ROOM, gpus.STATIC_SHARED)]
        if threads >= MANY and device.type == "cuda":  # such a block may have a processor for itself
            whole = _specification(device).shared_per_block
            rooms.insert(0, (whole - STATIC, whole))
        for room, limit in rooms:
            taken, flags = 0, []
            for needed in _bytes_of_sums(text, named):
                flags.append(taken + needed <= room)
                taken += needed if flags[-1] else 0
            if any(flags) and total >= 2 * _processors(device):  # else a block would give what it has of one alone
                chosen = self.kernel(tuple(flags), set_too, 1, *rows)
                most = _at_a_time(device, threads, chosen.attributes, text.shared_mem + taken, limit)
                if total >= 2 * most > 0:
                    return Launch(chosen, (most, 1, 1), text.shared_mem + taken, **known)
        plain = self.kernel((False,) * len(text.sums), set_too, 1, *rows)
        return Launch(plain, (min(total, 2**31 - 1), 1, 1), text.shared_mem, **known)

    def _known(self, named: Mapping[str, Any], grid: tuple[int, int, int], may: Mapping[str, str]) -> dict[str, Any]:
        """What is known of a launch, whichever kernel it is of."""
        text = self.text
        numbers = {(k, n): named[n].numel() for k, n in text.parameters if k == "size"}
        numbers |= {(k, n): grid["xyz".index(n)] for k, n in text.parameters if k == "blocks"}
        times = trips_of(text, named, grid)
        numbers |= {("iterations", n): times[n] for k, n in text.parameters if k == "iterations"}
        certain = {n: s.certain(named, grid) for n, s in text.sets.items()}
        handed = {n: of for n, of in may.items() if certain[n][0] == 0 and certain[n][1] >= named[n].numel()}
        return {
            "numbers": numbers,
            "certain": certain,
            "handed": handed,
            "copies": {of: n for n, of in text.before.items()},
            "tapes": {
                n: (of, math.prod((*(times[k] for k in loops), *grid, *text.block)))
                for n, (of, loops) in text.tapes.items()
            },
            "fits": all(at_most(low, high, named, grid) for low, high in text.assumed),
        }


def summed(dtype: torch.dtype) -> torch.dtype:
    """The dtype of gradients while they are added up."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def begin(value: torch.Tensor, certain: tuple[int, int] | None, unset: float = 0.0) -> torch.Tensor:
    """Memory for the gradient of a tensor: zeros; where it is set for certain, `unset`, or anything if that is 0."""
    like = {"dtype": summed(value.dtype), "memory_format": torch.contiguous_format}
    if certain is None:
        return torch.zeros_like(value, **like)
    grad = torch.empty_like(value, **like)
    flat = grad.view(-1)
    end = min(certain[1], flat.numel())
    first = min(certain[0], end)
    if first:
        flat[:first].zero_()
    if end < flat.numel():
        flat[end:].zero_()
    if unset:
        flat[first:end].fill_(unset)
    return grad


def times_of(text: Text, named: Mapping[str, Any], grid: tuple[int, int, int]) -> tuple[int, ...]:
    """How often threads go through each of the text's rows; 0: too often to write it out, or it is not certain."""
    lengths = [number_of(row.length, named, grid) for row in text.rows]
    times = _times(lengths, [row.step for row in text.rows])
    return tuple(n if n <= row.most else 0 for n, row in zip(times, text.rows, strict=True))


def _times(lengths: Sequence[int | None], steps: Sequence[int]) -> list[int]:
    """How often a thread goes through rows of these lengths in these steps; 0 if a length is not certain."""
    return [-(-max(n or 0, 0) // step) for n, step in zip(lengths, steps, strict=True)]


def block_for(text: Text, named: Mapping[str, Any], grid: tuple[int, int, int]) -> tuple[int, bool] | None:
    """How many threads of a block suit the text's rows on a GPU, and whether a row is best in shared memory.

    None without rows of all threads, or certain lengths. The fewest threads whose registers hold their parts of a row:
    then most rows are on their way at a time, and reductions over the block wait for the fewest warps. Sums of a block
    need shared memory for each block, so blocks are larger, and largest where one has most of it. Where more than 256
    are needed, one row at a time is on its way, and one that is copied to shared memory in the background is faster
    than one that threads wait for.
    """
    lengths = [number_of(row.length, named, grid) for row in text.rows]
    if not lengths or None in lengths or any(row.step % text.block[0] for row in text.rows):
        return None
    if sum(_bytes_of_sums(text, named)) > ROOM:
        return 1024, False
    device = next(t.device for t in named.values() if isinstance(t, torch.Tensor))
    room = staged_bytes(text, named, grid) <= _specification(device).shared_per_block - STATIC
    few = (128, 256) if text.sums else (64, 128, 256)
    choices = [
        *((threads, False, KEPT) for threads in few),
        (512, True, KEPT),
        (1024, True, KEPT_BESIDE),
        (512, False, KEPT),
    ]
    for threads, stage, most in choices:
        if stage and (text.stageable is None or not room):
            continue
        times = _times(lengths, [row.step // text.block[0] * threads for row in text.rows])
        kept = [_kept(text, row, stage) for row in text.rows]
        if all(n <= row.most and n * k < most for n, k, row in zip(times, kept, text.rows, strict=True)):
            return threads, stage
    return 1024, False


def _kept(text: Text, row: Row, stage: bool) -> int:
    """How many registers a thread needs for each time it goes through a row, with what is staged or without."""
    if text.stageable is None or text.stageable.length != row.length:
        return row.kept
    return row.kept + (text.staged - stage) * text.stageable.registers


def _bytes_of_sums(text: Text, named: Mapping[str, Any]) -> list[int]:
    """What each of a block's sums takes of its shared memory."""
    return [size * (named[n].numel() if ("size", n) in text.parameters else 1) for n, size in text.sums]


def staged_bytes(text: Text, named: Mapping[str, Any], grid: tuple[int, int, int]) -> int:
    """How much shared memory the row needs that a text has there, or can have."""
    row = text.stageable
    return 0 if row is None else max(number_of(row.length, named, grid) or 0, 0) * row.bytes


def trips_of(text: Text, named: Mapping[str, Any], grid: tuple[int, int, int]) -> dict[str, int]:
    """How often the loops of tapes run at most, by their parameters."""
    try:
        found = counted(list(text.trips.values()), named, grid, text.block)
    except Unknown:
        numbers = ", ".join(f"{n}={v}" for n, v in named.items() if isinstance(v, int))
        raise LaunchError(
            f"{text.name} keeps what iterations read on a tape, and how many there are is not certain of {numbers}; "
            "pass numbers below 2^31, and steps above 0"
        ) from None
    return {n: found[trip.loop] for n, trip in text.trips.items()}


def _alike(a: Any, b: Any) -> bool:
    """Whether the gradient of one tensor may be that of another."""
    tensors = isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)
    return tensors and a.shape == b.shape and a.dtype == b.dtype and a.is_contiguous() and b.is_contiguous()


def _elements(device: torch.device, blocks: int, most: int) -> int:
    """How many elements a thread has best: on the CPU adjacent lanes of a warp are best adjacent in memory."""
    return most if device.type == "cuda" and blocks >= FULL * most * _processors(device) else 1


def _processors(device: torch.device) -> int:
    """How many blocks a device runs at a time at least."""
    if device.type != "cuda":
        return torch.get_num_threads()
    return torch.cuda.get_device_properties(device).multi_processor_count


def _specification(device: torch.device) -> gpus.Specification:
    """What a device's processors have; the CPU counts as a usual GPU."""
    if device.type != "cuda":
        return gpus.DEFAULT
    major, minor = torch.cuda.get_device_capability(device)
    return gpus.specification(f"sm_{major}{minor}") or gpus.DEFAULT


def _at_a_time(device: torch.device, threads: int, attributes: Mapping[str, int], dynamic: int, limit: int) -> int:
    """How many blocks of a kernel a device runs at a time; 0 if they need more shared memory than a limit."""
    shared = attributes["shared_size_bytes"] + dynamic
    if shared > limit:
        return 0
    if device.type != "cuda":
        return _processors(device)
    found = occupancy(_specification(device), threads, registers=attributes["num_regs"], shared=shared)
    return found.blocks * _processors(device)
