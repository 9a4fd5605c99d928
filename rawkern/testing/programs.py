"""Checks of an operator in programs: streams, graphs, other default devices, compilers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch.autograd.gradcheck import GradcheckError

from rawkern.base import torch_private as private
from rawkern.testing.guards import watched
from rawkern.testing.results import Outcome, Problem, same_bits
from rawkern.testing.trials import Target, Trial, call, examine, judge, placed, problem_of, results_of
from rawkern.testing.variations import legal, sizes

SLEEP = 300_000_000  # cycles, about 0.2 s: longer than a launch on another stream takes, even on a busy machine


def default_device(target: Target, trial: Trial, expected: Outcome) -> list[Problem]:
    """Call the operator with another default device: new tensors must be on the inputs' device."""
    other = "meta" if trial.device.type == "cuda" or not torch.cuda.is_available() else "cuda"
    problems = examine(target, trial, expected, around=lambda: torch.device(other), guarded=False)
    problems = [Problem(p.kind, f"with torch.set_default_device({other!r}): {p.text}") for p in problems]
    if not problems and trial.device.type == "cuda" and torch.cuda.device_count() > 1:
        second = replace(trial, device=torch.device("cuda", 1 - (trial.device.index or 0)))
        problems = [replace(p, text=f"on {second.device}: {p.text}") for p in examine(target, second, expected)]
    return problems


def repeated(target: Target, trial: Trial, expected: Outcome, times: int = 3) -> list[Problem]:
    """Call the operator several times: results and gradients have the same bits."""
    first: Outcome | None = None
    for _ in range(times):
        now = _called(target, trial)
        first = first or now
        for i, (a, b) in enumerate(zip(first.results, now.results, strict=True)):
            if not same_bits(a, b):
                return [Problem("values", f"output {i} of two calls with the same inputs differs")]
        for i, a in first.grads.items():
            b = now.grads[i]
            if a is not None and b is not None and not same_bits(a, b):
                name = trial.sample.names[i]
                return [Problem("values", f"the gradient of {name} of two calls with the same inputs differs")]
    return []


def differs(target: Target, trial: Trial) -> bool:
    """Whether a second call with the same inputs gives other values, by more than rounding."""
    trial = replace(trial, backward=False)
    with watched():  # new memory has the same fill value
        first, second = _called(target, trial), _called(target, trial)
    return bool(judge(replace(target, reference=None), trial, second, first))


def kept(target: Target, trial: Trial, expected: Outcome) -> list[Problem]:
    """Call the operator with other values: the previous call's results must not change."""
    other = replace(trial, sample=trial.sample.halved())
    first = _called(target, trial)
    before = [t.clone() for t in _all(first)]
    try:
        if legal(target, other) is None:
            return []
        _called(target, other)
    except Exception:  # it rejects those values
        return []
    if all(same_bits(t, was) for t, was in zip(_all(first), before, strict=True)):
        return []
    return [Problem("values", "a call with other values changes the results of the previous call: they share memory")]


def _called(target: Target, trial: Trial) -> Outcome:
    return call(target.op, trial.sample, [g.tensor for g in placed(trial)], trial.backward, trial.directions)


def _all(outcome: Outcome) -> list[torch.Tensor]:
    return [*outcome.results, *(g for g in outcome.grads.values() if g is not None)]


# CUDA -----------------------------------------------------------------------------------------------------------------


def _static(trial: Trial) -> list[torch.Tensor]:
    """Placeholders for inputs that are written later: NaN, and zeros for integers."""
    made = [torch.empty(t.shape, dtype=t.dtype, device=trial.device) for t in trial.sample.tensors]
    return [t.fill_(float("nan")) if t.is_floating_point() or t.is_complex() else t.zero_() for t in made]


def on_a_stream(target: Target, trial: Trial, expected: Outcome) -> list[Problem]:
    """Call the operator on a stream on which its inputs are written late; work on other streams reads NaN."""
    trial = replace(trial, backward=False)
    values = [t.to(trial.device) for t in trial.sample.tensors]
    late = _static(trial)
    stream = torch.cuda.Stream(trial.device)
    torch.cuda.synchronize(trial.device)
    with torch.cuda.stream(stream):
        private.sleep_on_gpu(SLEEP)
        for t, value in zip(late, values, strict=True):
            t.copy_(value)
        outcome = call(target.op, trial.sample, late, False)
        outcome = Outcome(tuple(r.clone() for r in outcome.results), {})
    stream.synchronize()
    torch.cuda.synchronize(trial.device)
    return judge(target, trial, outcome, expected)


