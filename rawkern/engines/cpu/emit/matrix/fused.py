"""Sums of products of small floats as tensor cores add them: all terms of a group at once, low bits cut off.

The products are exact; so is C. The exponent of each is that of its factors added, of a subnormal factor the smallest
one. All terms of a group are cut, towards zero, to so many bits after the point of a number with the largest of these
exponents; what is left is added exactly, and the sum cut to f32, or rounded to f16. NVIDIA does not document this:
GPUs' answers for sums made to tell such rules apart do, bit for bit.

A sum runs over 8 columns as one vector, of which most terms are small enough to be computed as float and added as
integers. Where factors are very large or small, infinite or no numbers, doubles do the same more slowly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rawkern.engines.cpu.arith.formats import FORMATS, from_half, to_half
from rawkern.engines.cpu.emit.lanes import define
from rawkern.engines.cpu.ir import BITS, Emitter, Module, Val, const

COLUMNS = 8
#: Exponents of the smallest normal number of a type, which subnormal ones have as well.
_LEAST = {"f16": -14, "e5m2": -14, "e4m3": -6, "bf16": -126, "tf32": -126, "f32": -126}
_ZERO = -1000  # stands for the exponent of a zero: less than any sum of two others
_SAFE = 48  # factors with exponents up to this have products and scales within a float's range
_SPECIAL = 128  # exponent of infinities and NaNs


@dataclass(frozen=True)
class Rule:
    """How a form of a product adds.

    `fraction`: bits after the point that terms keep. `groups`: which k are added at once, one after the other, each
    group with the sum before. `apart`: C is added at last, as floats are. `mantissa`: bits that a result in f32 keeps.
    """

    fraction: int
    groups: tuple[tuple[int, ...], ...]
    apart: bool = False
    mantissa: int = 23

    @property
    def name(self) -> str:
        """What tells rules of one length apart."""
        sizes = "_".join(f"{group[0]}x{len(group)}" for group in self.groups)
        return f"f{self.fraction}m{self.mantissa}{'apart' * self.apart}_{sizes}"


def exponents(e: Emitter, values: Val, kind: str) -> Val:
    """Floats' exponents as i16, of a type whose subnormal numbers are normal floats."""
    return e.cast("trunc", _exponents(e, values, kind, _ZERO), "i16")


def _exponents(e: Emitter, values: Val, kind: str, zero: int) -> Val:
    """The same as i32; `zero` stands for that of a zero."""
    bits = e.cast("bitcast", values, "i32")
    field = e.bin("and", e.bin("lshr", bits, 23), 255)
    found = e.intrinsic("llvm.smax", "i32", e.bin("sub", field, 127), e.like(field, _LEAST[kind]))
    return e.select(e.cmp("icmp eq", e.bin("and", bits, 0x7FFFFFFF), 0), zero, found)


def unusual(e: Emitter, found: Val) -> Val:
    """Whether any exponent is one that needs the slow way."""
    far = e.cmp("icmp ugt", e.bin("add", found, _SAFE), 2 * _SAFE)
    far = e.bin("and", far, e.cmp("icmp ne", found, _ZERO))
    return e.cmp("icmp ne", e.let(f"i{found.n}", 1, f"bitcast {far} to i{found.n}"), 0)


def core(m: Module, rule: Rule, k: int, tile: int, start: str, result: str) -> str:
    """A function that adds products of 8 rows of A and blocks of 8 columns of B to C.

    It takes factors and exponents of A, those of B, the sums, how many blocks of columns there are, how many sums lie
    from block to block, and whether any factor is unusual. A's factors lie in tiles of 8 rows and `tile` columns, row
    after row; B's k after k, 8 columns each; sums row after row, as floats also where C or the result is f16 (`start`,
    `result`).
    """
    name = f"rk_fused_{result}_{start}_k{k}t{tile}_{rule.name}"
    return m.helper(name, lambda m: _Core(m, rule, k, tile, start, result).text(name))


