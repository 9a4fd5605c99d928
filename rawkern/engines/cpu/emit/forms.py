"""The forms in which the lowering holds a register's value: a scalar or vector, affine parts, a float as computed."""

from __future__ import annotations

from dataclasses import dataclass

from rawkern.engines.cpu import arith
from rawkern.engines.cpu.analysis import uniformity
from rawkern.engines.cpu.analysis.graph import Flow
from rawkern.engines.cpu.ir import Emitter, Val, const
from rawkern.engines.cpu.ptx.data import TYPE_BYTES, Imm, Instr, Reg, Vec
from rawkern.engines.cpu.ptx.decode import Op
from rawkern.engines.cpu.ptx.operands import destinations

LANES = 32


@dataclass(frozen=True, slots=True)
class Affine:
    """An integer that grows by `stride` from lane to lane, modulo its width; `aligned`: 32 divides lane 0's.

    The lanes form as many equal segments as there are bases, and each starts from its own.
    """

    bases: tuple[Val, ...]
    stride: int
    aligned: bool = False

    @property
    def segments(self) -> int:
        return len(self.bases)

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

    @property
    def segments(self) -> int:
        return len(self.inners)

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


@dataclass(frozen=True, slots=True)
class Agreed:
    """A predicate that scalars may tell to hold in all lanes or in none, and else what `op` makes of its operands."""

    every: Val
    none: Val
    op: Op
    operands: tuple[Form, ...]


Form = Val | Affine | Wide | Lazy | Agreed


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
            picks = [k if k < s * run else k + LANES for k in range(LANES)]
            result = e.shuffle(result, picks, e.splat(value, LANES))
    return result


def immediate(imm: Imm, bits: int) -> Val:
    if bits == 1:
        return const("i1", imm.value)
    return Val(str(imm.bits(bits)), int_type(bits), 1)


def kind_of(form: Form) -> uniformity.Kind:
    """What is known about the lanes of a value in this form."""
    if isinstance(form, Affine):
        return uniformity.ALIGNED if form.aligned else ("a", form.stride, form.segments)
    if isinstance(form, Wide):
        return ("w", form.scale, form.stride, form.signed, form.segments)
    return uniformity.U if isinstance(form, Val) and form.n == 1 else uniformity.V


def spread(e: Emitter, form: Affine | Wide) -> Val:
    """The 32 lanes of an affine form, emitted again."""
    if isinstance(form, Affine):
        start = lanes_of(e, form.bases)
        return e.bin("add", start, ramp(start.ty, form.stride, form.segments)) if form.stride else start
    inner = e.bin("add", lanes_of(e, form.inners), ramp("i32", form.stride, form.segments))
    wide = e.resize(inner, "i64", form.signed)
    if form.scale != 1:
        wide = e.product(wide, const("i64", form.scale, LANES))
    return e.bin("add", wide, lanes_of(e, form.offsets))


def lazy_registers(flow: Flow) -> dict[str, str]:
    """Registers that hold nothing but results of float arithmetic of one type, with that type."""
    types: dict[str, set[str | None]] = {}  # what is written to a register; None stands for anything else
    moves: dict[str, list[str]] = {}  # registers that a register's value is moved to
    for block in flow.blocks:
        for instr in block.instrs:
            moved = _moved(instr)
            for k, name in enumerate(destinations(instr)):
                found = types.setdefault(name, set())
                if moved is None or k:
                    kind = arith.lazy_nan(instr.op)
                    found.add(kind if kind in ("f32", "f64") else None)
                    continue
                for a in moved:
                    if isinstance(a, Reg):
                        moves.setdefault(a.name, []).append(name)
                    elif a.kind == "i" or is_nan(a):
                        found.add(None)
        for copies in block.copies.values():
            for name, source in copies:
                types.setdefault(name, set())
                moves.setdefault(source, []).append(name)
    work = list(moves)
    while work:
        source = work.pop()
        for name in moves.get(source, ()):
            known = types[name] | types.get(source, {None})
            if known != types[name]:
                types[name] = known
                work.append(name)
    return {name: kind for name, found in types.items() if len(found) == 1 for kind in found if kind is not None}


def _moved(instr: Instr) -> list[Reg | Imm] | None:
    """The operands of which one becomes the instruction's result as it is; None where that is not what it does."""
    args = instr.args[1 : 1 + instr.op.facts.moves]
    plain = args and not isinstance(instr.args[0], Vec) and all(isinstance(a, (Reg, Imm)) for a in args)
    return args if plain else None


def is_nan(imm: Imm) -> bool:
    top = 0x7F800000 if imm.kind == "f" else 0x7FF0000000000000
    return imm.value & (0x7FFFFFFF if imm.kind == "f" else 0x7FFFFFFFFFFFFFFF) > top
