"""Types as they are written: nodes of the tree to types, and types to the text that an instance is named with."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rawkern.base.tree import named, text_of
from rawkern.extensions import types as t
from rawkern.extensions.context import Context, short
from rawkern.extensions.program import Kernel, Struct
from rawkern.extensions.types import Type
from rawkern.extensions.untranslated import NotTranslated

_TRAITS = {
    "acc_type": "acc_type", "opmath_type": "opmath_type", "OpMathType": "opmath_type", "acc_type_device": "acc_type",
}  # fmt: skip


def type_of(f: Context, node: Any) -> Type:
    """The type that a node names."""
    kind = node.type
    if kind in ("primitive_type", "sized_type_specifier", "type_identifier", "namespace_identifier", "identifier"):
        return _named(f, node, " ".join(text_of(node).split()))
    if kind == "placeholder_type_specifier":
        return Type("auto")
    if kind == "type_descriptor":
        return declared_type(f, node.child_by_field_name("type"), node.child_by_field_name("declarator"), node)
    if kind in ("qualified_identifier", "template_type", "template_function"):
        return _qualified(f, node)
    if kind == "dependent_type":
        return type_of(f, named(node)[-1])
    if kind in ("struct_specifier", "class_specifier", "enum_specifier"):
        name = node.child_by_field_name("name")
        if name is not None and node.child_by_field_name("body") is None:
            return type_of(f, name)
    if kind == "decltype":
        inside = named(node)[-1]
        return t.plain(f.value(inside).type)
    raise NotTranslated(f"the type `{short(node)}`", node)


def declared_type(f: Context, node: Any, declarator: Any, around: Any = None) -> Type:
    """The type of a declaration: what its specifier names, with the pointers and references of its declarator."""
    found = type_of(f, node)
    while declarator is not None:
        kind = declarator.type
        if kind in ("pointer_declarator", "abstract_pointer_declarator"):
            if found.kind == "string" or (found.name == "int8" and found.spelled.endswith("char")):
                found = t.STRING if found.kind != "string" else found
                found = Type("string")
            else:
                found = Type("pointer", of=(found,))
        elif kind in ("reference_declarator", "abstract_reference_declarator"):
            const = around is not None and any(text_of(child) == "const" for child in around.children)
            rvalue = text_of(declarator).startswith("&&")
            found = replace(found, reference=not rvalue or found.kind == "auto", const=const)
        elif kind in ("array_declarator", "abstract_array_declarator"):
            found = Type("array", of=(found,))
        elif kind == "abstract_function_declarator" or (
            kind in ("function_declarator", "abstract_parenthesized_declarator") and found.kind != "pointer"
        ):
            return Type("lambda", of=(found,))
        inner = declarator.child_by_field_name("declarator")
        if inner is None:
            inner = next(
                (one for one in named(declarator) if one.type.endswith("declarator") and one.type != kind), None
            )
        declarator = inner
    return found


def _function(f: Context, node: Any) -> Type:
    """``std::function<R(A, B)>``: the type of its value, and those of its parameters."""
    declarator = node.child_by_field_name("declarator")
    if declarator is None or declarator.type != "abstract_function_declarator":
        return Type("lambda")
    parameters = [
        declared_type(f, one.child_by_field_name("type"), one.child_by_field_name("declarator"), one)
        for one in named(declarator.child_by_field_name("parameters"))
    ]
    if any(one.reference and not one.const and one.kind != "tensor" for one in parameters):
        return Type("lambda")  # what it changes is not known
    return Type("lambda", "function", (type_of(f, node.child_by_field_name("type")), *parameters))


def _named(f: Context, node: Any, name: str) -> Type:
    variable = f.find(name)
    if variable is not None and variable.kind == "type":
        return variable.type
    found = t.named_type(name)
    bare = name.rsplit("::", 1)[-1]
    if "::" in name:  # Params::index_t
        around = f.unit.structs.get(name.split("::")[-2])
        if around is not None and bare in around.aliases:
            return around.aliases[bare]
    own = f.unit.structs.get(bare)
    if own is not None and (found is None or "::" not in name):
        return Type("struct", own.python, spelled=own.name)
    if bare in f.unit.enums:
        return Type("int", "int32", spelled=bare)
    if bare in f.unit.aliases:
        node = f.unit.aliases.pop(bare)  # an alias may have the name of what it stands for
        try:
            return type_of(f, node)
        finally:
            f.unit.aliases[bare] = node
    if found is not None:
        return found
    return Type("opaque", repr(name), spelled=name)


def _qualified(f: Context, node: Any) -> Type:
    name, arguments = split_name(node)
    bare = name.rsplit("::", 1)[-1]
    if bare == "type" and "::" in name and arguments is None:  # typename std::conditional<...>::type
        inner = node
        while inner.type == "qualified_identifier" and inner.child_by_field_name("name").type == "qualified_identifier":
            inner = inner.child_by_field_name("name")
        return Type("opaque", instance(f, node), spelled=text_of(node))
    if bare in _TRAITS and (arguments is not None):
        of = type_of(f, arguments[0])
        return Type("param", f"{_TRAITS[bare]}({spelled(f, of)})")
    if "::" in name and node.type == "qualified_identifier":
        scope = name.split("::")[0]
        variable = f.find(scope)
        if variable is not None and variable.kind == "type":  # Traits::input_t
            return Type("opaque", instance(f, node), spelled=text_of(node))
    if arguments is None:
        of_template = "<" in name.rpartition("::")[0] and bare not in f.unit.structs and bare not in f.unit.enums
        return Type("opaque", instance(f, node), spelled=name) if of_template else _named(f, node, name)
    if bare in ("decay_t", "remove_reference_t", "remove_const_t", "remove_cv_t", "remove_cvref_t"):
        return type_of(f, arguments[0])
    if bare == "array" and len(arguments) == 2 and t.container(name, ()) is not None:
        size = f.value(named(arguments[1])[0] if arguments[1].type == "type_descriptor" else arguments[1]).constant
        return Type("vector", "" if size is None else str(size), (type_of(f, arguments[0]),), spelled=text_of(node))
    of = tuple(type_of(f, one) for one in arguments) if t.container(name, ()) is not None else ()
    if t.container(name, of) is not None:
        found = t.container(name, of)
        assert found is not None
        return found
    if bare == "function":
        return _function(f, arguments[0])
    if bare == "TensorAccessor" and len(arguments) > 1:
        return Type("accessor", text_of(arguments[1]), (type_of(f, arguments[0]),))
    if bare in ("unique_ptr", "shared_ptr", "intrusive_ptr"):
        owned = type_of(f, arguments[0])
        if owned.kind == "array" and owned.item.kind in ("int", "float", "bool"):
            return Type("pointer", "vector", (owned.item,))
        if owned.kind != "struct":
            raise NotTranslated(f"`{text_of(node)}`: an owner of an object", node)
        return Type("pointer", of=(owned,))
    if bare in f.unit.structs and f.unit.structs[bare].template and _made(f.unit.structs[bare]):
        return template_struct(f, node, f.unit.structs[bare], arguments)
    return Type("opaque", instance(f, node), spelled=text_of(node))


def _made(struct: Struct) -> bool:
    """Whether there are objects of a struct in Python."""
    return bool(struct.fields or struct.constructors or struct.autograd)


def template_struct(f: Context, node: Any, struct: Struct, arguments: list[Any]) -> Type:
    """An instance of a template of structs: its class is a call of a function with the template's arguments."""
    codes, types = [], []
    given = [*arguments, *(one.default for one in struct.parameters[len(arguments) :])]
    for parameter, one in zip(struct.parameters, given, strict=False):
        if one is None or parameter.keyword == "pack":
            raise NotTranslated(f"the type `{short(node)}`", node)
        if parameter.keyword == "type":
            types.append(type_of(f, one))
            codes.append(spelled(f, types[-1]))
        else:
            types.append(parameter.type)
            codes.append(f.value(named(one)[0] if one.type == "type_descriptor" else one).code)
    name = f"{struct.python}({', '.join(codes)})"
    return Type("struct", name, tuple(types), spelled=text_of(node), text=instance(f, node))


