"""Register-only PTX instructions as LLVM IR: arithmetic, logic, comparison, selection, conversion."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from rawkern.engines.cpu.arith.formats import canonical
from rawkern.engines.cpu.arith.rows import Result, Row, UnsupportedOpcode
from rawkern.engines.cpu.arith.table import BASES, TABLE
from rawkern.engines.cpu.ir import Emitter, Val
from rawkern.engines.cpu.ptx.decode import Op

__all__ = ["BASES", "Result", "UnsupportedOpcode", "canonical", "lazy_nan", "lower", "unsupported_reason"]


@cache
def _row(op: Op) -> Row:
    """The row of the table that takes a mnemonic."""
    rows = TABLE.get((op.base, ".".join(t.name for t in op.types)))
    if rows is None:
        if op.base not in BASES:
            raise UnsupportedOpcode(f"{op}: the CPU engine has no instruction {op.base}")
        raise UnsupportedOpcode(f"{op}: the CPU engine has no {op.base} of these types")
    reason = None
    for found in rows:
        reason = found.unsupported_reason(op)
        if reason is None:
            return found
    raise UnsupportedOpcode(reason)


def unsupported_reason(op: Op) -> str | None:
    """Why `lower` does not know this mnemonic with its types and modifiers; None where it does."""
    try:
        _row(op)
    except UnsupportedOpcode as error:
        return str(error)
    return None


@cache
def lazy_nan(op: Op) -> str | None:
    """The format of an instruction's result where its NaNs are left to `canonical`, as in `Result`."""
    try:
        found = _row(op)
    except UnsupportedOpcode:
        return None
    return op.type.name if found.lazy and not op.has("sat") else None


def lower(e: Emitter, op: Op, args: Sequence[Val]) -> Result:
    """Emit one register-only instruction and return its results.

    Parameters
    ----------
    e : Emitter
        Where the code goes.
    op : Op
        The mnemonic, such as ``decode("mad.lo.cc.u32")``.
    args : sequence of Val
        The source operands in PTX order: integers of the registers' widths (at least those of the types), i1 for
        predicates; immediates as constants, those of floating point by their bits. The last one of addc, subc and
        madc is the carry flag.

    Returns
    -------
    Result
        setp gives two predicates: p and its complement q, or those of a packed pair's low and high half. Instructions
        with .cc give the carry flag as well.

    Raises
    ------
    UnsupportedOpcode
        If the instruction, a type or a modifier is not known. Nothing has been emitted then.
    """
    found = _row(op)
    out = found.emit(e, op, args)
    if isinstance(out, Result):
        return out
    vals = (out,) if isinstance(out, Val) else out
    return Result(vals, lazy_nan(op), op.type.signed)
