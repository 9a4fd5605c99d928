"""Registers that hold the same whenever they are written: which they are, and that lanes that wait find them right."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import rawkern
from rawkern.compile.programs import compile_program
from rawkern.compile.source import CPU_ARCH, from_text
from rawkern.engines.cpu.analysis.plan import Plan, make_plan
from rawkern.engines.cpu.runtime import jit

# Lanes go round different numbers of times and wait for each other in the loop; addresses are computed in it as well.
CODE = r"""extern "C" __global__ void k(const int* x, const int* rounds, int* out, int n) {
    __shared__ int s[160];
    int t = threadIdx.x, sum = 0;
    for (int r = 0; r < rounds[blockIdx.x * blockDim.x + t]; r++) {
        unsigned place;
        asm volatile("{ .reg .u64 a; mov.u64 a, %1; cvt.u32.u64 %0, a; }" : "=r"(place) : "l"(__cvta_generic_to_shared(s)));
        long long start = clock64();
        if (x[(t * 7 + r) % n] % 3) {
            int y;
            asm volatile("{ .reg .u32 b; shl.b32 b, %2, 2; add.u32 b, b, %3; st.shared.u32 [b], %1; ld.shared.u32 %0, [b]; }"
                : "=r"(y) : "r"(sum + r), "r"(t), "r"(place) : "memory");
            sum += y % 1000 + __shfl_xor_sync(__activemask(), t, 0);
        } else sum ^= x[t % n] + (start == 0);
        __syncwarp(__activemask());
    }
    out[blockIdx.x * blockDim.x + t] = sum;
}"""


def planned(code: str, shape: str = "line") -> Plan:
    translation = jit.Translation(compile_program(from_text(code), CPU_ARCH).ptx)
    return make_plan(translation.parsed(), "k", translation.globals(), shape)


def test_what_is_fixed():
    plan = planned(CODE)
    analysis = plan.analyses["k"]
    assert analysis.free_running
    ops = {instr.op.text for instr in analysis.fixed.values()}
    assert {"ld.param.u64", "mov.u32", "shl.b32"} <= ops
    assert not any(
        "clock" in str(instr.args) or instr.op.text.startswith(("ld.g", "ld.s", "setp", "rem"))
        for instr in analysis.fixed.values()
    )
    assert not {name for _, name in analysis.blends} & set(analysis.fixed)


def test_other_functions_compute_where_they_did():
    plan = planned('extern "C" __global__ void k(int* p) { if (threadIdx.x < 9) p[threadIdx.x + blockIdx.x * 3] = 1; }')
    assert not plan.analyses["k"].free_running and not plan.analyses["k"].fixed


@pytest.mark.parametrize("block", [(77, 1, 1), (8, 10, 1), (16, 5, 1), (32, 3, 1), (5, 9, 1)])
def test_results(device, block):
    """For each shape of block."""
    rng = np.random.default_rng(3)
    threads, n = block[0] * block[1], 50
    x = rng.integers(-100, 100, n).astype(np.int32)
    rounds = rng.integers(0, 9, 3 * threads).astype(np.int32)
    code = CODE.replace("t = threadIdx.x", "t = threadIdx.x + blockDim.x * threadIdx.y").replace(
        "blockDim.x + t", "THREADS + t"
    )
    code = code.replace("THREADS", str(threads))
    out = torch.full((3 * threads,), -1, dtype=torch.int32, device=device)
    rawkern.RawKernel(code)[3, block](torch.from_numpy(x).to(device), torch.from_numpy(rounds).to(device), out, n)
    want = np.zeros(3 * threads, np.int64)
    for i in range(3 * threads):
        t, total = i % threads, 0
        for r in range(rounds[i]):
            if x[(t * 7 + r) % n] % 3:
                value = total + r
                total += int(np.fmod(value, 1000)) + t
            else:
                total ^= int(x[t % n])
        want[i] = total
    np.testing.assert_array_equal(out.cpu().numpy(), want.astype(np.int32))
