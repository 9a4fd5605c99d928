"""Names of kernels, instances and overloads, and what the compiler made of them."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

import rawkern
from rawkern.errors import CompileError
from tests.kernel.kit import MANY, SAXPY, Recorder


@pytest.mark.parametrize(
    ("name", "signature"),
    [
        ("scale(float*, float, int)", "void scale(float *x, float s, int n)"),
        ("scale(double *,double,int)", "void scale(double *x, double s, int n)"),
        ("deep::er::fill", "void deep::er::fill(float *x, float v, unsigned int n)"),
        ("fill", "void deep::er::fill(float *x, float v, unsigned int n)"),
        ("deep::er::fill(REAL*, REAL, index_t)", "void deep::er::fill(float *x, float v, unsigned int n)"),
        ("axpy<double, 4>", "void axpy<double, 4>(double a, const double *x, double *y, int n)"),
        ("axpy<float,2+1>", "void axpy<float, 3>(float a, const float *x, float *y, int n)"),
    ],
)
def test_kernels_are_found_by_name(recorder: Recorder, name: str, signature: str) -> None:
    assert rawkern.RawModule(MANY).get_function(name).signature == signature
    assert rawkern.RawKernel(MANY, name).signature == signature


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        (
            "scale",
            ValueError,
            "more than one kernel 'scale': scale(float*, float, int), scale(double*, double, int);",
        ),
        (
            "axpy",
            ValueError,
            "'axpy' is a template, axpy<class T, int N>; name an instance of it, such as 'axpy<float, 4>'",
        ),
        (
            "nope",
            ValueError,
            "there is no kernel 'nope'; the source has scale(float*, float, int), scale(double*",
        ),
        ("er::nope", ValueError, "deep::er::fill, template axpy"),
        ("axpy<float>", CompileError, "axpy<float>"),
        ("gone<int>", CompileError, "templates: axpy"),
        ("scale(int*)", CompileError, "scale(int*)"),
    ],
)
def test_names_that_are_not_there_list_those_that_are(
    recorder: Recorder, name: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=re.escape(message)):
        rawkern.RawModule(MANY).get_function(name)
    with pytest.raises(error, match=re.escape(message)):
        rawkern.RawKernel(MANY, name).forall(1)()


def test_kernels_of_one_name_in_two_namespaces(recorder: Recorder) -> None:
    spaces = rawkern.RawModule("".join(f"namespace {s} {{ __global__ void k(int* x) {{}} }}\n" for s in "ab"))
    with pytest.raises(ValueError, match="more than one kernel 'k': a::k, b::k; name it in full"):
        spaces.get_function("k")
    assert spaces.get_function("b::k").signature == "void b::k(int *x)"


def test_one_kernel_needs_no_name_and_two_do(recorder: Recorder) -> None:
    assert rawkern.RawKernel(SAXPY).signature == "void saxpy(int n, float a, const float *x, float *y)"
    two = "__global__ void first(int* x) { *x = 1; }\n__global__ void second(int* x) { *x = 2; }"
    with pytest.raises(ValueError, match=re.escape("the source has 2 kernels (first, second); name one")):
        rawkern.RawKernel(two).forall(1)(torch.zeros(1, dtype=torch.int32))


def test_a_source_without_a_kernel_is_rejected(recorder: Recorder) -> None:
    with pytest.raises(CompileError, match="has no kernel"):
        rawkern.RawKernel("__device__ int f() { return 1; }").forall(1)()
    with pytest.raises(CompileError, match="name an instance of axpy, such as axpy<float>"):
        rawkern.RawKernel("template <class T> __global__ void axpy(T* x) {}").forall(1)()


def test_module_attributes_and_listing(recorder: Recorder) -> None:
    many = rawkern.RawModule(MANY, name_expressions=["axpy<float, 2>"])
    assert many.kernels == ("scale", "deep::er::fill", "axpy<float, 2>", "axpy") or set(many.kernels) == {
        "scale", "deep::er::fill", "axpy<float, 2>", "axpy"
    }  # fmt: skip
    assert many.fill is many.fill
    assert many.name_expressions == ("axpy<float, 2>",)
    assert (many.fill.__name__, many.axpy.__name__) == ("fill", "axpy")
    assert many.get_function("axpy<float, 2>").signature.startswith("void axpy<float, 2>(float a")
    assert "fill" not in dir(many) or "axpy" in dir(many)
    with pytest.raises(AttributeError, match="there is no kernel 'nope'; the source has"):
        many.nope  # noqa: B018
    assert not hasattr(many, "_repr_svg_")


def test_underscored_names_do_not_compile_anything() -> None:
    broken = rawkern.RawModule("this is not CUDA")
    with pytest.raises(AttributeError, match=r"get_function\('_x'\)"):
        broken._x  # noqa: B018
    assert re.fullmatch(r"<RawModule from .*test_names.py:\d+>", repr(broken))
    assert repr(rawkern.RawKernel("this is not CUDA", "k")) == "<RawKernel k>"


def test_inline_namespaces_may_be_left_out(recorder: Recorder) -> None:
    inner = "__global__ void k(int* x) {} template <typename T> __global__ void t(T* x) {}"
    module = rawkern.RawModule(
        f"namespace a {{ inline namespace v1 {{ namespace b {{ {inner} }} }} }} namespace c::inline v2 {{ {inner} }}"
        "inline namespace v3 { __global__ void k(float* x) {} }",
        options=("-std=c++20",),
    )
    for name in ("a::b::k", "a::v1::b::k"):
        assert module.get_function(name).signature == "void a::v1::b::k(int *x)"
    assert module.get_function("c::k").signature == "void c::v2::k(int *x)"
    assert module.get_function("k").signature == "void v3::k(float *x)"  # as in C++
    with pytest.raises(ValueError, match="'a::b::t' is a template, a::v1::b::t<typename T>; name an instance"):
        module.get_function("a::b::t")
    with pytest.raises(ValueError, match="there is no kernel 'b::k'"):
        module.get_function("b::k")


def test_templates_alone_are_listed() -> None:
    only = rawkern.RawModule("template <class T> __global__ void axpy(T* x) { *x = 1; }")
    assert only.kernels == ("axpy",)
    assert only.get_function("axpy<int>").signature == "void axpy<int>(int *x)"


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({}, TypeError, "give the CUDA source as code, or path= for a file; got neither"),
        ({"code": SAXPY, "path": "x.cu"}, TypeError, "got both"),
        ({"code": 3}, TypeError, "code is int, not str"),
        ({"code": SAXPY, "options": "-DN=4"}, TypeError, "options is '-DN=4'; pass a tuple"),
        ({"code": SAXPY, "options": ("-arch=sm_90",)}, ValueError, "the tensors' device decides the architecture"),
        ({"code": SAXPY, "include_dirs": ["/nowhere/at/all"]}, ValueError, "/nowhere/at/all is not a directory"),
        ({"path": "/nowhere/at/all.cu"}, FileNotFoundError, "/nowhere/at/all.cu"),
        ({"code": SAXPY, "name_expressions": "axpy<int>"}, TypeError, "pass a sequence of strings"),
        ({"code": SAXPY, "name_expressions": (3,)}, TypeError, "name_expressions is (3,); pass a sequence of strings"),
        ({"code": " saxpy.cu\n"}, ValueError, "the name of a file, not CUDA source; pass path='saxpy.cu'"),
    ],
)
def test_settings_that_cannot_work(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        rawkern.RawModule(**arguments)


def test_ptx_and_cubin_need_no_gpu() -> None:
    kernel = rawkern.RawKernel(SAXPY)
    assert ".target sm_80" in kernel.ptx()
    assert ".target sm_90" in kernel.ptx("compute_90") and ".entry saxpy" in kernel.ptx("sm_90")
    assert kernel.cubin("sm_90")[:4] == b"\x7fELF"
    with pytest.raises(ValueError, match="unknown architecture 'hopper'; pass one such as 'sm_90'"):
        kernel.cubin("hopper")


def test_options_reach_the_compiler() -> None:
    kernel = rawkern.RawKernel(SAXPY.replace("a * x[i]", "FACTOR * x[i]"), options=("-DFACTOR=1234567",))
    assert kernel.ptx() != rawkern.RawKernel(SAXPY.replace("a * x[i]", "7 * x[i]")).ptx()
    with pytest.raises(CompileError, match="FACTOR"):
        rawkern.RawKernel(SAXPY.replace("a * x[i]", "FACTOR * x[i]")).ptx()
