"""Operators and methods of the source's structs, and lambdas."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rawkern.base.tree import named, text_of
from rawkern.gradients.reading.context import Context
from rawkern.gradients.reading.handlers import expressions
from rawkern.gradients.reading.kinds import names_of
from rawkern.gradients.reading.order import apart
from rawkern.gradients.reading.overloads import chosen, ranks
from rawkern.gradients.reading.places import Cell, Given, Lambda, Struct, Var
from rawkern.gradients.reading.syntax import nodes, words
from rawkern.gradients.reading.templates import bound
from rawkern.gradients.types import Aggregate


def operated(ctx: Context, node: Any, sign: str, args: Sequence[Given]) -> tuple[Any] | None:
    """What an operator of the source's own gives, in a tuple; None where there is none."""
    if not any(isinstance(a.type, Aggregate) for a in args):
        return None
    struct, name = ctx.struct_of(args[0].type), f"operator{sign}"
    found: list[tuple[Struct | None, tuple[Any, Any], Sequence[Given]]] = []
    if struct is not None:
        found += [(struct, f, args[1:]) for f in struct.methods.get(name, [])]
    for own in dict.fromkeys(s for a in args if (s := ctx.struct_of(a.type)) is not None):
        found += [(own, f, args) for f in own.friends.get(name, [])]
    found += [(None, f, args) for f in ctx.file.functions.get(name, [])]
    fitting = [(s, f, a) for s, f, a in found if _in_struct(ctx, s, lambda f=f, a=a: ranks(ctx, f, a)) is not None]
    kinds = {(s is None, len(a)) for s, _, a in fitting}
    if len(kinds) > 1:
        raise ctx.refuse(node, f"{name} is a method and a function for these types", "keep one of them")
    if not fitting:
        return None
    struct, _, given = fitting[0]
    function = _in_struct(ctx, struct, lambda: chosen(ctx, node, name, [f for _, f, _ in fitting], given))
    if len(given) < len(args) and struct is not None:
        return (method(ctx, node, struct, args[0], name, given, (), function),)
    return (ctx.invoke(node, name, function, args, of=None if struct is None else (struct, None)),)


def _in_struct(ctx: Context, struct: Struct | None, make: Callable[[], Any]) -> Any:
    with ctx.using(type_names=names_of(ctx, struct)):
        return make()


def method(
    ctx: Context, node: Any, struct: Struct, this: Given | None, name: str, args: Sequence[Given],
    given: Sequence[Any] = (), function: tuple[Any, Any] | None = None,
) -> Any:  # fmt: skip
    """What a call of a method gives."""
    function = function or _in_struct(ctx, struct, lambda: chosen(ctx, node, name, struct.methods[name], args))
    assert function is not None
    static = "static" in words(function[0])
    if this is None and not static:
        raise ctx.refuse(node, f"{name} is called without an object", "call it as a method")
    found = None if static or this is None else this.found
    if found is not None and not isinstance(found, (Var, Cell)):
        raise ctx.refuse(node, f"{name} of {text_of(this.node)!r}", "give the object a name")  # type: ignore[union-attr]
    return ctx.invoke(node, name, function, args, given=given, of=(struct, found))


@expressions("lambda_expression")
def lambda_expression(ctx: Context, node: Any) -> Lambda:
    """A lambda: what it captures by value keeps its value, the rest is what it is when the lambda is called."""
    captures = node.child_by_field_name("captures")
    default, referred, before = "", {}, ""
    for each in captures.children:
        if each.type == "lambda_default_capture":
            default = text_of(each).strip()
        elif each.type in ("identifier", "this"):
            referred[text_of(each)] = before == "&" or each.type == "this"
        elif each.is_named and each.type != "comment":
            raise ctx.refuse(each, f"the capture {text_of(each)!r}", "declare a variable and capture it")
        before = text_of(each)
    head = node.child_by_field_name("declarator") or captures
    if any(each.type in ("lambda_specifier", "mutable") for each in nodes(head)):
        raise ctx.refuse(node, "a lambda that is mutable", "capture by reference")
    scopes = [dict(s) for s in ctx.scopes]
    for scope in scopes[1:]:
        for name, var in scope.items():
            if not referred.get(name, default == "&") and not isinstance(var.value, Cell):
                scope[name] = var.copied()
    return Lambda(node, scopes, dict(ctx.type_names), ctx.struct)


def operator(ctx: Context, node: Any, name: str, found: Any, arguments: list[Any]) -> Any:
    """What an operator that is a method gives."""
    struct = ctx.struct_of(found.type)
    if struct is None or name not in struct.methods:
        raise ctx.refuse(node, f"{name} of {found.type.name}", "use its fields")
    return method(ctx, node, struct, Given(node, found), name, apart(ctx, node, arguments, ctx.given))


def called_object(ctx: Context, node: Any, this: Given, arguments: Sequence[Any]) -> Any:
    """What the call of a lambda or of an object gives."""
    found = this.found.value if isinstance(this.found, Var) and not this.found.whole else this.found
    args = apart(ctx, node, arguments, ctx.given)
    if isinstance(found, Lambda):
        return ctx.invoke(node, "a lambda", (found.node, None), args, within=found)
    struct = ctx.struct_of(getattr(found, "type", None))
    if struct is None or "operator()" not in struct.methods:
        raise ctx.refuse(node, f"the call of the variable {text_of(this.node)}", "write a __device__ function")
    return method(ctx, node, struct, Given(this.node, found), "operator()", args)


def of_object(ctx: Context, node: Any, this: Given, member: Any, arguments: Sequence[Any]) -> Any:
    """What the call of a method gives."""
    name, given = member, []
    while name.type in ("dependent_name", "template_method"):
        if name.type == "template_method":
            given = bound(ctx, named(name.child_by_field_name("arguments")))
        name = name.child_by_field_name("name") or named(name)[0]
    struct = ctx.struct_of(this.type)
    if struct is None or text_of(name) not in struct.methods:
        raise ctx.refuse(node, f"the call of {text_of(this.node)}.{text_of(name)}", "write a __device__ function")
    found = this.found
    if isinstance(found, Var) and isinstance(found.value, Cell):
        found = found.value
    args = apart(ctx, node, arguments, ctx.given)
    return method(ctx, node, struct, Given(this.node, found), text_of(name), args, given)
