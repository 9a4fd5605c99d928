"""A function of C++: its signature, and its translation to a function of Python."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace
from typing import Any

from rawkern.base.tree import named, parse, text_of
from rawkern.extensions import types as t
from rawkern.extensions.construction import from_braces
from rawkern.extensions.context import CONSTRUCTED, Context, changeable, short
from rawkern.extensions.macros import Expanded
from rawkern.extensions.program import Function, Parameter, Unit
from rawkern.extensions.spelling import declared_type, type_of
from rawkern.extensions.syntax import assigned_names, assigned_whole, is_target
from rawkern.extensions.tidy import tidy
from rawkern.extensions.types import Type
from rawkern.extensions.untranslated import NotTranslated
from rawkern.extensions.values import Value, converted, options_code


def signature(unit: Unit, name: str, python: str, expanded: Expanded, path: str) -> Function:
    """Read a function's signature from its expanded text."""
    function = Function(name, python, path=path, lines=expanded.lines, declared=expanded.declared, unit=unit)
    node = _definition(parse(expanded.text))
    if node is None:
        raise NotTranslated("its syntax")
    read_signature(unit, function, node)
    return function


def read_signature(unit: Unit, function: Function, node: Any) -> None:
    """Read the signature of a function from its definition or declaration."""
    function.node = node
    function.static = any(text_of(one) == "static" for one in node.children)
    f = Context(unit, function)
    template = node.parent if node.parent is not None and node.parent.type == "template_declaration" else None
    if template is not None:
        function.template = template_parameters(f, template.child_by_field_name("parameters"))
        function.specializes = not named(template.child_by_field_name("parameters"))
    declarator = node.child_by_field_name("declarator")
    type_node = node.child_by_field_name("type")
    if declarator is None or (type_node is None and not function.constructor):
        raise NotTranslated("its return type", node)
    while declarator.type != "function_declarator":
        inner = declarator.child_by_field_name("declarator") or (named(declarator) or [None])[-1]
        if inner is None:
            raise NotTranslated("its syntax", node)
        declarator = inner
    if function.specializes:
        function.template_arguments = _template_arguments(declarator.child_by_field_name("declarator"))
    outer = node.child_by_field_name("declarator")
    if type_node is None:
        function.returns = t.VOID
    elif outer.type == "reference_declarator":
        function.returns = replace(type_of(f, type_node), reference=True)
    else:
        function.returns = declared_type(f, type_node, outer if outer.type == "pointer_declarator" else None, node)
    for one in named(declarator):
        if one.type == "trailing_return_type":
            function.returns = type_of(f, named(one)[0])
    for one in named(declarator.child_by_field_name("parameters")):
        if one.type == "variadic_parameter_declaration":
            pack = type_of(f, one.child_by_field_name("type"))
            if pack.kind != "pack":
                raise NotTranslated("a parameter pack", node)
            name_ = text_of(named(one.child_by_field_name("declarator"))[-1]).removeprefix("...").strip()
            made = f.declare(name_, Type("pack", pack.name))
            function.pack, function.pack_name, function.pack_types = made.python, name_, pack.name
            continue
        if one.type == "variadic_parameter":
            function.variadic = True
            continue
        if one.type not in ("parameter_declaration", "optional_parameter_declaration"):
            continue
        inner = one.child_by_field_name("declarator")
        type_ = declared_type(f, one.child_by_field_name("type"), inner, one)
        if type_.kind == "void":
            continue
        name_ = declared_name(inner)
        made = f.declare(name_ or f"_{len(function.parameters)}", type_)
        function.parameters.append(Parameter(name_, made.python, type_, one.child_by_field_name("default_value")))
    body = node.child_by_field_name("body")
    if body is not None:
        whole, compound = assigned_whole(body)
        for one in function.parameters:
            if (
                one.type.kind == "pointer"
                and one.type.item.kind in ("int", "float", "bool")
                and is_target(body, one.name)
            ):
                one.type = replace(one.type.item, reference=True)
                function.targets.add(one.name)
        for one in changeable(function):
            if one.type.kind == "struct":  # its members are assigned
                continue
            if (
                one.name in whole
                or (one.name in compound and one.type.kind != "tensor")
                or (one.type.number and one.name in assigned_names(body))
                or (one.type.kind == "dim3" and re.search(_MEMBER_SET.format(one.name), text_of(body)))
            ):
                function.rebinds.add(one.name)


# An assignment to a member of a dim3, which is immutable in Python.
_MEMBER_SET = r"\b{0}\s*\.\s*[xyz]\s*(?:[-+*/%&|^]?=(?!=)|<<=|>>=|\+\+|--)|(?:\+\+|--)\s*{0}\s*\."


