"""Lanes go to a block: at once, when it is their turn, or round a loop.

A lane that cannot go on with the others waits at a block: its bit is set in the block's ``wait`` mask. The code visits
the blocks in order (`control_flow`), so a check stands where lanes can wait and the lowest block with waiting lanes
runs next.
"""

from __future__ import annotations

from collections.abc import Iterable

from rawkern.engines.cpu.analysis.row_loops import SHORT, TURN_EVERY
from rawkern.engines.cpu.emit.calls import elsewhere, reject_divergent_wait, remaining
from rawkern.engines.cpu.emit.function import FunctionLowering
from rawkern.engines.cpu.ir import Emitter, Val
from rawkern.engines.cpu.ptx.data import Instr, Reg, Sym
from rawkern.engines.cpu.records import BLOCK

POLL_EVERY = 4096  # back edges of ordinary loops between looks at the clock
SPIN_LIMIT = 64  # back edges of a loop that waits for other threads before those get their turn
PATIENCE = 1 << 22  # back edges for which lanes wait in a call that not all lanes of their warp are in


def jump(f: FunctionLowering, t: int, mask: Val) -> None:
    """All lanes that run, `mask`, go to block `t`; ends the LLVM block."""
    e, i = f.e, f.block
    f.values.copy(t, mask)
    if f.flow.blocks[t].exit_only:
        retire(f, mask)
        e.line(f"br label %{after(f, i)}")
    elif t <= i:
        back(f, t, mask)
    elif f.analysis.can_wait_between(i, t) and not f.control.whole:
        wait_at(f, t, mask)
        e.line(f"br label %{f.control.look(waiting_after(f, i) | {t})}")
    else:
        e.line(f"store {mask}, ptr %act")
        e.line(f"br label %{place(f, t)}")


def place(f: FunctionLowering, t: int) -> str:
    """Label of a block, for any lanes or for whole warps."""
    return f"{'w' if f.control.whole else 'b'}{t}"


def back(f: FunctionLowering, t: int, mask: Val) -> None:
    """A loop goes round: look at the clock now and then, and let others run if the loop waits for them."""
    e = f.e
    e.line(f"store {mask}, ptr %act")
    if t in f.analysis.spin_headers and f.plan.waiting:
        _spin_round(f, t, mask)
        return
    rows = t in f.control.rows and (f.plan.waiting or f.kept is not None)
    if rows:
        # A counter of its own, so that a round takes one comparison.
        _count_down(f, "rounds", SHORT, 1, place(f, t))
        if f.kept is not None and f.kept.turns is not None:
            f.kept.turns.leave(t)
            return
        e.line(f"store i32 {TURN_EVERY}, ptr %rounds")
        come_back(f, f"@rk_take_turns(ptr %blk, i32 %warp, {own_record(f)})")
    _count_down(f, "polls", POLL_EVERY, TURN_EVERY if rows else 1, place(f, t))
    e.line(f"store i32 {POLL_EVERY}, ptr %polls")
    e.line(f"call void @rk_poll(ptr %blk, i32 %warp, i32 {loop_site(f, t)})")
    e.line(f"br label %{place(f, t)}")


def _count_down(f: FunctionLowering, name: str, start: int, by: int, again: str) -> None:
    """Count a word down; what follows is emitted where it has come to zero, elsewhere the code goes on at `again`."""
    e = f.e
    f.frame.word(name, start)
    left = e.bin("sub", e.let("i32", 1, f"load i32, ptr %{name}"), by)
    e.line(f"store {left}, ptr %{name}")
    over = e.fresh("over")[1:]
    e.line(f"br {e.cmp('icmp sle', left, 0)}, label %{over}, label %{again}, !prof !0")
    e.label(over)


def site_of(f: FunctionLowering, instrs: Iterable[Instr]) -> int:
    """Number of the first source line that instructions have."""
    return f.plan.site(next((i.loc for i in instrs if i.loc), 0))


def loop_site(f: FunctionLowering, header: int) -> int:
    """Number of a loop's source line: its first, or of what stands before it where it has none."""
    inside = [i for m in sorted(_members(f, header)) for i in f.flow.blocks[m].instrs]
    before = [i for block in f.flow.blocks[:header] for i in block.instrs]
    return site_of(f, [*inside, *reversed(before)])


def switch_warp(f: FunctionLowering, chosen: str) -> None:
    """Switch to the stack that a call of the scheduler chooses, maybe this one, until this warp's turn comes back."""
    to = f.e.let("ptr", 1, f"call ptr {chosen}")
    f.e.line(f"call void @rk_switch_warp(ptr %blk, i32 %warp, {to})")


def own_record(f: FunctionLowering) -> Val:
    """The record of the warp, as the last switch has given it back."""
    return f.e.let("ptr", 1, f"load ptr, {_own(f)}")


def come_back(f: FunctionLowering, switch: str) -> None:
    """Switch to another warp by a function of the scheduler that gives back the warp's own record."""
    f.e.line(f"store {f.e.let('ptr', 1, f'call ptr {switch}')}, {_own(f)}")


def _own(f: FunctionLowering) -> Val:
    def make(e: Emitter) -> Val:
        own = e.let("ptr", 1, "alloca ptr")
        e.line(f"store {f.frame.warp_field('sp')}, {own}")
        return own

    return f.frame.once("own", make)


