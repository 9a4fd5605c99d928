"""The pattern in uninitialized memory: a value that spoils any result, instead of what was there before.

Each half, bfloat16, float and double of it is a NaN, a signaling one as a double; each int is too large for an index,
and no address begins so. NaNs of floats and halves cannot be signaling as well: a double's exponent is longer.
"""

from __future__ import annotations

from pathlib import Path

from rawkern.base.records import filled
from rawkern.engines.cpu.analysis.plan import Plan
from rawkern.engines.cpu.analysis.storage import RESERVED, RESERVED_BYTES
from rawkern.engines.cpu.emit.lanes import pointer
from rawkern.engines.cpu.ir import Emitter, Val, const
from rawkern.engines.cpu.records import BAR, BLOCK, LAUNCH

POSITIVE = 0x7FF47FF47FF47FF4
NEGATIVE = POSITIVE | 0x8000800080008000


#: What kernels are told of `runtime`.
DECLARATIONS = "declare i64 @rk_fill(ptr, i64, i64)\ndeclare i64 @rk_begin(ptr, ptr, i64, i64)"
RECORDS = (BAR, BLOCK, LAUNCH)  # which it needs


def runtime() -> str:
    """LLVM IR of the functions that fill memory, a part of an instrument's own object file."""
    text = Path(__file__).with_name("pattern.ll").read_text()
    return filled(text, (BLOCK, LAUNCH), {"POSITIVE": POSITIVE, "NEGATIVE": NEGATIVE - (1 << 64)})


def block_begins(plan: Plan) -> str:
    """What happens where a block begins: a call in LLVM IR, or nothing where a kernel has no shared memory."""
    if not plan.shared:
        return ""
    kept = plan.shared.get(RESERVED)
    hole = "i64 0, i64 0" if kept is None else f"i64 {kept}, i64 {kept + RESERVED_BYTES}"
    return f"%filled = call i64 @rk_begin(ptr %launch, ptr %blk, {hole})"


def fill(e: Emitter, start: Val | str, size: Val | int) -> None:
    """Fill memory from a pointer on that is a multiple of 16, up to the next such multiple."""
    size = size if isinstance(size, Val) else const("i64", size)
    e.let("i64", 1, f"call i64 @rk_fill({start}, {size}, i64 {POSITIVE})")


def fill_piece(e: Emitter, address: Val, size: Val, most: int = 0) -> Val:
    """Fill memory that malloc gave, or the first bytes of it; returns its address, which may be null."""
    if most:
        size = e.select(e.cmp("icmp ult", size, most), size, const("i64", most))
    size = e.select(e.cmp("icmp eq", address, 0), const("i64", 0), size)
    fill(e, pointer(e, address), size)
    return address
