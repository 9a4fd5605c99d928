"""One call of an operator on inputs in guarded memory, and its problems."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from rawkern.base.nested import tensors_in
from rawkern.errors import CheckError, CompileError, LaunchError, NotDifferentiable, RawkernError
from rawkern.testing.guards import Guarded, place, watched
from rawkern.testing.results import TOLERANCE, Outcome, Problem, compare, same_bits
from rawkern.testing.samples import Sample, spread

REJECTIONS = (TypeError, ValueError, OverflowError, NotImplementedError, RawkernError)
NO_REJECTIONS = (CheckError, CompileError, LaunchError)


@dataclass(frozen=True)
class Target:
    """The function under test."""

    op: Callable[..., Any]
    reference: Callable[..., Any] | None  # computes the same in torch; results are compared with it in float64
    name: str
    tolerance: float | None  # instead of the dtypes' tolerances


@dataclass(frozen=True)
class Trial:
    """One way to call it."""

    title: str  # what it varies: "float16", "transposed", "257 instead of 256"
    sample: Sample
    device: torch.device
    layout: str = "contiguous"
    backward: bool = False  # whether gradients are also checked
    gradients: str | None = None  # the memory layout of the results' gradients; None: that of the inputs
    only: int | None = None  # the only result that gets a gradient; None: all
    like: Outcome | None = None  # the sample's outcome, for the magnitude of results and gradients

    def described(self) -> str:
        """Device, dtype, layout and shapes as text, and the title if it adds something."""
        dtype = str(self.sample.main).removeprefix("torch.")
        title = "" if self.title in ("the sample", dtype, self.layout) else f" ({self.title})"
        return f"on {self.device}, {dtype}, {self.layout}: {self.sample.shapes()}{title}"

    def directions(self, results: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
        """The gradients of results."""
        made = directions(self.gradients or self.layout)(results)
        return [g if self.only in (None, i) else None for i, g in enumerate(made)]


def problem_of(error: BaseException) -> Problem:
    """An exception as a problem."""
    rejected = isinstance(error, REJECTIONS) and not isinstance(error, NO_REJECTIONS)
    lines = str(error).strip().splitlines()
    text = f"{type(error).__name__}: {lines[0] if lines else ''}"
    if isinstance(error, CheckError):  # a launch that accesses memory out of bounds
        return Problem("guard", text, placed=True)
    return Problem("rejected" if rejected else "raises", text)


# Calls ----------------------------------------------------------------------------------------------------------------


def placed(trial: Trial) -> list[Guarded]:
    """The sample's tensors in guarded memory of the device."""
    found = []
    for i, t in enumerate(trial.sample.tensors):
        layout = "contiguous" if i in trial.sample.written and trial.layout == "expanded" else trial.layout
        found.append(place(trial.sample.names[i], t, spread(layout, t.shape, i == 0), trial.device))
    return found


def call(
    op: Callable[..., Any],
    sample: Sample,
    tensors: Sequence[torch.Tensor],
    backward: bool,
    directions: Callable[[Sequence[torch.Tensor]], list[torch.Tensor | None]] | None = None,
    around: Callable[[], Any] = contextlib.nullcontext,
) -> Outcome:
    """Call an operator, and its backward, on tensors of a sample."""
    leaves = {i: tensors[i].detach().requires_grad_() for i in sorted(sample.leaves)} if backward else {}
    given = [leaves.get(i, t) for i, t in enumerate(tensors)]
    given = [t.clone() if i in leaves and i in sample.written else t for i, t in enumerate(given)]
    with around():
        args, kwargs = sample.filled(given)
        results = results_of(op(*args, **kwargs), sample, given)
    if not backward:
        return Outcome(results, {})
    assert directions is not None
    pairs = [(r, g) for r, g in zip(results, directions(results), strict=True) if r.requires_grad and g is not None]
    if not pairs:
        return Outcome(tuple(r.detach() for r in results), {})
    wanted, grads = zip(*pairs, strict=True)
    with around():
        found = torch.autograd.grad(wanted, list(leaves.values()), grads, allow_unused=True)
    return Outcome(tuple(r.detach() for r in results), dict(zip(leaves, found, strict=True)))


