"""``__device__`` and ``__constant__`` variables as tensors: their types, shapes and memory."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch

import rawkern
from rawkern import RawModule
from rawkern.compile.nvrtc import run_nvrtc
from rawkern.launch import variables

VARIABLES = r"""
struct Pair { int a; double b; };
namespace inner { __device__ double weights[2][3]; }
__constant__ float coefficients[4] = {1.0f, 2.5f, -3.0f, 0.5f};
__device__ unsigned char mask;
__device__ Pair pairs[2];
__device__ float4 corner;
extern "C" __global__ void use(float* y, int n) {
    int i = threadIdx.x;
    if (i < n) y[i] = coefficients[i % 4] + (float)inner::weights[1][2] + mask + pairs[1].a + corner.y;
}
extern "C" __global__ void bump() { inner::weights[1][2] += 1.0; }
"""


def test_variables_are_seen_and_set(device: str) -> None:
    holder = rawkern.RawModule(VARIABLES)
    coefficients = holder.get_global("coefficients", device)
    assert coefficients.dtype is torch.float32 and coefficients.shape == (4,) and coefficients.device.type == device
    assert coefficients.tolist() == [1.0, 2.5, -3.0, 0.5]
    weights = holder.get_global("inner::weights", device)
    assert weights.dtype is torch.float64 and weights.tolist() == [[0.0] * 3] * 2
    assert holder.get_global("mask", device).dtype is torch.uint8
    assert holder.get_global("pairs", device).shape == (2, 16)
    assert holder.get_global("corner", device).shape == (4,)

    y = torch.full((8,), float("nan"), device=device)
    weights[1, 2] = 100.0
    coefficients.copy_(torch.tensor([0.0, 10.0, 20.0, 30.0]))
    holder.use[1, 32](y, 8)
    assert y.tolist() == [100.0, 110.0, 120.0, 130.0] * 2
    holder.bump[1, 1]()
    if device == "cuda":
        torch.cuda.synchronize()
        assert weights[1, 2].item() == 101.0
    else:
        assert holder.get_global("inner::weights", "cpu").data_ptr() == weights.data_ptr()


def test_a_variable_outlives_its_module(device: str) -> None:
    coefficients = rawkern.RawModule(VARIABLES).get_global("coefficients", device)
    gc.collect()
    assert coefficients.tolist() == [1.0, 2.5, -3.0, 0.5]


def test_variables_that_are_not_there(device: str) -> None:
    holder = rawkern.RawModule(VARIABLES)
    with pytest.raises(
        ValueError, match=r"there is no variable 'nope'; the source has these variables: .*inner::weights"
    ):
        holder.get_global("nope", device)
    with pytest.raises(ValueError, match=r"'use' is a function; the source has these variables: .*coefficients"):
        holder.get_global("use", device)
    said = 'extern "C" __global__ void say() { printf("text\\n"); }'
    with pytest.raises(ValueError, match=r"the source has these variables: none\Z"):
        rawkern.RawModule(said).get_global("nope", device)


SHAPES = r"""
#include <cuda_fp16.h>
struct Pair { int a; double b; };
enum Mode : short { A, B };
namespace { struct Hidden { float f; }; __device__ Hidden hidden[3]; }
using Row = float[31];
__device__ float a[3][31];
__device__ Row rows[2];
__device__ const unsigned char bytes[2][3][4][5] = {{{{1, 2}}}};
__constant__ __half halves[7][2];
__device__ float4 corners[3][2];
__device__ Pair pair, pairs[3][2];
__device__ Mode modes[6];
__device__ int grown[] = {7, 8, 9};
__device__ float* pointer;
__device__ float* pointers[2][3];
__device__ float (*to_rows)[31];
__device__ int (*calls[4])(int);
__device__ volatile long long flag;
template <class T> __device__ T table[2][2] = {{1, 2}, {3, 4}};
extern "C" __global__ void fill(const float* x) {
    int i = threadIdx.x;
    if (i < 93) a[i / 31][i % 31] = x[i];
    if (i == 0) table<float>[0][1] += 1, hidden[2].f = 2;
}
"""


@pytest.mark.parametrize(
    ("name", "shape", "dtype"),
    [
        ("a", (3, 31), torch.float32),
        ("rows", (2, 31), torch.float32),
        ("bytes", (2, 3, 4, 5), torch.uint8),
        ("halves", (7, 2), torch.float16),
        ("corners", (3, 2, 4), torch.float32),
        ("pair", (16,), torch.uint8),
        ("pairs", (3, 2, 16), torch.uint8),
        ("hidden", (3, 4), torch.uint8),
        ("modes", (6,), torch.int16),
        ("grown", (3,), torch.int32),
        ("pointer", (1,), torch.int64),
        ("pointers", (2, 3), torch.int64),
        ("to_rows", (1,), torch.int64),
        ("calls", (4,), torch.int64),
        ("flag", (1,), torch.int64),
        ("table<float>", (2, 2), torch.float32),
    ],
)
def test_shapes(name: str, shape: tuple[int, ...], dtype: torch.dtype, device: str) -> None:
    found = RawModule(SHAPES).get_global(name, device)
    assert (tuple(found.shape), found.dtype, found.is_contiguous()) == (shape, dtype, True)


def test_elements_lie_where_the_kernel_has_them(device: str) -> None:
    module = RawModule(SHAPES)
    x = torch.randn(93, device=device)
    module.fill[1, 96](x)
    assert torch.equal(module.get_global("a", device), x.view(3, 31))
    assert module.get_global("grown", device).tolist() == [7, 8, 9]
    assert module.get_global("bytes", device)[0, 0, 0].tolist() == [1, 2, 0, 0, 0]
    assert module.get_global("hidden", device)[2].view(torch.float32).item() == 2
    assert module.get_global("table<float>", device).tolist() == [[1, 3], [3, 4]]


def test_the_compiler_is_asked_once_for_all_variables(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their types are kept with the program, for other modules of the source and other processes."""
    runs: list[str] = []

    def run(*args: Any, **kwargs: Any) -> Any:
        runs.append("run")
        return run_nvrtc(*args, **kwargs)

    monkeypatch.setattr(variables, "run_nvrtc", run)
    for _ in range(2):
        module = rawkern.RawModule(VARIABLES + "__device__ const double* of_its_own;")
        assert module.get_global("coefficients", device).tolist() == [1.0, 2.5, -3.0, 0.5]
        assert module.get_global("inner::weights", device).shape == (2, 3)
        assert module.get_global("of_its_own", device).dtype is torch.int64
        assert len(runs) == 1


