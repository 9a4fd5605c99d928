"""`check_kernel` names what is wrong with wrong operators, with small inputs, and is quiet about right ones."""

from __future__ import annotations

import importlib.util
import pickle
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import rawkern
from rawkern.testing import CHECKS, KernelCheckError, KernelReport, check_kernel
from rawkern.testing.results import compare

_spec = importlib.util.spec_from_file_location("planted_operators", Path(__file__).with_name("planted.py"))
planted = importlib.util.module_from_spec(_spec)
sys.modules["planted_operators"] = planted
_spec.loader.exec_module(planted)


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(3))


@pytest.mark.rawkern_unchecked("the operators are wrong on purpose")
@pytest.mark.parametrize("wrong", planted.PLANTED, ids=lambda p: getattr(p.op, "__name__", None) or p.op._name)
def test_planted(wrong, device: str) -> None:
    if wrong.gpu and device == "cpu":
        pytest.skip("the defect is one of streams, which are the GPU's")
    checks, says = wrong.on_a_gpu if device == "cuda" and wrong.on_a_gpu else (wrong.checks, wrong.says)
    options = {"skip": ("order",) if "compile" in wrong.checks else ("compile", "order"), **wrong.options}
    with pytest.raises(KernelCheckError) as caught:
        check_kernel(wrong.op, numbers(*wrong.shape), reference=wrong.reference, devices=[device], **options)
    error = caught.value
    found = {f.check for f in error.failures}
    if wrong.op is planted.on_the_default_device and device == "cuda":  # then the sample itself cannot work
        assert found == {"reference"}
        return
    if device == "cuda" and wrong.op is planted.breaks_when_compiled:
        found.discard("graph")  # it waits for the device, too
    assert found == set(checks), str(error)
    assert re.search(says, str(error), re.M), str(error)
    assert all(f.device.startswith(device) for f in error.failures)
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error) and again.failures == error.failures


silu = rawkern.elementwise("T x", "T y", "y = x / (1 + exp(-x))", "silu")
relu = rawkern.elementwise("T x", "T y", "y = x < 0 ? T(0) : x", "relu_of_nan")
axpy = rawkern.elementwise("T x, T y, T a", "T z", "z = a * x + y", "axpy")
norm = rawkern.reduction("T x", "T y", "x * x", "a + b", "y = sqrt(a)", "0", "norm")
modulo = rawkern.elementwise("T x, T y", "T z", "z = y == 0 ? x : x - x / y * y", "modulo_of_positive")


def vector_norm(x: torch.Tensor, axis: int) -> torch.Tensor:
    return torch.linalg.vector_norm(x, dim=axis)


INTS = torch.randint(0, 100, (5, 23), generator=torch.Generator().manual_seed(1))
SOME_NAN = torch.where(numbers(6, 11) > 1, torch.nan, numbers(6, 11).where(numbers(6, 11) > -1, -torch.inf))
CORRECT: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any]]] = {
    "plain": (planted.plain, (numbers(6, 11),), {"reference": planted.reference}),
    "plain, without a reference": (planted.plain, (numbers(6, 11),), {}),
    "in place": (planted.in_place, (numbers(6, 11),), {"reference": planted.reference, "mutates": ["x"]}),
    "in place, as the reference": (
        planted.in_place,
        (numbers(77),),
        {"reference": lambda x: x.mul_(2), "mutates": [0]},
    ),
    "op": (planted.squares, (numbers(6, 11),), {"reference": torch.square}),
    "op in place": (planted.twice_, (numbers(6, 11),), {"reference": planted.reference}),
    "elementwise": (silu, (numbers(6, 11),), {"reference": torch.nn.functional.silu}),
    "elementwise, broadcast": (axpy, (numbers(6, 11), numbers(11), 0.75), {"reference": lambda x, y, a: a * x + y}),
    "elementwise of ints": (
        modulo,
        (INTS, INTS.flip(0)),
        {"reference": lambda x, y: torch.where(y == 0, x, x % y.clamp(min=1))},
    ),
    "NaN among the values": (relu, (SOME_NAN,), {"reference": torch.relu}),
    "reduction": (norm, (numbers(6, 11),), {"reference": vector_norm, "kwargs": {"axis": 1}}),
    "torch": (torch.sin, (numbers(6, 11),), {"reference": torch.sin}),
}


def test_found_without_an_import_of_its_own() -> None:
    assert rawkern.testing.check_kernel is check_kernel


