"""The matrix product of ``mma`` and ``wmma.mma`` as one out-of-line function for each form that a kernel uses.

Floating point: products are exact, and sums are those of tensor cores (`fused`). Sums in f64 go over k in ascending
order from C, each step a fused multiply-add rounded to nearest even. Integers are exact modulo 2^32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rawkern.engines.cpu import arith
from rawkern.engines.cpu.arith.formats import load, to_half
from rawkern.engines.cpu.arith.fp8 import from_fp8
from rawkern.engines.cpu.emit.forms import LANES
from rawkern.engines.cpu.emit.lanes import define
from rawkern.engines.cpu.emit.matrix import fused
from rawkern.engines.cpu.emit.matrix.fragments import Kind, Shape, registers_of, tile_of, transposed
from rawkern.engines.cpu.ir import BITS, Emitter, Module, Val
from rawkern.engines.cpu.ptx.decode import DTYPES


@dataclass(frozen=True, slots=True)
class Product:
    """One form: the shape, element types, and how s32 sums end (``satfinite``) or bits combine (``xor``, ``and``)."""

    shape: Shape
    a: Kind
    b: Kind
    c: Kind
    d: Kind
    mode: str = ""
    target: int = 0  # the architecture that the code is for

    @property
    def rule(self) -> fused.Rule | None:
        """How floats are added, as tensor cores of the code's architecture do; None for f64, other types, old GPUs.

        Hopper's rule is what an H200 gave. That of GPUs before it is published: Xie, Wang, Yang, Yang, "MMA-Sim: Bit-
        Accurate Reference Model of Tensor Cores and Matrix Cores" (arXiv 2511.10909), for Ampere and Ada.
        """
        if self.sum_type != "float" or self.target < 75:
            return None
        k, bits = self.shape.k, self.a.bits
        if self.target < 90:  # 16 bytes of K at once
            at_once = 128 // bits
            groups = tuple(tuple(range(x, min(x + at_once, k))) for x in range(0, k, at_once))
            return fused.Rule(13, groups, mantissa=13) if bits == 8 else fused.Rule(24, groups)
        if bits == 8:  # two products of f16, each of two of four neighbors
            groups = tuple(tuple(x for x in range(k) if x % 4 // 2 == half) for half in range(2))
            return fused.Rule(25, groups, apart=True)
        return fused.Rule(25, (tuple(range(k)),))

    @property
    def name(self) -> str:
        s = self.shape
        types = "_".join(kind.name for kind in (self.d, self.a, self.b, self.c))
        more = "".join(f"_{x}" for x in (self.mode, "fused" if self.rule else "") if x)
        return f"rk_mma_m{s.m}n{s.n}k{s.k}_{types}{more}"

    @property
    def sum_type(self) -> str:
        return {"f64": "double", "s32": "i32"}.get(self.d.name, "float")

    def counts(self) -> tuple[int, ...]:
        """Registers of a, b, c and d."""
        s = self.shape
        return tuple(s.registers(*x) for x in (("a", self.a), ("b", self.b), ("c", self.c), ("d", self.d)))


def register_type(kind: Kind) -> str:
    return f"<{LANES} x i{kind.register}>"


def result_type(p: Product) -> str:
    return f"{{ {', '.join([register_type(p.d)] * p.counts()[3])} }}"


def helper(m: Module, p: Product) -> str:
    """The text of the function that multiplies the fragments in its arguments."""
    e = Emitter(m)
    counts = p.counts()
    kinds = (p.a, p.b, p.c)
    params = [f"{register_type(k)} %{o}{i}" for o, k, n in zip("abc", kinds, counts, strict=False) for i in range(n)]
    a, b, c = (
        [Val(f"%{o}{i}", f"i{k.register}", LANES) for i in range(n)]
        for o, k, n in zip("abc", kinds, counts, strict=False)
    )
    if p.rule is not None:
        _fused(e, p, p.rule, a, b, c)
        return define(f"define internal {result_type(p)} @{p.name}({', '.join(params)}) noinline", e)
    steps = p.shape.k // p.a.columns * p.a.steps
    rows_at = _store_rows(e, p, [factors(e, x, p.a) for x in a])
    _store_columns(e, p, [columns(e, x, p.b) for x in b])
    total = {}
    for k, (row, column) in enumerate(p.shape.tiles("c", p.c)):
        per = counts[2] // len(p.shape.tiles("c", p.c))
        start = sums_of(e, c[k * per : k * per + per], p.c)
        lines = [e.shuffle(start, range(8 * r, 8 * r + 8)) for r in range(8)]
        total[row, column] = _loop(e, p, lines, rows_at[row], column // 8 * steps * 8, steps)
    out = []
    for tile in p.shape.tiles("d", p.d):
        out += registers_of(e, raw(e, e.concat(total[tile]), p.d), p.d)
    return_all(e, result_type(p), out)
    return define(f"define internal {result_type(p)} @{p.name}({', '.join(params)}) noinline", e)


def return_all(e: Emitter, ty: str, values: list[Val]) -> None:
    """Return a struct of values."""
    whole = "poison"
    for k, value in enumerate(values):
        ref = e.fresh()
        e.line(f"{ref} = insertvalue {ty} {whole}, {value}, {k}")
        whole = ref
    e.line(f"ret {ty} {whole}")


def factors(e: Emitter, v: Val, kind: Kind, order: Callable[[Val], Val] = lambda v: v) -> Val:
    """A register's elements as the product takes them: floats, pairs of 16-bit integers, or words of bits.

    `order` moves the raw parts, ``kind.raw`` bits each, before they are widened.
    """
    v = order(e.view(v, f"i{kind.raw}"))
    if kind.name in ("f16", "bf16"):
        return load(e, v, DTYPES[kind.name])
    if kind.name in ("e4m3", "e5m2"):
        return from_fp8(e, v, kind.name)
    if kind.name == "tf32":
        return e.cast("bitcast", e.bin("and", v, 0xFFFFE000), "float")
    if kind.name == "f64":
        return e.cast("bitcast", v, "double")
    if kind.bits == 8:
        wide = e.resize(e.view(v, "i8"), "i16", kind.signed)
        return e.view(wide, "i32")
    if kind.bits == 4:
        wide, down = e.resize(v, "i32"), "ashr" if kind.signed else "lshr"
        low, high = (e.bin(down, e.bin("shl", wide, by), 28) for by in (28, 24))
        return e.bin("or", e.bin("and", low, 0xFFFF), e.bin("shl", high, 16))
    return v


def _store_rows(e: Emitter, p: Product, values: list[Val], to: str = "%left") -> dict[int, int]:
    """Write A's tiles one after the other, those of 8 rows together; returns each group's place by its first row."""
    tiles, per, ty = p.shape.tiles("a", p.a), values[0].n, values[0].ty
    e.line(f"{to} = alloca [{per * len(tiles)} x {ty}], align 64")
    places: dict[int, int] = {}
    for at, k in enumerate(sorted(range(len(tiles)), key=lambda k: tiles[k])):
        p_ = e.let("ptr", 1, f"getelementptr {ty}, ptr {to}, i64 {at * per}")
        e.line(f"store {values[k]}, {p_}, align 64")
        places.setdefault(tiles[k][0], at * per)
    return places


def columns(e: Emitter, register: Val, kind: Kind) -> Val:
    """A register of B with the 8 values of one step together."""
    return factors(e, register, kind, lambda raw: transposed(e, raw, 8))


def _store_columns(e: Emitter, p: Product, values: list[Val], to: str = "%right") -> None:
    """Write B's tiles, all steps of 8 columns one after the other."""
    ty = values[0].ty
    e.line(f"{to} = alloca [{sum(v.n for v in values)} x {ty}], align 64")
    for k, v in enumerate(values):
        e.line(f"store {v}, {e.let('ptr', 1, f'getelementptr {ty}, ptr {to}, i64 {k * v.n}')}, align 64")


