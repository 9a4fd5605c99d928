"""Templates of functions with specializations, and overloads. The expected values are those of g++."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from rawkern.errors import UnsupportedError
from tests.extensions.kit import load

SOURCE = """
__global__ void one(float* x) { x[threadIdx.x] = 1; }
__global__ void two(double* x) { x[threadIdx.x] = 2; }

template <typename T> int tag() { return 0; }
template <> int tag<float>() { return 4; }
template <> int tag<double>() { return 8; }
template <int N> int number() { return N; }
template <> int number<3>() { return 33; }
template <typename T> int of(T* p) { return 1; }
template <> int of(float* p) { return 2; }
template <typename T> void up(T& n, int by) { n += by; }
template <> void up<double>(double& n, int by) { n += by / 2.0; }
template <typename T> void fill(T* x, int n);
template <> void fill<float>(float* x, int n) { one<<<1, n>>>(x); }
template <> void fill(double* x, int n) { two<<<1, n>>>(x); }

int tags() { return tag<float>() * 100 + tag<double>() * 10 + tag<int>(); }
int numbers() { return number<3>() * 10 + number<4>(); }
int dispatched(torch::Tensor x) {
    int r = 0;
    AT_DISPATCH_FLOATING_TYPES_AND_HALF(x.scalar_type(), "d", [&] { r = tag<scalar_t>(); });
    return r;
}
int deduced(torch::Tensor x, torch::Tensor y) { return of(x.data_ptr<float>()) * 10 + of(y.data_ptr<double>()); }
double by_reference(double a, int b) { up(a, 3); up(b, 3); return a * 100 + b; }
torch::Tensor filled(torch::Tensor x) {
    AT_DISPATCH_FLOATING_TYPES_AND_HALF(x.scalar_type(), "f", [&] { fill<scalar_t>(x.data_ptr<scalar_t>(), x.numel()); });
    return x;
}

int kind(float* p) { return 1; }
int kind(double* p) { return 2; }
int kind(at::Half* p) { return 3; }
int kinds(torch::Tensor x) {
    if (x.scalar_type() == torch::kDouble) return kind(x.data_ptr<double>());
    if (x.scalar_type() == torch::kHalf) return kind(x.data_ptr<at::Half>());
    return kind(x.data_ptr<float>());
}

