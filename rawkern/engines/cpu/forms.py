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
    """An integer that grows by `stride` from lane to lane, modulo its width; `aligned`: 32 divides lane 0's."""

    base: Val
    stride: int
    aligned: bool = False


@dataclass(frozen=True, slots=True)
class Wide:
    """A 64-bit integer ``offset + scale * extend(inner + lane * stride)``, the inner sum modulo 2^32."""

    offset: Val
    inner: Val
    scale: int
    stride: int
    signed: bool


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


def ramp(ty: str, stride: int) -> Val:
    """The constant vector 0, stride, 2 * stride, ... modulo the width of `ty`."""
    top = (1 << int(ty[1:])) - 1
    return Val(f"<{', '.join(f'{ty} {k * stride & top}' for k in range(LANES))}>", ty, LANES)


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
        return ("a", form.stride, 32) if form.aligned else ("a", form.stride)
    if isinstance(form, Wide):
        return ("w", form.scale, form.stride, form.signed)
    return kinds.U if isinstance(form, Val) and form.n == 1 else kinds.V


def spread(e: Emitter, form: Affine | Wide) -> Val:
    """The 32 lanes of an affine form, emitted anew."""
    if isinstance(form, Affine):
        return e.bin("add", e.splat(form.base, LANES), ramp(form.base.ty, form.stride))
    inner = e.bin("add", e.splat(form.inner, LANES), ramp("i32", form.stride))
    wide = e.resize(inner, "i64", form.signed)
    if form.scale != 1:
        wide = e.bin("mul", wide, const("i64", form.scale, LANES))
    return e.bin("add", wide, e.splat(form.offset, LANES))


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
