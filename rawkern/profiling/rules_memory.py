"""Rules: inefficient memory accesses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rawkern.profiling.banks import BANKS, LANES, Rows, best_pitch, pitch_of, rows_of
from rawkern.profiling.costs import ISSUE, SECTOR, WAVEFRONT

if TYPE_CHECKING:
    from rawkern.profiling.counted import Counted
    from rawkern.profiling.devices import Gpu

Found = Iterator[tuple[str, int | str, float, str, str]]
MUCH, SHIFTED = 1.25, 1.1  # factors over the ideal from which traffic is reported; the second for contiguous lanes
PART = 0.5  # share of a launch's sectors from which repeated reads are reported
MOST_OFTEN = 4  # times that a sector may be read
VECTORS = {2: "char2", 4: "char4", 8: "float2", 16: "float4"}  # by size in bytes
STRUCT = 128  # the maximum stride in bytes that is taken for an array of structs
LOADS = {"reads": "loads", "writes": "stores", "copies": "copies", "updates": "atomics", "reduces": "atomics"}


def accesses(launch: Counted, space: str) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Instructions that made requests, with their accesses: of global memory, local or shared."""
    for one in launch.instructions:
        for access in one["accesses"]:
            here = "local" if access["space"] == "local" else "global"
            if (space == "shared" and access["shared"]) or (space == here and access["requests"]):
                yield one, access


def _stride(access: dict[str, Any]) -> int | None:
    """Bytes from lane to lane, if always the same."""
    return access["low"] if access["low"] == access["high"] else None


def _of(launch: Counted, access: dict[str, Any]) -> str:
    name = launch.name_of(access)
    return f" of {name}" if name else ""


def _bytes(count: int) -> str:
    return f"{count} byte{'s' if count > 1 else ''}"


def coalescing(launch: Counted, gpu: Gpu | None) -> Found:
    """Requests that touch more sectors than their bytes fill."""
    rows = [(one, a) for one, a in accesses(launch, "global") if a["what"] in ("reads", "writes", "copies")]
    structs: dict[tuple[str, int], set[str]] = {}
    for one, a in rows:
        if (stride := _stride(a)) is not None and a["size"] < abs(stride) <= STRUCT:
            structs.setdefault((str(a["root"]), stride), set()).add(f"{one['ptx']} {a['at']}")
    for one, a in rows:
        extra, stride = a["sectors"] - a["ideal"], _stride(a)
        neighbors = stride is not None and abs(stride) == a["size"]
        if extra <= 0 or a["sectors"] < (SHIFTED if neighbors else MUCH) * a["ideal"]:
            continue
        line, cost = launch.line_of(one), extra * SECTOR
        seen = f"{LOADS[a['what']]}{_of(launch, a)} touch {a['sectors']:,} sectors where {a['ideal']:,} would do"
        if (neighbors or stride is None) and extra <= a["requests"]:  # lanes are contiguous, at least in most warps
            if a["misaligned"]:
                yield (
                    "misaligned", line, cost, f"{seen}: warps do not start at a multiple of 32 bytes",
                    "start rows and arrays at multiples of 32 bytes, or load whole sectors and shift in registers",
                )  # fmt: skip
        elif neighbors:
            yield (
                "uncoalesced", line, cost, f"{seen}: inactive lanes leave gaps",
                "make the active lanes contiguous",
            )  # fmt: skip
        elif stride is not None and len(structs.get((str(a["root"]), stride), ())) > 1 and a["root"]:
            vector = VECTORS.get(abs(stride))
            yield (
                "array_of_structs", line, cost,
                f"{seen}: lanes are {abs(stride)} bytes apart, as in an array of structs, and read {_bytes(a['size'])} "
                "at a time",
                f"load a lane's {abs(stride)} bytes at once, for example as {vector}" if vector else
                "keep each member in its own array, or load whole structs into shared memory, 16 bytes at a time",
            )  # fmt: skip
        elif stride is not None:
            yield (
                "strided", line, cost, f"{seen}: lanes are {abs(stride)} bytes apart and use {a['size']} of them",
                "let adjacent lanes access adjacent elements (coalesced), through a tile in shared memory if needed",
            )  # fmt: skip
        else:
            yield (
                "uncoalesced", line, cost, f"{seen}: lanes' addresses are scattered without a pattern",
                "sort or group the indices, or load the data into shared memory first",
            )  # fmt: skip


def rereads(launch: Counted, gpu: Gpu | None) -> Found:
    """Sectors that are read repeatedly."""
    groups: dict[str, list[tuple[dict[str, Any], dict[str, Any]]]] = {}
    for one, a in accesses(launch, "global"):
        if a["what"] == "reads" and (name := launch.name_of(a)) and name in launch.touched:
            groups.setdefault(name, []).append((one, a))
    every = sum(a["sectors"] for _, a in accesses(launch, "global"))
    for name, rows in groups.items():
        distinct, total = launch.touched[name], sum(a["sectors"] for _, a in rows)
        if total <= MOST_OFTEN * distinct or total - distinct < PART * every:
            continue
        one, worst = max(rows, key=lambda row: row[1]["sectors"])
        line, cost = launch.line_of(one), (total - distinct) * SECTOR / 4  # most come from a cache
        seen = f"{total:,} sectors of {name} are read, {distinct:,} distinct ones"
        if worst["sectors"] >= 2 * worst["ideal"]:
            yield (
                "redundant_loads", line, cost, f"{seen}: warps read a sector again for the rest of its bytes",
                "load whole sectors at once (16 bytes per lane), or go through shared memory",
            )  # fmt: skip
        else:
            yield (
                "rereads", line, cost, f"{seen}: {total / distinct:.0f} times each",
                "share data among warps through shared memory or larger tiles, unless a cache holds it",
            )  # fmt: skip


