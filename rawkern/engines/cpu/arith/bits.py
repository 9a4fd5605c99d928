"""Bit operations: logic, shifts, fields, counts, byte permutation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rawkern.engines.cpu.arith.rows import Result, UnsupportedOpcode, constant, fetch
from rawkern.engines.cpu.ir import Emitter, Val, const
from rawkern.engines.cpu.ptx.decode import Op


def logic(e: Emitter, op: Op, args: Sequence[Val]) -> Val:
    return e.bin(op.base, fetch(e, args[0], op.type), fetch(e, args[1], op.type))


def invert(e: Emitter, op: Op, args: Sequence[Val]) -> Val:
    return e.invert(fetch(e, args[0], op.type))


def cnot(e: Emitter, op: Op, args: Sequence[Val]) -> Val:
    a = fetch(e, args[0], op.type)
    return e.resize(e.cmp("icmp eq", a, 0), a.ty)


def move(e: Emitter, op: Op, args: Sequence[Val]) -> Val:
    return fetch(e, args[0], op.type)


# -- shifts -----------------------------------------------------------------------------------------
def shift_out(e: Emitter, name: str, a: Val, amount: Val) -> Val:
    """``shl`` or ``lshr`` by an unsigned amount of any size: 0 from the width on."""
    fits = e.cmp("icmp ult", amount, a.bits)
    return e.select(fits, e.bin(name, a, e.resize(amount, a.ty)), e.like(a, 0))


def shift_sign(e: Emitter, a: Val, amount: Val) -> Val:
    """``ashr`` by an unsigned amount of any size: all sign bits from the width on."""
    amount = e.intrinsic("llvm.umin", amount.ty, amount, e.like(amount, a.bits - 1))
    return e.bin("ashr", a, e.resize(amount, a.ty))


def shift(e: Emitter, op: Op, args: Sequence[Val]) -> Val:
    a, amount = fetch(e, args[0], op.type), e.resize(args[1], "i32")
    if op.base == "shr" and op.type.signed:
        return shift_sign(e, a, amount)
    return shift_out(e, "shl" if op.base == "shl" else "lshr", a, amount)


def funnel(e: Emitter, op: Op, args: Sequence[Val]) -> Val:
    low, high, amount = (fetch(e, a, op.type) for a in args)
    left = op.has("l")
    d = e.intrinsic("llvm.fshl" if left else "llvm.fshr", "i32", high, low, amount)
    if op.has("wrap"):
        return d
    return e.select(e.cmp("icmp ult", amount, 32), d, low if left else high)


# -- fields -----------------------------------------------------------------------------------------
def _field(e: Emitter, op: Op, place: Val, length: Val) -> tuple[Val, Val]:
    """Place and length of a field: their low 8 bits; the hardware's 64-bit forms take all 32."""
    pair = e.resize(place, "i32"), e.resize(length, "i32")
    return pair if op.type.bits == 64 else (e.bin("and", pair[0], 255), e.bin("and", pair[1], 255))


def low_mask(e: Emitter, length: Val, ty: str) -> Val:
    """The `length` lowest bits set; all of them from the width on."""
    return e.bin("add", shift_out(e, "shl", const(ty, 1, length.n), length), -1)


def extract(e: Emitter, op: Op, args: Sequence[Val]) -> Val:
    a = fetch(e, args[0], op.type)
    position, length = _field(e, op, args[1], args[2])
    if not op.type.signed:
        return e.bin("and", shift_out(e, "lshr", a, position), low_mask(e, length, a.ty))
    return _sign_extended(e, shift_sign(e, a, position), length)


def _sign_extended(e: Emitter, a: Val, length: Val) -> Val:
    """The `length` lowest bits, extended by the highest of them; 0 if there are none."""
    empty = e.cmp("icmp eq", length, 0)
    rest = e.intrinsic("llvm.usub.sat", "i32", e.like(length, a.bits), length)
    rest = e.resize(e.intrinsic("llvm.umin", "i32", rest, e.like(rest, a.bits - 1)), a.ty)
    return e.select(empty, 0, e.bin("ashr", e.bin("shl", a, rest), rest))


