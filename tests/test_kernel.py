"""RawKernel, RawModule and load: names, launch forms, edits, threads, pickling; first without running anything."""

from __future__ import annotations

import copy
import ctypes
import gc
import os
import pickle
import re
import signal
import struct
import subprocess
import sys
import threading
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rawkern
from rawkern import kernel as kernels
from rawkern import module
from rawkern.base.records import CPU, DONE, TARGET
from rawkern.checked import launches as checking
from rawkern.compile.source import Watch
from rawkern.errors import CompileError, LaunchError
from rawkern.launch import builds, launcher

SAXPY = r"""
extern "C" __global__ void saxpy(int n, float a, const float* x, float* y) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] += a * x[i];
}"""

MANY = r"""
#define REAL float
typedef unsigned int index_t;
__global__ void scale(float* x, float s, int n) { int i = threadIdx.x; if (i < n) x[i] *= s; }
__global__ void scale(double* x, double s, int n) { int i = threadIdx.x; if (i < n) x[i] *= s; }
namespace deep { namespace er {
__global__ void fill(REAL* x, REAL v, index_t n) { if (threadIdx.x < n) x[threadIdx.x] = v; }
} }
template <class T, int N> __global__ void axpy(T a, const T* x, T* y, int n) {
    int i = threadIdx.x;
    if (i < n) y[i] += N * a * x[i];
}"""


# What the tests without an engine run on ---------------------------------------------------------------------


class Target:
    """What an engine has for launches, with a function of Python's as its native one."""

    busy = linked = False

    def __init__(self, signature: Any, block: Any, launch: Callable[[Any, tuple[Any, ...]], None]) -> None:
        self.block = block
        self.native = 0  # launches that native code has made

        def go(target: int, x: int, y: int, z: int, params: int, pointers: int) -> int:
            self.native += 1
            launch((x, y, z), struct.unpack(signature.format, ctypes.string_at(params, signature.size)))
            return DONE

        self.run = lambda grid, stream, values: launch(grid, values)
        self._go = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, *[ctypes.c_int] * 3, *[ctypes.c_void_p] * 2)(go)
        address = ctypes.cast(self._go, ctypes.c_void_p).value
        self._record = ctypes.create_string_buffer(
            struct.pack(TARGET.format("device", "block"), CPU, 0, address, block[0])
        )
        self.address = ctypes.addressof(self._record)


class Recorder:
    """An engine that writes down what it would launch."""

    def __init__(self) -> None:
        self.launches: list[dict[str, Any]] = []
        self.attributes = {"max_threads_per_block": 1024, "shared_size_bytes": 0, "num_regs": 8}
        self.loaded = 0
        self.memory = (ctypes.c_char * 64)()

    def load_module(self, program: Any, *, device: torch.device | None) -> Any:
        self.loaded += 1
        return types.SimpleNamespace(
            kernel=lambda symbol, signature, cooperative=False: self.kernel(symbol, signature, cooperative, program),
            global_view=lambda name: (ctypes.addressof(self.memory), 24),
        )

    def kernel(self, symbol: str, signature: Any, cooperative: bool, program: Any) -> Any:
        def launch(grid: Any, block: Any, shared_mem: int, values: tuple[Any, ...]) -> None:
            self.launches.append(
                {
                    "symbol": symbol,
                    "grid": grid,
                    "block": block,
                    "shared_mem": shared_mem,
                    "values": values,
                    "cooperative": cooperative,
                    "program": program,
                }
            )

        def target(block: Any, shared_mem: int) -> Any:
            return Target(signature, block, lambda grid, values: launch(grid, block, shared_mem, values))

        return types.SimpleNamespace(target=target, attributes=self.attributes, max_shared_mem=49152)

    def configurations(self) -> list[tuple[Any, Any, int]]:
        return [(one["grid"], one["block"], one["shared_mem"]) for one in self.launches]


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    recorder = Recorder()
    monkeypatch.setattr(builds, "engine", lambda device: recorder)
    with checking.paused():  # a checked launch would run on the true one
        yield recorder


@pytest.fixture(autouse=True)
def _look_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Watch, "INTERVAL", 0.0)


