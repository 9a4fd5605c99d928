"""Comparisons of affine with uniform values: scalars tell whether the whole warp agrees, before any lane is looked at.

Along a segment an affine value rises or falls steadily, unless it wraps around: where its largest lane is less than a
bound all are, and where its smallest is not none is. A loop ``for (i = tid; i < n; i += width)`` then needs no mask
until its last round.
"""

from __future__ import annotations

from rawkern.engines.cpu.emit.forms import LANES, Affine, Agreed, Form, Wide
from rawkern.engines.cpu.emit.function import FunctionLowering
from rawkern.engines.cpu.emit.memory.addresses import fits, starts
from rawkern.engines.cpu.ir import Val, const
from rawkern.engines.cpu.ptx.data import Instr, Not, Reg

#: What a comparison says of its first operand, and of its second.
_ORDER: dict[str, tuple[str, str]] = {
    "lt": ("lt", "gt"),
    "lo": ("lt", "gt"),
    "le": ("le", "ge"),
    "ls": ("le", "ge"),
    "gt": ("gt", "lt"),
    "hi": ("gt", "lt"),
    "ge": ("ge", "le"),
    "hs": ("ge", "le"),
}
_OPPOSITE = {"lt": "ge", "le": "gt", "gt": "le", "ge": "lt"}
_TYPES = frozenset(("s32", "u32", "s64", "u64"))


def lower_agreement(f: FunctionLowering, instr: Instr) -> bool:
    """Give the predicate a form that scalars decide, if it is one of the forms known."""
    op, found = instr.op, None
    if op.base == "setp":
        if len(op.mods) == 1 and op.mods[0] in _ORDER and op.type.name in _TYPES:
            found = _comparison(f, instr)
    elif op.base in ("and", "or", "not") and op.type.name == "pred":
        found = _combination(f, instr)
    if found is not None:
        f.values.put(instr.args[0].name, found)
    return found is not None


def _comparison(f: FunctionLowering, instr: Instr) -> Agreed | None:
    ty = instr.op.type
    forms = tuple(f.values.operand(a, ty.bits) for a in instr.args[1:])
    for (form, other), says in zip((forms, forms[::-1]), _ORDER[instr.op.mods[0]], strict=True):
        if isinstance(form, (Affine, Wide)) and isinstance(other, Val) and other.n == 1:
            every, none = (_all(f, form, x, other, ty.kind) for x in (says, _OPPOSITE[says]))
            return Agreed(every, none, instr.op, forms)
    return None


def _all(f: FunctionLowering, form: Affine | Wide, order: str, bound: Val, sign: str) -> Val:
    """Whether scalars tell that each lane is in this order to a bound; where a segment may wrap around they do not."""
    e, reach, test = f.e, (LANES // form.segments - 1) * _stride(form), f"icmp {sign}{order}"
    result = fits(f, form) if isinstance(form, Wide) else const("i1", 1)
    heads = dict.fromkeys(starts(f, form))
    last_decides = reach != 0 and (order[0] == "l") == (reach > 0)
    if last_decides and order[1] == "t" and abs(reach) < 1 << bound.bits - 1:
        # The bound moves to the first lane, and loops move that out. Where it saturates nothing lies beyond it: what
        # does has room for all lanes without wrapping around.
        move = f"llvm.{sign}{'sub' if reach > 0 else 'add'}.sat"
        limit = e.intrinsic(move, bound.ty, bound, const(bound.ty, abs(reach)))
        for start in heads:
            result = e.bin("and", result, e.cmp(test, start, limit))
        return result
    for start in heads:
        result = e.bin("and", result, _steady(f, start, reach, sign))
        result = e.bin("and", result, e.cmp(test, e.bin("add", start, reach) if last_decides else start, bound))
    return result


def _steady(f: FunctionLowering, start: Val, reach: int, sign: str) -> Val:
    """Whether the lanes from `start` on do not wrap around in the order of signed (``"s"``) or unsigned numbers."""
    low, high = (-1 << start.bits - 1, (1 << start.bits - 1) - 1) if sign == "s" else (0, (1 << start.bits) - 1)
    if abs(reach) > high - low:
        return const("i1", 0)
    if reach < 0:
        return f.e.cmp(f"icmp {sign}ge", start, low - reach)
    return f.e.cmp(f"icmp {sign}le", start, high - reach) if reach else const("i1", 1)


def _stride(form: Affine | Wide) -> int:
    """The step from lane to lane as a signed number of the form's width."""
    if isinstance(form, Wide):
        return form.scale * form.stride
    half = 1 << form.bases[0].bits - 1
    return (form.stride + half) % (2 * half) - half


def _combination(f: FunctionLowering, instr: Instr) -> Agreed | None:
    """``and``, ``or``, ``not`` of such predicates and uniform ones."""
    forms: list[Form] = []
    for a in instr.args[1:]:
        if not isinstance(a, (Reg, Not)) or (isinstance(a, Not) and isinstance(f.values.form(a.reg.name), Agreed)):
            return None
        forms.append(f.values.operand(a, 1))
    if not any(isinstance(x, Agreed) for x in forms):
        return None
    if not all(isinstance(x, Agreed) or (isinstance(x, Val) and x.n == 1) for x in forms):
        return None
    e = f.e
    pairs = [
        (x.every, x.none) if isinstance(x, Agreed) else (f.values.plain(x), e.invert(f.values.plain(x))) for x in forms
    ]
    every, none = zip(*pairs, strict=True)
    if len(forms) == 1:
        every, none = none, every
    else:
        root = instr.op.base
        every, none = [e.bin(root, *every)], [e.bin("or" if root == "and" else "and", *none)]
    return Agreed(every[0], none[0], instr.op, tuple(forms))