def insert(e: Emitter, op: Op, args: Sequence[Val]) -> Val:
    a, b = fetch(e, args[0], op.type), fetch(e, args[1], op.type)
    position, length = _field(e, op, args[2], args[3])
    mask = shift_out(e, "shl", low_mask(e, length, a.ty), position)
    field = e.bin("and", shift_out(e, "shl", a, position), mask)
    return e.bin("or", e.bin("and", b, e.invert(mask)), field)


def find(e: Emitter, op: Op, args: Sequence[Val]) -> Val:
    """The place of the highest bit that is not a copy of the sign, all ones where there is none."""
    a = fetch(e, args[0], op.type)
    if op.type.signed:
        a = e.bin("xor", a, e.bin("ashr", a, a.bits - 1))
    d = e.resize(e.intrinsic("llvm.ctlz", a.ty, a, extra=", i1 false"), "i32")
    if not op.has("shiftamt"):
        return e.bin("sub", e.like(d, op.type.bits - 1), d)  # 31 - 32 is all ones already
    return e.select(e.cmp("icmp eq", a, 0), -1, d)


def reverse(e: Emitter, op: Op, args: Sequence[Val]) -> Val:
    a = fetch(e, args[0], op.type)
    return e.intrinsic("llvm.bitreverse", a.ty, a)


def leading(e: Emitter, op: Op, args: Sequence[Val]) -> Val:
    a = fetch(e, args[0], op.type)
    return e.resize(e.intrinsic("llvm.ctlz", a.ty, a, extra=", i1 false"), "i32")


def population(e: Emitter, op: Op, args: Sequence[Val]) -> Val:
    a = fetch(e, args[0], op.type)
    return e.resize(e.intrinsic("llvm.ctpop", a.ty, a), "i32")


def _amount(e: Emitter, op: Op, a: Val) -> Val:
    a = e.resize(a, "i32")
    return e.bin("and", a, 31) if op.has("wrap") else a


def mask(e: Emitter, op: Op, args: Sequence[Val]) -> Val:
    position, length = (_amount(e, op, a) for a in args)
    return shift_out(e, "shl", low_mask(e, length, "i32"), position)


def extend(e: Emitter, op: Op, args: Sequence[Val]) -> Val:
    """szext: keep the lowest bits, as many as the second operand says, extended by sign or zeros."""
    a, length = fetch(e, args[0], op.type), _amount(e, op, args[1])
    if not op.type.signed:
        return e.bin("and", a, low_mask(e, length, "i32"))
    return _sign_extended(e, a, length)


def nth_set(e: Emitter, op: Op, args: Sequence[Val]) -> Val:
    """fns: the place of the n-th set bit at or above (n > 0) or at or below (n < 0) a place; all ones if none."""
    bits, base, n = e.same(*(e.resize(a, "i32") for a in args))
    down = e.cmp("icmp slt", n, 0)
    bits = e.select(down, e.intrinsic("llvm.bitreverse", "i32", bits), bits)
    start = e.select(down, e.bin("sub", e.like(base, 31), base), base)
    here = e.cmp("icmp eq", n, 0)
    left = e.bin("sub", e.intrinsic("llvm.abs", "i32", n, extra=", i1 false"), 1)
    left = e.select(here, 0, left)
    bits = e.bin("and", bits, shift_out(e, "shl", e.like(bits, -1), start))
    bits = e.select(here, e.bin("and", bits, shift_out(e, "shl", e.like(bits, 1), start)), bits)
    found = e.cmp("icmp ult", left, e.intrinsic("llvm.ctpop", "i32", bits))
    place = e.like(base, 0)
    for width in (16, 8, 4, 2, 1):
        part = e.bin("and", e.bin("lshr", bits, place), (1 << width) - 1)
        count = e.intrinsic("llvm.ctpop", "i32", part)
        beyond = e.cmp("icmp uge", left, count)
        left = e.select(beyond, e.bin("sub", left, count), left)
        place = e.bin("and", e.select(beyond, e.bin("add", place, width), place), 31)
    place = e.select(down, e.bin("sub", e.like(place, 31), place), place)
    return e.select(found, place, -1)


