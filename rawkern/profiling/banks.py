"""Banks of shared memory: how many wavefronts a warp's addresses take, and the row pitch that minimizes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

BANKS = 128  # bytes in all banks of shared memory
LANES = 32


def wavefronts(lanes: Mapping[int, int], size: int) -> tuple[int, int]:
    """Wavefronts of a request of `size` bytes a lane, at offsets by lane, and the number without bank conflicts."""
    parts = max(1, size // 4)
    width, total, ideal, before = LANES // parts, 0, 0, None
    for part in range(parts):
        own = {k: at for k, at in lanes.items() if k // width == part}
        units = {at // max(size, 4) for at in own.values()}
        banks: dict[int, int] = {}
        for unit in units:
            banks[unit % width] = banks.get(unit % width, 0) + 1
        if own:
            total, ideal = total + max(banks.values()), ideal + 1
            if part % 2 and before:
                both = before | own
                merged = any(all(both.get(k ^ step, at) == at for k, at in both.items()) for step in (1, 2))
                total, ideal = total - merged, ideal - merged
        before = own
    return total, ideal


@dataclass(frozen=True)
class Rows:
    """Lanes in rows of `width`: bytes from lane to lane, and from row to row."""

    lanes: Mapping[int, int]
    width: int
    step: int
    row: int

    def padded(self, pitch: int, wider: int) -> dict[int, int]:
        """The offsets where rows of the array that are `pitch` bytes apart are `wider` bytes apart."""
        if self.row == self.width * self.step and self.row != pitch:  # contiguous, from an index without rows
            return dict(self.lanes)
        step, row = (round(each / pitch) * (wider - pitch) + each for each in (self.step, self.row))
        return {k: k % self.width * step + k // self.width * row for k in self.lanes}


def rows_of(lanes: Mapping[int, int], width: int) -> Rows | None:
    """The lanes in rows of the block, `width` threads each, if all steps are equal; else None."""
    width = min(width, LANES)
    if len(lanes) < LANES or LANES % width:
        return None
    found = Rows(lanes, width, lanes[1] - lanes[0] if width > 1 else 0, lanes[width] - lanes[0] if width < LANES else 0)
    alike = all(lanes[0] + k % width * found.step + k // width * found.row == at for k, at in lanes.items())
    return found if alike else None


Request = tuple[Mapping[int, int], int, int]  # lanes, bytes per lane, number of such requests


def pitch_of(rows: Rows, size: int) -> int:
    """Bytes from row to row of the array, along whose columns or rows the lanes run; 0 where they run along neither."""
    pitch = abs(rows.step) if abs(rows.step) > size else abs(rows.row)
    return pitch if pitch > size else 0


def best_pitch(pitch: int, width: int, requests: Sequence[Request]) -> tuple[int, float]:
    """The pitch for which requests to an array take the fewest wavefronts, and the remaining factor over the ideal."""
    word = max(4, *(size for _, size, _ in requests))
    found = [(rows_of(lanes, width), lanes, size, times) for lanes, size, times in requests]

    def taken(wider: int) -> tuple[int, int]:
        counts = [
            (times * total, times * ideal)
            for rows, lanes, size, times in found
            for total, ideal in [wavefronts(rows.padded(pitch, wider) if rows else lanes, size)]
        ]
        return sum(total for total, _ in counts), sum(ideal for _, ideal in counts)

    wider = range((pitch // word + 1) * word, pitch + BANKS + 1, word)
    best = min((pitch, *wider), key=lambda one: (taken(one)[0], one))
    total, ideal = taken(best)
    return best, total / ideal
