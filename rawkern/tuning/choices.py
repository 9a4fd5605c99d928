"""Which configuration a launch takes: the one known for its key, the one on disk, or the fastest one measured now."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from rawkern.arguments.slow_path import DEVICES, arrange
from rawkern.base import cache, environment
from rawkern.base import torch_private as private
from rawkern.base.forking import Lock, cached_property
from rawkern.base.progress import progress
from rawkern.errors import LaunchError
from rawkern.kernel import RawKernel
from rawkern.launch import intercept
from rawkern.launch.unit import device_of
from rawkern.tuning import configs as configurations
from rawkern.tuning import record
from rawkern.tuning.configs import Config, Space
from rawkern.tuning.keys import Key
from rawkern.tuning.record import Trial, Tuning
from rawkern.tuning.session import FAILURES, Launch, Session, Settle

Choice = tuple[RawKernel, Config]
KEPT = 256  # launchers, and choices, that are kept; programs whose n changes at every launch would fill the memory
_one_at_a_time = Lock()  # in this process; what runs beside a launch makes it look slow
_depth = 0  # of tunings, which may start inside of a reference


@dataclass(frozen=True)
class Search:
    """A strategy of Kernel Tuner, its options, and the space it goes through."""

    strategy: str | Callable[..., Any]
    options: Mapping[str, Any]
    space: Space
    where: Callable[[Config], Any] | None


@dataclass(frozen=True)
class Settings:
    """What `autotune` was given, checked."""

    kernel: RawKernel
    configs: tuple[Config, ...]
    key: Key
    reference: Callable[..., Any] | None
    rtol: float | None
    atol: float | None
    search: Search | None
    retune: bool
    estimate: str | None = None

    @cached_property
    def in_config(self) -> frozenset[str]:
        """The parts of a launch that the configurations say."""
        return self._said(configurations.LAUNCH)

    @cached_property
    def in_name(self) -> frozenset[str]:
        """The template arguments that the configurations say."""
        return self._said(configurations.places(self.kernel.name))

    def _said(self, names: Sequence[str]) -> frozenset[str]:
        return frozenset(name for name in names if any(name in config for config in self.configs))


class Choices:
    """The choices of one tuned kernel, by key."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.tunings: dict[tuple[str, str], Tuning] = {}  # by device and values of the key
        self.changed: Callable[[], bool] | None = None  # whether the source has been edited; None if it cannot be
        self._kernels: dict[Any, RawKernel] = {}  # by name and options
        self._chosen: dict[Any, Choice] = {}
        self.launchers: weakref.WeakSet[Any] = weakref.WeakSet()  # those that keep what depends on the choices
        self._build: Any = None
        self._working: Config | None = None
        self._used = False  # whether all names of the configurations are known to be used

    @property
    def hot(self) -> Callable[[Sequence[Any]], Any]:
        """What makes the key of plain arguments."""
        return self.settings.key.hot

    @property
    def name(self) -> str:
        """The kernel's name, as it was given or as the source has it."""
        names = (kernel.name for kernel in (self.settings.kernel, *self._kernels.values()))
        return next((name for name in names if name != "kernel"), "kernel")

    def kernel(self, config: Config) -> RawKernel:
        """Return the kernel of a configuration; those that differ in the launch alone have the same."""
        base = self.settings.kernel
        name, options = compiled = configurations.compiled(base, config)
        if options and (asked_for := base.build().variables):
            raise ValueError(
                f"autotune of {self.name}: get_global was asked for {', '.join(asked_for)}, and a "
                "configuration with macros or options is compiled separately, with its own variables; pass the value "
                "to the kernel as an argument"
            )
        if compiled not in self._kernels:
            self._kernels.setdefault(compiled, base.variant(name, options))
        return self._kernels[compiled]

    def working(self, device: torch.device | None = None) -> Config:
        """Return the first configuration that compiles, for what all of them share."""
        if self._working is not None:
            return self._working
        errors = []
        for config in self.settings.configs:
            try:
                self.kernel(config).state(device)
                self._working = config
                return config
            except FAILURES as error:
                errors.append(error)
        raise errors[0]

    def known(self, args: Sequence[Any]) -> Choice | None:
        """Return the choice for plain arguments like those of a launch before."""
        return self._chosen.get(self.hot(args))

    def choose(self, settle: Settle, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Any, Choice]:
        """Return key and choice of a launch, which is tuned if need be; the key is None for a choice for this time."""
        if self._build is None or (self.changed is not None and self.changed()):
            self._renew()
        if not self._used:
            self._check_names(settle)
        with contextlib.suppress(TypeError):  # a list where a number was
            if not kwargs and (known := self._chosen.get(hot := self.hot(args))) is not None:
                return hot, known
        signature = self.kernel(self.working(device_of(args, kwargs))).state().signature
        hot = self.settings.key.prepare(signature, arrange(signature, args, kwargs))
        choice = self._chosen.get(hot)
        if choice is None:
            values = self.settings.key.values(hot)
            device = record.device_name(DEVICES[hot[0]])
            if self.settings.estimate is not None:
                device = f"{self.settings.estimate}, estimated"
            tuning = self.tunings.get((device, str(values)))
            if tuning is not None:  # for another device of this model, or other kinds of arrays
                config = tuning.config
            elif len(self.settings.configs) == 1 and self.settings.reference is None:
                config = self.settings.configs[0]
            else:
                return self._decide(Launch(settle, args, kwargs, hot, device, values))
            choice = self._remember(hot, config)
        return hot, choice

    def _check_names(self, settle: Settle) -> None:
        """Raise for names of configurations that neither the source nor the launch uses: they are misspelled."""
        given = self.settings
        names = configurations.unused(given.kernel, given.configs)
        for config in given.configs:
            noting = configurations.Asked(config)
            with contextlib.suppress(*FAILURES):
                settle(self.kernel(config), noting)
            names = [name for name in names if name not in noting.names]
            if not names:
                break
        if names:
            raise configurations.rejection(given.kernel, names[0], self.name)
        self._used = True

    def _renew(self) -> None:
        """Forget the choices of a source that has been edited."""
        build = self.settings.kernel.build()
        with build.lock:
            if build is not self._build:
                for launcher in list(self.launchers):
                    launcher.forget()
                self._chosen.clear()
                self.tunings.clear()
                self._kernels.clear()  # theirs may not have seen the edit yet
                self._working = None
                self._used = False
                self.changed = build.watch.changed if build.watch is not None else None
                self._build = build

    def _decide(self, launch: Launch) -> tuple[Any, Choice]:
        setting = environment.choice("RAWKERN_AUTOTUNE", ("off", "retune"))
        first, nothing = self._first(launch)
        if nothing:
            return None, self._choice(first)
        retune = self.settings.retune or setting == "retune"
        if not retune and (known := self._stored(launch)) is not None:
            return launch.key, known
        if setting == "off":
            return launch.key, self._remember(launch.key, first)
        if intercept.active_everywhere():
            return None, self._choice(first)  # until it is measured
        if private.stream_capturing():
            raise LaunchError(
                f"autotune of {self.name}: nothing can be timed while a CUDA graph is captured, and there is no choice "
                f"for this key yet ({launch.values}); launch it once before the capture"
            )
        return launch.key, self._tune(launch, retune)

    def _first(self, launch: Launch) -> tuple[Config, bool]:
        """Return the first configuration that compiles and takes this launch, and whether that is one of no threads."""
        for config in self.settings.configs:
            with contextlib.suppress(*FAILURES):
                go: Any = launch.settle(self.kernel(config), config)
                self.kernel(config).state(DEVICES[launch.key[0]])
                return config, go.n == 0
        return self.settings.configs[0], False

    def _tune(self, launch: Launch, retune: bool) -> Choice:
        """Measure, and return the best configuration; or what another has measured meanwhile."""
        global _depth
        with _one_at_a_time, intercept.suspended(), contextlib.ExitStack() as stack:
            if (known := self._chosen.get(launch.key)) is not None:  # another thread was faster
                return known
            if not _depth:
                stack.enter_context(cache.exclusive("tuning"))
            if not retune and (known := self._stored(launch)) is not None:  # another process was faster
                return known
            given = self.settings
            source, tolerances = self._build.source, (given.rtol, given.atol)
            session = Session(self.name, source, self.kernel, launch, given.reference, tolerances, given.estimate)
            _depth += 1
            try:
                self._try_all(session)
                trials = tuple(session.trials.values())
                best = record.best(trials)
                if best is None:
                    raise session.failure()
            finally:
                _depth -= 1
                session.close()
            tuning = Tuning(self.name, launch.device, launch.values, best.config, trials)
            record.store(self._record_key(launch), tuning)
            return self._found(launch, tuning)

    def _try_all(self, session: Session) -> None:
        search = self.settings.search
        total = len(self.settings.configs) if search is None else None
        with progress(f"autotune {self.name}", total, "configuration") as step:

            def measure(config: Config) -> Trial:
                trial = session.measure(config)
                step()
                return trial

            if search is None:
                for config in self.settings.configs:
                    measure(config)
            else:
                from rawkern.tuning.search import run

                run(search.strategy, search.options, search.space, search.where, measure)

    def _stored(self, launch: Launch) -> Choice | None:
        """Return the choice that is on disk."""
        known = self._record_key(launch)
        tuning = record.load(known, self.name, launch.device, launch.values, self.settings.configs)
        return None if tuning is None else self._found(launch, tuning)

    def _found(self, launch: Launch, tuning: Tuning) -> Choice:
        self.tunings[launch.device, str(launch.values)] = tuning
        return self._remember(launch.key, tuning.config)

    def _choice(self, config: Config) -> Choice:
        return self.kernel(config), config

    def _remember(self, key: Any, config: Config) -> Choice:
        if len(self._chosen) >= KEPT:
            self._chosen.clear()
        self._chosen[key] = choice = self._choice(config)
        return choice

    def _record_key(self, launch: Launch) -> str:
        given, source = self.settings, self._build.source
        attributes, strided = str(given.kernel.launch_attributes), self._build.settings.strided
        search = given.search and [_named(given.search.strategy), repr(sorted(given.search.options.items()))]
        return record.record_key(
            [source.text, source.options, source.headers, self.name, attributes, strided],
            given.configs,
            [launch.device, given.key.text, launch.values],
            [given.reference is not None, given.rtol, given.atol],
            search,
        )


def _named(strategy: str | Callable[..., Any]) -> str:
    return strategy if isinstance(strategy, str) else getattr(strategy, "__qualname__", type(strategy).__name__)
