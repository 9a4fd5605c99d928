"""Warps that come to a barrier in turn, and what else they may do in between."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

import rawkern
from rawkern.engines.cpu.runtime import jit

#: A step is one of these, by its number, between two barriers that all come to.
STEPS = (
    "",  # warps go on in turn
    "if (warp % 2) __syncthreads(); else __syncthreads();",
    "v += __syncthreads_count(v % 2);",
    'asm volatile("bar.sync %0, 64;" :: "r"(1 + warp / 2) : "memory");',
    "if (warp == 1) { while (*(volatile int*)&flag != step) { } } else if (t == (whole - 64) * 127 / 64) atomicExch(&flag, step);",
    'if (warp < 2) asm volatile("bar.arrive 9, 128;" ::: "memory"); else asm volatile("bar.sync 9, 128;" ::: "memory");',
    "for (int i = t; i < 32 * whole; i += blockDim.x) v += x[i];",  # a loop in which warps take turns
    "if (t == step % whole) v += 5; __syncwarp();",
    "__threadfence_block(); if (step % 3 == 0) __syncthreads();",
)
MIXED = (
    r"""extern "C" __global__ void mixed(const int* steps, int count, const int* x, int* out) {
    __shared__ int s[128];
    __shared__ int flag;
    int t = threadIdx.x, warp = t / 32, whole = blockDim.x, v = t;
    if (t == 0) flag = -1;
    __syncthreads();
    for (int step = 0; step < count; step++) {
        switch (steps[step]) {
"""
    + "\n".join(f"        case {k}: {text} break;" for k, text in enumerate(STEPS))
    + r"""
        }
        s[t] = v;
        __syncthreads();
        v = s[(t + 37) % whole] + step;
        __syncthreads();
    }
    out[blockIdx.x * whole + t] = v;
}"""
)


def expected(steps: list[int], x: np.ndarray, whole: int) -> np.ndarray:
    t = np.arange(whole)
    v = t.copy()
    for step, kind in enumerate(steps):
        if kind == 2:
            v += (v % 2).sum()
        elif kind == 6:
            v += x.reshape(-1, whole).sum(0)
        elif kind == 7:
            v[step % whole] += 5
        v = v[(t + 37) % whole] + step
    return v


@pytest.mark.parametrize("whole", [64, 128])
@pytest.mark.parametrize("seed", range(4))
def test_steps_in_turn_and_others_in_any_order(device: str, whole: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    possible = [k for k in range(len(STEPS)) if whole == 128 or k != 5]
    steps = [int(k) for k in np.where(rng.random(60) < 0.4, 0, rng.choice(possible, 60))]
    x = rng.integers(0, 9, 32 * whole).astype(np.int32)
    out = torch.full((3 * whole,), -7, dtype=torch.int32, device=device)
    given = (torch.tensor(values, dtype=torch.int32, device=device) for values in (steps, x))
    first, second = given
    rawkern.RawKernel(MIXED)[3, whole](first, len(steps), second, out)
    assert (out.view(3, whole).cpu().numpy() == expected(steps, x, whole)).all()


@pytest.mark.parametrize("which", [2, 3])
@pytest.mark.parametrize("after", range(5))
def test_a_warp_that_ends_is_not_waited_for(device: str, after: int, which: int) -> None:
    """A warp ends before one of the barriers, while some of the others wait there, or all."""
    code = r"""extern "C" __global__ void leave(int after, int which, int* out) {
        __shared__ int s[128];
        int t = threadIdx.x, v = t;
        for (int i = 0; i < 6; i++) {
            if (t / 32 == which && i == after) return;
            s[t] = v;
            __syncthreads();
            v = s[(t + 32) % 64] + i;
            __syncthreads();
        }
        out[t] = v;
    }"""
    out = torch.full((128,), -7, dtype=torch.int32, device=device)
    rawkern.RawKernel(code)[1, 128](after, which, out)
    v = np.arange(64)
    for i in range(6):
        v = v[(np.arange(64) + 32) % 64] + i
    assert out[:64].tolist() == v.tolist()
    assert out[32 * which : 32 * which + 32].tolist() == [-7] * 32


def test_a_launch_that_takes_too_long_says_who_waits() -> None:
    """Warps that wait in turn are named as such, from the second round on as well."""
    code = r"""extern "C" __global__ void late(int* x) {
        __syncthreads();
        __syncthreads(); if (threadIdx.x / 32 == 2) { unsigned i = 1; while (i) i += 2; x[0] = i; }
        __syncthreads();
        x[1] = 1;
    }"""
    with (
        rawkern.time_limit(0.05),
        pytest.raises(rawkern.LaunchTimeoutError, match=r"(?s)1 warp computing.*warp 2 of") as caught,
    ):
        rawkern.RawKernel(code)[1, 160](torch.zeros(2, dtype=torch.int32))
    assert re.search(r"4 warps at a barrier: .*line 4 \(warp 0 of", str(caught.value))


def test_barriers_of_all_threads_are_taken_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scheduler counts only those that are other than `__syncthreads`."""
    made = []
    lower = jit.Translation.lower
    monkeypatch.setattr(jit.Translation, "lower", lambda *args: made.append(lower(*args)) or made[-1])
    code = """extern "C" __global__ void k(int* x) {{ __syncthreads(); x[threadIdx.x] = {number}; {more} }}"""
    named = 'asm volatile("bar.sync 1;");'
    for number, (more, counted) in enumerate((("__syncthreads();", 0), (named, 1))):
        source = f"// {torch.rand(1).item()}\n{code.format(number=number, more=more)}"
        rawkern.RawKernel(source)[1, 64](torch.zeros(64, dtype=torch.int32))
        text = made.pop().text
        assert text.count("call ptr @rk_sync(") == 2 - counted
        assert text.count("call ptr @rk_barrier(") == counted
