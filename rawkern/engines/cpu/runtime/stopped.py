"""Where the warps of a launch are whose workers have all suspended: what is said where it takes too long."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator, Sequence
from itertools import islice

from rawkern.engines.cpu.records import BLOCK, LAUNCH, REASONS, WARP
from rawkern.engines.cpu.runtime.workers import Workers

MOST_PLACES = 8  # that are named
#: What a warp does in each of its states (runtime_warps.ll).
_STATES = ("ready to run", "in a loop that waits for other threads", "at a barrier", "ended")
_COMPUTES = "computing, in a loop"
_BETWEEN = -1  # the warp of a worker that suspends between blocks
_ENDED = 2  # a worker's state


def where(workers: Workers, count: int, sites: Sequence[str]) -> str:
    """What the warps of a launch on `count` workers do at which source lines, most warps first, as lines of text."""
    found: dict[tuple[str, str], list[str]] = {}
    for k in range(count):
        for how, site, warp, block in _of_worker(workers, k):
            line = f": {sites[site]}" if 0 <= site < len(sites) else ""
            found.setdefault((how, line), []).append("warp {} of block ({},{},{})".format(workers.order[warp], *block))
    order = sorted(found.items(), key=lambda item: -len(item[1]))
    lines = [
        f"  {len(warps)} warp{'s' * (len(warps) > 1)} {how}{line} ({warps[0]}{' and others' * (len(warps) > 1)})"
        for (how, line), warps in islice(order, MOST_PLACES)
    ]
    if len(order) > MOST_PLACES:
        lines.append(f"  and {sum(len(warps) for _, warps in order[MOST_PLACES:])} warps elsewhere")
    left, blocks = _not_begun(workers, count)
    if left:
        least = "" if workers.warps else "at least "  # without stacks of their own, several are taken at a time
        lines.append(f"  {least}{left} of {blocks} blocks not begun")
    return "\n".join(lines)


def _of_worker(workers: Workers, k: int) -> Iterator[tuple[str, int, int, tuple[int, int, int]]]:
    """What each warp does that has begun in one of a worker's blocks and not ended: how, site, warp, block."""
    if workers.get(k, "state", "=i") == _ENDED:
        return
    reason = workers.get(k, "reason", "=i")
    current = 0 if reason == REASONS["NEED_BLOCK"] else workers.get(k, "request_block")
    runs = workers.get(k, "request_warp", "=i")
    site = workers.get(k, "request_site", "=i") if reason in (REASONS["SLICE"], REASONS["PRINTF"]) else _BETWEEN
    if current and runs != _BETWEEN:
        how = "printing" if reason == REASONS["PRINTF"] else _COMPUTES
        yield how, site, runs, _index(current)
    if not workers.warps:  # one warp at a time
        return
    for block in dict.fromkeys([current, *_parked(workers, k)]):
        for warp in range(workers.warps if block else 0):
            at = block + BLOCK.size + warp * WARP.size
            state = _int(at + WARP.offset("state"))
            if _STATES[state] != "ended" and (block, warp) != (current, runs):
                waits = state in (1, 2)
                yield _STATES[state], _int(at + WARP.offset("site")) if waits else _BETWEEN, warp, _index(block)


def _parked(workers: Workers, k: int) -> Iterator[int]:
    """A worker's blocks that it has turned away from."""
    block = workers.get(k, "parked_head")
    while block:
        yield block
        block = ctypes.c_uint64.from_address(block + BLOCK.offset("next")).value


def _index(block: int) -> tuple[int, int, int]:
    x, y, z = (_int(block + BLOCK.offset(axis)) for axis in "xyz")
    return x, y, z


def _int(address: int) -> int:
    return ctypes.c_int32.from_address(address).value


def _not_begun(workers: Workers, count: int) -> tuple[int, int]:
    """How many blocks no worker has taken, and how many there are."""
    left = sum(max(workers.get(k, "range_end", "=q") - workers.get(k, "range_next", "=q"), 0) for k in range(count))
    (blocks,) = struct.unpack("=q", ctypes.string_at(workers.launch + LAUNCH.offset("nblocks"), 8))
    return left, blocks
