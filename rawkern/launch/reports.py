"""What a checked launch found, in words: who did what where, with the lines of the CUDA source."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rawkern import errors
from rawkern.compile.diagnostics import excerpt_of, text_of
from rawkern.compile.names import demangle

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rawkern.compile.source import Source
    from rawkern.engines.cpu.checker.findings import Finding, Place

Dim3 = tuple[int, int, int]


@dataclass(frozen=True)
class Access:
    """A thread at a line of the source.

    Attributes
    ----------
    file, line
        Where in the CUDA source, counted from 1; the innermost line of the user's own files. None and 0 where the
        compiler does not say. For a source string, the file is the string's place in Python, ``train.py:12``.
    excerpt : str
        That line with its neighbors.
    thread, block : tuple of 3 ints
        Indices of the thread in its block and of the block in the grid, x first.
    where : str
        File and line as messages have them: ``k.cu:4``, or ``train.py:12, line 4`` for a source that is a string.
    """

    file: str | None
    line: int
    excerpt: str
    thread: Dim3
    block: Dim3
    where: str

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
        The exception for this kind of defect.
    kernel : str
        Its name.
    message : str
        In one line, beginning with the place of the access.
    access : Access
        The access that the checker reports.
    other : Access or None
        The other side of a race.
    name : str or None
        The parameter or variable.
    index, size : int or None
        The element's index, and the number of elements.
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
    lines, offset = finding.place.site["lines"], finding.offset
    if finding.place.site["space"] == "shared" and (1 << 32) - (1 << 20) <= offset < 1 << 32:  # an address of 32 bits
        finding = replace(finding, offset=offset - (1 << 32))
    case = _Case(finding, other, ["\n".join(text_of(f, source).split("\n")[:n]) for f, n in lines])
    error, words = KINDS[finding.kind]
    does = words.format(it=case) if isinstance(words, str) else words(case, finding)
    name, index, size = case.name, case.index, case.size
    return Report(error, kernel, f"{access.where}: {access.who} {does}", access, other, name, index, size)


def _access(place: Place, source: Source, own: frozenset[str]) -> Access:
    lines = place.site["lines"]
    file, line = next(((f, n) for f, n in lines if f in own), lines[0] if lines else (None, 0))
    excerpt = excerpt_of(text_of(file, source), line, None) if file else ""
    where = source.place(file, line) if file else "an unknown line"
    return Access(source.called(file) if file else None, line, excerpt, place.thread, place.block, where)


class _Case:
    """What the words for a finding are made of."""

    def __init__(self, finding: Finding, other: Access | None, texts: Sequence[str]) -> None:
        """`texts`: the source up to where the access stands."""
        site, piece = finding.place.site, finding.piece
        self.does: str = site["what"]
        self.space: str = site["space"]
        self.element: int = site["element"]
        self.lane, self.other = finding.place.lane, other
        self.name: str | None = None  # of the memory, with an index and the number of its elements
        self.index: int | None = None
        self.size: int | None = None
        #: The memory as the source writes it: ``x[3]``, ``x[4..7]``, or its address.
        self.what = f"address {finding.offset:#x}"
        self.itemsize = self.element or 1
        if piece is not None:
            # A variable's name without the function it is declared in.
            self.name = demangle(piece.name).rpartition("::")[2] if piece.name.startswith("_Z") else piece.name
            declared = next(filter(None, (_element(self.name, piece.size, text) for text in texts)), 0)
            self.itemsize = piece.itemsize or declared or self.itemsize
            self.index, inside = divmod(finding.offset, self.itemsize)
            self.size, count = piece.size // self.itemsize, -(-site["size"] // self.itemsize)
            self.what = f"{self.name}[{self.index}{f'..{self.index + count - 1}' if count > 1 else ''}]"
            if not piece.itemsize and inside + site["size"] <= self.itemsize and 0 < site["size"] < self.itemsize:
                last = inside + site["size"] - 1
                self.what = f"byte{f's {inside}..{last}' if last > inside else f' {inside}'} of {self.what}"

    @property
    def instruction(self) -> str:
        """A warp instruction in CUDA's words."""
        parts = self.does.split(".")
        mode = parts[2] if len(parts) > 2 and parts[1] == "sync" else parts[1] if len(parts) > 1 else ""
        mode = {"idx": "", "bfly": "_xor", "ballot": "__ballot", "all": "__all", "any": "__any"}.get(mode, f"_{mode}")
        return _CUDA.get(parts[0], self.does).format(mode)


