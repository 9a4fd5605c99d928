"""Comparisons of affine with uniform values: scalars tell whether the whole warp agrees, before any lane is looked at.

Along a segment an affine value rises or falls steadily, unless it wraps around: where its largest lane is less than a
bound all are, and where its smallest is not none is. A loop ``for (i = tid; i < n; i += width)`` then needs no mask
until its last round.
"""

from __future__ import annotations

from rawkern.engines.cpu import arith
from rawkern.engines.cpu.addresses import fits, starts
from rawkern.engines.cpu.forms import LANES, Affine, Agreed, Form, Wide
from rawkern.engines.cpu.function import FunctionLowering
from rawkern.engines.cpu.ir import Val, const
from rawkern.engines.cpu.operands import base
from rawkern.engines.cpu.ptx import TYPE_BYTES, Instr, Not, Reg

#: Instructions that can have such a result.
AGREEING = frozenset(("setp", "and", "or", "not"))
_ORDER = frozenset(("lt", "le", "gt", "ge", "lo", "ls", "hi", "hs"))
_TYPES = frozenset(("s32", "u32", "s64", "u64"))


def lower_agreement(f: FunctionLowering, instr: Instr) -> bool:
    """Give the predicate a form that scalars decide, if it is one of the forms known."""
    parts = instr.op.split(".")
    if parts[0] == "setp":
        found = _comparison(f, instr) if len(parts) == 3 and parts[1] in _ORDER and parts[2] in _TYPES else None
    else:
        found = _combination(f, instr) if parts[1:] == ["pred"] else None
    if found is not None:
        f.put(instr.args[0].name, found)
    return found is not None


def _comparison(f: FunctionLowering, instr: Instr) -> Agreed | None:
    _, order, ty = instr.op.split(".")
    forms = tuple(f.operand_form(a, 8 * TYPE_BYTES[ty]) for a in instr.args[1:])
    for k, (form, other) in enumerate((forms, forms[::-1])):
        if isinstance(form, (Affine, Wide)) and isinstance(other, Val) and other.n == 1:
            steady, (least, most) = _steady(f, form, ty[0] == "s"), _ends(f, form)
            if (order[0] == "l") == bool(k):  # it holds for large values, so for all if for the smallest
                least, most = most, least
            every, none = steady, steady
            for decides_all, decides_none in zip(most, least, strict=True):
                yes, no = (
                    arith.lower(f.e, instr.op, [other, value] if k else [value, other]).vals[0]
                    for value in (decides_all, decides_none)
                )
                every, none = f.e.bin("and", every, yes), f.e.bin("and", none, f.e.invert(no))
            return Agreed(every, none, instr.op, forms)
    return None


def _ends(f: FunctionLowering, form: Affine | Wide) -> tuple[list[Val], list[Val]]:
    """The smallest and the largest value of each segment, where nothing wraps around."""
    reach = (_run(form) - 1) * _stride(form)
    first = list(dict.fromkeys(starts(f, form)))
    last = [f.e.bin("add", start, reach) for start in first] if reach else first
    return (last, first) if reach < 0 else (first, last)


def _steady(f: FunctionLowering, form: Affine | Wide, signed: bool) -> Val:
    """Whether no segment wraps around in the order of signed or unsigned numbers."""
    e, reach = f.e, (_run(form) - 1) * _stride(form)
    result = fits(f, form) if isinstance(form, Wide) else const("i1", 1)
    if reach == 0:
        return result
    for start in dict.fromkeys(starts(f, form)):
        low, high = (-1 << start.bits - 1, (1 << start.bits - 1) - 1) if signed else (0, (1 << start.bits) - 1)
        if abs(reach) > high - low:
            return const("i1", 0)
        sign = "s" if signed else "u"
        inside = (
            e.cmp(f"icmp {sign}le", start, high - reach) if reach > 0 else e.cmp(f"icmp {sign}ge", start, low - reach)
        )
        result = e.bin("and", result, inside)
    return result


def _stride(form: Affine | Wide) -> int:
    """The step from lane to lane as a signed number of the form's width."""
    if isinstance(form, Wide):
        return form.scale * form.stride
    half = 1 << form.bases[0].bits - 1
    return (form.stride + half) % (2 * half) - half


def _run(form: Affine | Wide) -> int:
    return LANES // len(form.bases if isinstance(form, Affine) else form.inners)


def _combination(f: FunctionLowering, instr: Instr) -> Agreed | None:
    """``and``, ``or``, ``not`` of such predicates and uniform ones."""
    forms: list[Form] = []
    for a in instr.args[1:]:
        if not isinstance(a, (Reg, Not)) or (isinstance(a, Not) and isinstance(f.form(a.reg.name), Agreed)):
            return None
        forms.append(f.operand_form(a, 1))
    if not any(isinstance(x, Agreed) for x in forms):
        return None
    if not all(isinstance(x, Agreed) or (isinstance(x, Val) and x.n == 1) for x in forms):
        return None
    e = f.e
    pairs = [(x.every, x.none) if isinstance(x, Agreed) else (f.plain(x), e.invert(f.plain(x))) for x in forms]
    every, none = zip(*pairs, strict=True)
    if len(forms) == 1:
        every, none = none, every
    else:
        root = base(instr.op)
        every, none = [e.bin(root, *every)], [e.bin("or" if root == "and" else "and", *none)]
    return Agreed(every[0], none[0], instr.op, tuple(forms))
