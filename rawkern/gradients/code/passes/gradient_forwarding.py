"""Gradients that are another's, element by element: an output's, as that of ``b`` in ``y[i] = f(x[i]) + b[i]``; or
that of another argument, as of ``a`` and ``b`` in ``y[i] = f(a[i] + b[i])``.

Where a launch sets all of such a gradient, the other can be handed on in its place, and nothing is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from rawkern.gradients.analysis.definite_writes import Sets
from rawkern.gradients.code import tree
from rawkern.gradients.code.expressions import Index, Name, Node
from rawkern.gradients.code.tree import Assign, Declare, If, Statement
from rawkern.gradients.ir import Array

Element = tuple[str, tuple[Node, ...]]  # of a gradient: whose, and the indices


def forwardable(
    statements: list[Statement], sets: Mapping[str, Sets], arrays: Mapping[str, Array], fresh: Callable[[str], str]
) -> tuple[list[Statement], dict[str, tuple[str, str]]]:
    """The statements in which such a gradient is set if a flag says so; by its name the other and the flag.

    `sets`: gradients that are set; `arrays`: those of memory whose gradients are one number an element.
    """
    code = list(tree.every(statements))
    reads = {s.name: _element(s.value) for s in code if isinstance(s, Declare) and s.const and s.value}
    lines: dict[str, list[tuple[Assign, str, bool]]] = {}  # by gradient: what sets it, and which is the same there
    for s, (name, index), same in _set_in(statements, {}):
        read = reads.get(s.value.name) if isinstance(s.value, Name) else None
        given = read is not None and read[1] == index
        lines.setdefault(name, []).append((s, read[0] if read is not None and given else same, given))

    def only_set(name: str) -> bool:
        return sum(f"grad_{name}" in tree.named(s) for s in code) == len(lines.get(name, ()))

    found: dict[str, tuple[str, str]] = {}
    new: dict[int, If] = {}
    for name, those in lines.items():
        of = those[0][1]
        if name not in sets or not sets[name].covers or name not in arrays or of not in arrays or not only_set(name):
            continue
        alike = all(each == of and (given or (of in sets and only_set(of))) for _, each, given in those)
        if alike and arrays[name].type == arrays[of].type:
            flag = fresh(f"set_{name}")
            found[name] = of, flag
            new |= {id(s): If(Name(flag), [s], inline=True) for s, *_ in those}
    return _with(statements, new), found


def _element(e: Node) -> Element | None:
    """An element of a gradient."""
    index: list[Node] = []
    while isinstance(e, Index):
        index.append(e.at)
        e = e.of
    gradient = bool(index) and isinstance(e, Name) and e.name.startswith("grad_")
    return (e.name.removeprefix("grad_"), tuple(index)) if gradient and isinstance(e, Name) else None


def _set_in(
    statements: list[Statement], before: dict[tuple[tuple[Node, ...], Node], str]
) -> Iterator[tuple[Assign, Element, str]]:
    """Statements that set an element of a gradient, and another gradient that is set to that value there."""
    for s in statements:
        element = _element(s.target) if isinstance(s, Assign) and s.sign == "=" else None
        if element and isinstance(s, Assign):
            name, index = element
            yield s, element, before.get((index, s.value), "")
            before.setdefault((index, s.value), name)
        elif not (isinstance(s, Declare) and s.const):
            before.clear()
            for inner in tree.bodies(s) if not getattr(s, "inline", False) else ():
                yield from _set_in(inner, {})


def _with(statements: list[Statement], new: Mapping[int, If]) -> list[Statement]:
    return [new.get(id(s)) or tree.with_bodies(s, lambda body: _with(body, new)) for s in statements]
