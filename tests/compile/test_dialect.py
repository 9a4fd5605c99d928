"""What nvcc takes and NVRTC does not: a source that uses it compiles, one with declarations of its own keeps them."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

import rawkern
from rawkern.compile import dialect, nvrtc, shims
from rawkern.compile.programs import Program, compile_program
from rawkern.compile.source import CPU_ARCH, from_text
from rawkern.errors import CompileError


def _compile(code: str, *names: str, **settings) -> Program:
    return compile_program(from_text(code, **settings), CPU_ARCH, names)


def _types(program: Program) -> list[tuple[str, ...]]:
    return [entry.params for entry in program.entries]


def _rejected(code: str, **settings) -> CompileError:
    with pytest.raises(CompileError) as caught:
        _compile(code, **settings)
    return caught.value


KERNEL = 'extern "C" __global__ void k(const int* x, int* y) { %s }'


def _values(code: str, x: list[int], device: str, count: int = 4, **settings) -> list[int]:
    y = torch.full((count,), -1, dtype=torch.int32, device=device)
    rawkern.RawKernel(code, "k", **settings)[1, 1](torch.tensor(x, dtype=torch.int32, device=device), y)
    return y.tolist()


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """The options of the dialect in each run of NVRTC."""
    found: list[tuple[str, ...]] = []
    real = nvrtc._run

    def counted(*args):
        found.append(args[-1].options)
        return real(*args)

    monkeypatch.setattr(nvrtc, "_run", counted)
    return found


# --- Types of the C library -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "type_"),
    [
        ("uint", "unsigned int"),
        ("ushort", "unsigned short"),
        ("ulong", "unsigned long"),
        ("u_int", "unsigned int"),
        ("u_char", "unsigned char"),
    ],
)
def test_a_type_without_an_include(name: str, type_: str) -> None:
    assert _types(_compile(f'extern "C" __global__ void k({name} n, const {name}* x) {{}}')) == [
        (type_, f"const {type_}*")
    ]


@pytest.mark.parametrize(
    "body",
    [
        "for (uint i = 0; i < 3; i++) x[i] = 1;",
        "x[0] = (uint)x[1] + uint(3) + static_cast<uint>(x[2]) + sizeof(uint);",
        "::uint n = 3; x[0] = n;",
        "__shared__ uint s[32]; s[threadIdx.x] = 1; __syncthreads(); x[0] = s[3];",
        "uint2 pair; uint* p = &pair.x; x[0] = *p; ulong sum = 0; ushort low = x[0]; x[1] = sum + low;",
    ],
)
def test_wherever_a_type_may_stand(body: str) -> None:
    _compile(f'extern "C" __global__ void k(int* x) {{ {body} }}')


def test_results_and_instances(device: str) -> None:
    module = rawkern.RawModule("""
        template <uint N> struct Mask { static constexpr uint value = (1u << N) - 1; };
        __device__ __forceinline__ uint rotate(uint v, uint by) { return v << by | v >> (32 - by); }
        template <class T> __global__ void spin(const T* x, ulong* out, ushort n) {
            uint i = threadIdx.x;
            if (i < n) out[i] = (ulong)rotate(x[i], 4) << 8 | (Mask<8>::value & i);
        }""")
    x = torch.tensor([-1, 0x12345678, -(2**31)], dtype=torch.int32, device=device)
    out = torch.zeros(3, dtype=torch.int64, device=device)
    module.get_function("spin<uint>")[1, 32](x, out, 3)
    assert out.tolist() == [0xFFFFFFFF00, 0x2345678101, 0x802]


def test_in_a_header(tmp_path: Path) -> None:
    (tmp_path / "mix.h").write_text("inline __device__ uint mix(uint a) { return a ^ a >> 3; }\n")
    _compile('#include "mix.h"\n__global__ void k(uint* x) { *x = mix(*x); }', include_dirs=[tmp_path])


OWN = [
    "typedef unsigned int uint;",
    "typedef unsigned long long uint;",
    "using uint = unsigned char;",
    "#define uint unsigned char",
    "struct uint { int a; };",
    "enum uint : unsigned char { zero };",
    "namespace mine { using uint = unsigned char; } using mine::uint;",
    "namespace mine { using uint = unsigned char; } using namespace mine;",
]


@pytest.mark.parametrize("own", OWN)
def test_own_declarations_stay(own: str, runs: list[tuple[str, ...]]) -> None:
    code = f'{own}\nstatic_assert(sizeof(uint) == %d); extern "C" __global__ void k(uint* x, unsigned n) {{ int uchar = n; }}'
    size = 8 if "long long" in own else 1 if "char" in own else 4
    _compile(code % size)
    assert runs == [()]


@pytest.mark.parametrize("own", OWN)
def test_own_declarations_beside_one_that_is_missing(own: str) -> None:
    """``ushort`` is declared for the source, ``uint`` is not."""
    size = 8 if "long long" in own else 1 if "char" in own else 4
    _compile(f"{own}\nstatic_assert(sizeof(uint) == {size});\n__global__ void k(ushort* x, uint* y) {{}}")


def test_own_declaration_for_another_platform() -> None:
    code = '#ifdef _WIN32\ntypedef unsigned int uint;\n#endif\nextern "C" __global__ void k(uint n) {}'
    assert _types(_compile(code)) == [("unsigned int",)]


def test_names_of_variables_and_functions() -> None:
    _compile(
        "__device__ int uint; __device__ int ushort(int n) { return n; } __global__ void k(int ulong) { uint = ushort(ulong); }"
    )


def test_use_before_an_own_declaration_is_the_sources_error() -> None:
    error = _rejected("__global__ void k(float* y, uint* x) {}\ntypedef unsigned long long uint;")
    assert str(error).startswith('kernel.cu:1:29: in k: identifier "uint" is undefined')


def test_one_more_run_for_all_of_them(runs: list[tuple[str, ...]]) -> None:
    _compile("__global__ void k(uint* x, ushort* y, ulong n) {}")
    assert runs == [(), ("-include=rawkern/nvcc.h",)]


def test_other_errors_are_shown_without_it() -> None:
    error = _rejected("__global__ void k(uint* x) {\n  x[0] = y;\n}")
    assert (error.line, str(error).partition("\n")[0]) == (2, 'kernel.cu:2:10: in k: identifier "y" is undefined')
    assert "uint" not in error.log.replace("k(uint* x)", "")


def test_lines_and_own_forced_headers(tmp_path: Path) -> None:
    (tmp_path / "first.h").write_text("#define ONE 1\n")
    code = "__global__ void k(uint* x) {\n  x[0] = ONE;\n}"
    program = _compile(code, options=["-include=first.h"], include_dirs=[tmp_path])
    assert "\t.loc\t1 2 " in program.ptx and '.file\t1 "kernel.cu"' in program.ptx and "nvcc.h" not in program.ptx


@pytest.mark.parametrize(
    ("name", "what_to_do"),
    [
        ("uchar", "write unsigned char, or put typedef unsigned char uchar; before it"),
        ("ulonglong", "write unsigned long long, or put typedef unsigned long long ulonglong; before it"),
        ("uint8", "#include <cstdint> and write uint8_t"),
    ],
)
@pytest.mark.parametrize("kernel", ["k(%s* x)", "k(int n, %s* x)"])
def test_types_of_other_libraries(name: str, what_to_do: str, kernel: str) -> None:
    error = _rejected(f"__global__ void {kernel % name} {{ x[0] = 1; }}")
    assert f'identifier "{name}" is undefined' in str(error).partition("\n")[0]
    assert f"hint: neither nvcc nor this compiler declares {name}; {what_to_do}" in str(error)


# --- Names of the standard library ------------------------------------------------------------------------


NAMES = [
    ("y[0] = std::max(x[0], x[1]) - std::min<int>(x[0], 1); y[1] = std::min({3, 2});", [9, 2, -1, -1]),
    ("y[0] = std::is_same<int, decltype(x[0] + 1)>::value; y[1] = sizeof(std::conditional_t<true, char, int>);", [1, 1, -1, -1]),
    ("int64_t a = INT_MAX; y[0] = (a + x[1]) >> 4; uint8_t b = 255; b += x[1]; y[1] = b;", [2**27, 2, -1, -1]),
    ("y[0] = std::numeric_limits<int>::max(); y[1] = FLT_MAX == std::numeric_limits<float>::max();", [2**31 - 1, 1, -1, -1]),
    ("y[0] = x[0] * M_PI; y[1] = -INFINITY < -FLT_MAX; y[2] = M_PI_2f * 100; y[3] = UINT32_MAX == 4294967295u;", [31, 1, 157, 1]),
    ("y[0] = std::sqrt(16.0f) + std::abs(-2.5f); y[1] = std::isnan(0.0f); y[2] = std::floor(-0.5);", [6, 0, -1, -1]),
    ("auto [a, b] = std::make_pair(x[1], x[0]); y[0] = a; std::array<int, 2> c{b, 7}; y[1] = c[1]; y[2] = c.size();", [3, 7, 2, -1]),
    ("std::tuple<int, float> t(x[0], 0.5f); y[0] = std::get<0>(t) * std::get<1>(t); std::size_t n = 8; y[1] = n;", [5, 8, -1, -1]),
    ("y[0] = std::plus<>()(x[0], x[1]); ssize_t s = -4; y[1] = s; y[2] = CHAR_BIT; y[3] = std::uint16_t(-1);", [13, -4, 8, 65535]),
]  # fmt: skip


@pytest.mark.parametrize("bodies", [NAMES[3:6], NAMES[:3] + NAMES[6:]], ids=["numbers", "types"])
def test_names_of_headers_that_are_not_included(bodies: Sequence[tuple[str, list[int]]], device: str) -> None:
    """Few kernels of many names each: that a header declares its names, `test_shims` tests one by one."""
    blocks = "\n".join(f"{{ {body} }} y += 4;" for body, _ in bodies)
    assert _values(KERNEL % blocks, [10, 3], device, 4 * len(bodies)) == [v for _, values in bodies for v in values]


def test_own_names_that_headers_have_too(runs: list[tuple[str, ...]]) -> None:
    code = "namespace std { template <class T> __device__ T min(T a, T b) { return a + b; } }\n#define FLT_MAX 2\n#define M_PI 3\n"
    _compile(code + KERNEL % "y[0] = std::min(x[0], x[1]) + FLT_MAX + M_PI; static_assert(M_PI == 3 && FLT_MAX == 2);")
    assert runs == [()]


def test_names_that_no_header_has() -> None:
    error = _rejected(KERNEL % "y[0] = std::lerp(1.0f, 2.0f, std::min(0.5f, 1.0f)) + M_PY + std::is_odd<int>::value;")
    assert 'namespace "std" has no member "lerp"' in str(error).partition("\n")[0]
    assert 'identifier "M_PY" is undefined' in str(error) and 'has no member "is_odd"' in str(error)
    assert '"min"' not in error.log


# --- Functions of numbers of other types ------------------------------------------------------------------


@pytest.mark.parametrize("std", ["", "std::", "#include <cmath>"])
def test_functions_of_integers_and_of_two_types(std: str, device: str) -> None:
    include, std = (f"{std}\n", "std::") if std.startswith("#") else ("", std)
    code = f"""{include}extern "C" __global__ void k(const int* n, const float* x, double* y) {{
        y[0] = {std}sqrt(n[0]); y[1] = {std}pow(x[0], 2.0); y[2] = {std}pow(2, n[1]); y[3] = {std}fmax(x[0], 0.1);
        y[4] = {std}log2(n[0] * 1ull); y[5] = {std}fma(x[0], 0.1, n[1]); y[6] = {std}floor((unsigned char)7);
        y[7] = {std}atan2(x[0], -1.0); y[8] = {std}exp(n[1]) + {std}fmod(x[0], 0.25) + {std}hypot(x[0], 2.0);
    }}"""
    n, x = [1000003, -3], 0.7
    y = torch.full((9,), torch.nan, dtype=torch.float64, device=device)
    rawkern.RawKernel(code)[1, 1](
        torch.tensor(n, dtype=torch.int32, device=device), torch.tensor([x], device=device), y
    )
    x = torch.tensor(x).item()  # rounded to float; the rest is computed in double
    expected = [
        math.sqrt(n[0]), x**2, 2 ** n[1], max(x, 0.1), math.log2(n[0]), x * 0.1 + n[1], 7, math.atan2(x, -1),
        math.exp(n[1]) + math.fmod(x, 0.25) + math.hypot(x, 2.0),
    ]  # fmt: skip
    torch.testing.assert_close(y.cpu(), torch.tensor(expected, dtype=torch.float64), rtol=1e-14, atol=0)


@pytest.mark.parametrize("params", dialect._PROMOTED)
def test_every_such_function(params: str) -> None:
    arguments = (
        ("n, x, 2.0", "5u, 'c', true", "n, 0.5, n") if params.count(",") == 2 else ("x, 2.0", "n, 2u", "true, n")
    )
    if "," not in params:
        arguments = ("n", "5ull", "true")
    calls = [f"x += {name}({given});" for name in dialect._PROMOTED[params].split() for given in arguments]
    calls += [f"static_assert(sizeof({name}({arguments[0]})) == 8);" for name in dialect._PROMOTED[params].split()]
    _compile('extern "C" __global__ void k(int n, float x, float* y) { ' + "\n".join([*calls, "y[0] = x; }"]))


def test_calls_that_fit_stay_as_they_are() -> None:
    code = "static_assert(sizeof(sqrt(x)) == 4 && sizeof(pow(x, 2)) == 4 && sizeof(pow(x, x)) == 4 && sizeof(fmax(x, x)) == 4);"
    kernel = 'extern "C" __global__ void k(float x, int n, float* y) { %s y[0] = %s; }'
    _compile(kernel % (code, "sqrt(x) + pow(x, 2)"))
    ptx = _compile(kernel % (code, "sqrt(n) + pow(x, 2.0) + fmax(2.0, x)")).ptx
    assert "sqrt.rn.f64" in ptx


def test_own_overloads_of_functions() -> None:
    own = "struct Dual { float v; }; __device__ Dual sqrt(Dual a) { return {sqrt(a.v)}; }\n"
    _compile(own + KERNEL % "y[0] = sqrt(Dual{2}).v + sqrt(x[0]);")
    assert _rejected(own + KERNEL % "y[0] = sqrt(Dual{2}, 3).v;").line == 2


@pytest.mark.parametrize("call", ["max(1.5f, x[0])", "min(x[0], 3LL)", "rsqrt(x[0])"])
def test_calls_that_nvcc_finds_ambiguous_too(call: str) -> None:
    error = _rejected(KERNEL % f"y[0] = {call};")
    assert f"hint: write the arguments of {call.partition('(')[0]} in one type, such as 2.0f beside a float" in str(
        error
    )


# --- Function objects of older CUBs -----------------------------------------------------------------------

REDUCE = """
#include <cub/{header}>
extern "C" __global__ void k(const int* x, int* y) {{
    using R = cub::BlockReduce<int, 64>;
    __shared__ typename R::TempStorage s;
    int most = R(s).Reduce(x[threadIdx.x], {functor});
    __syncthreads();
    int least = R(s).Reduce(x[threadIdx.x], cub::Min{{}});
    if (threadIdx.x == 0) y[0] = most, y[1] = least;
}}"""


def test_functors_that_cub_has_dropped(device: str) -> None:
    all_of_them = """
        #include <cuda_fp16.h>
        template <class F> __device__ float with(F f, __half a, __half b) { return f(a, b); }
        extern "C" __global__ void every(float a, float b, float* y) {
            y[0] = cub::Max()(a, b); y[1] = cub::Min()(a, b); y[2] = cub::Sum()(a, b); y[3] = cub::Difference()(a, b);
            y[4] = cub::Division()(a, b); y[5] = cub::Equality()(a, b); y[6] = cub::Inequality()(a, b);
            y[7] = with(cub::Max(), a, b); y[8] = with(cub::Min(), a, b);
        }"""
    module = rawkern.RawModule(REDUCE.format(header="cub.cuh", functor="cub::Max()") + all_of_them)
    x = torch.randint(-1000, 1000, (64,), dtype=torch.int32, device=device)
    y = torch.full((2,), 10**6, dtype=torch.int32, device=device)
    module.get_function("k")[1, 64](x, y)
    assert y.tolist() == [x.max().item(), x.min().item()]
    y = torch.full((9,), torch.nan, device=device)
    module.get_function("every")[1, 1](-1.5, 0.5, y)
    assert y.tolist() == [0.5, -1.5, -1.0, -2.0, -3.0, 0.0, 1.0, 0.5, -1.5]


def test_own_functors_in_cub(runs: list[tuple[str, ...]]) -> None:
    own = "namespace cub { struct Max { template <class T> __device__ T operator()(T a, T b) const { return a; } }; }"
    code = REDUCE.format(header="block/block_reduce.cuh", functor="cub::Max()")
    _compile(code.replace("extern", f"{own}\nextern").replace("cub::Min{}", "cub::Max{}"))
    assert runs == [()]


def test_what_cub_has_dropped_for_good() -> None:
    error = _rejected("#include <cub/thread/thread_operators.cuh>\n" + KERNEL % "y[0] = cub::Maxi()(x[0], x[1]);")
    assert 'namespace "cub" has no member "Maxi"' in str(error) and "hint" not in str(error)


# --- constexpr functions ----------------------------------------------------------------------------------

CONSTEXPR = {
    "function": (
        "constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }",
        "constexpr int n = ceil_div(7, 2); y[0] = n; y[1] = ceil_div(x[0], x[1]); __shared__ float s[ceil_div(9, 4)];",
        [4, 4, -1, -1],
    ),
    "template": (
        "template <class T>\nconstexpr T\nmost(T a,\n  T b) { return a < b ? b : a; }",
        "y[0] = most(x[0], x[1]); y[1] = most<int>(-3, -2);",
        [10, -2, -1, -1],
    ),
    "members": (
        "struct P { int a; constexpr P(int b) : a{b} {} constexpr explicit P(float) : a(1) {}"
        " constexpr operator int() const { return a; } constexpr P operator+(P o) const { return P(a + o.a); } };",
        "P p(x[0]); y[0] = p + P(2); y[1] = P(1.5f);",
        [12, 1, -1, -1],
    ),
    "static members": (
        "template <int N> struct Traits { static constexpr int size() { return 2 * N; }\n"
        "  template <int M> static constexpr int times() { return N * M; } };",
        "y[0] = Traits<3>::size(); y[1] = Traits<3>::times<5>() + x[1];",
        [6, 18, -1, -1],
    ),
    "attributes, trailing type": (
        "[[nodiscard]] static constexpr inline auto\n f(int a) noexcept -> long long { return a + 1LL; }",
        "y[0] = f(x[0]);",
        [11, -1, -1, -1],
    ),
    "lambda, literal": (
        'constexpr auto twice = [](int a) { return 2 * a; }; // { \n'
        'constexpr int operator""_k(unsigned long long n) { return n * 1024; }',
        "y[0] = twice(x[0]); y[1] = 2_k;",
        [20, 2048, -1, -1],
    ),
    "defined later": (
        "struct S { constexpr int f(int a) const; };\nconstexpr int S::f(int a) const { return a - 1; }",
        "y[0] = S().f(x[0]);",
        [9, -1, -1, -1],
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", CONSTEXPR)
def test_constexpr_functions_without_device(what: str, device: str) -> None:
    declared, body, expected = CONSTEXPR[what]
    assert _values(f"{declared}\n{KERNEL % body}", [10, 3], device) == expected


LAMBDAS = {
    "generic": ("", "auto f = [=](auto a, auto b) { return a * b; }; y[0] = f(x[0], 2); y[1] = f(1.5f, x[0]);", [20, 15]),
    "passed on": ("template <class F> __device__ int twice(F f) { return f(2.5f) + f(3); }",
                  "y[0] = twice([&] (auto a) mutable -> int { return a * x[0]; });", [55, -1]),
    "nested": ("__device__ auto last = 0;", "auto f = [] (auto... a) { return (a + ...); };\n"
               "auto g = [&](auto h) { return [&, i = x[1]]\n(auto z) { return h(z, i); }; }; y[0] = g(f)(3);", [6, -1]),
    "beside constexpr": ("constexpr int one() { return 1; }", "y[0] = [](auto a) { return a + one(); }(x[0]);", [11, -1]),
}  # fmt: skip


@pytest.mark.parametrize("what", LAMBDAS)
def test_generic_lambdas(what: str, device: str) -> None:
    declared, body, expected = LAMBDAS[what]
    assert _values(f"{declared}\n{KERNEL % body}", [10, 3], device)[:2] == expected


def test_a_generic_lambda_that_is_marked() -> None:
    error = str(_rejected(KERNEL % "auto f = [=] __device__ (auto a) { return a; }; y[0] = f(x[0]);"))
    assert "hint: remove the lambda's __device__" in error and "also" not in error


def test_consteval(device: str) -> None:
    code = "consteval int f(int a) { return a * a; }\n" + KERNEL % "y[0] = f(5);"
    assert _values(code, [0], device, options=["-std=c++20"])[0] == 25


def test_constexpr_function_of_a_header(tmp_path: Path, device: str) -> None:
    (tmp_path / "tile.h").write_text("#pragma once\ntemplate <int N> constexpr int tile() { return N / 2; }\n")
    code = '#include "tile.h"\n' + KERNEL % "y[0] = tile<64>() + x[0];"
    assert _values(code, [1], device, include_dirs=[tmp_path])[0] == 33


def test_constexpr_with_types_of_the_library(runs: list[tuple[str, ...]]) -> None:
    _compile("constexpr uint f(uint a) { return a + 1; }\n__global__ void k(uint* x) { x[0] = f(x[1]); }")
    assert runs == [(), ("-include=rawkern/nvcc.h",), ("-include=rawkern/nvcc.h", "-default-device")]


@pytest.mark.parametrize(
    ("host", "column"),
    [
        ("int f(int a) { return a; }", 5),
        ("inline int f(int a) { constexpr int b = 1; return a + b; }", 12),
        ("constexpr int n = 1; int f(int a) { return a; }", 26),
        ("/* constexpr */ int f(int a) { return a; }", 21),
        ("template <class T> T f(T a) { return a; }", 22),
        ("struct P { int a; P(int b) : a(b) {} };", 19),
        ("int counter;", 5),
        ("struct S { static int n; }; int S::n = 3;", 12),
        ("auto f = [](int a) { return a; };", 6),
        ("auto f = [](auto a) { return a; };", 6),
        ("struct P { int a; [[maybe_unused]] P(int b) : a(b) {} };", 36),
        ("int main() { return 0; }", 5),
    ],
)
def test_host_code_is_rejected_beside_constexpr_functions(host: str, column: int) -> None:
    """The error is about the host code, and says nothing of the constexpr function, which compiles without it."""
    code = f"constexpr int g(int a) {{ return a; }}\n{host}\n" + KERNEL % "y[0] = g(x[0]);"
    error = _rejected(code)
    assert (error.line, error.column) == (2, column)
    assert "hint: only device code is compiled here: mark " in str(error)
    assert "__CUDACC_RTC__" in str(error) and ":1: A function" not in str(error) and "-default-device" not in str(error)
    _compile(code.replace(host, ""))


def test_more_errors_than_the_compiler_lists() -> None:
    many = "".join(f"constexpr int f{i}() {{ return {i}; }}\n" for i in range(120))
    assert "is considered a host function" in str(_rejected(f"{many}int main() {{}}\n{KERNEL % ''}"))


# --- GCC's builtins ---------------------------------------------------------------------------------------


def _of_bits(x: int, bits: int) -> dict[str, int]:
    """What GCC's builtins tell of a number of so many bits, which is not 0."""
    text = f"{x % (1 << bits):0{bits}b}"
    ones, low = text.count("1"), bits - 1 - text.rindex("1")
    return {
        "popcount": ones, "parity": ones % 2, "clz": text.index("1"), "ctz": low, "ffs": low + 1,
        "clrsb": bits - len(text.lstrip(text[0])) - 1 if text.strip(text[0]) else bits - 1,
    }  # fmt: skip


