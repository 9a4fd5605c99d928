"""What is known of float registers' NaNs, and that minima, maxima and bits are right where it is made use of."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import rawkern
from rawkern.engines.cpu.analysis import control_flow
from rawkern.engines.cpu.analysis.divergence import analyze
from rawkern.engines.cpu.analysis.ssa import split_registers
from rawkern.engines.cpu.emit import nans
from rawkern.engines.cpu.ptx import parser

HEAD = """.version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 p) {
    .reg .f32 %f<20>; .reg .b32 %r<20>; .reg .b64 %rd<4>; .reg .pred %q<3>;
    ld.param.u64 %rd1, [p];
    ld.global.f32 %f1, [%rd1];
    ld.global.b32 %r1, [%rd1+4];
    setp.ne.s32 %q1, %r1, 0;
"""
QUIET = """
    add.f32 %f2, %f1, %f1;
    neg.f32 %f3, %f1;
    neg.f32 %f4, %f2;
    selp.f32 %f5, %f2, %f4, %q1;
    selp.f32 %f6, %f2, %f1, %q1;
    mov.f32 %f7, 0fFF800000;
    mov.f32 %f8, 0f7FA00000;
    mov.b32 %r2, 2141192192;
    mov.b32 %f9, %r2;
    shfl.sync.bfly.b32 %r3|%q2, %f4, 1, 31, -1;
    mov.b32 %f10, %r3;
    abs.f32 %f11, %f10;
    abs.f32 %f12, %f3;
    max.f32 %f13, %f1, %f3;
"""
NUMBERS = """
    cvt.sat.f32.f32 %f2, %f1;
    fma.rm.f32 %f3, %f2, 0f437C0000, 0f4B400001;
    fma.rn.f32 %f4, %f2, 0f7F000000, 0f4B400001;
    mul.f32 %f5, %f2, %f1;
    add.sat.f32 %f6, %f1, %f1;
    mul.f32 %f7, %f6, %f2;
    add.f32 %f8, %f7, %f7;
    mov.f32 %f9, 0f41200000;
    sub.f32 %f10, %f2, %f9;
    cvt.rzi.sat.u32.f32 %r4, %f1;
    mul.f32 %f11, %f2, 0f7FC00000;
"""


def flow_of(body: str) -> tuple:
    function = parser.parse(HEAD + body + "ret;\n}\n").functions["k"]
    return function, split_registers(control_flow.build(function))


def test_quiet_registers():
    _, found = flow_of(QUIET)
    quiet = nans.quiet_registers(found)
    assert {name for name in quiet if name.startswith("%f")} == {f"%f{k}" for k in (2, 4, 5, 7, 10, 11, 13)}


def test_number_registers():
    function, found = flow_of(NUMBERS)
    known = nans.number_registers(found, analyze(function, found, 1, set(), lambda instr: False).constants)
    assert known == {f"%f{k}" for k in (3, 7, 10)}


CODE = r"""
extern "C" __global__ void extremes(int n, const float* x, const float* y, float* out) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float a = x[i], b = y[i], lost = fmaxf(a, -b), low = fminf(-a, fabsf(b)), turned = -a;
    for (int k = 0; k < n; k++) turned = -turned;              // still what was loaded
    float other = __shfl_xor_sync(~0u, a, 1), sum = a + b;
    out[8 * i] = fmaxf(a, b), out[8 * i + 1] = fminf(a, b), out[8 * i + 2] = lost, out[8 * i + 3] = low;
    out[8 * i + 4] = fmaxf(turned, b), out[8 * i + 5] = fmaxf(other, b);
    out[8 * i + 6] = fmaxf(sum, b), out[8 * i + 7] = fmaxf(fmaxf(a, b), __uint_as_float(0xff800000));
}
extern "C" __global__ void doubles(const double* x, const double* y, double* out) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    out[2 * i] = fmax(x[i], -y[i]), out[2 * i + 1] = fmin(x[i] + y[i], y[i]);
}
extern "C" __global__ void cut(const float* x, unsigned* out) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    out[2 * i] = __float_as_uint(__fmaf_rd(__saturatef(x[i]), 252.0f, 12582913.0f));
    out[2 * i + 1] = __float_as_uint(__saturatef(x[i]) * __uint_as_float(0x7fc00000));
}
extern "C" __global__ void powers(const float* x, unsigned* each, unsigned* same) {
    float y, z;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x[blockIdx.x * 32 + threadIdx.x]));
    each[blockIdx.x * 32 + threadIdx.x] = __float_as_uint(y);
    for (int k = 0; k < 32; k++) {       // the same value in all lanes
        asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(z) : "f"(x[blockIdx.x * 32 + k]));
        same[blockIdx.x * 32 + k] = __float_as_uint(z);
    }
}
"""
BITS = np.array(
    [0x7FA00000, 0xFFA00001, 0x7FC00000, 0xFFC12345, 0, 0x80000000, 0x7F800000, 0xFF800000, 0x3F800000, 0xBFC00000,
     1, 0x80000001, 0x7F7FFFFF, 0xFF7FFFFF, 0x40490FDB, 0xC2C80000],
    np.uint32,
)  # fmt: skip
MODULE = rawkern.RawModule(code=CODE)


def extreme(a: np.ndarray, b: np.ndarray, most: bool) -> np.ndarray:
    """The larger or smaller number, +0 above -0; of a number and a NaN the number, of two NaNs PTX's own."""
    above = (a > b) | ((a == b) & ~np.signbit(a))
    found = np.where(above == most, a, b)
    found = np.where(np.isnan(a), b, np.where(np.isnan(b), a, found))
    return np.where(np.isnan(found), np.uint32(0x7FFFFFFF).view(np.float32).astype(a.dtype), found)