def split_name(node: Any) -> tuple[str, list[Any] | None]:
    """A name with its namespaces, and the nodes of its template arguments; None where it has none."""
    parts, arguments = [], None
    while True:
        if node.type == "qualified_identifier":
            scope = node.child_by_field_name("scope")
            if scope is not None:
                parts.append(text_of(scope).replace("\n", " "))
            node = node.child_by_field_name("name")
            continue
        if node.type in ("template_type", "template_function", "template_method"):
            arguments = named(node.child_by_field_name("arguments"))
            node = node.child_by_field_name("name")
            continue
        if node.type == "dependent_name":
            node = named(node)[-1]
            continue
        break
    parts.append(text_of(node))
    return "::".join(parts), arguments


# Text of instances -----------------------------------------------------------------------------------------------


def spelled(f: Context, type_: Type) -> str:
    """An expression of Python for the text of a type."""
    if type_.kind in ("param", "opaque"):
        return type_.name
    if type_.text:
        return type_.text
    if type_.kind == "pointer" and type_.item.kind in ("param", "opaque", "pointer"):
        return quoted([(True, spelled(f, type_.item)), (False, "*")])
    if type_.kind == "tuple" and any(one.kind in ("param", "opaque") for one in type_.of):
        pieces = [part for one in type_.of for part in ((False, ", "), (True, spelled(f, one)))][1:]
        return quoted([(False, "std::tuple<"), *pieces, (False, ">")])
    return repr(text_of_type(f, type_))