def on_a_graph(target: Target, trial: Trial, expected: Outcome) -> list[Problem]:
    """Capture the operator in a CUDA graph, and replay it with inputs that were written later."""
    trial = replace(trial, backward=False)
    values = [t.to(trial.device) for t in trial.sample.tensors]
    static = [t.clone() for t in values]
    stream = torch.cuda.Stream(trial.device)
    stream.wait_stream(torch.cuda.current_stream(trial.device))
    with torch.cuda.stream(stream):
        for _ in range(2):
            call(target.op, trial.sample, static, False)
    torch.cuda.current_stream(trial.device).wait_stream(stream)
    torch.cuda.synchronize(trial.device)
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            outcome = call(target.op, trial.sample, static, False)
    except Exception:
        with torch.cuda.graph(
            torch.cuda.CUDAGraph()
        ):  # otherwise torch would treat its random numbers as captured from now on
            torch.ones(1, device=trial.device)
        raise
    for _ in range(2):
        for t, value in zip(static, values, strict=True):
            t.copy_(value)
        for r in outcome.results:
            if r.is_floating_point() and all(r is not t for t in static):
                r.fill_(float("nan"))
        graph.replay()
    torch.cuda.synchronize(trial.device)
    return judge(target, trial, outcome, expected)


# torch ----------------------------------------------------------------------------------------------------------------


def called(target: Target, trial: Trial) -> list[Any] | None:
    """The custom operators that a call runs; None if it launches kernels outside operators."""
    leaves = trial.sample.leaves if trial.backward else ()
    trial = replace(trial, sample=trial.sample.finite())  # opcheck treats NaN as a difference
    tensors = [t.clone().to(trial.device).requires_grad_(i in leaves) for i, t in enumerate(trial.sample.tensors)]
    try:
        return private.called_operators(lambda: _recorded(target.op, trial, tensors))
    except Exception:
        return None


def op_check(operators: list[Any]) -> list[Problem]:
    """Run torch.library.opcheck on operators with the arguments that they were called with."""
    problems = []
    for overload, args, kwargs in operators:
        if private.written_arguments(overload):
            args = private.detached(args)
        found = torch.library.opcheck(overload, args, kwargs, raise_exception=False)
        failed: dict[str, list[str]] = {}
        for name, result in found.items():
            if result != "SUCCESS":
                failed.setdefault(_line(result), []).append(name)
        problems += [Problem("values", f"{overload}: {', '.join(names)}: {text}") for text, names in failed.items()]
    return problems


def compiled(target: Target, trial: Trial, backend: str, fullgraph: bool, resize: bool) -> list[Problem]:
    """Compile a function that calls the operator, optionally with a second size, for symbolic sizes in graphs."""
    torch.compiler.reset()

    def function(*args: Any, **kwargs: Any) -> Any:
        return target.op(*args, **kwargs)

    try:
        made = torch.compile(function, fullgraph=fullgraph, backend=backend)
        other = next((other for other, _ in sizes(target, trial)), None) if resize else None
        for each in (trial,) if other is None else (trial, other):
            problems = examine(target, each, op=made, guarded=False)
            if problems:
                return problems
    finally:
        torch.compiler.reset()
    return []


def grad_check(target: Target, trial: Trial) -> list[Problem] | str:
    """Compare the gradients of a `small` trial with finite differences; a str says why that is not possible."""
    sample = trial.sample
    leaves = [t.to(trial.device).requires_grad_(i in sample.leaves) for i, t in enumerate(sample.tensors)]
    wanted = [t for t in leaves if t.requires_grad]
    if sum(t.numel() for t in wanted) > 2000:
        return "the smallest inputs that the reference accepts have over 2000 elements"

    def function(*some: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rest = iter(some)
        tensors = [next(rest) if t.requires_grad else t for t in leaves]
        outcome = _recorded(target.op, trial, tensors)
        return tuple(r for r in outcome if r.requires_grad)

    try:
        made = function(*wanted)
    except Exception as error:
        problem = problem_of(error)
        return f"float64 is rejected: {problem.text}" if problem.kind == "rejected" else [problem]
    coarse = [r.dtype for r in made if r.dtype not in (torch.float64, torch.complex128)]
    if coarse:
        return f"results are {str(coarse[0]).removeprefix('torch.')} for float64 inputs: too few digits"
    try:
        torch.autograd.gradcheck(function, wanted, atol=1e-6, rtol=1e-4)
    except Exception as error:
        return [Problem("values", _line(error)) if isinstance(error, GradcheckError) else problem_of(error)]
    return []


def _recorded(op: Callable[..., Any], trial: Trial, tensors: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    given = [t.clone() if i in trial.sample.written else t for i, t in enumerate(tensors)]
    args, kwargs = trial.sample.filled(given)
    return results_of(op(*args, **kwargs), trial.sample, given)


def _line(error: Any) -> str:
    """An error in one line of at most 300 characters."""
    text = " ".join(str(error).split())
    return text if len(text) <= 300 else text[:297] + "..."
