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
    args = instr.args[1:]
    regs = [a for a in args if isinstance(a, Reg)]
    if not any(
        isinstance(f.forms.get(r.name), (Affine, Wide)) or f.analysis.kinds.get(r.name, ("v",))[0] in "aw" for r in regs
    ):
        return False
    op = instr.op
    ty = op.rsplit(".", 1)[1]
    bits = 8 * TYPE_BYTES.get(ty, 4)
    wide_third = {2: 64} if ".wide" in op else {}
    forms = [
        f.operand_form(a, 32 if op.startswith(("shl", "shr")) and k == 1 else wide_third.get(k, bits))
        for k, a in enumerate(args)
    ]
    known = [kinds.constant(a, f.analysis.constants) for a in args]
    kind = kinds.affine_result(op, [kind_of(x) for x in forms], known)
    if kind is None or kind == kinds.V:
        return False
    parts = op.split(".")
    root = parts[0]
    e = f.e
    if root in ("add", "sub"):
        out = _combine(e, forms[0], forms[1], root)
    elif root in ("mul", "mad"):
        if kinds.affine_result("mul." + ".".join(parts[1:]), [kind_of(x) for x in forms[:2]], known[:2]) is None:
            product: Form | None = e.bin("mul", forms[0], forms[1])  # type: ignore[arg-type]
        else:
            which = 0 if known[1] is not None and isinstance(forms[0], (Affine, Wide)) else 1
            product = _times(e, forms[which], known[1 - which], parts[1] == "wide", ty)  # type: ignore[arg-type]
        out = product if root == "mul" else _combine(e, product, forms[2], "add")  # type: ignore[arg-type]
    elif root == "and":
        which = 0 if isinstance(forms[0], Affine) else 1
        low = e.bin("and", forms[which].base, known[1 - which] & 0xFFFFFFFF)  # type: ignore[operator, union-attr]
        out = low if kind == kinds.U else Affine(low, 1)
    elif root == "shr":
        out = e.bin("ashr" if ty[0] == "s" else "lshr", forms[0].base, known[1])  # type: ignore[union-attr, arg-type]
    elif root == "shl":
        out = _times(e, forms[0], 1 << known[1], False, ty)  # type: ignore[operator]
    else:
        out = _convert(e, forms[0], parts[1], ty)
    f.put(instr.args[0].name, out)
    return True


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
