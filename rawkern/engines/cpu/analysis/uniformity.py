"""What is known about a register over the lanes of a warp.

A kind is a tuple: ``("u",)`` the same in all lanes; ``("a", stride, segments)`` an integer that grows by `stride` from
lane to lane (modulo its width), starting again in each of 1, 2 or 4 equal segments of the warp, with a fourth item 32
where it is a multiple of 32 in lane 0; ``("w", scale, stride, signed, segments)`` a 64-bit value ``offset + scale *
extend(x)`` where the 32-bit x grows by `stride`; ``("v",)`` anything. Lowering keeps u as a scalar and a, w as scalar
parts, so that addresses of neighboring lanes are known to be neighbors.
"""

from __future__ import annotations

from rawkern.engines.cpu.analysis.storage import local_frame
from rawkern.engines.cpu.ptx.data import Function, Imm, Instr, Mem, Not, Pair, Reg, Special, Sym, Vec
from rawkern.engines.cpu.ptx.decode import Op

Kind = tuple
U: Kind = ("u",)
V: Kind = ("v",)
ALIGNED: Kind = ("a", 1, 1, 32)

VARYING_SPECIAL = ("%lanemask_eq", "%lanemask_le", "%lanemask_lt", "%lanemask_ge", "%lanemask_gt")


class Getter:
    """Kind of an operand; None while nothing is known yet.

    With `units`, uniform factors that are not known are taken for 1, as strides of the last dimension mostly are.
    """

    def __init__(self, function: Function, kinds: dict[str, Kind], tid_segments: int, units: bool = False):
        self.function, self.kinds, self.tid_segments, self.units = function, kinds, tid_segments, units

    def __call__(self, a) -> Kind | None:
        if isinstance(a, Reg):
            return self.kinds.get(a.name)
        if isinstance(a, Imm) or a is None:
            return U
        if isinstance(a, Vec):
            return join(map(self, a.items))
        if isinstance(a, Not):
            return self.kinds.get(a.reg.name)
        if isinstance(a, Special):
            return special_kind(a.name, self.tid_segments)
        if isinstance(a, Sym):
            var = self.function.local_vars.get(a.name)
            if var is not None and var.space == "local":
                return ("a", local_frame(self.function), 1)
            return U
        if isinstance(a, Pair):
            return join((self(a.first), self(a.second)))
        return V


def special_kind(name: str, tid_segments: int) -> Kind:
    if name == "%laneid":
        return ALIGNED
    if name == "%tid.x":
        return ALIGNED if tid_segments == 1 else ("a", 1, tid_segments) if tid_segments else V
    if name.startswith("%tid"):
        return U if tid_segments == 1 else ("a", 0, tid_segments) if tid_segments else V
    return V if name in VARYING_SPECIAL else U


def join(kinds) -> Kind | None:
    """U where all are; None while one is not known; else V."""
    result: Kind | None = U
    for k in kinds:
        if k is None:
            result = None
        elif k != U:
            return V
    return result


def merge(a: Kind | None, b: Kind) -> Kind:
    """Kind of a register that holds values of two kinds; only the number of segments and alignment may differ."""
    if a is None or a == b:
        return b
    a, b = (("a", 0, 1) if k == U else k[:3] if k[0] == "a" else k for k in (a, b))
    if a == V or b == V or a[:-1] != b[:-1]:
        return V
    return a if a[-1] > b[-1] else b


def infer(instr: Instr, get: Getter, constants: dict[str, Imm]) -> Kind | None:
    """Kind of an instruction's results from those of its operands."""
    op, args = instr.op, instr.args
    if op.base in ("ld", "ldu"):
        mem = args[1]
        if not isinstance(mem, Mem):
            return V
        if op.space == "param":
            function = get.function
            if isinstance(mem.base, Sym):
                return U if function.entry and any(p.name == mem.base.name for p in function.params) else V
        if op.space == "local" and not isinstance(mem.base, Reg):
            return V
        kind = get(mem.base)
        return kind if kind is None or kind == U else V
    if op.facts.lanes in ("always", "never"):
        return U if op.facts.lanes == "always" else V
    if op.facts.lanes == "mask":
        return join([get(args[-1])])
    if op.base in ("mov", "cvta") and isinstance(args[1], (Reg, Sym, Special, Imm)):
        kind = get(args[1])
        return join([kind]) if isinstance(args[0], Vec) else kind  # the parts of an affine value are not affine
    kinds = [get(a) for a in args[1:]]
    if None in kinds:
        return None
    values = [constant(a, constants) for a in args[1:]]
    if get.units and op.base in ("mul", "mad") and values[:2] == [None, None] and U in kinds[:2]:
        values[kinds.index(U)] = 1
    affine = affine_result(op, kinds, values)
    return affine if affine is not None else join(kinds)


