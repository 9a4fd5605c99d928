"""Run a kernel's machine code: blocks over cores, and Python's turn now and then.

A kernel has records and stacks for each shape of block; a launch that finds them taken, by another thread or by what a
signal handler has interrupted, gets others.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from time import monotonic_ns
from typing import Any, Protocol

import numpy as np

from rawkern.arguments.memory import Piece
from rawkern.arguments.slow_path import Bound
from rawkern.base import torch_private as private
from rawkern.base.attributes import PLAIN, Attributes
from rawkern.base.forking import cached_property
from rawkern.base.records import CPU, DONE, ROOM, UNFINISHED, Filled, start_of
from rawkern.base.table import native_function, python_function
from rawkern.engines.cpu.emit.instrument import Instrument, Session
from rawkern.engines.cpu.mode import Mode
from rawkern.engines.cpu.records import CPU_TARGET as TARGET
from rawkern.engines.cpu.records import LAUNCH, ORDER, RATE, REASONS, SEGMENTS
from rawkern.engines.cpu.runtime import host_calls, limits, stopped
from rawkern.engines.cpu.runtime import order as orders
from rawkern.engines.cpu.runtime.threads import enter_all, helpers, no_helpers, openmp, run_threads
from rawkern.engines.cpu.runtime.workers import Workers, window_bits
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
_TIDS = LAUNCH.offset("tids")
_PARAMS = -(-LAUNCH.size // 16) * 16  # where the parameters are in a launch's record: aligned for any of them
_INT = struct.Struct("=i").unpack_from
_LONG = struct.Struct("=q").unpack_from
_TWO = struct.Struct("=ii").pack_into
_REASON_NAME = {v: k for k, v in REASONS.items()}


@lru_cache(maxsize=64)
def thread_indices(block: tuple[int, int, int], shape: str) -> np.ndarray:
    """Table of ``tid`` in a block, x, then y, then z: of the first lanes of warps' segments, or of all ("any")."""
    threads = block[0] * block[1] * block[2]
    lanes = range(0, -(-threads // 32) * 32, 32 // SEGMENTS.get(shape, 32))  # few: NumPy takes longer
    axes = (block[0], 1), (block[1], block[0]), (len(lanes) * 32, block[0] * block[1])
    return np.array([[lane // before % size for lane in lanes] for size, before in axes], np.int32)


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
    globals_address: int
    params_size: int
    instrument: type[Instrument]
    mode: Mode
    pack: Callable[..., bytes]  # parameters, the extents of their words, the address of a `LISTED` or 0
    no_extents: tuple[int, ...]

    def loaded(self, shape: str) -> tuple[Any, Any, str]: ...


@dataclass(frozen=True)
class Setting:
    """What the launches of a target have in common for a while: replaced as a whole, as native code reads it."""

    workers: Workers
    session: Session
    tids: np.ndarray  # its own: by their address it is known
    seed: int | None = None
    order: Filled | None = None  # of blocks, by the seed
    chosen: tuple[Filled, np.ndarray] | None = None  # blocks that run alone


class Target:
    """One kernel with one shape of block and dynamic shared memory, with stacks for one launch at a time."""

    def __init__(self, owner: Owner, block: Dim3, shared_dynamic: int, attributes: Attributes = PLAIN):
        code, loaded, shape = owner.loaded(shape_of(block))
        self.owner, self.name, self.code = owner, owner.name, code
        self.block, self.shared_dynamic, self.attributes = block, shared_dynamic, attributes
        cooperative, cluster = attributes.cooperative, attributes.cluster
        #: Blocks that begin together: those of a cluster may wait for each other.
        self.together = max(attributes.together, 1) if code.waiting else 1
        count = block[0] * block[1] * block[2]
        self.nwarps = -(-count // 32)
        self.last_mask = (1 << (count - 32 * (self.nwarps - 1))) - 1
        if self.last_mask > 0x7FFFFFFF:
            self.last_mask -= 1 << 32
        self.shared_total = code.shared_static + shared_dynamic
        self.shape = shape
        self.enter_address, self._code = loaded.enter, loaded.code
        self.globals_address = owner.globals_address
        self.record = bytearray(_PARAMS + max(owner.params_size, 1) + 64)
        self.record_address = start_of(self.record)
        self.params_address = self.record_address + _PARAMS
        self.grid_sync = bytearray(64)
        # Python's lock is held: what takes long gives it up by itself.
        self._go = native_function(
            loaded.go, ctypes.c_int, ctypes.c_void_p, *[ctypes.c_int] * 3, ctypes.c_char_p, ctypes.c_void_p
        )
        session = owner.instrument.session(self)
        self._native = Filled(
            TARGET,
            device=CPU + owner.mode.word, go=loaded.go, block=block[0], nwarps=self.nwarps,
            params_size=owner.params_size, multiple=cluster[0] if cluster else 1,
            most_work=MAX_WARPS if cooperative else 1 << 62,
            resident=0 if cooperative else max(MAX_RESIDENT // self.together, 1),
            launch=self.record_address, helpers=self._helpers(session),
            thread_count=private.function("thread_count"), save_thread=python_function("PyEval_SaveThread"),
            restore_thread=python_function("PyEval_RestoreThread"), ns_per_warp=5.0, blocks=orders.ALL,
        )  # fmt: skip
        self._address = self._native.address
        #: For native launches, which know of no order.
        self.address = 0 if owner.mode.ordered else self._address
        self._spare: list[Target] = []
        self.linked = False  # whether native launches know it
        self._settings: dict[int, Setting] = {}
        self._settle(Setting(self._workers(1, range(self.nwarps), session), session, self._tids(range(self.nwarps))))
        if code.recursive:
            limits.followers.add(self)

    @cached_property
    def enter(self) -> Any:
        """What a thread calls to run blocks; it gives up Python's lock."""
        return ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self.enter_address)

    @property
    def busy(self) -> bool:
        """Whether a launch has its stacks."""
        return self._native["busy"] != 0

    @property
    def setting(self) -> Setting:
        """What launches have in common now: that which native code has the address of."""
        found = None
        while found is None:  # another thread may replace it between the two steps
            found = self._settings.get(_LONG(self.record, _TIDS)[0])
        return found

    @property
    def workers(self) -> Workers:
        """The workers of the launch that runs, or of the next."""
        return self.setting.workers

    @property
    def session(self) -> Session:
        """What an instrument has for this target."""
        return self.setting.session

    def watch(self, session: Session) -> None:
        """Have the launches that follow watched; the kernel must be built with the session's instrument."""
        self._native.set(helpers=self._helpers(session))
        self._settle(self._renewed(session=session))

    def choose(self, blocks: np.ndarray | None) -> None:
        """Have the launches that follow run these blocks alone, by their numbers; None: all. Not while one runs."""
        chosen = None if blocks is None else np.ascontiguousarray(blocks, np.int64)
        found = None if chosen is None else (Filled(ORDER, table=chosen.ctypes.data), chosen)
        self._settle(replace(self.setting, chosen=found, tids=self.setting.tids.copy()))
        self._native.set(blocks=orders.ALL if chosen is None else len(chosen))

    def resize_stacks(self) -> None:
        """Have stacks of the size that is set now, from the next launch on."""
        self._native.set(room=0)

    def _renewed(self, count: int = 1, session: Session | None = None) -> Setting:
        """The setting with other workers."""
        now = self.setting
        session = session or now.session
        return replace(
            now, workers=self._workers(count, now.workers.order, session), session=session, tids=now.tids.copy()
        )

    def _workers(self, count: int, order: Sequence[int], session: Session) -> Workers:
        return Workers(
            self.code, self.record_address, self.nwarps, self.shared_total, order, session, count, self.together
        )

    def _tids(self, order: Sequence[int]) -> np.ndarray:
        """Which threads the block's warps run, in an order of their own."""
        rows = thread_indices(self.block, self.shape).reshape(3, self.nwarps, -1)
        return np.array(rows[:, list(order)], order="C")

    def _helpers(self, session: Session) -> int:
        """Who else may run blocks: none where the launch has an order, or is watched by one that takes no others."""
        alone = self.owner.mode.ordered or not session.parallel
        return (no_helpers if alone else helpers).record.address

    def _arrange(self) -> None:
        """Have blocks and warps in the order that is asked for, unless another launch has begun."""
        now, seed = self.setting, orders.seed.current
        if seed == now.seed:
            return
        far = self.attributes.cooperative or not self.code.spins
        order = None if seed is None else orders.blocks(seed, orders.EVERYWHERE if far else orders.WINDOW)
        warps = range(self.nwarps) if seed is None else orders.warps(self.nwarps, seed)
        self._settle_alone(
            replace(now, workers=now.workers.ordered(warps), tids=self._tids(warps), seed=seed, order=order)
        )

    def _settle_alone(self, setting: Setting) -> None:
        """Have a setting, unless another launch has begun."""
        taken = ctypes.c_int64.from_address(self._address + TARGET.offset("busy"))
        mine = False
        try:
            if not taken.value:
                mine = taken.value = True  # under Python's lock, with no call of Python's in between
                self._settle(setting)
        finally:
            if mine:
                taken.value = 0

    def _settle(self, setting: Setting) -> None:
        """Have a setting for the launches that follow: native code sees the one before or this, and both are there."""
        workers, order = setting.workers, setting.chosen[0] if setting.chosen else setting.order
        at = setting.tids.__array_interface__["data"][0]  # as its `ctypes`, without objects
        constants = (
            *self.block, self.nwarps, self.last_mask, workers.order.index(self.nwarps - 1), self.shared_dynamic,
            self.shared_total, *(self.attributes.cluster or (1, 1, 1)), int(self.attributes.cluster is not None),
            self.together, window_bits(self.shared_total), ctypes.addressof(limits.SLICE), workers.stack_room,
            workers.address, self.globals_address, self.params_address, at, workers.places,
            start_of(self.grid_sync) if self.attributes.cooperative else 0,  # null: no group is valid
            ctypes.addressof(limits.HEAP), setting.session.address, setting.session.begin,
            order.address if order else 0, self._code, openmp(),
        )  # fmt: skip
        self._settings[at] = setting
        self._native.set(room=0)  # no launch begins until this is done
        _PACK_CONSTANTS(self.record, _CONSTANTS, *constants)
        self._settings = {at: setting}
        self._native.set(room=workers.count if workers.stack_size == limits.get("stack_size") else 0)

    def run(self, grid: Dim3, stream: int | None, bound: Bound) -> None:
        """Run all blocks of a grid to their end, on this machine's cores; streams have no meaning.

        Raises
        ------
        LaunchError
            If the kernel traps, an assertion fails, or its warps wait for each other for ever.
        """
        unusual = not self.session.usual(bound.pieces)
        listed, _kept = self.session.listed(bound.pieces) if unusual else (0, None)
        params = self.owner.pack(*bound.values, *(bound.extents or self.owner.no_extents), listed)
        token = id(params) + unusual  # no launch of another one has it meanwhile
        while True:
            if self.owner.mode.ordered:
                self._arrange()
            try:
                result = self._go(self._address, *grid, params, token)
                if result == DONE:
                    return
                if result == UNFINISHED:
                    self.finish(lambda: bound.pieces)
                    return
            except BaseException as error:
                self._stopped(error, token)
                raise
            if result == ROOM:
                self._settle_alone(self._renewed(max(self._native["workers"], 1)))
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
        try:
            spare = self._spare.pop()
        except IndexError:
            spare = Target(self.owner, self.block, self.shared_dynamic, self.attributes)
        try:
            spare.run(grid, stream, bound)
        finally:
            self._spare.append(spare)

    def abandon(self, token: int) -> None:
        """Give back the stacks if a launch with this token has them: they hold half-run kernels."""
        if self._native["busy"] == token:
            self._native.set(room=0)
            self._native.set(busy=0)

    def finish(self, pieces: Callable[[], Sequence[Piece]] = tuple) -> None:
        """Bring a launch to its end whose workers have suspended or came late; `pieces` as in `Bound`, if known."""
        count, token = self._native["workers"], self._native["busy"]
        try:
            if _INT(self.record, _FINISHED)[0] == count:
                helpers.late(_LONG(self.record, _LOST)[0])
            else:
                self._continue(count, pieces)
                work = _LONG(self.record, _BLOCKS)[0] * self.nwarps
                each = self._native["ns_per_warp"]
                self._native.set(ns_per_warp=each + RATE * (_LONG(self.record, _WORKED)[0] / work - each))
            self._native.set(busy=0)
        except BaseException as error:
            self._stopped(error, token)
            raise

    def _stopped(self, error: BaseException, token: int) -> None:
        """Give back the stacks of a launch that ends so, unless it has done that."""
        try:
            if self._native["busy"] == token and not isinstance(error, LaunchError):
                # Ctrl-C, or what another handler of signals raises
                where = stopped.where(self.workers, self._native["workers"], self.code.sites)
                error.add_note(f"{self.name}: the launch was stopped; its warps were\n{where}")
        finally:
            self.abandon(token)

    def _continue(self, count: int, pieces: Callable[[], Sequence[Piece]]) -> None:
        """Serve the workers that suspended and let them go on, until all have ended."""
        begin = min(self.workers.get(k, "deadline", "=q") for k in range(count)) - limits.SLICE[0]
        if _INT(self.record, _NEXT_WORKER)[0] == 0:  # they have their blocks, but no thread yet
            begin = monotonic_ns()
            run_threads(self.enter, self.record_address, count)
        while _INT(self.record, _FINISHED)[0] != count:
            for k in range(count):
                if self.workers.get(k, "state", "=i") != 2:
                    self._serve(k, pieces)
            self._hurry(count, (monotonic_ns() - begin) * 1e-9)
            _TWO(self.record, _NEXT_WORKER, 0, 1)
            enter_all(self.enter, self.enter_address, self.record_address, count)
            while _INT(self.record, _NEXT_WORKER)[0] < count:  # OpenMP brought fewer threads
                self.enter(self.record_address)

    def _hurry(self, count: int, took: float) -> None:
        """Raise if a launch has taken too many seconds."""
        limit = limits.time.current
        if took > limit:
            raise LaunchTimeoutError(
                f"{self.name}: the launch takes longer than {limit:g} s (rawkern.time_limit); its warps are\n"
                f"{stopped.where(self.workers, count, self.code.sites)}"
            )

    def _serve(self, k: int, pieces: Callable[[], Sequence[Piece]]) -> None:
        """Do what worker `k` suspended for."""
        reason = _REASON_NAME[self.workers.get(k, "reason", "=i")]
        if reason == "NEED_BLOCK":
            self.workers.add_blocks(k)
        elif reason in ("BOUNDS", "BAD_FREE"):
            self.session.ask(k, reason, pieces())
        elif reason == "SLICE":
            why = self.session.stop_reason()
            if why is not None:
                raise LaunchError(f"{self.name}: {why}")
        else:
            self._say(k, reason, pieces())

    def _say(self, k: int, reason: str, pieces: Sequence[Piece]) -> None:
        """Print what worker `k` asks for, or raise what it has done."""
        session, ways = self.session, (self.block, self.code.sites)

        def readable(lane: int, address: int) -> int:
            return session.readable(k, lane, address, pieces)

        try:
            if reason == "PRINTF":
                host_calls.print_lines(self.workers, k, *ways, readable)
                return
            cooperative = self.attributes.cooperative
            raise LaunchError(host_calls.failure(self.workers, k, reason, *ways, readable, cooperative))
        except LaunchError as error:
            raise type(error)(f"{self.name}: {error}") from None
