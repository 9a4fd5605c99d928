"""What device code has of PyTorch's C++ headers: numbers as torch computes them, atomic functions, accessors."""

from __future__ import annotations

import pytest
import torch

import rawkern
from rawkern.compile.hostcode import device_code
from rawkern.compile.source import from_path, from_text
from rawkern.launch import native

EXTENSION = r"""
#include <torch/extension.h>
#include <ATen/cuda/Atomic.cuh>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/detail/TensorInfo.cuh>
#include <ATen/AccumulateType.h>
#include <c10/util/BFloat16.h>
#include <algorithm>
#include <limits>
#include <vector>

#define CHECK_INPUT(x) TORCH_CHECK(x.is_cuda(), #x " must be a CUDA tensor")

static_assert(std::is_same<at::opmath_type<at::Half>, float>::value && sizeof(at::acc_type<float, true>) == 4);
static_assert(sizeof(at::acc_type<c10::BFloat16, true>) == 4 && sizeof(at::acc_type<float, false>) == 8);
static_assert(std::is_same_v<at::acc_type<int, true>, int64_t> && alignof(c10::complex<double>) == 16);

template <typename scalar_t>
C10_LAUNCH_BOUNDS_1(256)
__global__ void arithmetic(const scalar_t* a, const scalar_t* b, scalar_t* out, int n) {
  CUDA_KERNEL_LOOP(i, n) {
    scalar_t x = a[i], y = b[i], s = x;
    s += y; out[i] = s;
    out[n + i] = x - y;
    out[2 * n + i] = x * y;
    out[3 * n + i] = x / y;
    out[4 * n + i] = -x * 2 + 0.5f;
    out[5 * n + i] = x < y ? std::max(x, y) : std::min(y, x);
    out[6 * n + i] = x == 0 || x > 1.5 || 2 < y || x != y ? scalar_t(static_cast<int>(1)) : scalar_t(0.f);
    out[7 * n + i] = __ldg(a + i);
  }
}

__global__ void complexes(const c10::complex<float>* a, const c10::complex<float>* b, c10::complex<float>* out, int n) {
  CUDA_KERNEL_LOOP_TYPE(i, n, int64_t) {
    out[i] = a[i] + b[i] * 2.0f;
    out[n + i] = a[i] * b[i];
    out[2 * n + i] = a[i] / b[i];
    out[3 * n + i] = conj(a[i]) - c10::complex<float>(b[i].imag(), b[i].real());
  }
}

template <typename scalar_t>
__global__ void scatter(const scalar_t* x, const int* index, scalar_t* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) gpuAtomicAdd(out + index[i], x[i]);
}

template <typename scalar_t>
__global__ void extremes(const scalar_t* x, scalar_t* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  gpuAtomicMax(out, x[i]);
  gpuAtomicMin(out + 1, x[i]);
}

template <typename scalar_t>
__global__ void limits(scalar_t* out) {
  out[0] = at::numeric_limits<scalar_t>::lowest();
  out[1] = at::numeric_limits<scalar_t>::max();
  out[2] = at::numeric_limits<scalar_t>::upper_bound();
  out[3] = WARP_SHFL_DOWN(scalar_t(static_cast<float>(threadIdx.x)), 3);
}

template <typename scalar_t>
__global__ void plus_one(
    const torch::PackedTensorAccessor32<scalar_t, 3, torch::RestrictPtrTraits> x,
    at::PackedTensorAccessor64<scalar_t, 1> out) {
  const int n = blockIdx.x * blockDim.x + threadIdx.x;
  if (n < x.size(0) * x.size(1) * x.size(2)) {
    const int a = n / (x.size(1) * x.size(2)), b = n / x.size(2) % x.size(1), c = n % x.size(2);
    auto row = x[a][b];
    out[n] = row[c] + scalar_t(1);
  }
}

__global__ void gathered(at::cuda::detail::TensorInfo<float, int> x, float* out, int n) {
  CUDA_KERNEL_LOOP(i, n) out[i] = x.data[at::cuda::detail::IndexToOffset<float, int, -1>::get(i, x)];
}

std::vector<at::Tensor> forward(at::Tensor a) {
  CHECK_INPUT(a);
  auto out = torch::empty_like(a);
  AT_DISPATCH_FLOATING_TYPES_AND_HALF(a.scalar_type(), "forward", ([&] {
    scatter<scalar_t><<<1, 256, 0, at::cuda::getCurrentCUDAStream()>>>(a.data_ptr<scalar_t>(), nullptr, nullptr, 0);
  }));
  return {out};
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("forward", &forward, "forward (CUDA)"); }
"""
SMALL = {torch.float16: "at::Half", torch.bfloat16: "c10::BFloat16"}
NUMBERS = {**SMALL, torch.float32: "float", torch.float64: "double"}


