"""Parts of the libraries of C++, CUDA and torch that host functions call. The expected values are those of g++."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.extensions.kit import load

SOURCE = """
#include <functional>
#include <numeric>
#include <sstream>
__global__ void up(float* x, int n) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) x[i] += 1;
}
torch::Tensor occupancy(torch::Tensor x, int most) {
    int blocks, threads;
    cudaOccupancyMaxPotentialBlockSize(&blocks, &threads, (void*)up, 0, most);
    TORCH_CHECK(blocks > 0 && threads % 32 == 0 && (most == 0 || threads <= most), blocks, " of ", threads);
    up<<<blocks, threads>>>(x.data_ptr<float>(), x.numel());
    return x;
}
int64_t ranges(torch::Tensor x) {
    int64_t s = 0;
    for (const auto i : c10::irange(x.dim())) s += x.size(i);
    for (auto i : c10::irange(2, 5)) s = s * 10 + i;
    return s;
}
int64_t ceilings(int64_t n) { return ::cuda::ceil_div<int64_t>(n, 4) * 10 + at::ceil_div(n, (int64_t)3); }
float sum(std::vector<float> v) { return std::accumulate(v.begin(), v.end(), 0.0f); }
double product(std::vector<float> v) { return std::accumulate(v.begin(), v.end(), 1.0, std::multiplies<double>()); }
bool aligned(torch::Tensor x) { return (uint64_t)x.data_ptr<float>() % alignof(float4) == 0; }
torch::Tensor accumulator(torch::Tensor x) {
    torch::Tensor y;
    AT_DISPATCH_FLOATING_TYPES_AND_HALF(x.scalar_type(), "a", [&] {
        using acc_t = at::acc_type<scalar_t, true>;
        y = torch::zeros({2}, x.options().dtype(c10::CppTypeToScalarType<acc_t>::value));
    });
    return y;
}
int twice(std::function<int(int)> f, int x) { return f(f(x)); }
int functions(int k) { return twice([&](int v) { return v * k + 1; }, 2); }
std::string texts() { return std::to_string(1.5) + std::to_string(-3) + std::to_string(true); }
void characters(uint8_t c) { TORCH_CHECK(false, "code ", c, (int)c); }
int from_right() { int x = 5; x += x++ * 0 + 2; return x; }
int of_array() { int a[3] = {1, 2, 3}; int* p = a; p[0] = 7; return a[0] * 100 + p[1] * 10 + *(p + 2); }
"""


@pytest.fixture(scope="module")
def e(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return load(tmp_path_factory.mktemp("library"), SOURCE)


@pytest.mark.parametrize("most", [0, 64])
def test_a_block_size_by_occupancy(e: Any, device: torch.device, most: int) -> None:
    assert e.occupancy(torch.zeros(5000, device=device), most).eq(1).all()


def test_functions_of_libraries(e: Any) -> None:
    assert e.ranges(torch.ones(3, 4)) == 7234
    assert e.ceilings(9) == 33
    assert e.aligned(torch.ones(8)) and not e.aligned(torch.ones(8)[1:])
    assert e.functions(3) == 22


def test_sums_of_floats_are_rounded_each(e: Any) -> None:
    assert e.sum([0.1, 0.2, 0.3]) == 0.6000000238418579
    assert e.product([0.5, 3.0]) == 1.5


def test_the_dtype_of_a_type(e: Any) -> None:
    dtypes = [e.accumulator(torch.ones(1, dtype=one)).dtype for one in (torch.float64, torch.float16)]
    assert dtypes == [torch.float64, torch.float32]


def test_numbers_as_text(e: Any) -> None:
    assert e.texts() == "1.500000-31"
    with pytest.raises(RuntimeError, match="code A65"):
        e.characters(65)


def test_the_order_of_an_assignment_and_pointers_into_arrays(e: Any) -> None:
    assert e.from_right() == 8
    assert e.of_array() == 723


ARRAYS = """
#include <cstdlib>
#include <memory>
int of_new(int n) { int* p = new int[n](); for (int i = 0; i < n; i++) p[i] += i * i; int s = p[n - 1]; delete[] p; return s; }
bool bits(int n) { unsigned long long* r = new unsigned long long[n](); r[0] |= 1ULL << 63; bool x = r[0] & (1ULL << 63); delete[] r; return x; }
int of_malloc(int n) { int* p = (int*)malloc(n * sizeof(int)); p[n - 1] = 3; int r = p[n - 1] + 1; free(p); return r; }
int beyond(int n) { int* p = (int*)malloc(n * sizeof(int)); return p[n]; }
int owned(int n) { std::unique_ptr<int[]> p(new int[n]); p[0] = 3; auto q = std::make_unique<int[]>(n); q[1] = 4; return p[0] + q[1]; }
torch::Tensor sum(torch::Tensor x) {
    long* h = new long[x.numel()];
    cudaMemcpy(h, x.data_ptr<int64_t>(), x.numel() * sizeof(long), cudaMemcpyDeviceToHost);
    long s = 0;
    for (int i = 0; i < x.numel(); i++) s += h[i];
    delete[] h;
    return torch::full({1}, s, x.options());
}
bool needs_gradient(torch::Tensor x, torch::Tensor y) { return torch::autograd::any_variable_requires_grad({x, y}); }
"""


def test_arrays_on_the_heap(tmp_path: Any, device: torch.device) -> None:
    e = load(tmp_path, ARRAYS)
    assert e.of_new(4) == 9 and e.bits(3) is True and e.of_malloc(3) == 4 and e.owned(2) == 7
    with pytest.raises(IndexError):
        e.beyond(2)
    assert e.sum(torch.arange(5, device=device)).tolist() == [10]
    assert e.needs_gradient(torch.ones(1), torch.ones(1, requires_grad=True)) is True
    assert e.needs_gradient(torch.ones(1), torch.ones(1)) is False


def test_elements_made_in_place(tmp_path: Any) -> None:
    source = """
    struct P { int x = 1, y = 2; };
    float f() {
        std::vector<std::pair<int, float>> v;
        v.push_back({1, 0.5f});
        v.emplace_back(2, 0.25f);
        std::vector<std::vector<int>> w;
        w.emplace_back(3, 7);
        std::vector<P> s;
        s.emplace_back();
        float r = 0;
        for (auto& p : v) r = r * 10 + p.first + p.second;
        return r * 100 + w[0].size() * 10 + w[0][2] + s[0].y;
    }
    """
    assert load(tmp_path, source).f() == 1764.0


def test_an_array_of_what_has_no_number_in_python(tmp_path: Any) -> None:
    e = load(tmp_path, "int f(int n) { at::Half* p = (at::Half*)malloc(n * 2); free(p); return n; }")
    assert "an array of at::Half" in e.untranslated["f"]
