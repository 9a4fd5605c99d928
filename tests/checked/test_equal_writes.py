"""Writes of equal values to one place are not a race, whoever makes them; writes that differ in any byte are."""

from __future__ import annotations

import random

import pytest
import torch

import rawkern

I32 = torch.int32


def ints(values: list[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=I32)


def finding(kernel: rawkern.RawKernel, *args, grid: int = 1, block: int = 32, **rules) -> str:
    """Type and line of what a checked launch finds."""
    try:
        with rawkern.check(**rules):
            kernel[grid, block](*args)
    except rawkern.CheckError as error:
        return f"{type(error).__name__} {error.reports[0].line}"
    return ""


# -- one store --------------------------------------------------------------------------------------------------------
SCATTER = r"""
using uchar = unsigned char;
__device__ void put(uchar& o, int v) { o = v; }
__device__ void put(short& o, int v) { o = v; }
__device__ void put(int& o, int v) { o = v; }
__device__ void put(double& o, int v) { o = v; }
__device__ void put(uchar4& o, int v) { o = make_uchar4(7, 8, v, 9); }
__device__ void put(int2& o, int v) { o = make_int2(3, v); }
__device__ void put(int4& o, int v) { o = make_int4(3, 4, 5, v << 24); }
__device__ void put(double2& o, int v) { o = make_double2(1, v); }
template <class T> __global__ void global_store(T* o, const int* at, const int* v) {
    put(o[at[threadIdx.x]], v[threadIdx.x]);
}
template <class T> __global__ void shared_store(T* o, const int* at, const int* v) {
    __shared__ T s[64];
    put(s[at[threadIdx.x]], v[threadIdx.x]);
    __syncthreads();
    o[threadIdx.x] = s[at[threadIdx.x]];
}
template <class T> __global__ void clamped_store(T* o, const int* v, int top) {
    __shared__ T s[64];
    put(s[min(threadIdx.x / 8, top) * 8 + threadIdx.x % 8], v[threadIdx.x]);
    __syncthreads();
    o[threadIdx.x] = s[threadIdx.x % 8];
}"""
TYPES = {
    "uchar": (torch.uint8, 1), "short": (torch.int16, 1), "int": (I32, 1), "double": (torch.float64, 1),
    "uchar4": (torch.uint8, 4), "int2": (I32, 2), "int4": (I32, 4), "double2": (torch.float64, 2),
}  # fmt: skip


@pytest.fixture(scope="module")
def scatter():
    return rawkern.RawModule(code=SCATTER)


@pytest.mark.parametrize("ty", TYPES)
@pytest.mark.parametrize("space", ["global", "shared"])
def test_threads_that_meet_at_random(scatter, space, ty):
    """Places by chance, and values that mostly or always belong to the place."""
    rng, kernel, outcomes = random.Random(f"{space} {ty}"), scatter.get_function(f"{space}_store<{ty}>"), set()
    dtype, parts = TYPES[ty]
    for block in (32, 64):
        for places, strays in ((64, 0.1), (64, 0.0), (40, 0.03), (8, 0.0), (2, 0.0), (8, 0.5)) * 2:
            at = [rng.randrange(places) for _ in range(block)]
            v = [place + 1 if rng.random() >= strays else rng.randrange(1, 99) for place in at]
            differ = any(at[i] == at[j] and v[i] != v[j] for i in range(block) for j in range(i))
            found = finding(kernel, torch.zeros(64 * parts, dtype=dtype), ints(at), ints(v), block=block)
            if dtype.itemsize * parts >= 4 or not differ:  # of values that share a word the last is known
                assert found.startswith("RaceError" if differ else "") and bool(found) == differ, (at, v)
            outcomes.add(differ)
            again = finding(
                kernel, torch.zeros(64 * parts, dtype=dtype), ints(at), ints(v), block=block, equal_writes="race"
            )
            if dtype.itemsize * parts >= 4 or len({*at}) == block:
                assert again.startswith("RaceError" if len({*at}) < block else "") and bool(again) == (
                    len({*at}) < block
                )
    assert outcomes == {True, False}


@pytest.mark.parametrize("ty", TYPES)
@pytest.mark.parametrize("block", [32, 64])
def test_rows_clamped_to_the_last(scatter, ty, block):
    """The addresses are even in each row, which the checker follows as vectors."""
    kernel, (dtype, parts) = scatter.get_function(f"clamped_store<{ty}>"), TYPES[ty]
    o, columns = torch.zeros(64 * parts, dtype=dtype), [t % 8 + 1 for t in range(block)]
    for top in (0, 1, 2):
        assert finding(kernel, o, ints(columns), top, block=block) == ""
    assert finding(kernel, o, ints([t + 1 for t in range(block)]), 7, block=block) == ""
    for stray in (block - 1, block - 8, 17):
        values = ints(columns)
        values[stray] += 50
        found = finding(kernel, o, values, 1, block=block)
        assert found.startswith("RaceError ") or dtype.itemsize * parts < 4, stray


# -- several stores ---------------------------------------------------------------------------------------------------
TURNS = r"""
__device__ void wait(unsigned* turn, unsigned n) { while (atomicAdd(turn, 0) != n) { } }
// an atomic without a fence orders nothing else
#define FIRST if (t == 0)
#define SECOND atomicAdd(turn, t == 0); if (t == 32) wait(turn, 1); if (t == 32)
#define THIRD atomicAdd(turn, t == 32); if (t == 0) wait(turn, 2); if (t == 0)
__global__ void k(unsigned* turn, char* bytes, short* halves, int* words) {
    unsigned t = threadIdx.x;
    %s
}"""


@pytest.mark.parametrize(
    "body, found",
    [
        ("FIRST words[0] = 1; SECOND words[0] = 1;", ""),
        ("FIRST words[0] = 1; SECOND words[0] = 2;", "RaceError 9"),
        ("FIRST words[0] = 1; SECOND words[0] = 1; THIRD words[0] = 1;", ""),
        ("FIRST words[0] = 1; SECOND words[0] = 1;\nTHIRD words[0] = 2;", "RaceError 10"),
        ("FIRST words[0] = 1; SECOND words[0] = 1; __syncthreads(); THIRD words[0] = 2;", ""),
        ("FIRST words[0] = 1; SECOND words[1] = words[0];", "RaceError 9"),
        ("FIRST words[1] = words[0]; SECOND words[0] = 0;", "RaceError 9"),
        ("FIRST words[1] = words[0]; SECOND words[0] = 5;", "RaceError 9"),
        ("FIRST words[0] = 0x01010101; SECOND bytes[2] = 1;", ""),
        ("FIRST words[0] = 0x01010101; SECOND bytes[2] = 2;", "RaceError 9"),
        ("FIRST bytes[2] = 1; SECOND words[0] = 0x10000;", ""),
        ("FIRST bytes[2] = 1; SECOND words[0] = 0x05010505;", ""),
        ("FIRST bytes[2] = 1; SECOND words[0] = 0x05010505;\nTHIRD bytes[1] = 6;", "RaceError 10"),
        ("FIRST bytes[2] = 1; SECOND words[0] = 0x20000;", "RaceError 9"),
        ("FIRST { bytes[0] = 1; bytes[1] = 1; } SECOND bytes[0] = 2;", "RaceError 9"),
        ("FIRST words[1] = bytes[3]; SECOND words[0] = 0x00040000;", "RaceError 9"),
        ("FIRST words[1] = bytes[2]; SECOND words[0] = 0x00040000;", "RaceError 9"),
        ("FIRST { bytes[2] = 1; words[1] = bytes[3]; } SECOND words[0] = 0x01010000;", "RaceError 9"),
        ("FIRST halves[1] = -3; SECOND ((short2*)words)[0] = make_short2(9, -3);", ""),
        ("FIRST halves[1] = -3; SECOND ((short2*)words)[0] = make_short2(-3, 9);", "RaceError 9"),
        ("FIRST words[3] = 8; SECOND ((int4*)words)[0] = make_int4(5, 6, 7, 8);", ""),
        ("FIRST words[3] = 8; SECOND ((int4*)words)[0] = make_int4(8, 8, 8, 7);", "RaceError 9"),
        ("FIRST ((double*)words)[1] = 1.5; SECOND ((double2*)words)[0] = make_double2(0, 1.5);", ""),
        ("FIRST ((double*)words)[1] = 1.5; SECOND ((double2*)words)[0] = make_double2(1.5, -1.5);", "RaceError 9"),
    ],
)
def test_threads_in_turn(body, found):
    memory = torch.zeros(8, dtype=I32)
    kernel = rawkern.RawKernel(TURNS.replace("__global__", 'extern "C" __global__') % body)
    views = (memory.view(torch.int8), memory.view(torch.int16), memory)
    assert finding(kernel, torch.zeros(1, dtype=torch.uint32), *views, block=64) == found


def test_a_lane_that_wrote_before_and_does_not_now():
    code = r"""
extern "C" __global__ void k(int* o, int a, int b) {
    #pragma unroll 1
    for (int i = 0; i < 2; i++)
        if (threadIdx.x == (i ? b : a)) o[0] = i;
}"""
    kernel, o = rawkern.RawKernel(code), ints([9])
    assert finding(kernel, o, 7, 5) == "RaceError 5"
    assert finding(kernel, o, 5, 7) == "RaceError 5"
    assert finding(kernel, o, 5, 5) == ""


def test_bytes_set_to_what_was_there_are_set():
    code = r"""
extern "C" __global__ void k(int* o) {
    __shared__ int s[1];
    if (blockIdx.x == 0 && threadIdx.x == 0) s[0] = 0x70007;
    if (blockIdx.x == 1 && threadIdx.x == 0) ((short*)s)[0] = 7;
    if (blockIdx.x == 1 && threadIdx.x == 32) s[0] = 0x70007;
    __syncthreads();
    o[blockIdx.x] = ((short*)s)[1];
}"""
    o = ints([0, 0])
    assert finding(rawkern.RawKernel(code), o, grid=2, block=64) == ""
    assert o.tolist() == [7, 7]


# -- matrices ---------------------------------------------------------------------------------------------------------
MATRICES = r"""
#include <mma.h>
using namespace nvcuda;
template <class C, class L> __device__ void store(C* s, int row, float v, L layout) {
    wmma::fragment<wmma::accumulator, 16, 16, 16, C> f;
    wmma::fill_fragment(f, C(v));
    wmma::store_matrix_sync(s + row * 16, f, 16, layout);  // line 7
}
extern "C" __global__ void tiles(float* o, float v, int row) {
    __shared__ float s[32 * 16];
    __shared__ half h[32 * 16];
    int w = threadIdx.x / 32;
    store(s, w * row, w ? v : 1, wmma::mem_row_major);
    store(h, w * row, w ? v : 1, wmma::mem_row_major);
    __syncthreads();
    store(s, w * row, w ? v : 1, wmma::mem_col_major);
    __syncthreads();
    o[threadIdx.x] = s[threadIdx.x] + float(h[threadIdx.x]);
}
extern "C" __global__ void rows(int* o, int top, int step) {
    __shared__ __align__(16) int s[32 * 4];
    int t = threadIdx.x;
    unsigned at = (unsigned)__cvta_generic_to_shared(s + min(t, top) * 4), r = 5 + step * (t / 4 % 8);
    asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};" :: "r"(at), "r"(r), "r"(r));  // line 24
    __syncwarp();
    o[t] = s[t % 4];
}
extern "C" __global__ void columns(int* o, int top, int step) {
    __shared__ __align__(16) int s[32 * 4];
    int t = threadIdx.x;
    unsigned at = (unsigned)__cvta_generic_to_shared(s + min(t, top) * 4), r = 5 * 0x10001 + step * (t % 4);
    asm volatile("stmatrix.sync.aligned.m8n8.x1.trans.shared.b16 [%0], {%1};" :: "r"(at), "r"(r));  // line 32
    __syncwarp();
    o[t] = s[t % 4];
}"""


@pytest.fixture(scope="module")
def matrices():
    return rawkern.RawModule(code=MATRICES)


def test_tiles_that_warps_store_to_one_place(matrices):
    o = torch.zeros(64)
    assert finding(matrices.tiles, o, 1.0, 0, block=64) == ""
    assert finding(matrices.tiles, o, 2.0, 16, block=64) == ""
    assert finding(matrices.tiles, o, 2.0, 0, block=64) == "RaceError 7"
    assert finding(matrices.tiles, o, 2.0, 15, block=64) == "RaceError 7"


def test_rows_that_lanes_store_to_one_place(matrices):
    o = torch.zeros(32, dtype=I32)
    assert finding(matrices.rows, o, 15, 1) == ""
    assert finding(matrices.rows, o, 3, 0) == ""
    assert finding(matrices.rows, o, 14, 1) == "RaceError 24"
    assert finding(matrices.columns, o, 7, 1) == ""
    assert finding(matrices.columns, o, 3, 0) == ""
    assert finding(matrices.columns, o, 6, 1) == "RaceError 32"
