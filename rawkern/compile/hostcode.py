"""What the compiler gets of a source that has code for the host: its device code, with stand-ins for host headers."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Set
from dataclasses import dataclass

from rawkern.compile import shims
from rawkern.compile.files import read_text
from rawkern.compile.source import Source
from rawkern.compile.split import TORCH_HEADERS, Include, is_host_header, may_have_host_code, split_files

_ATOMIC = ("ATen/cuda/Atomic.cuh", "THC/THCAtomics.cuh", "THC/THCDeviceUtils.cuh", "ATen/native/cuda/")
_FOREIGN = (
    "cutlass/",
    "cute/",
    "cub/",
    "thrust/",
    "cuda/std/",
    *TORCH_HEADERS,
)  # libraries, which are read as they are


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
    if not any(may_have_host_code(text) for text in files.values()):
        return DeviceCode(source.text)
    found = split_files(files)
    if not any(one.extension for one in found.values()):
        return DeviceCode(source.text)
    there = {path for path, _ in source.headers}
    places = {
        name: {one: _own(name, one.spelled, source, there) for one in split.includes} for name, split in found.items()
    }
    changed = {
        name
        for name, one in found.items()
        if one.device != files[name] or any(_instead(i, at) is not None for i, at in places[name].items())
    }
    while True:  # what includes such a file has to name it in full, as the compiler gets it
        more = {name for name, includes in places.items() if not changed.isdisjoint(filter(None, includes.values()))}
        if more <= changed:
            break
        changed |= more
    texts = {name: _rewritten(one.device, places[name], changed) for name, one in found.items() if name in changed}
    names = {name for one in found.values() for name in one.std if shims.header_of(name)}
    return DeviceCode(
        texts.pop(source.name, source.text),
        tuple(sorted(texts.items())),
        tuple(sorted(names)),
        any(one.unmarked for one in found.values()),
    )


def _is_foreign(path: str, source: Source) -> bool:
    return any(
        os.path.relpath(path, folder).startswith(_FOREIGN) for folder in source.include_dirs if path.startswith(folder)
    )


def _rewritten(text: str, includes: Mapping[Include, str | None], changed: Set[str]) -> str:
    """A text with stand-ins for the headers of the host that it includes, and changed headers by their paths."""
    pieces, at = [], 0
    for one, path in includes.items():
        new = f'"{path}"' if path in changed else _instead(one, path)
        if new is not None:
            pieces += [text[at : one.start], f"#include {new}" if new else ""]
            at = one.end
    return "".join([*pieces, text[at:]])


def _instead(one: Include, path: str | None) -> str | None:
    """What is included instead of a header for the host: "" for nothing; None for another header."""
    name = one.spelled[1:-1]
    if name.startswith(TORCH_HEADERS):
        return f"<rawkern/torch{'_atomic' if name.startswith(_ATOMIC) else ''}.h>"
    return "" if path is None and is_host_header(name) else None


def _own(name: str, spelled: str, source: Source, there: Set[str]) -> str | None:
    """The user's file that an include in a file stands for."""
    folders = list(source.include_dirs)
    if spelled.startswith('"'):
        folders.insert(0, os.path.dirname(name) if os.path.isabs(name) else os.getcwd())
    paths = (os.path.normpath(os.path.join(folder, spelled[1:-1])) for folder in folders)
    return next((path for path in paths if path in there), None)
