"""Which function a call means: overloads ranked as C++ does, templates deduced."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rawkern.base.tree import named, text_of
from rawkern.gradients import types
from rawkern.gradients.reading.accessors import arguments_of
from rawkern.gradients.reading.context import Context
from rawkern.gradients.reading.places import Given, Lambda, Marker, Var
from rawkern.gradients.reading.syntax import identifier, parameters_of, words
from rawkern.gradients.reading.templates import template_name
from rawkern.gradients.types import Accessor, Aggregate, Type


def chosen(ctx: Context, node: Any, name: str, found: Sequence[Any], args: Sequence[Given]) -> tuple[Any, Any]:
    """The function of several that C++ takes for these arguments, where that is certain."""
    if len(found) == 1:
        return found[0]
    ranked = [(each, r) for each in found if (r := ranks(ctx, each, args)) is not None]
    if len(ranked) == 1:
        return ranked[0][0]
    best = [
        (each, own)
        for each, own in ranked
        if all(own is r or all(a <= b for a, b in zip(own, r, strict=True)) for _, r in ranked)
    ]
    if len(best) > 1 and len({tuple(r) for _, r in best}) == 1:
        plain = [b for b in best if b[0][1] is None] or best
        alike = {
            tuple(map(text_of, (f.child_by_field_name("type"), f.child_by_field_name("body"), *parameters_of(f))))
            for (f, _), _ in plain
        }
        # One of them const.
        best = sorted(plain, key=lambda b: not _refers(b[0][0]))[:1] if len(alike) == 1 else plain
    if len(best) != 1:
        raise ctx.refuse(
            node, f"{name} has several overloads, and none for just these types", "convert the arguments to those"
        )
    return best[0][0]


def ranks(ctx: Context, function: tuple[Any, Any], args: Sequence[Given]) -> list[int] | None:
    """How well a function takes each argument (0: exactly, 1: promoted, 2: converted); None if it does not."""
    params, template = parameters_of(function[0]), function[1]
    if not least(params) <= len(args) <= len(params):
        return None
    names = {template_name(p) for p in named(template)} if template is not None else set()
    found: list[int] = []
    for param, arg in zip(params, args, strict=False):
        rank = _fit(ctx, param, arg, names)
        if rank is None:
            return None
        found.append(rank)
    return found


def _fit(ctx: Context, param: Any, arg: Given, names: set[str]) -> int | None:
    node, declarator = param.child_by_field_name("type"), param.child_by_field_name("declarator")
    kind, pointer = arg.type, is_pointer(declarator)
    any_type = node.type == "placeholder_type_specifier" or text_of(node) in names
    if isinstance(kind, Marker) or (arg.found is None):
        return 0 if not pointer else None
    if isinstance(kind, Accessor):
        return 0 if not pointer and (any_type or arguments_of(ctx, node) is not None) else None
    if pointer != isinstance(kind, tuple):
        own = isinstance(arg.found, Var) and isinstance(arg.found.type, Aggregate)
        return 0 if pointer and own and ctx.type_of(node) == kind else None
    return 0 if any_type else _fit_of_type(ctx, param, kind, pointer)


def _fit_of_type(ctx: Context, param: Any, kind: Any, pointer: bool) -> int | None:
    """How well an argument of a type fits a parameter whose type is written out."""
    node, declarator = param.child_by_field_name("type"), param.child_by_field_name("declarator")
    if node.type == "template_type":
        struct = ctx.struct_of(kind)
        return 0 if struct is not None and struct.base == text_of(node.child_by_field_name("name")) else None
    wanted = ctx.type_of(node)
    if wanted == (kind[1] if isinstance(kind, tuple) else kind):
        return 0
    bound = declarator is not None and "reference" in declarator.type and "const" not in words(param)
    return None if pointer or bound else _converted(kind, wanted)


def _converted(kind: Any, wanted: Type) -> int | None:
    """How well a number is converted: 1 for a promotion, 2 for others; None for what is not a number."""
    if not isinstance(wanted, str) or not isinstance(kind, str):
        return None
    return 1 if (kind, wanted) == ("float", "double") or (wanted == types.promoted(kind) != kind) else 2


def deduced(
    ctx: Context, node: Any, template: Any, params: Sequence[Any], args: Sequence[Given], given: Sequence[Any]
) -> list[Any]:
    """The arguments of a function template: those given, and what the call's arguments tell."""
    found = list(given)
    for each in named(template)[len(found) :]:
        name = template_name(each)
        seen: list[Any] = []
        for param, arg in zip(params, args, strict=False):
            seen += [s for s in _tells(ctx, param, arg, name) if s not in seen]
        if len(seen) > 1 or (not seen and "optional" not in each.type):
            raise ctx.refuse(node, "template arguments that are not given", "name them in angle brackets")
        if not seen:
            break
        found += seen
    return found


def _tells(ctx: Context, param: Any, arg: Given, name: str) -> list[Any]:
    """What an argument says that a template's parameter is."""
    node, kind = param.child_by_field_name("type"), arg.type
    if node is None or kind is None:
        return []
    kind = kind[1] if isinstance(kind, tuple) and is_pointer(param.child_by_field_name("declarator")) else kind
    if text_of(node) == name:
        return [kind] if isinstance(kind, (str, Aggregate, Lambda, Accessor)) else []
    if isinstance(kind, Accessor):
        told = zip(arguments_of(ctx, node) or (), (kind.type, kind.dimensions), strict=False)
        return [given for inner, given in told if text_of(inner) == name]
    struct = ctx.struct_of(kind)
    if node.type != "template_type" or struct is None or struct.base != text_of(node.child_by_field_name("name")):
        return []
    inner = [text_of(a) for a in named(node.child_by_field_name("arguments"))]
    return [given for text, given in zip(inner, struct.arguments, strict=False) if text == name]


def _refers(function: Any) -> bool:
    """Whether a function gives a reference: through that its result can be read and written."""
    return "reference" in function.child_by_field_name("declarator").type


def is_pointer(declarator: Any) -> bool:
    while declarator is not None and declarator.type == "parenthesized_declarator":
        declarator = named(declarator)[0]
    return declarator is not None and declarator.type.removeprefix("abstract_") in (
        "pointer_declarator",
        "array_declarator",
    )


def name_of(param: Any) -> str | None:
    """The name of a parameter; None where it has none."""
    declarator = param.child_by_field_name("declarator")
    return identifier(declarator) if declarator is not None else None


def defaults(params: Sequence[Any]) -> list[Any]:
    """The default of each parameter, as far as they have one."""
    found = [p.child_by_field_name("default_value") for p in params]
    return [] if None in found[least(params) :] else found


def least(params: Sequence[Any]) -> int:
    """How many arguments have to be given."""
    return sum(p.type != "optional_parameter_declaration" for p in params)
