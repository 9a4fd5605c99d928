"""Run a kernel's machine code: blocks over cores, and Python's turn now and then.

A kernel has records and stacks for each shape of block; a launch that finds them taken, by another thread or by what a
signal handler has interrupted, gets others.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from time import monotonic_ns
from typing import Any, Protocol

import numpy as np

from rawkern.arguments.careful import Bound
from rawkern.arguments.memory import Piece
from rawkern.base import torch_private as private
from rawkern.base.records import CPU, DONE, ROOM, UNFINISHED, Filled
from rawkern.base.table import address_of
from rawkern.engines.cpu.emit.instrument import Instrument, Session
from rawkern.engines.cpu.mode import Mode
from rawkern.engines.cpu.records import CPU_TARGET as TARGET
from rawkern.engines.cpu.records import LAUNCH, ORDER, RATE, REASONS, SEGMENTS
from rawkern.engines.cpu.runtime import host_calls, limits, stopped
from rawkern.engines.cpu.runtime import order as orders
from rawkern.engines.cpu.runtime.threads import enter_all, helpers, nobody, openmp, run_threads
from rawkern.engines.cpu.runtime.workers import Workers
from rawkern.errors import LaunchError, LaunchTimeoutError

Dim3 = tuple[int, int, int]


MAX_RESIDENT = 64  # blocks of one worker that wait for each other, where the launch is not cooperative
MAX_WARPS = 20_000  # stacks that may exist at a time

_PACK_CONSTANTS = struct.Struct(LAUNCH.format("block_x", "fork")).pack_into
_CONSTANTS = LAUNCH.offset("block_x")
_NEXT_WORKER = LAUNCH.offset("next_worker")
_FINISHED = LAUNCH.offset("finished")
_BLOCKS = LAUNCH.offset("nblocks")
_WORKED = LAUNCH.offset("worked")
_LOST = LAUNCH.offset("lost")
_INT = struct.Struct("=i").unpack_from
_LONG = struct.Struct("=q").unpack_from
_TWO = struct.Struct("=ii").pack_into
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


class Owner(Protocol):
    """What a target knows of its kernel; `rawkern.engines.cpu.EngineKernel` is one."""

    name: str
    cooperative: bool
    globals_address: int
    params_size: int
    instrument: type[Instrument]
    mode: Mode
    pack: Callable[..., bytes]

    def loaded(self, shape: str) -> tuple[Any, Any, str]: ...


class Target:
    """One kernel with one shape of block and dynamic shared memory, with stacks for one launch at a time."""

    def __init__(self, owner: Owner, block: Dim3, shared_dynamic: int):
        code, loaded, shape = owner.loaded(shape_of(block))
        self.owner, self.name, self.code = owner, owner.name, code
        self.block, self.shared_dynamic = block, shared_dynamic
        count = block[0] * block[1] * block[2]
        self.nwarps = -(-count // 32)
        self.last_mask = (1 << (count - 32 * (self.nwarps - 1))) - 1
        if self.last_mask > 0x7FFFFFFF:
            self.last_mask -= 1 << 32
        self.shared_total = code.shared_static + shared_dynamic
        self.shape = shape
        self._seed: int | None = None
        self._order: Filled | None = None
        self._chosen: tuple[Filled, np.ndarray] | None = None
        self.tids = thread_indices(block, shape)
        self.enter_address, self._code = loaded.enter, loaded.code
        self.enter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(loaded.enter)
        self.globals_address = owner.globals_address
        self.record = ctypes.create_string_buffer(LAUNCH.size + max(owner.params_size, 1) + 64)
        self.record_address = ctypes.addressof(self.record)
        self.grid_sync = ctypes.create_string_buffer(64)
        self.session = owner.instrument.session(self)
        self.workers = self._new_workers(range(self.nwarps))
        # Python's lock is held: what takes long gives it up by itself.
        self._go = ctypes.PYFUNCTYPE(
            ctypes.c_int, ctypes.c_void_p, *[ctypes.c_int] * 3, ctypes.c_char_p, ctypes.c_void_p
        )(loaded.go)
        python = ctypes.pythonapi
        self._native = Filled(
            TARGET,
            device=CPU + owner.mode.word, go=loaded.go, block=block[0], nwarps=self.nwarps,
            params_size=owner.params_size,
            most_work=MAX_WARPS if owner.cooperative else 1 << 62, resident=0 if owner.cooperative else MAX_RESIDENT,
            launch=self.record_address, helpers=self._helpers(),
            thread_count=private.function("thread_count"), save_thread=address_of(python.PyEval_SaveThread),
            restore_thread=address_of(python.PyEval_RestoreThread), ns_per_warp=5.0, blocks=orders.ALL,
        )  # fmt: skip
        self._address = self._native.address
        #: For native launches, which know of no order.
        self.address = 0 if owner.mode.ordered else self._address
        self._spare: list[Target] = []
        self.linked = False  # whether native launches know it
        self._room(1)
        if code.recursive:
            limits.followers.add(self)

    @property
    def busy(self) -> bool:
        """Whether a launch has its stacks."""
        return self._native["busy"] != 0

    def watch(self, session: Session) -> None:
        """Have the launches that follow watched; the kernel must be built with the session's instrument."""
        self.session = self.workers.session = session
        self._native.set(helpers=self._helpers())
        self.workers.clear()
        self._room(1)

    def choose(self, blocks: np.ndarray | None) -> None:
        """Have the launches that follow run these blocks alone, by their numbers; None: all. Not while one runs."""
        chosen = None if blocks is None else np.ascontiguousarray(blocks, np.int64)
        self._chosen = None if chosen is None else (Filled(ORDER, table=chosen.ctypes.data), chosen)
        self._native.set(blocks=orders.ALL if chosen is None else len(chosen))
        self._settle()

    def resize_stacks(self) -> None:
        """Have stacks of the size that is set now; not while a launch runs."""
        self.workers = self._new_workers(self.workers.order)
        self._room(1)

    def _new_workers(self, order: Sequence[int]) -> Workers:
        made = Workers(self.code, self.record_address, self.nwarps, self.shared_total)
        made.session, made.order = self.session, order
        return made

    def _helpers(self) -> int:
        """Who else may run blocks: none where the launch has an order, or is watched by one that takes no others."""
        alone = self.owner.mode.ordered or not self.session.parallel
        return (nobody if alone else helpers).record.address

    def _arrange(self) -> None:
        """Have blocks and warps in the order that is asked for, unless another launch has begun."""
        seed, taken = orders.seed.current, ctypes.c_int64.from_address(self._address + TARGET.offset("busy"))
        if seed == self._seed or taken.value:
            return
        taken.value = 1  # under Python's lock, and no other line of Python in between
        try:
            far = self.owner.cooperative or not self.code.spins
            self._order = None if seed is None else orders.blocks(seed, orders.EVERYWHERE if far else orders.WINDOW)
            self.workers.order = range(self.nwarps) if seed is None else orders.warps(self.nwarps, seed)
            rows = thread_indices(self.block, self.shape).reshape(3, self.nwarps, -1)
            self.tids = np.ascontiguousarray(rows[:, list(self.workers.order)])
            self._seed = seed
            self._settle()
        finally:
            taken.value = 0

    def _room(self, count: int) -> None:
        """Have at least `count` workers."""
        if count <= self.workers.count:
            return
        self.workers.make(count)
        self._native.set(room=count)
        self._settle()

    def _settle(self) -> None:
        """Write what all launches have in common."""
        order = self._chosen[0] if self._chosen else self._order
        _PACK_CONSTANTS(
            self.record, _CONSTANTS, *self.block, self.nwarps,
            self.last_mask, self.workers.order.index(self.nwarps - 1), self.shared_dynamic, self.shared_total,
            ctypes.addressof(limits.SLICE), self.workers.stack_room, self.workers.address, self.globals_address,
            self.record_address + LAUNCH.size, self.tids.ctypes.data,
            ctypes.addressof(self.grid_sync) if self.owner.cooperative else 0,  # null: no group is valid
            ctypes.addressof(limits.HEAP), self.session.address, order.address if order else 0, self._code, openmp(),
        )  # fmt: skip

    def run(self, grid: Dim3, stream: int | None, bound: Bound) -> None:
        """Run all blocks of a grid to their end, on this machine's cores; streams have no meaning.

        Raises
        ------
        LaunchError
            If the kernel traps, an assertion fails, or its warps wait for each other for ever.
        """
        params = self.owner.pack(*bound.values, *(bound.extents or (0,) * (2 * len(bound.values))))
        if self.owner.mode.ordered:
            self._arrange()
        while True:
            result = self._go(self._address, *grid, params, None)
            if result == DONE:
                return
            if result == UNFINISHED:
                self.finish(bound.pieces)
                return
            if result == ROOM:
                self._grow()
                continue
            work = grid[0] * grid[1] * grid[2] * self.nwarps
            if work > self._native["most_work"]:
                error = LaunchError(
                    f"{self.name}: a cooperative launch runs all its blocks at a time; {work // self.nwarps} blocks of "
                    f"{self.nwarps} warps are more than the {MAX_WARPS} warps the CPU engine can hold; "
                    "use a smaller grid"
                )
                error.most_blocks = self._native["most_work"] // self.nwarps
                raise error
            break
        # Another thread has the stacks, or what a signal handler has interrupted.
        spare = self._spare.pop() if self._spare else Target(self.owner, self.block, self.shared_dynamic)
        try:
            spare.run(grid, stream, bound)
        finally:
            self._spare.append(spare)

    def _grow(self) -> None:
        """Have the workers that the last launch asked for, unless another launch has begun."""
        taken = ctypes.c_int64.from_address(self._address + TARGET.offset("busy"))
        if not taken.value:  # under Python's lock, and no other line of Python in between
            taken.value = 1
            try:
                self._room(self._native["workers"])
            finally:
                taken.value = 0

    def finish(self, pieces: Sequence[Piece] = ()) -> None:
        """Bring a launch to its end whose workers have suspended or came late; `pieces` as in `Bound`, if known."""
        count = self._native["workers"]
        try:
            if _INT(self.record, _FINISHED)[0] == count:
                helpers.late(_LONG(self.record, _LOST)[0])
                return
            self._continue(count, pieces)
            work = _LONG(self.record, _BLOCKS)[0] * self.nwarps
            each = self._native["ns_per_warp"]
            self._native.set(ns_per_warp=each + RATE * (_LONG(self.record, _WORKED)[0] / work - each))
        finally:
            self._native.set(busy=0)

    def _continue(self, count: int, pieces: Sequence[Piece]) -> None:
        """Serve the workers that suspended and let them go on, until all have ended."""
        complete = False
        begin = min(self.workers.get(k, "deadline", "=q") for k in range(count)) - limits.SLICE[0]
        if _INT(self.record, _NEXT_WORKER)[0] == 0:  # they have their blocks, but no thread yet
            begin = monotonic_ns()
            run_threads(self.enter, self.record_address, count)
        try:
            while _INT(self.record, _FINISHED)[0] != count:
                for k in range(count):
                    if self.workers.get(k, "state", "=i") != 2:
                        self._serve(k, pieces)
                self._hurry(count, (monotonic_ns() - begin) * 1e-9)
                _TWO(self.record, _NEXT_WORKER, 0, 1)
                enter_all(self.enter, self.enter_address, self.record_address, count)
                while _INT(self.record, _NEXT_WORKER)[0] < count:  # OpenMP brought fewer threads
                    self.enter(self.record_address)
            complete = True
        except LaunchError:
            raise
        except BaseException as error:  # Ctrl-C, or what another handler of signals raises
            where = stopped.where(self.workers, count, self.code.sites)
            error.add_note(f"{self.name}: the launch was stopped; its warps were\n{where}")
            raise
        finally:
            if not complete:  # stacks hold half-run kernels: start anew next time
                self.workers.clear()
                self._room(1)

    def _hurry(self, count: int, took: float) -> None:
        """Raise if a launch has taken too many seconds."""
        limit = limits.time.current
        if took > limit:
            raise LaunchTimeoutError(
                f"{self.name}: the launch takes longer than {limit:g} s (rawkern.time_limit); its warps are\n"
                f"{stopped.where(self.workers, count, self.code.sites)}"
            )

    def _serve(self, k: int, pieces: Sequence[Piece]) -> None:
        """Do what worker `k` suspended for."""
        reason = _REASON_NAME[self.workers.get(k, "reason", "=i")]
        if reason == "NEED_BLOCK":
            self.workers.add_block(k)
        elif reason in ("BOUNDS", "BAD_FREE"):
            self.session.ask(k, reason, pieces)
        elif reason == "SLICE":
            why = self.session.complaint()
            if why is not None:
                raise LaunchError(f"{self.name}: {why}")
        else:
            self._say(k, reason, pieces)

    def _say(self, k: int, reason: str, pieces: Sequence[Piece]) -> None:
        """Print what worker `k` asks for, or raise what it has done."""
        session, ways = self.session, (self.block, self.code.sites)

        def readable(lane: int, address: int) -> int:
            return session.readable(k, lane, address, pieces)

        try:
            if reason == "PRINTF":
                host_calls.print_lines(self.workers, k, *ways, readable)
                return
            cooperative = self.owner.cooperative
            raise LaunchError(host_calls.failure(self.workers, k, reason, *ways, readable, cooperative))
        except LaunchError as error:
            raise type(error)(f"{self.name}: {error}") from None
