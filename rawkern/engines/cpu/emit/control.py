"""One PTX function to LLVM IR: its blocks one after the other, and where lanes go from each."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rawkern.base.llvm import FULL_PIPELINE_LINES
from rawkern.engines.cpu.analysis.plan import Plan
from rawkern.engines.cpu.analysis.storage import local_frame
from rawkern.engines.cpu.emit.barriers import barrier, resume_parked
from rawkern.engines.cpu.emit.calls import signature
from rawkern.engines.cpu.emit.convergence import collective, release_complete
from rawkern.engines.cpu.emit.forms import LANES, Agreed
from rawkern.engines.cpu.emit.function import FunctionLowering
from rawkern.engines.cpu.emit.instrument import Instrument
from rawkern.engines.cpu.emit.jumps import after, back, jump, leave_polling, retire, wait_at, waiting_after
from rawkern.engines.cpu.emit.kept import END
from rawkern.engines.cpu.emit.matrix import groups
from rawkern.engines.cpu.emit.opcodes import unsupported_reason
from rawkern.engines.cpu.emit.rounds import WARPS, run_block, step_of
from rawkern.engines.cpu.ir import Module, Val, const
from rawkern.engines.cpu.ptx.data import Function, Instr
from rawkern.engines.cpu.ptx.operands import destinations

#: How an instruction is lowered, by its opcode.
Handlers = Mapping[str, Callable[[FunctionLowering, Instr], None]]
SMALL = 64  # instructions of a kernel that is emitted for whole warps as well


def lower_function(plan: Plan, module: Module, function: Function, handlers: Handlers, instrument: Instrument) -> str:
    """The text of one function of a kernel."""
    f = FunctionLowering(plan, module, function, instrument)
    if function.name in plan.recursive:
        f.frame.lines.append("call void @rk_check_stack(ptr %launch, ptr %blk, i32 %warp)")
    frame = local_frame(function) * LANES
    if frame:
        f.frame.lines.append(f"%frame = alloca [{frame} x i8], align 64")
    f.watch.enter()
    _start(f, handlers)
    twice = _worth_twice(f)
    if twice:  # first, so that it is known where divergent lanes look for others
        _for_whole_warps(f, handlers)
    for i, block in enumerate(f.flow.blocks):
        waitable = i in f.analysis.waitable
        if block.exit_only and i and not waitable:
            continue
        if i in f.control.looks:
            _check(f, i)
        _begin(f, i)
        _instructions(f, i, handlers)
        _end(f, i)
    _finish(f)
    module.frame = max(module.frame, frame + f.frame.kept_bytes)
    name, params = signature(plan, function)
    # Copied into the loop over warps that never wait, a small kernel is faster; else copying is a pass for nothing.
    inlined = function.entry and not plan.waiting and len(f.e.lines) <= FULL_PIPELINE_LINES
    result = "i32" if f.kept is not None else "void"
    entered = f.kept.enter(twice) if f.kept is not None else []  # before the frame is written: slots may be new
    body = [f"define internal {result} @{name}({params}){' alwaysinline' * inlined} {{", "entry:", *f.frame.lines]
    body += entered
    if f.kept is not None:
        module.functions += run_block(f, f.kept)
        module.frame = max(module.frame, WARPS * step_of(f.kept))
    if twice:
        body += ["%whole = icmp eq i32 %initial, -1", "br i1 %whole, label %w0, label %b0, !prof !2"]
    else:
        body.append("br label %b0")
    text = "\n".join([*body, *f.e.lines, "}"])
    f.end()
    return text


def _start(f: FunctionLowering, handlers: Handlers) -> None:
    """Compute the registers that hold the same whenever they are written."""
    f.begin(0)
    for instr in f.analysis.fixed.values():
        _take(f, instr)
        handlers[instr.op.name](f, instr)
    f.values.fix()
    f.frame.lines += f.e.lines
    f.e.lines = []


def _worth_twice(f: FunctionLowering) -> bool:
    """Whether to emit a kernel's blocks for whole warps as well: where masks are a good part of what it does."""
    plain = f.function.entry and not (f.plan.waiting or f.analysis.free_running)
    return plain and f.watch.whole_warps and sum(len(block.instrs) for block in f.flow.blocks) <= SMALL


def _for_whole_warps(f: FunctionLowering, handlers: Handlers) -> None:
    """Emit the blocks again, as ``w``, for warps that have not diverged: nothing then has a mask.

    Registers lie in the same slots, so where lanes diverge they continue in the blocks for any lanes.
    """
    for i, block in enumerate(f.flow.blocks):
        if block.exit_only and i:
            continue
        f.begin(i, whole=True)
        f.e.label(f"w{i}")
        f.lanes.set_act(const("i32", -1))
        for reg in f.analysis.fresh[i]:
            f.values.forget(reg)
        f.watch.block(i)
        _instructions(f, i, handlers)
        _end(f, i)


