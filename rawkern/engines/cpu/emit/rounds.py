"""Blocks that run in rounds: a kernel is left at each barrier and entered again, part by part, in loops over warps.

The kernel's function is told which part to run, and returns the number of the next one (`kept`). It becomes part of
each of the loops, where its part is known, so that LLVM sees a loop over the warps with nothing but that part in it.
"""

from __future__ import annotations

from rawkern.engines.cpu.analysis.storage import align_up
from rawkern.engines.cpu.emit.calls import BLOCK_PARAMETERS, mangle
from rawkern.engines.cpu.emit.function import FunctionLowering
from rawkern.engines.cpu.emit.jumps import POLL_EVERY, loop_site, site_of
from rawkern.engines.cpu.emit.kept import Kept

ALIGN = 256  # bytes: the largest vectors
WARPS = 32  # of a block, at most
ROUNDS_BEFORE_POLL = POLL_EVERY // WARPS // 4  # in each a warp may go back often without a look at the clock


#: Before each part but the first the clock is looked at now and then.
_LOOK = f"""define internal void @rk_round(ptr %polls, ptr %blk, i32 %site) alwaysinline {{
  %left = load i32, ptr %polls
  %fewer = sub i32 %left, 1
  store i32 %fewer, ptr %polls
  %due = icmp sle i32 %fewer, 0
  br i1 %due, label %look, label %out, !prof !0
look:
  store i32 {ROUNDS_BEFORE_POLL}, ptr %polls
  call void @rk_poll(ptr %blk, i32 0, i32 %site)
  br label %out
out:
  ret void
}}"""


def step_of(kept: Kept) -> int:
    """Bytes from what a warp keeps to what the next does: an odd multiple, as others share a few sets of a cache."""
    return align_up(kept.warp_bytes, ALIGN) | ALIGN


def run_block(f: FunctionLowering, kept: Kept) -> list[str]:
    """The function that runs a block: a loop over its warps for each part; and what it calls."""
    rounds, step = kept.rounds, step_of(kept)
    cells = f"[{len(kept.shared)} x i64]"
    lines = [
        f"%bytes = mul i32 %nwarps, {step}",
        f"%kept = alloca i8, i32 %bytes, align {ALIGN}",
        f"%block.in = alloca {cells}",
        f"%block.out = alloca {cells}",
        "%polls = alloca i32",
        f"store i32 {ROUNDS_BEFORE_POLL}, ptr %polls",
        "br label %begin0",
    ]
    for part in range(len(rounds.barriers) + 1):
        lines.append(f"begin{part}:")
        if part:
            site = site_of(f, [f.flow.blocks[rounds.barriers[part - 1]].instrs[-1]])
            lines += [
                f"call void @rk_round(ptr %polls, ptr %blk, i32 {site})",
                f"%values{part} = load {cells}, ptr %block.out",
                f"store {cells} %values{part}, ptr %block.in",
            ]
        lines += _in_turns(f, kept, part) if rounds.turns(part) else _one_by_one(f, kept, part)
        following = " ".join(f"i32 {k}, label %begin{k}" for k in rounds.following(part))
        lines.append(f"switch i32 %to{part}, label %over [ {following} ]")
    text = "\n".join([*lines, "over:", "ret void"])
    return [_LOOK, f"define internal void @rk_block({BLOCK_PARAMETERS}) noinline {{\n{text}\n}}"]


def _one_by_one(f: FunctionLowering, kept: Kept, part: int) -> list[str]:
    """A loop over the warps, of which each runs a part to its end; ``%to`` and the part's number is what follows."""
    return [
        f"br label %warp{part}",
        f"warp{part}:",
        f"%w{part} = phi i32 [ 0, %begin{part} ], [ %next{part}, %warp{part} ]",
        *_warp(kept, part),
        f"%to{part} = {_call(f, part, '0')}",
        f"%next{part} = add i32 %w{part}, 1",
        f"%more{part} = icmp ult i32 %next{part}, %nwarps",
        f"br i1 %more{part}, label %warp{part}, label %done{part}",
        f"done{part}:",
    ]


def _in_turns(f: FunctionLowering, kept: Kept, part: int) -> list[str]:
    """The same for a part with loops that warps leave for a turn: it runs again for these until there are none."""
    assert kept.turns is not None
    header, went = kept.rounds.rows[kept.rounds.turns(part)[0] - 1], kept.turns.went
    return [
        f"br label %pass{part}",
        f"pass{part}:",
        f"%first{part} = phi i1 [ true, %begin{part} ], [ false, %again{part} ]",
        f"br label %warp{part}",
        f"warp{part}:",
        f"%w{part} = phi i32 [ 0, %pass{part} ], [ %next{part}, %ran{part} ]",
        f"%some{part} = phi i1 [ false, %pass{part} ], [ %any{part}, %ran{part} ]",
        *_warp(kept, part),
        f"%went{part} = getelementptr i8, ptr %own{part}, i64 {went}",
        f"%was{part} = load i32, ptr %went{part}",
        f"%waits{part} = icmp slt i32 %was{part}, 0",
        f"%runs{part} = or i1 %first{part}, %waits{part}",
        f"br i1 %runs{part}, label %run{part}, label %ran{part}",
        f"run{part}:",
        f"%turn{part} = select i1 %first{part}, i32 0, i32 %was{part}",
        f"%result{part} = {_call(f, part, f'%turn{part}')}",
        f"store i32 %result{part}, ptr %went{part}",
        f"br label %ran{part}",
        f"ran{part}:",
        f"%now{part} = phi i32 [ 0, %warp{part} ], [ %result{part}, %run{part} ]",
        f"%left{part} = icmp slt i32 %now{part}, 0",
        f"%any{part} = or i1 %some{part}, %left{part}",
        f"%next{part} = add i32 %w{part}, 1",
        f"%more{part} = icmp ult i32 %next{part}, %nwarps",
        f"br i1 %more{part}, label %warp{part}, label %passed{part}",
        f"passed{part}:",
        f"br i1 %any{part}, label %again{part}, label %done{part}",
        f"again{part}:",
        f"call void @rk_round(ptr %polls, ptr %blk, i32 {loop_site(f, header)})",
        f"br label %pass{part}",
        f"done{part}:",
        f"%first.went{part} = getelementptr i8, ptr %kept, i64 {went}",
        f"%to{part} = load i32, ptr %first.went{part}",
    ]


def _warp(kept: Kept, part: int) -> list[str]:
    """The lanes of a warp that hold threads, and its memory."""
    return [
        f"%last{part} = icmp eq i32 %w{part}, %partial",
        f"%mask{part} = select i1 %last{part}, i32 %lanes, i32 -1",
        f"%at{part} = mul i32 %w{part}, {step_of(kept)}",
        f"%own{part} = getelementptr i8, ptr %kept, i32 %at{part}",
    ]


def _call(f: FunctionLowering, part: int, turn: str) -> str:
    """A call that runs a part for a warp."""
    block = "ptr %launch, ptr %blk", "i32 %x, i32 %y, i32 %z", "ptr %block.in, ptr %block.out"
    warp = f"i32 %w{part}, i32 %mask{part}"
    args = ", ".join([block[0], warp, block[1], f"ptr %own{part}", block[2], f"i32 {part}, i32 {turn}"])
    return f"call i32 @{mangle(f.function.name)}({args})"
