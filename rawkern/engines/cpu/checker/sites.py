"""Checked builds: what is kept of a function meanwhile, calls of the checker, and the places they are made from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from rawkern.engines.cpu.analysis.plan import Plan
from rawkern.engines.cpu.analysis.provenance import Root
from rawkern.engines.cpu.analysis.storage import RESERVED, RESERVED_BYTES, local_frame
from rawkern.engines.cpu.checker import pattern
from rawkern.engines.cpu.checker.halves import Halves, halves
from rawkern.engines.cpu.checker.native.layout import CHECK, KINDS
from rawkern.engines.cpu.emit.forms import LANES
from rawkern.engines.cpu.emit.function import FunctionLowering
from rawkern.engines.cpu.emit.instrument import Watch
from rawkern.engines.cpu.emit.lanes import each_lane, pointer
from rawkern.engines.cpu.ir import Emitter, Val, const
from rawkern.engines.cpu.ptx.data import Instr, Loc, Mem, Reg, Sym
from rawkern.engines.cpu.ptx.operands import sources as sources_of
from rawkern.engines.cpu.records import BLOCK, LAUNCH


@dataclass(frozen=True)
class Site:
    """An instruction that the checker can name.

    `what` is "reads", "writes", "copies" (by ``cp.async``), "updates" (atomically), "uses" (a register) or the name of
    a collective instruction; `root` the variable or parameter whose address the instruction uses, if it is
    one; a lane accesses `size` bytes in values of `element` bytes. `defers`: that it reads what is not set is told when
    the value is used. `lines` are (file, line), from the inside out where code was inlined. `array`: where in local
    memory the array that the address comes from starts and ends. `kept`: that the checker is shown what is written.
    `looks`: it is strong and somebody uses what it reads. `weak` and `swaps` are as in `layout`.
    `ordinal`: tells instructions of one place apart. `branch`: the block that a branch ends.
    """

    what: str
    space: str
    root: Root | None
    size: int
    element: int
    strong: bool
    align: int
    lines: tuple[tuple[str, int], ...]
    defers: bool = False
    array: tuple[int, int] | None = None
    kept: bool = False
    looks: bool = False
    weak: int = 0
    swaps: int = 0
    ordinal: int = 0
    branch: int = 0


class Checked(Watch):
    """A function that gets checks; `checker` has the events."""

    def __init__(self, f: FunctionLowering, sites: dict[Site, int]):
        self.f = f
        self.sites = sites  # of the whole build, with their numbers
        self.dependent = False  # whether launches may begin before the one before has ended
        self.halves: Halves | None = None  # of updates
        self.used: frozenset[str] | None = None  # registers that instructions read
        self.reconvergence_points: dict[int, list[int]] | None = None  # what lanes may have passed by
        self.ends_beside: dict[int, list[int]] | None = None  # where lanes may end without a barrier
        self.maybe_uninitialized: frozenset[str] | None = None  # registers that may be uninitialized
        self.ordinals: dict[tuple[tuple[str, int], ...], dict[int, int]] = {}
        self.shadows: dict[str, str] = {}  # and the slots that say so


def checked(f: FunctionLowering) -> Checked:
    """What is kept of a function in a checked build."""
    assert isinstance(f.watch, Checked)
    return f.watch


def halves_of(f: FunctionLowering) -> Halves:
    """The loads and stores of a function that are halves of updates."""
    kept = checked(f)
    if kept.halves is None:
        kept.halves = halves(f.flow)
    return kept.halves


def used(f: FunctionLowering) -> frozenset[str]:
    """Registers that a function's instructions read."""
    kept = checked(f)
    if kept.used is None:
        kept.used = frozenset(name for i in f.flow.instructions() for name in sources_of(i))
    return kept.used


def lines_of(place: Loc | None) -> tuple[tuple[str, int], ...]:
    """Source lines of an instruction, and where that code was inlined."""
    found = []
    while place is not None:
        if place.line:
            found.append((place.file, place.line))
        place = place.inlined_at
    return tuple(found)


