"""The model: what a block needs of each resource of a GPU, and how long a launch of them takes.

A multiprocessor holds a wave of blocks. The wave lasts as long as one block that is alone, by what its warps wait for
(`chains`), or as long as its blocks together occupy the busiest resource; in between, where both count, the sum of
their powers is taken. Waves follow each other; atomics at one address and starts of blocks bound the launch as a whole.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rawkern.base import gpus
from rawkern.estimation.caches import Shared, Traffic, block_numbers, clusters, traffic_of
from rawkern.estimation.cards import Card
from rawkern.estimation.chains import lone_times, schedules
from rawkern.estimation.evidence import Evidence
from rawkern.estimation.machine import Cost, cost, costs
from rawkern.launch.occupancy import occupancy
from rawkern.profiling.banks import wavefronts

GRANULE, SECTOR = 64, 32  # bytes that memory, and caches, move at a time
_SHARED, _L1 = 29.0, 33.0  # cycles until a load's value is there (Luo et al. 2024)
_ALONE, _SWAP = 1.0, 60.0  # cycles of a lane's update in shared memory, and of a loop that compares and swaps
_UPDATES = ("updates", "reduces")
_SECTOR_BITS, _UNIT_BITS = 5, 9  # of a sector, and of memory that one unit of L2 updates


@dataclass
class Needs:
    """What one block needs, however fast a GPU is: warp instructions by pipe, cycles, sectors; averages of those run.

    `hottest`: the longest rows of updates: steps of one unit of L2, and of floating-point numbers at one address.
    `counts`: how often the chain of a block's warps runs through each block of code. `operations`: float32 and float64
    ones of the launch, by lane.
    """

    e: Evidence = field(repr=False)
    resident: int  # blocks on a multiprocessor at a time
    share: float  # of a multiprocessor's warps that these are
    pipes: dict[str, float]
    shared: float  # cycles of shared memory
    tags: float  # cycles of the first level for requests to global memory, and of what goes the same way
    barriers: float
    traffic: Traffic
    hottest: tuple[float, float]
    counts: list[float]
    accesses: dict[tuple[int, int], dict[str, Any]]  # by block of code and instruction
    weights: dict[int, tuple[float, float, float, float]]  # of each instruction: issues, cycles of L1, sectors, waits
    operations: tuple[float, float]
    costs: list[list[Cost]]  # of instructions, by block of code
    orders: list[list[int]]  # of instructions in machine code, by block of code
    lone: dict[float, list[float]] = field(default_factory=dict, repr=False)  # cycles by what loads wait for

    @property
    def issues(self) -> float:
        return sum(self.pipes.values())


def needs_of(e: Evidence, card: Card) -> Needs:
    """Add up what the blocks that were run did."""
    spec = gpus.specification(card.gpu.arch)
    assert spec is not None
    found = occupancy(
        spec, e.threads, registers=e.registers, shared=e.shared, barriers=e.barriers, max_threads=e.max_threads
    )
    resident = max(1, found.blocks)
    pipes: dict[str, float] = {}
    of_shared = tags = barriers = 0.0
    counts, accesses, slots, weights = [], {}, {}, {}
    operations = {"f": 0.0, "d": 0.0}
    at, every = 0, costs(e.blocks)
    for number, block in enumerate(e.blocks):
        rows = e.instructions[at : at + len(block["instructions"])]
        warps = rows[0]["warps"] / e.ran if rows else 0.0
        counts.append(max(warps / e.warps, min(1.0, warps)))
        joined = joins(block, rows)
        for k, one in enumerate(rows):
            text, known = one["ptx"], every[number][k]
            share, taken = joined.get(k, (1.0, None))
            for pipe, count in known.pipes:
                pipes[pipe] = pipes.get(pipe, 0.0) + count * warps * share
            barriers += warps / e.warps * text.startswith("bar")
            cycles = warps * text.startswith("shfl")
            for access in one["accesses"]:
                slots[access["at"]] = accesses[number, k] = access | {"floating": _floating(text)}
                if access["shared"]:
                    own = access["wavefronts"] if taken is None else taken * access["shared"]
                    if access["what"] in _UPDATES:
                        own += access["meets"] * (_SWAP / 8 if _floating(text) else _ALONE)
                    of_shared += own / e.ran
                    cycles += own / e.ran
                else:
                    cycles += max(access["lines"], access["requests"], access["sectors"] / 4) / e.ran
            tags += cycles
            sectors = sum(access["sectors"] for access in one["accesses"]) / e.ran
            weights[at + k] = (known.issues * warps * share, cycles, sectors, known.latency * warps)
            if one["float"][:1] in operations:
                operations[one["float"][0]] += one["lanes"] * (2 if one["float"].endswith("fma") else 1)
        at += len(rows)
    tags -= of_shared
    kept = resident * (e.shared + (spec.reserved if e.shared else 0))
    room = max(card.l1 - kept, 8 << 10) * 0.9
    traffic = traffic_of(e, slots, room, min(resident, e.count), card.gpu.multiprocessors)
    scale = e.count / e.ran
    return Needs(
        e, resident, found.share, pipes, of_shared, tags, barriers, traffic, _hottest(e, slots),
        counts, accesses, weights, (operations["f"] * scale, operations["d"] * scale), every,
        schedules(e.blocks, every),
    )  # fmt: skip


def _floating(text: str) -> bool:
    """Whether an atomic adds floating-point numbers, which for shared memory is a loop in machine code."""
    return text.split(".")[-1] in ("f32", "f64", "f16", "f16x2", "bf16", "bf16x2") and ".add" in text


def joins(block: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> dict[int, tuple[float, float]]:
    """Loads of shared memory that ptxas makes one wider load of: for each its share of that, and of its wavefronts.

    They are contiguous from one register on, and their address is a multiple of the width as far as is known.
    """
    groups: dict[tuple[str, int], dict[int, int]] = {}
    stores = 0
    for k, one in enumerate(rows):
        words, address = one["ptx"].split("."), block["addresses"][k]
        stores += words[0] in ("st", "bar", "barrier", "atom", "red")
        if words[:2] == ["ld", "shared"] and len(words) == 3 and words[2][1:] == "32" and address and one["accesses"]:
            groups.setdefault((address[0], stores), {})[address[1]] = k
    found: dict[int, tuple[float, float]] = {}
    for offsets in groups.values():
        for width in (4, 2):
            for offset in sorted(offsets):
                parts = [k for j in range(width) if (k := offsets.get(offset + 4 * j, -1)) >= 0 and k not in found]
                access = rows[offsets[offset]]["accesses"][0]
                if offset % (4 * width) or len(parts) < width or not access["shared"]:
                    continue
                lanes = access["lanes"] or {k: access["low"] * k for k in range(32)}
                if not any(at % (4 * width) for at in lanes.values()):
                    taken = wavefronts(lanes, 4 * width)[0]
                    found |= dict.fromkeys(parts, (1 / width, taken / width))
    return found


def _hottest(e: Evidence, slots: Mapping[int, Mapping[str, Any]]) -> tuple[float, float]:
    """The longest rows of updates in all blocks: of one piece of L2, and of floating-point numbers at one address.

    A unit of L2 does a request's updates of one sector in as many steps as one of its addresses has updates. Integers
    that a warp adds to one address are added up before.
    """
    most, longest = 0.0, 0.0
    near = clusters(block_numbers(e), e) if len(e.rows) else e.rows
    for slot, access in slots.items():
        chosen = e.rows[:, 0] >> 32 == slot
        rows = e.rows[chosen]
        if access["what"] not in _UPDATES or not len(rows):
            continue
        active = (rows[:, 1, None] >> np.arange(32)) & 1 == 1
        addresses = rows[:, 3:]
        if not access["floating"]:
            first = addresses[np.arange(len(rows)), active.argmax(1)]
            same = ((addresses == first[:, None]) | ~active).all(1)
            active[same] &= np.arange(32) == active[same].argmax(1)[:, None]
        request, _ = np.nonzero(active)
        touched, address = np.unique(addresses[active], return_inverse=True)
        keys, times = np.unique(request * len(touched) + address, return_counts=True)
        pairs = np.stack([keys // len(touched), touched[keys % len(touched)]])
        begins = np.flatnonzero(np.any(np.diff(pairs >> np.array([[0], [_SECTOR_BITS]]), prepend=-1), axis=0))
        steps = np.maximum.reduceat(times, begins)
        where = near[chosen]
        most = max(most, _busiest(e, pairs[1, begins] >> _UNIT_BITS, steps, where[pairs[0, begins]]))
        if access["floating"]:
            longest = max(longest, _busiest(e, pairs[1], times, where[pairs[0]]))
    return most, longest


def _busiest(e: Evidence, place: np.ndarray, steps: np.ndarray, cluster: np.ndarray) -> float:
    """The most steps of one place in the launch; a place that blocks far apart share is all blocks'."""
    at, which = np.unique(place, return_inverse=True)
    total = np.bincount(which, steps)
    rank = np.unique(cluster, return_inverse=True)[1]
    shared = np.bincount(np.unique(which + rank * len(at)) % len(at), minlength=len(at)) > 1
    return float((total * np.where(shared, e.count / e.ran, 1.0)).max())