def _fused(e: Emitter, p: Product, rule: fused.Rule, a: list[Val], b: list[Val], c: list[Val]) -> None:
    """The product of floats: factors with their exponents to memory, where the sums are made."""
    left, right = [factors(e, x, p.a) for x in a], [columns(e, x, p.b) for x in b]
    left_exponents = [fused.exponents(e, x, p.a.name) for x in left]
    right_exponents = [fused.exponents(e, x, p.b.name) for x in right]
    places = _store_rows(e, p, left)
    _store_rows(e, p, left_exponents, "%left_exponents")
    _store_columns(e, p, right)
    _store_columns(e, p, right_exponents, "%right_exponents")
    odd = e.all("or", [fused.unusual(e, x) for x in (*left_exponents, *right_exponents)])
    tiles, blocks = sorted(p.shape.tiles("c", p.c)), p.shape.n // 8
    per = len(c) // len(tiles)
    e.line(f"%sums = alloca [{64 * len(tiles)} x float], align 64")
    for k, tile in enumerate(p.shape.tiles("c", p.c)):
        at = e.let("ptr", 1, f"getelementptr float, ptr %sums, i64 {64 * tiles.index(tile)}")
        e.line(f"store {sums_of(e, c[k * per : k * per + per], p.c)}, {at}, align 64")
    name = fused.core(e.module, rule, p.shape.k, p.a.columns, p.c.name, p.d.name)
    for row, place in places.items():
        row_at = e.let("ptr", 1, f"getelementptr float, ptr %left, i64 {place}")
        exponents = e.let("ptr", 1, f"getelementptr i16, ptr %left_exponents, i64 {place}")
        sums = e.let("ptr", 1, f"getelementptr float, ptr %sums, i64 {64 * tiles.index((row, 0))}")
        parts = f"{row_at}, {exponents}, ptr %right, ptr %right_exponents"
        e.line(f"call void @{name}({parts}, {sums}, i64 {blocks}, i64 64, {odd})")
    out = []
    for tile in p.shape.tiles("d", p.d):
        at = e.let("ptr", 1, f"getelementptr float, ptr %sums, i64 {64 * tiles.index(tile)}")
        out += registers_of(e, raw(e, e.let("float", 64, f"load <64 x float>, {at}, align 64"), p.d), p.d)
    return_all(e, result_type(p), out)


