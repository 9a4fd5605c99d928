"""Rows of matrices that are not set: reported where what comes of them is used, lane by lane as PTX lays them out."""

from __future__ import annotations

import itertools
import random

import pytest
import torch

import rawkern

LANES = range(32)


def uninitialized(kernel: rawkern.RawKernel, *args) -> str:
    """What a checked launch of one warp says of memory that is not set."""
    try:
        with rawkern.check():
            kernel[1, 32](*args)
    except rawkern.UninitializedReadError as error:
        return error.reports[0].message
    return ""


# -- ldmatrix ---------------------------------------------------------------------------------------------------------
ROWS = (
    r"""
#define SHARED(p) (unsigned)__cvta_generic_to_shared(p)
// a warp sets the rows in `set` of four 8 x 8 matrices; one lane uses one register
#define KERNEL(NAME, FORM, REGS) \
extern "C" __global__ void NAME(unsigned* o, unsigned set, int lane, int which) { \
    __shared__ __align__(16) unsigned s[128]; \
    int t = threadIdx.x; \
    if (set >> t & 1) for (int i = 0; i < 4; i++) s[t * 4 + i] = t; \
    __syncwarp(); \
    unsigned r[4] = {0, 0, 0, 0}; \
    asm volatile("ldmatrix.sync.aligned.m8n8." FORM ".shared.b16 " REGS ", [%4];" \
                 : "+r"(r[0]), "+r"(r[1]), "+r"(r[2]), "+r"(r[3]) : "r"(SHARED(s + t * 4))); \
    unsigned v = which == 0 ? r[0] : which == 1 ? r[1] : which == 2 ? r[2] : r[3]; \
    if (t == lane) o[0] = v; \
}
"""
    + "\n".join(
        f'KERNEL(x{n}{trans}, "x{n}{"." + trans if trans else ""}", "{{{", ".join(f"%{k}" for k in range(n))}}}")'
        for n in (1, 2, 4)
        for trans in ("", "trans")
    )
    + r"""
extern "C" __global__ void uses(unsigned* o, int how) {
    __shared__ __align__(16) unsigned s[32];
    int t = threadIdx.x;
    if (t < 7) for (int i = 0; i < 4; i++) s[t * 4 + i] = 0;
    __syncwarp();
    unsigned r, sum;
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(r) : "r"(SHARED(s + t % 8 * 4)));
    sum = r + t;
    unsigned moved = __shfl_sync(~0u, sum, t & 15);
    if (how == 1) o[t] = r;
    if (how == 2) o[t] = sum;
    if (how == 3 && r) o[t] = 1;
    if (how == 4) o[r & 1] = 1;
    if (how == 5) o[r] = 1;
    if (how == 6) atomicAdd(o, r);
    if (how == 7) o[t] = moved;
    if (how == 8 && t < 28) o[t] = sum;
}"""
)


@pytest.fixture(scope="module")
def rows():
    return rawkern.RawModule(code=ROWS)


