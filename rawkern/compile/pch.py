"""Precompiled headers: what a process has parsed of headers serves the next sources that begin with them.

<cuda/std/complex> or <cub/cub.cuh> take 0.3 to 0.7 s of each compilation, and a third of that from a file in
which NVRTC has saved what it knows after the directives that a source begins with. The addresses in it are those of one
process, so no other can use it. NVRTC compares the directives itself, and says so where they differ.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rawkern.base.forking import Lock
from rawkern.compile.libnvrtc import Compiled, Nvrtc
from rawkern.compile.source import Source, Watch

_SINCE = (12, 8)  # the first release that has them
_FIRST, _LAST = 2, 4  # the compilations of a beginning that may save it: one takes twice as long, which has to pay off
_MOST_BYTES = 512 << 20  # of all files, which have 10 to 200 MB each
_MOST_KNOWN = 256  # beginnings
_LARGEST = 448 << 20  # of one file; CuTe needs 263 MB, and 256 MB is what NVRTC gives
_QUIET = "-pch-messages=false"
# Comments and directives with their continuation lines, up to the first code.
_BEGINNING = re.compile(r"(?:\s|//[^\n]*|/\*.*?\*/|#(?:[^\\\n/]|\\\n|\\|/\*.*?\*/|//[^\n]*|/)*)*", re.S)
_INCLUDE = re.compile(r"^\s*#\s*include\b", re.M)


@dataclass
class _Beginning:
    """Sources that begin alike and are compiled with the same options and headers."""

    seen: int = 0
    file: int | None = None  # a descriptor; the file has no name, so it is gone when the process is

    @property
    def path(self) -> str:
        return "" if self.file is None else f"/proc/self/fd/{self.file}"

    def close(self) -> None:
        if self.file is not None:
            os.close(self.file)
            self.file = None


_known: OrderedDict[object, _Beginning] = OrderedDict()
_lock = Lock()  # NVRTC loads each file to the same addresses


def compiled(
    nvrtc: Nvrtc, source: Source, options: Sequence[str], text: str, name: str, headers: Mapping[str, str],
    expressions: Sequence[str], machine_code: bool,
) -> Compiled:  # fmt: skip
    """What `Nvrtc.compiled` returns for the text of a source, sooner where its headers are precompiled.

    Its errors come from a compilation of everything.
    """

    def run(*more: str) -> Compiled:
        return nvrtc.compiled([*options, *more], text, name, headers, expressions, machine_code)

    beginning = _BEGINNING.match(text)
    assert beginning is not None
    includes = _INCLUDE.search(beginning[0]) or any(option.startswith("-include=") for option in options)
    # A thread does not wait for another one, which may take longer than it would save.
    if nvrtc.version < _SINCE or not includes or not _lock.acquire(blocking=False):
        return run()
    try:
        if not _known:
            nvrtc.reserve_headers(_LARGEST)
        key = beginning[0], tuple(options), tuple(headers.items()), source.headers, os.path.dirname(name)
        known = _known[key] = _known.pop(key, None) or _Beginning()  # the last one used comes last
        known.seen += 1
        if known.file is not None:
            found = _used(known, run)
        else:
            found = _saved(known, source, run) if _FIRST <= known.seen <= _LAST else None
        _make_room()
    finally:
        _lock.release()
    return found or run()


def _used(known: _Beginning, run: Callable[..., Compiled]) -> Compiled | None:
    """A compilation with the file; None where that is not all there is to say."""
    found = run(_QUIET, f"-use-pch={known.path}")
    if _is_about(found[1], known.path):
        known.close()
        return None
    return found if found[0] else None


def _saved(known: _Beginning, source: Source, run: Callable[..., Compiled]) -> Compiled | None:
    """A compilation that saves the file, which has to be one of the headers as the source knows them."""
    try:
        with tempfile.TemporaryDirectory(prefix="rawkern-") as folder:
            path = os.path.join(folder, "headers.pch")
            found = run(_QUIET, f"-create-pch={path}")
            # What the compiler says of headers it would not say once more.
            if found[0] and not found[1] and not Watch(source).changed() and os.path.exists(path):
                known.file = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    return None if _is_about(found[1], folder) else found


def _is_about(log: str, path: str) -> bool:
    return path in log or "precompiled header" in log or "PCH" in log


def _make_room() -> None:
    """Forget the beginnings used the longest ago, until the others fit in."""

    def total() -> int:
        return sum(os.fstat(known.file).st_size for known in _known.values() if known.file is not None)

    while len(_known) > _MOST_KNOWN or (len(_known) > 1 and total() > _MOST_BYTES):
        _known.popitem(last=False)[1].close()
