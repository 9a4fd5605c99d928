"""What caches hold of the requests that were written down: hits of the first level, sectors that go on to the second one,
and how much memory blocks share.

Reuse times tell hits (Xiang et al. 2013, "HOTL: a Higher Order Theory of Locality"): a cache holds what as many accesses
touch as have just its size for a footprint.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from rawkern.estimation.evidence import Evidence

SECTOR, GRANULE = 5, 6  # bits: of a sector, and of what memory moves at a time


@dataclass
class Requests:
    """The sectors of all rows, in the order in which a multiprocessor would ask for them."""

    row: np.ndarray  # of each sector, which request it belongs to
    sector: np.ndarray
    lanes: np.ndarray  # how many of the request's lanes
    slot: np.ndarray  # of each request: its access
    warp: np.ndarray
    block: np.ndarray


def requests_of(e: Evidence) -> Requests:
    """Addresses to sectors, as a GPU places them, with requests of a block's warps by turns."""
    rows = e.rows
    slot, warp = rows[:, 0] >> 32, rows[:, 0] & 0xFFFFFFFF
    mask, x = rows[:, 1] & 0xFFFFFFFF, rows[:, 1] >> 32
    y, z = rows[:, 2] & 0xFFFFFFFF, rows[:, 2] >> 32
    block = x + e.grid[0] * (y + e.grid[1] * z)
    order = _by_turns(block, warp)
    slot, warp, mask, block, addresses = slot[order], warp[order], mask[order], block[order], rows[order, 3:]
    active = (mask[:, None] >> np.arange(32)) & 1 == 1
    starts = np.array([start for start, _ in e.ranges], np.int64)
    ends = np.array([start + size for start, size in e.ranges], np.int64)
    which = np.clip(np.searchsorted(starts, addresses, "right") - 1, 0, None)
    inside = active & (addresses >= starts[which]) & (addresses < ends[which])
    # Each range begins where the one before has ended, aligned as a GPU's allocations are.
    sizes = -(-(ends - starts) // 512) * 512
    places = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    sectors = np.where(inside, (addresses - starts[which] + places[which]) >> SECTOR, -1)
    sectors.sort(1)
    first = np.ones(sectors.shape, bool)
    first[:, 1:] = sectors[:, 1:] != sectors[:, :-1]
    row, column = np.nonzero(first & (sectors >= 0))
    after = np.append(32 * row[1:] + column[1:], 32 * len(rows))
    lanes = np.minimum(after, 32 * row + 32) - 32 * row - column
    return Requests(row, sectors[row, column], lanes, slot, warp, block)


def _by_turns(block: np.ndarray, warp: np.ndarray) -> np.ndarray:
    """Rows of a block's warps one after the other, to rows in which they take turns; blocks stay apart."""
    order = np.lexsort((warp, block))
    key = block[order] * (1 << 12) + warp[order]
    begins = np.flatnonzero(np.concatenate([[True], key[1:] != key[:-1]])) if len(key) else np.zeros(0, int)
    lengths = np.diff(np.concatenate([begins, [len(key)]]))
    turn = np.arange(len(key)) - np.repeat(begins, lengths)
    return order[np.lexsort((warp[order], turn, block[order]))]


def previous(key: np.ndarray) -> np.ndarray:
    """For each element the place of the last one before that is equal; -1 where it is the first."""
    order = np.argsort(key, kind="stable")
    found = np.full(len(key), -1)
    same = key[order][1:] == key[order][:-1]
    found[order[1:][same]] = order[:-1][same]
    return found


def held(key: np.ndarray, capacity: float) -> np.ndarray:
    """Which accesses find what they touch in a cache that holds `capacity` of it."""
    n, before = len(key), previous(key)
    at = np.arange(n)
    again = before >= 0
    distinct = n - int(again.sum())
    if distinct <= capacity:
        return again
    time = np.where(again, at - before, 0)
    last = np.ones(n, bool)
    last[before[again]] = False
    gaps = np.concatenate([time[again], at[~again] + 1, n - at[last]])  # in which an element is not touched
    counts = np.bincount(gaps, minlength=n + 2)[: n + 2].astype(float)
    # A window of w accesses misses an element (gap - w) times for each gap that is longer.
    above = np.cumsum(counts[::-1])[::-1]
    weighted = np.cumsum((counts * np.arange(len(counts)))[::-1])[::-1]
    w = np.arange(n + 1)
    footprint = distinct - (weighted[w + 1] - w * above[w + 1]) / np.maximum(1, n - w + 1)
    window = int(np.searchsorted(np.maximum.accumulate(footprint), capacity, "right"))
    return again & (time < window)


@dataclass
class Traffic:
    """What a block's requests to global memory come to, and what those of the launch do.

    `hits`: share of the sectors of each access that the first level holds. Sectors of a block that go on from there:
    `read`, `written`, of those `partial` ones that a request writes in part, and `updated` by atomics. Granules of the
    launch: `reads` and `writes` are different ones; `revisits` those that a block reads although blocks which are not
    its neighbours touch them too, beyond the first time; `rewrites` the same of writes.
    """

    hits: dict[int, float]
    read: float
    written: float
    partial: float
    updated: float
    reads: float
    writes: float
    revisits: float
    rewrites: float


def traffic_of(e: Evidence, accesses: dict[int, dict], capacity: float) -> Traffic:
    """Replay; `capacity`: bytes of the first level that a block has for itself."""
    r = requests_of(e)
    kinds = {"reads": 0, "copies": 0, "writes": 1, "updates": 2, "reduces": 2}
    what, size = np.zeros(max([*accesses, 0]) + 1, int), np.ones(max([*accesses, 0]) + 1, int)
    for slot, access in accesses.items():
        what[slot], size[slot] = kinds.get(access["what"], 0), access["size"]
    slots, block = r.slot[r.row], r.block[r.row]
    kind = what[slots]
    missed = np.ones(len(r.row), bool)
    loads = np.flatnonzero(kind == 0)
    for one in np.unique(block[loads]):
        mine = loads[block[loads] == one]
        missed[mine] = ~held(r.sector[mine], capacity / 32)
    hits = {int(slot): float(1 - missed[slots == slot].mean()) for slot in np.unique(slots)}
    partial = (kind == 1) & (r.lanes * size[slots] < 32)
    of_block = [float(n.sum()) / e.ran for n in (missed & (kind == 0), kind == 1, partial, kind == 2)]
    granule, cluster = r.sector >> (GRANULE - SECTOR), _clusters(block, e)
    reads, revisits = _spread(e, cluster, granule, kind == 0)
    writes, rewrites = _spread(e, cluster, granule, kind != 0)
    return Traffic(hits, *of_block, reads, writes, revisits, rewrites)


def _clusters(block: np.ndarray, e: Evidence) -> np.ndarray:
    """Which of the neighbourhoods that were run each block belongs to."""
    ids = np.unique(block)
    wide = e.grid[0] if e.grid[1] > 1 and e.grid[0] > 1 else 2
    starts = list(ids[:1])
    for one in ids[1:]:
        if one - starts[-1] > wide + 1:
            starts.append(one)
    return np.searchsorted(np.array(starts), block, "right")


def _spread(e: Evidence, cluster: np.ndarray, granule: np.ndarray, chosen: np.ndarray) -> tuple[float, float]:
    """How many granules all blocks touch, and how often neighbourhoods touch one that another has touched."""
    if not chosen.any():
        return 0.0, 0.0
    pair = np.unique(np.stack([granule[chosen], cluster[chosen]]), axis=1)
    share, distinct, visits = e.ran / e.count, 0.0, 0.0
    ends = np.cumsum([-(-size // 512) * 8 for _, size in e.ranges])
    where = np.searchsorted(ends, pair[0], "right")
    for k in np.unique(where):
        mine = pair[0, where == k]
        seen, all_visits = len(np.unique(mine)), len(mine) / share
        found = seen / -np.expm1(-_rate(len(mine) / seen)) if len(mine) > 1.001 * seen else all_visits
        found = seen if e.ran >= e.count else min(found, all_visits, e.ranges[k][1] / 64 + 1)
        distinct, visits = distinct + found, visits + all_visits
    return distinct, visits - distinct


def _rate(ratio: float) -> float:
    """The rate of a Poisson process whose mean is `ratio` where it is not zero."""
    low, high = 1e-9, 2 * ratio
    for _ in range(60):
        rate = (low + high) / 2
        low, high = (rate, high) if rate / -np.expm1(-rate) < ratio else (low, rate)
    return low
