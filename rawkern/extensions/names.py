"""Names: of variables, of constants of the source and of torch, of instances."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rawkern.base.tree import named
from rawkern.extensions import types as t
from rawkern.extensions.constants import NAMES
from rawkern.extensions.context import Context, bases, expression, short
from rawkern.extensions.spelling import instance, kernel_instance, spelled, split_name, type_of
from rawkern.extensions.syntax import nodes_in
from rawkern.extensions.types import Type
from rawkern.extensions.untranslated import NotTranslated
from rawkern.extensions.values import Value, converted, integer


@expression("identifier", "qualified_identifier", "type_identifier", "template_function", "dependent_name")
def name(f: Context, node: Any) -> Value:
    full, arguments = split_name(node)
    if arguments is not None:
        return _template_name(f, node, full, arguments)
    if "<" in full:
        return _of_template(f, node, full)
    variable = f.find(full)
    if variable is not None:
        if variable.kind == "type":
            raise NotTranslated(f"the type {full} as a value", node)
        if variable.kind == "function":
            return Value(variable.python, Type("lambda"), extra=variable.extra)
        if variable.kind == "reference":
            return Value(variable.python, variable.type, lvalue=True)
        if variable.type.kind == "iterator":  # its variable is a place
            return Value(variable.extra, variable.type, extra=variable.python)
        low, high = (0, 0) if variable.type.spelled == "cudaError_t" else (variable.low, variable.high)
        return Value(variable.python, variable.type, low, high, lvalue=True, extra=variable.extra)
    if "::" in full:
        scope = full.split("::")[0]
        if (of := f.find(scope)) is not None and of.kind == "type":
            return _member_constant(f, node, full)
    return global_name(f, node, full)


def _of_template(f: Context, node: Any, full: str) -> Value:
    """``Traits<T>::kValue``."""
    inner = node
    while inner.type == "qualified_identifier" and inner.child_by_field_name("name").type == "qualified_identifier":
        inner = inner.child_by_field_name("name")
    scope = inner.child_by_field_name("scope")
    if scope is not None and scope.type == "template_type":
        bare, arguments = split_name(scope)
        if bare == "is_same" and arguments is not None:
            return same(f, arguments)
        if bare == "CppTypeToScalarType" and arguments and full.endswith("::value"):
            return Value(f"dtype_of({spelled(f, type_of(f, arguments[0]))})", t.DTYPE)
    return _member_constant(f, node, full)


def global_name(f: Context, node: Any, full: str) -> Value:
    """A name that is not a local one: a constant, a kernel, a function, or one of torch's."""
    bare = full.rsplit("::", 1)[-1]
    scope = f.unit.structs.get(full.split("::")[-2]) if "::" in full else f.function.owner
    for struct in bases(f.unit, scope):
        if bare in struct.constants:
            type_node, value_node = struct.constants[bare]
            return f.of_type(value_node, type_of(f, type_node))
    if "::" not in full or full.split("::")[0] not in ("at", "torch", "c10", "std"):
        if bare in f.unit.lazy:
            f.unit.constants[bare] = lazy_constant(f, bare)
        for key in (full, "::".join(full.split("::")[-2:]), bare):
            if key in f.unit.constants:
                return f.unit.constants[key]
        if bare in f.unit.kernels:
            name = f.unit.kernels[bare].name
            return Value(f"{f.unit.variable}[{name!r}]", t.KERNEL, extra=repr(name))
        if bare in f.unit.functions:
            return Value(f.unit.functions[bare][0].python, Type("lambda"), extra=f.unit.functions[bare])
    if bare in _HERE:
        return Value(repr(f.function.name), t.STRING)
    if bare == "__LINE__":
        return integer(f.line(node.start_point[0]))
    known = NAMES.get(full) or (NAMES.get(bare) if full.startswith(t.NAMESPACES) or "::" not in full else None)
    if known is not None:
        return known
    if bare.startswith("cuda") and "::" not in full:
        return Value(repr(bare), Type("enum"))
    if "::" in full:
        return _member_constant(f, node, full)
    raise NotTranslated(f"the unknown name {full}", node)


_HERE = ("__func__", "__FUNCTION__", "__PRETTY_FUNCTION__", "__FILE__")


def lazy_constant(f: Context, bare: str) -> Value:
    """A constant of the source, whose value is translated at its first use."""
    type_node, value_node, around = f.unit.lazy[bare][0]
    inner = Context(f.unit, f.function)
    type_ = type_of(inner, type_node)
    value = inner.value(value_node)
    if around == "array":
        if value.items is None or any(one.items is not None for one in value.items):
            raise NotTranslated(f"the array {bare}", value_node)
        value = replace(value, items=tuple(converted(one, type_) for one in value.items))
    elif type_.kind != "auto":
        value = converted(value, type_)
    del f.unit.lazy[bare]
    if around == "array" or type_.kind in ("map", "vector"):
        python = inner.python_name(bare)
        items = value.items or ()
        shown = f"({', '.join(one.code for one in items)},)" if around == "array" else value.code
        f.unit.definitions[python] = shown
        of = Type("array", of=(type_,)) if around == "array" else type_
        return Value(python, of, extra=items if around == "array" else None)
    return replace(value, type=t.plain(value.type), lvalue=False)


def _member_constant(f: Context, node: Any, full: str) -> Value:
    """A static constant of a struct, which the compiler knows."""
    bare = full.rsplit("::", 1)[-1]
    text = f.unit.members.get(bare, "int")
    found = t.named_type(text.replace("const ", "").strip()) or t.INT
    found = found if found.kind in ("int", "bool", "float") else t.INT
    return Value(f"{f.unit.variable}.constant({instance(f, node)})", t.plain(found))


def _template_name(f: Context, node: Any, full: str, arguments: list[Any]) -> Value:
    """A kernel's or a function's instance as a value."""
    bare = full.rsplit("::", 1)[-1]
    if bare in f.unit.kernels:
        text = kernel_instance(f, node, f.unit.kernels[bare], arguments)
        return Value(f"{f.unit.variable}[{text}]", t.KERNEL, extra=text)
    if bare == "numeric_limits":
        raise NotTranslated(f"`{short(node)}`", node)
    if bare in ("is_same_v",):
        return same(f, arguments)
    if bare in f.unit.functions:
        return Value(f.unit.functions[bare][0].python, Type("lambda"), extra=(f.unit.functions[bare], arguments))
    if "::" in full or bare in f.unit.structs:
        return Value(f"{f.unit.variable}.constant({instance(f, node)})", t.INT)
    raise NotTranslated(f"`{short(node)}`", node)


def same(f: Context, arguments: list[Any]) -> Value:
    """``std::is_same<A, B>``."""
    a, b = (spelled(f, type_of(f, one)) for one in arguments)
    return Value(f"same_type({a}, {b})", t.BOOL)


@expression("parenthesized_expression", "condition_clause")
def parenthesized(f: Context, node: Any) -> Value:
    inside = [one for one in named(node)]
    if len(inside) != 1:
        raise NotTranslated(f"`{short(node)}`", node)
    if inside[0].type == "comma_expression":
        parts = named(inside[0])
        if any(nodes_in_calls(one) for one in parts[:-1]):
            raise NotTranslated("a comma between expressions", node)
        return f.value(parts[-1])
    return f.value(inside[0])


def nodes_in_calls(node: Any) -> bool:
    """Whether an expression may do something beside its value."""
    return any(one.type in _DOING for one in nodes_in(node))


_DOING = ("call_expression", "assignment_expression", "update_expression", "comma_expression")
