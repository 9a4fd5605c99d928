"""What host functions of extensions are made of: checks, dispatch, structs, lambdas, launches."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch

from rawkern import cpp_extension
from tests.extensions.kit import load

SCALE = """
template <typename T>
__global__ void scale(const T* x, T* y, float by, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = (T)((float)x[i] * by);
}
"""
LAUNCH = "scale<scalar_t><<<(n + 127) / 128, 128>>>(x.data_ptr<scalar_t>(), y.data_ptr<scalar_t>(), 2.5f, n);"
DTYPES = (torch.float32, torch.float64, torch.float16)


def scaled(x: torch.Tensor) -> torch.Tensor:
    return (x.float() * 2.5).to(x.dtype)


DISPATCHES = [
    'AT_DISPATCH_FLOATING_TYPES_AND_HALF(x.scalar_type(), "f", ([&] { BODY }));',
    'AT_DISPATCH_FLOATING_TYPES_AND(at::ScalarType::Half, x.type(), "f", [&] { BODY });',
    'AT_DISPATCH_ALL_TYPES_AND2(at::kHalf, at::kBFloat16, x.scalar_type(), "f", [&] { BODY })',
    'MY_DISPATCH(x.scalar_type(), "f", [&] { BODY });',
    'BY_SWITCH(x.scalar_type(), "f", [&] { BODY });',
    'BY_IF(x.scalar_type(), "f", [&] { BODY });',
    "switch (x.scalar_type()) { case at::ScalarType::Float: { using scalar_t = float; BODY break; }"
    " case torch::kDouble: { using scalar_t = double; BODY break; }"
    " case at::kHalf: { using scalar_t = c10::Half; BODY break; }"
    ' default: AT_ERROR("\\"f\\" not implemented for \'", toString(x.scalar_type()), "\'"); }',
]
MACROS = r"""
#define CASES(...) AT_DISPATCH_CASE(at::ScalarType::Float, __VA_ARGS__) \
  AT_DISPATCH_CASE(at::ScalarType::Half, __VA_ARGS__) AT_DISPATCH_CASE(at::ScalarType::Double, __VA_ARGS__)
#define MY_DISPATCH(TYPE, NAME, ...) AT_DISPATCH_SWITCH(TYPE, NAME, CASES(__VA_ARGS__))
#define BY_SWITCH(TYPE, NAME, ...) [&] { switch (TYPE) { \
  case at::ScalarType::Float: { using scalar_t = float; return __VA_ARGS__(); } \
  case at::ScalarType::Double: { using scalar_t = double; return __VA_ARGS__(); } \
  case at::ScalarType::Half: { using scalar_t = at::Half; return __VA_ARGS__(); } \
  default: TORCH_CHECK(false, "\"", NAME, "\" not implemented for '", TYPE, "'"); } }()
#define BY_IF(TYPE, NAME, ...) if (TYPE == at::kFloat) { using scalar_t = float; __VA_ARGS__(); } \
  else if (TYPE == at::kHalf) { using scalar_t = at::Half; __VA_ARGS__(); } \
  else if (TYPE == at::kDouble) { using scalar_t = double; __VA_ARGS__(); } \
  else { AT_ERROR("\"f\" not implemented for '", toString(TYPE), "'"); }
"""


@pytest.fixture(scope="module")
def dispatches(tmp_path_factory: pytest.TempPathFactory) -> Any:
    head = "torch::Tensor f{}(torch::Tensor x) {{ auto y = torch::empty_like(x); int n = x.numel(); {} return y; }}\n"
    functions = [head.format(k, one.replace("BODY", LAUNCH)) for k, one in enumerate(DISPATCHES)]
    return load(tmp_path_factory.mktemp("dispatches"), MACROS + SCALE + "".join(functions))


@pytest.mark.parametrize(
    "k", range(len(DISPATCHES)), ids=["and-half", "and", "and2", "switch-macro", "own-switch", "own-if", "statement"]
)
def test_dispatch_chooses_the_instance(k: int, dispatches: Any, device: torch.device) -> None:
    f = getattr(dispatches, f"f{k}")
    for dtype in DTYPES:
        x = torch.randn(300, device=device).to(dtype)
        assert torch.equal(f(x), scaled(x))
    with pytest.raises((RuntimeError, NotImplementedError), match="\"f\" not implemented for 'ComplexFloat'"):
        f(torch.zeros(3, dtype=torch.complex64, device=device))


def test_boolean_template_arguments_of_nested_lambdas(tmp_path: Path, device: torch.device) -> None:
    source = r"""
#define BOOL_SWITCH(COND, NAME, ...) [&] { if (COND) { constexpr static bool NAME = true; return __VA_ARGS__(); } \
  else { constexpr static bool NAME = false; return __VA_ARGS__(); } }()
template <int kWidth, bool kAdd, bool kNegate> __global__ void k(float* y) {
  y[threadIdx.x] = (kAdd ? 100 : 0) + (kNegate ? -1 : 1) * kWidth;
}
template <int kWidth> void run(torch::Tensor& y, bool add, bool negate) {
  BOOL_SWITCH(add, kAdd, [&] {
    BOOL_SWITCH(negate, kNegate, [&] {
      auto kernel = &k<kWidth, kAdd, kNegate>;
      kernel<<<1, kWidth, 0, at::cuda::getCurrentCUDAStream()>>>(y.data_ptr<float>());
    });
  });
}
void f(torch::Tensor y, int width, bool add, bool negate) {
  if (width == 2) run<2>(y, add, negate);
  else if (width == 4) { run<4>(y, add, negate); }
  else TORCH_CHECK(false, "width ", width, " is not supported");
}
"""
    e = load(tmp_path, source)
    for width in (2, 4):
        for add in (False, True):
            for negate in (False, True):
                y = torch.full((4,), float("nan"), device=device)
                e.f(y, width, add, negate)
                assert y[:width].tolist() == [100 * add + (-width if negate else width)] * width
    with pytest.raises(RuntimeError, match="width 3 is not supported"):
        e.f(torch.zeros(4, device=device), 3, True, True)


def test_a_struct_of_parameters_filled_member_by_member(tmp_path: Path, device: torch.device) -> None:
    source = """
struct Base { using index_t = uint32_t; int n; index_t stride; void* out; };
struct Params : public Base { float scale; const float* in; bool twice; int dims[3]; };
__global__ void k(const Params p) {
  for (int i = 0; i < p.n; i++)
    ((float*)p.out)[i * p.stride] = p.in ? p.in[i] * p.scale * (p.twice ? 2 : 1) + p.dims[1] : -1;
}
void fill(Base& p, int64_t n, torch::Tensor out) { memset(&p, 0, sizeof(p)); p.n = n; p.stride = out.stride(0); p.out = out.data_ptr(); }
void change(Params p) { p.n = 1000000; }
torch::Tensor f(torch::Tensor x, bool null) {
  Params params;
  auto out = torch::full({x.size(0), 2}, -5, x.options());
  params.dims[1] = 7;
  fill(params, x.size(0), out);
  change(params);
  params.scale = 0.1;
  params.in = null ? nullptr : x.data_ptr<float>();
  params.twice = true;
  params.dims[1] += 3;
  k<<<1, 1>>>(params);
  return out;
}
"""
    e = load(tmp_path, source)
    x = torch.randn(5, device=device)
    out = e.f(x, False)
    torch.testing.assert_close(out[:, 0], x * 0.2 + 3)
    assert (out[:, 1] == -5).all()
    assert e.f(x, True)[:, 0].tolist() == [-1] * 5


def test_pointers_with_offsets_and_null_ones(tmp_path: Path, device: torch.device) -> None:
    source = """
