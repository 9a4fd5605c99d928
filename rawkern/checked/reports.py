"""What a checked launch found, in words: who did what where, with the lines of the CUDA source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rawkern import errors
from rawkern.compile.diagnostics import excerpt_of, text_of
from rawkern.compile.names import demangle

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rawkern.compile.source import Source
    from rawkern.engines.cpu.checker.findings import Finding, Piece, Place

__all__ = ["Access", "Report", "error_of", "report_of"]

Dim3 = tuple[int, int, int]

#: The exception of each kind of finding (`engines.cpu.check_layout.KINDS`).
ERRORS: dict[str, type[errors.CheckError]] = {
    "BOUNDS": errors.OutOfBoundsError,
    "MISALIGNED": errors.MisalignedError,
    "FREED": errors.FreedMemoryError,
    "BAD_FREE": errors.FreedMemoryError,
    "READ_ONLY": errors.ReadOnlyError,
    "UNINITIALIZED": errors.UninitializedReadError,
    "RACE": errors.RaceError,
    "DIVERGENT_BARRIER": errors.BarrierError,
    "DIFFERENT_BARRIERS": errors.BarrierError,
    "DEADLOCK": errors.BarrierError,
    "MASK_WITHOUT_SELF": errors.WarpSyncError,
    "MASK_NOT_HERE": errors.WarpSyncError,
    "INACTIVE_SOURCE": errors.WarpSyncError,
}


@dataclass(frozen=True)
class Access:
    """A thread at a line of the source.

    Attributes
    ----------
    file, line
        Where in the CUDA source, counted from 1; the innermost line of the user's own files. None and 0 where the
        compiler does not say.
    excerpt : str
        That line with its neighbours.
    thread, block : tuple of 3 ints
        Indices of the thread in its block and of the block in the grid, x first.
    """

    file: str | None
    line: int
    excerpt: str
    thread: Dim3
    block: Dim3

    @property
    def where(self) -> str:
        """``file:line``."""
        return f"{self.file}:{self.line}" if self.file else "an unknown line"

    @property
    def who(self) -> str:
        """``thread (x,y,z) of block (x,y,z)``."""
        return f"thread {_dim(self.thread)} of block {_dim(self.block)}"


@dataclass(frozen=True)
class Report:
    """One defect that a checked launch found.

    Attributes
    ----------
    error : type
        The exception that stands for its kind.
    kernel : str
        Its name.
    message : str
        In one line, beginning with ``file:line``.
    access : Access
        Who did it where.
    other : Access or None
        The other side of a race.
    name : str or None
        The parameter or variable.
    index, size : int or None
        Which element of it was meant, and how many there are.
    """

    error: type[errors.CheckError]
    kernel: str
    message: str
    access: Access
    other: Access | None = None
    name: str | None = None
    index: int | None = None
    size: int | None = None

    @property
    def file(self) -> str | None:
        """The source file of the access."""
        return self.access.file

    @property
    def line(self) -> int:
        """The line of the access, counted from 1."""
        return self.access.line

    def __str__(self) -> str:
        lines = [self.message, self.access.excerpt]
        if self.other is not None and (self.other.file, self.other.line) != (self.file, self.line):
            lines += [f"{self.other.where}: the other access", self.other.excerpt]
        return "\n".join(line for line in lines if line)


def error_of(reports: Sequence[Report]) -> errors.CheckError:
    """The exception for the reports of one launch: the first one's, with all of them."""
    first = reports[0]
    text = f"{first.kernel}: {first}"
    if len(reports) > 1:
        text += "".join(f"\n\n{report}" for report in reports[1:])
    return first.error(text, tuple(reports))


def report_of(finding: Finding, kernel: str, source: Source, own: frozenset[str]) -> Report:
    """Put a finding into words; `own` are the user's files."""
    access = _access(finding.place, source, own)
    other = _access(finding.other, source, own) if finding.other is not None else None
    name, index, size = _element(finding)
    does = finding.place.site["what"]
    words = _WORDS[finding.kind](finding, does, name, index, size, other)
    message = f"{access.where}: {access.who} {words}"
    return Report(ERRORS[finding.kind], kernel, message, access, other, name, index, size)


def _access(place: Place, source: Source, own: frozenset[str]) -> Access:
    lines = place.site["lines"]
    file, line = next(((f, n) for f, n in lines if f in own), lines[0] if lines else (None, 0))
    excerpt = excerpt_of(text_of(file, source), line, None) if file else ""
    return Access(file, line, excerpt, place.thread, place.block)


def _element(finding: Finding) -> tuple[str | None, int | None, int | None]:
    """Name, index and number of elements of the memory that a finding is about."""
    piece = finding.piece
    if piece is None:
        return None, None, None
    itemsize = piece.itemsize or finding.place.site["element"] or 1
    return _name(piece), finding.offset // itemsize, piece.size // itemsize


def _name(piece: Piece) -> str:
    """A variable's name without the function it is declared in."""
    return demangle(piece.name).rpartition("::")[2] if piece.name.startswith("_Z") else piece.name


def _dim(x: Dim3) -> str:
    return f"({x[0]},{x[1]},{x[2]})"