def without_conflicts(stride: int, size: int) -> str:
    """How to avoid bank conflicts of accesses of `size` bytes that are `stride` bytes apart."""
    word = max(size, 4)
    if stride < BANKS and BANKS % stride == 0:
        return f"let adjacent lanes access adjacent words, or skip {word} bytes after each {BANKS}"
    padded = (stride // word + 1 | 1) * word  # an odd number of words visits all banks
    return f"pad rows of {stride} bytes to {padded}, or swizzle the column with the row"


def _of_rows(launch: Counted, access: dict[str, Any], rows: Rows) -> str:
    """The remedy if a warp spans several rows of the block: a pitch, if one suits all accesses to the array."""
    same = [a for _, a in accesses(launch, "shared") if a is access or (a["root"] and a["root"] == access["root"])]
    requests = [(a["lanes"], a["size"], a["shared"]) for a in same if a["lanes"]]
    pitch = pitch_of(rows, access["size"])
    best, times = best_pitch(pitch, rows.width, requests) if pitch else (0, 0.0)
    if best == pitch:
        return f"use blocks with rows of {LANES} threads, or swizzle the column with the row"
    left = f", which leaves {times:.3g} times the wavefronts" if times > 1 else ""
    return f"pad rows of {pitch} bytes to {best}{left}"


def bank_conflicts(launch: Counted, gpu: Gpu | None) -> Found:
    """Bank conflicts: wavefronts of shared memory beyond the minimum."""
    for one, a in accesses(launch, "shared"):
        extra, stride = a["wavefronts"] - a["wavefronts_ideal"], _stride(a)
        if extra <= 0:
            continue
        times = a["wavefronts"] / a["wavefronts_ideal"]
        seen = f"{LOADS[a['what']]}{_of(launch, a)} take {times:.3g} times the wavefronts ({a['wavefronts']:,})"
        rows = rows_of(a["lanes"], launch.block[0])
        if rows is not None and rows.width < LANES and rows.row != rows.width * rows.step:
            why = f"{rows.width} lanes are {abs(rows.step)} bytes apart, and rows are {abs(rows.row)} bytes apart"
            remedy = _of_rows(launch, a, rows)
        elif stride and (rows_of(a["lanes"], LANES) is not None or len(a["lanes"]) < LANES):
            why, remedy = f"lanes are {abs(stride)} bytes apart", without_conflicts(abs(stride), a["size"])
        elif a["what"] in ("updates", "reduces"):
            why, remedy = "data-dependent addresses of lanes share banks", "keep one copy per warp or group of lanes"
        else:
            why = "lanes' addresses share banks"
            remedy = "pad rows, or let adjacent lanes access adjacent words"
        yield "bank_conflicts", launch.line_of(one), extra * WAVEFRONT, f"{seen}: {why}", remedy


def atomics(launch: Counted, gpu: Gpu | None) -> Found:
    """Atomic contention: lanes of a warp that update one address."""
    for one in launch.instructions:
        for a in one["accesses"]:
            times = a["requests"] + a["shared"]
            if a["what"] not in ("updates", "reduces") or not times or a["collisions"] < 4 * times:
                continue
            yield (
                "contended_atomics", launch.line_of(one), (a["collisions"] - times) * SECTOR,
                f"{a['collisions'] / times:.3g} lanes of a warp update the same address, so the updates are serialized",
                "reduce within the warp first (__reduce_add_sync, shuffles), and let one lane update",
            )  # fmt: skip


def local_arrays(launch: Counted, gpu: Gpu | None) -> Found:
    """Arrays of a thread that are in local memory."""
    for one, a in accesses(launch, "local"):
        yield (
            "local_array", launch.line_of(one), a["sectors"] * SECTOR / 4,
            f"{LOADS[a['what']]} of an array in local memory touch {a['sectors']:,} sectors: its index is not constant",
            "unroll the loop so that indices are constant and the array stays in registers, or use shared memory",
        )  # fmt: skip


def scalar_accesses(launch: Counted, gpu: Gpu | None) -> Found:
    """Contiguous accesses that could be vectorized to 16 bytes."""
    for one, a in accesses(launch, "global"):
        if a["what"] not in ("reads", "writes") or a["size"] >= 16 or _stride(a) != a["size"] or a["misaligned"]:
            continue
        fewer = a["requests"] * (1 - a["size"] / 16)
        yield (
            "scalar_accesses", launch.line_of(one), fewer * ISSUE,
            f"{a['requests']:,} {LOADS[a['what']]}{_of(launch, a)} of {_bytes(a['size'])} per lane are contiguous",
            f"access 16 bytes per lane ({16 // a['size']} elements, for example as float4) where the length allows it",
        )  # fmt: skip


RULES = (coalescing, rereads, bank_conflicts, atomics, local_arrays, scalar_accesses)