class _Core:
    def __init__(self, m: Module, rule: Rule, k: int, tile: int, start: str, result: str):
        self.e, self.rule, self.k, self.tile, self.start, self.result = Emitter(m), rule, k, tile, start, result

    def text(self, name: str) -> str:
        e = self.e
        e.line("br label %block")
        e.label("block")
        e.line("%t = phi i64 [ 0, %0 ], [ %t1, %rows ]")
        self.right = e.bin("mul", Val("%t", "i64"), 8 * self.k)
        sums = e.bin("mul", Val("%t", "i64"), Val("%pitch", "i64"))
        e.line("br label %row")
        e.label("row")
        e.line("%r = phi i64 [ 0, %block ], [ %r1, %stored ]")
        self.left = e.bin("mul", Val("%r", "i64"), self.tile)
        at = e.bin("add", sums, e.bin("mul", Val("%r", "i64"), COLUMNS))
        place = e.let("ptr", 1, f"getelementptr float, ptr %sums, {at}")
        start = e.let("float", COLUMNS, f"load <{COLUMNS} x float>, {place}, align 4")
        total = const("float", 0.0, COLUMNS) if self.rule.apart else start
        least = self.start
        for group in self.rule.groups:
            total, least = self.group(group, total, least), self.result
        if self.rule.apart:
            total = self.added(start, total)
        e.line(f"store {total}, {place}, align 4")
        e.line("br label %stored")
        e.label("stored")
        e.line("%r1 = add i64 %r, 1")
        e.line("%more_rows = icmp ult i64 %r1, 8")
        e.line("br i1 %more_rows, label %row, label %rows")
        e.label("rows")
        e.line("%t1 = add i64 %t, 1")
        e.line("%more = icmp ult i64 %t1, %blocks")
        e.line("br i1 %more, label %block, label %out")
        e.label("out")
        e.line("ret void")
        params = "ptr %a, ptr %ae, ptr %b, ptr %be, ptr %sums, i64 %blocks, i64 %pitch, i1 %unusual"
        return define(f"define internal void @{name}({params}) noinline", e)

    def added(self, a: Val, b: Val) -> Val:
        """Sums as ordinary additions make them."""
        e = self.e
        total = e.bin("fadd", a, b)
        total = from_half(e, to_half(e, total)) if self.result == "f16" else total
        return self.numbers(total)

    def numbers(self, x: Val) -> Val:
        """NaNs are the hardware's."""
        e = self.e
        return e.select(e.cmp("fcmp uno", x, x), self.nan, x)

    @property
    def nan(self) -> Val:
        """The hardware's, in all columns."""
        return self.e.cast("bitcast", self.e.const("i32", FORMATS["f32"].nan, COLUMNS), "float")

    # -- factors ------------------------------------------------------------------------------------------------
    def load(self, what: str, k: int, ty: str) -> Val:
        """The factors or exponents of one k: of A that of the row, of B those of the columns."""
        e, size = self.e, BITS[ty] // 8
        if what[0] == "a":
            at = k // self.tile * 8 * self.tile + k % self.tile
            p = e.let("ptr", 1, f"getelementptr {ty}, ptr %{what}, {self.left}")
            return e.splat(e.let(ty, 1, f"load {ty}, {self.moved(p, at * size)}, align {size}"), COLUMNS)
        p = e.let("ptr", 1, f"getelementptr {ty}, ptr %{what}, {self.right}")
        return e.let(ty, COLUMNS, f"load <{COLUMNS} x {ty}>, {self.moved(p, 8 * k * size)}, align {8 * size}")

    def moved(self, p: Val, at: int) -> Val:
        return self.e.let("ptr", 1, f"getelementptr i8, {p}, i64 {at}") if at else p

    # -- one group ----------------------------------------------------------------------------------------------
    def group(self, group: Sequence[int], c: Val, kind: str) -> Val:
        """C, of a type `kind`, and the products of a group."""
        e = self.e
        every = [e.bin("add", self.load("ae", k, "i16"), self.load("be", k, "i16")) for k in group]
        while len(every) > 1:
            rest = [every[-1]] if len(every) % 2 else []
            every = [
                e.intrinsic("llvm.smax", "i16", a, b) for a, b in zip(every[::2], every[1::2], strict=False)
            ] + rest  # fmt: skip
        largest = e.cast("sext", every[0], "i32")
        own = _exponents(e, c, kind, 2 * _ZERO)
        most = e.intrinsic("llvm.smax", "i32", largest, own)
        nothing = e.cmp("icmp slt", largest, _ZERO // 2)  # all products are zeros
        special = e.cmp("icmp sge", own, _SPECIAL)
        some = e.cmp("icmp ne", e.let("i8", 1, f"bitcast {special} to i8"), 0)
        fast, slow, met = (e.fresh(x)[1:] for x in ("fast", "slow", "met"))
        e.line(f"br {e.bin('or', some, Val('%unusual', 'i1'))}, label %{slow}, label %{fast}, !prof !0")
        e.label(fast)
        first = e.select(nothing, self.cut(e.bin("fadd", c, 0.0)), self.in_float(group, c, most))
        e.line(f"br label %{met}")
        e.label(slow)
        second = self.in_double(group, c, most)
        e.line(f"br label %{met}")
        e.label(met)
        total = e.let("float", COLUMNS, f"phi {first.t} [ {first.ref}, %{fast} ], [ {second.ref}, %{slow} ]")
        return self.numbers(e.bin("fadd", total, 0.0))  # what is cut or rounded to zero has no sign

    def cut(self, x: Val) -> Val:
        """A float with as many bits as the result keeps."""
        e, gone = self.e, 23 - self.rule.mantissa
        if not gone or self.result == "f16":
            return x
        kept = e.bin("and", e.cast("bitcast", x, "i32"), -1 << gone)
        return e.cast("bitcast", kept, "float")

    def in_float(self, group: Sequence[int], c: Val, most: Val) -> Val:
        """Products as floats, each cut to an integer of the last bit that is kept."""
        e, fraction = self.e, self.rule.fraction
        most = e.intrinsic("llvm.smax", "i32", most, e.like(most, -2 * _SAFE))
        scale = e.cast("bitcast", e.bin("shl", e.bin("sub", e.like(most, 127 + fraction), most), 23), "float")
        terms = [
            e.bin("fmul", e.bin("fmul", self.load("a", k, "float"), self.load("b", k, "float")), scale) for k in group
        ]
        terms = [e.cast("fptosi", x, "i32") for x in [*terms, e.bin("fmul", c, scale)]]
        # a term has two bits before the point at most
        room = 1 << 31 - fraction - 2
        sums = [e.all("add", terms[k : k + room]) for k in range(0, len(terms), room)]
        back = e.cast("bitcast", e.bin("shl", e.bin("add", most, 127 - fraction), 23), "float")
        if len(sums) == 1 and fraction + 2 + len(terms).bit_length() <= 24:
            return self.rounded(e.cast("sitofp", sums[0], "float"), back)
        exact = e.all("fadd", [e.cast("sitofp", x, "double") for x in sums])
        return self.rounded(self.shortened(exact), back)

    def shortened(self, x: Val) -> Val:
        """Doubles that are normal as floats: cut, or for f16, with a last bit that tells whether anything was cut."""
        e = self.e
        bits = e.cast("bitcast", x, "i64")
        kept = e.bin("and", bits, -1 << 29)
        if self.result == "f16":
            more = e.cmp("icmp ne", e.bin("and", bits, (1 << 29) - 1), 0)
            kept = e.bin("or", kept, e.bin("shl", e.cast("zext", more, "i64"), 29))
        return e.cast("fptrunc", e.cast("bitcast", kept, "double"), "float")

    def rounded(self, x: Val, scale: Val) -> Val:
        """Scaled sums as the result has them."""
        x = self.e.bin("fmul", x, scale)
        return from_half(self.e, to_half(self.e, x)) if self.result == "f16" else self.cut(x)

    def in_double(self, group: Sequence[int], c: Val, most: Val) -> Val:
        """The same with doubles, which hold all that there can be; infinities and NaNs take their course."""
        e, fraction = self.e, self.rule.fraction
        most = e.resize(e.intrinsic("llvm.smax", "i32", most, e.like(most, -300)), "i64", True)

        def power(by: Val) -> Val:
            return e.cast("bitcast", e.bin("shl", e.bin("add", by, 1023), 52), "double")

        scale, back = power(e.bin("sub", e.like(most, fraction), most)), power(e.bin("sub", most, fraction))
        wide: Callable[[Val], Val] = lambda x: e.cast("fpext", x, "double")  # noqa: E731
        terms = [
            e.bin("fmul", e.bin("fmul", wide(self.load("a", k, "float")), wide(self.load("b", k, "float"))), scale)
            for k in group
        ]
        terms = [e.intrinsic("llvm.trunc", "double", x) for x in [*terms, e.bin("fmul", wide(c), scale)]]
        x = e.bin("fadd", e.bin("fmul", e.all("fadd", terms), back), 0.0)
        if self.result != "f16":  # subnormal results are cut at their last bit
            tiny = e.bin("fmul", e.intrinsic("llvm.trunc", "double", e.bin("fmul", x, 2.0**149)), 2.0**-149)
            x = e.select(e.cmp("fcmp olt", e.intrinsic("llvm.fabs", "double", x), 2.0**-126), tiny, x)
        number = e.cmp("fcmp ord", x, x)
        short = self.shortened(e.select(number, x, 0.0))
        short = self.rounded(short, e.const("float", 1.0, COLUMNS))
        return e.select(number, short, self.nan)
