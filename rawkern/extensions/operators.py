"""Operators, and assignments inside of expressions."""

from __future__ import annotations

from typing import Any

from rawkern.base.tree import named, text_of
from rawkern.extensions import iterators
from rawkern.extensions import types as t
from rawkern.extensions.arithmetic import arithmetic, common, compared, negative
from rawkern.extensions.context import OVERLOADED, RUN, Context, expression, short
from rawkern.extensions.elements import element
from rawkern.extensions.spelling import spelled
from rawkern.extensions.types import Type
from rawkern.extensions.untranslated import NotTranslated
from rawkern.extensions.values import Value, converted, integer, options_code


@expression("binary_expression")
def binary(f: Context, node: Any) -> Value:
    left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
    operator = text_of(node.child_by_field_name("operator"))
    if operator in ("&&", "||", "and", "or"):
        word = "and" if operator in ("&&", "and") else "or"
        return Value(f"({f.condition(left)} {word} {f.condition(right)})", t.BOOL)
    if operator == "<<" and _is_stream(left):
        raise NotTranslated(f"`{short(node)}`: a stream of text", node)
    a, b = f.value(left), f.value(right)
    return combined(f, node, operator, a, b)


def _is_stream(node: Any) -> bool:
    while node.type == "binary_expression":
        node = node.child_by_field_name("left")
    return text_of(node) in ("std::cout", "std::cerr", "cout", "cerr")


_COMPARISONS = ("==", "!=", "<", ">", "<=", ">=")


_COMPARED = {
    "dtype", "string", "sizes", "vector", "device", "layout", "memory_format", "any", "tuple", "device_type", "enum",
    "scalar", "opaque", "stream",
}  # fmt: skip


def combined(f: Context, node: Any, operator: str, a: Value, b: Value) -> Value:
    """``a + b`` of any types."""
    kinds = {a.type.kind, b.type.kind}
    if "struct" in kinds:
        return OVERLOADED[0](f, node, operator, [a, b])
    if a.type.number and b.type.number:
        return compared(operator, a, b) if operator in _COMPARISONS else arithmetic(operator, a, b)
    if "tensor" in kinds and operator not in ("&&", "||"):
        if kinds & {"null", "nothing"}:
            raise NotTranslated(f"`{short(node)}`", node)
        if kinds <= {"tensor", "int", "float", "bool", "scalar", "param"} and operator not in ("<<", ">>"):
            return Value(f"({a.code} {operator} {b.code})", t.TENSOR)
        raise NotTranslated(f"`{short(node)}`: {a.type} {operator} {b.type}", node)
    if operator in ("==", "!=") and kinds & {"null", "nothing"}:
        other = b if a.type.kind in ("null", "nothing") else a
        if other.type.kind in ("optional", "nothing"):
            return Value(f"({other.code} is{'' if operator == '==' else ' not'} None)", t.BOOL)
        return Value(f"({'' if operator == '==' else 'not '}is_null({other.code}))", t.BOOL)
    if "iterator" in kinds:
        return iterators.between(f, node, operator, a, b)
    if "pointer" in kinds:
        return _pointers(f, node, operator, a, b)
    if "device_type" in kinds and operator in ("==", "!="):
        return _devices(operator, a, b)
    if kinds & {"sizes", "vector"} and operator in ("==", "!="):
        a, b = (converted(one, t.SIZES) if one.items is not None else one for one in (a, b))
        codes = [
            f"tuple({one.code})" if "sizes" not in kinds or one.type.kind != "sizes" else one.code for one in (a, b)
        ]
        return Value(f"({codes[0]} {operator} {codes[1]})", t.BOOL)
    if "string" in kinds and operator == "+":
        codes = [one.code if one.type.kind == "string" else f"text({one.code})" for one in (a, b)]
        return Value(f"({codes[0]} + {codes[1]})", t.STRING)
    if operator in ("==", "!=") and kinds <= _COMPARED | {"int"}:
        return Value(f"({a.code} {operator} {b.code})", t.BOOL)
    if "cuda_vector" in kinds:
        raise NotTranslated(f"`{short(node)}`: an operator of a struct", node)
    if "optional" in kinds and operator in ("==", "!="):
        return Value(f"({a.code} {operator} {b.code})", t.BOOL)
    if "scalar" in kinds and kinds <= {"scalar", "int", "float", "bool"} and operator in "+-*":
        return Value(f"({a.code} {operator} {b.code})", t.SCALAR)
    raise NotTranslated(f"`{short(node)}`: {a.type} {operator} {b.type}", node)


