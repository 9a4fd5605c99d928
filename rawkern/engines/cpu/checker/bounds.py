"""Launches that stay inside their memory: the instrument of builds with comparisons (`guard`), its side of launches."""

from __future__ import annotations

import ctypes
import itertools
import os
import weakref
from array import array
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from rawkern.arguments.memory import Piece
from rawkern.arguments.rules import member_pointers
from rawkern.base.records import LISTED, Filled, extents_at, listed_at, start_of
from rawkern.base.table import table
from rawkern.engines.cpu.checker import recall
from rawkern.engines.cpu.checker.findings import Finding, Place
from rawkern.engines.cpu.emit.instrument import READ, Instrument, Session
from rawkern.engines.cpu.records import BLOCK, FRAME, HEAP, LAUNCH, MEMORY
from rawkern.engines.cpu.runtime import host_calls
from rawkern.engines.cpu.runtime.workers import Mapping, Workers
from rawkern.errors import LaunchError

# What writes code is imported by what does: launches of code from the disk cache do not need it.
if TYPE_CHECKING:
    from rawkern.arguments.signature import Param
    from rawkern.base.ctype import CType
    from rawkern.engines.cpu.analysis.plan import Plan
    from rawkern.engines.cpu.checker.guard import Guard
    from rawkern.engines.cpu.emit.function import FunctionLowering

_HOLDS = ("pointer", "void", "struct")  # kinds of parameters that may hold addresses, besides integers
PATTERN = ("rk_fill", "rk_begin")  # functions of `pattern`, which what writes code imports
ALL = (1 << 64) - 1
HEAP_BYTES, HEAP_PIECES = 16 << 30, 1 << 22  # of the device heap; taken from the system when used

Ranges = Sequence[tuple[int, int]]  # of memory, starts and sizes


class Bounds(Instrument):
    """A build whose accesses are compared with the memory that they may touch."""

    name = "bounds"
    own = ("rk_guard", "rk_heap", *PATTERN)

    def __init__(self, plan: Plan):
        super().__init__(plan)
        self.sites: dict[Any, int] = {}
        self.numbers = itertools.count()  # of accesses of memory that is not known when code is made

    def watch(self, f: FunctionLowering) -> Guard:
        from rawkern.engines.cpu.checker.guard import Guard

        return Guard(f, self.sites, self.numbers)

    def table(self) -> dict[str, Any]:
        from rawkern.engines.cpu.checker.guard import frames, uses_heap
        from rawkern.engines.cpu.checker.sites import table

        return table(self.plan, self.sites) | {
            "frames": frames(self.plan), "heap": uses_heap(self.plan), "unknown": next(self.numbers),
        }  # fmt: skip

    def block_begins(self) -> str:
        from rawkern.engines.cpu.checker.pattern import block_begins

        return block_begins(self.plan)

    @classmethod
    def linked(cls) -> str:
        from rawkern.engines.cpu.checker.pattern import DECLARATIONS

        return DECLARATIONS

    @classmethod
    def runtime(cls) -> str:
        from rawkern.engines.cpu.checker.guard import runtime

        return runtime()

    @classmethod
    def session(cls, target: Any) -> Memory:
        return Memory(target)