def test_builtins_for_bits(device: str) -> None:
    names, numbers = list(_of_bits(1, 32)), [1, 6, -1, -(2**31), 2**31 - 1, 0x1234567, 2**40, -(2**63), 3 * 2**33 + 2]
    forms = [(name, end, bits) for name in names for end, bits in (("", 32), ("l", 64), ("ll", 64))]
    body = "".join(
        f"y[i * {len(forms)} + {k}] = __builtin_{name}{end}(x[i]);" for k, (name, end, _) in enumerate(forms)
    )
    same = " && ".join(f"__builtin_{name}{end}({0xF0F0 << bits - 32}) == {_of_bits(0xF0F0 << bits - 32, bits)[name]}"
                       for name, end, bits in forms)  # fmt: skip
    code = f"""static_assert({same} && __builtin_bswap32(0x01020304) == 0x04030201, "");
    __global__ void k(const long long* x, int* y) {{ int i = threadIdx.x; {body} }}"""
    x = torch.tensor(numbers, device=device)
    y = torch.full((len(numbers), len(forms)), -1, dtype=torch.int32, device=device)
    rawkern.RawKernel(code)[1, len(numbers)](x, y)
    for number, row in zip(numbers, y.tolist(), strict=True):
        for (name, end, bits), value in zip(forms, row, strict=True):
            if number % (1 << bits) or name == "popcount":
                want = _of_bits(number, bits)[name] if number % (1 << bits) else 0
                assert (name, end, number, value) == (name, end, number, want)