def _devices(operator: str, a: Value, b: Value) -> Value:
    """A comparison with a type of device: a CPU's tensor is taken for a CUDA device's."""
    literal, other = (a, b) if a.code in ("'cuda'", "'cpu'") else (b, a)
    cuda = literal.code == "'cuda'"
    code = f"is_cuda({other.code})" if cuda else f"(device_type({other.code}) == {literal.code})"
    return Value(code if operator == "==" else f"(not {code})", t.BOOL)


def _pointers(f: Context, node: Any, operator: str, a: Value, b: Value) -> Value:
    if "vector" in (a.type.name, b.type.name):
        if operator != "+" or not b.type.integral:
            raise NotTranslated(f"`{short(node)}`: a pointer to an element of a vector", node)
        return Value(f"part({a.code}, {b.code})", a.type, extra="vector")
    if operator in "+-" and b.type.integral and a.type.kind == "pointer":
        count = b.code if operator == "+" else negative(b).code
        return Value(f"offset({a.code}, {count}{_item(f, a.type)})", a.type)
    if operator == "+" and a.type.integral:
        return Value(f"offset({b.code}, {a.code}{_item(f, b.type)})", b.type)
    if operator in ("==", "!=") and {a.type.kind, b.type.kind} == {"pointer"}:
        return Value(f"({'' if operator == '==' else 'not '}same_pointer({a.code}, {b.code}))", t.BOOL)
    raise NotTranslated(f"`{short(node)}` of pointers", node)


def _item(f: Context, pointer: Type) -> str:
    """The type of a pointer's elements or their size, as the argument of `offset` after the count."""
    item = pointer.item
    if item.kind in ("struct", "opaque"):
        return f", sizeof({spelled(f, item)}, {f.unit.variable})"
    return "" if item.kind in ("void", "any") else f", {spelled(f, item)}"


@expression("unary_expression", "pointer_expression")
def unary(f: Context, node: Any) -> Value:
    operator, inside = text_of(node.children[0]), node.child_by_field_name("argument")
    if operator in ("!", "not"):
        code = f.condition(inside)
        return Value(f"(not {code})", t.BOOL)
    if operator == "&":
        return _address(f, node, inside)
    value = f.value(inside)
    if operator == "*" and inside.type == "identifier" and text_of(inside) in f.function.targets:
        return value
    if value.type.kind == "struct":
        return OVERLOADED[0](f, node, operator, [value])
    if operator == "-":
        return negative(value)
    if operator == "+" and value.type.number:
        return value
    if operator == "~" and value.type.integral:
        code = value.code
        type_ = arithmetic("|", value, integer(0)).type
        low, high = value.limits
        if type_.name.startswith("u"):
            return Value(f"{type_.name}(~{code})", type_)
        return Value(f"(~{code})", type_, ~high, ~low)
    if operator == "~" and value.type.kind == "tensor":
        return Value(f"(~{value.code})", t.TENSOR)
    if operator == "*":
        if value.type.kind == "optional":
            return Value(f"value({value.code})", value.type.item)
        if value.type.kind == "found":
            return Value(value.code, value.type.item)
        if value.type.kind == "tensor_arg":
            return Value(f"{value.code}[0]", t.TENSOR)
        if value.type.kind == "iterator":
            return Value(f"{value.code}[{value.extra}]", value.type.item, lvalue=True)
        if value.type.kind == "pointer" and value.type.item.kind == "tensor":
            return Value(value.code, t.TENSOR)
        if value.type.kind == "string":
            return Value(f"character({value.code}, 0)", Type("int", "int8"))
        if value.type.kind == "pointer" and value.type.item.kind == "struct" and not value.type.name:
            return Value(value.code, value.type.item, lvalue=True)
        if value.type.kind == "pointer":
            return element(f, node, value, integer(0))
    raise NotTranslated(f"`{short(node)}`", node)


def _address(f: Context, node: Any, inside: Any) -> Value:
    if inside.type in ("subscript_expression",):
        base = f.value(inside.child_by_field_name("argument"))
        if base.type.kind == "pointer":
            index = f.value(named(inside.child_by_field_name("indices"))[0])
            if base.type.name == "vector":
                return Value(f"part({base.code}, {index.code})", base.type, extra="vector")
            return Value(f"offset({base.code}, {index.code}{_item(f, base.type)})", base.type)
        if base.type.kind in ("vector", "array"):
            index = f.value(named(inside.child_by_field_name("indices"))[0])
            code = base.code if index.constant == 0 else f"part({base.code}, {index.code})"
            return Value(code, Type("pointer", "vector", (base.type.item,)), extra="vector")
    value = f.value(inside)
    if value.type.kind in ("kernel", "lambda"):
        return value
    if value.type.kind in ("struct", "tensor"):
        return Value(value.code, Type("pointer", of=(value.type,)), lvalue=True)
    return Value(f"address({value.code})", Type("address", of=(value.type,)), extra=inside)