class Memory(Session):
    """What launches of one kernel with one shape of block may touch; `target` is their `runtime.grid.Target`."""

    layout = MEMORY  # of the record that kernels find; an instrument that adds to this one has a longer one

    def __init__(self, target: Any):
        owner, self.table = target.owner, target.code.table
        self._owner, self._of = owner, weakref.ref(target)  # which holds this
        self._recent = array("Q", [0] * (self.table["unknown"] + 1))
        self._recalled: list[recall.Recalled] = []  # the last is that of the record
        self._led = False  # whether an answer has asked the host for tensors
        self._heads: list[array[int]] = []  # of the chains of calls of each block's warps
        #: Where among the parameters addresses stand: their names and types, the parameters; the members of structs.
        self._pointers: dict[int, tuple[str, CType, str]] = {}
        self._members: set[int] = set()
        for param, offset in zip(owner.signature.params, owner.signature.offsets, strict=True):
            if param.address is not None:
                self._pointers[offset] = param.name, param.address, param.name
                continue
            for name, at, passed in member_pointers(param.ctype, param.name, offset):
                self._pointers[at] = name, passed, param.name
                self._members.add(at)
        rows = [(offset, extents_at(owner.signature.size, offset)) for offset in self._pointers]
        self._variables = {
            name: Piece(name, owner.globals_address + at, size, 0, space == "const")
            for name, (at, size, space) in self.table["variables"].items()
        }
        own = (
            Piece("the grid's barrier", start_of(target.grid_sync), 64, 1, False),
            Piece("the parameters", target.params_address, owner.signature.size, 1, True),
        )
        self._fixed = (*self._variables.values(), *own)
        if self.table["heap"]:
            _open_heap()
        self._tables: dict[str, Any] = {"pointers": _words(rows)}
        self.record = Filled(
            self.layout, pointers=start_of(self._tables["pointers"]), npointers=len(rows),
            heap=_heap().address, recent=start_of(self._recent), nrecent=len(self._recent),
            listed=target.params_address + listed_at(owner.signature.size),
        )  # fmt: skip
        readable, writable = ([(p.address, p.size) for p in self._fixed if not p.read_only or all_] for all_ in (1, 0))
        self.record.set(nvariables=self._put("variables", readable, writable))
        self._put("told", [], [])
        self.address = self.record.address

    @property
    def _target(self) -> Any:
        return self._of()

    def block(self, shared_total: int) -> int:
        if not self.table["frames"]:
            return 0
        self._heads.append(array("Q", [0] * self._target.nwarps))
        return start_of(self._heads[-1])

    def usual(self, pieces: Sequence[Piece]) -> bool:
        """Whether what addresses lead to is what it is for native launches.

        Not if a list of tensors tells more, or if a tensor map is for reads alone.
        """
        listed = any(p.parameter is None and p.part for p in pieces)
        return not listed and not any(p.locked or (p.mapped and p.read_only) for p in pieces)

    def listed(self, pieces: Sequence[Piece]) -> tuple[int, Any]:
        """The memory that lists of tensors lead to, so that a launch need not ask for it."""
        if not self.begin:  # nothing has been asked yet
            return 0, None
        listed = [p for p in pieces if p.parameter is None and p.size and not p.mapped]
        locked = [p for p in pieces if p.locked]
        own = [p for p in listed if not p.read_only]
        readable = [(p.address, p.size) for p in listed]
        writable = [
            (p.address, p.size) for p in own if not any(p.address < x.end and x.address < p.end for x in locked)
        ]
        count, tables = self._tables_of(readable, writable)
        read, written = (start_of(table) + 16 for table in tables)
        found = Filled(LISTED, count=count, readable=read, writable=written)
        return found.address, (found, tables)

    def ask(self, worker: int, reason: str, pieces: Sequence[Piece]) -> None:
        """Tell a worker of memory that its lanes may touch after all, or raise what they have done."""
        host, self._led = self._owner.host, False
        self._answer(worker, reason, pieces)
        if not (begin := recall.entry()):
            return
        if self._led and host is not None and self.usual(pieces):
            self._recall(host.led_to())
        elif not self._recalled:
            self._recall(())
        self.begin = begin
        ctypes.c_uint64.from_address(self._target.record_address + LAUNCH.offset("begin")).value = begin

    def _answer(self, worker: int, reason: str, pieces: Sequence[Piece]) -> None:
        target = self._target
        workers = target.workers
        if not any(p.parameter is not None for p in pieces):  # of a native launch
            pieces = [*pieces, *(self._argument(offset) for offset in self._members if self._extent(offset))]
        site = self.table["sites"][workers.get(worker, "request_site", "=i")]
        meant, known = self._meant(site, pieces)
        writes = site["what"] != READ
        told = self._told(writes)
        for lane in host_calls.lanes(workers, worker):
            address = host_calls.argument(workers, worker, "request_a", lane)
            if reason == "BOUNDS" and not known and not address % site["align"]:
                if any(start <= address <= start + size - site["size"] for start, size in told):
                    continue
                if meant is None:
                    ranges = self._near(address, pieces, writes)
                else:
                    ranges = [(meant.address, meant.size)] if not (writes and meant.read_only) else []
                if any(start <= address <= start + size - site["size"] for start, size in ranges):
                    self._tell(ranges, writes)
                    told = self._told(writes)
                    continue
            start = host_calls.argument(workers, worker, "request_b", lane)
            thread, block = host_calls.place(workers, worker, lane, target.block)
            piece = meant
            if meant is None and writes and site["space"] not in ("shared", "local"):
                every = (p for p in self._pieces(pieces) if p.read_only)
                piece = next((p for p in every if p.address <= address < p.end), None)
            kind, piece, offset = self._fault(reason, site, address, start, piece)
            if site["space"] == "local" and not site["root"]:  # of another function
                site = site | {"space": "generic"}
            finding = Finding(kind, Place(site, thread, block, lane), piece, offset, None)
            host = self._owner.host
            raise host.explain(finding) if host is not None else LaunchError(f"{self._owner.name}: {finding}")

    def readable(self, worker: int, lane: int, address: int, pieces: Sequence[Piece]) -> int:
        return room(address, self._own(worker, lane)) or room(address, self._near(address, pieces, False))

    def _own(self, worker: int, lane: int) -> Iterator[tuple[int, int]]:
        """The block's shared memory, and a lane's local variables in the calls under way."""
        workers, field = self._target.workers, FRAME.offset
        block = workers.get(worker, "request_block")
        yield from shared_ranges(workers, worker, self.table)
        heads = _word(block + BLOCK.offset("session"))
        node = _word(heads + 8 * workers.get(worker, "request_warp", "=i")) if heads else 0
        while node:
            size = _word(node + field("size"))
            yield _word(node + field("low")) + lane * size, size
            node = _word(node + field("before"))

    def _told(self, writes: bool) -> Ranges:
        """The memory that the launch has been told of, which it may read, or also write."""
        record = self.record["told_writable" if writes else "told"]
        count = ctypes.c_int64.from_address(self._target.record_address + LAUNCH.offset("told")).value
        rows = [(_word(record + 16 * k), _word(record + 16 * k + 8)) for k in range(count)]  # some are empty
        return [row for row in rows if row[1]]

    def _tell(self, ranges: Ranges, writes: bool) -> None:
        """Add memory to what the launch may read, or also write, until it ends."""
        count = ctypes.c_int64.from_address(self._target.record_address + LAUNCH.offset("told"))
        readable, writable = [*self._told(False), *ranges], [*self._told(True), *(ranges if writes else ())]
        count.value = self._put("told", readable, writable)

    def _recall(self, refs: Sequence[weakref.ref[Any]]) -> None:
        """Have the launches that follow know of tensors that addresses have led to, as long as the same ones do."""
        found = recall.Recalled(refs, list(self._places()), self._recalled[-1] if self._recalled else None)
        self._recalled = [*self._recalled, found]  # an interrupt may leave the record as it was
        self.record.set(ntensors=0)
        self.record.set(table=table(), **found.fields)
        self.record.set(ntensors=found.count)
        self._recalled = [found]

    def _places(self) -> Iterator[recall.Words]:
        """Where among the arguments and variables of a launch addresses may stand."""
        start, signature = self._target.params_address, self._owner.signature
        for param, offset in zip(signature.params, signature.offsets, strict=True):
            if param.address is None:
                known = 0 if offset % 8 else start + extents_at(signature.size, offset)
                yield recall.Words(recall.words_at(start + offset, param.ctype.size), start + offset, known=known)
            elif _may_hold(param):
                piece, extent = self._argument(offset), extents_at(signature.size, offset)
                if piece.address:
                    words = recall.words_at(piece.address, piece.size)
                    yield recall.Words(words, start + offset, start + extent)
        for piece in self._variables.values():
            yield recall.Words(recall.words_at(piece.address, piece.size), piece.address)

    def _put(self, name: str, readable: Ranges, writable: Ranges) -> int:
        """Have tables of memory that may be read, and be written, in the record; returns how many rows each has."""
        rows, new = self._tables_of(readable, writable)
        self._tables[name] = [*new, *self._tables.get(name, ())]  # an interrupt may leave the record as it was
        starts = (start_of(table) + 16 for table in new)
        self.record.set(**dict(zip((name, f"{name}_writable"), starts, strict=True)))
        self._tables[name] = new
        ctypes.memset(start_of(self._recent), 0, 8 * len(self._recent))
        return rows

    def _tables_of(self, readable: Ranges, writable: Ranges) -> tuple[int, list[array[int]]]:
        """Tables of memory that may be read, and be written, of as many rows each, after an empty one."""
        tables = _joined(readable), _joined(writable)
        rows = max(map(len, tables))
        return rows, [_words([(0, 0), *table, *[(ALL, 0)] * (rows - len(table))]) for table in tables]

    def _pieces(self, pieces: Sequence[Piece]) -> Iterator[Piece]:
        """What arguments and variables are; `pieces` are what arguments lead to, if that is known."""
        yield from pieces
        yield from map(self._argument, self._pointers)
        yield from self._fixed

    def _near(self, address: int, pieces: Sequence[Piece], writes: bool) -> Ranges:
        """Memory that addresses of any origin may lead to, as starts and sizes: up to where this one is found.

        `pieces` as in `_pieces`; `writes`: memory that may be written.
        """
        host = self._owner.host
        piece = _heap_piece(address)
        found = [piece] if piece is not None and address < sum(piece) else []
        found += [(p.address, p.size) for p in self._pieces(pieces) if not (writes and p.read_only)]
        found += host.given() if host is not None else []
        if host is not None and not any(start <= address < start + size for start, size in found):
            self._led = True
            found += host.reachable(address, self._holders(pieces, writes))
        locked = [p for p in pieces if p.locked] if writes else []
        found = [(start, size) for start, size in found if start and size]
        return [r for r in found if not any(p.address < sum(r) and r[0] < p.end for p in locked)] if locked else found

    def _holders(self, pieces: Sequence[Piece], writes: bool) -> list[int | bytes]:
        """What may be addresses: numbers, variables, and arguments of types for that; not those of known memory.

        Of memory that may only be read a number may be another address, through which somebody `writes`.
        """
        start = self._target.params_address
        names = {p.given_as for p in pieces if p.part}
        known = {(p.address, p.given_as if writes and p.read_only else "") for p in pieces}
        found: list[int | bytes] = []
        for param, offset in zip(self._owner.signature.params, self._owner.signature.offsets, strict=True):
            if param.address is None:
                words = (_word(start + at) for at in range(offset, offset + param.ctype.size - 7, 8))
                found += [word for word in words if (word, "") not in known and (word, param.name) not in known]
            elif param.name not in names and _may_hold(param):
                found.append(_bytes(self._argument(offset)))
        return [*found, *map(_bytes, self._variables.values())]

    def _meant(self, site: dict[str, Any], pieces: Sequence[Piece]) -> tuple[Piece | None, bool]:
        """The memory that a site's addresses are made for, and whether native code knows all of it."""
        kind, name = site["root"] or (site["space"], None)
        if kind == "param" and name is not None:
            if name in self._pointers and (name not in self._members or self._extent(name)):
                found = self._argument(name)
                whole = next((p for p in pieces if p.name == found.name), found)
                return whole, whole.address == found.address
            word = _word(self._target.params_address + name)  # a member of a struct, or a number
            signature, writes = self._owner.signature, site["what"] != READ
            given = max(k for k, at in enumerate(signature.offsets) if at <= name)
            own = [p for p in pieces if p.address == word and p.given_as == signature.params[given].name]
            same = own or [p for p in pieces if p.address == word and not (writes and p.read_only)]
            return min(same, key=lambda p: p.read_only, default=None), False
        if kind in ("global", "const") and name is not None:
            return self._variables[name], True
        if kind == "shared" and name is not None:
            at, size = self.table["shared"][name]
            return Piece(name, at, size or self._target.shared_total - at, 0, False), True
        return None, kind in ("shared", "local")

    def _argument(self, offset: int) -> Piece:
        """The memory of an argument's address, as it stands among the parameters."""
        name, passed, given_as = self._pointers[offset]
        address, size = _word(self._target.params_address + offset), self._extent(offset)
        itemsize = passed.target.size if passed.target is not None and address else 0
        part = offset in self._members
        return Piece(name, address, size, itemsize, passed.const, offset, given_as=given_as, part=part)

    def _extent(self, offset: int) -> int:
        """How many bytes may be read from an address on that stands there among the parameters."""
        return _word(self._target.params_address + extents_at(self._owner.signature.size, offset))

    def _fault(
        self, reason: str, site: dict[str, Any], address: int, start: int, piece: Piece | None
    ) -> tuple[str, Piece | None, int]:
        """What a lane has done: the kind, the memory meant, and where in it."""
        near = _heap_piece(address)
        heap = Piece("memory from malloc", *near, 1, False) if near is not None else None
        if reason == "BAD_FREE":
            return "BAD_FREE", heap, address - heap.address if heap is not None else address
        kind = (site["root"] or ("",))[0]
        offset = address - (start if kind == "local" or "shared" in (kind, site["space"]) else 0)
        if kind == "local" and site["array"]:
            offset += site["array"][0]
        if piece is not None and kind != "shared":
            offset = address - piece.address
        if address % site["align"]:
            return "MISALIGNED", piece, offset
        if piece is not None and piece.read_only and site["what"] != READ and 0 <= offset <= piece.size - site["size"]:
            return "READ_ONLY", piece, offset
        if piece is None and heap is not None:
            return "BOUNDS" if heap.size else "FREED", heap, address - heap.address
        return "BOUNDS", piece, offset


