"""Run a kernel's machine code: blocks over cores, stacks and shared memory, and what kernels ask of Python.

Each thread of Python keeps the records and stacks of its last launch, for every kernel and block shape it has launched.
"""

from __future__ import annotations

import ctypes
import os
import re
import struct
import sys
import threading
from collections.abc import Callable
from functools import cache, lru_cache
from time import perf_counter_ns

import numpy as np

from rawkern.engines.cpu.printf import formatted, text_at
from rawkern.engines.cpu.records import BLOCK, LAUNCH, REASONS, WARP, WORKER
from rawkern.errors import LaunchError
from rawkern.tensors import thread_count

WORKER_STACK = 1 << 20
WARP_STACK = 256 << 10
RECURSION_STACK = 8 << 20  # in place of both, where functions may call themselves
RECURSION_RESERVE = 256 << 10  # of it for the frames between two looks at the room left
PAGE = 4096
SLICE_NS = 50_000_000  # Python gets its turn this often: signals, printf
SMALL_NS = 6_000  # work below this is not worth waking other threads for
MAX_RESIDENT = 64  # blocks of one worker that wait for each other, where the launch is not cooperative
MAX_WARPS = 20_000  # stacks that may exist at a time

_PACK_LAUNCH = struct.Struct(LAUNCH.format("grid_x", "finished")).pack_into
_PACK_CONSTANTS = struct.Struct(LAUNCH.format("block_x", "grid_sync")).pack_into
_CONSTANTS = LAUNCH.offset("block_x")
_NEXT_WORKER = LAUNCH.offset("next_worker")
_FINISHED = LAUNCH.offset("finished")
_INT = struct.Struct("=i").unpack_from
_TWO = struct.Struct("=ii").pack_into
_RANGE = struct.Struct(WORKER.format("range_next", "range_end")).pack_into
_RANGE_AT = WORKER.offset("range_next")
_PARAMS = LAUNCH.size
_REASON_NAME = {v: k for k, v in REASONS.items()}
_forked = False


def _mark_fork() -> None:
    global _forked
    _forked = True


os.register_at_fork(after_in_child=_mark_fork)


@cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    return libc