# -- tables -----------------------------------------------------------------------------------------
def lop3(e: Emitter, op: Op, args: Sequence[Val]) -> Val:
    """Any function of three bits, given as a table; the optimizer shortens what is built here."""
    table = constant(args[3])
    if table is None:
        raise UnsupportedOpcode(f"{op.text}: the table has to be a constant")
    a, b, c = (fetch(e, x, op.type) for x in args[:3])
    # the table's index has a as its highest bit; each half and quarter is chosen by one operand
    half = [_mux(e, b, _plane(e, c, table >> 4 * i + 2 & 3), _plane(e, c, table >> 4 * i & 3)) for i in (0, 1)]
    return _mux(e, a, half[1], half[0])


def lop3_combined(e: Emitter, op: Op, args: Sequence[Val]) -> Result:
    """lop3 with a second result: whether the first is not zero, and or or a predicate."""
    d = lop3(e, op, args)
    held, given = e.same(e.cmp("icmp ne", d, 0), args[4])
    return Result((d, e.bin("and" if op.has("and") else "or", held, given)))


def _plane(e: Emitter, c: Val, two: int) -> Val:
    if two in (0, 3):
        return e.like(c, -1 if two else 0)
    return c if two == 2 else e.invert(c)


def _mux(e: Emitter, chooser: Val, one: Val, zero: Val) -> Val:
    if one is zero or one.ref == zero.ref:
        return one
    return e.bin("xor", zero, e.bin("and", chooser, e.bin("xor", one, zero)))


def permute(e: Emitter, op: Op, args: Sequence[Val]) -> Val:
    """prmt: choose four of the eight bytes of {b, a}; the default mode can spread a byte's sign instead."""
    a, b, c = (fetch(e, x, op.type) for x in args)
    selector = constant(c)
    if selector is not None and not op.mods:
        return _fixed_permute(e, a, b, selector)
    both = e.bin("or", e.bin("shl", e.resize(b, "i64"), 32), e.resize(a, "i64"))
    mode = op.mods[0] if op.mods else ""
    start = e.bin("and", c, 3)

    def chosen(i: int) -> Val:
        nibble = e.bin("lshr", c, 4 * i) if not mode else _mode_index(e, mode, start, i)
        place = e.bin("shl", e.resize(e.bin("and", nibble, 7), "i64"), 3)
        byte = e.bin("and", e.resize(e.bin("lshr", both, place), "i32"), 255)
        if not mode:
            sign = e.bin("and", e.neg(e.bin("lshr", byte, 7)), 255)
            byte = e.select(e.cmp("icmp ne", e.bin("and", nibble, 8), 0), sign, byte)
        return e.bin("shl", byte, 8 * i)

    return e.all("or", map(chosen, range(4)))


def _fixed_permute(e: Emitter, a: Val, b: Val, selector: int) -> Val:
    """prmt by a constant: runs of bytes that move by the same distance move together."""
    moves: dict[tuple[int, int], int] = {}
    signs = []
    for i in range(4):
        nibble = selector >> 4 * i & 15
        if nibble & 8:
            signs.append((nibble & 7, i))
        else:
            key = nibble >> 2, 8 * ((nibble & 3) - i)
            moves[key] = moves.get(key, 0) | 0xFF << 8 * i

    def parts() -> Iterator[Val]:
        for (source, distance), mask in moves.items():
            v = (a, b)[source]
            if distance:
                v = e.bin("lshr" if distance > 0 else "shl", v, abs(distance))
            yield v if mask == 0xFFFFFFFF else e.bin("and", v, mask)
        for k, i in signs:
            v = e.bin("ashr", e.bin("shl", (a, b)[k >> 2], 24 - 8 * (k & 3)), 31)
            yield e.bin("and", v, 0xFF << 8 * i)

    return e.all("or", parts())


def _mode_index(e: Emitter, mode: str, start: Val, i: int) -> Val:
    if mode == "f4e":
        return e.bin("add", start, i)
    if mode == "b4e":
        return e.bin("sub", start, i)
    if mode == "rc8":
        return start
    if mode == "rc16":
        return e.bin("add", e.bin("shl", e.bin("and", start, 1), 1), i % 2)
    return e.intrinsic("llvm.umax" if mode == "ecl" else "llvm.umin", "i32", start, e.like(start, i))
