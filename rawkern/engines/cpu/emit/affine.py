"""Integer operations on affine operands, done on their scalar parts."""

from __future__ import annotations

from rawkern.engines.cpu import arith
from rawkern.engines.cpu.analysis import uniformity
from rawkern.engines.cpu.emit.forms import Affine, Form, Wide, kind_of
from rawkern.engines.cpu.emit.function import FunctionLowering
from rawkern.engines.cpu.ir import Emitter, Val, const
from rawkern.engines.cpu.ptx.data import Instr, Reg
from rawkern.engines.cpu.ptx.decode import DTYPES, DType, Op, decode


def lower_affine(f: FunctionLowering, instr: Instr) -> bool:
    """Emit an integer operation on affine operands as one on their scalar parts, if it is one of the forms known."""
    op, args = instr.op, instr.args[1:]
    if not op.facts.affine or not any(isinstance(a, Reg) and _is_affine(f, a) for a in args):
        return False
    forms = [f.values.operand(a, op.width(k)) for k, a in enumerate(args)]
    known = [uniformity.constant(a, f.analysis.constants) for a in args]
    kind = uniformity.affine_result(op, [kind_of(x) for x in forms], known)
    if kind is None or kind == uniformity.V:
        return False
    f.values.put(instr.args[0].name, _result(f.e, op, forms, known, kind))
    return True


def _is_affine(f: FunctionLowering, reg: Reg) -> bool:
    return (
        isinstance(f.values.known(reg.name), (Affine, Wide)) or f.analysis.kinds.get(reg.name, uniformity.V)[0] in "aw"
    )


def _result(e: Emitter, op: Op, forms: list[Form], known: list[int | None], kind: uniformity.Kind) -> Form:
    """The result of an operation of which `uniformity.affine_result` knows that it has the kind `kind`."""
    root, ty = op.base, op.types[-1]
    if root in ("add", "sub"):
        return _combine(e, forms[0], forms[1], root)
    if root in ("neg", "not"):  # 0 - x and -1 - x
        return _combine(e, const(ty.int, -(root == "not")), forms[0], "sub")
    if root == "mul":
        return _product(e, op, forms, known)
    if root == "mad":
        return _combine(e, _product(e, op, forms, known), forms[2], "add")
    if root == "cvt":
        return _convert(e, forms[0], op.type, ty)
    if root == "shl" and known[1] is not None:
        return _times(e, forms[0], 1 << known[1], False, ty)
    if uniformity.on_segments([kind_of(x) for x in forms]) is not None:
        return _on_segments(e, op, forms)
    aligned = next(x for x in forms if isinstance(x, Affine))  # its low bits are the lane's: no carry to the others
    count = kind[2] if kind[0] == "a" else 1
    bases = aligned.split(e, count).bases
    other = const("i32", next(v for v in known if v is not None) & 0xFFFFFFFF)
    heads = tuple(arith.lower(e, op, [base, other]).vals[0] for base in bases)
    return heads[0] if kind == uniformity.U else Affine(heads, kind[1])


def _on_segments(e: Emitter, op: Op, forms: list[Form]) -> Form:
    """An operation on values that are the same in all lanes of a segment, once for each segment."""
    count = max(x.segments if isinstance(x, Affine) else 1 for x in forms)
    columns = [_spread(e, x, count) for x in forms]
    return _affine(tuple(arith.lower(e, op, row).vals[0] for row in zip(*columns, strict=True)), 0)


def _spread(e: Emitter, form: Form, count: int) -> tuple[Val, ...]:
    """The bases of a form without scale, for each of `count` segments."""
    if isinstance(form, Affine):
        return form.split(e, count).bases
    assert isinstance(form, Val)
    return (form,) * count


def _affine(bases: tuple[Val, ...], stride: int) -> Form:
    return bases[0] if len(bases) == 1 and not stride else Affine(bases, stride)