def _of(name: str | None, index: int | None, finding: Finding) -> str:
    """The memory as the source writes it: ``x[3]``, ``x[4..7]``, or its address."""
    if name is None or finding.piece is None:
        return f"address {finding.offset:#x}"
    itemsize = finding.piece.itemsize or finding.place.site["element"] or 1
    count = -(-finding.place.site["size"] // itemsize)
    return f"{name}[{index}..{index + count - 1}]" if count > 1 and index is not None else f"{name}[{index}]"


def _out_of_bounds(f: Finding, does: str, name: str | None, index: int | None, size: int | None, _) -> str:
    space = f.place.site["space"]
    if space == "local":
        element, array = f.place.site["element"], f.place.site["array"]
        which = f"element {(_signed(f.offset) - (array[0] if array else 0)) // element}, counted in {element} bytes,"
        return f"{does} {which} of {'a local array' if array else 'its local variables'}, outside of what it has"
    if f.piece is not None and name is not None:
        if f.piece.address == 0 and f.piece.itemsize == 0 and f.piece.parameter is not None:
            return f"{does} {_of(name, index, f)}; {name} is None"
        unit = "element" if size == 1 else "elements"
        of = "" if f.piece.itemsize else f" of {f.place.site['element']} bytes"
        return f"{does} {_of(name, index, f)}; {name} has {size} {unit}{of}"
    if space == "shared":
        return f"{does} byte {_signed(f.offset)} of shared memory, outside of what the block has"
    if f.offset < 4096:
        return f"{does} address {f.offset:#x}, a null pointer"
    return (
        f"{does} address {f.offset:#x}, which belongs to no argument or variable of the launch: memory that was freed, "
        "or never passed"
    )


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _misaligned(f: Finding, does: str, name: str | None, index: int | None, size: int | None, _) -> str:
    need = f.place.site["size"]
    if f.piece is None:
        return f"{does} {need} bytes at address {f.offset:#x}, which is no multiple of {need}"
    return (
        f"{does} {need} bytes at {_of(name, index, f)}, {f.offset} bytes behind the start of {name}; "
        f"the address is no multiple of {need}"
    )


def _read_only(f: Finding, does: str, name: str | None, index: int | None, size: int | None, _) -> str:
    return f"{does} {_of(name, index, f)}, and the kernel may only read {name}"


def _freed(f: Finding, does: str, name: str | None, index: int | None, size: int | None, _) -> str:
    return f"{does} {_of(name, index, f)}, memory that was freed"


def _uninitialized(f: Finding, does: str, name: str | None, index: int | None, size: int | None, _) -> str:
    if f.place.site["space"] == "register":
        return "uses a variable that it has not set"
    if f.place.site["space"] == "local":
        return f"{does} byte {f.offset} of its local variables, which it has not written"
    what = _of(name, index, f) if f.piece is not None else f"byte {f.offset} of shared memory"
    return f"{does} {what}, which no thread of the block has written"


def _race(f: Finding, does: str, name: str | None, index: int | None, size: int | None, other: Access | None) -> str:
    assert f.other is not None and other is not None
    what = _of(name, index, f) if f.piece is not None else "the same memory"
    order = "a barrier, or a fence and an atomic"
    if "copies" in (does, f.other.site["what"]):
        order = "a wait for the copy, and a barrier before other threads use it"
    return f"{does} {what}, which {other.who} {f.other.site['what']} at {other.where}; nothing orders the two ({order})"


def _barrier(f: Finding, *_) -> str:
    return (
        "waits at a barrier that other threads of its warp do not come to; __syncthreads() may stand in a branch only "
        "if all threads of the block take it"
    )


def _barriers(
    f: Finding, does: str, name: str | None, index: int | None, size: int | None, other: Access | None
) -> str:
    assert other is not None
    return (
        f"waits at this barrier while {other.who} waits at the one of {other.where}; all threads of the block have to "
        "come to the same one"
    )


def _deadlock(f: Finding, *_) -> str:
    return "waits at a barrier that the others never reach"


def _no_self(f: Finding, does: str, *_) -> str:
    return f"executes {_instruction(does)} with a mask that does not name its own lane, {f.place.lane}"


def _not_here(f: Finding, does: str, *_) -> str:
    lanes = ", ".join(str(k) for k in range(32) if f.extra >> k & 1)
    who = f"lane{'s' if ',' in lanes else ''} {lanes}" if lanes else "lanes"
    come = "do not come" if "," in lanes or not lanes else "does not come"
    return f"executes {_instruction(does)} with a mask that names {who}, which {come} to it"


def _inactive(f: Finding, does: str, *_) -> str:
    return f"executes {_instruction(does)} and uses what it gets from a lane that does not take part"


def _bad_free(f: Finding, *_) -> str:
    if f.piece is not None and f.offset:
        return f"frees an address {f.offset} bytes inside a piece of memory from malloc"
    return "frees memory a second time" if f.piece is not None else "frees what malloc did not give"


#: What warp instructions are in CUDA.
_CUDA = {
    "shfl": "__shfl{}_sync()", "vote": "a vote ({}_sync)", "match": "__match{}_sync()", "redux": "__reduce{}_sync()",
    "bar": "__syncwarp()", "elect": "elect.sync",
}  # fmt: skip


def _instruction(op: str) -> str:
    parts = op.split(".")
    mode = parts[2] if len(parts) > 2 and parts[1] == "sync" else parts[1] if len(parts) > 1 else ""
    mode = {"idx": "", "bfly": "_xor", "ballot": "__ballot", "all": "__all", "any": "__any"}.get(mode, f"_{mode}")
    return _CUDA.get(parts[0], op).format(mode)


_WORDS = {
    "DIVERGENT_BARRIER": _barrier,
    "DIFFERENT_BARRIERS": _barriers,
    "DEADLOCK": _deadlock,
    "MASK_WITHOUT_SELF": _no_self,
    "MASK_NOT_HERE": _not_here,
    "INACTIVE_SOURCE": _inactive,
    "BAD_FREE": _bad_free,
    "BOUNDS": _out_of_bounds,
    "MISALIGNED": _misaligned,
    "READ_ONLY": _read_only,
    "FREED": _freed,
    "UNINITIALIZED": _uninitialized,
    "RACE": _race,
}