def test_complex_numbers(device: str) -> None:
    code = "#include <cuda/std/complex>\n__device__ cuda::std::complex<float> waves[5][2];\n__global__ void k() {}"
    waves = RawModule(code).get_global("waves", device)
    assert (tuple(waves.shape), waves.dtype) == ((5, 2), torch.complex64)


SHARED = r"""
__constant__ float taps[3];
__device__ int calls;
static __device__ int own;
namespace { __device__ double hidden; }
namespace inner { __device__ float unused[2]; }
template <class T> __device__ T table[2] = {1, 2};
__device__ float value = 2.5f;
__device__ float* place = &value;
__device__ int count() { static int times; return ++times; }
template <typename T> __global__ void filter(const T* x, T* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = taps[0] * x[i] + taps[1] + hidden;
    if (i == 0) calls++, own += 10, table<float>[1] += 1, *place += 1;
}
template <typename T> __global__ void ask(T* y) { y[0] = count(); y[1] = own; y[2] = table<float>[1]; y[3] = value; }
"""
PLAIN_KERNEL = 'extern "C" __global__ void other(float* y) { y[0] = taps[0]; y[1] = calls++; y[2] = count(); }'


@pytest.mark.parametrize("plain", [True, False])
def test_instances_of_templates_have_the_variables_of_the_module(plain: bool, device: str) -> None:
    """Whichever of them are compiled together, as in C++."""
    module = RawModule(SHARED + PLAIN_KERNEL * plain)
    taps = module.get_global("taps", device)
    taps.copy_(torch.tensor([2.0, 1.0, 0.0]))
    module.get_global("hidden", device).fill_(0.5)
    for k, dtype in enumerate((torch.float32, torch.float64, torch.float32, torch.int32), 1):
        x, y = torch.arange(5, device=device).to(dtype), torch.empty(5, device=device).to(dtype)
        for again in (0, 1):  # launched natively in the end
            module.filter.forall(5)(x, y, 5)
            assert y.tolist() == (2 * x.double() + 1.5).to(dtype).tolist()
            assert module.get_global("calls", device).item() == 2 * k - 1 + again
    assert module.get_global("own", device).item() == 80
    assert module.get_global("table<float>", device).tolist() == [1, 10]
    assert module.get_global("inner::unused", device).tolist() == [0, 0]
    found = torch.zeros(4, device=device)
    for times in range(1, 5):
        module.ask[1, 1](found := found.to((torch.float32, torch.float64)[times % 2]))
        assert found.tolist() == [times, 80, 10, 10.5]
    taps[0] = 3
    module.filter[1, 8](x, y, 5)
    assert y.tolist() == [int(3 * i + 1.5) for i in range(5)]
    if plain:
        y = torch.zeros(3, device=device)
        module.other[1, 1](y)
        assert y.tolist() == [3, 9, 5] and module.get_global("calls", device).item() == 10


