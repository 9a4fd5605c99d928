"""Lanes of a warp that meet at warp-level instructions on different ways; when code has to provide for that."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import rawkern
from rawkern.engines.cpu.analysis import plan
from rawkern.engines.cpu.analysis.storage import lay_out_globals
from rawkern.engines.cpu.ptx.parser import parse
from rawkern.errors import LaunchError

LANE = np.arange(32)
pytestmark = pytest.mark.timeout(60)


def poison(n: int, device: str) -> torch.Tensor:
    return torch.full((n,), -77777, dtype=torch.int32, device=device)


CODE = r"""
#define FULL 0xffffffffu
// every kind of exchange, with part of the lanes on each of two ways that take different times
#define EXCHANGES(add) { \
    o[0] = __shfl_sync(FULL, v + add, (t + 5) & 31);   o[1] = __shfl_up_sync(FULL, v, 3, 16) + add; \
    o[2] = __shfl_down_sync(FULL, v + add, 7, 8);      o[3] = __shfl_xor_sync(FULL, v, t & 1 ? 9 : 9); \
    o[4] = __ballot_sync(FULL, v > add);               o[5] = __any_sync(FULL, v > 995) * 2 + __all_sync(FULL, v > -800); \
    o[6] = __match_any_sync(FULL, v & 7);              o[7] = __match_any_sync(FULL, (long long)(v & 3) << 40); \
    int same; __match_all_sync(FULL, v | 2047, &same); o[8] = same * 2; __match_all_sync(FULL, v, &same); o[8] += same; \
    o[9] = __reduce_add_sync(FULL, v + add);           o[10] = __reduce_min_sync(FULL, v); \
    o[11] = __reduce_xor_sync(FULL, v); }
