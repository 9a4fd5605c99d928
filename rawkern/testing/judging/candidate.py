"""The part of `judge` in the candidate's process: it loads the source, calls it, and reports what happened.

Its reports are as untrusted as the candidate; the judge, which has the reference, compares the results.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from rawkern.base import torch_private as private
from rawkern.base.nested import tensors_in
from rawkern.base.timing import gpu_seconds, nothing
from rawkern.checked.launches import check
from rawkern.errors import CheckError, CompileError, LaunchTimeoutError
from rawkern.kernel import RawKernel
from rawkern.launch import intercept, native
from rawkern.launch.limits import time_limit
from rawkern.launch.modes import order
from rawkern.testing.guards import Guarded, filled_allocations, place
from rawkern.testing.judging import integrity, wire
from rawkern.testing.judging.loading import Unfit, fits, load
from rawkern.testing.programs import SLEEP
from rawkern.testing.samples import Sample, spread
from rawkern.testing.trials import problem_of, results_of

_LONGEST_TEXT = 8000
_PART, _SOON = (
    0.8,
    0.1,
)  # share of the remaining time after which a launch on the CPU is aborted, so that it can report where it is
_threads = 1
_before: integrity.Snapshot = {}


def prepare(threads: int) -> None:
    """In the process that candidates are forked from: record the original state."""
    global _threads, _before
    _threads, _before = threads, integrity.snapshot()


@dataclass
class Session:
    """A loaded candidate, and the memory of its last call."""

    device: torch.device
    run: Callable[..., Any]
    kernel: RawKernel | None  # for a CUDA C source, which the judge launches itself
    last: list[Guarded] = field(default_factory=list)
    timed: Callable[[], Any] = nothing


def serve(judge: socket.socket, limits: dict[str, Any]) -> None:
    """Answer the judge's requests until it closes the socket."""
    torch.set_num_threads(_threads)
    session: Session | None = None
    answers = {"call": _call, "time": _time, "end": _end}
    with contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            request, tensors = wire.receive(judge, limits["memory"])
            results: Sequence[torch.Tensor] = ()
            try:
                if session is None:
                    device = torch.device(limits["device"])
                    run, said = load(request, tensors, device)
                    session = Session(device, run, run if isinstance(run, RawKernel) else None)
                else:
                    said, results = answers[request["do"]](session, request, tensors)
            except Exception as error:
                said, results = {"error": described(error)}, ()
            wire.send(judge, {**said, "number": request["number"]}, results)


def described(error: BaseException) -> dict[str, Any]:
    """An exception as data."""
    kinds: tuple[tuple[str, Any], ...] = (
        ("compile", (CompileError, SyntaxError)),
        ("check", CheckError),
        ("late", LaunchTimeoutError),
        ("unfit", Unfit),
        ("rejected", (TypeError, ValueError, OverflowError)),
        ("memory", (MemoryError, torch.OutOfMemoryError)),
    )
    kind = next((name for name, types in kinds if isinstance(error, types)), "raises")
    if "allocate memory" in str(error) or "bad_alloc" in str(error):
        kind = "memory"
    text = str(error) if kind in ("compile", "unfit", "late") else problem_of(error).text
    reports = getattr(error, "reports", ())
    findings = [{"error": r.error.__name__, "message": r.message, "file": r.file, "line": r.line} for r in reports]
    return {"kind": kind, "text": text[:_LONGEST_TEXT], "findings": findings}


# Calls ------------------------------------------------------------------------------------------------------------


def _call(
    session: Session, request: dict[str, Any], tensors: Sequence[torch.Tensor]
) -> tuple[dict[str, Any], Sequence[torch.Tensor]]:
    """Call the candidate once; returns its launches, anomalies and results."""
    inputs = session.last = _placed(session, request, tensors)
    given = [g.tensor for g in inputs]
    args = wire.decoded(request["args"], given)
    outputs, mutated = request["outputs"], request["mutates"]
    for i in outputs:
        _poison(inputs[i], request["fill"])
    launches: dict[str, int] = {}
    results: tuple[torch.Tensor, ...] = ()
    notes: list[tuple[str, str]] = []
    error = None
    try:
        with contextlib.ExitStack() as around:
            around.enter_context(torch.no_grad())
            around.enter_context(check(level=request["level"]))
            around.enter_context(time_limit(max(_SOON, _PART * request["left"])))
            if request["order"] is not None:
                around.enter_context(order(request["order"]))
            if session.kernel is None:
                around.enter_context(_Zeros() if request["fill"] == "zero" else filled_allocations())
            around.enter_context(intercept.intercepted(_counting(launches, request["launch"])))
            returned = _run(session, request, args, given)
            if session.device.type == "cuda":
                torch.cuda.synchronize(session.device)
        results, notes = _results(session, returned, given, outputs, mutated)
    except Exception as failure:
        error = described(failure)
    notes += [d for i, g in enumerate(inputs) if (d := g.damage(i in outputs or i in mutated)) is not None]
    said = {"launches": launches, "notes": [[kind, str(text)[:_LONGEST_TEXT]] for kind, text in notes]}
    return {**said, "error": error}, results


