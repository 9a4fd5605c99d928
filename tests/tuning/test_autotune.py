"""rawkern.autotune: what it chooses, what it leaves behind, and what it does where nothing may be timed."""

from __future__ import annotations

import contextlib
import copy
import ctypes
import gc
import os
import pickle
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rawkern
from rawkern.compile import programs
from rawkern.launch import launcher
from rawkern.tuning import record, timing
from rawkern.tuning.record import Tuning
from rawkern.tuning.session import Session

# WORK makes it slow, ADDED wrong.
SOURCE = r"""
#ifndef WORK
#define WORK 0
#endif
#ifndef ADDED
#define ADDED 0
#endif
extern "C" __global__ void saxpy(int n, float a, const float* x, float* y) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float sum = a * x[i];
    // The CPU engine compiles for 800; what is much for it is nothing for a GPU.
    for (int k = 0; k < WORK * (__CUDA_ARCH__ > 800 ? 100 : 1); k++) sum = sum * 1.5f - 0.5f * sum;
    y[i] += sum + ADDED;
}
"""
SLOW = 3000


@pytest.fixture(autouse=True)
def _settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One thread: two of them wait for each other where other programs have the cores, and what is fast seems slow."""
    monkeypatch.delenv("RAWKERN_AUTOTUNE", raising=False)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The times that were measured."""
    times: list[float] = []
    usual = timing.seconds

    def seconds(*args: Any, **kwargs: Any) -> float:
        times.append(usual(*args, **kwargs))
        return times[-1]

    monkeypatch.setattr(timing, "seconds", seconds)
    return times


def inputs(device: str, n: int = 1003) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    x, y = torch.randn(n, device=device), torch.randn(n, device=device)
    return x, y, y + 2.5 * x


def tuned_saxpy(tag: str, configs: Any = None, **options: Any) -> Any:
    """A kernel of its own source, so that tests that run at the same time have other choices."""
    kernel = rawkern.RawKernel(f"// {tag}\n{SOURCE}")
    return rawkern.autotune(kernel, configs or {"WORK": [SLOW, 0], "block": [64, 256]}, **options)


def chosen(tuned: Any) -> Tuning:
    (only,) = tuned.tunings
    return only


# What it leaves behind ------------------------------------------------------------------------------------------


def test_the_first_launch_leaves_what_one_launch_leaves(device: str) -> None:
    x, y, expected = inputs(device)
    before = x.clone()
    tuned = tuned_saxpy("restored")
    tuned.forall(1003)(1003, 2.5, x, y)
    torch.testing.assert_close(y, expected)
    assert torch.equal(x, before)
    assert chosen(tuned).config["WORK"] == 0 and len(chosen(tuned).trials) == 4
    for _ in range(4):
        tuned.forall(1003)(1003, 2.5, x, y)
        expected += 2.5 * x
    torch.testing.assert_close(y, expected)


def test_arrays_lists_and_variables_are_restored(device: str) -> None:
    """Memory that reaches the kernel by other ways: an array that is no tensor, a list, a table of addresses."""
    module = rawkern.RawModule(r"""
    __device__ int launches;
    extern "C" __global__ void add(int n, float* a, float* const* list, float* const* table) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i == 0) launches++;
        if (i < n) { a[i] += 1; list[0][i] += 2; list[1][i] += 4; table[0][i] += 8; }
    }""")
    a: Any = np.zeros(100, np.float32)
    if device == "cuda":
        a = pytest.importorskip("cupy").zeros(100, np.float32)
    first, second, third = (torch.zeros(100, device=device) for _ in range(3))
    table = torch.tensor([third.data_ptr()], device=device)
    tuned = rawkern.autotune(module.add, {"block": [32, 64, 128]})
    tuned.forall(100)(100, a, [first, second], table)
    for array, value in ((rawkern.to_torch(a), 1), (first, 2), (second, 4), (third, 8)):
        assert torch.equal(array, torch.full_like(array, value))
    assert module.get_global("launches", device).tolist() == [1]


@pytest.mark.parametrize("way", ["struct", "ctypes", "number", "table", "variable", "constant"])
def test_memory_behind_addresses_is_restored(device: str, way: str) -> None:
    """One row is an argument, the next is reached by its address alone, though it is of the same storage."""
    parameter, pointer, variable = {
        "struct": ("P p", "p.x", ""),
        "ctypes": ("P p", "p.x", ""),
        "number": ("unsigned long long p", "((float*)p)", ""),
        "table": ("float* const* p", "p[0]", ""),
        "variable": ("int p", "pointer", "__device__ float* pointer;"),
        "constant": ("int p", "pointer", "__constant__ float* pointer;"),
    }[way]
    module = rawkern.RawModule(f"""
    struct P {{ int n; float* x; }};
    {variable}
    extern "C" __global__ void add(float* y, {parameter}, int n) {{
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) {{ y[i] += 1; {pointer}[i] += 2; }}
    }}""")

    class P(ctypes.Structure):
        _fields_ = (("n", ctypes.c_int), ("x", ctypes.c_void_p))

    y, x = whole = torch.zeros(2, 100, device=device)
    address = x.data_ptr()
    given: Any = {"struct": bytes(P(3, address)), "ctypes": P(3, address), "number": address}.get(way, 0)
    if way == "table":
        given = np.array([address])
        if device == "cuda":
            given = pytest.importorskip("cupy").asarray(given)
    if variable:
        module.get_global("pointer", device).fill_(address)
    rawkern.autotune(module.add, {"block": [32, 64]}).forall(100)(y, given, 100)
    assert whole.tolist() == [[1.0] * 100, [2.0] * 100]