def sums_of(e: Emitter, registers: list[Val], kind: Kind) -> Val:
    """8 x 8 accumulators, row after row, as sums are computed."""
    tile = tile_of(e, registers, kind)
    if kind.name == "f16":
        return load(e, tile, DTYPES["f16"])
    return tile if kind.name == "s32" else e.cast("bitcast", tile, DTYPES[kind.name].fp)


def _loop(e: Emitter, p: Product, start: list[Val], left: int, right: int, steps: int) -> list[Val]:
    """Sum up 8 x 8 elements of D: 8 rows at once, each step one vector of B and a scalar of A for each row."""
    ty, inner = p.sum_type, p.a.steps
    size = BITS[ty] // 8
    lines = start if p.mode == "satfinite" else []
    start = [e.const(ty, 0, 8)] * 8 if lines else start
    loop, done, before = (e.fresh(x)[1:] for x in ("loop", "done", "before"))
    e.line(f"br label %{before}")
    e.label(before)
    e.line(f"br label %{loop}")
    e.label(loop)
    step, after = e.fresh(), e.fresh()
    sums = [Val(e.fresh(), ty, 8) for _ in range(8)]
    place = len(e.lines)
    at = e.bin("shl", Val(step, "i64"), 3)
    pb = e.let("ptr", 1, f"getelementptr {ty}, ptr %right, {e.bin('add', at, right)}")
    b = e.let(ty, 8, f"load <8 x {ty}>, {pb}, align {8 * size}")
    whole = e.bin("shl", e.bin("and", Val(step, "i64"), -inner), 3)
    at = e.bin("add", e.bin("or", whole, e.bin("and", Val(step, "i64"), inner - 1)), left)
    pa = e.let("ptr", 1, f"getelementptr {ty}, ptr %left, {at}")
    new = []
    for r in range(8):
        pr = e.let("ptr", 1, f"getelementptr {ty}, {pa}, i64 {r * inner}")
        a = e.splat(e.let(ty, 1, f"load {ty}, {pr}, align {size}"), 8)
        new.append(_step(e, p.a, p.mode, a, b, sums[r]))
    e.lines[place:place] = [
        f"{step} = phi i64 [ 0, %{before} ], [ {after}, %{loop} ]",
        *(
            f"{s.ref} = phi {s.t} [ {a.ref}, %{before} ], [ {n.ref}, %{loop} ]"
            for s, a, n in zip(sums, start, new, strict=True)
        ),
    ]
    e.line(f"{after} = add i64 {step}, 1")
    e.line(f"br {e.cmp('icmp ult', Val(after, 'i64'), steps)}, label %{loop}, label %{done}")
    e.label(done)
    return [e.intrinsic("llvm.sadd.sat", ty, c, n) for c, n in zip(lines, new, strict=True)] if lines else new


