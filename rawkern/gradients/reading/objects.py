"""Objects of structs: how they are made, and what their members begin with; constants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rawkern.base.tree import named, text_of
from rawkern.gradients import types
from rawkern.gradients.ir import Value
from rawkern.gradients.reading.context import MOST_LOCAL, MOST_VARIABLES, Context
from rawkern.gradients.reading.handlers import expressions
from rawkern.gradients.reading.kinds import names_of, scope_type
from rawkern.gradients.reading.memory import assign, part, read, taken
from rawkern.gradients.reading.order import apart
from rawkern.gradients.reading.overloads import chosen, ranks
from rawkern.gradients.reading.places import Cell, Given, Struct, Var, fresh
from rawkern.gradients.reading.syntax import extents_of
from rawkern.gradients.types import Aggregate, Type

LIMITS = {
    ("float", "max"): "3.402823466e+38f", ("float", "lowest"): "-3.402823466e+38f",
    ("float", "min"): "1.175494351e-38f", ("float", "epsilon"): "1.192092896e-07f",
    ("float", "infinity"): "INFINITY", ("int", "max"): "2147483647",
    ("double", "max"): "1.7976931348623157e+308", ("double", "lowest"): "-1.7976931348623157e+308",
    ("double", "min"): "2.2250738585072014e-308", ("double", "epsilon"): "2.2204460492503131e-16",
    ("double", "infinity"): "(double)INFINITY",
}  # fmt: skip


def made_of(ctx: Context, node: Any, name: str, kind: Type, arg: Given) -> Var:
    """A variable of a type, of one value."""
    if arg.found is None:
        return construct(ctx, node, name, kind, named(arg.node), True)
    kind = types.of_packed(arg.type, kind) or kind
    if isinstance(kind, Aggregate) and arg.type != kind:
        return construct(ctx, node, name, kind, [arg], False)
    var = fresh(name, kind)
    assign(ctx, node, var, taken(ctx, arg))
    return var


def construct(ctx: Context, node: Any, name: str, kind: Type, arguments: Sequence[Any], braces: bool) -> Var:
    """``T name(arguments)`` or ``T name{arguments}``."""
    if isinstance(kind, str):
        var = Var(name, kind)
        if len(arguments) > 1:
            raise ctx.refuse(node, f"{text_of(node)!r} of several values", "give one")
        assign(ctx, node, var, ctx.scalar(arguments[0]) if arguments else ctx.integer(node, 0))
        return var
    pairs = any(each.type == "initializer_pair" for each in arguments if not isinstance(each, Given))
    args = [] if pairs else apart(ctx, node, arguments, ctx.given)
    if len(args) == 1 and args[0].type == kind:
        return made_of(ctx, node, name, kind, args[0])
    struct, makers, var = ctx.struct_of(kind), _makers(ctx, kind), fresh(name, kind)
    if struct is not None and makers and (args or any(ranks(ctx, m, []) is not None for m in makers)):
        with ctx.using(type_names=names_of(ctx, struct)):
            function = chosen(ctx, node, struct.base, makers, args)
        ctx.invoke(node, struct.base, function, args, of=(struct, var))
    elif not args and not pairs:
        _begin(ctx, node, var, struct, True)
    elif braces and not makers:
        fill(ctx, node, var, kind, arguments if pairs else args)
    else:
        raise ctx.refuse(node, f"{text_of(node)!r} makes no {kind.name}", "use one of its constructors")
    return var


def _makers(ctx: Context, kind: Type) -> list[tuple[Any, Any]]:
    """The constructors of a type."""
    struct = ctx.struct_of(kind)
    return struct.methods.get(struct.base, []) if struct is not None else []


def plainly(ctx: Context, node: Any, name: str, kind: Type) -> Var:
    """``T name;``"""
    if _makers(ctx, kind):
        return construct(ctx, node, name, kind, (), False)
    var = fresh(name, kind)
    if isinstance(kind, Aggregate):
        _begin(ctx, node, var, ctx.struct_of(kind), False)
    return var


def _begin(ctx: Context, node: Any, var: Var, struct: Struct | None, zero: bool) -> None:
    """Give an object what its members begin with; the others zeros or nothing."""
    for name, member in var.fields.items():
        inner = ctx.struct_of(member.type)
        if struct is not None and name in struct.initial:
            _initial(ctx, node, struct, var, name)
        elif inner is not None:
            empty = construct(ctx, node, name, inner.type, (), False) if zero else plainly(ctx, node, name, inner.type)
            assign(ctx, node, member, empty)
        elif member.whole:
            _begin(ctx, node, member, None, zero)
        elif zero:
            assign(ctx, node, member, ctx.integer(node, 0))


def _initial(ctx: Context, node: Any, struct: Struct, var: Var, name: str) -> None:
    """Give a member what the struct says that it begins with."""
    with ctx.using(scopes=[ctx.scopes[0], *members(ctx, struct, var)], struct=struct, type_names=dict(struct.names)):
        _set_member(ctx, node, var.fields[name], struct.initial[name])


def members(ctx: Context, struct: Struct, this: Var | Cell | None) -> list[dict[str, Var]]:
    """What the names of a struct's members mean in its methods."""
    numbers: dict[str, Var] = {}
    for name, var in struct.numbers.items():
        value = var.value
        if isinstance(value, Value):
            value = ctx.value(value.line, value.type, "const", attr=value.attr, const=value.const)
        numbers[name] = Var(name, var.type, value)
    own = {"this": Var("this", None, this)} if this is not None else {}
    if isinstance(this, Var):
        own |= this.fields
    elif this is not None:
        own |= {n: Var(n, None, part(ctx, this.place, this, (n,), kind)) for n, kind in struct.type.fields}
    return [numbers, own]