@dataclass(frozen=True)
class Times:
    """Seconds of a launch, and what each resource alone would take; of a block's chain, for each block of code."""

    seconds: float
    parts: dict[str, float]
    tail: float  # how many times the blocks of an average multiprocessor the busiest one has
    chain: list[float] = field(repr=False)
    dram: float  # bytes


def time_of(n: Needs, card: Card, cold: bool) -> Times:
    """How long the launch takes, and by what."""
    e, p, clock = n.e, card.constants, card.gpu.clock
    sms, count = card.gpu.multiprocessors, e.count
    active, most = min(sms, count), -(-count // sms)
    resident = min(n.resident, most)
    read, dram = _memory(n, card, cold, active * resident)
    chain, alone = _alone(n, card, read)
    t = n.traffic
    pipes = {name: cycles * card.cycles(name) for name, cycles in n.pipes.items() if name != "lsu"}
    use = {f"{name} pipe": cycles / p.issue for name, cycles in pipes.items()}
    use["instruction issue"] = n.issues / gpus.PARTITIONS / p.issue
    parts = resident * e.warps / gpus.PARTITIONS  # warps of one part of a multiprocessor
    uneven = math.ceil(parts) / parts if parts < 8 else 1.0
    compute = {name: cycles * uneven for name, cycles in use.items()}
    first = {"shared memory": n.shared / p.l1, "L1": n.tags / p.l1}
    written = t.written + t.partial * (p.partial - 1) + t.updated * p.partial
    rest = {
        "L2": max((t.read + written) * active / sms / p.l2_sectors, (t.read + t.written) / 2, t.lines / p.l2_lines),
        "memory": dram / count * active / (card.gpu.memory * p.dram_share) * clock,
    }
    together = (max(compute.values()), sum(first.values()), *rest.values())
    wave = (alone**p.power + sum((resident * x) ** p.power for x in together)) ** (1 / p.power)
    starts = p.block_interval * 1e-9 * clock * active
    wave = (wave**8 + (resident * starts) ** 8) ** 0.125
    hot = max(n.hottest[0] * p.step, n.hottest[1] * p.hot) * 1e-9
    names = compute | first | rest | {"launch of blocks": starts}
    found = {name: most * cycles / clock for name, cycles in names.items()}
    found |= {"latency": most / resident * alone / clock, "atomics at one address": hot}
    seconds = (card.empty + p.launch) * 1e-6 + max(most / resident * wave / clock, hot)
    return Times(seconds, found, most * sms / count if count > sms else 1.0, chain, dram)


def _memory(n: Needs, card: Card, cold: bool, at_once: int) -> tuple[float, float]:
    """Bytes that are read from memory, and the time of all that move, in equivalents of contiguous bytes.

    `at_once`: blocks that run at a time.
    """
    t, p = n.traffic, card.constants
    total, own_bytes = GRANULE * t.footprint, GRANULE * t.own
    stays = 0.0 if cold else max(0.0, min(1.0, 2 - total / card.l2))  # in L2, from the launch before

    def lost(window: float, room: float) -> float:
        return 0.0 if window <= room else 1 - room / window

    def moved(pieces: Collection[Shared], price: float) -> float:
        found = 0.0
        for x in pieces:
            fill, own = (1 + x.scattered * (each - 1) for each in (p.scattered, price))
            again = x.revisits * lost(min(total, x.gap * own_bytes), card.l2 / card.halves) * min(1.0, x.gap / at_once)
            found += again * (own + x.partial * fill) + (1 - stays) * x.distinct * (own + x.unfilled * fill)
        return GRANULE * found

    around = SECTOR * t.again * n.e.count * lost(at_once * GRANULE * t.own_reads, card.l2)
    reads, writes = t.reads.values(), t.writes.values()
    read = around + moved(reads, 1.0)
    return read, around + moved(reads, p.scattered) + moved(writes, p.scattered_writes)


def _alone(n: Needs, card: Card, read: float) -> tuple[list[float], float]:
    """Cycles of a block that has a multiprocessor for itself: by block of code, and all."""
    e, t, p = n.e, n.traffic, card.constants
    missed = SECTOR * t.read * e.count
    beyond = p.l2_latency + (min(1.0, read / missed) if missed else 0.0) * p.dram_latency

    def latency(number: int, k: int, text: str) -> float:
        access = n.accesses.get((number, k))
        if access is None or text.startswith(("st", "red")):
            return cost(text).latency
        if access["shared"] or access["space"] == "shared":
            waits = _SHARED + access["wavefronts"] / max(1, access["shared"]) - 1
            if access["what"] in _UPDATES:
                waits += access["meets"] / max(1, access["shared"]) * (_SWAP if _floating(text) else _ALONE)
            return waits
        if access["space"] in ("local", "const", "param"):
            return _L1
        if access["what"] in _UPDATES:
            return beyond if access["what"] == "updates" else 0.0
        hit = t.hits.get(access["at"], 0.0)
        return hit * _L1 + (1 - hit) * beyond + access["lines"] / max(1, access["requests"]) - 1

    if (lone := n.lone.get(beyond)) is None:  # fits ask often
        lone = n.lone[beyond] = lone_times(e.blocks, n.costs, n.orders, latency)
    chain = [cycles * count for cycles, count in zip(lone, n.counts, strict=True)]
    return chain, sum(chain) + n.barriers * p.barrier + p.block_latency + p.warp_latency * e.warps


def roofline(n: Needs, card: Card) -> float:
    """Seconds by the plainest of models: bytes by the data sheet's bandwidth, operations by its rate."""
    single, double = n.operations
    return max(GRANULE * n.traffic.footprint / card.gpu.memory, single / card.gpu.float32, double / card.gpu.float64)
