"""Errors of the compiler: the place, the lines around it, and which of a log's errors is shown."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from rawkern.compile.programs import compile_program
from rawkern.compile.source import CPU_ARCH, from_path, from_text
from rawkern.errors import CompileError, RawkernError

SQUARE = (
    'extern "C" __global__ void square(int n, const float* x, float* y) '
    "{ int i = threadIdx.x; if (i < n) y[i] = x[i] * x[i]; }"
)


def _rejected(code: str, **settings) -> CompileError:
    with pytest.raises(CompileError) as caught:
        compile_program(from_text(code, **settings), CPU_ARCH)
    return caught.value


def test_compile_error_shows_the_place(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "broken (1).cu"
    file.write_text("// first\n__global__ void k(float* x) {\n\tx[0] = yy + zz;\n}\n")
    with pytest.raises(CompileError) as caught:
        compile_program(from_path(file), CPU_ARCH)
    error = caught.value
    assert (error.file, error.line, error.column) == (str(file), 3, 9)
    assert error.excerpt == "  2 | __global__ void k(float* x) {\n  3 | \tx[0] = yy + zz;\n    | \t       ^\n  4 | }"
    assert str(error) == (
        f'{file}:3:9: in k: identifier "yy" is undefined\n{error.excerpt}\nalso {file}:3: identifier "zz" is undefined'
    )
    assert "2 errors detected" in error.log
    assert capfd.readouterr() == ("", "")
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.line, copy.log) == (str(error), error.line, error.log)
    assert isinstance(error, RawkernError)


def test_error_in_a_header_names_the_header(tmp_path: Path) -> None:
    (tmp_path / "bad.h").write_text("\n__device__ int f() { return oops; }\n")
    error = _rejected('#include "bad.h"\n' + SQUARE, include_dirs=[tmp_path])
    assert (error.file, error.line) == (str(tmp_path / "bad.h"), 2)
    assert "2 | __device__ int f() { return oops; }" in error.excerpt


def test_a_macro_that_stands_in_a_header(tmp_path: Path) -> None:
    (tmp_path / "good.h").write_text("template <typename Elem> __device__ Elem f(Elem x) { return x; }\n")
    error = _rejected('#include "good.h"\n' + SQUARE, include_dirs=[tmp_path], options=["-DN=3", "-D", "Elem=float"])
    assert "hint: -DElem=float replaces Elem in that header, too" in str(error)
    assert "replaces" not in str(_rejected("__device__ Elem f() { return oops; }", options=["-DElem=float"]))


def test_lines_of_a_file_that_the_source_was_made_from() -> None:
    error = _rejected(
        '__device__ int f() { return 1; }\n#line 40 "made.template"\n\n__device__ int g() { return oops; }\n'
    )
    assert (error.file, error.line) == ("made.template", 41)
    assert "41 | __device__ int g() { return oops; }" in error.excerpt


def test_error_at_the_end() -> None:
    error = _rejected('extern "C" __global__ void k(float* x) {\n  if (x) {\n')
    assert 'at the end: expected a "}"' in str(error) and 'to match this "{" on line' in str(error)


def test_option_that_nvrtc_does_not_know() -> None:
    assert "option '-O3' is not one of NVRTC's (nvcc has more); leave it out" in str(_rejected(SQUARE, options=["-O3"]))


def test_errors_of_the_assembler() -> None:
    """They have no place; their first line may be information, and they name kernels as symbols."""
    source = from_text(
        "namespace { template <class T> __global__ void big(T* x) {\n"
        "  __shared__ T s[60000]; s[threadIdx.x] = 1; __syncthreads(); x[0] = s[5]; } }",
        ["--ptxas-options=-v"],
    )
    with pytest.raises(CompileError) as caught:
        compile_program(source, "sm_80", ("big<float>",))
    headline, hint, *_ = str(caught.value).splitlines()
    assert (
        "info" in caught.value.log.splitlines()[0] and "info" not in str(caught.value) and "_Z" not in str(caught.value)
    )
    assert "error" in headline and "'void big<float>(float*)' uses too much shared data" in headline
    assert "extern __shared__" in hint


def test_unknown_names_side_by_side_are_all_told() -> None:
    code = "__device__ int g(int, int, int);\n__global__ void k(int* x, int n) {\n  if (cc < dd)\n    x[0] = g(n, aa, bb) + 1;\n"
    error = str(_rejected(code + "  x[1] = ee;\n  x[2] = = 1;\n\n\n  x[3] = = 2;\n}"))
    log = [line for line in error.splitlines() if "undefined" in line or "expected" in line]
    assert [line.split('"')[1] for line in log[:4]] == ["cc", "dd", "aa", "bb"]
    assert "and 2 more" in error  # ee, and what is far from all of them


def test_a_variable_of_an_unknown_type_is_no_error_of_its_own() -> None:
    error = str(_rejected("__device__ Foo helper;\n__global__ void k(Foo* x, float* y) { y[0] = zz + x[0]; }"))
    assert error.startswith('kernel.cu:1:12: identifier "Foo" is undefined')
    assert "also" not in error