__global__ void k(const float* x, float* y, int n) { if (threadIdx.x < n) y[threadIdx.x] = x ? x[threadIdx.x] : -1; }
torch::Tensor f(torch::Tensor x, int64_t start, c10::optional<torch::Tensor> other) {
  auto y = torch::zeros({4}, x.options());
  const float* from = x.data_ptr<float>() + start * x.size(1);
  k<<<1, 32>>>(from, y.data_ptr<float>(), 2);
  k<<<1, 32>>>(other.has_value() ? other.value().data_ptr<float>() : nullptr, y.data_ptr<float>() + 2, 2);
  return y;
}
"""
    e = load(tmp_path, source)
    x = torch.arange(12.0, device=device).view(4, 3)
    assert e.f(x, 1, x[3]).tolist() == [3, 4, 9, 10]
    assert e.f(x[1:], 1, None).tolist() == [6, 7, -1, -1]


def test_checks_say_what_they_say_in_cpp(tmp_path: Path) -> None:
    source = """
#define CHECK_DIM(x, d) TORCH_CHECK(x.dim() == d, #x " must have " #d " dimensions, got ", x.dim(), " of ", x.sizes())
void f(torch::Tensor input, int k, float p) {
  CHECK_DIM(input, 2);
  TORCH_CHECK(k > 0)
  TORCH_CHECK_VALUE(k < 10, "k is ", k, ", p is ", p, ", k > 20 is ", k > 20);
  AT_ASSERTM(k != 3, "not three");
  TORCH_CHECK_EQ(k % 2, 0);
  if (k == 4) throw std::invalid_argument("k is " + std::to_string(k));
  if (k == 6) AT_ERROR("six of ", input.scalar_type(), " on ", input.device());
}
"""
    e = load(tmp_path, source)
    x = torch.zeros(2, 3)
    e.f(x, 2, 0.5)
    for arguments, error, text in [
        ((x[0], 2, 0.5), RuntimeError, r"input must have 2 dimensions, got 1 of \[3\]"),
        ((x, 0, 0.5), RuntimeError, "Expected k > 0 to be true, but got false.  .Could this error message be improved"),
        ((x, 30, 0.5), ValueError, "k is 30, p is 0.5, k > 20 is 1$"),
        ((x, 3, 0.5), RuntimeError, "not three"),
        ((x, 5, 0.5), RuntimeError, r"Check failed: k % 2 == 0 \(1 vs. 0\)"),
        ((x, 4, 0.5), ValueError, "k is 4"),
        ((x, 6, 0.5), RuntimeError, "six of Float on cpu"),
    ]:
        with pytest.raises(error, match=text):
            e.f(*arguments)


def test_tensors_by_their_cpp_interface(tmp_path: Path, device: torch.device) -> None:
    source = """
using namespace torch::indexing;
std::tuple<torch::Tensor, torch::Tensor, int64_t> f(torch::Tensor x, std::vector<int64_t> shape, torch::optional<double> by) {
  auto options = torch::TensorOptions().dtype(torch::kInt64).device(x.device());
  auto a = torch::zeros(shape, options);
  auto b = x.index({Slice(1, None), "...", 0}).clone();
  a.index_put_({0, Slice()}, 7);
  x[0] = 5;
  b += by.value_or(1.5);
  auto [values, indices] = x.flatten().sort(/*dim=*/0, /*descending=*/true);
  std::tie(values, indices) = at::max(x, 1);
  auto c = torch::cat({b, values.to(torch::kFloat)}, 0).add_(indices.max(), 0.5);
  auto sizes = x.sizes().vec();
  sizes.back() = 9;
  TORCH_CHECK(x.sizes() != at::IntArrayRef({1, 2}) && torch::kFloat == x.dtype());
  return std::make_tuple(a, c, sizes[1] + (int64_t)c.dim());
}
std::vector<at::Tensor> g(std::vector<at::Tensor> list) {
  std::vector<at::Tensor> out;
  for (auto& one : list) out.push_back(one * 2);
  list.push_back(out[0]);
  out.emplace_back(torch::full(1, list.size()));
  return out;
}
"""
    e = load(tmp_path, source)
    x = torch.randn(3, 2, device=device)
    y = x.clone()
    a, c, n = e.f(x, [2, 3], None)
    assert a.tolist() == [[7, 7, 7], [0, 0, 0]] and a.dtype == torch.int64 and n == 10
    y[0] = 5
    assert torch.equal(x, y)
    values, indices = y.max(1)
    torch.testing.assert_close(c, torch.cat([y[1:, 0] + 1.5, values]) + 0.5 * indices.max())
    given = [torch.ones(2), torch.zeros(1)]
    doubled = e.g(given)
    assert [one.tolist() for one in doubled] == [[2, 2], [0], [3]] and len(given) == 2


def test_memory_of_the_device_from_the_host(tmp_path: Path, device: torch.device) -> None:
    source = """
__device__ int found;
__global__ void k(int* x, int n) { atomicAdd(x, n); found = n; }
__global__ void clear() { found = -1; }
int f(torch::Tensor x, int n) {
  const at::cuda::OptionalCUDAGuard guard(device_of(x));
  auto count = torch::empty({2}, x.options().dtype(torch::kInt));
  cudaMemsetAsync(count.data_ptr<int>(), 0, count.numel() * sizeof(int), at::cuda::getCurrentCUDAStream());
  k<<<4, 32>>>(count.data_ptr<int>(), n);
  AT_CUDA_CHECK(cudaGetLastError());
  return count[0].item<int>() + count.cpu().data_ptr<int>()[1];
}
"""
    e = load(tmp_path, source)
    assert e.f(torch.zeros(1, device=device), 3) == 3 * 128


def test_kernels_chosen_by_address_and_launched_by_the_runtime(tmp_path: Path, device: torch.device) -> None:
    source = """
struct Spec { void* kernel; int threads; };
struct P { float* y; int4 size; };
template <class T, int N> __global__ void k(P p) { if (threadIdx.x < p.size.x) p.y[threadIdx.x] = N + sizeof(T) + p.size.w; }
template <class T> Spec choose(int n) {
  Spec spec = {(void*)k<T, 1>, 32};
  if (n > 1) spec = {(void*)k<T, 2>, 64};
  return spec;
}
void f(torch::Tensor y, int n) {
  P p;
  p.y = y.data_ptr<float>();
  p.size = make_int4(y.size(0), 0, 0, 1000);
  void* args[] = {&p};
  Spec spec = n == 3 ? choose<double>(n) : choose<float>(n);
  AT_CUDA_CHECK(cudaLaunchKernel(spec.kernel, 1, spec.threads, args, 0, at::cuda::getCurrentCUDAStream()));
}
"""
    e = load(tmp_path, source)
    for n, value in ((1, 1005), (2, 1006), (3, 1010)):
        y = torch.full((40,), float("nan"), device=device)
        e.f(y, n)
        assert y.tolist() == [value] * 32 + ([value] * 8 if n > 1 else y.tolist()[32:]) or n == 1
        assert y[:32].tolist() == [value] * 32


def test_constants_enumerators_and_traits_of_the_source(tmp_path: Path, device: torch.device) -> None:
    source = """
