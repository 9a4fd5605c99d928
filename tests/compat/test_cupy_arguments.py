"""What CuPy's guide says of kernel arguments: numbers, arrays of one element, vectors and structs by value; pointers."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch

from rawkern import RawModule

TYPES = {
    "bool": np.bool_, "signed char": np.int8, "unsigned char": np.uint8, "short": np.int16, "unsigned short": np.uint16,
    "int": np.int32, "unsigned int": np.uint32, "long long": np.int64, "unsigned long long": np.uint64,
    "half": np.float16, "float": np.float32, "double": np.float64, "float2": np.complex64, "double2": np.complex128,
    "complex<float>": np.complex64, "complex<double>": np.complex128,
}  # fmt: skip
FLOAT3 = np.dtype({"names": ["x", "y", "z"], "formats": [np.float32] * 3})
INNER = np.dtype([("count", np.int32), ("weight", np.float64)], align=True)
OUTER = np.dtype(
    {"names": ["in", "at", "mark"], "formats": [INNER, FLOAT3, np.int8], "offsets": [0, 16, 28], "itemsize": 32}
)


def kernel_name(ctype: str) -> str:
    return "of_" + re.sub(r"\W", "_", ctype)


MODULE = RawModule(
    code="""
#include <cuda_fp16.h>
#include <cupy/complex.cuh>
struct Row { float value[5]; };
struct Square { float value[3][3]; float* none; };
struct Inner { int count; double weight; };
struct Outer { Inner in; float3 at; char mark; };
extern "C" {
"""
    + "\n".join(
        f"__global__ void {kernel_name(ctype)}({ctype} value, void* out) {{ *({ctype}*)out = value; }}"
        for ctype in (*TYPES, "int2", "float3", "double4_16a", "Row", "Square", "Outer")
    )
    + """
__global__ void affine(void* data, int n) {
    double* x = (double*)data;
    if (threadIdx.x < n) x[threadIdx.x] = 3 * x[threadIdx.x] - 8;
}
}"""
)


def passed(ctype: str, value: Any, dtype: Any, device: str) -> np.ndarray:
    """What a kernel gets, as its bytes read as NumPy's dtype."""
    out = torch.full((np.dtype(dtype).itemsize,), 77, dtype=torch.uint8, device=device)
    MODULE.get_function(kernel_name(ctype))((1,), (1,), (value, out))
    return out.cpu().numpy().view(dtype)[0]


@pytest.mark.parametrize("ctype", TYPES)
def test_numbers_by_value(ctype: str, device: str) -> None:
    dtype = TYPES[ctype]
    value = dtype({"b": True, "i": -3, "u": 200, "f": -2.5, "c": 2 - 3.5j}[np.dtype(dtype).kind])
    array = np.array([value], dtype)
    for given in (value, array, array.reshape(1, 1), array.reshape(())):
        assert passed(ctype, given, dtype, device) == value


def test_python_numbers_take_the_type_of_the_kernel(device: str) -> None:
    # CuPy passes a float as a double and an int as a long long, whatever the kernel declares.
    assert passed("float", 2.5, np.float32, device) == 2.5
    assert passed("short", 7, np.int16, device) == 7
    assert passed("double2", 2 + 3j, np.complex128, device) == 2 + 3j


def test_vectors_by_value(device: str) -> None:
    given = np.array([1.5, -2, 42], np.float32)
    for value in (given.view(FLOAT3), given.view(FLOAT3)[0], given, {"x": 1.5, "y": -2, "z": 42}):
        assert passed("float3", value, FLOAT3, device).tolist() == (1.5, -2, 42)
    pair = np.dtype([("x", np.int32), ("y", np.int32)])
    assert passed("int2", np.array([(3, -4)], pair), pair, device).tolist() == (3, -4)
    four = np.dtype([(name, np.float64) for name in "xyzw"])
    assert passed("double4_16a", np.array([(1, 2, 3, 4.5)], four), four, device).tolist() == (1, 2, 3, 4.5)


def test_structs_by_value(device: str) -> None:
    values = np.arange(9, dtype=np.float32) / 4
    for name in ("value", "dummy"):  # the guide's way to leave the members without names
        row = np.dtype({"names": [name], "formats": [(np.float32, (5,))]})
        for given in (values[:5].view(row), values[:5].view(row)[0]):
            assert (passed("Row", given, row, device)[name] == values[:5]).all()
    square = np.dtype([("value", np.float32, (3, 3)), ("none", np.uint64)], align=True)
    given = np.zeros(1, square)
    given["value"] = values.reshape(3, 3)
    assert (passed("Square", given, square, device)["value"] == values.reshape(3, 3)).all()
    nested = np.zeros(1, OUTER)
    nested["in"]["count"], nested["in"]["weight"], nested["at"]["z"], nested["mark"] = -5, 0.5, 7.5, -3
    found = passed("Outer", nested, OUTER, device)
    assert (found["in"].tolist(), found["at"]["z"], found["mark"]) == ((-5, 0.5), 7.5, -3)


@pytest.mark.parametrize(
    ("ctype", "value", "message"),
    [
        (
            "int",
            np.array([1, 2]),
            "is an array of shape (2,), the kernel takes int by value; pass one element: value[0]",
        ),
        ("int", np.array([1.5]), "is the float 1.5, the kernel takes int by value; pass int(value)"),
        ("float3", np.zeros(2, FLOAT3), "has 2 records, the kernel takes one float3 by value; pass value[0]"),
        ("float3", np.zeros(1, [("x", "f4"), ("z", "f4"), ("y", "f4")]), "has member 'z' at byte 4, float3 has it at"),
        ("int2", np.zeros(1, [("x", "f4"), ("y", "f4")]), "has member 'x' as float32, int2 has it as int"),
        ("Row", np.zeros(1, [("dummy", "i4", (5,))]), "has member 'value' as int32, Row has it as float"),
        ("Row", np.zeros(1, [("dummy", "f4", (4,))]), "has 16 bytes, the kernel takes Row by value, whose size is 20"),
    ],
)
def test_values_that_would_be_misread(ctype: str, value: Any, message: str) -> None:
    with pytest.raises(TypeError, match=re.escape(f"{kernel_name(ctype)}: argument 1 'value' {message}")):
        passed(ctype, value, np.uint8, "cpu")


def test_a_pointer_may_be_cast(device: str) -> None:
    x = torch.ones(100, dtype=torch.float64, device=device)
    MODULE.affine((1,), (100,), (x, 100))
    assert (x == -5).all()
