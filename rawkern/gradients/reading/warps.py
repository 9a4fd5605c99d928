"""What the lanes of a warp exchange: shuffles, also of parts of a warp, and votes; all as shuffles of whole warps."""

from __future__ import annotations

import re
from typing import Any

from rawkern.base.tree import text_of
from rawkern.gradients import types
from rawkern.gradients.ir import Value
from rawkern.gradients.reading.halves import Halves

FULL = re.compile(r"-1|~0[uU]?|0[xX][fF]{8}[uUlL]*")
SHUFFLES = {"__shfl_xor_sync": "xor", "__shfl_down_sync": "down", "__shfl_up_sync": "up", "__shfl_sync": "idx"}
VOTES = {"__ballot_sync": "|", "__any_sync": "|", "__all_sync": "&"}


class Warps(Halves):
    """Exchanges between lanes."""

    def threads(self) -> int:
        """The threads of a block."""
        x, y, z = self.block_shape
        return x * y * z

    def rank(self, node: Any) -> Value:
        """The number of the thread in its block."""
        rank, before = None, 1
        for axis, extent in zip("xyz", self.block_shape, strict=True):
            if extent == 1:
                continue
            own = self.special(node, "threadIdx", axis)
            own = self.binary(node, "*", own, self.unsigned(node, before)) if before > 1 else own
            rank = own if rank is None else self.binary(node, "+", rank, own)
            before *= extent
        return self.unsigned(node, 0) if rank is None else rank

    def unsigned(self, node: Any, number: int) -> Value:
        return self.value(node, "unsigned int", "const", attr=f"{number}u", const=number)

    def part_of_warp(self, node: Any, width: int) -> Value:
        """The number of the thread in a part of so many lanes."""
        return self.binary(node, "%", self.rank(node), self.unsigned(node, width))

    def warp_call(self, node: Any, name: str, arguments: list[Any]) -> Value | None:
        """What a shuffle or vote returns; None for other calls."""
        if name in SHUFFLES and len(arguments) in (3, 4):
            width = self.scalar(arguments[3]).const if len(arguments) == 4 else 32
            self._whole(node, name, arguments[0])
            if width not in (1, 2, 4, 8, 16, 32):
                raise self.refuse(node, f"{name} of a width that is not known", "use a constant power of two up to 32")
            value, by = self.scalar(arguments[1]), self.converted(node, self.scalar(arguments[2]), "int")
            return self.exchanged(node, SHUFFLES[name], value, by, width)
        if name in VOTES and len(arguments) == 2:
            self._whole(node, name, arguments[0])
            return self._vote(node, name, self.test(arguments[1]))
        return None

    def _whole(self, node: Any, name: str, mask: Any) -> None:
        found = self.scalar(mask)
        if found.const not in (-1, 0xFFFFFFFF) and FULL.fullmatch(text_of(mask)) is None:
            raise self.refuse(node, f"{name} with a mask that is not that of a whole warp", "use 0xffffffff")

    def exchanged(self, node: Any, which: str, value: Value, by: Value, width: int) -> Value:
        """A shuffle; of parts of a warp by one of the warp and a choice."""
        if by.const is not None and not 0 <= by.const < width:
            raise self.refuse(node, f"a shuffle by {by.const} in {width} lanes", f"use 0 to {width - 1}")
        if by.const is None and (which == "idx" or (which == "xor" and width < 32)):
            why = "a shuffle by what is not constant (a lane that is not constant)"
            raise self.unrollable(node, why, "make it a constant, or exchange the values in shared memory")
        whole = self.value(node, value.type, "shfl", (value, by), which)
        if width == 32 or which == "xor":
            return whole
        lane = self.part_of_warp(node, width)
        if which == "idx":
            here = self.binary(node, "==", lane, self.unsigned(node, by.const or 0))
            kind = types.promoted(value.type)
            none = self.converted(node, self.integer(node, 0), kind)
            own = self.value(node, kind, "select", (here, self.converted(node, value, kind), none))
            return self.converted(node, self._over(node, own, "+", width), value.type)
        lane = self.converted(node, lane, "int")
        if which == "down":
            end = self.binary(node, "+", lane, by)
            within = self.binary(node, "<", end, self.integer(node, width))
        else:
            within = self.binary(node, ">=", lane, by)
        return self.value(node, value.type, "select", (within, whole, value))

    def _vote(self, node: Any, name: str, holds: Value) -> Value:
        if self.threads() % 32:
            raise self.refuse(node, f"{name} in a block of no whole warps", "use a multiple of 32 threads")
        if name == "__ballot_sync":
            lane = self.part_of_warp(node, 32)
            bit = self.binary(node, "<<", self.unsigned(node, 1), lane)
            own = self.value(node, "unsigned int", "select", (holds, bit, self.unsigned(node, 0)))
        else:
            own = self.converted(node, holds, "int")
        return self._over(node, own, VOTES[name], 32)

    def _over(self, node: Any, value: Value, sign: str, width: int) -> Value:
        """An operator over so many lanes, for each of them."""
        while width > 1:
            width //= 2
            other = self.value(node, value.type, "shfl", (value, self.integer(node, width)), "xor")
            value = self.binary(node, sign, value, other)
        return value
