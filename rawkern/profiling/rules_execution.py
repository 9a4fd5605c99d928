"""Rules: idle lanes, warps and multiprocessors, and needlessly expensive arithmetic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rawkern.profiling.bounds import occupancy_of
from rawkern.profiling.costs import ISSUE
from rawkern.profiling.counted import NO_LINE
from rawkern.profiling.rules_memory import Found, accesses

if TYPE_CHECKING:
    from rawkern.profiling.counted import Counted
    from rawkern.profiling.devices import Gpu

LANES = 32
IDLE = 0.15  # share of lanes from which branches are reported
OFTEN, FEW = 0.05, 4  # share and number of warps that diverge at a branch, above which it is reported
LOW = 0.5  # of occupancy


def divergence(launch: Counted, gpu: Gpu | None) -> Found:
    """Branches at which lanes diverge, if many lanes are idle."""
    warps = sum(one["warps"] for one in launch.instructions)
    idle = LANES * warps - sum(one["lanes"] for one in launch.instructions)
    if not warps or idle < IDLE * LANES * warps:
        return
    parting = [one for one in launch.instructions if one["diverged"] > max(OFTEN * one["warps"], FEW)]
    total = sum(one["diverged"] for one in parting)
    for one in parting:
        cost = idle / LANES * ISSUE * one["diverged"] / total
        share = (
            f"{one['diverged']:,} of {one['warps']:,} warps diverge here; {idle / LANES / warps:.0%} of lanes are idle"
        )
        if one["loops"]:
            yield (
                "divergent_loop", launch.line_of(one), cost, f"{share}: lanes of a warp run different iteration counts",
                "give the lanes of a warp equal work (sort the items, or share each item among a warp)",
            )  # fmt: skip
        else:
            yield (
                "divergent_branch", launch.line_of(one), cost, f"{share}: both branches are serialized",
                "branch per warp (threadIdx.x / 32), or compute without a branch",
            )  # fmt: skip


def doubles(launch: Counted, gpu: Gpu | None) -> Found:
    """Double arithmetic whose results are converted to float."""
    if any(one["ptx"].endswith(".f64") for one, _ in accesses(launch, "global")):
        return  # the kernel has doubles in memory
    narrowed = [launch.line_of(one) for one in launch.instructions if _narrows(one["ptx"]) and one["lanes"]]
    own = next((line for line in narrowed if line != NO_LINE), NO_LINE)  # functions such as pow have no lines
    lines: dict[int | str, int] = {}
    for one in launch.instructions:
        if one["float"].startswith("d") and one["lanes"]:
            line = own if launch.line_of(one) == NO_LINE else launch.line_of(one)
            lines[line] = lines.get(line, 0) + one["lanes"]
    for line, lanes in lines.items() if narrowed else ():
        ratio = gpu.float32 / gpu.float64 if gpu is not None else 2.0
        yield (
            "double_arithmetic", line, lanes / LANES * ISSUE * ratio,
            f"{lanes:,} operations on double whose results are converted to float",
            "write literals with f (0.5f) and call sinf, sqrtf, ... for float",
        )  # fmt: skip


def _narrows(ptx: str) -> bool:
    return ptx.startswith("cvt.") and ptx.endswith(".f32.f64")


def few_blocks(launch: Counted, gpu: Gpu | None) -> Found:
    """A grid that leaves multiprocessors idle."""
    if gpu is None:
        return
    blocks = launch.grid[0] * launch.grid[1] * launch.grid[2]
    if blocks >= gpu.multiprocessors:
        return
    issued = sum(one["warps"] for one in launch.instructions) * ISSUE
    yield (
        "few_blocks", 0, issued * (gpu.multiprocessors / blocks - 1),
        f"{blocks} blocks for the {gpu.multiprocessors} multiprocessors of {gpu.name.upper()}",
        "use smaller blocks, or split the work of a block among several",
    )  # fmt: skip


def low_occupancy(launch: Counted, gpu: Gpu | None) -> Found:
    """Low occupancy: few warps on a multiprocessor at once."""
    if gpu is None:
        return
    found: dict[str, Any] = occupancy_of(launch.state, gpu.arch, launch.block, launch.shared_mem)
    if found["share"] >= LOW:
        return
    remedies = {
        "registers": f"{found['registers']} registers per thread; use __launch_bounds__ or do less work per thread",
        "shared": f"{found['shared']:,} bytes of shared memory per block; smaller tiles allow more blocks",
        "blocks": "a multiprocessor holds no more blocks; use more threads per block",
        "warps": "use a block size that divides the warps of a multiprocessor evenly",
        "barriers": "use fewer named barriers per block",
        "threads": "the block has more threads than the kernel allows; use fewer",
    }
    issued = sum(one["warps"] for one in launch.instructions) * ISSUE
    yield (
        "low_occupancy", 0, issued * (LOW - found["share"]),
        f"{found['share']:.0%} of the warps that a multiprocessor of {gpu.name.upper()} can hold, "
        f"{found['blocks']} blocks at once, limited by {' and '.join(found['limits'])}",
        "; ".join(remedies[name] for name in found["limits"]),
    )  # fmt: skip


RULES = (divergence, doubles, few_blocks, low_occupancy)
