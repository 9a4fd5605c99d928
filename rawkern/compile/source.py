"""CUDA source as text or file, with every local header it includes; and whether any of them has changed."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from rawkern.base import frames
from rawkern.base.forking import cached_property
from rawkern.compile import names
from rawkern.compile.files import read, read_patiently, sha256, stamp
from rawkern.compile.includes import closure
from rawkern.compile.options import settings

FATBIN = b"\x50\xed\x55\xba"  # what such a file begins with
MACHINE_CODE = {b"\x7fELF": "cubin", FATBIN: "fatbin"}
_MANIFEST = re.compile(rb'\s*\{\s*"rawkern_manifest"')  # of code that `rawkern build --package` wrote
_PTX = re.compile(rb"(?:\s|//[^\n]*\n|/\*(?:[^*]|\*(?!/))*+\*/)*+\.version\b")
STRING_NAME = "kernel.cu"  # what the compiler calls a source that came as a string, wherever that stands

# What code for the CPU engine is compiled for: sm_80's PTX has all that most kernels use, and nothing that only newer
# GPUs do; Hopper's has that (the suffix: wgmma and the like).
CPU_ARCH, HOPPER_ARCH = "compute_80", "compute_90a"
# In a source that needs it. What most alternatives begin with is tried once at each character, not forty times.
_OF_HOPPER = re.compile(
    r"\b(?:this_cluster\b|cluster_group\b|cluster_n?cta(?:rank|id)\b|barrier\.cluster|mapa\.|getctarank"
    r"|(?:st|red)\.async\b|(?:expect|complete)_tx\b|CUtensorMap\b|tensormap\.|cp\.(?:reduce\.)?async\.bulk"
    r"|wgmma\.|setmaxnreg\b|griddepcontrol\b|fence\.(?:proxy\.(?:async|tensormap)|mbarrier_init)"
    r"|(?:atom|red)\.[\w.:]*\.v[248]\b|atomicAdd\w*\(\s*(?:reinterpret_cast\s*<|\()\s*float[24]\s*\*"
    r"|cuda(?:/|::)ptx\b|(?:memcpy_async|barrier_arrive|barrier_expect)_tx\b|S[Mm]90_"
    r"|cuda(?:GridDependencySynchronize|TriggerProgrammaticLaunchCompletion)\b)"
    r"|__cluster_dims__|shared::cluster|%(?:n?clusterid|is_explicit_cluster)|\.(?:[us]16x2\b|b128\b|target\s+sm_9\d)"
)

_OF_CUTLASS = re.compile(r"^[ \t]*#[ \t]*include[ \t]*[<\"](?:cute|cutlass)/", re.M)


@dataclass(frozen=True)
class Source:
    """One CUDA source, fixed at the moment it was read."""

    text: str
    path: str | None  # absolute, if it came from a file
    include_dirs: tuple[str, ...]  # the user's, absolute; for "..." a file's own directory is searched before them
    options: tuple[str, ...]  # NVRTC options, without include directories
    headers: tuple[tuple[str, str], ...]  # (absolute path, sha256) of every local header included, recursively
    # Include names, as spelled, that local headers answered.
    local_names: frozenset[str] = field(default=frozenset(), repr=False)
    # Paths looked for in vain: one may appear later.
    missing: tuple[str, ...] = field(default=(), repr=False, compare=False)
    # What a file holds that is compiled already: PTX, a cubin or a fatbin, or the manifest of several of them.
    binary: bytes | None = field(default=None, repr=False)
    # Where in Python a string stands; what is compiled does not depend on it.
    origin: frames.Place | None = field(default=None, repr=False, compare=False)

    @property
    def name(self) -> str:
        """What the compiler calls it."""
        return self.path or STRING_NAME

    @property
    def kind(self) -> str:
        """What it is: "CUDA", "PTX", "cubin", "fatbin" or "manifest"."""
        return "CUDA" if self.binary is None else _compiled(self.binary) or "PTX"

    @property
    def title(self) -> str:
        """Its name in messages: the file, or for a string its place in Python, ``train.py:12``."""
        return frames.spelled(self.origin) if self.origin else self.name

    @cached_property
    def cpu_arch(self) -> str:
        """The virtual architecture that the CPU engine's code is compiled for, by what the source names."""
        if self.kind in ("CUDA", "PTX"):
            needs = any(map(_OF_HOPPER.search, self.texts()))
        else:
            needs = HOPPER_ARCH.encode() in (self.binary or b"")
        return HOPPER_ARCH if needs else CPU_ARCH

    @property
    def uses_cutlass(self) -> bool:
        """Whether it includes CUTLASS or CuTe, whose functions are for the device also where they do not say so."""
        return any(map(_OF_CUTLASS.search, self.texts()))

    def texts(self) -> list[str]:
        """The text, and those of its local headers as the disk has them now."""
        found = [read(path) for path, _ in self.headers]
        return [self.text, *(data.decode(errors="replace") for data in found if data is not None)]

    def called(self, file: str) -> str:
        """What messages call a file of the compiler's, which may be this source."""
        return self.title if file == self.name else file

    def place(self, file: str, line: int, column: int | None = None, within: str = "") -> str:
        """What messages call a place: ``k.cu:4:9``, ``train.py:12, line 4`` or, within a kernel, with its name."""
        if self.origin and file == self.name:
            return f"{self.title}{f' ({within})' if within else ''}, line {line}"
        return f"{file}:{line}{f':{column}' if column else ''}{f': in {within}' if within else ''}"

    def readable(self, text: str) -> str:
        """A message made below, with places of the compiler's and symbols as people know them."""
        places = rf"(?<![\w/.]){re.escape(STRING_NAME)}:(\d+)"
        if self.origin:
            text = re.sub(places, lambda place: self.place(self.name, int(place[1])), text)
        return names.readable(text)


