"""What a user sees of an error: the own lines, and what rawkern says."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import rawkern
from rawkern.arguments import slow_path
from rawkern.base.api_boundary import api_boundary, hide

KERNEL = rawkern.RawKernel(r"""
extern "C" __global__ void copy(int n, const float* x, float* y) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i <= n) y[i] = x[i];
    if (n < 0) asm("trap;");
}""")
MODULE = rawkern.RawModule('extern "C" __global__ void k(float* x) { x[0] = 1; }')
BROKEN = rawkern.RawKernel("__global__ void k(float* x) { x[0] = yy; }")
silu = rawkern.elementwise("T x", "T y", "y = x / (1 + exp(-x))", "boundary_silu")
total = rawkern.reduction("T x", "T y", "x", "a + b", "y = a", "0", "boundary_total")
x, wrong = torch.ones(8), torch.ones(8, dtype=torch.float64)


@rawkern.op("boundary::copied")
def copied(x: torch.Tensor, fail: bool) -> torch.Tensor:
    y = torch.empty_like(x)
    if fail:
        raise KeyError("the user's own")
    KERNEL.forall(8)(7, x, y)
    return y


def _finding() -> None:
    with rawkern.check():
        KERNEL.forall(8)(8, x[:4], torch.ones(9))


def _tuned() -> None:
    rawkern.autotune(KERNEL, [{"block": 32}]).forall(8)(8, wrong, x)


def _frames(error: BaseException) -> list[str]:
    """The functions below the test's own line."""
    found = traceback.extract_tb(error.__traceback__)
    return [f"{Path(frame.filename).name}:{frame.name}" for frame in found][1:]


#: Of each call what is seen of it below its line: nothing, or the function itself.
CALLS: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "launch": (lambda: KERNEL[1, 8](8, wrong, x), []),
    "forall": (lambda: KERNEL.forall(8)(8, wrong, x), []),
    "missing": (lambda: KERNEL.forall(8)(8), []),
    "form of CuPy": (lambda: KERNEL((1,), (8,), (8, wrong, x)), []),
    "no form": (lambda: KERNEL(1, 2), []),
    "grid": (lambda: KERNEL[0, 8], ["kernel.py:__getitem__"]),
    "count": (lambda: KERNEL.forall(-1), ["kernel.py:forall"]),
    "trap": (lambda: KERNEL.forall(8)(-1, x, x), []),
    "finding": (_finding, []),
    "compiler": (lambda: BROKEN.forall(1)(x), []),
    "ptx": (lambda: BROKEN.ptx(), []),
    "signature": (lambda: BROKEN.signature, []),
    "settings": (lambda: rawkern.RawKernel("x", options="-D"), []),  # type: ignore[arg-type]
    "attribute": (lambda: MODULE.nope, []),
    "function": (lambda: MODULE.get_function("nope"), []),
    "variable": (lambda: MODULE.get_global("nope"), []),
    "constant": (lambda: MODULE.constant("nope"), []),
    "file": (lambda: rawkern.load("nope.cu"), []),
    "operator": (lambda: copied(wrong, False), ["test_api_boundary.py:copied"]),
    "elementwise": (lambda: silu("x"), ["elementwise.py:__call__"]),
    "elementwise's out": (lambda: silu(x, out=wrong), ["elementwise.py:__call__"]),
    "reduction's expression": (lambda: rawkern.reduction("T x", "T y", "x", "a", "", "0", "boundary_none"), []),
    "elementwise's text": (lambda: rawkern.elementwise("T x", "T y", "", "boundary_none"), []),
    "built-in": (lambda: rawkern.softmax(torch.ones(3, dtype=torch.int32), 0), ["softmax.py:softmax"]),
    "built-in, dtype": (lambda: rawkern.softmax(torch.ones(3), 0, torch.int32), ["softmax.py:softmax"]),
    "built-in of several inputs": (lambda: rawkern.layer_norm(x, (7,)), []),
    "built-in, native": (lambda: rawkern.square(x.to_sparse()), ["elementwise.py:square"]),
    "name of operator": (lambda: rawkern.op("none")(copied), []),
    "from torch": (lambda: rawkern.from_torch(None), []),  # type: ignore[arg-type]
    "to torch": (lambda: rawkern.to_torch(None), []),
    "limit": (lambda: rawkern.set_limit("none", 1), []),
    "tuning": (lambda: rawkern.autotune(KERNEL, []), []),
    "tuned": (_tuned, ["launches.py:__call__"]),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.rawkern_unchecked("of the usual builds' own way")