def _element(name: str, size: int, text: str) -> int:
    """Bytes of an element of an array of `size` bytes, by its last declaration in a text; 0 if that does not tell."""
    pattern = rf"__(?:shared|device|constant|managed)__[^;{{}}]*?\b{re.escape(name)}\s*((?:\[[^\]]*\]\s*)+)"
    declared = re.findall(pattern, text)
    count = 1 if declared else 0
    for length in re.findall(r"\[\s*([^\]]*?)\s*\]", declared[-1]) if declared else ():
        named = re.findall(rf"\b{re.escape(length)}(?:\s*=\s*|[ \t]+)(\d+)\s*(?:;|$)", text, re.MULTILINE)
        count *= int(length if length.isdigit() else named[-1] if length.isidentifier() and named else 0)
    return size // count if count and size % count == 0 else 0


def _dim(x: Dim3) -> str:
    return f"({x[0]},{x[1]},{x[2]})"


def _out_of_bounds(it: _Case, f: Finding) -> str:
    if it.space == "local":
        array = f.place.site["array"]
        which = f"element {(_signed(f.offset) - (array[0] if array else 0)) // it.element}"
        of = "a local array" if array else "its local variables"
        return f"{it.does} {which}, counted in {it.element} bytes, of {of}, outside of what it has"
    if f.piece is not None:
        if f.piece.address == 0 and f.piece.itemsize == 0 and f.piece.parameter is not None:
            return f"{it.does} {it.what}; {it.name} is None, or has no elements"
        unit = "element" if it.size == 1 else "elements"
        of = "" if f.piece.itemsize else f" of {it.itemsize} bytes"
        return f"{it.does} {it.what}; {it.name} has {it.size} {unit}{of}"
    if it.space == "shared":
        return f"{it.does} byte {_signed(f.offset)} of shared memory, outside of what the block has"
    if f.offset < 4096:
        return f"{it.does} {it.what}, a null pointer"
    return (
        f"{it.does} {it.what}, which is not in the memory of any argument or variable of the launch: memory that "
        "was freed, or never passed"
    )