@pytest.mark.parametrize("trans", ["", "trans"])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_a_row_reaches_the_lanes_that_hold_it(rows, count, trans):
    """Lane L holds elements 2 * (L % 4) and the next of row L / 4; transposed, element L / 4 of two rows."""
    kernel, o, rng, outcomes = (
        rows.get_function(f"x{count}{trans}"),
        torch.zeros(1, dtype=torch.uint32),
        random.Random(count),
        set(),
    )
    for which in range(count):
        given = rng.getrandbits(32) & rng.getrandbits(32)
        for lane in LANES if count == 1 else rng.sample(LANES, 12):
            own = [8 * which + 2 * (lane % 4) + k for k in (0, 1)] if trans else [8 * which + lane // 4]
            wanted = not any(given >> row & 1 for row in own)
            found = uninitialized(kernel, o, given, lane, which)
            assert bool(found) == wanted, (lane, which, hex(given))
            if wanted:
                assert "s[" in found and "no thread of the block has written" in found
            outcomes.add(wanted)
    assert outcomes == {True, False}


@pytest.mark.parametrize("how, found", [(0, 0), (1, 1), (2, 1), (3, 1), (4, 1), (5, 1), (6, 1), (7, 0), (8, 0)])
def test_what_is_a_use(rows, how, found):
    """As for plain loads: what bit operations put together counts as set."""
    assert bool(uninitialized(rows.uses, torch.zeros(32, dtype=torch.uint32), how)) == bool(found)


# -- products ---------------------------------------------------------------------------------------------------------
MMA = r"""
#define SHARED(p) (unsigned)__cvta_generic_to_shared(p)
// rows of A, columns of B and rows of C that are set; the warp uses one element of D
#define BEGIN \
    __shared__ __align__(16) unsigned sa[4 * 32], sb[4 * 16]; \
    __shared__ float sc[128]; \
    int t = threadIdx.x; \
    if (a >> t & 1) for (int i = 0; i < 4; i++) sa[t * 4 + i] = 0x3c003c00; \
    if (t < 16 && b >> t & 1) for (int i = 0; i < 4; i++) sb[t * 4 + i] = 0x3c003c00; \
    for (int i = t; i < 128; i += 32) if (c >> (i / 8) & 1) sc[i] = i; \
    __syncwarp(); \
    unsigned x[4], y[2]; \
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3},[%4];" \
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(SHARED(sa + t * 4))); \
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1},[%2];" : "=r"(y[0]), "=r"(y[1]) : "r"(SHARED(sb + t % 16 * 4)));
extern "C" __global__ void wide(float* o, unsigned a, unsigned b, unsigned c, int lane, int which) {
    BEGIN
    float d[4];
    for (int i = 0; i < 4; i++) d[i] = sc[(t / 4 + i / 2 * 8) * 8 + t % 4 * 2 + i % 2];
    for (int k = 0; k < 2; k++)
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]));
    float v = which == 0 ? d[0] : which == 1 ? d[1] : which == 2 ? d[2] : d[3];
    if (t == lane) o[0] = v;
}
extern "C" __global__ void narrow(unsigned* o, unsigned a, unsigned b, unsigned c, int lane, int which) {
    BEGIN
    unsigned d[2] = {0, 0};
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%0,%1},{%2,%3,%4,%5},{%6,%7},{%0,%1};"
                 : "+r"(d[0]), "+r"(d[1]) : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]));
    if (t == lane) o[0] = which ? d[1] : d[0];
}"""


@pytest.fixture(scope="module")
def products():
    return rawkern.RawModule(code=MMA)


def some_rows(rng: random.Random, count: int) -> int:
    """Most rows, as a mask."""
    return sum(1 << k for k in range(count) if rng.random() < 0.75)


def is_set(a: int, b: int, c: int, row: int, column: int) -> bool:
    """Whether an element of D is, given rows of A's four 8 x 8 matrices, columns of B's two, and rows of C."""
    first = 8 * (row // 8) + row % 8  # the matrices of the upper rows are x[0] and x[2]
    return bool(a >> first & 1 and a >> (16 + first) & 1 and b >> column & 1 and b >> (8 + column) & 1 and c >> row & 1)


@pytest.mark.parametrize("name", ["wide", "narrow"])
def test_products_of_unset_rows_and_columns(products, name):
    kernel, rng, outcomes = products.get_function(name), random.Random(name), set()
    o = torch.zeros(1, dtype=torch.float32 if name == "wide" else torch.uint32)
    for which in range(4 if name == "wide" else 2):
        a, b = some_rows(rng, 32), some_rows(rng, 16)
        c = some_rows(rng, 16) if name == "wide" else 0xFFFF
        for lane in rng.sample(LANES, 16):
            row, pair = lane // 4, [lane % 4 * 2, lane % 4 * 2 + 1]
            if name == "wide":
                row, pair = row + which // 2 * 8, [pair[which % 2]]
            else:
                row += which * 8
            wanted = not any(is_set(a, b, c, row, column) for column in pair)
            assert bool(uninitialized(kernel, o, a, b, c, lane, which)) == wanted, (lane, which, hex(a), hex(b), hex(c))
            outcomes.add(wanted)
    assert outcomes == {True, False}


# -- wmma, and stores -------------------------------------------------------------------------------------------------
WMMA = r"""
#include <mma.h>
#include <cuda_bf16.h>
using namespace nvcuda;
// A's and B's lines in `a` and `b` are set: rows or columns, as they lie in memory
template <class T, class D, class LA, class LB>
__global__ void product(D* o, unsigned a, unsigned b, int at, int columns) {
    __shared__ __align__(32) T sa[256], sb[256];
    __shared__ __align__(32) D sd[256];
    for (int i = threadIdx.x; i < 256; i += 32) {
        if (a >> (i / 16) & 1) sa[i] = T(i % 7);
        if (b >> (i / 16) & 1) sb[i] = T(i % 5);
    }
    __syncwarp();
    wmma::fragment<wmma::matrix_a, 16, 16, 16, T, LA> fa;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, T, LB> fb;
    wmma::fragment<wmma::accumulator, 16, 16, 16, D> fd;
    wmma::fill_fragment(fd, D(0));
    wmma::load_matrix_sync(fa, sa, 16);
    wmma::load_matrix_sync(fb, sb, 16);
    wmma::mma_sync(fd, fa, fb, fd);
    wmma::store_matrix_sync(sd, fd, 16, columns ? wmma::mem_col_major : wmma::mem_row_major);
    __syncwarp();
    if (threadIdx.x == 0) o[0] = sd[at];
}
extern "C" __global__ void accumulators(float* o, unsigned set, int at) {
    __shared__ __align__(32) float s[256];
    for (int i = threadIdx.x; i < 256; i += 32) if (set >> (i / 16) & 1) s[i] = i;
    __syncwarp();
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> f;
    wmma::load_matrix_sync(f, s, 16, wmma::mem_row_major);
    wmma::store_matrix_sync(o + at, f, 16, wmma::mem_col_major);  // line 35
}
extern "C" __global__ void transposed(unsigned short* o, unsigned set, int at) {
    __shared__ __align__(16) unsigned short s[64], d[64];
    int t = threadIdx.x;
    if (t < 8 && set >> t & 1) for (int i = 0; i < 8; i++) s[t * 8 + i] = i;
    __syncwarp();
    unsigned r;
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16{%0},[%1];"
                 : "=r"(r) : "r"((unsigned)__cvta_generic_to_shared(s + t % 8 * 8)));
    asm volatile("stmatrix.sync.aligned.m8n8.x1.trans.shared.b16[%0],{%1};"
                 :: "r"((unsigned)__cvta_generic_to_shared(d + t % 8 * 8)), "r"(r));
    __syncwarp();
    if (t == 0) o[0] = d[at];
}
extern "C" __global__ void turned(unsigned* o, unsigned set, int lane) {
    __shared__ unsigned s[32];
    int t = threadIdx.x;
    if (set >> t & 1) s[t] = t;
    __syncwarp();
    unsigned r = s[t], d;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0,%1;" : "=r"(d) : "r"(r));
    if (t == lane) o[0] = d;
}"""
ROW, COLUMN = "wmma::row_major", "wmma::col_major"
KINDS = {
    "half": ("half", torch.float16),
    "__nv_bfloat16": ("float", torch.float32),
    "signed char": ("int", torch.int32),
}


@pytest.fixture(scope="module")
def wmma():
    return rawkern.RawModule(code=WMMA)


@pytest.mark.parametrize("ty", KINDS)
@pytest.mark.parametrize("a_rows, b_rows", list(itertools.product([True, False], repeat=2)))
def test_fragments(wmma, ty, a_rows, b_rows):
    """Where lines of memory run along k, a lane holds parts of several, and all must lack for its register to lack."""
    result, dtype = KINDS[ty]
    layouts = ", ".join(ROW if rows else COLUMN for rows in (a_rows, b_rows))
    kernel = wmma.get_function(f"product<{ty}, {result}, {layouts}>")
    per, rng, outcomes = 4 if ty == "signed char" else 2, random.Random(f"{ty}{layouts}"), set()

    def lacks(lines: int, across: bool, index: int) -> bool:
        """Whether a register with elements of a row of A or column of B lacks: `across`, its lines run along k."""
        if across:
            return any(not lines >> k & (1 << per) - 1 for k in range(0, 16, per))
        return not lines >> index & 1

    for _ in range(12):
        along = [0xFFFF, 0xFFFF, 0xBBBB, 0xFFF0, 0xF0FF]
        a = some_rows(rng, 16) if a_rows else rng.choice(along)
        b = some_rows(rng, 16) if not b_rows else rng.choice(along)
        at, columns = rng.randrange(256), rng.randrange(2)
        row, column = (at % 16, at // 16) if columns else (at // 16, at % 16)
        pair = (column & ~1, column | 1) if ty == "half" else (column,)  # two elements of D in a register
        wanted = lacks(a, not a_rows, row) or all(lacks(b, b_rows, one) for one in pair)
        found = uninitialized(kernel, torch.zeros(1, dtype=dtype), a, b, at, columns)
        assert bool(found) == wanted, (hex(a), hex(b), row, column)
        outcomes.add(wanted)
    assert outcomes == {True, False}


def test_accumulators_that_are_stored(wmma):
    o = torch.zeros(256)
    assert uninitialized(wmma.accumulators, o, 0xFFFF, 0) == ""
    assert "s[" in uninitialized(wmma.accumulators, o, 0xFFDF, 0)


def test_matrices_that_are_moved_in_shared_memory_stay_unset(wmma):
    o = torch.zeros(1, dtype=torch.uint16)
    for at in range(64):
        found = uninitialized(wmma.transposed, o, 0b11011110, at)
        assert bool(found) == (at % 8 in (0, 5)), at


def test_transposed_in_registers(wmma):
    """Lane L gets element L / 4 of rows 2 * (L % 4) and the next, from the lanes that hold them."""
    rng, o, outcomes = random.Random(9), torch.zeros(1, dtype=torch.uint32), set()
    for lane in LANES:
        given = rng.getrandbits(32)
        own = [4 * (2 * (lane % 4) + k) + lane // 4 // 2 for k in (0, 1)]
        wanted = not any(given >> source & 1 for source in own)
        assert bool(uninitialized(wmma.turned, o, given, lane)) == wanted, (lane, hex(given))
        outcomes.add(wanted)
    assert outcomes == {True, False}