def add_site(f: FunctionLowering, site: Site) -> Val:
    """Number of a site in the build's table."""
    sites = checked(f).sites
    return const("i64", sites.setdefault(site, len(sites)))


def place(f: FunctionLowering, instr: Instr | None = None) -> tuple[tuple[str, int], ...]:
    """Source lines of an instruction, or of the one at hand."""
    instr = instr or f.instr
    loc = instr.loc if instr is not None else 0
    return lines_of(f.plan.ptx.locs[loc] if 0 <= loc < len(f.plan.ptx.locs) else None)


def ordinal(f: FunctionLowering) -> int:
    """How many other instructions of the place of the one at hand have been asked for before it."""
    known = checked(f).ordinals.setdefault(place(f), {})
    return known.setdefault(id(f.instr), len(known))


def identity(f: FunctionLowering) -> tuple[Val, Val, Val]:
    """The checker, the block and the warp as numbers."""
    block = f.frame.once("check.block", lambda e: e.let("i64", 1, "ptrtoint ptr %blk to i64"))
    warp = f.frame.once("check.warp", lambda e: e.let("i64", 1, "zext i32 %warp to i64"))
    return f.frame.field(LAUNCH, "session"), block, warp


def _field(f: FunctionLowering, e: Emitter, name: str, offset: int = 0) -> str:
    """A pointer to a field of the checker, and some bytes."""
    return pointer(e, e.bin("add", f.frame.field(LAUNCH, "session"), CHECK.offset(name) + offset))


def field(f: FunctionLowering, name: str, add: int = 0) -> Val:
    """A field of the checker that does not change, plus a number."""

    def read(e: Emitter) -> Val:
        value = e.let("i64", 1, f"load i64, {_field(f, e, name)}")
        return e.bin("add", value, add) if add else value

    return f.frame.once(f"check.{name}.{add}", read)


def enter(f: FunctionLowering) -> None:
    """A warp starts a kernel."""
    if f.function.entry:
        ck, blk, _ = identity(f)
        f.frame.lines.append(f"call i64 @rk_check_enter({ck}, {blk})")
    if size := local_frame(f.function):
        pattern.fill(f.frame.e, "ptr %frame", LANES * size)


def field_now(f: FunctionLowering, name: str) -> Val:
    """A field of the checker as it is now."""
    return f.e.let("i64", 1, f"load i64, {_field(f, f.e, name)}, align 8")


def note(f: FunctionLowering, what: str, *args: Val) -> None:
    """Call ``rk_check_what`` for the warp: to tell of something that orders accesses (`sync`), or to report."""
    ck, blk, warp = identity(f)
    more = "".join(f", {f.e.resize(a, 'i64')}" for a in args)
    f.e.line(f"call i64 @rk_check_{what}({ck}, {blk}, {warp}{more})")


def blame(f: FunctionLowering, kind: str, lanes: Val, instr: Instr | None = None, other: Val | None = None) -> None:
    """Report `lanes`, if there are any, for a collective instruction; `other` are lanes it is about."""
    number = add_site(f, collective_site(f, instr or f.instr))
    more = f.e.resize(other, "i64") if other is not None else const("i64", 0)
    note(f, "blame", lanes, number, const("i64", KINDS.index(kind)), more)


def collective_site(f: FunctionLowering, instr: Instr | None) -> Site:
    """The site of a barrier or a warp instruction."""
    found = f.plan.ptx.locs[instr.loc] if instr is not None else None
    return Site(str(instr.op) if instr is not None else "?", "collective", None, 0, 1, False, 1, lines_of(found))


def register_use(site: Site) -> Site:
    """The site of an instruction that uses a register's value."""
    return replace(site, what="uses", space="register")


def uninitialized(f: FunctionLowering, lanes: Val, shadow: Val, site: int) -> None:
    """Report lanes that use an uninitialized value; `shadow` says where they first did (`uninitialized`)."""
    put_field(f, "addresses", f.e.resize(shadow, "i64"))
    note(f, "uninitialized", lanes, const("i64", site))