def _signed(value: int) -> int:
    """A number of 64 bits, whether it has been read with its sign or without."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def _misaligned(it: _Case, f: Finding) -> str:
    size, need = f.place.site["size"], f.place.site["align"]
    if f.piece is not None:
        there = f"{it.what}, {f.offset} bytes after the start of {it.name}"
    elif it.space in ("local", "shared"):
        array = f.place.site["array"]
        of = "a local array" if array else "its local variables" if it.space == "local" else "shared memory"
        there = f"byte {_signed(f.offset) - (array[0] if array else 0)} of {of}"
    else:
        return f"{it.does} {size} bytes at {it.what}, which is not a multiple of {need}"
    return f"{it.does} {size} bytes at {there}; the address is not a multiple of {need}"


def _uninitialized(it: _Case, f: Finding) -> str:
    if it.space == "register":
        return "uses a variable that it has not initialized"
    if it.space == "local":
        return f"{it.does} byte {f.offset} of its local variables, which it has not written"
    what = it.what if f.piece is not None else f"byte {f.offset} of shared memory"
    return f"{it.does} {what}, which no thread of the block has written"


def _race(it: _Case, f: Finding) -> str:
    assert f.other is not None and it.other is not None
    what = it.what if f.piece is not None else "the same memory"
    theirs = f.other.site["what"]
    order = "a barrier, or a fence and an atomic"
    if "copies" in (it.does, theirs):
        order = "a wait for the copy, and a barrier before other threads use it"
    nothing = f"nothing orders the two ({order})"
    if f.extra:
        nothing = "only the order in which a lock was taken orders the two, and one of them does not hold it"
    return f"{it.does} {what}, which {it.other.who} {theirs} at {it.other.where}; {nothing}"


def _not_here(it: _Case, f: Finding) -> str:
    lanes = ", ".join(str(k) for k in range(32) if f.extra >> k & 1)
    who = f"lane{'s' if ',' in lanes else ''} {lanes}" if lanes else "lanes"
    come = "do not come" if "," in lanes or not lanes else "does not come"
    return f"executes {it.instruction} with a mask that names {who}, which {come} to it"


def _bad_free(it: _Case, f: Finding) -> str:
    if f.piece is not None and f.offset:
        return f"frees an address {f.offset} bytes inside a piece of memory from malloc"
    return "frees memory a second time" if f.piece is not None else "frees memory that malloc did not return"


#: What warp instructions are in CUDA.
_CUDA = {
    "shfl": "__shfl{}_sync()", "vote": "a vote ({}_sync)", "match": "__match{}_sync()", "redux": "__reduce{}_sync()",
    "bar": "__syncwarp()", "elect": "elect.sync",
}  # fmt: skip

#: Of each kind of finding (`engines.cpu.checker.native.layout.KINDS`) the exception, and the words or what makes them.
KINDS: dict[str, tuple[type[errors.CheckError], str | Callable[[_Case, Finding], str]]] = {
    "BOUNDS": (errors.OutOfBoundsError, _out_of_bounds),
    "MISALIGNED": (errors.MisalignedError, _misaligned),
    "FREED": (errors.FreedMemoryError, "{it.does} {it.what}, memory that was freed"),
    "BAD_FREE": (errors.FreedMemoryError, _bad_free),
    "READ_ONLY": (errors.ReadOnlyError, "{it.does} {it.what}, and the kernel may only read {it.name}"),
    "UNINITIALIZED": (errors.UninitializedReadError, _uninitialized),
    "RACE": (errors.RaceError, _race),
    "DIVERGENT_BARRIER": (errors.BarrierError,
        "waits at a barrier that other threads of its warp do not reach; __syncthreads() may be in a branch only "
        "if all threads of the block take it"),
    "SKIPPED_BARRIER": (errors.BarrierError,
        "ends without this barrier, which other threads of its warp reach; __syncthreads() may be in a branch "
        "only if all threads of the block take it"),
    "DIFFERENT_BARRIERS": (errors.BarrierError,
        "waits at this barrier while {it.other.who} waits at the one of {it.other.where}; all threads of the block "
        "must reach the same one"),
    "NOT_BEGUN": (errors.BarrierError,
        "accesses shared memory of another block of its cluster before that block runs; all blocks must wait at the "
        "barrier of the cluster first (cluster.sync())"),
    "ENDED": (errors.BarrierError,
        "accesses shared memory of another block of its cluster after that block has ended; every block must wait at "
        "the barrier of the cluster (cluster.sync()) while others use its memory"),
    "EARLY_READ": (errors.RaceError,
        "uses sums of its warp group's product (wgmma), started at {it.other.where}, without waiting for it "
        "(wgmma.wait_group)"),
    "NO_PROXY_FENCE": (errors.RaceError,
        "reads {it.what} asynchronously, which {it.other.who} writes at {it.other.where}, without fence.proxy.async "
        "in between: without it, bulk copies and wgmma may not see ordinary writes"),
    "INITIALIZED": (errors.BarrierError,
        "initializes an mbarrier that was already initialized at {it.other.where}; call mbarrier.inval first"),
    "UNSEEN_PHASE": (errors.BarrierError,
        "arrives at an mbarrier for whose previous phase no thread has waited: at least one thread must see that phase "
        "complete (mbarrier.try_wait) before the next arrival"),
    "DESCRIPTORS": (errors.BarrierError,
        "passes wgmma other matrix descriptors than {it.other.who} of the same warp group; all four warps must pass "
        "the same"),
    "NO_PRODUCT_FENCE": (errors.RaceError,
        "starts a product of its warp group (wgmma) without wgmma.fence, which must come between writes of its "
        "registers and the product"),
    "NOT_WAITED": (errors.RaceError,
        "{it.does} {it.what}, which the launch before this one may still write; with programmatic=True, wait for that "
        "launch first (cudaGridDependencySynchronize(), griddepcontrol.wait)"),
    "OPERATION_LEFT": (errors.RaceError,
        "ends while the copy that it starts here may still run: wait for the copy first (cp.async.bulk.wait_group, or "
        "the mbarrier)"),
    "DEADLOCK": (errors.BarrierError, "waits at a barrier that the others never reach"),
    "MASK_WITHOUT_SELF": (errors.WarpSyncError,
        "executes {it.instruction} with a mask that does not name its own lane, {it.lane}"),
    "MASK_NOT_HERE": (errors.WarpSyncError, _not_here),
    "INACTIVE_SOURCE": (errors.WarpSyncError,
        "executes {it.instruction} and uses what it gets from a lane that does not take part"),
}  # fmt: skip
