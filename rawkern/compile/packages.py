"""Kernels compiled ahead of time for several architectures: a manifest, and beside it files of machine code and PTX.

The manifest has all that the compiler told of the source, so that what is asked later needs neither it nor the source.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rawkern._version import __version__
from rawkern.base.ctype import Member, StructLayout
from rawkern.compile.declarations import Declaration
from rawkern.compile.program import Entry, Program
from rawkern.compile.source import Source
from rawkern.errors import RawkernError, UnsupportedError

FORMAT = 1  # of manifests; raised when what they hold changes
_ARCH = re.compile(r"(sm|compute)_(\d+)([af]?)\Z")
_FILE = re.compile(r"\w[\w.+-]*\Z")  # beside the manifest, nowhere else
_FAMILIES = {100: (100, 103), 120: (120, 121)}  # what code for sm_100f and the like runs on, besides its own number


@dataclass(frozen=True)
class Code:
    """One file of machine code or PTX, and what is in it."""

    file: str
    arch: str  # "sm_90": a cubin, "compute_90": PTX
    sha256: str
    kernels: tuple[Entry, ...]
    parameters: tuple[tuple[str, ...], ...]  # the names of each kernel's
    instances: Mapping[str, str]  # symbols by the names that were asked for
    constants: Mapping[str, bool | int | float]


@dataclass(frozen=True)
class Package:
    """What a manifest says."""

    rawkern: str  # the version that wrote it
    toolkit: str  # "NVRTC 13.0"
    options: tuple[str, ...]
    sources: tuple[str, ...]  # the user's own files, as the code's line tables call them
    templates: tuple[Declaration, ...]  # kernels that share their name with a template, too
    structs: Mapping[str, StructLayout]
    variables: Mapping[str, tuple[str, str, tuple[int, ...]]]  # symbol, element type and shape
    codes: tuple[Code, ...]


# Reading and writing --------------------------------------------------------------------------------------------------


def text(package: Package) -> str:
    """Return a package's manifest."""
    return json.dumps({"rawkern_manifest": FORMAT, **asdict(package)}, indent=1) + "\n"


def package(source: Source) -> Package:
    """Read a manifest. RawkernError for one of another format, or that is damaged."""
    assert source.path is not None and source.binary is not None
    return _read(source.path, source.binary)


@functools.lru_cache(maxsize=256)
def _read(path: str, data: bytes) -> Package:
    try:
        found = json.loads(data)
        version = found.pop("rawkern_manifest")
        if version != FORMAT:
            raise RawkernError(
                f"{path} is a manifest of format {version!r}, written by rawkern {found.get('rawkern', '?')}; "
                f"rawkern {__version__} reads format {FORMAT}: rebuild it, or install that version"
            )
        for key, shape in _SHAPES.items():
            _check(found[key], shape, key)
        return Package(
            str(found["rawkern"]), str(found["toolkit"]), tuple(found["options"]), tuple(found["sources"]),
            tuple(map(_declaration, found["templates"])),
            {name: _layout(**layout) for name, layout in found["structs"].items()},
            {name: _variable(*variable) for name, variable in found["variables"].items()},
            tuple(_code(**code) for code in found["codes"]),
        )  # fmt: skip
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise RawkernError(f"{path} is not a valid manifest ({error!r}): rebuild it") from None


#: What is in a manifest: lists of one shape, dicts of one shape by names, dicts with these keys, or one of some types.
_LAYOUT = {
    "size": int,
    "align": int,
    "members": [{"name": str, "type": str, "offset": int, "bits": object, "choices": [[[int]]]}],
    "unknown": str,
}
_SHAPES = {
    "rawkern": str, "toolkit": str, "options": [str], "sources": [str], "templates": [dict],
    "structs": {None: _LAYOUT}, "variables": {None: list},
    "codes": [{
        "file": str, "arch": str, "sha256": str, "kernels": [{"symbol": str, "name": str, "params": [str]}],
        "parameters": [[str]], "instances": {None: str}, "constants": {None: (bool, int, float)},
    }],
}  # fmt: skip


def _check(found: Any, shape: Any, where: str) -> None:
    """Raise TypeError for a value of a manifest that has another shape than it should have."""
    if isinstance(shape, list) and isinstance(found, list):
        for k, each in enumerate(found):
            _check(each, shape[0], f"{where}[{k}]")
    elif isinstance(shape, dict) and isinstance(found, dict):
        for key in found if None in shape else shape:
            _check(found[key], shape.get(key, shape.get(None)), f"{where}.{key}")
    elif not isinstance(shape, (type, tuple)) or not isinstance(found, shape):
        raise TypeError(f"{where} is {found!r}")


def _declaration(found: Mapping[str, Any]) -> Declaration:
    filled: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in found.items()}
    return Declaration(**filled)


