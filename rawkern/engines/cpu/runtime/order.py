"""Another order of blocks and warps, by a seed: 0 is from the last to the first."""

from __future__ import annotations

from random import Random

from rawkern.base.records import Filled
from rawkern.base.scoped_setting import ScopedSetting
from rawkern.engines.cpu.records import ORDER

ALL = 1 << 62

WINDOW = 64  # neighbors that are mixed where blocks may wait for each other
EVERYWHERE = ALL
#: The seed that launches have now; None where they run from the first to the last.
seed: ScopedSetting[int | None] = ScopedSetting(None)


def warps(count: int, seed: int) -> tuple[int, ...]:
    """The warps of a block, in the order in which they run: another one than usual, if there are several."""
    usual = list(range(count))
    found, random = usual[::-1], Random(f"warps {seed}")
    while seed and count > 1:
        random.shuffle(found)
        if found != usual:
            break
    return tuple(found)


def blocks(seed: int, window: int) -> Filled:
    """What native code makes the order of blocks from: factors and terms of a scrambling function of their numbers."""
    if not seed:
        return Filled(ORDER, window=window)
    random = Random(f"blocks {seed}")
    odd = {f"factor{k}": random.getrandbits(62) | 1 for k in range(3)}
    return Filled(ORDER, window=window, **odd, **{f"term{k}": random.getrandbits(62) for k in range(3)})
