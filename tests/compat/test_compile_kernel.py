"""Kernels as `torch.cuda._compile_kernel` has them: its form of a launch, its errors, its arguments."""

from __future__ import annotations

import re

import pytest
import torch

from rawkern import CompileError, RawKernel, RawModule

ADD = """
extern "C" __global__ void add(const float* a, const float* b, float* c, int n) {
    int i = threadIdx.x + blockIdx.x * blockDim.x;
    if (i < n) c[i] = a[i] + b[i];
}"""
MIXED = """
template <typename T> __global__ void fill(T* x, double value, int n) { if (threadIdx.x < n) x[threadIdx.x] = (T)value; }
extern "C" __global__ void once(int* x) { atomicAdd(x, blockIdx.x + 1); }
extern "C" __global__ void reverse(float* x, int n) {
    extern __shared__ float tile[];
    for (int i = threadIdx.x; i < n; i += blockDim.x) tile[i] = x[i];
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x) x[i] = tile[n - 1 - i];
}"""
MODULE = RawModule(MIXED)


def test_tuples_of_three_and_a_list(device: str) -> None:
    kernel = RawKernel(ADD, "add")
    a, b = torch.rand(2, 1024, device=device)
    c = torch.full_like(a, torch.nan)
    kernel(grid=(4, 1, 1), block=(256, 1, 1), args=[a, b, c, a.numel()])
    assert torch.equal(c, a + b)
    c.fill_(torch.nan)
    kernel((4, 1, 1), (256, 1, 1), [a, b, c, a.numel()], shared_mem=0, stream=None)
    assert torch.equal(c, a + b)


def test_defaults_are_one_block_of_one_thread(device: str) -> None:
    x = torch.zeros(1, dtype=torch.int32, device=device)
    MODULE.once(args=[x])
    assert x.item() == 1
    MODULE.once(grid=(3, 1, 1), args=[x])
    assert x.item() == 1 + 1 + 2 + 3
    MODULE.once(block=(5, 1, 1), args=[x])
    assert x.item() == 7 + 5


def test_shared_memory_needs_no_configuration(device: str) -> None:
    n = 15_000  # 60,000 bytes
    for configured in (False, True):
        kernel = RawModule(MIXED).get_function("reverse")
        if configured:
            kernel.set_shared_memory_config(4 * n)
            assert kernel.max_dynamic_shared_size_bytes == 4 * n
        x = torch.rand(n, device=device)
        expected = x.flip(0)
        kernel(grid=(1, 1, 1), block=(256, 1, 1), args=[x, n], shared_mem=4 * n)
        assert torch.equal(x, expected)
    with pytest.raises(RuntimeError, match="reverse: max_dynamic_shared_size_bytes is 1048576 bytes, the maximum here"):
        kernel.set_shared_memory_config(1 << 20)


def test_instances_by_name(device: str) -> None:
    for name, dtype in (("fill<float>", torch.float32), ("fill<int>", torch.int32)):
        x = torch.zeros(8, dtype=dtype, device=device)
        RawKernel(MIXED, name)(grid=(1, 1, 1), block=(8, 1, 1), args=[x, 3.0, 8])
        assert x.tolist() == [3] * 8


def test_what_does_not_compile_is_a_runtime_error() -> None:
    kernel = RawKernel("""extern "C" __global__ void broken(float* x) { this is not CUDA; }""", "broken")
    with pytest.raises(RuntimeError, match="this") as caught:
        kernel(args=[torch.zeros(1)])
    assert isinstance(caught.value, CompileError)
    with pytest.raises((RuntimeError, ValueError), match="there is no kernel 'missing'"):
        RawKernel(ADD, "missing").compile()


def test_arguments_that_torch_would_misread_are_rejected() -> None:
    kernel, x = RawKernel(ADD, "add"), torch.rand(4)
    for args, message in (
        ([x, x, x.clone()], "add takes 4 arguments, 3 were given"),
        ([x, x, x.clone(), "4"], "argument 4 'n' is '4' (str), the kernel takes int by value"),
        ([x, x, x.clone(), 4.0], "argument 4 'n' is the float 4.0, the kernel takes int by value; pass int(n)"),
        ([x, x.double(), x.clone(), 4], "argument 2 'b' is float64, the kernel reads const float*; pass b.float()"),
        ([x, x, torch.rand(2, 2).t(), 4], "argument 3 'c' is not contiguous"),
    ):
        with pytest.raises((TypeError, ValueError), match=re.escape(message)):
            kernel(grid=(1, 1, 1), block=(4, 1, 1), args=args)


@pytest.mark.gpu
def test_pinned_tensors_and_streams() -> None:
    kernel, n = RawKernel(ADD, "add"), 1 << 16
    a, b = torch.rand(n, device="cuda"), torch.rand(n).pin_memory()
    c, stream = torch.empty(n).pin_memory(), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    for _ in range(4):
        c.fill_(torch.nan)
        kernel((n // 256, 1, 1), (256, 1, 1), [a, b, c, n], stream=stream)
        stream.synchronize()
        torch.testing.assert_close(c, a.cpu() + b)
    with pytest.raises(ValueError, match=r"a launch runs on one device: pass b\.to"):
        kernel((n // 256, 1, 1), (256, 1, 1), [a, torch.rand(n), c, n])
