"""What a running kernel asks of Python: to print, or to report why it cannot go on."""

from __future__ import annotations

import ctypes
import struct
import sys
from collections.abc import Callable
from functools import partial

from rawkern.engines.cpu.records import AT_CLUSTER, BLOCK, NOWHERE, WORKER
from rawkern.engines.cpu.runtime import stopped
from rawkern.engines.cpu.runtime.printf import formatted, text_at
from rawkern.engines.cpu.runtime.workers import Workers
from rawkern.errors import LaunchError

Dim3 = tuple[int, int, int]
#: What a thread has done, by the reason for which its worker suspends.
_FAILURES = {
    "TRAP": "executed a trap: __trap(), or undefined behavior that the compiler replaced by one, such as a write to a "
    "__constant__ variable or through a constant null pointer",
    "POINTER": "calls a function pointer that does not hold the address of a function of the kernel",
    "OTHER_TYPE": "calls a function through a pointer to functions of another type, whose parameters or result have "
    "other sizes",
    "PART_OF_WARP": "executes a matrix instruction (mma, wmma, ldmatrix, ...) that other lanes of its warp do not",
    "BARRIERS": "reaches a barrier whose number or thread count differs between lanes of its warp, which is not "
    "supported on the CPU engine; pass the same to all lanes",
    "INCOMPLETE": "waits for lanes of its warp that never arrive: deadlock",
    "WARPGROUP": "waits for a product of its warp group (wgmma), but another warp of the group has ended without it",
    "DESCRIPTOR": "multiplies matrices (wgmma) with a descriptor that points outside of the block's shared memory",
    "UNSUPPORTED": "waits for other threads in a recursive function, and other lanes of its warp are not in that call; "
    "on the CPU engine all lanes of a warp must make such calls together",
}

#: What is wrong with a tensor copy, as `rk_tensor_wrong` numbers it.
_TENSOR = {
    1: "with an address that is not a tensor map's; pass rawkern.tensor_map(...) by value, as "
    "const __grid_constant__ CUtensorMap map, and &map to the copy",
    2: "with a number of dimensions that differs from its tensor map's",
    3: "elements of a type that this reduction does not support",
    4: "from or to an address in shared memory that is not a multiple of 128 bytes",
    5: "with a first coordinate that is not a multiple of 16 bytes when multiplied by the element size",
    6: "in a mode (im2col or tiled) that is not its tensor map's",
    7: "to a negative coordinate, which is an illegal instruction on a GPU (only reads may start there); begin at 0",
}


#: How many bytes a lane may read from an address on, -1 if unknown.
Readable = Callable[[int, int], int]


def print_lines(workers: Workers, k: int, block: Dim3, sites: tuple[str, ...], readable: Readable) -> None:
    """Do what the lanes' calls of printf ask for, in lane order; `block` and `sites` as in `failure`."""
    templates: dict[int, str] = {}
    lines: list[str] = []
    try:
        for lane in lanes(workers, k):
            pointer, reads = argument(workers, k, "request_a", lane), partial(readable, lane)
            template = templates.get(pointer)
            if template is None:
                template = templates[pointer] = text_at(pointer, reads)
            lines.append(formatted(template, argument(workers, k, "request_b", lane), reads))
    except LaunchError as error:
        raise type(error)(f"{_site(workers, k, sites)}: {_place(workers, k, block, lane)}: {error}") from None
    finally:
        sys.stdout.write("".join(lines))


