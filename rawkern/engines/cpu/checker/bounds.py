"""Launches that stay inside their memory: the instrument of builds with comparisons (`guard`), and its side of launches."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from rawkern.arguments.memory import Piece
from rawkern.base.records import Filled, extents_at
from rawkern.engines.cpu.emit.instrument import Instrument, Session
from rawkern.engines.cpu.records import MEMORY

# What writes code is imported by what does: launches of code from the disk cache do not need it.
if TYPE_CHECKING:
    from rawkern.engines.cpu.analysis.plan import Plan
    from rawkern.engines.cpu.checker.guard import Guard
    from rawkern.engines.cpu.emit.function import FunctionLowering


class Bounds(Instrument):
    """A build whose accesses are compared with the memory that they may touch."""

    name = "bounds"

    def __init__(self, plan: Plan):
        super().__init__(plan)
        self.sites: dict[Any, int] = {}

    def watch(self, f: FunctionLowering) -> Guard:
        from rawkern.engines.cpu.checker.guard import Guard

        return Guard(f, self.sites)

    def table(self) -> dict[str, Any]:
        from rawkern.engines.cpu.checker.sites import table

        return table(self.plan, self.sites)

    @classmethod
    def linked(cls) -> str:
        from rawkern.engines.cpu.checker.guard import linked_text

        return linked_text()

    @classmethod
    def session(cls, target: Any) -> Memory:
        return Memory(target)


class Memory(Session):
    """What launches of one kernel with one shape of block may touch."""

    def __init__(self, target: Any):
        owner, table = target.owner, target.code.table
        self.signature, self.explain, self.known = owner.signature, owner.explain, owner.memory_at
        self.checks, self.globals_address = table, owner.globals_address
        self.pieces: tuple[Piece, ...] = ()
        self._told: list[tuple[int, int]] = []
        extents = extents_at(self.signature.size)
        rows = [
            (offset, extents + 16 * param.index)
            for param, offset in zip(self.signature.params, self.signature.offsets, strict=True)
            if param.is_pointer
        ]
        variables = sorted((owner.globals_address + at, size) for at, size, _ in table["variables"].values())
        self._tables = [_words(rows), _words(variables)]
        self._record = Filled(
            MEMORY, pointers=ctypes.addressof(self._tables[0]), npointers=len(rows),
            variables=ctypes.addressof(self._tables[1]), nvariables=len(variables),
        )  # fmt: skip
        self.address = self._record.address

    def ask(self, target: Any, k: int) -> None:
        """Tell a worker of memory that its lanes may touch after all, or end the launch."""
        ...


def _words(rows: list[tuple[int, int]]) -> Any:
    numbers = [x for row in rows for x in row]
    return (ctypes.c_uint64 * max(len(numbers), 1))(*numbers)
