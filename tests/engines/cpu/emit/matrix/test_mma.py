"""Matrix instructions: ``mma.sync``, ``ldmatrix``, ``stmatrix``, ``movmatrix``; against an H200's answers and against NumPy."""

from __future__ import annotations

import functools
import json
import math
import re
from contextlib import nullcontext
from fractions import Fraction
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch

import rawkern

RECORDED = Path(__file__).parents[4] / "data" / "h200_warp_results.npz"
CTYPES = {"r": ("unsigned", 4), "f": ("float", 4), "d": ("double", 8)}


@functools.cache
def recorded() -> dict:
    with np.load(RECORDED) as data:
        return dict(data)


# An H200's answers --------------------------------------------------------------------------------------------------


def _forms() -> list:
    forms = json.loads(str(recorded()["forms"]))
    return [pytest.param(i, *f, id=f[0]) for i, f in enumerate(forms) if f[0].startswith("mma")]


@pytest.mark.parametrize(("index", "name", "text", "results", "operands"), _forms())
def test_products_match_hardware(device, index, name, text, results, operands):
    params = [f"{CTYPES[c][0]}* o{j}" for j, c in enumerate(results)]
    params += [f"const {CTYPES[c][0]}* i{j}" for j, (c, _) in enumerate(operands)]
    outs = ", ".join(f'"={c}"(o{j}[t])' for j, c in enumerate(results))
    ins = ", ".join(f'"{c}"(i{j}[t])' for j, (c, _) in enumerate(operands))
    code = f"""extern "C" __global__ void k({", ".join(params)}) {{
        int t = blockIdx.x * blockDim.x + threadIdx.x;
        asm volatile("{text}" : {outs} : {ins});
    }}"""
    data = recorded()
    dtypes = {"r": torch.int32, "f": torch.float32, "d": torch.float64}
    given = [
        torch.from_numpy(data[f"in.{index}.{j}"].view(f"i{data[f'in.{index}.{j}'].itemsize}")).view(dtypes[c])
        for j, (c, _) in enumerate(operands)
    ]
    n = len(given[0])
    out = [torch.full((n,), -77777, dtype=torch.int64 if c == "d" else torch.int32).view(dtypes[c]) for c in results]
    out = [x[:n].to(device) for x in out]
    rawkern.RawKernel(code)[n // 64, 64](*out, *(x.to(device) for x in given))
    for j, got in enumerate(out):
        want = data[f"out.{index}.{j}"]
        bits = f"u{want.itemsize}"
        np.testing.assert_array_equal(got.cpu().numpy().view(bits), want.view(bits), err_msg=f"{name} register {j}")


# Against NumPy ------------------------------------------------------------------------------------------------------

#: Bits of an element, its NumPy type (of 4 bits and less: unpacked), and the values to draw from.
ELEMENTS = {
    "f16": (16, np.float16), "bf16": (16, ml_dtypes.bfloat16), "tf32": (32, np.float32), "f32": (32, np.float32),
    "f64": (64, np.float64), "s8": (8, np.int8), "u8": (8, np.uint8), "s4": (4, np.int8), "u4": (4, np.uint8),
    "b1": (1, np.uint8), "s32": (32, np.int32), "e4m3": (8, ml_dtypes.float8_e4m3fn), "e5m2": (8, ml_dtypes.float8_e5m2),
}  # fmt: skip


def drawn(kind: str, shape: tuple[int, int], rng: np.random.Generator) -> np.ndarray:
    bits, dtype = ELEMENTS[kind]
    if kind[0] in "fbte" and kind != "b1":
        x = rng.standard_normal(shape) * np.exp2(rng.integers(-6, 6, shape))
        return (
            (x.astype(np.float32).view(np.uint32) & 0xFFFFE000).view(np.float32) if kind == "tf32" else x.astype(dtype)
        )
    if kind == "s32":
        return rng.integers(-(2**31), 2**31, shape).astype(np.int32)
    low, high = (-(1 << bits - 1), 1 << bits - 1) if kind[0] == "s" else (0, 1 << bits)
    return rng.integers(low, high, shape).astype(dtype)


def element_places(rows: int, columns: int, per: int) -> list[list[tuple[int, int]]]:
    """Row and column of each element of a lane as the PTX manual gives them: groupID, threadID_in_group, then i."""
    places = []
    for lane in range(32):
        group, thread = lane >> 2, lane & 3
        mine = []
        for i in range(rows * columns // 32):
            register = i // per
            row = group + 8 * (register % (rows // 8))
            mine.append((row, thread * per + i % per + 4 * per * (register // (rows // 8))))
        places.append(mine)
    return places


def packed(elements: np.ndarray, kind: str) -> np.ndarray:
    """A lane's elements to its registers: 32 rows in, registers x 32 out."""
    bits = ELEMENTS[kind][0]
    if bits >= 8:
        whole = np.ascontiguousarray(elements).view(f"u{max(4, bits // 8)}")
    else:
        fields = (elements.astype(np.uint32) & ((1 << bits) - 1)).reshape(32, -1, 32 // bits)
        whole = (fields << (np.arange(32 // bits, dtype=np.uint32) * bits)).sum(2, dtype=np.uint32)
    return np.ascontiguousarray(whole.T)


def fragment(x: np.ndarray, kind: str, per: int) -> np.ndarray:
    places = element_places(*x.shape, per)
    return packed(np.array([[x[p] for p in mine] for mine in places]), kind)


def unpacked(registers: np.ndarray, kind: str, shape: tuple[int, int]) -> np.ndarray:
    """D from its registers."""
    elements = np.ascontiguousarray(registers.T).view(ELEMENTS[kind][1])
    out = np.zeros(shape, ELEMENTS[kind][1])
    for lane, mine in enumerate(element_places(*shape, 2)):
        for i, p in enumerate(mine):
            out[p] = elements[lane, i]
    return out


def _shapes() -> list:
    cases = {
        "f16 f32": ["m16n8k8 f32.f16.f16.f32", "m16n8k16 f32.f16.f16.f32", "m16n8k16 f32.f16.f16.f16"],
        "f16 f16": ["m16n8k8 f16.f16.f16.f16", "m16n8k16 f16.f16.f16.f16", "m16n8k16 f16.f16.f16.f32"],
        "bf16": ["m16n8k8 f32.bf16.bf16.f32", "m16n8k16 f32.bf16.bf16.f32"],
        "fp8": [f"m16n8k{k} {d}.{a}.{b}.{d}" for k in (16, 32) for d in ("f32", "f16")
                for a, b in [("e4m3", "e4m3"), ("e4m3", "e5m2"), ("e5m2", "e4m3"), ("e5m2", "e5m2")]],
        "tf32": ["m16n8k4 f32.tf32.tf32.f32", "m16n8k8 f32.tf32.tf32.f32"],
        "f64": ["m8n8k4 f64.f64.f64.f64"],
        "int8": [f"m{m}n8k{k} s32.{a}.{b}.s32{s}" for m, k, a, b, s in
                 [(8, 16, "s8", "u8", ""), (8, 16, "u8", "u8", ".satfinite"), (16, 16, "s8", "s8", ".satfinite"),
                  (16, 16, "u8", "s8", ""), (16, 32, "s8", "s8", ""), (16, 32, "u8", "u8", ".satfinite")]],
        "int4": [f"m{m}n8k{k} s32.{a}.{b}.s32{s}" for m, k, a, b, s in
                 [(8, 32, "s4", "s4", ""), (8, 32, "u4", "s4", ".satfinite"), (16, 32, "u4", "u4", ""),
                  (16, 64, "s4", "u4", ""), (16, 64, "s4", "s4", ".satfinite")]],
        "bits": [f"m{m}n8k{k} s32.b1.b1.s32.{op}.popc" for m, k, op in
                 [(8, 128, "xor"), (8, 128, "and"), (16, 128, "xor"), (16, 256, "xor"), (16, 256, "and")]],
    }  # fmt: skip
    return [pytest.param(forms, id=name) for name, forms in cases.items()]


def _asm(form: str, counts: list[int], at: list[int], letters: str) -> str:
    """One product as a line of CUDA: registers of D, A, B and C from element `at` of its array on, 32 for each."""
    shape, rest = form.split()
    numbers = iter(range(sum(counts)))
    text = ", ".join("{" + ", ".join(f"%{next(numbers)}" for _ in range(n)) + "}" for n in counts)
    names = {"r": ("u", "r"), "f": ("f", "f"), "d": ("d", "d")}
    operand = [
        [f'"{names[x][1]}"({v}_{names[x][0]}[{a} + {32 * i} + lane])' for i in range(n)]
        for v, x, n, a in zip("dabc", letters, counts, at, strict=True)
    ]
    outs = ", ".join(o.replace('"', '"=', 1) for o in operand[0])
    ins = ", ".join(o for part in operand[1:] for o in part)
    return f'asm volatile("mma.sync.aligned.{shape}.row.col.{rest} {text};" : {outs} : {ins});'


def exponent_of(x: Fraction, kind: str) -> int:
    """That of a number's leading bit, of a subnormal one the type's least; zeros have next to none."""
    least = {"f16": -14, "e5m2": -14, "e4m3": -6}.get(kind, -126)
    return max(math.frexp(x)[1] - 1, least) if x else -(10**6)


def towards_zero(x: Fraction, bit: int) -> Fraction:
    """A number without what is less than this power of two."""
    unit = Fraction(2) ** bit
    return int(x / unit) * unit


def fused_sum(x: list[float], y: list[float], c: float, form: str, hopper: bool) -> float:
    """A row times a column as tensor cores add it, in exact arithmetic: Hopper's, else what MMA-Sim says of Ampere."""
    d, a, b, start = form.split()[1].split(".")[:4]
    small = ELEMENTS[a][0] == 8
    at_once = 128 // ELEMENTS[a][0]
    groups = [range(k, min(k + at_once, len(x))) for k in range(0, len(x), at_once)]
    fraction, mantissa = (13, 13) if small else (24, 23)
    if hopper:
        fraction, mantissa = 25, 23
        groups = [[k for k in range(len(x)) if k % 4 // 2 == h] for h in range(2)] if small else [range(len(x))]
    total, kind = (Fraction(0), d) if hopper and small else (Fraction(c), start)
    for group in groups:
        terms = [(total, exponent_of(total, kind))]
        for k in group:
            p, q = Fraction(x[k]), Fraction(y[k])
            terms.append((p * q, exponent_of(p, a) + exponent_of(q, b)))
        last = max(e for _, e in terms) - fraction
        total = sum((towards_zero(v, max(last, -400)) for v, _ in terms), Fraction(0))
        total, kind = rounded(total, d, mantissa), d
    if hopper and small:
        with_c = np.float32(float(total)) + np.float32(c)
        return float(np.float16(with_c) if d == "f16" else with_c)
    return float(total)


def rounded(x: Fraction, kind: str, mantissa: int) -> Fraction:
    """A sum as a result: f32 cut to so many bits, f16 rounded to nearest even."""
    bit = exponent_of(x, kind) - (10 if kind == "f16" else mantissa)
    return (
        Fraction(round(x / Fraction(2) ** bit)) * Fraction(2) ** bit
        if kind == "f16" and x
        else towards_zero(x, max(bit, -400))
    )


@pytest.mark.parametrize("hopper", [False, True], ids=["ampere", "hopper"])
@pytest.mark.parametrize("forms", _shapes())
def test_products_against_numpy(device, forms, hopper):
    """Each shape with operands spread over the lanes as the manual draws them; integer sums wrap or saturate.

    On the CPU sums of floats have the bits of the GPUs that the code is for.
    """
    if device != "cpu" and hopper:
        pytest.skip("a GPU has one architecture")
    if device != "cpu":  # PTX wants f16 or f32 for both C and D
        forms = [form for form in forms if not form.endswith(("f32.f16.f16.f16", "f16.f16.f16.f32"))]
    rng = np.random.default_rng(7)
    arrays: dict[str, list[np.ndarray]] = {v: [] for v in "abc"}
    places = dict.fromkeys("dabc", 0)
    wide = 8 if forms[0].startswith("m8n8k4") else 4
    lines, cases = [], []
    for form in forms:
        m, n, k = (int(x) for x in re.split("[mnk]", form.split()[0])[1:])
        d, a, b, c = form.split()[1].split(".")[:4]
        x, y, z = drawn(a, (m, k), rng), drawn(b, (k, n), rng), drawn(c, (m, n), rng)
        per = max(32 // ELEMENTS[a][0], 1)
        given = {"a": fragment(x, a, per), "b": fragment(np.ascontiguousarray(y.T), b, per), "c": fragment(z, c, 2)}
        counts = [m * n // 32 * ELEMENTS[d][0] // (8 * wide), *(len(g) for g in given.values())]
        letter = {"f32": "f", "f64": "d"}
        letters = "".join(
            letter.get(t, "r") for t in (d, "f64" if a == "f64" else "b32", "f64" if a == "f64" else "b32", c)
        )
        lines.append(_asm(form, counts, list(places.values()), letters))
        cases.append((form, d, (x, y, z), places["d"], counts[0]))
        for v, count in zip("dabc", counts, strict=True):
            places[v] += 32 * count
        for v, g in given.items():
            arrays[v].append(g.reshape(-1))
    views = "".join(
        f"{q}unsigned* {v}_u = ({q}unsigned*){v}; {q}float* {v}_f = ({q}float*){v}; {q}double* {v}_d = ({q}double*){v};"
        for v, q in zip("dabc", ["", *["const "] * 3], strict=True)
    )
    code = f"""extern "C" __global__ void k(unsigned char* d, const unsigned char* a, const unsigned char* b, const unsigned char* c) {{
        int lane = threadIdx.x; {views}
        {chr(10).join(lines)}
    }}"""
    code += "// for wgmma.fence's architecture" if hopper else ""
    tensors = [torch.from_numpy(np.concatenate(arrays[v]).view(np.uint8)).to(device) for v in "abc"]
    out = torch.full((places["d"] * wide,), 0xA5, dtype=torch.uint8, device=device)
    rawkern.RawKernel(code)[1, 32](out, *tensors)
    raw = out.cpu().numpy().view(f"u{wide}")
    for form, d, (x, y, z), start, count in cases:
        got = unpacked(raw[start : start + 32 * count].reshape(count, 32), d, z.shape)
        if d == "s32":
            if ".popc" in form:
                meet = np.bitwise_and if ".and" in form else np.bitwise_xor
                sums = meet(x[:, :, None], y[None]).sum(1, dtype=np.int64)
            else:
                sums = x.astype(np.int64) @ y.astype(np.int64)
            total = sums + z
            want = np.clip(total, -(2**31), 2**31 - 1) if "satfinite" in form else total.astype(np.int32)
            np.testing.assert_array_equal(got, want, err_msg=form)
        else:
            exact = x.astype(np.float64) @ y.astype(np.float64) + z.astype(np.float64)
            scale = np.abs(x.astype(np.float64)) @ np.abs(y.astype(np.float64)) + np.abs(z.astype(np.float64))
            eps = {"f16": 2.0**-11, "f32": 2.0**-23, "f64": 2.0**-52}[d]
            ulp = np.abs(exact) * eps if d == "f16" else 0
            if device != "cpu":  # hardware cuts sums off, in f16 perhaps more than once
                ulp = 2 * ulp + scale * eps
            excess = (
                np.abs(got.astype(np.float64) - exact) - ulp - scale * x.shape[1] * {"f64": 2.0**-53}.get(d, 2.0**-23)
            )
            if device != "cpu" or d == "f64":
                assert excess.max() <= 2.0**-25, form
                continue
            x, y, z = (v.astype(np.float64).tolist() for v in (x, y.T, z))
            want = [[fused_sum(x[i], y[j], z[i][j], form, hopper) for j in range(len(y))] for i in range(len(x))]
            np.testing.assert_array_equal(got.astype(np.float64), want, err_msg=form)


PUBLISHED = [
    # Fasi, Higham, Mikaitis, Pranesh (PeerJ Computer Science 7:e330), what their tests find on an A100
    ({0: (1, 1)}, -(1 - 2**-24), 2**-24),  # one more bit where terms are aligned
    ({k: (1, 2**-24) for k in range(4)}, 1 - 2**-24, 1 + 2**-23),  # sums are normalized at the end
    ({0: (1, 1), 1: (1, -(2**-24))}, -1 + 2**-24, 0),
    ({k: (1, 1) for k in range(4)}, 1 + 2**-22 + 2**-23, 5),  # and cut
    ({k: (1, -1) for k in range(4)}, -1 - 2**-22 - 2**-23, -5),
    ({0: (1, 2), 1: (1, 2**-23 + 2**-24)}, 0, 2),
    # 8 products at once
    ({0: (1, 1), 7: (1, -1), 8: (2**-15, 2**-15)}, 0, 2**-30),
    ({0: (1, 1), 6: (1, -1), 7: (2**-15, 2**-15)}, 0, 0),
]


@pytest.mark.parametrize("terms, c, want", PUBLISHED)
def test_published_sums_of_an_a100(terms, c, want):
    code = r"""extern "C" __global__ void k(const unsigned* a, const unsigned* b, float c, float* out) {
        float d[4] = {c, c, c, c};
        int t = threadIdx.x % 4;
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%4,%5,%5}, {%6,%7}, {%0,%1,%2,%3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[t]), "r"(a[4 + t]), "r"(b[t]), "r"(b[4 + t]));
        for (int i = 0; i < 4; i++) out[threadIdx.x * 4 + i] = d[i];
    }"""
    a, b = torch.zeros(2, 16).half()
    for k, (x, y) in terms.items():
        a[k], b[k] = x, y
    out = torch.full((128,), 7.0)
    rawkern.RawKernel(code)[1, 32](a.view(torch.int32), b.view(torch.int32), c, out)
    assert set(out.tolist()) == {want}


def test_products_of_special_values(device):
    """Infinities, NaNs, subnormals, and low bits that tf32 does not have."""
    code = r"""extern "C" __global__ void k(unsigned a, unsigned b, float c, unsigned* out) {
        float d0, d1, d2, d3;
        unsigned zero = 0, x = threadIdx.x % 4 == 0 ? a : zero, y = threadIdx.x % 4 == 0 ? b : zero;
        asm volatile("mma.sync.aligned.m16n8k4.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%7,%7,%7,%7};"
            : "=f"(d0), "=f"(d1), "=f"(d2), "=f"(d3) : "r"(x), "r"(x), "r"(y), "f"(c));
        out[threadIdx.x * 4] = __float_as_uint(d0); out[threadIdx.x * 4 + 1] = __float_as_uint(d1);
        out[threadIdx.x * 4 + 2] = __float_as_uint(d2); out[threadIdx.x * 4 + 3] = __float_as_uint(d3);
    }"""
    kernel = rawkern.RawKernel(code)

    def bits(x: float) -> int:
        return int(np.float32(x).view(np.uint32))

    inf, nan = float("inf"), 0x7FFFFFFF
    cases = [
        (bits(inf), bits(1.0), 2.0, bits(inf)),
        (bits(inf), bits(0.0), 2.0, nan),
        (bits(inf), bits(1.0), -inf, nan),
        (0x7FC00123, bits(1.0), 2.0, nan),
        (bits(2.0**-100), bits(2.0**-40), 0.0, bits(2.0**-140)),
        (bits(1.0) | 0x1FFF, bits(3.0) | 0x1FFF, 0.5, bits(3.5)),
        (bits(-0.0), bits(1.0), -0.0, None),
    ]
    for a, b, c, want in cases:
        if device != "cpu" and want == bits(2.0**-140):
            continue  # PTX does not say whether subnormal sums are kept
        out = torch.full((128,), -1, dtype=torch.int32, device=device)
        kernel[1, 32](a, b, c, out)
        got = set(out.cpu().numpy().view(np.uint32).tolist())
        assert got == {want} if want is not None else got <= {0, 0x80000000}


@pytest.mark.parametrize("kind, nan, infinity", [("e4m3", 0x7F, None), ("e5m2", 0x7D, 0x7C)])
def test_bytes_of_special_values(device, kind, nan, infinity):
    """A NaN in row 1 of A, and where there is one an infinity in row 2, times ones; all else of A is the least number."""
    code = f"""extern "C" __global__ void k(const unsigned* a, unsigned one, float* out) {{
        unsigned t = threadIdx.x, b = one * 0x01010101;
        float d[4] = {{0, 0, 0, 0}};
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.{kind}.{kind}.f32 {{%0,%1,%2,%3}}, {{%4,%5}}, {{%6}}, {{%0,%1,%2,%3}};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[t]), "r"(a[32 + t]), "r"(b));
        for (int i = 0; i < 4; i++) out[(t / 4 + i / 2 * 8) * 8 + t % 4 * 2 + i % 2] = d[i];
    }}"""
    a = np.full((16, 16), 0x81, np.uint8)
    a[1, 5] = nan
    if infinity is not None:
        a[2, 11] = infinity
    one, least = {"e4m3": (0x38, 2.0**-9), "e5m2": (0x3C, 2.0**-16)}[kind]
    given = torch.from_numpy(np.concatenate([a[:8], a[8:]]).view(np.int32).reshape(-1)).to(device)
    out = torch.full((16, 8), 7.0, device=device)
    rawkern.RawKernel(code)[1, 32](given, one, out)
    want = np.full((16, 8), -16 * least, np.float32)
    want[1] = np.nan
    want[2] = want[2] if infinity is None else np.inf
    np.testing.assert_array_equal(out.cpu().numpy(), want)


def quad_places(operand: str, layout: str, lane: int) -> list[tuple[int, int]]:
    """Rows and columns that a lane holds of m8n8k4's operands, as the PTX manual has them."""
    own, high = lane % 4, 4 * (lane >= 16)
    return {
        "a row": [(own + high, i) for i in range(4)],
        "a col": [(i + high, own) for i in range(4)],
        "b row": [(own, i + high) for i in range(4)],
        "b col": [(i, own + high) for i in range(4)],
        "c f16": [(own + high, i) for i in range(8)],
        "c f32": [((lane & 1) + (i & 2) + high, (i & 4) + (lane & 2) + (i & 1)) for i in range(8)],
    }[f"{operand} {layout}"]


def test_four_products_of_quads(device):
    """m8n8k4 of f16: every layout of A and B, sums in f16 and f32; the four products differ."""
    rng = np.random.default_rng(12)
    x, y, z = (rng.integers(-6, 7, (4, *shape)) / 2 for shape in ((8, 4), (4, 8), (8, 8)))
    cases = [(a, b, d, c) for a in ("row", "col") for b in ("row", "col")
             for d, c in (("f32", "f32"), ("f16", "f16"), ("f32", "f16"))]  # fmt: skip
    lines, inputs = [], []

    def held(operand: str, layout: str, source: np.ndarray, dtype: type) -> np.ndarray:
        lanes = [[source[lane // 4 % 4][p] for p in quad_places(operand, layout, lane)] for lane in range(32)]
        return np.ascontiguousarray(np.array(lanes).astype(dtype)).view(np.uint32).T.reshape(-1)

    types = {"f16": np.float16, "f32": np.float32}
    at = 0
    for k, (a, b, d, c) in enumerate(cases):
        inputs += [held("a", a, x, np.float16), held("b", b, y, np.float16), held("c", c, z, types[c])]
        names = [
            f"{v}_{'f' if t == 'f32' else 'u'}[{{}} + lane]" for v, t in (("o", d), ("i", ""), ("i", ""), ("i", c))
        ]
        counts, starts = [8 if d == "f32" else 4, 2, 2, 8 if c == "f32" else 4], [k * 256, at, at + 64, at + 128]
        at += 128 + 32 * counts[3]
        numbers = iter(range(99))
        text = ", ".join("{" + ",".join(f"%{next(numbers)}" for _ in range(n)) + "}" for n in counts)
        ops = [[f'"{"f" if "_f" in v else "r"}"({v.format(s + 32 * i)})' for i in range(n)]
               for v, n, s in zip(names, counts, starts, strict=True)]  # fmt: skip
        outs = ", ".join(o.replace('"', '"=', 1) for o in ops[0])
        lines.append(
            f'asm volatile("mma.sync.aligned.m8n8k4.{a}.{b}.{d}.f16.f16.{c} {text};" : {outs} : {", ".join(o for part in ops[1:] for o in part)});'
        )
    code = """extern "C" __global__ void k(unsigned* o_u, const unsigned* i_u) {
        int lane = threadIdx.x; float* o_f = (float*)o_u; const float* i_f = (const float*)i_u;
        """ + "\n".join(lines) + "}"  # fmt: skip
    out = torch.full((len(cases) * 256,), -77777, dtype=torch.int32, device=device)
    rawkern.RawKernel(code)[1, 32](out, torch.from_numpy(np.concatenate(inputs).view(np.int32)).to(device))
    raw = out.cpu().numpy().view(np.uint32).reshape(len(cases), 256)
    for (a, b, d, c), words in zip(cases, raw, strict=True):
        n = 8 if d == "f32" else 4
        elements = np.ascontiguousarray(words[: 32 * n].reshape(n, 32).T).view(types[d])
        got = np.zeros((4, 8, 8))
        for lane in range(32):
            for i, p in enumerate(quad_places("c", d, lane)):
                got[lane // 4 % 4][p] = elements[lane, i]
        np.testing.assert_array_equal(got, (x @ y + z).astype(types[d]), err_msg=f"{a} {b} {d} {c}")


# Rows of memory -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trans", ["", ".trans"])
def test_ldmatrix_matches_hardware(device, trans):
    """Four 8 x 8 matrices whose rows lanes name in order; x1 and x2 take the first of them, in other orders too."""
    code = rf"""extern "C" __global__ void k(const unsigned short* x, unsigned* four, unsigned* two, unsigned* one) {{
        __shared__ __align__(16) unsigned short s[256];
        int t = threadIdx.x;
        for (int i = t; i < 256; i += 32) s[i] = x[i];
        __syncthreads();
        unsigned at = (unsigned)__cvta_generic_to_shared(s + 8 * t), r0, r1, r2, r3;
        asm volatile("ldmatrix.sync.aligned.m8n8.x4{trans}.shared.b16 {{%0,%1,%2,%3}}, [%4];"
            : "=r"(r0), "=r"(r1), "=r"(r2), "=r"(r3) : "r"(at));
        four[4 * t] = r0; four[4 * t + 1] = r1; four[4 * t + 2] = r2; four[4 * t + 3] = r3;
        at = (unsigned)__cvta_generic_to_shared(s + 8 * (31 - t));
        asm volatile("ldmatrix.sync.aligned.m8n8.x2{trans}.shared.b16 {{%0,%1}}, [%2];" : "=r"(r0), "=r"(r1) : "r"(at));
        two[2 * t] = r0; two[2 * t + 1] = r1;
        if (t >= 8) at = 0x7fffffff;  // no lane reads there
        asm volatile("ldmatrix.sync.aligned.m8n8.x1{trans}.shared.b16 {{%0}}, [%1];" : "=r"(r0) : "r"(at));
        one[t] = r0;
    }}"""
    kernel, data = rawkern.RawKernel(code), recorded()
    words = data["ldmatrix.in"].reshape(4, 256)
    for matrices, want in zip(words, data[f"ldmatrix.x4{trans}"].reshape(4, 32, 4), strict=True):
        out = [torch.full((32 * n,), -77777, dtype=torch.int32, device=device) for n in (4, 2, 1)]
        kernel[1, 32](torch.from_numpy(matrices.view(np.int16)).to(device), *out)
        got = [x.cpu().numpy().view(np.uint32).reshape(32, -1) for x in out]
        np.testing.assert_array_equal(got[0], want.view(np.uint32))
        back = matrices.reshape(32, 8)[::-1][:16].reshape(2, 8, 8)
        back = back.swapaxes(1, 2) if trans else back
        pairs = np.ascontiguousarray(back).view(np.uint32).reshape(2, 32)
        np.testing.assert_array_equal(got[1].T, pairs)
        np.testing.assert_array_equal(got[2][:, 0], pairs[0])


@pytest.mark.parametrize("trans", [False, True])
def test_stmatrix(trans):
    """Of compute capability 9.0: the way back of ldmatrix."""
    how = ".trans" if trans else ""
    code = rf"""extern "C" __global__ void k(const unsigned* x, unsigned short* y) {{
        __shared__ __align__(16) unsigned short s[256];
        int t = threadIdx.x;
        unsigned at = (unsigned)__cvta_generic_to_shared(s + 8 * t);
        for (int i = t; i < 256; i += 32) s[i] = 7;
        __syncthreads();
        asm volatile("stmatrix.sync.aligned.m8n8.x2{how}.shared.b16 [%0], {{%1,%2}};" :: "r"(at), "r"(x[t]), "r"(x[32 + t]));
        __syncthreads();
        for (int i = t; i < 256; i += 32) y[i] = s[i];
    }}"""
    x = np.random.default_rng(3).integers(0, 2**16, (2, 8, 8)).astype(np.uint16)
    y = torch.full((256,), -1, dtype=torch.int16)
    rawkern.RawKernel(code)[1, 32](torch.from_numpy(x.reshape(-1).view(np.int32)), y)
    got = y.numpy().view(np.uint16).reshape(4, 8, 8)
    np.testing.assert_array_equal(got[:2], x.swapaxes(1, 2) if trans else x)
    assert (got[2:] == 7).all()


MOVMATRIX = 'asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(d) : "r"(a));'


@pytest.mark.parametrize("launches", [nullcontext, rawkern.check], ids=["usual", "checked"])
def test_movmatrix(device, launches):
    """Four lanes hold a row of the matrix, two elements each; of its transpose they get one as well."""
    code = f"""extern "C" __global__ void k(const unsigned* x, unsigned* y, unsigned* twice, unsigned* same) {{
        unsigned t = blockIdx.x * blockDim.x + threadIdx.x, a = x[t], d;
        {MOVMATRIX}
        y[t] = d;
        a = d;
        {MOVMATRIX}
        twice[t] = d;
        a = 0x00070003 + (t / 64 << 16);
        {MOVMATRIX}
        same[t] = d;
    }}"""
    x = np.random.default_rng(6).integers(0, 2**16, (4, 8, 8)).astype(np.uint16)
    given = torch.from_numpy(x.reshape(-1).view(np.int32)).to(device)
    y, twice, same = (torch.full((128,), -7, dtype=torch.int32, device=device) for _ in range(3))
    with launches():
        rawkern.RawKernel(code)[2, 64](given, y, twice, same)
    np.testing.assert_array_equal(y.cpu().numpy().view(np.uint16).reshape(4, 8, 8), x.swapaxes(1, 2))
    np.testing.assert_array_equal(twice.cpu().numpy().view(np.uint16).reshape(4, 8, 8), x)
    pairs = np.stack([np.tile(np.array([3, 7 + b], np.uint16), (8, 4)) for b in (0, 0, 1, 1)])
    np.testing.assert_array_equal(same.cpu().numpy().view(np.uint16).reshape(4, 8, 8), pairs.swapaxes(1, 2))


def test_movmatrix_by_part_of_a_warp_is_an_error():
    code = f"""extern "C" __global__ void k(unsigned* y, int n) {{
        unsigned a = 1, d = 2;
        if (threadIdx.x < n) {{ {MOVMATRIX} }}
        y[threadIdx.x] = d;
    }}"""
    with pytest.raises(
        rawkern.LaunchError, match=r"\.py:\d+, line 3.*matrix instruction .* other lanes of its warp do not"
    ):
        rawkern.RawKernel(code)[1, 32](torch.zeros(32, dtype=torch.int32), 31)


# What PTX leaves undefined ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", [32, 20])
def test_a_product_by_part_of_a_warp_is_an_error(block):
    code = r"""extern "C" __global__ void k(float* x, int n) {
        unsigned a = 0;
        if (threadIdx.x < n)
            asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%4,%4,%4}, {%4,%4}, {%0,%1,%2,%3};"
                : "+f"(x[0]), "+f"(x[1]), "+f"(x[2]), "+f"(x[3]) : "r"(a));
    }"""
    with pytest.raises(
        rawkern.LaunchError, match=r"\.py:\d+, line 5.*matrix instruction .* other lanes of its warp do not"
    ):
        rawkern.RawKernel(code)[1, block](torch.zeros(128), 20)


PRODUCT = r"""asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0,%1}, {%2}, {%3}, {%0,%1};"
                : "+d"(d0), "+d"(d1) : "d"(a), "d"(b));"""


def test_a_warp_waits_for_its_lane_in_a_spin_loop(device):
    """One lane fetches a number under a lock that all warps want; the product comes after it, by all 32 lanes."""
    code = rf"""__device__ __noinline__ void product(double& d0, double& d1, double a, double b) {{ {PRODUCT} }}
    extern "C" __global__ void k(int* lock, volatile int* count, double* out, int rounds) {{
        int lane = threadIdx.x % 32, warp = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
        for (int r = 0; r < rounds; r++) {{
            double a = 0, b = lane % 4 == 0 ? 1 : 0, d0 = 0, d1 = 0;
            if (lane == 0) {{
                while (atomicCAS(lock, 0, 1)) {{}}
                __threadfence();
                int n = *count;
                for (int i = 0; i < 200; i++) count[1] += 1;
                *count = n + 1;
                __threadfence();
                atomicExch(lock, 0);
                a = n;  // A[0][0]; row 0 of D is n in all columns
            }}
            if (r & 1) product(d0, d1, a, b);
            else {{ {PRODUCT} }}
            out[((warp * rounds + r) * 32 + lane) * 2] = d0;
            out[((warp * rounds + r) * 32 + lane) * 2 + 1] = d1;
        }}
    }}"""
    warps, rounds = 16, 6
    lock, count = torch.zeros(1, dtype=torch.int32, device=device), torch.zeros(2, dtype=torch.int32, device=device)
    out = torch.full((warps * rounds, 8, 8), float("nan"), dtype=torch.float64, device=device)
    rawkern.RawKernel(code, "k")[warps // 2, 64](lock, count, out, rounds)
    got = out.cpu()
    assert sorted(got[:, 0, 0].tolist()) == list(range(warps * rounds))
    assert (got[:, 0] == got[:, 0, :1]).all() and (got[:, 1:] == 0).all()
