"""How a derived backward is launched: as the forward was; or, where its blocks have sums of their own, by fewer."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from rawkern.base import gpus
from rawkern.gradients.analysis.coverage import at_most
from rawkern.gradients.text import Text
from rawkern.launch.occupancy import occupancy

ROOM = 32 << 10  # bytes for the sums of a block
MOST_KEPT = 64  # launches


@dataclass(frozen=True)
class Launch:
    """A kernel and what it needs beyond the forward's arguments and the gradients."""

    kernel: Any
    grid: tuple[int, int, int]
    shared_mem: int
    numbers: Mapping[tuple[str, str], int]  # by kind and name of a parameter
    certain: Mapping[str, tuple[int, int]]  # of gradients that are set: which numbers are for certain
    fits: bool  # whether what the text assumes of a launch's numbers holds

    def given(
        self, parameters: Sequence[tuple[str, str]], named: Mapping[str, Any], grads: Mapping[str, Any]
    ) -> list[Any]:
        """The arguments of the kernel with these parameters: the forward's, gradients, and its own numbers."""
        return [
            self.numbers[each] if each in self.numbers else named[each[1]] if each[0] == "value" else grads[each[1]]
            for each in parameters
        ]


class Backward:
    """The kernels of a derived text: one for each choice of gradients that blocks add up first."""

    def __init__(self, text: Text, make: Callable[[str], Any]) -> None:
        self.text, self._make = text, make
        self._kernels: dict[tuple[bool, ...], Any] = {}
        self._launches: dict[tuple[Any, ...], Launch] = {}

    def kernel(self, flags: tuple[bool, ...]) -> Any:
        """The kernel of a choice."""
        if flags not in self._kernels:
            self._kernels[flags] = self._make(self.text.instance(flags))
        return self._kernels[flags]

    def launch(self, named: Mapping[str, Any], grid: tuple[int, int, int]) -> Launch:
        """What to launch for a forward with these arguments and grid; kept by their numbers and sizes."""
        device = next(t.device for t in named.values() if isinstance(t, torch.Tensor))
        sizes = [v.numel() if isinstance(v, torch.Tensor) else v for v in named.values() if not isinstance(v, float)]
        if not all(isinstance(size, int | None) for size in sizes):
            return self._launch(named, grid, device)
        key = (grid, device, *sizes)
        if key not in self._launches:
            if len(self._launches) >= MOST_KEPT:
                self._launches.clear()
            self._launches[key] = self._launch(named, grid, device)
        return self._launches[key]

    def _launch(self, named: Mapping[str, Any], grid: tuple[int, int, int], device: torch.device) -> Launch:
        text = self.text
        numbers = {(k, n): named[n].numel() for k, n in text.parameters if k == "size"}
        numbers |= {(k, n): grid["xyz".index(n)] for k, n in text.parameters if k == "blocks"}
        known = {
            "numbers": numbers,
            "certain": {n: s.certain(named, grid) for n, s in text.sets.items()},
            "fits": all(at_most(low, high, named, grid) for low, high in text.assumed),
        }
        if not text.sums:
            return Launch(self.kernel(()), grid, text.shared_mem, **known)
        taken, flags = 0, []
        for name, size in text.sums:
            needed = size * numbers.get(("size", name), 1)
            flags.append(taken + needed <= ROOM)
            taken += needed if flags[-1] else 0
        total = math.prod(grid)
        if any(flags) and total >= 2 * _processors(device):  # else a block would give what it has of one alone
            chosen = self.kernel(tuple(flags))
            most = _at_a_time(device, math.prod(text.block), chosen.attributes, text.shared_mem + taken)
            if total >= 2 * most > 0:
                return Launch(chosen, (most, 1, 1), text.shared_mem + taken, **known)
        return Launch(self.kernel((False,) * len(flags)), (min(total, 2**31 - 1), 1, 1), text.shared_mem, **known)


def _processors(device: torch.device) -> int:
    """How many blocks a device runs at a time at least."""
    if device.type != "cuda":
        return torch.get_num_threads()
    return torch.cuda.get_device_properties(device).multi_processor_count


def _at_a_time(device: torch.device, threads: int, attributes: Mapping[str, int], dynamic: int) -> int:
    """How many blocks of a kernel a device runs at a time; 0 if none without leave for more shared memory."""
    shared = attributes["shared_size_bytes"] + dynamic
    if shared > gpus.STATIC_SHARED:
        return 0
    if device.type != "cuda":
        return _processors(device)
    major, minor = torch.cuda.get_device_capability(device)
    spec = gpus.specification(f"sm_{major}{minor}") or gpus.DEFAULT
    found = occupancy(spec, threads, registers=attributes["num_regs"], shared=shared)
    return found.blocks * _processors(device)
