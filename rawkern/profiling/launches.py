"""Profiled launches: `profile` has all launches counted, on the CPU engine, whatever the device of their tensors."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from rawkern.arguments import careful
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
    from rawkern.arguments.careful import Bound
    from rawkern.launch.config import LaunchConfig
    from rawkern.launch.unit import State

_reports: tuple[tuple[object, Report], ...] = ()  # of the profiles that are on; replaced as a whole
_changing = Lock()  # held while one begins or ends


class profile(Scope):
    """Count what every launch inside does: ``with rawkern.profile() as report: ...``

    A launch on CPU tensors runs as usual, built so that it counts, with the bounds of its memory checked. Of a launch
    on CUDA tensors a copy is counted on the CPU engine, and the launch itself is timed on the GPU. Counts are exact and
    the same each time, for any number of threads. The profile is the whole process's: while one thread is inside, the
    launches of all threads are counted, each in the profiles that are on.

    Parameters
    ----------
    device : str, optional
        A GPU such as ``"h200"`` for which the report tells occupancy, the least time that a launch can take and an
        estimate of its time. By default the GPU of CUDA tensors, without estimates; for CPU tensors none is told.
    sample : int, optional
        Count so many blocks of each launch that has more, one of each part of the grid, always the same ones: for
        grids so large that counting all takes too long. Counts are those of the sample and not scaled up, and the
        report says so; bounds are left out. The launch itself runs whole. By default all blocks are counted.

    Returns
    -------
    Report
        From ``__enter__``; it has each launch as soon as that is over.

    Raises
    ------
    ValueError
        If nothing is known of that GPU, or ``sample`` is less than 1.
    TypeError
        If ``sample`` is no int.
    LaunchError
        By a launch, if it is captured into a CUDA graph, is to be sampled though its blocks wait for each other, or
        fails as it would without a profile.
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
                raise RuntimeError("this profile is on already; make another one: rawkern.profile()")
            _settle((*_reports, (token, self._report)))

    def _end(self, token: list[Any]) -> None:
        with _changing:
            _settle(tuple(each for each in _reports if each[0] is not token))


def _settle(reports: tuple[tuple[object, Report], ...]) -> None:
    """Have these profiles on."""
    global _reports
    _reports = reports
    if not reports:
        intercept.remove(_profiled)
    elif not intercept.added(_profiled):  # the place among others is that of the first profile
        intercept.add(_profiled, _profiled)


def _profiled(given: intercept.Launch) -> None:
    """Count a launch, and make it where counting has not."""
    plan = given.launcher.plan
    name = plan.kernel.name
    if private.stream_capturing():
        raise LaunchError(f"{name}: a launch that a CUDA graph captures cannot be profiled; profile it outside of that")
    if given.stream is not None and not isinstance(given.stream, torch.cpu.Stream):
        streams.stream_handle(given.stream)  # what no GPU takes is refused on the CPU, too
    state = plan.kernel.current(given.args, given.kwargs)
    signature = state.signature
    args = careful.arrange(signature, given.args, given.kwargs)
    bound = careful.bind(signature, args, None, state.strided)
    device = bound.device or CPU
    if given.launcher.n == 0 or device.type == "meta":
        given.proceed()
    elif device.type == "cuda":
        torch.cuda.synchronize(device)
        copies = reachable.Copies(args)
        copied = careful.bind(signature, tuple(map(copies.of, args)), None, state.strided)
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
        if given.hooks or all(counted.sample for _, counted in told):  # hooks make the launch in their own way
            given.proceed()
        _tell(told)


def _estimate(
    state: State, config: LaunchConfig, bound: Bound, behind: Sequence[torch.Tensor], name: str
) -> Estimate | str:
    """What a launch would take on a GPU, or why that is not estimated."""
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
    """Run a launch on the CPU engine and count, for each profile that is on.

    Memory has its values from before, unless one wants all blocks to be counted: that launch is the one to be made.
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
