"""Instances of template kernels: from dtypes and numbers, and deduced from arguments."""

from __future__ import annotations

import copy
import pickle
import re
import time
from typing import Any

import numpy as np
import pytest
import torch

from rawkern import CompileError, RawModule
from rawkern.compile.source import Watch

MODULE = RawModule("""
namespace deep {
template <class T, typename S = T>
__global__ void axpy(T a, const T* __restrict__ x, T *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] += a * x[i];
}
}
template <typename From, typename To, int N, bool NEGATE>
__global__ void convert(const From x[], To* y) {
    if (threadIdx.x < N) y[threadIdx.x] = NEGATE ? -(To)x[threadIdx.x] : (To)x[threadIdx.x];
}
template <typename T> __global__ void fill(T* x, T value, long long n) { if (threadIdx.x < n) x[threadIdx.x] = value; }
template <typename T> __global__ void fill(T* x, long long n) { if (threadIdx.x < n) x[threadIdx.x] = T(7); }
template <typename T> __global__ void only_a_number(T value, double* out) { *out = value + sizeof(T); }
""")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int32, torch.int64, torch.uint8])
def test_types_come_from_pointers(dtype: torch.dtype, device: str) -> None:
    x, n = torch.arange(1, 9, device=device).to(dtype), 8
    for k, launch in enumerate(
        (
            MODULE.axpy.forall(n),
            MODULE.axpy[1, 32],
            MODULE.axpy[(1,), (32,), 0],
            lambda *args: MODULE.axpy((1,), (32,), args),
            lambda a, x, y, n: MODULE.axpy.forall(n)(a, x, n=n, y=y),
        )
    ):
        y = torch.ones_like(x)
        launch(k, x, y, n)
        assert torch.equal(y, 1 + k * x)


def test_types_come_from_numbers_that_have_one(device: str) -> None:
    out = torch.zeros(1, dtype=torch.float64, device=device)
    for value, expected in ((np.float32(2.5), 6.5), (np.float64(2.5), 10.5), (torch.tensor(2, dtype=torch.int16), 4)):
        MODULE.only_a_number[1, 1](value, out)
        assert out.item() == expected


def test_overloads_by_their_number_of_parameters(device: str) -> None:
    x = torch.zeros(4, device=device)
    MODULE.fill.forall(4)(x, 4)
    assert x.tolist() == [7] * 4
    MODULE.fill.forall(4)(x, 2.5, 4)
    assert x.tolist() == [2.5] * 4


def test_names_from_dtypes(device: str) -> None:
    x = torch.arange(1.0, 9, device=device)
    for arguments, dtype, sign in (
        ((torch.float32, torch.float64, 8, True), torch.float64, -1),
        ((np.float32, np.dtype("i4"), np.int64(8), False), torch.int32, 1),
        (("float", "long long", "2 * 4", True), torch.int64, -1),
    ):
        y = torch.zeros(8, dtype=dtype, device=device)
        MODULE.get_function("convert", *arguments)[1, 32](x, y)
        assert torch.equal(y, (sign * x).to(dtype))
    assert MODULE.get_function("convert", torch.int32, torch.bool, 8, True).name == "convert<int, bool, 8, true>"
    assert MODULE.get_function("deep::axpy", torch.float32) is MODULE.get_function("deep::axpy<float>")


@pytest.mark.parametrize("argument", [torch.complex64, 2.5, None, object, [4], torch.zeros(1)])
def test_template_arguments_without_a_name(argument: Any) -> None:
    with pytest.raises(
        TypeError, match=re.escape(f"the template argument {argument!r} of convert has no name in CUDA")
    ):
        MODULE.get_function("convert", argument)


