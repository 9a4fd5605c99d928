"""Which kernel of a program a name means; and the words for one that is not there."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rawkern.base.nearest import did_you_mean
from rawkern.compile import programs
from rawkern.compile.names import split_arguments
from rawkern.compile.programs import Entry, Program


def by_symbol(program: Program, symbol: str) -> Entry | None:
    """Find the kernel of a symbol."""
    return next((one for one in program.entries if one.symbol == symbol), None)


def architecture_name(arch: str | int, kind: str) -> str:
    """Read "sm_90", "compute_90", "90", 90 or 90a as an architecture of the kind that is asked for."""
    number = str(arch).removeprefix("sm_").removeprefix("compute_").replace(".", "")
    if not number.rstrip("af").isdigit():
        raise ValueError(f"unknown architecture {arch!r}; pass one such as '{kind}_90'")
    return f"{kind}_{number}"


def entry(program: Program, name: str | None) -> Entry | None:
    """Find the kernel a user means; None if the program has none of that name, ValueError if it has several."""
    entries = program.entries
    if name is None:
        if len(entries) == 1:
            return entries[0]
        raise ValueError(
            f"the source has {len(entries)} kernels ({_listed(program)}); name one: RawKernel(code, name=...)"
        )
    symbol = dict(program.symbols).get(name)
    if symbol is not None:
        return by_symbol(program, symbol)
    wanted, open_, types = name.partition("(")
    wanted = _packed(wanted)
    found = [one for one in entries if one.symbol == wanted]
    if not found:
        meant = programs.called(program.source, wanted, [_packed(one.name) for one in entries])
        found = [one for one in entries if _packed(one.name) in meant]
    if open_:
        given = tuple(map(_packed, split_arguments(types.rpartition(")")[0])))
        found = [one for one in found if tuple(map(_packed, one.params)) == given]
    if len(found) > 1:
        names = [one.name for one in found]
        if len(set(names)) == len(names):
            raise ValueError(f"there is more than one kernel {name!r}: {', '.join(names)}; name it in full")
        raise ValueError(
            f"there is more than one kernel {name!r}: {', '.join(map(full_name, found))}; "
            "name it with its parameter types"
        )
    return found[0] if found else None


def unknown(program: Program, name: str | None) -> str:
    """Say that a kernel is not there, and which ones are."""
    templates = programs.templates(program.source)
    if name is not None and programs.called(program.source, name, templates):
        found = programs.template_declarations(program.source, name)
        example = next((one.instance() for one in found), None)
        such = f", such as {example!r}" if example else ""
        return f"{name!r} is a template, {' or '.join(one.form for one in found)}; name an instance of it{such}"
    if program.source.kind == "manifest" and name is not None and "<" in name:
        return (
            f"there is no kernel {name!r} here: rebuild with --kernel {name!r} "
            f"({program.source.name} has {_listed(program)})"
        )
    return f"there is no kernel {name!r}; the source has {_listed(program)}{_meant(name, program, templates)}"


def _meant(name: str | None, program: Program, templates: Sequence[str]) -> str:
    """The kernels whose names are near, with what the user wrote after the name."""
    if name is None:
        return ""
    known = [_bare(one.name)[0] for one in program.entries] + list(templates)
    bare, rest = _bare(name)
    near = {one if "::" in bare else one.rpartition("::")[2]: one for one in known}
    return did_you_mean(name, [f"{one}{rest}" for one in near])


def _bare(name: str) -> tuple[str, str]:
    """A name, and the template arguments or parameter types after it."""
    found = re.match(r"[^<(]*", name)
    assert found is not None
    return found[0], name[found.end() :]


def _listed(program: Program) -> str:
    names = [one.name for one in program.entries]
    shown = [full_name(one) if names.count(one.name) > 1 else one.name for one in program.entries]
    shown += [f"template {name}" for name in programs.templates(program.source)]
    return ", ".join(dict.fromkeys(shown)) or "none"


def full_name(one: Entry) -> str:
    """A kernel's name with its parameter types, which tells overloads apart."""
    return f"{one.name}({', '.join(one.params)})"


def _packed(text: str) -> str:
    """A name or type without the spaces that mean nothing."""
    words = " ".join(text.split())
    for mark in "*&<>,()[]:":
        words = words.replace(f" {mark}", mark).replace(f"{mark} ", mark)
    return words
