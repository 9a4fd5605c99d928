"""Small kernels, which have code of their own for whole warps: lanes that leave it, what they take along, odd sizes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import rawkern

POISON = -77777
#: Whole warps alone, a last one without all its lanes, less than one; blocks of rows of all kinds.
BLOCKS = (
    (32,),
    (64,),
    (1,),
    (31,),
    (33,),
    (100,),
    (32, 3),
    (64, 2, 2),
    (16, 6),
    (8, 4, 3),
    (8, 3),
    (5, 7, 2),
    (16, 1, 3),
)
GRIDS = ((5, 1, 1), (3, 7, 2), (1, 40, 3), (90, 1, 1), (2, 1, 70))


def run(code: str, grid, block, *args) -> np.ndarray:
    """What a kernel ``(args..., int* out)`` writes, one value for each thread of each block."""
    threads = int(np.prod(grid) * np.prod(block))
    out = torch.full((threads,), POISON, dtype=torch.int32)
    rawkern.RawKernel(code)[grid, block](*args, out)
    return out.numpy()


def indices(grid, block) -> dict[str, np.ndarray]:
    """blockIdx and threadIdx of each thread in the order of blocks, then threads."""
    block = (*block, 1, 1)[:3]
    number = np.arange(int(np.prod(grid) * np.prod(block)))
    b, t = np.divmod(number, int(np.prod(block)))
    return {
        "number": number,
        "bx": b % grid[0], "by": b // grid[0] % grid[1], "bz": b // (grid[0] * grid[1]),
        "tx": t % block[0], "ty": t // block[0] % block[1], "tz": t // (block[0] * block[1]),
    }  # fmt: skip


WHERE = r"""
    int block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    int thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    int i = block * (blockDim.x * blockDim.y * blockDim.z) + thread;"""


@pytest.mark.parametrize("block", BLOCKS)
def test_every_block_and_thread_runs_once(block):
    code = f"""extern "C" __global__ void k(int limit, int* out) {{{WHERE}
        if (i < limit) out[i] += 7 * blockIdx.x + 100 * blockIdx.y + 10000 * blockIdx.z + threadIdx.x - 3 * threadIdx.y
            + 5 * threadIdx.z;
    }}"""
    for grid in GRIDS:
        at = indices(grid, block)
        count = len(at["number"])
        for limit in (count, count - 1, count // 2 + 3, 0):
            want = POISON + 7 * at["bx"] + 100 * at["by"] + 10000 * at["bz"] + at["tx"] - 3 * at["ty"] + 5 * at["tz"]
            want[limit:] = POISON
            np.testing.assert_array_equal(run(code, grid, block, limit), want)


@pytest.mark.parametrize("block", [(96,), (70,), (16, 5), (8, 9)])
def test_lanes_that_part_take_their_values_along(block):
    """All set and write something together, part in a loop after some rounds, and meet again."""
    code = f"""extern "C" __global__ void k(int n, const int* turns, float* kept, int* out) {{{WHERE}
        if (i >= n) return;
        int rounds = turns[i], sum = i;
        kept[i] = 0.5f * i;
        for (int k = 0; k < rounds; k++) {{
            sum += k * i;
            if (sum & 64) sum ^= 5; else kept[i] += 0.25f;
        }}
        out[i] = sum + rounds;
    }}"""
    grid = (4, 2, 1)
    number = indices(grid, block)["number"]
    count, rng = len(number), np.random.default_rng(3)
    same = np.full(count, 6)
    for turns in (
        same,
        np.where(number < 40, 6, 6 + number % 5),
        rng.integers(0, 9, count),
        np.where(number == 77, 9, 2),
    ):
        for n in (count, count - 9):
            kept = torch.full((count,), float("nan"))
            got = run(code, grid, block, n, torch.from_numpy(turns.astype(np.int32)), kept)
            total, half = number.copy(), 0.5 * number
            for k in range(int(turns.max())):
                runs = k < turns
                added = total + k * number
                flips = (added & 64) != 0
                total = np.where(runs, np.where(flips, added ^ 5, added), total)
                half += np.where(runs & ~flips, 0.25, 0)
            want = total + turns
            want[n:], half[n:] = POISON, np.nan
            np.testing.assert_array_equal(got, want)
            np.testing.assert_array_equal(kept.numpy(), half.astype(np.float32))


@pytest.mark.parametrize("width", [2, 64])
def test_cases_of_a_switch(width):
    """Lanes choose alike, in runs of whole warps, and apart."""
    cases = "".join(f"case {k}: out[i] = x * {k + 3} - {k}; break;" for k in range(8))
    code = f"""extern "C" __global__ void k(int n, const int* which, int* out) {{{WHERE}
        if (i >= n) return;
        int x = i + 1;
        switch (which[i]) {{{cases} default: out[i] = -1; }}
        if (x & {width}) out[i] += 1000;
    }}"""
    number = np.arange(3 * 96)
    for which in (np.full(288, 5), number // 32 % 9, number % 9, np.where(number > 200, number % 3, 7)):
        want = np.where(which < 8, (number + 1) * (which + 3) - which, -1) + np.where((number + 1) & width, 1000, 0)
        want[280:] = POISON
        got = run(code, (3, 1, 1), (96,), 280, torch.from_numpy(which.astype(np.int32)))
        np.testing.assert_array_equal(got, want)


def test_functions_know_their_block():
    """A function that is called, not made part of the kernel, reads the block's index as well."""
    code = f"""
    __device__ __noinline__ int place(int depth) {{
        return 100 * blockIdx.x + 10000 * blockIdx.y + 1000000 * blockIdx.z + threadIdx.x + depth;
    }}
    extern "C" __global__ void k(int n, int* out) {{{WHERE}
        if (i < n) out[i] = place(i & 3);
    }}"""
    for grid in GRIDS:
        at = indices(grid, (40,))
        want = 100 * at["bx"] + 10000 * at["by"] + 1000000 * at["bz"] + at["tx"] + (at["number"] & 3)
        want[-5:] = POISON
        np.testing.assert_array_equal(run(code, grid, (40,), len(want) - 5), want)


def test_indices_that_wrap_around_within_a_warp():
    """The first lanes of a warp lie above the limit, the last ones below, as their index has wrapped around."""
    code = """extern "C" __global__ void k(unsigned first, unsigned n, const int* x, int* out) {
        unsigned i = first + blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) out[i] = x[i] + 1;
    }"""
    x = torch.arange(200, dtype=torch.int32)
    for first in (2**32 - 1, 2**32 - 17, 2**32 - 32, 2**32 - 64, 0):
        for n in (0, 1, 40, 200):
            out = torch.full((200,), POISON, dtype=torch.int32)
            rawkern.RawKernel(code)[2, 64](first, n, x, out)
            reached = (first + np.arange(128)) % 2**32
            want = np.full(200, POISON)
            want[reached[reached < n]] = reached[reached < n] + 1
            np.testing.assert_array_equal(out.numpy(), want)
