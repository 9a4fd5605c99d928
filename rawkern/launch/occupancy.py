"""NVIDIA's occupancy rules: how many blocks of a kernel a multiprocessor holds at a time, and what limits that.

The rules are those of CUDA's cuda_occupancy.h (version 12.1 of its interface, CUDA 13.0), with the driver's default
preferences: as much shared memory as there is. The numbers are those of the CUDA Programming Guide, "Technical
Specifications per Compute Capability".
"""

from __future__ import annotations

import re
from dataclasses import dataclass

WARP = 32
MAX_THREADS = 1024  # of a block
REGISTERS = 65536  # of a multiprocessor, and the most of a block
REGISTERS_AT_ONCE = 256  # a warp's registers are allocated in such steps
PARTITIONS = 4  # of a multiprocessor; each has a quarter of the registers


@dataclass(frozen=True)
class Specification:
    """What a multiprocessor of one compute capability has; sizes in bytes."""

    warps: int
    blocks: int
    shared: int  # of the multiprocessor
    shared_per_block: int  # the most a block can have, static and dynamic together, when it opts in
    reserved: int  # shared memory of each block that the driver takes for itself
    granularity: int  # shared memory of a block is allocated in such steps
    barriers: int | None  # named barriers of the multiprocessor, where they are counted


# Compute capability: warps, blocks, KiB of shared memory, of them the most for a block, reserved bytes, granularity,
# barriers for each block that fits.
_ROWS: dict[tuple[int, int], tuple[int, int, int, int, int, int, int | None]] = {
    (7, 0): (64, 32, 96, 96, 0, 256, None),
    (7, 2): (64, 32, 96, 96, 0, 256, None),
    (7, 5): (32, 16, 64, 64, 0, 256, None),
    (8, 0): (64, 32, 164, 163, 1024, 128, None),
    (8, 6): (48, 16, 100, 99, 1024, 128, None),
    (8, 7): (48, 16, 164, 163, 1024, 128, None),
    (8, 9): (48, 24, 100, 99, 1024, 128, None),
    (9, 0): (64, 32, 228, 227, 1024, 128, 2),
    (10, 0): (64, 32, 228, 227, 1024, 128, 2),
    (10, 1): (48, 24, 228, 227, 1024, 128, 1),  # what CUDA 13 calls 11.0
    (10, 3): (64, 32, 228, 227, 1024, 128, 2),
    (11, 0): (48, 24, 228, 227, 1024, 128, 1),
    (12, 0): (48, 24, 100, 99, 1024, 128, 1),
    (12, 1): (48, 24, 100, 99, 1024, 128, 1),
}

SPECIFICATIONS = {
    capability: Specification(
        warps, blocks, shared * 1024, most * 1024, reserved, granularity, blocks * barriers if barriers else None
    )
    for capability, (warps, blocks, shared, most, reserved, granularity, barriers) in _ROWS.items()
}


@dataclass(frozen=True)
class Occupancy:
    """How many blocks fit on a multiprocessor, which share of its warps they are, and what keeps more away.

    ``limits`` names what is used up: "warps", "blocks", "registers", "shared", "barriers"; or, where not even one block
    fits, what the block has too much of ("threads" beyond the kernel's launch bounds or 1024).
    """

    blocks: int
    share: float  # resident warps over the most there can be, 0 to 1
    limits: tuple[str, ...]


def specification(arch: str) -> Specification | None:
    """The specification of an architecture such as ``"sm_90"`` or ``"sm_90a"``; None for one that is not listed."""
    match = re.fullmatch(r"sm_(\d+)(\d)[af]?", arch)
    return SPECIFICATIONS.get((int(match[1]), int(match[2]))) if match else None


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
    # The hardware checks a block as if its warps filled all partitions alike.
    if of_warp * _up(warps, PARTITIONS) > REGISTERS:
        return 0
    return REGISTERS // PARTITIONS // of_warp * PARTITIONS // warps


def _by_shared(spec: Specification, shared: int) -> int:
    if shared > spec.shared_per_block:
        return 0
    of_block = _up(shared + spec.reserved, spec.granularity)
    return spec.shared // of_block if of_block else spec.shared


def _up(value: int, step: int) -> int:
    return -(-value // step) * step