extern "C" __global__ void ways(const int* x, int* busy, int* out) {
    int t = threadIdx.x, v = x[t], o[12];
    if (v & 1) { for (int r = 0; r < x[32 + t]; r++) busy[t] = r; EXCHANGES(100) }
    else       { EXCHANGES(0) for (int r = 0; r < x[32 + t]; r++) busy[t] = r; }
    for (int k = 0; k < 12; k++) out[t * 12 + k] = o[k];
}
// groups of eight, whose lanes come two ways, go round as often as they like
extern "C" __global__ void groups(int* out) {
    int t = threadIdx.x, g = t / 8, v = t * t;
    unsigned mask = 0xffu << (8 * g);
    for (int r = 0; r <= g * 2; r++) {
        if (t & 1) { v += 3; v = __shfl_sync(mask, v, t + 3, 8) + r; }
        else { v = __shfl_sync(mask, v, t + 3, 8) - r; v ^= 1; }
        if (g == 2 && r == 3) break;
    }
    out[t] = v;
}
// a lane's k-th exchange is with the others' k-th, in whatever round of the loop they have it
extern "C" __global__ void rounds(int* out) {
    int t = threadIdx.x, v = t * 11, n = 0;
    for (int r = 0; r < 9; r++) {
        if ((r * 7 + t * t) % 3 == 0 && n < 2) { v = __shfl_sync(FULL, v, (t + 1) & 31) + r; n++; }
    }
    for (; n < 3; n++) v = __shfl_sync(FULL, v, (t + 1) & 31) + 100;
    out[t] = v;
}
// lanes that have ended are not waited for
extern "C" __global__ void ended(const int* x, int* out) {
    int t = threadIdx.x, v = x[t];
    if (v < -900) { out[t] = 1; return; }
    if (v & 1) { if (v > 900) { out[t] = 2; return; } out[t] = __reduce_add_sync(FULL, v); }
    else out[t] = __reduce_add_sync(FULL, v) + 1;
}
__device__ __noinline__ int next(int v) { return __shfl_sync(FULL, v, (threadIdx.x + 1) & 31); }
__device__ __noinline__ int swap(volatile int* s, int v) {
    int t = threadIdx.x & 31; s[t] = v; __syncwarp(); int other = s[t ^ 16]; __syncwarp(); return other;
}
extern "C" __global__ void called(int* out) {
    __shared__ volatile int s[32];
    int t = threadIdx.x, v = t * 3;
    if (t < 16) { v = next(v) + 1; v = swap(s, v) * 2; } else { v = next(v * 2) + 5; v = swap(s, v); }
    if (t & 1) v = next(v + 1000); else v = -next(v);
    out[t] = v;
}
__device__ __noinline__ int down(int depth, int v, unsigned mask) {
    if (depth == 0) return v;
    v = __shfl_sync(mask, v, (threadIdx.x + 1) & 31) + depth;
    return down(depth - 1, v, mask) * 2 - v;
}
extern "C" __global__ void recursive(int apart, int* out) {
    int t = threadIdx.x;
    if (!apart) out[t] = down(4, t, FULL);
    else if (t < 16) out[t] = down(4, t, FULL); else out[t] = down(3, t, FULL);
}
extern "C" __global__ void never(int* out) {
    int t = threadIdx.x;
    if (t < 5) out[t] = __shfl_sync(0x3f, out[1], 5);          // lane 5 does not come: it waits for lane 0 elsewhere
    else if (t == 5) out[t] = __ballot_sync(0x21, out[2]);
    else if (out[0] == 7) out[t] = __shfl_sync(0x3f, out[3], 5);
}
// an exchange between lanes of which some wait for a flag that another warp sets afterwards
extern "C" __global__ void waits(int* flag, int* out) {
    int t = threadIdx.x, v = t;
    if (t >= 32) { if (t == 40) { while (atomicAdd(flag, 0) == 0) { } atomicExch(flag + 1, 9); } return; }
    if (t & 1) { if (t == 7) { atomicExch(flag, 1); while ((v = atomicAdd(flag + 1, 0)) == 0) { } } out[t] = __reduce_add_sync(FULL, v); }
    else out[t] = __reduce_add_sync(FULL, v) + 1000;
}"""


@pytest.fixture(scope="module")
def module():
    return rawkern.RawModule(code=CODE)


def match(values: np.ndarray) -> np.ndarray:
    return (values[:, None] == values) @ (1 << LANE.astype(np.int64))


def signed(x) -> np.ndarray:
    return np.asarray(x).astype(np.int64).astype(np.uint32).view(np.int32)


def test_two_ways(device, module):
    x = np.random.default_rng(0).integers(-1000, 1000, 64).astype(np.int32)
    x[32:] = LANE * 5 % 7
    out = poison(32 * 12, device)
    module.ways[1, 32](torch.from_numpy(x).to(device), poison(32, device), out)
    v = x[:32].astype(np.int64)
    add = np.where(v & 1, 100, 0)
    given, down = v + add, np.where(LANE % 8 < 1, LANE + 7, LANE)
    want = [
        given[(LANE + 5) % 32], v[np.where(LANE % 16 < 3, LANE, LANE - 3)] + add, given[down], v[LANE ^ 9],
        np.full(32, (v > add) @ (1 << LANE)), np.full(32, 2 * (v > 995).any() + (v > -800).all()),
        match(v & 7), match(v & 3), np.full(32, 2 * (len(set(v | 2047)) == 1)), np.full(32, given.sum()),
        np.full(32, v.min()), np.full(32, np.bitwise_xor.reduce(v)),
    ]  # fmt: skip
    np.testing.assert_array_equal(out.cpu().numpy().reshape(32, 12), signed(want).T)


def test_groups_in_a_loop(device, module):
    out = poison(32, device)
    module.groups[1, 32](out)
    v, g = LANE * LANE, LANE // 8
    for r in range(7):
        odd = LANE & 1
        given = v + 3 * odd
        moved = given[g * 8 + (LANE + 3) % 8]
        goes = (r <= g * 2) & ~((g == 2) & (r > 3))
        v = np.where(goes, np.where(odd, moved + r, (moved - r) ^ 1), v)
    np.testing.assert_array_equal(out.cpu(), v)


def test_rounds_of_a_loop(device, module):
    out = poison(32, device)
    module.rounds[1, 32](out)
    times = [[r for r in range(9) if (r * 7 + t * t) % 3 == 0][:2] + [100] * 3 for t in LANE]
    v = LANE * 11
    for k in range(3):
        v = np.roll(v, -1) + [row[k] for row in times]
    np.testing.assert_array_equal(out.cpu(), v)


def test_ended_lanes(device, module):
    x = np.random.default_rng(1).integers(-1000, 1000, 32).astype(np.int32)
    x[[3, 9]], x[[5, 31]] = -950, 931
    out = poison(32, device)
    module.ended[1, 32](torch.from_numpy(x).to(device), out)
    gone = (x < -900) | ((x & 1 == 1) & (x > 900))
    want = np.where(x < -900, 1, np.where(gone, 2, x[~gone].sum() + (x & 1 == 0)))
    np.testing.assert_array_equal(out.cpu(), want)


def test_inside_functions(device, module):
    out = poison(32, device)
    module.called[1, 32](out)
    v = np.where(LANE < 16, LANE * 3, LANE * 6)
    v = np.roll(v, -1) + np.where(LANE < 16, 1, 5)
    v = v[LANE ^ 16] * np.where(LANE < 16, 2, 1)
    v = np.roll(v + 1000 * (LANE & 1), -1)
    np.testing.assert_array_equal(out.cpu(), np.where(LANE & 1, v, -v))


def test_waiting_for_another_warp_before_the_exchange(device, module):
    out = poison(32, device)
    module.waits[1, 64](torch.zeros(2, dtype=torch.int32, device=device), out)
    np.testing.assert_array_equal(out.cpu(), LANE.sum() + 2 + 1000 * (LANE & 1 == 0))


@pytest.mark.rawkern_unchecked("tests an error of the usual build, whose functions are not inlined alike")
def test_inside_recursion(module):
    """All lanes together; a call of part of a warp that names others is an error, as those may be anywhere."""
    out = poison(32, "cpu")
    module.recursive[1, 32](0, out)

    def down(depth: int, v: np.ndarray) -> np.ndarray:
        if depth == 0:
            return v
        v = np.roll(v, -1) + depth
        return down(depth - 1, v) * 2 - v

    np.testing.assert_array_equal(out, down(4, LANE))
    with pytest.raises(LaunchError, match=r"\.py:\d+, line \d+: thread \(\d+,0,0\) .* in a recursive function"):
        module.recursive[1, 32](1, out)


@pytest.mark.rawkern_unchecked("of the usual build's own words")
def test_lanes_that_never_come(module):
    with pytest.raises(
        LaunchError, match=r"\.py:\d+, line \d+: thread \(0,0,0\) .* lanes of its warp that never arrive"
    ):
        module.never[1, 32](poison(32, "cpu"))


# When a function must provide for it ----------------------------------------------------------------------------------------


def free_running(body: str) -> bool:
    """Whether a kernel, whose registers %p1 and %r1 differ between lanes, lets lanes wait anywhere."""
    text = f""".version 8.7