def _instructions(f: FunctionLowering, i: int, handlers: Handlers) -> None:
    """Emit what a block does, but for waiting at its end."""
    block = f.flow.blocks[i]
    for instr in block.instrs[:-1] if block.kind in ("barrier", "collective") else block.instrs:
        _take(f, instr)
        f.watch.instruction(instr)
        if any(map(f.values.is_fixed, destinations(instr))):  # done at the start
            continue
        with groups.early(f, instr):
            handlers[instr.op.name](f, instr)


def _take(f: FunctionLowering, instr: Instr) -> None:
    """An instruction is the one at hand from here on; raises where it is not supported."""
    f.instr = instr
    why = unsupported_reason(instr.op)
    if why is not None:
        raise f.unsupported(why)


def _check(f: FunctionLowering, i: int) -> None:
    """Look whether lanes wait at a block that no lane has gone on to; else they do at a later one."""
    e = f.e
    e.label(f"c{i}")
    waiting = e.let("i32", 1, f"load i32, ptr %wait{i}")
    some = e.cmp("icmp ne", waiting, 0)
    e.line("store i32 0, ptr %act")
    e.line(f"br {some}, label %b{i}, label %{f.control.look(f.control.looks[i] - {i})}")


def _begin(f: FunctionLowering, i: int) -> None:
    """Take up the lanes that wait at a block and go on with them."""
    f.begin(i)
    e = f.e
    e.label(f"b{i}")
    if i in f.analysis.waitable:
        act = e.let("i32", 1, "load i32, ptr %act")
        waiting = e.let("i32", 1, f"load i32, ptr %wait{i}")
        e.line(f"store i32 0, ptr %wait{i}")
        act = e.bin("or", act, waiting)
        e.line(f"store {act}, ptr %act")
        f.lanes.set_act(act)
    for reg in f.analysis.fresh[i]:
        f.values.forget(reg)
    leave_polling(f, i)
    f.watch.block(i)


def _end(f: FunctionLowering, i: int) -> None:
    """Leave a block as its last instruction says."""
    block, e = f.flow.blocks[i], f.e
    ending = block.instrs[-1] if block.kind in ("barrier", "collective") else block.ending
    act = f.lanes.act()
    if ending is not None:
        _take(f, ending)
        if not block.guards:
            f.watch.instruction(ending)
    if block.kind == "ret":
        f.values.flush()
        retire(f, act)
        e.line(f"br label %{after(f, i)}")
        return
    if block.kind == "jump" or (block.kind == "cond" and block.targets[0] == block.targets[1]):
        f.values.flush()
        jump(f, block.targets[0], act)
        return
    if block.kind in ("barrier", "collective"):
        assert ending is not None
        wait = barrier if block.kind == "barrier" else collective
        wait(f, ending, block.targets[0])
        return
    assert block.pred is not None
    f.watch.branch(block)
    form = f.values.operand(block.pred, 1)
    if isinstance(form, Agreed):
        _diverge(f, i, act, form)
        return
    cond = f.values.plain(form)
    if block.kind == "switch":
        _switch(f, i, cond)
        return
    if cond.n == 1:
        f.values.flush()
        yes, no = e.fresh("t")[1:], e.fresh("f")[1:]
        first, second = (no, yes) if block.negated else (yes, no)
        e.line(f"br {cond}, label %{first}, label %{second}")
        for label, t in ((yes, block.targets[0]), (no, block.targets[1])):
            e.label(label)
            jump(f, t, act)
        return
    _diverge(f, i, act, cond)


def _diverge(f: FunctionLowering, i: int, act: Val, form: Val | Agreed) -> None:
    """Lanes choose between two targets; where they agree, no lane waits."""
    e, block = f.e, f.flow.blocks[i]
    yes, no = block.targets
    f.values.flush()
    all_label, some_label, none_label, both_label = (e.fresh(p)[1:] for p in ("all", "some", "none", "both"))
    known = dict(f.cache)

    def agreed() -> None:
        e.label(all_label)
        jump(f, yes, act)
        e.label(none_label)
        jump(f, no, act)

    if isinstance(form, Agreed):
        other, each = e.fresh("other")[1:], e.fresh("each")[1:]
        ways = [(form.every, all_label), (form.none, none_label)]
        if block.negated:
            ways = [(form.none, all_label), (form.every, none_label)]
        if yes > i:  # compilers branch forward where it is the exception, and back where it is the rule
            ways.reverse()
        e.line(f"br {ways[0][0]}, label %{ways[0][1]}, label %{other}")
        e.label(other)
        e.line(f"br {ways[1][0]}, label %{ways[1][1]}, label %{each}")
        if f.control.whole:  # where scalars did not tell, that indices do not wrap around is not known either
            agreed()
            all_label, none_label = e.fresh("all")[1:], e.fresh("none")[1:]
            f.control.diverge()
        e.label(each)
    cond = f.values.plain(form)
    taken = e.bin("and", act, f.lanes.mask_of(e.invert(cond) if block.negated else cond))
    e.line(f"br {e.cmp('icmp eq', taken, act)}, label %{all_label}, label %{some_label}")
    e.label(some_label)
    e.line(f"br {e.cmp('icmp eq', taken, 0)}, label %{none_label}, label %{both_label}")
    f.cache = known  # what was made for the lanes one by one is not there where they agreed
    agreed()
    e.label(both_label)
    f.control.diverge()
    _both(f, i, taken, e.bin("xor", act, taken))