def xy(n: int = 37, device: str = "cpu", dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.linspace(-2.7, 3.9, n, device=device, dtype=dtype)
    return x, torch.linspace(5.5, -1.25, n, device=device, dtype=dtype)


def write(path: Path, text: str) -> Path:
    """Save a file as an editor does: written aside, then moved into its place."""
    aside = path.with_name(path.name + "~")
    aside.write_text(text)
    os.replace(aside, path)
    return path


# Launch forms --------------------------------------------------------------------------------------------------


def test_the_three_forms_say_the_same(recorder: Recorder) -> None:
    kernel = rawkern.RawKernel(SAXPY)
    x, y = xy()
    arguments = (37, 2.0, x, y)
    kernel[1, 256](*arguments)
    kernel.forall(37)(*arguments)
    kernel((1,), (256,), arguments)
    kernel(1, 256, list(arguments))
    kernel(grid=(1,), block=(256,), args=arguments)
    kernel((1,), args=arguments, block=(256,), shared_mem=0)
    kernel[1, 256](y=y, x=x, a=2.0, n=37)
    kernel.forall(37, block=256)(37, 2.0, y=y, x=x)
    assert recorder.configurations() == [((1, 1, 1), (256, 1, 1), 0)] * 8
    assert {one["values"] for one in recorder.launches} == {(37, 2.0, x.data_ptr(), y.data_ptr())}
    kernel[(2, 3), (8, 4), 512](*arguments)
    kernel((2, 3), (8, 4), arguments, shared_mem=512)
    assert recorder.configurations()[-2:] == [((2, 3, 1), (8, 4, 1), 512)] * 2


@pytest.mark.parametrize("n", [1, 31, 255, 256, 257, 100_003])
def test_forall_covers_n(recorder: Recorder, n: int) -> None:
    kernel = rawkern.RawKernel(SAXPY)
    x, y = xy()
    kernel.forall(n)(37, 2.0, x, y)
    kernel.forall(n, block=96)(37, 2.0, x, y)
    assert recorder.configurations() == [
        ((-(-n // 256), 1, 1), (256, 1, 1), 0),
        ((-(-n // 96), 1, 1), (96, 1, 1), 0),
    ]


def test_forall_of_nothing_checks_and_launches_nothing(recorder: Recorder) -> None:
    kernel = rawkern.RawKernel(SAXPY)
    empty = torch.empty(0)
    for _ in range(2):
        kernel.forall(0)(0, 2.0, empty, empty)
    assert recorder.launches == []
    with pytest.raises(TypeError, match="saxpy takes 4 arguments, 3 were given: void saxpy"):
        kernel.forall(0)(0, 2.0, empty)


def test_forall_picks_a_block_the_kernel_can_run_with(recorder: Recorder) -> None:
    recorder.attributes = {**recorder.attributes, "max_threads_per_block": 100}
    kernel = rawkern.RawKernel(SAXPY)
    x, y = xy()
    kernel.forall(1000)(37, 2.0, x, y)
    assert recorder.configurations() == [((11, 1, 1), (96, 1, 1), 0)]
    with pytest.raises(
        ValueError, match=r"saxpy: block \(128, 1, 1\) has 128 threads, this kernel runs with at most 100"
    ):
        kernel.forall(1000, block=128)(37, 2.0, x, y)
    with pytest.raises(ValueError, match=r"this kernel runs with at most 100 a block"):
        kernel[1, 101](37, 2.0, x, y)
    assert len(recorder.launches) == 1


def test_shared_memory_has_a_limit(recorder: Recorder) -> None:
    kernel = rawkern.RawKernel(SAXPY)
    x, y = xy()
    kernel[1, 32, 49152](37, 2.0, x, y)
    with pytest.raises(ValueError, match="saxpy: shared_mem is 49153 bytes, the maximum here is 49152 bytes"):
        kernel[1, 32, 49153](37, 2.0, x, y)


def test_a_launch_written_as_a_call_says_how_to_write_it(recorder: Recorder) -> None:
    kernel = rawkern.RawKernel(SAXPY, "saxpy")
    x, y = xy()
    for wrong in (lambda: kernel(37, 2.0, x, y), lambda: kernel(1, 32), lambda: kernel(1, 32, x)):
        with pytest.raises(TypeError, match=r"saxpy: a launch is kernel\[grid, block\]\(\*args\), kernel.forall\(n\)"):
            wrong()
    with pytest.raises(TypeError, match=r"got kernel\(int, int, tuple, block=\.\.\.\)"):
        kernel(1, 32, (37, 2.0, x, y), block=3)
    with pytest.raises(TypeError, match=r"got kernel\(int, tuple\)"):
        kernel(1, args=(37, 2.0, x, y))
    with pytest.raises(TypeError, match=r"a launch is kernel\[grid, block\]\(\.\.\.\)"):
        kernel[5]
    with pytest.raises(ValueError, match=r"saxpy: grid.x is 0"):
        kernel[0, 32]
    assert recorder.launches == []


@pytest.mark.parametrize("launches", [0, 1, 3])
def test_what_equals_an_int_is_none_after_launches_either(recorder: Recorder, launches: int) -> None:
    kernel = rawkern.RawKernel(SAXPY, "saxpy")
    x, y = xy()
    for _ in range(launches):
        kernel[1, 64, 0](37, 2.0, x, y)
        kernel[(1,), (64,)](37, 2.0, x, y)
        kernel.forall(1)(37, 2.0, x, y)
        kernel.forall(37, block=64)(37, 2.0, x, y)
    for key in ((1.0, 64), (1, 64.0), (True, 64, 0), (1, 64, False), ((1.0,), (64,)), ((1,), (np.float64(64),))):
        with pytest.raises(TypeError, match=r"saxpy: (grid|block|shared_mem) is a.* got (float|bool)"):
            kernel[key]
    for n in (1.0, True, np.float32(1), 1 + 0j):
        with pytest.raises(TypeError, match="saxpy: forall takes the number of elements as an int"):
            kernel.forall(n)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="the block of forall is an int"):
        kernel.forall(37, block=64.0)  # type: ignore[arg-type]
    assert len(recorder.launches) == 4 * launches
    for settled in (kernel[np.int64(1), 64, 0], kernel[[1], (64,), 0], kernel.forall(np.int32(37), block=np.int8(64))):
        for _ in range(3):
            settled(37, 2.0, x, y)
        assert recorder.launches[-1]["grid"] == (1, 1, 1) and recorder.launches[-1]["block"] == (64, 1, 1)


def test_many_sizes_and_blocks_do_not_pile_up(recorder: Recorder) -> None:
    kernel = rawkern.RawKernel(SAXPY)
    x, y = xy()
    for n in range(1, 1000):
        for _ in range(3):
            kernel.forall(n)(37, 2.0, x, y)
            kernel[n, 64](37, 2.0, x, y)
        kernel[1, n](37, 2.0, x, y)
        kernel[1, 32, n](37, 2.0, x, y)
    assert len(kernel._plans) == kernels.PLANS_KEPT
    assert recorder.loaded == 1
    assert {one["grid"][0] for one in recorder.launches} == set(range(1, 1000))


@pytest.mark.rawkern_unchecked("launches take another way")
def test_a_million_sizes_leave_memory_flat(recorder: Recorder) -> None:
    kernel = rawkern.RawKernel(SAXPY)
    x, y = xy()
    for _ in range(3):
        kernel.forall(1)(37, 2.0, x, y)
        kernel[1, 64](37, 2.0, x, y)
    before = sys.getallocatedblocks()
    for n in range(1, 500_000):
        kernel.forall(n)
        kernel[n, 64]
    assert sys.getallocatedblocks() - before < 1000


def test_cooperative_reaches_the_engine(recorder: Recorder) -> None:
    x, y = xy()
    rawkern.RawKernel(SAXPY, enable_cooperative_groups=True)[1, 64](37, 2.0, x, y)
    rawkern.RawKernel(SAXPY)[1, 64](37, 2.0, x, y)
    assert [one["cooperative"] for one in recorder.launches] == [True, False]


def test_strided_accepts_what_is_not_contiguous(recorder: Recorder) -> None:
    x, y = xy(74)
    with pytest.raises(ValueError, match=r"'x'.*contiguous"):
        rawkern.RawKernel(SAXPY).forall(37)(37, 2.0, x[::2], y)
    rawkern.RawKernel(SAXPY, strided=True).forall(37)(37, 2.0, x[::2], y)
    assert len(recorder.launches) == 1


def test_fake_tensors_are_refused_outside_an_operator(recorder: Recorder) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    kernel = rawkern.RawKernel(SAXPY)
    with FakeTensorMode():
        x = torch.empty(37)
        with pytest.raises(LaunchError, match=r"wrap this in rawkern\.op"):
            kernel.forall(37)(37, 2.0, x, x)
    assert recorder.launches == []


def test_a_fake_launch_inside_an_operator_checks_and_runs_nothing(recorder: Recorder) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

    from rawkern.base import operator_state

    kernel = rawkern.RawKernel(SAXPY)
    environment, real = ShapeEnv(), torch.empty(37)
    dynamic = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC])
    with FakeTensorMode(shape_env=environment) as mode, operator_state.inside_op(fake=True):
        x = mode.from_tensor(real, symbolic_context=dynamic)
        n = x.numel()
        assert isinstance(n, torch.SymInt)
        kernel.forall(n)(n, 2.0, x, x)
        with pytest.raises(TypeError, match="float64"):
            kernel.forall(n)(n, 2.0, x.double(), x)
    assert environment.guards == []
    assert recorder.launches == []


def test_a_tensor_that_requires_grad_is_not_written(recorder: Recorder) -> None:
    kernel = rawkern.RawKernel(SAXPY)
    x, y = xy()
    y.requires_grad_()
    with pytest.raises(LaunchError, match=r"torch.no_grad\(\) or rawkern.op"):
        kernel.forall(37)(37, 2.0, x, y)
    with torch.no_grad():
        kernel.forall(37)(37, 2.0, x, y)
    assert len(recorder.launches) == 1


# Names ---------------------------------------------------------------------------------------------------------


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
        ("axpy", ValueError, "'axpy' is a template; ask for an instance of it, such as 'axpy<float>'"),
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
    with pytest.raises(ValueError, match="more than one kernel 'k': a::k, b::k; ask for one by its full name"):
        spaces.get_function("k")
    assert spaces.get_function("b::k").signature == "void b::k(int *x)"


def test_one_kernel_needs_no_name_and_two_do(recorder: Recorder) -> None:
    assert rawkern.RawKernel(SAXPY).signature == "void saxpy(int n, float a, const float *x, float *y)"
    two = "__global__ void first(int* x) { *x = 1; }\n__global__ void second(int* x) { *x = 2; }"
    with pytest.raises(ValueError, match=re.escape("the source has 2 kernels (first, second); say which one")):
        rawkern.RawKernel(two).forall(1)(torch.zeros(1, dtype=torch.int32))


def test_a_source_without_a_kernel_is_refused(recorder: Recorder) -> None:
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
    assert many.get_function("axpy<float, 2>").signature.startswith("void axpy<float, 2>(float a")
    assert "fill" not in dir(many) or "axpy" in dir(many)
    with pytest.raises(AttributeError, match="there is no kernel 'nope'; the source has"):
        many.nope  # noqa: B018
    assert not hasattr(many, "_repr_html_")


def test_underscored_names_do_not_compile_anything() -> None:
    broken = rawkern.RawModule("this is no CUDA")
    with pytest.raises(AttributeError, match=r"get_function\('_x'\)"):
        broken._x  # noqa: B018
    assert repr(broken) == "<RawModule from a string>"
    assert repr(rawkern.RawKernel("this is no CUDA", "k")) == "<RawKernel k>"


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
        ({"code": " saxpy.cu\n"}, ValueError, "the name of a file and no CUDA source; pass path='saxpy.cu'"),
    ],
)
def test_settings_that_cannot_work(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        rawkern.RawModule(**arguments)


# What the compiler made ------------------------------------------------------------------------------------------


def test_ptx_and_cubin_need_no_gpu() -> None:
    kernel = rawkern.RawKernel(SAXPY)
    assert ".target sm_80" in kernel.ptx()
    assert ".target sm_90" in kernel.ptx("compute_90") and ".entry saxpy" in kernel.ptx("sm_90")
    assert kernel.cubin("sm_90")[:4] == b"\x7fELF"
    with pytest.raises(ValueError, match="architecture 'hopper' is not one; pass one such as 'sm_90'"):
        kernel.cubin("hopper")


def test_options_reach_the_compiler() -> None:
    kernel = rawkern.RawKernel(SAXPY.replace("a * x[i]", "FACTOR * x[i]"), options=("-DFACTOR=1234567",))
    assert kernel.ptx() != rawkern.RawKernel(SAXPY.replace("a * x[i]", "7 * x[i]")).ptx()
    with pytest.raises(CompileError, match="FACTOR"):
        rawkern.RawKernel(SAXPY.replace("a * x[i]", "FACTOR * x[i]")).ptx()


# Edits ---------------------------------------------------------------------------------------------------------


def one_file(tmp_path: Path, factor: str = "2") -> Path:
    write(tmp_path / "factor.h", f"#define FACTOR {factor}\n")
    text = '#include "factor.h"\nextern "C" __global__ void times(const float* x, float* y, int n) {\n' + (
        "    int i = threadIdx.x;\n    if (i < n) y[i] = FACTOR * x[i];\n}\n"
    )
    return write(tmp_path / "times.cu", text)


def test_an_edit_is_compiled_at_the_next_launch(recorder: Recorder, tmp_path: Path) -> None:
    path = one_file(tmp_path)
    times = rawkern.load(path).times
    x, y = xy()
    times[1, 64](x, y, 37)
    times[1, 64](x, y, 37)
    assert recorder.loaded == 1
    write(path, path.read_text().replace("FACTOR *", "FACTOR + "))
    times[1, 64](x, y, 37)
    assert recorder.loaded == 2
    write(tmp_path / "factor.h", "#define FACTOR 3.5f\n")
    times[1, 64](x, y, 37)
    times[1, 64](x, y, 37)
    assert recorder.loaded == 3
    codes = [one["program"].code for one in recorder.launches]
    assert codes[0] == codes[1] and codes[3] == codes[4] and len({*codes}) == 3


def test_an_edit_that_does_not_compile_raises_until_it_is_mended(recorder: Recorder, tmp_path: Path) -> None:
    path = one_file(tmp_path)
    good = path.read_text()
    times = rawkern.load(path).times
    x, y = xy()
    launch = times[1, 64]
    launch(x, y, 37)
    write(path, good.replace("y[i] =", "y[i] ="[:-1] + "!"))
    for _ in range(3):
        with pytest.raises(CompileError, match=r"times\.cu:4") as caught:
            launch(x, y, 37)
        assert caught.value.line == 4 and "^" in caught.value.excerpt
    assert len(recorder.launches) == 1
    write(path, good + "\n")
    launch(x, y, 37)
    assert len(recorder.launches) == 2


def test_an_edit_that_changes_parameters_or_drops_the_kernel(recorder: Recorder, tmp_path: Path) -> None:
    path = one_file(tmp_path)
    good = path.read_text()
    times = rawkern.load(path).times
    x, y = xy()
    times[1, 64](x, y, 37)
    write(path, good.replace("int n)", "int n, double extra)"))
    with pytest.raises(TypeError, match=r"times takes 4 arguments, 3 were given: .*double extra\)"):
        times[1, 64](x, y, 37)
    times[1, 64](x, y, 37, 0.5)
    write(path, good.replace("void times", "void other"))
    with pytest.raises(ValueError, match="there is no kernel 'times'; the source has other"):
        times[1, 64](x, y, 37)


def test_all_kernels_of_a_module_see_an_edit_and_a_reload(recorder: Recorder, tmp_path: Path) -> None:
    two = "__global__ void a(int* x) { *x = 1; }\n__global__ void b(int* x) { *x = 2; }\n"
    path = write(tmp_path / "two.cu", two)
    pair = rawkern.load(path)
    x = torch.zeros(1, dtype=torch.int32)
    pair.a[1, 1](x)
    pair.b[1, 1](x)
    assert recorder.loaded == 1
    write(path, two.replace("= 2", "= 3"))
    pair.a[1, 1](x)
    pair.b[1, 1](x)
    assert recorder.loaded == 2
    pair.reload()
    pair.b[1, 1](x)
    pair.a[1, 1](x)
    assert recorder.loaded == 3
    write(path, "__global__ void a(int* x) { nonsense }\n")
    with pytest.raises(CompileError, match="nonsense"):
        pair.reload()


def test_a_file_edited_before_its_first_use(recorder: Recorder, tmp_path: Path) -> None:
    path = one_file(tmp_path)
    times = rawkern.RawKernel(path=path)
    write(path, path.read_text().replace("void times", "void later"))
    assert times.signature.startswith("void later(")


def test_an_edit_does_not_disturb_launches_of_other_threads(recorder: Recorder, tmp_path: Path) -> None:
    path = one_file(tmp_path)
    times = rawkern.load(path).times
    x, y = xy()
    errors: list[BaseException] = []
    stop = threading.Event()

    def work() -> None:
        try:
            while not stop.is_set():
                times[1, 64](x, y, 37)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for factor in range(3, 8):
        write(tmp_path / "factor.h", f"#define FACTOR {factor}\n")
        times[1, 64](x, y, 37)
    stop.set()
    for thread in threads:
        thread.join()
    assert not errors
    assert recorder.loaded >= 5


# Copies --------------------------------------------------------------------------------------------------------


def test_pickling_keeps_source_options_and_name(recorder: Recorder) -> None:
    kernel = rawkern.RawKernel(MANY, "axpy<float, 3>", ("-DUNUSED=1",), enable_cooperative_groups=True)
    again = pickle.loads(pickle.dumps(kernel))
    assert again is not kernel
    assert again.signature == kernel.signature
    assert again.unit.settings == kernel.unit.settings
    x, y = xy()
    again[1, 64](2.0, x, y, 37)
    assert recorder.launches[-1]["cooperative"]


def test_kernels_of_a_file_pickle_by_path(recorder: Recorder, tmp_path: Path) -> None:
    path = one_file(tmp_path)
    source_module = rawkern.load(path)
    first, second, again = pickle.loads(pickle.dumps((source_module.times, source_module.times, source_module)))
    assert first is second and first.unit is again.unit
    write(path, path.read_text().replace("void times", "void times2"))
    assert again.kernels == ("times2",)


def test_a_copy_is_the_kernel_itself() -> None:
    kernel = rawkern.RawKernel(SAXPY)
    assert copy.copy(kernel) is kernel and copy.deepcopy({"k": kernel})["k"] is kernel
    source_module = rawkern.RawModule(SAXPY)
    assert copy.deepcopy(source_module) is source_module


def test_kernels_are_freed(recorder: Recorder) -> None:
    import weakref

    kernel = rawkern.RawKernel(SAXPY)
    x, y = xy()
    kernel.forall(37)(37, 2.0, x, y)
    dead = weakref.ref(kernel.unit)
    recorder.launches.clear()
    del kernel
    gc.collect()
    assert dead() is None


# Packaging and import ----------------------------------------------------------------------------------------------


def run(code: str, *, cwd: Path | None = None, path: str | None = None) -> str:
    """Run Python in a process of its own and return what it prints."""
    environment = {**os.environ, "PYTHONPATH": str(Path(rawkern.__file__).parents[1]) if path is None else path}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=cwd, env=environment, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_import_is_light() -> None:
    code = (
        "import sys, time, torch; t = time.perf_counter(); import rawkern; t = time.perf_counter() - t;"
        "print(t < 0.1, [m for m in ('cupy', 'llvmlite', 'ml_dtypes', 'platformdirs') if m in sys.modules])"
    )
    assert run(code) == "True []"


def test_code_from_the_disk_cache_needs_no_compiler() -> None:
    code = (
        "import sys, torch, rawkern\n"
        f"k = rawkern.RawKernel({SAXPY!r})\n"
        "x = torch.ones(3)\n"
        "k.forall(3)(3, 2.0, x, x.clone())\n"
        "print([m for m in sys.modules if m.startswith(('rawkern.engines.cpu.ptx', 'rawkern.engines.cpu.analysis'))])"
    )
    run(code)
    assert run(code) == "[]"


def test_without_cupy_the_first_use_gives_the_pip_line(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['cupy'] = None\n"
        "import torch, rawkern\n"
        f"k = rawkern.RawKernel({SAXPY!r})\n"
        "x = torch.ones(3)\n"
        "try:\n    k.forall(3)(3, 2.0, x, x.clone())\n"
        "except rawkern.MissingDependencyError as error:\n    print(error)"
    )
    environment = dict(os.environ)
    try:
        os.environ["RAWKERN_CACHE_DIR"] = str(tmp_path / "cache")
        assert 'pip install "rawkern[cuda13]"' in run(code)
    finally:
        os.environ.clear()
        os.environ.update(environment)


def test_public_names() -> None:
    assert set(rawkern.__all__) <= set(dir(rawkern))
    with pytest.raises(AttributeError, match="module 'rawkern' has no attribute 'nope'"):
        rawkern.nope  # noqa: B018


def test_own_sources_are_found_by_bare_name(tmp_path: Path) -> None:
    names = sorted(path.stem for path in module.own_sources().glob("*.cu"))
    with pytest.raises(FileNotFoundError, match="'nonesuch' is neither a file nor one of rawkern's own sources"):
        rawkern.load("nonesuch")
    for name in names:
        assert rawkern.load(name).unit.settings.path == str(module.own_sources() / f"{name}.cu")


# Running -------------------------------------------------------------------------------------------------------


def test_saxpy_in_every_form(device: str) -> None:
    kernel = rawkern.RawKernel(SAXPY)
    n = 1003
    x, y = xy(n, device)
    expected = y.double() + 2.5 * x.double()
    launches: list[Callable[[torch.Tensor], None]] = [
        lambda out: kernel[(n + 127) // 128, 128](n, 2.5, x, out),
        lambda out: kernel.forall(n)(n, 2.5, x, out),
        lambda out: kernel.forall(n, block=100)(n, 2.5, x, out),
        lambda out: kernel(((n + 63) // 64,), (64,), (n, 2.5, x, out)),
        lambda out: kernel[8, 128](y=out, n=n, x=x, a=2.5),
    ]
    for launch in launches:
        out = y.clone()
        launch(out)
        torch.testing.assert_close(out.double(), expected, rtol=1e-6, atol=1e-6)


def test_nothing_to_do_succeeds(device: str) -> None:
    kernel = rawkern.RawKernel(SAXPY)
    empty = torch.empty(0, device=device)
    kernel.forall(0)(0, 2.0, empty, empty)
    x, y = xy(5, device)
    before = y.clone()
    kernel.forall(0)(5, 2.0, x, y)
    assert torch.equal(y, before)


def test_templates_overloads_and_namespaces_run(device: str) -> None:
    many = rawkern.RawModule(MANY)
    x, y = xy(37, device, torch.float64)
    out = y.clone()
    many.get_function("axpy<double, 4>")[1, 64](0.25, x, out, 37)
    torch.testing.assert_close(out, y + x)
    out = x.clone()
    many.get_function("scale(double*, double, int)")[1, 64](out, -3.0, 37)
    torch.testing.assert_close(out, -3 * x)
    out = torch.full((37,), float("nan"), device=device)
    many.fill[1, 64](out, 1.5, 30)
    assert (out[:30] == 1.5).all() and out[30:].isnan().all()


def test_an_instance_whose_name_has_the_architecture_in_it(device: str) -> None:
    """As those with arguments of cub's types, which live in an inline namespace that is named for the architecture."""
    kernel = rawkern.RawKernel(
        r"""
#define JOINED(a, b) a##b
#define FOR(a, b) JOINED(a, b)
namespace lib { inline namespace FOR(sm_, __CUDA_ARCH_LIST__) { enum Mode { ONE = 1, TWO }; } }
template <lib::Mode M> __global__ void fill(float* x) { x[threadIdx.x] = M; }""",
        "fill<lib::TWO>",
    )
    x = torch.zeros(5, device=device)
    kernel[1, 5](x)
    assert x.tolist() == [2] * 5
    with rawkern.check():
        kernel[1, 5](x)
    state = kernel.state()
    symbols = {state.entry_in(state.build.program(arch, state.asked)).symbol for arch in ("compute_80", "sm_90")}
    assert len(symbols) == 2 and state.entry.symbol in symbols


@pytest.mark.parametrize("default", ["cpu", "meta"])
def test_the_default_device_means_nothing_to_launches(device: str, default: str) -> None:
    """Neither a table of pointers, nor numbers that torch rounds, nor checked launches depend on it."""
    kernel = rawkern.RawKernel(r"""
#include <cuda_fp8.h>
extern "C" __global__ void add(const float* const* parts, __nv_fp8_e4m3 s, float* x, int n) {
    int i = threadIdx.x;
    if (i < n) x[i] = parts[0][i] + parts[1][i] * float(s);
}""")
    a, b, x = torch.arange(3.0, device=device), torch.ones(3, device=device), torch.zeros(3, device=device)
    with torch.device(default):
        kernel[1, 32]([a, b], 1.5, x, 3)
        with rawkern.check():
            kernel[1, 32]([a, b], 1.5, x, 3)
    assert x.tolist() == [1.5, 2.5, 3.5]


def test_dynamic_shared_memory(device: str) -> None:
    kernel = rawkern.RawKernel(
        r"""extern "C" __global__ void reverse(const float* x, float* y) {
            extern __shared__ float tile[];
            tile[threadIdx.x] = x[blockIdx.x * blockDim.x + threadIdx.x];
            __syncthreads();
            y[blockIdx.x * blockDim.x + threadIdx.x] = tile[blockDim.x - 1 - threadIdx.x];
        }"""
    )
    x, _ = xy(96 * 5, device)
    y = torch.full_like(x, float("nan"))
    kernel[5, 96, 96 * 4](x, y)
    torch.testing.assert_close(y, x.view(5, 96).flip(1).reshape(-1))


def test_shared_memory_over_the_limit(device: str) -> None:
    kernel = rawkern.RawKernel(SAXPY)
    x, y = xy(37, device)
    with pytest.raises(ValueError, match=r"saxpy: shared_mem is 100000000 bytes, the maximum here is \d+ bytes"):
        kernel[1, 64, 100_000_000](37, 2.0, x, y)


def test_attributes(device: str) -> None:
    attributes = rawkern.RawKernel(SAXPY).attributes
    assert set(attributes) >= {
        "num_regs",
        "shared_size_bytes",
        "local_size_bytes",
        "const_size_bytes",
        "max_threads_per_block",
        "ptx_version",
    }
    assert attributes["max_threads_per_block"] == 1024
    assert attributes["shared_size_bytes"] == 0
    kernel = rawkern.RawKernel(SAXPY)
    for name in ("num_regs", "shared_size_bytes", "local_size_bytes", "const_size_bytes", "max_threads_per_block"):
        assert getattr(kernel, name) == attributes[name]
    assert kernel.ptx_version == attributes["ptx_version"] and kernel.binary_version == attributes["binary_version"]
    kernel.max_dynamic_shared_size_bytes = 1 << 16  # type: ignore[attr-defined]  # what CuPy needs does no harm


def test_a_module_compiles_when_it_is_told_to() -> None:
    module = rawkern.RawModule(SAXPY)
    module.compile()
    assert module.unit.current().compiled_for()
    with pytest.raises(CompileError, match="expected a"):
        rawkern.RawModule(SAXPY + "}").compile()
    with pytest.raises(CompileError, match=r"name an instance of k, such as k<float>"):
        rawkern.RawModule("template <class T> __global__ void k(T* x) {}").compile()


def test_edit_and_rerun(device: str, tmp_path: Path) -> None:
    path = one_file(tmp_path)
    times = rawkern.load(path).times
    x, _ = xy(37, device)
    for factor in ("2", "-0.25f", "1e3f"):
        write(tmp_path / "factor.h", f"#define FACTOR {factor}\n")
        y = torch.full_like(x, float("nan"))
        times[1, 64](x, y, 37)
        torch.testing.assert_close(y, float(factor.rstrip("f")) * x)
    write(path, path.read_text().replace("FACTOR * x[i]", "x[i] - FACTOR"))
    times[1, 64](x, y, 37)
    torch.testing.assert_close(y, x - 1000.0)


def test_threads_get_their_own_results(device: str) -> None:
    kernel = rawkern.RawKernel(SAXPY)
    n = 501
    x, _ = xy(n, device)
    outs = [torch.zeros(n, device=device) for _ in range(6)]
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for _ in range(100):
                kernel.forall(n)(n, float(number), x, outs[number])
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    for number, out in enumerate(outs):
        torch.testing.assert_close(out, 100.0 * number * x, rtol=1e-4, atol=1e-4)


def test_a_pickled_kernel_runs(device: str) -> None:
    kernel = pickle.loads(pickle.dumps(rawkern.RawKernel(SAXPY)))
    x, y = xy(37, device)
    out = y.clone()
    kernel.forall(37)(37, -1.5, x, out)
    torch.testing.assert_close(out, y - 1.5 * x)


def test_launches_bump_versions(device: str) -> None:
    kernel = rawkern.RawKernel(SAXPY)
    x, y = xy(37, device)
    versions = x._version, y._version
    kernel.forall(37)(37, 2.0, x, y)
    assert (x._version, y._version) == (versions[0], versions[1] + 1)


@pytest.mark.parametrize("warm", [0, 3])
def test_torch_compile_breaks_the_graph_at_a_launch_and_nowhere_else(device: str, warm: int) -> None:
    import torch._dynamo as dynamo

    dynamo.reset()
    dynamo.utils.counters.clear()
    kernel = rawkern.RawKernel(SAXPY)

    @torch.compile(backend="eager")
    def shifted(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = y + 1
        kernel.forall(x.numel())(x.numel(), -0.5, x, out)
        return out * 2

    for n in (37, 41):
        x, y = xy(n, device)
        for _ in range(warm):
            kernel.forall(n)(n, 1.0, x, y.clone())
        torch.testing.assert_close(shifted(x, y), (y + 1 - 0.5 * x) * 2)
    breaks = list(dynamo.utils.counters["graph_break"])
    assert breaks and all("wrap it in rawkern.op" in reason for reason in breaks)
    assert not dynamo.utils.counters["unimplemented"]


def test_a_stream_means_nothing_on_the_cpu() -> None:
    kernel = rawkern.RawKernel(SAXPY)
    x, y = xy()
    for stream in (torch.cpu.current_stream(), types.SimpleNamespace(__cuda_stream__=lambda: (0, 7))):
        out = y.clone()
        kernel((1,), (64,), (37, 0.75, x, out), stream=stream)
        torch.testing.assert_close(out, y + 0.75 * x)
    for wrong in (3, 0, True, "default", object()):
        with pytest.raises(TypeError, match=r"stream is (the integer|a)"):
            kernel((1,), (64,), (37, 0.75, x, out), stream=wrong)
    torch.testing.assert_close(out, y + 0.75 * x)


def test_a_kernel_after_a_fork() -> None:
    """The CPU engine works in a forked child."""
    kernel = rawkern.RawKernel(SAXPY)
    n = 100_000
    x, y = xy(n)
    expected = (y + 2.0 * x).numpy()
    kernel.forall(n)(n, 0.0, x, y)
    read, written = os.pipe()
    child = os.fork()
    if not child:
        signal.alarm(60)
        try:
            kernel.forall(n)(n, 2.0, x, y)
            # NumPy compares: torch's own threads do not survive a fork.
            os.write(written, b"right" if np.allclose(y.numpy(), expected) else b"wrong")
        except BaseException as error:
            os.write(written, repr(error).encode())
        os._exit(0)
    os.close(written)
    os.waitpid(child, 0)
    with os.fdopen(read, "rb") as file:
        assert file.read() == b"right"


@pytest.mark.rawkern_unchecked("the checker's own memory is not what this measures")
def test_peak_memory_stays_flat_on_the_cpu() -> None:
    kernel = rawkern.RawKernel(SAXPY)
    n = 2**24
    x, y = xy(n)
    kernel.forall(n)(n, 0.0, x, y)

    def peak() -> int:
        text = Path("/proc/self/status").read_text()
        return int(re.search(r"VmHWM:\s+(\d+) kB", text)[1]) * 1024  # type: ignore[index]

    try:
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew from what is in use
    except OSError:
        pytest.skip("this kernel does not let the peak be reset")
    before = peak()
    for _ in range(3):
        kernel.forall(n)(n, 0.0, x, y)
    assert peak() - before < x.nbytes // 4


@pytest.mark.gpu
def test_both_engines_agree() -> None:
    source = r"""
    extern "C" __global__ void mix(const float* x, const int* k, float* y, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        float v = i < n ? x[i] : 0.0f;
        for (int s = 16; s > 0; s >>= 1) v += __shfl_xor_sync(0xffffffffu, v, s);
        if (i < n) y[i] = (k[i] % 3 == 0 ? v : x[i] * 0.5f) + (float)(k[i] / 7);
    }"""
    kernel = rawkern.RawKernel(source)
    x = torch.randn(10_007)
    k = torch.randint(-1000, 1000, (10_007,), dtype=torch.int32)
    out = {}
    for device in ("cpu", "cuda"):
        out[device] = torch.full((10_007,), float("nan"), device=device)
        kernel.forall(10_007)(x.to(device), k.to(device), out[device], 10_007)
    torch.testing.assert_close(out["cuda"].cpu(), out["cpu"])


def test_repeated_launches_go_through_one_function(recorder: Recorder) -> None:
    kernel = rawkern.RawKernel(SAXPY)
    x, y = xy()
    held = kernel[1, 64]
    for count in range(1, 6):
        kernel[1, 64](37, 2.0, x, y)
        held(37, 2.0, x, y)
        kernel.forall(37)(37, 2.0, x, y)
        kernel((1,), (64,), (37, 2.0, x, y), stream=torch.cpu.current_stream())
        assert len(recorder.launches) == 4 * count
    repeated = kernel[1, 64]
    repeated(37, 2.0, y=y, x=x)
    repeated(np.int32(37), 2, x, y)
    assert {one["values"] for one in recorder.launches} == {(37, 2.0, x.data_ptr(), y.data_ptr())}
    with pytest.raises(TypeError, match="saxpy takes 4 arguments, 3 were given"):
        repeated(37, 2.0, x)
    with pytest.raises(ValueError, match="is not contiguous"):
        held(37, 2.0, x[::2], y)
    with pytest.raises(OverflowError, match="out of range for int"):
        repeated(2**31, 2.0, x, y)
    with pytest.raises(TypeError, match="takes 4 arguments, 5 were given"):
        repeated(37, 2.0, x, y, y)


def test_repeated_launches_with_null_pointers(recorder: Recorder) -> None:
    kernel, (x, y) = rawkern.RawKernel(SAXPY), xy()
    for _ in range(7):
        kernel[1, 64](37, 2.0, x, y)
        kernel[1, 64](37, 2.0, x[:0], y)
        kernel[1, 64](37, 2.0, None, y)
        values = [launch["values"][2] for launch in recorder.launches[-3:]]
        assert values == [x.data_ptr(), 0, 0]
    (target,) = kernel[1, 64].plan.built[1].values()
    assert target.native >= 3 * 7 - 2  # the first two find out what native code needs to know
    kernel[1, 64](37, 2.0, None, None)
    with pytest.raises(TypeError, match="argument 1 'n' is None"):
        kernel[1, 64](None, 2.0, None, y)
    with pytest.raises(TypeError, match="argument 4 'y' is float64"):
        kernel[1, 64](37, 2.0, None, y.double())


def test_kernels_see_null_pointers(device: str) -> None:
    kernel = rawkern.RawKernel(
        'extern "C" __global__ void k(const float* x, float* y, int n) '
        "{ int i = threadIdx.x; if (i < n) y[i] = x ? x[i] : -1.5f; }"
    )
    x, y = xy(device=device)
    for _ in range(4):
        kernel[1, 64](None, y, 37)
        assert y.tolist() == [-1.5] * 37
        kernel[1, 64](x, y, 37)
        assert torch.equal(x, y)
        kernel[1, 64](x[:0], y, 37)
        assert y.tolist() == [-1.5] * 37


def test_repeated_launches_see_an_edited_file(recorder: Recorder, tmp_path: Path) -> None:
    path = write(tmp_path / "saxpy.cu", SAXPY)
    kernel = rawkern.load(path).saxpy
    x, y = xy()
    first = kernel[1, 64]
    for _ in range(4):
        kernel[1, 64](37, 2.0, x, y)
    held = kernel[1, 64]
    write(path, SAXPY.replace("int n, float a", "float a, int n"))
    launches = len(recorder.launches)
    for count in range(1, 5):
        for launch in (first, held, kernel[1, 64]):
            launch(2.0, 37, x, y)
            assert recorder.launches[-1]["values"] == (2.0, 37, x.data_ptr(), y.data_ptr())
        assert len(recorder.launches) == launches + 3 * count
    with pytest.raises(TypeError, match="'n' is the float 2"):
        held(2.0, 2.5, x, y)


def test_forall_of_a_pair_is_no_n_and_block(recorder: Recorder) -> None:
    kernel = rawkern.RawKernel(SAXPY)
    kernel.forall(37, block=64)
    with pytest.raises(TypeError):
        kernel.forall((37, 64))  # type: ignore[arg-type]


def test_a_launcher_says_what_it_is(recorder: Recorder) -> None:
    kernel = rawkern.RawKernel(SAXPY, "saxpy")
    assert repr(kernel[2, 64]).startswith("<launch of saxpy, LaunchConfig(grid=(2, 1, 1), block=(64, 1, 1)")
    assert isinstance(kernel[2, 64], launcher.Launcher)