def test_builtins_for_overflow(device: str) -> None:
    limits = [0, 1, -1, 7, -8, 2**31 - 1, -(2**31), 2**32 - 1, 2**62, 2**63 - 1, -(2**63)]
    types = {"int": (-(2**31), 2**31 - 1), "unsigned": (0, 2**32 - 1), "long long": (-(2**63), 2**63 - 1),
             "unsigned long long": (0, 2**64 - 1), "signed char": (-128, 127)}  # fmt: skip
    forms = [(op, name) for op in ("add", "sub", "mul") for name in types]
    body = "".join(
        f"{{ {name} r; at[{2 * k}] = __builtin_{op}_overflow(a, b, &r); at[{2 * k + 1}] = r; }}"
        for k, (op, name) in enumerate(forms)
    )
    code = f"""__global__ void k(const long long* x, long long* y, int n) {{
        const long long a = x[threadIdx.x], b = x[blockIdx.x];
        long long* at = y + (blockIdx.x * n + threadIdx.x) * {2 * len(forms)}; {body}
        int small; if (a == 7 && b == 7) at[0] = __builtin_smul_overflow(1 << 20, 1 << 20, &small) + small;
    }}"""
    n, x = len(limits), torch.tensor(limits, device=device)
    y = torch.zeros(n, n, len(forms), 2, dtype=torch.int64, device=device)
    rawkern.RawKernel(code)[n, n](x, y, n)
    found = y.tolist()
    assert found[limits.index(7)][limits.index(7)][0][0] == 1
    found[limits.index(7)][limits.index(7)][0][0] = 0
    for j, b in enumerate(limits):
        for i, a in enumerate(limits):
            for (op, name), (lost, value) in zip(forms, found[j][i], strict=True):
                low, high = types[name]
                whole = a + b if op == "add" else a - b if op == "sub" else a * b
                kept = (whole - low) % (high - low + 1) + low
                kept -= 2**64 * (kept >= 2**63)  # as the tensor has it
                assert (a, b, op, name, lost, value) == (a, b, op, name, not low <= whole <= high, kept)