def shared_ranges(workers: Workers, worker: int, table: dict[str, Any]) -> Iterator[tuple[int, int]]:
    """The variables in shared memory of the block that a worker asks for, and then all of it."""
    start = _word(workers.get(worker, "request_block") + BLOCK.offset("shared"))
    for at, size in table["shared"].values():
        yield start + at, size
    yield start, workers.shared_total


def room(address: int, ranges: Iterable[tuple[int, int]]) -> int:
    """How many bytes there are from an address on in the first range that holds it; 0 where none does."""
    return next((start + size - address for start, size in ranges if start <= address < start + size), 0)


def _joined(ranges: Ranges) -> Ranges:
    """Ranges in order, each a start and a length, those that overlap as one."""
    result: list[tuple[int, int]] = []
    for start, size in sorted(ranges):
        if result and start < sum(result[-1]):
            first, before = result.pop()
            start, size = first, max(start + size, first + before) - first
        result.append((start, size))
    return result


def _may_hold(param: Param) -> bool:
    """Whether addresses may stand where a pointer leads to."""
    of = param.address.target if param.address is not None else None
    return of is not None and (of.kind in _HOLDS or (of.kind == "int" and of.size in (1, 8)))


def _bytes(piece: Piece) -> bytes:
    return recall.words_at(piece.address, piece.size).tobytes() if piece.address else b""