def _variable(symbol: str, kind: str, shape: list[int]) -> tuple[str, str, tuple[int, ...]]:
    _check([symbol, kind], [str], "variables")
    _check(shape, [int], "variables")
    return symbol, kind, tuple(shape)


def _layout(size: int, align: int, members: list[dict[str, Any]], unknown: str) -> StructLayout:
    filled = [
        Member(
            m["name"], m["type"], m["offset"], tuple(m["bits"]) if m["bits"] else None, tuple(map(tuple, m["choices"]))
        )
        for m in members
    ]
    return StructLayout(size, align, tuple(filled), unknown)


def _code(kernels: list[dict[str, Any]], parameters: list[list[str]], **rest: Any) -> Code:
    entries = tuple(Entry(each["symbol"], each["name"], tuple(each["params"])) for each in kernels)
    code = Code(kernels=entries, parameters=tuple(map(tuple, parameters)), **rest)
    if not _FILE.match(code.file) or not _ARCH.match(code.arch):
        raise ValueError(f"{code.file!r} for {code.arch!r}")
    if [len(names) for names in code.parameters] != [len(each.params) for each in entries]:
        raise ValueError(f"the parameters of {code.file} have {code.parameters} for names")
    return code


# What fits ------------------------------------------------------------------------------------------------------------


def program(source: Source, arch: str, key: str) -> Program:
    """Make a program of what fits an architecture best: machine code before PTX, the newest first.

    UnsupportedError where nothing does, RawkernError for a file that is gone or not the one that was built.
    """
    code = chosen(source, arch)
    file = Path(source.name).with_name(code.file)
    try:
        data = file.read_bytes()
    except OSError as error:
        raise RawkernError(f"cannot read {file}, which {source.name} lists ({error.strerror}): reinstall or rebuild "
                           "the package") from None  # fmt: skip
    if sha256(data) != code.sha256:
        raise RawkernError(f"{file} is not the file that {source.name} lists, because its SHA-256 differs: "
                           "reinstall or rebuild the package")  # fmt: skip
    return Program(source, code.arch, data, code.kernels, tuple(code.instances.items()), "", key)


def chosen(source: Source, arch: str) -> Code:
    """The code for an architecture; ``"sm_90"`` is a GPU's, for ``"compute_80"`` only PTX will do."""
    codes = package(source).codes
    kind, number, _ = _parts(arch)
    fitting = [code for code in codes if _runs(code.arch, number) and (kind == "sm" or _parts(code.arch)[0] != "sm")]
    if not fitting:
        there = ", ".join(code.arch for code in codes)
        what = f"code for {arch}" if kind == "sm" else f"PTX for {arch}"
        raise UnsupportedError(f"{source.name} has no {what} here: rebuild with --arch sm_{number} (it has {there})")
    return max(fitting, key=lambda code: _rank(code.arch))


def _parts(arch: str) -> tuple[str, int, str]:
    match = _ARCH.match(arch)
    assert match is not None
    return match[1], int(match[2]), match[3]


def _runs(arch: str, number: int) -> bool:
    """Whether code runs on a GPU: machine code on its major version from its minor one on, PTX on all not older."""
    kind, own, suffix = _parts(arch)
    if suffix:  # "a": this one alone; "f": its family
        return number == own or (suffix == "f" and number in _FAMILIES.get(own, ()))
    return own <= number and (kind == "compute" or own // 10 == number // 10)


def _rank(arch: str) -> tuple[bool, int, str]:
    kind, number, suffix = _parts(arch)
    return kind == "sm", number, {"a": "2", "f": "1"}.get(suffix, "0")


def sha256(data: bytes) -> str:
    """The digest by which a manifest knows a file."""
    return hashlib.sha256(data).hexdigest()


# What the compiler told -----------------------------------------------------------------------------------------------


def parameter_names(source: Source, entry: Entry) -> tuple[str, ...]:
    """Return the names of a kernel's parameters."""
    codes = package(source).codes
    return next(names for code in codes for one, names in zip(code.kernels, code.parameters, strict=True)
                if one == entry)  # fmt: skip


def struct_layout(source: Source, type_name: str) -> StructLayout:
    """Return the layout of a struct; UnsupportedError where the compiler told none."""
    found = package(source).structs.get(type_name)
    if found is None:
        raise UnsupportedError(f"{source.name} does not have the layout of {type_name}")
    return found


def constant(source: Source, arch: str, expression: str) -> bool | int | float:
    """Return the value of a constant expression for an architecture; ValueError for one that was not asked for."""
    constants = chosen(source, arch).constants
    if expression not in constants:
        there = ", ".join(constants) or "none"
        raise ValueError(
            f"{source.name} does not have the constant {expression!r}: rebuild with --constant {expression!r} "
            f"(it has {there})"
        )
    return constants[expression]
