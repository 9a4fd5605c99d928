"""NVIDIA's occupancy rules: how many blocks of a kernel a multiprocessor holds at a time, and what limits that.

The rules are those of CUDA's cuda_occupancy.h (version 12.1 of its interface, CUDA 13.0), with the driver's default
preferences: as much shared memory as there is. The numbers are those of `rawkern.base.gpus`.
"""

from __future__ import annotations

from dataclasses import dataclass

from rawkern.base.gpus import (
    MAX_THREADS,
    PARTITIONS,
    REGISTERS,
    REGISTERS_AT_ONCE,
    WARP,
    Specification,
    block_registers,
)


@dataclass(frozen=True)
class Occupancy:
    """How many blocks fit on a multiprocessor, which share of its warps they are, and what keeps more away.

    ``limits`` names what is used up: "warps", "blocks", "registers", "shared", "barriers"; or, where not even one block
    fits, what the block has too much of ("threads" beyond the kernel's launch bounds or 1024).
    """

    blocks: int
    share: float  # resident warps over the most there can be, 0 to 1
    limits: tuple[str, ...]


def occupancy(
    spec: Specification, threads: int, *, registers: int, shared: int, barriers: int = 0, max_threads: int = MAX_THREADS
) -> Occupancy:
    """Apply the rules to a kernel.

    Threads, shared memory (bytes, static and dynamic) and named barriers (``__syncthreads()`` is one) are those of a
    block, registers those of a thread; ``max_threads`` is the most that a block of this kernel may have.
    """
    warps = -(-threads // WARP)
    fits = {
        "warps": spec.warps // warps if threads <= MAX_THREADS else 0,
        "blocks": spec.blocks,
        "registers": _by_registers(registers, warps),
        "shared": _by_shared(spec, shared),
    }
    if spec.barriers is not None and barriers:
        fits["barriers"] = spec.barriers // barriers
    if threads > min(max_threads, MAX_THREADS):
        return Occupancy(0, 0.0, ("threads",))
    blocks = min(fits.values())
    return Occupancy(blocks, blocks * warps / spec.warps, tuple(name for name, n in fits.items() if n == blocks))


def _by_registers(registers: int, warps: int) -> int:
    """Blocks for whose registers there is room: each warp's lie in one partition."""
    of_warp = _up(registers * WARP, REGISTERS_AT_ONCE)
    if not of_warp:
        return REGISTERS
    if block_registers(registers, warps * WARP) > REGISTERS:
        return 0
    return REGISTERS // PARTITIONS // of_warp * PARTITIONS // warps


def _by_shared(spec: Specification, shared: int) -> int:
    if shared > spec.shared_per_block:
        return 0
    of_block = _up(shared + spec.reserved, spec.granularity)
    return spec.shared // of_block if of_block else spec.shared


def _up(value: int, step: int) -> int:
    return -(-value // step) * step