def constant(a, constants: dict[str, Imm]) -> int | None:
    """Value of an integer operand that is known at compile time."""
    if isinstance(a, Reg):
        a = constants.get(a.name)
    return a.value if isinstance(a, Imm) and a.kind == "i" else None


def affine_result(op: Op, kinds: list[Kind | None], values: list[int | None]) -> Kind | None:
    """Kind of an integer operation on affine operands; None where it is not one of the forms followed here."""
    if not any(k is not None and k[0] in "aw" for k in kinds):
        return None
    root, ty = op.base, op.types[-1].name if op.types else ""
    if ty not in ("s32", "u32", "b32", "s64", "u64", "b64") or op.has("sat") or op.has("cc"):
        return None
    if root in ("add", "sub") and not op.mods:
        return _sum(kinds[0], kinds[1], 1 if root == "add" else -1)
    if root in ("neg", "not"):
        return _sum(U, kinds[0], -1)
    if root in ("mul", "mad") and not op.has("hi"):
        product = None
        for k, v in ((kinds[0], values[1]), (kinds[1], values[0])):
            if v is not None and k is not None and k[0] in "aw":
                product = _widened(k, v, ty) if op.has("wide") else _scaled(k, v)
        if product is None:
            product = on_segments(kinds[:2])
        if root == "mul" or product is None:
            return product
        return _sum(product, kinds[2], 1)
    if root == "and" and ALIGNED in kinds[:2]:
        mask = values[1] if kinds[0] == ALIGNED else values[0]
        for segments in (1, 2, 4):
            low = 32 // segments - 1
            if mask is not None and mask & low in (0, low):
                return ("a", 1 if mask & low else 0, segments) if mask & low or segments > 1 else U
    if root == "shr" and kinds[0] == ALIGNED and values[1] is not None and 3 <= values[1] < 32:
        return ("a", 0, 32 >> values[1]) if values[1] < 5 else U
    if root == "shl" and kinds[0] is not None and values[1] is not None and values[1] < (64 if "64" in ty else 32):
        return _scaled(kinds[0], 1 << values[1])
    if op.facts.affine == "segment":
        return on_segments(kinds)
    if root == "cvt" and len(op.types) == 2 and not op.mods and kinds[0] is not None:
        to, source = op.types[0].name, ty
        if to in ("s64", "u64") and source in ("s32", "u32") and kinds[0][0] == "a":
            return _widened(kinds[0], 1, source)
        if to in ("s32", "u32") and source in ("s64", "u64"):
            return _narrowed(kinds[0])
        if to[1:] == source[1:] and to[0] in "su":
            return kinds[0]
    return None


def on_segments(kinds: list[Kind | None]) -> Kind | None:
    """Kind of a result of operands that are the same in all lanes of a segment; None where they are not."""
    segments = 1
    for k in kinds:
        if k is None or not (k == U or (k[0] == "a" and k[1] == 0)):
            return None
        segments = max(segments, 1 if k == U else k[2])
    return ("a", 0, segments) if segments > 1 else U


def _sum(a: Kind | None, b: Kind | None, sign: int) -> Kind | None:
    if a is None or b is None or a == V or b == V:
        return None
    a, b = (k[:3] if k[0] == "a" else ("a", 0, 1) if k == U else k for k in (a, b))  # alignment is not followed
    segments = max(a[-1], b[-1])
    if a[0] == b[0] == "a":
        stride = a[1] + sign * b[1]
        return ("a", stride, segments) if stride or segments > 1 else U
    if a[0] == "w" and b[:2] == ("a", 0):
        return (*a[:4], segments)
    if b[0] == "w" and a[:2] == ("a", 0):
        return ("w", sign * b[1], b[2], b[3], segments)
    return None


def _scaled(k: Kind, value: int) -> Kind | None:
    if value == 0:
        return U
    return ("a", k[1] * value, k[2]) if k[0] == "a" else ("w", k[1] * value, *k[2:]) if k[0] == "w" else None


def _widened(k: Kind, value: int, ty: str) -> Kind | None:
    if k[0] != "a":
        return None
    if k[1] == 0 and value:
        return k
    signed = ty == "s32"
    if not signed and value < 0:
        value &= 0xFFFFFFFF
    if k == ALIGNED:  # does not wrap within the warp
        return ("a", value, 1) if value else U
    return ("w", value, k[1], signed, k[2]) if value else U


def _narrowed(k: Kind) -> Kind | None:
    if k[0] == "w":
        return ("a", k[1] * k[2], k[4])
    return k if k[0] == "a" else None
