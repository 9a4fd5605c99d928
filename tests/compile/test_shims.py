"""Standard headers, and CUDA's own, that sources include without an option."""

from __future__ import annotations

from pathlib import Path

import pytest

from rawkern.compile import shims
from rawkern.compile.programs import Program, compile_program
from rawkern.compile.source import CPU_ARCH, from_text


def _compile(code: str, **settings) -> Program:
    return compile_program(from_text(code, **settings), CPU_ARCH)


def _types(program: Program) -> dict[str, tuple[str, ...]]:
    return {entry.name: entry.params for entry in program.entries}


KERNEL = 'extern "C" __global__ void k(float* x, double* d) { %s }'
HEADERS = {
    "half": (
        "cuda_fp16.h cuda_bf16.h cuda_fp8.h",
        "x[0] = __half2float(__hadd(__float2half(1.5f), __float2half(x[1])));",
    ),
    # All of these include libcu++, which takes long to read.
    "libcu++, groups, cub, standard": (
        "cooperative_groups.h cooperative_groups/reduce.h cub/cub.cuh cuda/std/cstdint cuda/std/limits cuda/atomic "
        "algorithm limits type_traits utility tuple array initializer_list ranges source_location version",
        "auto b = cooperative_groups::this_thread_block(); auto w = cooperative_groups::tiled_partition<32>(b);"
        "x[0] = cooperative_groups::reduce(w, x[1], cooperative_groups::plus<float>());"
        "using R = cub::BlockReduce<float, 128>; __shared__ R::TempStorage s; x[0] = R(s).Sum(x[threadIdx.x]);"
        "cuda::atomic_ref<float> a(x[0]); a.fetch_add(cuda::std::numeric_limits<float>::max());"
        "x[0] = std::max(x[1], std::numeric_limits<float>::epsilon()); std::swap(x[1], x[2]);"
        "static_assert(std::is_same<int, int>::value);"
        "x[3] = std::get<0>(std::make_tuple(std::move(x[4]), 1)); std::array<float, 2> two{}; x[5] = two[1];"
        "for (float v : std::initializer_list<float>{1, 2}) x[6] += v;",
    ),
    "mma": (
        "mma.h",
        "nvcuda::wmma::fragment<nvcuda::wmma::accumulator, 16, 16, 16, float> f; nvcuda::wmma::fill_fragment(f, 0.f);",
    ),
    "math": (
        "cmath math.h cfloat climits cstdint float.h limits.h stdint.h",
        "x[0] = std::sqrt(x[1]) + std::abs(x[2]) + INFINITY + FLT_MAX + INT_MAX + std::isnan(x[2]);"
        "d[0] = std::exp(d[1]) + M_PI + std::pow(x[1], 2) + UINT32_MAX;"
        "static_assert(sizeof(std::uint64_t) == 8 && INT64_MIN < 0); constexpr float inf = INFINITY; x[1] = inf + NAN;",
    ),
    "C": (
        "stdio.h stdlib.h string.h assert.h stddef.h cstdio cstdlib cstring cassert cstddef time.h stdbool.h sys/types.h "
        "stdalign.h iso646.h ciso646 cstdarg",
        'printf("%f", d[0]); assert(x != NULL); memcpy(x, d, 8); std::size_t n = offsetof(float4, y); x[0] = n;'
        "void* p = malloc(n); free(p); uint u = 3; ushort s = u; ssize_t l = s; x[1] = l + (std::byte{3} == std::byte{4});",
    ),
    "runtime": (
        "cuda.h cuda_runtime.h cuda_runtime_api.h device_launch_parameters.h cuComplex.h math_constants.h",
        "float4 f = make_float4(1, 2, 3, 4); x[0] = f.w + CUDART_INF_F + CUDA_VERSION; dim3 g = gridDim;",
    ),
}  # fmt: skip


@pytest.mark.parametrize("family", HEADERS)
def test_headers_need_no_option(family: str) -> None:
    names, body = HEADERS[family]
    program = _compile("".join(f"#include <{name}>\n" for name in names.split()) + KERNEL % body)
    assert _types(program) == {"k": ("float*", "double*")}


def test_users_header_wins_over_a_stand_in(tmp_path: Path) -> None:
    (tmp_path / "stdint.h").write_text("typedef float int32_t;")
    program = _compile('#include <stdint.h>\nextern "C" __global__ void k(int32_t x) {}', include_dirs=[tmp_path])
    assert _types(program) == {"k": ("float",)}


@pytest.mark.parametrize("header", sorted({*shims.declared_in().values()}))
def test_names_are_declared_in_their_headers(header: str) -> None:
    names = [name for name, where in shims.declared_in().items() if where == header]
    macros = [name for name in names if name.isupper() or name.startswith("M_") or name == "offsetof"]
    code = [f"#include <{header}>", *(f"#ifndef {name}\n#error {name}\n#endif" for name in macros)]
    code += [
        f"namespace names {{ using {name if name.startswith('std::') else '::' + name}; }}"
        for name in names
        if name not in macros
    ]
    _compile("\n".join([*code, KERNEL % ""]))


def test_header_of() -> None:
    assert shims.header_of("std::is_trivially_copyable_v") == shims.header_of("std::enable_if_t") == "type_traits"
    assert (shims.header_of("std::is_sorted"), shims.header_of("std::sqrtf"), shims.header_of("INT_MAX")) == (
        "algorithm",
        "cmath",
        "climits",
    )
    assert shims.header_of("std::vector") == shims.header_of("vector") == shims.header_of("is_same") == ""
