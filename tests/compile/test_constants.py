"""Constant expressions of a source, computed by the compiler: values, Python types, errors, what is kept."""

from __future__ import annotations

import math
import time
from pathlib import Path

import pytest
import torch

import rawkern
from rawkern.base import cache
from rawkern.compile import constants
from rawkern.errors import CompileError

SOURCE = r"""
#include <cuda_fp16.h>
#define TILE 32
#define AREA (TILE * \
    (TILE + 1))
namespace ns {
enum class Mode : short { A = -3, B = 7 };
enum { PLAIN = 12 };
struct Params { float4 v; char c; };
template <class T, int N> struct Traits {
    using type = T;
    static constexpr int kSize = N * sizeof(T);
    static constexpr T kScale = T(-1.5);
    static constexpr bool kVector = N > 1;
    static constexpr double kTable[3] = {0.5, 1e300, -0.0};
};
}
namespace { constexpr unsigned char hidden = 200; }
constexpr float pi = 3.14159f;
constexpr double third = 1.0 / 3, none = 0.0 / 0.0;
const int n = 7;
const float changing = 1.5f;
__device__ int counter = 3;
__constant__ float table[4];
constexpr int smem_bytes(int a, int b = 4) { return a * b * sizeof(float); }
template <class T> constexpr T two = T(2);
constexpr const char* name = "abc";
constexpr float2 pair{1.5f, -2.5f};
constexpr __int128 wide = -((__int128)1 << 100);
constexpr __half half_number{};
template <class T> __global__ void k(T* x) {}
"""


@pytest.fixture(scope="module")
def module() -> rawkern.RawModule:
    return rawkern.RawModule(SOURCE)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("TILE", 32),
        ("AREA", 1056),
        ("ns::Mode::A", -3),
        ("ns::PLAIN", 12),
        ("sizeof(ns::Params)", 32),
        ("sizeof(ns::Traits<double, 1>::type)", 8),
        ("ns::Traits<float, 4>::kSize", 16),
        ("ns::Traits<double, 1>::kScale", -1.5),
        ("ns::Traits<float, 1>::kVector", False),
        ("ns::Traits<int, 2>::kVector", True),
        ("ns::Traits<int, 2>::kTable[1]", 1e300),
        ("hidden", 200),
        ("n", 7),
        ("third", 1 / 3),
        ("smem_bytes(128)", 2048),
        ("smem_bytes(TILE, 2) > 255", True),
        ("two<unsigned long long> << 62", 2**63),
        ("-1", -1),
        ("(signed char)0x80", -128),
        ("'a'", 97),
        ("~0u", 2**32 - 1),
        ("pair.y", -2.5),
        ("wide", -(2**100)),
        ("(unsigned __int128)-1", 2**128 - 1),
        ("INT_MAX", 2**31 - 1),
        ("std::numeric_limits<float>::max()", torch.finfo(torch.float32).max),
        ("1.0 / 0", math.inf),
        ("__CUDA_ARCH__", 800),
    ],
)
def test_values(module: rawkern.RawModule, expression: str, expected: bool | int | float) -> None:
    found = module.constant(expression, "cpu")
    assert type(found) is type(expected) and found == expected


