"""What tuning found: one trial per configuration, as a table for people and as a record on disk."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from rawkern._version import __version__
from rawkern.base import cache, markup
from rawkern.compile.toolchain import toolchain
from rawkern.tuning.configs import Config, hashed, shown

_FORMAT = 1  # raised when a record, or how it is measured, changes


@dataclass(frozen=True)
class Trial:
    """One configuration: how long a launch takes with it, or why it cannot be taken.

    Attributes
    ----------
    config : dict
        Names and values.
    seconds : float or None
        None for a configuration that was rejected.
    reason : str
        Why it was; empty for one that was timed.
    """

    config: Config
    seconds: float | None
    reason: str = ""


@dataclass(frozen=True)
class Tuning:
    """What was measured for one device and key; ``print`` shows it as a table.

    Attributes
    ----------
    kernel : str
        The kernel's name, as it was given.
    device : str
        What the times are of.
    key : tuple
        The key arguments' values.
    config : dict
        The configuration chosen.
    trials : tuple of Trial
        All that was tried, in that order.
    """

    kernel: str
    device: str
    key: tuple[Any, ...]
    config: Config
    trials: tuple[Trial, ...]

    def __str__(self) -> str:
        timed = sorted((t for t in self.trials if t.seconds is not None), key=lambda t: t.seconds or 0.0)
        rows = [(shown(t.config), _times(t)) for t in timed]
        rows += [(shown(t.config), f"rejected: {t.reason}") for t in self.trials if t.seconds is None]
        width = max((len(config) for config, _ in rows), default=0)
        head = f"{self.kernel} on {self.device}" + (f", key {self.key}" if self.key else "")
        mark = shown(self.config)
        lines = [f"{'*' if config == mark else ' '} {config:<{width}}  {what}" for config, what in rows]
        return "\n".join([head, *lines])

    def _repr_html_(self) -> str:
        """What a notebook shows: the table, the fastest first; the configuration chosen is bold."""
        timed = sorted((t for t in self.trials if t.seconds is not None), key=lambda t: t.seconds or 0.0)
        names = list(dict.fromkeys(name for trial in self.trials for name in trial.config))
        ordered = [*timed, *(t for t in self.trials if t.seconds is None)]
        rows = [
            [
                *(trial.config.get(name, "") for name in names),
                f"rejected: {trial.reason}" if trial.seconds is None else _times(trial),
            ]
            for trial in ordered
        ]
        chosen = {i for i, trial in enumerate(ordered) if shown(trial.config) == shown(self.config)}
        about = f"on {self.device}" + (f", key {self.key}" if self.key else "")
        return markup.table(self.kernel, about, rows, [*names, "a launch"], chosen)


def _times(trial: Trial) -> str:
    return f"{(trial.seconds or 0.0) * 1e6:.1f} us"


def device_name(device: torch.device) -> str:
    """What a choice holds for: the GPU's model, or the CPU's with the number of threads."""
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        return f"{properties.name}, {properties.multi_processor_count} multiprocessors"
    from rawkern.base.llvm import host

    return f"CPU engine, {host().name}, {torch.get_num_threads()} threads"


def plain(value: Any) -> Any:
    """A key's value as JSON has it."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (tuple, list)):  # torch.Size, too
        return [plain(item) for item in value]
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, (torch.dtype, torch.device)):
        return str(value).removeprefix("torch.")
    raise TypeError(
        f"the key of autotune has a {type(value).__name__} in it; it is made of numbers, strings, dtypes, None and "
        "tuples of them"
    )


def record_key(*parts: Any) -> str:
    """The name of a record on disk, of all that the choice depends on."""
    versions = _FORMAT, __version__, toolchain().identity
    return "tuning-" + hashlib.sha256(json.dumps([*versions, *parts], sort_keys=True).encode()).hexdigest()


def store(key: str, tuning: Tuning) -> None:
    """Keep what was found on disk."""
    trials = [(trial.config, trial.seconds, trial.reason) for trial in tuning.trials]
    cache.put_record(key, {"config": tuning.config, "trials": trials})


def load(key: str, kernel: str, device: str, values: tuple[Any, ...], configs: Sequence[Config]) -> Tuning | None:
    """Read what was found before; None where there is nothing, or nothing that fits the configurations."""
    found = cache.get_record(key)
    if found is None:
        return None
    known = {hashed(config): config for config in configs}  # JSON has lists where these have tuples
    try:
        trials = tuple(Trial(known[hashed(c)], seconds, reason) for c, seconds, reason in found[0]["trials"])
        return Tuning(kernel, device, values, known[hashed(found[0]["config"])], trials)
    except (KeyError, TypeError, ValueError):
        return None


def best(trials: Sequence[Trial]) -> Trial | None:
    """The fastest that was not rejected."""
    timed = [trial for trial in trials if trial.seconds is not None]
    return min(timed, key=lambda trial: trial.seconds or 0.0) if timed else None
