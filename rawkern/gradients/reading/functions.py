"""Functions of the source, put in where they are called: device functions, operators, methods, lambdas."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from rawkern.base.tree import named, text_of
from rawkern.gradients.ir import Value
from rawkern.gradients.reading.context import Context
from rawkern.gradients.reading.handlers import bodies, leaving
from rawkern.gradients.reading.memory import assign, read
from rawkern.gradients.reading.objects import construct, initialize, made_of, members
from rawkern.gradients.reading.order import apart
from rawkern.gradients.reading.outlined import as_call
from rawkern.gradients.reading.overloads import chosen, deduced, defaults, is_pointer, name_of
from rawkern.gradients.reading.places import Cell, Given, Lambda, Local, Marker, Pointer, Struct, Var, fresh
from rawkern.gradients.reading.syntax import contains, function_name, parameters_of, words
from rawkern.gradients.reading.templates import bind
from rawkern.gradients.types import Accessor, Aggregate, Type

DEEPEST = 32  # functions that call one another


class Returned(Exception):
    """The type of what a function returns, found by reading it."""

    def __init__(self, kind: Any) -> None:
        super().__init__(kind)
        self.kind = kind


def inline(ctx: Context, node: Any, name: str, arguments: Sequence[Any], given: Sequence[Any]) -> Any:
    """What a call of a device function gives."""
    args = apart(ctx, node, arguments, ctx.given)
    return called_own(ctx, node, name, args, given)


def called_own(ctx: Context, node: Any, name: str, args: Sequence[Given], given: Sequence[Any]) -> Any:
    """What a call of a device function gives: it is called, or its body is put in its place."""
    function = chosen(ctx, node, name, ctx.file.functions[name], args)
    params = parameters_of(function[0])
    args = [_for(ctx, p, a) for p, a in zip(params, args, strict=False)] if len(args) <= len(params) else args
    called = as_call(ctx, node, name, function, args)
    return called if called is not None else put_in(ctx, node, name, function, args, given)


@bodies("function_definition", "lambda_expression")
def put_in(
    ctx: Context, node: Any, name: str, function: tuple[Any, Any], args: Sequence[Given], given: Sequence[Any] = (),
    of: tuple[Struct, Var | Cell | None] | None = None, within: Lambda | None = None,
) -> Any:  # fmt: skip
    """The body of a function in place of its call.

    `given`: arguments of its template; `of`: the struct and the object whose method it is; `within`: the lambda.
    """
    definition, template = function
    params = parameters_of(definition)
    late = defaults(params)[len(args) :]
    if len(params) != len(args) + len(late) or definition.has_error:
        raise ctx.refuse(node, f"the call of {name} with {len(args)} arguments", "pass every argument")
    if len(ctx.callers) >= DEEPEST:
        raise ctx.refuse(node, f"{name} calls itself", "write a loop")
    args = [_for(ctx, p, a) for p, a in zip(params, args, strict=False)]
    instance = deduced(ctx, node, template, params, args, given) if template is not None else []
    args += [Given(each, ctx.within_top(lambda e=each: ctx.expression(e))) for each in late]
    called = f"{name} at {definition.start_byte}"
    if template is not None:
        called += f" of {instance}"  # which has shared arrays of its own
    if of is not None:
        called += f" of {of[0].type.name}"
    with ctx.using(
        callers=[*ctx.callers, ctx.scopes], called=[*ctx.called, called], returned=ctx.returned, breaking=[],
        left=None, return_asked=False, **_names(ctx, definition, of, within),
    ):  # fmt: skip
        if template is not None:
            names, numbers = bind(ctx, definition, template, instance)
            ctx.type_names = {**ctx.type_names, **names}
            ctx.scopes.append(numbers)
        ctx.scopes.append({})
        for param, arg in zip(params, args, strict=True):
            bind_argument(ctx, node, param, arg)
        return _run(ctx, node, name, definition)


def _names(ctx: Context, definition: Any, of: tuple[Struct, Any] | None, within: Lambda | None) -> dict[str, Any]:
    """What a function's body sees of names."""
    if within is not None:
        return {"scopes": list(within.scopes), "type_names": within.names, "struct": within.struct}
    path = ctx.file.paths.get(of[0].base if of is not None else function_name(definition), "")
    if of is None:
        return {"scopes": [ctx.scopes[0]], "type_names": {}, "struct": None, "path": path}
    scopes = [ctx.scopes[0], *members(ctx, of[0], of[1])]
    return {"scopes": scopes, "type_names": dict(of[0].names), "struct": of[0], "path": path}


