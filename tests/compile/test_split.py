"""Sources of extensions in two: what is marked and what that reaches stays, host code is blanked, lines stay."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch

import rawkern
from rawkern.compile.conditions import DEVICE, HOST, left_out
from rawkern.compile.declarations import blanked
from rawkern.compile.split import split, split_files

TORCH = "#include <torch/extension.h>\n"
KERNEL = "__global__ void k(float* x) { %s }\n"


def _stays(text: str, code: str) -> bool:
    """Whether a piece of a source is device code; lines and columns are those of the text in any case."""
    device = split(text).device
    assert len(device) == len(text) and device.count("\n") == text.count("\n")
    assert all(a in (b, " ") for a, b in zip(device, text, strict=True))
    at = text.index(code)
    here = device[at : at + len(code)]
    assert here == code or not here.strip(), here
    return here == code


@pytest.mark.parametrize(
    "code",
    [
        "at::Tensor f(at::Tensor x) { k<<<1, 32>>>(x.data_ptr<float>()); return x; }",
        "std::vector<at::Tensor> f(torch::Tensor x) { return {x, x}; }",
        "void f(int n);",
        "static inline int unused(int n) { return n + 1; }",
        "template <typename T> void run(T* x, cudaStream_t s) { k<<<1, 1, 0, s>>>(x); }",
        "template void run<float>(float*, cudaStream_t);",
        "PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def(\"f\", &f, R\"(a } brace)\"); }",
        "TORCH_LIBRARY_IMPL(ns, CUDA, m) { m.impl(\"f\", f); }",
        "std::mutex lock;",
        "static bool seen = false;",
        "struct Cache { std::vector<at::Tensor> tensors; };",
        "using Tensors = std::vector<at::Tensor>;",
        "namespace py = pybind11;",
        "class Layer : public torch::nn::Module { void run() { k<<<1, 1>>>(nullptr); } };",
        "template <int N> struct Launch { static void run(float* x) { k<<<N, 32>>>(x); } };",
        "struct Out { at::Tensor y; __host__ at::Tensor get() { return y; } };",
        "__host__ __device__ int sum(std::vector<int>& all) { return all.size(); }",
        "extern \"C\" int main() { return 0; }",
        "class Timer { struct timeval start; float elapsed; };",
        "struct Files { FILE *open; };",
        "struct Shared { pid_t owner; glob_t files; };",
        "template <class T> struct Error : T { void raise() { throw *this; } };\n"
        "template <class T> Error<T>::Error() : T(\"unknown\") {}",
        "template <class T> struct Compare { bool same(T* a) { fprintf(stderr, \"no\"); return false; } };\n"
        "template <> struct Compare<int> { bool same(int* a) { return a[0] == 1; } };",
        "void g(float a) try { throw 1; } catch (...) { }",
        "int f(const char* s) { return s[0] == '}' ? 1 : 0; /* } */ }",
        "at::Tensor f(at::Tensor x)\n#if TORCH_VERSION_MAJOR >= 2\n",
    ],
)  # fmt: skip
def test_host_code_goes(code: str) -> None:
    if code.endswith("\n"):  # a function of which #if has two heads
        text = f"{TORCH}{KERNEL % ''}{code}{{ int a; \n#else\n{{ int b; \n#endif\n return x; }}\n__device__ int d;\n"
        device = split(text).device
        assert "Tensor" not in device and "return" not in device and "__device__ int d;" in device
        assert device.count("#if") == device.count("#endif") == 1
        return
    assert not _stays(f"{TORCH}{KERNEL % 'x[0] = 1;'}{code}\n__device__ int after;\n", code)
    assert _stays(f"{TORCH}{KERNEL % 'x[0] = 1;'}{code}\n__device__ int after;\n", "__device__ int after;")


@pytest.mark.parametrize(
    ("code", "used"),
    [
        ("__device__ float twice(float a) { return 2 * a; }", ""),
        ("__constant__ float table[3];", ""),
        ("constexpr int N = 1 << 5;", ""),
        ("const float kEps = 1e-5f;", ""),
        ("inline int up(int n) { return n + 1; }", "up(1)"),
        ("template <typename T> T up(T n) { return n + 1; }", "up(1)"),
        ("constexpr int up(int n) { return n + 1; }", "N\n#define N up(3)\n"),
        ("struct Params { float* x; int n; int count() const { return n; } };", ""),
        ("template <int N, bool causal> struct Traits { static constexpr int n = N * (causal ? 1 : 2); };", ""),
        ("template <> struct Traits2<(3 > 2)> { using type = int; };", ""),
        ("enum class Mode { kSum, kMean };", ""),
        ("typedef float (*Fn)(float);", ""),
        ("union Word { float f; int i; };", ""),
        ("template <int DIR> struct Step { static constexpr int by = DIR * 2; };", ""),
        ("template <typename T> struct One { int n; };\ntemplate <> struct One<int> { long n; };", ""),
        ("struct alignas(16) Pack { float v[4]; };", ""),
        ("using half_t = at::Half;", ""),
        ("template <typename T> using acc = at::acc_type<T, true>;", ""),
        ("template __global__ void other<float>(float*);", ""),
        ("static_assert(sizeof(int) == 4);", ""),
        ("namespace cg = cooperative_groups;", ""),
        ("template <typename T> C10_DEVICE T in(T a) { return a; }", ""),
        ("DEFINE(name)\n#define DEFINE(n) __global__ void n##_kernel(float* x) {}\n", ""),
        ("struct Tensor3 { Tensor3(int n) : n{n} {} int n; };", ""),
        ("Box::Box(int a) : side{a}, other(a) { side = a; }", "Box(1).side"),
    ],
)
def test_device_code_stays(code: str, used: str) -> None:
    code, _, after = code.partition("\n")
    used, _, more = used.partition("\n")
    text = f"{TORCH}{after}{more}{code}\n{KERNEL % f'x[0] = {used or 1};'}at::Tensor f(at::Tensor x) {{ return x; }}\n"
    assert _stays(text, code)
    assert not _stays(text, "at::Tensor f(at::Tensor x) { return x; }")


def test_a_host_function_of_a_kept_class_goes() -> None:
    text = (
        f"{TORCH}struct P {{\n  float* x;\n  P(at::Tensor t) : x(t.data_ptr<float>()) {{}}\n"
        "  std::vector<int> shape() const;\n  __device__ float at(int i) { return x[i]; }\n};\n"
        "__global__ void k(P p) { p.x[0] = p.at(1); }\n"
    )
    device = split(text).device
    assert "Tensor" not in device and "vector" not in device
    assert "float* x;" in device and "__device__ float at(int i) { return x[i]; }" in device


@pytest.mark.parametrize("using", ["using namespace std;", "using std::vector; using std::map;\nusing std::string;"])
def test_types_of_std_by_their_bare_names(using: str) -> None:
    text = f"""{TORCH}{using}
