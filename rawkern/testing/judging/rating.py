"""Rates a candidate: compares the answers of its process with the reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from rawkern.arguments.memory import dtype_name
from rawkern.testing import trials
from rawkern.testing.guards import unwritten
from rawkern.testing.judging.plan import FIRST, Step
from rawkern.testing.judging.task import Task
from rawkern.testing.judging.verdict import FAILED, NOT_RUN, PASSED, Check, Verdict
from rawkern.testing.results import Outcome, same_bits
from rawkern.testing.variations import legal


@dataclass(frozen=True)
class Answer:
    """The results of a step."""

    step: Step
    said: Mapping[str, Any]
    results: Sequence[torch.Tensor]

    @property
    def error(self) -> Mapping[str, Any] | None:
        return self.said.get("error")

    def notes(self, kind: str) -> list[str]:
        return [text for each, text in self.said["notes"] if each == kind]


def rate(verdict: Verdict, task: Task, kernel: bool, answers: Sequence[Answer]) -> None:
    """Fill in the checks that depend on values; the candidate's process has ended by now."""
    by_title = {answer.step.title: answer for answer in answers}
    first = by_title[FIRST]
    if first.error is not None and not _called(verdict, first.error, kernel):
        return
    verdict.settle("compiles", None)
    verdict.settle("signature", None)
    verdict.launches = dict(first.said["launches"])
    for answer in answers:
        if answer.step.check == "special" and legal(task.target, task.trial(answer.step.sample)) is None:
            continue  # a matrix of zeros has no inverse
        _errors(verdict, answer)
        if answer.error is None and answer.step.check in ("right", "sizes", "special"):
            verdict.settle(answer.step.check, _wrong(task, answer))
    _oddities(verdict, task, answers)
    if first.error is not None:
        return
    _deterministic(verdict, first, by_title.get("once more"))
    _ordered(verdict, task, first, [answer for answer in answers if answer.step.check == "order"])
    _output(verdict, first, by_title.get("zeros in new memory"))
    _cached(verdict, first, by_title.get("seed 1"), task)
    if not kernel:
        _launches(verdict, first, by_title.get("no kernels"))
    late = by_title.get("late inputs")
    if late is not None and verdict.checks["right"].state == PASSED and late.error is None:
        problem = None if _same(first, late) is None else _wrong(task, late)
        if problem is not None:
            verdict.accuse("other stream", f"with inputs written late on the current stream, {problem}")


def _called(verdict: Verdict, error: Mapping[str, Any], kernel: bool) -> bool:
    """Record errors that prevented the first call; returns whether it ran.

    A kernel's arguments are checked before it runs; a function may raise such errors anywhere.
    """
    if error["kind"] == "compile":
        verdict.settle("compiles", error["text"])
    elif error["kind"] == "unfit" or (kernel and error["kind"] == "rejected"):
        verdict.settle("compiles", None)
        verdict.settle("signature", error["text"])
    else:
        return True
    return False


def _errors(verdict: Verdict, answer: Answer) -> None:
    """Record the error of a call, and the findings of its checks."""
    error, check = answer.error, answer.step.check
    if check == "findings" and (error is None or error["kind"] != "check"):
        verdict.settle("findings", None if error is None else f"the checked call: {error['text']}")
    if error is None:
        return
    if error["kind"] == "check":
        known = {(f["error"], f["file"], f["line"]) for f in verdict.findings}
        verdict.findings += [f for f in error["findings"] if (f["error"], f["file"], f["line"]) not in known]
        verdict.settle("findings", error["text"])
    if error["kind"] in ("memory", "late"):
        verdict.settle("runs", f"{answer.step.title}: {error['text']}")
    if check in ("right", "sizes", "special", "deterministic", "order", "output"):
        verdict.settle(check, f"{answer.step.title}: {error['text']}")


def _wrong(task: Task, answer: Answer) -> str | None:
    """What is wrong with the values of a call; None if they are right."""
    sample = answer.step.sample
    got = Outcome(tuple(answer.results), {})
    trial = task.trial(sample)
    expected = task.exact(sample)
    problems = trials.judge(task.target, trial, got, expected)
    if problems and answer.step.check == "special" and (native := task.native(sample)) is not None:
        # Intermediate values may overflow the dtype, as they do in the reference in that dtype.
        other = tuple(map(_as_native, expected.results, native[0].results))
        if not trials.judge(task.target, trial, got, replace(expected, results=other)):
            problems = []
    if not problems:
        return None
    return f"{answer.step.title}: {problems[0].text}" if answer.step.title != FIRST else problems[0].text


