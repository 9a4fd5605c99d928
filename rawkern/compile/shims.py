"""Standard headers that NVRTC lacks, as far as device code needs them.

NVRTC compiles without a host compiler's headers, yet CUDA files written for nvcc include ``<stdint.h>``, ``<cmath>``
or ``<stdio.h>``. The small ones in ``headers`` stand in. They name types as libcu++ does for NVRTC (int64_t is ``long
long``), so that both can be included. The rest of the C++ library is libcu++: its names are made visible in ``std``.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Set
from pathlib import Path

_FOLDER = Path(__file__).with_name("headers")
_EMPTY = "assert.h stdarg.h stdbool.h stdalign.h iso646.h version initializer_list"  # built into NVRTC
_FOR_CPP = "assert float inttypes iso646 limits math stdarg stdbool stddef stdint stdio stdlib string time"
# Some headers of libcu++ had another name in older releases: <cuda/std/__algorithm_>.
_LIBCUDACXX = """
#if __has_include(<cuda/std/{0}>) || !__has_include(<cuda/std/__{0}_>)
#include <cuda/std/{0}>
#else
#include <cuda/std/__{0}_>
#endif
namespace std {{ using namespace ::cuda::std; }}
"""
_DEFINE = re.compile(r"^#define (\w+)(.*)", re.M)
_TYPEDEF = re.compile(r"^typedef ([^;{(]+) (\w+);", re.M)
_USING = re.compile(r"\busing (?:::)?(?:\w+::)*(\w+)")


@functools.cache
def _headers() -> dict[str, str]:
    """The headers by name; a macro of theirs gives way to one that is there."""
    texts = {f"c{name}": f"#include <{name}.h>\n" for name in _FOR_CPP.split()} | dict.fromkeys(_EMPTY.split(), "")
    texts |= {name: _LIBCUDACXX.format(name) for name in _libcudacxx()}
    texts |= {
        path.relative_to(_FOLDER).as_posix(): _DEFINE.sub(r"#ifndef \1\n\g<0>\n#endif", path.read_text())
        for path in _FOLDER.rglob("*")
        if path.is_file() and path.suffix != ".txt"
    }
    marks = {name: "RAWKERN_" + re.sub(r"\W", "_", name).upper() for name in texts}
    return {name: f"#ifndef {marks[name]}\n#define {marks[name]}\n{text}#endif\n" for name, text in texts.items()}


@functools.cache
def _libcudacxx() -> dict[str, list[str]]:
    """The headers of libcu++ with names of std that they declare."""
    text = re.sub(r"#.*\n|\n ", "", (_FOLDER / "libcudacxx.txt").read_text())
    return {name: names.split() for name, _, names in (line.partition(":") for line in text.splitlines())}


def of_cpp() -> Set[str]:
    """The headers of the C++ library that libcu++ replaces."""
    return _libcudacxx().keys()


def small_std() -> str:
    """The text of the header that has the most common names of std, without libcu++."""
    return _headers()["rawkern/std.h"]


@functools.cache
def builtins() -> frozenset[str]:
    """The builtins of GCC that <rawkern/builtins.h> has."""
    return frozenset(name for name, _ in _DEFINE.findall(_headers()["rawkern/builtins.h"]) if name.startswith("__b"))


def c_types() -> dict[str, str]:
    """The types of <sys/types.h>, which nvcc's own headers include for every .cu file, and what they stand for."""
    return {name: of for of, name in _TYPEDEF.findall(_headers()["sys/types.h"])}


@functools.cache
def declared_in() -> dict[str, str]:
    """The header that declares a name, such as "INT_MAX" or "std::min"; the C++ one where there are two."""
    found: dict[str, str] = {}
    for name in _FOR_CPP.split():
        text = _headers().get(f"{name}.h", "") + _headers()[f"c{name}"]
        macros = [macro for macro, _ in _DEFINE.findall(text) if not macro.startswith("RAWKERN_")]
        for each in (*macros, *(t for _, t in _TYPEDEF.findall(text)), *(f"std::{u}" for u in _USING.findall(text))):
            found.setdefault(each, f"c{name}")
    return found | {f"std::{name}": header for header, names in _libcudacxx().items() for name in names}


def header_of(name: str) -> str:
    """Return the standard header that declares a name, such as "INT_MAX" or "std::is_same"; "" if none here does.

    Code for nvcc finds many of them without an include of its own: CUDA's headers bring them along there, or headers
    for the host.
    """
    trait = name.startswith(("std::is_", "std::add_", "std::remove_"))
    return declared_in().get(name, "type_traits" if trait else "")


def needed(local_names: Set[str]) -> dict[str, str]:
    """Return the headers by name, less those that the user has files for."""
    return {name: text for name, text in _headers().items() if name not in local_names}
