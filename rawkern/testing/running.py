"""Runs the checks of `check_kernel` device by device, and adds failures to its report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from rawkern.arguments.memory import dtype_name
from rawkern.errors import CheckError, LaunchError
from rawkern.launch.modes import order
from rawkern.testing import programs
from rawkern.testing.guards import watched
from rawkern.testing.reporting import Failure, KernelReport
from rawkern.testing.results import Outcome, Problem, compare
from rawkern.testing.samples import INDICES, Sample
from rawkern.testing.trials import (
    Target,
    Trial,
    call,
    directions,
    exact,
    examine,
    not_differentiable,
    placed,
    problem_of,
)
from rawkern.testing.variations import GRADIENTS, layouts, legal, resized, shrunk, sizes, small

ORDERS = (0, 1, 2)  # seeds of `rawkern.order`: reverse order, and two random ones
_OWN = ("unwritten", "guard", "input")  # kinds of problems that have their own checks
# After these, other calls would fail in the same way, or damage this process's memory.
_SPOILING = {"values", "unwritten", "raises", "rejected", "guard"}


@dataclass
class Run:
    """Runs the checks of `check_kernel` device by device, and adds failures to the report."""

    target: Target
    report: KernelReport
    wanted: Sequence[torch.dtype]  # dtypes that must be supported
    differentiable: bool | None
    deterministic: bool
    backend: str
    skip: frozenset[str]
    step: Callable[[], Any] = lambda: None  # called for each trial
    known: set[str] = field(default_factory=set)  # kinds of problems that the sample has
    broken: set[str] = field(default_factory=set)  # checks that have failed, and the dtypes

    def device(self, trial: Trial) -> None:
        """Run all checks on the device of a trial."""
        self.known, self.broken = set(), set()
        self.plain(trial)
        if self.known & _SPOILING:
            self.leave_out("all other checks", trial, "the sample itself fails")
            return
        trial, differentiable = self.gradient(trial)
        trial = replace(trial, like=legal(self.target, trial))
        self.dtypes(trial)
        self.vary("layout", ((t, None) for t in layouts(trial)), trial, must=GRADIENTS)
        self.vary("size", sizes(self.target, trial), trial)
        self.empty(trial)
        if any(f.kind == "guard" and f.device == str(trial.device) for f in self.report.failures):
            self.leave_out("all other checks", trial, "the operator accesses memory out of bounds")
            return
        self.once("default_device", trial, lambda t, e: programs.default_device(self.target, t, e))
        self.once("repeat", trial, self.repeat)
        self.gradcheck(differentiable)
        self.torch(trial)
        if trial.device.type == "cuda":
            self.once("stream", trial, lambda t, e: programs.on_a_stream(self.target, t, e))
            self.once("graph", trial, lambda t, e: programs.on_a_graph(self.target, t, e))
            self.once("devices", trial, self.devices)
        else:
            self.once("order", trial, self.orders)
        if not torch.cuda.is_available():
            self.report.left_out["stream, graph, devices"] = "torch finds no GPU"

    # --- checks ------------------------------------------------------------------------------------------------

    def plain(self, trial: Trial) -> None:
        """The unchanged sample: values, and guards around them."""
        try:
            expected = exact(self.target, trial)
        except Exception as error:  # without a reference the operator itself raises
            problems = [problem_of(error)]
        else:
            problems = examine(self.target, trial, expected)
        self.known = {p.kind for p in problems}
        for check in ("reference", *_OWN):
            if self.skips(check, trial):
                continue
            mine = [p for p in problems if (p.kind if p.kind in _OWN else "reference") == check]
            if mine:
                kinds = _alike(mine[0])
                again = lambda t, e, kinds=kinds: _first(examine(self.target, t, e), kinds)  # noqa: E731
                if mine[0].kind == "values" and programs.differs(self.target, trial):
                    text = "two calls with the same inputs also differ: pass random numbers, or their seed, as an input"
                    mine[0], again = replace(mine[0], text=f"{mine[0].text}; {text}"), None
                self.fail(check, trial, mine[0], again)
            elif not self.known & {"raises", "rejected"}:
                self.passed(check, trial)

    def gradient(self, trial: Trial) -> tuple[Trial, Trial]:
        """Find the differentiable inputs, and check their gradients.

        Returns the trial that other checks vary, without gradients if they are wrong; and the one with them, if any.
        """
        if self.differentiable is False or "gradient" in self.skip:
            self.leave_out("gradient, gradcheck", trial, "skipped by request")
            return trial, trial
        found, why = _differentiable(self.target, trial)
        if isinstance(why, Problem) or (self.differentiable and found is None):
            problem = why if isinstance(why, Problem) else Problem("raises", f"there is no gradient: {why}")
            self.fail("gradient", trial, problem, None)
            return trial, trial
        if found is None:
            self.leave_out("gradient, gradcheck", trial, why)
            return trial, trial
        self.report.rejected += [each for each in why.splitlines() if each not in self.report.rejected]
        before = len(self.report.failures)
        self.once("gradient", found, self.gradients)
        return (found if len(self.report.failures) == before else trial), found

    def gradients(self, trial: Trial, expected: Outcome) -> list[Problem]:
        """Check the gradients with all results used, and with each result alone."""
        problems = examine(self.target, trial, expected)
        for i in range(len(expected.results) if len(expected.results) > 1 else 0):
            if not problems:
                found = examine(self.target, replace(trial, only=i))
                problems = [Problem(p.kind, f"{p.text}, if only output {i} is used") for p in found]
        return problems

    def repeat(self, trial: Trial, expected: Outcome) -> list[Problem]:
        """Check that several calls do not interfere, and give the same bits if required."""
        problems = programs.kept(self.target, trial, expected)
        if not problems and self.deterministic:
            problems = programs.repeated(self.target, trial, expected)
        return problems

    def orders(self, trial: Trial, expected: Outcome) -> list[Problem]:
        """Run blocks and warps in other orders: correct results do not depend on the order."""
        for seed in ORDERS:
            problems = examine(self.target, trial, expected, around=partial(order, seed))
            if problems:
                return [replace(p, text=f"{p.text}, under rawkern.order({seed})") for p in problems]
        return []

    def dtypes(self, trial: Trial) -> None:
        """Check other dtypes of the sample: each must be rejected or give right results."""
        others = dict.fromkeys((*trial.sample.dtypes(), *self.wanted))
        trials = [
            replace(trial, sample=trial.sample.as_dtype(d), title=dtype_name(d))
            for d in others
            if d != trial.sample.main
        ]
        for d in INDICES:
            if (sample := trial.sample.with_indices(d)) is not None:
                trials.append(replace(trial, sample=sample, title=f"{str(d).removeprefix('torch.')} indices"))
        must = {dtype_name(d) for d in self.wanted}
        self.vary("dtype", ((t, None) for t in trials), trial, must=must)

    def empty(self, trial: Trial) -> None:
        """Check dimensions of size 0: results must be right for all inputs that the reference accepts."""
        found = [resized(self.target, trial, old, 0) for old in trial.sample.sizes()]
        self.vary("empty", (f for f in found if f is not None), trial, must=None)

    def gradcheck(self, trial: Trial) -> None:
        """Compare gradients with finite differences."""
        if not trial.backward or "gradcheck" in self.skip or "float64" in self.broken:
            return
        trial = replace(trial, sample=trial.sample.as_dtype(torch.float64).finite())
        trial = small(self.target, trial)
        found = programs.grad_check(self.target, trial)
        if isinstance(found, str):
            self.leave_out("gradcheck", trial, found)
        elif found and self.kinks(trial):
            self.leave_out("gradcheck", trial, "the reference fails it: it is not differentiable at the samples")
        elif found:
            self.fail("gradcheck", trial, found[0], None)
        else:
            self.passed("gradcheck", trial)

    def kinks(self, trial: Trial) -> bool:
        """Whether the reference's own gradients differ from finite differences."""
        if self.target.reference is None:
            return False
        reference = replace(self.target, op=self.target.reference)
        found = programs.grad_check(reference, replace(trial, device=torch.device("cpu")))
        return not isinstance(found, str) and any(p.kind == "values" for p in found)

    def torch(self, trial: Trial) -> None:
        """Run torch's own tools on the operator."""
        operators = programs.called(self.target, trial)
        if not operators:
            self.leave_out(
                "opcheck", trial, "it is not a torch operator: it launches kernels itself or only calls torch"
            )
        elif "opcheck" not in self.skip:
            problems = programs.op_check(operators)
            if problems:
                self.fail("opcheck", trial, problems[0], None, [p.text for p in problems[1:]])
            else:
                self.passed("opcheck", trial)
        full = operators is not None
        if not full:
            self.leave_out("compile as one graph", trial, "launches outside operators break graphs")
        backend, resize = self.backend, "size" not in self.broken
        self.once("compile", trial, lambda t, e: programs.compiled(self.target, t, backend, full, resize), False)

    def devices(self, trial: Trial, expected: Outcome) -> list[Problem]:
        """Compare results on the CPU and the GPU: dtype, strides and values."""
        found = []
        for device in (torch.device("cpu"), trial.device):
            each = replace(trial, device=device)
            tensors = [g.tensor for g in placed(each)]
            found.append(call(self.target.op, each.sample, tensors, each.backward, each.directions))
        problems = []
        for i, (cpu, gpu) in enumerate(zip(found[0].results, found[1].results, strict=True)):
            if (cpu.dtype, cpu.stride()) != (gpu.dtype, gpu.stride()):
                text = f"output {i} is {cpu.dtype} with strides {cpu.stride()} on the CPU, "
                problems.append(Problem("values", text + f"{gpu.dtype} with strides {gpu.stride()} on {trial.device}"))
                continue
            wide = cpu.double() if cpu.is_floating_point() else cpu
            name = f"output {i} on {trial.device}, compared with the CPU's,"
            problems.append(compare(name, gpu, wide, None, each.sample.main, self.target.tolerance, 2.0))
        return [p for p in problems if p is not None]

    # --- running checks -----------------------------------------------------------------------------------------------

    def vary(
        self,
        check: str,
        trials: Iterable[tuple[Trial, Outcome | None]],
        like: Trial,
        must: Iterable[str] | None = (),
    ) -> None:
        """Run several trials of one check. Rejections are recorded, except of inputs that `must` work (None: all)."""
        if self.skips(check, like):
            return
        failed: list[tuple[Trial, Problem]] = []
        count = 0
        for trial, expected in trials:
            self.step()
            if expected is None and (expected := legal(self.target, trial)) is None:
                continue
            count += 1
            problem = _first(examine(self.target, trial, expected), None, self.known)
            if problem is None:
                continue
            if problem.kind == "rejected" and must is not None and trial.title not in must:
                self.report.rejected.append(f"{check} {trial.title} ({trial.device}): {problem.text}")
            else:
                failed.append((trial, problem))
        if failed:
            self.broken |= {check, *(t.title for t, _ in failed)}
            trial, problem = failed[0]
            kinds = _alike(problem)
            again = lambda t, e: _first(examine(self.target, t, e), kinds)  # noqa: E731
            self.fail(check, trial, problem, again, [t.title for t, _ in failed[1:]])
        elif count:
            self.passed(check, like)
        else:
            self.leave_out(check, like, "the reference accepts no other inputs")

    def once(
        self, check: str, trial: Trial, run: Callable[[Trial, Outcome], list[Problem]], shrinks: bool = True
    ) -> None:
        """Run one check of one trial."""
        if self.skips(check, trial):
            return
        self.step()

        def guarded(t: Trial, e: Outcome) -> Problem | None:
            try:
                problems = run(t, e)
            except Exception as error:
                problems = [problem_of(error)]
            return _first(problems, None, self.known)

        problem = guarded(trial, exact(self.target, trial))
        if problem is None:
            self.passed(check, trial)
        else:
            self.fail(check, trial, problem, guarded if shrinks else None)

    def fail(
        self,
        check: str,
        trial: Trial,
        problem: Problem,
        again: Callable[[Trial, Outcome], Problem | None] | None,
        also: Sequence[str] = (),
    ) -> None:
        """Record a failure, with the smallest inputs that show it."""
        if again is not None:
            trial, found = shrunk(self.target, trial, again)
            problem = found or problem
        text = problem.text
        if problem.kind in _OWN and not problem.placed:
            text += _checked(self.target, replace(trial, device=torch.device("cpu")))
        self.report.failures.append(
            Failure(check, problem.kind, str(trial.device), trial.described(), text, tuple(also))
        )

    def skips(self, check: str, trial: Trial) -> bool:
        """Whether the user skips a check; if so it is recorded."""
        if check in self.skip:
            self.leave_out(check, trial, "skipped by request")
        return check in self.skip

    def passed(self, check: str, trial: Trial) -> None:
        self.report.passed.append(f"{check} ({trial.device})")

    def leave_out(self, check: str, trial: Trial, why: str) -> None:
        self.report.left_out[f"{check} ({trial.device})"] = why


