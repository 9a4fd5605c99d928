"""Which macros the compiler and headers that are not the user's define, and whether a condition on them holds."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterable
from dataclasses import replace

from rawkern.compile import shims
from rawkern.compile.dialect import Dialect
from rawkern.compile.files import read_text
from rawkern.compile.hostcode import stand_in
from rawkern.compile.nvrtc import run_nvrtc
from rawkern.compile.source import CPU_ARCH, Source, from_text
from rawkern.compile.toolchain import toolchain

_DEFINE = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)", re.M)
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*[<"]([^>"\n]+)[>"]', re.M)
_HOLDS, _FAILS = "rawkern_condition_holds", "rawkern_condition_fails"


def may_define(name: str, includes: Iterable[str]) -> bool:
    """Whether the compiler for some architecture, or a header of these, may define a macro."""
    return (
        "ARCH" in name or name in _of_shims() or any(name in _defined(each) for each in includes) or _predefined(name)
    )


def holds(source: Source, directives: str, condition: str, arch: str) -> bool | None:
    """Whether an ``#if`` holds in a source after these directives; None if the compiler rejects it."""
    text = f"{directives}\n#if {condition}\n#error {_HOLDS}\n#endif\n#error {_FAILS}\n"
    log = run_nvrtc(replace(source, text=text), arch, dialect=_dialect(source)).log
    return None if ": error: " in log else True if f"{_HOLDS}\n" in log else False if f"{_FAILS}\n" in log else None


@functools.lru_cache(maxsize=16)
def _dialect(source: Source) -> Dialect:
    """The declarations that the source is compiled with."""
    return run_nvrtc(source, source.cpu_arch).dialect


@functools.cache
def _predefined(name: str) -> bool:
    return holds(from_text("\n"), "", f"defined({name})", CPU_ARCH) is not False


@functools.cache
def _of_shims() -> frozenset[str]:
    """Macros of standard headers that may be included for a source that lacks them."""
    return frozenset(macro for text in shims.needed(frozenset()).values() for macro in _DEFINE.findall(text))


@functools.cache
def of_torch(header: str) -> tuple[str, ...]:
    """The directives by which a stand-in for a header of PyTorch defines macros; none for other headers."""
    found, left = dict[str, None](), [stand_in(header)]
    while left:
        text = shims.needed(frozenset()).get(left.pop(), "")
        found |= dict.fromkeys(re.findall(r"^#(define (?!RAWKERN_).*)", text, re.M))
        left += [each for each in _INCLUDE.findall(text) if each.startswith("rawkern/")]
    return tuple(found)


@functools.cache
def _defined(header: str) -> frozenset[str]:
    """The macros that a header and those that it includes may define."""
    found, left, seen = set[str](), [(header, "")], set[str]()
    while left:
        name, folder = left.pop()
        name = stand_in(name) or name
        folders = [folder, *toolchain().include_dirs] if folder else toolchain().include_dirs
        path = next((path for each in folders if os.path.isfile(path := os.path.join(each, name))), "")
        text = read_text(path) if path else shims.needed(frozenset()).get(name, "")
        if (path or name) not in seen:
            seen.add(path or name)
            found.update(_DEFINE.findall(text))
            left += [(each, os.path.dirname(path)) for each in _INCLUDE.findall(text)]
    return frozenset(found)