def test_other_builtins(device: str) -> None:
    code = """
    struct P { int a, b; };
    __global__ void k(const int* x, int* y) {
        if (x[0] == 77) __builtin_unreachable();
        if (x[0] == 78) __builtin_trap();
        __builtin_assume(x[0] > 0);
        __builtin_prefetch(x, 0, 3);
        y[0] = __builtin_expect(x[0], 1) + __builtin_expect_with_probability(x[0], 3, 0.5);
        y[1] = __builtin_bswap32(x[0]) == 0x0a000000 && __builtin_bswap16(0x0102) == 0x0201
            && __builtin_bswap64(1ull) == 1ull << 56;
        y[2] = __builtin_fabsf(-2.5f) * 2 + __builtin_sqrt(16.0) + __builtin_powi(2.0, 3) + __builtin_fmaxf(1, 2);
        y[3] = __builtin_isinf(__builtin_inff()) && __builtin_isnan(__builtin_nan("")) && __builtin_huge_val() > 1e300;
        int from[3] = {1, 2, 3}, to[3];
        __builtin_memcpy(to, from, sizeof(from));
        __builtin_memmove(to + 1, to, 8);
        y[4] = to[0] * 100 + to[1] * 10 + to[2];
        y[5] = __builtin_memcmp(to, from, 4) == 0 && __builtin_memcmp(to, from, 12) < 0 && __builtin_strlen("abc") == 3;
        y[6] = __builtin_offsetof(P, b) + __builtin_abs(-1) + __builtin_llabs(-2) + *__builtin_launder(from);
        y[7] = __builtin_constant_p(x[0]);
    }"""
    assert _values(code, [10, 3], device, 8) == [20, 1, 19, 1, 112, 1, 8, 0]


