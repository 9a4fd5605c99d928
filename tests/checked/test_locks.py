"""Locks: the order in which blocks took one excuses nothing but what is done by who holds it."""

from __future__ import annotations

import contextlib
import re

import pytest
import torch

import rawkern

LOCKS = r"""
#define LOCK(l) while (atomicCAS(l, 0, 1) != 0) {} __threadfence();
#define UNLOCK(l) __threadfence(); atomicExch(l, 0);
__device__ int lock, seen, n, flag;
extern "C" {
__global__ void right_sum(int* d) { LOCK(&lock) d[0] += 1; UNLOCK(&lock) }
__global__ void right_volatile(volatile int* d) {
    LOCK(&lock) d[0] = d[0] + 1; __threadfence(); *(volatile int*)&lock = 0;
}
// whose value under the lock says that all others have been there
__global__ void right_last(int* d) {
    d[blockIdx.x + 1] = 5;
    LOCK(&lock) int k = ++n; UNLOCK(&lock)
    if (k % gridDim.x == 0) for (int i = 0; i < gridDim.x; i++) d[0] += d[i + 1];
}
// one thread takes the lock for its block
__global__ void right_block(int* d) {
    if (threadIdx.x == 0) { LOCK(&lock) }
    __syncthreads(); d[threadIdx.x] = blockIdx.x; __syncthreads();
    if (threadIdx.x == 0) { UNLOCK(&lock) }
}
__global__ void right_slot(int* d) { LOCK(&lock) int k = n++; UNLOCK(&lock) d[k % 64] = 1; }
// a compare-and-swap for a value that only another block sets is not a lock
__global__ void right_hand_over(int* d) {
    if (blockIdx.x == 0) { d[0] = 5; __threadfence(); atomicExch(&flag, 1); }
    else if (blockIdx.x == 1) {
        while (atomicCAS(&flag, 1, 2) != 1) {}
        __threadfence(); d[1] = d[0]; __threadfence(); atomicExch(&flag, 0);
    }
}
__global__ void right_lanes(int* d) {  // a lock for each lane
    int* l = d + 64 + threadIdx.x;
    for (bool done = false; !done;) if (atomicCAS(l, 0, 1) == 0) {
        __threadfence(); d[threadIdx.x] += 1; __threadfence(); atomicExch(l, 0); done = true;
    }
}
__global__ void racy_after(int* d) { LOCK(&lock) seen = d[0]; UNLOCK(&lock) if (blockIdx.x == 0) d[0] = 1; }
__global__ void racy_read(int* d) {
    LOCK(&lock) if (blockIdx.x == 0) d[0] = 1; seen = 1; UNLOCK(&lock)
    if (blockIdx.x) d[1 + blockIdx.x] = d[0];
}
__global__ void racy_two_locks(int* d) { int* l = d + 8 + blockIdx.x % 2; LOCK(l) d[0] = 1 + blockIdx.x; UNLOCK(l) }
}"""
NAMES = re.findall(r"void (\w+)\(", LOCKS)


@pytest.fixture(scope="module")
def locks():
    return rawkern.RawModule(LOCKS)


@pytest.mark.parametrize("seed", [None, 0, 1])
@pytest.mark.parametrize("name", NAMES)
def test_only_who_holds_a_lock_is_ordered_by_it(locks, name, seed):
    launch = locks.get_function(name)[4, {"right_block": 64, "right_lanes": 32}.get(name, 1)]
    racy = (
        pytest.raises(rawkern.RaceError, match="only the order in which a lock was taken")
        if name.startswith("racy")
        else None
    )
    order = contextlib.nullcontext() if seed is None else rawkern.order(seed)
    with racy or contextlib.nullcontext(), order, rawkern.check(), rawkern.time_limit(10):
        launch(torch.zeros(128, dtype=torch.int32))
