"""What the message for a rejected argument says to do: if it is a call, the call works."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import rawkern
from rawkern.arguments.signature import make_signature
from rawkern.arguments.slow_path import bind


def _rejected(param: str, value: Any) -> str:
    signature = make_signature(SimpleNamespace(name="k", params=(param,)), ("x",))
    with pytest.raises(TypeError) as caught:
        bind(signature, (value,))
    message = str(caught.value)
    for call in re.findall(r"pass (x\.\S+?\))(?=[ ,;]|$)", message):
        bound = bind(signature, (eval(call, {"x": value, "torch": torch, "numpy": np}),))
        if ".view(" in call and isinstance(value, torch.Tensor):
            assert bound.values == (value.data_ptr(),)  # the same bytes, not a copy
    return message.partition("; ")[2]


def _zeros(dtype: str, *shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=getattr(torch, dtype))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float8_e4m3fn", "int8", "uint8", "bool"])
def test_narrower_elements_for_a_vector(dtype: str) -> None:
    x = _zeros(dtype, 4, 16)
    assert _rejected("float4 const*", x) == "pass x.view(torch.float32) if bytes are meant, else pass x.float()"
    assert _rejected("uint4 const*", x) == "pass x.view(torch.uint32) if bytes are meant, else pass x.to(torch.uint32)"
    assert _rejected("double2 const*", x) == "pass x.view(torch.float64) if bytes are meant, else pass x.double()"
    assert (
        _rejected("float4*", x)
        == "pass x.view(torch.float32) if bytes are meant, else make it with dtype=torch.float32"
    )


@pytest.mark.parametrize(
    ("param", "dtype", "what_to_do"),
    [
        ("int4 const*", "float32", "pass x.view(torch.int32) if bytes are meant, else pass x.int()"),
        ("float4 const*", "int32", "pass x.view(torch.float32) if bytes are meant, else pass x.float()"),
        ("float2 const*", "int64", "pass x.view(torch.float32) if bytes are meant, else pass x.float()"),
        ("longlong2 const*", "int32", "pass x.view(torch.int64) if bytes are meant, else pass x.long()"),
        (
            "unsigned int const*",
            "float16",
            "pass x.view(torch.uint32) if bytes are meant, else pass x.to(torch.uint32)",
        ),
        ("int const*", "int8", "pass x.view(torch.int32) if bytes are meant, else pass x.int()"),
        ("unsigned char const*", "float16", "pass x.view(torch.uint8) if bytes are meant"),
    ],
)
def test_other_elements_whose_bytes_may_be_meant(param: str, dtype: str, what_to_do: str) -> None:
    assert _rejected(param, _zeros(dtype, 4, 16)) == what_to_do


@pytest.mark.parametrize(
    ("param", "dtype", "what_to_do"),
    [
        ("float4 const*", "float64", "pass x.float()"),  # reading doubles as floats makes no sense
        ("int4 const*", "int64", "pass x.int()"),
        ("float const*", "float16", "pass x.float()"),
        ("int const*", "bool", "pass x.int()"),
        ("int const*", "int64", "pass x.int()"),
        ("__half2 const*", "float32", "pass x.half()"),
        ("float2 const*", "complex128", "pass x.to(torch.complex64)"),
        ("float const*", "complex128", "pass torch.view_as_real(x).float()"),
        ("float*", "complex64", "pass torch.view_as_real(x)"),
        ("float*", "complex128", "make it with dtype=torch.float32"),
        ("float4 const*", "complex64", "pass torch.view_as_real(x)"),
    ],
)
def test_elements_that_can_only_be_meant_as_numbers(param: str, dtype: str, what_to_do: str) -> None:
    assert _rejected(param, _zeros(dtype, 4, 16)) == what_to_do


def test_shapes_that_a_view_does_not_fit() -> None:
    both = "pass x.reshape(-1).view(torch.float32) if bytes are meant, else pass x.float()"
    assert _rejected("float4 const*", _zeros("float16", 8, 3)) == both
    assert _rejected("float4 const*", _zeros("float16", 3, 3)) == "pass x.float()"  # 18 bytes are not whole floats
    assert _rejected("float4 const*", _zeros("float16")) == "pass x.float()"
    assert _rejected("float4 const*", _zeros("float16", 0, 8)).startswith("pass x.view(torch.float32) if")


def test_a_view_needs_contiguous_elements() -> None:
    signature = make_signature(SimpleNamespace(name="k", params=("float4 const*",)), ("x",))
    with pytest.raises(TypeError, match=r"is float16, the kernel reads const float4\*; pass x.float\(\)$"):
        bind(signature, (_zeros("float16", 16, 8).T,), strided=True)


def test_numpy_arrays() -> None:
    x = np.zeros((4, 16), np.float16)
    assert (
        _rejected("float4 const*", x)
        == "pass x.view(numpy.float32) if bytes are meant, else pass x.astype(numpy.float32)"
    )
    assert _rejected("int4 const*", x[:, :6].copy()).startswith("pass x.view(numpy.int32) if bytes are meant")
    assert _rejected("int4 const*", x[:, :5].copy()).startswith(
        "pass x.reshape(-1).view(numpy.int32) if bytes are meant"
    )


def test_halves_through_loads_of_16_bytes(device: str) -> None:
    kernel = rawkern.RawKernel("""
        #include <cuda_fp16.h>
        extern "C" __global__ void twice(const float4* x, float4* y, int n) {
            int i = blockIdx.x * blockDim.x + threadIdx.x;
            if (i >= n) return;
            float4 pack = x[i];
            __half2* h = reinterpret_cast<__half2*>(&pack);
            for (int k = 0; k < 4; k++) h[k] = __hadd2(h[k], h[k]);
            y[i] = pack;
        }""")
    x = torch.randn(5, 24, dtype=torch.float16, device=device)
    y = torch.full_like(x, torch.nan)
    with pytest.raises(TypeError, match=r"pass x.view\(torch.float32\) if bytes are meant"):
        kernel[1, 32](x, y, 15)
    with pytest.raises(
        TypeError, match=r"'y' is float16, .*; pass y.view\(torch.float32\) if bytes are meant, else make"
    ):
        kernel[1, 32](x.view(torch.float32), y, 15)
    kernel[1, 32](x.view(torch.float32), y.view(torch.float32), 15)
    assert torch.equal(y, 2 * x)