def test_floats_are_those_of_the_type(module: rawkern.RawModule) -> None:
    assert module.constant("pi", "cpu") == torch.tensor(3.14159).item()
    assert math.copysign(1, module.constant("ns::Traits<int, 2>::kTable[2]", "cpu")) == -1
    assert math.isnan(module.constant("none", "cpu"))


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("nope", '; the compiler says: identifier "nope" is undefined'),
        ("ns::Traits<float, 4>::nope", 'the compiler says: class "ns::Traits<float, 4>" has no member "nope"'),
        ("ns::Traits<float, 4>", "the compiler says: type name is not allowed"),
        ("changing", "the compiler says: expression must have a constant value"),
        ("counter", "get_global reads variables"),
        ("1 / 0", "the compiler says: "),  # "division by zero", "must have a constant value": releases differ
        ("1, 2", "'1, 2' is not a constant expression"),
        ("smem_bytes(3", "not a constant expression"),
        ("1); int x = (2", "not a constant expression"),
        ("", "'' is not a constant expression"),
        ("TILE +\n", "not a constant expression"),
        ("name", ", a constant is a number; pass an expression for a number in it"),
        ("pair", "'pair' is of type float2"),
        ("ns::Traits<int, 2>::kTable", "is of type double const*"),
        ("half_number", "'half_number' is of type __half"),
        ("smem_bytes", "is of type int (*)(int, int)"),
        ("nullptr", "a constant is a number"),
    ],
)
def test_what_is_not_a_constant(module: rawkern.RawModule, expression: str, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        module.constant(expression, "cpu")
    assert message in str(caught.value)


def test_other_rejections(module: rawkern.RawModule) -> None:
    with pytest.raises(TypeError, match="takes a C\\+\\+ expression as a string, got int"):
        module.constant(3)  # type: ignore[arg-type]
    with pytest.raises(CompileError, match='identifier "oops" is undefined'):
        rawkern.RawModule("constexpr int n = oops;").constant("n")
    with pytest.raises(ValueError, match="rawkern runs on cpu and cuda"):
        module.constant("n", "meta")


def test_options_and_the_last_word_on_macros() -> None:
    code = "constexpr int before = N;\n#undef N\n#define N 5\n__global__ void k() {}"
    module = rawkern.RawModule(code, options=("-DN=4", "-DM=9"))
    assert [module.constant(name) for name in ("before", "N", "M")] == [4, 5, 9]


def test_architectures_have_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    module = rawkern.RawModule(
        "#if __CUDA_ARCH__ >= 900\nconstexpr int stages = 4;\n#else\nconstexpr int stages = 2;\n#endif"
    )
    assert module.constant("stages", "cpu") == 2
    monkeypatch.setattr("rawkern.launch.builds.architecture", lambda device, compiled: "sm_90")
    assert module.constant("stages", "cpu") == 4


def test_a_kernel_is_launched_with_what_the_source_says(device: str) -> None:
    module = rawkern.RawModule("""
        template <int N> struct Tile { static constexpr int bytes = N * sizeof(float), block = 2 * N; };
        template <int N> __global__ void reverse(const float* x, float* y) {
            extern __shared__ float s[];
            if (threadIdx.x < N) s[threadIdx.x] = x[threadIdx.x];
            __syncthreads();
            if (threadIdx.x < N) y[threadIdx.x] = s[N - 1 - threadIdx.x];
        }""")
    x, y = torch.randn(50, device=device), torch.full((50,), torch.nan, device=device)
    bytes_, block = (module.constant(f"Tile<50>::{name}", device) for name in ("bytes", "block"))
    module.get_function("reverse<50>")[1, block, bytes_](x, y)
    assert torch.equal(y, x.flip(0))


def test_each_is_computed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAWKERN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "_kept", {})
    runs: list[str] = []
    real = constants.run_nvrtc
    monkeypatch.setattr(constants, "run_nvrtc", lambda *args, **kwargs: runs.append("run") or real(*args, **kwargs))
    (tmp_path / "size.h").write_text("constexpr int size = 3;\n")
    (tmp_path / "k.cu").write_text('#include "size.h"\n__global__ void k() {}\n')
    module = rawkern.load(tmp_path / "k.cu")
    assert [module.constant("size * 2", "cpu") for _ in range(3)] == [6, 6, 6] and len(runs) == 1
    cache._kept.clear()  # as in another process
    assert rawkern.load(tmp_path / "k.cu").constant("size * 2", "cpu") == 6 and len(runs) == 1
    (tmp_path / "size.h").write_text("constexpr int size = 50;\n")
    time.sleep(0.11)
    assert module.constant("size * 2", "cpu") == 100 and len(runs) == 2