def _template_arguments(name: Any) -> list[Any]:
    """The nodes of the template arguments in the name of a function."""
    while name is not None and name.type == "qualified_identifier":
        name = name.child_by_field_name("name")
    found = name.child_by_field_name("arguments") if name is not None else None
    return named(found) if found is not None else []


def _definition(root: Any) -> Any:
    stack = [root]
    while stack:
        one = stack.pop(0)
        if one.type in ("function_definition", "declaration"):
            return one
        stack = [*one.children, *stack]
    return None


def declared_name(declarator: Any) -> str:
    while declarator is not None and declarator.type != "identifier":
        inner = declarator.child_by_field_name("declarator")
        if inner is None:
            inner = next((one for one in named(declarator) if one.type not in ("type_qualifier",)), None)
        declarator = inner
    return text_of(declarator) if declarator is not None else ""


_OF_TEMPLATES = ("template_template_parameter_declaration",)
_TYPE_PARAMETERS = ("type_parameter_declaration", "optional_type_parameter_declaration", *_OF_TEMPLATES)


def template_parameters(f: Context, node: Any) -> list[Parameter]:
    """The parameters of a template, declared as names of the function."""
    found = []
    for k, one in enumerate(named(node)):
        if one.type == "variadic_type_parameter_declaration":
            name = text_of(named(one)[-1])
            made = f.declare(name, t.ANY, kind="type")
            made.type = Type("pack", made.python, spelled=name)
            found.append(Parameter(name, made.python, made.type, keyword="pack"))
            continue
        if one.type in _TYPE_PARAMETERS:
            inner = one.child_by_field_name("name") or (named(one) or [None])[-1]
            inner = inner.child_by_field_name("name") or named(inner)[-1] if one.type in _OF_TEMPLATES else inner
            name = text_of(inner) if inner is not None and text_of(inner).isidentifier() else f"T{k}"
            made = f.declare(name, t.ANY, kind="type")
            made.type = Type("param", made.python, spelled=name)
            default = one.child_by_field_name("default_type")
            found.append(Parameter(name, made.python, made.type, default, "type"))
            continue
        if one.type not in ("parameter_declaration", "optional_parameter_declaration"):
            raise NotTranslated(f"`{short(one)}`: a parameter of a template", one)
        type_ = declared_type(f, one.child_by_field_name("type"), one.child_by_field_name("declarator"), one)
        name = declared_name(one.child_by_field_name("declarator")) or f"N{k}"
        made = f.declare(name, type_ if type_.kind != "auto" else t.INT)
        found.append(Parameter(name, made.python, made.type, one.child_by_field_name("default_value"), "value"))
    return found


# Translation --------------------------------------------------------------------------------------------------------

_ANNOTATIONS = {
    "tensor": "torch.Tensor", "int": "int", "bool": "bool", "float": "float", "string": "str", "dtype": "torch.dtype",
    "device": "torch.device", "void": "None", "sizes": "list[int]", "scalar": "float",
}  # fmt: skip


def annotation(type_: Type) -> str:
    """A type hint; "" for what has none."""
    if type_.kind == "optional":
        inner = annotation(type_.item)
        return f"{inner} | None" if inner else ""
    if type_.kind == "vector":
        inner = annotation(type_.item)
        return f"list[{inner}]" if inner else "list"
    if type_.kind == "tuple" and type_.of:
        inside = [annotation(one) for one in type_.of]
        return f"tuple[{', '.join(inside)}]" if all(inside) else "tuple"
    if type_.kind == "struct":
        return "" if type_.text else type_.name
    return _ANNOTATIONS.get(type_.kind, "")


def kind_of(type_: Type, classes: Collection[str] = ()) -> str:
    """What `bind` converts a parameter of this type from; `classes`: those that Python makes objects of."""
    if type_.kind == "optional":
        return kind_of(type_.item, classes) + "?"
    if type_.kind == "vector":
        return kind_of(type_.item, classes) + "[]"
    if type_.kind == "struct" and type_.name in classes:
        return type_.name
    if type_.kind == "pointer" and type_.item.kind == "struct" and type_.item.name in classes:
        return f"{type_.item.name}?"
    if type_.kind == "sizes":
        return "int64[]"
    if type_.kind == "int":
        return type_.name
    if type_.kind == "float" and type_.name in ("float32", "float64"):
        return type_.name
    return {"tensor": "Tensor", "bool": "bool", "string": "str"}.get(type_.kind, "any")


