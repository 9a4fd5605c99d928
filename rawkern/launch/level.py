"""How closely launches on the CPU are looked at: a setting of the whole process, the environment's or a context's."""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch

from rawkern.base.asked import Asked
from rawkern.base.forking import Lock

#: Not at all; each access stays inside the launch's memory; all that `rawkern.check` looks for.
OFF, BOUNDS, FULL = LEVELS = ("off", "bounds", "full")
VARIABLE = "RAWKERN_CHECK"
_SHORT = {"": BOUNDS, "0": BOUNDS, "1": FULL}
_lent: list[Sequence[torch.Tensor]] = []
_lock = Lock()  # for what looks in it first and changes it then


def parse(text: str, source: str) -> str:
    """A level by its name; ValueError where there is none, with the source of the text."""
    found = _SHORT.get(text.strip(), text.strip())
    if found not in LEVELS:
        raise ValueError(f"{source} is {text!r}; it is one of {', '.join(LEVELS)}")
    return found


_level = Asked(parse(os.environ.get(VARIABLE, ""), f"the environment variable {VARIABLE}"))
ask, give_up, asked, followers = _level.ask, _level.give_up, _level.asked, _level.followers


def current() -> str:
    """The level that launches have now."""
    return _level.current


def depth() -> int:
    """How many ask for a level: the environment, and contexts."""
    return _level.depth


def lend(tensors: Sequence[torch.Tensor]) -> None:
    """Let launches use tensors besides their arguments: what addresses lead to that no argument tells of."""
    _lent.append(tensors)


def take_back(tensors: Sequence[torch.Tensor]) -> None:
    """Take back a `lend` of this very sequence; other threads may have lent theirs since."""
    with _lock:
        del _lent[next(k for k, one in enumerate(_lent) if one is tensors)]


def also() -> list[torch.Tensor]:
    """The tensors that launches may use besides their arguments."""
    return [t for tensors in tuple(_lent) for t in tensors]
