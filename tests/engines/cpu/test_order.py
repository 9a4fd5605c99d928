"""Blocks and warps in another order: all run once, threads are who they are, what waits goes on, and what depends on it shows."""

from __future__ import annotations

import threading

import pytest
import torch

import rawkern
from rawkern.engines.cpu.runtime import order as orders
from rawkern.errors import LaunchError

pytestmark = [pytest.mark.usefixtures("optimized"), pytest.mark.timeout(60)]
SEEDS = (0, 1, 2, 7, 12345678901234567890)

MODULE = rawkern.RawModule(r"""
#include <cooperative_groups.h>
__device__ void note(int* turns, int* seen, int* when) {
    int block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    int thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    int threads = blockDim.x * blockDim.y * blockDim.z;
    atomicAdd(seen + block * threads + thread, 1);
    int warps = (threads + 31) / 32;
    if (thread % 32 == 0) when[block * warps + thread / 32] = atomicAdd(turns, 1);
}
extern "C" {
__global__ void free_running(int* turns, int* seen, int* when) { note(turns, seen, when); }
__global__ void with_barriers(int* turns, int* seen, int* when) {
    __shared__ int s[1024];
    int thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    int last = blockDim.x * blockDim.y * blockDim.z - 1;
    s[thread] = thread;
    __syncthreads();
    if (s[last - thread] == last - thread) note(turns, seen, when);
}
__global__ void chain(volatile int* done, int* out) {         // each block waits for the one before
    if (threadIdx.x == 0) while (blockIdx.x && !done[blockIdx.x - 1]) {}
    __syncthreads();
    out[blockIdx.x * blockDim.x + threadIdx.x] = blockIdx.x ? out[blockIdx.x * blockDim.x + threadIdx.x - blockDim.x] + 1 : 1;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) done[blockIdx.x] = 1;
}
__global__ void together(int* arrived, int* out) {             // all blocks wait for all
    if (threadIdx.x == 0) {
        atomicAdd(arrived, 1);
        while (*(volatile int*)arrived < gridDim.x) {}
    }
    __syncthreads();
    out[blockIdx.x * blockDim.x + threadIdx.x] = *(volatile int*)arrived;
}
__global__ void warps_wait(int* out) {                         // each warp waits for the next one, the last for none
    __shared__ volatile int ready[32];
    int warp = threadIdx.x / 32, warps = blockDim.x / 32;
    if (threadIdx.x % 32 == 0) ready[warp] = 0;
    __syncthreads();
    if (warp + 1 < warps) while (!ready[warp + 1]) {}
    __threadfence_block();
    ready[warp] = warp + 1 < warps ? ready[warp + 1] + 1 : 1;
    out[blockIdx.x * blockDim.x + threadIdx.x] = ready[warp];
}
__global__ void fails(int* out) { if (threadIdx.x == 77) { asm("trap;"); } out[threadIdx.x] = 1; }
__global__ void outside(int* out, int n) { if (threadIdx.x == 77) out[n] = 1; else out[threadIdx.x] = 1; }
}""")
COOPERATIVE = rawkern.RawKernel(
    r"""
#include <cooperative_groups.h>
extern "C" __global__ void sums(int* a, int* b) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, n = gridDim.x * blockDim.x;
    a[i] = i;
    cooperative_groups::this_grid().sync();
    b[i] = a[n - 1 - i];
}""",
    enable_cooperative_groups=True,
)
SHAPES = [
    (1, 1), (2, 64), (3, 33), (5, 100), (64, 32), (200, 96), ((3, 5, 7), (8, 3, 5)), ((7, 9), (16, 3)), ((2, 2, 2), (33, 2)),
    ((40, 2), (64, 2, 2)), ((1, 70), 1024),
]  # fmt: skip


def product(shape: int | tuple[int, ...]) -> int:
    return int(torch.tensor(shape).prod())


