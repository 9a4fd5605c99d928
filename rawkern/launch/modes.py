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

    CUDA does not define their order. The CPU engine runs them from the first to the last, on several threads; here
    they run in an order that follows from the seed, on one thread, so a result that depends on the order changes, in
    the same way each time. A correct kernel gives its usual result, except for rounding of atomic sums.

    The environment variable ``RAWKERN_ORDER`` sets the seed for a whole program; ``pytest --rawkern-order=1,2,3``
    runs each test with each seed. The setting applies to the whole process, as in `check`, and has no effect on a
    GPU. Launches take a few microseconds longer.

    Parameters
    ----------
    seed : int
        0 runs them from the last to the first; each other seed shuffles them, differently for each grid and block.

    Raises
    ------
    ValueError
        The seed is not an int of 0 or more.

    Notes
    -----
    In kernels whose threads may wait for other blocks (spin loops) blocks are shuffled only among 64 neighbors, so
    that waiting blocks make progress.
    """

    def __init__(self, seed: int) -> None:
        self.seed = parse_seed(seed, "seed")
        super().__init__((orders.seed, self.seed))


class architecture(SettingScope):
    """Apply a GPU's limits to launches on the CPU: ``with rawkern.architecture("sm_75"): ...``, or as a decorator.

    A launch that the GPU would reject raises an error on the CPU, too; the limit of shared memory, for example,
    depends on the architecture. The generated code does not change; `RawKernel.cubin` compiles for another
    architecture.

    The environment variable ``RAWKERN_ARCH`` sets the GPU for a whole program; the default is sm_80, or sm_90 for
    kernels that need it. The setting applies to the whole process, as in `check`.

    Parameters
    ----------
    name : str
        Such as ``"sm_90"``.

    Raises
    ------
    ValueError
        The name is unknown.
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
