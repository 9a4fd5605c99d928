"""What launches and definitions leave behind that an interrupt has ended, at any line: the next ones are right."""

from __future__ import annotations

import ctypes
import itertools
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import pytest
import torch
from torch import Tensor

import rawkern
from rawkern.base import llvm as rawkern_llvm
from rawkern.base import operator_state, table
from rawkern.base.llvm import host, object_file
from rawkern.engines.cpu.runtime import limits
from rawkern.engines.cpu.runtime import order as orders
from rawkern.launch import intercept, level, modes, native
from tests.stress.interrupts import interrupts

TRIPLE = """extern "C" __global__ void triple(const float* x, float* y, int n) {
    int i = (blockIdx.x * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] * 3;
}"""
#: Its blocks' warps wait for each other, each with a stack of its own.
TURNED = """extern "C" __global__ void turned(const float* x, float* y, int n) {
    __shared__ float s[64];
    int t = threadIdx.x, i = blockIdx.x * 64 + t;
    s[t] = i < n ? x[i] : 0;
    __syncthreads();
    if (i < n) y[i] = s[63 - t];
}"""
LONG = """extern "C" __global__ void rounds(float* y, long long n) {
    float a = threadIdx.x;
    for (long long k = 0; k < n; k++) a = a * 0.5f + 1;
    y[threadIdx.x] = a;
}"""
X = torch.arange(100.0)


@pytest.fixture(autouse=True)
def settings() -> Iterator[None]:
    before = stated()
    yield
    assert stated() == before


def stated() -> tuple[Any, ...]:
    """All that contexts change for the whole process or the thread."""
    return (
        level.current(), level.depth(), level.lent.depth, orders.seed.current, orders.seed.depth, limits.time.current,
        limits.time.depth, limits.SLICE[0], modes.gpu.current, modes.gpu.depth, table.field("mode"),
        table.field("attention"), intercept.active(), operator_state.state.level,
    )  # fmt: skip


def launched(kernel: Any, grid: Any, block: Any, expected: Tensor = X * 3) -> None:
    y = torch.full((100,), float("nan"))
    kernel[grid, block](X, y, 100)
    assert torch.equal(y, expected)


def well(kernel: Any) -> None:
    """Several launches of a kernel are right, on its slow path and the native one."""
    for _ in range(3):
        launched(kernel, 2, 64)
    launched(kernel, 5, (5, 4))
    y = torch.empty(100)
    kernel.forall(100)(X, y, 100)
    assert torch.equal(y, X * 3)


LAUNCHES = """kernel.py launch/launcher.py launch/unit.py launch/builds.py engines/cpu/__init__.py
    engines/cpu/runtime/grid.py engines/cpu/runtime/workers.py engines/cpu/runtime/jit.py base/records.py"""


def test_first_launches() -> None:
    """All of a kernel but what is compiled is rebuilt, each time."""
    well(rawkern.RawKernel(TRIPLE))
    made: list[Any] = []

    def run() -> None:
        made[:] = [rawkern.RawKernel(TRIPLE)]
        for _ in range(3):
            launched(made[0], 2, 64)
        made[0].forall(100)(X, torch.empty(100), 100)

    for _ in interrupts(LAUNCHES.split(), run):
        if made:
            well(made.pop())


LOADED = "launch/native.py base/table.py base/llvm.py base/forking.py base/cache.py base/scopes.py"
LLVM = [str(Path(llvm.__file__).parent / file) for file in ("ffi.py", "module.py", "executionengine.py")]

# Python tells of an object that an interrupt has ended in its `__init__`: llvmlite cannot dispose of it.
HALF_MADE = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def locked() -> bool:
    """Whether llvmlite's own lock is held."""
    lock: Any = llvm.ffi.lib._lock
    return lock._lock._recursion_count() > 0


@HALF_MADE
def test_native_code_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = rawkern.RawKernel(TRIPLE)
    kernel.compile()

    def run() -> None:
        monkeypatch.setattr(native, "_functions", {})
        monkeypatch.setattr(rawkern_llvm, "_empty", [])  # the module that engines begin with is parsed again
        native.function(kernel.state().signature)

    for _ in interrupts([*LOADED.split(), *LLVM], run):
        assert not locked()
        well(rawkern.RawKernel(TRIPLE))


@HALF_MADE
def test_code_is_generated() -> None:
    """LLVM's modules, engines, machines and passes are disposed of once, with the frames of the interrupt or before."""

    def run() -> None:
        object_file("define void @f() {\n  ret void\n}", host())

    passes = str(Path(llvm.__file__).parent / "newpassmanagers.py")
    for _ in interrupts(["base/llvm.py", *LLVM[:2], passes], run):
        assert not locked()
    run()