def results_of(returned: Any, sample: Sample, given: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """The returned tensors except the written ones, then the written ones."""
    written = [given[i] for i in sorted(sample.written)]
    return (*(t for t in tensors_in(returned) if not any(_same(t, w) for w in written)), *written)


def _same(t: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors are the same elements; compiled functions return new objects for their arguments."""
    if t is other or t.numel() == 0:
        return t is other
    return (t.data_ptr(), t.shape, t.stride()) == (other.data_ptr(), other.shape, other.stride()) or same_bits(t, other)


def directions(layout: str) -> Callable[[Sequence[torch.Tensor]], list[torch.Tensor | None]]:
    """Make gradients for results: multiples of 1/8, exact in every dtype, with the memory layout of the inputs."""

    def make(results: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
        generator, made = torch.Generator().manual_seed(7), []
        for r in results:
            values = torch.randint(-16, 17, r.shape, generator=generator) / 8
            if layout == "expanded":  # like the gradient of a sum
                made.append(torch.ones((), dtype=r.dtype, device=r.device).expand(r.shape))
                continue
            g = values.to(r.dtype).to(r.device)
            made.append(g.mT.contiguous().mT if layout == "transposed" and g.dim() > 1 else g)
        return made

    return make


def exact(target: Target, trial: Trial, dtype: torch.dtype = torch.float64) -> Outcome:
    """The expected outcome: from the reference on the CPU in float64, or from the operator itself without one."""
    sample = trial.sample
    wide = [_widened(t, dtype) if target.reference is not None else t.clone() for t in sample.tensors]
    if target.reference is None:
        return call(target.op, sample, wide, trial.backward, trial.directions)

    def reference(*args: Any, **kwargs: Any) -> Any:
        return target.reference(*args, **kwargs)  # type: ignore[misc]

    probe = [t.clone() for t in wide]
    if sample.written:
        args, kwargs = sample.filled(probe)
        with torch.no_grad():
            reference(*args, **kwargs)
    if not any(probe[i]._version for i in sample.written):  # it returns the values that the operator writes
        sample = replace(sample, written=frozenset())
    return call(reference, sample, wide, trial.backward, trial.directions)


def _widened(t: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if t.is_complex():
        return t.to(torch.complex128 if dtype == torch.float64 else torch.complex64, copy=True)
    return t.to(dtype, copy=True) if t.is_floating_point() else t.clone()


# Problems --------------------------------------------------------------------------------------------------------


def examine(
    target: Target,
    trial: Trial,
    expected: Outcome | None = None,
    op: Callable[..., Any] | None = None,
    around: Callable[[], Any] = contextlib.nullcontext,
    guarded: bool = True,
) -> list[Problem]:
    """Call the operator once and return the problems: values, gradients, guards, unwritten elements."""
    if expected is None:
        expected = exact(target, trial)
    inputs = placed(trial)
    damaged: list[tuple[str, str]] = []
    try:
        with watched(inputs) if guarded else contextlib.nullcontext(damaged) as damaged:
            tensors = [g.tensor for g in inputs]
            outcome = call(op or target.op, trial.sample, tensors, trial.backward, trial.directions, around)
            if trial.device.type == "cuda":
                torch.cuda.synchronize(trial.device)
    except Exception as error:
        return [problem_of(error)]
    problems = [p for g in inputs if (p := _damage(g, trial.sample)) is not None]
    problems += [Problem(*each) for each in damaged]
    return problems + judge(target, trial, outcome, expected)


def _damage(g: Guarded, sample: Sample) -> Problem | None:
    damage = g.damage(sample.names.index(g.name) in sample.written)
    return Problem(*damage) if damage is not None else None


def judge(target: Target, trial: Trial, outcome: Outcome, expected: Outcome) -> list[Problem]:
    """Compare a call's outcome with the expected one."""
    if len(outcome.results) != len(expected.results):
        text = f"the operator returns {_tensors(outcome.results)}, the reference {_tensors(expected.results)}"
        return [Problem("values", text)]
    rough = _rough(target, trial)
    coarse = _coarsest(trial.sample.tensors)
    problems = []
    for i, (got, wanted) in enumerate(zip(outcome.results, expected.results, strict=True)):
        if got.device != trial.device:
            problems.append(Problem("values", f"output {i} is on {got.device}, the inputs are on {trial.device}"))
            continue
        name = "output" if len(outcome.results) == 1 else f"output {i}"
        near = rough.results[i] if rough is not None else None
        like = trial.like.results[i] if trial.like is not None and i < len(trial.like.results) else None
        problems.append(compare(name, got, wanted, near, coarse, target.tolerance, like=like))
    coarse = _coarsest((*trial.sample.tensors, *outcome.results))
    for i, got in outcome.grads.items():
        wanted = expected.grads.get(i)
        if not expected.grads:
            break  # the reference is not differentiable
        t = trial.sample.tensors[i]
        wanted = torch.zeros(t.shape, dtype=torch.float64, device="cpu") if wanted is None else wanted
        got = torch.zeros(t.shape, dtype=t.dtype, device=trial.device) if got is None else got
        near = rough.grads.get(i) if rough is not None else None
        name = f"the gradient of {trial.sample.names[i]}"
        like = trial.like.grads.get(i) if trial.like is not None else None
        problems.append(compare(name, got, wanted, near, coarse, target.tolerance, 4.0, like))
    return [p for p in problems if p is not None]


def _coarsest(tensors: Sequence[torch.Tensor]) -> torch.dtype | None:
    return max((t.dtype for t in tensors if t.dtype in TOLERANCE), key=lambda d: TOLERANCE[d], default=None)


def _tensors(results: Sequence[torch.Tensor]) -> str:
    return "no tensor" if not results else "1 tensor" if len(results) == 1 else f"{len(results)} tensors"


def _rough(target: Target, trial: Trial) -> Outcome | None:
    """The reference in float32, whose error shows how well-conditioned the result is."""
    if target.reference is None:
        return None
    try:
        return exact(target, trial, torch.float32)
    except Exception:  # a reference that works only in float64
        return None


def not_differentiable(error: BaseException) -> bool:
    """Whether an exception says that there is no derivative."""
    return isinstance(error, (NotImplementedError, NotDifferentiable)) or "no autograd formula" in str(error)
