"""Checked builds: variables that are used before they are set, which PTX has as registers that nobody has written.

Registers that may be read before they are written have a shadow for each lane, and so have those that are loaded from
shared or local memory or got by a shuffle, and what is computed from them: 0 where the value is good, else the number
of the place where it was got or first computed with, plus one; `UNSET` where it has only been moved. Getting and moving
such values is no mistake (compilers and libraries do it with what is not used); to store the result, to branch on it or
to use it as an address is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rawkern.engines.cpu import check
from rawkern.engines.cpu.forms import LANES
from rawkern.engines.cpu.function import FunctionLowering
from rawkern.engines.cpu.ir import Val, const
from rawkern.engines.cpu.operands import base, destinations, registers, sources
from rawkern.engines.cpu.ptx import Instr, Mem, Reg, Vec

UNSET = 0xFFFF
_MOVES = frozenset(("mov", "selp", "cvt"))
#: What computes with its operands; bit operations do not, as they put values together piece by piece.
_COMPUTES = frozenset(
    ("add", "sub", "mul", "mad", "fma", "div", "rem", "min", "max", "neg", "abs", "sqrt", "rsqrt", "rcp", "sin", "cos",
     "ex2", "lg2", "tanh", "setp", "mad24", "mul24", "sad")
)  # fmt: skip


def doubtful(f: FunctionLowering) -> frozenset[str]:
    """Registers whose values may be unset, or computed from such."""
    kept = check.checked(f)
    if kept.doubtful is None:
        found = set(f.flow.live_in[0])
        found.update(n for i in f.flow.instructions() if _gets(i) for n in destinations(i))
        instrs = [i for i in f.flow.instructions() if base(i.op) in _MOVES | _COMPUTES] if found else []
        grown = bool(found)
        while grown:
            before = len(found)
            for i in instrs:
                if any(name in found for name in sources(i)):
                    found.update(destinations(i))
            grown = len(found) > before
        kept.doubtful = frozenset(found)
    return kept.doubtful


def _gets(instr: Instr) -> bool:
    """Whether an instruction may get what is not set: from shared or local memory, from anywhere, from other lanes."""
    if base(instr.op) == "shfl":
        return True
    return base(instr.op) == "ld" and not any(space in instr.op for space in (".param", ".global", ".const"))


def tracks(f: FunctionLowering, names: Sequence[str | None]) -> bool:
    """Whether the registers that are loaded have shadows."""
    return all(name is None or name in doubtful(f) for name in names)


def unset_lanes(f: FunctionLowering, names: Sequence[str | None]) -> Val:
    """The active lanes in which one of the registers is not set, or computed from what is not."""
    e, lanes = f.e, const("i32", 0)
    for name in names:
        if name is not None and name in doubtful(f):
            lanes = e.bin("or", lanes, f.mask_of(e.cmp("icmp ne", _shadow(f, name), 0)))
    return e.bin("and", lanes, f.act())


def exchanged(f: FunctionLowering, name: str, bad: Val, site: Val) -> None:
    """A register has been got from other lanes, in the lanes `bad` from ones that do not take part."""
    value = f.e.select(f.lanes(bad), const("i16", int(site.ref) + 1, LANES), const("i16", 0, LANES))
    f.e.line(f"store {f.e.select(f.actv(), value, _shadow(f, name))}, ptr {_slot(f, name)}")


def loaded(f: FunctionLowering, names: Sequence[str | None], unset: Val, site: Val) -> None:
    """Registers have been loaded, in the lanes `unset` from memory that is not set."""
    e = f.e
    bad = f.lanes(e.bin("and", e.resize(unset, "i32"), f.act()))
    number = const("i16", int(site.ref) + 1, LANES)
    for name in names:
        if name is not None:
            e.line(f"store {e.select(bad, number, _shadow(f, name))}, ptr {_slot(f, name)}")


def follow(f: FunctionLowering, instr: Instr) -> None:
    """Keep the shadows of what an instruction writes, and report what it must not use; call it before lowering."""
    doubt = doubtful(f)
    if not doubt:
        return
    root, e = base(instr.op), f.e
    written = [name for name in destinations(instr) if name in doubt]
    used = [name for name in sources(instr) if name in doubt]
    if used and root in ("ld", "st", "atom", "red") and ".param" not in instr.op:
        mem = next(a for a in instr.args if isinstance(a, Mem))
        if isinstance(mem.base, Reg) and mem.base.name in doubt:
            _report(f, _shadow(f, mem.base.name), moved=True)
        values = [r.name for a in instr.args if isinstance(a, (Reg, Vec)) for r in registers([a])]
        stays = root == "st" and _root_space(f, instr, mem) in ("shared", "local")
        for name in dict.fromkeys(n for n in values if n in used and root != "ld" and not stays):
            _report(f, _shadow(f, name), moved=False)
    if not written:
        return
    value = Val("zeroinitializer", "i16", LANES)
    if root == "selp" and used:
        pick = e.splat(f.value(instr.args[3], 1), LANES)
        value = e.select(pick, *(_of(f, a) for a in instr.args[1:3]))
    elif root in _MOVES | _COMPUTES:
        for k, name in enumerate(used):
            shadow = _shadow(f, name)
            value = shadow if not k else e.select(e.cmp("icmp ugt", shadow, value), shadow, value)
    if used and root in _COMPUTES:
        here = _site(f, instr) + 1
        value = e.select(e.cmp("icmp eq", value, const("i16", UNSET, LANES)), const("i16", here, LANES), value)
    for name in written:
        old = _shadow(f, name)
        e.line(f"store {e.select(f.actv(), value, old)}, ptr {_slot(f, name)}")


def _root_space(f: FunctionLowering, instr: Instr, mem: Mem) -> str:
    space = next((s for s in ("shared", "local", "global") if f".{s}" in instr.op), None)
    root = check.root_of(f, mem)
    return space or (root[0] if root is not None else "global")


def edge(f: FunctionLowering, copies: Iterable[tuple[str, str]], mask: Val) -> None:
    """Lanes take values along an edge of the flow: pairs of where to and where from."""
    doubt = doubtful(f)
    moved = [(name, _shadow(f, source) if source in doubt else None) for name, source in copies if name in doubt]
    for name, value in moved:
        shadow = value or Val("zeroinitializer", "i16", LANES)
        f.e.line(f"store {f.e.select(f.lanes(mask), shadow, _shadow(f, name))}, ptr {_slot(f, name)}")


def branch(f: FunctionLowering, name: str) -> None:
    """Lanes branch on a register."""
    if name in doubtful(f):
        _report(f, _shadow(f, name), moved=True)


def _of(f: FunctionLowering, a) -> Val:
    if isinstance(a, Reg) and a.name in doubtful(f):
        return _shadow(f, a.name)
    return Val("zeroinitializer", "i16", LANES)


def _slot(f: FunctionLowering, name: str) -> str:
    shadows = check.checked(f).shadows
    slot = shadows.get(name)
    if slot is None:
        slot = shadows[name] = f"%unset{len(shadows)}"
        start = const("i16", UNSET, LANES) if name in f.flow.live_in[0] else Val("zeroinitializer", "i16", LANES)
        f.reserve(slot, "<32 x i16>", bool(f.in_memory))
        f.entry.append(f"store {start}, ptr {slot}")
    return slot


def _shadow(f: FunctionLowering, name: str) -> Val:
    return f.e.let("i16", LANES, f"load <32 x i16>, ptr {_slot(f, name)}")


def _site(f: FunctionLowering, instr: Instr | None) -> int:
    site = check.meeting_site(f, instr)
    return int(check.add_site(f, check.register_use(site)).ref)


def _report(f: FunctionLowering, shadow: Val, moved: bool) -> None:
    """Report the active lanes whose shadow says that the value is bad; `moved`: even if it has only been moved."""
    e = f.e
    bad = e.cmp("icmp ne", shadow, 0)
    if not moved:
        bad = e.bin("and", bad, e.cmp("icmp ne", shadow, const("i16", UNSET, LANES)))
    lanes = e.bin("and", f.mask_of(bad), f.act())
    check.unset(f, lanes, shadow, _site(f, f.instr))