.target sm_80
.entry k(.param .u64 k_param_0) {{
    .reg .pred %p<9>; .reg .b32 %r<20>; .reg .b64 %rd<9>;
    ld.param.u64 %rd1, [k_param_0];
    mov.u32 %r1, %tid.x;
    and.b32 %r2, %r1, 5;
    setp.eq.s32 %p1, %r2, 1;
    {body}
    st.global.u32 [%rd1], %r3;
    ret;
}}"""
    ptx = parse(text)
    return plan.make_plan(ptx, "k", lay_out_globals(ptx), "line").analyses["k"].free_running


SHUFFLE = "shfl.sync.idx.b32 %r3|%p2, %r1, 0, 31, -1;"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (SHUFFLE, False),
        (f"@%p1 bra A; mov.u32 %r4, 1; A: {SHUFFLE}", False),  # they have met before
        (f"@%p1 bra A; {SHUFFLE} A: mov.u32 %r4, 1;", False),  # those who skip it have no other to come to
        (f"@%p1 bra A; {SHUFFLE} A: bar.sync 0; {SHUFFLE}", False),  # nor one before a barrier
        (f"@%p1 bra A; {SHUFFLE} A: mov.u32 %r4, 1; {SHUFFLE}", True),
        (f"@%p1 bra A; {SHUFFLE} bra B; A: {SHUFFLE} B: mov.u32 %r4, 1;", True),
        (f"@%p1 bra A; {SHUFFLE.replace('-1', '1')} bra B; A: {SHUFFLE.replace('-1', '2')} B: mov.u32 %r4, 1;", False),
        (f"@%p1 bra A; {SHUFFLE.replace('-1', '%r2')} bra B; A: {SHUFFLE} B: mov.u32 %r4, 1;", True),
        (f"@%p1 bra A; {SHUFFLE} bra B; A: {SHUFFLE.replace('idx', 'bfly')} B: mov.u32 %r4, 1;", False),
        (f"L: {SHUFFLE} @%p1 bra L;", False),  # a loop that lanes leave one by one
        (f"L: @%p1 bra A; {SHUFFLE} A: add.s32 %r5, %r5, 1; setp.lt.s32 %p3, %r5, 9; @%p3 bra L;", True),
        ("@%p1 bra A; bar.warp.sync -1; bra B; A: bar.warp.sync -1; B: mov.u32 %r4, 1;", True),
        ("@%p1 bra A; bar.sync 0; A: mov.u32 %r4, 1;", False),
        ("@%p1 bra A; bar.sync 0; bra B; A: bar.sync 0; B: mov.u32 %r4, 1;", True),
        ("@%p1 bra A; bar.sync 0; A: mov.u32 %r4, 1; bar.sync 0;", True),
        (
            "mul.wide.u32 %rd2, %r1, 4; add.s64 %rd3, %rd1, %rd2; L: ld.volatile.global.u32 %r4, [%rd3]; setp.eq.s32 %p3, %r4, 0; @%p3 bra L;",
            True,
        ),  # waits for a change
        ("L: ld.volatile.global.u32 %r4, [%rd1]; add.s32 %r5, %r5, %r4; @%p1 bra L;", False),  # goes by its own count
        ("L: membar.cta; ld.global.u32 %r4, [%rd2]; setp.eq.s32 %p1, %r4, 0; @%p1 bra L;", True),
        (
            "L: membar.cta; ld.global.nc.u32 %r4, [%rd2]; setp.eq.s32 %p1, %r4, 0; @%p1 bra L;",
            False,
        ),  # it is never written
        ("L: atom.global.exch.b32 %r4, [%rd1], 1; add.s32 %r5, %r4, 1; setp.ne.s32 %p3, %r5, 1; @%p3 bra L;", True),
    ],
)
def test_when_lanes_can_meet_on_different_ways(body, expected):
    assert free_running(body) is expected