@pytest.fixture(scope="module")
def module() -> rawkern.RawModule:
    names = [f"{kernel}<{name}>" for name in NUMBERS.values() for kernel in ("scatter", "plus_one")]
    names += [f"{kernel}<{name}>" for name in SMALL.values() for kernel in ("arithmetic", "extremes", "limits")]
    names += ["extremes<float>", "extremes<double>", "scatter<int64_t>", "scatter<uint8_t>"]
    return rawkern.RawModule(EXTENSION, name_expressions=names)


def _bits(x: torch.Tensor) -> torch.Tensor:
    """The bits, all NaN as one."""
    same = torch.where(x.isnan(), torch.full_like(x, float("nan")), x)
    return same.view(torch.int16)


@pytest.mark.parametrize("dtype", SMALL)
def test_arithmetic_is_in_float(module: rawkern.RawModule, dtype: torch.dtype, device: str) -> None:
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(500, generator=generator).mul(3).to(dtype) for _ in range(2))
    special = torch.tensor([float("inf"), -float("inf"), float("nan"), 0.0, -0.0, 65504.0, 6e-8, 1.0], dtype=dtype)
    a = torch.cat([a, special.repeat_interleave(8)])
    b = torch.cat([b, special.repeat(8)])
    out = torch.full((8, len(a)), float("nan"), dtype=dtype, device=device)
    module.get_function(f"arithmetic<{SMALL[dtype]}>")[4, 256](a.to(device), b.to(device), out, len(a))
    x, y = a.float(), b.float()
    twice = ((-x).to(dtype).float() * 2).to(dtype).float()
    expected = [x + y, x - y, x * y, x / y, twice + 0.5, torch.where(x < y, y, torch.where(x < y, x, y))]
    expected[5] = torch.where(x < y, torch.where(x < y, y, x), torch.where(x < y, x, y))
    expected[6:] = [((x == 0) | (x > 1.5) | (y > 2) | (x != y)).float(), x]
    for got, want in zip(out.cpu(), expected, strict=True):
        assert torch.equal(_bits(got), _bits(want.to(dtype)))


def test_complex(module: rawkern.RawModule, device: str) -> None:
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(100, dtype=torch.complex64, generator=generator) for _ in range(2))
    out = torch.full((4, 100), float("nan"), dtype=torch.complex64, device=device)
    module.get_function("complexes")[1, 128](a.to(device), b.to(device), out, 100)
    wide, other = a.to(torch.complex128), b.to(torch.complex128)
    swapped = torch.complex(other.imag, other.real)
    expected = torch.stack([wide + 2 * other, wide * other, wide / other, wide.conj() - swapped])
    torch.testing.assert_close(out.cpu().to(torch.complex128), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [*NUMBERS, torch.int64, torch.uint8])
def test_atomic_add(module: rawkern.RawModule, dtype: torch.dtype, device: str) -> None:
    index = torch.arange(300, dtype=torch.int32) % 7
    x = (torch.arange(300) % 3).to(dtype)
    out = torch.zeros(7 + (dtype == torch.uint8), dtype=dtype, device=device)
    name = NUMBERS.get(dtype) or {torch.int64: "int64_t", torch.uint8: "uint8_t"}[dtype]
    module.get_function(f"scatter<{name}>")[2, 256](x.to(device), index.to(device), out, 300)
    assert torch.equal(out.cpu()[:7], torch.zeros(7).index_add(0, index.long(), x.float()).to(dtype))


@pytest.mark.parametrize("dtype", NUMBERS)
def test_atomic_extremes(module: rawkern.RawModule, dtype: torch.dtype, device: str) -> None:
    x = torch.randn(200, generator=torch.Generator().manual_seed(0)).to(dtype)
    out = torch.zeros(2, dtype=dtype, device=device)
    module.get_function(f"extremes<{NUMBERS[dtype]}>")[1, 256](x.to(device), out, 200)
    assert torch.equal(out.cpu(), torch.stack([x.max(), x.min()]))


@pytest.mark.parametrize("dtype", SMALL)
def test_limits_and_shuffles(module: rawkern.RawModule, dtype: torch.dtype, device: str) -> None:
    out = torch.zeros(4, dtype=dtype, device=device)
    module.get_function(f"limits<{SMALL[dtype]}>")[1, 32](out[:4])
    assert out.cpu()[:3].tolist() == [torch.finfo(dtype).min, torch.finfo(dtype).max, float("inf")]
    assert out[3] in range(3, 32)


@pytest.mark.parametrize("dtype", NUMBERS)
def test_accessors_take_any_strides(module: rawkern.RawModule, dtype: torch.dtype, device: str) -> None:
    x = torch.arange(120.0).reshape(4, 5, 6).to(device, dtype).permute(2, 0, 1)[1::2, :, 2:]
    out = torch.full((2 * x.numel(),), float("nan"), device=device, dtype=dtype)
    module.get_function(f"plus_one<{NUMBERS[dtype]}>")[1, 128](x, out[::2])
    assert torch.equal(out[::2], (x + 1).reshape(-1)) and out[1::2].isnan().all()


