"""How closely launches on the CPU are looked at: a setting of the whole process, the environment's or a context's."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from rawkern.base import environment
from rawkern.base.asked import Asked
from rawkern.base.nearest import did_you_mean

#: Not at all; each access stays inside the launch's memory; all that `rawkern.check` looks for.
OFF, BOUNDS, FULL = LEVELS = ("off", "bounds", "full")
VARIABLE = "RAWKERN_CHECK"
_SHORT = {"": BOUNDS, "0": BOUNDS, "1": FULL}
#: Tensors that launches may use besides their arguments: what addresses lead to that no argument tells of.
lent: Asked[Sequence[torch.Tensor]] = Asked(())


def parse(text: str, source: str) -> str:
    """A level by its name; ValueError where there is none, with the source of the text."""
    found = _SHORT.get(text.strip(), text.strip())
    if found not in LEVELS:
        raise ValueError(f"{source} is {text!r}; it is one of {', '.join(LEVELS)}{did_you_mean(text, LEVELS)}")
    return found


setting = Asked(environment.read(VARIABLE, parse, BOUNDS))
ask, give_up, asked, followers = setting.ask, setting.give_up, setting.asked, setting.followers


def current() -> str:
    """The level that launches have now."""
    return setting.current


def depth() -> int:
    """How many ask for a level: the environment, and contexts."""
    return setting.depth


def also() -> list[torch.Tensor]:
    """The tensors that launches may use besides their arguments."""
    return [t for tensors in lent.all for t in tensors]