def test_arrays_that_cannot_be_restored(device: str) -> None:
    kernel = rawkern.RawKernel(SOURCE, strided=True)
    tuned = rawkern.autotune(kernel, {"block": [32, 64]})
    wide = pytest.importorskip("cupy").zeros(200, np.float32) if device == "cuda" else np.zeros(200, np.float32)
    with pytest.raises(rawkern.LaunchError, match="not contiguous, and tuning puts back"):
        tuned.forall(100)(100, 1.0, torch.ones(100, device=device), wide[::2])
    assert not wide.any()


def test_strided_tensors_are_restored(device: str) -> None:
    kernel = rawkern.RawKernel(
        'extern "C" __global__ void k(float* x, int n) '
        "{ int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) x[2 * i] += 1; }",
        strided=True,
    )
    whole = torch.zeros(200, device=device)
    rawkern.autotune(kernel, {"block": [32, 64]}).forall(100)(whole[::2], 100)
    assert whole.tolist() == [1.0, 0.0] * 100


def test_tensors_are_let_go(device: str) -> None:
    """Errors of configurations hold the frames in which the tensors and their copies are."""
    x, y, _ = inputs(device)
    tuned = tuned_saxpy("let go", [{"block": 64}, {"block": 4096}])
    there = weakref.ref(y)
    gc.collect()
    gc.disable()
    try:
        tuned.forall(1003)(1003, 2.5, x, y)
        del y
        assert there() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("where", ["launch", "timing", "reference"])
