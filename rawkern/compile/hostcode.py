"""What the compiler gets of a source that has code for the host: its device code, with stand-ins for host headers."""

from __future__ import annotations

import functools
import os
import re
from dataclasses import dataclass

from rawkern.compile import shims
from rawkern.compile.declarations import lexemes
from rawkern.compile.files import read_text
from rawkern.compile.source import Source
from rawkern.compile.split import TORCH_HEADERS, Split, is_host_header, split_files

_ATOMIC = ("ATen/cuda/Atomic.cuh", "THC/THCAtomics.cuh", "THC/THCDeviceUtils.cuh", "ATen/native/cuda/")
_INCLUDE = re.compile(r'([ \t]*#[ \t]*include[ \t]*)("[^"\n]+"|<[^>\n]+>)')
_FOREIGN = ("cutlass/", "cute/", "cub/", "thrust/", "cuda/std/", *TORCH_HEADERS)  # libraries, which are read as they are


@dataclass(frozen=True)
class DeviceCode:
    """A source as the compiler gets it."""

    text: str
    headers: tuple[tuple[str, str], ...] = ()  # own headers that are not compiled as they are: (path, text)
    names: tuple[str, ...] = ()  # of the C++ library that it uses, and no header of which is included
    default_device: bool = False  # it has functions without a mark


@functools.lru_cache(maxsize=64)
def device_code(source: Source) -> DeviceCode:
    """Return the device code of a source: its text, unless there is a sign of code for the host."""
    own = [path for path, _ in source.headers if not _is_foreign(path, source)]
    files = {source.name: source.text, **{path: read_text(path) for path in own}}
    if not any(word in text for text in files.values() for word in ("<<<", "::", "#")):
        return DeviceCode(source.text)
    found = split_files(files)
    if all(found[name].device == text and not found[name].std for name, text in files.items()):
        return DeviceCode(source.text)
    texts = {name: _included(name, one, source, found) for name, one in found.items()}
    changed = {name: text for name, text in texts.items() if text != files[name] and name != source.name}
    while True:  # what includes such a header has to name it in full
        again = {name: _renamed(name, text, source, changed) for name, text in texts.items()}
        more = {name: text for name, text in again.items() if text != files[name] and name != source.name}
        if more.keys() == changed.keys():
            break
        changed = more
    names = {name for one in found.values() for name in one.std if shims.header_of(name)}
    return DeviceCode(
        again[source.name],
        tuple(sorted(more.items())),
        tuple(sorted(names)),
        any(one.unmarked for one in found.values()),
    )


def _is_foreign(path: str, source: Source) -> bool:
    return any(
        os.path.relpath(path, folder).startswith(_FOREIGN) for folder in source.include_dirs if path.startswith(folder)
    )


def _included(name: str, one: Split, source: Source, found: dict[str, Split]) -> str:
    """A text with stand-ins for the host headers that it includes."""

    def instead(lexeme: str) -> str:
        match = _INCLUDE.match(lexeme)
        if match is None:
            return lexeme
        spelled = match[2][1:-1]
        if spelled.startswith(TORCH_HEADERS):
            return f"{match[1]}<rawkern/torch{'_atomic' if spelled.startswith(_ATOMIC) else ''}.h>"
        if _own(name, match[2], source) is None and is_host_header(spelled):
            return " " * len(lexeme)
        return lexeme

    return _directives(one.device, instead)


def _renamed(name: str, text: str, source: Source, changed: dict[str, str]) -> str:
    """A text in which changed headers are included by their paths, under which the compiler gets them."""

    def instead(lexeme: str) -> str:
        match = _INCLUDE.match(lexeme)
        path = _own(name, match[2], source) if match else None
        return f'{match[1]}"{path}"' if match and path in changed else lexeme

    return _directives(text, instead)


def _directives(text: str, instead) -> str:
    pieces, at = [], 0
    for one in lexemes(text):
        if one.kind == "directive":
            pieces += [text[at : one.start], instead(one.text)]
            at = one.end
    return "".join([*pieces, text[at:]])


def _own(name: str, spelled: str, source: Source) -> str | None:
    """The user's file that an include in a file stands for."""
    there = {path for path, _ in source.headers}
    folders = list(source.include_dirs)
    if spelled.startswith('"'):
        folders.insert(0, os.path.dirname(name) if os.path.isabs(name) else os.getcwd())
    paths = (os.path.normpath(os.path.join(folder, spelled[1:-1])) for folder in folders)
    return next((path for path in paths if path in there), None)
