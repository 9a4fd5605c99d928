"""What remains after tuning, and configurations that are wrong or impossible."""

from __future__ import annotations

import ctypes
import gc
import weakref
from typing import Any

import numpy as np
import pytest
import torch

import rawkern
from rawkern.tuning import timing
from rawkern.tuning.session import Session
from tests.tuning.kit import SLOW, SOURCE, chosen, inputs, tuned_saxpy


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
    """Memory that reaches the kernel by other ways: an array that is not a tensor, a list, a table of addresses."""
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
    with pytest.raises(rawkern.LaunchError, match="not contiguous, and tuning restores"):
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
    """It is called once, and its error does not reject a configuration."""
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
