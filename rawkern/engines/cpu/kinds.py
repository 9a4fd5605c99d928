"""What is known about a register over the lanes of a warp, and which branches lanes can disagree on.

A kind is a tuple: ``("u",)`` the same in all lanes; ``("a", stride)`` an integer that grows by `stride` from lane to
lane (modulo its width), with a third item 32 where lane 0's value is a multiple of 32; ``("w", scale, stride, signed)``
a 64-bit value ``offset + scale * extend(x)`` where the 32-bit x grows by `stride`; ``("v",)`` anything. Lowering keeps
u as a scalar and a, w as scalar parts, so that addresses of neighbouring lanes are known to be neighbours.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from rawkern.engines.cpu.flow import Flow
from rawkern.engines.cpu.operands import base, callee, destinations, sources
from rawkern.engines.cpu.ptx import Function, Imm, Instr, Mem, Not, Pair, Reg, Special, Sym, Vec

Kind = tuple
U: Kind = ("u",)
V: Kind = ("v",)
ALIGNED: Kind = ("a", 1, 32)

VARYING_SPECIAL = ("%lanemask_eq", "%lanemask_le", "%lanemask_lt", "%lanemask_ge", "%lanemask_gt")
UNIFORM_RESULT = ("vote.", "activemask", "redux.", "match.all", "elect.")


@dataclass
class Analysis:
    """Kinds of all registers, divergent blocks, and which writes must keep other lanes' old values."""

    kinds: dict[str, Kind]
    constants: dict[str, Imm]
    divergent: set[int] = field(default_factory=set)
    concurrent: list[frozenset[int]] = field(default_factory=list)  # per block: where other lanes can wait meanwhile
    blends: set[tuple[int, str]] = field(default_factory=set)
    free_running: bool = False  # lanes may wait anywhere: spin loops, or barriers that not all lanes reach together
    spin_headers: set[int] = field(default_factory=set)


def spin_headers(flow: Flow) -> set[int]:
    """Headers of loops that may wait for another thread: they read memory in a way that sees others' writes."""
    used = {name for block in flow.blocks for instr in block.instrs for name in sources(instr)}
    used |= {block.pred.name for block in flow.blocks if block.pred is not None}

    def waits(instr: Instr) -> bool:
        root = base(instr.op)
        if root == "atom":  # one whose result nobody reads only adds up
            return any(name in used for name in destinations(instr))
        ordered = (".volatile", ".acquire", ".relaxed", ".mmio", ".cv")
        return root in ("fence", "membar", "nanosleep") or (root == "ld" and any(s in instr.op for s in ordered))

    return {h for h, members in flow.loops if any(waits(i) for m in members for i in flow.blocks[m].instrs)}


def analyse(function: Function, flow: Flow, tid_affine: bool, waiting: set[str]) -> Analysis:
    """Find kinds and divergence together, to a fixpoint.

    Parameters
    ----------
    waiting : set of str
        Functions that wait for other threads when they are called.
    tid_affine : bool
        Whether a warp's threads lie in one row of the block, so that ``%tid.x`` grows by one from lane to lane.
    """
    definitions: dict[str, list[tuple[int, Instr]]] = {}
    for i, block in enumerate(flow.blocks):
        for instr in block.instrs:
            for name in destinations(instr):
                definitions.setdefault(name, []).append((i, instr))
    constants = {
        name: defs[0][1].args[1]
        for name, defs in definitions.items()
        if len(defs) == 1 and base(defs[0][1].op) == "mov" and isinstance(defs[0][1].args[1], Imm)
    }
    result = Analysis({}, constants, spin_headers=spin_headers(flow))
    forced: set[str] = set()
    cyclic = {m for _, members in flow.loops for m in members}
    while True:
        _propagate(function, flow, result, forced, tid_affine)
        result.divergent = {
            i
            for i, block in enumerate(flow.blocks)
            if block.pred is not None and block.kind in ("cond", "switch") and result.kinds.get(block.pred.name, V) != U
        }
        _regions(flow, result, waiting)
        result.blends = set()
        for i, block in enumerate(flow.blocks):
            if not result.concurrent[i]:
                continue
            live = frozenset().union(*(flow.live_in[w] for w in result.concurrent[i]))
            for instr in block.instrs:
                for name in destinations(instr):
                    if name in live and (result.free_running or i in cyclic or len(definitions[name]) > 1):
                        result.blends.add((i, name))
        new = {name for _, name in result.blends if result.kinds.get(name) != V} - forced
        if not new:
            return result
        forced |= new


