"""Memory of a launch's workers: their records, and stacks and shared memory for the blocks they run."""

from __future__ import annotations

import contextlib
import copy
import ctypes
import mmap
import struct
from collections.abc import Sequence
from functools import cache
from typing import Any

from rawkern.base.records import start_of
from rawkern.base.table import native_function, python_function
from rawkern.engines.cpu.emit.instrument import Session
from rawkern.engines.cpu.records import BLOCK, WARP, WORKER
from rawkern.engines.cpu.runtime import limits
from rawkern.engines.cpu.runtime.jit import Code
from rawkern.errors import LaunchError

WORKER_STACK = 1 << 20
WARP_STACK = 256 << 10
RECURSION_RESERVE = 256 << 10  # where functions may call themselves: for the frames between two looks at the room left
SPILLED = 8  # bytes of the stack for each of code: what is spilled is stored, at most 64 bytes by an instruction of 8
PAGE = 4096
_NO_RESERVE = 0x4000  # MAP_NORESERVE of Linux
LINES = 128  # bytes: lines of the cache come in pairs
STAGGER = 5 * 64  # bytes from page to page between warps' frames, which would else share the same few sets of the cache


class Mapping:
    """Memory from the system, committed page by page when it is touched; unmapped with the object."""

    def __init__(self, size: int):
        self.size = -(-size // PAGE) * PAGE
        try:
            self._memory = mmap.mmap(-1, self.size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE)
        except OSError as error:
            raise LaunchError(f"no memory for {self.size} bytes of stacks: {error.strerror}") from None
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))

    def spread(self) -> None:
        """Let the system commit it in large pages."""
        with contextlib.suppress(OSError):  # a hint
            self._memory.madvise(mmap.MADV_HUGEPAGE)

    def guard(self, offset: int) -> None:
        _protect()(self.address + offset, PAGE, 0)


@cache
def _protect() -> Any:
    return native_function(python_function("mprotect"), ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def window_bits(total: int) -> int:
    """From the shared memory of one block to that of the next of those that begin together: a power of two of bytes.

    That leaves room between them, so that what leaves one seldom lies in the next.
    """
    return max(total.bit_length() + 1, 16)


class Workers:
    """Records and stacks of `count` workers of one kernel with one shape of block, with memory for one block each.

    `order`: which of the block's warps run, one after the other. `together`: how many blocks begin together, of which
    a worker has that many then.
    """

    def __init__(
        self,
        code: Code,
        launch: int,
        nwarps: int,
        shared_total: int,
        order: Sequence[int],
        session: Session,
        count: int,
        together: int = 1,
    ):
        self.together = together
        self.launch, self.shared_total, self.session = launch, shared_total, session
        self._take(order)
        self.warps = nwarps if code.waiting else 0  # warps with stacks of their own
        frames = code.frame_bytes + code.frame_bytes // 2 + SPILLED * code.size
        self.stack_size = limits.get("stack_size")  # of a thread
        deep = 32 * self.stack_size + RECURSION_RESERVE
        self.worker_stack = (deep if code.recursive else WORKER_STACK) + frames
        self.warp_stack = (deep if code.recursive else WARP_STACK) + frames
        self.stack_room = max(32 * self.stack_size - code.frame_bytes - code.frame_bytes // 2, 0)
        self.memory: list[Mapping] = []
        self.stacks: list[tuple[int, int]] = []  # where each begins, and its bytes
        whole = bytearray(WORKER.size * count + LINES)
        start = -start_of(whole) % LINES
        self.records = memoryview(whole)[start : start + WORKER.size * count]
        self.address = start_of(whole) + start
        for k in range(count):
            stack = Mapping(self.worker_stack)
            stack.guard(0)
            self.memory.append(stack)
            self.stacks.append((stack.address + PAGE, stack.size - PAGE))
            self.set(k, "launch", self.launch)
            self.set(k, "index", k, "=i")
            self.set(k, "stack_top", stack.address + stack.size)
            self.add_blocks(k)
        self.count = count

    def ordered(self, order: Sequence[int]) -> Workers:
        """The same workers, with the block's warps in another order."""
        found = copy.copy(self)
        found._take(order)
        return found

    def _take(self, order: Sequence[int]) -> None:
        """Have the block's warps run in an order; `places` is what kernels know of it."""
        self.order = order
        self._places = (ctypes.c_int32 * (2 * len(order)))(*(order.index(w) for w in range(len(order))), *order)
        self.places = ctypes.addressof(self._places)

    def set(self, k: int, field: str, value: int, code: str = "=Q") -> None:
        struct.pack_into(code, self.records, k * WORKER.size + WORKER.offset(field), value)

    def get(self, k: int, field: str, code: str = "=Q") -> int:
        return struct.unpack_from(code, self.records, k * WORKER.size + WORKER.offset(field))[0]

    def add_blocks(self, k: int) -> None:
        """Give worker `k` memory for further blocks that begin together: records, warps, shared memory and stacks."""
        warps, count = self.warps, self.together
        record = -(-(BLOCK.size + warps * WARP.size) // 64) * 64
        window = 1 << window_bits(self.shared_total)
        head = -(-(count * (record + window) - window + self.shared_total + 512) // PAGE) * PAGE
        stack = -(-self.warp_stack // PAGE) * PAGE + PAGE
        mapping = Mapping(head + count * warps * stack)
        self.memory.append(mapping)
        first = mapping.address
        shared = -(-(first + count * record) // 256) * 256
        for rank in range(count):
            at = first + rank * record
            fields = {
                "worker": self.address + k * WORKER.size,
                "shared": shared + rank * window,
                "warps": at + BLOCK.size,
                "next": self.get(k, "free_blocks"),
                "first": first,
                "beside": at + record if rank + 1 < count else 0,
                "session": self.session.block(self.shared_total),
            }
            for field, value in fields.items():
                ctypes.c_uint64.from_address(at + BLOCK.offset(field)).value = value
            ctypes.c_int32.from_address(at + BLOCK.offset("rank")).value = rank
            for w in range(warps):
                base = head + (rank * warps + w) * stack
                mapping.guard(base)
                self.stacks.append((first + base + PAGE, stack - PAGE))
                warp = at + BLOCK.size + w * WARP.size
                ctypes.c_int32.from_address(warp + WARP.offset("index")).value = w
                fixed = {
                    "block": at,
                    "stack_top": first + base + stack - w * STAGGER % PAGE,
                    "following": at + BLOCK.size + (w + 1) % warps * WARP.size,
                    "launch": self.launch,
                }
                for field, value in fixed.items():
                    ctypes.c_uint64.from_address(warp + WARP.offset(field)).value = value
        self.set(k, "free_blocks", first)
