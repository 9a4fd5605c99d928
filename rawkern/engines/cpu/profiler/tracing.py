"""Traced launches: a build that counts, writes requests to global memory down, and tells how its code hangs together.

Made for few blocks of a launch: a replay of their requests tells what caches hold. One worker runs them, so rows are in
the order in which blocks and warps run.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from rawkern.engines.cpu.analysis.graph import Block
from rawkern.engines.cpu.checker.sites import Site
from rawkern.engines.cpu.emit.forms import Form
from rawkern.engines.cpu.emit.function import FunctionLowering
from rawkern.engines.cpu.emit.instrument import Access
from rawkern.engines.cpu.ir import Val, const
from rawkern.engines.cpu.profiler.counting import Counting
from rawkern.engines.cpu.profiler.instrument import Counters, Profiler
from rawkern.engines.cpu.profiler.layout import ROW, Tally
from rawkern.engines.cpu.ptx.data import Imm, Instr, Mem
from rawkern.engines.cpu.ptx.operands import destinations, sources
from rawkern.engines.cpu.records import BLOCK

if TYPE_CHECKING:
    from rawkern.engines.cpu.emit.instrument import Session


class Writing(Counting):
    """A function whose requests are written down."""

    def __init__(self, f: FunctionLowering, sites: dict[Site, int], recent: Iterator[int], tally: Tally):
        super().__init__(f, sites, recent, tally)
        self._numbers = {}  # of accesses, by where their counters stand

    def _add(self, index: int, block: Block) -> None:
        super()._add(index, block)
        every = [*block.instrs]
        if block.ending is not None and not block.guards:
            every.append(block.ending)
        self.tally.blocks[-1] |= {
            "registers": [[destinations(i), sources(i)] for i in every],
            "addresses": [_address(i) for i in every],
            "carried": block.copies.get(index, []),
            "targets": [self.first + t for t in block.targets],
        }

    def _addresses(self, a: Access, form: Form, mask: Val) -> None:
        super()._addresses(a, form, mask)
        if self.space_of(a) not in ("global", "generic"):
            return
        f, e = self.f, self.f.e

        def packed(low: Val, high: Val) -> Val:
            return e.bin("or", e.resize(low, "i64"), e.bin("shl", e.resize(high, "i64"), 32))

        who = packed(Val("%warp", "i32"), const("i32", self.slot_at(a)))
        x, y, z = (f.frame.field(BLOCK, axis) for axis in "xyz")
        lanes = self.whole(form, a.at)
        self.tell("rk_profile_trace", Val("%launch", "ptr"), who, packed(mask, x), packed(y, z), lanes)


def _address(instr: Instr) -> list[Any] | None:
    """Register or variable that the address of an access is made of, and the offset from there."""
    found = next((a for a in instr.args if isinstance(a, Mem)), None)
    return None if found is None or isinstance(found.base, Imm) else [found.base.name, found.offset]


class Tracer(Profiler):
    """A build that writes requests down."""

    name = "trace"

    def watch(self, f: FunctionLowering) -> Writing:
        return Writing(f, self.sites, self.numbers, self.tally)

    @classmethod
    def session(cls, target: Any) -> Session:
        return Rows(target)


class Rows(Counters):
    """The counters of one kernel, and the rows of its launch."""

    parallel = False
    room = 1 << 18  # rows

    def start(self, ranges: Any) -> None:
        super().start(ranges)
        self._written = np.empty((self.room, ROW), np.int64)
        self.record.set(trace=self._written.ctypes.data, room=self.room)

    def rows(self) -> tuple[np.ndarray, int]:
        """The requests that were written down, and how many there was no room for; they are kept no longer."""
        left = int(np.int64(self.record["room"]))
        written, self._written = self._written, np.empty((0, ROW), np.int64)
        return written[: self.room - max(0, left)], max(0, -left)