def _regions(flow: Flow, result: Analysis, waiting: set[str]) -> None:
    n = len(flow.blocks)
    while True:
        concurrent: list[set[int]] = [set() for _ in range(n)]
        for i in result.divergent:
            if len(flow.lane_targets(i)) < 2 and not result.free_running:
                continue  # the other lanes only return
            if result.free_running:
                members = places = flow.reachable(i)
            else:
                members, meet = flow.region(i)
                places = members | ({meet} if meet is not None else frozenset())
            for b in members:
                concurrent[b] |= {w for w in places if w > b or result.free_running}
        spinning = bool(result.divergent) and bool(result.spin_headers)
        parted = any(
            concurrent[i] and (block.kind == "barrier" or any(callee(instr) in waiting for instr in block.instrs))
            for i, block in enumerate(flow.blocks)
        )
        if (spinning or parted) and not result.free_running:
            result.free_running = True
            continue
        result.concurrent = [frozenset(c) for c in concurrent]
        return


def _propagate(function: Function, flow: Flow, result: Analysis, forced: set[str], tid_affine: bool) -> None:
    kinds: dict[str, Kind] = {name: V for name in forced}
    get = _Getter(function, kinds, tid_affine)
    changed = True
    while changed:
        changed = False
        for block in flow.blocks:
            for instr in block.instrs:
                names = destinations(instr)
                if not names:
                    continue
                kind = infer(instr, get, result.constants)
                if kind is None:
                    continue
                for name in names:
                    old = kinds.get(name)
                    if old is None:
                        kinds[name], changed = kind, True
                    elif old != kind and old != V:
                        kinds[name], changed = V, True
    result.kinds = kinds


class _Getter:
    """Kind of an operand; None while nothing is known yet."""

    def __init__(self, function: Function, kinds: dict[str, Kind], tid_affine: bool):
        self.function, self.kinds, self.tid_affine = function, kinds, tid_affine

    def __call__(self, a) -> Kind | None:
        if isinstance(a, Reg):
            return self.kinds.get(a.name)
        if isinstance(a, (Imm, Vec)) or a is None:
            return U if not isinstance(a, Vec) else join(self(x) for x in a.items if x is not None)
        if isinstance(a, Not):
            return self.kinds.get(a.reg.name)
        if isinstance(a, Special):
            return special_kind(a.name, self.tid_affine)
        if isinstance(a, Sym):
            var = self.function.local_vars.get(a.name)
            if var is not None and var.space == "local":
                return ("a", local_frame(self.function))
            return U
        if isinstance(a, Pair):
            return join((self(a.first), self(a.second)))
        return V