template <typename T> struct Traits { using acc = float; static constexpr int n = 1; static int f() { return 1; } };
template <> struct Traits<double> { using acc = double; static constexpr int n = 2; static int f() { return 2; } };
int traits(torch::Tensor x) {
    int r = 0;
    AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "t", [&] {
        using acc = typename Traits<scalar_t>::acc;
        r = sizeof(acc) * 10 + Traits<scalar_t>::n;
    });
    return r;
}
int of_specialized() { return Traits<double>::f(); }
"""


@pytest.fixture(scope="module")
def e(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return load(tmp_path_factory.mktemp("templates"), SOURCE)


def test_specializations_are_what_their_template_means(e: Any) -> None:
    assert e.tags() == 480 and e.numbers() == 334
    found = [e.dispatched(torch.ones(1, dtype=dtype)) for dtype in (torch.float32, torch.float64, torch.float16)]
    assert found == [4, 8, 0]
    assert e.deduced(torch.ones(1), torch.ones(1, dtype=torch.float64)) == 21
    assert e.by_reference(1.0, 2) == 255.0


def test_a_template_of_which_only_specializations_are_defined(e: Any, device: torch.device) -> None:
    assert e.filled(torch.zeros(3, device=device)).tolist() == [1, 1, 1]
    assert e.filled(torch.zeros(3, dtype=torch.float64, device=device)).tolist() == [2, 2, 2]
    with pytest.raises(NotImplementedError, match="fill is not defined for these template arguments"):
        e.filled(torch.zeros(3, dtype=torch.float16, device=device))


def test_overloads_by_what_a_pointer_points_to(e: Any) -> None:
    assert [e.kinds(torch.ones(1, dtype=one)) for one in (torch.float32, torch.float64, torch.float16)] == [1, 2, 3]


def test_members_of_a_struct_that_is_specialized(e: Any) -> None:
    assert e.traits(torch.ones(1)) == 41 and e.traits(torch.ones(1, dtype=torch.float64)) == 82
    with pytest.raises(UnsupportedError, match="a function of Traits, which is specialized"):
        e.of_specialized()


def test_a_specialization_that_cannot_be_told_apart_is_not_translated(tmp_path: Path) -> None:
    source = """
    template <typename T, typename U> int f(T a) { return 1; }
    template <typename T> int f(T a) { return 2; }
    template <> int f<float>(float a) { return 3; }
    int g() { return f<float>(1.0f); }
    """
    e = load(tmp_path, source)
    assert set(e.untranslated) >= {"g"}


ENUMERATIONS = """
typedef enum : int { MODE_A = 0, MODE_B = 1 } mode_type;
typedef enum { P_A = 0, P_B = 1 } other_type;
enum Third { T_A, T_B };
template <typename U, typename... A> __global__ void k(U f, A... args) { f(args...); }
struct F {
    __device__ void operator()(float* x, float by, mode_type m, other_type p, Third t) { x[0] = by * 100 + m * 4 + p * 2 + t; }
};
template <typename T, typename... A> void run(T f, A... args) { k<<<1, 1>>>(f, args...); }
torch::Tensor enumerated(torch::Tensor x, int m, float by) {
    run(F(), x.data_ptr<float>(), by, (mode_type)m, static_cast<other_type>(m), T_B);
    return x;
}
"""


def test_a_pack_keeps_the_types_of_enumerations(tmp_path: Path, device: torch.device) -> None:
    assert load(tmp_path, ENUMERATIONS).enumerated(torch.zeros(1, device=device), 1, 2.0).item() == 207


IN_NAMESPACES = """
namespace a { namespace b {
template <bool wide, typename T> struct Wide { using Type = T; };
template <> struct Wide<true, float> { using Type = double; };
template <typename T, int N> struct Lanes {};
#define LANES(T, N, V, ARGS...) template <ARGS> struct Lanes<T, N> { using Type = V; };
LANES(T, 1, T, typename T)
LANES(float, 2, float2)
}}
template <typename T, typename M> __global__ void k(T* x) {
    using V = typename a::b::Lanes<T, 2>::Type;
    V v = *reinterpret_cast<V*>(x);
    x[0] = v.x + v.y + sizeof(M);
}
template <typename T, bool wide> void run(torch::Tensor x) {
    k<T, typename a::b::Wide<wide, T>::Type><<<1, 1>>>(x.data_ptr<T>());
}
torch::Tensor sum(torch::Tensor x, bool wide) { if (wide) run<float, true>(x); else run<float, false>(x); return x; }
"""


def test_traits_in_namespaces_that_macros_specialize(tmp_path: Path, device: torch.device) -> None:
    e = load(tmp_path, IN_NAMESPACES)
    assert e.sum(torch.ones(2, device=device), True)[0] == 10
    assert e.sum(torch.ones(2, device=device), False)[0] == 6


SPECIALIZED = """
template <typename T, int Dim>
struct View {
  T* data;
  int sizes[Dim];
  __host__ __device__ View(T* p, const int* given) : data(p) {
    for (int i = 0; i < Dim; i++) sizes[i] = given ? given[i] : 0;
  }
  __host__ __device__ int count() const {
    int n = 1;
    for (int i = 0; i < Dim; i++) n *= sizes[i];
    return n;
  }
  __host__ __device__ View<T, Dim - 1> operator[](const int x) const {
    View<T, Dim - 1> found(data + x * sizes[1], nullptr);
    for (int i = 0; i < Dim - 1; i++) found.sizes[i] = sizes[i + 1];
    return found;
  }
  __host__ __device__ int rank() const { return Dim; }
};
template <typename T>
struct View<T, 1> {
  T* data;
  int sizes[1];
  __host__ __device__ View(T* p, const int* given) : data(p) { sizes[0] = given ? given[0] : 0; }
  __host__ __device__ int count() const { return sizes[0]; }
  __host__ __device__ T& operator[](const int x) const { return data[x]; }
  __host__ __device__ long rank() const { return 1; }
};
template <typename T, int Dim>
static View<T, Dim> view(const at::Tensor& x) {
  View<T, Dim> made(x.data_ptr<T>(), nullptr);
  for (int i = 0; i < Dim; i++) made.sizes[i] = x.size(i);
  return made;
}
template <typename T>
__global__ void add_rows(View<T, 2> x, View<T, 1> row) {
  if (threadIdx.x < row.sizes[0]) x[blockIdx.x][threadIdx.x] += row[threadIdx.x];
}
"""


def test_a_struct_that_is_specialized_is_passed_by_value(tmp_path: Path, device: str) -> None:
    e = load(
        tmp_path,
        SPECIALIZED
        + """
void add_(at::Tensor x, at::Tensor row) {
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "add_", [&] {
    View<scalar_t, 2> all = view<scalar_t, 2>(x);
    View<scalar_t, 1> one = view<scalar_t, 1>(row);
    add_rows<scalar_t><<<x.size(0), 32>>>(all, one);
  });
}
int counted(at::Tensor x) { return 100 * view<float, 2>(x).count() + view<float, 1>(x).count(); }
int ranked(at::Tensor x) { return view<float, 1>(x).rank(); }
""",
    )
    x, row = torch.rand(3, 5, device=device, dtype=torch.float64), torch.rand(5, device=device, dtype=torch.float64)
    expected = x + row
    e.add_(x, row)
    assert torch.equal(x, expected)
    assert e.counted(torch.zeros(3, 5)) == 1503
    with pytest.raises(UnsupportedError, match=r"rank of View<T, 1>, which has another signature"):
        e.ranked(torch.zeros(3))


@pytest.mark.parametrize(
    "other",
    [
        "template <typename T> struct View<T, 1> { int sizes[1]; T* data; };",
        "template <typename T> struct View<T*, 3> { T** data; int sizes[3]; View(T** p, const int* given) {} };",
        "template <typename T, int Dim> struct View<T, 2 * Dim> { T* data; int sizes[Dim]; };",
    ],
)
def test_a_struct_with_other_members_where_it_is_specialized_is_not_translated(tmp_path: Path, other: str) -> None:
    text = SPECIALIZED.partition("template <typename T>\nstruct View<T, 1>")[0] + other
    e = load(
        tmp_path, text + "int f(at::Tensor x) { View<float, 3> v(x.data_ptr<float>(), nullptr); return v.sizes[0]; }"
    )
    with pytest.raises(UnsupportedError, match="the struct View, which is specialized"):
        e.f(torch.zeros(3))