def text_of_type(f: Context, type_: Type) -> str:
    if type_.text:
        raise NotTranslated(f"the type {type_} as an argument of a template")
    if type_.kind == "pointer":
        return text_of_type(f, type_.item) + "*"
    if type_.kind == "void":
        return "void"
    if type_.kind in ("tuple", "vector", "optional") and type_.of and not type_.name:
        return f"std::{type_.kind}<{', '.join(text_of_type(f, one) for one in type_.of)}>"
    if type_.spelled:
        return type_.spelled
    if type_.name in t.TEXTS:
        return t.TEXTS[type_.name]
    raise NotTranslated(f"the type {type_} as an argument of a template")


def quoted(pieces: list[tuple[bool, str]]) -> str:
    """Python for a text of pieces: (whether it is an expression, text or code)."""
    if not any(code for code, _ in pieces):
        return repr("".join(text for _, text in pieces))
    inside = "".join("{" + text + "}" if code else text.replace("{", "{{").replace("}", "}}") for code, text in pieces)
    mark = '"' if '"' not in inside else "'"
    if mark in inside or "\\" in inside:
        return f"text({', '.join(text if code else repr(text) for code, text in pieces)})"
    return f"f{mark}{inside}{mark}"


def instance(f: Context, node: Any) -> str:
    """An expression of Python for the text of a type or template instance, with what it depends on filled in."""
    return quoted(pieces_of(f, node))


def kernel_instance(f: Context, node: Any, kernel: Kernel, arguments: list[Any]) -> str:
    """The same for an instance of a kernel, with the namespaces that it is in."""
    pieces: list[tuple[bool, str]] = [(False, f"{kernel.name}<")]
    for k, one in enumerate(arguments):
        made = pieces_of(f, one)
        of = (
            kernel.template[k].type.spelled
            if k < len(kernel.template) and kernel.template[k].keyword == "value"
            else ""
        )
        if of.rpartition("::")[2] in f.unit.enums and not made[0][1].startswith("("):
            made = [(False, f"({of})"), *made]
        pieces += [*([(False, ", ")] if k else []), *made]
    return quoted([*pieces, (False, ">")])