def _for(ctx: Context, param: Any, arg: Given) -> Given:
    """An argument as the parameter takes it: read, unless it is a reference."""
    declarator = param.child_by_field_name("declarator")
    reference = declarator is not None and "reference" in declarator.type
    single = isinstance(arg.found, Cell) or (isinstance(arg.found, Var) and not arg.found.whole)
    if single and not reference:
        return Given(arg.node, read(ctx, arg.node, arg.found))
    lasting = reference and "const" not in words(param) and text_of(declarator)[:2] != "&&"
    if lasting and isinstance(arg.found, Value):
        raise ctx.refuse(arg.node, f"{text_of(arg.node)!r} is passed by reference", "pass a variable")
    return arg


def bind_argument(ctx: Context, node: Any, param: Any, arg: Given) -> None:
    """Give a parameter its argument."""
    name = name_of(param)
    if name is not None:
        found = arg.found
        marker = found.value if isinstance(found, Var) and not found.whole else found
        own = isinstance(marker, Marker)
        ctx.scopes[-1][name] = Var(name, None, marker) if own else _bound(ctx, node, param, name, arg)


def _bound(ctx: Context, node: Any, param: Any, name: str, arg: Given) -> Var:
    """What a parameter's name means."""
    declarator, found = param.child_by_field_name("declarator"), arg.found
    volatile = {"volatile"} if is_pointer(declarator) else set()
    if words(param) - volatile - {"const", "__restrict__", "=", "for", "(", ")", ":"}:
        raise ctx.refuse(param, f"the parameter {text_of(param)!r}", "use numbers, pointers and references")
    auto = param.child_by_field_name("type").type == "placeholder_type_specifier"
    kind = arg.type if auto else ctx.parameter_type(param.child_by_field_name("type"))
    if isinstance(kind, Accessor):
        return _bound_accessor(ctx, param, name, arg, kind)
    if is_pointer(declarator):
        return _bound_pointer(ctx, node, param, name, arg, None if auto else kind)
    refers = "reference" in declarator.type
    if refers and isinstance(found, (Var, Cell)) and found.type == kind:
        return found if isinstance(found, Var) else Var(name, None, found)
    if declarator.type not in ("identifier", "reference_declarator") or isinstance(kind, tuple):
        raise ctx.refuse(node, f"the parameter {text_of(param)!r}", "use numbers, pointers and references")
    if refers and "const" not in words(param) and isinstance(found, (Var, Cell)):
        raise ctx.refuse(node, f"{name} refers to another type", "use the type of the variable")
    return made_of(ctx, arg.node, name, kind, arg)


def _bound_accessor(ctx: Context, param: Any, name: str, arg: Given, kind: Accessor) -> Var:
    """An accessor, or a row of one, for a parameter of that type."""
    found = arg.type
    if not isinstance(found, Accessor) or (found.type, found.dimensions) != (kind.type, kind.dimensions):
        raise ctx.refuse(arg.node, f"{text_of(arg.node)!r} for the accessor {name}", "pass an accessor or a row of one")
    return Var(name, None, arg.found.value if isinstance(arg.found, Var) else arg.found)


def _bound_pointer(ctx: Context, node: Any, param: Any, name: str, arg: Given, kind: Any) -> Var:
    """A pointer parameter; `kind`: what it points to, None for any type."""
    found = arg.found.value if isinstance(arg.found, Var) and not arg.found.whole else arg.found
    own = arg.type[1] if isinstance(arg.type, tuple) else arg.type
    points = isinstance(found, Pointer | Local) or (isinstance(found, Var) and found.whole)
    if not points or (kind is not None and own != kind):
        raise ctx.refuse(node, f"{name} points to another type", "use the type of the array")
    if isinstance(found, Pointer) and "volatile" in words(param):
        found = replace(found, volatile=True)
    return found if isinstance(found, Var) else Var(name, None, found)