def test_frames_of_public_calls(name: str) -> None:
    call, seen = CALLS[name]
    with pytest.raises(Exception) as caught:
        call()
    assert _frames(caught.value)[1:] == seen  # below the call's own line
    assert caught.value.__cause__ is None and (caught.value.__suppress_context__ or caught.value.__context__ is None)


def test_native_launches_that_fail(device: str) -> None:
    """From the third launch on they are native, and what they reject takes the slow path."""
    launch = KERNEL.forall(8)
    for _ in range(4):
        launch(7, x.to(device), torch.empty(8, device=device))
    with pytest.raises(TypeError) as caught:
        launch(7, wrong.to(device), torch.empty(8, device=device))
    assert _frames(caught.value) == []


def test_all_frames_can_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAWKERN_FULL_TRACEBACK", "1")
    with pytest.raises(TypeError) as caught:
        KERNEL.forall(8)(8, wrong, x)
    assert len(_frames(caught.value)) > 5 and "slow_path.py:bind" in _frames(caught.value)
    monkeypatch.setenv("RAWKERN_FULL_TRACEBACK", "0")
    with pytest.raises(TypeError) as caught:
        KERNEL.forall(8)(8, wrong, x)
    assert _frames(caught.value) == []


def _lookup(*_: Any) -> None:
    {}["a defect"]


def _assertion(*_: Any) -> None:
    raise AssertionError


@pytest.mark.parametrize("defect", [_lookup, _assertion])
@pytest.mark.rawkern_unchecked("looks at a way that checked launches do not take")
def test_a_defect_keeps_its_frames(defect: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "__name__", "rawkern.test")  # its functions are taken for rawkern's own
    monkeypatch.setattr(slow_path, "bind", defect)
    with pytest.raises((KeyError, AssertionError)) as caught:
        KERNEL.forall(8)(8, wrong, x)
    assert _frames(caught.value)[-1] == f"test_api_boundary.py:{defect.__name__}" and len(_frames(caught.value)) > 4


def test_errors_of_the_users_functions_stay_as_they_are() -> None:
    with pytest.raises(KeyError, match="the user's own") as caught:
        copied(x, True)
    assert _frames(caught.value)[-1] == "test_api_boundary.py:copied"
    with pytest.raises(ZeroDivisionError) as caught:
        rawkern.autotune(KERNEL, {"block": [32]}, where=lambda config: 1 // 0)
    assert _frames(caught.value)[-1] == "test_api_boundary.py:<lambda>"


def _theirs() -> None:
    raise KeyError("theirs")


def _ours(cause: bool) -> None:
    """Stands for a function of rawkern's that calls one of the user's."""
    try:
        _user()
    except KeyError as error:
        if cause:
            raise rawkern.LaunchError("ours") from error
        raise rawkern.LaunchError("ours")  # noqa: B904


_user = _theirs


@pytest.mark.parametrize("cause", [False, True])
def test_the_users_exception_is_told_as_the_cause(cause: bool) -> None:
    with pytest.raises(rawkern.LaunchError) as caught:
        api_boundary(_ours)(cause)
    told = "".join(traceback.format_exception(caught.value))
    assert "KeyError: 'theirs'" in told and "in _theirs" in told


def test_what_the_user_was_handling_is_told() -> None:
    try:
        _theirs()
    except KeyError:
        with pytest.raises(TypeError) as caught:
            KERNEL.forall(8)(8, wrong, x)
    assert "KeyError: 'theirs'" in "".join(traceback.format_exception(caught.value))


def test_what_rawkern_was_handling_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "__name__", "rawkern.test")
    with pytest.raises(rawkern.LaunchError) as caught:
        api_boundary(_ours)(False)
    assert "theirs" not in "".join(traceback.format_exception(caught.value))


def test_hide_keeps_the_error() -> None:
    error = rawkern.LaunchError("text")
    hide(error)
    assert str(error) == "text" and error.__traceback__ is None and error.__cause__ is None


def test_a_wrapped_function_is_the_same_to_look_at() -> None:
    assert next(iter(inspect.signature(rawkern.load).parameters)) == "path"
    assert rawkern.RawKernel.ptx.__doc__ and rawkern.RawKernel.ptx.__name__ == "ptx"
    assert rawkern.RawKernel.ptx.__code__ is not rawkern.RawKernel.cubin.__code__
