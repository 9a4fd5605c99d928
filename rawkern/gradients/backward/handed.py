"""Gradients that are another's, element by element: an output's, as that of ``b`` in ``y[i] = f(x[i]) + b[i]``; or
that of another argument, as of ``a`` and ``b`` in ``y[i] = f(a[i] + b[i])``.

Where a launch sets all of such a gradient, the other can be handed on in its place, and nothing is written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rawkern.gradients.analysis.coverage import Sets
from rawkern.gradients.ir import Array
from rawkern.gradients.layout import Group, rendered

_SET = re.compile(r"grad_(\w+)\[([^=]*)\] = (.*);")
_READ = re.compile(r"const [\w ]+ (d_\w+) = grad_(\w+)\[(.*)\];")


def handed(
    lines: list[Any], sets: Mapping[str, Sets], arrays: Mapping[str, Array], fresh: Callable[[str], str]
) -> tuple[list[Any], dict[str, tuple[str, str]]]:
    """The lines in which such a gradient is set if a flag says so; by its name the other and the flag.

    `sets`: gradients that are set; `arrays`: those of memory whose gradients are one number an element.
    """
    code = [line.strip() for line in rendered(lines, 0)]
    reads = {m[1]: (m[2], m[3]) for line in code if (m := _READ.fullmatch(line))}
    found: dict[str, tuple[str, str]] = {}
    new: dict[str, str] = {}

    def once(name: str) -> bool:
        return sum(f"grad_{name}[" in each for each in code) == 1

    for line, name, index, value, same in _set_in(lines, {}):
        if name not in sets or not sets[name].covers or name not in arrays:
            continue
        output, at = reads.get(value, ("", ""))
        of = output if output and at == index else same if same in sets and once(same) else ""
        if of in arrays and arrays[name].type == arrays[of].type and once(name):
            flag = fresh(f"set_{name}")
            found[name] = of, flag
            new[line] = f"if ({flag}) {line}"
    return _with(lines, new), found


def _set_in(lines: list[Any], before: dict[tuple[str, str], str]) -> Iterator[tuple[str, str, str, str, str]]:
    """Lines that set a gradient: with its name, the index, the value, and another that is set to that there."""
    for line in lines:
        m = _SET.fullmatch(line) if isinstance(line, str) else None
        if m:
            name, index, value = m.groups()
            yield line, name, index, value, before.get((index, value), "")
            before.setdefault((index, value), name)
        elif isinstance(line, Group) or not line.startswith("const "):
            before.clear()
            for inner in (line.body, line.other) if isinstance(line, Group) else ():
                yield from _set_in(inner, {})


def _with(lines: list[Any], new: Mapping[str, str]) -> list[Any]:
    return [
        Group(line.head, _with(line.body, new), _with(line.other, new)) if isinstance(line, Group)
        else new.get(line, line)
        for line in lines
    ]  # fmt: skip