@pytest.mark.parametrize("name", CORRECT)
def test_correct(name: str, device: str) -> None:
    op, inputs, options = CORRECT[name]
    report = check_kernel(op, *inputs, devices=[device], deterministic=True, **options)
    done = {each.split(" (")[0] for each in report.passed}
    assert {"unwritten", "guard", "input", "dtype", "layout", "size", "empty", "default_device", "repeat"} <= done
    assert ("reference" in done) == ("reference" in options) or "reference" in report.left_out
    assert ({"stream", "graph", "devices"} if device == "cuda" else {"order"}) <= done
    raw = "plain" in name or name.startswith("in place")
    assert ("opcheck" in done) == (not raw and name != "torch") and "compile" in done
    assert ("gradcheck" in done) == (not raw and "ints" not in name)
    if not raw:
        assert not [each for each in report.rejected if not each.startswith("dtype")], report
    else:
        assert any("layout every other element" in each and "contiguous" in each for each in report.rejected), report


def test_what_is_asked_of_it() -> None:
    x = numbers(4)
    with pytest.raises(ValueError, match="skip names 'layouts'; the checks are reference, "):
        check_kernel(torch.sin, x, skip=["layouts"])
    with pytest.raises(TypeError, match="none of the sample inputs is a tensor"):
        check_kernel(torch.sin, 3.0)
    with pytest.raises(ValueError, match="mutates names 'y', which is not a tensor"):
        check_kernel(planted.in_place, x, mutates=["y"])
    with pytest.raises(ValueError, match="the reference rejects the sample inputs: RuntimeError: no"):
        check_kernel(torch.sin, x, reference=_raise)
    with pytest.raises(ValueError, match="not on meta"):
        check_kernel(torch.sin, x, devices=["meta"])
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="devices names cuda, but torch finds no GPU"):
            check_kernel(torch.sin, x, devices=["cuda"])


def _raise(*args: object) -> None:
    raise RuntimeError("no")


def test_declared_dtypes_must_be_taken_and_declared_gradients_be_there() -> None:
    skip = [c for c in CHECKS if c not in ("reference", "dtype", "gradient")]
    options: dict[str, Any] = {"reference": planted.reference, "skip": skip, "devices": ["cpu"]}
    report = check_kernel(planted.plain, numbers(8), dtypes=[torch.float64, torch.float16], **options)
    assert isinstance(report, KernelReport) and "dtype bfloat16 (cpu): TypeError" in "\n".join(report.rejected)
    assert "no result requires grad" in report.left_out["gradient, gradcheck (cpu)"]
    with pytest.raises(KernelCheckError, match=r"dtype: TypeError: twice: there is no kernel for torch\.bfloat16"):
        check_kernel(planted.plain, numbers(8), dtypes=[torch.bfloat16], **options)
    with pytest.raises(KernelCheckError, match="gradient: there is no gradient: no result requires grad"):
        check_kernel(planted.plain, numbers(8), differentiable=True, **options)


def test_a_reference_that_is_random_is_none() -> None:
    with pytest.raises(
        ValueError, match="two calls of the reference with the same inputs differ, so the operator cannot"
    ):
        check_kernel(planted.plain, numbers(8), reference=planted.random)


@pytest.mark.rawkern_unchecked("the operator is wrong on purpose")
def test_what_depends_on_the_order_of_warps_is_found() -> None:
    skip = [c for c in CHECKS if c not in ("reference", "size", "order")]
    with pytest.raises(KernelCheckError, match=r"order: output\[32\] is nan, .*, under rawkern\.order\(0\)") as caught:
        check_kernel(planted.forgotten_barrier, numbers(64), reference=planted.reference, skip=skip, devices=["cpu"])
    assert {f.check for f in caught.value.failures} == {"order"}


