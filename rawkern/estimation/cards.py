"""GPUs as numbers, each with its source: what the model of time knows of a card beyond `rawkern.profiling.devices`."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace

from rawkern.base import cache
from rawkern.profiling.devices import GPUS, Gpu, gpu_named

KIB, MIB = 1 << 10, 1 << 20


@dataclass(frozen=True)
class Constants:
    """Constants of the model, one set for all cards; cycles are those of the highest clock.

    Thirteen were fitted on 276 times of an H100 and an H200. Five were measured by small kernels on an H100: latency
    of L2, cost of isolated pieces of memory, atomics.
    """

    l2_latency: float = 280.0  # cycles; published for Hopper: 260 to 280 (Luo et al. 2024)
    dram_latency: float = 530.0  # cycles beyond L2; published: about 480 to 560
    dram_share: float = 0.857  # of the data sheet's rate; copies reach 0.88 to 0.93 on such cards
    l2_sectors: float = 1.105  # sectors per cycle and multiprocessor, if all are active
    partial: float = 4.05  # cost of a partly written sector, or of an atomic, in whole sectors of L2
    block_latency: float = 394.0  # cycles from a block's end to its successor's first instruction, and its own end
    warp_latency: float = 10.8  # additional cycles for each of its warps
    block_interval: float = 0.593  # ns between the starts of blocks, all multiprocessors together
    l2_lines: float = 0.6075  # lines per cycle that a multiprocessor reads from L2
    scattered: float = 1.35  # cost of reading scattered bytes, relative to contiguous ones
    scattered_writes: float = 1.95  # the same for writing
    hot: float = 1.755  # ns between additions of floating-point numbers at one address
    step: float = 0.732  # ns between updates of one sector, or of its neighbors in 512 bytes
    issue: float = 0.95  # maximum utilization of issue slots and of pipes
    l1: float = 1.0  # the same of L1 and shared memory
    barrier: float = 33.0  # cycles of a barrier after the last arrival
    power: float = 1.963  # exponent for the parts of a wave: 1 is their sum, infinity their maximum
    launch: float = 2.146  # us of a launch in addition to an empty one


@dataclass(frozen=True)
class Card:
    """A GPU. Sizes are bytes; `empty`: us of an empty kernel between two events; `measured`: whether the fit had it.

    `halves`: the number of parts of L2, each of which caches what the multiprocessors near it read.
    """

    gpu: Gpu = field(repr=False)
    l2: float
    l1: int
    empty: float
    measured: bool
    halves: int
    constants: Constants = field(default=Constants(), repr=False)
    calibrated: bool = False

    @property
    def name(self) -> str:
        return self.gpu.name

    def cycles(self, pipe: str) -> float:
        """Cycles of a multiprocessor for one warp instruction."""
        gpu, integers = self.gpu, {"imad": 0.5, "alu": 0.5, "xu": 2.0, "branch": 0.5}
        rate = 2 * gpu.clock * gpu.multiprocessors * 32
        return ({"fma": rate / gpu.float32, "fp64": rate / gpu.float64} | integers)[pipe]


#: L2 as the data sheet has it, of which a launch holds 0.8; the first level with shared memory, from the CUDA
#: Programming Guide; us of an empty kernel, recorded of the first two and assumed of the others; parts of L2 (white
#: papers of the A100 and later; other chips have one).
_L2_SHARE = 0.8
_ROWS = (
    ("h100", 50 * MIB, 256 * KIB, 1.22, True, 2),  # white paper of the H100: 50 MB
    ("h200", 50 * MIB, 256 * KIB, 1.34, True, 2),  # the same chip
    ("a100", 40 * MIB, 192 * KIB, 1.5, False, 2),  # white paper of the A100: 40 MB
    ("b200", 126 * MIB, 256 * KIB, 1.5, False, 2),  # device query of a B200: 126 MB
    ("rtx4090", 72 * MIB, 128 * KIB, 1.5, False, 1),  # white paper of the Ada architecture: 72 MB
    ("l4", 48 * MIB, 128 * KIB, 1.5, False, 1),  # data sheet of the L4: 48 MB
    ("t4", 4 * MIB, 96 * KIB, 1.5, False, 1),  # white paper of the Turing architecture: 4 MB
)
CARDS = {
    name: Card(GPUS[name], _L2_SHARE * l2, l1, empty, measured, halves)
    for name, l2, l1, empty, measured, halves in _ROWS
}


def card_named(name: str) -> Card:
    """The card of a name such as ``"h100"``, with the figures that were measured here if there are any."""
    found = CARDS.get(gpu_named(name).name)
    if found is None:
        raise ValueError(f"device is {name!r}, for which there are no estimates; pass one of {', '.join(CARDS)}")
    figures = cache.get(_key(found.name))
    return calibrated(found, json.loads(figures)) if figures else found


def calibrated(card: Card, figures: dict[str, float]) -> Card:
    """The card with figures that were measured: those of `Constants` by their names, and ``empty``."""
    figures = dict(figures)
    empty = figures.pop("empty", card.empty)
    return replace(card, empty=empty, constants=replace(card.constants, **figures), calibrated=True)


def store(card: Card, figures: dict[str, float]) -> None:
    """Keep what was measured."""
    cache.put(_key(card.name), json.dumps(figures).encode())


def _key(name: str) -> str:
    return f"calibration-{name}"