def test_every_builtin_of_the_header_is_for_a_call() -> None:
    """Names that a log has, and that the header then has, in one table."""
    known = shims.builtins()
    assert {"__builtin_ctzll", "__builtin_umulll_overflow", "__builtin_tanhf"} <= known
    math = sorted(name for name in known if name.endswith("f") and name[:-1] in known and "inf" not in name)
    one = [name for name in math if not re.search("atan2|fdim|fma|fmod|frexp|hypot|ldexp|modf|next|pow|rem|scalb|sincos|nan|huge", name)]  # fmt: skip
    assert len(one) > 30
    calls = " + ".join(f"(double){name}(0.5f) + (double){name[:-1]}(0.5)" for name in one)
    _compile(f"__global__ void k(double* x) {{ x[0] = {calls}; }}")


def test_keywords_of_the_compilers_of_the_host(device: str) -> None:
    code = (
        "register int a = x[0]; __const int b = a; __const__ __signed__ char c = -1; __signed int d = b; y[0] = d * c;"
    )
    assert _values(KERNEL % code, [7], device, 1) == [-7]


def test_types_of_expressions(device: str) -> None:
    code = (
        """
#define MORE(v) ((__typeof__(v))(v) + 1)
template <class T> __device__ T sum(const T* x) { typeof(x[0] + x[1]) s = x[0]; __typeof(s) t = x[1]; return s + t; }
"""
        + KERNEL
        % """
const int n = x[0]; typeof(x[0] * 1) v = n; typeof((v)) w = 5; w += v; __typeof__(&w) p = &w; __auto_type q = *p;
float f = 2.5f; y[0] = q; y[1] = sum(x); y[2] = MORE(n); y[3] = sizeof(typeof(f * 1.0)) + (typeof(f))2.25 * 4;"""
    )
    assert _values(code, [3, 4], device) == [8, 7, 4, 17]