def test_errors_that_cancellation_leaves_are_small_beside_the_sample() -> None:
    """Equal weights make a gradient zero that is not zero in float32."""

    def normalized(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        x, w = x / 3 * 3, w / 3 * 3  # three roundings
        return (x - x.mean(1, keepdim=True)) * w

    def reference(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x - x.mean(1, keepdim=True)) * w

    skip = [c for c in CHECKS if c not in ("reference", "layout", "size", "gradient", "dtype")]
    check_kernel(normalized, numbers(9, 33), numbers(33), reference=reference, skip=skip, devices=["cpu"])


def test_no_derivative_at_the_samples_is_no_failure() -> None:
    skip = [c for c in CHECKS if c not in ("reference", "gradient", "gradcheck")]
    report = check_kernel(relu, torch.zeros(5), reference=lambda x: x.where(x >= 0, 0), skip=skip, devices=["cpu"])
    assert (
        "gradient (cpu)" in report.passed and "not differentiable at the samples" in report.left_out["gradcheck (cpu)"]
    )


def test_inputs_of_two_dtypes_are_as_good_as_the_coarser() -> None:
    def product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return x.float() @ w

    skip = [c for c in CHECKS if c not in ("reference", "gradient", "gradcheck", "dtype")]
    check_kernel(product, numbers(4, 5).half(), numbers(5, 6), reference=torch.matmul, skip=skip, devices=["cpu"])


def test_a_result_that_jumps_hides_no_other() -> None:
    exact, jumped = torch.tensor([1.0, 2.0, 3.0]).double(), torch.tensor([1.0, 2.0, 4.0])
    assert compare("output", jumped, exact, jumped, torch.float32, None) is None
    wrong = torch.tensor([1.0, 2.25, 4.0])
    problem = compare("output", wrong, exact, jumped, torch.float32, None)
    assert problem is not None and problem.text.startswith("output[1] is 2.25, it should be 2 (1 of 3")
    infinite = torch.tensor([1.0, 2.0, torch.inf]).double()
    assert compare("output", infinite.float(), infinite, None, torch.float32, None) is None
    assert compare("output", jumped, infinite, None, torch.float32, None) is not None


@pytest.mark.parametrize("shape", [(), (1,), (0,), (0, 3)], ids=str)
def test_samples_of_next_to_nothing(shape: tuple[int, ...]) -> None:
    report = check_kernel(planted.plain, numbers(*shape), reference=planted.reference, devices=["cpu"])
    assert "dtype (cpu)" in report.passed and "compile (cpu)" in report.passed


def test_inputs_of_formulas_are_called_by_name() -> None:
    skip = [c for c in CHECKS if c != "reference"]
    with pytest.raises(KernelCheckError, match=r"float32, contiguous: x 1, y 1\n"):
        check_kernel(axpy, numbers(8), numbers(8), 0.5, reference=lambda x, y, a: x, skip=skip, devices=["cpu"])


def test_tolerance() -> None:
    options: dict[str, Any] = {"reference": planted.reference, "skip": CHECKS[1:], "devices": ["cpu"]}
    check_kernel(lambda x: 2.0001 * x, numbers(50), tolerance=1e-3, **options)
    with pytest.raises(KernelCheckError, match=r"reference: output\[0\] is -?\d.*, it should be -?\d"):
        check_kernel(lambda x: 2.0001 * x, numbers(50), tolerance=1e-5, **options)


def test_integers_beside_floats_are_indices() -> None:
    seen = []

    def gather(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        seen.append(index.dtype)
        if index.dtype == torch.int32:
            raise TypeError("gather: index is int32; pass int64")
        return x[index]

    skip = [c for c in CHECKS if c not in ("reference", "dtype")]
    report = check_kernel(
        gather, numbers(8, 3), torch.tensor([7, 0, 7]), reference=lambda x, i: x[i], skip=skip, devices=["cpu"]
    )
    assert "dtype int32 indices (cpu): TypeError: gather: index is int32; pass int64" in report.rejected
    assert seen.count(torch.int32) == 1


def test_nothing_stays_behind() -> None:
    """Torch's functions and settings are as before, also after failures."""
    names = ("empty", "empty_like", "zeros", "full")
    before = [getattr(torch, n) for n in names], torch.Tensor.new_empty
    deterministic = torch.are_deterministic_algorithms_enabled(), torch.utils.deterministic.fill_uninitialized_memory
    with pytest.raises(KernelCheckError):
        check_kernel(planted.leaves_the_last, numbers(128), reference=planted.reference, devices=["cpu"])
    assert ([getattr(torch, n) for n in names], torch.Tensor.new_empty) == before
    assert "new_empty" not in vars(torch.Tensor)
    assert (
        torch.are_deterministic_algorithms_enabled(),
        torch.utils.deterministic.fill_uninitialized_memory,
    ) == deterministic
    with torch.device("meta"):
        assert torch.empty(3).is_meta and torch.zeros(3).is_meta
