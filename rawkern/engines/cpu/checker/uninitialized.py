"""Checked builds: uninitialized variables, which in PTX are registers that are read before they are written.

Registers that may be read before they are written have a shadow for each lane, and so have those that are loaded from
shared or local memory or got by a shuffle, and what is computed from them: 0 where the value is good, else the number
of the place where it was got or first computed with, plus one; `ONLY_MOVED` where it has only been moved. Getting and
moving such values is not a mistake (compilers and libraries do it with what is not used); to store the result, to
branch on it or to use it as an address is. Matrices have rows and columns of their own (`uninitialized_tiles`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rawkern.engines.cpu.analysis.dataflow import derived
from rawkern.engines.cpu.analysis.graph import Block
from rawkern.engines.cpu.checker import sites
from rawkern.engines.cpu.emit.forms import LANES
from rawkern.engines.cpu.emit.function import FunctionLowering
from rawkern.engines.cpu.ir import Val, const
from rawkern.engines.cpu.ptx.data import Imm, Instr, Mem, Reg, Vec
from rawkern.engines.cpu.ptx.decode import Op
from rawkern.engines.cpu.ptx.operands import destinations, registers, sources

ONLY_MOVED = 0xFFFF
SET = Val("zeroinitializer", "i16", LANES)


def maybe_uninitialized(f: FunctionLowering) -> frozenset[str]:
    """Registers whose values may be uninitialized, or computed from such."""
    kept = sites.checked(f)
    if kept.maybe_uninitialized is None:
        found = set(f.flow.live_in[0])
        found.update(n for i in f.flow.instructions() if _gets(i) for n in destinations(i))
        kept.maybe_uninitialized = frozenset(
            derived([i for i in f.flow.instructions() if found and _passes_on(i)], found)
        )
    return kept.maybe_uninitialized


def _gets(instr: Instr) -> bool:
    """Whether an instruction may get what is not set: from shared or local memory, from anywhere, from other lanes."""
    op = instr.op
    loads = op.facts.kind == "memory" and not op.writes and op.space not in ("param", "global", "const")
    return loads or op.base == "shfl"


def _passes_on(instr: Instr) -> bool:
    """Whether what an instruction writes is uninitialized where something that it reads is."""
    return _moves(instr) or _computes(instr.op) or (instr.op.collective == "warp" and not instr.op.facts.memory)


def _moves(instr: Instr) -> bool:
    """Whether an instruction gives what it is given in another form: all of it, or some bits."""
    op = instr.op
    masks = op.base == "and" and any(isinstance(a, Imm) for a in instr.args)
    return op.facts.kind in ("move", "convert", "shift") or op.base == "not" or masks


def _computes(op: Op) -> bool:
    """Whether an instruction computes; other bit operations do not, as they put values together piece by piece."""
    return op.facts.kind in ("arith", "compare")


def tracks(f: FunctionLowering, names: Sequence[str | None]) -> bool:
    """Whether the registers that are loaded have shadows."""
    return all(name is None or name in maybe_uninitialized(f) for name in names)


def uninitialized(f: FunctionLowering, names: Sequence[str | None]) -> list[Val | None]:
    """For each register the lanes in which it is not set, or computed from what is not; None where that cannot be."""
    return [
        f.e.cmp("icmp ne", shadow(f, name), 0) if name is not None and name in maybe_uninitialized(f) else None
        for name in names
    ]


def exchanged(f: FunctionLowering, name: str, bad: Val, site: Val, got: Val) -> None:
    """A register has been got from other lanes with their shadows, in the lanes `bad` from ones that take no part."""
    keep(f, name, f.e.select(f.lanes.vector(bad), const("i16", int(site.ref) + 1, LANES), got))


def loaded(f: FunctionLowering, names: Sequence[str | None], uninitialized: Sequence[Val], site: Val) -> None:
    """Registers have been loaded, each in the lanes of its mask from memory that is not set."""
    number = const("i16", int(site.ref) + 1, LANES)
    for name, mask in zip(names, uninitialized, strict=True):
        if name is not None:
            keep(f, name, number, f.lanes.vector(f.e.bin("and", mask, f.lanes.act())))


def follow(f: FunctionLowering, instr: Instr) -> None:
    """Keep the shadows of what an instruction writes, and report what it must not use; call it before lowering."""
    doubt = maybe_uninitialized(f)
    if not doubt:
        return
    op, e = instr.op, f.e
    written = [name for name in destinations(instr) if name in doubt]
    used = [name for name in sources(instr) if name in doubt]
    if used and op.facts.kind == "memory" and op.space != "param":
        _reach(f, instr, used)
    if not written:
        return
    value = SET
    if op.base == "selp" and used:
        pick = e.splat(f.values.value(instr.args[3], 1), LANES)
        value = e.select(pick, *(known(f, a) for a in instr.args[1:3]))
    elif _moves(instr) or _computes(op):
        for k, name in enumerate(used):
            value = shadow(f, name) if not k else e.intrinsic("llvm.umax", "i16", shadow(f, name), value)
    if used and _computes(op):
        value = computed(f, instr, value)
    for name in written:
        keep(f, name, value)


def computed(f: FunctionLowering, instr: Instr, value: Val) -> Val:
    """The shadow of what an instruction computes from values of which one has this shadow."""
    first = f.e.cmp("icmp eq", value, const("i16", ONLY_MOVED, LANES))
    return f.e.select(first, const("i16", _site(f, instr) + 1, LANES), value)


def _reach(f: FunctionLowering, instr: Instr, used: list[str]) -> None:
    """Report an uninitialized address, and such values that leave the block; shared memory may hold them."""
    mem = next(a for a in instr.args if isinstance(a, Mem))
    if isinstance(mem.base, Reg) and mem.base.name in used:
        _report(f, mem.base.name, moved=True)
    op = instr.op
    stays = op.writes and not op.reads and _root_space(f, instr, mem) in ("shared", "local")
    if stays or (destinations(instr) and op.base != "atom"):
        return
    values = [r.name for a in instr.args if isinstance(a, (Reg, Vec)) for r in registers([a])]
    for name in dict.fromkeys(n for n in values if n in used):
        _report(f, name, moved=False)


def _root_space(f: FunctionLowering, instr: Instr, mem: Mem) -> str:
    root = sites.root_of(f, mem)
    known = root[0] if root is not None else "global"
    return known if instr.op.space == "generic" else instr.op.space


def edge(f: FunctionLowering, target: int, copies: Iterable[tuple[str, str]], mask: Val) -> None:
    """Lanes take values along an edge of the flow: pairs of where to and where from."""
    for name, value in [(name, known(f, Reg(source))) for name, source in copies if name in maybe_uninitialized(f)]:
        keep(f, name, value, f.lanes.vector(mask))


def branch(f: FunctionLowering, block: Block) -> None:
    """Lanes choose among the targets of a block."""
    assert block.pred is not None
    if block.pred.name in maybe_uninitialized(f):
        _report(f, block.pred.name, moved=True)


def known(f: FunctionLowering, a: object) -> Val:
    """The shadow of any operand."""
    if isinstance(a, Reg) and a.name in maybe_uninitialized(f):
        return shadow(f, a.name)
    return SET


def _slot(f: FunctionLowering, name: str) -> str:
    shadows = sites.checked(f).shadows
    slot = shadows.get(name)
    if slot is None:
        slot = shadows[name] = f"%uninitialized{len(shadows)}"
        start = const("i16", ONLY_MOVED, LANES) if name in f.flow.live_in[0] else SET
        f.frame.reserve(slot, "<32 x i16>", bool(f.values.in_memory))
        f.frame.lines.append(f"store {start}, ptr {slot}")
    return slot


def shadow(f: FunctionLowering, name: str) -> Val:
    """What is known of a register in each lane."""
    return f.e.let("i16", LANES, f"load <32 x i16>, ptr {_slot(f, name)}")


def keep(f: FunctionLowering, name: str, value: Val, lanes: Val | None = None) -> None:
    """A register has been written by some lanes, the active ones if not said."""
    lanes = f.lanes.actv() if lanes is None else lanes
    f.e.line(f"store {f.e.select(lanes, value, shadow(f, name))}, ptr {_slot(f, name)}")


def _site(f: FunctionLowering, instr: Instr | None) -> int:
    """Number of the place where an instruction uses registers."""
    site = sites.collective_site(f, instr)
    return int(sites.add_site(f, sites.register_use(site)).ref)


def _report(f: FunctionLowering, name: str, moved: bool) -> None:
    """Report the active lanes in which a register is not set; `moved`: even if it has only been moved."""
    e, value = f.e, shadow(f, name)
    bad = e.cmp("icmp ne", value, 0)
    if not moved:
        bad = e.bin("and", bad, e.cmp("icmp ne", value, const("i16", ONLY_MOVED, LANES)))
    lanes = e.bin("and", f.lanes.mask_of(bad), f.lanes.act())
    sites.uninitialized(f, lanes, value, _site(f, f.instr))