constexpr int kThreads = 64;
static const std::map<std::string, int> codes = {{"sum", 1}, {"max", 2}};
enum Mode { SUM, MAX = 4, MIN };
template <int N> struct Traits { static constexpr int kBytes = N * sizeof(float); static constexpr bool kBig = N > 4; };
template <class T, Mode mode> __global__ void k(int* y) { y[threadIdx.x] = mode * 100 + T::kBytes + T::kBig; }
template <int N> void run(torch::Tensor y, std::string name) {
  using Tr = Traits<N>;
  constexpr int bytes = Tr::kBytes;
  static_assert(bytes > 0, "bytes");
  if (codes.at(name) == 1) k<Tr, SUM><<<1, kThreads / 2, bytes>>>(y.data_ptr<int>());
  else k<Traits<N>, Mode::MIN><<<1, dim3(kThreads / 2), Tr::kBytes>>>(y.data_ptr<int>());
}
void f(torch::Tensor y, std::string name) { y.numel() > 40 ? run<8>(y, name) : run<2>(y, name); }
"""
    e = load(
        tmp_path,
        source.replace(
            "y.numel() > 40 ? run<8>(y, name) : run<2>(y, name);",
            "if (y.numel() > 40) run<8>(y, name); else run<2>(y, name);",
        ),
    )
    for size, name, value in ((64, "sum", 33), (64, "max", 533), (32, "sum", 8), (32, "max", 508)):
        y = torch.zeros(size, dtype=torch.int32, device=device)
        e.f(y, name)
        assert y[:32].tolist() == [value] * 32


def test_messages_of_streams_and_decided_errors(tmp_path: Path) -> None:
    source = """
#define CUDA_CHECK_ERRORS() do { cudaError_t err = cudaGetLastError(); if (cudaSuccess != err) { \\
  fprintf(stderr, "failed %s %d", cudaGetErrorString(err), __LINE__); exit(-1); } } while (0)
void f(int n) {
  CUDA_CHECK_ERRORS();
  std::stringstream text;
  text << "n is " << n << ", " << 0.5;
  if (n > 1) throw std::runtime_error(text.str());
  std::cout << "seen " << n << std::endl;
}
"""
    e = load(tmp_path, source)
    with pytest.raises(RuntimeError, match=r"n is 2, 0\.5"):
        e.f(2)
    e.f(1)


def test_what_functions_take_by_reference_and_assign(tmp_path: Path) -> None:
    source = """
struct Shape { int rows; int64_t cols; };
inline void swapped(int& a, int& b) { int t = a; a = b; b = t; }
template <typename T> bool grow(T& n, T by) { if (by == 0) return false; n += by; return true; }
void sizes(const torch::Tensor& x, int& rows, int64_t& cols) { rows = x.size(0); cols = x.size(1); }
void passed_on(int& n) { int one = 1; swapped(n, one); }
torch::Tensor flat(torch::Tensor& x) { x = x.flatten(); return x.sum(); }
void scaled(torch::Tensor& x) { x *= 2; }
int f(int a, int b) { swapped(a, b); return 10 * a + b; }
int g(int n) { bool done = grow(n, 5); if (!done) return -1; done = grow<int>(n, 0); passed_on(n); return n + 10 * done; }
int64_t h(torch::Tensor x) { Shape s; sizes(x, s.rows, s.cols); return 100 * s.rows + s.cols; }
std::tuple<torch::Tensor, int64_t> k(torch::Tensor x) { auto total = flat(x); scaled(x); return {total, x.dim()}; }
int loops(int n) { int s = 0; for (int i = 0; i < n; i++) { s += 1; grow(n, -1); } return s; }
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("f", &f); m.def("g", &g); m.def("h", &h); m.def("k", &k); m.def("loops", &loops);
  m.def("sizes", &sizes); m.def("flat", &flat);
}
"""
    e = load(tmp_path, source)
    assert e.f(1, 2) == 21 and e.g(3) == 1 and e.h(torch.zeros(3, 4)) == 304 and e.loops(6) == 3
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    total, dims = e.k(x)
    assert total == 10 and dims == 1 and x.sum() == 20
    assert e.sizes(x, 0, 0) is None and e.flat(x) == 20 and x.dim() == 2


def test_variables_that_keep_their_values(tmp_path: Path) -> None:
    source = """
struct Settings { int threads = 7; float scale; };
static Settings settings;
int total = 3;
static torch::Tensor cache;
std::vector<int64_t> seen;
int count(int by) { static int calls = by; calls += by; auto twice = [&] { calls *= 2; total++; }; twice(); return calls; }
int sum(int n) { total += n; settings.threads = n; seen.push_back(n); return total + settings.threads + (int)seen.size(); }
torch::Tensor cached(torch::Tensor x) { if (!cache.defined()) cache = x * 2; return cache; }
int threads() { static const auto* properties = at::cuda::getCurrentDeviceProperties(); int total = 1; total++; return total; }
"""
    e = load(tmp_path, source)
    assert e.count(5) == 20 and e.count(1) == 42
    assert e.sum(10) == 3 + 2 + 10 + 10 + 1 and e.sum(0) == 15 + 0 + 2
    assert e.cached(torch.ones(1)) == 2 and e.cached(torch.zeros(1)) == 2
    assert e.threads() == 2


def test_iterators_and_other_parts_of_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = """
int64_t f(std::vector<int64_t> v) {
  std::vector<int64_t> rest(v.begin() + 1, v.end());
  std::vector<int64_t> out;
  out.insert(out.end(), rest.begin(), rest.end() - 1);
  int64_t s = 0;
  for (auto it = v.begin(); it != v.end(); ++it) s += *it;
  return 1000 * s + 100 * rest.size() + 10 * out.size() + std::accumulate(v.begin(), v.end(), 0);
}
int mode() { const char* text = std::getenv("RK_MODE"); if (text == nullptr) return -1; return std::string(text) == "7x" ? atoi(text) : 0; }
int64_t largest(torch::Tensor x) { return *std::max_element(x.data_ptr<int>(), x.data_ptr<int>() + x.numel()); }
std::tuple<torch::Tensor, torch::Tensor, torch::Tensor> unique(torch::Tensor x) { return at::unique_dim(x, 0, true, true, true); }
torch::Tensor consecutive(torch::Tensor x) { return std::get<0>(at::unique_consecutive(x)); }
int cleared(int n) { std::vector<int> v(n, 5); memset(&v[0], 0, sizeof(int) * (n - 1)); return v[0] + v[n - 1]; }
int64_t dims(const torch::Tensor* x) { return x->dim() + (*x).size(0); }
int64_t outer(torch::Tensor x) { return dims(&x); }
std::vector<int64_t> tail(torch::Tensor x) { return x.sizes().slice(1).vec(); }
template <typename T> struct A { static constexpr int k = 4; };
template <template <typename> class S> int constant() { return S<float>::k; }
__global__ void kernel() {}
int chosen() { return constant<A>(); }
"""
    e = load(tmp_path, source)
    assert e.f([1, 2, 3, 4]) == 10000 + 300 + 20 + 10
    assert e.mode() == -1
    monkeypatch.setenv("RK_MODE", "7x")
    assert e.mode() == 7
    assert e.largest(torch.tensor([3, 9, 2], dtype=torch.int32)) == 9
    values, inverse, counts = e.unique(torch.tensor([[2], [1], [2]]))
    assert values.tolist() == [[1], [2]] and inverse.tolist() == [1, 0, 1] and counts.tolist() == [1, 2]
    assert e.consecutive(torch.tensor([1, 1, 2])).tolist() == [1, 2]
    assert e.cleared(3) == 5 and e.outer(torch.zeros(3, 2)) == 5 and e.tail(torch.zeros(3, 2, 5)) == [2, 5]
    assert e.chosen() == 4


def test_checks_of_aten_and_functions_of_torch(tmp_path: Path) -> None:
    source = """
