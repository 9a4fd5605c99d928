"""Instruments: what watches kernels while they run, as the checker of checked launches does.

An instrument is three classes. An `Instrument` is chosen where a module is made and stands for one build of a kernel:
what is linked in, and what the launch must know of the build. Its `Watch` follows one function while it is lowered, and
is told of each event where code for it can be emitted. Its `Session` is its side of the launches.

The classes here are the instrument of ordinary builds: they emit nothing and ask for nothing. Others override what they
need. Lowering and launches know no more than this module, which knows none of the instruments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from rawkern.arguments.memory import Piece
    from rawkern.engines.cpu.analysis.graph import Block
    from rawkern.engines.cpu.analysis.plan import Plan
    from rawkern.engines.cpu.emit.forms import Form
    from rawkern.engines.cpu.ir import Val
    from rawkern.engines.cpu.ptx.data import Instr, Mem

READ, WRITE, COPY, UPDATE = "reads", "writes", "copies", "updates"  # COPY: writes by ``cp.async``; UPDATE: atomically

#: What orders accesses, besides barriers: fences; lanes of a warp that have met; and of ``cp.async`` that what follows
#: is done by a copy, or again by the warp (``copy``, ``copied``), a group of copies, waits for all groups but the last
#: few or for all copies, and an mbarrier that the copies arrive at. Of products of a warp group that what follows is
#: done by one (till ``copied``), that the warp has waited for so many of its own, as four warps have computed them, and
#: that registers written before are those that products take. ``dependency``: the launch before this one has ended.
Note = Literal[
    "fence", "proxy_fence", "init_fence", "warp_sync", "copy", "bulk_copy", "copied", "commit", "wait", "wait_all",
    "copies_arrive", "product", "products_seen", "product_fence", "dependency",
]  # fmt: skip


#: What a register holds of a matrix: for each lane pairs of a line and of the number of a value in it. A line is what
#: one lane accesses, or one of `Watch.lines`.
Held = tuple[tuple[tuple[int, int], ...], ...]


@dataclass(frozen=True)
class Access:
    """What the active lanes do to memory: each to `count` values of `size` bytes, one after the other.

    `mem` is the operand that names the address, in `space`; the values lie `at` bytes past the address that is given
    beside this. `order`: how strong the access is, as in `decode.Op`. `mask`: the
    active lanes that access, if not all. `align`: bytes, if not those of all values. `lengths`: where lanes may access
    less than all bytes, how many (more counts as all); `mask` are the lanes that access all. `values`: what is written,
    where it is known. `regs`: the registers that are loaded or stored, None for what is none; `held`: what each holds,
    if not each of them one of the lane's own values. `looks`: whether anybody reads what an atomic finds.
    `distance`: of the space "cluster", how many bytes the shared memory that is meant is from the own, in which `mem`
    names the place.
    """

    what: str
    mem: Mem
    space: str
    size: int
    count: int = 1
    order: str = ""
    at: int = 0
    mask: Val | None = None
    align: int = 0
    lengths: Val | None = None
    values: Sequence[Val] | None = None
    regs: Sequence[str | None] | None = None
    held: Sequence[Held] | None = None
    looks: bool = True
    distance: Val | None = None


class Watch:
    """One function while it is lowered. Code that a method emits runs at the event, with the lanes ``f.lanes.act()``.

    An instruction may be lowered in more than one place, for different lanes.
    """

    whole_addresses = False  # accesses get addresses with `at` added, which costs more instructions
    prefetches = True  # accesses may be preceded by some that ask for what is needed later
    sees_values = False  # accesses of matrices tell what is written, which costs instructions
    each_unit = True  # is told of every 16 bytes of a tensor copy, else of where it begins and ends
    whole_warps = True  # small kernels may be emitted a second time for whole warps
    sees_products = False  # is told what products of a warp group read
    has_heap = False  # `malloc` and `free` below stand for the kernel's

    # -- control ------------------------------------------------------------------------------------------------
    def enter(self) -> None:
        """The function begins; what runs once per call goes to ``f.frame``."""

    def returned(self) -> None:
        """A function that was called has returned."""

    def block(self, index: int) -> None:
        """A block begins."""

    def instruction(self, instr: Instr) -> None:
        """An instruction follows; its operands can be read."""

    def branch(self, block: Block) -> None:
        """Lanes choose among the targets of `block` by its register, which can be read."""

    def diverged(self, block: Block, ways: Sequence[Val]) -> None:
        """Lanes leave `block` for several targets: those for each, of which some may be none where there are many."""

    def edge(self, target: int, copies: Sequence[tuple[str, str]], mask: Val) -> None:
        """The lanes `mask` go on to block `target`, and take values along: pairs of registers, to and from."""

    # -- memory -------------------------------------------------------------------------------------------------
    def access(self, access: Access, form: Form) -> Form:
        """Lanes are about to access `form`; returns it, or other addresses to access instead."""
        return form

    def around(self, access: Access, form: Form, emit: Callable[[Form], list[Val]]) -> list[Val]:
        """The same, with what emits the access at given addresses and returns what it loads."""
        return emit(self.access(access, form))

    def lines(self, access: Access, at: Val, pitch: Val, count: int) -> tuple[Val, Val]:
        """The warp is about to access a tile as one: `count` lines `pitch` bytes apart, each as in `access`.

        Returns address and pitch, or others to use instead.
        """
        return at, pitch

    def malloc(self, size: Val) -> Val:
        """Memory of the instrument's own heap for each active lane; asked if `has_heap`."""
        raise NotImplementedError

    def free(self, address: Val) -> None:
        """Each active lane gives memory of that heap back."""
        raise NotImplementedError

    # -- barriers, collectives --------------------------------------------------------------------------------------
    def arrive(self, instr: Instr, number: Val, counted: bool) -> None:
        """The warp arrives at barrier `number` with all its lanes; `counted`: which says how many threads it takes."""

    def arrive_divergent(self, number: Val, lanes: dict[int, Val]) -> None:
        """The warp arrives for lanes that came one by one, by the blocks at the end of which they wait."""

    def depart(self, number: Val) -> None:
        """The warp continues after a barrier."""

    def cluster_arrive(self, instr: Instr) -> None:
        """The warp arrives at the barrier of its cluster."""

    def cluster_wait(self, instr: Instr) -> None:
        """The warp comes to wait there."""

    def cluster_depart(self) -> None:
        """The warp continues after the barrier of its cluster."""

    def collective(self, instr: Instr, mask: Val) -> None:
        """Lanes come to a collective instruction of all lanes that `mask` names (each lane's own)."""

    def shuffled(self, instr: Instr, dest: str, source: Val, inside: Val, members: Val) -> None:
        """A register is got from the lanes `source`, or where those are not `inside` its range from the lane itself.

        `members` take part, as far as each lane knows.
        """

    def incomplete(self, instr: Instr, lanes: Val) -> None:
        """Lanes wait at an instruction for others that never come; the launch fails."""

    def mbarrier(self, what: Literal["init", "inval", "arrive", "test"], places: Val, lanes: Val) -> None:
        """`lanes` are about to do something to the barriers at their `places`; "test": they have waited for a phase."""

    def completes_at(self, places: Val) -> None:
        """The last copy completes a transaction at the barriers at the active lanes' `places`."""

    def product(self, instr: Instr, number: Val, left: Val | None, right: Val) -> None:
        """The warp with a number in its block computes its part of a product, of operands with these descriptors."""

    def operation(self) -> Val | None:
        """What stands for the instruction at hand where an operation that it starts is left (`operation_left`)."""

    def early_read(self, instr: Instr, product: Instr, early: Val) -> None:
        """An instruction reads sums of a warp group's product, which the warp has not waited for where `early`."""

    def note(self, what: Note, *args: Val) -> None:
        """Something orders the accesses before it with those after it."""


