"""What an estimate goes by: counts and requests of some blocks of a launch, run on the CPU engine; its machine code."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np

from rawkern.compile import cubin
from rawkern.engines.cpu.profiler.launch import Traced
from rawkern.errors import UnsupportedError
from rawkern.estimation.machine import UNKNOWN
from rawkern.launch import reachable
from rawkern.profiling.counted import line_of
from rawkern.profiling.runs import counting_kernel, memory_of

if TYPE_CHECKING:
    import torch

    from rawkern.arguments.slow_path import Bound
    from rawkern.launch.config import LaunchConfig
    from rawkern.launch.unit import State

Dim3 = tuple[int, int, int]
#: Blocks that are run: as many as do about so many warp instructions, and requests of about so many rows.
WORK, REQUESTS, BLOCKS = 3_000_000, 50_000, 256
ALLOCATION = 512  # bytes to which a GPU aligns allocations


@dataclass
class Evidence:
    """One launch, as far as it was run. Counters are those of `ran` blocks."""

    grid: Dim3
    block: Dim3
    registers: int
    shared: int  # bytes of a block, static and dynamic
    barriers: int
    max_threads: int
    spills: int  # bytes of local memory of a thread
    ran: int
    instructions: list[dict[str, Any]] = field(repr=False)
    blocks: list[dict[str, Any]] = field(repr=False)  # the code's, with the registers of each instruction
    rows: np.ndarray = field(repr=False)
    ranges: list[tuple[int, int]] = field(repr=False)  # memory that may be touched
    lines: list[int | str] = field(repr=False)  # of each instruction: that of the source

    @property
    def count(self) -> int:
        return math.prod(self.grid)

    @property
    def threads(self) -> int:
        return math.prod(self.block)

    @property
    def warps(self) -> int:
        """Of a block."""
        return -(-self.threads // 32)


def chosen(grid: Dim3, count: int) -> list[int]:
    """The numbers of the blocks to run: clusters of neighbors in x and y, all over the grid; all where they are few."""
    total = math.prod(grid)
    if count >= total:
        return list(range(total))
    wide = grid[0]
    near = [0, 1, wide, wide + 1] if grid[1] > 1 and wide > 1 else [0, 1, 2, 3]
    near = near[: max(1, count)]
    clusters = max(1, count // len(near))
    found: dict[int, None] = {}
    draw = Random(f"{grid} blocks")  # in no step with rows of the grid
    for k in range(clusters):
        first = draw.randrange(k * total // clusters, (k + 1) * total // clusters)
        first = min(first, max(0, total - 1 - near[-1]))
        found |= dict.fromkeys(first + step for step in near if first + step < total)
    return list(found)


def gathered(state: State, config: LaunchConfig, bound: Bound, behind: Sequence[torch.Tensor], arch: str) -> Evidence:
    """Run blocks of a launch on the CPU engine; memory holds afterwards what it held before."""
    name = state.entry.name
    kernel = counting_kernel(state, Traced)
    memory = [(start, size) for start, size, _ in memory_of(bound, behind, kernel.kernel.module)]
    shape = config.grid, config.block, config.shared_mem, config.attributes, bound
    if config.attributes.cooperative or config.attributes.together > 1:
        how = "cooperatively" if config.attributes.cooperative else "in clusters"
        raise UnsupportedError(f"{name} is launched {how}; launches whose blocks wait for each other are not estimated")
    total = math.prod(config.grid)
    with reachable.as_before(memory):
        blocks = [total // 2]
        if kernel.waits(config.block, config.shared_mem, config.attributes):
            raise UnsupportedError(f"{name} waits for other blocks or for the host; such kernels are not estimated")
        trace = kernel.trace(*shape, memory, blocks)
        instructions = trace.counts.instructions()
        _reject(name, instructions)
        work = sum(one["warps"] for one in instructions)
        requests = len(trace.rows) + trace.lost
        count = min(BLOCKS, WORK // max(1, work), REQUESTS // max(1, requests))
        if total <= 2 * BLOCKS and total * max(work / WORK, requests / REQUESTS) <= 1:
            count = total
        if count > 1:
            trace = kernel.trace(*shape, memory, blocks := chosen(config.grid, count))
            instructions = trace.counts.instructions()
    program = state.build.program(arch, state.asked)
    used = cubin.resources(program.code, arch)[state.entry_in(program).symbol]
    lines = [line_of(state.build.source, one) for one in instructions]
    return Evidence(
        config.grid, config.block, used.registers, used.shared + config.shared_mem, used.barriers, used.max_threads,
        used.local, len(blocks), instructions, trace.counts.table["blocks"], trace.rows, memory, lines,
    )  # fmt: skip


def _reject(name: str, instructions: Sequence[dict[str, Any]]) -> None:
    """UnsupportedError where a kernel has instructions of which nothing is known."""
    for one in instructions:
        if one["ptx"].startswith(UNKNOWN):
            raise UnsupportedError(
                f"{name} has {one['ptx']}: matrix instructions, bulk copies and sleeps are not estimated, "
                "since none was measured"
            )