def heap_call(f: FunctionLowering, name: str, argument: Val) -> Val:
    """``malloc`` and ``free`` of the device heap that the checker keeps; what the active lanes get."""
    ck, blk, warp = identity(f)
    argument = f.e.splat(argument, LANES)
    number = add_site(f, Site(name, "heap", None, 0, 1, False, 1, place(f)))

    def one(e: Emitter, at: str, args: list[Val]) -> Val:
        if name == "malloc":
            found = e.let("i64", 1, f"call i64 @rk_check_malloc({args[1]}, {args[0]})")
            return pattern.fill_piece(e, found, args[0])
        thread = e.bin("add", e.bin("mul", args[3], LANES), e.let("i64", 1, "zext i32 %lane to i64"))
        return e.let("i64", 1, f"call i64 @rk_check_free({args[1]}, {args[2]}, {thread}, {args[0]}, {args[4]})")

    return each_lane(f, f"rk_checked_{name}", "i64", argument, [argument, ck, blk, warp, number], one)


def root_of(f: FunctionLowering, mem: Mem) -> Root | None:
    if isinstance(mem.base, Reg):
        return f.provenance.get(mem.base.name)
    return f.provenance.get(mem.base.name) if isinstance(mem.base, Sym) else None


def put_field(f: FunctionLowering, name: str, value: Val, offset: int = 0) -> None:
    f.e.line(f"store {value}, {_field(f, f.e, name, offset)}, align 8")


def sizes_of(plan: Plan) -> dict[str, int]:
    """Bytes of each variable in global, constant and shared memory; 0 of the one that reaches up to the end."""
    every = [v for f in plan.functions for v in f.local_vars.values() if v.space == "shared"]
    return {v.name: v.size for v in (*plan.ptx.variables.values(), *every)} | {RESERVED: RESERVED_BYTES}


def table(plan: Plan, sites: Iterable[Site]) -> dict:
    """What Python must know of a checked build, as plain data: sites in order, and where variables lie."""
    sizes = sizes_of(plan)
    return {
        "sites": [asdict(site) for site in sites],
        "shared": {name: (at, sizes[name]) for name, at in plan.shared.items()},
        "variables": {
            name: (at, sizes[name], plan.ptx.variables[name].space) for name, at in plan.layout.offsets.items()
        },
    }


@cache
def sources() -> dict[Any, str]:
    """The modules of the checker itself, with their texts."""
    from rawkern.engines.cpu.checker.native import (
        access,
        asynchronous,
        clusters,
        conflicts,
        locks,
        order,
        runtime,
        sync,
    )

    modules = (runtime, sync, clusters, asynchronous, locks, conflicts, order, access)
    return {m: Path(str(m.__file__)).read_text() for m in modules}


def checker() -> str:
    """LLVM IR of the checker itself, an object file of its own, loaded once for all kernels."""
    from rawkern.engines.cpu.checker.native import runs, scalar

    parts = [scalar.compiled(text, vars(module)) for module, text in sources().items()]
    return "\n".join([*parts, runs.text(), STACK_RANGE % CHECK.offset("stack_range")])


#: Calls what a kernel's `connection` defines as rk_stack_range.
STACK_RANGE = """
define internal i64 @rk_check_stack_range(i64 %%ck, i64 %%blk, i64 %%warp) {
  %%at = add i64 %%ck, %d
  %%pointer = inttoptr i64 %%at to ptr
  %%range = load ptr, ptr %%pointer
  %%none = call i64 %%range(i64 %%ck, i64 %%blk, i64 %%warp)
  ret i64 %%none
}"""


@cache
def connection() -> str:
    """LLVM IR in each checked kernel's object file: what connects it with the checker."""
    from rawkern.base.records import filled
    from rawkern.engines.cpu.checker.native import scalar

    text = (Path(__file__).with_name("native") / "runtime.ll").read_text()
    declarations = [scalar.declared(source) for source in sources().values()]
    return "\n".join([CHECK.llvm, *declarations, filled(text, (CHECK, BLOCK))])