def same_numbers(got: np.ndarray, want: np.ndarray) -> None:
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    kept = ~np.isnan(want)
    np.testing.assert_array_equal(got[kept], want[kept])
    np.testing.assert_array_equal(np.signbit(got[kept]), np.signbit(want[kept]))


@pytest.mark.parametrize("n", [1, 2])
@np.errstate(invalid="ignore", over="ignore")
def test_signalling_nans_give_way_to_numbers(device, n):
    a, b = (v.ravel().view(np.float32) for v in np.meshgrid(BITS, BITS))
    x, y = (torch.from_numpy(v.copy()).to(device) for v in (a, b))
    out = torch.full((8 * len(a),), 77.0, device=device)
    MODULE.extremes[len(a) // 32, 32](n, x, y, out)
    got = out.cpu().numpy().reshape(-1, 8).T
    turned = -a if n % 2 == 0 else a
    other = a.reshape(-1, 2)[:, ::-1].ravel()
    low = np.float32(-np.inf) + np.zeros_like(a)
    want = [
        extreme(a, b, True), extreme(a, b, False), extreme(a, -b, True), extreme(-a, np.abs(b), False),
        extreme(turned, b, True), extreme(other, b, True), extreme(a + b, b, True),
        extreme(extreme(a, b, True), low, True),
    ]  # fmt: skip
    for k, (g, w) in enumerate(zip(got, want, strict=True)):
        try:
            same_numbers(g, w)
        except AssertionError as error:
            raise AssertionError(f"column {k}") from error
    assert set(got[0][np.isnan(got[0])].view(np.uint32)) == {0x7FFFFFFF}


@np.errstate(invalid="ignore")
def test_signalling_nans_in_doubles(device):
    bits = np.array(
        [0x7FF4 << 48, 0xFFF4 << 48, 0x7FF8 << 48, 0, 1 << 63, 0x3FF0 << 48, 0xC000 << 48, 0x7FF0 << 48], np.uint64
    )
    a, b = (v.ravel().view(np.float64) for v in np.meshgrid(bits, bits))
    out = torch.full((2 * len(a),), 77.0, dtype=torch.float64, device=device)
    x, y = (torch.from_numpy(v.copy()).to(device) for v in (a, b))
    MODULE.doubles[len(a) // 32, 32](x, y, out)
    got = out.cpu().numpy().reshape(-1, 2)
    same_numbers(got[:, 0], extreme(a, -b, True))
    same_numbers(got[:, 1], extreme(a + b, b, False))


def test_what_is_cut_has_no_nan(device):
    """The bits of such a value are taken as they are; a constant NaN still is PTX's own."""
    x = np.concatenate([BITS.view(np.float32), np.linspace(-0.5, 1.5, 16, dtype=np.float32)])
    out = torch.full((64,), -1, dtype=torch.int32, device=device)
    MODULE.cut[1, 32](torch.from_numpy(x).to(device), out)
    got = out.cpu().numpy().view(np.uint32).reshape(-1, 2)
    cut = np.where(np.isnan(x), 0, np.clip(x, 0, 1)).astype(np.float64)
    np.testing.assert_array_equal(got[:, 0].view(np.float32), np.floor(cut * 252 + 12582913))
    assert set(got[:, 1]) == {0x7FFFFFFF}


def test_powers_are_the_same_bits_alone_and_in_all_lanes(device):
    special = [
        np.inf,
        -np.inf,
        np.nan,
        0.0,
        -0.0,
        127.99999,
        128,
        -126,
        -126.00001,
        -125.5,
        -127,
        1e-40,
        300,
        -300,
        3e38,
        -3e38,
    ]
    generator = np.random.default_rng(5)
    x = np.concatenate([special, generator.uniform(-130, 130, 1000), generator.uniform(-1, 1, 520)]).astype(np.float32)
    each, same = (torch.full((len(x),), -1, dtype=torch.int32, device=device) for _ in range(2))
    MODULE.powers[len(x) // 32, 32](torch.from_numpy(x).to(device), each, same)
    assert torch.equal(each, same)
    with np.errstate(over="ignore"):
        want = np.exp2(x.astype(np.float64))
    want[x < -126] = 0
    want[x >= 128] = np.inf
    got = each.cpu().numpy().view(np.float32)
    np.testing.assert_allclose(got, want, rtol=2**-22)


def test_a_uniform_nan_gives_way_to_a_number_of_an_integer(device):
    """Both are the same in all lanes, so scalars are compared; the compiler knows that the second is not a NaN."""
    k = rawkern.RawKernel(r"""
    extern "C" __global__ void k(const int* in, double* o, float* f) {
        double x = (double)in[0] / 0.0;
        o[0] = fmin(x + 0.0, (double)in[1] + 0.0);
        o[1] = fmax((double)in[1] + 0.0, x + 0.0);
        float y = (float)in[0] / 0.0f;
        f[0] = fminf(y, (float)in[1]);
        f[1] = fmaxf((float)in[1], y);
    }""")
    o, f = torch.full((2,), 7.0, dtype=torch.float64, device=device), torch.full((2,), 7.0, device=device)
    k[1, 1](torch.tensor([0, 3], dtype=torch.int32, device=device), o, f)
    assert (o.tolist(), f.tolist()) == ([3.0, 3.0], [3.0, 3.0])