def _step(e: Emitter, kind: Kind, mode: str, a: Val, b: Val, total: Val) -> Val:
    """One step for a row of 8."""
    if total.ty != "i32":
        return e.intrinsic("llvm.fma", total.ty, a, b, total)
    if kind.bits == 1:
        return e.bin("add", total, e.intrinsic("llvm.ctpop", "i32", e.bin(mode, a, b)))
    wide = [e.cast("sext", e.view(v, "i16"), "i32") for v in (a, b)]
    products = e.bin("mul", *wide)
    pair = [e.shuffle(products, range(k, 16, 2)) for k in range(2)]
    return e.bin("add", total, e.bin("add", *pair))


def raw(e: Emitter, tile: Val, kind: Kind) -> Val:
    """Sums as raw bits of D's type."""
    if kind.name == "s32":
        return tile
    bits = to_half(e, tile) if kind.name == "f16" else e.cast("bitcast", tile, f"i{kind.bits}")
    return arith.canonical(e, bits, kind.name)


def whole_core(m: Module, kind: Kind, steps: int, tile: int, mode: str) -> str:
    """A function that adds products of whole numbers, of 8 rows of A and blocks of 8 columns of B, to C.

    It takes the factors of A, those of B, the sums, and how many blocks of columns there are. A row of A has so many
    `steps`, in tiles of `tile`; all lie as for `fused.core`.
    """
    name = f"rk_whole_{kind.name}_s{steps}t{tile}_{mode}"

    def build(m: Module) -> str:
        e = Emitter(m)
        e.line("br label %row")
        e.label("row")
        e.line("%k = phi i64 [ 0, %0 ], [ %k1, %row ]")
        row, block = e.bin("and", Val("%k", "i64"), 7), e.bin("lshr", Val("%k", "i64"), 3)
        left = e.let("ptr", 1, f"getelementptr i32, ptr %a, {e.bin('mul', row, tile)}")
        right = e.let("ptr", 1, f"getelementptr i32, ptr %b, {e.bin('mul', block, 8 * steps)}")
        at = e.let("ptr", 1, f"getelementptr i32, ptr %sums, {e.bin('mul', Val('%k', 'i64'), 8)}")
        start = e.let("i32", 8, f"load <8 x i32>, {at}, align 4")
        total = e.const("i32", 0, 8) if mode == "satfinite" else start
        for k in range(steps):
            place = k // tile * 8 * tile + k % tile
            a = e.let("i32", 1, f"load i32, {e.let('ptr', 1, f'getelementptr i32, {left}, i64 {place}')}")
            b = e.let("i32", 8, f"load <8 x i32>, {e.let('ptr', 1, f'getelementptr i32, {right}, i64 {8 * k}')}")
            total = _step(e, kind, mode, e.splat(a, 8), b, total)
        if mode == "satfinite":
            total = e.intrinsic("llvm.sadd.sat", "i32", start, total)
        e.line(f"store {total}, {at}, align 4")
        e.line("%k1 = add i64 %k, 1")
        e.line("%rows = mul i64 %blocks, 8")
        e.line("%more = icmp ult i64 %k1, %rows")
        e.line("br i1 %more, label %row, label %out")
        e.label("out")
        e.line("ret void")
        return define(f"define internal void @{name}(ptr %a, ptr %b, ptr %sums, i64 %blocks) noinline", e)

    return m.helper(name, build)
