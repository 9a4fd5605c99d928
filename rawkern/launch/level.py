"""How closely launches on the CPU are looked at: a setting of the whole process, the environment's or a context's."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence

import torch

from rawkern.base.records import UNCHECKED
from rawkern.base.table import field

#: Not at all; each access stays inside the launch's memory; all that `rawkern.check` looks for.
OFF, BOUNDS, FULL = LEVELS = ("off", "bounds", "full")
VARIABLE = "RAWKERN_CHECK"
_SHORT = {"": BOUNDS, "0": BOUNDS, "1": FULL}
_asked: list[str] = []  # the environment's first, then those of contexts
_lent: list[Sequence[torch.Tensor]] = []
#: Called with the level when it may have changed.
followers: list[Callable[[str], None]] = []


def parse(text: str, source: str) -> str:
    """A level by its name; ValueError where there is none, with the source of the text."""
    found = _SHORT.get(text.strip(), text.strip())
    if found not in LEVELS:
        raise ValueError(f"{source} is {text!r}; it is one of {', '.join(LEVELS)}")
    return found


def current() -> str:
    """The level that launches have now."""
    return _asked[-1]


def depth() -> int:
    """How many ask for a level: the environment, and contexts."""
    return len(_asked)


def ask(level: str) -> None:
    """Have a level until it is given up; of several the last one asked for holds."""
    _asked.append(level)
    _tell()


def give_up(level: str) -> None:
    """Take back an `ask`."""
    del _asked[len(_asked) - 1 - _asked[::-1].index(level)]
    _tell()


def _tell() -> None:
    field("unchecked", UNCHECKED if current() == OFF else 0)
    for follower in followers:
        follower(current())


@contextlib.contextmanager
def asked(level: str) -> Iterator[None]:
    """Have a level for the time of the block."""
    ask(level)
    try:
        yield
    finally:
        give_up(level)


def lend(tensors: Sequence[torch.Tensor]) -> None:
    """Let launches use tensors besides their arguments: what addresses lead to that no argument tells of."""
    _lent.append(tensors)


def take_back(tensors: Sequence[torch.Tensor]) -> None:
    """Take back a `lend` of this very sequence; other threads may have lent theirs since."""
    del _lent[next(k for k, one in enumerate(_lent) if one is tensors)]


def also() -> list[torch.Tensor]:
    """The tensors that launches may use besides their arguments."""
    return [t for tensors in tuple(_lent) for t in tensors]


def guarded(device: torch.device) -> bool:
    """Whether launches on a device have their accesses compared with their memory."""
    return device.type != "cpu" or current() != OFF


def place(device: torch.device) -> object:
    """What the launches of a device at this level have in common, as a key."""
    return device if guarded(device) else (device, OFF)


ask(parse(os.environ.get(VARIABLE, ""), f"the environment variable {VARIABLE}"))
