"""Bytes and halves of registers as operands of scalar video instructions, in terms of bit field instructions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from rawkern.engines.cpu.ptx.data import Imm, Instr, Part, Reg
from rawkern.engines.cpu.ptx.decode import decode
from rawkern.errors import UnsupportedError

_SCALAR = ("vadd", "vsub", "vabsdiff", "vmin", "vmax", "vshl", "vshr", "vmad", "vset")


def selected(instr: Instr, temporary: Callable[[], Reg]) -> list[Instr]:
    """``vadd.u32.s32.u32 d, a.b1, b, c`` with a's second byte in a register, extended as its type says.

    Into a part of ``d`` goes the result, and the rest of it is c's. `temporary` makes registers.

    Raises
    ------
    UnsupportedError
        For other instructions, and where the result is to be saturated to the part.
    """
    op, types = instr.op, [t.name for t in instr.op.types if t.name in ("u32", "s32")]
    if op.base not in _SCALAR or len(types) < 2:
        raise UnsupportedError(f"PTX instruction {instr.op} with parts of registers is not supported")
    before, args = [], list(instr.args)
    for k, ty in ((1, types[-2]), (2, types[-1])):
        part = args[k] if k < len(args) else None
        if isinstance(part, Part):
            args[k] = temporary()
            field = [args[k], part.reg, Imm(part.at, "i"), Imm(part.bits, "i")]
            before.append(replace(instr, op=decode(f"bfe.{ty}"), args=field))
    dest, rest = args[0], args[3:]
    if not isinstance(dest, Part):
        if any(isinstance(a, Part) for a in rest):
            raise UnsupportedError(f"PTX instruction {instr.op} with a part of its last operand is not supported")
        return [*before, replace(instr, args=args)]
    if op.has("sat") or len(rest) != 1 or isinstance(rest[0], Part) or op.base == "vmad":
        raise UnsupportedError(f"PTX instruction {instr.op} saturated to a part of a register is not supported")
    args = [temporary(), *args[1:3]]
    place = [dest.reg, args[0], rest[0], Imm(dest.at, "i"), Imm(dest.bits, "i")]
    return [*before, replace(instr, args=args), replace(instr, op=decode("bfi.b32"), args=place)]
