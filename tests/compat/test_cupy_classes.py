"""CuPy's classes: what RawKernel and RawModule are told, and what can be asked of them and set."""

from __future__ import annotations

import io
import pickle
import re
from typing import Any

import numpy as np
import pytest
import torch

import rawkern
from rawkern import CompileError, LaunchError, RawKernel, RawModule

SOURCE = """
#ifndef TYPE
#error TYPE has to be given
#endif
__constant__ float factors[16];
extern "C" {
__global__ void add(const TYPE* x, const TYPE* y, TYPE* z, unsigned int n) {
    unsigned int i = blockIdx.x * blockDim.x + threadIdx.x;
    int unused;
    if (i < n) z[i] = x[i] + y[i];
}
__global__ void scale(float* x, int n) { if (threadIdx.x < n) x[threadIdx.x] *= factors[threadIdx.x]; }
}
template <typename T> __global__ void square(T* x, int n) { if (threadIdx.x < n) x[threadIdx.x] *= x[threadIdx.x]; }
"""
OPTIONS = ("-DTYPE=double",)
NAMES = ("square<float>", "square<int>", "add")
MODULE = RawModule(code=SOURCE, options=OPTIONS, name_expressions=NAMES)


def adds(kernel: Any, device: str, dtype: torch.dtype = torch.float64) -> bool:
    x, y = torch.rand(2, 10, 10, dtype=dtype, device=device)
    z = torch.full_like(x, torch.nan)
    kernel((10,), (10,), (x, y, z, x.numel()))
    return torch.equal(z, x + y)


