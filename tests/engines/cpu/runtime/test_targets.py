"""Code for other CPUs than this one: it is generated, needs nothing the process lacks, and where it can run it is right."""

from __future__ import annotations

import platform
import re
import time
from collections.abc import Iterator
from pathlib import Path

import llvmlite.binding as llvm
import numpy as np
import pytest
import torch

import rawkern
from rawkern.base import llvm as base
from rawkern.compile.programs import compile_program
from rawkern.compile.source import CPU_ARCH, from_text
from rawkern.engines.cpu.checker.instrument import Checker
from rawkern.engines.cpu.runtime import jit

pytestmark = pytest.mark.usefixtures("optimized")

KERNELS = Path(__file__).parents[4] / "benchmarks" / "compiled"
LIMIT = 10  # seconds of processor time; about a tenth is usual
CODE = r"""
#include <cuda_fp16.h>
extern "C" __global__ void block_sum(const float* x, float* out, int n) {
    __shared__ float part[32];
    float v = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) v += x[i];
    for (int o = 16; o; o >>= 1) v += __shfl_down_sync(0xffffffff, v, o);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (unsigned k = 1; k < blockDim.x / 32; k++) v += part[k];
        atomicAdd(out, v);
    }
}
extern "C" __global__ void mixed(const float* x, const unsigned char* pick, float4* out, __half* h, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float v = x[i], w = 0;
    for (int k = 0; k < pick[i]; k++) w = w * 0.5f + x[(i * 7 + k) % n];
    out[i] = make_float4(expf(v), v / (1.0f + w * w), (float)((long long)(v * 1e6f) / (pick[i] + 1)), fmaf(v, w, __fadd_ru(v, w)));
    h[i] = __hadd(__float2half(v), h[i]);
}
"""


def generate(ptx: str, kernel: str, shape: str, cpu: base.Cpu) -> float:
    """Seconds of processor time that code for `cpu` takes."""
    translation = jit.Translation(ptx)
    layout = translation.globals()
    start = time.thread_time()
    code = jit.emit(translation.lower(kernel, layout, shape, cpu), cpu)
    seconds = time.thread_time() - start
    assert llvm.ObjectFileRef.from_data(code) is not None
    return seconds


@pytest.mark.parametrize("shape", ["line", "any"])
@pytest.mark.parametrize("kernel", ["block_sum", "mixed"])
@pytest.mark.parametrize("name", base.OTHERS)
def test_code_is_generated_in_time(name: str, kernel: str, shape: str) -> None:
    assert generate(compile_program(from_text(CODE), CPU_ARCH).ptx, kernel, shape, base.OTHERS[name]) < LIMIT


@pytest.mark.parametrize("kernel", ["large", "bitonic_sort"])
def test_large_kernels_are_generated_in_time(kernel: str) -> None:
    """Code for vectors that a CPU lacks once took minutes; so did that of many blocks where lanes can wait."""
    ptx = compile_program(from_text((KERNELS / f"{kernel}.cu").read_text()), CPU_ARCH).ptx
    for name in ("haswell", "apple-m1"):
        seconds = generate(ptx, kernel, "line", base.OTHERS[name])
        assert seconds < LIMIT, f"{name}: {seconds:.1f} s"


def test_kernels_whose_lanes_wait_anywhere_are_generated_in_time() -> None:
    """Registers of all lanes were merged at each of hundreds of blocks: LLVM took 25 s here, a minute for all items."""
    code = (KERNELS / "selective_scan.cu").read_text().replace("ITEMS = 16", "ITEMS = 10")
    ptx = compile_program(from_text(code), CPU_ARCH).ptx
    seconds = generate(ptx, "selective_scan", "line", base.OTHERS["haswell"])  # where vectors are two or four registers
    assert seconds < LIMIT, f"{seconds:.1f} s"


def test_values_merge_where_lanes_reconverge() -> None:
    """Dead values are not carried along: each merged vector costs registers, copies and time to compile."""
    ptx = compile_program(from_text((KERNELS / "raytrace.cu").read_text()), CPU_ARCH).ptx
    translation = jit.Translation(ptx)
    lowered = translation.lower("raytrace", translation.globals(), "rows", base.host())
    blocks, looks = (len(re.findall(rf"(?m)^{letter}\d+:", lowered.text)) for letter in "bc")
    assert blocks > 50 and looks < 0.4 * blocks  # where the code looks for waiting lanes; nearly everywhere once
    with (
        llvm.create_context() as context,
        llvm.parse_assembly(jit.module_text(lowered, base.host()), context) as module,
    ):
        with base.target_machine(base.host()) as machine:
            base.optimize(llvm, module, machine, base.FEW)
        assert str(module).count(" = phi <32 x ") < 4 * blocks  # 22 a block once


def forget() -> None:
    """Have kernels load what they share again."""
    jit._instruments.clear()
    jit._schedulers.clear()


@pytest.fixture
def haswell() -> Iterator[None]:
    """Code for a CPU without AVX-512, that of instruments as well: vectors are passed in other registers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jit, "host", lambda: base.OTHERS["haswell"])
        forget()
        yield
    forget()


@pytest.mark.skipif(platform.machine() != "x86_64", reason="runs code for Haswell")
def test_code_without_avx512_is_right(haswell: None) -> None:
    module = rawkern.RawModule(code=CODE)
    n = 1003
    x = torch.randn(n, generator=torch.Generator().manual_seed(0))
    total = torch.zeros(1)
    module.block_sum[3, 96](x, total, n)
    torch.testing.assert_close(total[0].double(), x.double().sum(), rtol=1e-5, atol=1e-4)
    pick = (torch.arange(n) % 7).to(torch.uint8)
    out, h = torch.full((n, 4), float("nan")), torch.full((n,), 0.5, dtype=torch.float16)
    module.mixed.forall(n)(x, pick, out, h, n)
    w = np.zeros(n, np.float32)
    for k in range(7):
        w = np.where(k < pick.numpy(), w * np.float32(0.5) + x.numpy()[(np.arange(n) * 7 + k) % n], w)
    v = x.double().numpy()
    np.testing.assert_allclose(out[:, 0], np.exp(v), rtol=1e-6)
    np.testing.assert_allclose(out[:, 1], v / (1 + w.astype(np.float64) ** 2), rtol=1e-6)
    whole = np.trunc((x * 1e6).double().numpy()).astype(np.int64)
    np.testing.assert_array_equal(out[:, 2].double(), np.trunc(whole / (pick.numpy() + 1.0)).astype(np.float32))
    np.testing.assert_allclose(out[:, 3], v * w + (v + w), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(h, x.half() + 0.5)


@pytest.mark.parametrize("name", base.OTHERS)
def test_the_checker(name):
    with llvm.ObjectFileRef.from_data(jit.instrument_object(Checker, base.OTHERS[name])[0]) as file:
        code = b"".join(s.data() for s in file.sections() if s.is_text())
    assert 10_000 < len(code) < 60_000
