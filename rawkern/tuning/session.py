"""One tuning: each configuration is built, run, compared with the reference and timed, on the arguments of a launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from rawkern.arguments.slow_path import arrange
from rawkern.base.nested import tensors_in
from rawkern.compile.source import Source
from rawkern.errors import LaunchError, RawkernError
from rawkern.kernel import RawKernel
from rawkern.launch import variables
from rawkern.launch.unit import State
from rawkern.tuning import timing
from rawkern.tuning.configs import Config, hashed, shown
from rawkern.tuning.record import Trial
from rawkern.tuning.written import Reference, Saved, Written, find

Settle = Callable[[RawKernel, Config], Any]  # a kernel with the grid and block of a configuration

# Errors that rule out a configuration: it does not compile, exceeds a limit of the device, or rejects the arguments.
FAILURES = (RawkernError, TypeError, ValueError, OverflowError)


@dataclass(frozen=True)
class Launch:
    """A launch for which there is no choice yet."""

    settle: Settle
    args: Sequence[Any]
    kwargs: dict[str, Any]
    key: Any
    device: str
    values: tuple[Any, ...]


@dataclass(eq=False)
class Session:
    """The arguments of one launch, with what they held before; `close` puts that back."""

    name: str
    source: Source
    kernel_of: Callable[[Config], RawKernel]
    given: Launch
    reference: Callable[..., Any] | None
    tolerances: tuple[float | None, float | None]
    estimate: str | None = None  # the GPU whose times are estimated, where nothing is timed
    trials: dict[Any, Trial] = field(default_factory=dict)
    errors: list[Exception] = field(default_factory=list)
    device: torch.device | None = None
    broken: bool = False  # the GPU will do nothing more in this process
    over: bool = False  # what went wrong is not a matter of the configuration
    # By signature, since macros may change it: what is written, its contents, and what they should become.
    _known: dict[str, tuple[Saved, Reference | None]] = field(default_factory=dict)

    def measure(self, config: Config) -> Trial:
        """Try one configuration, once."""
        key = hashed(config)
        if key not in self.trials:
            try:
                self.trials[key] = self._measured(config)
            except FAILURES as error:
                if self.over:
                    raise
                self.errors.append(error)
                lines = str(error).splitlines() or [""]
                self.trials[key] = Trial(config, None, f"{type(error).__name__}: {lines[0]}")
        return self.trials[key]

    def _measured(self, config: Config) -> Trial:
        kernel = self.kernel_of(config)
        state = kernel.state(self.device)
        read = state.build.source
        if read.text != self.source.text or not set(self.source.headers) <= set(read.headers):
            return Trial(config, None, "the source was edited while it was tuned")
        go = self.given.settle(kernel, config)
        saved, reference = self._bound(state)
        device = self.device
        assert device is not None
        with state.build.lock:
            held = Saved(variables.every(state, device, ["global"]))

        def restore() -> None:
            saved.restore()
            held.restore()

        def launch() -> None:
            go(*self.given.args, **self.given.kwargs)

        try:
            if self.estimate is None or reference is not None:
                self._run(launch, config)
            wrong = reference.differs() if reference is not None else None
            if wrong is not None:
                return Trial(config, None, wrong)
            if self.estimate is not None:
                restore()
                estimated = go.estimate(*self.given.args, device=self.estimate, cold=True, **self.given.kwargs)
                return Trial(config, estimated.us * 1e-6)
            times = [trial.seconds for trial in self.trials.values() if trial.seconds is not None]
            took = timing.seconds(device, launch, restore, min(times, default=None))
            return Trial(config, took)
        finally:
            if not self.broken:
                restore()

    def _run(self, launch: Callable[[], None], config: Config) -> None:
        """Launch for the first time; a GPU's error that ends all work there ends the tuning, too."""
        launch()
        assert self.device is not None
        if self.device.type == "cuda":
            try:
                torch.cuda.synchronize(self.device)
            except RuntimeError as error:
                self.broken = self.over = True
                raise LaunchError(
                    f"autotune of {self.name}: the GPU failed in the configuration {shown(config)}: {error}; "
                    "rawkern.check() shows where"
                ) from error

    def _bound(self, state: State) -> tuple[Saved, Reference | None]:
        signature = str(state.signature)
        if signature not in self._known:
            self.device, call, behind = find(state, self.given.args, self.given.kwargs)
            written = [tensor for _, tensor in call.outputs]
            saved = Saved([*written, *behind])
            self._known[signature] = saved, self._reference(state, call, saved)
        return self._known[signature]

    def _reference(self, state: State, call: Written, saved: Saved) -> Reference | None:
        if self.reference is None:
            return None
        given = arrange(state.signature, self.given.args, self.given.kwargs)
        inputs = _inputs(state, given, call)
        try:
            self.over = True
            found = Reference(self.reference, given, call.outputs, *self.tolerances)
            if changed := [name for name, t, version in inputs if t._version != version]:
                raise ValueError(
                    f"autotune of {self.name}: the reference has written into {', '.join(changed)}, which the kernel "
                    "does not write, so it was not saved; let it return new tensors"
                )
            self.over = False
            return found
        finally:
            saved.restore()

    def close(self) -> None:
        """Put back what the arguments held, if the device still works, and let go of it."""
        for saved, _ in self._known.values() if not self.broken else ():
            saved.restore()
        self._known.clear()
        self.errors.clear()  # they hold the frames they come from, and so all tensors there

    def failure(self) -> Exception:
        """The error for a tuning in which no configuration works."""
        trials = list(self.trials.values())
        if len(self.errors) == len(trials) and len({(type(e), str(e)) for e in self.errors}) == 1:
            return self.errors[0]  # wrong arguments are wrong for all
        lines = "".join(f"\n  {shown(trial.config)}: {trial.reason}" for trial in trials)
        return LaunchError(f"autotune of {self.name}: no configuration works{lines}")


def _inputs(state: State, given: Sequence[Any], call: Written) -> list[tuple[str, torch.Tensor, int]]:
    """The tensors that the kernel does not write, with the numbers by which torch counts what is written to them."""
    written = {t.untyped_storage().data_ptr() for _, t in call.outputs}
    return [
        (param.name, t, t._version)
        for param, value in zip(state.signature.params, given, strict=True)
        for t in tensors_in(value)
        if not t.is_inference() and t.untyped_storage().data_ptr() not in written
    ]