def test_tensor_info(module: rawkern.RawModule, device: str) -> None:
    x = torch.arange(24.0, device=device).reshape(2, 3, 4).transpose(0, 2)
    out = torch.zeros(24, device=device)
    module.get_function("gathered")[1, 32](x, out, 24)
    assert torch.equal(out, x.reshape(-1))


def test_an_accessor_checks_its_tensor(module: rawkern.RawModule) -> None:
    kernel, out = module.get_function("plus_one<float>")[1, 32], torch.zeros(8)
    for _ in range(4):  # by native code at last
        kernel(torch.zeros(2, 2, 2), out)
        with pytest.raises(rawkern.OutOfBoundsError, match=r"reads? .*out\[3\]; out has 3 elements|writes out\[3\]"):
            kernel(torch.zeros(2, 2, 2), out[:3])
        native.wait()
    assert kernel.plan.record["call"]
    with pytest.raises(ValueError, match=r"'x' has 2 dimensions \(shape \(2, 4\)\).*pass a tensor of 3 dimensions"):
        kernel(torch.zeros(2, 4), out)
    with pytest.raises(TypeError, match="'x' is float64, the kernel writes float"):
        kernel(torch.zeros(2, 2, 2, dtype=torch.float64), out)
    with pytest.raises(TypeError, match=r"'x' is None .*pass a tensor of 3 dimensions"):
        kernel(None, out)
    with pytest.raises(ValueError, match="several elements at one address"):
        kernel(torch.zeros(1, 1, 1).expand(2, 2, 2), out)
    far = torch.empty(0).set_(torch.UntypedStorage(0)).as_strided((0, 3, 1), (1, 1 << 31, 1))
    with pytest.raises(ValueError, match=r"counts in int; take PackedTensorAccessor64"):
        kernel(far, out)


def test_what_is_compiled(tmp_path) -> None:
    code = device_code(from_text(EXTENSION))
    assert code.text.count("\n") == EXTENSION.count("\n") and code.light and code.names == ()
    assert "<algorithm>" not in code.text and "<vector>" not in code.text and "forward" not in code.text
    plain = from_text("#include <algorithm>\nint f() { return 1; }\n__global__ void k() {}")
    assert device_code(plain).text is plain.text
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.h").write_text('#pragma once\n#include "../b.h"\n__device__ int a() { return b(); }\n')
    (tmp_path / "b.h").write_text(
        "#pragma once\n#include <torch/torch.h>\nat::Tensor f();\n__device__ int b() { return 1; }\n"
    )
    (tmp_path / "plain.h").write_text("#define ONE 1\n")
    file = tmp_path / "k.cu"
    file.write_text(
        '#include "plain.h"\n#include "sub/a.h"\n#include "b.h"\n__global__ void k(int* x) { x[0] = a() + ONE; }\n'
    )
    code = device_code(from_path(file))
    assert [path for path, _ in code.headers] == [str(tmp_path / "b.h"), str(tmp_path / "sub" / "a.h")]
    x = torch.zeros(1, dtype=torch.int32)
    rawkern.RawModule(path=file).get_function("k")[1, 1](x)
    assert x.item() == 2
    (tmp_path / "b.h").write_text(
        "#pragma once\n#include <torch/torch.h>\nat::Tensor f();\n__device__ int b() { return missing; }\n"
    )
    with pytest.raises(rawkern.CompileError) as caught:
        rawkern.RawModule(path=file).get_function("k")[1, 1](x)
    assert caught.value.line == 4 and str(tmp_path / "b.h") in str(caught.value)


def test_complex_numbers_in_warps_and_blocks(device: torch.device) -> None:
    source = r"""
#include <ATen/native/cuda/block_reduce.cuh>
#include <c10/util/complex.h>
#include <thrust/tuple.h>

__device__ thrust::tuple<float, int> halves(float x) { return thrust::make_tuple(x / 2, 2); }

__global__ void sums(const c10::complex<float>* x, c10::complex<float>* out) {
  __shared__ c10::complex<float> shared[32];
  const c10::complex<float> mine = x[threadIdx.x];
  const auto sum = at::native::cuda_utils::BlockReduceSum<c10::complex<float>>(mine, shared);
  if (threadIdx.x == 0) out[0] = std::conj(sum);
  const auto two = halves(1.0f);
  if (threadIdx.x == 0) out[1] = c10::complex<float>(thrust::get<0>(two), thrust::get<1>(two));
}
"""
    x = torch.randn(96, dtype=torch.complex64, device=device)
    out = torch.zeros(2, dtype=torch.complex64, device=device)
    rawkern.RawModule(source).get_function("sums")[1, 96](x, out)
    torch.testing.assert_close(out, torch.stack([x.sum().conj(), torch.tensor(0.5 + 2j, device=device)]))


def test_a_namespace_of_functions_for_the_host_is_used(device: torch.device) -> None:
    source = """
#include <torch/extension.h>
#include <cub/device/device_scan.cuh>
using namespace cub;
__global__ void one(float* x) { x[0] = 1; }
"""
    x = torch.zeros(1, device=device)
    rawkern.RawModule(source).get_function("one")[1, 1](x)
    assert x.item() == 1
