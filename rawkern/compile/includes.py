"""The local headers that a source includes, found by reading: recursively, with checksums."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from rawkern.compile.files import read, sha256

_INCLUDE = re.compile(
    r'^[ \t]*#[ \t]*include(?:_next)?[ \t]*(?:"([^"\n]+)"|<([^>\n]+)>|([A-Za-z_]\w*))'
    r'|__has_include\s*\(\s*(?:"([^"\n]+)"|<([^>\n]+)>)',
    re.M,
)
_NAME_IN_MACRO = re.compile(r'^[ \t]*#[ \t]*define[ \t]+\w+[ \t]+(?:"([^"\n]+)"|<([^>\n]+)>)', re.M)
_NAME_IN_OPTION = re.compile(r'(?:-D|--define-macro=)\w+=\\?(?:"([^"\\]+)\\?"|<([^>]+)>)\Z')
_FORCED = re.compile(r"(?:-include|--pre-include)=(.*)\Z")


def closure(
    text: str, own: str | None, options: Sequence[str], include_dirs: Sequence[str]
) -> tuple[dict[str, str], set[str], set[str]]:
    """Find local headers by reading, without a preprocessor: what ``#if`` leaves out is in, too.

    ``#include MACRO`` counts as including every name that any ``#define`` in sight gives.
    """
    found: dict[str, str] = {}
    local: set[str] = set()
    missing: set[str] = set()
    macros = {(match[1] or match[2], bool(match[1])) for option in options if (match := _NAME_IN_OPTION.match(option))}
    forced = {(match[1], True) for option in options if (match := _FORCED.match(option))}
    todo: list[tuple[str, str | None]] = [(text, own)]  # with the directory each lies in
    computed = False
    seen: list[tuple[str, str | None]] = []
    while todo:
        content, own = todo.pop()
        seen.append((content, own))
        names = set(forced) if len(seen) == 1 else set()
        if "#" in content and "include" in content:
            for quoted, angled, macro, has_quoted, has_angled in _INCLUDE.findall(content):
                computed = computed or bool(macro)
                if name := quoted or angled or has_quoted or has_angled:
                    names.add((name, bool(quoted or has_quoted)))
            macros.update((quoted or angled, bool(quoted)) for quoted, angled in _NAME_IN_MACRO.findall(content))
        if computed:
            names |= macros
        for name, quoted in sorted(names):
            folders = [own, *include_dirs] if quoted and own else include_dirs
            _resolve(name, folders, found, local, missing, todo)
        if computed and not todo:  # macros seen late may name headers for an include seen early
            for name, _ in sorted(macros):
                for _, folder in seen:
                    _resolve(name, [folder, *include_dirs] if folder else include_dirs, found, local, missing, todo)
    return found, local, missing - set(found)


def _resolve(
    name: str,
    folders: Sequence[str],
    found: dict[str, str],
    local: set[str],
    missing: set[str],
    todo: list[tuple[str, str | None]],
) -> None:
    """Look for one include name in the folders, in order; add it and its text where it is new."""
    for folder in folders:
        candidate = os.path.normpath(os.path.join(folder, name))
        if candidate not in found:
            data = None if candidate in missing else read(candidate)
            if data is None:
                missing.add(candidate)
                continue
            found[candidate] = sha256(data)
            todo.append((data.decode(errors="replace"), os.path.dirname(candidate)))
        local.add(name)
        return