using namespace torch;
void checked(Tensor x, Tensor y) {
  at::TensorArg x_arg{x, "x", 1}, y_arg{y, "y", 2};
  at::CheckedFrom c = "checked";
  at::checkAllSameGPU(c, {x_arg, y_arg});
  at::checkAllSameType(c, {x_arg, y_arg});
  at::checkDim(__func__, x_arg, 2);
  at::checkSize(c, y_arg, {3, x_arg->size(1)});
  at::checkContiguous(c, y_arg);
  at::checkScalarTypes(c, x_arg, {at::kFloat, at::kDouble});
}
int64_t half(Tensor x) { return torch::numel(x) / 2 + at::size(x, 0) / 2; }
Tensor pad(Tensor x) {
  namespace F = torch::nn::functional;
  return torch::nn::functional::pad(x, F::PadFuncOptions({1, 2}).mode(torch::kConstant).value(7));
}
Tensor blob(Tensor x) {
  std::vector<int64_t> v = {1, 2, 3};
  auto list = torch::from_blob(v.data(), {3}, torch::kInt64).clone();
  auto view = torch::from_blob(x.data_ptr<float>() + 1, {2, 2}, x.options());
  view.add_(10);
  return list;
}
int product(int a, int b) { dim3 grid(a * b); return grid.x; }
int last(int a) { assert(((void)"positive", a > 0)); return std::clamp(a, 2, 4); }
Tensor made(int n) { return at::empty({n}, device(at::DeviceType::CUDA).dtype(kInt)); }
"""
    e = load(tmp_path, source)
    x, y = torch.zeros(2, 5), torch.zeros(3, 5)
    e.checked(x, y)
    for arguments, text in [
        (
            (x, y.double()),
            "'x' to have the same type as tensor for argument #2 'y'; but type Float does not equal Double",
        ),
        ((x[0], y), "Expected 2-dimensional tensor, but got 1-dimensional tensor for argument #1 'x'"),
        ((x, y[1:]), r"Expected tensor of size \[3, 5\], but got tensor of size \[2, 5\] for argument #2 'y'"),
        ((x, y.t().contiguous().t()), "Expected contiguous tensor, but got non-contiguous tensor for argument #2 'y'"),
        ((x.half(), y.half()), "one of the following scalar types: Float, Double; but got Half instead"),
    ]:
        with pytest.raises(RuntimeError, match=text):
            e.checked(*arguments)
    assert e.half(torch.zeros(3, 5)) == 7 + 1
    assert e.pad(torch.ones(1, 2)).tolist() == [[7, 1, 1, 7, 7]]
    x = torch.zeros(6)
    assert e.blob(x).tolist() == [1, 2, 3] and x.tolist() == [0, 10, 10, 10, 10, 0]
    assert e.product(3, 4) == 12 and e.last(9) == 4 and e.made(3).dtype == torch.int32
    with pytest.raises(AssertionError):
        e.last(-1)


def test_packs_and_templates_of_structs(tmp_path: Path, device: torch.device) -> None:
    source = """
constexpr int depth_to_max[3] = {4, 3, 2};
template <int n> struct Lists { void* addresses[n][depth_to_max[n - 1]]; int64_t sizes[depth_to_max[n - 1]]; int first; };
template <typename T> struct Pair { T* x; T by; int n; };
template <typename T, typename... A> __global__ void apply(int chunk, Lists<2> lists, T callable, A... args) {
  for (int l = 0; l < chunk; l++) callable(lists, l, args...);
}
enum Mode { ADD, SET };
template <typename T> struct Scale {
  __device__ void operator()(Lists<2>& lists, int l, float by, Mode mode) {
    T* x = (T*)lists.addresses[0][l]; T* y = (T*)lists.addresses[1][l];
    for (int i = threadIdx.x; i < lists.sizes[l]; i += blockDim.x) y[i] = (mode == ADD ? y[i] : T(0)) + x[i] * T(by);
  }
};
template <typename T> struct Fill : public std::binary_function<Lists<2>, int, void> { __device__ void operator()(Lists<2>& lists, int l) { if (threadIdx.x == 0) *(T*)lists.addresses[0][l] = 9; } };
template <int depth, typename T, typename... ArgTypes>
void multi(int threads, const std::vector<std::vector<torch::Tensor>>& lists, T callable, ArgTypes... args) {
  TORCH_CHECK(lists.size() == depth, "lists.size() != depth");
  Lists<depth> tl;
  tl.first = 0;
  int used = 0;
  for (int t = 0; t < lists[0].size(); t++) {
    tl.sizes[used] = lists[0][t].numel();
    for (int d = 0; d < depth; d++) tl.addresses[d][used] = lists[d][t].data_ptr();
    used++;
    if (used == depth_to_max[depth - 1] || t == lists[0].size() - 1) {
      apply<<<1, threads>>>(used, tl, callable, args...);
      used = 0;
    }
  }
}
void scale(std::vector<std::vector<torch::Tensor>> lists, float by, int mode) {
  AT_DISPATCH_FLOATING_TYPES(lists[0][0].scalar_type(), "scale", [&] {
    multi<2>(32, lists, Scale<scalar_t>(), by, (Mode)mode);
  });
}
void fill(std::vector<std::vector<torch::Tensor>> lists) { multi<2>(32, lists, Fill<float>()); }
template <typename T> __global__ void pair_kernel(Pair<T> p) { if (threadIdx.x < p.n) p.x[threadIdx.x] *= p.by; }
template <typename T> void set(Pair<T>& p, torch::Tensor x, double by) { p.x = x.data_ptr<T>(); p.by = by; p.n = x.numel(); }
void pairs(torch::Tensor x, double by) {
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "pairs", [&] {
    Pair<scalar_t> p;
    set(p, x, by);
    pair_kernel<scalar_t><<<1, 64>>>(p);
  });
}
"""
    e = load(tmp_path, source)
    for dtype in (torch.float32, torch.float64):
        xs = [torch.randn(n, device=device, dtype=dtype) for n in (5, 40, 7, 3, 1)]
        ys = [torch.randn_like(x) for x in xs]
        expected = [y + 2 * x for x, y in zip(xs, ys, strict=True)]
        e.scale([xs, ys], 2.0, 0)
        torch.testing.assert_close(ys, expected)
        e.scale([xs, ys], 0.5, 1)
        torch.testing.assert_close(ys, [x / 2 for x in xs])
        x = xs[1].clone()
        e.pairs(xs[1], 3.0)
        torch.testing.assert_close(xs[1], 3 * x)
    e.fill([ys := [torch.zeros(2, device=device) for _ in range(4)], ys])
    assert all(y.tolist() == [9, 0] for y in ys)
    with pytest.raises(RuntimeError, match=r"lists\.size\(\) != depth"):
        e.fill([[]])


def test_memory_of_cuda_and_of_vectors(tmp_path: Path, device: torch.device) -> None:
    source = r"""
#include <tuple>
#define CHECK_CUDA(x) do { if (!x.is_cuda()) { fprintf(stderr, "%s must be CUDA\n", #x); exit(-1); } } while (0)
#define OLD_DISPATCH(TYPE, NAME, ...) [&] { const auto& the_type = TYPE; \
  at::ScalarType st = ::detail::scalar_type(the_type); switch (st) { \
  case at::ScalarType::Float: { using scalar_t = float; return __VA_ARGS__(); } \
  default: AT_ERROR("no ", NAME); } }()
