"""Where the warps of a launch are whose workers have all suspended: what is said where it takes too long."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from rawkern.engines.cpu.records import AT_CLUSTER, BLOCK, LAUNCH, REASONS, WARP, YIELDED
from rawkern.engines.cpu.runtime.workers import Workers

MOST_PLACES = 8  # that are named
#: What a warp does in each of its states (runtime_warps.ll).
_STATES = ("ready to run", "in a loop that waits for other threads", "at a barrier", "ended")
_AT_CLUSTER = "at the barrier of its cluster"
_COMPUTES = "computing, in a loop"
_BETWEEN = -1  # the warp of a worker that suspends between blocks
_ENDED = 2  # a worker's state


#: A warp that has begun and not ended: what it does, at which site, its number, its block.
Warp = tuple[str, int, int, tuple[int, int, int]]


def where(workers: Workers, count: int, sites: Sequence[str]) -> str:
    """What the warps of a launch on `count` workers do at which source lines, most warps first, as lines of text."""
    lines = [_listed(workers, (warp for k in range(count) for warp in _of_worker(workers, k)), sites)]
    left, blocks = _not_begun(workers, count)
    if left:
        least = "" if workers.warps else "at least "  # without stacks of their own, several are taken at a time
        lines.append(f"  {least}{left} of {blocks} blocks not begun")
    return "\n".join(filter(None, lines))


def waiting(workers: Workers, k: int, sites: Sequence[str]) -> str:
    """The same, of the warps of the block of worker `k`'s request and of those of its cluster."""
    blocks = _beside(workers.get(k, "request_block"))
    return _listed(workers, (warp for block in blocks for warp in _of_block(workers, block)), sites)


def _listed(workers: Workers, warps: Iterable[Warp], sites: Sequence[str]) -> str:
    found: dict[tuple[str, str], list[str]] = {}
    for how, site, warp, block in warps:
        line = f": {sites[site]}" if 0 <= site < len(sites) else ""
        found.setdefault((how, line), []).append("warp {} of block ({},{},{})".format(workers.order[warp], *block))
    order = sorted(found.items(), key=lambda item: -len(item[1]))
    lines = [
        f"  {len(warps)} warp{'s' * (len(warps) > 1)} {how}{line} ({warps[0]}{' and others' * (len(warps) > 1)})"
        for (how, line), warps in islice(order, MOST_PLACES)
    ]
    if len(order) > MOST_PLACES:
        lines.append(f"  and {sum(len(warps) for _, warps in order[MOST_PLACES:])} warps elsewhere")
    return "\n".join(lines)


def _of_worker(workers: Workers, k: int) -> Iterator[Warp]:
    """The warps in a worker's blocks."""
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
    for first in dict.fromkeys([current, *_parked(workers, k)]):
        for block in _beside(first):
            yield from _of_block(workers, block, runs if block == current else _BETWEEN)


def _of_block(workers: Workers, block: int, runs: int = _BETWEEN) -> Iterator[Warp]:
    """The warps of a block, but for one."""
    for warp in range(workers.warps):
        at = block + BLOCK.size + warp * WARP.size
        state = _int(at + WARP.offset("state"))
        if _STATES[state] != "ended" and warp != runs:
            waits, cluster = state in (1, 2), state == 2 and _int(at + WARP.offset("barrier")) == AT_CLUSTER
            how = _AT_CLUSTER if cluster else _STATES[state]
            mbarrier = _word(at + WARP.offset("mbarrier"))
            if state == YIELDED and mbarrier:
                how = _at_mbarrier(mbarrier, _word(block + BLOCK.offset("shared")))
            yield how, _int(at + WARP.offset("site")) if waits else _BETWEEN, warp, _index(block)


def _at_mbarrier(at: int, shared: int) -> str:
    """What the phase of an mbarrier still needs, by its bits (`emit/memory/mbarrier`)."""
    word = _word(at)
    pending, tx = word >> 20 & 0xFFFFF, (word >> 43) - (1 << 21 if word >> 63 else 0)
    arrivals = f"{pending} more arrival{'s' * (pending != 1)}"
    what = f"at the mbarrier at byte {at - shared} of shared memory, whose phase needs {arrivals}"
    if tx < 0:
        return f"{what} and got {-tx} more bytes than were expected"
    return f"{what} and {tx} more bytes" if tx else what


def _beside(block: int) -> Iterator[int]:
    """A block and all that began together with it."""
    at = _word(block + BLOCK.offset("first")) if block else 0
    while at:
        yield at
        at = _word(at + BLOCK.offset("beside"))


def _parked(workers: Workers, k: int) -> Iterator[int]:
    """A worker's blocks that it has turned away from."""
    block = workers.get(k, "parked_head")
    while block:
        yield block
        block = _word(block + BLOCK.offset("next"))


def _index(block: int) -> tuple[int, int, int]:
    x, y, z = (_int(block + BLOCK.offset(axis)) for axis in "xyz")
    return x, y, z


def _word(address: int) -> int:
    return ctypes.c_uint64.from_address(address).value


def _int(address: int) -> int:
    return ctypes.c_int32.from_address(address).value


def _not_begun(workers: Workers, count: int) -> tuple[int, int]:
    """How many blocks no worker has taken, and how many there are."""
    left = sum(max(workers.get(k, "range_end", "=q") - workers.get(k, "range_next", "=q"), 0) for k in range(count))
    (blocks,) = struct.unpack("=q", ctypes.string_at(workers.launch + LAUNCH.offset("nblocks"), 8))
    return left, blocks