@pytest.mark.parametrize("backend", ["nvrtc", "nvcc"])
@pytest.mark.parametrize("jitify", [None, False, True])
def test_what_cupy_is_told(backend: str, jitify: bool | None) -> None:
    kernel = RawKernel(SOURCE, "add", OPTIONS, backend, False, enable_cooperative_groups=False, jitify=jitify)
    module = RawModule(code=SOURCE, options=OPTIONS, backend=backend, translate_cucomplex=False, jitify=jitify)
    assert adds(kernel, "cpu") and adds(module.get_function("add"), "cpu")
    assert (kernel.backend, module.backend) == (backend, backend)


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ({"backend": "hip"}, "backend is 'hip'; it is 'nvrtc' or 'nvcc', and NVRTC compiles for both"),
        ({"jitify": "yes"}, "jitify is 'yes'; pass True or False"),
        ({"translate_cucomplex": "no"}, "translate_cucomplex is 'no'; pass True or False"),
        ({"path": "kernel.cubin"}, "give the CUDA source as code, or path= for a file; got both"),
        ({"code": None}, "give the CUDA source as code, or path= for a file; got neither"),
        ({"options": ("-dc",)}, "option '-dc' cannot be used: kernels are loaded without a link step"),
    ],
)
def test_what_cannot_be(named: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        RawModule(**{"code": SOURCE, **named})


def test_attributes(device: str) -> None:
    kernel = MODULE.get_function("add")
    assert kernel.attributes.keys() >= {
        "binary_version", "cache_mode_ca", "const_size_bytes", "local_size_bytes", "max_dynamic_shared_size_bytes",
        "max_threads_per_block", "num_regs", "preferred_shared_memory_carveout", "ptx_version", "shared_size_bytes",
    }  # fmt: skip
    for name, value in kernel.attributes.items():
        assert getattr(kernel, name) == value
    assert kernel.max_threads_per_block == 1024 and kernel.shared_size_bytes == 0
    assert (kernel.num_regs > 0) == torch.cuda.is_available()
    assert (kernel.code, kernel.file_path, kernel.options, kernel.name) == (SOURCE, None, OPTIONS, "add")
    assert (MODULE.code, MODULE.file_path, MODULE.options) == (SOURCE, None, OPTIONS)
    assert MODULE.name_expressions == NAMES
    assert not kernel.enable_cooperative_groups and not MODULE.enable_cooperative_groups


def test_attributes_that_can_be_set(device: str) -> None:
    kernel = RawModule(code=SOURCE, options=OPTIONS).get_function("add")
    kernel.max_dynamic_shared_size_bytes = 50_000
    kernel.preferred_shared_memory_carveout = np.int64(50)
    assert kernel.max_dynamic_shared_size_bytes == kernel.attributes["max_dynamic_shared_size_bytes"] == 50_000
    assert kernel.preferred_shared_memory_carveout == 50
    kernel.set_shared_memory_config(1000)
    assert kernel.max_dynamic_shared_size_bytes == 1000 and adds(kernel, device)
    with pytest.raises(LaunchError, match="add: max_dynamic_shared_size_bytes is 1000000 bytes, the maximum here is"):
        kernel.set_shared_memory_config(1_000_000)
    for value, error in ((-2, ValueError), (101, ValueError), (0.5, TypeError)):
        with pytest.raises(error, match="preferred_shared_memory_carveout is "):
            kernel.preferred_shared_memory_carveout = value
    with pytest.raises(AttributeError):
        kernel.num_regs = 3
    with pytest.raises(ValueError, match="'num_regs' cannot be set"):
        kernel.set_attribute("num_regs", 3)


def test_compile_writes_the_log(device: str) -> None:
    for one in (RawKernel(SOURCE, "add", OPTIONS), RawModule(code=SOURCE, options=OPTIONS)):
        log = io.StringIO()
        assert one.compile(log_stream=log) is None
        assert "warning" in log.getvalue() and "unused" in log.getvalue()
        one.compile()


def test_what_does_not_compile() -> None:
    assert issubclass(CompileError, RuntimeError)  # as what torch's kernels raise
    for one in (RawKernel(SOURCE, "add"), RawModule(code=SOURCE)):
        with pytest.raises(RuntimeError, match="TYPE has to be given"):
            one.compile()


def test_constant_memory(device: str) -> None:
    factors = MODULE.get_global("factors", device)
    factors.copy_(torch.arange(16.0))
    x = torch.ones(16, device=device)
    MODULE.get_function("scale")((1,), (16,), (x, np.int32(16)))
    assert x.tolist() == list(range(16))


def test_name_expressions(device: str) -> None:
    for name, dtype in zip(NAMES[:2], (torch.float32, torch.int32), strict=True):
        x = (torch.rand(10, device=device) * 9).to(dtype)
        expected = x * x
        MODULE.get_function(name)((1,), (10,), (x, 10))
        assert torch.equal(x, expected)
    with pytest.raises(ValueError, match="there is no kernel 'none'; the source has"):
        MODULE.get_function("none")


@pytest.mark.parametrize("launched", [False, True])
def test_pickling(launched: bool, device: str) -> None:
    kernel = RawKernel(SOURCE, "add", OPTIONS, enable_cooperative_groups=True)
    module = RawModule(code=SOURCE, options=OPTIONS, enable_cooperative_groups=True)
    if launched:
        assert adds(kernel, device) and adds(module.get_function("add"), device)
    again = pickle.loads(pickle.dumps(kernel))
    assert adds(again, device) and again.enable_cooperative_groups
    assert adds(pickle.loads(pickle.dumps(module)).get_function("add"), device)


@pytest.mark.parametrize(("real", "suffix"), [(torch.float32, "f"), (torch.float64, "")])
def test_functions_of_cucomplex(real: torch.dtype, suffix: str, device: str) -> None:
    """In CuPy's reading the functions take complex<float> and complex<double> alike, and operators work, too."""
    kind = "cuFloatComplex" if suffix else "cuDoubleComplex"
    expressions = {
        f"cuCadd{suffix}(a, b)": lambda a, b: a + b,
        f"cuCsub{suffix}(a, b)": lambda a, b: a - b,
        f"cuCmul{suffix}(a, b)": lambda a, b: a * b,
        f"cuCdiv{suffix}(a, b)": lambda a, b: a / b,
        f"cuCfma{suffix}(a, b, a)": lambda a, b: a * b + a,
        f"cuConj{suffix}(a)": lambda a, b: a.conj().resolve_conj(),
        f"make_{kind}(cuCimag{suffix}(a), cuCabs{suffix}(b))": lambda a, b: torch.complex(a.imag, b.abs()),
    }
    plain = "".join(f"case {k}: out[i] = {text}; break;\n" for k, text in enumerate(expressions))
    code = f"""#include <cuComplex.h>
extern "C" __global__ void apply(int which, const {kind}* x, const {kind} b, {kind}* out) {{
    int i = threadIdx.x;
    {kind} a = x[i];
    switch (which) {{ {plain} %s }}
}}"""
    x = torch.randn(20, dtype=real.to_complex(), device=device)
    b = torch.tensor(2 + 3j, dtype=x.dtype, device=device)
    bridged = RawKernel(code % "case 99: out[i] = a * b - a;", "apply", translate_cucomplex=True)
    for kernel in (RawKernel(code % "", "apply"), bridged):
        for which, expected in enumerate(expressions.values()):
            out = torch.full_like(x, torch.nan)
            kernel((1,), (20,), (which, x, 2 + 3j, out))
            torch.testing.assert_close(out, expected(x, b))
    bridged((1,), (20,), (99, x, np.complex64(2 + 3j), out))
    torch.testing.assert_close(out, x * b - x)


def test_std_headers_need_no_jitify(device: str) -> None:
    code = """
#include <type_traits>
template <typename T, typename = typename std::enable_if<std::is_integral<T>::value>::type>
__global__ void shift(T* x, int n) { if (threadIdx.x < n) x[threadIdx.x] += 100; }"""
    x = torch.arange(8, dtype=torch.int32, device=device)
    RawModule(code=code, name_expressions=("shift<int>",)).get_function("shift<int>")((1,), (8,), (x, 8))
    assert x.tolist() == list(range(100, 108))
    with pytest.raises(rawkern.CompileError, match="cannot determine which instance"):
        RawModule(code=code, name_expressions=("shift<float>",)).get_function("shift<float>")


def test_headers_of_cupy(device: str) -> None:
    code = """
#include <cupy/complex.cuh>
#include <cupy/float16.cuh>
#include <cupy/math_constants.h>
extern "C" __global__ void apply(const complex<float>* x, const complex<float>* y, complex<float>* z, float a) {
    int i = threadIdx.x;
    z[i] = a < CUDART_INF_F ? x[i] + a * exp(y[i]) : 0;
}"""
    x, y = torch.randn(2, 25, dtype=torch.complex64, device=device)
    z = torch.zeros_like(x)
    RawKernel(code, "apply")((1,), (25,), (x, y, z, np.float32(2.0)))
    torch.testing.assert_close(z, x + 2 * y.exp())


def test_textures_are_rejected() -> None:
    code = 'extern "C" __global__ void read(float* y, cudaTextureObject_t t) { *y = tex1D<float>(t, 0.f); }'
    with pytest.raises(rawkern.UnsupportedError, match="textures are not supported"):
        RawKernel(code, "read")((1,), (1,), (torch.zeros(1), 5))


@pytest.mark.gpu
def test_textures() -> None:
    import cupy
    from cupy.cuda import runtime, texture

    channel = texture.ChannelFormatDescriptor(32, 0, 0, 0, runtime.cudaChannelFormatKindFloat)
    array = texture.CUDAarray(channel, 8)
    array.copy_from(cupy.arange(8, dtype=cupy.float32))
    resource = texture.ResourceDescriptor(runtime.cudaResourceTypeArray, cuArr=array)
    clamped = texture.TextureDescriptor(
        (runtime.cudaAddressModeClamp,), runtime.cudaFilterModePoint, runtime.cudaReadModeElementType
    )
    code = """extern "C" __global__ void read(float* y, cudaTextureObject_t t) {
    y[threadIdx.x] = tex1D<float>(t, threadIdx.x + 0.5f);
}"""
    y = torch.full((8,), torch.nan, device="cuda")
    RawKernel(code, "read")((1,), (8,), (y, texture.TextureObject(resource, clamped)))
    assert y.tolist() == list(range(8))