template <typename T> __global__ void above(const T* x, int* n, unsigned long long* mask, int count) {
  int i = threadIdx.x;
  if (i < count && x[i] > T(0)) { atomicAdd(n, 1); atomicOr(mask + i / 4, 1ULL << i % 4); }
}
template <typename Sizes> int first(const Sizes& sizes) { return std::get<0>(sizes); }
std::vector<int64_t> f(torch::Tensor x) {
  CHECK_CUDA(x);
  THArgCheck(x.is_contiguous(), 1, "x has to be contiguous");
  int count = x.numel(), words = (count + 3) / 4;
  int* n;
  unsigned long long* mask = NULL;
  cudaMalloc((void**)&n, sizeof(int));
  cudaMalloc(&mask, words * sizeof(unsigned long long));
  cudaMemset(n, 0, sizeof(int));
  cudaMemset(mask, 0, words * sizeof(unsigned long long));
  OLD_DISPATCH(x.type(), "above", [&] { above<scalar_t><<<1, 32>>>(x.data_ptr<scalar_t>(), n, mask, count); });
  int total;
  cudaMemcpy(&total, n, sizeof(int), cudaMemcpyDeviceToHost);
  std::vector<unsigned long long> host(words + 1);
  cudaMemcpy(&host[0], mask, words * sizeof(unsigned long long), cudaMemcpyDeviceToHost);
  unsigned long long* rest = &host[0] + 1;
  cudaFree(n);
  cudaFree(mask);
  return {total, (int64_t)host[0], (int64_t)rest[0], first(std::make_tuple(count, 2))};
}
torch::Tensor g(torch::Tensor x) {
  auto options = torch::TensorOptions().dtype(torch::kFloat).device(x.device());
  int64_t shape[2] = {2, x.size(0) / 2};
  auto y = torch::zeros(at::IntArrayRef(shape), options);
  float* p;
  std::vector<float> two = {1.5f, 2.5f};
  cudaMalloc(&p, 2 * sizeof(float));
  cudaMemcpy(p, two.data(), 2 * sizeof(float), cudaMemcpyHostToDevice);
  y[0] = torch::from_blob(p, {2}, options).sum();
  return y + torch::from_blob(x.data_ptr<float>() + 2, {y.size(1)}, options);
}
"""
    e = load(tmp_path, source)
    x = torch.tensor([1.0, -1, 2, 3, -1, 5], device=device)
    assert e.f(x) == [4, 0b1101, 0b10, 6]
    with pytest.raises(RuntimeError, match="x has to be contiguous"):
        e.f(x[::2])
    with pytest.raises(RuntimeError, match="no above"):
        e.f(x.double())
    assert e.g(x).tolist() == [[6.0, 7.0, 3.0], [2.0, 3.0, -1.0]]


def test_a_pointer_of_another_type_raises_as_in_torch(tmp_path: Path, device: torch.device) -> None:
    source = r"""
struct P { void* x; };
__global__ void by_void(void* x) { ((float*)x)[0] = 3; }
__global__ void by_struct(P p) { ((float*)p.x)[0] = 3; }
__global__ void by_half(__half* x) { x[0] = 1; }
void f0(torch::Tensor x) { by_void<<<1, 1>>>(x.data_ptr<float>()); }
void f1(torch::Tensor x) { P p; p.x = x.data_ptr<float>(); by_struct<<<1, 1>>>(p); }
void f2(torch::Tensor x) { float* p = x.data_ptr<float>(); void* q = p + 0; by_void<<<1, 1>>>(q); }
void f3(torch::Tensor x) { float* p = x.data_ptr<float>(); p[0] = p[1] + 2; }
void f4(torch::Tensor x) { cudaMemset(x.data_ptr<float>(), 0, 4); x[0] += 3; }
void f5(torch::Tensor x) { torch::from_blob(x.data_ptr<float>(), {1}, torch::kFloat).fill_(3); }
void f6(torch::Tensor x) { auto a = x.accessor<float, 1>(); a[0] = a[1] + 2; }
void f7(torch::Tensor x) { by_half<<<1, 1>>>(reinterpret_cast<__half*>(x.data_ptr<at::Half>())); x[0] = 3; }
"""
    e = load(tmp_path, source)
    for k in range(8):
        dtype = torch.float16 if k == 7 else torch.float32
        x = torch.ones(2, device=device, dtype=dtype)
        getattr(e, f"f{k}")(x)
        assert x.tolist() == [3, 1], k
        with pytest.raises(RuntimeError, match=r"expected scalar type (Float|Half) but found Double"):
            getattr(e, f"f{k}")(x.double())


OVERLOADS = r"""
#include <torch/extension.h>
#include <algorithm>
namespace F = torch::nn::functional;

template <int A, int B> __global__ void fill(float* x) { x[threadIdx.x] = A * 10 + B; }
template <int A, int B, int C> __global__ void fill(float* x) { x[threadIdx.x] = A * 100 + B * 10 + C; }

void filled(torch::Tensor x, bool three) {
  if (three) fill<1, 2, 3><<<1, x.numel()>>>(x.data_ptr<float>());
  else fill<4, 5><<<1, x.numel()>>>(x.data_ptr<float>());
}

void failing(int n) {
  if (n == 1) throw "n is 1";
  if (n == 2) throw c10::NotImplementedError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, c10::str("n is ", n));
  if (n == 3) throw c10::TypeError({__func__, __FILE__, 3}, "three");
  char said[256];
  sprintf(said, "%s must not be %d-dimensional, %ld", "x", n, 5L);
  TORCH_CHECK(n != 4, said);
  snprintf(said, 4, "%s", "shortened");
  TORCH_CHECK(n != 5, said);
}

torch::Tensor linear(torch::Tensor x, torch::Tensor w) {
  torch::checkDeviceType("linear", {x, w}, at::DeviceType::CUDA);
  return F::linear(x, w);
}

std::vector<int> order(std::vector<int> shape) {
  std::vector<std::pair<int, int>> pairs;
  for (int i = 0; i < shape.size(); i++) pairs.push_back(std::make_pair(shape[i], i));
  std::sort(pairs.begin(), pairs.end());
  std::vector<int> result;
  for (int i = 0; i < shape.size(); i++) result.push_back(pairs[i].second);
  return result;
}

int there_and_back(int n) {
  int* p;
  cudaMalloc((void**)&p, sizeof(int));
  cudaMemcpy(p, &n, sizeof(int), cudaMemcpyHostToDevice);
  Py_BEGIN_ALLOW_THREADS
  n = 0;
  Py_END_ALLOW_THREADS
  cudaMemcpy(&n, p, sizeof(int), cudaMemcpyDeviceToHost);
  return n;
}
"""


def test_overloaded_kernels_and_errors_of_cpp(tmp_path: Path, device: torch.device) -> None:
    e = load(tmp_path, OVERLOADS)
    x = torch.zeros(2, device=device)
    for three, number in ((True, 123), (False, 45)):
        e.filled(x, three)
        assert x.tolist() == [number] * 2
    errors = {
        1: (RuntimeError, "n is 1"), 2: (NotImplementedError, "n is 2"), 3: (TypeError, "three"),
        4: (RuntimeError, "x must not be 4-dimensional, 5"), 5: (RuntimeError, "sho"),
    }  # fmt: skip
    for n, (error, said) in errors.items():
        with pytest.raises(error, match=f"^{said}$"):
            e.failing(n)
    e.failing(6)
    a, w = torch.rand(2, 3, device=device), torch.rand(4, 3, device=device)
    torch.testing.assert_close(e.linear(a, w), torch.nn.functional.linear(a, w))
    cpp_extension.take_cpu_tensors(False)
    try:
        with pytest.raises(RuntimeError, match="to have cuda DeviceType, but got tensor with cpu DeviceType"):
            e.linear(a.cpu(), w.cpu())
    finally:
        cpp_extension.take_cpu_tensors()
    assert e.order([5, 1, 3, 1]) == [1, 3, 2, 0]
    assert e.there_and_back(7) == 7


def test_names_that_a_macro_in_a_macro_declares(tmp_path: Path, device: torch.device) -> None:
    source = r"""