def _run(session: Session, request: dict[str, Any], args: Sequence[Any], given: Sequence[torch.Tensor]) -> Any:
    """Call the candidate on inputs in guarded memory; for late inputs, on a stream that writes them late."""
    call = _callable(session, request, args)
    if not request["late"]:
        return call()
    late = [t for i, t in enumerate(given) if i not in request["outputs"]]
    values = [t.clone() for t in late]
    for t in late:
        t.fill_(float("nan")) if t.is_floating_point() or t.is_complex() else t.zero_()
    stream = torch.cuda.Stream(session.device)
    torch.cuda.synchronize(session.device)
    with torch.cuda.stream(stream):
        private.sleep_on_gpu(SLEEP)
        for t, value in zip(late, values, strict=True):
            t.copy_(value)
        returned = call()
        # These copies must not contain values that another stream writes later.
        kept = [t.clone() for t in tensors_in(returned)] if session.kernel is None else None
        written = {i: given[i].clone() for i in (*request["outputs"], *request["mutates"])}
    stream.synchronize()
    for i, copy in written.items():
        given[i].copy_(copy)
    return kept


def _callable(session: Session, request: dict[str, Any], args: Sequence[Any]) -> Callable[[], Any]:
    kernel, how = session.kernel, request["how"]
    if kernel is None:
        fits(session.run, args)
        return lambda: session.run(*args)
    if how["forall"] is not None:
        launcher = kernel.forall(how["forall"], block=how["block"])
    else:
        block = how["block"]
        grid, block = (tuple(each) if isinstance(each, list) else each for each in (how["grid"], block))
        launcher = kernel[grid, block, how["shared_mem"]]
    return lambda: launcher(*args)


def _placed(session: Session, request: dict[str, Any], tensors: Sequence[torch.Tensor]) -> list[Guarded]:
    """The inputs in guarded memory; in the last call's memory if requested and possible."""
    last = session.last if request["again"] else []
    shapes = [(g.tensor.shape, g.tensor.dtype) for g in last]
    if shapes != [(t.shape, t.dtype) for t in tensors]:
        last = []
    found = []
    for i, t in enumerate(tensors):
        if last:
            last[i].tensor.copy_(t)
            found.append(replace(last[i], before=last[i].buffer.clone()))
        else:
            found.append(place(request["names"][i], t, spread("contiguous", t.shape, False), session.device))
    return found


def _poison(g: Guarded, fill: str) -> None:
    """Fill an output before a launch: with the value for unwritten elements, or with zeros."""
    t = g.tensor
    if fill == "zero":
        t.zero_()
    elif t.dtype == torch.bool:
        t.fill_(True)
    elif t.is_floating_point() or t.is_complex():
        t.view(-1).view(torch.uint8).fill_(0xFF)
    else:
        t.fill_(torch.iinfo(t.dtype).max)


def _counting(launches: dict[str, int], proceed: bool) -> intercept.Hook:
    def hook(launch: intercept.Launch) -> None:
        if proceed:
            launch.proceed()
        name = str(launch.launcher.plan.kernel.name)  # by now a source's only kernel has a name
        launches[name] = launches.get(name, 0) + 1

    return hook


class _Zeros(TorchFunctionMode):
    """Fill torch's uninitialized memory with zeros."""

    _MADE = frozenset(
        (torch.empty, torch.empty_like, torch.empty_strided, torch.Tensor.new_empty, torch.Tensor.new_empty_strided)
    )

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        return made.zero_() if func in self._MADE else made


def _results(
    session: Session, returned: Any, given: Sequence[torch.Tensor], outputs: Sequence[int], mutated: Sequence[int]
) -> tuple[tuple[torch.Tensor, ...], list[tuple[str, str]]]:
    """The results of a call as tensors, and their anomalies."""
    if session.kernel is not None:
        return tuple(given[i].clone() for i in (*outputs, *mutated)), []
    notes = []
    leaves = [returned] if not isinstance(returned, (list, tuple, dict)) else tensors_in(returned)
    for each in leaves:
        if isinstance(each, torch.Tensor) and type(each) in private.PLAIN and each.layout == torch.strided:
            continue
        if each is not None:
            notes.append(
                ("lazy", f"returns a {type(each).__module__}.{type(each).__qualname__}, which is not a plain tensor")
            )
    if notes:
        return (), notes
    written = Sample((), {}, (), (), frozenset(mutated), frozenset(), None)
    found = results_of(returned, written, given)
    storages = {t.untyped_storage().data_ptr(): i for i, t in enumerate(given) if t.numel() and i not in mutated}
    for n, t in enumerate(found):
        if t.device.type != "meta" and t.numel() and (i := storages.get(t.untyped_storage().data_ptr())) is not None:
            notes.append(("alias", f"{n} {i}"))
        if t.device != given[0].device:
            notes.append(("device", f"output {n} is on {t.device}, the inputs are on {given[0].device}"))
    return tuple(t.detach().clone() for t in found if t.device.type != "meta"), notes


# Timing and shutdown ------------------------------------------------------------------------------------------------


def _time(
    session: Session, request: dict[str, Any], tensors: Sequence[torch.Tensor]
) -> tuple[dict[str, Any], Sequence[torch.Tensor]]:
    """Call the candidate many times while the judge measures; returns the GPU's times if requested."""
    if tensors:
        inputs = session.last = _placed(session, request, tensors)
        session.timed = _callable(session, request, wire.decoded(request["args"], [g.tensor for g in inputs]))
    call, times = session.timed, []
    native.wait()
    with torch.no_grad():
        torch.cuda.synchronize(session.device)
        if request["events"]:
            private.sleep_on_gpu(SLEEP)
            times = gpu_seconds(call, request["repeats"])
        else:
            for _ in range(request["repeats"]):
                call()
        torch.cuda.synchronize(session.device)
    return {"error": None, "times": times}, ()


def _end(
    session: Session, request: dict[str, Any], tensors: Sequence[torch.Tensor]
) -> tuple[dict[str, Any], Sequence[torch.Tensor]]:
    """Report what was replaced in modules that the judge uses."""
    return {"error": None, "changed": integrity.changed(_before)}, ()