@pytest.mark.parametrize(
    ("name", "args", "message"),
    [
        ("axpy", (2.0, None, None, 0), """parameter 'class T'; name an instance, such as get_function("deep::axpy<float"""),
        ("axpy", (2.0, torch.zeros(2), torch.zeros(2).double(), 2), "'x' is float32, 'y' is float64"),
        ("axpy", (np.float64(2), torch.zeros(2), torch.zeros(2), 2), "'a' is float64, 'x' is float32"),
        ("axpy", (torch.zeros(2), torch.zeros(2)), "2 arguments do not select one overload of template axpy: axpy(T a, const T*"),
        ("convert", (torch.zeros(2), torch.zeros(2)), """'int N'; name an instance, such as get_function("convert<float, float, 4, true>"""),
        ("only_a_number", (2.0, torch.zeros(1).double()), """name an instance, such as get_function("only_a_number<float>")"""),
        ("fill", (torch.zeros(2, dtype=torch.complex64), 2), """such as get_function("fill<cuda::std::complex<float>>")"""),
        ("fill", (torch.zeros(2, dtype=torch.float8_e4m3fnuz), 2), "CUDA C has no type; pass x.view(torch.uint8)"),
    ],
)  # fmt: skip
def test_what_the_arguments_do_not_tell(name: str, args: tuple[Any, ...], message: str) -> None:
    with pytest.raises(TypeError, match=re.escape(message)):
        getattr(MODULE, name)[1, 32](*args)


def test_numbers_of_numpy_follow_pointers_of_their_dtype(device: str) -> None:
    x, y = torch.ones(4, device=device), torch.zeros(4, device=device)
    MODULE.axpy.forall(4)(np.float32(2.5), x, y, np.int64(4))
    assert y.tolist() == [2.5] * 4


def test_what_a_template_is_not_asked() -> None:
    with pytest.raises(AttributeError, match=re.escape("""name one, such as get_function("fill<float>").attributes""")):
        MODULE.fill.attributes  # noqa: B018
    assert not hasattr(MODULE, "filled")  # in a module of templates alone
    with pytest.raises(AttributeError, match=r"name an instance of deep::axpy, convert, fill, only_a_number, such as"):
        MODULE.filled  # noqa: B018


def test_copies_and_pickles(device: str) -> None:
    for one in (copy.deepcopy(MODULE.fill), pickle.loads(pickle.dumps(MODULE.fill))):
        x = torch.zeros(4, device=device)
        one.forall(4)(x, 4)
        assert x.tolist() == [7] * 4 and repr(one) == "<template fill>"
    for launch in (MODULE.fill.forall(4), MODULE.fill[1, 4]):
        for one in (copy.deepcopy(launch), pickle.loads(pickle.dumps(launch))):
            one(x, torch.tensor(0.5), 4)
            assert x.tolist() == [0.5] * 4
            one(x.zero_(), n=4)
            assert x.tolist() == [7] * 4


def test_an_edited_template(tmp_path: Any, device: str) -> None:
    file = tmp_path / "k.cu"
    file.write_text("template <class T> __global__ void put(T* x) { *x = 1; }")
    module = RawModule(path=file)
    x = torch.zeros(1, device=device)
    module.put[1, 1](x)
    file.write_text("template <class S, class T> __global__ void put(T* x, S value) { *x = value; }")
    time.sleep(2 * Watch.INTERVAL)
    module.put[1, 1](x, np.int32(5))
    assert x.item() == 5


def test_a_specialization_does_not_stand_for_its_template(device: str) -> None:
    """C++ chooses among templates by the arguments: an instance that the source names is one of several."""
    module = RawModule("""
    template <typename T, int N = 4> __global__ void fill(T* x) { x[0] = N; }
    template <> __global__ void fill<float, 7>(float* x) { x[0] = -1; }
    template <typename T, typename S = float> __global__ void size(T* x) { x[0] = sizeof(S); }
    template __global__ void size<double, double>(double*);
    """)
    x, d = torch.zeros(1, device=device), torch.zeros(1, dtype=torch.float64, device=device)
    for kernel in (module.fill, module.get_function("fill<float>"), module.get_function("fill(float*)")):
        kernel[1, 1](x.zero_())
        assert x.item() == 4
    module.get_function("fill<float, 7>")[1, 1](x)
    module.size[1, 1](d)
    assert (x.item(), d.item()) == (-1, 4)
    for name in ("fill", "size"):
        with pytest.raises(ValueError, match=f"{name!r} is a template, .*; name an instance of it"):
            module.get_function(name)


COPY = "template <typename T> __global__ void copy(const T* x, T* y) { y[threadIdx.x] = x[threadIdx.x]; }"


