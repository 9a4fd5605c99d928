"""Calls: what is called, by the kind of its syntax."""

from __future__ import annotations

import re
from typing import Any

from rawkern.base.tree import named, text_of
from rawkern.gradients import types
from rawkern.gradients.reading.context import Context
from rawkern.gradients.reading.functions import called_own, inline
from rawkern.gradients.reading.handlers import callees, cuda_functions, expressions
from rawkern.gradients.reading.kinds import instance, scope_type, type_named
from rawkern.gradients.reading.memory import taken, valued
from rawkern.gradients.reading.methods import called_object, method
from rawkern.gradients.reading.objects import construct, limit
from rawkern.gradients.reading.order import apart
from rawkern.gradients.reading.overloads import ranks
from rawkern.gradients.reading.places import Callee, Given, Lambda, Maker
from rawkern.gradients.reading.syntax import TYPES, instead
from rawkern.gradients.reading.targets import cast
from rawkern.gradients.reading.templates import bound
from rawkern.gradients.reading.values import convert, is_builtin, math
from rawkern.gradients.types import Aggregate

CASTS = ("static_cast", "reinterpret_cast", "const_cast")


@expressions("call_expression")
def call_expression(ctx: Context, node: Any) -> Any:
    found = valued(ctx, node, ctx.call(node))
    if found is None:
        raise ctx.refuse(node, f"the value of {text_of(node)!r}", "don't use it")
    return found


def _unknown(ctx: Context, node: Any, text: str) -> Exception:
    return ctx.refuse(node, f"the call of {text}", "write it as a __device__ function here")


@callees(*TYPES)
def conversion(ctx: Context, node: Any, callee: Any, arguments: list[Any]) -> Any:
    """``float(x)``"""
    if len(arguments) != 1:
        raise _unknown(ctx, node, text_of(callee))
    return cast(ctx, node, callee, arguments[0])


@callees("call_expression", "compound_literal_expression", "lambda_expression")
def object_call(ctx: Context, node: Any, callee: Any, arguments: list[Any]) -> Any:
    return called_object(ctx, node, ctx.given(callee), arguments)


@callees("parenthesized_expression")
def parenthesized_call(ctx: Context, node: Any, callee: Any, arguments: list[Any]) -> Any:
    """A lambda that is called, or ``(T) (x)``, which reads as a call."""
    inner = named(callee)[0]
    if inner.type == "lambda_expression":
        return called_object(ctx, node, ctx.given(inner), arguments)
    if len(arguments) == 1 and ctx.is_type(inner):
        return cast(ctx, node, inner, arguments[0])
    raise _unknown(ctx, node, text_of(callee))


# By name ----------------------------------------------------------------------------------------------------------


@callees("identifier", "template_function", "qualified_identifier")
def named_call(ctx: Context, node: Any, callee: Any, arguments: list[Any]) -> Any:
    text = ctx.file.qualified(text_of(callee))
    if text.rpartition("::")[0] == "cooperative_groups":
        handler = cuda_functions.of(text.partition("<")[0], len(arguments))
        if handler is None:
            raise ctx.refuse(node, f"the call of {text}", "use __syncthreads, shuffles or shared memory")
        return handler(ctx, node, text, arguments)
    if callee.type == "qualified_identifier":
        return _qualified(ctx, node, callee, arguments)
    if callee.type == "identifier":
        return _plain(ctx, node, callee, [], arguments)
    given = named(callee.child_by_field_name("arguments"))
    if text_of(callee.child_by_field_name("name")) in CASTS and len(given) == 1 and len(arguments) == 1:
        return cast(ctx, node, given[0], arguments[0])
    return _plain(ctx, node, callee, given, arguments)


def _plain(ctx: Context, node: Any, callee: Any, given: list[Any], arguments: list[Any]) -> Any:
    """A call by a name alone: of a variable, a method, a type, a function of the source or of CUDA."""
    plain = callee.child_by_field_name("name") if callee.type == "template_function" else callee
    name = text_of(plain)
    if name in ctx.file.unclear:
        raise _unknown(ctx, node, name)
    variable = ctx.lookup(name)
    if variable is not None and isinstance(variable.value, Callee):
        return inline(ctx, node, variable.value.name, arguments, variable.value.given)
    if variable is not None and not given:
        return called_object(ctx, node, ctx.given(plain), arguments)
    if ctx.struct is not None and name in ctx.struct.methods and name != ctx.struct.base:
        this = ctx.lookup("this")
        object_ = Given(node, this.value) if this is not None else None
        args = apart(ctx, node, arguments, ctx.given)
        return method(ctx, node, ctx.struct, object_, name, args, bound(ctx, given))
    kind = _type_called(ctx, plain, name, given)
    if isinstance(kind, Lambda):
        raise ctx.refuse(node, f"the call of {name}", "call the variable")
    if isinstance(kind, Aggregate) or (kind is not None and len(arguments) <= 1):
        return _made(ctx, node, name, kind, arguments)
    if name in ctx.file.functions and _means_own(ctx, name, arguments):
        return _or_builtin(ctx, node, name, arguments, bound(ctx, given))
    if given:
        raise _unknown(ctx, node, repr(text_of(node)))
    return _of_cuda(ctx, node, name, arguments)


