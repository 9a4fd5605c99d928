"""Hints: what the compiler's words mean for code that was written for nvcc."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rawkern.compile import hints
from rawkern.compile.programs import compile_program
from rawkern.compile.source import CPU_ARCH, from_path, from_text
from rawkern.errors import CompileError

SQUARE = (
    'extern "C" __global__ void square(int n, const float* x, float* y) '
    "{ int i = threadIdx.x; if (i < n) y[i] = x[i] * x[i]; }"
)


def _rejected(code: str, **settings) -> CompileError:
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
        ("int main() { return 0; }", "put main() and other host code between #ifndef __CUDACC_RTC__"),
        (
            "float helper(float x) { return x; }",
            "mark a kernel __global__, helpers, constructors and operators __device__",
        ),
        ("int counter;", "mark the variable __device__"),
        ("#ifndef __linux__\n#error which system?\n#endif", 'pass options=("-D__linux__",)'),
        ("__device__ int f(int a, int b) { return a ?: b; }", "write a ? a : b"),
        ("__device__ int f(int a) { return ({ int b = a; b * b; }); }", "[&] { ... }()"),
        ("__device__ int f(int a) { switch (a) { case 1 ... 3: return 1; } return 0; }", "list the values"),
        (
            "namespace cub {}  // as its headers leave it\n__device__ void f() { cub::CTA_SYNC(); }",
            "write __syncthreads()",
        ),
        (
            "template <class F> __device__ int call(F f) { return f(3); }\n"
            "__device__ int f() { return call([] __device__ (int a) { return a; }); }",
            "remove the lambda's __device__: a lambda in device code is device code",
        ),
        (
            "#include <torch/all.h>\n__device__ void f() { at::Generator g; }",
            "device code can use PyTorch's number types",
        ),
        ("__device__ half x;", "#include <cuda_fp16.h>"),
        ("__global__ void k(const __nv_bfloat16* x, int n) {}", "#include <cuda_bf16.h>"),
        ("__device__ void f() { std::string s; }", "std::string is for host code, which is not compiled here"),
        ("__device__ void f() { std::vector<int> s; int n = std::min(1, 2); }", "std::vector is for host code"),
        (
            "__device__ float f() { return std::lerp(1, 2, 3); }",
            "that is in cuda::std; include the header of std::lerp",
        ),
        ("__device__ void f() { cudaMalloc(0, 0); }", "calls to the CUDA runtime are host code"),
    ],
)
def test_hints(code: str, hint: str) -> None:
    assert hint in str(_rejected(code + "\n" + SQUARE))


K = 'extern "C" __global__ void k'


@pytest.mark.parametrize(
    ("code", "headline", "hint"),
    [
        ("__global__ void k(Foo* x, int n) {}", 'identifier "Foo" is undefined', ""),
        (K + "(const Foo* x, float* y) { y[0] = x[0]; }", 'identifier "Foo" is undefined', ""),
        (
            "__host__ int f();\n" + K + "(int* x) { x[0] = f(); }",
            'identifier "f" is undefined',
            "mark it __host__ __device__",
        ),
        (K + "(half* x) {}", 'identifier "half" is undefined', "#include <cuda_fp16.h>"),
        (K + "(int* x) { __half2float(x[0]); }", 'identifier "__half2float" is undefined', "#include <cuda_fp16.h>"),
        (K + "(const __nv_bfloat16* x) {}", 'identifier "__nv_bfloat16" is undefined', "#include <cuda_bf16.h>"),
        (K + "(int* x) { __bfloat162float(x[0]); }", 'identifier "__bfloat162float" is undefined', "<cuda_bf16.h>"),
        (K + "(__nv_fp8_e4m3* x) {}", 'identifier "__nv_fp8_e4m3" is undefined', "#include <cuda_fp8.h>"),
        (K + "(uint32* x) {}", 'identifier "uint32" is undefined', "#include <cstdint> and write uint32_t"),
        (K + "(curandState* x) {}", 'identifier "curandState" is undefined', "#include <curand_kernel.h>"),
        (K + "(cuComplex x) {}", 'identifier "cuComplex" is undefined', "#include <cuComplex.h>"),
        (K + "(complex<float> x) {}", 'identifier "complex" is undefined', "write cuda::std::complex<float>"),
        (
            "namespace cg = cooperative_groups;",
            'namespace "cooperative_groups" is undefined',
            "#include <cooperative_groups.h>",
        ),
        (
            K + "() { cg::this_thread_block().sync(); }",
            'namespace or class "cg" is undefined, in cg::this_thread_block',
            "#include <cooperative_groups.h> and write namespace cg = cooperative_groups;",
        ),
        (
            K + "() { this_grid().sync(); }",
            'identifier "this_grid" is undefined',
            "write cooperative_groups::this_grid",
        ),
        (
            "#include <cooperative_groups.h>\n__device__ void f() { cooperative_groups::reduce(1, 2, 3); }",
            'namespace "cooperative_groups" has no member "reduce"',
            "#include <cooperative_groups/reduce.h>",
        ),
        (
            K + "(thrust::complex<float>* x) {}",
            'namespace or class "thrust" is undefined, in thrust::complex',
            "Thrust is for host code",
        ),
        (K + "() { cub::BlockReduce<int, 32> r; }", 'namespace or class "cub" is undefined', "#include <cub/cub.cuh>"),
        (
            K + "(cuda::std::array<int, 3> x) {}",
            'namespace or class "cuda" is undefined, in cuda::std::array',
            "#include <cuda/std/array>",
        ),
        (K + "(int* x) { cuda::atomic_ref<int> r(*x); }", 'namespace or class "cuda" is undefined', "<cuda/atomic>"),
        (
            K + "(at::Half* x) {}",
            'namespace or class "at" is undefined, in at::Half',
            "include its headers\n  (<torch/extension.h>",
        ),
        (K + "() { mine::f(); }", 'namespace or class "mine" is undefined, in mine::f', "or a name is misspelled"),
        (K + '() { printf("a\n"); }', "missing closing quote", "make it a raw string"),
        (
            K + "() {}\n" + K + "2() { k<<<1, 1>>>(); }",
            "device-side kernel launch could not be processed",
            "launch one after the other from Python",
        ),
        (K + "(int* x) { __shfl_down(x[0], 1); }", 'identifier "__shfl_down" is undefined', "it is __shfl_down_sync"),
        (
            'extern "C" __global__ __cluster_dims__(2) void k() {}',
            "__cluster_dims__ is not supported for this GPU architecture",
            "#if __CUDA_ARCH__ >= 900 and #endif",
        ),
    ],
)
def test_headline_and_hint(code: str, headline: str, hint: str) -> None:
    first, *rest = str(_rejected(code)).splitlines()
    assert headline in first
    assert f"{'hint: ' * (not hint)}{hint}" in "\n".join(rest) if hint else "hint: " not in "\n".join(rest)
    # What follows from the headline's error is not told.
    assert not [line for line in rest if line.startswith("also ") and headline.split('"')[0] not in line]


def test_headers_of_thrust() -> None:
    sorts = "void sort(float* x) { thrust::sort(thrust::device, x, x + 3); }\n"
    compile_program(from_text(f"#include <thrust/sort.h>\n{sorts}{SQUARE}"), CPU_ARCH)  # left out with the function
    error = _rejected("#include <thrust/sort.h>\n__device__ thrust::complex<float> z;\n" + SQUARE)
    assert "hint: Thrust is for host code" in str(error) and error.line == 2


def test_missing_quote_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "k.cu").write_text(K + '() { printf("a\n"); }')
    with pytest.raises(CompileError, match="missing closing quote") as caught:
        compile_program(from_path(tmp_path / "k.cu"), CPU_ARCH)
    assert "raw" not in str(caught.value)


def test_guarded_host_code_compiles() -> None:
    compile_program(
        from_text(
            f"#include <stdio.h>\n{SQUARE}\n#ifndef __CUDACC_RTC__\n#include <vector>\nint main() {{}}\n#endif\n"
        ),
        CPU_ARCH,
    )


@pytest.mark.parametrize("include", ["cuda/std/numeric", "cuda/std/algorithm"])
def test_a_hint_names_headers_that_are_there(include: str) -> None:
    """CUDA 13.0 has no <cuda/std/algorithm>; what the hint says compiles, whichever header that is."""
    clamp = 'extern "C" __global__ void k(int* x) { x[0] = cuda::std::clamp(x[0], 1, 3); }'
    try:
        compile_program(from_text(f"#include <{include}>\n{clamp}"), CPU_ARCH)
    except CompileError as error:
        named = re.findall(r"#include (<.*>)$", str(error), re.M)[-1]
        compile_program(from_text(f"#include {named}\n{clamp}"), CPU_ARCH)


def test_a_hint_whose_header_is_nowhere(tmp_path: Path) -> None:
    source = from_text("")
    for text, header in (
        ('identifier "__nv_fp4_e2m1" is undefined', "cuda_fp4.h"),
        ('namespace "cuda" has no member "ceil_div"', "cuda/cmath"),
    ):
        words = hints.hint(text, source.name, source, (str(tmp_path),))
        assert f"<{header}> is not among the installed CUDA headers" in words
        (tmp_path / header).parent.mkdir(exist_ok=True)
        (tmp_path / header).write_text(text.split('"')[-2])
        assert hints.hint(text, source.name, source, (str(tmp_path),)) == f"hint: #include <{header}>"


KERNEL = 'extern "C" __global__ void k(float* x, int n) {{ {} }}'


@pytest.mark.parametrize(
    "body",
    [
        "x[0] = half_width;", "x[0] = curand_idx;", "x[0] = cuComplexity;", "x[0] = cudaIndex;", "x[0] = __pipeline_depth;",
        "x[0] = CUDART_HOME;", "x[0] = __half_life;", "x[0] = bfloat16s;",
    ],
)  # fmt: skip
def test_names_like_those_of_cuda_have_no_hint(body: str) -> None:
    error = _rejected(KERNEL.format(body))
    assert "is undefined" in str(error) and "hint:" not in str(error)


def test_a_type_in_another_error_is_no_hint() -> None:
    error = _rejected("#include <cuda_fp16.h>\nstruct S { __half h; };\n" + KERNEL.format("S s; s.g = 1;"))
    assert 'has no member "g"' in str(error) and "hint:" not in str(error)


def test_with_the_header_of_the_hint_it_compiles() -> None:
    bodies = [
        "half h;", "__half2float(__half());", "__nv_bfloat16 b;", "__nv_fp8_e4m3 q;", "curandState s;",
        "curandStatePhilox4_32_10_t t;", "make_cuFloatComplex(1, 2);", "__pipeline_commit();", "x[0] = CUDART_INF_F;",
    ]  # fmt: skip
    of_header: dict[str, list[str]] = {}
    for body in bodies:
        found = re.search(r"hint: (#include <[\w.]+>)$", str(_rejected(KERNEL.format(body))), re.M)
        assert found is not None, body
        of_header.setdefault(found[1], []).append(body)
    for include, those in of_header.items():
        compile_program(from_text(f"{include}\n{KERNEL.format(' '.join(those))}"), CPU_ARCH)


@pytest.mark.parametrize(
    ("code", "hint", "better"),
    [
        ("x[0] = threadIdX.x;", "did you mean 'threadIdx'?", "x[0] = threadIdx.x;"),
        ("float total = 1; x[0] = totel;", "did you mean 'total'?", "float total = 1; x[0] = total;"),
        ("__shared__ float s = 3.f; x[0] = s;", "set it in the kernel: if (threadIdx.x == 0) s = ...; and then",
         "__shared__ float s; if (threadIdx.x == 0) s = 3.f; __syncthreads(); x[0] = s;"),
        ("extern __shared__ float s[]; { extern __shared__ int s[]; s[0] = 1; } x[0] = s[0];", "declare it once, extern __shared__ char s[];",
         "extern __shared__ char s[]; float* a = reinterpret_cast<float*>(s); x[0] = a[0];"),
        ("x[0] = std::min(x[0], 1.0);", "write the arguments of std::min in one type, such as 2.0f", "x[0] = std::min(x[0], 1.0f);"),
        ("x[0] = max(x[0], 1);", "write the arguments of max in one type, such as 2.0f", "x[0] = max(x[0], 1.0f);"),
    ],
)  # fmt: skip
def test_what_a_hint_says_compiles(code: str, hint: str, better: str) -> None:
    include = "#include <algorithm>\n" * ("std::" in code)  # which takes NVRTC two seconds
    assert hint in str(_rejected(f"{include}{KERNEL.format(code)}")).partition("hint: ")[2]
    compile_program(from_text(f"{include}{KERNEL.format(better)}"), CPU_ARCH)


@pytest.mark.parametrize(
    ("assembly", "arch", "needed"),
    [
        ('"cp.async.bulk.prefetch.tensor.1d.L2.global [%0, {%1}];" :: "l"(x), "r"(0)', "sm_80", "9.0: TMA"),
        ('"wgmma.fence.sync.aligned;"', "sm_80", "9.0: wgmma"),
        ('"barrier.cluster.arrive;"', "sm_80", "9.0: barrier.cluster"),
        ('"cp.async.wait_all;"', "sm_75", "8.0: cp.async"),
    ],
)
def test_instructions_of_newer_gpus(assembly: str, arch: str, needed: str) -> None:
    """What a GPU without an instruction says of a kernel with it, before the launch."""
    source = from_text(KERNEL.format(f"asm volatile({assembly});"))
    with pytest.raises(CompileError, match=rf"this kernel needs compute capability {re.escape(needed)}"):
        compile_program(source, arch)


def test_other_hints() -> None:
    texture = _rejected("texture<float> t;\n" + KERNEL.format("x[0] = tex1Dfetch(t, 0);"))
    assert "hint: texture references ended with CUDA 12; read a pointer instead" in str(texture)
    fragment = KERNEL.format("wmma::fragment<wmma::accumulator, 16, 16, 16, float> a;")
    assert "hint: #include <mma.h> and write nvcuda::wmma" in str(_rejected(fragment))
    compile_program(from_text("#include <mma.h>\n" + fragment.replace("wmma::", "nvcuda::wmma::")), CPU_ARCH)
    assert "CUDA headers at hand" not in str(_rejected(KERNEL.format("at::Half h;")))
    options = _rejected(KERNEL.format(""), options=("-fast-math",))
    assert "leave it out; did you mean '--use_fast_math'?" in str(options)
    compile_program(from_text(KERNEL.format(""), options=("--use_fast_math",)), CPU_ARCH)
