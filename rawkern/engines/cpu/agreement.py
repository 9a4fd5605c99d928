"""Comparisons of affine with uniform values: scalars tell whether the whole warp agrees, before any lane is looked at.

Along a segment an affine value rises or falls steadily, so where its first and its last lane compare alike, and nothing
wraps around between them, all do. A loop ``for (i = tid; i < n; i += width)`` then needs no mask until its last round.
"""

from __future__ import annotations

from rawkern.engines.cpu import arith
from rawkern.engines.cpu.addresses import fits, starts
from rawkern.engines.cpu.forms import LANES, Affine, Agreed, Form, Wide
from rawkern.engines.cpu.function import FunctionLowering
from rawkern.engines.cpu.ir import Val, const
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
    ty = instr.op.rsplit(".", 1)[1]
    forms = tuple(f.operand_form(a, 8 * TYPE_BYTES[ty]) for a in instr.args[1:])
    for k, (form, other) in enumerate((forms, forms[::-1])):
        if isinstance(form, (Affine, Wide)) and isinstance(other, Val) and other.n == 1:
            alike, results = _steady(f, form, ty[0] == "s"), []
            for value in _ends(f, form):
                operands = [other, value] if k else [value, other]
                results.append(arith.lower(f.e, instr.op, operands).vals[0])
            for result in dict.fromkeys(results[1:]):
                alike = f.e.bin("and", alike, f.e.cmp("icmp eq", result, results[0]))
            return Agreed(alike, results[0], instr.op, forms)
    return None


def _ends(f: FunctionLowering, form: Affine | Wide) -> list[Val]:
    """Values of the first and the last lane of each segment, where nothing wraps around."""
    stride, run = _stride(form), _run(form)
    values = []
    for start in dict.fromkeys(starts(f, form)):
        values += [start, f.e.bin("add", start, (run - 1) * stride)] if stride else [start]
    return values


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
    alike = const("i1", 1)
    for x in forms:
        if isinstance(x, Agreed):
            alike = e.bin("and", alike, x.alike)
    first = arith.lower(e, instr.op, [x.first if isinstance(x, Agreed) else f.plain(x) for x in forms]).vals[0]
    return Agreed(alike, first, instr.op, tuple(forms))