def _made(ctx: Context, node: Any, name: str, kind: types.Type, arguments: list[Any]) -> Any:
    """What a call of a type makes."""
    if isinstance(kind, Aggregate):
        return construct(ctx, node, name, kind, arguments, False)
    return convert(ctx, node, ctx.scalar(arguments[0]) if arguments else ctx.integer(node, 0), kind)


def _type_called(ctx: Context, node: Any, name: str, given: list[Any]) -> Any:
    """The type that a call makes an object of; None where it calls a function."""
    if given:
        maker = ctx.type_names.get(name)
        base = maker.name if isinstance(maker, Maker) else name
        return instance(ctx, node, base, bound(ctx, given)) if base in ctx.file.structs else None
    if ctx.struct is not None and name == ctx.struct.base:
        return ctx.struct.type
    own = name in ctx.file.functions or not ctx.known_type(name)
    return None if own or types.VECTORS.get(name) is not None else type_named(ctx, node, name)


def _qualified(ctx: Context, node: Any, callee: Any, arguments: list[Any]) -> Any:
    """A call of a name with its namespace or struct."""
    last, scope = callee, None
    while last.type == "qualified_identifier":
        scope, last = last.child_by_field_name("scope"), last.child_by_field_name("name")
    given = named(last.child_by_field_name("arguments")) if last.type == "template_function" else []
    name = text_of(last.child_by_field_name("name") if given else last)
    whole = text_of(callee)[: len(text_of(callee)) - len(text_of(last))] + name
    if ctx.file.plain(whole) is not None and name not in ctx.file.unclear:
        kind = _type_called(ctx, last, name, given)
        if isinstance(kind, Aggregate):
            return construct(ctx, node, name, kind, arguments, False)
        if name in ctx.file.functions:
            return inline(ctx, node, name, arguments, bound(ctx, given))
    if scope is not None and not arguments and re.match(r"(cuda::)?(std::)?numeric_limits\s*<", whole):
        return limit(ctx, node, bound(ctx, named(scope.child_by_field_name("arguments")))[0], name)
    if scope is not None and (scope.type == "template_type" or ctx.known_type(text_of(scope))):
        struct = ctx.struct_of(scope_type(ctx, scope))
        if struct is not None and name in struct.methods:
            args = apart(ctx, node, arguments, ctx.given)
            return method(ctx, node, struct, None, name, args, bound(ctx, given))
    standard = whole.replace(" ", "") in (f"std::{name}", f"::{name}", f"cuda::std::{name}")
    if standard and not given and is_builtin(name):
        return _of_cuda(ctx, node, name, arguments)
    raise _unknown(ctx, node, text_of(callee))


def _means_own(ctx: Context, name: str, arguments: list[Any]) -> bool:
    """Whether a name that stands alone means a function of the source."""
    if ctx.file.sees(name, ctx.path) or not is_builtin(name):
        return True
    return any(isinstance(ctx.kind(a), Aggregate) for a in arguments if a.type != "initializer_list")


def _or_builtin(ctx: Context, node: Any, name: str, arguments: list[Any], given: list[Any]) -> Any:
    """A call of a function of the source, unless CUDA's of that name fits better."""
    args = apart(ctx, node, arguments, ctx.given)
    found = ctx.file.functions[name]
    if not given and is_builtin(name):
        ranked = [r for f in found if (r := ranks(ctx, f, args)) is not None]
        if not ranked:
            values = [ctx.number(a.node, taken(ctx, a)) for a in args]
            computed = math(ctx, node, name, values)
            if computed is not None:
                return computed
        if len(ranked) == 1 and any(ranked[0]):
            raise ctx.refuse(node, f"{name} is also a function of CUDA's", "give yours another name")
    return called_own(ctx, node, name, args, given)


def _of_cuda(ctx: Context, node: Any, name: str, arguments: list[Any]) -> Any:
    """One of CUDA's own functions: by its handler, or by the table of derivatives."""
    handler = cuda_functions.of(name, len(arguments))
    if handler is not None:
        return handler(ctx, node, name, arguments)
    given, found = apart(ctx, node, arguments, ctx.expression), None
    if is_builtin(name):
        found = math(ctx, node, name, [ctx.number(n, v) for n, v in zip(arguments, given, strict=True)])
    if found is None:
        raise ctx.refuse(node, *instead(name))
    return found