def from_text(
    code: str,
    options: Sequence[str] = (),
    include_dirs: Sequence[str | os.PathLike[str]] = (),
    origin: frames.Place | None = None,
) -> Source:
    """Make a Source from a string; ``#include "..."`` is looked for in the current directory, too.

    TypeError or ValueError for something that is not CUDA text, for an option that cannot work here, or an include
    directory that is not there.
    """
    if not isinstance(code, str):
        raise TypeError(
            f"code is {type(code).__name__}, not str; pass the CUDA source as a string, or path= for a file"
        )
    code = code.removeprefix("\ufeff")  # the byte-order mark of a file that was read as plain UTF-8
    _check_text(code, origin)
    if code.rstrip().endswith((".cu", ".cuh")) and len(code.split()) == 1:
        raise ValueError(f"code is {code!r}, the name of a file, not CUDA source; pass path={code.strip()!r}")
    kept, directories = settings(options, include_dirs)
    text = " ".join([code, *kept])
    if "include" not in text or not re.search(r'include(?:=|\s*)"|-include', text):
        return _source(code, None, kept, directories, None, origin)
    # NVRTC looks in the current directory first; named again here, it is found from another one, too.
    here = os.getcwd()
    return _source(code, None, kept, (*directories, here), here, origin)


def from_path(
    path: str | os.PathLike[str], options: Sequence[str] = (), include_dirs: Sequence[str | os.PathLike[str]] = ()
) -> Source:
    """Make a Source from a file; its own directory is searched first for ``#include "..."``.

    If the file is missing, this waits briefly: editors save by writing a new file and renaming it. FileNotFoundError
    if there is none; TypeError or ValueError as for `from_text`, also for a file that is not UTF-8 text.
    """
    kept, directories = settings(options, include_dirs)
    full = os.path.abspath(os.fspath(path))
    data = read_patiently(full)
    if _compiled(data):
        return _precompiled(full, data, kept, directories)
    if full.endswith((".cubin", ".fatbin")):
        raise ValueError(f"{full} is not a {full.rpartition('.')[2]}: its first bytes are {data[:4]!r}")
    text = _decode(data, full)
    _check_text(text, full)
    return _source(text, full, kept, directories, os.path.dirname(full))


