"""What the compiler gets of a source that has code for the host: its device code, with stand-ins for host headers."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rawkern.compile import shims
from rawkern.compile.files import read_text
from rawkern.compile.signs import TORCH_HEADERS, is_host_header, may_have_host_code
from rawkern.compile.source import Source

if TYPE_CHECKING:
    from rawkern.compile.split import Include

#: Replacements of some of torch's headers, the first whose names fit; `torch` replaces the others.
_SPECIAL = {
    "torch_accessor": ("ATen/core/TensorAccessor.h",),
    "torch_reduce": ("ATen/native/cuda/block_reduce",),
    "torch_atomic": ("ATen/cuda/Atomic.cuh", "THC/THCAtomics.cuh", "THC/THCDeviceUtils.cuh", "ATen/native/cuda/"),
    "torch_warp": ("ATen/cuda/DeviceUtils.cuh", "ATen/cuda/CUDAUtils", "THC/"),
}
#: Headers of libraries for the host that bring numbers for the device: __half, __nv_bfloat16, cuComplex.
_BRING_NUMBERS = ("cublas", "cusolver", "cusparse", "cufft")
_TUPLES = ("thrust/tuple.h", "thrust/pair.h")  # of Thrust, what device code uses
_PARTS_OF_HEADERS = ("cuda_fp16.hpp", "cuda_bf16.hpp", "cuda_fp8.hpp")  # for the host compiler to include by itself
_ON_LIBCUDACXX = ("cub/", "cuda/", "cooperative_groups", "thrust/", "cutlass/", "cute/", "nv/", "cccl/")
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
    light: bool = False  # rawkern's small header has all of the names


@functools.lru_cache(maxsize=64)
def device_code(source: Source) -> DeviceCode:
    """Return the device code of a source: its text, unless there is a sign of code for the host."""
    own = [path for path, _ in source.headers if not _is_foreign(path, source)]
    files = {source.name: source.text, **{path: read_text(path) for path in own}}
    if not any(may_have_host_code(text) for text in files.values()):
        return DeviceCode(source.text)
    from rawkern.compile.split import split_files

    found = split_files(files)
    if not any(one.extension for one in found.values()):
        return DeviceCode(source.text)
    there = {path for path, _ in source.headers}
    places = {
        name: {one: _own(name, one.spelled, source, there) for one in split.includes} for name, split in found.items()
    }
    # Headers of libcu++ take long: its names that are used bring theirs, where all are known.
    every = {name for one in found.values() for name in one.std}
    std = frozenset() if any(one.uses_std for one in found.values()) else shims.of_cpp()
    std = std if all(map(shims.header_of, every)) else frozenset()
    torch = "torch_float8" if any("Float8_" in one.device for one in found.values()) else "torch"
    changed = {
        name
        for name, one in found.items()
        if one.device != files[name] or any(_instead(i, at, std, torch) is not None for i, at in places[name].items())
    }
    while True:  # what includes such a file has to name it in full, as the compiler gets it
        more = {name for name, includes in places.items() if not changed.isdisjoint(filter(None, includes.values()))}
        if more <= changed:
            break
        changed |= more
    texts = {
        name: _rewritten(one.device, places[name], changed, std, torch)
        for name, one in found.items()
        if name in changed
    }
    names = {name for name in every if shims.header_of(name)}
    spelled = {include.spelled[1:-1] for includes in places.values() for include in includes}
    more = {name for name in names - _light() if shims.header_of(name) in shims.of_cpp()}
    light = not more and not names.isdisjoint(_light()) and not any(map(_brings_std, spelled))
    return DeviceCode(
        texts.pop(source.name, source.text),
        tuple(sorted(texts.items())),
        tuple(sorted(names - _light() if light else names)),
        any(one.unmarked for one in found.values()),
        light,
    )


def _brings_std(name: str) -> bool:
    return name.startswith(_ON_LIBCUDACXX)


@functools.cache
def _light() -> frozenset[str]:
    """Names of std that rawkern's small header declares, or NVRTC itself."""
    from rawkern.compile.chunks import parts

    return frozenset(f"std::{chunk.name}" for chunk in parts(shims.small_std()).chunks) | {"std::move", "std::forward"}


def _is_foreign(path: str, source: Source) -> bool:
    return any(
        os.path.relpath(path, folder).startswith(_FOREIGN) for folder in source.include_dirs if path.startswith(folder)
    )


def _rewritten(text: str, includes: Mapping[Include, str | None], changed: Set[str], std: Set[str], torch: str) -> str:
    """A text with stand-ins for the headers of the host that it includes, and changed headers by their paths."""
    pieces, at = [], 0
    for one, path in includes.items():
        new = f'"{path}"' if path in changed else _instead(one, path, std, torch)
        if new is not None:
            pieces += [text[at : one.start], f"#include {new}" if new else ""]
            at = one.end
    return "".join([*pieces, text[at:]])


def _instead(one: Include, path: str | None, std: Set[str], torch: str) -> str | None:
    """What is included instead of a header for the host, or of `std`: "" for nothing; None for another header."""
    name = one.spelled[1:-1]
    if standing := stand_in(name, torch):
        return f"<{standing}>"
    if path is None and name in _TUPLES:
        return "<rawkern/thrust_tuple.h>"
    if path is None and name.startswith("cub/device/"):
        return "<rawkern/cub_device.h>"
    if path is None and name in _PARTS_OF_HEADERS:
        return f"<{name.removesuffix('pp')}>"
    if path is None and name.startswith(_BRING_NUMBERS) and is_host_header(name):
        return "<rawkern/library_numbers.h>"
    return "" if path is None and (name in std or is_host_header(name)) else None


def stand_in(name: str, torch: str = "torch") -> str:
    """The header that replaces one of PyTorch's, "" for others; `torch` is for those without their own."""
    if not name.startswith(TORCH_HEADERS):
        return ""
    return f"rawkern/{next((stands for stands, names in _SPECIAL.items() if name.startswith(names)), torch)}.h"


def _own(name: str, spelled: str, source: Source, there: Set[str]) -> str | None:
    """The user's file that an include in a file stands for."""
    folders = list(source.include_dirs)
    if spelled.startswith('"'):
        folders.insert(0, os.path.dirname(name) if os.path.isabs(name) else os.getcwd())
    paths = (os.path.normpath(os.path.join(folder, spelled[1:-1])) for folder in folders)
    return next((path for path in paths if path in there), None)
