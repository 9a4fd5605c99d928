"""Statements: declarations, assignments, conditions, returns."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rawkern.base.tree import named, text_of
from rawkern.extensions import types as t
from rawkern.extensions.checks import message
from rawkern.extensions.construction import fitting
from rawkern.extensions.context import OVERLOADED, RUN, Context, Variable, short, statement
from rawkern.extensions.declarations import options_dict
from rawkern.extensions.operators import combined
from rawkern.extensions.types import Type
from rawkern.extensions.untranslated import NotTranslated
from rawkern.extensions.values import Value, converted, copy_of, integer, typed


@statement(
    "comment",
    "static_assert_declaration",
    "preproc_call",
    ";",
    "empty_statement",
    "preproc_if",
    "using_declaration",
    "namespace_alias_definition",
)
def nothing(f: Context, node: Any) -> None:
    return


@statement("compound_statement")
def block(f: Context, node: Any) -> None:
    f.body(node)


# Statements of expressions -------------------------------------------------------------------------------------------


@statement("expression_statement")
def expression_statement(f: Context, node: Any) -> None:
    inside = [one for one in named(node)]
    if not inside:
        return
    _run(f, inside[0])


def _run(f: Context, node: Any) -> None:
    if node.type == "assignment_expression":
        _assign(f, node)
    elif node.type == "update_expression":
        _step(f, node)
    elif node.type == "comma_expression":
        for one in named(node):
            _run(f, one)
    elif node.type == "parenthesized_expression":
        _run(f, named(node)[0])
    elif node.type == "binary_expression" and _stream_parts(node):
        _print(f, node)
    elif node.type == "binary_expression" and (found := _text_parts(f, node)) is not None:
        f.writes(found[0])
        f.emit(f"{found[0].python} += {message(f, found[1])}")
    elif node.type in RUN:
        RUN[node.type](f, node)
    else:
        code = f.value(node).code
        if code and not code.isidentifier() and code != "None":
            f.emit(code)


def run(f: Context, node: Any) -> None:
    """Translate an expression whose value is not used."""
    _run(f, node)


def _step(f: Context, node: Any) -> None:
    inside = node.child_by_field_name("argument")
    operator = text_of(node.child_by_field_name("operator"))[0]
    assign(f, node, inside, combined(f, node, operator, _whole(f, inside), integer(1)), operator=operator)


RUN["update_expression"] = _step


def _whole(f: Context, node: Any) -> Value:
    """A value that is about to be changed: nothing is known of it but its type."""
    value = f.value(node)
    return Value(value.code, value.type, extra=value.extra, lvalue=True)


def _assign(f: Context, node: Any) -> None:
    left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
    operator = text_of(node.child_by_field_name("operator"))
    if operator == "=":
        if left.type == "call_expression" and text_of(left.child_by_field_name("function")) in ("std::tie", "tie"):
            _tied(f, left, f.value(right))
            return
        if right.type == "assignment_expression":  # a = b = c
            _assign(f, right)
            right = right.child_by_field_name("left")
        assign(f, node, left, f.value(right))
        return
    old = _whole(f, left)
    new = f.value(right)
    if ":=" in new.code:  # it comes first in C++
        name = f.temporary()
        f.emit(f"{name} = {new.code}")
        new = replace(new, code=name)
    if old.type.kind == "struct":
        f.emit(OVERLOADED[0](f, node, operator, [old, new]).code)
        return
    if old.type.kind == "tensor":
        if operator not in ("+=", "-=", "*=", "/="):
            raise NotTranslated(f"`{short(node)}`", node)
        if left.type == "call_expression" and old.code.endswith(")"):  # what a call returns: a view, as a rule
            f.emit(f"{old.code}.{_IN_PLACE[operator]}({new.code})")
            return
        if left.type == "identifier":
            variable = f.find(text_of(left)) or _unknown(left)
            variable = variable.extra if variable.kind == "reference" else variable
            if variable is not None:
                f.writes(variable)
        f.emit(f"{old.code} {operator} {new.code}")
        return
    assign(f, node, left, combined(f, node, operator[:-1], old, new), operator=operator[:-1])


_IN_PLACE = {"+=": "add_", "-=": "sub_", "*=": "mul_", "/=": "div_"}


def _unknown(node: Any) -> Any:
    raise NotTranslated(f"the unknown name {text_of(node)}", node)


def _tied(f: Context, left: Any, value: Value) -> None:
    pythons, conversions = [], []
    targets = named(left.child_by_field_name("arguments"))
    types = value.type.of if value.type.kind == "tuple" and len(value.type.of) == len(targets) else ()
    for k, one in enumerate(targets):
        if text_of(one) in ("std::ignore", "ignore"):
            pythons.append("_")
            continue
        variable = f.find(text_of(one)) if one.type == "identifier" else None
        if variable is None:
            raise NotTranslated(f"`{short(left)}`", left)
        written = variable.extra if variable.kind == "reference" else variable
        if written is not None:
            f.writes(written)
        pythons.append(variable.python)
        if types and types[k].number:
            made = converted(Value(variable.python, types[k]), variable.type).code
            conversions += [f"{variable.python} = {made}"] if made != variable.python else []
    f.emit(f"{', '.join(pythons)}{',' if len(pythons) == 1 else ''} = {value.code}")
    for one in conversions:
        f.emit(one)


def assign(f: Context, node: Any, left: Any, value: Value, operator: str = "") -> None:
    """``left = value``."""
    while left.type == "parenthesized_expression":
        left = named(left)[0]
    if left.type == "pointer_expression" and text_of(left.child_by_field_name("argument")) in f.function.targets:
        left = left.child_by_field_name("argument")
    if left.type == "identifier":
        variable = f.find(text_of(left))
        if variable is not None and variable.kind == "reference":
            if variable.extra is not None:
                f.writes(variable.extra)
            _store(f, variable.python, copy_of(value, fitting(f, node, value, variable.type)), variable.type)
            return
        if variable is None or variable.kind != "value":
            raise NotTranslated(f"`{short(node)}`", node)
        if variable.type.kind == "guard":
            return
        if variable.type.kind == "iterator":
            if value.type.kind != "iterator" or value.code != variable.extra:
                raise NotTranslated(f"`{short(node)}`: an iterator of another container", node)
            f.writes(variable)
            f.emit(f"{variable.python} = {value.extra}")
            return
        result = options_dict(value) if variable.type.kind == "options" else fitting(f, node, value, variable.type)
        if variable.type.kind == "struct":
            _store(f, variable.python, result.code, variable.type)
            return
        f.writes(variable)
        code = copy_of(value, result)
        plain = f"({variable.python} {operator} "
        if operator and code.startswith(plain) and code.endswith(")") and _balanced(code[len(plain) : -1]):
            f.emit(f"{variable.python} {operator}= {code[len(plain) : -1]}")
        else:
            f.emit(f"{variable.python} = {code}")
        return
    if left.type == "subscript_expression":
        _assign_element(f, node, left, value)
        return
    if left.type == "field_expression":
        _assign_member(f, node, left, value)
        return
    if left.type == "pointer_expression" and text_of(left.children[0]) == "*":
        target = f.value(left.child_by_field_name("argument"))
        if target.type.kind == "pointer" and target.type.item.kind == "struct" and not target.type.name:
            _store(f, target.code, fitting(f, node, value, target.type.item).code, target.type.item)
            return
        if target.type.kind == "pointer" and target.type.item.number and target.type.name != "vector":
            f.emit(f"elements({typed(target)})[0] = {converted(value, target.type.item).code}")
            return
    if left.type == "call_expression":
        target = f.value(left)
        if target.lvalue and target.code.endswith("]"):  # sizes.back() = n
            f.emit(f"{target.code} = {converted(value, target.type).code}")
            return
        if target.type.kind == "tensor" and target.code.endswith("]"):
            f.emit(f"{target.code} = {value.code}")
            return
        if target.type.kind == "tensor" and (value.type.kind in ("tensor", "scalar") or value.type.number):
            # To what has no name, the elements are assigned.
            method = "copy_" if value.type.kind == "tensor" else "fill_"
            f.emit(f"{target.code}.{method}({value.code})")
            return
    raise NotTranslated(f"`{short(node)}`", node)


def _balanced(code: str) -> bool:
    depth = 0
    for character in code:
        depth += (character in "([{") - (character in ")]}")
        if depth < 0:
            return False
    return True


def _assign_element(f: Context, node: Any, left: Any, value: Value) -> None:
    base = f.value(left.child_by_field_name("argument"))
    indices = named(left.child_by_field_name("indices"))
    after = None
    index_node = indices[0]
    if index_node.type == "update_expression" and index_node.children[0].type == "identifier":  # a[i++] = x
        after, index_node = index_node, index_node.child_by_field_name("argument")
    index = f.value(index_node)
    kind = base.type.kind
    if kind == "tensor":
        number = value.code if value.type.kind in ("tensor", "scalar") or value.type.number else None
        if number is None:
            raise NotTranslated(f"`{short(node)}`", node)
        f.emit(f"{base.code}[{index.code}] = {number}")
    elif kind == "pointer" and base.type.item.number and base.type.name != "vector":
        f.emit(f"elements({typed(base)})[{index.code}] = {converted(value, base.type.item).code}")
    elif kind == "accessor":
        f.emit(f"{base.code}[{index.code}] = {converted(value, base.type.of[0]).code}")
    elif kind in ("vector", "array", "any", "map", "pointer"):
        item = base.type.of[-1] if base.type.of else t.ANY
        index = converted(index, base.type.of[0]) if kind == "map" and base.type.of else index
        low, _ = index.limits
        code = index.code if kind == "map" or low >= 0 else f"at({index.code})"
        f.emit(f"{base.code}[{code}] = {copy_of(value, fitting(f, node, value, item))}")
    else:
        raise NotTranslated(f"`{short(node)}`: an element of {base.type}", node)
    if after is not None:
        _step(f, after)


def _assign_member(f: Context, node: Any, left: Any, value: Value) -> None:
    inside = left.child_by_field_name("argument")
    owner = f.value(inside)
    name = text_of(left.child_by_field_name("field"))
    if owner.type.kind == "dim3":
        if inside.type == "field_expression" and owner.lvalue:
            f.emit(f"{owner.code} = {owner.code}._replace({name}={converted(value, t.UINT).code})")
            return
        variable = f.find(text_of(inside)) if inside.type == "identifier" else None
        if variable is None:
            raise NotTranslated(f"`{short(node)}`", node)
        f.writes(variable)
        f.emit(f"{variable.python} = {variable.python}._replace({name}={converted(value, t.UINT).code})")
        return
    target = f.value(left)
    if owner.type.kind == "tuple" or not target.lvalue:
        raise NotTranslated(f"`{short(node)}`", node)
    _store(f, target.code, copy_of(value, fitting(f, node, value, target.type)), target.type)


def _store(f: Context, place: str, code: str, type_: Type) -> None:
    """Assign to a place; an object stays the one that it is, and so does a vector that is a member."""
    if type_.kind == "struct":
        f.emit(f"{place}.become({code})")
    elif type_.kind == "vector" and "." in place:
        f.emit(f"{place}[:] = {code.removeprefix('list')}" if code.startswith("list(") else f"{place}[:] = {code}")
    else:
        f.emit(f"{place} = {code}")


# Text -------------------------------------------------------------------------------------------------------------


def _stream_parts(node: Any) -> list[Any]:
    """What is written by ``std::cout << a << b``; empty for another expression."""
    parts: list[Any] = []
    while node.type == "binary_expression" and text_of(node.child_by_field_name("operator")) == "<<":
        parts.insert(0, node.child_by_field_name("right"))
        node = node.child_by_field_name("left")
    return parts if text_of(node) in ("std::cout", "std::cerr", "cout", "cerr") else []


def _text_parts(f: Context, node: Any) -> tuple[Variable, list[Any]] | None:
    """The variable and what is written to it by ``stream << a << b``; None for another expression."""
    parts: list[Any] = []
    while node.type == "binary_expression" and text_of(node.child_by_field_name("operator")) == "<<":
        parts.insert(0, node.child_by_field_name("right"))
        node = node.child_by_field_name("left")
    variable = f.find(text_of(node)) if node.type == "identifier" else None
    return (variable, parts) if variable is not None and variable.type.kind == "text" else None


def _print(f: Context, node: Any) -> None:
    parts = _stream_parts(node)
    ends = [one for one in parts if text_of(one) in ("std::endl", "endl", '"\\n"', "std::flush")]
    f.emit(f"print({message(f, [one for one in parts if one not in ends])}{'' if ends else ', end=' + repr('')})")
