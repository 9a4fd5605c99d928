"""`judge`: runs an untrusted kernel in its own process and compares its results here."""

from __future__ import annotations

import ast
import contextlib
import os
import re
import signal
import statistics
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from rawkern.base.api_boundary import api_boundary
from rawkern.base.nearest import did_you_mean
from rawkern.engines.devices import default_device, normalized
from rawkern.testing.judging import plan, rating, wire
from rawkern.testing.judging.rating import Answer
from rawkern.testing.judging.task import SPECIAL, Configuration, Task, runs_on, sized
from rawkern.testing.judging.verdict import FAILED, NOT_RUN, Verdict
from rawkern.testing.judging.worker import Candidate, Worker
from rawkern.testing.results import same_bits
from rawkern.testing.trials import problem_of
from rawkern.testing.variations import SIZES

_MAY_SKIP = ("sizes", "special", "deterministic", "output", "findings", "order", "honest")
_REPEATS = 100  # timed calls
_TIMINGS = 3  # measurements, of which one has to agree: other processes may use the GPU, too
_SLOWER = 3.0  # allowed ratio of the judge's time per call to the GPU's, beyond the host's time
HOST = 1e-3  # seconds of host time


@api_boundary
def judge(
    source: str | os.PathLike[str],
    reference: Callable[..., Any],
    inputs: Callable[..., Sequence[Any]] | Sequence[Any],
    *,
    entry: str | None = None,
    outputs: Sequence[int] = (),
    mutates: Sequence[int] = (),
    grid: Any = None,
    block: Any = None,
    forall: Any = None,
    shared_mem: Any = 0,
    init_inputs: Sequence[Any] = (),
    device: str | torch.device | None = None,
    seeds: int = 3,
    sizes: Sequence[int] = SIZES,
    special: Sequence[str] = SPECIAL,
    tolerance: float | None = None,
    options: Sequence[str] = (),
    include_dirs: Sequence[str | os.PathLike[str]] = (),
    cooperative: bool = False,
    seconds: float = 60.0,
    memory: int = 8 << 30,
    seed: int = 0,
    skip: Sequence[str] = (),
    worker: Worker | None = None,
) -> Verdict:
    """Test an untrusted kernel in its own process, and report what is wrong with it.

    The candidate is CUDA C, whose kernel is launched on the inputs; or a Python module with one public function or
    a class ``ModelNew``, which is called with them. Its process receives inputs and sends results; the reference stays
    in this process and is computed after the candidate's process has ended. That process has time and memory limits
    and a temporary folder. It is not a sandbox for malicious code, which can access files and the network.

    Parameters
    ----------
    source : str or path
        CUDA C or Python, as text, or the path of a ``.cu`` or ``.py`` file (a ``pathlib.Path``, or text that ends so).
    reference : callable, torch.nn.Module or its class
        Computes the same in torch, or in place. It gets the inputs in float64 on the CPU; a module is converted and
        runs on the device. Like ``ModelNew``, a class is called with ``init_inputs`` after ``torch.manual_seed(seed)``.
    inputs : sequence, or callable that returns one
        The arguments: tensors, numbers, text, lists, tuples and dicts. A function is called for each seed after
        ``torch.manual_seed``; in a sequence the floating-point values are permuted. A function with a parameter
        is called with each of ``sizes``, most often with the largest.
    entry : str, optional
        The kernel, function or class, if the source has more than one.
    outputs : sequence of int
        For CUDA C: the positions of the arguments that the kernel writes. The reference does not get them; it returns
        their expected values in this order.
    mutates : sequence of int
        Positions of arguments that are read and written.
    grid, block, forall, shared_mem : int, tuple of int or callable
        The launch of a kernel, see `rawkern.RawKernel`; functions are called with the arguments. The default is
        one thread for each element of the first output.
    init_inputs : sequence
        The arguments of ``ModelNew``.
    device : str or torch.device, optional
        The default is the GPU if there is one, else the CPU.
    seeds : int
        The number of different inputs with the sample's sizes, at least 2.
    sizes : sequence of int
        Other sizes for the dimensions, tried in turn if the reference accepts them; numbers among a
        kernel's arguments that are equal to a size change with it. ``()`` if there is only one size.
    special : sequence of str
        Special values for floating-point inputs: "zeros", "nan", "inf", "large".
    tolerance : float, optional
        The allowed error relative to the largest element, as for `check_kernel`.
    options, include_dirs, cooperative
        For CUDA C, see `rawkern.RawKernel`: compiler options, header directories, whether ``grid.sync()`` is used.
    seconds : float
        The time limit of the candidate's process.
    memory : int
        Bytes that its processes may use, in addition to what they start with.
    seed : int
        The seed of random inputs.
    skip : sequence of str
        Checks (``Verdict.checks``) to skip, such as "deterministic" for atomic sums.
    worker : Worker, optional
        The process that candidates are forked from. By default one is started and ended, which takes seconds.

    Returns
    -------
    Verdict
        The result of each check; ``verdict.ok`` if nothing is wrong.

    Raises
    ------
    TypeError, ValueError, FileNotFoundError
        The task is invalid: no tensor among the inputs, or a reference that rejects them or gives random results.
    LaunchError
        The process cannot be started.

    Examples
    --------
    >>> verdict = judge(source, torch.square, (1000, x, torch.empty(1000)), outputs=(2,))
    """
    began = time.monotonic()
    text, language, folder = _read(source)
    if language == "cuda" and not (outputs or mutates):
        raise ValueError("judge: a kernel needs outputs= (or mutates=): the positions of the arguments that it writes")
    if language == "python" and outputs:
        raise ValueError("judge: outputs= is for kernels; a function returns its outputs, or pass mutates=")
    if seeds < 2:
        raise ValueError(f"judge: seeds is {seeds}; pass 2 or more, so that cached results are found")
    if unknown := set(special).difference(SPECIAL):
        raise ValueError(f"judge: special names {_wrong(unknown, SPECIAL)}")
    if unknown := set(skip).difference(_MAY_SKIP):
        raise ValueError(f"judge: skip names {_wrong(unknown, _MAY_SKIP)}")
    if sized(inputs) and not sizes:
        raise ValueError("judge: inputs is a function of a size, but sizes is empty")
    if (grid is None and shared_mem) or (grid is not None and (block is None or forall is not None)):
        raise ValueError("judge: pass grid and block (optionally shared_mem), or forall (optionally block)")
    place = default_device() if device is None else normalized(device)
    task = Task(
        runs_on(reference, init_inputs, place, seed), inputs, tuple(outputs), tuple(mutates),
        init_inputs, Configuration(grid, block, forall, shared_mem), place, tolerance, seed,
        max(sizes) if sized(inputs) else None,
    )  # fmt: skip
    tensors: list[torch.Tensor] = []
    load = {
        "language": language, "entry": entry, "options": list(options), "cooperative": cooperative, "seed": seed,
        "include_dirs": [os.path.abspath(each) for each in (*folder, *include_dirs)],
        "init": wire.encoded(tuple(init_inputs), tensors, "one of init_inputs"),
    }  # fmt: skip
    kernel = language == "cuda"
    _takes(task)
    steps = [s for s in plan.steps(task, kernel, seeds, sizes, special) if s.check not in skip]
    requests = [plan.request(task, step, kernel) for step in steps]
    verdict = Verdict(device=str(place))
    limits = {"device": str(place), "seconds": seconds, "memory": memory}
    with Worker() if worker is None else contextlib.nullcontext(worker) as used:
        answers = _tried(verdict, used, limits, text, (load, tensors), list(zip(steps, requests, strict=True)))
    if answers and answers[0].step.title == plan.FIRST:
        rating.rate(verdict, task, kernel, answers)
        _reject_random(verdict, task)
    rating.conclude(verdict, skip)
    verdict.seconds = time.monotonic() - began
    return verdict