#define CASE(ENUM, TYPE, NAME, THREADS, ...) case ENUM: { using NAME = TYPE; const int threads = THREADS; return __VA_ARGS__(); }
#define DISPATCH(TYPE, NAME, ...) [&] { switch (TYPE) { \
  CASE(at::ScalarType::Float, float, NAME, 128, __VA_ARGS__) CASE(at::ScalarType::Double, double, NAME, 64, __VA_ARGS__) \
  default: AT_ERROR("not ", toString(TYPE)); } }()
template <typename T, int N> __global__ void k(T* y) { if (threadIdx.x == 0) y[0] = N; }
torch::Tensor f(torch::Tensor x) {
  auto y = torch::zeros({1}, x.options());
  DISPATCH(x.scalar_type(), scalar_t, [&] { k<scalar_t, threads><<<1, threads>>>(y.data_ptr<scalar_t>()); });
  return y;
}
"""
    f = load(tmp_path, source).f
    assert f(torch.zeros(1, device=device)).item() == 128
    assert f(torch.zeros(1, device=device, dtype=torch.float64)).item() == 64


def test_variadic_arguments_are_those_of_the_macro_that_they_are_passed_on_to(tmp_path: Path) -> None:
    source = """
#define FIRST(a, ...) a
#define SECOND(a, b, ...) b
#define BOTH(...) FIRST(__VA_ARGS__) * 10 + SECOND(__VA_ARGS__)
int64_t f() { return BOTH(4, 2, 7); }
"""
    assert load(tmp_path, source).f() == 42


def test_texts_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = """
int64_t f() {
  const char* text = std::getenv("RAWKERN_TEST_MODE");
  if (text) {
    if (*text == '1') return 1;
    if (*text == 0) return -1;
    return 2;
  }
  return 0;
}
"""
    f = load(tmp_path, source).f
    monkeypatch.delenv("RAWKERN_TEST_MODE", raising=False)
    assert f() == 0
    for text, expected in (("1", 1), ("off", 2), ("", -1)):
        monkeypatch.setenv("RAWKERN_TEST_MODE", text)
        assert f() == expected


def test_algorithms_that_are_not_deterministic(tmp_path: Path, device: torch.device) -> None:
    source = """
__global__ void k(float* x) { atomicAdd(x, 1.0f); }
void f(torch::Tensor x) {
  at::globalContext().alertNotDeterministic("f");
  k<<<1, 32>>>(x.data_ptr<float>());
  torch::autograd::increment_version(x);
}
"""
    f, x = load(tmp_path, source).f, torch.zeros(1, device=device)
    version = x._version
    f(x)
    assert x.item() == 32 and x._version > version
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    try:
        torch.use_deterministic_algorithms(True)
        with pytest.raises(RuntimeError, match="f does not have a deterministic implementation"):
            f(x)
        torch.use_deterministic_algorithms(True, warn_only=True)
        with pytest.warns(UserWarning, match="f does not have a deterministic implementation"):
            f(x)
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
    assert x.item() == 64


def test_alignment_of_memory(tmp_path: Path) -> None:
    source = """
bool f(torch::Tensor x) { return reinterpret_cast<uintptr_t>(x.data_ptr<float>()) % 16 == 0; }
bool g(torch::Tensor x) { return ((uint64_t)x.data_ptr()) % 16 == 0; }
"""
    extension, x = load(tmp_path, source), torch.zeros(64)
    for one in (extension.f, extension.g):
        assert [one(x[k:]) for k in range(4)] == [(x.data_ptr() + 4 * k) % 16 == 0 for k in range(4)]


def test_accessors_of_tensors_that_are_not_given(tmp_path: Path, device: torch.device) -> None:
    source = """
template <typename T> using Accessor = torch::PackedTensorAccessor32<T, 1, torch::RestrictPtrTraits>;
template <typename T> Accessor<T> accessor(const c10::optional<torch::Tensor>& x) {
  if (!x.has_value()) {
    const std::vector<int32_t> zeros(1);
    return torch::PackedTensorAccessor32<T, 1, torch::RestrictPtrTraits>(nullptr, zeros.data(), zeros.data());
  }
  return x.value().packed_accessor32<T, 1, torch::RestrictPtrTraits>();
}
template <typename T> __global__ void k(const Accessor<T> x, T* y) {
  const int i = threadIdx.x;
  y[i] = x.size(0) > 0 ? x[i] : T(7);
}
torch::Tensor f(c10::optional<torch::Tensor> x) {
  auto y = torch::zeros({3}, torch::TensorOptions().device(torch::kCUDA));
  k<float><<<1, 3>>>(accessor<float>(x), y.data_ptr<float>());
  return y;
}
"""
    f = load(tmp_path, source).f
    assert f(None).tolist() == [7, 7, 7]
    assert f(torch.arange(3.0, device=f(None).device)).tolist() == [0, 1, 2]


def test_members_of_a_grid_that_is_passed_by_reference(tmp_path: Path, device: torch.device) -> None:
    source = """
__global__ void k(int* n) { if (threadIdx.x == 0 && threadIdx.y == 0) atomicAdd(n, blockDim.x * 100 + blockDim.y); }
void sizes(int n, dim3& block, dim3& grid) { block.x = n; block.y = 2; grid.x = 3; }
void around(int n, dim3& block, dim3& grid) { sizes(n, block, grid); }
void f(torch::Tensor n) { dim3 block, grid; around(8, block, grid); k<<<grid, block>>>(n.data_ptr<int>()); }
"""
    n = torch.zeros(1, dtype=torch.int32, device=device)
    load(tmp_path, source).f(n)
    assert n.item() == 3 * 802


def test_streams_and_events_of_the_source_keep_the_order_of_the_code(tmp_path: Path, device: torch.device) -> None:
    source = """
__global__ void add(float* x, float by) { x[threadIdx.x] += by; }
__global__ void times(float* x, float by) { x[threadIdx.x] *= by; }
void f(torch::Tensor x) {
  cudaStream_t first, streams[2];
  cudaEvent_t done;
  C10_CUDA_CHECK(cudaStreamCreate(&first));
  for (int i = 0; i < 2; i++) cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking);
  cudaEventCreateWithFlags(&done, cudaEventDisableTiming);
  add<<<1, x.numel(), 0, first>>>(x.data_ptr<float>(), 1);
  cudaEventRecord(done, first);
  cudaStreamWaitEvent(streams[1], done, 0);
  times<<<1, x.numel(), 0, streams[1]>>>(x.data_ptr<float>(), 3);
  cudaStreamSynchronize(streams[1]);
  cudaEventSynchronize(done);
  auto pool = at::cuda::getStreamFromPool();
  at::cuda::CUDAStreamGuard guard(pool);
  add<<<1, x.numel(), 0, pool.stream()>>>(x.data_ptr<float>(), 2);
  cudaEventDestroy(done);
  for (int i = 0; i < 2; i++) cudaStreamDestroy(streams[i]);
  cudaStreamDestroy(first);
}
"""
    x = torch.zeros(4, device=device)
    load(tmp_path, source).f(x)
    assert torch.equal(x, torch.full_like(x, 5))


VECTORS = {
    "int4": torch.float16, "uint4": torch.bfloat16, "float4": torch.float16, "float2": torch.int32,
    "short2": torch.float32, "uchar4": torch.float64, "longlong2": torch.float32, "double2": torch.int16,
    "half2": torch.int16, "__nv_bfloat162": torch.int32, "ushort4": torch.uint8, "ulonglong2": torch.float16,
}  # fmt: skip


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Any:
    source = "#include <cuda_fp16.h>\n#include <cuda_bf16.h>\n" + "".join(
        f"""