def _set_member(ctx: Context, node: Any, member: Var, value: Any) -> None:
    """Give a member the value of an initializer."""
    arguments = named(value) if value.type in ("argument_list", "initializer_list") else [value]
    if member.whole and (member.type is None or ctx.struct_of(member.type) is None):
        fill(ctx, node, member, member.type, apart(ctx, node, arguments, ctx.given))
        return
    made = construct(ctx, value, member.name, member.type, arguments, value.type == "initializer_list")  # type: ignore[arg-type]
    assign(ctx, node, member, made if made.whole else made.value)


def initialize(ctx: Context, node: Any, definition: Any) -> None:
    """What a constructor does before its body."""
    struct, this = ctx.struct, ctx.lookup("this")
    assert struct is not None and this is not None
    listed = next((c for c in named(definition) if c.type == "field_initializer_list"), None)
    given = {text_of(named(each)[0]): named(each)[-1] for each in (named(listed) if listed is not None else [])}
    if set(given) == {struct.base}:
        values = named(given[struct.base])
        made = construct(ctx, node, "object", struct.type, values, given[struct.base].type == "initializer_list")
        assign(ctx, node, this.value, made)
        return
    if set(given) - set(this.value.fields):
        raise ctx.refuse(definition, f"{struct.type.name} begins with {', '.join(given)}", "set members in it")
    for name, member in this.value.fields.items():
        inner = ctx.struct_of(member.type)
        if name in given:
            _set_member(ctx, node, member, given[name])
        elif name in struct.initial:
            _initial(ctx, node, struct, this.value, name)
        elif inner is not None:
            assign(ctx, node, member, plainly(ctx, node, name, inner.type))


def fill(ctx: Context, node: Any, var: Var, kind: Any, given: Sequence[Any]) -> None:
    """Give an aggregate or local array the elements of a list in braces; those left out begin as usual."""
    struct, names = ctx.struct_of(kind), list(var.fields)
    if len(given) > len(names):
        raise ctx.refuse(node, f"the initializer {text_of(node)!r} of {len(names)} elements", "use one list in braces")
    values: dict[str, Given] = {}
    for name, each in zip(names, given, strict=False):
        if isinstance(each, Given) or each.type != "initializer_pair":
            values[name] = ctx.given(each)
        else:  # .name = value
            named_so = text_of(each.child_by_field_name("designator")).lstrip(".")
            values[named_so] = ctx.given(each.child_by_field_name("value"))
    for name, member in var.fields.items():
        if name not in values and struct is not None and name in struct.initial:
            _initial(ctx, node, struct, var, name)
        else:
            _fill_member(ctx, node, member, name, values.get(name))


