"""Run a kernel's machine code: blocks over cores, and Python's turn now and then.

Each thread of Python keeps the records and stacks of its last launch, for every kernel and block shape it has launched.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from functools import lru_cache
from time import perf_counter_ns
from typing import TYPE_CHECKING

import numpy as np

from rawkern.engines.cpu import limits, requests
from rawkern.engines.cpu.kinds import SEGMENTS
from rawkern.engines.cpu.records import LAUNCH, REASONS
from rawkern.engines.cpu.threads import enter_all, may_share, openmp, run_threads
from rawkern.engines.cpu.workers import Workers
from rawkern.errors import LaunchError
from rawkern.tensors import thread_count

if TYPE_CHECKING:
    from rawkern.engines.cpu.check_launch import Checker

SLICE_NS = 50_000_000  # Python gets its turn this often: signals, printf
SMALL_NS = 4_000  # work below this is not worth waking other threads for
FORK_NS = 1_300  # what waking them takes
MAX_RESIDENT = 64  # blocks of one worker that wait for each other, where the launch is not cooperative
MAX_WARPS = 20_000  # stacks that may exist at a time

_LAUNCH = struct.Struct(LAUNCH.format("grid_x", "finished"))
_LAUNCH_BYTES = slice(0, _LAUNCH.size)
_PACK_CONSTANTS = struct.Struct(LAUNCH.format("block_x", "fork")).pack_into
_CONSTANTS = LAUNCH.offset("block_x")
_NEXT_WORKER = LAUNCH.offset("next_worker")
_FINISHED = LAUNCH.offset("finished")
_ELAPSED = LAUNCH.offset("elapsed")
_INT = struct.Struct("=i").unpack_from
_LONG = struct.Struct("=q").unpack_from
_TWO = struct.Struct("=ii").pack_into
_PARAMS = LAUNCH.size
_REASON_NAME = {v: k for k, v in REASONS.items()}


@lru_cache(maxsize=64)
def thread_indices(block: tuple[int, int, int], shape: str) -> np.ndarray:
    """Table of ``tid`` in a block, x, then y, then z: of the first lanes of warps' segments, or of all ("any")."""
    threads = block[0] * block[1] * block[2]
    nwarps = -(-threads // 32)
    linear = np.arange(nwarps * 32, dtype=np.int32)
    table = np.stack([linear % block[0], linear // block[0] % block[1], linear // (block[0] * block[1])])
    return np.ascontiguousarray(table[:, :: 32 // SEGMENTS.get(shape, 32)]).astype(np.int32)


def shape_of(block: tuple[int, int, int]) -> str:
    """How a warp's threads lie in a block: in one line, in rows of whole warps, of half or quarter warps, or anyhow."""
    if block[1] == block[2] == 1:
        return "line"
    if block[0] % 32 == 0:
        return "rows"
    return {16: "halves", 8: "quarters"}.get(block[0], "any")


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
        self.launch = ctypes.CFUNCTYPE(ctypes.c_longlong, ctypes.c_void_p)(loaded.launch)
        self.globals_address = owner.globals_address
        self.pack_params = owner.pack_params
        self.ns_per_warp = 5.0
        params = max(owner.params_size, 1)
        self.record = ctypes.create_string_buffer(LAUNCH.size + params + 64)
        self.record_address = ctypes.addressof(self.record)
        self.grid_sync = ctypes.create_string_buffer(64)
        self.check: Checker | None = None
        self.workers = Workers(code, self.record_address, self.nwarps, self.shared_total)
        self._room(1)
        self.busy = False

    def watch(self, check: Checker) -> None:
        """Have the launches that follow watched; the kernel must be a checked build."""
        self.check = self.workers.check = check
        self.workers.clear()
        self._room(1)

    def _follow_limit(self) -> None:
        """Have stacks of the size that is set now."""
        if self.workers.stack_size != limits.get("stack_size"):
            self.workers = Workers(self.code, self.record_address, self.nwarps, self.shared_total)
            self.workers.check = self.check
            self._room(1)

    def _room(self, count: int) -> None:
        """Have at least `count` workers."""
        if count <= self.workers.count:
            return
        self.workers.make(count)
        _PACK_CONSTANTS(
            self.record, _CONSTANTS, *self.block, self.nwarps, self.last_mask, self.shared_dynamic, self.shared_total,
            SLICE_NS, self.workers.stack_room, self.workers.address, self.globals_address,
            self.record_address + _PARAMS, self.tids.ctypes.data, ctypes.addressof(self.grid_sync),
            ctypes.addressof(limits.HEAP),
            self.check.address if self.check is not None else 0, openmp(),
        )  # fmt: skip

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
        most = 1 if self.code.waiting else min(64, nblocks)  # blocks that a worker takes at a time
        part = max(1, min(most, nblocks // 16))
        recursive = self.code.recursive
        record, launch, pack_params = self.record, self.launch, self.pack_params
        head, address = memoryview(record).cast("B"), ctypes.c_void_p(self.record_address)

        def begun(chunk: int, count: int) -> bytes:
            return _LAUNCH.pack(gx, gy, gz, resident, nblocks, chunk, count, 0, 0, 0)

        starts = {1: begun(most, 1)}  # by number of workers

        def go(values: tuple) -> None:
            if self.busy:  # a signal handler launches what it interrupted
                Launcher(self.owner, self.block, self.shared_dynamic).settled(grid)(values)
                return
            self.busy = True
            try:
                if recursive:
                    self._follow_limit()
                expected = work * self.ns_per_warp
                count = 1
                if expected > SMALL_NS and nblocks > 1 and self.check is None and may_share():
                    count = min(thread_count(), nblocks)
                    if count > 1:
                        self._room(count)
                start = starts.get(count) or starts.setdefault(count, begun(part, count))
                if self.cooperative:
                    ctypes.memset(self.grid_sync, 0, 64)
                head[_LAUNCH_BYTES] = start
                pack_params(record, _PARAMS, *values)
                elapsed = launch(address)
                if elapsed < 0:
                    elapsed = self._continue(count, begun=elapsed == -1)
                if elapsed > SMALL_NS or expected > SMALL_NS:
                    if count > 1:
                        elapsed = max(elapsed - FORK_NS, 0)
                    self.ns_per_warp += 0.3 * (elapsed * count / work - self.ns_per_warp)
            finally:
                self.busy = False

        return go

    def _continue(self, count: int, begun: bool) -> int:
        """Serve the workers that suspended and let them go on, until all have ended; returns nanoseconds of it.

        Not `begun`: the workers have their blocks, but no thread yet.
        """
        complete, start = False, perf_counter_ns()
        if not begun:
            run_threads(self.enter, self.record_address, count)
        try:
            while _INT(self.record, _FINISHED)[0] != count:
                for k in range(count):
                    if self.workers.get(k, "state", "=i") != 2:
                        self._serve(k)
                _TWO(self.record, _NEXT_WORKER, 0, 1)
                enter_all(self.enter, self.enter_address, self.record_address, count)
                while _INT(self.record, _NEXT_WORKER)[0] < count:  # OpenMP brought fewer threads
                    self.enter(self.record_address)
            complete = True
        finally:
            if not complete:  # stacks hold half-run kernels: start anew next time
                self.workers.clear()
                self._room(1)
        return perf_counter_ns() - start + (_LONG(self.record, _ELAPSED)[0] if begun else 0)

    def _serve(self, k: int) -> None:
        """Do what worker `k` suspended for."""
        reason = _REASON_NAME[self.workers.get(k, "reason", "=i")]
        if reason == "NEED_BLOCK":
            self.workers.add_block(k)
        elif reason == "PRINTF":
            requests.print_lines(self.workers, k)
        elif reason == "SLICE":
            if self.check is not None and self.check.is_late():
                raise LaunchError(f"{self.name}: stopped, as it does not end after what was found")
        else:
            why = requests.failure(self.workers, k, reason, self.block, self.code.sites)
            raise LaunchError(f"{self.name}: {why}")