class Instrument:
    """A kernel's build."""

    name = ""  # tells builds apart in the cache
    own: tuple[str, ...] = ()  # what names of functions in the instrument's own object file begin with
    barrier_opens = ""  # a call in LLVM IR for the scheduler: barrier ``%id`` of the block ``%blk`` opens
    #: The same: the thread ``%thread`` of the block ends with an operation of ``%site`` (`Watch.operation`).
    operation_left = ""
    rounds = True  # blocks may run in rounds (`emit/rounds`), in which a watch is told of no barriers
    cluster_opens = ""  # the same: the barrier of the cluster whose first block is ``%first`` opens

    def __init__(self, plan: Plan):
        self.plan = plan

    def watch(self, f: Any) -> Watch:
        """Follow a function; `f` is its `FunctionLowering`, whose module needs this one."""
        return Watch()

    def block_begins(self) -> str:
        """A call in LLVM IR for the scheduler: the block ``%blk`` of ``%launch`` is about to run."""
        return ""

    def table(self) -> dict[str, Any] | None:
        """What a launch must know of the build, as plain data that JSON takes; asked when all is lowered."""
        return None

    @classmethod
    def session(cls, target: Any) -> Session:
        """The side of a target's launches; `target` is a `runtime.grid.Target`."""
        return Session()

    @classmethod
    def linked(cls) -> str:
        """LLVM IR in each kernel's object file."""
        return ""

    @classmethod
    def runtime(cls) -> str:
        """LLVM IR of the instrument's own object file, loaded once for all kernels, where `own` names any."""
        return ""


class Session:
    """An instrument's side of launches, one after the other."""

    address = 0  # what kernels find in the launch's record
    begin = 0  # a function that is called with that record before a launch runs, or null
    parallel = True  # blocks may run on several workers at a time

    def block(self, shared_total: int) -> int:
        """What kernels find in the record of a further block that a worker gets memory for."""
        return 0

    def ask(self, worker: int, reason: str, pieces: Sequence[Piece]) -> None:
        """A worker has suspended for the instrument; `pieces`: memory that the launch's arguments lead to, if known."""
        raise NotImplementedError

    def usual(self, pieces: Sequence[Piece]) -> bool:
        """Whether what a launch's arguments lead to is what it is for native launches, which `begin` is told."""
        return True

    def listed(self, pieces: Sequence[Piece]) -> tuple[int, Any]:
        """The address of a `LISTED` for `begin`, of an unusual launch, or 0; and what lives until the launch ends."""
        return 0, None

    def readable(self, worker: int, lane: int, address: int, pieces: Sequence[Piece]) -> int:
        """How many bytes a lane that asks for something may read from an address on; -1 where that is not known."""
        return -1

    def stop_reason(self) -> str | None:
        """Why a launch has to end; asked every now and then while it runs."""
        return None
