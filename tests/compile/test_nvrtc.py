"""What NVRTC is told beyond the user's options, so that code written for nvcc compiles."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import rawkern
from rawkern.compile import nvrtc
from rawkern.compile.libnvrtc import Nvrtc
from rawkern.compile.nvrtc import run_nvrtc
from rawkern.compile.source import CPU_ARCH, from_text

LANE = """
extern "C" __global__ void k(unsigned* x) {
    unsigned lane;
    %s("mov.u32 %%0, %%laneid;" : "=r"(lane));
    x[threadIdx.x] = lane;
}"""


@pytest.mark.parametrize("asm", ["asm", "__asm", "__asm__"])
@pytest.mark.parametrize("volatile", ["", "volatile", "__volatile", "__volatile__"])
def test_spellings_of_asm(asm: str, volatile: str, device: str) -> None:
    lanes = torch.full((40,), -1, dtype=torch.int32, device=device)
    rawkern.RawKernel(LANE % f"{asm} {volatile}")[1, 40](lanes)
    assert lanes.tolist() == [*range(32), *range(8)]


def test_volatile_asm_is_kept() -> None:
    def ptx(asm: str) -> str:
        code = f'extern "C" __global__ void k() {{ unsigned r; {asm}("mov.u32 %0, %clock;" : "=r"(r)); }}'
        return run_nvrtc(from_text(code), CPU_ARCH).ptx

    for volatile in ("volatile", "__volatile", "__volatile__"):
        assert "%clock" in ptx(f"__asm__ {volatile}")
    assert "%clock" not in ptx("__asm__")


def test_a_keyword_of_host_compilers_without_a_meaning(tmp_path: Path, device: str) -> None:
    text = "typedef struct { __extension__ union { struct { short low, high; }; int both; }; } Halves;"
    (tmp_path / "halves.h").write_text(text)
    code = """#include "halves.h"
    extern "C" __global__ void k(int* x) { Halves h; h.both = x[0]; x[0] = h.low; x[1] = __extension__ h.high; }"""
    x = torch.tensor([0x70005, 0], dtype=torch.int32, device=device)
    rawkern.RawKernel(code, include_dirs=[tmp_path])[1, 1](x)
    assert x.tolist() == [5, 7]


@pytest.mark.parametrize("options", [(), ("-D__asm__=asm volatile",)])
def test_own_macros_for_these_keywords(options: tuple[str, ...]) -> None:
    define = "" if options else "#define __asm__ asm volatile\n#define __asm asm\n"
    code = define + 'extern "C" __global__ void k() { unsigned r; __asm__("mov.u32 %0, %clock;" : "=r"(r)); }'
    result = run_nvrtc(from_text(code, options), CPU_ARCH)
    assert result.ok, result.log
    assert "%clock" in result.ptx


@pytest.mark.parametrize("options, limit", [((), 10), (("-D_CCCL_META_UNROLL_LIMIT=12",), 12)])
def test_libcudacxx_is_as_short_as_for_nvcc(options: tuple[str, ...], limit: int) -> None:
    """What NVRTC else takes half a second to read; whoever sets it has it."""
    code = '#include <cuda/std/type_traits>\nextern "C" __global__ void k(int* x) { x[0] = _CCCL_META_UNROLL_LIMIT; }'
    result = run_nvrtc(from_text(code, options), CPU_ARCH)
    assert result.ok and not result.log
    assert re.search(rf"mov\.\w+\s+%r\d+, {limit};|st\.global\.\w+\s+\[%rd\d+\], {limit};", result.ptx)


@pytest.mark.parametrize(
    "code, runs, ok",
    [
        ('__global__ void k(float* x) { x[threadIdx.x] = sinf(x[0]); printf("%f", x[0]); }', ["-minimal"], True),
        ("__global__ void k(int* x) { x[0] = y; }", ["-minimal"], False),
        ("__global__ void k(cudaTextureObject_t t, float* x) { x[0] = tex1Dfetch<float>(t, 3); }", [""], True),
        ("__global__ void k(int* x) { x[0] = CUDA_R_32F; }", [""], True),
        ("struct cudaExtent {}; __global__ void k() {}", [""], False),
        ("#define JOIN(a, b) a##b\n__global__ void k(JOIN(cud, aError_t)* x) { x[0] = cudaSuccess; }", [""], True),
        ("#define JOIN(a, b) a##b\n__global__ void k(JOIN(cud, aExtent)* x) { x->width = 1; }", ["-minimal", ""], True),
        ("#if !__has_include(<cmath>)\n#error\n#endif\n__global__ void k() {}", [""], True),
        ("%:include <cmath>\n__global__ void k(float* x) { x[0] = std::sqrt(x[0]); }", [""], True),
        ("#include <cuda_fp16.h>\n__global__ void k(half* x) { x[0] = 1; }", [""], True),
        ("__global__ void k(float* x, uint8_t n) { x[n] = -INFINITY; }", ["-minimal", "-minimal"], True),
        ("__global__ void k(float* x) { x[0] = std::max(x[1], FLT_MAX); }", ["-minimal", "-minimal"], True),
        ("__global__ void k(float* x) { x[0] = INFINITY; x[1] = y; }", ["-minimal", "-minimal"], False),
    ],
)
def test_what_small_kernels_have_no_use_for_is_left_out(code: str, runs: list[str], ok: bool, monkeypatch) -> None:
    """The runtime's types, textures and surfaces, unless the source may mean one; its code and errors are the same."""
    found = []
    real = Nvrtc.compiled

    def compiled(self, options, *rest):
        found.append("-minimal" * ("-minimal" in options))
        return real(self, options, *rest)

    monkeypatch.setattr(Nvrtc, "compiled", compiled)
    source = from_text(code)
    result = run_nvrtc(source, CPU_ARCH)
    assert (found, result.ok) == (runs, ok)
    monkeypatch.setattr(nvrtc, "_is_minimal", lambda *_: False)
    assert run_nvrtc(source, CPU_ARCH) == result
