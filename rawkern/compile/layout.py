"""What the compiler knows beyond types: the names of parameters, the members of structs; asked for only when needed."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rawkern.base import cache
from rawkern.base.ctype import Member, StructLayout
from rawkern.compile import dwarf
from rawkern.compile.compile import PROBE, instance_of, probe_of, probe_type
from rawkern.compile.dialect import Dialect
from rawkern.compile.names import canonical_type, strip_anonymous
from rawkern.compile.nvrtc import run_nvrtc
from rawkern.compile.program import Entry, declared
from rawkern.compile.source import Source
from rawkern.errors import UnsupportedError


def parameter_names(source: Source, entry: Entry, key: str) -> tuple[str, ...]:
    """Return the names of a kernel's parameters: from the text, else from debug information, else arg0, arg1 ...

    `key` names the program in the cache.
    """
    if (found := names_in_text(source, entry)) is not None:
        return found
    names = _names_in_debug(source, entry, key)
    if names is None or len(names) != len(entry.params):
        names = (None,) * len(entry.params)
    return _filled(names)


def names_in_text(source: Source, entry: Entry) -> tuple[str, ...] | None:
    """The same from the text alone; None where that does not tell."""
    names = _names_in_text(source, entry)
    return None if names is None else _filled(names)


def _filled(names: Sequence[str | None]) -> tuple[str, ...]:
    filled = [name or f"arg{i}" for i, name in enumerate(names)]
    return tuple(name if filled.index(name) == i else f"arg{i}" for i, name in enumerate(filled))


def _names_in_text(source: Source, entry: Entry) -> tuple[str | None, ...] | None:
    """Read the names from the declarations that can be this kernel's; None if there are none or they disagree."""
    name = entry.name.partition("<")[0]
    if not entry.params:
        return ()
    # An extern "C" kernel's name comes without its namespace, and anonymous namespaces cannot be written.
    fitting = [
        kernel for kernel in declared(source)
        if len(kernel.params) == len(entry.params)
        and (kernel.name == name or (kernel.extern_c and kernel.name.endswith(f"::{name}")))
    ]  # fmt: skip
    definitions = [kernel for kernel in fitting if kernel.definition] or fitting
    texts = {kernel.params for kernel in definitions}
    if len(texts) != 1:
        return None
    (names,) = texts
    return None if None in names and any(kernel.opaque for kernel in definitions) else names


def _names_in_debug(source: Source, entry: Entry, key: str) -> tuple[str | None, ...] | None:
    def ask() -> object:
        result = run_nvrtc(source, source.cpu_arch, instance_of(entry), extra=("-G",))
        try:
            return dwarf.parameter_names(dwarf.read(result.ptx), entry.symbol) if result.ok else None
        except ValueError:
            return None

    names = cache.kept(f"names-{key}-{cache.digest(entry.symbol)}", ask)
    return tuple(names) if isinstance(names, (list, tuple)) else None


def struct_layout(source: Source, type_name: str, key: str) -> StructLayout:
    """Return size, alignment and members of a struct, which may be any type the source can name.

    Members are () where they cannot be filled one by one, such as private ones; `unknown` of the layout says why.
    UnsupportedError if the compiler cannot tell, such as for a type that is only declared.
    """
    found = cache.kept(f"struct-{key}-{cache.digest(type_name)}", lambda: _ask_layout(source, type_name))
    if not isinstance(found, (list, tuple)):
        raise UnsupportedError(
            f"{source.title}: the layout of type {type_name} cannot be found; it must be defined in the source"
        )
    size, align, members, unknown = found
    filled = [
        Member(name, text, offset, tuple(bits) if bits else None, tuple(map(tuple, choices)))
        for name, text, offset, bits, choices in members
    ]
    return StructLayout(size, align, tuple(filled), unknown)


# A kernel that takes the struct by value: its debug information has the whole type, its PTX parameter size and
# alignment.
_TAKES = "\ntemplate <class __rawkern_S> __global__ void __rawkern_struct(__rawkern_S) {}\n"
_PARAM = re.compile(r"\.param\s+\.align\s+(\d+)\s+\.b8\s+\w+\[(\d+)\]")


def _ask_layout(source: Source, type_name: str) -> object:
    spelled = strip_anonymous(type_name)
    expression = f"__rawkern_struct<{spelled}>"
    result = run_nvrtc(source, source.cpu_arch, [expression], append=_TAKES, extra=("-G",))
    if not result.ok:
        return None
    (_, symbol), *_ = result.lowered
    head = result.ptx[result.ptx.index(f".entry {symbol}(") :]
    param = _PARAM.search(head[: head.index("{")])
    if param is None:
        return None
    size, align = int(param[2]), int(param[1])
    try:
        members = dwarf.members(dwarf.read(result.ptx), symbol)
        names = _names(members)
        types = _member_types(source, spelled, names, result.dialect) if names else []
    except ValueError as error:
        return size, align, [], str(error)
    filled = [
        (name, text, member.offset, member.bits, member.choices)
        for name, text, member in zip(names, types, members, strict=True)
    ]
    return size, align, filled, ""


def _names(members: Sequence[dwarf.DebugMember]) -> list[str]:
    """Name the members apart: one that another hides has its class before its name."""
    names = []
    for member in members:
        rivals = [other for other in members if other.name == member.name and other is not member]
        hidden = any(other.depth <= member.depth for other in rivals)
        names.append(f"{member.owner}::{member.name}" if hidden else member.name)
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"it has two members {name}")
    return names


def _member_types(source: Source, spelled: str, names: list[str], dialect: Dialect) -> list[str]:
    """Ask for each member's full type; debug information leaves namespaces out. ValueError where it cannot be had.

    With the `dialect` that the source needs, as no other one helps where a member is private.
    """
    probes = [probe_of(f"decltype({spelled}::{name})") for name in names]
    result = run_nvrtc(source, source.cpu_arch, probes, append=PROBE, dialect=dialect)
    if not result.ok:
        name = next((name for name, probe in zip(names, probes, strict=True) if probe in result.log), "")
        why = "is private" if "is inaccessible" in result.log else "is of a type without a name"
        raise ValueError(f"its member {name!r} {why}" if name else "the types of its members cannot be found")
    lowered = dict(result.lowered)
    return [canonical_type(probe_type(lowered[probe])) for probe in probes]