def translate(unit: Unit, function: Function) -> str:
    """Return a function's Python; `NotTranslated` for what is not understood."""
    f = Context(unit, function)
    node = function.node
    body = node.child_by_field_name("body") if node is not None else None
    if body is None and not (function.constructor or function.specializations):
        raise NotTranslated("its definition is not in these sources")
    if function.variadic:
        raise NotTranslated(f"{function.name} takes any number of arguments", node)
    if body is not None and body.has_error:
        raise NotTranslated(f"`{short(_error(body))}`, which is not parsed as C++", _error(body))
    heads = ["self"] if function.owner is not None and not function.static else []
    for one in function.template:
        kind = "value" if one.keyword == "value" else "type"
        made = f.declare(one.name, one.type, kind=kind)
        made.python = one.python
        heads.append(one.python)
    changed = f.assigned = f.changed(node) if body is not None else set()
    f.rebound = [one.python for one in function.parameters if one.name in function.rebinds]
    if f.rebound and function.returns.kind == "auto":
        raise NotTranslated(f"{function.name} changes what its caller passes, and its return type is not said", node)
    if f.rebound and function.constructor:
        raise NotTranslated("a constructor that assigns what it takes by reference", node)
    early: list[str] = []
    for one in function.parameters:
        type_ = Type(one.type.kind, one.type.name, one.type.of, spelled=one.type.spelled)
        made = f.declare(one.name or one.python, type_)
        made.python = one.python
        hint = annotation(one.type)
        head = one.python + (f": {hint}" if hint else "")
        if one.default is not None:
            head += f" = {default_code(f, one)}"
        heads.append(head)
        if not one.type.reference and one.name in changed and one.type.kind in ("vector", "struct", "cuda_vector"):
            copy = "list" if one.type.kind == "vector" and one.type.item.kind != "vector" else "copied"
            early.append(f"{one.python} = {copy}({one.python})")
    of_torch = function.owner is not None and function.owner.autograd
    if of_torch and function.name.endswith("::backward") and len(function.parameters) == 2:  # as torch passes them
        gradients = function.parameters[1].python
        heads[-1] = f"*{gradients}"
        early.append(f"{gradients} = list({gradients})")
    if of_torch and function.name.endswith("::forward") and "saved_data" in text_of(body):
        early.append(f"{function.parameters[0].python}.saved_data = {{}}")
    if function.pack:
        made = f.declare(function.pack_name, Type("pack", function.pack_types))
        made.python = function.pack
        heads.append(f"*{made.python}")
    for condition, one in function.specializations:
        with f.block(f"if {condition}:"):
            f.emit(f"return {one.python}({', '.join(each.python for each in function.parameters)})")
    for line in early:
        f.emit(line)
    if function.constructor:
        CONSTRUCTED[0](f)
    if body is not None:
        f.statements(named(body))
    elif function.specializations:
        f.emit(f"raise NotImplementedError('{function.name} is not defined for these template arguments')")
    if function.constructor:
        f.emit("return self")
    elif f.rebound and function.returns.kind == "void":
        f.emit(f"return {', '.join(f.rebound)}")
    if not f.out:
        f.emit("pass")
    returns = annotation(function.returns) if function.returns.kind != "auto" and not f.rebound else ""
    returns = "" if function.constructor or of_torch else returns
    head = f"def {function.python}({', '.join(heads)}){f' -> {returns}' if returns else ''}:"
    inside = [*f.scope_lines(), *f.out]
    decorator = ["@staticmethod"] if function.owner is not None and function.static else []
    code = "\n".join([*decorator, head, *inside])
    try:
        return tidy(code)
    except SyntaxError as error:
        raise NotTranslated(f"its Python ({error})", node) from None


def default_code(f: Context, one: Parameter) -> str:
    """The default value of a parameter."""
    node, type_ = one.default, t.plain(one.type)
    if node.type == "compound_literal_expression" and not text_of(node.child_by_field_name("type")):
        braces = node.child_by_field_name("value")  # alone, which the tree has with a type without a name
        listed = named(braces) and type_.kind in ("sizes", "optional", "map")
        found = converted(f.value(braces), type_) if listed else from_braces(f, node, type_, braces)
    else:
        found = converted(f.value(node), type_)
    return options_code(found)


def _error(node: Any) -> Any:
    """The innermost node that the tree could not read."""
    if node is None:
        return None
    stack, found = [node], node
    while stack:
        one = stack.pop()
        if one.type == "ERROR" or one.is_missing:
            return one
        stack += [child for child in one.children if child.has_error]
    return found


def constant_value(unit: Unit, type_: Type, node: Any, lines: list[int]) -> Value:
    """The value of a constant of the file."""
    f = Context(unit, Function("", "", lines=lines))
    found = f.value(node)
    return found if type_.kind == "auto" else converted(found, type_)


def reason_text(function: Function, error: NotTranslated) -> str:
    """What a function that is not translated says."""
    lines = function.lines
    line = lines[min(error.row, len(lines) - 1)] if error.row is not None and lines else function.line
    where = f"{re.sub('.*/', '', function.path)}:{line}"
    instead = error.instead or "write this function in Python, around the kernels of the file"
    return f"{function.name} is not translated: {where}: {error.what}; {instead}"