def _fill_member(ctx: Context, node: Any, member: Var, name: str, arg: Given | None) -> None:
    if arg is None and not member.whole:
        assign(ctx, node, member, ctx.integer(node, 0))
    elif arg is None or arg.found is None:
        inner = named(arg.node) if arg is not None else []
        if member.whole and ctx.struct_of(member.type) is None:
            fill(ctx, node, member, member.type, inner)
        else:
            made = construct(ctx, node, name, member.type, inner, True)  # type: ignore[arg-type]
            assign(ctx, node, member, made if made.whole else made.value)
    elif member.whole and member.type is not None:
        assign(ctx, node, member, made_of(ctx, node, name, member.type, arg))
    else:
        assign(ctx, node, member, taken(ctx, arg))


@expressions("compound_literal_expression")
def compound_literal(ctx: Context, node: Any) -> Any:
    kind = ctx.type_of(node.child_by_field_name("type"))
    var = construct(ctx, node, "literal", kind, named(node.child_by_field_name("value")), True)
    return var if var.whole else read(ctx, node, var)


def constant(ctx: Context, node: Any, kind: Any, declarator: Any, value: Any) -> Any:
    """A constant of the source or of a struct."""
    given, inner = extents_of(declarator)
    sizes: list[Any] = [ctx.scalar(size).const if size is not None else len(named(value)) for size in given]
    if value is None or None in sizes or inner.type not in ("identifier", "field_identifier"):
        raise ctx.refuse(node, f"the constant {text_of(declarator)}", "declare it as a number or array")
    if not sizes and kind.type == "placeholder_type_specifier":
        return ctx.expression(value)
    if not sizes:
        made = made_of(ctx, node, text_of(inner), ctx.type_of(kind), ctx.given(value))
        return made if made.whole else made.value
    var = local(ctx, node, text_of(inner), ctx.type_of(kind), sizes)
    fill(ctx, value, var, None, named(value))
    return var


@expressions("qualified_identifier")
def qualified_identifier(ctx: Context, node: Any) -> Any:
    """A constant of a namespace or a struct."""
    scope, name = node.child_by_field_name("scope"), node.child_by_field_name("name")
    plain = ctx.file.plain(text_of(node))
    if plain is not None and plain in ctx.file.constants and plain not in ctx.file.unclear:
        return ctx.within_top(lambda: constant(ctx, node, *ctx.file.constants[plain]))
    number = ctx.file.enumerator(text_of(node))
    if number is not None:
        return ctx.integer(node, number)
    known = scope is not None and (scope.type == "template_type" or ctx.known_type(text_of(scope)))
    struct = ctx.struct_of(scope_type(ctx, scope)) if known else None
    if struct is None or text_of(name) not in struct.constants:
        raise ctx.refuse(node, f"{text_of(node)} is not known", "use constants of this source")
    return member_constant(ctx, node, struct, text_of(name))


def member_constant(ctx: Context, node: Any, struct: Struct, name: str) -> Any:
    """A constant of a struct."""
    with ctx.using(scopes=[ctx.scopes[0], *members(ctx, struct, None)], type_names=dict(struct.names)):
        return constant(ctx, node, *struct.constants[name])


def limit(ctx: Context, node: Any, kind: Any, name: str) -> Any:
    """``std::numeric_limits<T>::name()``"""
    text = LIMITS.get((kind, name))
    if text is None:
        raise ctx.refuse(node, f"the call of {text_of(node)}", "write the number")
    if kind in ("float", "double"):
        number = ctx.value(node, kind, "const", attr=text.lstrip("-"))
        return ctx.value(node, kind, "unary", (number,), "-") if text[0] == "-" else number
    return ctx.value(node, kind, "const", attr=text, const=int(text))


def local(ctx: Context, node: Any, name: str, kind: Any, sizes: Sequence[int]) -> Var:
    """A local array."""
    if not sizes:
        return plainly(ctx, node, name, kind)
    if not 0 < sizes[0] <= MOST_VARIABLES:
        way_out = f"let it have, with its gradient, at most {MOST_LOCAL:,} bytes, of numbers of one type"
        raise ctx.refuse(node, f"the local array {name}", way_out)
    var = Var(name, None)
    var.fields = {str(k): local(ctx, node, f"{name}_{k}", kind, sizes[1:]) for k in range(sizes[0])}
    return var
