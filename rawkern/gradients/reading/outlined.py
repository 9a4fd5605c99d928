"""Device functions that stay functions: those that compute a number from numbers, whatever calls them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rawkern.errors import NotDifferentiable
from rawkern.gradients import types
from rawkern.gradients.ir import Array, Block, Function, If, Place, Store, Value, inside, operands, walk
from rawkern.gradients.reading.context import Context
from rawkern.gradients.reading.overloads import name_of
from rawkern.gradients.reading.places import Given, ReadAgain
from rawkern.gradients.reading.syntax import parameters_of, words
from rawkern.gradients.reading.values import convert
from rawkern.gradients.rules import PAIRS, TESTS, Rule

_PURE = ("const", "param", "unary", "binary", "cast", "call", "select", "result")
_OF_INTEGERS = {*PAIRS, *TESTS, "max", "min", "abs"}
_BOUNDS = ("fmax", "fmin")  # whose ties the caller decides, by what it passes


def as_call(ctx: Context, node: Any, name: str, function: tuple[Any, Any], args: Sequence[Given]) -> Value | None:
    """The call of a function that stays one; None if it is put in.

    A variable that a loop carries on is told by what happens to it, so it does not go into a function that way.
    """
    definition, template = function
    if not ctx.settings.outline or template is not None or len(ctx.file.functions[name]) > 1 or "::" in name:
        return None
    if name not in ctx.outlined:
        ctx.outlined[name] = None  # if it calls itself
        understood = _understood(ctx, node, name, definition)
        del ctx.outlined[name]  # after those that it calls
        ctx.outlined[name] = understood
    found = ctx.outlined[name]
    values = [arg.found for arg in args if isinstance(arg.found, Value)]
    if found is None or not len(args) == len(values) == len(found.params):
        return None
    floats = [v for v, (_, kind) in zip(values, found.params, strict=True) if types.is_float(kind)]
    if any(v.op == "phi" for v in floats) or all(v.op == "const" for v in floats):
        return None
    given = tuple(convert(ctx, node, v, kind) for v, (_, kind) in zip(values, found.params, strict=True))
    return ctx.value(node, found.type, "call", given, (found, name))


def _understood(ctx: Context, node: Any, name: str, definition: Any) -> Function | None:
    """What a function computes, if that is a number from numbers alone."""
    body = Block()
    try:
        with ctx.using(type_names={}):
            params = _numbers(ctx, definition)
            if params is None:
                return None
            result = ctx.tried(lambda: _result(ctx, node, name, definition, params, body))
    except (NotDifferentiable, ReadAgain):
        return None
    if not isinstance(result, Value) or result.type not in ("float", "double") or not _numbers_alone(body, result):
        return None
    floats = sum(types.is_float(kind) for _, kind in params)
    bounds = any(isinstance(i, Value) and i.op == "call" and i.attr[0].name in _BOUNDS
                 for i in walk(body) if not isinstance(getattr(i, "attr", None), str))  # fmt: skip
    if not floats or (bounds and floats > 1):
        return None
    out = Array(name, result.type)
    zero = Value(result.line, body, type="int", op="const", attr="0", const=0)
    body.items += [zero, Store(result.line, body, place=Place(out), index=(zero,), value=result)]
    return Function(name, result.type, tuple(params), body, result)


def _numbers(ctx: Context, definition: Any) -> list[tuple[str, str]] | None:
    """The parameters with their types; None where one is not a number."""
    params: list[tuple[str, str]] = []
    for param in parameters_of(definition):
        declarator, called = param.child_by_field_name("declarator"), name_of(param)
        kind = ctx.type_of(param.child_by_field_name("type"))
        plain = declarator is not None and declarator.type == "identifier" and not words(param) - {"const"}
        if not plain or called is None or not isinstance(kind, str) or kind in types.HALVES:
            return None
        params.append((called, kind))
    return params


def _result(ctx: Context, node: Any, name: str, definition: Any, params: list[tuple[str, str]], body: Block) -> Any:
    ctx.block = body
    args = [Given(node, ctx.value(node, kind, "param", attr=n, name=n)) for n, kind in params]
    return ctx.invoke(node, name, (definition, None), args)


def _numbers_alone(body: Block, result: Value) -> bool:
    """Whether what is computed there is computed from the parameters alone, and nothing else happens."""
    for item in walk(body):
        if isinstance(item, Value):
            known = not isinstance(item.attr, str) or item.op != "call" or item.attr in _OF_INTEGERS
            if item.op not in _PURE or item.type in types.HALVES or not known:
                return False
            if item.op == "call" and not isinstance(item.attr, str) and not isinstance(item.attr[0], Rule | Function):
                return False
        elif not isinstance(item, If):
            return False
        if not all(a.op == "const" or inside(a.block, body) for a in operands(item)):
            return False
    return result.op == "const" or inside(result.block, body)