def _both(f: FunctionLowering, i: int, taken: Val, rest: Val) -> None:
    """Lanes of both kinds leave block `i`: `taken` for its first target, the rest for the second."""
    yes, no = f.flow.blocks[i].targets
    f.watch.diverged(f.flow.blocks[i], (taken, rest))
    for target, other, ending, going in ((yes, no, taken, rest), (no, yes, rest, taken)):
        if f.flow.blocks[target].exit_only:
            f.values.copy(target, ending)
            retire(f, ending)
            jump(f, other, going)
            return
    _split_lanes(f, i, {yes: taken, no: rest})


def _split_lanes(f: FunctionLowering, i: int, going: dict[int, Val]) -> None:
    """Lanes go on to the lowest of several blocks, or to a lower one where others wait; the rest wait."""
    low = min(going)
    others = waiting_after(f, i)
    first = low > i and min(others, default=low) >= low
    for target, mask in going.items():
        f.values.copy(target, mask)
        if target != low or not first:
            wait_at(f, target, mask)
    if first:
        f.e.line(f"store {going[low]}, ptr %act")
        f.e.line(f"br label %b{low}")
    elif low > i:
        f.e.line(f"br label %{f.control.look(others | set(going))}")
    else:
        _back_to_waiting(f, low)


def _back_to_waiting(f: FunctionLowering, header: int) -> None:
    """Go round a loop with the lanes that wait at its header."""
    if header not in f.analysis.spin_headers or not f.plan.waiting:
        back(f, header, const("i32", 0))  # the header takes them up
        return
    mask = f.e.let("i32", 1, f"load i32, ptr %wait{header}")
    f.e.line(f"store i32 0, ptr %wait{header}")
    back(f, header, mask)


def _switch(f: FunctionLowering, i: int, index: Val) -> None:
    """``brx.idx``: lanes choose among many targets."""
    e, targets = f.e, f.flow.blocks[i].targets
    act = f.lanes.act()
    f.values.flush()
    if index.n == 1:
        labels = [e.fresh("case")[1:] for _ in targets]
        cases = " ".join(f"i32 {k}, label %{label}" for k, label in enumerate(labels))
        e.line(f"switch {index}, label %{labels[0]} [ {cases} ]")
        for label, t in zip(labels, targets, strict=True):
            e.label(label)
            jump(f, t, act)
        return
    f.control.diverge()
    going, ways = {}, {}
    for t in dict.fromkeys(targets):
        mask = const("i32", 0)
        for k, other in enumerate(targets):
            if other == t:
                mask = e.bin("or", mask, f.lanes.mask_of(e.cmp("icmp eq", index, k)))
        ways[t] = e.bin("and", act, mask)
    f.watch.diverged(f.flow.blocks[i], tuple(ways.values()))
    for t, mask in ways.items():
        f.values.copy(t, mask)
        if f.flow.blocks[t].exit_only:
            retire(f, mask)
        else:
            wait_at(f, t, mask)
            going[t] = mask
    for t in sorted(going):
        if t <= i:
            some, none = e.fresh("some")[1:], e.fresh("none")[1:]
            e.line(f"br {e.cmp('icmp ne', going[t], 0)}, label %{some}, label %{none}")
            e.label(some)
            _back_to_waiting(f, t)
            e.label(none)
    e.line(f"br label %{f.control.look(waiting_after(f, i) | {t for t in going if t > i})}")


def _finish(f: FunctionLowering) -> None:
    """The end of the order: lanes set aside in spin loops or at barriers come back, or the call is over."""
    e = f.e
    f.frame.word("act", "%initial")
    e.label("end")
    if f.analysis.free_running:
        resume_parked(f)
        e.line("br label %over")
        e.label("over")
    e.line("ret void" if f.kept is None else f"ret i32 {END}")
    release_complete(f)
    for w in f.analysis.checks:
        f.frame.word(f"wait{w}")
    f.frame.finish(in_one=f.analysis.free_running)