@pytest.mark.parametrize("name", ["free_running", "with_barriers"])
@pytest.mark.parametrize(("grid", "block"), SHAPES)
def test_each_thread_runs_once_whatever_the_order(name: str, grid: int, block: int) -> None:
    blocks, threads = product(grid), product(block)
    warps, kernel = -(-threads // 32), MODULE.get_function(name)

    def order() -> torch.Tensor:
        seen, when = (
            torch.zeros(blocks * threads, dtype=torch.int32),
            torch.full((blocks, warps), -1, dtype=torch.int32),
        )
        kernel[grid, block](torch.zeros(1, dtype=torch.int32), seen, when)
        assert (seen == 1).all()
        assert when.flatten().sort().values.tolist() == list(range(blocks * warps))
        return when

    found = []
    for seed in SEEDS:
        with rawkern.order(seed):
            found.append(order())
            assert (order() == found[-1]).all()
    firsts = found[0].min(1).values  # when each block began
    assert firsts.tolist() == sorted(firsts.tolist(), reverse=True)
    if name == "free_running":
        assert found[0].flatten().tolist() == list(reversed(range(blocks * warps)))
    if blocks * warps > 6:
        assert len({tuple(when.flatten().tolist()) for when in found}) == len(SEEDS)


@pytest.mark.parametrize("count", [*range(1, 70), 127, 128, 129, 1000])
def test_orders_are_permutations_that_mix(count: int) -> None:
    found = [orders.warps(count, seed) for seed in range(20)]
    assert all(sorted(each) == list(range(count)) for each in found)
    assert found[0] == tuple(reversed(range(count)))
    if count > 1:
        assert tuple(range(count)) not in found
    if count > 2:  # each pair comes in either order
        assert {each.index(0) < each.index(1) for each in found} == {True, False}


def test_of_two_blocks_either_is_first() -> None:
    first = set()
    for seed in range(12):
        turns, when = torch.zeros(1, dtype=torch.int32), torch.zeros(2, dtype=torch.int32)
        with rawkern.order(seed):
            MODULE.get_function("free_running")[2, 32](turns, torch.zeros(64, dtype=torch.int32), when)
        first.add(int(when.argmin()))
    assert first == {0, 1}


@pytest.mark.parametrize("seed", SEEDS)
def test_what_waits_goes_on(seed: int) -> None:
    def ints(n: int) -> torch.Tensor:
        return torch.zeros(n, dtype=torch.int32)

    with rawkern.order(seed):
        out = ints(500 * 40)
        MODULE.get_function("chain")[500, 40](ints(500), out)
        assert (out.view(500, 40) == torch.arange(1, 501)[:, None]).all()
        out = ints(64 * 70)
        MODULE.get_function("together")[64, 70](ints(1), out)
        assert (out == 64).all()
        out = ints(5 * 256)
        MODULE.get_function("warps_wait")[5, 256](out)
        assert (out.view(5, 8, 32) == torch.arange(8, 0, -1)[:, None]).all()
        a, b = ints(100 * 48), ints(100 * 48)
        COOPERATIVE[100, 48](a, b)
        assert (b == torch.arange(4799, -1, -1)).all()


@pytest.mark.parametrize("level", ["bounds", "full"])
def test_errors_name_the_thread(level: str) -> None:
    for seed in SEEDS:
        with rawkern.order(seed), rawkern.check(level=level):
            out = torch.zeros(128, dtype=torch.int32)
            with pytest.raises(
                LaunchError,
                match=r"thread \(77,0,0\) of block \(0,0,0\) executed a trap: __trap\(\), or undefined behavior",
            ):
                MODULE.get_function("fails")[1, 128](out)
            with pytest.raises(
                rawkern.OutOfBoundsError, match=r"thread \(77,0,0\) of block \(0,0,0\) writes out\[128\]"
            ):
                MODULE.get_function("outside")[1, 128](out, 128)


def test_the_order_is_the_contexts(request: pytest.FixtureRequest) -> None:
    """Native launches come back after it; the innermost seed holds; threads launch beside each other."""
    kernel, before = MODULE.get_function("free_running"), torch.get_num_threads()
    request.addfinalizer(lambda: torch.set_num_threads(before))
    torch.set_num_threads(1)  # of several, each begins when it can

    def when() -> list[int]:
        found = torch.zeros(9, dtype=torch.int32)
        kernel[9, 32](torch.zeros(1, dtype=torch.int32), torch.zeros(9 * 32, dtype=torch.int32), found)
        return found.tolist()

    plain = list(range(9))
    assert [when() for _ in range(4)] == [plain] * 4
    with rawkern.order(0):
        assert when() == plain[::-1]
        with rawkern.order(5):
            other = when()
        assert when() == plain[::-1] != other
    assert [when() for _ in range(4)] == [plain] * 4

    @rawkern.order(5)
    def work() -> None:
        assert all(when() == other for _ in range(50))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert orders.seed.current is None and when() == plain


@pytest.mark.parametrize("seed", [-1, 1.5, "x", None, True, "-3"])
def test_what_is_no_seed(seed: object) -> None:
    with pytest.raises(ValueError, match="a seed is an int, 0 or more"):
        rawkern.order(seed)  # type: ignore[arg-type]
