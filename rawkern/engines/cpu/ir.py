"""LLVM IR as text: values that know their type, and an emitter that types every line.

A value has an element type and a number of lanes. One lane is a scalar, which is how a value that all
lanes of a warp share is kept; the same lowering code therefore serves uniform and per-lane values, and
mixing the two broadcasts the scalar.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import reduce

BITS = {
    "i1": 1,
    "i8": 8,
    "i16": 16,
    "i32": 32,
    "i64": 64,
    "i128": 128,
    "half": 16,
    "float": 32,
    "double": 64,
    "ptr": 64,
}
_CONSTANT = re.compile(r"splat \(i\d+ (-?\d+)\)")
_MANGLED = {"half": "f16", "float": "f32", "double": "f64", "ptr": "p0"}


def llvm_type(ty: str, n: int) -> str:
    return ty if n == 1 else f"<{n} x {ty}>"


def size_of(ty: str) -> int:
    """Bytes of a scalar or vector in memory."""
    lanes, _, element = ty.strip("<>").rpartition(" x ")
    return -(-int(lanes or 1) * BITS[element] // 8)


@dataclass(frozen=True, slots=True)
class Val:
    """An SSA value or constant: ``ref`` as LLVM spells it, element type ``ty``, ``n`` lanes (1: uniform)."""

    ref: str
    ty: str
    n: int = 1

    @property
    def t(self) -> str:
        return llvm_type(self.ty, self.n)

    @property
    def bits(self) -> int:
        return BITS[self.ty]

    def __str__(self) -> str:
        return f"{self.t} {self.ref}"


def literal(ty: str, value: int | float) -> str:
    """Spell a scalar constant; floats by their bits, so that nothing is rounded on the way."""
    if ty == "i1":
        return "true" if value else "false"
    if ty[0] == "i":
        return str(int(value))
    if ty == "half":
        return f"0xH{struct.unpack('<H', struct.pack('<e', value))[0]:04X}"
    if ty == "float":
        value = struct.unpack("<f", struct.pack("<f", value))[0]
    return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"


def const(ty: str, value: int | float, n: int = 1) -> Val:
    text = literal(ty, value)
    return Val(text, ty) if n == 1 else Val(f"splat ({ty} {text})", ty, n)


@dataclass
class Module:
    """Declarations and out-of-line helper functions, each kept once, and the functions' text.

    `features` tells lowering what the target has or lacks: ``"avx512f"`` (with DQ: rounding modes in instructions),
    ``"nofma"`` and ``"nof16c"``. SSE4.1, FMA and half-precision conversions are taken for granted otherwise.
    """

    declarations: dict[str, str] = field(default_factory=dict)
    helpers: dict[str, str] = field(default_factory=dict)
    functions: list[str] = field(default_factory=list)
    features: frozenset[str] = frozenset()
    frame: int = 0  # bytes that a call of the largest function takes on the stack at least

    def declare(self, name: str, text: str) -> None:
        self.declarations.setdefault(name, text)

    def helper(self, name: str, build: Callable[[Module], str]) -> str:
        """Define function `name` by `build(module)`, which returns its whole text, unless it is there."""
        if name not in self.helpers:
            self.helpers[name] = ""  # a helper may use itself
            self.helpers[name] = build(self)
        return name

    def text(self) -> str:
        return "\n".join([*self.declarations.values(), *self.helpers.values(), *self.functions])


class Emitter:
    """Appends typed LLVM IR lines to one function; every method that computes returns the new value."""

    def __init__(self, module: Module, lines: list[str] | None = None, prefix: str = "v"):
        self.module = module
        self.lines: list[str] = [] if lines is None else lines
        self.prefix = prefix
        self.quiet: set[Val] = set()  # floats (as bits) known not to be signaling NaNs
        self._next = 0

    def fresh(self, prefix: str = "") -> str:
        """A new name; `prefix` must not be that of another emitter of the function."""
        self._next += 1
        return f"%{prefix or self.prefix}{self._next}"

    def line(self, text: str) -> None:
        self.lines.append(text)

    def label(self, name: str) -> None:
        self.lines.append(f"{name}:")

    @contextmanager
    def where(self, cond: Val, rare: bool = False, follow: str = "", ends: bool = False) -> Iterator[None]:
        """What is emitted meanwhile runs if a scalar condition holds, and continues after it or at the label `follow`.

        With `rare` that is hardly ever (``!0`` of the module's metadata); what `ends` does not go on.
        """
        inside, on = self.fresh("then")[1:], self.fresh("on")[1:]
        self.line(f"br {cond}, label %{inside}, label %{on}{', !prof !0' if rare else ''}")
        self.label(inside)
        yield
        self.line("unreachable" if ends else f"br label %{follow or on}")
        self.label(on)

    def let(self, ty: str, n: int, text: str) -> Val:
        """Emit ``%new = text``, a value of `n` lanes of `ty`."""
        ref = self.fresh()
        self.lines.append(f"{ref} = {text}")
        return Val(ref, ty, n)

    # -- shapes ---------------------------------------------------------------------------------
    def splat(self, a: Val, n: int) -> Val:
        """Give a scalar `n` lanes; a value that has them already is returned as it is."""
        if a.n == n:
            return a
        if a.n != 1:
            raise AssertionError(f"cannot give {a.t} {n} lanes")
        if a.ref[0] != "%" and a.ref[0] != "@":
            zero = a.ref in ("0", "false")
            return Val("zeroinitializer" if zero else f"splat ({a.ty} {a.ref})", a.ty, n)
        one = self.let(a.ty, n, f"insertelement <{n} x {a.ty}> poison, {a}, i64 0")
        return self.let(a.ty, n, f"shufflevector {one}, {one.t} poison, <{n} x i32> zeroinitializer")

    def same(self, *vals: Val) -> tuple[Val, ...]:
        n = max(v.n for v in vals)
        return tuple(self.splat(v, n) for v in vals)

    def shuffle(self, a: Val, picks: Iterable[int], b: Val | None = None) -> Val:
        """The elements `picks` of `a`, or of `a` followed by `b`."""
        mask = [f"i32 {p}" for p in picks]
        second = f"{a.t} poison" if b is None else str(b)
        return self.let(a.ty, len(mask), f"shufflevector {a}, {second}, <{len(mask)} x i32> <{', '.join(mask)}>")

    def view(self, v: Val, ty: str) -> Val:
        """The same bits as elements of `ty`: as many as there is room for."""
        n = v.n * v.bits // BITS[ty]
        return v if ty == v.ty else self.let(ty, n, f"bitcast {v} to {llvm_type(ty, n)}")

    def concat(self, parts: Sequence[Val]) -> Val:
        """Vectors of one length, a power of two of them, as one."""
        while len(parts) > 1:
            parts = [self.shuffle(a, range(2 * a.n), b) for a, b in zip(parts[::2], parts[1::2], strict=True)]
        return parts[0]

    def const(self, ty: str, value: int | float, n: int = 1) -> Val:
        return const(ty, value, n)

    def like(self, a: Val, value: int | float) -> Val:
        return const(a.ty, value, a.n)

    def hidden(self, a: Val) -> Val:
        """Lanes of more than 16 bits of which LLVM knows nothing more, not even their range; all else as it is."""
        if a.n == 1 or a.bits <= 16:
            return a
        self.module.declare("rk_zero", "@rk_zero = global i64 0")
        return self.bin("xor", a, self.let(a.ty, 1, f"load {a.ty}, ptr @rk_zero"))

    # -- operations -----------------------------------------------------------------------------
    def bin(self, op: str, a: Val, b: Val | int | float) -> Val:
        """Emit a two-operand instruction such as ``"add"`` or ``"lshr"``; a Python number becomes a constant."""
        if not isinstance(b, Val):
            b = const(a.ty, b, a.n)
        a, b = self.same(a, b)
        return self.let(a.ty, a.n, f"{op} {a}, {b.ref}")

    def all(self, op: str, values: Iterable[Val]) -> Val:
        """Several values, at least one, put together by ``"or"``, ``"and"``, ... one after the other."""
        return reduce(lambda a, b: self.bin(op, a, b), values)

    def product(self, a: Val, b: Val) -> Val:
        """The lower half of the product of two integers that come from a program.

        LLVM 22 has one x86 instruction for products of lanes that it knows to have 16 bits, shifted right and truncated
        to 16, and shifts what that gives by the rest without a sign, or by more than there is
        (``(short)(a * b >> 17)``). So it must not know.
        """
        a, b = self.same(a, b)
        wide = any((constant := _CONSTANT.match(x.ref)) and abs(int(constant[1])) > 0xFFFF for x in (a, b))
        return self.bin("mul", a if wide else self.hidden(a), b)

    def cmp(self, op: str, a: Val, b: Val | int | float) -> Val:
        """Emit a comparison, ``"icmp slt"`` or ``"fcmp uno"``; the result has type i1."""
        if not isinstance(b, Val):
            b = const(a.ty, b, a.n)
        a, b = self.same(a, b)
        return self.let("i1", a.n, f"{op} {a}, {b.ref}")

    def select(self, c: Val, a: Val | int | float, b: Val | int | float) -> Val:
        if not isinstance(a, Val):
            assert isinstance(b, Val)
            a = const(b.ty, a)
        if not isinstance(b, Val):
            b = const(a.ty, b)
        c, a, b = self.same(c, a, b)
        return self.let(a.ty, a.n, f"select {c}, {a}, {b}")

    def neg(self, a: Val) -> Val:
        return self.let(a.ty, a.n, f"sub {a.t} {const(a.ty, 0, a.n).ref}, {a.ref}")

    def invert(self, a: Val) -> Val:
        return self.bin("xor", a, const(a.ty, 1 if a.ty == "i1" else -1, a.n))

    def fneg(self, a: Val) -> Val:
        return self.let(a.ty, a.n, f"fneg {a}")

    def cast(self, op: str, a: Val, ty: str) -> Val:
        """Emit a conversion such as ``"zext"``, ``"fptrunc"`` or ``"bitcast"``; none where the type is the same."""
        if a.ty == ty:
            return a
        return self.let(ty, a.n, f"{op} {a} to {llvm_type(ty, a.n)}")

    def resize(self, a: Val, ty: str, signed: bool = False) -> Val:
        """Truncate or extend an integer to `ty`."""
        if a.bits >= BITS[ty]:
            return a if a.ty == ty else self.cast("trunc", a, ty)
        return self.cast("sext" if signed else "zext", a, ty)

    def intrinsic(self, name: str, ret: str, *args: Val, extra: str = "", over: Val | None = None) -> Val:
        """Call an LLVM intrinsic overloaded on one type: ``intrinsic("llvm.sqrt", "float", x)``.

        The overload is that of `over`, else of the first argument. `extra` is appended to the arguments as text
        (``", i1 false"``).
        """
        args = self.same(*args)
        n, key = args[0].n, over if over is not None else args[0]
        lanes = f"v{n}" if n > 1 else ""
        full = f"{name}.{lanes}{_MANGLED.get(key.ty, key.ty)}"
        rt = llvm_type(ret, n)
        types = [a.t for a in args] + [part.split()[0] for part in extra.split(",") if part.strip()]
        self.module.declare(full, f"declare {rt} @{full}({', '.join(types)})")
        return self.let(ret, n, f"call {rt} @{full}({', '.join(map(str, args))}{extra})")

    def call(self, name: str, ret: str, n: int, *args: Val) -> Val:
        """Call a function of this module that returns `n` lanes of `ret`."""
        return self.let(ret, n, f"call {llvm_type(ret, n)} @{name}({', '.join(map(str, args))})")
