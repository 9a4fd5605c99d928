"""Profiled launches: the instrument of builds that count what each instruction does, and its side of launches.

Counters belong to the memory of a block that a worker has, so workers share none, and are added up when a launch is
over: sums of integers, which are the same in any order. Accesses stay inside their memory, as in ordinary launches.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rawkern.engines.cpu.checker.bounds import Bounds, Memory
from rawkern.engines.cpu.profiler.layout import ACCESS, HEADS, NONE_HIGH, NONE_LOW, PROFILE, SECTOR, Tally

if TYPE_CHECKING:
    from rawkern.engines.cpu.analysis.plan import Plan
    from rawkern.engines.cpu.emit.function import FunctionLowering
    from rawkern.engines.cpu.profiler.counting import Counting

_FIELDS = {name: ACCESS.offset(name) // 8 for name, _ in ACCESS.fields}
_PATTERN = slice(_FIELDS["worst"], ACCESS.size // 8)  # fields that are of one request, and no counters
ALLOCATION = 512  # bytes to which a GPU's allocations are aligned


class Profiler(Bounds):
    """A build that counts."""

    name = "profile"
    own = (*Bounds.own, "rk_profile")
    rounds = False

    def __init__(self, plan: Plan):
        super().__init__(plan)
        self.tally = Tally()

    def watch(self, f: FunctionLowering) -> Counting:
        from rawkern.engines.cpu.profiler.counting import Counting

        return Counting(f, self.sites, self.numbers, self.tally)

    def table(self) -> dict[str, Any]:
        return super().table() | vars(self.tally)

    @classmethod
    def runtime(cls) -> str:
        from rawkern.engines.cpu.profiler.counting import runtime

        return f"{super().runtime()}\n{runtime()}"

    @classmethod
    def session(cls, target: Any) -> Counters:
        return Counters(target)


class Counters(Memory):
    """The counters of one kernel with one shape of block, which one launch at a time has."""

    layout = PROFILE

    def __init__(self, target: Any):
        table = target.code.table
        self._zero = np.zeros(table["words"], np.int64)
        for access in table["accesses"]:
            self._zero[access["at"] + _FIELDS["low"]] = NONE_LOW
            self._zero[access["at"] + _FIELDS["high"]] = NONE_HIGH
        self._blocks: list[np.ndarray] = []
        self._rows: Any = None
        self._maps: list[np.ndarray] = []
        super().__init__(target)
        self.start(())

    def block(self, shared_total: int) -> int:
        """Memory for a block: where its warps' calls begin, then the counters, in lines of the cache of their own."""
        whole = np.zeros(HEADS // 8 + len(self._zero) + 32, np.int64)
        skip = -whole.ctypes.data % 128 // 8
        counters = whole[skip + HEADS // 8 :][: len(self._zero)]
        counters[:] = self._zero
        self._blocks.append(counters)
        return counters.ctypes.data - HEADS

    def start(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Set all counters to nothing; `ranges`: memory as starts and bytes, apart, whose sectors are told apart."""
        for counters in self._blocks:
            counters[:] = self._zero
        rows, self._maps = [], []
        for start, size in ranges:
            touched = np.zeros((size + SECTOR - 1) // SECTOR + 1, np.uint8)
            self._maps.append(touched)
            rows += [start, size, -start % ALLOCATION, touched.ctypes.data]
        rows += [0, (1 << 64) - 1, 0, 0]
        self._rows = (ctypes.c_uint64 * len(rows))(*rows)
        self.record.set(ranges=ctypes.addressof(self._rows))

    def counted(self) -> np.ndarray:
        """All counters, as `Profiler.table` places them."""
        every = np.stack(self._blocks)
        result = every.sum(0)
        for access in self.table["accesses"]:
            low, high, bits = (access["at"] + _FIELDS[name] for name in ("low", "high", "misaligned"))
            result[low], result[high] = every[:, low].min(), every[:, high].max()
            result[bits] = np.bitwise_or.reduce(every[:, bits])
            pattern = slice(access["at"] + _PATTERN.start, access["at"] + _PATTERN.stop)
            result[pattern] = max(every[:, pattern].tolist())  # of equal ones always the same
        return result

    def touched(self) -> list[int]:
        """Distinct sectors of each range that have been accessed."""
        return [int(np.count_nonzero(touched)) for touched in self._maps]


def access_counters(counters: np.ndarray, access: dict[str, Any]) -> dict[str, Any]:
    """The counters of one of the accesses of `Profiler.table`, by name; `lanes` are offsets by lane."""
    found: dict[str, Any] = {name: int(counters[access["at"] + k]) for name, k in _FIELDS.items()}
    mask, offsets = found.pop("mask"), counters[access["at"] + _FIELDS["lanes"] : access["at"] + _PATTERN.stop]
    found["lanes"] = {k: at for k, at in enumerate(offsets.view(np.int32).tolist()) if mask >> k & 1}
    times, known = found.pop("plain"), access["plain"]
    if times:
        found["shared"] += times
        found["wavefronts"] += times * known["wavefronts"]
        found["wavefronts_ideal"] += times * known["wavefronts"]
        found["low"], found["high"] = min(found["low"], known["stride"]), max(found["high"], known["stride"])
    return found
