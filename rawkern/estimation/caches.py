"""What caches hold of the requests that were written down, what goes on to the next level, and what blocks share.

Reuse times tell hits (Xiang et al. 2013, "HOTL: a Higher Order Theory of Locality"): a cache holds what as many
accesses touch as have just its size for a footprint.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from rawkern.estimation.evidence import Evidence

SECTOR, GRANULE, LINE = 5, 6, 7  # bits: of a sector, of what memory moves at a time, of a line
_KEY = 40  # bits of the number of a sector or granule, below that of one of the blocks that were run
_PLACE = (1 << _KEY) - 1
_NEAR = 4  # bits: of contiguous granules: memory reads several for less than the cost of each


@dataclass
class Requests:
    """The sectors of all rows, in the order in which a multiprocessor would ask for them."""

    row: np.ndarray  # of each sector, which request it belongs to
    sector: np.ndarray
    lanes: np.ndarray  # how many of the request's lanes
    slot: np.ndarray  # of each request: its access
    warp: np.ndarray
    block: np.ndarray


def block_numbers(e: Evidence) -> np.ndarray:
    """The block of each request."""
    x, y, z = e.rows[:, 1] >> 32, e.rows[:, 2] & 0xFFFFFFFF, e.rows[:, 2] >> 32
    return x + e.grid[0] * (y + e.grid[1] * z)


def requests_of(e: Evidence) -> Requests:
    """Addresses to sectors, as a GPU places them, with requests of a block's warps by turns."""
    rows = e.rows
    slot, warp = rows[:, 0] >> 32, rows[:, 0] & 0xFFFFFFFF
    mask, block = rows[:, 1] & 0xFFFFFFFF, block_numbers(e)
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


def distinct_of(keys: np.ndarray) -> np.ndarray:
    """Sorted, each once; where there are millions, several times as fast as numpy's table of hashes."""
    keys = np.sort(keys)
    return keys[np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]])[: len(keys)])]


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


@dataclass(frozen=True)
class Shared:
    """What blocks touch of one piece of memory, in granules: `own` ones of each block, `distinct` ones of the launch.

    `revisits`: how often a neighborhood of blocks touches one that another has touched; about `gap` blocks later, as
    they are numbered. `scattered`: share of the granules that a neighborhood touches without the other half of their
    line. `partial`: share of the sectors that a neighborhood writes in part; `unfilled`: of those that all do.
    """

    own: float
    distinct: float
    revisits: float
    gap: float
    scattered: float
    partial: float
    unfilled: float


@dataclass(frozen=True)
class Traffic:
    """What a block's requests to global memory come to, and what blocks share.

    `hits`: share of the sectors of each access that the first level holds. Sectors of a block that go on from there:
    `read`, `again` those of them that the block has read before, `written`, of those `partial` ones that a request
    writes in part, and `updated` by atomics. `lines`: of 128 bytes, one for each request whose sectors are `read`.
    `own`: granules that a block touches.
    """

    hits: dict[int, float]
    read: float
    again: float
    written: float
    partial: float
    updated: float
    lines: float
    own: float
    reads: dict[int, Shared]  # by the number of the piece of memory
    writes: dict[int, Shared]

    @property
    def own_reads(self) -> float:
        """Granules that a block reads."""
        return sum(one.own for one in self.reads.values())

    @property
    def footprint(self) -> float:
        """Granules that the launch touches, about: those that are read and written as well count twice."""
        return sum(one.distinct for one in (*self.reads.values(), *self.writes.values()))


def traffic_of(e: Evidence, accesses: dict[int, dict], capacity: float, resident: int, sms: int) -> Traffic:
    """Replay; `capacity`: bytes of the first level, which so many `resident` blocks of a multiprocessor share."""
    r = requests_of(e)
    kinds = {"reads": 0, "copies": 0, "writes": 1, "updates": 2, "reduces": 2}
    what, size = np.zeros(max([*accesses, 0]) + 1, int), np.ones(max([*accesses, 0]) + 1, int)
    for slot, access in accesses.items():
        what[slot], size[slot] = kinds.get(access["what"], 0), access["size"]
    slots, block = r.slot[r.row], r.block[r.row]
    kind, granule = what[slots], r.sector >> (GRANULE - SECTOR)
    written_bytes = np.where(kind == 1, r.lanes * size[slots], 1 << SECTOR)
    reads, writes = (_shared(e, block, r.sector, written_bytes, chosen) for chosen in (kind == 0, kind != 0))
    misses = np.ones(len(r.row))  # how likely each sector goes on
    loads = np.flatnonzero(kind == 0)
    kept = _kept(e, reads, capacity, sms)[_pieces(e, granule)]
    again = 0
    for one in distinct_of(block[loads]):
        mine = loads[block[loads] == one]
        missed = ~held(r.sector[mine], capacity / resident / 32)
        first = previous(r.sector[mine]) < 0
        misses[mine] = np.where(first, 1 - kept[mine], missed)
        again += int((missed & ~first).sum())
    hits = {int(slot): float(1 - misses[slots == slot].mean()) for slot in distinct_of(slots)}
    partial = (kind == 1) & (r.lanes * size[slots] < 32)
    written, part, updated = (float(n.sum()) / e.ran for n in (kind == 1, partial, kind == 2))
    ranks = np.unique(block, return_inverse=True)[1]
    own = len(distinct_of(granule + (ranks << _KEY))) / e.ran
    read = float(misses[loads].sum()) / e.ran
    lines = _lines(r.row[loads], r.sector[loads] >> (LINE - SECTOR), misses[loads]) / e.ran
    return Traffic(hits, read, again / e.ran, written, part, updated, lines, own, reads, writes)