def _run(ctx: Context, node: Any, name: str, definition: Any) -> Any:
    """The body of a function whose parameters are bound; what it returns."""
    body = definition.child_by_field_name("body")
    if ctx.struct is not None and definition.child_by_field_name("type") is None and name == ctx.struct.base:
        initialize(ctx, node, definition)
    kind = _returns(ctx, node, definition)
    if kind == "&":
        return _referred(ctx, node, name, body)
    ctx.returned = None if kind is None else fresh(f"{name}_" if name.isidentifier() else "value", kind)
    ctx.scopes.append({})
    ctx.sequence(named(body))
    result = ctx.returned
    if result is None:
        return None
    return result if result.whole else read(ctx, node, result)


def _returns(ctx: Context, node: Any, definition: Any) -> Type | str | None:
    """The type of what a function returns: None for nothing, "&" for a reference."""
    declarator, kind = definition.child_by_field_name("declarator"), definition.child_by_field_name("type")
    outer = declarator.type if declarator is not None else ""
    if outer == "reference_declarator":
        return "&"
    trailing = next((c for c in named(declarator) if c.type == "trailing_return_type"), None) if outer else None
    if trailing is not None:
        kind = named(trailing)[0]
    if kind is not None and text_of(kind) == "void":
        return None
    if kind is not None and outer == "pointer_declarator":
        raise ctx.refuse(node, "a function that returns a pointer", "return an index")
    if kind is not None and kind.type != "placeholder_type_specifier":
        return ctx.type_of(kind)
    if not contains(definition.child_by_field_name("body"), ("return_statement",), ("lambda_expression",)):
        return None
    return ctx.tried(lambda: _first(ctx, definition))


def _first(ctx: Context, definition: Any) -> Any:
    """The type of the first value that a function returns."""
    ctx.returned = None
    try:
        with ctx.using(return_asked=True):
            ctx.sequence(named(definition.child_by_field_name("body")))
    except Returned as found:
        return found.kind
    return None


def _referred(ctx: Context, node: Any, name: str, body: Any) -> Any:
    """The place that a function returns a reference to."""
    statements = named(body)
    last = statements[-1] if statements else body
    if last.type != "return_statement" or any(contains(s, ("return_statement",)) for s in statements[:-1]):
        raise ctx.refuse(node, f"{name} returns a reference on several paths", "return a value")
    ctx.returned = None
    ctx.scopes.append({})
    found: list[Any] = []
    ctx.sequence(statements[:-1], lambda: found.append(ctx.place(named(last)[0])))
    if len(found) != 1:
        raise ctx.refuse(node, f"{name} returns a reference on several paths", "return a value")
    return found[0]


# What ends one -----------------------------------------------------------------------------------------------------


@leaving("return_statement")
def return_statement(ctx: Context, node: Any, rest: Sequence[Any], then: Callable[[], None]) -> bool:
    """Sets what is returned, and ends all loops around."""
    _return(ctx, node)
    for var in [v for v in ctx.breaking if v is not None]:
        var.value = ctx.boolean(node, False)
    if ctx.left is not None:
        ctx.left.value = ctx.boolean(node, True)
    return True


def _return(ctx: Context, node: Any) -> None:
    given = named(node)
    if ctx.return_asked:
        kind = ctx.given(given[0]).type if given else None
        if not isinstance(kind, (str, Aggregate)):
            raise ctx.refuse(node, f"{text_of(node)!r} has no type by itself", "write the type that is returned")
        raise Returned(kind)
    if bool(given) != (ctx.returned is not None):
        raise ctx.refuse(node, f"{text_of(node)!r}", "return what the function declares")
    if given and given[0].type == "initializer_list":
        made = construct(ctx, node, ctx.returned.name, ctx.returned.type, named(given[0]), True)  # type: ignore
        assign(ctx, node, ctx.returned, made if made.whole else read(ctx, node, made))
    elif given:
        assign(ctx, node, ctx.returned, ctx.expression(given[0]))