def _word(address: int) -> int:
    return ctypes.c_uint64.from_address(address).value


def _words(rows: Sequence[tuple[int, int]]) -> array[int]:
    return array("Q", [x for row in rows for x in row] or [0])


@cache
def _heap() -> Filled:
    """The device heap of all launches."""
    return Filled(HEAP)


@cache
def _open_heap() -> tuple[Mapping, ...]:
    memory, table, links = Mapping(HEAP_BYTES), Mapping(16 * HEAP_PIECES), Mapping(8 * HEAP_PIECES)
    _heap().set(
        next=memory.address,
        end=memory.address + memory.size,
        most=HEAP_PIECES,
        table=table.address,
        links=links.address,
    )
    # Another thread may hold it at a fork; what that was about to take or give back is lost, nothing else.
    os.register_at_fork(after_in_child=lambda: _heap().set(lock=0))
    return memory, table, links


def _heap_piece(address: int) -> tuple[int, int] | None:
    """Start and size of the heap's piece that contains an address or ends before it; free pieces have size 0."""
    heap, first = _heap(), 0
    after = heap["count"]
    while first < after:
        middle = (first + after) // 2
        low = _word(heap["table"] + 16 * middle)
        first, after = (middle + 1, after) if low <= address else (first, middle)
    if not first or address >= heap["next"]:
        return None
    low, size = (_word(heap["table"] + 16 * (first - 1) + at) for at in (0, 8))
    return low, size
