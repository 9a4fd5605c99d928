"""Memory that addresses in tensors lead to, copies of a launch's arguments in host memory, and memory put back."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch

from rawkern.arguments.addresses import HOLDERS, live, storage
from rawkern.base.nested import mapped, tensors_in
from rawkern.base.storage import tensor_over

MOST_WORDS = 1 << 22  # of a tensor that are looked at
_LOWEST, _HIGHEST = 1 << 16, 1 << 56  # of what may be an address


def tensors_behind(given: Iterable[torch.Tensor], device: str) -> list[torch.Tensor]:
    """Live tensors, one per storage, whose addresses the `given` ones contain; and so on from those.

    An address of memory that no Python tensor owns (NumPy's, or freed memory) leads to nothing.
    """
    given = list(given)
    return reached(given, (), device, {storage(t)[0] for t in given})


def reached(
    given: Iterable[torch.Tensor], values: Iterable[Any], device: str, seen: set[int] | None = None
) -> list[torch.Tensor]:
    """What `tensors_behind` finds, also from numbers and bytes; storages `seen`, by their start, are passed over."""
    work: list[Any] = [t for t in given if t.dtype in HOLDERS and t.device.type == device]
    work.append(_numbers(values))
    seen, found = seen or set(), []
    ranges: list[tuple[int, int, torch.Tensor]] | None = None
    starts = ends = np.empty(0, dtype=np.uint64)
    while work:
        words = _words(one) if isinstance(one := work.pop(), torch.Tensor) else one
        words = words[(words > _LOWEST) & (words < _HIGHEST)]
        if device == "cpu" and len(words) and ranges is None:
            words = _mapped(words)
        if not len(words):
            continue
        if ranges is None:
            ranges = sorted(live(device).values(), key=lambda entry: entry[0])
            if not ranges:
                return []
            starts = np.array([entry[0] for entry in ranges], dtype=np.uint64)
            ends = np.array([entry[0] + entry[1] for entry in ranges], dtype=np.uint64)
        which = np.searchsorted(starts, words, side="right") - 1
        for k in np.unique(which[(which >= 0) & (words < ends[which])]).tolist():
            if ranges[k][0] not in seen:
                seen.add(ranges[k][0])
                found.append(ranges[k][2])
                if ranges[k][2].dtype in HOLDERS:
                    work.append(ranges[k][2])
    return found


def still_reached(known: Iterable[torch.Tensor], values: Iterable[int | bytes]) -> list[torch.Tensor]:
    """The tensors among those found before to whose memory an address in `values` leads."""
    words, found = _numbers(values), []
    for t in known:
        start, size = storage(t)
        if ((words >= start) & (words < start + size)).any():
            found.append(t)
    return found


def _numbers(values: Iterable[Any]) -> np.ndarray:
    """Values of arguments, integers and bytes, as 64-bit numbers; without those that cannot be addresses."""
    parts = [np.empty(0, np.uint64)]
    for value in values:
        if isinstance(value, bytes):
            parts.append(np.frombuffer(value, np.uint64, len(value) // 8))
        elif isinstance(value, int) and _LOWEST < value < _HIGHEST:
            parts.append(np.array([value], np.uint64))
    return np.concatenate(parts)


def _words(t: torch.Tensor) -> np.ndarray:
    """A tensor's bytes as 64-bit numbers."""
    flat = t.detach().reshape(-1).view(torch.uint8)
    flat = flat[: min(flat.numel() // 8, MOST_WORDS) * 8].cpu()
    return flat.numpy().view(np.uint64)


def _mapped(words: np.ndarray) -> np.ndarray:
    """The numbers that are addresses of the process, where the system tells; to look for all tensors takes long."""
    try:
        with open("/proc/self/maps") as f:
            pairs = [line.split(" ", 1)[0].split("-") for line in f]
    except OSError:
        return words
    edges = np.array([int(edge, 16) for pair in pairs for edge in pair if int(edge, 16) < _HIGHEST], dtype=np.uint64)
    return words[np.searchsorted(edges, words, side="right") % 2 == 1]


class Copies:
    """Copies of CUDA arrays in host memory; those that share memory share it in the copies, too.

    Addresses of GPU memory in int64 tensors are replaced by those of the copies.
    """

    def __init__(self, given: Any) -> None:
        self.storages: dict[int, tuple[int, torch.UntypedStorage]] = {}  # by address on the GPU: size and copy
        self.behind: list[torch.Tensor] = []  # copies of what addresses lead to
        tensors = [t for t in tensors_in(given) if t.is_cuda]
        for t in tensors_behind(tensors, "cuda"):
            self.behind.append(self.tensor(t))
        holders = [self.tensor(t) for t in tensors if t.dtype in HOLDERS]
        for t in [*holders, *(b for b in self.behind if b.dtype in HOLDERS)]:
            self._translate(t)

    def of(self, value: Any) -> Any:
        """A value with every CUDA array in it replaced by its copy."""
        return mapped(self._leaf, value)

    def _leaf(self, _: str, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self.tensor(value) if value.is_cuda else value
        if getattr(type(value), "__cuda_array_interface__", None) is not None:
            return self.tensor(torch.as_tensor(value, device="cuda"))
        if hasattr(value, "__dlpack_device__") and value.__dlpack_device__()[0] == 2:
            return self.tensor(torch.from_dlpack(value))
        return value

    def tensor(self, t: torch.Tensor) -> torch.Tensor:
        """The copy of a tensor."""
        t = t.detach()
        start, size = storage(t)
        if start not in self.storages:
            self.storages[start] = size, t.untyped_storage().cpu()
        return tensor_over(self.storages[start][1], t.dtype, t.storage_offset(), t.size(), t.stride())

    def _translate(self, holder: torch.Tensor) -> None:
        whole = tensor_over(holder.untyped_storage())
        words = whole[: whole.numel() // 8 * 8].numpy().view(np.uint64)
        for start, (size, copy) in self.storages.items():
            inside = (words >= start) & (words < start + size)
            words[inside] += np.uint64((copy.data_ptr() - start) % (1 << 64))


@contextlib.contextmanager
def as_before(memory: Iterable[tuple[int, int]]) -> Iterator[None]:
    """Let pieces of memory, starts and bytes, have their values again afterwards: the launch is made once more."""
    kept = [(start, ctypes.string_at(start, size)) for start, size in memory]
    try:
        yield
    finally:
        for start, values in kept:
            ctypes.memmove(start, values, len(values))
