"""Threads that wait for other threads: locks, flags, chains of blocks, grid barriers; deadlocks."""

from __future__ import annotations

import time
from contextlib import nullcontext

import numpy as np
import pytest
import torch

import rawkern
from rawkern.errors import LaunchError

pytestmark = pytest.mark.timeout(20)


def poison(n: int, device: str, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.full((n,), -77777, dtype=dtype, device=device)


# Locks --------------------------------------------------------------------------------------------------------------


LOCKS = r"""
__device__ void work(int* cell) { int v = *(volatile int*)cell; *(volatile int*)cell = v * 3 % 1000003 + 1; }
// the lock is taken, used and released inside the loop
extern "C" __global__ void inside(int* lock, int* cell, int rounds) {
    for (int r = 0; r < rounds; r++) {
        bool done = false;
        while (!done) {
            if (atomicCAS(lock, 0, 1) == 0) { __threadfence(); work(cell); __threadfence(); atomicExch(lock, 0); done = true; }
        }
    }
}
// spin first, use later: lanes that hold the lock must run while their neighbors spin
extern "C" __global__ void before(int* lock, int* cell, int rounds) {
    for (int r = 0; r < rounds; r++) {
        while (atomicCAS(lock, 0, 1) != 0) { }
        __threadfence();
        work(cell);
        __threadfence();
        atomicExch(lock, 0);
    }
}
__device__ __noinline__ void acquire(int* lock) { while (atomicExch(lock, 1) != 0) __nanosleep(20); __threadfence(); }
__device__ __noinline__ void release(int* lock) { __threadfence(); *(volatile int*)lock = 0; }
extern "C" __global__ void called(int* lock, int* cell, int rounds) {
    for (int r = 0; r < rounds; r++) { acquire(lock); work(cell); release(lock); }
}
extern "C" __global__ void ticket(int* lock, int* cell, int rounds) {      // lock[0]: next ticket, lock[1]: now served
    for (int r = 0; r < rounds; r++) {
        int mine = atomicAdd(lock, 1);
        while (((volatile int*)lock)[1] != mine) { }
        __threadfence();
        work(cell);
        __threadfence();
        atomicAdd(lock + 1, 1);
    }
}"""


@pytest.fixture(scope="module")
def locks():
    return rawkern.RawModule(code=LOCKS)


@pytest.mark.parametrize("name", ["inside", "before", "called", "ticket"])
@pytest.mark.parametrize(("grid", "block"), [(1, 32), (1, 100), (9, 40)], ids=["lanes", "warps", "blocks"])
def test_locks(device, locks, name, grid, block):
    """What the lock guards is not commutative with itself lost: every update must see the one before."""
    lock, cell = torch.zeros(2, dtype=torch.int32, device=device), torch.ones(1, dtype=torch.int32, device=device)
    locks.get_function(name)[grid, block](lock, cell, 2)
    want = 1
    for _ in range(2 * grid * block):
        want = want * 3 % 1000003 + 1
    assert cell.item() == want


def test_lock_of_one_thread_per_warp(device):
    code = r"""extern "C" __global__ void k(int* lock, int* cells, int n) {
        if (threadIdx.x % 32 == 0) {
            while (atomicCAS(lock, 0, 1)) __nanosleep(50);
            __threadfence();
            for (int i = 0; i < n; i++) cells[i] += i + 1;
            __threadfence();
            atomicExch(lock, 0);
        }
        __syncthreads();
        if (threadIdx.x == 0) atomicAdd(cells + n, 1);
    }"""
    lock, cells = torch.zeros(1, dtype=torch.int32, device=device), torch.zeros(41, dtype=torch.int32, device=device)
    rawkern.RawKernel(code)[30, 128](lock, cells, 40)
    assert cells.tolist() == [120 * (i + 1) for i in range(40)] + [30]


def test_locks_on_many_cells(device):
    """Lanes hold different locks at a time and leave in any order."""
    code = r"""extern "C" __global__ void k(int n, const int* key, int* lock, int* sum, int* count) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i >= n) return;
        int b = key[i];
        while (atomicCAS(lock + b, 0, 1)) { }
        __threadfence();
        ((volatile int*)sum)[b] += i; ((volatile int*)count)[b]++;
        __threadfence();
        atomicExch(lock + b, 0);
    }"""
    n = 900
    key = torch.randint(0, 13, (n,), generator=torch.Generator().manual_seed(0), dtype=torch.int32)
    lock, sums, count = (torch.zeros(13, dtype=torch.int32, device=device) for _ in range(3))
    rawkern.RawKernel(code).forall(n, block=64)(n, key.to(device), lock, sums, count)
    assert count.tolist() == torch.bincount(key, minlength=13).tolist()
    assert sums.tolist() == [int(torch.arange(n)[key == b].sum()) for b in range(13)]
    assert (lock == 0).all()


# Flags ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["up", "down"])
@pytest.mark.parametrize("load", ["*(volatile int*)", "acquire", "__ldcv"])
def test_lanes_pass_on_a_value(device, order, load):
    """Each lane waits for its neighbor in the same warp, and in the warp before."""
    code = r"""
    __device__ int look(int* p) {
        #if LOAD == 0
        return *(volatile int*)p;
        #elif LOAD == 1
        int v; asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(v) : "l"(p) : "memory"); return v;
        #else
        return __ldcv(p);
        #endif
    }
    extern "C" __global__ void k(int up, int* chain) {
        int n = gridDim.x * blockDim.x, i = blockIdx.x * blockDim.x + threadIdx.x;
        int at = up ? i : n - 1 - i, v;
        while ((v = look(chain + at)) == 0) { }
        __threadfence();
        *(volatile int*)(chain + at + 1) = v % 1000 + at;
    }"""
    if device == "cuda" and (order == "down" or load == "__ldcv"):
        pytest.skip("hardware need not run later lanes first, and the compiler for it may move a __ldcv")
    number = {"*(volatile int*)": 0, "acquire": 1, "__ldcv": 2}[load]
    chain = torch.zeros(101, dtype=torch.int32, device=device)
    chain[0] = 5
    rawkern.RawKernel(code, options=(f"-DLOAD={number}",))[1, 100](int(order == "up"), chain)
    want = [5]
    for at in range(100):
        want.append(want[-1] % 1000 + at)
    assert chain.tolist() == want


@pytest.mark.parametrize("order", ["up", "down"])
@pytest.mark.parametrize("how", ["called", "pointer", "debug"])
def test_lanes_wait_by_calls(device, how, order):
    """The loop itself neither looks at memory nor has a fence: functions that it calls do."""
    code = r"""
    __device__ __noinline__ int look(int* p) { return atomicAdd(p, 0); }
    __device__ __noinline__ int other(int* p) { return *p + 1; }
    __device__ __noinline__ int deeper(int* p) { return look(p) * 2; }
    extern "C" __global__ void k(int up, int* chain, int which) {
        int n = gridDim.x * blockDim.x, i = blockIdx.x * blockDim.x + threadIdx.x;
        int at = up ? i : n - 1 - i, v;
        #if POINTER
        int (*f)(int*) = which ? other : deeper;
        while ((v = f(chain + at)) == 0) { }
        #else
        while ((v = deeper(chain + at)) == 0) { }
        #endif
        atomicExch(chain + at + 1, v % 1000 + at);
    }"""
    if device == "cuda" and order == "down":
        pytest.skip("hardware need not run later lanes first")
    chain = torch.zeros(71, dtype=torch.int32, device=device)
    chain[0] = 5
    options = (f"-DPOINTER={int(how == 'pointer')}", *(["-G"] if how == "debug" else []))
    rawkern.RawKernel(code, options=options)[1, 70](int(order == "up"), chain, 0)
    want = [5]
    for at in range(70):
        want.append(want[-1] * 2 % 1000 + at)
    assert chain.tolist() == want


def test_warps_pass_values_through_shared_memory(device):
    code = r"""extern "C" __global__ void k(int* out) {
        __shared__ volatile int turn; __shared__ volatile int value;
        int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        if (threadIdx.x == 0) { turn = 7; value = 1; }
        __syncthreads();
        if (lane == 0) {                          // the last warp goes first
            while (turn != warp) { }
            value = value * 2 + warp;
            out[warp] = value;
            __threadfence_block();
            turn = warp - 1;
        }
    }"""
    out = poison(8, device)
    rawkern.RawKernel(code)[1, 256](out)
    want, value = [0] * 8, 1
    for warp in range(7, -1, -1):
        value = want[warp] = value * 2 + warp
    assert out.tolist() == want


def test_consumer_blocks_come_before_producers(device):
    """Blocks with low numbers wait for high ones; all fit on the device at a time."""
    code = r"""extern "C" __global__ void k(int* flags, int* out) {
        int b = blockIdx.x, n = gridDim.x, t = threadIdx.x;
        if (b < n - 1) {
            if (t == 0) while (atomicAdd(flags + b + 1, 0) == 0) __nanosleep(100);
            __syncthreads();
        }
        out[b * blockDim.x + t] = (b < n - 1 ? ((volatile int*)out)[(b + 1) * blockDim.x + t] : t) + 1;
        __threadfence();
        __syncthreads();
        if (t == 0) atomicExch(flags + b, 1);
    }"""
    n = 24
    flags, out = torch.zeros(n, dtype=torch.int32, device=device), poison(n * 64, device)
    rawkern.RawKernel(code)[n, 64](flags, out)
    want = torch.arange(64) + (n - torch.arange(n))[:, None]
    assert torch.equal(out.cpu().view(n, 64), want.int())


def test_scan_with_look_back(device):
    """The single-pass scan: a block sums what its predecessors have published, however far they are."""
    code = r"""
    struct State { int flag; int value; };
    extern "C" __global__ void k(int n, const int* x, int* out, volatile unsigned long long* state, int* next) {
        __shared__ int s[128]; __shared__ int tile, before;
        int t = threadIdx.x;
        if (t == 0) tile = atomicAdd(next, 1);
        __syncthreads();
        int i = tile * 128 + t, v = i < n ? x[i] : 0;
        s[t] = v;
        __syncthreads();
        for (int d = 1; d < 128; d *= 2) { int u = t >= d ? s[t - d] : 0; __syncthreads(); s[t] += u; __syncthreads(); }
        int total = s[127];
        if (t == 0) {
            int sum = 0;
            if (tile == 0) state[0] = 2ull << 32 | (unsigned)total;
            else {
                state[tile] = 1ull << 32 | (unsigned)total;
                for (int p = tile - 1; p >= 0; ) {
                    unsigned long long w = state[p];
                    if (w >> 32 == 0) continue;
                    sum += (int)(unsigned)w;
                    if (w >> 32 == 2) break;
                    p--;
                }
                __threadfence();
                state[tile] = 2ull << 32 | (unsigned)(sum + total);
            }
            before = sum;
        }
        __syncthreads();
        if (i < n) out[i] = before + s[t];
    }"""
    n = 40_007
    x = torch.randint(-100, 100, (n,), generator=torch.Generator().manual_seed(1), dtype=torch.int32)
    tiles = -(-n // 128)
    state, following = (
        torch.zeros(tiles, dtype=torch.int64, device=device),
        torch.zeros(1, dtype=torch.int32, device=device),
    )
    out = poison(n, device)
    rawkern.RawKernel(code)[tiles, 128](n, x.to(device), out, state, following)
    assert torch.equal(out.cpu(), x.cumsum(0).int())


def test_barrier_of_the_grid_by_hand(device):
    """All blocks count in, then spin until the last has; several times over."""
    code = r"""
    __device__ void grid_barrier(int* count, int goal) {
        __syncthreads();
        if (threadIdx.x == 0) {
            __threadfence();
            atomicAdd(count, 1);
            while (atomicAdd(count, 0) < goal) { }
            __threadfence();
        }
        __syncthreads();
    }
    extern "C" __global__ void k(int* count, int* a, int* b, int rounds) {
        int n = gridDim.x * blockDim.x, i = blockIdx.x * blockDim.x + threadIdx.x;
        for (int r = 1; r <= rounds; r++) {
            volatile int* from = r & 1 ? a : b; volatile int* to = r & 1 ? b : a;
            to[i] = from[(i + 1) % n] + from[(i + n - 1) % n] + r;
            grid_barrier(count, r * gridDim.x);
        }
    }"""
    grid, block, rounds = 13, 48, 6
    n = grid * block
    a, b = torch.arange(n, dtype=torch.int32, device=device), poison(n, device)
    want = torch.arange(n, dtype=torch.int64)
    rawkern.RawKernel(code)[grid, block](torch.zeros(1, dtype=torch.int32, device=device), a, b, rounds)
    for r in range(1, rounds + 1):
        want = want.roll(1) + want.roll(-1) + r
    assert torch.equal(a.cpu(), want.int())


@pytest.mark.parametrize(("grid", "block"), [(1, 32), (7, 100), ((3, 4), (16, 6)), (40, 64)])
def test_cooperative_grid(device, grid, block):
    code = r"""
    #include <cooperative_groups.h>
    namespace cg = cooperative_groups;
    extern "C" __global__ void k(int* a, int* b, int rounds) {
        auto grid = cg::this_grid();
        int n = grid.size(), i = grid.thread_rank();
        for (int r = 0; r < rounds; r++) {
            int v = a[(i * 7 + 3) % n];
            grid.sync();
            b[i] = v + grid.block_rank();
            grid.sync();
            a[i] = b[n - 1 - i] * (grid.is_valid() ? 1 : 100);
            cg::sync(grid);
        }
    }"""
    grid3, block3 = (np.prod(v) for v in (grid, block))
    n = int(grid3 * block3)
    a, b = torch.arange(n, dtype=torch.int32, device=device), poison(n, device)
    rawkern.RawKernel(code, enable_cooperative_groups=True)[grid, block](a, b, 3)
    i, want = np.arange(n), np.arange(n)
    for _ in range(3):
        want = (want[(i * 7 + 3) % n] + i // int(block3))[::-1]
    np.testing.assert_array_equal(a.cpu().numpy(), want)


def test_a_grid_group_is_valid_in_cooperative_launches_only():
    code = r"""
    #include <cooperative_groups.h>
    extern "C" __global__ void k(int* o, int sync) {
        auto grid = cooperative_groups::this_grid();
        o[grid.thread_rank()] = grid.is_valid();
        if (sync)
            grid.sync();
    }"""
    for cooperative in (False, True):
        out = poison(64, "cpu")
        kernel = rawkern.RawKernel(code, enable_cooperative_groups=cooperative)
        kernel[2, 32](out, 0)
        assert out.tolist() == [int(cooperative)] * 64
        if cooperative:
            kernel[2, 32](out, 1)
            continue
        for checks in (rawkern.check, nullcontext):
            with checks(), pytest.raises(rawkern.LaunchError, match=r"line 7: .*enable_cooperative_groups=True"):
                kernel[2, 32](out, 1)


def test_sleeping_goes_on(device):
    code = r"""extern "C" __global__ void k(int* out) {
        for (int r = 0; r < 5; r++) __nanosleep(threadIdx.x * 3);
        out[threadIdx.x] = threadIdx.x;
    }"""
    out = poison(70, device)
    rawkern.RawKernel(code)[1, 70](out)
    assert out.tolist() == list(range(70))


def test_exchange_inside_a_divergent_warp(device):
    """Both sides of a branch meet at `__syncwarp` with the whole warp's mask."""
    code = r"""extern "C" __global__ void k(int* out) {
        __shared__ int s[64];
        int t = threadIdx.x;
        s[t] = -1;
        __syncwarp();
        if (t % 32 < 16) { s[t] = t * 2; __syncwarp(); out[t] = s[t + 16]; }
        else { s[t] = t * 3; __syncwarp(); out[t] = s[t - 16]; }
    }"""
    out = poison(64, device)
    rawkern.RawKernel(code)[1, 64](out)
    assert out.tolist() == [(t + 16) * 3 if t % 32 < 16 else (t - 16) * 2 for t in range(64)]


# Functions that call themselves: they cannot become part of their callers ------------------------------------------------

WALK = r"""
__device__ __noinline__ int walk(volatile int* flag, int n, int how) {
    int t = threadIdx.x, v = n;
    if (n > 0 && (how == 4 || (t + n) % 3)) v += walk(flag, n - 1, how) * 2;
    for (int k = 0; k < flag[1 + n]; k++) { __threadfence(); v += k + t; }          // could wait
    if (how == 1) while (flag[0] == 0) { }
    if (how == 2) while (atomicAdd((int*)flag, 0) == 0) { }
    if (how >= 3) __syncthreads();
    return v;
}
// lanes from `from` on call nothing, the last thread sets the flag
extern "C" __global__ void k(volatile int* flag, volatile int* out, int how, int from) {
    int t = threadIdx.x, v = -1;
    if (t < from) v = walk(flag, 2, how);
    out[t] = v;
    if (t == blockDim.x - 1) flag[0] = 1;
}"""


@pytest.fixture(scope="module")
def walks():
    return rawkern.RawKernel(WALK)


def walk(walks, device, how: int, start: int, threads: int) -> list[int]:
    flag, out = torch.tensor([0, 1, 2, 90], dtype=torch.int32, device=device), poison(threads, device)
    walks[1, threads](flag, out, how, start)
    return out.tolist()


@pytest.mark.parametrize(
    ("how", "start", "threads"),
    [(0, 20, 32), (1, 20, 64), (2, 20, 64), (4, 64, 64)],
    ids=["no wait", "on another warp", "on another warp by atomics", "together"],
)
def test_some_lanes_wait_in_recursion(device, walks, how, start, threads):
    def value(t: int, n: int) -> int:
        v = n + (value(t, n - 1) * 2 if n > 0 and (how == 4 or (t + n) % 3) else 0)
        return v + sum(k + t for k in range((1, 2, 90)[n]))

    want = [value(t, 2) if t < start else -1 for t in range(threads)]
    assert walk(walks, device, how, start, threads) == want


@pytest.mark.rawkern_unchecked("of the usual build's own words")
@pytest.mark.parametrize(
    ("how", "start"), [(1, 31), (2, 31), (3, 32), (4, 31)], ids=["flag", "atomic", "some return", "barrier"]
)
def test_waiting_in_recursion_for_lanes_elsewhere_raises(walks, how, start):
    with pytest.raises(LaunchError, match=r"\.py:\d+, line \d+: thread \(\d+,0,0\) .* recursive function"):
        walk(walks, "cpu", how, start, 32)


# Deadlocks ---------------------------------------------------------------------------------------------------------------


DEADLOCKS = {
    "another number": 'if (threadIdx.x < 32) asm volatile("bar.sync 1, 64;"); else asm volatile("bar.sync 2, 64;");',
    "too many expected": 'asm volatile("bar.sync 3, 96;");',
}


@pytest.mark.rawkern_unchecked("of the usual build's own words")
@pytest.mark.parametrize("body", DEADLOCKS.values(), ids=DEADLOCKS)
def test_deadlock_at_a_barrier_is_reported(body):
    kernel = rawkern.RawKernel(f'extern "C" __global__ void stuck(int* out) {{ {body} out[threadIdx.x] = 1; }}')
    out = torch.zeros(64, dtype=torch.int32)
    start = time.perf_counter()
    with pytest.raises(LaunchError, match=r"stuck.*deadlock"):
        kernel[1, 64](out)
    assert time.perf_counter() - start < 20
    assert (out == 0).all()
    with pytest.raises(LaunchError, match="deadlock"):  # and once more, on fresh stacks
        kernel[1, 64](out)