_MARKS = {",": ", ", "::": "::", "<": "<", ">": ">"}


def pieces_of(f: Context, node: Any, *, qualified: bool = False) -> list[tuple[bool, str]]:
    """The pieces of the text of a type or of an argument of a template; `qualified` after a namespace."""
    kind = node.type
    if qualified and kind in ("identifier", "type_identifier", "namespace_identifier"):
        return [(False, text_of(node))]
    if kind in ("identifier", "type_identifier", "namespace_identifier"):
        name = text_of(node)
        variable = f.find(name)
        if variable is not None and variable.kind == "type":
            type_ = variable.type
            if type_.kind in ("param", "opaque") or type_.text:
                return _literal(type_.text or type_.name)
            if type_.kind == "pack":
                return [(True, f"', '.join({type_.name})")]
            return [(False, text_of_type(f, type_))]
        if variable is not None or name in f.unit.constants or name in f.unit.lazy:
            return argument_of(f, node)
        own = f.unit.structs.get(name)
        return [(False, own.name if own is not None else name)]
    if kind == "type_descriptor":
        inner = node.child_by_field_name("type")
        if inner is not None and len(named(node)) == 1:
            return pieces_of(f, inner)
        out: list[tuple[bool, str]] = []
        for child in node.children:
            out += pieces_of(f, child) if child == inner else [(False, text_of(child))]
            if child.type == "type_qualifier":
                out.append((False, " "))
        return out
    if kind == "qualified_identifier":  # a member's name means nothing else around it
        scope, name_node = node.child_by_field_name("scope"), node.child_by_field_name("name")
        out = [*(pieces_of(f, scope, qualified=qualified) if scope is not None else []), (False, "::")]
        if name_node.type in ("identifier", "type_identifier"):
            return [*out, (False, text_of(name_node))]
        if name_node.type in ("template_type", "template_function"):
            inside = pieces_of(f, name_node.child_by_field_name("arguments"))
            return [*out, (False, text_of(name_node.child_by_field_name("name"))), *inside]
        return [*out, *pieces_of(f, name_node, qualified=scope is not None)]
    if kind in ("template_argument_list", "template_type", "template_function"):
        out = []
        for child in node.children:
            if child.type == "comment":
                continue
            if qualified and child == node.child_by_field_name("name"):
                out.append((False, text_of(child)))
                continue
            out += pieces_of(f, child) if child.is_named else [(False, _MARKS.get(text_of(child), text_of(child)))]
        return out
    if kind in ("primitive_type", "sized_type_specifier", "number_literal", "true", "false"):
        return [(False, " ".join(text_of(node).split()))]
    if kind == "dependent_type":
        return [(False, "typename "), *pieces_of(f, named(node)[-1])]
    return argument_of(f, node)


def argument_of(f: Context, node: Any) -> list[tuple[bool, str]]:
    """The pieces of an argument of a template that is a value."""
    value = f.value(node)
    spelled_ = value.type.spelled
    if value.type.kind == "int" and spelled_ in f.unit.enums:
        return [(False, f"({spelled_})"), (True, value.code)]
    if value.constant is not None and value.type.kind == "int" and value.code.lstrip("-").isdigit():
        return [(False, value.code)]
    if value.type.kind == "bool":
        if value.code in ("True", "False"):
            return [(False, value.code.lower())]
        return [(True, f"spelled({value.code})")]
    if value.type.kind == "kernel":
        return _literal(value.extra)
    if value.type.kind in ("int", "any", "param", "opaque"):
        return [(True, value.code if value.type.kind == "int" else f"spelled({value.code})")]
    raise NotTranslated(f"`{text_of(node)}` as an argument of a template", node)


def _literal(code: str) -> list[tuple[bool, str]]:
    """A piece for code that is text: the text itself where it is a literal."""
    if code[:1] in "'\"" and code[-1:] == code[:1]:
        return [(False, code[1:-1])]
    return [(True, code)]