def _spin_round(f: FunctionLowering, header: int, mask: Val) -> None:
    """A loop that may wait for another thread goes round; now and then the others get their turn."""
    e = f.e
    if header not in f.control.polling:
        f.frame.word("spins", SPIN_LIMIT)
        left = e.bin("sub", e.let("i32", 1, "load i32, ptr %spins"), 1)
        e.line(f"store {left}, ptr %spins")
        expired = e.fresh("expired")[1:]
        e.line(f"br {e.cmp('icmp sle', left, 0)}, label %{expired}, label %b{header}, !prof !0")
        e.label(expired)
        e.line(f"store i32 {SPIN_LIMIT}, ptr %spins")
    if f.analysis.free_running:
        alive = e.let("i32", 1, "load i32, ptr %alive")
        aside, alone = e.fresh("aside")[1:], e.fresh("alone")[1:]
        e.line(f"br {e.cmp('icmp ne', mask, alive)}, label %{aside}, label %{alone}")
        e.label(aside)
        old = e.let("i32", 1, f"load i32, ptr %defer{header}")
        waiting = e.let("i32", 1, f"load i32, ptr %wait{header}")
        e.line(f"store {e.bin('or', e.bin('or', old, mask), waiting)}, ptr %defer{header}")
        e.line(f"store i32 0, ptr %wait{header}")
        e.line(f"br label %c{f.analysis.checks[0]}")
        e.label(alone)
    give_way(f, {header: mask})
    e.line(f"br label %b{header}")


def give_way(f: FunctionLowering, lanes: dict[int, Val]) -> None:
    """Let other warps run while lanes wait in loops, given by header.

    In a call that not all lanes of the warp are in, they may wait for one elsewhere, which cannot run before the call
    is over. Nothing tells what they wait for, so it is an error if the turns of others have not helped for long.
    """
    if f.function.name in f.plan.waiting_functions:
        e = f.e
        f.frame.word("patience", PATIENCE)
        rounds = 1 if f.control.polling.keys() >= lanes.keys() else SPIN_LIMIT
        patience = e.bin("sub", e.let("i32", 1, "load i32, ptr %patience"), rounds)
        e.line(f"store {patience}, ptr %patience")
        here = remaining(f, next(iter(lanes.values())))
        lost = e.bin("and", e.cmp("icmp ult", patience, rounds), elsewhere(f, here))
        for header, mask in lanes.items():
            first = next(i for m in sorted(_members(f, header)) for i in f.flow.blocks[m].instrs)
            reject_divergent_wait(f, first, mask, e.bin("and", lost, e.cmp("icmp ne", mask, 0)))
    if not all(_only_waits(f, header) for header in lanes):
        f.e.line(f"store i64 0, {f.frame.warp_field('mbarrier')}")
    switch_warp(f, f"@rk_yield(ptr %blk, i32 %warp, i32 {loop_site(f, next(iter(lanes)))})")


def _only_waits(f: FunctionLowering, header: int) -> bool:
    """Whether a loop goes on for nothing but a phase of an mbarrier, which only threads of its cluster can end."""
    if header not in f.control.polling:
        return False
    instrs = [i for m in _members(f, header) for i in f.flow.blocks[m].instrs]
    clocks = any(
        isinstance(a, (Reg, Sym)) and a.name.startswith(("%clock", "%globaltimer")) for i in instrs for a in i.args
    )
    return not clocks and all(i.op.base == "mbarrier" for i in instrs if i.op.facts.memory)


def _members(f: FunctionLowering, header: int) -> frozenset[int]:
    """The blocks of a loop."""
    return next(members for h, members in f.flow.loops if h == header)


def nanosleep(f: FunctionLowering, instr: Instr) -> None:
    """``nanosleep``: a waiting loop yields at its next round."""
    if f.analysis.spin_headers and f.plan.waiting:
        f.frame.word("spins", SPIN_LIMIT)
        f.e.line("store i32 1, ptr %spins")


def wait_at(f: FunctionLowering, t: int, mask: Val) -> None:
    old = f.e.let("i32", 1, f"load i32, ptr %wait{t}")
    f.e.line(f"store {f.e.bin('or', old, mask)}, ptr %wait{t}")


def retire(f: FunctionLowering, mask: Val) -> None:
    """Lanes end."""
    if f.analysis.free_running:
        alive = f.e.let("i32", 1, "load i32, ptr %alive")
        f.e.line(f"store {f.e.bin('and', alive, f.e.invert(mask))}, ptr %alive")


def leave_polling(f: FunctionLowering, i: int) -> None:
    """Tell the scheduler, where block `i` follows a loop that only looks, that what was waited for has come."""
    before = f.flow.predecessors[i]
    if f.plan.waiting and any(
        p in members and i not in members for members in f.control.polling.values() for p in before
    ):
        place = f.e.let("ptr", 1, f"getelementptr %Block, ptr %blk, i32 0, i32 {BLOCK.index('moved')}")
        f.e.line(f"store i32 1, {place}")


def waiting_after(f: FunctionLowering, i: int) -> set[int]:
    """Later blocks at which lanes can wait while others leave block `i`."""
    found = {w for w in f.analysis.concurrent[i] if w > i and w in f.analysis.waitable}
    if f.analysis.free_running:  # and wherever parked lanes have come to
        first = min(found, default=i)
        found |= {w for w in f.analysis.checks if w > first}
    return found


def after(f: FunctionLowering, i: int) -> str:
    """Label to go to when no lane can go on from block `i`."""
    if f.analysis.free_running and not f.analysis.concurrent[i]:
        return "over"  # no lane waits yet; a detour for those that do would merge values of later blocks there
    return "end" if f.control.whole else f.control.look(waiting_after(f, i))
