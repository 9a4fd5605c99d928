"""One profiled launch: run, and what each instruction did as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import Any

import numpy as np

from rawkern.arguments.slow_path import Bound
from rawkern.base.attributes import Attributes
from rawkern.base.forking import Lock
from rawkern.engines.cpu.mode import Mode
from rawkern.engines.cpu.profiler.instrument import Profiler, access_counters
from rawkern.engines.cpu.profiler.tracing import Tracer
from rawkern.errors import LaunchError

Dim3 = tuple[int, int, int]


@dataclass(frozen=True)
class Counts:
    """What a launch was counted to do: a build's table, and the counters that it tells of."""

    table: dict[str, Any]
    counters: np.ndarray

    def instructions(self) -> list[dict[str, Any]]:
        """What each instruction did, in order."""
        table, counters = self.table, self.counters
        found, rows = [], {}
        for number, block in enumerate(table["blocks"]):
            warps, lanes, diverged = (int(counters[block["at"] + k]) for k in range(3))
            for k, (text, lines, kind) in enumerate(block["instructions"]):
                ends = k == len(block["instructions"]) - 1 and block["branch"]
                row = {
                    "ptx": text, "function": block["function"], "lines": [tuple(line) for line in lines],
                    "warps": warps, "lanes": lanes, "float": kind, "accesses": [],
                    "branch": ends, "leaves": ends and block["leaves"], "loops": ends and block["loops"],
                    "diverged": diverged if ends else 0,
                }  # fmt: skip
                rows[number, k] = row
                found.append(row)
        for access in table["accesses"]:
            row = rows[access["block"], access["instruction"]]
            what = {name: access[name] for name in ("what", "space", "size", "root", "at")}
            row["accesses"].append(what | access_counters(counters, access))
        return found


def chosen(blocks: int, sample: int) -> np.ndarray:
    """The numbers of the blocks that stand for all: one of each of `sample` parts of the grid, always the same ones."""
    parts = [k * blocks // sample for k in range(sample + 1)]
    draw = Random(f"{blocks} blocks")
    return np.array([draw.randrange(first, after) for first, after in pairwise(parts)], np.int64)


class Profiled:
    """A kernel of a module, built so that it counts."""

    instrument = Profiler

    def __init__(self, module: Any, symbol: str, signature: Any, *, host: Any, mode: Mode) -> None:
        self.kernel = module.kernel(symbol, signature, host=host, mode=mode, instrument=self.instrument)
        self._lock = Lock()
        self._free: dict[tuple[Any, ...], list[Any]] = {}  # targets that no launch has, by what they are made for

    def run(
        self, grid: Dim3, block: Dim3, shared_mem: int, attributes: Attributes, bound: Bound,
        memory: Sequence[tuple[int, int]], sample: int | None = None,
    ) -> tuple[Counts, list[int]]:  # fmt: skip
        """Run a launch to its end; what it raises is raised.

        `memory`: what may be touched, in pieces apart from each other, as starts and bytes. `sample`: run so many of
        its blocks alone. Returns what was counted, and how many sectors of each piece were touched.
        """
        made_for = block, shared_mem, attributes
        target = self._target(*made_for)
        if sample is not None and (attributes.cooperative or target.code.spins or target.together > 1):
            raise LaunchError(
                f"{self.kernel.name}: sample is {sample} blocks, but blocks of this kernel wait for each other; "
                "profile it whole, with sample=None"
            )
        target.choose(None if sample is None else chosen(grid[0] * grid[1] * grid[2], sample))
        target.session.start(memory)
        target.run(grid, None, bound)  # one that raises is not used again
        found = Counts(target.session.table, target.session.counted()), target.session.touched()
        self._give_back(target, *made_for)
        return found

    def _target(self, *made_for: Any) -> Any:
        """One for a shape of block, bytes of dynamic shared memory and launch attributes."""
        with self._lock:
            free = self._free.setdefault(made_for, [])
            target = free.pop() if free else None
        return target or self.kernel.target(*made_for)

    def _give_back(self, target: Any, *made_for: Any) -> None:
        with self._lock:
            self._free[made_for].append(target)


@dataclass(frozen=True)
class Trace:
    """What some blocks of a launch did: counts, and requests to global memory in rows (`tracing.Writing`)."""

    counts: Counts
    rows: np.ndarray
    lost: int  # requests that there was no room for


class Traced(Profiled):
    """A kernel of a module, built so that it writes down its requests to memory."""

    instrument = Tracer

    def trace(
        self, grid: Dim3, block: Dim3, shared_mem: int, attributes: Attributes, bound: Bound,
        memory: Sequence[tuple[int, int]], blocks: Sequence[int],
    ) -> Trace:  # fmt: skip
        """Run these blocks of a launch alone, one after the other."""
        made_for = block, shared_mem, attributes
        target = self._target(*made_for)
        target.choose(np.array(blocks, np.int64))
        target.session.start(memory)
        target.run(grid, None, bound)
        rows, lost = target.session.rows()
        found = Trace(Counts(target.session.table, target.session.counted()), rows, lost)
        self._give_back(target, *made_for)
        return found

    def waits(self, block: Dim3, shared_mem: int, attributes: Attributes) -> bool:
        """Whether blocks of the kernel may wait for each other."""
        made_for = block, shared_mem, attributes
        target = self._target(*made_for)
        self._give_back(target, *made_for)
        return target.code.spins or target.together > 1