def _first(problems: Sequence[Problem], kinds: set[str] | None, known: Iterable[str] = ()) -> Problem | None:
    """The first problem of the given kinds (None: all), except known kinds."""
    return next((p for p in problems if (kinds is None or p.kind in kinds) and p.kind not in known), None)


def _alike(problem: Problem) -> set[str]:
    """The kinds that a problem may have with smaller inputs: an unwritten element may show as a wrong value, too."""
    return {"values", "unwritten"} if problem.kind == "values" else {problem.kind}


def _checked(target: Target, trial: Trial) -> str:
    """The finding of a checked launch for the same call on the CPU."""
    from rawkern.checked.launches import check

    try:
        with check():
            call(target.op, trial.sample, [g.tensor for g in placed(trial)], False)
    except CheckError as error:
        return f"; checked, {error.reports[0].message}"
    except Exception:
        return ""
    return ""


def _differentiable(target: Target, trial: Trial) -> tuple[Trial | None, Any]:
    """The trial with the leaves that have gradients, and the errors of others; None and the reason if none has."""

    def attempt(leaves: Iterable[int]) -> tuple[bool, BaseException | None]:
        sample: Sample = replace(trial.sample, leaves=frozenset(leaves))
        try:
            tensors = [g.tensor for g in placed(trial)]
            with watched():
                return bool(call(target.op, sample, tensors, True, directions("contiguous")).grads), None
        except Exception as error:
            return False, error

    every = sorted(trial.sample.leaves)
    if not every:
        return None, "no floating-point inputs"
    recorded, error = attempt(every)
    if error is None:
        return (replace(trial, backward=True), "") if recorded else (None, "no result requires grad")
    alone = {i: attempt([i]) for i in every} if len(every) > 1 else {}
    able = frozenset(i for i, (recorded, _) in alone.items() if recorded)
    if not able:
        if not_differentiable(error) or isinstance(error, LaunchError):
            return None, f"not differentiable: {problem_of(error).text}"
        return None, problem_of(error)
    said = "\n".join(
        f"gradient of {trial.sample.names[i]}: {problem_of(e).text}" for i, (_, e) in alone.items() if e is not None
    )
    return replace(trial, sample=replace(trial.sample, leaves=able), backward=True), said
