"""From the text of a kernel to that of its backward."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence

from rawkern.errors import NotDifferentiable
from rawkern.gradients import helpers, loops, types
from rawkern.gradients.activity import activity, check_memory
from rawkern.gradients.forward import Frame
from rawkern.gradients.gather import gathers
from rawkern.gradients.gathered import Gathering
from rawkern.gradients.ir import Kernel, Loop, Store, walk
from rawkern.gradients.layout import Names, rendered
from rawkern.gradients.lower import Lowering
from rawkern.gradients.places import NeedsUnrolling
from rawkern.gradients.reverse import Reverse
from rawkern.gradients.syntax import File, Where
from rawkern.gradients.text import Shape, Text, backward_text, base_name, shared_lines, spelling, structs
from rawkern.gradients.types import Aggregate


def read(
    file: File, where: Where, name: str, block: Shape, units: tuple[bool, bool, bool], unroll: frozenset[int]
) -> Kernel:
    """Read a kernel; `name` may be an instance of a template, such as ``axpy<float, 4>``."""
    base, _, rest = name.partition("<")
    arguments = [a.strip() for a in rest.rpartition(">")[0].split(",")] if rest else []
    found = file.functions.get(base.strip(), [])
    if file.keywords:
        raise where.refuse(1, f"macros redefine {', '.join(file.keywords)}", "use names of their own")
    if len(found) != 1:
        reason = "several overloads have its name" if found else "its text is not at the top of the source"
        raise where.refuse(1, reason, "write it as a function of that name at the top")
    if base in file.unclear:
        raise where.refuse(1, f"{base} is also something else in the source", "give it a name of its own")
    grid = tuple(1 if unit else None for unit in units)
    return Lowering(file, where, block, grid, unroll).kernel(*found[0], arguments)  # type: ignore[arg-type]


def axes(file_text: str) -> tuple[bool, bool, bool]:
    """The axes of the grid that a source does not mention, which are taken to have one block."""
    found = [not re.search(rf"\b(blockIdx|gridDim)\s*\.\s*{axis}\b", file_text) for axis in "xyz"]
    return found[0], found[1], found[2]


def derive(
    text: str,
    name: str,
    *,
    where: Where,
    options: Sequence[str] = (),
    headers: Sequence[str] = (),
    block: Shape,
    units: tuple[bool, bool, bool] | None = None,
    wrt: Sequence[str] | None = None,
    max_iterations: int | None = None,
    double: bool = False,
) -> Text:
    """Derive the backward of a kernel; with `double` in double, whatever its own type."""
    file = File(text, tuple(options))
    if headers:
        raise where.refuse(1, f"it includes {', '.join(headers)}", "put what it needs into one file")
    units = axes(text) if units is None else units
    unroll: frozenset[int] = frozenset()
    while True:
        try:
            again = functools.partial(read, file, where, name, block, units, unroll)
            return _derived(again, where, wrt, max_iterations, double, units)
        except NeedsUnrolling as error:
            if error.node in unroll:
                raise error.reason from None
            try:
                known = _iterations(file, where, name, block, units, unroll, error.node)
            except NeedsUnrolling:
                known = 1
            if not known:
                raise error.reason from None
            unroll |= {error.node}


def _iterations(
    file: File, where: Where, name: str, block: Shape, units: tuple[bool, bool, bool], unroll: frozenset[int], node: int
) -> bool:
    """Whether a loop can be written out: by trying."""
    try:
        read(file, where, name, block, units, unroll | {node})
    except NotDifferentiable:
        return False
    return True


def forward(text: str, name: str, *, where: Where, options: Sequence[str] = (), block: Shape,
            units: tuple[bool, bool, bool] | None = None, double: bool = False) -> str:  # fmt: skip
    """The kernel itself as it was understood, as ``NAME_forward``; with `double` in double."""
    file = File(text, tuple(options))
    unroll: frozenset[int] = frozenset()
    while True:
        try:
            kernel = read(file, where, name, block, axes(text) if units is None else units, unroll)
            break
        except NeedsUnrolling as error:
            unroll |= {error.node}
    names = Names(_taken(kernel), double)
    frame = Frame(kernel.body, None, names, stores_all=True)
    frame.settle()
    params = [f"{spelling(kind, names)}{'*' if pointer else ''} {n}" for n, kind, pointer in kernel.params]
    lines = [*shared_lines(kernel, names, {a for a in kernel.shared}), *frame.printed()]
    return "\n".join(
        [
            *structs(kernel, names),
            f'extern "C" __global__ void {base_name(name)}_forward({", ".join(params)}) {{',
            *rendered(lines),
            "}",
            "",
        ]
    )


def _taken(kernel: Kernel) -> set[str]:
    words = {n for n, *_ in kernel.params} | {a.name for a in kernel.shared} | {f"grad_{n}" for n, *_ in kernel.params}
    words |= {f"grad_{a.name}" for a in kernel.shared} | set(helpers.HELPERS) | set(kernel.structs)
    return words | {
        "lane",
        "float",
        "double",
        "int",
        "bool",
        "long",
        "short",
        "char",
        "unsigned",
        "for",
        "if",
        "while",
        "const",
        "return",
    }


def _derived(
    again: Callable[[], Kernel],
    where: Where,
    wrt: Sequence[str] | None,
    max_iterations: int | None,
    double: bool,
    units: tuple[bool, bool, bool],
) -> Text:
    kernel = again()
    written = {i.place.array for i in walk(kernel.body) if isinstance(i, Store)}
    floats = {
        n for n, kind, pointer in kernel.params if pointer and _has_floats(kind) and kernel.arrays[n] not in written
    }
    wrt = tuple(n for n, *_ in kernel.params if n in floats) if wrt is None else tuple(wrt)
    for each in wrt:
        fits = next(
            (
                types.is_float(kind) or (pointer and _has_floats(kind))
                for n, kind, pointer in kernel.params
                if n == each
            ),
            None,
        )
        if not fits:
            known = ", ".join(
                n for n, kind, pointer in kernel.params if types.is_float(kind) or (pointer and _has_floats(kind))
            )
            raise ValueError(
                f"wrt names {each!r}, which is no floating-point parameter of {kernel.name}; it has {known or 'none'}"
            )
    check_memory(kernel, wrt, where)
    for item in walk(kernel.body):
        if isinstance(item, Loop):
            loops.check_condition(item, where.refuse)
    active = activity(kernel, wrt)
    for array in active.outputs:
        if not _has_floats(array.type):
            raise where.refuse(
                1, f"{array.name} points to structs", "use an array of float or of a vector type for each field"
            )
    if not active.outputs:
        raise where.refuse(1, f"no output depends on {', '.join(wrt) or 'any parameter'}", "name others in wrt")
    names = Names(_taken(kernel), double)
    plain = Reverse(kernel, active, names, where, max_iterations).injective
    gathering = [
        Gathering(g, again, names, where, names.fresh(f"size_{g.array.name}"))
        for g in gathers(kernel, active, wrt, plain)
    ]
    lines = [line for g in gathering for line in g.lines(kernel)]
    gathered = {g.gather.array.name: g for g in gathering}
    rest = tuple(n for n in wrt if n not in gathered)
    reverse = Reverse(kernel, activity(kernel, rest), names, where, max_iterations)
    lines += reverse.run() if reverse.active.outputs else []
    return backward_text(kernel, reverse, active.outputs, wrt, lines, names, units, gathered)


def _has_floats(kind: types.Type) -> bool:
    if isinstance(kind, Aggregate):
        return kind in types.VECTORS.values() and _has_floats(kind.fields[0][1])
    return types.is_float(kind)