__global__ void copy_{name}(const {name}* x, {name}* y, int n) {{ if (threadIdx.x < n) y[threadIdx.x] = x[threadIdx.x]; }}
void launch_{name}(const void* x, void* y, int n) {{ copy_{name}<<<1, 256>>>((const {name}*)x, ({name}*)y, n); }}
torch::Tensor through_{name}(torch::Tensor x) {{
  auto y = torch::zeros_like(x);
  launch_{name}(x.data_ptr(), y.data_ptr(), x.numel() * x.element_size() / sizeof({name}));
  return y;
}}
torch::Tensor from_{name}(torch::Tensor x) {{
  auto y = torch::zeros_like(x);
  copy_{name}<<<1, 32>>>(reinterpret_cast<const {name}*>(x.data_ptr()), reinterpret_cast<{name}*>(y.data_ptr()), 2);
  return y;
}}
"""
        for name in VECTORS
    )
    return load(tmp_path_factory.mktemp("vectors"), source)


@pytest.mark.parametrize("name", VECTORS)
def test_memory_is_seen_as_vectors(name: str, vectors: Any, device: torch.device) -> None:
    x = torch.arange(32, device=device).to(VECTORS[name])
    assert torch.equal(getattr(vectors, f"through_{name}")(x), x)
    some, size = getattr(vectors, f"from_{name}")(x), 2 * int({"2": 2, "4": 4}[name[-1]])
    kinds = {"int": 4, "uint": 4, "float": 4, "short": 2, "uchar": 1, "longlong": 8, "double": 8, "half": 2}
    kinds |= {"__nv_bfloat16": 2, "ushort": 2, "ulonglong": 8}
    count = size * kinds[name[:-1]] // x.element_size()
    assert torch.equal(some[:count], x[:count]) and not some[count:].any()


def test_memory_of_vectors_is_allocated(tmp_path: Path) -> None:
    source = """
__global__ void fill(float3* x) { x[threadIdx.x] = make_float3(1, 2, threadIdx.x); }
float f() {
  float3* made;
  cudaMalloc(&made, 4 * sizeof(float3));
  fill<<<1, 4>>>(made);
  std::vector<float> host(12);
  cudaMemcpy(host.data(), reinterpret_cast<float*>(made), 12 * sizeof(float), cudaMemcpyDeviceToHost);
  cudaFree(made);
  return 100 * host[9] + 10 * host[10] + host[11];
}
"""
    assert load(tmp_path, source).f() == 123


def test_pointers_to_vectors_and_structs_step_by_their_sizes(tmp_path: Path, device: torch.device) -> None:
    source = """
struct alignas(16) Pack { float v[4]; };
template <typename T, int N> struct alignas(sizeof(T) * N) Vec { T v[N]; };
template <typename T> __global__ void copy(const T* x, T* y) { y[threadIdx.x] = x[threadIdx.x]; }
void vectors(torch::Tensor x, torch::Tensor y, int from) {
  auto p = reinterpret_cast<const float4*>(x.data_ptr());
  copy<float4><<<1, 2>>>(p + from, reinterpret_cast<float4*>(y.data_ptr()));
}
void three(torch::Tensor x, torch::Tensor y, int from) {
  const float3* p = (const float3*)x.data_ptr<float>();
  copy<float3><<<1, 2>>>(&p[from], (float3*)y.data_ptr<float>());
}
void structs(torch::Tensor x, torch::Tensor y, int from) {
  auto p = (const Pack*)x.data_ptr<float>() + from;
  copy<Pack><<<1, 2>>>(p, (Pack*)y.data_ptr<float>());
}
void templates(torch::Tensor x, torch::Tensor y, int from) {
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "templates", [&] {
    using V = Vec<scalar_t, 4>;
    const V* p = reinterpret_cast<const V*>(x.data_ptr<scalar_t>());
    copy<Vec<scalar_t, 4>><<<1, 2>>>(p + from, reinterpret_cast<V*>(y.data_ptr<scalar_t>()));
  });
}
"""
    e = load(tmp_path, source)
    for name, count in (("vectors", 4), ("three", 3), ("structs", 4), ("templates", 4)):
        x = torch.arange(48.0, device=device).view(-1, count)
        for start in (0, 1, 4):
            y = torch.zeros(2, count, device=device)
            getattr(e, name)(x, y, start)
            assert torch.equal(y, x[start : start + 2]), (name, start)


def test_variables_of_the_device_are_written_by_the_host(tmp_path: Path, device: torch.device) -> None:
    source = """
__constant__ float weights[4];
__device__ float bias;
__device__ float scratch[4];
template <typename T> __global__ void apply(const T* x, T* y) {
  y[threadIdx.x] = x[threadIdx.x] * T(weights[threadIdx.x]) + T(bias);
}
__global__ void fill(float* p, float value) { p[threadIdx.x] = value; }
torch::Tensor run(torch::Tensor x) {
  auto y = torch::empty_like(x);
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "run", [&] {
    apply<scalar_t><<<1, 4>>>(x.data_ptr<scalar_t>(), y.data_ptr<scalar_t>());
  });
  return y;
}
torch::Tensor of_tensor(torch::Tensor x, torch::Tensor w, double b) {
  float offset = b;
  cudaMemcpyToSymbol(bias, &offset, sizeof(float));
  C10_CUDA_CHECK(cudaMemcpyToSymbolAsync(weights, w.data_ptr<float>(), 4 * sizeof(float), 0, cudaMemcpyDeviceToDevice));
  return run(x);
}
torch::Tensor of_vector(torch::Tensor x) {
  std::vector<float> some = {7, 8};
  cudaMemcpyToSymbol(weights, some.data(), 2 * sizeof(float), 2 * sizeof(float), cudaMemcpyHostToDevice);
  return run(x);
}
torch::Tensor of_variable(torch::Tensor x) {
  float* p = nullptr;
  cudaGetSymbolAddress((void**)&p, scratch);
  fill<<<1, 4>>>(p, 5);
  cudaMemcpyToSymbol(weights, p, sizeof(float) * 4, 0, cudaMemcpyDeviceToDevice);
  return run(x);
}
"""
    e = load(tmp_path, source)
    for dtype in (torch.float32, torch.float64):
        x = torch.arange(1.0, 5, device=device, dtype=dtype)
        w = torch.tensor([1.0, 2, 3, 4], device=device)
        assert e.of_tensor(x, w, 0.5).tolist() == [1.5, 4.5, 9.5, 16.5]
        assert e.of_vector(x).tolist() == [1.5, 4.5, 21.5, 32.5]
        assert e.of_variable(x).tolist() == [5.5, 10.5, 15.5, 20.5]


def test_any_memory_is_seen_as_structs(tmp_path: Path, device: torch.device) -> None:
    source = """
