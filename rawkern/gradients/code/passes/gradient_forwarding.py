"""Gradients that are another's, element by element: an output's, as that of ``b`` in ``y[i] = f(x[i]) + b[i]``; or
that of another argument, as of ``a`` and ``b`` in ``y[i] = f(a[i] + b[i])``.

Where a launch sets all of such a gradient, the other can be handed on in its place, and nothing is written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

from rawkern.gradients.analysis.definite_writes import Sets
from rawkern.gradients.code.tree import (
    Assign,
    Declare,
    If,
    Statement,
    bodies,
    every,
    expressions,
    with_bodies,
)
from rawkern.gradients.ir import Array

_ELEMENT = re.compile(r"grad_(\w+)\[(.*)\]")


def handed(
    statements: list[Statement], sets: Mapping[str, Sets], arrays: Mapping[str, Array], fresh: Callable[[str], str]
) -> tuple[list[Statement], dict[str, tuple[str, str]]]:
    """The statements in which such a gradient is set if a flag says so; by its name the other and the flag.

    `sets`: gradients that are set; `arrays`: those of memory whose gradients are one number an element.
    """
    code = list(every(statements))
    reads = {
        s.name: (m[1], m[2])
        for s in code
        if isinstance(s, Declare) and s.const and s.name.startswith("d_") and (m := _ELEMENT.fullmatch(s.value))
    }
    found: dict[str, tuple[str, str]] = {}
    new: dict[Assign, If] = {}

    def once(name: str) -> bool:
        return sum(any(f"grad_{name}[" in each for each in expressions(s)) for s in code) == 1

    for s, name, index, same in _set_in(statements, {}):
        if name not in sets or not sets[name].covers or name not in arrays:
            continue
        output, at = reads.get(s.value, ("", ""))
        of = output if output and at == index else same if same in sets and once(same) else ""
        if of in arrays and arrays[name].type == arrays[of].type and once(name):
            flag = fresh(f"set_{name}")
            found[name] = of, flag
            new[s] = If(flag, [s], inline=True)
    return _with(statements, new), found


def _set_in(statements: list[Statement], before: dict[tuple[str, str], str]) -> Iterator[tuple[Assign, str, str, str]]:
    """Statements that set a gradient: with its name, the index, and another that is set to that value there."""
    for s in statements:
        m = _ELEMENT.fullmatch(s.target) if isinstance(s, Assign) and s.sign == "=" else None
        if m and isinstance(s, Assign):
            name, index = m.groups()
            yield s, name, index, before.get((index, s.value), "")
            before.setdefault((index, s.value), name)
        elif not (isinstance(s, Declare) and s.const):
            before.clear()
            for inner in bodies(s) if not getattr(s, "inline", False) else ():
                yield from _set_in(inner, {})


def _with(statements: list[Statement], new: Mapping[Assign, If]) -> list[Statement]:
    return [
        new.get(s, s) if isinstance(s, Assign) else with_bodies(s, lambda body: _with(body, new)) for s in statements
    ]