def _wrong(unknown: Collection[str], known: Sequence[str]) -> str:
    wrong = min(unknown, key=str)
    return f"{wrong!r}; choose from {', '.join(known)}{did_you_mean(wrong, known)}"


def _read(source: str | os.PathLike[str]) -> tuple[str, str, list[Path]]:
    """A candidate's source, its language, and the folder of its file if it has one."""
    named = isinstance(source, os.PathLike) or (source.rstrip().endswith((".cu", ".py")) and "\n" not in source)
    if named:
        path = Path(source)
        if path.suffix not in (".cu", ".py"):
            raise ValueError(f"judge: {path} is neither a .cu nor a .py file")
        language = "cuda" if path.suffix == ".cu" else "python"
        return path.read_text(encoding="utf-8", errors="surrogateescape"), language, [path.parent]
    try:
        ast.parse(str(source))
    except (SyntaxError, ValueError):
        # Python with a syntax error may also contain the word; CUDA C has no import at the start of a line.
        python = "__global__" not in str(source) or bool(re.search(r"^(import|from) \w", str(source), re.M))
        return str(source), "python" if python else "cuda", []
    return str(source), "python", []


def _takes(task: Task) -> None:
    """Raise if the reference rejects the inputs; tested with other values than the candidate gets."""
    sample = task.sample(-1)
    try:
        task.exact(sample)
    except Exception as error:
        text = problem_of(error).text
        raise ValueError(f"judge: the reference rejects the inputs: {text}") from error


def _reject_random(verdict: Verdict, task: Task) -> None:
    if verdict.checks["right"].state != FAILED:
        return
    one, other = (task.native(task.sample(0)) for _ in range(2))
    if one is not None and other is not None and not all(map(same_bits, one[0].results, other[0].results)):
        raise ValueError("judge: two calls of the reference with the same inputs differ; pass it a seed as an input")


