"""Pointers: dtypes, and memory of every kind; the text of every error."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from rawkern.arguments import memory
from rawkern.arguments.slow_path import bind
from tests.arguments.kit import SAXPY, make, one, rejects

EVERY = [
    *("bool", "uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "bfloat16"),
    *("float32", "float64", "complex32", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2"),
]


BEHIND = {
    "bool": {"bool"},
    "char": {"int8", "uint8", "bool"},
    "signed char": {"int8", "uint8"},
    "unsigned char": {"uint8", "bool", "float8_e4m3fn", "float8_e5m2"},
    "short": {"int16", "uint16"},
    "unsigned short": {"int16", "uint16"},
    "int": {"int32", "uint32"},
    "unsigned int": {"int32", "uint32"},
    "long": {"int64", "uint64"},
    "unsigned long": {"int64", "uint64"},
    "long long": {"int64", "uint64"},
    "unsigned long long": {"int64", "uint64"},
    "__half": {"float16"},
    "__nv_bfloat16": {"bfloat16"},
    "float": {"float32"},
    "double": {"float64"},
    "__nv_fp8_e4m3": {"float8_e4m3fn"},
    "__nv_fp8_e5m2": {"float8_e5m2"},
    "float2": {"float32", "complex64"},
    "float4": {"float32"},
    "double2": {"float64", "complex128"},
    "int4": {"int32", "uint32"},
    "uchar4": {"uint8", "int8"},
    "__half2": {"float16", "complex32"},
    "__nv_bfloat162": {"bfloat16"},
    "cuda::std::complex<float>": {"complex64"},
    "cuda::std::complex<double>": {"complex128"},
    "void": set(EVERY),
}


@pytest.mark.parametrize("target", BEHIND)
def test_dtypes_behind_pointers(target: str) -> None:
    for name in EVERY:
        t = torch.zeros(8, dtype=getattr(torch, name))
        for const in ("", " const"):
            if name in BEHIND[target]:
                bound = one(f"{target}{const}*", t)
                assert bound.values == (t.data_ptr(),) and bound.tensors == (t,)
                assert bound.written == (() if const else (t,))
            else:
                with pytest.raises(TypeError, match=rf"^k: argument 1 'x' is {name}, the kernel "):
                    one(f"{target}{const}*", t)


def test_dtype_messages() -> None:
    x, y = torch.ones(4), torch.ones(4)
    with pytest.raises(TypeError) as caught:
        bind(SAXPY, (4, 1.0, x.double(), y))
    assert str(caught.value) == "saxpy: argument 3 'x' is float64, the kernel reads const float*; pass x.float()"
    with pytest.raises(TypeError) as caught:
        bind(SAXPY, (4, 1.0, x, y.double()))
    assert str(caught.value) == (
        "saxpy: argument 4 'y' is float64, the kernel writes float*; make it with dtype=torch.float32"
    )
    rejects("int const*", torch.ones(2).long(), "is int64, the kernel reads const int*; pass x.int()")
    rejects(
        "signed char const*", torch.ones(2), "is float32, the kernel reads const signed char*; pass x.to(torch.int8)"
    )
    rejects(
        "unsigned char*",
        torch.ones(2),
        "is float32, the kernel writes unsigned char*; pass x.view(torch.uint8) if bytes are meant",
    )
    rejects(
        "float const*",
        torch.ones(2) * 1j,
        "is complex64, the kernel reads const float*; pass torch.view_as_real(x)",
    )
    rejects("float const*", np.ones(2), "is float64, the kernel reads const float*; pass x.astype(numpy.float32)")
    rejects(
        "__nv_bfloat16 const*",
        np.ones(2),
        "is float64, the kernel reads const __nv_bfloat16*; pass x.astype(ml_dtypes.bfloat16)",
    )


def test_other_objects_for_pointers() -> None:
    need = "the kernel takes a pointer (const float*)"
    rejects("float const*", 1.5, f"is the float 1.5, {need}; pass a tensor, such as torch.tensor([1.5])")
    at = torch.ones(2).data_ptr()
    rejects("float const*", at, f"is the int {at}, {need}; pass the tensor itself, x and not x.data_ptr()")
    rejects("float const*", [1.0, 2.0], f"is [1.0, 2.0] (list), {need}; pass torch.tensor(x)")
    rejects(
        "float const*",
        "abc",
        f"is 'abc' (str), {need}; pass a torch tensor, a CuPy or NumPy array, or an object with __dlpack__",
    )
    with pytest.raises(TypeError, match=r"pass torch.frombuffer\(bytearray\(x\), dtype=torch.uint8\)"):
        one("char const*", b"abc")
    with pytest.raises(TypeError, match=r"^k: argument 1 'x' is <class 'torch.Tensor'> \(_TensorMeta\), the kernel"):
        one("float const*", torch.Tensor)
    with pytest.raises(TypeError, match="pass a tensor or an array, not one element of it"):
        one("float const*", np.float32(1))


def test_none_is_the_null_pointer() -> None:
    bound = bind(SAXPY, (1, 1.0, None, None))
    assert bound.values == (1, 1.0, 0, 0) and bound.device is None and bound.tensors == ()
    rejects("int&", None, "is None, and int& is a reference; pass a one-element tensor")


def test_contiguity() -> None:
    t = torch.ones(3, 4).t()
    rejects(
        "float const*",
        t,
        "is not contiguous (shape (4, 3), strides (1, 4)), the kernel reads const float*; "
        "pass x.contiguous(), or make the kernel with strided=True",
        ValueError,
    )
    rejects(
        "float*",
        t,
        "is not contiguous (shape (4, 3), strides (1, 4)), the kernel writes float*; write into a contiguous tensor "
        "and copy it back, or make the kernel with strided=True",
        ValueError,
    )
    with pytest.raises(ValueError, match=r"pass x.copy\(\), or make the kernel with strided=True"):
        one("double const*", np.ones((3, 4)).T)
    assert one("float const*", torch.ones(3, 4)[1:]).values  # contiguous, though a view


def test_strided() -> None:
    t = torch.ones(3, 4).t()[1:]
    for param in ("float const*", "float*"):
        assert one(param, t, strided=True).values == (t.data_ptr(),)
    a = np.ones((3, 4))[::-1]
    assert one("double*", a, strided=True).values == (a.ctypes.data,)
    wide = torch.ones(1).expand(5)
    assert one("float const*", wide, strided=True).values == (wide.data_ptr(),)
    rejects(
        "float*",
        wide,
        "has several elements at one address (stride 0), the kernel writes float*; pass x.clone()",
        ValueError,
        strided=True,
    )
    with pytest.raises(ValueError, match="is not contiguous"):
        one("float*", wide)


def test_lazy_bits() -> None:
    z = torch.ones(3, dtype=torch.complex64)
    need = "which the kernel would not see"
    rejects(
        "cuda::std::complex<float> const*",
        z.conj(),
        f"has torch's lazy conj bit, {need}; pass x.resolve_conj()",
        ValueError,
    )
    imag = torch.ones(1, dtype=torch.complex64).conj().imag
    assert imag.is_neg() and imag.is_contiguous()
    rejects("float const*", imag, f"has torch's lazy neg bit, {need}; pass x.resolve_neg()", ValueError)
    for param, lazy in (("float*", imag), ("float2*", z.conj()), ("void*", z.conj()), ("void*", imag)):
        with pytest.raises(ValueError, match=rf"{need}; write into a tensor without it"):
            one(param, lazy)


def test_alignment() -> None:
    t = torch.zeros(9)
    assert t.data_ptr() % 16 == 0
    assert one("float4 const*", t[4:]).values == (t.data_ptr() + 16,)
    rejects(
        "float4 const*",
        t[1:],
        "starts at an address that is not a multiple of 16 bytes, the kernel reads const float4*; pass x.clone()",
        ValueError,
    )
    rejects(
        "float2*",
        t[1:],
        "starts at an address that is not a multiple of 8 bytes, the kernel writes float2*; give it memory of its own",
        ValueError,
    )
    odd = torch.frombuffer(bytearray(9), dtype=torch.float32, count=2, offset=1)
    with pytest.raises(ValueError, match="not a multiple of 4 bytes"):
        one("float const*", odd)


def test_empty_tensors() -> None:
    for empty in (torch.empty(0), torch.empty(3, 0), np.empty(0, np.float32)):
        bound = one("float*", empty)
        assert bound.device == torch.device("cpu") and bound.index == -1


def test_devices() -> None:
    # Two devices without a GPU: a stand-in that says it is GPU memory.
    gpu = FakeGpuArray(np.zeros(4, np.float32))
    x = torch.ones(4)
    with pytest.raises(ValueError) as caught:
        bind(SAXPY, (4, 1.0, x, gpu))
    assert str(caught.value) == (
        "saxpy: argument 4 'y' is on cuda:3, argument 3 'x' is on cpu; a launch runs on one device: "
        "pass a copy of it on cpu"
    )
    with pytest.raises(ValueError, match=r"'y' is on cpu, argument 3 'x' is on cuda:3; .*: pass y.to\('cuda:3'\)"):
        bind(SAXPY, (4, 1.0, gpu, x))
    bound = bind(SAXPY, (4, 1.0, gpu, gpu))
    assert bound.device == torch.device("cuda", 3) and bound.index == 3


class FakeGpuArray:
    """Looks like a CuPy array on GPU 3."""

    def __init__(self, a: np.ndarray, **changes: Any) -> None:
        self.a, self.changes = a, changes
        self.dtype, self.device = a.dtype, SimpleNamespace(id=3)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        face = self.a.__array_interface__
        return {"shape": self.a.shape, "typestr": self.a.dtype.str, "data": face["data"], "version": 3} | self.changes


def test_cuda_array_interface() -> None:
    a = np.zeros((2, 3), np.float32)
    assert one("float*", FakeGpuArray(a)).values == (a.ctypes.data,)
    assert one("float*", FakeGpuArray(a, strides=(12, 4))).device == torch.device("cuda", 3)
    with pytest.raises(ValueError, match="is not contiguous"):
        one("float const*", FakeGpuArray(a, strides=(4, 8)))
    with pytest.raises(TypeError, match=r"is float32, the kernel reads const int\*; pass x.astype\(numpy.int32\)"):
        one("int const*", FakeGpuArray(a))
    with pytest.raises(ValueError, match="is a read-only"):
        one("float*", FakeGpuArray(a, data=(a.ctypes.data, True)))
    assert one("float const*", FakeGpuArray(a, data=(a.ctypes.data, True))).values
    assert one("__nv_bfloat16*", FakeGpuArray(np.zeros(2, ml_dtypes.bfloat16), typestr="<V2")).values


def test_numpy() -> None:
    a = np.zeros(4, np.float32)
    bound = one("float*", a)
    assert bound.values == (a.ctypes.data,) and bound.device == torch.device("cpu") and bound.written == ()
    assert one("__nv_bfloat16*", np.zeros(4, ml_dtypes.bfloat16)).values
    assert one("unsigned char*", np.zeros(4, ml_dtypes.float8_e5m2)).values
    a.flags.writeable = False
    assert one("float const*", a).values == (a.ctypes.data,)
    rejects(
        "float*", a, "is a read-only NumPy array, the kernel writes float*; pass a writable copy, x.copy()", ValueError
    )
    rejects(
        "float const*",
        a.astype(">f4"),
        "has a foreign byte order (>f4); pass x.astype(x.dtype.newbyteorder('='))",
    )
    rejects("void*", np.array([None]), "is a NumPy array of Python objects; give it a numeric dtype")
    assert one("double const*", np.ones(3)[::-1][:1]).values  # one element has no direction
    with pytest.raises(TypeError, match=r"is a masked array, whose mask the kernel would not see; pass x.filled\(\)"):
        one("double const*", np.ma.masked_array([1.0, 2.0], [0, 1]))


class Producer:
    """Any `__dlpack__` object."""

    def __init__(self, a: Any, old: bool = False) -> None:
        self.a, self.old = a, old

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.a.__dlpack_device__()

    def __dlpack__(self, **options: Any) -> Any:
        if self.old and options:
            raise TypeError("an old producer")
        return self.a.__dlpack__(**options)


def test_dlpack_objects() -> None:
    a = np.arange(4, dtype=np.float32)
    for old in (False, True):
        bound = one("float*", Producer(a, old))
        assert bound.values == (a.ctypes.data,) and bound.keep[0].data_ptr() == a.ctypes.data
    with pytest.raises(ValueError, match="has a negative stride"):  # torch.from_dlpack would end the process
        one("float const*", Producer(a[::-1]))
    a.flags.writeable = False
    assert one("float const*", Producer(a)).values == (a.ctypes.data,)
    with pytest.raises(ValueError, match="is a read-only Producer"):
        one("float*", Producer(a))
    with pytest.raises(TypeError, match="cannot be exchanged through DLPack"):
        one("float*", Producer(a, old=True))  # read-only, and too old a protocol to say so


def test_struct_pointers() -> None:
    raw = torch.zeros(48, dtype=torch.uint8)
    assert one("ns::Params*", raw).values == (raw.data_ptr(),)
    rows = np.zeros(2, np.dtype([("n", "i4"), ("a", "f4"), ("x", "u8"), ("y", "u8")], align=True))
    assert one("ns::Params const*", rows).values == (rows.ctypes.data,)
    rejects(
        "ns::Params*",
        raw[:40],
        "has 40 bytes, the kernel writes ns::Params*, whose size is 24; pass a multiple of that",
        ValueError,
    )
    rejects(
        "ns::Params const*",
        torch.ones(6),
        "is float32, the kernel reads const ns::Params*; pass x.view(torch.uint8) or a structured array",
    )
    with pytest.raises(ValueError, match="not a multiple of 8 bytes"):
        one("ns::Params*", torch.zeros(49, dtype=torch.uint8)[1:25])
    assert one("DeclaredOnly*", raw[:40]).values == (raw.data_ptr(),)
    with pytest.raises(TypeError, match="has elements of 20 bytes"):
        one("ns::Params*", np.zeros(2, [("n", "i4"), ("x", "u8"), ("y", "u8")]))
    with pytest.raises(TypeError, match="has a member 'b' that ns::Params does not have"):
        one("ns::Params*", np.zeros(2, np.dtype([("n", "i4"), ("b", "f4"), ("x", "u8"), ("y", "u8")])))


def test_tables_of_pointers() -> None:
    xs = [torch.ones(3), torch.zeros(2), None]
    bound = one("float const* const*", xs)
    table = bound.keep[0]
    assert bound.values == (table.data_ptr(),)
    assert table.tolist() == [xs[0].data_ptr(), xs[1].data_ptr(), 0]
    assert bound.tensors == (xs[0], xs[1]) and bound.written == ()
    assert one("float* const*", xs).written == (xs[0], xs[1])
    addresses = torch.tensor([xs[0].data_ptr()])
    assert one("float* const*", addresses).values == (addresses.data_ptr(),)
    assert one("float* const*", []).values == (0,)
    rejects(
        "float* const*",
        torch.ones(3),
        "is float32, the kernel reads float* const*; pass an int64 tensor of addresses or a list of tensors",
    )
    with pytest.raises(
        TypeError, match=re.escape("k: argument 1 'x[1]' is float64, the kernel reads const float*; pa")
    ):
        one("float const* const*", [torch.ones(2), torch.ones(2).double()])
    with pytest.raises(ValueError, match=re.escape("argument 1 'x[0]' is on cpu")):
        one("float const* const*", [torch.ones(4), FakeGpuArray(np.zeros(4, np.float32))])


def test_references() -> None:
    t = torch.zeros(1, dtype=torch.int32)
    assert one("int&", t).written == (t,)
    assert one("int const&", torch.zeros((), dtype=torch.int32)).written == ()
    rejects(
        "int&",
        3,
        "is the int 3, the kernel takes a reference to device memory (int&); pass a tensor, such as torch.tensor([3])",
    )
    rejects(
        "int&",
        torch.zeros(2, dtype=torch.int32),
        "has 2 elements, the kernel writes int&, a reference; pass a one-element tensor",
        ValueError,
    )


def test_pinned_tensors_go_with_those_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """CPU tensors replace those of a GPU."""
    on_gpu, pinned, pageable = torch.zeros(3), torch.zeros(3), torch.zeros(3)
    own = memory._of_tensor

    def placed(t: torch.Tensor, *rest: Any) -> memory.Memory:
        found = own(t, *rest)
        found.device = 1 if t is on_gpu else -1
        return found

    monkeypatch.setattr(memory, "_of_tensor", placed)
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda t: t is pinned)
    three = make("float*", "float*", "const float*", names=("x", "y", "z"))
    for args in ((pinned, on_gpu, on_gpu), (on_gpu, pinned, pinned), (pinned, pinned, on_gpu)):
        assert bind(three, args).index == 1
    assert bind(three, (pinned, pageable, pinned)).index == -1
    for args, at in (((on_gpu, pageable, pinned), 2), ((pinned, pageable, on_gpu), 3), ((pageable, on_gpu, pinned), 2)):
        with pytest.raises(
            ValueError, match=rf"argument {at} '.' is on \S+, argument 1 '.' is on \S+; a launch runs on"
        ):
            bind(three, args)