def test_variables_beside_kernels_that_are_probed_for(device: str) -> None:
    """Kernels with parameters of the user's types, or overloads, are compiled twice."""
    module = RawModule("""
    inline namespace v1 { __device__ float unused; template <typename T> __global__ void t(T* x) { x[0] = unused; } }
    enum class E { A }; struct P { float a; };
    __global__ void f(P p, E e, float* x) { x[0] = p.a; }
    __global__ void f(float* x) { x[0] = 1; }
    """)
    for name in ("unused", "v1::unused"):
        assert module.get_global(name, device).tolist() == [0]


def test_variables_of_instances_in_checked_launches() -> None:
    module = RawModule(SHARED)
    for dtype in (torch.float32, torch.float64):
        x, y = torch.ones(5, dtype=dtype), torch.empty(5, dtype=dtype)
        with rawkern.check():
            module.filter.forall(5)(x, y, 5)
        module.get_global("taps", "cpu")[1] = 4
    assert y.tolist() == [4] * 5 and module.get_global("calls", "cpu").item() == 2


def test_managed_variables(device: str) -> None:
    module = RawModule(r"""
    struct Pair { int a; float b; };
    __managed__ int count = 4;
    __managed__ float rows[3][4];
    namespace inner { __managed__ Pair pair; }
    static __managed__ float4 corners[2];
    namespace { __managed__ short hidden[2]; }
    template <class T> __global__ void k(T* y) {
        y[0] = count++;
        y[1] = rows[1][2] + inner::pair.a + corners[1].y + hidden[1];
    }
    """)
    for name, shape, dtype in (
        ("count", (1,), torch.int32), ("rows", (3, 4), torch.float32), ("inner::pair", (8,), torch.uint8),
        ("corners", (2, 4), torch.float32), ("hidden", (2,), torch.int16),
    ):  # fmt: skip
        found = module.get_global(name, device)
        assert (tuple(found.shape), found.dtype, found.device.type) == (shape, dtype, device)
    module.get_global("count", device).fill_(7)
    module.get_global("hidden", device)[1] = 3
    for k, dtype in enumerate((torch.float32, torch.float64)):
        y = torch.zeros(2, dtype=dtype, device=device)
        module.k[1, 1](y)
        assert y.tolist() == [7 + k, 3]
    assert module.get_global("count", device).item() == 9
