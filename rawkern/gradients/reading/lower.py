"""A kernel to structured SSA; device functions are put in where they are called."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rawkern.base.tree import named
from rawkern.gradients import types
from rawkern.gradients.ir import Kernel, Loop, Value, renumber, substitute, walk
from rawkern.gradients.reading import (
    assignments,
    calls,
    declarations,
    expressions,
    intrinsics,
    loops,
    philox,
    targets,
    warps,
)
from rawkern.gradients.reading.context import Context
from rawkern.gradients.reading.parameters import parameter
from rawkern.gradients.reading.syntax import function_name, parameters_of, unclear
from rawkern.gradients.reading.templates import bind, template_arguments
from rawkern.gradients.types import Type

#: The modules whose handlers nothing else imports.
HANDLERS = (assignments, calls, declarations, expressions, intrinsics, loops, philox, targets, warps)


def lowered(ctx: Context, definition: Any, template: Any, arguments: Sequence[str]) -> Kernel:
    """Read a kernel, an instance of a template with these arguments."""
    if definition.has_error:
        part = unclear(definition)
        line = ctx.file.text.splitlines()[part.start_point[0]].strip()
        raise ctx.refuse(part, f"its text is not understood: {line[:80]!r}", "write that in simpler terms")
    given = template_arguments(ctx, ", ".join(arguments))
    ctx.type_names, numbers = bind(ctx, definition, template, given)
    ctx.scopes += [numbers, {}]
    ctx.path = ctx.file.paths.get(function_name(definition), "")
    for node in parameters_of(definition):
        parameter(ctx, node)
    ctx.sequence(named(definition.child_by_field_name("body")))
    _widen(ctx)
    renumber(ctx.body)
    read = {i.attr.array for i in walk(ctx.body) if isinstance(i, Value) and i.op == "load"}
    params = [each for given in ctx.params for each in _listed(ctx, *given)]
    variables = {n: ctx.file.full(n) for n in ctx.file.variables if ctx.arrays.get(n) in read}
    params += [(n, ctx.arrays[n].type, True) for n in variables]
    outlined = {n: f for n, f in ctx.outlined.items() if f is not None}
    for function in outlined.values():
        renumber(function.body)
    return Kernel(
        ctx.where.kernel, ctx.where.title, params, ctx.arrays, ctx.shared, ctx.body, ctx.structs,
        ctx.settings.block, ctx.settings.grid, functions=outlined, variables=variables,
        members={n: ctx.members[n] for n, *_ in params if n in ctx.members},
    )  # fmt: skip


def _listed(ctx: Context, name: str, kind: Type, pointer: bool) -> list[tuple[str, Type, bool]]:
    """A parameter; of a list of pointers those that the kernel uses."""
    if name not in ctx.lists:
        return [(name, kind, pointer)]
    used = ctx.lists[name].used
    return [(used[k].array.name, used[k].array.type, True) for k in sorted(used)]


def _widen(ctx: Context) -> None:
    """Make values of half precision floats, which are rounded where that matters."""
    same: dict[Value, Value] = {}
    items = list(walk(ctx.body))
    for item in items:
        phis = [c.phi for c in item.carried] if isinstance(item, Loop) else []  # which are not in a block
        for value in (item, *phis):
            if isinstance(value, Value) and value.type in types.HALVES:
                value.type = "float"
    for item in items:
        if isinstance(item, Value) and item.op == "cast" and item.args[0].type == item.type:
            same[item] = item.args[0]
            item.block.items.remove(item)
    if same:
        substitute(items, same)
