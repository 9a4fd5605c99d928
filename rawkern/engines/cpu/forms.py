"""The forms in which the lowering holds a register's value: a scalar or vector, affine parts, a float as computed."""

from __future__ import annotations

from dataclasses import dataclass

from rawkern.engines.cpu import kinds
from rawkern.engines.cpu.ir import Emitter, Val, const
from rawkern.engines.cpu.operands import base, destinations
from rawkern.engines.cpu.ptx import TYPE_BYTES, Imm, Instr, Reg
from rawkern.errors import UnsupportedError

LANES = 32

#: Instructions whose float results may hold any NaN until the bits are looked at.
LAZY_NAN = frozenset(
    ["add", "sub", "mul", "fma", "mad", "div", "rcp", "sqrt", "rsqrt", "ex2", "lg2", "sin", "cos", "tanh"]
)
#: Instructions that read floats as numbers, for which the bits of a NaN do not matter.
READS_NUMBERS = LAZY_NAN | frozenset(["setp", "set", "testp", "min", "max", "abs", "neg", "cvt"])


@dataclass(frozen=True, slots=True)
class Affine:
    """An integer that grows by `stride` from lane to lane, modulo its width; `aligned`: 32 divides lane 0's.

    The lanes form as many equal segments as there are bases, and each starts anew from its own.
    """

    bases: tuple[Val, ...]
    stride: int
    aligned: bool = False

    def split(self, e: Emitter, count: int) -> Affine:
        """The same with `count` segments, a multiple of those it has."""
        return Affine(_split(e, self.bases, self.stride, count), self.stride)


@dataclass(frozen=True, slots=True)
class Wide:
    """A 64-bit integer ``offset + scale * extend(inner + lane * stride)``, the inner sum modulo 2^32.

    Offset and inner part are each segment's own; lanes are counted from its start.
    """

    offsets: tuple[Val, ...]
    inners: tuple[Val, ...]
    scale: int
    stride: int
    signed: bool

    def split(self, e: Emitter, count: int) -> Wide:
        """The same with `count` segments, a multiple of those it has."""
        offsets, inners = _split(e, self.offsets, 0, count), _split(e, self.inners, self.stride, count)
        return Wide(offsets, inners, self.scale, self.stride, self.signed)


def _split(e: Emitter, bases: tuple[Val, ...], stride: int, count: int) -> tuple[Val, ...]:
    top = (1 << bases[0].bits) - 1
    steps = [LANES // count * stride * k & top for k in range(count // len(bases))]
    return tuple(e.bin("add", base, step) if step else base for base in bases for step in steps)


@dataclass(frozen=True, slots=True)
class Lazy:
    """A float whose NaNs are not canonical yet; ``kind`` as the arithmetic tables name it."""

    val: Val
    kind: str


Form = Val | Affine | Wide | Lazy


def int_type(bits: int) -> str:
    return f"i{bits}"


def register_bits(kind: str) -> int:
    return 1 if kind == "pred" else 8 * TYPE_BYTES[kind]


def ramp(ty: str, stride: int, segments: int = 1) -> Val:
    """The constant vector 0, stride, 2 * stride, ... modulo the width of `ty`, from 0 again in each segment."""
    top, run = (1 << int(ty[1:])) - 1, LANES // segments
    return Val(f"<{', '.join(f'{ty} {k % run * stride & top}' for k in range(LANES))}>", ty, LANES)


def lanes_of(e: Emitter, values: tuple[Val, ...]) -> Val:
    """A scalar for each segment, in all its lanes."""
    result, run = e.splat(values[0], LANES), LANES // len(values)
    for s, value in enumerate(values[1:], 1):
        if value != values[s - 1]:
            picks = ", ".join(f"i32 {k if k < s * run else k + LANES}" for k in range(LANES))
            other = e.splat(value, LANES)
            result = e.let(value.ty, LANES, f"shufflevector {result}, {other}, <{LANES} x i32> <{picks}>")
    return result


def immediate(imm: Imm, bits: int) -> Val:
    if bits == 1:
        return const("i1", imm.value)
    value = imm.value
    if imm.kind == "d" and bits == 32:
        raise UnsupportedError("PTX float64 immediate for a 32-bit operand")
    return Val(str(value & (1 << bits) - 1), int_type(bits), 1)


def kind_of(form: Form) -> kinds.Kind:
    """What is known about the lanes of a value in this form."""
    if isinstance(form, Affine):
        return kinds.ALIGNED if form.aligned else ("a", form.stride, len(form.bases))
    if isinstance(form, Wide):
        return ("w", form.scale, form.stride, form.signed, len(form.inners))
    return kinds.U if isinstance(form, Val) and form.n == 1 else kinds.V


def spread(e: Emitter, form: Affine | Wide) -> Val:
    """The 32 lanes of an affine form, emitted anew."""
    if isinstance(form, Affine):
        start = lanes_of(e, form.bases)
        return e.bin("add", start, ramp(start.ty, form.stride, len(form.bases))) if form.stride else start
    inner = e.bin("add", lanes_of(e, form.inners), ramp("i32", form.stride, len(form.inners)))
    wide = e.resize(inner, "i64", form.signed)
    if form.scale != 1:
        wide = e.bin("mul", wide, const("i64", form.scale, LANES))
    return e.bin("add", wide, lanes_of(e, form.offsets))


def lazy_registers(blocks: list[list[Instr]]) -> dict[str, str]:
    """Registers all of whose writes are float arithmetic of one type, with that type."""
    lazy: dict[str, str] = {}
    writes: dict[str, list[Instr]] = {}
    for instrs in blocks:
        for instr in instrs:
            for name in destinations(instr):
                writes.setdefault(name, []).append(instr)
    for name, instrs in writes.items():
        types = {i.op.rsplit(".", 1)[1] for i in instrs if base(i.op) in LAZY_NAN}
        plain = all(
            base(i.op) in LAZY_NAN or (base(i.op) == "mov" and isinstance(i.args[1], (Imm, Reg))) for i in instrs
        )
        if plain and len(types) == 1 and types <= {"f32", "f64"}:
            lazy[name] = types.pop()
    changed = True
    while changed:
        changed = False
        for name in list(lazy):
            for i in writes[name]:
                if base(i.op) == "mov" and isinstance(i.args[1], Reg) and lazy.get(i.args[1].name) != lazy[name]:
                    del lazy[name]
                    changed = True
                    break
    return lazy
