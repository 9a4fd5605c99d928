"""Loops that only look at memory until another thread writes it: which they are, what they cost, and that none hangs."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch

import rawkern
from rawkern.compile.programs import compile_program
from rawkern.compile.source import CPU_ARCH, from_text
from rawkern.engines.cpu.analysis.plan import make_plan
from rawkern.engines.cpu.analysis.polling import polling_loops
from rawkern.engines.cpu.runtime import jit

pytestmark = [pytest.mark.usefixtures("optimized"), pytest.mark.timeout(60)]
TEST = (
    'asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], 0; selp.u32 %0, 1, 0, p; }"'
    ' : "=r"(ok) : "r"(place) : "memory");'
)


@pytest.mark.parametrize(
    ("loop", "only_looks"),
    [
        ("while (*(volatile int*)p == 0) { }", True),
        ("while (*(volatile int*)(p + 3) != t) __nanosleep(50);", True),
        ("do { ok = *(volatile int*)p; __threadfence(); } while (ok < t && clock64() > 0);", True),
        (f"do {{ {TEST} }} while (!ok);", True),
        ("while (atomicCAS(p, 0, 1) != 0) { }", False),
        ("while (atomicAdd(p, 0) == 0) { }", False),
        ("while ((ok = ((volatile int*)p)[i]) != t) i = ok;", False),  # along a list
        ("while (*(volatile int*)p == 0) ((volatile int*)p)[1] = t;", False),
        ("while (!__any_sync(0xffffffff, *(volatile int*)p)) { }", False),
        ("for (i = 0; i < t; i++) sum += *(volatile int*)p;", False),  # waits for nothing
    ],
)
def test_which_loops_only_look(loop, only_looks):
    code = f"""extern "C" __global__ void k(int* p, int* o) {{
        int t = threadIdx.x, i = t, sum = 0, ok = 0;
        __shared__ long long bar;
        unsigned place = (unsigned)__cvta_generic_to_shared(&bar);
        {loop}
        o[t] = i + sum + ok + place;
    }}"""
    translation = jit.Translation(compile_program(from_text(code), CPU_ARCH).ptx)
    plan = make_plan(translation.parsed(), "k", translation.globals(), "line")
    found = polling_loops(plan.flows["k"], plan.analyses["k"].spin_headers)
    assert bool(found) is only_looks


SYNC = r"""
#include <cuda/barrier>
#include <cooperative_groups.h>
namespace cg = cooperative_groups;
#define ROUNDS(SYNC) \
    for (int k = 0; k < rounds; k++) { s[t] = v; SYNC; v = s[(t + 33) % blockDim.x] * 3 + k; SYNC; } \
    out[blockIdx.x * blockDim.x + t] = v;
#define START __shared__ int s[256]; int t = threadIdx.x, v = t + 1000 * blockIdx.x;
template <cuda::thread_scope scope> __device__ void run(int rounds, int* out) {
    START
    __shared__ cuda::barrier<scope> bar;
    if (t == 0) init(&bar, blockDim.x);
    __syncthreads();
    ROUNDS(bar.arrive_and_wait())
}
extern "C" __global__ void syncthreads(int rounds, int* out) { START ROUNDS(__syncthreads()) }
extern "C" __global__ void block_scope(int rounds, int* out) { run<cuda::thread_scope_block>(rounds, out); }
extern "C" __global__ void device_scope(int rounds, int* out) { run<cuda::thread_scope_device>(rounds, out); }
extern "C" __global__ void tile(int rounds, int* out) {
    START
    __shared__ cg::block_tile_memory<256> memory;
    auto group = cg::tiled_partition<128>(cg::this_thread_block(memory));
    ROUNDS(group.sync())
}
"""
GROUP = {"syncthreads": 96, "block_scope": 96, "device_scope": 96, "tile": 128}  # threads that wait for each other


def expected(threads: int, blocks: int, rounds: int) -> np.ndarray:
    v = np.arange(threads, dtype=np.int32) + 1000 * np.arange(blocks, dtype=np.int32)[:, None]
    for k in range(rounds):
        v = v[:, (np.arange(threads) + 33) % threads] * 3 + k
    return v.reshape(-1)


@pytest.fixture(scope="module")
def module():
    return rawkern.RawModule(code=SYNC, options=("-std=c++17",))


@pytest.mark.parametrize("name", GROUP)
def test_barriers_of_libraries(device, module, name):
    out = torch.full((5 * GROUP[name],), -1, dtype=torch.int32, device=device)
    module.get_function(name)[5, GROUP[name]](9, out)
    np.testing.assert_array_equal(out.cpu(), expected(GROUP[name], 5, 9))


@pytest.mark.parametrize("name", ["block_scope", "device_scope"])
def test_barriers_of_libraries_in_a_debug_build(device, name):
    """Where what looks at memory is in functions that the loop calls."""
    out = torch.full((5 * GROUP[name],), -1, dtype=torch.int32, device=device)
    rawkern.RawModule(code=SYNC, options=("-std=c++17", "-G")).get_function(name)[5, GROUP[name]](9, out)
    np.testing.assert_array_equal(out.cpu(), expected(GROUP[name], 5, 9))


@pytest.mark.parametrize("name", ["block_scope", "device_scope", "tile"])
def test_waiting_costs_little_more_than_a_barrier(module, name):
    """About seven times as much; each wait took two hundred times as long when warps looked 64 times before they yielded."""

    def seconds(kernel: str) -> float:
        launcher = module.get_function(kernel)[2, 256]
        found = []
        for _ in range(5):
            start = time.thread_time()
            launcher(300, out)
            found.append(time.thread_time() - start)
        return min(found)

    out, threads = torch.zeros(512, dtype=torch.int32), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        ratio = min(seconds(name) / seconds("syncthreads") for _ in range(3))
    finally:
        torch.set_num_threads(threads)
    assert ratio < 25


def test_blocks_that_wait_for_each_other(device):
    """A token goes round among more blocks than there are threads of the host; no other thread can pass it on."""
    code = r"""extern "C" __global__ void ring(volatile int* token, int* seen, int rounds) {
        if (threadIdx.x % 32) return;
        int warps = blockDim.x / 32, me = blockIdx.x * warps + threadIdx.x / 32, all = gridDim.x * warps;
        for (int r = 0; r < rounds; r++) {
            while (*token != r * all + me) { }
            __threadfence();
            seen[r * all + me] = *token;
            __threadfence();
            *token = r * all + me + 1;
        }
    }"""
    token, seen = (torch.zeros(n, dtype=torch.int32, device=device) for n in (1, 7 * 6 * 3))
    rawkern.RawKernel(code)[7, 96](token, seen, 6)
    assert token.item() == 7 * 6 * 3 and torch.equal(seen.cpu(), torch.arange(7 * 6 * 3, dtype=torch.int32))
