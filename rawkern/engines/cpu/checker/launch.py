"""A checked launch from Python's side: the memory the checker works in, and its findings read back."""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Sequence
from itertools import pairwise
from time import perf_counter
from typing import Any

from rawkern.arguments.memory import Piece
from rawkern.arguments.slow_path import Bound
from rawkern.base.attributes import Attributes
from rawkern.base.forking import Lock
from rawkern.base.records import start_of
from rawkern.engines.cpu.analysis.storage import RESERVED
from rawkern.engines.cpu.checker import bounds
from rawkern.engines.cpu.checker.findings import Dim3, Finding, Place
from rawkern.engines.cpu.checker.heap import HEAP_BYTES, HEAP_PIECES, heap
from rawkern.engines.cpu.checker.native import layout
from rawkern.engines.cpu.checker.native.layout import CHECK, ENTRY, REPORT, SITE, STATE
from rawkern.engines.cpu.emit.instrument import Session
from rawkern.engines.cpu.runtime import limits
from rawkern.engines.cpu.runtime.grid import shape_of
from rawkern.engines.cpu.runtime.workers import Mapping, Workers
from rawkern.errors import LaunchError

MAX_REPORTS = 1024
TIMES = 1 << 30  # that the accesses of a launch may have; what comes later is not looked at for races
PATIENCE = 2.0  # seconds that a launch may go on after the first finding
OF_TWO_SITES = ("EARLY_READ", "INITIALIZED")  # kinds of findings whose `extra` is the site of another instruction
lock = Lock()  # held while a checked launch runs
_SPACES = {"generic": layout.GENERIC, "const": layout.GLOBAL, "global": layout.GLOBAL, "param": layout.GENERIC}
_SPACES |= {"shared": layout.SHARED, "cluster": layout.WINDOWS, "local": layout.LOCAL, "collective": layout.COLLECTIVE}
_WHAT = {"reads": layout.READ, "writes": layout.WRITE, "copies": layout.WRITE, "updates": layout.UPDATE}

_NUMBERS = ("size", "element", "align", "strong", "defers", "kept", "looks", "weak", "swaps")  # of a site, as they are


class _Last(threading.local):
    """The last checked launch of a thread."""

    def __init__(self) -> None:
        self.written: list[tuple[int, int]] = []  # what it may have written: starts and ends


_last = _Last()


