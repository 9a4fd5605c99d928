"""Names of torch, CUDA and C++ that are values."""

from __future__ import annotations

from rawkern.extensions import types as t
from rawkern.extensions.types import Type
from rawkern.extensions.values import Value, integer

_DTYPES = {
    "Byte": "uint8", "Char": "int8", "Short": "int16", "Int": "int32", "Long": "int64", "Half": "float16",
    "Float": "float32", "Double": "float64", "Bool": "bool", "BFloat16": "bfloat16", "ComplexHalf": "complex32",
    "ComplexFloat": "complex64", "ComplexDouble": "complex128", "QInt8": "qint8", "QUInt8": "quint8",
    "Float8_e4m3fn": "float8_e4m3fn", "Float8_e5m2": "float8_e5m2", "UInt16": "uint16", "UInt32": "uint32",
    "UInt64": "uint64",
}  # fmt: skip
_SHORT = {"kU8": "uint8", "kI8": "int8", "kI16": "int16", "kI32": "int32", "kI64": "int64", "kF16": "float16"}
_SHORT |= {"kF32": "float32", "kF64": "float64", "kUInt8": "uint8", "kInt8": "int8", "kInt16": "int16"}
_SHORT |= {"kInt32": "int32", "kInt64": "int64", "kFloat16": "float16", "kFloat32": "float32", "kFloat64": "float64"}

NAMES: dict[str, Value] = {}
for _cpp, _torch in _DTYPES.items():
    for _name in (f"k{_cpp}", f"at::k{_cpp}", f"ScalarType::{_cpp}"):
        for _space in ("", "at::", "torch::", "c10::"):
            NAMES[_space + _name] = Value(f"torch.{_torch}", t.DTYPE)
for _name, _torch in _SHORT.items():
    NAMES[_name] = Value(f"torch.{_torch}", t.DTYPE)
for _cpp, _code in (("CUDA", "'cuda'"), ("CPU", "'cpu'"), ("Meta", "'meta'"), ("HIP", "'hip'"), ("XPU", "'xpu'")):
    for _name in (
        f"k{_cpp}",
        f"DeviceType::{_cpp}",
        f"at::DeviceType::{_cpp}",
        f"Device::{_cpp}",
        f"Device::Type::{_cpp}",
    ):
        NAMES[_name] = Value(_code, t.DEVICE_TYPE)
        for _space in ("at::", "torch::", "c10::"):
            NAMES[_space + _name] = Value(_code, t.DEVICE_TYPE)
for _cpp, _code in (
    ("Contiguous", "contiguous_format"), ("ChannelsLast", "channels_last"), ("ChannelsLast3d", "channels_last_3d"),
    ("Preserve", "preserve_format"),
):  # fmt: skip
    for _space in ("at::", "torch::", "c10::", ""):
        NAMES[f"{_space}MemoryFormat::{_cpp}"] = Value(f"torch.{_code}", t.MEMORY_FORMAT)
for _cpp, _code in (("Strided", "strided"), ("Sparse", "sparse_coo")):
    for _space in ("at::", "torch::", "c10::"):
        NAMES[f"{_space}k{_cpp}"] = Value(f"torch.{_code}", t.LAYOUT)
NAMES |= {
    "nullopt": Value("None", t.NOTHING),
    "stderr": Value("'stderr'", Type("file")),
    "stdout": Value("'stdout'", Type("file")),
    "None": Value("None", t.INDEX),
    "indexing::None": Value("None", t.INDEX),
    "NULL": Value("None", t.NULL),
    "Ellipsis": Value("...", t.INDEX),
    "M_PI": Value("math.pi", t.DOUBLE),
    "INFINITY": Value("math.inf", t.FLOAT),
    "NAN": Value("math.nan", t.FLOAT),
    "INT_MAX": integer(2**31 - 1),
    "INT_MIN": integer(-(2**31)),
    "UINT_MAX": integer(2**32 - 1, t.UINT),
    "INT32_MAX": integer(2**31 - 1),
    "INT64_MAX": integer(2**63 - 1, t.INT64),
    "UINT32_MAX": integer(2**32 - 1, t.UINT),
    "LLONG_MAX": integer(2**63 - 1, t.INT64),
    "SIZE_MAX": integer(2**64 - 1, t.SIZE),
    "FLT_MAX": Value("3.4028234663852886e+38", t.FLOAT),
    "FLT_MIN": Value("1.1754943508222875e-38", t.FLOAT),
    "DBL_MAX": Value("1.7976931348623157e+308", t.DOUBLE),
    "FLT_EPSILON": Value("1.1920928955078125e-07", t.FLOAT),
    "C10_WARP_SIZE": integer(32),
    "warpSize": integer(32),
    "cudaSuccess": integer(0),
    "CUDA_SUCCESS": integer(0),
    "CUDA_VERSION": integer(12080),
    "CUDART_VERSION": integer(12080),
}
INDEXING = Type("indices")