# The candidate's process ------------------------------------------------------------------------------------------

Request = tuple[dict[str, Any], Sequence[torch.Tensor]]


def _tried(
    verdict: Verdict,
    worker: Worker,
    limits: dict[str, Any],
    text: str,
    load: Request,
    steps: Sequence[tuple[plan.Step, Request]],
) -> list[Answer]:
    """Load a candidate in its own process and make all calls; records how the process ends."""
    answers: list[Answer] = []
    doing = "loading it"
    with worker.candidate(limits) as candidate:
        try:
            suffix = "cu" if load[0]["language"] == "cuda" else "py"
            file = os.path.join(candidate.folder, f"candidate.{suffix}")
            Path(file).write_text(text, encoding="utf-8")
            said, _ = candidate.ask({**load[0], "file": file}, load[1])
            if (error := said.get("error")) is not None:
                _not_loaded(verdict, error)
                return []
            verdict.entry, verdict.signature = said["entry"], said["signature"]
            if load[0]["language"] == "cuda":  # functions may compile kernels when called
                verdict.settle("compiles", None)
            for step, request in steps:
                doing = step.title
                said, results = candidate.ask(*request)
                answers.append(Answer(step, said, results))
                if step.title == plan.FIRST and said.get("error") is not None:
                    break
            else:
                doing = "timing it"
                if limits["device"].startswith("cuda"):
                    time_calls(verdict, candidate, steps[0][1])
            said, _ = candidate.ask({"do": "end"})
            if changed := said["changed"]:
                verdict.accuse("replaced function", f"replaces {', '.join(changed[:8])}")
        except UnicodeEncodeError as error:  # from the source: nothing else is encoded here
            line = text.count("\n", 0, error.start) + 1
            verdict.settle(
                "compiles", f"it is not Unicode text: {text[error.start]!r} in line {line} is an unpaired surrogate"
            )
            return []
        except wire.Late:
            verdict.settle("runs", f"{doing}: it did not finish within {limits['seconds']:g} s")
        except EOFError:
            doing = f"{doing}: "
        except wire.Broken as error:
            verdict.settle("runs", f"{doing}: its process sent an invalid answer")
            verdict.accuse("worker", f"sends an invalid answer: {error}")
    _ended(verdict, candidate, limits, doing)
    return answers


def _not_loaded(verdict: Verdict, error: Mapping[str, Any]) -> None:
    if error["kind"] == "compile":
        verdict.settle("compiles", error["text"])
    elif error["kind"] == "unfit":
        verdict.settle("compiles", None)
        verdict.settle("signature", error["text"])
    else:
        verdict.settle("runs", f"loading it: {error['text']}")


def _ended(verdict: Verdict, candidate: Candidate, limits: Mapping[str, Any], doing: str) -> None:
    """Record how the process ended."""
    ended = candidate.ended
    verdict.printed, verdict.memory, verdict.left = candidate.printed, int(ended["memory"]), int(ended["left"])
    status = ended["status"]
    if ended.get("lost"):
        verdict.accuse("worker", "ends the process that runs it")
        verdict.settle("runs", f"{doing}it ended the process that candidates are forked from")
    elif ended.get("over"):
        verdict.settle("runs", f"{doing}it uses more than {limits['memory']} bytes of memory")
    elif candidate.gone and status is None:
        verdict.settle("runs", f"{doing}it closed its connection to the judge")
    elif candidate.gone and status < 0:
        name = signal.Signals(-status).name
        verdict.settle("runs", f"{doing}its process was ended by {name}")
    elif candidate.gone:
        verdict.settle("runs", f"{doing}it exited with status {status}")
    elif verdict.checks["runs"].state == NOT_RUN:
        verdict.settle("runs", None)


def time_calls(verdict: Verdict, candidate: Candidate, first: Request) -> None:
    """Measure calls on a GPU by its clock and by this process's clock, which the candidate cannot manipulate."""

    def asked(repeats: int, events: bool, tensors: Sequence[torch.Tensor] = ()) -> tuple[float, list[float]]:
        start = time.perf_counter()
        request = {**first[0], "do": "time", "repeats": repeats, "events": events}
        said, _ = candidate.ask(request, tensors)
        return time.perf_counter() - start, said["times"]

    asked(3, False, first[1])
    for _ in range(_TIMINGS):
        _, times = asked(_REPEATS, True)
        once, twice = (asked(n * _REPEATS, False)[0] for n in (1, 2))
        verdict.gpu_seconds, verdict.call_seconds = statistics.median(times), max(0.0, (twice - once) / _REPEATS)
        if verdict.call_seconds <= _SLOWER * verdict.gpu_seconds + HOST:
            return
    verdict.accuse(
        "timer",
        f"a call takes {verdict.call_seconds:.3g} s by the judge's clock, {verdict.gpu_seconds:.3g} s by the GPU's",
    )