def _lines(row: np.ndarray, line: np.ndarray, misses: np.ndarray) -> float:
    """Lines that requests go on for: each as likely as the likeliest of its sectors."""
    if not len(row):
        return 0.0
    begins = np.flatnonzero(np.concatenate([[True], (row[1:] != row[:-1]) | (line[1:] != line[:-1])]))
    return float(np.maximum.reduceat(misses, begins).sum())


def _kept(e: Evidence, reads: dict[int, Shared], capacity: float, sms: int) -> np.ndarray:
    """For each piece of memory, how likely the first level still has what a block reads, from blocks before it."""
    found = np.zeros(len(e.ranges) + 1)
    for piece, x in reads.items():
        blocks = max(1.0, e.count / sms)  # of a multiprocessor
        visits = (x.distinct + x.revisits) / x.distinct / min(sms, e.count)  # of a granule, by them
        between = x.distinct / x.own  # blocks from one to the next
        window = 64 * sum(min(other.distinct, between * other.own) for other in reads.values())
        first = (1 - (1 - min(1.0, visits / blocks)) ** blocks) / visits  # share of visits, were they at random
        found[piece] = max(0.0, 1 - first) * min(1.0, capacity / window)
    return found


def _pieces(e: Evidence, granule: np.ndarray) -> np.ndarray:
    """The number of the piece of memory that each granule is in."""
    return np.searchsorted(np.cumsum([-(-size // 512) * 8 for _, size in e.ranges]), granule, "right")


def clusters(block: np.ndarray, e: Evidence) -> np.ndarray:
    """The first of the neighbors that were run with each block."""
    ids = distinct_of(block)
    wide = e.grid[0] if e.grid[1] > 1 and e.grid[0] > 1 else 2
    starts = list(ids[:1])
    for one in ids[1:]:
        if one - starts[-1] > wide + 1:
            starts.append(one)
    return np.array(starts)[np.searchsorted(np.array(starts), block, "right") - 1]


def _shared(
    e: Evidence, block: np.ndarray, sector: np.ndarray, size: np.ndarray, chosen: np.ndarray
) -> dict[int, Shared]:
    """What blocks touch, by the number of the piece of memory; `size`: bytes that each request writes of a sector."""
    if not chosen.any():
        return {}
    granule, near = sector[chosen] >> (GRANULE - SECTOR), clusters(block[chosen], e)
    firsts, rank = np.unique(near, return_inverse=True)
    both = distinct_of(granule + (rank << _KEY))
    order = np.argsort(both & _PLACE, kind="stable")
    pair = np.stack([both & _PLACE, firsts[both >> _KEY]])[:, order]
    regions = (both & _PLACE) >> _NEAR | both >> _KEY << _KEY
    _, region, members = np.unique(regions[order], return_inverse=True, return_counts=True)
    alone = members[region] == 1
    share = e.ran / e.count
    where = _pieces(e, pair[0])
    own = distinct_of(granule + (np.unique(block[chosen], return_inverse=True)[1] << _KEY)) & _PLACE
    of_piece = np.bincount(_pieces(e, own), minlength=len(e.ranges) + 1) / e.ran
    place, which = np.unique(sector[chosen] + (rank << _KEY), return_inverse=True)
    filled = np.bincount(which, size[chosen])
    of_sector = _pieces(e, (place & _PLACE) >> (GRANULE - SECTOR))
    found = {}
    for k in distinct_of(where):
        mine, cluster = pair[:, where == k]
        seen, visits = len(distinct_of(mine)), len(mine) / share
        distinct = seen / -np.expm1(-_rate(len(mine) / seen)) if len(mine) > 1.001 * seen else visits
        distinct = seen if e.ran >= e.count else min(distinct, visits, e.ranges[k][1] / 64 + 1)
        same = mine[1:] == mine[:-1]
        if same.any():
            span = min(float(e.count), 3 * float(np.diff(cluster)[same].mean()))
        else:  # clusters that touch memory at random meet; those that do not meet share with their neighbors alone
            span = float(e.count if len(mine) ** 2 < 6 * distinct else 2 * e.grid[0])
        full, often = filled[of_sector == k], visits / distinct
        partial, unfilled = (float((full * times < 1 << SECTOR).mean()) for times in (1, often))
        lonely, gap = alone[where == k].mean(), span * distinct / visits
        numbers = of_piece[k], distinct, visits - distinct, gap, lonely, partial, unfilled
        found[int(k)] = Shared(*map(float, numbers))
    return found


def _rate(ratio: float) -> float:
    """The rate of a Poisson process whose mean is `ratio` where it is not zero."""
    low, high = 1e-9, 2 * ratio
    for _ in range(60):
        rate = (low + high) / 2
        low, high = (rate, high) if rate / -np.expm1(-rate) < ratio else (low, rate)
    return low