struct Config {{ int n; vector<int> sizes; string name; }};
struct Table {{ map<int, float> values; }};
struct Span {{ int map, string; __device__ bool in(int x) {{ return map < string && x < map; }} }};
vector<float> make(const string& name);
{KERNEL % "x[0] = Span{1, 2}.in(0);"}"""
    device = split(text).device
    assert "Span { int map, string; __device__ bool in(int x) { return map < string && x < map; } };" in device
    for gone in ("Config", "Table", "make"):
        assert gone not in device, gone
    own = text.replace(using, using + "\ntemplate <class T> struct vector { T x, y; };")
    assert "struct Config { int n; vector<int> sizes;" not in split(own).device  # as it has a string
    own = own.replace(" string name;", "")
    assert "struct Config { int n; vector<int> sizes; };" in split(own).device


def test_what_is_gone_is_not_named() -> None:
    text = f"""{TORCH}namespace host {{ inline int width(const at::Tensor& x) {{ return x.size(0); }} }}
namespace both {{ inline int columns(at::Tensor x) {{ return 3; }} __device__ int rows() {{ return 2; }} }}
struct Grid {{ at::Tensor data; }};
struct Packed {{ float* data; Packed(Grid& grid) : data(grid.data.data_ptr<float>()) {{}} }};
typedef Eigen::SparseMatrix<double> Sparse;
using namespace host;
using host::width;
using both::columns;
using namespace both;
using both::rows;
using elsewhere::other;
__global__ void k(Packed p) {{ p.data[0] = rows(); }}
"""
    device = split(text).device
    for gone in ("host;", "host::", "width", "columns", "Grid", "Eigen"):
        assert gone not in device, gone
    for stays in (
        "using namespace both;",
        "using both::rows;",
        "using elsewhere::other;",
        "struct Packed { float* data;",
    ):
        assert stays in device


MARKED = """
static __host__ int size(int n) { if (n < 0) abort_here(__FILE__, n); return n; }
__host__
int declared(int n);
template <typename T> __host__ T twice(T x) { return x + x; }
static constexpr __device__ int size(int n, int m) { return n + m; }
static constexpr __host__ int three() { return 3; }
struct Pair {
    int a, b;
    __host__ int sum() const { return a + b; }
    __host__
    __device__ int product() const { return a * b; }
    constexpr __host__ Pair(int a, int b) : a(a), b(b) {}
};
"""
USING = """
extern "C" __global__ void k(int* out) { out[0] = size(40, three()) + Pair{7, 6}.product(); }
"""


@pytest.mark.parametrize("included", [False, True])
def test_what_is_marked_for_the_host_alone_goes(included: bool, tmp_path: Path, device: str) -> None:
    """Also where nothing else tells of code for the host; a constexpr function stays without its mark."""
    (tmp_path / "marked.cuh").write_text(MARKED)
    text = f'#include "marked.cuh"\n{USING}' if included else MARKED + USING
    out = torch.zeros(1, dtype=torch.int32, device=device)
    rawkern.RawKernel(text, include_dirs=[tmp_path])[1, 1](out)
    assert out.item() == 43 + 42
    for code in ("static __host__ int size(int n)", "__host__\nint declared(int n);", "twice", "int sum() const"):
        assert not _stays(MARKED + USING, code)
    for code in ("static constexpr __device__ int size", "__host__\n    __device__ int product()", "int three()"):
        assert _stays(MARKED + USING, code)


def test_marks_in_large_tables_are_found_quickly() -> None:
    text = f"__device__ int table[] = {{{'1, ' * 200_000}}};\n" + 300 * "__host__ __device__ int f(int a);\n"
    start = time.process_time()
    assert not split(text).extension
    assert time.process_time() - start < 5


def test_without_host_code_nothing_changes() -> None:
    for path in Path("cuda_src").rglob("*.cu*"):
        assert split(path.read_text()).device is not None
        assert split(path.read_text()).device == path.read_text()
    plain = "int helper(int n) { return n; }\n__global__ void k() {}\nint main() {}\n"
    assert split(plain).device == plain  # the compiler has words for each of these
    hidden = f"#ifndef __CUDACC_RTC__\n{TORCH}void f() {{}}\n#endif\n{plain}"
    assert split(hidden).device == hidden


def test_branches_for_the_host_do_not_count() -> None:
    code = '__host__ __device__ void fail() {\n#ifdef __CUDA_ARCH__\n__trap();\n#else\nthrow std::runtime_error("");\n#endif\n}'
    assert "__trap" in split(f"{TORCH}{code}\n{KERNEL % 'fail();'}").device


HEADERS_OF_THE_HOST = """
cfenv charconv clocale csetjmp cwchar execution valarray fenv.h locale.h setjmp.h wchar.h dirent.h getopt.h glob.h
libgen.h malloc.h sched.h semaphore.h strings.h sys/mman.h sys/resource.h sys/utsname.h sys/wait.h unistd.h arpa/inet.h
netinet/in.h GL/gl.h EGL/egl.h opencv2/opencv.hpp nvtx3/nvToolsExtCudaRt.h nvrtc.h cuda_gl_interop.h cudaGL.h
"""


def test_headers_of_the_system_and_of_libraries_go() -> None:
    text = "".join(f"#include <{name}>\n" for name in HEADERS_OF_THE_HOST.split())
    text += "#include <sys/types.h>\nint main() { struct utsname name; return uname(&name); }\n"
    kernel = rawkern.RawKernel(f"{text}__global__ void k(ulong* x) {{ x[0] = 1; }}", "k")
    assert kernel.signature == "void k(unsigned long *x)"


@pytest.mark.parametrize("library", ["cublas_v2.h", "cublasLt.h", "cusolverDn.h"])
def test_libraries_bring_the_numbers_of_the_device(library: str, device: str) -> None:
    kernel = rawkern.RawKernel(
        f"#include <{library}>\n"
        "typedef __nv_bfloat16 number;\n"
        "__global__ void k(number* x, half* y, cuComplex* z) {\n"
        "    x[0] = (number)2.5f; y[0] = __float2half(1.5f); z[0] = cuCmulf(z[0], z[0]);\n"
        "}\n"
        "void run(cublasHandle_t handle) { k<<<1, 1>>>(nullptr, nullptr, nullptr); }\n",
        "k",
    )
    x, y = torch.zeros(1, dtype=torch.bfloat16, device=device), torch.zeros(1, dtype=torch.half, device=device)
    z = torch.full((1,), 1 + 2j, device=device)
    kernel[1, 1](x, y, z)
    assert (x.item(), y.item(), z.item()) == (2.5, 1.5, -3 + 4j)


def test_files_are_split_together() -> None:
    files = {
        "k.cu": '#include "k.h"\n__global__ void k(float* x) { x[0] = helper(CALL); }\nvoid f() { k<<<1, 1>>>(0); }\n',
        "k.h": "#define DEV __device__\n#define CALL other(2)\nat::Tensor g(at::Tensor);\nDEV int marked();\n"
        "inline int helper(int n) { return n; }\ninline int other(int n) { return n; }\ninline int no() { return 3; }\n",
    }
    device = split_files(files)["k.h"].device
    assert "helper" in device and "other(int" in device and "DEV int marked();" in device
    assert "Tensor" not in device and "int no()" not in device


def test_host_parts() -> None:
    text = (
        f'{TORCH}#include "own.h"\n#define CHECK(x) TORCH_CHECK(x.is_cuda())\nusing namespace at;\n'
        "constexpr int kBlock = 256;\nstruct P { int n; };\nnamespace ns { namespace {\n"
        "inline int blocks(int n) { return (n + kBlock - 1) / kBlock; }\n"
        "template <typename T>\nvoid run(T* x) { k<<<1, 1>>>(x); }\n}\nTensor f(Tensor x);\n}\n"
        f"{KERNEL % ''}__host__ __device__ int both() {{ return 1; }}\n__device__ int mine() {{ return 1; }}\n"
        "#ifdef USE_ROCM\nvoid rocm() {}\n#else\nvoid cuda() {}\n#endif\n"
        'PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {\n  m.def("f", &ns::f);\n}\n'
    )
    parts = split(text).host
    assert [(part.kind, part.name) for part in parts] == [
        ("include", "torch/extension.h"), ("include", "own.h"), ("macro", "CHECK"), ("using", "at"),
        ("variable", "kBlock"), ("struct", "P"), ("function", "ns::blocks"), ("template", "ns::run"),
        ("declaration", "ns::f"), ("function", "both"), ("function", "cuda"), ("binding", "PYBIND11_MODULE"),
    ]  # fmt: skip
    run = next(part for part in parts if part.kind == "template")
    assert text[run.start : run.end] == "template <typename T>\nvoid run(T* x) { k<<<1, 1>>>(x); }"
    assert text[parts[-1].start : parts[-1].end].endswith('m.def("f", &ns::f);\n}')


@pytest.mark.parametrize(
    ("condition", "host", "device"),
    [
        ("#ifdef USE_ROCM", False, False), ("#ifndef USE_ROCM", True, True), ("#if 0", False, False),
        ("#if 1", True, True), ("#ifdef __CUDA_ARCH__", False, True), ("#if __CUDA_ARCH__ >= 800", False, True),
        ("#if defined(__CUDACC__) && !defined(USE_ROCM)", True, True), ("#ifdef __CUDACC_RTC__", False, True),
        ("#if SOMETHING > 3", True, True), ("#if defined(SOMETHING) && 0", False, False),
        ("#if defined SOMETHING || 1", True, True), ("#if F(3) > 2", True, True), ("#if 0x10UL < 17u // is", True, True),
    ],
)  # fmt: skip
def test_conditions(condition: str, host: bool, device: bool) -> None:
    text = f"{condition}\nthen\n#else\notherwise\n#endif\n"
    directives = blanked(text)[1]
    for known, expected in ((HOST, host), (DEVICE, device)):
        dead = " ".join(text[a:b].strip() for a, b in left_out(directives, known))
        assert ("then" not in dead) is expected
        assert "then" not in dead or "otherwise" not in dead
    own = blanked("#define USE_ROCM 1\n#ifdef USE_ROCM\nthen\n#endif\n")[1]
    assert left_out(own, HOST) == []  # what the text defines itself is not known


def test_splitting_is_quick() -> None:
    unit = (
        "__device__ float f%d(float a) {\n  // a comment\n"
        + "  a = a * 2.0f + (a > 3 ? 1 : 0);\n" * 15
        + "  return a;\n}\n"
    )
    host = "at::Tensor g%d(at::Tensor x) {\n" + '  TORCH_CHECK(x.is_cuda(), "no");\n' * 15 + "  return x;\n}\n"
    text = TORCH + "".join(unit % i + host % i for i in range(27))
    split(TORCH + KERNEL)  # the first reads rawkern's own headers
    start = time.process_time()
    split(text)
    assert text.count("\n") > 900 and time.process_time() - start < 0.2  # about 15 ms where nothing else runs


def test_an_error_has_the_line_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "bad.cu"
    file.write_text(f"{TORCH}at::Tensor f(at::Tensor x) {{\n  return x;\n}}\n{KERNEL % 'x[0] = missing;'}")
    with pytest.raises(rawkern.CompileError) as caught:
        rawkern.RawModule(path=file).get_function("k").compile()
    assert caught.value.line == 5 and "missing" in str(caught.value) and str(file) in str(caught.value)


def test_a_launcher_without_launches_and_hashes_are_for_the_host() -> None:
    text = """dim3 blocks(int n);
struct Hash { size_t operator()(int k) const { return std::hash<int>()(k); } int n; };
__global__ void k(Hash h, int* x) { x[0] = h.n; }
"""
    found = split(text)
    assert "dim3" not in found.device and "std::hash" not in found.device
    assert "struct Hash" in found.device and "int n;" in found.device
