"""Pipelines of asynchronous copies: each mistake in the waits, stages and barriers beside one that is right."""

from __future__ import annotations

import contextlib

import pytest
import torch

import rawkern

PIPELINE = r"""
template <int BYTES> __device__ void copy(void* to, const void* from) {
    unsigned at = (unsigned)__cvta_generic_to_shared(to);
    if (BYTES == 16) asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(at), "l"(from) : "memory");
    else asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"(at), "l"(from) : "memory");
}
#define COMMIT asm volatile("cp.async.commit_group;" ::: "memory")

// Each round copies the values of the one AHEAD to one of STAGES, and waits till PENDING groups are left (-1: not at
// all); BARRIER: it ends with one.
template <int BYTES, int STAGES, int AHEAD, int PENDING, bool BARRIER>
__global__ void pipeline(const int* x, int* y, int rounds) {
    constexpr int N = BYTES / 4;
    __shared__ __align__(16) int s[STAGES][64 * N];
    int t = threadIdx.x, sum = 0;
    for (int r = 0; r < AHEAD; r++) { copy<BYTES>(&s[r % STAGES][t * N], &x[(64 * r + t) * N]); COMMIT; }
    for (int r = 0; r < rounds; r++) {
        int next = r + AHEAD;
        if (next < rounds) copy<BYTES>(&s[next % STAGES][t * N], &x[(64 * next + t) * N]);
        COMMIT;
        if (PENDING >= 0) asm volatile("cp.async.wait_group %0;" :: "n"(PENDING < 0 ? 0 : PENDING) : "memory");
        __syncthreads();
        sum += s[r % STAGES][(63 - t) * N];
        if (BARRIER) __syncthreads();
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
    y[t] = sum;
}"""
#: Stages, how far ahead, pending groups, barrier; and what is wrong.
CASES = {
    (2, 1, 1, 1): "", (3, 1, 1, 0): "", (3, 2, 2, 1): "", (3, 2, 0, 1): "", (4, 2, 1, 0): "",
    (2, 1, -1, 1): "no wait", (2, 1, 2, 1): "wrong count", (3, 2, 3, 1): "wrong count",
    (2, 1, 1, 0): "overwritten", (3, 2, 2, 0): "overwritten", (3, 3, 3, 1): "overwritten",
}  # fmt: skip
INSTANCES = {
    (size, *case): f"pipeline<{size}, {', '.join(map(str, case))}>"
    for size in (4, 16)
    for case in CASES
    if size == 4 or case in ((3, 2, 2, 1), (3, 2, 3, 1), (3, 2, 2, 0))
}


@pytest.fixture(scope="module")
def pipelines():
    return rawkern.RawModule(PIPELINE, name_expressions=tuple(INSTANCES.values()))


@pytest.mark.parametrize("case", INSTANCES, ids=lambda c: "_".join(map(str, c)))
def test_pipelines(pipelines, case):
    wrong = CASES[case[1:]]
    x, y = torch.arange(64 * 6 * case[0] // 4, dtype=torch.int32), torch.zeros(64, dtype=torch.int32)
    says = pytest.raises(rawkern.RaceError, match="a wait for the copy") if wrong else contextlib.nullcontext()
    with says, rawkern.check():
        pipelines.get_function(INSTANCES[case])[1, 64](x, y, 6)
    if not wrong:
        assert torch.equal(y, x.view(6, 64, -1)[:, :, 0].sum(0).flip(0).int())


ENDED = r"""
__device__ unsigned place(void* p) { return __cvta_generic_to_shared(p); }
extern "C" __global__ void ended(int last, int reuse, int* out) {
    __shared__ unsigned long long bar;
    int t = threadIdx.x, ok = 0;
    if (t == 0) asm volatile("mbarrier.init.shared.b64 [%0], %1;" :: "r"(place(&bar)), "r"(blockDim.x));
    __syncthreads();
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];" :: "r"(place(&bar)) : "memory");
    while (!ok) asm volatile(
        "{.reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], 0; selp.u32 %0, 1, 0, p;}"
        : "=r"(ok) : "r"(place(&bar)) : "memory");
    if (last) __syncthreads();
    if (t == 0) asm volatile("mbarrier.inval.shared.b64 [%0];" :: "r"(place(&bar)) : "memory");
    if (reuse && t == 0) bar = t;
    out[t] = t;
}"""


@pytest.mark.parametrize(
    ("threads", "last", "reuse", "clean"),
    [(32, 0, 0, True), (32, 0, 1, False), (64, 0, 0, False), (64, 1, 1, True)],
    ids=["own warp", "memory used again", "other warps", "after a barrier"],
)
def test_the_end_of_an_mbarrier(threads, last, reuse, clean):
    """A lane may end a barrier at which lanes of its warp have waited; others, and other uses of the memory, race."""
    with rawkern.check(), contextlib.nullcontext() if clean else pytest.raises(rawkern.errors.RaceError, match="bar"):
        rawkern.RawKernel(ENDED)[1, threads](last, reuse, torch.zeros(threads, dtype=torch.int32))