@pytest.mark.parametrize(
    ("dtype", "include", "spelled"),
    [
        (torch.complex64, "cuda/std/complex", "cuda::std::complex<float>"),
        (torch.complex64, "cuComplex.h", "cuFloatComplex"),
        (torch.complex128, "cuComplex.h", "cuDoubleComplex"),
        (torch.float16, "cuda_fp16.h", "__half"),
        (torch.bfloat16, "cuda_bf16.h", "__nv_bfloat16"),
        (torch.float8_e4m3fn, "cuda_fp8.h", "__nv_fp8_e4m3"),
        (torch.float8_e5m2, "cuda_fp8.h", "__nv_fp8_e5m2"),
    ],
)
def test_types_that_a_header_declares(dtype: torch.dtype, include: str, spelled: str, device: str) -> None:
    x = torch.arange(1, 9, device=device).to(dtype)
    y = torch.zeros_like(x)
    RawModule(f"#include <{include}>\n{COPY}").copy[1, 8](x, y)
    assert torch.equal(y.view(torch.uint8), x.view(torch.uint8))
    with pytest.raises((CompileError, TypeError)) as caught:  # without the header the message names it
        RawModule(COPY).copy[1, 8](x, y)
    assert f"#include <{'cuda/std/complex' if dtype.is_complex else include}>" in str(caught.value)
    assert spelled in str(caught.value)


def test_complex_numbers_of_a_source_with_several_types(device: str) -> None:
    module = RawModule(f"#include <cuComplex.h>\n#include <cuda/std/complex>\n{COPY}")
    x, y = torch.ones(8, dtype=torch.complex64, device=device), torch.zeros(8, dtype=torch.complex64, device=device)
    with pytest.raises(TypeError, match="uses several of them; name an instance, such as") as caught:
        module.copy[1, 8](x, y)
    module.get_function(str(caught.value).split('"')[1])[1, 8](x, y)
    assert torch.equal(x, y)


def test_bytes_of_a_type_that_cuda_lacks(device: str) -> None:
    x, y = torch.ones(8, device=device).to(torch.float8_e4m3fnuz), torch.zeros(8, dtype=torch.uint8, device=device)
    RawModule(COPY).copy[1, 8](x.view(torch.uint8), y)
    assert torch.equal(x.view(torch.uint8), y)


FORMS = (
    "typename T, int N", "typename, int", "bool B, class U", "typename T, T v", "unsigned int N, std::size_t M",
    "size_t N, int8_t q", "class... Ts", "int... N", "auto V", "typename T, int N = 3", "typename T, class S = T",
)  # fmt: skip


def test_examples_of_instances_compile() -> None:
    kernels = "".join(f"template <{form}> __global__ void k{i}(int* x) {{}}\n" for i, form in enumerate(FORMS))
    other = "enum class M { A };\ntemplate <M m> __global__ void other(int* x) {}\n"
    module = RawModule(f"#include <cstdint>\n#include <cstddef>\n{kernels}{other}__global__ void plain(int* x) {{}}")
    examples = []
    for i, form in enumerate(FORMS):
        with pytest.raises(ValueError, match=re.escape(f"is a template, k{i}<{form}>; name an instance")) as caught:
            module.get_function(f"k{i}")
        examples.append(str(caught.value).rpartition("such as ")[2].strip("'"))
    with pytest.raises(ValueError, match=r"'other' is a template, other<M m>; name an instance of it$"):
        module.get_function("other")
    again = RawModule(module.unit.settings.code, name_expressions=examples)
    assert [again.get_function(name).name for name in examples] == examples


def test_misspelled_names() -> None:
    with pytest.raises(AttributeError, match="did you mean 'fill'"):
        RawModule("__global__ void fill(int* x) {}").fil  # noqa: B018
    with pytest.raises(CompileError, match="did you mean 'convert'"):
        MODULE.get_function("convrt<float, float, 4, true>")
    with pytest.raises(CompileError, match="did you mean 'plain'"):
        RawModule("__global__ void plain(int* x) {}").get_function("Plain(int*)")
    with pytest.raises(TypeError, match=r"fill has no parameter 'valu': .*; did you mean 'value'"):
        MODULE.fill[1, 1](torch.zeros(1), valu=3.0, n=1)