MODES = """base/scoped_setting.py base/scopes.py base/table.py launch/modes.py launch/limits.py launch/level.py launch/intercept.py
    checked/launches.py engines/cpu/runtime/limits.py engines/cpu/runtime/order.py engines/cpu/runtime/grid.py
    engines/cpu/runtime/workers.py"""


def test_settings_are_restored() -> None:
    """Whatever line of the beginning, the launches inside and the end it comes at; the error with its frames is alive."""
    kernel, before, seeds = rawkern.RawKernel(TURNED), stated(), itertools.cycle(range(5))
    expected = torch.cat((X[:64].flip(0), torch.cat((X[64:], torch.zeros(28))).flip(0)))[:100]
    launched(kernel, 2, 64, expected)

    def run() -> None:
        with rawkern.order(next(seeds)), rawkern.time_limit(5), rawkern.architecture("sm_90"):
            launched(kernel, 2, 64, expected)
        with rawkern.check(level="off"):
            launched(kernel, 2, 64, expected)
        with rawkern.check(X), intercept.intercepted(lambda launch: launch.proceed()):
            pass
        with operator_state.inside_op(), operator_state.inside_op(fake=True):
            pass

    for _ in interrupts(MODES.split(), run, 2):
        assert stated() == before
        launched(kernel, 2, 64, expected)
        with pytest.raises(rawkern.errors.OutOfBoundsError):
            kernel[2, 64](X, torch.empty(100)[:50], 100)
        for seed in (3, 0):
            with rawkern.order(seed):
                launched(kernel, 2, 64, expected)


def test_profiles_end() -> None:
    before = stated()

    def run() -> None:
        with rawkern.profile() as report:
            assert not report.launches

    for _ in interrupts(("profiling/launches.py", "base/scopes.py"), run):
        assert stated() == before


DEFINED = "operators/operator.py operators/reverse.py operators/sharding.py base/torch_private.py"


def test_operators_are_defined_again() -> None:
    factor = torch.tensor(3.0)

    def define() -> Callable[..., Any]:
        @rawkern.op("rawkern_interrupts::times", save=("x",))
        def times(x: Tensor) -> Tensor:
            return x * factor

        @times.backward
        def _(ctx: Any, grad: Tensor) -> Tensor:
            return grad * factor

        return times

    for _ in interrupts(DEFINED.split(), define):
        times = define()
        t = torch.ones(3, requires_grad=True)
        times(t).sum().backward()
        assert t.grad is not None and t.grad.tolist() == [3.0] * 3


def test_formulas_are_declared_again() -> None:
    names = (f"interrupted{k}" for k in itertools.count())
    now: list[str] = []

    def square(*_: None) -> Any:
        return rawkern.elementwise("T x", "T y", "y = x * x", now[-1])

    def total(*_: None) -> Any:
        return rawkern.reduction("T x", "T y", "x", "a + b", "y = a", "0", now[-1])

    for file, define in (
        ("formulas/declared.py", square),
        ("formulas/elementwise.py", square),
        ("formulas/reduction.py", total),
    ):
        for _ in interrupts((file,), lambda define=define: define(now.append(next(names)))):
            define()
    t = torch.arange(3.0, requires_grad=True)
    square()(t).sum().backward()
    assert t.grad is not None and t.grad.tolist() == [0, 2, 4]


@pytest.mark.parametrize("calls", [1, 2, 4])  # made with care, and by native code
def test_a_launch_that_is_stopped_in_its_first_slice_gives_its_stacks_back(calls: int) -> None:
    kernel, y = rawkern.RawKernel(LONG), torch.empty(64)
    launch = kernel[1, 64]
    for _ in range(calls - 1):
        launch(y, 3)

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, stop)
    try:
        with pytest.raises(KeyboardInterrupt):
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.02)
                launch(y, 10**15)
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.signal(signal.SIGALRM, before)
    for target in launch.plan.built[1].values():
        assert not target.busy
    launch(y, 10**4)
    (target,) = launch.plan.built[1].values()
    assert torch.equal(y, torch.full((64,), 2.0)) and not target._spare


def test_the_parts_of_a_plan_live_as_long_as_what_native_code_reaches() -> None:
    """A launcher, and what makes launchers, hold the plan; so it does not matter which of two threads' plans is kept."""
    kernel = rawkern.RawKernel(TRIPLE)
    maker, cover = kernel._plan((64, 1, 1), 0).grid, kernel._plan(None, 0).cover
    kernel._plans.clear()
    junk = [bytearray(ctypes.sizeof(ctypes.c_void_p) * 8) for _ in range(1000)]
    y = torch.empty(100)
    for launcher in (maker(2, 64), cover(100)):
        launcher(X, y, 100)
        assert torch.equal(y, X * 3) and junk