def _product(e: Emitter, op: Op, forms: list[Form], known: list[int | None]) -> Form:
    """The product of the first two operands: one affine and the other a constant, or both the same in a segment."""
    a, b = forms[:2]
    if 0 in known[:2]:
        return const("i64" if op.has("wide") else op.type.int, 0)
    if uniformity.on_segments([kind_of(a), kind_of(b)]) is not None:
        return _on_segments(e, decode(op.text.replace("mad", "mul")), [a, b])
    form, factor = (a, known[1]) if known[1] is not None and isinstance(a, (Affine, Wide)) else (b, known[0])
    assert factor is not None
    return _times(e, form, factor, op.has("wide"), op.type)


def _combine(e: Emitter, a: Form, b: Form, op: str) -> Form:
    """The sum or difference of two forms, at most one of them wide; the other then has no stride."""
    count = max(x.segments if isinstance(x, (Affine, Wide)) else 1 for x in (a, b))
    if isinstance(a, Wide):
        a = a.split(e, count)
        return Wide(_pairs(e, op, a.offsets, _spread(e, b, count)), a.inners, a.scale, a.stride, a.signed)
    if isinstance(b, Wide):
        b, scale = b.split(e, count), b.scale if op == "add" else -b.scale
        return Wide(_pairs(e, op, _spread(e, a, count), b.offsets), b.inners, scale, b.stride, b.signed)
    strides = [x.stride if isinstance(x, Affine) else 0 for x in (a, b)]
    bases = _pairs(e, op, _spread(e, a, count), _spread(e, b, count))
    return _affine(bases, strides[0] + (strides[1] if op == "add" else -strides[1]))


def _pairs(e: Emitter, op: str, a: tuple[Val, ...], b: tuple[Val, ...]) -> tuple[Val, ...]:
    done: dict[tuple[Val, Val], Val] = {}  # segments often share their values
    for pair in zip(a, b, strict=True):
        if pair not in done:
            done[pair] = e.bin(op, *pair)
    return tuple(done[pair] for pair in zip(a, b, strict=True))


def _times(e: Emitter, form: Form, factor: int, wide: bool, ty: DType) -> Form:
    if factor == 0:
        return const("i64" if wide else ty.int, 0)
    if isinstance(form, Wide):
        offsets = tuple(e.bin("mul", x, factor) for x in form.offsets)
        return Wide(offsets, form.inners, form.scale * factor, form.stride, form.signed)
    assert isinstance(form, Affine)
    if wide:
        return widened(e, form, factor, ty.signed)
    mask = (1 << form.bases[0].bits) - 1
    return Affine(tuple(e.bin("mul", x, factor & mask) for x in form.bases), form.stride * factor)


def widened(e: Emitter, form: Affine, factor: int, signed: bool) -> Form:
    """A 32-bit form in 64 bits, times a constant."""
    factor = factor if signed else factor & 0xFFFFFFFF
    if form.stride == 0 or form.aligned:  # lanes do not wrap
        bases = tuple(e.resize(x, "i64", signed) for x in form.bases)
        if factor != 1:
            bases = tuple(e.bin("mul", x, factor) for x in bases)
        return Affine(bases, form.stride * factor)
    return Wide((const("i64", 0),) * form.segments, form.bases, factor, form.stride, signed)


def _convert(e: Emitter, form: Form, to: DType, source: DType) -> Form:
    if source.bits == 32 and isinstance(form, Affine) and form.bases[0].ty == "i64":  # a wider register's low half
        form = _convert(e, form, DTYPES["u32"], DTYPES["u64"])
    if to.bits == 64 and source.bits == 32:
        assert isinstance(form, Affine)
        return widened(e, form, 1, source.signed)
    if to.bits == 32 and source.bits == 64:
        if isinstance(form, Wide):
            parts = zip(form.offsets, form.inners, strict=True)
            scaled = [(e.cast("trunc", o, "i32"), e.bin("mul", i, form.scale & 0xFFFFFFFF)) for o, i in parts]
            return Affine(tuple(e.bin("add", o, i) for o, i in scaled), form.scale * form.stride)
        assert isinstance(form, Affine)
        return Affine(tuple(e.cast("trunc", x, "i32") for x in form.bases), form.stride)
    return form