def _compiled(data: bytes) -> str | None:
    return MACHINE_CODE.get(data[:4]) or ("manifest" if _MANIFEST.match(data) else "PTX" if _PTX.match(data) else None)


def _precompiled(path: str, data: bytes, options: tuple[str, ...], include_dirs: tuple[str, ...]) -> Source:
    if options or include_dirs:
        given = "options" if options else "include_dirs"
        raise ValueError(f"{given} is given for {path}, which is already compiled; leave it out, or pass the source")
    if _compiled(data) != "PTX":
        return Source(f"// sha256 {sha256(data)}", path, (), (), (), binary=data)
    data = data.rstrip(b"\0")
    return Source(_decode(data, path), path, (), (), (), binary=data)


class Watch:
    """Tells whether a source's file or any of its local headers has changed since the source was read."""

    INTERVAL = 0.1  # seconds between two rounds of stat calls of `changed`, and of launches in native code

    def __init__(self, source: Source) -> None:
        self.source = source
        self._files = tuple(path for path in (source.path, *(path for path, _ in source.headers)) if path)
        self._stamps = {path: stamp(path) for path in (*self._files, *source.missing)}
        self._dirty = not self._matches()
        self.next_look = time.monotonic() + self.INTERVAL

    def changed(self, _now=time.monotonic) -> bool:
        """Return True from the first moment a change is seen; looks at the disk at most once each 100 ms.

        A file that is gone does not count: an editor may be about to put the new one in its place.
        """
        return self._dirty if (now := _now()) < self.next_look else self.look(now)

    def look(self, now: float | None = None) -> bool:
        """Return what `changed` does, from the disk as it is at this moment."""
        self.next_look = (time.monotonic() if now is None else now) + self.INTERVAL
        for path, old in self._stamps.items():
            new = stamp(path)
            if new != old and new is not None:
                self._dirty = True
        return self._dirty

    def _matches(self) -> bool:
        """Whether the files still hold what the source was read from; they may have changed since then."""
        source = self.source
        expected = dict(source.headers)
        if source.path:
            expected[source.path] = sha256(source.text.encode())
        if any(self._stamps[path] for path in source.missing):
            return False
        for path, digest in expected.items():
            data = read(path)
            if data is None:
                continue
            if path == source.path and source.binary is not None:
                if data.rstrip(b"\0") != source.binary.rstrip(b"\0"):
                    return False
                continue
            if path == source.path:  # its text lacks the byte-order mark and has plain line ends
                data = data.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n")
            if digest != sha256(data):
                return False
        return True


def _source(
    text: str,
    path: str | None,
    options: tuple[str, ...],
    include_dirs: tuple[str, ...],
    own: str | None,
    origin: frames.Place | None = None,
) -> Source:
    found, local, missing = closure(text, own, options, include_dirs)
    headers = tuple(sorted(found.items()))
    return Source(text, path, include_dirs, options, headers, frozenset(local), tuple(sorted(missing)), origin=origin)


def _decode(data: bytes, path: str) -> str:
    try:
        return data.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text: {error}; save it as UTF-8") from None


def _check_text(text: str, found: frames.Place | str | None) -> None:
    """Reject text at which the compiler would silently stop."""
    if "\0" in text:
        name = frames.spelled(found) if isinstance(found, tuple) else found or STRING_NAME
        line = text.count("\n", 0, text.index("\0")) + 1
        raise ValueError(
            f"{name} has a NUL character in line {line}; remove it (a string that has \\0 in its text is a raw one, "
            'r"""..."""), and save a file as UTF-8'
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        name = frames.spelled(found) if isinstance(found, tuple) else found or STRING_NAME
        line = text.count("\n", 0, error.start) + 1
        raise ValueError(f"{name} has an unpaired surrogate in line {line}, {text[error.start]!r}") from None