@expression("parameter_pack_expansion")
def expansion(f: Context, node: Any) -> Value:
    inside = node.child_by_field_name("pattern")
    variable = f.find(text_of(inside)) if inside is not None and inside.type == "identifier" else None
    if variable is None or variable.type.kind != "pack":
        raise NotTranslated(f"`{short(node)}`", node)
    return Value(f"*{variable.python}", variable.type)


@expression("conditional_expression")
def conditional(f: Context, node: Any) -> Value:
    condition = f.condition(node.child_by_field_name("condition"))
    a = f.value(node.child_by_field_name("consequence"))
    b = f.value(node.child_by_field_name("alternative"))
    type_ = _chosen(node, a, b)
    a, b = converted(a, type_), converted(b, type_)
    code = f"({a.code} if {condition} else {b.code})"
    if type_.kind == "options":
        code = f"({options_code(a)} if {condition} else {options_code(b)})"
        return Value(code, type_, options={})
    if type_.kind == "int":
        (la, ha), (lb, hb) = a.limits, b.limits
        return Value(code, type_, min(la, lb), max(ha, hb))
    extra = None
    if type_.kind == "kernel":
        extra = f"({a.extra} if {condition} else {b.extra})"
    return Value(code, type_, extra=extra)


def _chosen(node: Any, a: Value, b: Value) -> Type:
    """The type of ``c ? a : b``."""
    kinds = (a.type.kind, b.type.kind)
    if kinds[0] == kinds[1] and not (a.type.number):
        return t.plain(a.type)
    if a.type.number and b.type.number:
        if kinds == ("bool", "bool"):
            return t.BOOL
        if a.type == b.type:
            return t.plain(a.type)
        return common(a.type, b.type)
    for one, other in ((a, b), (b, a)):
        if one.type.kind in ("null", "nothing") or (one.constant == 0 and other.type.kind == "pointer"):
            return t.plain(other.type)
    if a.items is not None:
        return t.plain(b.type)
    if b.items is not None:
        return t.plain(a.type)
    raise NotTranslated(f"`{short(node)}`: {a.type} or {b.type}", node)


def _alone(node: Any) -> bool:
    """Whether a statement has no other expression that is evaluated: ``return ++n;`` or ``m = n++;``."""
    around = node.parent
    if around.type == "assignment_expression":
        left = around.child_by_field_name("left")
        return left.type in ("identifier", "field_expression") and around.parent.type == "expression_statement"
    return around.type == "return_statement" or (
        around.type == "init_declarator" and around.parent.type == "declaration"
    )


@expression("update_expression")
def update(f: Context, node: Any) -> Value:
    inside = node.child_by_field_name("argument")
    prefix = text_of(node.children[0]) in ("++", "--")
    step = text_of(node.child_by_field_name("operator"))[0]
    value = f.value(inside)
    variable = f.find(text_of(inside)) if inside.type == "identifier" else None
    if value.type.kind != "int" or variable is None or variable.kind != "value":
        if not _alone(node) or not value.lvalue or value.type.kind not in ("int", "float"):
            raise NotTranslated(f"`{short(node)}` inside of an expression", node)
        old = f.temporary()
        if not prefix:
            f.emit(f"{old} = {value.code}")
        RUN[node.type](f, node)
        return Value(value.code if prefix else old, value.type)
    f.writes(variable)
    new = converted(arithmetic(step, Value(value.code, value.type), integer(1)), value.type)
    code = f"({variable.python} := {new.code})"
    if prefix:
        return Value(code, value.type)
    old = f"({code} {'-' if step == '+' else '+'} 1)"
    return Value(f"{value.type.name}{old}" if value.type.name.startswith("u") else old, value.type)


@expression("assignment_expression")
def assignment(f: Context, node: Any) -> Value:
    left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
    if left.type != "identifier" or text_of(node.child_by_field_name("operator")) != "=":
        raise NotTranslated(f"`{short(node)}` inside of an expression", node)
    variable = f.find(text_of(left))
    if variable is None or variable.kind != "value" or variable.type.reference:
        raise NotTranslated(f"`{short(node)}` inside of an expression", node)
    f.writes(variable)
    return Value(f"({variable.python} := {f.of_type(right, variable.type).code})", variable.type)
