"""What NVIDIA's GPUs take, by architecture: the one table of their limits.

The numbers are those of the CUDA Programming Guide, "Compute Capabilities": "Feature Support" and "Technical
Specifications per Compute Capability" (CUDA 13.0); how shared memory is reserved and allocated is from CUDA's
cuda_occupancy.h (version 12.1 of its interface). Sizes are in bytes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

Dim3 = tuple[int, int, int]

# The same for all of them.
WARP = 32
MAX_GRID: Dim3 = (2**31 - 1, 65535, 65535)
MAX_BLOCK: Dim3 = (1024, 1024, 64)
MAX_THREADS = 1024  # of a block
REGISTERS = 65536  # of a multiprocessor, and the most of a block
REGISTERS_AT_ONCE = 256  # a warp's registers are allocated in such steps
MOST_REGISTERS = 255  # of a thread
PARTITIONS = 4  # of a multiprocessor; each has a quarter of the registers
STATIC_SHARED = 48 << 10  # of a block, in what a kernel declares; dynamic shared memory beyond it has to be opted in to
CONSTANT = 64 << 10  # of a module's ``__constant__`` variables
LOCAL = 512 << 10  # of a thread
PORTABLE_CLUSTER = 8  # blocks of a cluster that every GPU with clusters takes
MAX_CLUSTER = 16  # of those that may be more
PARAMETERS = 32764  # of a kernel, from PTX 8.1 (CUDA 12.1) on
PARAMETERS_BEFORE = 4352  # as ptxas counts the 4 KiB of PTX before that
LARGE_PARAMETERS_FROM = 81  # that version of PTX, as 10 * major + minor


@dataclass(frozen=True)
class Specification:
    """What one architecture has, of a multiprocessor where nothing else is said."""

    name: str  # as the compiler's option has it, without a suffix: "sm_90"
    warps: int
    blocks: int
    shared: int
    shared_per_block: int  # the most a block can have, static and dynamic together, when it opts in
    reserved: int  # shared memory of each block that the driver takes for itself
    granularity: int  # shared memory of a block is allocated in such steps
    barriers: int | None  # named barriers, where they are counted
    cluster: int  # blocks of a cluster, the most; 0 where there are none


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
    (10, 3): (64, 32, 228, 227, 1024, 128, 1),
    (11, 0): (48, 24, 228, 227, 1024, 128, 1),
    (12, 0): (48, 24, 100, 99, 1024, 128, 1),
    (12, 1): (48, 24, 100, 99, 1024, 128, 1),
}


def _most_of_cluster(major: int) -> int:
    """Blocks of a cluster by the major number: more than is portable on the chips of data centers alone."""
    return 0 if major < 9 else MAX_CLUSTER if major in (9, 10) else PORTABLE_CLUSTER


def target(capability: int) -> str:
    """What machine code is compiled for: from 9.0 on with all that is for that chip alone, such as Hopper's wgmma."""
    return f"sm_{capability}a" if capability >= 90 else f"sm_{capability}"


SPECIFICATIONS = {
    (major, minor): Specification(
        f"sm_{major}{minor}", warps, blocks, shared * 1024, most * 1024, reserved, granularity,
        blocks * barriers if barriers else None, _most_of_cluster(major),
    )
    for (major, minor), (warps, blocks, shared, most, reserved, granularity, barriers) in _ROWS.items()
}  # fmt: skip
DEFAULT, HOPPER = SPECIFICATIONS[8, 0], SPECIFICATIONS[9, 0]


def block_registers(registers: int, threads: int) -> int:
    """What a block takes of `REGISTERS`, as the hardware counts it: as if its warps filled all partitions alike."""
    of_warp = -(-registers * WARP // REGISTERS_AT_ONCE) * REGISTERS_AT_ONCE
    warps = -(-threads // WARP)
    return of_warp * -(-warps // PARTITIONS) * PARTITIONS


def specification(arch: str) -> Specification | None:
    """The specification of an architecture such as ``"sm_90"`` or ``"sm_90a"``; None for one that is not listed."""
    match = re.fullmatch(r"sm_(\d+)(\d)[af]?", arch)
    return SPECIFICATIONS.get((int(match[1]), int(match[2]))) if match else None
