"""Integer operations on affine operands, done on their scalar parts."""

from __future__ import annotations

from rawkern.engines.cpu import kinds
from rawkern.engines.cpu.forms import Affine, Form, Wide, kind_of
from rawkern.engines.cpu.function import FunctionLowering
from rawkern.engines.cpu.ir import Emitter, Val, const
from rawkern.engines.cpu.ptx import TYPE_BYTES, Instr, Reg

AFFINE = frozenset(("add", "sub", "mul", "mad", "shl", "shr", "and", "cvt"))


def lower_affine(f: FunctionLowering, instr: Instr) -> bool:
    """Emit an integer operation on affine operands as one on their scalar parts, if it is one of the forms known."""
    op, args = instr.op, instr.args[1:]
    if not any(isinstance(a, Reg) and _is_affine(f, a) for a in args):
        return False
    bits = 8 * TYPE_BYTES.get(op.rsplit(".", 1)[1], 4)
    widths = {1: 32} if op.startswith(("shl", "shr")) else {2: 64} if ".wide" in op else {}
    forms = [f.operand_form(a, widths.get(k, bits)) for k, a in enumerate(args)]
    known = [kinds.constant(a, f.analysis.constants) for a in args]
    kind = kinds.affine_result(op, [kind_of(x) for x in forms], known)
    if kind is None or kind == kinds.V:
        return False
    f.put(instr.args[0].name, _result(f.e, op, forms, known, kind))
    return True


def _is_affine(f: FunctionLowering, reg: Reg) -> bool:
    return isinstance(f.forms.get(reg.name), (Affine, Wide)) or f.analysis.kinds.get(reg.name, kinds.V)[0] in "aw"


def _result(e: Emitter, op: str, forms: list[Form], known: list[int | None], kind: kinds.Kind) -> Form:
    """The result of an operation of which `kinds.affine_result` knows that it has the kind `kind`."""
    parts = op.split(".")
    root, ty = parts[0], parts[-1]
    if root in ("add", "sub"):
        return _combine(e, forms[0], forms[1], root)
    if root == "mul":
        return _product(e, parts, forms, known)
    if root == "mad":
        return _combine(e, _product(e, parts, forms, known), forms[2], "add")
    if root == "cvt":
        return _convert(e, forms[0], parts[1], ty)
    which = 1 if root == "and" and not isinstance(forms[0], Affine) else 0
    form, value = forms[which], known[1 - which]
    assert value is not None
    if root == "shl":
        return _times(e, form, 1 << value, False, ty)
    assert isinstance(form, Affine)
    if root == "shr":
        return e.bin("ashr" if ty[0] == "s" else "lshr", form.base, value)
    low = e.bin("and", form.base, value & 0xFFFFFFFF)
    return low if kind == kinds.U else Affine(low, 1)


def _product(e: Emitter, parts: list[str], forms: list[Form], known: list[int | None]) -> Form:
    """The product of the first two operands: one of them affine and the other a constant, or both uniform."""
    a, b = forms[:2]
    if kinds.affine_result(".".join(["mul", *parts[1:]]), [kind_of(a), kind_of(b)], known[:2]) is None:
        assert isinstance(a, Val) and isinstance(b, Val)
        return e.bin("mul", a, b)
    form, factor = (a, known[1]) if known[1] is not None and isinstance(a, (Affine, Wide)) else (b, known[0])
    assert factor is not None
    return _times(e, form, factor, parts[1] == "wide", parts[-1])


def _combine(e: Emitter, a: Form, b: Form, op: str) -> Form:
    if isinstance(a, Affine) and isinstance(b, Affine):
        stride = a.stride + (b.stride if op == "add" else -b.stride)
        total = e.bin(op, a.base, b.base)
        return Affine(total, stride) if stride else total
    if isinstance(b, Val):
        if isinstance(a, Affine):
            return Affine(e.bin(op, a.base, b), a.stride)
        assert isinstance(a, Wide)
        return Wide(e.bin(op, a.offset, b), a.inner, a.scale, a.stride, a.signed)
    assert isinstance(a, Val)
    if isinstance(b, Affine):
        return Affine(e.bin(op, a, b.base), b.stride if op == "add" else -b.stride)
    assert isinstance(b, Wide)
    return Wide(e.bin(op, a, b.offset), b.inner, b.scale if op == "add" else -b.scale, b.stride, b.signed)


def _times(e: Emitter, form: Form, factor: int, wide: bool, ty: str) -> Form:
    if factor == 0:
        return const("i64" if wide or "64" in ty else "i32", 0)
    if isinstance(form, Wide):
        return Wide(e.bin("mul", form.offset, factor), form.inner, form.scale * factor, form.stride, form.signed)
    assert isinstance(form, Affine)
    if wide:
        signed = ty == "s32"
        return Wide(const("i64", 0), form.base, factor if signed else factor & 0xFFFFFFFF, form.stride, signed)
    return Affine(e.bin("mul", form.base, factor & (1 << form.base.bits) - 1), form.stride * factor)


def _convert(e: Emitter, form: Form, to: str, source: str) -> Form:
    bits = int(to[1:])
    if bits == 64 and source[1:] == "32":
        assert isinstance(form, Affine)
        return Wide(const("i64", 0), form.base, 1, form.stride, source == "s32")
    if bits == 32 and source[1:] == "64":
        if isinstance(form, Wide):
            low = e.bin("add", e.cast("trunc", form.offset, "i32"), e.bin("mul", form.inner, form.scale & 0xFFFFFFFF))
            return Affine(low, form.scale * form.stride)
        assert isinstance(form, Affine)
        return Affine(e.cast("trunc", form.base, "i32"), form.stride)
    return form