def failure(
    workers: Workers, k: int, reason: str, block: Dim3, sites: tuple[str, ...], readable: Readable, cooperative: bool
) -> str:
    """Why and where a kernel failed; `block` is the shape of its blocks, `sites` the source lines it can name."""
    if reason == "DEADLOCK":
        x, y, z = _block_index(workers, k)
        return (
            f"deadlock: the warps of block ({x},{y},{z}) wait at barriers that the others never reach; they are\n"
            f"{stopped.waiting(workers, k, sites)}"
        )
    place = _place(workers, k, block)
    if reason == "STACK":
        return (
            f"{place}: functions call each other too deeply for the stack of a thread, {workers.stack_size} bytes; "
            "rawkern.set_limit('stack_size', nbytes, 'cpu') gives it more"
        )
    site = _site(workers, k, sites)
    place = f"{site}: {place}"
    if reason == "ASSERT":
        lane = (lanes(workers, k) or [0])[0]
        try:
            message = text_at(argument(workers, k, "request_a", lane), partial(readable, lane))
        except LaunchError as error:
            raise type(error)(f"{place}: {error}") from None
        return f"{place}: assertion `{message}` failed"
    if reason == "TILE":
        address, (pitch, align) = (
            argument(workers, k, "request_a", 0),
            divmod(argument(workers, k, "request_b", 0), 256),
        )
        if address % align:
            return (
                f"{place} loads or stores a matrix (wmma) at an address that is not a multiple of {align} bytes, "
                f"{address % align} bytes past one"
            )
        return (
            f"{place} loads or stores a matrix (wmma) with a leading dimension of {pitch} bytes, which is not a "
            f"multiple of {min(align, 16)}"
        )
    if reason == "BULK":
        size = argument(workers, k, "request_a", 0)
        return f"{place} copies {size} bytes with cp.async.bulk, which are not a multiple of 16"
    if reason == "TENSOR":
        code = argument(workers, k, "request_a", (lanes(workers, k) or [0])[0])
        return f"{place} copies with cp.async.bulk.tensor {_TENSOR[code]}"
    if reason == "MULTICAST":
        lane = lanes(workers, k)[0]
        ranks, count = (argument(workers, k, field, lane) for field in ("request_a", "request_b"))
        return (
            f"{place} copies to blocks of its cluster (.multicast::cluster) by the mask {ranks:#x}, which names others "
            f"than the {count} that the cluster has"
        )
    if reason == "CLUSTER":
        if argument(workers, k, "request_a", 0) == AT_CLUSTER:
            return f"{place} waits at the barrier of its cluster (barrier.cluster.wait) without having arrived there"
        return (
            f"{place} arrives at the barrier of its cluster (barrier.cluster.arrive) twice, without waiting "
            "(barrier.cluster.wait) in between"
        )
    if reason == "OPERANDS":
        product = argument(workers, k, "request_a", 0) - 1
        return (
            f"{place} waits for a product of its warp group (wgmma) that was started at {sites[product]}; "
            "shared memory that the product reads was overwritten before this wait"
        )
    if reason == "COPY":
        size = argument(workers, k, "request_a", 0)
        return f"{place} copies with cp.async and passes a source size above the copy's {size} bytes"
    if reason == "TRAP" and "cooperative_groups.h:" in site and not cooperative:
        return (
            f"{place} synchronizes a grid group, which is not valid in this launch; grid.sync() needs a kernel made "
            "with enable_cooperative_groups=True"
        )
    if reason == "TRAP" and site == NOWHERE:
        return (
            f"{_place(workers, k, block)} always has undefined behavior, such as a write to a __constant__ variable or "
            "through a constant null pointer: the compiler has left a trap in place of the kernel, without a line"
        )
    return f"{place} {_FAILURES[reason]}"


def lanes(workers: Workers, k: int) -> list[int]:
    """Lanes that a request is from."""
    mask = workers.get(k, "request_mask", "=I")
    return [lane for lane in range(32) if mask >> lane & 1]


def argument(workers: Workers, k: int, field: str, lane: int) -> int:
    at = k * WORKER.size + WORKER.offset(field) + 8 * lane
    return struct.unpack_from("=Q", workers.records, at)[0]


def _block_index(workers: Workers, k: int) -> Dim3:
    block = workers.get(k, "request_block")
    x, y, z = (ctypes.c_int32.from_address(block + BLOCK.offset(axis)).value for axis in "xyz")
    return x, y, z


def place(workers: Workers, k: int, lane: int, block: Dim3) -> tuple[Dim3, Dim3]:
    """Thread and block of a lane of a request."""
    thread = workers.order[workers.get(k, "request_warp", "=i")] * 32 + lane
    bx, by, _ = block
    return (thread % bx, thread // bx % by, thread // (bx * by)), _block_index(workers, k)


def _site(workers: Workers, k: int, sites: tuple[str, ...]) -> str:
    """The source line of a request."""
    site = workers.get(k, "request_site", "=i")
    return sites[site] if site < len(sites) else NOWHERE


def _place(workers: Workers, k: int, block: Dim3, lane: int | None = None) -> str:
    """``thread (x,y,z) of block (x,y,z)`` for a lane of a request, or the first."""
    thread, number = place(workers, k, (lanes(workers, k) or [0])[0] if lane is None else lane, block)
    return "thread ({},{},{}) of block ({},{},{})".format(*thread, *number)
