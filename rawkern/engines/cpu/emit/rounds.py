"""Blocks that run in rounds: a kernel is left at each barrier and entered again, part by part, in loops over warps.

The kernel's function is told which part to run, and returns the number of the next one (`kept`). It becomes part of
each of the loops, where its part is known, so that LLVM sees a loop over the warps with nothing but that part in it.
"""

from __future__ import annotations

from rawkern.engines.cpu.analysis.storage import align_up
from rawkern.engines.cpu.emit.calls import BLOCK_PARAMETERS, mangle
from rawkern.engines.cpu.emit.function import FunctionLowering
from rawkern.engines.cpu.emit.jumps import POLL_EVERY, site_of
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
    rounds, name, step = kept.rounds, mangle(f.function.name), step_of(kept)
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
        following = " ".join(f"i32 {k}, label %begin{k}" for k in rounds.following(part))
        args = f"i32 %w{part}, i32 %mask{part}, i32 %x, i32 %y, i32 %z, ptr %own{part}, ptr %block.in, ptr %block.out"
        lines += [
            f"br label %warp{part}",
            f"warp{part}:",
            f"%w{part} = phi i32 [ 0, %begin{part} ], [ %next{part}, %warp{part} ]",
            f"%last{part} = icmp eq i32 %w{part}, %partial",
            f"%mask{part} = select i1 %last{part}, i32 %lanes, i32 -1",
            f"%at{part} = mul i32 %w{part}, {step}",
            f"%own{part} = getelementptr i8, ptr %kept, i32 %at{part}",
            f"%to{part} = call i32 @{name}(ptr %launch, ptr %blk, {args}, i32 {part})",
            f"%next{part} = add i32 %w{part}, 1",
            f"%more{part} = icmp ult i32 %next{part}, %nwarps",
            f"br i1 %more{part}, label %warp{part}, label %done{part}",
            f"done{part}:",
            f"switch i32 %to{part}, label %over [ {following} ]",
        ]
    text = "\n".join([*lines, "over:", "ret void"])
    return [_LOOK, f"define internal void @rk_block({BLOCK_PARAMETERS}) noinline {{\n{text}\n}}"]
