"""Ways of launching one kernel, c = a * b on three tensors and an int: rawkern's and its rivals'.

Each takes the tensors and returns a launch; what is not installed raises when it is built. Those that compile take the
source, so that they also show what an edit costs.
"""

from __future__ import annotations

import ctypes
import struct
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import rawkern
from benchmarks import sources

CUDA = torch.cuda.is_available()
N = 1024 if CUDA else 1  # elements of a launch: few, so that the GPU is done before the host has launched the next
BLOCK = 256
GRID = -(-N // BLOCK)
Launch = Callable[[], Any]
Make = Callable[[Tensor, Tensor, Tensor], Launch]

# rawkern ------------------------------------------------------------------------------------------------------


def own_index(a: Tensor, b: Tensor, c: Tensor) -> Launch:
    k = rawkern.RawKernel(sources.MULTIPLY)
    return lambda: k[GRID, BLOCK](a, b, c, N)


def own_forall(a: Tensor, b: Tensor, c: Tensor) -> Launch:
    k = rawkern.RawKernel(sources.MULTIPLY)
    return lambda: k.forall(N)(a, b, c, N)


def own_cupy_form(a: Tensor, b: Tensor, c: Tensor) -> Launch:
    k = rawkern.RawKernel(sources.MULTIPLY)
    return lambda: k((GRID,), (BLOCK,), (a, b, c, N))


def own_settled(a: Tensor, b: Tensor, c: Tensor) -> Launch:
    launch = rawkern.RawKernel(sources.MULTIPLY)[GRID, BLOCK]
    return lambda: launch(a, b, c, N)


# Rivals -------------------------------------------------------------------------------------------------------


def torch_mul(a: Tensor, b: Tensor, c: Tensor) -> Launch:
    return lambda: torch.mul(a, b, out=c)


def cupy_dlpack(a: Tensor, b: Tensor, c: Tensor) -> Launch:
    import cupy
    import numpy

    k = cupy.RawKernel(sources.MULTIPLY, "multiply")
    of: Callable[[Any], Any] = cupy.cuda.Stream.from_external
    if not hasattr(torch.cuda.Stream, "__cuda_stream__"):  # an older torch

        def of(stream: torch.cuda.Stream) -> Any:
            return cupy.cuda.ExternalStream(stream.cuda_stream)

    def run() -> None:
        with of(torch.cuda.current_stream()):
            arrays = [cupy.from_dlpack(tensor) for tensor in (a, b, c)]
            k((GRID,), (BLOCK,), (*arrays, numpy.int32(N)))

    return run


def cupy_pointers(a: Tensor, b: Tensor, c: Tensor, source: str = sources.MULTIPLY) -> Launch:
    import cupy
    import numpy

    k = cupy.RawKernel(source, "multiply")
    n = numpy.int32(N)
    return lambda: k((GRID,), (BLOCK,), (a.data_ptr(), b.data_ptr(), c.data_ptr(), n))


def driver_alone(a: Tensor, b: Tensor, c: Tensor) -> Launch:
    """The driver's own call through CuPy's binding, everything else done before: what no launch from Python beats."""
    import cupy

    function = cupy.RawKernel(sources.MULTIPLY, "multiply").kernel.ptr
    values = bytearray(struct.pack("QQQi", a.data_ptr(), b.data_ptr(), c.data_ptr(), N))
    at = ctypes.addressof(ctypes.c_char.from_buffer(values))
    pointers = bytearray(struct.pack("4Q", at, at + 8, at + 16, at + 24))
    table = ctypes.addressof(ctypes.c_char.from_buffer(pointers))
    stream, launch = torch.cuda.current_stream().cuda_stream, cupy.cuda.driver.launchKernel
    keep = values, pointers

    def run(keep: Any = keep) -> None:
        launch(function, GRID, 1, 1, BLOCK, 1, 1, 0, stream, table, 0)

    return run


def torch_compile_kernel(a: Tensor, b: Tensor, c: Tensor, source: str = sources.MULTIPLY) -> Launch:
    make = getattr(torch.cuda, "_compile_kernel", None) or torch.cuda.compile_kernel  # type: ignore[attr-defined]
    k = make(source, "multiply")
    return lambda: k((GRID, 1, 1), (BLOCK, 1, 1), [a, b, c, N])


def triton(a: Tensor, b: Tensor, c: Tensor) -> Launch:
    from benchmarks import triton_kernels

    k: Any = triton_kernels.multiply
    return lambda: k[(GRID,)](a, b, c, N, BLOCK=BLOCK)


def cuda_core(a: Tensor, b: Tensor, c: Tensor, source: str = sources.MULTIPLY) -> Launch:
    try:
        from cuda import core
        from cuda.core import Device
    except ImportError:  # before 0.5
        from cuda.core import experimental as core  # type: ignore[no-redef]

        Device = core.Device

    device = Device(torch.cuda.current_device())
    device.set_current()
    major, minor = torch.cuda.get_device_capability()
    options = core.ProgramOptions(std="c++17", arch=f"sm_{major}{minor}")
    k = core.Program(source, code_type="c++", options=options).compile("cubin").get_kernel("multiply")
    config, launch, n = core.LaunchConfig(grid=GRID, block=BLOCK), core.launch, ctypes.c_int(N)
    stream = core.Stream.from_handle(torch.cuda.current_stream().cuda_stream)
    return lambda: launch(stream, config, k, a.data_ptr(), b.data_ptr(), c.data_ptr(), n)


LOAD_INLINE = """
#include <c10/cuda/CUDAStream.h>
SOURCE
void launch(torch::Tensor a, torch::Tensor b, torch::Tensor c, int64_t n) {
    multiply<<<(n + 255) / 256, 256, 0, c10::cuda::getCurrentCUDAStream()>>>(
        a.data_ptr<float>(), b.data_ptr<float>(), c.data_ptr<float>(), (int)n);
}
"""


def load_inline(a: Tensor, b: Tensor, c: Tensor, source: str = sources.MULTIPLY, name: str = "") -> Launch:
    from torch.utils.cpp_extension import load_inline as build

    module = build(
        name=name or f"rawkern_benchmark_{time.time_ns()}",
        cpp_sources="void launch(torch::Tensor a, torch::Tensor b, torch::Tensor c, int64_t n);",
        cuda_sources=LOAD_INLINE.replace("SOURCE", source),
        functions=["launch"],
    )
    return lambda: module.launch(a, b, c, N)


TVM_FFI = """
SOURCE
void launch(tvm::ffi::TensorView a, tvm::ffi::TensorView b, tvm::ffi::TensorView c, int64_t n) {
    const DLDataType real{kDLFloat, 32, 1};
    TVM_FFI_ICHECK(a.dtype() == real && b.dtype() == real && c.dtype() == real);
    const DLDevice device = a.device();
    auto stream = static_cast<cudaStream_t>(TVMFFIEnvGetStream(device.device_type, device.device_id));
    multiply<<<(n + 255) / 256, 256, 0, stream>>>(static_cast<const float*>(a.data_ptr()),
        static_cast<const float*>(b.data_ptr()), static_cast<float*>(c.data_ptr()), (int)n);
}
"""


def tvm_ffi(a: Tensor, b: Tensor, c: Tensor, source: str = sources.MULTIPLY) -> Launch:
    from tvm_ffi import cpp

    module = cpp.load_inline(
        name=f"rawkern_benchmark_{time.time_ns()}", cuda_sources=TVM_FFI.replace("SOURCE", source), functions="launch"
    )
    launch = module.launch
    return lambda: launch(a, b, c, N)


TORCH = "torch.mul(a, b, out=c)"
LOAD = "torch load_inline (C++)"
DLPACK = "cupy.RawKernel, cupy.from_dlpack of each tensor, torch's stream"
OWN: dict[str, Make] = {
    "rawkern: k[g, b](...)": own_index,
    "rawkern: k.forall(n)(...)": own_forall,
    "rawkern: k((g,), (b,), (...))": own_cupy_form,
    "rawkern: launch = k[g, b]; launch(...)": own_settled,
}
RIVALS: dict[str, Make] = {
    DLPACK: cupy_dlpack,
    "cupy.RawKernel, data_ptr() ints (nothing checked, CuPy's stream)": cupy_pointers,
    "torch.cuda._compile_kernel": torch_compile_kernel,
    "Triton": triton,
    "cuda.core, data_ptr() ints (nothing checked, one stream)": cuda_core,
    "cuLaunchKernel through CuPy alone (nothing checked, nothing packed)": driver_alone,
}
#: Those that run nvcc, which takes a while.
BUILT: dict[str, Make] = {LOAD: load_inline, "tvm_ffi load_inline (C++)": tvm_ffi}