def _as_native(exact: torch.Tensor, native: torch.Tensor) -> torch.Tensor:
    """The exact values, except where only one of it and the native dtype has infinities or NaN."""
    if not exact.is_floating_point() or exact.shape != native.shape:
        return exact
    native = native.detach().cpu().to(exact.dtype)
    return torch.where(exact.isfinite() & native.isfinite(), exact, native)


def _same(one: Answer, other: Answer) -> int | None:
    """The first result in which two calls differ; None if they agree."""
    pairs = list(zip(one.results, other.results, strict=False))
    different = [i for i, (a, b) in enumerate(pairs) if not same_bits(a, b)]
    return different[0] if different else len(pairs) if len(one.results) != len(other.results) else None


def _deterministic(verdict: Verdict, first: Answer, other: Answer | None) -> None:
    """Compare two calls with the same inputs."""
    if other is not None and other.error is None and first.results:
        which = _same(first, other)
        text = None if which is None else f"output {which} of two calls with the same inputs differs"
        verdict.settle("deterministic", text)


def _ordered(verdict: Verdict, task: Task, first: Answer, answers: Sequence[Answer]) -> None:
    """Check that values are also right in other orders; sums may be rounded differently."""
    if verdict.checks["right"].state == PASSED:
        for answer in answers:
            if answer.error is None:
                verdict.settle("order", None if _same(first, answer) is None else _wrong(task, answer))


def _output(verdict: Verdict, first: Answer, zeros: Answer | None) -> None:
    """Check that the output is fully written, and does not depend on the memory's old contents."""
    for i, t in enumerate(first.results):
        left = unwritten(t) | t.isnan() if t.is_floating_point() or t.is_complex() else unwritten(t)
        if zeros is not None and zeros.error is None and i < len(zeros.results) and zeros.results[i].shape == t.shape:
            left &= zeros.results[i] == 0  # otherwise it is computed from the old contents
        if t.dtype != torch.bool and bool(left.any()):
            verdict.settle("output", f"{int(left.sum())} of {t.numel()} elements of output {i} are never written")
    if zeros is None or zeros.error is not None or not first.results or verdict.checks["output"].state == FAILED:
        return
    if verdict.checks["deterministic"].state == FAILED:
        verdict.leave_out("output", "it is not deterministic")
        return
    which = _same(first, zeros)
    verdict.settle("output", None if which is None else f"output {which} depends on uninitialized memory")


def _cached(verdict: Verdict, first: Answer, other: Answer | None, task: Task) -> None:
    if other is None or other.error is not None or _same(first, other) is not None or not other.results:
        return
    if verdict.checks["right"].state == FAILED and _wrong(task, first) is None and _wrong(task, other) is not None:
        verdict.accuse("cached output")


def _launches(verdict: Verdict, first: Answer, without: Answer | None) -> None:
    """Check that the results come from kernels; cached results cannot show it."""
    if all(t.numel() == 0 for t in first.results) or any(each.kind == "cached output" for each in verdict.tampering):
        return
    if not verdict.launches:
        verdict.accuse("no launch")
    elif without is not None and without.error is None and _same(first, without) is None:
        verdict.accuse("unused launches")


def _oddities(verdict: Verdict, task: Task, answers: Sequence[Answer]) -> None:
    """Evaluate the anomalies of the calls."""
    for answer in answers:
        for kind, named in (("input", "changed input"), ("lazy", "lazy result"), ("device", "wrong device")):
            for text in answer.notes(kind):
                verdict.accuse(named, text)
        for text in answer.notes("guard"):
            verdict.settle("findings", text)
    first = answers[0]
    native = task.native(first.step.sample)
    if native is None or first.error is not None:
        return
    outcome, aliases = native
    for text in answers[0].notes("alias") if not aliases else ():
        n, i = map(int, text.split())
        verdict.accuse("returned input", f"output {n} is memory of the input {first.step.sample.names[i]}")
    for i, (got, wanted) in enumerate(zip(first.results, outcome.results, strict=False)):
        if got.dtype != wanted.dtype and not task.outputs:
            text = f"output {i} is {dtype_name(got.dtype)}, the reference returns {dtype_name(wanted.dtype)}"
            verdict.accuse("wrong dtype", text)


def conclude(verdict: Verdict, skip: Sequence[str]) -> None:
    """Fill in the last check, and the reasons for checks that were not run."""
    for name in skip:
        verdict.checks[name] = Check(NOT_RUN, "skipped by request")
    names = ", ".join(dict.fromkeys(f"{each.kind}: {each.text}" for each in verdict.tampering))
    if "honest" in skip:
        verdict.tampering.clear()
    elif verdict.tampering:
        verdict.settle("honest", names)
    elif verdict.checks["right"].state != NOT_RUN:
        verdict.settle("honest", None)
    reason = verdict.failed
    for name in verdict.checks:
        verdict.leave_out(name, f"{reason[0]} failed" if reason else "there is nothing to vary")
