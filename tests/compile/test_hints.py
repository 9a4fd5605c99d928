"""Hints: what the compiler's words mean for code that was written for nvcc."""

from __future__ import annotations

from pathlib import Path

import pytest

from rawkern.compile.programs import CPU_ARCH, compile_program
from rawkern.compile.source import from_path, from_text
from rawkern.errors import CompileError

SQUARE = (
    'extern "C" __global__ void square(int n, const float* x, float* y) '
    "{ int i = threadIdx.x; if (i < n) y[i] = x[i] * x[i]; }"
)


def _refused(code: str, **settings) -> CompileError:
    with pytest.raises(CompileError) as caught:
        compile_program(from_text(code, **settings), CPU_ARCH)
    return caught.value


def test_missing_header(tmp_path: Path) -> None:
    (tmp_path / "inc").mkdir()
    (tmp_path / "k.cu").write_text('#include "nope.h"\n' + SQUARE)
    with pytest.raises(CompileError) as caught:
        compile_program(from_path(tmp_path / "k.cu", include_dirs=[tmp_path / "inc"]), CPU_ARCH)
    text = str(caught.value)
    assert 'cannot open source file "nope.h"' in text and caught.value.line == 1
    assert f"\n    {tmp_path}\n    {tmp_path}/inc\n" in text and "include_dirs=[...]" in text


@pytest.mark.parametrize(
    ("code", "hint"),
    [
        ("#include <iostream>", "<iostream> is for host code"),
        (
            "int main() { square<<<1, 1>>>(0, 0, 0); }",
            "put main() and\n  other host code between #ifndef __CUDACC_RTC__",
        ),
        ("float helper(float x) { return x; }", "mark helpers, constructors and operators __device__"),
        ("int counter;", "mark the variable __device__"),
        ("#include <cub/block/block_reduce.cuh>\n__device__ void f() { cub::CTA_SYNC(); }", "write __syncthreads()"),
        (
            "template <class F> __device__ int call(F f) { return f(3); }\n"
            "__device__ int f() { return call([] __device__ (int a) { return a; }); }",
            "leave out the lambda's __device__: in device code it is the device's anyway",
        ),
        ("#include <torch/all.h>", "<torch/all.h> is for host code"),
        ("#include <cublas_v2.h>", "<cublas_v2.h> is for host code"),
        ("__device__ half x;", "#include <cuda_fp16.h>"),
        ("__global__ void k(const __nv_bfloat16* x, int n) {}", "#include <cuda_bf16.h>"),
        ("__device__ void f() { std::string s; }", "std::string is for host code, which is not compiled here"),
        ("__device__ void f() { std::vector<int> s; int n = std::min(1, 2); }", "std::vector is for host code"),
        (
            "__device__ float f() { return std::lerp(1, 2, 3); }",
            "what cuda::std has; std::lerp needs its header, or is not",
        ),
        ("__device__ void f() { cudaMalloc(0, 0); }", "calls to the CUDA runtime are host code"),
    ],
)
def test_hints(code: str, hint: str) -> None:
    assert f"hint: {hint}" in str(_refused(code + "\n" + SQUARE)) or hint in str(_refused(code + "\n" + SQUARE))


def test_guarded_host_code_compiles() -> None:
    compile_program(
        from_text(
            f"#include <stdio.h>\n{SQUARE}\n#ifndef __CUDACC_RTC__\n#include <vector>\nint main() {{}}\n#endif\n"
        ),
        CPU_ARCH,
    )
