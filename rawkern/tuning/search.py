"""Search through a space of configurations by the strategies of Kernel Tuner, with rawkern's own times as objective.

Kernel Tuner compiles and times kernels by backends that need a GPU. Its strategies ask only a runner for times, and
that is here: they see the numbers of the values in place of the values, so that all of them work with tuples and text.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from rawkern.base import pip
from rawkern.base.nearest import did_you_mean
from rawkern.errors import MissingDependencyError
from rawkern.tuning.configs import Config, Space
from rawkern.tuning.record import Trial

MOST_THREADS = 1024  # Kernel Tuner asks for it; only parameters of its own names would be compared with it


def run(
    strategy: str | Callable[..., Any],
    options: Mapping[str, Any],
    space: Space,
    where: Callable[[Config], Any] | None,
    measure: Callable[[Config], Trial],
) -> None:
    """Let a strategy measure what it wants to know.

    The random numbers of Python and NumPy, which strategies draw, are seeded, and afterwards as they were before.
    MissingDependencyError if Kernel Tuner is not installed, or what one of its strategies needs; ValueError if there
    is no such strategy, or it has no such option.
    """
    try:
        from kernel_tuner import interface, util
        from kernel_tuner.searchspace import Searchspace
        from kernel_tuner.strategies.wrapper import OptAlgWrapper
    except ImportError as error:
        raise MissingDependencyError(
            f"autotune(search=...) needs Kernel Tuner ({error}); run: {pip.command('tune')}"
        ) from error
    if callable(strategy):
        # Optimizers carry their settings as attributes, and a user's function is to have none.
        chosen: Any = OptAlgWrapper(partial(strategy))  # type: ignore[arg-type]
    elif strategy in interface.strategy_map:
        chosen = interface.strategy_map[strategy]
    else:
        there = f"{', '.join(interface.strategy_map)}{did_you_mean(strategy, interface.strategy_map)}"
        raise ValueError(f"autotune: Kernel Tuner has no search {strategy!r}; it has {there}")

    names = list(space)

    def config_of(numbers: Any) -> Config:
        return {name: space[name][int(number)] for name, number in zip(names, numbers, strict=True)}

    def allowed(numbers: Mapping[str, int]) -> bool:
        return where is None or bool(where(config_of([numbers[name] for name in names])))

    before = random.getstate(), np.random.get_state()
    random.seed(0)
    np.random.seed(0)
    try:
        tune_params = {name: list(range(len(values))) for name, values in space.items()}
        searchspace = Searchspace(tune_params, allowed if where is not None else None, MOST_THREADS)
        most = min(int(options.get("max_fevals", searchspace.size)), searchspace.size)
        settings = interface.Options(
            tune_params=tune_params,
            restrictions=searchspace._modified_restrictions,
            strategy_options=interface.Options(options),
            objective=["time"],
            objective_higher_is_better=[False],
            budget=util.TuningBudget(options.get("time_limit"), most),
            max_fevals=most,
            strategy=strategy,
            seed=0,
            simulation_mode=False,
            verbose=False,
            quiet=True,
            cache={},
            cachefile=None,
            metrics=None,
        )
        chosen.tune(searchspace, _runner(util, names, config_of, measure), settings)
    except ImportError as error:
        raise MissingDependencyError(f"autotune(search={strategy!r}): {error}") from error
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])


def _runner(util: Any, names: list[str], config_of: Callable[[Any], Config], measure: Callable[[Config], Trial]) -> Any:
    """What strategies ask for times: a runner of Kernel Tuner, in whose words the times are in milliseconds."""
    from kernel_tuner.runners.runner import Runner

    class RawkernRunner(Runner):
        dev = SimpleNamespace(max_threads=MOST_THREADS)

        def get_device_info(self) -> Any:
            return self.dev

        def get_environment(self, tuning_options: Any) -> dict[str, Any]:
            return {}

        def run(self, parameter_space: Any, tuning_options: Any) -> list[dict[str, Any] | None]:
            results: list[dict[str, Any] | None] = []
            for numbers in parameter_space:
                if tuning_options.budget.is_done():  # the strategy then stops, by an exception of its own
                    results.append(None)
                    continue
                tuning_options.budget.add_evaluations(1)
                trial = measure(config_of(numbers))
                result: dict[str, Any] = dict(zip(names, numbers, strict=True))
                if trial.seconds is None:
                    result |= {"__error__": util.RuntimeFailedConfig(), "time": util.RuntimeFailedConfig()}
                else:
                    result["time"] = trial.seconds * 1e3
                results.append(result)
            return results

    return RawkernRunner()
