"""Register-only PTX instructions: bit for bit what an H200 answered, and within PTX's bounds where it leaves room."""

from __future__ import annotations

import operator
import re
from fractions import Fraction

import llvmlite.binding as llvm
import ml_dtypes
import numpy as np
import pytest
import torch

import rawkern
from rawkern.engines.cpu import arith
from rawkern.engines.cpu.ir import Module
from rawkern.engines.cpu.ptx.decode import decode

from . import form_runner as runner
from .form_runner import COUNT, Form

FORMS = runner.forms()
APPROXIMATE = re.compile(r"approx|div\.full")
EXACT = [f for f in FORMS if not APPROXIMATE.search(f.name)]
AVX512 = frozenset({"avx512f"})
OLD = frozenset({"nofma", "nof16c"})


def _has(feature: str) -> bool:
    return llvm.get_host_cpu_features().get(feature, False)


def _chunks(size: int = 100, forms: list[Form] = EXACT) -> list:
    return [pytest.param(forms[i : i + size], id=forms[i].name.split()[0]) for i in range(0, len(forms), size)]


def _check_exact(chosen: list[Form], n: int, features: frozenset[str] = frozenset(), cpu: str | None = None) -> None:
    compiled = runner.build(chosen, n, features, cpu)
    wrong = []
    for form in chosen:
        got, want = compiled.run(form, n), runner.expected(form)
        for i in np.nonzero(got != want)[0][:1]:
            inputs = [hex(int(a.view(f"u{a.itemsize}")[i])) for a in runner.recorded(form)]
            wrong.append(f"{form.name}: {inputs} gave {got[i]:#x}, the H200 {want[i]:#x}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("chosen", _chunks())
def test_lanes_match_hardware(chosen):
    _check_exact(chosen, 32)


@pytest.mark.parametrize("chosen", _chunks(200))
def test_uniform_values_match_hardware(chosen):
    _check_exact(chosen, 1)


@pytest.mark.skipif(not _has("avx512f"), reason="needs AVX-512")
@pytest.mark.parametrize("n", [1, 32])
def test_embedded_rounding_matches_hardware(n):
    _check_exact([f for f in EXACT if re.search(r"\.r[zmp]\..*f(32|64)$", f.name)], n, AVX512)


@pytest.mark.skipif(not (_has("avx2") and _has("fma") and _has("f16c")), reason="needs AVX2")
@pytest.mark.parametrize("chosen", _chunks(400, EXACT[::3]))
def test_code_for_haswell_matches_hardware(chosen):
    """The IR is that of other CPUs; a third of the forms, of which those of a kind stand together."""
    _check_exact(chosen, runner.FEW, cpu="haswell")


def _emitted(form: Form, features: frozenset[str] = frozenset()) -> str:
    module = Module(features=features)
    runner.emit(module, form, runner.FEW)
    return module.text()


@pytest.mark.parametrize("chosen", _chunks(400))
def test_code_without_fma_and_f16c_matches_hardware(chosen):
    """All forms that are lowered in another way there, and a third of the others."""
    own = {form for form in chosen if _emitted(form, OLD) != _emitted(form)}
    assert own
    _check_exact([form for i, form in enumerate(chosen) if form in own or i % 3 == 1], runner.FEW, OLD,
                 cpu="x86-64-v2" if _has("sse4.2") else None)  # fmt: skip


# -- approximate instructions -------------------------------------------------------------------------
# PTX's bounds, relative unless absolute; the comments have what an H200 showed on the same inputs
BOUNDS = {
    r"ex2.*f32": 2**-22,  # 2^-23.0
    r"ex2.*bf16": 2**-7,  # 2^-7.0
    r"ex2.*f16": 2**-9.9,  # 2^-10.0
    r"lg2": 2**-22,  # absolute 2^-22 between 1/2 and 2, else relative
    r"rcp.*f32": 2**-23,  # 1 ulp; 2^-23.5
    r"sqrt\.approx.*f32|rsqrt.*f32": 2**-22.9,  # 2^-23.2
    r"div.*f32": 2**-22,  # 2 ulp; 2^-22.9
    r"tanh.*bf16": 2**-7,  # 2^-7.0
    r"tanh.*f16": 2**-9.9,  # 2^-10.0
    r"tanh.*f32": 2**-11,  # 2^-16.8
    r"(rcp|rsqrt)\.approx\.ftz\.f64": 2**-20,  # 2^-20.1
    r"rsqrt\.approx\.f64": 2**-51,  # 2^-53
}
FUNCTIONS = {
    "ex2": np.exp2,
    "lg2": np.log2,
    "tanh": np.tanh,
    "rcp": np.reciprocal,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "div": np.divide,
}
NUMPY = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": np.float64}


def _real(bits: np.ndarray, name: str) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        return bits.view(NUMPY[name.removesuffix("x2")]).astype(np.longdouble)


@pytest.mark.parametrize("features", [frozenset(), AVX512, OLD], ids=["generic", "avx512", "old"])
def test_approximations_keep_bounds(features, record_property):
    if features == AVX512 and not _has("avx512f"):
        pytest.skip("needs AVX-512")
    chosen = [f for f in FORMS if APPROXIMATE.search(f.name) and f.name[:3] not in ("sin", "cos")]
    compiled = runner.build(chosen, 32, features)
    for form in chosen:
        bits, hardware_bits = compiled.run(form, 32), runner.expected(form)
        got, hardware = _real(bits, form.result), _real(hardware_bits, form.result)
        inputs = [_real(a, t) for a, t in zip(runner.recorded(form), form.operands, strict=True)]
        with np.errstate(all="ignore"):
            want = FUNCTIONS[form.name.split(".")[0]](*inputs)
        dtype = NUMPY[form.result.removesuffix("x2")]
        least = float(ml_dtypes.finfo(dtype).smallest_normal)
        # zeros, infinities and NaNs are the hardware's; subnormals may differ by one step
        special = ~np.isfinite(hardware) | (hardware == 0)
        small = ~special & (abs(hardware) < least)
        differs = (bits != hardware_bits).view(bool) if got.size == bits.size else got != hardware
        differs &= ~(np.isnan(got) & np.isnan(hardware))
        step = float(ml_dtypes.finfo(dtype).smallest_subnormal)
        near_zero = special & (hardware == 0) & (abs(got) <= step)
        assert not (special & differs & ~near_zero).any(), form.name
        assert (abs(got[small] - hardware[small]) <= step).all(), form.name
        usual = ~special & ~small
        scale = abs(want[usual])
        if form.name.startswith("lg2"):
            scale = np.maximum(scale, 1)
        error = float((abs(got[usual] - want[usual]) / scale).max())
        record_property(form.name, f"2^{np.log2(error):.2f}")
        bound = next(b for pattern, b in BOUNDS.items() if re.match(pattern, form.name))
        assert error <= bound, f"{form.name}: error 2^{np.log2(error):.2f}"


@pytest.mark.parametrize("features", [frozenset(), AVX512], ids=["generic", "avx512"])
def test_sine_and_cosine(features):
    """Absolute error 2^-20.5 within [-pi, pi]; elsewhere near the hardware, which multiplies by a short 1 / 2 pi."""
    if features == AVX512 and not _has("avx512f"):
        pytest.skip("needs AVX-512")
    chosen = [f for f in FORMS if f.name[:3] in ("sin", "cos")]
    compiled = runner.build(chosen, 32, features)
    for form in chosen:
        got, hardware = (_real(v, "f32") for v in (compiled.run(form, 32), runner.expected(form)))
        (x,) = (_real(a, "f32") for a in runner.recorded(form))
        with np.errstate(invalid="ignore"):
            want = getattr(np, form.name[:3])(x)
        assert (np.isnan(got) == np.isnan(hardware)).all()
        number = ~np.isnan(hardware)
        assert abs(got - hardware)[number].max() < 2**-21
        near = abs(x) <= np.pi
        assert abs(got - want)[near].max() < 3.1e-7 < 2**-20.5


# -- rounding -----------------------------------------------------------------------------------------
def _round(exact: Fraction, mode: str, dtype: type) -> float:
    """Round an exact nonzero value to a NumPy float type."""
    info = np.finfo(dtype)
    size = abs(exact)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    if Fraction(2) ** exponent > size:
        exponent -= 1
    unit = Fraction(2) ** (max(exponent, info.minexp) - info.nmant)
    steps = size / unit
    whole = steps.numerator // steps.denominator
    up = {"rz": False, "rp": exact > 0, "rm": exact < 0}[mode]
    if up and whole != steps:
        whole += 1
    size = whole * unit
    if size > Fraction(float(info.max)):
        size = float("inf") if up else float(info.max)
    return float(size) if exact > 0 else -float(size)


OPERATORS = {"add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.truediv}


@pytest.mark.parametrize("kind", ["f32", "f64"])
@pytest.mark.parametrize("features", [frozenset(), AVX512], ids=["generic", "avx512"])
def test_directed_rounding_is_exact(kind, features):
    """Values around overflow, underflow and cancellation, against rational arithmetic."""
    if features == AVX512 and not _has("avx512f"):
        pytest.skip("needs AVX-512")
    dtype = NUMPY[kind]
    info = np.finfo(dtype)
    rng = np.random.default_rng(5)
    edges = [info.max, info.tiny, info.smallest_subnormal, 1, 1 + info.eps, 1 - info.epsneg, info.max / 2, 3, 1 / 3]
    edges = np.array([*edges, *(2.0**k for k in (-60, -30, 24, 53)), info.tiny * 3], dtype)
    powers = rng.choice([1.0, info.eps, 1 / info.eps, info.tiny / info.eps, info.max / 4], (3, COUNT))
    values = rng.standard_normal((3, COUNT)) * powers
    pick = rng.random((3, COUNT)) < 0.5
    signs = rng.choice([-1, 1], (3, COUNT))
    with np.errstate(over="ignore"):
        a, b, c = np.where(pick, rng.choice(edges, (3, COUNT)) * signs, values).astype(dtype)
        c = np.where(rng.random(COUNT) < 0.3, -(a * b), c).astype(dtype)
        b = np.where(rng.random(COUNT) < 0.1, -a, b)
    usable = np.isfinite(a) & np.isfinite(b) & np.isfinite(c) & (a != 0) & (b != 0)
    a, b, c = (np.where(usable, x, dtype(1)) for x in (a, b, c))
    # vectors in which all addends are near the results, and others
    with np.errstate(over="ignore"):
        near = np.argsort(np.abs(a.astype(float)) * np.abs(b) > np.abs(c.astype(float)) / 8, kind="stable")
    a, b, c = a[near], b[near], c[near]
    names = [f"{op}.{mode}.{kind}" for op in (*OPERATORS, "fma") for mode in ("rz", "rm", "rp")]
    chosen = [f for f in FORMS if f.name in names]
    assert len(chosen) == len(names)
    compiled = runner.build(chosen, 32, features)
    x, y, z = ([Fraction(float(v)) for v in column] for column in (a, b, c))
    for form in chosen:
        op, mode, _ = form.name.split(".")
        got = compiled.run(form, 32, (a, b, c)[: len(form.operands)]).view(dtype)
        for i in range(COUNT):
            exact = x[i] * y[i] + z[i] if op == "fma" else OPERATORS[op](x[i], y[i])
            want = dtype(_round(exact, mode, dtype) if exact else (-0.0 if mode == "rm" else 0.0))
            assert got[i] == want and np.signbit(got[i]) == np.signbit(want), (form.name, a[i], b[i], c[i])


# -- forms that were not recorded -----------------------------------------------------------------------
def _extra(text: str, result: str, operands: str, index: int) -> Form:
    width = {"u16": 16, "b16": 16, "f16": 16, "u64": 64, "s64": 64}
    types = tuple(operands.split())
    return Form(10_000 + index, text, text, result, types, tuple(width.get(t, 32) for t in (result, *types)))


def _run(texts: dict[str, tuple[str, str]], inputs: dict[str, np.ndarray], n: int = 32) -> dict[str, np.ndarray]:
    chosen = [_extra(text, *types, i) for i, (text, types) in enumerate(texts.items())]
    compiled = runner.build(chosen, n)
    return {f.text: compiled.run(f, n, [inputs[str(j)] for j in range(len(f.operands))]) for f in chosen}


@pytest.fixture(scope="module")
def words() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(7)
    return {str(j): rng.integers(0, 1 << 32, COUNT, dtype=np.uint32) for j in range(4)}


def test_lop3_tables(words):
    a, b, c = (words[str(j)] for j in range(3))
    texts = {f"lop3.b32 %0, %1, %2, %3, {table:#x};": ("b32", "b32 b32 b32") for table in range(256)}
    for table, got in enumerate(_run(texts, words).values()):
        want = np.zeros(COUNT, np.uint32)
        for i in range(8):
            if table >> i & 1:
                want |= (a if i & 4 else ~a) & (b if i & 2 else ~b) & (c if i & 1 else ~c)
        assert (got == want).all(), hex(table)


def test_lop3_with_a_predicate(device):
    """The second result: whether any bit is set, and or or a predicate."""
    code = r"""extern "C" __global__ void k(const unsigned* in, unsigned* o) {
        int t = threadIdx.x;
        unsigned a = in[t], b = in[32 + t], c = in[64 + t], q = t % 3 == 0, d, p;
        #define BOTH(OP) asm("{.reg.pred p,q;setp.ne.u32 q,%5,0;lop3." OP ".b32 %0|p,%2,%3,%4,0x80,q;selp.u32 %1,1,0,p;}" \
                             : "=r"(d), "=r"(p) : "r"(a), "r"(b), "r"(c), "r"(q)); *o++ = d; *o++ = p;
        o += 10 * t;
        BOTH("and") BOTH("or")
        a = 0;
        BOTH("and") BOTH("or")
        asm("{.reg.pred p,q;setp.ne.u32 q,%3,0;lop3.or.b32 _|p,%1,%2,%2,0xC0,!q;selp.u32 %0,1,0,p;}" : "=r"(d) : "r"(a), "r"(b), "r"(q));
        *o++ = d;
    }"""
    given = np.random.default_rng(8).integers(0, 1 << 32, (3, 32), dtype=np.uint32) & 0x11111111
    o = torch.full((32, 10), -7, dtype=torch.int32, device=device)
    rawkern.RawKernel(code)[1, 32](torch.from_numpy(given.reshape(-1).view(np.int32)).to(device), o)
    for t, (row, (a, b, c)) in enumerate(zip(o.cpu().numpy().view(np.uint32).tolist(), given.T.tolist(), strict=True)):
        q, d = t % 3 == 0, a & b & c
        assert row[:9] == [d, d != 0 and q, d, d != 0 or q, 0, 0, 0, q, not q]


def test_prmt_by_constants(words):
    selectors = [0x5410, 0x7632, 0x3210, 0x0123, 0x4321, 0x1054, 0xFA50, 0x8888, 0x1032, 0x7531, 0xBA98, 0x6644]
    texts = {f"prmt.b32 %0, %1, %2, {s:#x};": ("b32", "b32 b32") for s in selectors}
    both = words["0"].astype(np.uint64) | words["1"].astype(np.uint64) << np.uint64(32)
    for selector, got in zip(selectors, _run(texts, words).values(), strict=True):
        want = np.zeros(COUNT, np.uint64)
        for i in range(4):
            nibble = selector >> 4 * i & 15
            byte = both >> np.uint64(8 * (nibble & 7)) & np.uint64(255)
            byte = np.where(byte >= 128, np.uint64(255), np.uint64(0)) if nibble & 8 else byte
            want |= byte << np.uint64(8 * i)
        assert (got == want).all(), hex(selector)


def _nth_set(mask: int, base: int, offset: int) -> int:
    if offset == 0:
        return base if mask >> base & 1 else 0xFFFFFFFF
    place, left = base, abs(offset) - 1
    while 0 <= place < 32:
        if mask >> place & 1:
            if left == 0:
                return place
            left -= 1
        place += 1 if offset > 0 else -1
    return 0xFFFFFFFF


def test_fns(words):
    base = words["1"] % 32
    offset = (words["2"] % 13).astype(np.int32) - 6
    text = "fns.b32 %0, %1, %2, %3;"
    got = _run({text: ("b32", "b32 u32 s32")}, {"0": words["0"], "1": base, "2": offset})[text]
    want = [_nth_set(int(m), int(b), int(o)) for m, b, o in zip(words["0"], base, offset, strict=True)]
    assert got.tolist() == want


def test_predicates(words):
    """Second predicates, combinations with a third operand, logic on predicates."""
    a, b = (words[str(j)].astype(np.int32) % 4 for j in range(2))
    c = words["2"] % 2
    text = "{{ .reg .pred q; setp.ne.u32 q, %3, 0; {} selp.u32 %0, 1, 0, p; }}"
    cases = {
        "setp.lt.and.s32 p, %1, %2, q;": (a < b) & (c != 0),
        "setp.ge.or.s32 p, %1, %2, q;": (a >= b) | (c != 0),
        "setp.eq.xor.s32 p, %1, %2, q;": (a == b) ^ (c != 0),
        "setp.lt.s32 r, %1, %2; and.pred p, r, q;": (a < b) & (c != 0),
        "setp.lt.s32 r, %1, %2; xor.pred s, r, q; not.pred p, s;": ~((a < b) ^ (c != 0)),
        "setp.lt.s32 r, %1, %2; mov.pred p, r;": a < b,
    }
    texts = {text.format(case): ("u32", "s32 s32 u32") for case in cases}
    for n in (1, 32):
        for got, want in zip(_run(texts, {"0": a, "1": b, "2": c}, n).values(), cases.values(), strict=True):
            assert (got == want).all()


def test_setp_gives_the_complement_or_the_halves():
    from rawkern.engines.cpu.ir import Emitter, const

    e = Emitter(Module())
    p, q = arith.lower(e, decode("setp.lt.s32"), [const("i32", 1), const("i32", 2)]).vals
    low, high = arith.lower(e, decode("setp.eq.f16x2"), [const("i32", 1), const("i32", 2, 32)]).vals
    assert [v.ty for v in (p, q, low, high)] == ["i1"] * 4
    assert (p.n, low.n, high.n) == (1, 32, 32)


def test_video_sums_and_packing(words):
    a, b, c = (words[str(j)] for j in range(3))
    parts = [v.view(np.uint8).reshape(-1, 4).astype(int) for v in (a, b)]
    halves = [v.view(np.int16).reshape(-1, 2).astype(int) for v in (a, b)]
    signed = [v.view(np.int32).astype(np.int64) for v in (a, b)]
    clipped = [np.clip(v, -32768, 32767) & 0xFFFF for v in signed]
    narrow = [np.clip(v, 0, 255) for v in signed]
    cases = {
        "vabsdiff4.u32.u32.u32.add %0, %1, %2, %3;": abs(parts[0] - parts[1]).sum(1) + c,
        "vadd2.s32.s32.s32.add %0, %1, %2, %3;": (halves[0] + halves[1]).astype(np.int16).sum(1) + c,
        "vabsdiff.u32.u32.u32.add %0, %1, %2, %3;": abs(a.astype(np.int64) - b) + c,
        "vsub.s32.s32.s32.sat %0, %1, %2, %3;": np.clip(signed[0] - signed[1], -(2**31), 2**31 - 1),
        "cvt.pack.sat.s16.s32 %0, %1, %2;": clipped[0] << 16 | clipped[1],
        "cvt.pack.sat.u8.s32.b32 %0, %1, %2, %3;": (c.astype(np.int64) << 16) | narrow[0] << 8 | narrow[1],
    }
    results = _run({text: ("u32", "u32 u32 u32") for text in cases}, words)
    for text, want in cases.items():
        assert (results[text] == want.astype(np.int64) % (1 << 32)).all(), text


def test_carry_chain_of_four_words(words):
    """A 128-bit difference from 32-bit pieces: the borrow of each is the next one's."""
    text = "{ sub.cc.u32 a, %1, %2; subc.cc.u32 b, %3, %4; subc.cc.u32 c, %2, %1; subc.u32 %0, %4, %3; }"
    a, b, c, d = (words[str(j)].astype(object) for j in range(4))
    got = _run({text: ("u32", "u32 u32 u32 u32")}, words)[text]
    want = ((a | c << 32 | b << 64 | d << 96) - (b | d << 32 | a << 64 | c << 96)) >> 96
    assert got.tolist() == [int(v) % (1 << 32) for v in want]


def test_division_never_traps():
    texts = {f"{op}.{t} %0, %1, %2;": (t, f"{t} {t}") for op in ("div", "rem") for t in ("s32", "s64")}
    for text, types in texts.items():
        dtype = np.int32 if types[0] == "s32" else np.int64
        least = np.iinfo(dtype).min
        inputs = {"0": np.full(COUNT, least), "1": np.tile(np.array([0, -1], dtype), COUNT // 2)}
        for n in (1, 32):
            got = _run({text: types}, {k: v.astype(dtype) for k, v in inputs.items()}, n)[text].view(dtype)
            assert set(got[::2]) == {-1}
            assert set(got[1::2]) == {0 if text.startswith("rem") else least}


# -- what is known, and what the objects need -----------------------------------------------------------
def test_known_and_unknown_mnemonics():
    assert len(FORMS) == 1341
    assert all(arith.unsupported_reason(decode(name)) is None for f in FORMS for name, _ in runner.instructions(f.text))
    for wrong in ("add.rn.u32", "frob.u32", "add.f8", "cvt.rn.rz.f32.f64", "fma.f32", "setp.f32", "cvt.f32.s32"):
        assert arith.unsupported_reason(decode(wrong)) is not None
        with pytest.raises(arith.UnsupportedOpcode, match=re.escape(wrong)):
            arith.lower(None, decode(wrong), [])  # type: ignore[arg-type]


@pytest.mark.parametrize(("n", "effort"), [(1, 2), (runner.FEW, 0)])
@pytest.mark.parametrize("which, cpu", list(enumerate(["x86-64-v2", "haswell", "znver5", "neoverse-n1", "apple-m1"])))
def test_objects_need_no_runtime(which, cpu, n, effort):
    """Vectors that a CPU lacks are split, whatever the effort, into the operations of numbers."""
    arm = cpu in ("neoverse-n1", "apple-m1")
    triple = "aarch64-unknown-linux-gnu" if arm else "x86_64-unknown-linux-gnu"
    module = Module(features={"znver5": AVX512, "x86-64-v2": OLD}.get(cpu, frozenset()))
    # those of a kind stand together, and code for two of them is slow to make
    for form in FORMS[which :: 8 if cpu in ("x86-64-v2", "apple-m1") else 5]:
        runner.emit(module, form, n)
    allowed = {"_GLOBAL_OFFSET_TABLE_", "memcpy", "memset"}
    if cpu == "x86-64-v2":
        allowed.add("fma")  # of doubles; the process has it
    assert runner.undefined_symbols(module.text(), triple, cpu, effort) <= allowed