class CheckedLaunch(Session):
    """Records and shadow memory of one checked launch."""

    parallel = False

    def __init__(
        self, checks: dict, pieces: Sequence[Piece], globals_address: int, shared_total: int,
        plain_volatile: bool = False, unfenced: bool = False, equal_races: bool = False,
    ):  # fmt: skip
        self.checks = checks
        self.plain_volatile = plain_volatile  # volatile accesses race as plain ones do
        self.equal_races = equal_races  # writes of equal values race, too
        self.workers: Workers | None = None  # of the launch
        self.sites: list[dict] = checks["sites"]
        self.pieces: list[Piece] = [*pieces, *_variables(checks, globals_address)]
        self.named = {("variable", p.name) if p.parameter is None else ("param", p.parameter): p for p in self.pieces}
        self.states: list[int] = []  # of the blocks there is memory for
        self.memory: list[Mapping] = []  # kept alive
        self.address = self._new(CHECK.size)
        self.entries: dict[int, Piece] = {}  # by address of the entry
        self.shared_total = shared_total
        self.found_at: float | None = None
        self.order: Sequence[int] = range(layout.WARPS)  # which of a block's warps ran, one after the other
        self.regions = self._shadows()
        roots = self._roots(checks)
        self._segments()
        self._site_table(roots)
        start, size = checks["shared"].get(RESERVED, (0, 0))
        table = layout.runs()
        self._set(
            null=self._new(4096), last=self._new(ENTRY.size), reports=self._new(REPORT.size * MAX_REPORTS),
            max_reports=MAX_REPORTS, shared_total=shared_total, reserved=start, reserved_end=start + size,
            all_shared=self._table([(0, shared_total, layout.IS_SHARED, 0)]), row=8 * layout.COLUMNS,
            runs=self._table([table]), weak=int(any(site["weak"] for site in self.sites)),
            unfenced=int(unfenced), locks=self._new(layout.LOCK.size * layout.LOCKS),
            objects=self._new(layout.OBJECT.size * layout.OBJECTS),
        )  # fmt: skip

    def start(self, grid: Dim3, nwarps: int, stack_range: int) -> None:
        """Settle the grid, how many warps a block has, and the address of the kernel's rk_stack_range."""
        pile = heap()
        if pile.count or any(site["what"] == "malloc" for site in self.sites):
            region, _ = self._region(HEAP_BYTES // 4, pile.memory.address >> 2)
            self._set(heap_region=region)
            pile.follow(region)
        self._set(
            stack_range=stack_range, grid_x=grid[0], grid_y=grid[1], nwarps=nwarps, serial=1,
            heap_low=pile.memory.address, heap_high=pile.memory.address + HEAP_BYTES, heap_next=pile.next,
            heap_table=pile.table.address, heap_count=pile.count, heap_room=HEAP_PIECES, heap_held=limits.HEAP[0],
            heap_limit=limits.HEAP[1], log=self._new(TIMES * 8, large=False), times=TIMES,
            held=self._new(TIMES * 8, large=False),
            order=self._new(8 * layout.COLUMNS * grid[0] * grid[1] * grid[2], large=False),
        )  # fmt: skip

    def follow(self, written: Sequence[tuple[int, int]]) -> None:
        """The launch may begin before the one before it has ended, which may have written these ranges."""
        self._set(prior=self._table(written), npriors=len(written))

    def stop_reason(self) -> str | None:
        """A kernel that has gone wrong may take long to end: with a zero for a value it may loop for ever."""
        if self._get("nreports"):
            self.found_at = self.found_at or perf_counter()
            if perf_counter() - self.found_at > PATIENCE:
                return "stopped, because it does not end after this finding"
        return None

    def readable(self, worker: int, lane: int, address: int, pieces: Sequence[Piece]) -> int:
        heap().count = self._get("heap_count")
        if (piece := self._near(address)) is not None:
            return max(piece.end - address, 0)
        assert self.workers is not None
        shared = bounds.shared_ranges(self.workers, worker, self.checks)
        return bounds.room(address, [*shared, *self.workers.stacks])

    def end(self) -> None:
        """Keep what is left on the device heap."""
        heap().next, heap().count = self._get("heap_next"), self._get("heap_count")
        limits.HEAP[0] = self._get("heap_held")

    def block(self, shared_total: int) -> int:
        """Memory for what the checker knows of a further block."""
        region, shadow = self._region(shared_total // 4 + 2)
        state = self._new(STATE.size)
        self.states.append(state)
        for field, value in (("shadow", shadow), ("region", region)):
            ctypes.c_uint64.from_address(state + STATE.offset(field)).value = value
        return state

    def _region(self, words: int, first: int = 0) -> tuple[int, int]:
        """Shadow of so many words from number `first` on: its record, and where it starts."""
        plane = -(-(words * layout.WORD + 2 * layout.MARGIN) // 64) * 64
        shadow = self._new(layout.PLANES * plane, large=words < 1 << 30) + layout.MARGIN
        return self._table([(shadow - first * layout.WORD & (1 << 64) - 1, plane, 0, 0, 0, 0)]), shadow

    def _new(self, size: int, large: bool = True) -> int:
        mapping = Mapping(max(size, 8))
        if large:
            mapping.spread()
        self.memory.append(mapping)
        return mapping.address

    def _table(self, rows: Sequence[Sequence[int]]) -> int:
        """Memory that holds rows of 64-bit numbers, one after the other."""
        numbers = [x for row in rows for x in row]
        table = self._new(8 * len(numbers))
        ctypes.memmove(table, struct.pack(f"={len(numbers)}Q", *numbers), 8 * len(numbers))
        return table

    def _set(self, **fields: int) -> None:
        for field, value in fields.items():
            ctypes.c_uint64.from_address(self.address + CHECK.offset(field)).value = value

    def _get(self, field: str) -> int:
        return ctypes.c_uint64.from_address(self.address + CHECK.offset(field)).value

    def _shadows(self) -> list[tuple[int, int, int]]:
        """Memory that may be written, pieces that overlap as one, as (start, end, its region).

        What no instruction of the kernel writes needs no shadow, whatever the parameter's type says.
        """
        written = self._written()
        found: list[list] = []  # start, end, whether it may be written
        for piece in sorted(self.pieces, key=lambda p: p.address):
            if not piece.size or not piece.followed:
                continue
            here = not piece.read_only and (written is None or piece.address in written)
            if found and piece.address < found[-1][1]:
                found[-1][1] = max(found[-1][1], piece.end)
                found[-1][2] |= here
            else:
                found.append([piece.address, piece.end, here])
        regions = []
        for start, end, changes in found:
            first = start >> 2
            regions.append((start, end, self._region((end >> 2) - first + 2, first)[0] if changes else 0))
        return regions

    def _piece(self, root: Sequence) -> Piece | None:
        """The parameter's or variable's memory that a site names."""
        kind, name = root
        return self.named.get(("variable" if kind in ("global", "const") else kind, name))

    def _written(self) -> set[int] | None:
        """Addresses of the pieces that the kernel's instructions may write; None if it may be any."""
        found: set[int] = set()
        for site in self.sites:
            if site["what"] not in ("writes", "copies", "updates") or site["space"] in ("shared", "local"):
                continue
            root = site["root"] or (None, None)
            piece = self._piece(root)
            if piece is not None:
                found.add(piece.address)
            elif root[0] not in ("shared", "local"):
                return None
        return found

    def _region_of(self, address: int) -> int:
        return next((region for start, end, region in self.regions if start <= address < end), 0)

    def _entry(self, at: int, piece: Piece, low: int, high: int, flags: int, region: int) -> None:
        ctypes.memmove(at, struct.pack("=4Q", low, high, flags, region), ENTRY.size)
        self.entries[at] = piece

    def _roots(self, checks: dict) -> dict[tuple, int]:
        """An entry for each root that a site names."""
        names = dict.fromkeys(tuple(site["root"]) for site in self.sites if site["root"])
        table = self._new(ENTRY.size * len(names))
        result = {}
        for k, root in enumerate(names):
            at, piece = table + k * ENTRY.size, self._piece(root)
            if root[0] == "shared":
                offset, size = checks["shared"][root[1]]
                size = size or self.shared_total - offset
                shared = Piece(root[1], offset, size, 0, False)
                self._entry(at, shared, offset, offset + size, layout.IS_SHARED, 0)
            elif piece is not None:
                flags = layout.IS_CONST if piece.read_only else 0
                self._entry(at, piece, piece.address, piece.end, flags, self._region_of(piece.address))
            else:
                continue
            result[root] = at
        return result

    def _segments(self) -> None:
        """A sorted table of all memory, cut where pieces begin and end."""
        pieces = sorted((p for p in self.pieces if p.size), key=lambda p: p.address)
        edges = sorted({p.address for p in pieces} | {p.end for p in pieces})
        rows, active, following = [], [], iter([*pieces, None])
        upcoming = next(following)
        for low, high in pairwise(edges):
            active = [p for p in active if p.end > low]
            while upcoming is not None and upcoming.address <= low:
                active.append(upcoming)
                upcoming = next(following)
            if active:
                read_only = all(p.read_only for p in active) or any(p.locked for p in active)
                rows.append((low, high, layout.IS_CONST if read_only else 0, active[-1]))
        table = self._new(ENTRY.size * len(rows))
        regions = iter([*self.regions, None])
        here = next(regions)
        for k, (low, high, flags, piece) in enumerate(rows):
            while here is not None and here[1] <= low:
                here = next(regions)
            region = here[2] if here is not None and here[0] <= low else 0
            self._entry(table + k * ENTRY.size, piece, low, high, flags, region)
        self._set(segments=table, nsegments=len(rows))

    def _site_table(self, roots: dict[tuple, int]) -> None:
        rows, locks = [], any(site["swaps"] == layout.SWAP for site in self.sites)
        for site in self.sites:
            root = roots.get(tuple(site["root"]), 0) if site["root"] else 0
            root = 1 if site["space"] == "local" and site["root"] else root  # the frame is all there is
            what, space = _WHAT.get(site["what"], 0), _SPACES.get(site["space"], 0)
            row = {name: site[name] for name in _NUMBERS}
            row |= {"root": root, "what": what, "space": space, "swaps": site["swaps"] if locks else 0}
            if self.plain_volatile and site["weak"] & layout.VOLATILE:
                row |= {"strong": 0, "looks": 0, "weak": 0}
            if self.equal_races:  # what is written is then not compared
                row["kept"] = 0
            row |= zip(("start", "end"), site["array"] or (0, 0), strict=True)
            rows.append([int(row.get(name, 0)) for name, _ in SITE.fields])
        self._set(sites=self._table(rows))

    def findings(self, grid: Dim3, block: Dim3) -> list[Finding]:
        """What was found, in order."""
        found, at = [], self._get("reports")
        for k in range(self._get("nreports")):
            values = struct.unpack("=10Q", ctypes.string_at(at + k * REPORT.size, REPORT.size))
            r = dict(zip((name for name, _ in REPORT.fields), values, strict=True))
            kind = layout.KINDS[r["kind"]]
            piece = self.entries.get(r["entry"]) or (self._near(r["address"]) if r["address"] else None)
            address = r["address"] - (1 << 64) if piece is not None and r["address"] >> 63 else r["address"]
            offset = address - (piece.address if piece is not None else 0)
            other = None
            if kind in ("RACE", "DIFFERENT_BARRIERS", "NO_PROXY_FENCE", "DESCRIPTORS"):
                other = self._place(r["other_site"], r["other_block"], r["other_thread"], grid, block)
            place = self._place(r["site"], r["block"], r["thread"], grid, block)
            if kind in OF_TWO_SITES:
                other = self._place(r["extra"], r["block"], r["thread"], grid, block)
            if kind == "SKIPPED_BARRIER":
                place, other = self._place(r["extra"], r["block"], r["thread"], grid, block), place
            found.append(Finding(kind, place, piece, offset, other, r["extra"]))
        return found

    def stuck(self, grid: Dim3, block: Dim3) -> list[Finding]:
        """Where warps wait at barriers, one of each line."""
        found: dict[int, Finding] = {}
        for state in self.states:
            number = ctypes.c_uint64.from_address(state + STATE.offset("number")).value
            for warp in range(layout.WARPS):
                site = ctypes.c_uint64.from_address(state + STATE.offset("at") + 8 * warp).value
                if site and site - 1 not in found:
                    place = self._place(site - 1, number, warp * 32, grid, block)
                    found[site - 1] = Finding("DEADLOCK", place, None, 0, None)
        return list(found.values())

    def sides(self) -> dict[tuple[tuple[tuple[str, int], ...], int], int]:
        """Which sides lanes have gone at each branch, by its lines and number, as in `layout`; if they are followed."""
        found, at = {}, self._get("sites") + SITE.offset("sides")
        for k, site in enumerate(self.sites):
            if site["what"] == "branches":
                lines = tuple((file, line) for file, line in site["lines"])
                found[lines, site["branch"]] = ctypes.c_uint64.from_address(at + k * SITE.size).value
        return found

    def _near(self, address: int) -> Piece | None:
        if self._get("heap_low") <= address < self._get("heap_next"):
            return heap().piece(address)
        return next((p for p in self.pieces if p.address <= address < p.end), None)

    def _place(self, site: int, number: int, thread: int, grid: Dim3, block: Dim3) -> Place:
        thread = self.order[thread // 32] * 32 + thread % 32
        return Place(self.sites[site], _three(thread, block), _three(number, grid), thread % 32)


def _three(number: int, shape: Dim3) -> Dim3:
    return number % shape[0], number // shape[0] % shape[1], number // (shape[0] * shape[1])


def _variables(checks: dict, globals_address: int) -> list[Piece]:
    return [
        Piece(name, globals_address + at, size, 0, space == "const")
        for name, (at, size, space) in checks["variables"].items()
    ]


def run(
    kernel: Any,
    grid: Dim3,
    block: Dim3,
    shared_mem: int,
    attributes: Attributes,
    bound: Bound,
    pieces: Sequence[Piece],
    **rules: bool,
) -> tuple[list[Finding], LaunchError | None, CheckedLaunch]:
    """Run one launch of a checked kernel; returns what was found, the error it ended with, if it did, and its side.

    `rules` are those of `CheckedLaunch`.
    """
    code, loaded, _ = kernel.loaded(shape_of(block))
    target = kernel.target(block, shared_mem, attributes)
    grid_sync = Piece("the grid's barrier", start_of(target.grid_sync), 64, 1, False, followed=False)
    start = target.params_address
    parameters = Piece("the parameters", start, kernel.signature.size, 1, True, followed=False)
    pieces = [*pieces, grid_sync, parameters]
    checked = CheckedLaunch(code.table, pieces, kernel.globals_address, code.shared_static + shared_mem, **rules)
    checked.start(grid, target.nwarps, loaded.address("rk_stack_range"))
    checked.follow(_last.written if attributes.programmatic else [])
    target.watch(checked)
    checked.workers = target.workers
    error = None
    try:
        target.run(grid, None, bound)
    except LaunchError as failed:
        error = failed
    finally:
        checked.end()
        _last.written = [(start, end) for start, end, region in checked.regions if region]
        checked.order = target.workers.order
    found = checked.findings(grid, block)
    if not found and error is not None and "deadlock" in str(error):
        found = checked.stuck(grid, block)
    return found, error, checked
