"""The model: what a launch needs of each resource of a GPU, and how long that takes together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rawkern.base import gpus
from rawkern.estimation.caches import Shared, Traffic, traffic_of
from rawkern.estimation.chains import lone_times
from rawkern.estimation.evidence import Evidence
from rawkern.estimation.machine import cost
from rawkern.launch.occupancy import occupancy
from rawkern.profiling.banks import wavefronts


@dataclass
class Needs:
    """What one block needs, independent of how fast a GPU is; in warp instructions, cycles and sectors."""

    e: Evidence = field(repr=False)
    resident: int  # blocks on a multiprocessor at a time
    pipes: dict[str, float]  # machine instructions of warps, by pipe
    issues: float
    l1: float  # cycles of the first level and of shared memory
    barriers: float  # a warp's
    traffic: Traffic
    hottest: float  # lanes of the launch that update the address which most do
    counts: list[float]  # runs of a warp through each block of code
    accesses: dict[tuple[int, int], list[dict[str, Any]]]  # by block of code and instruction
    meets: float = 0.0


def needs_of(e: Evidence, arch: str, l1_bytes: int) -> Needs:
    spec = gpus.specification(arch)
    assert spec is not None
    found = occupancy(
        spec, e.threads, registers=e.registers, shared=e.shared, barriers=e.barriers, max_threads=e.max_threads
    )
    pipes: dict[str, float] = {}
    l1 = barriers = meets = 0.0
    counts, where, slots = [], {}, {}
    at = 0
    for number, block in enumerate(e.blocks):
        rows = e.instructions[at : at + len(block["instructions"])]
        at += len(rows)
        warps = rows[0]["warps"] / e.ran if rows else 0.0
        counts.append(max(warps / e.warps, min(1.0, warps)))
        joined = joins(block, rows)
        for k, one in enumerate(rows):
            c = cost(one["ptx"])
            share, wavefronts = joined.get(k, (1.0, None))
            for pipe, n in c.pipes:
                pipes[pipe] = pipes.get(pipe, 0.0) + n * warps * share
            if one["ptx"].startswith("bar"):
                barriers += warps / e.warps
            if one["ptx"].startswith("shfl"):
                l1 += warps
            if one["accesses"]:
                where[number, k] = one["accesses"]
            for access in one["accesses"]:
                slots[access["at"]] = access
                l1 += (_l1(access) if wavefronts is None else wavefronts * access["shared"]) / e.ran
                if access["space"] == "shared" and access["what"] in ("updates", "reduces"):
                    meets += access["meets"] / e.ran
    resident = max(1, found.blocks)
    room = max(l1_bytes - resident * (e.shared + (spec.reserved if e.shared else 0)), 8 << 10) * 0.9
    traffic = traffic_of(e, slots, room / min(resident, max(1, e.count)))
    return Needs(
        e, resident, pipes, sum(pipes.values()), l1, barriers, traffic, _hottest(e, slots), counts, where, meets
    )


def joins(block: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> dict[int, tuple[float, float]]:
    """Loads of shared memory that ptxas makes one wider load of: for each its share of that, and of its wavefronts.

    They lie side by side from one register on, and their address is a multiple of the width as far as is known.
    """
    groups: dict[tuple[str, int], dict[int, int]] = {}
    stores = 0
    for k, one in enumerate(rows):
        text, address = one["ptx"], block["addresses"][k]
        if text.startswith(("st.shared", "bar", "atom", "red")):
            stores += 1
        if text in ("ld.shared.f32", "ld.shared.u32", "ld.shared.b32", "ld.shared.s32") and address and one["accesses"]:
            groups.setdefault((address[0], stores), {})[address[1]] = k
    found: dict[int, tuple[float, float]] = {}
    for offsets in groups.values():
        for width in (4, 2):
            for offset in sorted(offsets):
                parts = [offsets.get(offset + 4 * j) for j in range(width)]
                if offset % (4 * width) or None in parts or any(k in found for k in parts):
                    continue
                access = rows[offsets[offset]]["accesses"][0]
                if not access["shared"]:
                    continue
                lanes = access["lanes"] or {k: access["low"] * k for k in range(32)}
                if any(at % (4 * width) for at in lanes.values()):
                    continue
                taken = wavefronts(lanes, 4 * width)[0]
                found |= {k: (1 / width, taken / width) for k in parts if k is not None}
    return found


def _l1(access: Mapping[str, Any]) -> float:
    """Cycles in which the first level is busy with an access."""
    if access["space"] == "shared" or access["shared"]:
        return access["wavefronts"]
    return max(access["lines"], access["requests"], access["sectors"] / 4)


def _hottest(e: Evidence, slots: Mapping[int, Mapping[str, Any]]) -> float:
    updates = [slot for slot, access in slots.items() if access["what"] in ("updates", "reduces")]
    rows = e.rows[np.isin(e.rows[:, 0] >> 32, updates)]
    if not len(rows):
        return 0.0
    active = (rows[:, 1, None] >> np.arange(32)) & 1 == 1
    _, times = np.unique(rows[:, 3:][active], return_counts=True)
    return float(times.max()) * e.count / e.ran


FITTED = {
    "l2_latency": 300.0,
    "dram_latency": 560.0,
    "dram_share": 0.88,
    "l2_sectors": 0.8,
    "partial": 3.0,
    "block_latency": 900.0,
    "block_interval": 0.58e-9,
    "power": 2.5,
    "launch": 1.9e-6,
    "hot": 1.76e-9,
    "issue": 0.97,
    "warp_latency": 13.0,
    "l1": 0.85,
    "barrier": 30.0,
}
#: what a GPU is: multiprocessors, clock, bytes per second, bytes of L2 that a launch has, of L1 and shared memory
H100 = {
    "sms": 132,
    "clock": 1.98e9,
    "memory": 3.35e12,
    "l2": 40e6,
    "l1": 256 << 10,
    "arch": "sm_90",
    "empty": 1.22e-6,
    "fp64": 0.5,
}
H200 = H100 | {"memory": 4.8e12, "empty": 1.34e-6}


def time_of(
    n: Needs, gpu: Mapping[str, Any], warm: bool, p: Mapping[str, float] = FITTED
) -> tuple[float, dict[str, float]]:
    """Seconds, and what each resource alone would take."""
    e, t = n.e, n.traffic
    sms, clock = gpu["sms"], gpu["clock"]
    count = e.count
    active = min(sms, count)
    # memory
    total = 64.0 * t.footprint
    own = 64.0 * t.own
    at_once = active * min(n.resident, -(-count // sms))
    stays = max(0.0, min(1.0, 2 - total / gpu["l2"])) if warm else 0.0

    def beyond_l2(window: float) -> float:
        return 0.0 if window <= gpu["l2"] else 1 - gpu["l2"] / window

    def moved(shared: Sequence[Shared]) -> float:
        again = sum(x.revisits * beyond_l2(min(total, x.gap * own)) * min(1.0, x.gap / at_once) for x in shared)
        return 64 * (again + (1 - stays) * sum(x.distinct for x in shared))

    read = moved(t.reads) + 32 * t.again * count * beyond_l2(min(total, at_once * own))
    write = moved(t.writes)
    dram = read + write
    missed = 32.0 * t.read * count
    cold = min(1.0, read / missed) if missed else 0.0
    l2_lat, dram_lat = p["l2_latency"], p["l2_latency"] + p["dram_latency"]

    def latency(number: int, k: int, text: str) -> float:
        known = n.accesses.get((number, k))
        c = cost(text)
        if not known or text.startswith(("st", "red")):
            return c.latency
        access = known[0]
        if access["space"] == "shared" or access["shared"]:
            return 29 + access["wavefronts"] / max(1, access["shared"]) - 1
        if access["space"] in ("local", "const", "param"):
            return 33
        beyond = cold * dram_lat + (1 - cold) * l2_lat
        if access["what"] in ("updates", "reduces"):
            return beyond if access["what"] == "updates" else 0.0
        hit = t.hits.get(access["at"], 0.0)
        spread = access["lines"] / max(1, access["requests"]) - 1
        return hit * 33 + (1 - hit) * beyond + spread

    lone = lone_times(e.blocks, latency)
    alone = sum(x * c for x, c in zip(lone, n.counts, strict=True)) + n.barriers * p["barrier"]
    alone += p["block_latency"] + p["warp_latency"] * e.warps
    rates = {"fma": 0.25, "imad": 0.5, "alu": 0.5, "xu": 2.0, "fp64": gpu["fp64"], "branch": 0.5}
    use = {f"{pipe} pipe": n.pipes.get(pipe, 0.0) * rate / p["issue"] for pipe, rate in rates.items()}
    use["issue"] = n.issues / 4 / p["issue"]
    use["L1"] = (n.l1 + n.meets) / p["l1"]
    l2 = t.read + t.written + t.partial * (p["partial"] - 1) + t.updated * p["partial"]
    use["L2"] = l2 * active / sms / p["l2_sectors"]
    use["L2"] = max(use["L2"], (t.read + t.written) / 2)
    use["memory"] = dram / count * active / (gpu["memory"] * p["dram_share"]) * clock
    use["launch"] = p["block_interval"] * active * clock
    most = -(-count // sms)
    resident = min(n.resident, most)
    # a multiprocessor with few warps: those of one of its four parts
    parts = resident * e.warps / 4
    uneven = math.ceil(parts) / parts if parts < 8 else 1.0
    for name in use:
        if name.endswith("pipe") or name == "issue":
            use[name] *= uneven
    power = p["power"]
    compute = max(x for name, x in use.items() if name.endswith("pipe") or name == "issue")
    together = (compute, use["L1"], use["L2"], use["memory"])
    wave = (alone**power + sum((resident * x) ** power for x in together)) ** (1 / power)
    wave = (wave**8 + (resident * use["launch"]) ** 8) ** 0.125
    body = most / resident * wave / clock
    hot = n.hottest * p["hot"]
    parts_ = {"latency": most / resident * alone / clock} | {k: most * x / clock for k, x in use.items()}
    parts_["atomics"] = hot
    return gpu["empty"] + p["launch"] + max(body, hot), parts_