struct alignas(16) Words { unsigned v[4]; };
__global__ void copy(const Words* x, Words* y) { y[threadIdx.x] = x[threadIdx.x]; }
torch::Tensor f(torch::Tensor x) {
  auto y = torch::zeros_like(x);
  copy<<<1, x.numel() * x.element_size() / 16>>>(reinterpret_cast<const Words*>(x.data_ptr()), (Words*)y.data_ptr());
  return y;
}
"""
    f = load(tmp_path, source).f
    for dtype in (torch.float16, torch.float32, torch.int64, torch.uint8, torch.bfloat16, torch.bool):
        x = torch.arange(32, device=device).to(dtype)
        assert torch.equal(f(x), x)


@pytest.mark.parametrize("by", ["py::overload_cast<{}>(&f)", "static_cast<int (*)({})>(&f)", "(int (*)({}))f"])
def test_one_name_is_bound_to_several_functions(by: str, tmp_path: Path) -> None:
    """As pybind11 has it: the first that takes the arguments as they are, else the first that converts them."""
    bindings = "".join(
        f'm.def("f", {by.format(types)});'
        for types in ("double", "int", "at::Tensor, int", "const at::Tensor&, const at::Tensor&")
    )
    source = f"""
int f(int a) {{ return a; }}
int f(double a) {{ return 200; }}
int f(at::Tensor x, int k) {{ return 3; }}
int f(const at::Tensor& x, const at::Tensor& k) {{ return 4; }}
template <class T> int size(T a) {{ return sizeof(T); }}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {{
  {bindings}
  m.def("size", &size<double>);
  m.def("size", &size<short>);
  m.def("list", [](std::vector<double> a, int k) {{ return 1; }}, py::arg("a"), py::arg("k") = 0);
  m.def("list", [](std::vector<int> a) {{ return 2; }});
  m.def("list", [](double a) {{ return 3; }});
}}
"""
    e = load(tmp_path, source)
    x = torch.ones(1)
    assert (e.f(1), e.f(1.5), e.f(x, 2), e.f(x, x)) == (1, 200, 3, 4)
    assert (e.size(1), e.size(1.0)) == (2, 8)
    assert (e.list([1.0]), e.list([1]), e.list([1], k=2), e.list(1)) == (1, 2, 1, 3)
    with pytest.raises(TypeError):
        e.f("1")


def test_an_overload_that_is_bound_alone(tmp_path: Path) -> None:
    source = """
int f(int a) { return 1; }
int f(double a) { return 2; }
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("f", py::overload_cast<double>(&f)); }
"""
    assert load(tmp_path, source).f(1) == 2


def test_default_values_in_braces(tmp_path: Path) -> None:
    source = """
struct P { int a = 1; float b = 2; };
int64_t digits(std::vector<int64_t> d = {3, 1}, std::vector<int> none = {}, int k = {}, int one = {7}) {
  int64_t s = none.size() + k;
  for (auto x : d) s = s * 10 + x;
  return s * 10 + one;
}
float of(P p = {3, 4}) { return p.a * p.b; }
at::Tensor sum(at::Tensor x, at::IntArrayRef d = {0, 1}, bool keep = true, std::optional<at::ScalarType> to = {}) {
  return x.sum(d, keep, to);
}
std::tuple<int64_t, float> all(at::Tensor x) {
  return {digits() + digits({1}), of() + of({5}) + of(P{}) + sum(x).item<float>() + sum(x, {1}).size(0)};
}
"""
    e = load(tmp_path, source)
    assert e.all(torch.ones(2, 3)) == (317 + 17, 12.0 + 10 + 2 + 6 + 2)
    assert e.digits() == 317 and e.sum(torch.ones(2, 3)).item() == 6


def test_values_of_a_module(tmp_path: Path) -> None:
    source = """
#define RELEASE "1.2"
constexpr int kMost = 4 * 8;
int f(int a) { return a + kMost; }
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.attr("VERSION") = 3;
  m.attr("__version__") = RELEASE;
  m.attr("most") = py::int_(kMost);
  m.attr("exact") = true;
  m.def("f", &f);
}
"""
    e = load(tmp_path, source)
    assert (e.VERSION, e.__version__, e.most, e.exact, e.f(1)) == (3, "1.2", 32, True, 33)
    with pytest.raises(AttributeError):
        e.__wrapped__  # noqa: B018


def test_submodules(tmp_path: Path) -> None:
    source = """
struct P { int a = 1; };
enum Way { UP = 4, DOWN };
int half(int a) { return a / 2; }
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("f", [](int a) { return a + 1; });
  auto sub = m.def_submodule("sub", "more");
  sub.def("f", [](int a) { return a + 2; });
  sub.def("f", [](int a, int b) { return a * b; });
  sub.def("is", &half);
  sub.attr("K") = 3;
  py::module_ deep(sub.def_submodule("deep"));
  deep.def("f", &half, py::arg("x") = 9);
  py::class_<P>(deep, "P").def(py::init<>()).def_readwrite("a", &P::a);
  py::enum_<Way>(deep, "Way").value("UP", UP).value("DOWN", DOWN).export_values();
  m.def_submodule("chained").def("half", &half).def("f", &half);
  deep.def("g", [](int a) { return a + 4; });
}
"""
    e = load(tmp_path, source)
    assert (e.f(1), e.sub.f(1), e.sub.f(2, 5), getattr(e.sub, "is")(7), e.sub.K) == (2, 3, 10, 3, 3)
    assert (e.sub.deep.f(), e.sub.deep.P().a, e.sub.deep.DOWN, e.sub.deep.g(1)) == (4, 1, 5, 5)
    assert (e.chained.half(8), e.chained.f(9), e.sub.__doc__, e.sub.__name__) == (4, 4, "more", "ext.sub")
    assert "sub" in dir(e) and not {"half", "K", "P", "g"} & set(dir(e))


def test_objects_of_another_class(tmp_path: Path) -> None:
    source = """
struct P { int a = 1; int plus(const P& o) { return a + o.a; } };
struct Q : P { int b = 2; };
struct R { int a = 3; };
int by_reference(const P& p) { return p.a; }
int by_pointer(P* p) { return p ? p->a : -1; }
int all(std::vector<P> v) { int s = 0; for (auto& p : v) s += p.a; return s; }
int either(int k) { return k; }
int of_object(R r) { return r.a * 100; }
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  py::class_<P>(m, "P").def(py::init<>()).def("plus", &P::plus);
  py::class_<Q, P>(m, "Q").def(py::init<>());
  py::class_<R>(m, "R").def(py::init<>());
  m.def("by_reference", &by_reference);
  m.def("by_pointer", &by_pointer);
  m.def("all", &all);
  m.def("either", &of_object);
  m.def("either", &either);
}
"""
    e = load(tmp_path, source)
    p, q, r = e.P(), e.Q(), e.R()
    assert (e.by_reference(p), e.by_reference(q), e.by_pointer(None), e.by_pointer(q), e.all([p, q])) == (
        1,
        1,
        -1,
        1,
        2,
    )
    assert (e.either(5), e.either(r), p.plus(q)) == (5, 300, 2)
    for call in (
        lambda: e.by_reference(r), lambda: e.by_reference(None), lambda: e.by_pointer(3), lambda: e.all([p, 1]),
        lambda: p.plus(r), lambda: e.by_reference({"a": 1}),
    ):  # fmt: skip
        with pytest.raises(TypeError, match="C\\+\\+ takes an object of the class P"):
            call()
    file = tmp_path / "ext.cu"
    file.write_text(file.read_text().replace("return p.a;", "return p.a + 10;"))
    time.sleep(0.3)
    assert e.by_reference(p) == 11


def test_a_lambda_under_the_name_of_a_function_that_it_calls(tmp_path: Path) -> None:
    source = """
int f(int a) { return a + 1; }
int g(int a) { return f(a) * 10; }
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("f", [](int a) { return f(a) * 2; });
  m.def("g", &g);
  m.def_submodule("s").def("g", [](int a) { return g(a) + 1; });
}
"""
    e = load(tmp_path, source)
    assert (e.f(1), e.g(1), e.s.g(1)) == (4, 20, 21)
