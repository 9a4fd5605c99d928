"""The settings of launches on the CPU as one: the level, the order of blocks and warps, the GPU whose limits hold."""

from __future__ import annotations

import contextlib
import operator
from typing import Any

import torch

from rawkern.base import environment, gpus
from rawkern.base.scoped_setting import ScopedSetting, SettingScope
from rawkern.base.table import attend, field
from rawkern.compile import lookup
from rawkern.engines.cpu.mode import Mode
from rawkern.engines.cpu.runtime import order as orders
from rawkern.launch import level

ORDER, ARCHITECTURE = "RAWKERN_ORDER", "RAWKERN_ARCH"


def parse_gpu(text: str | int, source: str) -> gpus.Specification:
    """A GPU by its architecture, as ``"sm_90"``; ValueError where none is known, with the source of the text."""
    with contextlib.suppress(ValueError):
        found = gpus.specification(lookup.architecture_name(text, "sm"))
        if found is not None:
            return found
    known = ", ".join(each.name for each in gpus.SPECIFICATIONS.values())
    raise ValueError(f"{source} is {text!r}; it is one of {known}")


def parse_seed(given: Any, source: str) -> int:
    """A seed; ValueError where it is none, with the source of what was given."""
    with contextlib.suppress(TypeError, ValueError):
        seed = int(given) if isinstance(given, str) else operator.index(given)
        if seed >= 0 and not isinstance(given, bool):
            return seed
    raise ValueError(f"{source} is {given!r}; a seed is an int, 0 or more")


gpu: ScopedSetting[gpus.Specification | None] = ScopedSetting(environment.read(ARCHITECTURE, parse_gpu, None))


def current() -> Mode:
    """How launches on the CPU run now."""
    return Mode(level.current() != level.OFF, orders.seed.current is not None, gpu.current)


def place(device: torch.device) -> object:
    """What the launches of a device have in common now, as a key: the mode of those on the CPU."""
    return current() if device.type == "cpu" else device


class order(SettingScope):
    """Run blocks, and the warps of a block, in another order: ``with rawkern.order(7): ...``, or as a decorator.

    Nothing in CUDA says in which order they run. On the CPU engine they run from the first to the last, on several
    threads; here in an order that the seed tells, on one thread, so a kernel whose result depends on it shows, the same
    way each time. A kernel that is right gives what it gives otherwise, but for sums by atomics.

    The environment variable ``RAWKERN_ORDER`` has the seed for a whole program, ``pytest --rawkern-order=1,2,3`` runs
    each test under each. It is a setting of the whole process, as `check` is. Launches on a GPU are left as they are:
    there the hardware has the say. They take a few microseconds more than others.

    Parameters
    ----------
    seed : int
        0 runs them from the last to the first, so that whatever needs one before the next shows; each number above has
        an order of its own for each grid and block.

    Raises
    ------
    ValueError
        It is no such number.

    Notes
    -----
    In kernels whose threads may wait for those of other blocks (spin loops) only 64 neighbors are mixed, so that what
    waits for blocks before it goes on.
    """

    def __init__(self, seed: int) -> None:
        self.seed = parse_seed(seed, "seed")
        super().__init__((orders.seed, self.seed))


class architecture(SettingScope):
    """Keep the limits of a GPU in launches on the CPU: ``with rawkern.architecture("sm_75"): ...``, or as a decorator.

    What the GPU does not take raises there, too: how much shared memory a block may have is different from one
    architecture to the next. Code is compiled as ever; `RawKernel.cubin` tells whether it compiles for another one.

    The environment variable ``RAWKERN_ARCH`` has the name for a whole program, otherwise it is sm_80, and sm_90 for
    kernels that use what only that has. It is a setting of the whole process, as `check` is.

    Parameters
    ----------
    name : str
        Such as ``"sm_90"``.

    Raises
    ------
    ValueError
        There is none of that name.
    """

    def __init__(self, name: str) -> None:
        self.gpu = parse_gpu(name, "name")
        super().__init__((gpu, self.gpu))


def _tell(*_: object) -> None:
    field("mode", current().word)


orders.seed.followers.append(lambda seed: attend(orders.seed, seed is not None))
for _followers in (level.followers, gpu.followers):
    _followers.append(_tell)
_tell()
if (_seed := environment.read(ORDER, parse_seed, -1)) >= 0:
    orders.seed.push(ORDER, _seed)
