"""Profiled launches: `profile` counts all launches on the CPU engine, whatever device their tensors are on."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from rawkern.arguments import slow_path
from rawkern.base import streams
from rawkern.base import torch_private as private
from rawkern.base.forking import Lock
from rawkern.base.nested import tensors_in
from rawkern.base.scopes import Scope
from rawkern.engines.devices import CPU
from rawkern.errors import CompileError, LaunchError, UnsupportedError
from rawkern.estimation.cards import card_named
from rawkern.estimation.estimate import Estimate, of_launch
from rawkern.launch import intercept, reachable
from rawkern.profiling.counted import Counted
from rawkern.profiling.devices import gpu_named
from rawkern.profiling.report import Report
from rawkern.profiling.runs import memory_of, profiled_kernel, variables_of
from rawkern.profiling.timing import timed

if TYPE_CHECKING:
    from rawkern.arguments.slow_path import Bound
    from rawkern.launch.config import LaunchConfig
    from rawkern.launch.unit import State

_reports: tuple[tuple[object, Report], ...] = ()  # of the active profiles; always replaced as a whole
_changing = Lock()  # held while one begins or ends


class profile(Scope):
    """Count the work of every launch in its block: ``with rawkern.profile() as report: ...``

    A launch on CPU tensors runs in a build that counts and checks bounds. For a launch on CUDA tensors, a copy is
    counted on the CPU engine, and the launch itself is timed on the GPU. Counts are exact and reproducible for any
    number of threads. A profile covers the whole process: while it is active in one thread, the launches of all
    threads are counted.

    Parameters
    ----------
    device : str, optional
        A GPU such as ``"h200"`` for which the report has occupancy, a lower bound of each launch's time and an
        estimate of it. By default the GPU of CUDA tensors, without estimates; none for CPU tensors.
    sample : int, optional
        Count at most this many blocks of each launch, evenly spread over the grid and always the same ones: for
        grids that are too large to count in full. Counts are those of the sample, not scaled up; the
        report says so and omits bounds. The launch itself runs in full. By default all blocks are counted.

    Returns
    -------
    Report
        From ``__enter__``; it has each launch as soon as the launch has finished.

    Raises
    ------
    ValueError
        If the GPU is not known, or ``sample`` is less than 1.
    TypeError
        If ``sample`` is not an int.
    LaunchError
        By a launch that is captured into a CUDA graph, that is sampled although its blocks wait for each other, or
        that fails without a profile as well.
    """

    def __init__(self, *, device: str | None = None, sample: int | None = None) -> None:
        if sample is not None and (not isinstance(sample, int) or isinstance(sample, bool)):
            raise TypeError(f"sample is {sample!r}; pass a number of blocks such as 256, or None for all")
        if sample is not None and sample < 1:
            raise ValueError(f"sample is {sample}; count 1 block or more, or pass None for all")
        super().__init__()
        self._report = Report(None if device is None else gpu_named(device), sample)

    def _entered(self) -> Report:
        return self._report

    def _begin(self, token: list[Any]) -> None:
        with _changing:
            if any(report is self._report for _, report in _reports):
                raise RuntimeError("this profile is already active; create another one: rawkern.profile()")
            _settle((*_reports, (token, self._report)))

    def _end(self, token: list[Any]) -> None:
        with _changing:
            _settle(tuple(each for each in _reports if each[0] is not token))


def _settle(reports: tuple[tuple[object, Report], ...]) -> None:
    """Set the active profiles."""
    global _reports
    _reports = reports
    if not reports:
        intercept.remove(_profiled)
    elif not intercept.added(_profiled):  # keeps its position among other hooks
        intercept.add(_profiled, _profiled)


def _profiled(given: intercept.Launch) -> None:
    """Count a launch, and run it if counting did not."""
    plan = given.launcher.plan
    name = plan.kernel.name
    if private.stream_capturing():
        raise LaunchError(
            f"{name}: a launch that a CUDA graph captures cannot be profiled; profile it outside the capture"
        )
    if given.stream is not None and not isinstance(given.stream, torch.cpu.Stream):
        streams.stream_handle(given.stream)  # a stream that is not valid on a GPU also raises on the CPU
    state = plan.kernel.current(given.args, given.kwargs)
    signature = state.signature
    args = slow_path.arrange(signature, given.args, given.kwargs)
    bound = slow_path.bind(signature, args, None, state.strided)
    device = bound.device or CPU
    if given.launcher.n == 0 or device.type == "meta":
        given.proceed()
    elif device.type == "cuda":
        torch.cuda.synchronize(device)
        copies = reachable.Copies(args)
        copied = slow_path.bind(signature, tuple(map(copies.of, args)), None, state.strided)
        with state.build.lock:
            config = plan.settled(given.launcher, state.engine_kernel(device))
        with variables_of(state, device):
            told = _counted(state, config, copied, copies.behind, device)
        time = timed(given, device, state.build)
        for _, counted in told:
            counted.time = time
        _tell(told)
    else:
        behind = reachable.reached([*tensors_in(args), *bound.tensors], signature.numbers(bound.values), "cpu")
        kernel = profiled_kernel(state).kernel
        config = plan.settled(given.launcher, kernel)
        with contextlib.ExitStack() as stack:
            if given.hooks:
                stack.enter_context(
                    reachable.as_before([piece[:2] for piece in memory_of(bound, behind, kernel.module)])
                )
            told = _counted(state, config, bound, behind, device)
        if given.hooks or all(counted.sample for _, counted in told):  # hooks run the launch themselves
            given.proceed()
        _tell(told)


def _estimate(
    state: State, config: LaunchConfig, bound: Bound, behind: Sequence[torch.Tensor], name: str
) -> Estimate | str:
    """The estimated time of a launch on a GPU, or why there is no estimate."""
    try:
        return of_launch(state, config, bound, behind, card_named(name))
    except (UnsupportedError, CompileError, ValueError) as error:
        return str(error).splitlines()[0]


def _tell(told: Sequence[tuple[Report, Counted]]) -> None:
    for report, counted in told:
        if any(report is each for _, each in _reports):
            report.add(counted)


def _counted(
    state: State, config: LaunchConfig, bound: Bound, behind: Sequence[torch.Tensor], device: torch.device
) -> list[tuple[Report, Counted]]:
    """Run a launch on the CPU engine and count it for each active profile.

    Memory is restored afterwards, unless a profile counts all blocks: then this run is the launch itself.
    """
    profiled = profiled_kernel(state)
    memory = memory_of(bound, behind, profiled.kernel.module)
    ranges = [(start, size) for start, size, _ in memory]
    samples = [(report, report.sampled(config.grid)) for _, report in _reports]
    cards = {report.gpu.name for report, _ in samples if report.gpu is not None}
    estimates = {name: _estimate(state, config, bound, behind, name) for name in sorted(cards)}
    found: dict[int | None, Counted] = {}
    for sample in sorted({sample for _, sample in samples}, key=lambda sample: sample is None):
        with reachable.as_before(ranges) if sample is not None else contextlib.nullcontext():
            counts, touched = profiled.run(
                config.grid, config.block, config.shared_mem, config.attributes, bound, ranges, sample
            )
        names = {name: count for (_, _, name), count in zip(memory, touched, strict=True) if count}
        shape = config.grid, config.block, config.shared_mem
        found[sample] = Counted(state, *shape, counts, names, str(device), sample, estimates)
    return [(report, found[sample]) for report, sample in samples]