LITERALS = """
#define ONE (int2){ 1, \\
    -1 }
#define PAIR(a, b) (int2){a, b}
struct P { int a, b; };
namespace own { template <class T> struct Box { T v; }; }
__device__ int2 twice(int a) { return (int2){ a, 2 * a }; }
__device__ bool operator==(P, P) { return true; }
__device__ int three(int) { return 3; }
"""


def test_compound_literals(device: str) -> None:
    code = LITERALS + KERNEL % (
        "int2 v = (int2){x[0], 2}; int n = (1);\n"
        "if (n) { v.x += 1; } while (n) { break; } switch (n) { case 1: break; }\n"
        "P p = (struct P) { 5, 6 }; own::Box<int> box = (own::Box<int>){7}; auto l = [&](int) { return three(n); };\n"
        "y[0] = v.x + v.y; y[1] = (n ? ONE : (int2){3, 4}).y; y[2] = PAIR(8, 9).y + twice(10).y; // (int2){1}\n"
        "y[3] = p.b + box.v + l(0) + (p == (P){0, 0});"
    )
    assert _values(code, [20], device) == [23, -1, 29, 17]
    error = _rejected(code + "\nint main() {}")
    assert error.line == 15  # as in the source


def test_members_by_name_need_a_newer_standard() -> None:
    code = KERNEL % "int2 v = {.x = x[0], .y = 2}; y[0] = v.x;"
    assert 'options=("-std=c++20",)' in str(_rejected(code))
    _compile(code, options=("-std=c++20",))


def test_functions_of_the_runtime_for_devices() -> None:
    body = "cudaGridDependencySynchronize(); y[0] = x[0]; cudaTriggerProgrammaticLaunchCompletion();"
    ptx = compile_program(from_text(KERNEL % body), "compute_90").code.decode()
    assert "griddepcontrol.wait" in ptx and "griddepcontrol.launch_dependents" in ptx
