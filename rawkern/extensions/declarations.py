"""Declarations: variables, arrays, aliases, and what is made of values in parentheses or braces."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import Any

from rawkern.base.tree import named, parse, text_of
from rawkern.extensions import types as t
from rawkern.extensions.construction import construct, default_of, fitting
from rawkern.extensions.context import DECLARED, Context, Variable, short, statement
from rawkern.extensions.kept import declare_static
from rawkern.extensions.spelling import declared_type, spelled, type_of
from rawkern.extensions.syntax import array_sizes, assigned_whole, identifiers, root_name
from rawkern.extensions.types import Type, words
from rawkern.extensions.untranslated import NotTranslated
from rawkern.extensions.values import Value, copy_of, options_code


@statement("declaration")
def declaration(f: Context, node: Any) -> None:
    said = words(node)
    type_node = node.child_by_field_name("type")
    if "extern" in said:
        return
    base = None
    declarators = [child for k, child in enumerate(node.children) if node.field_name_for_child(k) == "declarator"]
    if not declarators and type_node is not None:
        if type_node.type in ("struct_specifier", "enum_specifier", "class_specifier"):
            raise NotTranslated(f"`{short(node)}`: a type inside of a function", node)
        raise NotTranslated(f"`{short(node)}`", node)
    for one in declarators:
        value, declarator = None, one
        if one.type == "init_declarator":
            declarator, value = one.child_by_field_name("declarator"), one.child_by_field_name("value")
        if declarator.type == "structured_binding_declarator":
            _unpacked(f, declarator, f.value(value))
            continue
        type_ = declared_type(f, type_node, declarator, node) if base is None else base
        name_node = _name_of(declarator)
        if declarator.type == "function_declarator" or (name_node is None):
            if declarator.type == "function_declarator":
                _most_vexing(f, node, declarator, type_)
                continue
            raise NotTranslated(f"`{short(node)}`", node)
        name = text_of(name_node)
        if "static" in said and "constexpr" not in said and "const" not in said and not type_.const:
            if array_sizes(declarator):
                raise NotTranslated(f"`{short(node)}`: a static array, which keeps its values between calls", node)
            declare_static(f, name, type_, value, node)
            continue
        constant = "const" in said or "constexpr" in said
        declare(f, name, type_, value, node, constant=constant, sizes=array_sizes(declarator))


def _name_of(declarator: Any) -> Any:
    while declarator is not None and declarator.type not in ("identifier", "field_identifier"):
        inner = declarator.child_by_field_name("declarator")
        if inner is None:
            inner = next(
                (one for one in named(declarator) if "declarator" in one.type or one.type == "identifier"), None
            )
        declarator = inner
    return declarator


def _most_vexing(f: Context, node: Any, declarator: Any, type_: Type) -> None:
    """``dim3 grid(n, m);``, which the tree takes for a function with parameters without names."""
    name = text_of(_name_of(declarator))
    arguments = text_of(declarator.child_by_field_name("parameters"))
    again = named(parse(f"int rk = rk{arguments};"))[0].child_by_field_name("declarator")
    call = again.child_by_field_name("value") if again is not None else None
    if call is None or call.type != "call_expression" or call.has_error:
        raise NotTranslated(f"`{short(node)}`: a function declared in a function", node)
    values = [f.value(one) for one in named(call.child_by_field_name("arguments"))]
    base = type_of(f, node.child_by_field_name("type"))
    if base.kind == "auto" and len(values) == 1:
        made = replace(values[0], code=copy_of(values[0], values[0]))
        bind(f, name, t.plain(made.type), made)
        return
    constructed = construct(f, node, base, values)
    bind(f, name, base, constructed)


def declare(
    f: Context, name: str, type_: Type, value: Any, node: Any, *, constant: bool = False, sizes: list[Any] | None = None
) -> None:
    """Declare a variable with the node of its value, None where it has none."""
    if type_.kind == "guard":
        if value is not None and value.type == "argument_list":
            for one in named(value):
                f.value(one)
        f.declare(name, type_)
        return
    if sizes:
        _array(f, name, type_, value, sizes, node)
        return
    if value is None:
        bind(f, name, type_, default_of(f, node, type_))
        return
    if value.type == "argument_list":
        if type_.kind == "auto":
            found = f.value(named(value)[0])
        else:
            found = construct(f, node, type_, [f.value(one) for one in named(value)])
    elif value.type == "initializer_list" and type_.kind not in ("auto", "vector", "sizes", "tuple", "optional", "map"):
        found = construct(f, node, type_, [f.value(one) for one in named(value)], braces=True)
    elif value.type == "lambda_expression":
        DECLARED[value.type](f, name, value)
        return
    else:
        found = f.value(value)
    if type_.kind == "auto" and found.items is not None:
        found = Value(found.code, Type("vector", of=found.type.of), items=found.items)
    if type_.kind == "auto":
        type_ = Type(found.type.kind, found.type.name, found.type.of, type_.reference, type_.const, found.type.spelled)
        if found.type.kind == "lambda" and found.extra is not None:
            f.scopes[-1][name] = _alias(f, found)
            return
    elif type_.kind == "pointer" and found.type.kind == "array" and found.type.item == t.plain(type_.item):
        type_ = Type("pointer", "vector", type_.of)
        found = Value(found.code, type_, extra="vector")
    elif type_.kind == found.type.kind == "pointer" and (type_.item.kind == "auto" or found.type.name == "vector"):
        type_ = found.type
    reference = type_.reference
    if reference and found.lvalue and refer(f, name, value, found, node, type_):
        return
    try:
        same = not type_.number or type_.name == found.type.name
        kept = found.type.kind == "auto" or (reference and found.lvalue and same)
        result = found if kept else fitting(f, node, found, type_)
    except NotTranslated as error:
        raise NotTranslated(error.what, node, error.instead) from None
    elsewhere = found.type.number and found.lvalue and _elsewhere(f, value)
    whole = name in f.assigned and not (found.lvalue and _stays(f, name, found.type))
    if reference and not type_.const and not constant and (whole or elsewhere):
        raise NotTranslated(f"`{short(node)}`: a reference to a number or one that is assigned", node)
    if not reference:
        result = replace(result, code=copy_of(found, result))
    bind(f, name, type_, result, constant=constant)


def refer(f: Context, name: str, node: Any, found: Value, around: Any, type_: Type) -> bool:
    """Declare a reference to a place that is assigned; False where it need not be one, or cannot.

    A reference to what has parts and is not assigned as a whole is a name of Python's like any other.
    """
    if name not in f.assigned or found.type.kind in ("dtype", "device", "stream", "guard", "lambda"):
        return False
    root = f.find(root_name(node))
    if root is None or root.kind not in ("value", "reference") or root.type.kind in ("dim3", "iterator", "pointer"):
        return False
    block = around.parent
    if identifiers(node) - {root_name(node)} & f.changed(block):
        return False
    try:
        tree = ast.parse(found.code, mode="eval").body
    except SyntaxError:
        return False
    if not isinstance(tree, ast.Name | ast.Subscript | ast.Attribute):
        return False
    written = root.extra if root.kind == "reference" else root
    f.scopes[-1][name] = Variable(
        found.code,
        t.plain(type_ if type_.kind == "struct" else found.type),
        kind="reference",
        extra=written if isinstance(tree, ast.Name) else None,
    )
    return True


def _stays(f: Context, name: str, type_: Type) -> bool:
    """Whether what is assigned to a name are parts of its value, so that any name of it is a reference."""
    return type_.kind == "struct" or (
        type_.kind in ("vector", "map")
        and f.function.node is not None
        and not any(name in names for names in assigned_whole(f.function.node))
    )


def _elsewhere(f: Context, node: Any) -> bool:
    """Whether a number that is referred to may be in memory that others change."""
    root = f.find(root_name(node))
    return root is None or root.type.kind in ("pointer", "accessor", "tensor")


def _alias(f: Context, found: Value) -> Any:
    return Variable(found.code, found.type, kind="function", extra=found.extra, depth=f.depth)


def bind(f: Context, name: str, type_: Type, value: Value, *, constant: bool = False) -> None:
    """Give a new variable its value."""
    kept = name not in f.assigned or constant
    if type_.kind == "stream" and value.code == "None":  # torch's current one, on which rawkern launches
        f.scopes[-1][name] = Variable("None", t.STREAM, depth=f.depth)
        return
    limits: dict[str, Any] = {}
    if type_.kind == "int" and kept:
        limits = {"low": value.low, "high": value.high}
    if type_.kind == "options" and value.options is not None:
        code = options_code(value)
        variable = f.declare(name, type_)
        f.emit(f"{variable.python} = {code}")
        return
    if type_.kind == "iterator":
        f.declare(name, type_, extra=value.code)
        f.emit(f"{f.scopes[-1][name].python} = {value.extra}")
        return
    declared = t.plain(type_)
    if type_.kind == "pointer" and value.type.kind == "kernel":
        declared = t.KERNEL
    variable = f.declare(name, declared, **limits)
    if value.type.kind in ("kernel", "arguments", "array", "enum") and kept:
        variable.extra = value.extra
    f.emit(f"{variable.python} = {value.code}")


def _array(f: Context, name: str, type_: Type, value: Any, sizes: list[Any], node: Any) -> None:
    item = type_
    while item.kind == "array":
        item = item.item
    if item.kind == "pointer" and item.item.kind == "void" and value is not None:  # void* args[] = {&a, &b}
        codes = []
        for one in named(value):
            found = f.value(one)
            codes.append((found.extra and f.value(found.extra).code) or found.code)
        variable = f.declare(name, t.ARGUMENTS)
        f.emit(f"{variable.python} = [{', '.join(codes)}]")
        return
    if value is not None:
        counts = [f.value(one).constant if one is not None else None for one in sizes]
        code = _listed(f, node, f.value(value), item, counts)
    else:
        code = default_of(f, node, item).code
        for size in reversed(sizes):
            code = (
                f"[{code} for _ in range({f.value(size).code})]"
                if size is not sizes[-1] or item.kind == "struct"
                else f"[{code}] * {f.value(size).code}"
            )
    shape = item
    for _ in sizes:
        shape = Type("array", of=(shape,))
    variable = f.declare(name, shape)
    f.emit(f"{variable.python} = {code}")


def _listed(f: Context, node: Any, found: Value, item: Type, counts: list[int | None]) -> str:
    """The lists of an array from what braces list."""
    if not counts:
        return copy_of(found, fitting(f, node, found, item))
    if found.items is None:
        raise NotTranslated(f"`{short(node)}`", node)
    codes = [_listed(f, node, one, item, counts[1:]) for one in found.items]
    if counts[0] is not None and len(codes) < counts[0]:
        zero = default_of(f, node, item).code
        for count in reversed(counts[1:]):
            zero = f"[{zero} for _ in range({count})]"
        codes += [zero] * (counts[0] - len(codes))
    return f"[{', '.join(codes)}]"


def _unpacked(f: Context, declarator: Any, value: Value) -> None:
    names = [text_of(one) for one in named(declarator)]
    types = value.type.of if value.type.kind == "tuple" and len(value.type.of) == len(names) else ()
    if value.type.kind not in ("tuple", "any", "vector"):
        raise NotTranslated(f"`{short(declarator)}` of {value.type}", declarator)
    pythons = [f.declare(name, types[k] if types else value.type.item).python for k, name in enumerate(names)]
    f.emit(f"{', '.join(pythons)} = {value.code}")


@statement("alias_declaration", "type_definition")
def alias(f: Context, node: Any) -> None:
    if node.type == "type_definition":
        name = text_of(node.child_by_field_name("declarator"))
        type_ = declared_type(f, node.child_by_field_name("type"), node.child_by_field_name("declarator"), node)
    else:
        name, type_ = text_of(node.child_by_field_name("name")), type_of(f, node.child_by_field_name("type"))
    if name in _passed_on(f):  # a lambda of the macro around takes it as a parameter
        variable = f.declare(name, Type("param", name), kind="type")
        variable.type = Type("param", variable.python)
        f.emit(f"{variable.python} = {spelled(f, type_)}")
        return
    if (type_.kind == "opaque" and type_.name[:1] == "f") or (type_.kind == "param" and "(" in type_.name):
        variable = f.declare(name, type_, kind="type")
        f.emit(f"{variable.python} = {type_.name}")
        variable.type = Type(type_.kind, variable.python, spelled=type_.spelled)
        return
    f.declare(name, type_, kind="type")


def _passed_on(f: Context) -> set[str]:
    return {name for names in f.declared.values() for name, kind in names if kind == "typename"}


@statement("using_declaration")
def using(f: Context, node: Any) -> None:
    return


def options_dict(value: Value) -> Value:
    return Value(options_code(value), t.OPTIONS) if value.options is not None else value
