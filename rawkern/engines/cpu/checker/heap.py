"""The device heap of checked launches: what kernels get by ``malloc``."""

from __future__ import annotations

import ctypes
import struct
from functools import cache

import numpy as np

from rawkern.arguments.memory import Piece
from rawkern.engines.cpu.checker.native.layout import ENTRY
from rawkern.engines.cpu.runtime.workers import Mapping

HEAP_BYTES, HEAP_PIECES = 16 << 30, 1 << 20  # of the device heap; taken from the system when used


class Heap:
    """The device heap of all checked launches: a launch may free what an earlier one has taken."""

    def __init__(self) -> None:
        self.memory, self.table = Mapping(HEAP_BYTES), Mapping(ENTRY.size * HEAP_PIECES)
        self.next, self.count = self.memory.address, 0

    def follow(self, region: int) -> None:
        """Have the pieces that there are followed in a launch's region."""
        words = (ctypes.c_uint64 * (ENTRY.size // 8 * self.count)).from_address(self.table.address)
        np.ctypeslib.as_array(words)[ENTRY.offset("region") // 8 :: ENTRY.size // 8] = region

    def piece(self, address: int) -> Piece | None:
        """The piece that contains an address or ends before it."""
        best = None
        first, after = 0, self.count
        while first < after:
            middle = (first + after) // 2
            low, high = struct.unpack("=2Q", ctypes.string_at(self.table.address + middle * ENTRY.size, 16))
            if low <= address:
                first, best = middle + 1, (low, high)
            else:
                after = middle
        return Piece("memory from malloc", best[0], best[1] - best[0], 1, False) if best is not None else None


@cache
def heap() -> Heap:
    return Heap()