def local_frame(function: Function) -> int:
    """Bytes of one thread's ``.local`` variables, laid out in order of declaration."""
    size = 0
    for var in function.local_vars.values():
        if var.space == "local":
            size = -(-size // var.align) * var.align + var.size
    return -(-size // 16) * 16


def special_kind(name: str, tid_affine: bool) -> Kind:
    if name == "%laneid":
        return ALIGNED
    if name == "%tid.x":
        return ALIGNED if tid_affine else V
    if name.startswith("%tid"):
        return U if tid_affine else V
    return V if name in VARYING_SPECIAL else U


def join(kinds) -> Kind | None:
    """U where all are; None while one is not known; else V."""
    result: Kind | None = U
    for k in kinds:
        if k is None:
            result = None if result is not V else V
        elif k != U:
            return V
    return result


def infer(instr: Instr, get: Callable, constants: dict[str, Imm]) -> Kind | None:
    """Kind of an instruction's results from those of its operands."""
    op, args = instr.op, instr.args
    root = base(op)
    if root == "ld" or root == "ldu":
        mem = args[1]
        if not isinstance(mem, Mem):
            return V
        if ".param" in op:
            function = get.function
            if isinstance(mem.base, Sym):
                return U if function.entry and any(p.name == mem.base.name for p in function.params) else V
        if ".local" in op and not isinstance(mem.base, Reg):
            return V
        kind = get(mem.base)
        return kind if kind is None or kind == U else V
    if root in ("atom", "shfl", "tex", "wmma", "mma", "ldmatrix", "surf", "call"):
        return V
    if root in ("match", "redux", "vote", "elect"):
        mask = get(args[-1])
        return mask if mask is None else U if mask == U and op.startswith(UNIFORM_RESULT) else V
    if root in ("activemask", "bar", "barrier"):
        return U
    if root in ("mov", "cvta") and isinstance(args[1], (Reg, Sym, Special, Imm)):
        return get(args[1])
    kinds = [get(a) for a in args[1:]]
    affine = affine_result(op, kinds, [constant(a, constants) for a in args[1:]])
    return affine if affine is not None else join(kinds)


def constant(a, constants: dict[str, Imm]) -> int | None:
    """Value of an integer operand that is known at compile time."""
    if isinstance(a, Reg):
        a = constants.get(a.name)
    return a.value if isinstance(a, Imm) and a.kind == "i" else None


def affine_result(op: str, kinds: list[Kind | None], values: list[int | None]) -> Kind | None:
    """Kind of an integer operation on affine operands; None where it is not one of the forms followed here."""
    if not any(k is not None and k[0] in "aw" for k in kinds):
        return None
    parts = op.split(".")
    root, ty = parts[0], parts[-1]
    if ty not in ("s32", "u32", "b32", "s64", "u64", "b64") or "sat" in parts or "cc" in parts:
        return None
    if root == "add" and len(parts) == 2:
        return _sum(kinds[0], kinds[1], 1)
    if root == "sub" and len(parts) == 2:
        return _sum(kinds[0], kinds[1], -1)
    if root in ("mul", "mad") and parts[1] in ("lo", "wide"):
        product = None
        for k, v in ((kinds[0], values[1]), (kinds[1], values[0])):
            if v is not None and k is not None and k[0] in "aw":
                product = _widened(k, v, ty) if parts[1] == "wide" else _scaled(k, v)
        if root == "mul" or product is None:
            if product is None and root == "mad" and parts[1] == "lo" and kinds[0] == kinds[1] == U:
                return _sum(U, kinds[2], 1)
            return product
        return _sum(product, kinds[2], 1)
    if root == "and" and ALIGNED in kinds[:2]:
        mask = values[1] if kinds[0] == ALIGNED else values[0]
        if mask is not None and mask & 31 in (0, 31):
            return ("a", 1) if mask & 31 else U
    if root == "shr" and kinds[0] == ALIGNED and values[1] is not None and 5 <= values[1] < 32:
        return U
    if root == "shl" and kinds[0] is not None and values[1] is not None and values[1] < (64 if "64" in ty else 32):
        return _scaled(kinds[0], 1 << values[1])
    if root == "cvt" and len(parts) == 3 and kinds[0] is not None:
        to, source = parts[1], ty
        if to in ("s64", "u64") and source in ("s32", "u32") and kinds[0][0] == "a":
            return ("w", 1, kinds[0][1], source == "s32")
        if to in ("s32", "u32") and source in ("s64", "u64"):
            return _narrowed(kinds[0])
        if to[1:] == source[1:] and to[0] in "su":
            return kinds[0]
    return None


def _sum(a: Kind | None, b: Kind | None, sign: int) -> Kind | None:
    if a is None or b is None or a == V or b == V:
        return None
    a, b = (k[:2] if k[0] == "a" else k for k in (a, b))  # the sum's alignment is not followed
    if b == U:
        return a
    if a == U:
        if sign > 0:
            return b
        return ("a", -b[1]) if b[0] == "a" else ("w", -b[1], b[2], b[3])
    if a[0] == b[0] == "a":
        stride = a[1] + sign * b[1]
        return ("a", stride) if stride else U
    return None


def _scaled(k: Kind, value: int) -> Kind | None:
    if value == 0:
        return U
    return ("a", k[1] * value) if k[0] == "a" else ("w", k[1] * value, k[2], k[3]) if k[0] == "w" else None


def _widened(k: Kind, value: int, ty: str) -> Kind | None:
    if k[0] != "a":
        return None
    signed = ty == "s32"
    if not signed and value < 0:
        value &= 0xFFFFFFFF
    return ("w", value, k[1], signed) if value else U


def _narrowed(k: Kind) -> Kind | None:
    if k[0] == "w":
        return ("a", k[1] * k[2])
    return k if k[0] == "a" else None
