"""Gradients that are an output's, element by element, as that of ``b`` in ``y[i] = f(x[i]) + b[i]``.

Where a launch sets all of such a gradient, the output's can be handed on in its place, and nothing is written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from rawkern.gradients.analysis.coverage import Sets
from rawkern.gradients.ir import Array
from rawkern.gradients.layout import Group, rendered

_SET = re.compile(r"grad_(\w+)\[(.*)\] = (d_\w+);")
_READ = re.compile(r"const [\w ]+ (d_\w+) = grad_(\w+)\[(.*)\];")


def handed(
    lines: list[Any], sets: Mapping[str, Sets], arrays: Mapping[str, Array], fresh: Callable[[str], str]
) -> tuple[list[Any], dict[str, tuple[str, str]]]:
    """The lines in which such a gradient is set if a flag says so; by its name the output and the flag.

    `sets`: gradients that are set; `arrays`: those of memory whose gradients are one number an element.
    """
    text = rendered(lines, 0)
    code = [line.strip() for line in text]
    reads = {m[1]: (m[2], m[3]) for line in code if (m := _READ.fullmatch(line))}
    found: dict[str, tuple[str, str]] = {}
    new: dict[str, str] = {}
    for line in code:
        m = _SET.fullmatch(line)
        if not m or m[1] not in sets or not sets[m[1]].covers or m[3] not in reads or m[1] not in arrays:
            continue
        output, index = reads[m[3]]
        alike = output in arrays and arrays[m[1]].type == arrays[output].type and index == m[2]
        if alike and sum(f"grad_{m[1]}[" in each for each in code) == 1:
            flag = fresh(f"set_{m[1]}")
            found[m[1]] = output, flag
            new[line] = f"if ({flag}) {line}"
    return _with(lines, new), found


def _with(lines: list[Any], new: Mapping[str, str]) -> list[Any]:
    return [
        Group(line.head, _with(line.body, new), _with(line.other, new)) if isinstance(line, Group)
        else new.get(line, line)
        for line in lines
    ]  # fmt: skip