def test_an_interrupt_leaves_what_was_there(device: str, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y, expected = inputs(device)
    before = y.clone()

    def interrupt(*args: Any) -> None:
        y.add_(1)
        raise KeyboardInterrupt

    tuned = tuned_saxpy(
        f"interrupt {where}", {"block": [64, 32]}, reference=interrupt if where == "reference" else None
    )
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        if where == "timing":
            patch.setattr(timing, "seconds", interrupt)
        if where == "launch":
            patch.setattr(Session, "_run", interrupt)
        tuned.forall(1003)(1003, 2.5, x, y)
    assert torch.equal(y, before) and not tuned.tunings
    if where != "reference":
        tuned.forall(1003)(1003, 2.5, x, y)
        torch.testing.assert_close(y, expected)


# Wrong and impossible configurations ----------------------------------------------------------------------------


@pytest.mark.parametrize("writes", [False, True])
def test_wrong_results_are_rejected(device: str, writes: bool) -> None:
    x, y, expected = inputs(device)

    def written(n: int, a: float, x: torch.Tensor, y: torch.Tensor) -> None:
        y += a * x

    def returned(n: int, a: float, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return y.double() + a * x.double()

    tuned = tuned_saxpy(
        f"wrong {writes}", {"ADDED": [1, 0], "WORK": [0, SLOW]}, reference=written if writes else returned
    )
    tuned.forall(1003)(1003, 2.5, x, y)
    torch.testing.assert_close(y, expected)
    assert chosen(tuned).config == {"ADDED": 0, "WORK": 0}
    reasons = {trial.config["ADDED"]: trial.reason for trial in chosen(tuned).trials}
    assert reasons[0] == "" and reasons[1].startswith("wrong y: Mismatched elements: 1003 / 1003")


def test_tolerances(device: str) -> None:
    x, y, _ = inputs(device)
    tuned = tuned_saxpy("loose", {"ADDED": [0.001, 1]}, reference=lambda n, a, x, y: y + a * x, rtol=0, atol=0.01)
    tuned.forall(1003)(1003, 2.5, x, y)
    assert chosen(tuned).config == {"ADDED": 0.001}


def test_what_does_not_work_is_skipped_and_reported(device: str) -> None:
    x, y, expected = inputs(device)
    tuned = tuned_saxpy("skipped", [{"block": 2048}, {"block": 64, "WORK": "not C"}, {"block": 64}, {"block": 0}])
    tuned.forall(1003)(1003, 2.5, x, y)
    torch.testing.assert_close(y, expected)
    assert chosen(tuned).config == {"block": 64}
    reasons = [trial.reason for trial in chosen(tuned).trials]
    assert "1 to 1024" in reasons[0] and reasons[1].startswith("CompileError") and reasons[2] == ""
    table = str(chosen(tuned))
    assert "* block=64" in table and "rejected: CompileError" in table and table.count("\n") == 4


def test_all_fail(device: str) -> None:
    x, y, _ = inputs(device)
    before = y.clone()
    tuned = tuned_saxpy("fail", {"ADDED": [1, 2]}, reference=lambda n, a, x, y: y + a * x)
    with pytest.raises(rawkern.LaunchError, match=r"(?s)no configuration works.*ADDED=1: wrong y.*ADDED=2: wrong y"):
        tuned.forall(1003)(1003, 2.5, x, y)
    assert torch.equal(y, before) and not tuned.tunings


def test_wrong_arguments_are_errors_as_of_the_kernel(device: str) -> None:
    x, y, _ = inputs(device)
    tuned = tuned_saxpy("arguments")
    with pytest.raises(TypeError, match="saxpy: argument 3 'x' is float64"):
        tuned.forall(1003)(1003, 2.5, x.double(), y)
    with pytest.raises(TypeError, match="3 were given"):
        tuned.forall(1003)(1003, 2.5, x)
    with pytest.raises(rawkern.LaunchError, match="requires grad"):
        tuned.forall(1003)(1003, 2.5, x, y.requires_grad_())
    assert not tuned.tunings


def test_a_reference_that_returns_too_much(device: str) -> None:
    x, y, _ = inputs(device)
    before = y.clone()
    tuned = tuned_saxpy("too much", reference=lambda n, a, x, y: (x, y.add_(1)))
    with pytest.raises(ValueError, match="returned 2 tensors, the kernel writes y"):
        tuned.forall(1003)(1003, 2.5, x, y)
    assert torch.equal(y, before)


def test_a_reference_that_raises(device: str) -> None:
    """It is called once, and its error is no reason against a configuration."""
    x, y, _ = inputs(device)
    called = []

    def reference(*args: Any) -> None:
        called.append(1)
        raise ValueError("not today")

    with pytest.raises(ValueError, match=r"^not today$"):
        tuned_saxpy("raises", [{"block": 4096}, {"block": 64}, {"block": 32}], reference=reference).forall(1003)(
            1003, 2.5, x, y
        )
    assert called == [1]


def test_a_reference_that_writes_into_inputs(device: str) -> None:
    x, y, _ = inputs(device)
    before = y.clone()
    tuned = tuned_saxpy("inputs", {"block": [64, 32]}, reference=lambda n, a, x, y: x.mul_(a) + y)
    with pytest.raises(ValueError, match="the reference has written into x, which the kernel does not write"):
        tuned.forall(1003)(1003, 2.5, x, y)
    assert torch.equal(y, before) and not tuned.tunings


def test_a_reference_returns_the_empty_and_no_null(device: str) -> None:
    kernel = rawkern.RawKernel(r"""
    extern "C" __global__ void k(int n, float* x, int m, float* y) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) x[i] += 1;
        if (y && i < m) y[i] += 2;
    }""")
    tuned = rawkern.autotune(kernel, {"block": [32, 64]}, key=["y"],
                             reference=lambda n, x, m, y: (x + 1, None if y is None else y + 2))  # fmt: skip
    x = torch.zeros(100, device=device)
    for times, y in enumerate((torch.zeros(5, device=device), torch.zeros(0, device=device), None), start=1):
        tuned.forall(100)(100, x, 0 if y is None else len(y), y)
        assert torch.equal(x, torch.full_like(x, times)) and (y is None or y.tolist() == [2.0] * len(y))


# What a configuration is ----------------------------------------------------------------------------------------

TRANSPOSE = r"""
template <typename T, int TILE>
__global__ void transpose(const T* x, T* y, int rows, int columns) {
    extern __shared__ char memory[];
    T* tile = (T*)memory;
    int column = blockIdx.x * TILE + threadIdx.x;
    for (int r = threadIdx.y; r < TILE; r += ROWS) {
        int row = blockIdx.y * TILE + r;
        if (row < rows && column < columns) tile[r * (TILE + 1) + threadIdx.x] = x[row * columns + column];
    }
    __syncthreads();
    int row = blockIdx.y * TILE + threadIdx.x;
    for (int r = threadIdx.y; r < TILE; r += ROWS) {
        int c = blockIdx.x * TILE + r;
        if (row < rows && c < columns) y[c * rows + row] = tile[threadIdx.x * (TILE + 1) + r];
    }
}
"""


@pytest.mark.parametrize("form", ["brackets", "CuPy's"])
def test_template_arguments_macros_grid_and_shared_memory(device: str, form: str) -> None:
    x = torch.randn(70, 45, device=device)
    y = torch.full((45, 70), float("nan"), device=device)
    tuned = rawkern.autotune(
        rawkern.RawKernel(TRANSPOSE, "transpose<float, {TILE}>"),
        {"TILE": [8, 16, 32], "ROWS": [4, 8]},
        where=lambda c: c["ROWS"] < c["TILE"],
        reference=lambda x, y, rows, columns: x.T,
    )
    assert len(tuned.configs) == 5

    def grid(c: dict[str, Any]) -> tuple[int, int]:
        return -(-45 // c["TILE"]), -(-70 // c["TILE"])

    def block(c: dict[str, Any]) -> tuple[int, int]:
        return c["TILE"], c["ROWS"]

    def shared(c: dict[str, Any]) -> int:
        return 4 * c["TILE"] * (c["TILE"] + 1)

    for _ in range(4):
        if form == "brackets":
            tuned[grid, block, shared](x, y, 70, 45)
        else:
            tuned(grid, block=block, args=(x, y, 70, 45), shared_mem=shared)
        assert torch.equal(y, x.T)
        y.fill_(float("nan"))
    assert all(trial.seconds for trial in chosen(tuned).trials)
    assert chosen(tuned).kernel == "transpose<float, {TILE}>"
    assert tuned.kernel({"TILE": 16, "ROWS": 4}).signature.startswith("void transpose")


def test_block_and_shared_memory_in_the_configurations(device: str) -> None:
    x = torch.randn(64, 64, device=device)
    configs = [
        {"TILE": tile, "ROWS": 8, "block": [tile, 8], "grid": [64 // tile] * 2, "shared_mem": 4 * tile * (tile + 1)}
        for tile in (8, 32)
    ]
    tuned = rawkern.autotune(rawkern.RawKernel(TRANSPOSE, "transpose<int, {TILE}>"), configs)
    y = torch.zeros(64, 64, dtype=torch.int32, device=device)
    tuned[lambda c: c["grid"]](x.int(), y, 64, 64)
    assert torch.equal(y, x.int().T)
    assert tuned.configs[0]["block"] == (8, 8)
    other = rawkern.autotune(rawkern.RawKernel(SOURCE), {"block": [(32, 1), (64, 1)]})
    y = torch.zeros(100, device=device)
    for _ in range(3):
        other[4, 1](100, 1.0, torch.ones(100, device=device), y)  # a grid of two dimensions, and no block of 1
    assert y.tolist() == [3.0] * 100
    with pytest.raises(TypeError, match="block is in the configurations"):
        other(1, 128, (100, 1.0, y, y))
    with pytest.raises(TypeError, match="block is in the configurations"):
        other.forall(100, block=3)


def test_numbers_of_different_types_are_different(device: str) -> None:
    kernel = rawkern.RawKernel('extern "C" __global__ void half(float* y) { y[0] = SCALE / 2; }')
    tuned = rawkern.autotune(kernel, {"SCALE": [1, 1.0]}, reference=lambda y: torch.tensor([0.5]))
    y = torch.zeros(1, device=device)
    tuned[1, 1](y)
    assert y.item() == 0.5 and type(chosen(tuned).config["SCALE"]) is float
    with tuned.using({"SCALE": 1}):
        tuned[1, 1](y)
    assert y.item() == 0


def test_numpys_numbers(device: str) -> None:
    x, y, expected = inputs(device)
    tuned = tuned_saxpy("numpy", {"block": 2 ** np.arange(5, 7), "ADDED": np.zeros(1)}, key=lambda *args: np.int64(3))
    tuned.forall(1003)(1003, 2.5, x, y)
    torch.testing.assert_close(y, expected)
    assert [type(config["block"]) for config in tuned.configs] == [int, int] and chosen(tuned).key == (3,)


def test_configurations_that_are_given_out_are_copies(device: str) -> None:
    x, y, _ = inputs(device)
    tuned = tuned_saxpy("copies of configurations", {"block": [32, 64]})
    tuned.forall(1003)(1003, 2.5, x, y)
    chosen(tuned).config["block"] = tuned.configs[0]["block"] = 7
    assert {config["block"] for config in tuned.configs} == {32, 64} and chosen(tuned).config["block"] != 7


def test_variables_of_the_module(device: str) -> None:
    """Where a configuration is compiled apart, its variables would be others than those that the user has set."""
    module = rawkern.RawModule(r"""
    __constant__ float c[1];
    #ifdef OTHER
    #define ADDED OTHER
    #else
    #define ADDED 0
    #endif
    extern "C" __global__ void k(float* y) { y[0] = c[0] + ADDED; }""")
    module.get_global("c", device).fill_(5)
    y = torch.zeros(1, device=device)
    rawkern.autotune(module.k, {"block": [32, 64]})[1](y)
    assert y.item() == 5
    with pytest.raises(ValueError, match="get_global was asked for c, and a configuration with macros"):
        rawkern.autotune(module.k, {"OTHER": [0, 1]})[1, 1](y)


def test_options_are_the_compilers(device: str) -> None:
    x, y, expected = inputs(device)
    tuned = tuned_saxpy("options", [{"options": ["-DWORK=0", "-use_fast_math"]}, {"options": [f"-DWORK={SLOW}"]}])
    tuned.forall(1003)(1003, 2.5, x, y)
    torch.testing.assert_close(y, expected)
    assert chosen(tuned).config == {"options": ("-DWORK=0", "-use_fast_math")}


def test_settings_that_cannot_work() -> None:
    kernel = rawkern.RawKernel(SOURCE)
    for configs, error, match in (
        ([], ValueError, "no configurations"),
        ({"block": []}, ValueError, "empty"),
        ({"block": 32}, TypeError, "list of all its values"),
        ([32], TypeError, "a configuration is int"),
        ([{"block": 32}, {"WORK": 1}], ValueError, "some configurations have 'block'"),
        ([{"block": 32}, {"block": 32}], ValueError, "twice"),
        ([{"2": 32}], ValueError, "name of a macro"),
        ([{"block": 1.5}], TypeError, "int or a tuple of ints"),
        ([{"WORK": None}], TypeError, "number, a bool or a string"),
        ([{"options": "-G"}], TypeError, "tuple of strings"),
        (3, TypeError, "list of dicts"),
    ):
        with pytest.raises(error, match=match):
            rawkern.autotune(kernel, configs)
    good = {"block": [32, 64]}
    for options, match in (
        ({"key": "n"}, "list of parameter names"),
        ({"key": None}, "list of parameter names"),
        ({"where": 3}, "where is 3; pass a function"),
        ({"reference": 3}, "reference is 3; pass a function"),
        ({"atol": 0.1, "reference": print}, "go together"),
        ({"rtol": 0.1}, "go together"),
        ({"search_options": {"max_fevals": 3}}, "search= is not given"),
    ):
        with pytest.raises(TypeError, match=match):
            rawkern.autotune(kernel, good, **options)
    with pytest.raises(ValueError, match="rtol is -1 and atol 0; they are numbers, 0 or more"):
        rawkern.autotune(kernel, good, reference=print, rtol=-1, atol=0)
    with pytest.raises(TypeError, match="a RawKernel, got str"):
        rawkern.autotune(SOURCE, good)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="dict of lists"):
        rawkern.autotune(kernel, [{"block": 32}], search="genetic_algorithm")
    with pytest.raises(ValueError, match="left"):
        rawkern.autotune(kernel, good, where=lambda c: False)
    x = torch.ones(3)
    with pytest.raises(ValueError, match="'m' is no parameter of void saxpy"):
        rawkern.autotune(kernel, good, key=["m"]).forall(3)(3, 1.0, x, x.clone())
    with pytest.raises(TypeError, match="key of autotune has a Tensor"):
        rawkern.autotune(kernel, good, key=lambda n, a, x, y: x).forall(3)(3, 1.0, x, x.clone())
    for form in ((lambda c: 4, 128), ((4, 1), (32, 1))):
        with pytest.raises(TypeError, match=r"block is in the configurations; launch with tuned\[grid\]"):
            rawkern.autotune(kernel, good)[form]
    with pytest.raises(TypeError, match="shared_mem is in the configurations, which forall has not"):
        rawkern.autotune(kernel, {"shared_mem": [64, 128]}).forall(3)
    templated = rawkern.autotune(rawkern.RawKernel(TRANSPOSE, "transpose<float, {TILE}>"), {"TILE": [8, 16]})
    with pytest.raises(ValueError, match="the configuration has no TILE"), templated.using({"ROWS": 3}):
        pass
    for config, match in (({}, "has no TILE"), ({"options": "-G", "TILE": 8}, "tuple of strings"), (8, "is int 8")):
        with pytest.raises((TypeError, ValueError), match=match):
            templated.kernel(config)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"a launch is tuned\[grid, block\]"):
        rawkern.autotune(kernel, {"WORK": [0, 1]})[3]
    with pytest.raises(TypeError, match=r"tuned\(grid, block, \(arg, ...\)\); got tuned\(int, float, Tensor\)"):
        rawkern.autotune(kernel, {"WORK": [0, 1]})(3, 2.0, x)
    with pytest.raises(TypeError, match=r"\(arg, ...\)\); got tuned\(int, float, Tensor, Tensor\)"):
        rawkern.autotune(kernel, {"WORK": [0, 1]})(3, 2.0, x, x)


# Keys, disk, overriding -----------------------------------------------------------------------------------------


def test_another_key_is_measured_anew(device: str, timed: list[float]) -> None:
    tuned = tuned_saxpy("keys", {"block": [64, 128]}, key=(name for name in "nx"))
    for n, count in ((1003, 2), (1003, 2), (500, 4), (1003, 4)):
        x, y, expected = inputs(device, n)
        for _ in range(3):
            tuned.forall(n)(n, 2.5, x, y)
        torch.testing.assert_close(y, expected + 5 * x)
        assert len(timed) == count
    x, y, expected = inputs(device, 1003)
    tuned.forall(1003)(np.int64(1003), 2.5, x=x, y=y)
    tuned.forall(1003)(1003, 2.5, rawkern.from_torch(x), y)
    assert len(timed) == 4
    tuned.forall(1003)(1003, 2.5, torch.cat([x, x]), y)
    assert len(timed) == 6
    assert [tuning.key for tuning in tuned.tunings] == [
        (1003, "float32", [1003]),
        (500, "float32", [500]),
        (1003, "float32", [2006]),
    ]


def test_a_configuration_that_does_not_compile_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y, _ = inputs("cpu")
    tuned = tuned_saxpy("compiled once", {"ADDED": ["not C", 0, 1]})
    tuned.forall(1003)(n=1003, a=2.5, x=x, y=y)
    compiled: list[str] = []
    monkeypatch.setattr(programs, "compile_program", lambda source, *_: compiled.append(source.text))
    tuned.forall(1003)(n=1003, a=2.5, x=x, y=y)
    assert not compiled


def test_launches_of_all_kinds_become_fast(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors and parameters, at other places, and null pointers: none of them is looked at anew each time."""
    from rawkern.tuning.launches import TunedLauncher

    slow: list[int] = []
    usual = TunedLauncher._any
    monkeypatch.setattr(TunedLauncher, "_any", lambda self, *args: (slow.append(1), usual(self, *args)))
    kernel = rawkern.RawKernel(
        'extern "C" __global__ void k(const float* x, const float* w, float* y, int n) '
        "{ int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) y[i] = (x ? x[i] : 1) * (w ? w[i] : 2); }"
    )
    tuned = rawkern.autotune(kernel, {"block": [32, 64]}, key=["n"])
    x, w, y = (torch.rand(100, device=device) for _ in range(3))
    for left, right in ((x, w), (None, w), (torch.nn.Parameter(x), None), (None, torch.nn.Parameter(w))):
        for _ in range(6):
            tuned.forall(100)(left, right, y, 100)
        before = len(slow)
        for _ in range(4):
            tuned.forall(100)(left, right, y, 100)
        assert len(slow) == before
        torch.testing.assert_close(y, (1 if left is None else left) * (2 if right is None else right))


def test_a_function_as_key(device: str, timed: list[float]) -> None:
    tuned = tuned_saxpy("function", {"block": [64, 128]}, key=lambda n, a, x, y: (n.bit_length(), x.dtype))
    for n, count in ((1003, 2), (1000, 2), (513, 2), (500, 4)):
        x, y, expected = inputs(device, n)
        for _ in range(3):
            tuned.forall(n)(n, 2.5, x, y)
        torch.testing.assert_close(y, expected + 5 * x)
        assert len(timed) == count


def test_the_choice_is_found_on_disk(device: str, timed: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    x, y, expected = inputs(device)
    first = tuned_saxpy("disk", key=["n"])
    first.forall(1003)(1003, 2.5, x, y)
    measured = len(timed)
    again = tuned_saxpy("disk", key=["n"])
    again.forall(1003)(1003, 2.5, x, y)
    torch.testing.assert_close(y, expected + 2.5 * x)
    assert len(timed) == measured == 4
    assert again.tunings == first.tunings
    turned = tuned_saxpy("disk", [dict(reversed(config.items())) for config in first.configs], key=["n"])
    turned.forall(1003)(1003, 2.5, x, y)
    assert len(timed) == measured
    for other in (
        tuned_saxpy("disk", {"WORK": [SLOW, 0], "block": [64, 512]}, key=["n"]),
        tuned_saxpy("disk, edited", key=["n"]),
        tuned_saxpy("disk", key=["n"], reference=lambda n, a, x, y: y + a * x),
        tuned_saxpy("disk", key=["n"], retune=True),
        "another version of rawkern",
    ):
        if isinstance(other, str):
            monkeypatch.setattr(record, "__version__", other)
            other = tuned_saxpy("disk", key=["n"])
        other.forall(1003)(1003, 2.5, x, y)
        assert len(timed) == measured + 4
        measured = len(timed)


SCRIPT = """
import sys, torch, rawkern
from rawkern.tuning import record, timing
torch.set_num_threads(1)
count, usual = 0, timing.seconds
def seconds(*args, **kwargs):
    global count
    count += 1
    return usual(*args, **kwargs)
timing.seconds = seconds
device = sys.argv[1]
kernel = rawkern.RawKernel(open(sys.argv[2]).read())
tuned = rawkern.autotune(kernel, {"WORK": [3000, 0], "block": [64]}, key=["n"])
x, y = torch.ones(1003, device=device), torch.zeros(1003, device=device)
tuned.forall(1003)(1003, 2.5, x, y)
assert y.tolist() == [2.5] * 1003
print(count, tuned.tunings[0].config["WORK"])
"""


def test_processes_measure_once(device: str, tmp_path: Path) -> None:
    """Of two that start together one measures, and the other reads what that one has chosen."""
    (tmp_path / "kernel.cu").write_text(f"// {tmp_path}\n{SOURCE}")
    package = str(Path(rawkern.__file__).resolve().parent.parent)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH"))))}

    def start() -> Any:
        command = [sys.executable, "-c", SCRIPT, device, str(tmp_path / "kernel.cu")]
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)

    together = [start(), start()]
    found = [process.communicate(timeout=120)[0].split() for process in together]
    assert sorted(found) == [["0", "0"], ["2", "0"]]


def test_a_damaged_or_foreign_record_is_not_used(timed: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    from rawkern.base import cache

    x, y, _ = inputs("cpu")
    usual = cache.get_record
    for damaged in ({"config": {"block": 3}, "trials": []}, {"config": {"WORK": 0, "block": 64}}, [], None):

        def get_record(key: str, damaged: Any = damaged) -> Any:
            return (damaged, b"") if key.startswith("tuning-") else usual(key)

        monkeypatch.setattr(cache, "get_record", get_record)
        before = len(timed)
        tuned_saxpy("damaged").forall(1003)(1003, 2.5, x, y)
        assert len(timed) == before + 4


def test_using(device: str, timed: list[float]) -> None:
    x, y, expected = inputs(device)
    tuned = tuned_saxpy("using", {"ADDED": [0, 1], "block": [64]})
    seen = []
    with tuned.using({"ADDED": 7, "block": 32}):
        for _ in range(3):
            tuned.forall(1003)(1003, 2.5, x, y)
        thread = threading.Thread(target=lambda: seen.append(tuned.forall(1003)(1003, 0.0, x, torch.zeros_like(x))))
        thread.start()
        thread.join()
        assert seen and len(timed) == 2  # the other thread has its own choice
    torch.testing.assert_close(y, expected + 21 + 5 * x)
    with pytest.raises(ValueError, match="has no block"), tuned.using({"ADDED": 1}):
        pass


def test_the_environment(device: str, timed: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    x, y, _ = inputs(device)
    monkeypatch.setenv("RAWKERN_AUTOTUNE", "off")
    tuned = tuned_saxpy("environment")
    for _ in range(3):
        tuned.forall(1003)(1003, 2.5, x, y)
    assert not timed and not tuned.tunings
    monkeypatch.setenv("RAWKERN_AUTOTUNE", "retune")
    for _ in range(2):
        tuned = tuned_saxpy("environment")
        for _ in range(2):
            tuned.forall(1003)(1003, 2.5, x, y)
    assert len(timed) == 8
    monkeypatch.setenv("RAWKERN_AUTOTUNE", "off")  # takes what is on disk
    tuned = tuned_saxpy("environment")
    tuned.forall(1003)(1003, 2.5, x, y)
    assert len(timed) == 8 and chosen(tuned).config["WORK"] == 0
    monkeypatch.setenv("RAWKERN_AUTOTUNE", "no")
    with pytest.raises(ValueError, match="RAWKERN_AUTOTUNE is 'no'"):
        tuned_saxpy("environment", key=["n"]).forall(1003)(1003, 2.5, x, y)


@pytest.mark.parametrize("setting", ["off", "checked"])
def test_the_first_that_works_is_taken_unmeasured(
    timed: list[float], monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    x, y, expected = inputs("cpu")
    tuned = tuned_saxpy(f"first {setting}", [{"ADDED": "not C", "block": 64}, {"block": 4096}, {"block": 32}])
    if setting == "off":
        monkeypatch.setenv("RAWKERN_AUTOTUNE", "off")
    with rawkern.check() if setting == "checked" else contextlib.nullcontext():
        tuned.forall(1003)(1003, 2.5, x, y)
    torch.testing.assert_close(y, expected)
    assert not timed


def test_one_configuration_is_not_measured(device: str, timed: list[float]) -> None:
    x, y, expected = inputs(device)
    tuned_saxpy("one", [{"block": 64}]).forall(1003)(1003, 2.5, x, y)
    torch.testing.assert_close(y, expected)
    assert not timed
    wrong = tuned_saxpy("one", [{"ADDED": 1}], reference=lambda n, a, x, y: y + a * x)
    with pytest.raises(rawkern.LaunchError, match="no configuration works"):
        wrong.forall(1003)(1003, 2.5, x, y)
    torch.testing.assert_close(y, expected)


def test_nothing_to_launch(device: str, timed: list[float]) -> None:
    x, y, expected = inputs(device)
    tuned = tuned_saxpy("nothing", {"block": [2048, 64, 256], "WORK": [0, 1]})
    before = y.clone()
    tuned.forall(0)(0, 2.5, x, y)
    tuned.forall(lambda c: 0)(0, 2.5, x, y)
    assert torch.equal(y, before) and not timed
    tuned.forall(1003)(1003, 2.5, x, y)
    torch.testing.assert_close(y, expected)
    assert len(timed) == 4  # a block of 2048 is refused
    with pytest.raises(TypeError, match="argument 3 'x' is float64"):
        tuned.forall(0)(0, 2.5, x.double(), y)


def test_an_edited_file_is_tuned_anew(device: str, tmp_path: Path, timed: list[float]) -> None:
    path = tmp_path / "saxpy.cu"
    path.write_text(f"// edited {device}\n{SOURCE}")
    tuned = rawkern.autotune(rawkern.RawKernel(path=path), {"WORK": [SLOW, 0], "ADDED": [0, 1]},
                             reference=lambda n, a, x, y: y + a * x)  # fmt: skip
    launch = tuned.forall(1003)
    x, y, expected = inputs(device)
    for _ in range(4):
        launch(1003, 2.5, x, y)
    torch.testing.assert_close(y, expected + 7.5 * x)
    assert len(timed) == 2 and chosen(tuned).config == {"WORK": 0, "ADDED": 0}
    path.write_text(f"// edited {device}\n{SOURCE.replace('+ ADDED', '+ (1 - ADDED)')}")
    os.utime(path, ns=(1, 1))
    tuned._choices.changed.__self__.next_look = 0  # type: ignore[union-attr]  # the disk is looked at every 0.1 s
    y.copy_(expected - 2.5 * x)
    launch(1003, 2.5, x, y)
    torch.testing.assert_close(y, expected)
    assert len(timed) == 4 and chosen(tuned).config == {"WORK": 0, "ADDED": 1}


# Where nothing may be timed, and others at the same time --------------------------------------------------------


def test_checked_launches_are_not_timed(timed: list[float]) -> None:
    x, y, expected = inputs("cpu", 100)
    tuned = tuned_saxpy("checked", {"block": [64, 32], "WORK": [0, 1]})
    with rawkern.check():
        tuned.forall(100)(100, 2.5, x, y)
    torch.testing.assert_close(y, expected)
    assert not timed
    tuned.forall(100)(100, 2.5, x, y)
    with rawkern.check():
        tuned.forall(100)(100, 2.5, x, y)
        torch.testing.assert_close(y, expected + 5 * x)
        with pytest.raises(rawkern.OutOfBoundsError):
            tuned.forall(200)(200, 2.5, x, y)
    assert len(timed) == 4


def test_inside_an_operator(device: str, timed: list[float]) -> None:
    tuned = tuned_saxpy(f"operator {device}", {"block": [64, 32]}, key=["n"])

    @rawkern.op(f"rawkern_tests::tuned_{device}")
    def scaled(x: torch.Tensor, a: float) -> torch.Tensor:
        y = torch.zeros_like(x)
        tuned[lambda c: -(-x.numel() // c["block"])](x.numel(), a, x, y)
        return y

    x = torch.randn(1003, device=device)
    compiled = torch.compile(scaled, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x, 2.5), 2.5 * x)
    torch.testing.assert_close(compiled(x[:500].clone(), 2.5), 2.5 * x[:500])
    assert len(timed) == 4
    with torch._subclasses.FakeTensorMode() as mode:
        assert scaled(mode.from_tensor(x), 2.0).shape == (1003,)

    @rawkern.op(f"rawkern_tests::tuned_forall_{device}")
    def covered(x: torch.Tensor, a: float) -> torch.Tensor:
        y = torch.zeros_like(x)
        tuned.forall(x.numel())(x.numel(), a, x, y)
        return y

    compiled = torch.compile(covered, backend="aot_eager", fullgraph=True, dynamic=True)
    for n in (1003, 500):
        torch.testing.assert_close(compiled(x[:n].clone(), 2.5), 2.5 * x[:n])
    assert len(timed) == 4


def test_torch_compile_breaks_the_graph(device: str) -> None:
    tuned = tuned_saxpy("compile")

    @torch.compile(backend="eager")
    def run(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        y = y + 1
        tuned.forall(1003)(1003, 2.5, x, y)
        return y * 2

    x, y, expected = inputs(device)
    for _ in range(3):
        torch.testing.assert_close(run(x, y), (expected + 1) * 2)


def test_tracing_raises_as_for_a_kernel(timed: list[float]) -> None:
    tuned = tuned_saxpy("traced")
    x, y, _ = inputs("cpu")
    with torch._subclasses.FakeTensorMode() as mode, pytest.raises(rawkern.LaunchError, match=r"rawkern\.op"):
        tuned.forall(1003)(1003, 2.5, mode.from_tensor(x), mode.from_tensor(y))
    assert not timed


def test_threads_measure_once(device: str, timed: list[float]) -> None:
    tuned = tuned_saxpy("threads", key=["n"])
    ready, wrong = threading.Barrier(6), []

    def work() -> None:
        x, y, expected = inputs(device)
        if device == "cuda":
            torch.cuda.synchronize()
        ready.wait()
        for _ in range(5):
            tuned.forall(1003)(1003, 2.5, x, y)
        try:
            torch.testing.assert_close(y, expected + 10 * x)
        except AssertionError as error:
            wrong.append(error)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and len(timed) == 4


def test_a_reference_may_be_tuned_itself(device: str, timed: list[float]) -> None:
    inner = tuned_saxpy("inner", {"block": [64, 32]})

    def reference(n: int, a: float, x: torch.Tensor, y: torch.Tensor) -> None:
        inner.forall(n)(n, a, x, y)

    x, y, expected = inputs(device)
    tuned_saxpy("outer", {"block": [64, 32]}, reference=reference).forall(1003)(1003, 2.5, x, y)
    torch.testing.assert_close(y, expected)
    assert len(timed) == 4


def test_copies_and_pickles(device: str) -> None:
    x, y, expected = inputs(device)
    tuned = tuned_saxpy("copies", [{"block": 64}, {"block": 32}])
    assert copy.deepcopy(tuned) is tuned and copy.copy(tuned) is tuned
    pickle.loads(pickle.dumps(tuned)).forall(1003)(1003, 2.5, x, y)
    torch.testing.assert_close(y, expected)
    assert "2 configurations" in repr(tuned)


@pytest.mark.gpu
def test_capture(timed: list[float]) -> None:
    tuned = tuned_saxpy("capture", key=["n"])
    x, y, expected = inputs("cuda")
    with pytest.raises(rawkern.LaunchError, match="launch it once before the capture"):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            tuned.forall(1003)(1003, 2.5, x, y)
    assert not timed
    torch.cuda.synchronize()
    tuned.forall(1003)(1003, 2.5, x, y)
    torch.testing.assert_close(y, expected)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tuned.forall(1003)(1003, 2.5, x, y)
    torch.testing.assert_close(y, expected)
    graph.replay()
    torch.testing.assert_close(y, expected + 2.5 * x)
    assert len(timed) == 4


@pytest.mark.gpu
def test_streams(timed: list[float]) -> None:
    """Tuning and launch are in order on the stream that is current, and on one that is given."""
    tuned = tuned_saxpy("streams", {"WORK": [SLOW, 0]})
    n = 1 << 22
    for given in (False, True):
        stream = torch.cuda.Stream()
        x, y = torch.ones(n, device="cuda"), torch.zeros(n, device="cuda")
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            torch.cuda._sleep(20_000_000)
            y.fill_(1)
            if not given:
                tuned[n // 256, 256](n, 2.5, x, y)
            tuned_now = torch.cuda.current_stream()
        if given:
            tuned(n // 256, 256, (n, 2.5, x, y), stream=stream)
        assert tuned_now == stream
        stream.synchronize()
        assert torch.equal(y, torch.full_like(y, 3.5))
    with tuned.using({"ADDED": 1}):
        tuned(n // 256, 256, (n, 2.5, x, y), stream=stream)
    stream.synchronize()
    assert torch.equal(y, torch.full_like(y, 7.0))
    assert len(timed) == 2


@pytest.mark.gpu
def test_a_stream_for_arrays_that_are_no_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """The launch that follows a tuning is on the stream, too, and its arguments are recorded there."""
    cupy = pytest.importorskip("cupy")
    tuned = tuned_saxpy("stream of arrays", {"WORK": [SLOW, 0]})
    stream, n = torch.cuda.Stream(), 1 << 20
    seen: list[Any] = []
    usual = launcher.Launcher.make

    def make(self: Any, args: Any, kwargs: Any, stream: Any = None) -> None:
        seen.extend([] if stream is None else [stream])
        usual(self, args, kwargs, stream)

    monkeypatch.setattr(launcher.Launcher, "make", make)
    x, y = cupy.ones(n, dtype=np.float32), cupy.zeros(n, dtype=np.float32)
    cupy.cuda.get_current_stream().synchronize()
    for count in (1, 2):
        tuned(n // 256, 256, (n, 2.5, x, y), stream=stream)
        stream.synchronize()
        assert float(y.min()) == float(y.max()) == 2.5 * count
    assert seen == [stream, stream]


@pytest.mark.multigpu
def test_two_devices_of_one_model_share_a_choice(timed: list[float]) -> None:
    tuned = tuned_saxpy("two devices")
    for index in range(2):
        x, y, expected = inputs(f"cuda:{index}")
        for _ in range(3):
            tuned.forall(1003)(1003, 2.5, x, y)
        torch.testing.assert_close(y, expected + 5 * x)
    assert len(timed) == 4
