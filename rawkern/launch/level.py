"""How closely launches on the CPU are looked at: a setting of the whole process, the environment's or a context's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from rawkern.base import environment
from rawkern.base.nearest import did_you_mean
from rawkern.base.scoped_setting import ScopedSetting

#: Not at all; each access stays inside the launch's memory; all that `rawkern.check` looks for.
OFF, BOUNDS, FULL = LEVELS = ("off", "bounds", "full")
VARIABLE = "RAWKERN_CHECK"
_SHORT = {"": BOUNDS, "0": BOUNDS, "1": FULL}
#: Tensors that launches may use besides their arguments: what addresses lead to that no argument tells of.
lent: ScopedSetting[Sequence[torch.Tensor]] = ScopedSetting(())


#: The choices of `rawkern.check` between rules; the first of each is the default.
RULES = {"volatile": ("relaxed", "plain"), "acquire": ("fence", "read"), "equal_writes": ("allowed", "race")}
rules: ScopedSetting[dict[str, str]] = ScopedSetting({name: choices[0] for name, choices in RULES.items()})


@dataclass(frozen=True)
class Trials:
    """How else each checked launch is made, besides as it is: see `rawkern.check`.

    `branches`: which sides of each branch lanes have gone, by the kernel, the lines and a number.
    """

    optimized: bool = True
    orders: tuple[int, ...] = ()
    inputs: int = 0
    branches: dict[tuple, int] = field(default_factory=dict)


trials: ScopedSetting[Trials] = ScopedSetting(Trials())


def parse(text: str, source: str) -> str:
    """A level by its name; ValueError where there is none, with the source of the text."""
    return one_of(LEVELS, _SHORT.get(text.strip(), text.strip()), source)


def one_of(choices: Sequence[str], given: str, source: str) -> str:
    """What is given, if it is one of several names; otherwise a ValueError with the source of the text."""
    if given not in choices:
        raise ValueError(f"{source} is {given!r}; it is one of {', '.join(choices)}{did_you_mean(given, choices)}")
    return given


setting = ScopedSetting(environment.read(VARIABLE, parse, BOUNDS))
push, pop, scoped, followers = setting.push, setting.pop, setting.scoped, setting.followers


def current() -> str:
    """The level that launches have now."""
    return setting.current


def depth() -> int:
    """How many levels are set: by the environment, and by contexts."""
    return setting.depth


def also() -> list[torch.Tensor]:
    """The tensors that launches may use besides their arguments."""
    return [t for tensors in lent.all for t in tensors]