class Mapping:
    """Memory from the system, committed page by page when it is touched; unmapped with the object."""

    def __init__(self, size: int):
        self.size = -(-size // PAGE) * PAGE
        # PROT_READ | PROT_WRITE; MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE
        address = _libc().mmap(None, self.size, 3, 0x2 | 0x20 | 0x4000, -1, 0)
        if address in (None, ctypes.c_void_p(-1).value):
            raise LaunchError(f"no memory for {self.size} bytes of stacks: {os.strerror(ctypes.get_errno())}")
        self.address: int = address

    def guard(self, offset: int) -> None:
        _libc().mprotect(self.address + offset, PAGE, 0)

    def __del__(self) -> None:
        address = getattr(self, "address", None)
        if address is not None:
            _libc().munmap(address, self.size)


@cache
def _openmp() -> Callable | None:
    """``GOMP_parallel`` of the OpenMP runtime that is loaded already (torch's); None where there is none."""
    try:
        with open("/proc/self/maps") as maps:
            names = dict.fromkeys(re.findall(r"(/\S*lib(?:gomp|iomp5|omp)[^/\s]*\.so\S*)", maps.read()))
    except OSError:
        return None
    for name in names:
        try:
            function = ctypes.CDLL(name).GOMP_parallel
        except (OSError, AttributeError):
            continue
        function.restype = None
        function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
        return function
    return None


def _run_threads(enter: Callable, record: int, count: int) -> None:
    """Enter from `count` threads at a time, without OpenMP."""
    others = [threading.Thread(target=enter, args=(record,)) for _ in range(count - 1)]
    for t in others:
        t.start()
    enter(record)
    for t in others:
        t.join()


@lru_cache(maxsize=64)
def thread_indices(block: tuple[int, int, int], shape: str) -> np.ndarray:
    """Table of ``tid`` in a block, x, then y, then z: of each warp's first thread ("rows"), or of all lanes ("any")."""
    threads = block[0] * block[1] * block[2]
    nwarps = -(-threads // 32)
    linear = np.arange(nwarps * 32, dtype=np.int32)
    table = np.stack([linear % block[0], linear // block[0] % block[1], linear // (block[0] * block[1])])
    return np.ascontiguousarray(table[:, ::32] if shape == "rows" else table).astype(np.int32)


def shape_of(block: tuple[int, int, int]) -> str:
    """How a warp's threads lie in a block: in one line, in rows of at least a warp, or anyhow."""
    if block[1] == block[2] == 1:
        return "line"
    return "rows" if block[0] % 32 == 0 else "any"


class Launcher:
    """Launches one kernel with one block shape and dynamic shared memory from one thread; not safe to share."""

    def __init__(self, owner, block: tuple[int, int, int], shared_dynamic: int):
        code, loaded, shape = owner.loaded(shape_of(block))
        self.owner, self.name, self.code = owner, owner.name, code
        self.block, self.shared_dynamic = block, shared_dynamic
        self.cooperative = owner.cooperative
        count = block[0] * block[1] * block[2]
        self.nwarps = -(-count // 32)
        self.last_mask = (1 << (count - 32 * (self.nwarps - 1))) - 1
        if self.last_mask > 0x7FFFFFFF:
            self.last_mask -= 1 << 32
        self.shared_total = code.shared_static + shared_dynamic
        self.tids = thread_indices(block, shape)
        self.enter_address = loaded.enter
        self.enter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(loaded.enter)
        self.globals_address = owner.globals_address
        self.pack_params = owner.pack_params
        frames = 48 * code.local_bytes
        self.worker_stack = (RECURSION_STACK if code.recursive else WORKER_STACK) + frames
        self.stack = (RECURSION_STACK if code.recursive else WARP_STACK) + frames
        self.stack_room = RECURSION_STACK - RECURSION_RESERVE - frames
        self.ns_per_warp = 5.0
        params = max(owner.params_size, 1)
        self.record = ctypes.create_string_buffer(LAUNCH.size + params + 64)
        self.record_address = ctypes.addressof(self.record)
        self.grid_sync = ctypes.create_string_buffer(64)
        self.workers = ctypes.create_string_buffer(0)
        self.capacity = 0
        self.memory: list = []
        self._room(1)
        self.busy = False

    # -- memory --------------------------------------------------------------------------------------------------
    def _room(self, count: int) -> None:
        """Have records and stacks for `count` workers."""
        if count <= self.capacity:
            return
        self.memory = []
        self.workers = ctypes.create_string_buffer(WORKER.size * count)
        self.workers_address = ctypes.addressof(self.workers)
        self.capacity = count
        for k in range(count):
            stack = Mapping(self.worker_stack)
            stack.guard(0)
            self.memory.append(stack)
            self._set_worker(k, "launch", self.record_address)
            struct.pack_into("=i", self.workers, k * WORKER.size + WORKER.offset("index"), k)
            self._set_worker(k, "stack_top", stack.address + stack.size)
            self._add_block(k)
        _PACK_CONSTANTS(
            self.record, _CONSTANTS, *self.block, self.nwarps, self.last_mask, self.shared_dynamic, self.shared_total,
            SLICE_NS, self.stack_room, self.workers_address, self.globals_address, self.record_address + _PARAMS,
            self.tids.ctypes.data, ctypes.addressof(self.grid_sync),
        )  # fmt: skip

    def _set_worker(self, k: int, field: str, value: int) -> None:
        struct.pack_into("=Q", self.workers, k * WORKER.size + WORKER.offset(field), value)

    def _get_worker(self, k: int, field: str, code: str = "=Q") -> int:
        return struct.unpack_from(code, self.workers, k * WORKER.size + WORKER.offset(field))[0]

    def _add_block(self, k: int) -> None:
        """Give worker `k` memory for a further block: its record, warps, shared memory and stacks."""
        warps = self.nwarps if self.code.waiting else 0
        head = -(-(BLOCK.size + warps * WARP.size + 256 + self.shared_total + 256) // PAGE) * PAGE
        stack = -(-self.stack // PAGE) * PAGE + PAGE
        mapping = Mapping(head + warps * stack)
        self.memory.append(mapping)
        at = mapping.address
        shared = -(-(at + BLOCK.size + warps * WARP.size) // 256) * 256
        fields = {
            "worker": self.workers_address + k * WORKER.size,
            "shared": shared,
            "warps": at + BLOCK.size,
            "next": self._get_worker(k, "free_blocks"),
        }
        for field, value in fields.items():
            ctypes.c_uint64.from_address(at + BLOCK.offset(field)).value = value
        for w in range(warps):
            base = head + w * stack
            mapping.guard(base)
            top = at + base + stack
            ctypes.c_uint64.from_address(at + BLOCK.size + w * WARP.size + WARP.offset("stack_top")).value = top
        self._set_worker(k, "free_blocks", at)

    # -- launching -----------------------------------------------------------------------------------------------
    def settled(self, grid: tuple[int, int, int]) -> Callable[[tuple], None]:
        """A launch of this grid: called with the kernel's arguments it runs all blocks to their end.

        Raises
        ------
        LaunchError
            When called, if the kernel traps, an assertion fails, or its warps wait for each other for ever.
        """
        gx, gy, gz = grid
        nblocks = gx * gy * gz
        work = nblocks * self.nwarps
        resident = nblocks if self.cooperative else MAX_RESIDENT
        if self.cooperative and work > MAX_WARPS:
            raise LaunchError(
                f"{self.name}: a cooperative launch runs all its blocks at a time; {nblocks} blocks of "
                f"{self.nwarps} warps are more than the {MAX_WARPS} warps the CPU engine can hold; use a smaller grid"
            )
        chunk = 1 if self.code.waiting else max(1, min(64, nblocks // 16))
        record, enter, address, pack_params = self.record, self.enter, self.record_address, self.pack_params

        def go(values: tuple) -> None:
            if self.busy:  # a signal handler launches what it interrupted
                Launcher(self.owner, self.block, self.shared_dynamic).settled(grid)(values)
                return
            self.busy = True
            try:
                expected = work * self.ns_per_warp
                count = 1
                if expected > SMALL_NS and nblocks > 1 and not _forked:
                    count = min(thread_count(), nblocks)
                    self._room(count)
                if self.cooperative:
                    ctypes.memset(self.grid_sync, 0, 64)
                _PACK_LAUNCH(record, 0, gx, gy, gz, resident, nblocks, 0, chunk, count, 0, 0, 0)
                for k in range(count):
                    _RANGE(self.workers, k * WORKER.size + _RANGE_AT, nblocks * k // count, nblocks * (k + 1) // count)
                pack_params(record, _PARAMS, *values)
                start = perf_counter_ns()
                if count == 1:
                    enter(address)
                else:
                    self._enter_all(count)
                if _INT(record, _FINISHED)[0] != count:
                    self._continue(count)
                elapsed = perf_counter_ns() - start
                if elapsed > SMALL_NS or expected > SMALL_NS:
                    self.ns_per_warp += 0.3 * (elapsed * count / work - self.ns_per_warp)
            finally:
                self.busy = False

        return go

    def _enter_all(self, count: int) -> None:
        """Let `count` workers run until each has ended or asks for something."""
        openmp = _openmp()
        if count == 1:
            self.enter(self.record_address)
        elif openmp is not None and not _forked:
            openmp(self.enter_address, self.record_address, count, 0)
        else:
            _run_threads(self.enter, self.record_address, count)

    def _continue(self, count: int) -> None:
        """Serve the workers that suspended and let them go on, until all have ended."""
        complete = False
        try:
            while _INT(self.record, _FINISHED)[0] != count:
                for k in range(count):
                    if self._get_worker(k, "state", "=i") != 2:
                        self._serve(k)
                _TWO(self.record, _NEXT_WORKER, 0, 1)
                self._enter_all(count)
            complete = True
        finally:
            if not complete:  # stacks hold half-run kernels: start anew next time
                self.capacity = 0
                self._room(1)

    def _serve(self, k: int) -> None:
        """Do what worker `k` suspended for."""
        reason = _REASON_NAME[self._get_worker(k, "reason", "=i")]
        if reason == "SLICE":
            return
        if reason == "NEED_BLOCK":
            self._add_block(k)
            return
        if reason == "PRINTF":
            self._print(k)
            return
        raise LaunchError(f"{self.name}: {self._failure(k, reason)}")

    def _lanes(self, k: int) -> list[int]:
        mask = self._get_worker(k, "request_mask", "=I")
        return [lane for lane in range(32) if mask >> lane & 1]

    def _request(self, k: int, field: str, lane: int) -> int:
        at = k * WORKER.size + WORKER.offset(field) + 8 * lane
        return struct.unpack_from("=Q", self.workers, at)[0]

    def _print(self, k: int) -> None:
        templates: dict[int, str] = {}
        for lane in self._lanes(k):
            pointer = self._request(k, "request_a", lane)
            template = templates.get(pointer) or templates.setdefault(pointer, text_at(pointer))
            sys.stdout.write(formatted(template, self._request(k, "request_b", lane)))

    def _block_index(self, k: int) -> tuple[int, ...]:
        block = self._get_worker(k, "request_block")
        return tuple(ctypes.c_int32.from_address(block + BLOCK.offset(axis)).value for axis in "xyz")

    def _place(self, k: int) -> str:
        """``thread (x,y,z) of block (x,y,z)`` for the first lane of a request."""
        x, y, z = self._block_index(k)
        thread = self._get_worker(k, "request_warp", "=i") * 32 + (self._lanes(k) or [0])[0]
        bx, by, _ = self.block
        return f"thread ({thread % bx},{thread // bx % by},{thread // (bx * by)}) of block ({x},{y},{z})"

    def _failure(self, k: int, reason: str) -> str:
        if reason == "DEADLOCK":
            block = "({},{},{})".format(*self._block_index(k))
            return f"deadlock: the warps of block {block} wait at barriers that the others never reach"
        place = self._place(k)
        if reason == "STACK":
            room = self.stack_room >> 15
            return f"{place}: functions call each other too deeply; a thread's calls may take {room} KiB"
        site = self._get_worker(k, "request_site", "=i")
        place = f"{self.code.sites[site] if site < len(self.code.sites) else 'an unknown source line'}: {place}"
        if reason == "ASSERT":
            lane = (self._lanes(k) or [0])[0]
            message = text_at(self._request(k, "request_a", lane))
            return f"{place}: assertion `{message}` failed"
        if reason == "TRAP":
            return f"{place} executed a trap"
        if reason == "POINTER":
            return (
                f"{place} calls through a pointer that holds no function the kernel can reach, or one that waits "
                "for other threads (a barrier or a spin loop), which the CPU engine calls only by name"
            )
        return f"{place}: a reduction barrier that part of a warp reaches is not supported on the CPU engine"
