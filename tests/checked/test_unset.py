"""Registers that nobody has set: which instructions set them, and the line that is told where one is used."""

from __future__ import annotations

import pytest
import torch

import rawkern
from rawkern.launch import level

SET = {
    "by a barrier": r"""
extern "C" __global__ void k(const int* x, int* out) {
    int v;
    asm volatile("{ .reg .pred p; setp.ne.s32 p, %1, 0; @p bar.red.popc.u32 %0, 0, p; }" : "=r"(v) : "r"(x[0]));
    out[threadIdx.x] = v + 1;
}""",
    "where lanes meet on two ways": r"""
extern "C" __global__ void k(const int* x, int* out) {
    unsigned v;
    int c = x[threadIdx.x];
    if (c == 5) {
        asm volatile("{ .reg .pred p; setp.ne.s32 p, %1, 0; @p vote.sync.ballot.b32 %0, p, -1; }" : "=r"(v) : "r"(c));
        out[threadIdx.x] = v + 1;
    } else {
        asm volatile("{ .reg .pred p; setp.ne.s32 p, %1, 1; @p vote.sync.ballot.b32 %0, p, -1; }" : "=r"(v) : "r"(c));
        out[threadIdx.x] = v + 2;
    }
}""",
}


@pytest.mark.parametrize("how", SET)
def test_what_instructions_set_where_threads_meet_is_set(how):
    kernel, results = rawkern.RawKernel(SET[how]), []
    x = torch.arange(32, dtype=torch.int32) + 2
    for checks in (False, True):
        out = torch.full((32,), -7, dtype=torch.int32)
        with rawkern.check() if checks else level.asked(level.BOUNDS):
            kernel[1, 32](x, out)
        results.append(out)
    assert torch.equal(*results) and -7 not in results[0]


def test_the_line_is_that_of_the_instruction_that_lanes_skip():
    kernel = rawkern.RawKernel(r"""
extern "C" __global__ void k(int* out) {
    asm volatile("{ .reg .pred p;");
    out[1] = 5;

    asm volatile("@p st.global.u32 [%0], 7; }" :: "l"(out));
}""")
    with rawkern.check(), pytest.raises(rawkern.UninitializedReadError) as caught:
        kernel[1, 1](torch.zeros(2, dtype=torch.int32))
    assert [r.line for r in caught.value.reports] == [6]


def test_comparing_with_what_is_not_set_gives_what_is_not_set():
    kernel = rawkern.RawKernel(r"""
extern "C" __global__ void k(int* out) {
    int r;
    asm volatile("{ .reg .s32 v; set.lt.u32.s32 %0, v, 5; }" : "=r"(r));
    out[0] = r;
}""")
    with rawkern.check(), pytest.raises(rawkern.UninitializedReadError):
        kernel[1, 1](torch.zeros(2, dtype=torch.int32))
