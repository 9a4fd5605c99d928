"""Templates: what their parameters are in an instance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rawkern.base.tree import named, parse, text_of
from rawkern.gradients.ir import Value
from rawkern.gradients.reading.context import Context
from rawkern.gradients.reading.places import Callee, Maker, Var
from rawkern.gradients.reading.syntax import TYPES, identifier


def bound(ctx: Context, arguments: Sequence[Any]) -> list[Any]:
    """The arguments of a template: types, numbers, functions, templates of structs."""
    return [_argument_of(ctx, node) for node in arguments]


def template_arguments(ctx: Context, text: str) -> list[Any]:
    """The arguments of a template that a text names, as ``float, 4``."""
    return bound(ctx, _listed(text)) if text.strip() else []


def _listed(text: str) -> list[Any]:
    found = parse(f"x<{text}> y;").children[0].child_by_field_name("type")
    return named(found.child_by_field_name("arguments"))


def _argument_of(ctx: Context, node: Any) -> Any:
    text = text_of(node).strip()
    named_so = _by_name(ctx, text)
    if named_so is not None:
        return named_so
    inner = node.child_by_field_name("type") if node.type == "type_descriptor" else node
    if node.type == "type_descriptor" and (inner.type != "type_identifier" or ctx.known_type(text)):
        return ctx.type_of(node)
    if inner.type in (*TYPES, "template_type") and ctx.known_type(text.partition("<")[0].strip()):
        return ctx.type_of(inner)
    made = ctx.scalar(parse(f"int x = {text};").children[0].child_by_field_name("declarator").named_children[-1])
    if made.const is None:
        raise ctx.refuse(node, f"the template argument {text}", "use types and whole numbers")
    return made.const


def _by_name(ctx: Context, text: str) -> Any:
    """What an argument is that is the name of a number, a function or a template of structs; None for others."""
    number, var, file = ctx.file.enumerator(text), ctx.lookup(text), ctx.file
    if number is not None:
        return number
    if var is not None and isinstance(var.value, Callee):
        return var.value
    if var is not None and isinstance(var.value, Value) and var.value.const is not None:
        return var.value.const
    base = text.partition("<")[0].strip()
    name = file.plain(base) if "::" in base else base
    if name is not None and name in file.functions and name not in file.unclear:
        given = text[len(base) :].strip()[1:-1]
        return Callee(name, tuple(bound(ctx, _listed(given))) if given else ())
    is_template = text not in file.unclear and file.structs.get(text, (None, None))[1] is not None
    maker = ctx.type_names.get(text) or (Maker(text) if is_template else None)
    return maker if isinstance(maker, Maker) else None


def bind(
    ctx: Context, definition: Any, template: Any, arguments: Sequence[Any]
) -> tuple[dict[str, Any], dict[str, Var]]:
    """What a template's parameters are in an instance: types, and numbers and functions."""
    params, given = named(template) if template is not None else [], list(arguments)
    names: dict[str, Any] = {}
    numbers: dict[str, Var] = {}
    if len(given) > len(params):
        raise ctx.refuse(
            definition, f"{len(params)} template parameters and {len(given)} arguments", "give one for each"
        )
    for k, param in enumerate(params):
        name = template_name(param)
        value = given[k] if k < len(given) else _by_default(ctx, definition, param, names, numbers)
        if _of_types(param):
            if isinstance(value, int | Callee):
                raise ctx.refuse(definition, f"{value} for {text_of(param)}", "give a type")
            names[name] = value
        elif isinstance(value, Callee):
            numbers[name] = Var(name, None, value)
        elif isinstance(value, int) and param.type.endswith("parameter_declaration"):
            with within_template(ctx, names, numbers):
                kind = ctx.scalar_type(param.child_by_field_name("type"))
            text = ("false", "true")[value] if kind == "bool" and value in (0, 1) else str(value)
            numbers[name] = Var(name, kind, ctx.value(definition, kind, "const", attr=text, const=value))
        else:
            raise ctx.refuse(definition, f"the template argument {value}", "use types and whole numbers")
    return names, numbers


def _by_default(ctx: Context, definition: Any, param: Any, names: dict[str, Any], numbers: dict[str, Var]) -> Any:
    found = param.child_by_field_name("default_value") or param.child_by_field_name("default_type")
    if found is None:
        raise ctx.refuse(
            definition, f"the template argument {template_name(param)} is not given", "name it in angle brackets"
        )
    with within_template(ctx, names, numbers):
        return _argument_of(ctx, found)


def within_template(ctx: Context, names: dict[str, Any], numbers: dict[str, Var]) -> Any:
    """A part that is read with the names of a template, and those of the file's top."""
    return ctx.using(type_names={**ctx.type_names, **names}, scopes=[ctx.scopes[0], numbers])


def _of_types(param: Any) -> bool:
    return "type_parameter" in param.type or "template_template" in param.type


def template_name(param: Any) -> str:
    """The name of a template's parameter."""
    found = [c for c in named(param) if c.type in ("type_identifier", "type_parameter_declaration")]
    if _of_types(param):
        last = found[0] if "type_parameter" in param.type and "template_template" not in param.type else found[-1]
        return text_of(named(last)[0] if last.type == "type_parameter_declaration" else last) if last else ""
    return identifier(param.child_by_field_name("declarator")) or ""
