"""Objects of structs and classes in use: `this`, methods, operators, `new`, and what a constructor gives members."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rawkern.base.tree import named, text_of
from rawkern.extensions import autograd
from rawkern.extensions import types as t
from rawkern.extensions.classes import WITHOUT_STATE, operator_name, same_functions
from rawkern.extensions.construction import argument_code, construct, default_of, fitting
from rawkern.extensions.context import CONSTRUCTED, OVERLOADED, RUN, Context, bases, expression, short
from rawkern.extensions.elements import struct_of
from rawkern.extensions.overloads import chosen
from rawkern.extensions.own import call_own
from rawkern.extensions.program import Function, Struct, python_field
from rawkern.extensions.spelling import template_struct, type_of
from rawkern.extensions.types import Type
from rawkern.extensions.untranslated import NotTranslated
from rawkern.extensions.values import Value, array_of, converted, copy_of


def type_of_struct(struct: Struct) -> Type:
    """The type of objects of a struct, as its methods have it."""
    if not struct.parameters:
        return Type("struct", struct.python, spelled=struct.name)
    name = f"{struct.python}({', '.join(one.python for one in struct.parameters)})"
    return Type("struct", name, tuple(one.type for one in struct.parameters), spelled=struct.name)


@expression("this")
def this(f: Context, node: Any) -> Value:
    owner = f.function.owner
    if owner is None or f.function.static:
        raise NotTranslated("`this`", node)
    return Value("self", Type("pointer", of=(type_of_struct(owner),)))


# Methods ------------------------------------------------------------------------------------------------------------


def find_methods(f: Context, struct: Struct | None, name: str) -> list[Function]:
    """The methods of a name, those of a struct before those of its base."""
    return next((one.methods[name] for one in bases(f.unit, struct) if name in one.methods), [])


def call_method(f: Context, node: Any, value: Value, name: str, of: list[Any] | None, nodes: list[Any]) -> Value:
    """``object.name<of>(...)``."""
    struct = struct_of(f, value.type)
    functions = find_methods(f, struct, name)
    if not functions:
        field = next((one.fields[name] for one in bases(f.unit, struct) if name in one.fields), None)
        if field is not None and field.kind == "struct":
            inner = Value(f"{value.code}.{python_field(name)}", field, lvalue=True)
            return call_method(f, node, inner, "operator()", of, nodes)
        raise NotTranslated(f"`{short(node)}`: the method {name} of {value.type}", node)
    known = {one.name: type_ for one, type_ in zip(struct.parameters, value.type.of, strict=False)} if struct else {}
    _same_in_all(node, struct, name, functions)
    return call_own(f, node, functions, of, nodes, prefix=f"{value.code}.", of=known)


def _same_in_all(node: Any, struct: Struct | None, name: str, functions: list[Function]) -> None:
    """Raise where specializations of a struct have other methods of a name than its template."""
    for _, one in struct.specializations if struct is not None else ():
        if not same_functions(functions, one.methods.get(name, [])):
            raise NotTranslated(f"`{short(node)}`: {name} of {one.name}, which has another signature", node)


def call_inside(f: Context, node: Any, name: str, of: list[Any] | None, nodes: list[Any]) -> Value | None:
    """``name(...)`` of a method inside of another one, or ``Struct::name(...)``; None for another function."""
    called = node.child_by_field_name("function")
    scope = called.child_by_field_name("scope") if called.type == "qualified_identifier" else None
    if scope is not None and scope.type == "template_type":
        return _static_of_template(f, node, scope, name.rpartition("::")[2], of, nodes)
    around, _, bare = name.rpartition("::")
    owner = f.function.owner
    struct = f.unit.structs.get(around.rsplit("::", 1)[-1]) if around else owner
    if struct is not None and struct.autograd and bare == "apply":
        return autograd.apply(f, node, struct, nodes)
    functions = find_methods(f, struct, bare)
    if struct is None or not functions:
        return None
    if all(one.static for one in functions):
        if struct.parameters and struct is not owner:
            raise NotTranslated(f"`{short(node)}`: a static function of a template", node)
        return call_own(f, node, functions, of, nodes, prefix=f"{type_of_struct(struct).name}.")
    if owner is None or f.function.static:
        raise NotTranslated(f"`{short(node)}`: a method without an object", node)
    if around and struct is not owner:  # the base's, whatever the object is
        if struct.parameters:
            raise NotTranslated(f"`{short(node)}`: a method of a template that is a base", node)
        found = call_own(f, node, functions, of, nodes, prefix=f"{struct.python}.")
        head, _, rest = found.code.partition("(")
        return replace(found, code=f"{head}(self{'' if rest == ')' else ', '}{rest}")
    return call_own(f, node, functions, of, nodes, prefix="self.")


def _static_of_template(
    f: Context, node: Any, scope: Any, name: str, of: list[Any] | None, nodes: list[Any]
) -> Value | None:
    """``Struct<T>::name(...)``; None for what is not a template of the source."""
    template = f.unit.structs.get(text_of(scope.child_by_field_name("name")))
    functions = find_methods(f, template, name)
    if template is None or not functions or not all(one.static for one in functions):
        return None
    if template.specializations:
        raise NotTranslated(f"`{short(node)}`: a function of {template.name}, which is specialized", node)
    type_ = template_struct(f, scope, template, named(scope.child_by_field_name("arguments")))
    known = {one.name: of_ for one, of_ in zip(template.parameters, type_.of, strict=False)}
    return call_own(f, node, functions, of, nodes, prefix=f"{type_.name}.", of=known)


def overloaded(f: Context, node: Any, operator: str, values: list[Value]) -> Value:
    """An operator that a struct has, or a function of the source for its objects."""
    first = values[0]
    name = f"operator{operator}"
    if not operator_name(name):
        raise NotTranslated(f"`{short(node)}`: an operator of a struct", node)
    rest = values[1:]
    of_struct = find_methods(f, struct_of(f, first.type), name) if first.type.kind == "struct" else []
    fitting_ = [one for one in of_struct if len(one.parameters) == len(rest)]
    if fitting_:
        _same_in_all(node, struct_of(f, first.type), name, of_struct)
        return _called(f, node, fitting_, rest, f"{first.code}.")
    free = [one for one in f.unit.functions.get(name, []) if len(one.parameters) == len(values)]
    if not free:
        raise NotTranslated(f"`{short(node)}`: an operator of a struct", node)
    return _called(f, node, free, values, "")


def _called(f: Context, node: Any, functions: list[Function], values: list[Value], prefix: str) -> Value:
    from_values = [one for one in functions if not one.template and not one.rebinds]
    if not from_values:
        raise NotTranslated(f"`{short(node)}`: an operator of a struct", node)
    one = chosen(node, from_values, [], values)
    codes = [argument_code(f, node, value, p.type) for p, value in zip(one.parameters, values, strict=True)]
    return Value(f"{prefix}{one.python}({', '.join(codes)})", t.plain(one.returns), lvalue=one.returns.reference)


OVERLOADED.append(overloaded)


# Owned objects --------------------------------------------------------------------------------------------------------


@expression("new_expression")
def new(f: Context, node: Any) -> Value:
    type_ = type_of(f, node.child_by_field_name("type"))
    given = node.child_by_field_name("arguments")
    size = node.child_by_field_name("declarator")
    if size is not None and size.type == "new_declarator" and type_.kind in ("int", "float", "bool"):  # new T[n]
        if (given is not None and named(given)) or len(named(size)) != 1:
            raise NotTranslated(f"`{short(node)}` (new expression)", node)
        return array_of(type_, converted(f.value(named(size)[0]), t.SIZE).code)
    if type_.kind != "struct" or node.child_by_field_name("declarator") is not None:
        raise NotTranslated(f"`{short(node)}` (new expression)", node)
    values = [f.value(one) for one in named(given)] if given is not None else []
    made = construct(f, node, type_, values, braces=given is not None and given.type == "initializer_list")
    return Value(made.code, Type("pointer", of=(type_,)))


def delete(f: Context, node: Any) -> None:
    value = f.value(named(node)[-1])
    if value.type.kind == "pointer" and value.type.name == "vector":
        return
    if value.type.kind != "pointer" or value.type.item.kind != "struct" or "[" in text_of(node).split()[0]:
        raise NotTranslated(f"`{short(node)}`", node)


RUN["delete_expression"] = delete


def owned(f: Context, node: Any, name: str, of: list[Any] | None, nodes: list[Any]) -> Value | None:
    """``std::make_shared<T>(...)`` and its kin."""
    bare = name.rsplit("::", 1)[-1]
    if bare not in ("make_shared", "make_unique", "make_intrusive") or not of:
        return None
    type_ = type_of(f, of[0])
    if type_.kind == "array" and type_.item.kind in ("int", "float", "bool") and len(nodes) == 1:
        return array_of(type_.item, converted(f.value(nodes[0]), t.SIZE).code)
    if type_.kind != "struct":
        raise NotTranslated(f"`{short(node)}`: an owner of an object", node)
    made = construct(f, node, type_, [f.value(one) for one in nodes])
    return Value(made.code, Type("pointer", of=(type_,)))


# Constructors ---------------------------------------------------------------------------------------------------------


def first_values(f: Context) -> None:
    """What a constructor does before its body: bases and members get their first values."""
    function, owner = f.function, f.function.owner
    assert owner is not None
    given: dict[str, Any] = {}
    for one in named(function.node) if function.node is not None else []:
        for each in named(one) if one.type == "field_initializer_list" else []:
            if each.type != "field_initializer":
                raise NotTranslated(f"`{short(each)}`", each)
            given[text_of(named(each)[0]).split("<")[0].rsplit("::", 1)[-1].strip()] = named(each)[-1]
    bare = owner.name.rsplit("::", 1)[-1]
    if bare in given:  # another constructor
        f.emit(f"self.{_chosen(f, owner, given[bare], '')}")
        return
    base = f.unit.structs.get(owner.base)
    if owner.base and base is None:
        raise NotTranslated(f"its base {owner.base}, which is not in these sources", function.node)
    if base is not None and (base.constructors or base.special):
        if base.special:
            raise NotTranslated(f"its base {base.name}, which {base.special}", function.node)
        around = owner.base_type.name if owner.base_type is not None else base.python
        f.emit(f"{around}.{_chosen(f, base, given.get(owner.base), 'self')}")
    for name, type_ in owner.fields.items():
        node = given.get(name, owner.initial.get(name))
        parts = type_
        while parts.kind in ("array", "vector") and parts.of:
            parts = parts.item
        made = struct_of(f, parts) if parts.kind == "struct" else None
        if node is not None:
            value = _first(f, node, type_)
        elif made is not None and made.constructors and (type_.kind != "vector" or type_.name.isdigit()):
            value = _default(f, function.node, type_)
        else:
            continue
        f.emit(f"self.{python_field(name)} = {value}")
    unknown = [one for one in given if one not in owner.fields and one not in (owner.base, *WITHOUT_STATE)]
    if unknown:
        raise NotTranslated(f"the member {unknown[0]}", function.node)


def _default(f: Context, node: Any, type_: Type) -> str:
    if type_.kind == "array":
        return f"[{_default(f, node, type_.item)} for _ in range({type_.name})]"
    return default_of(f, node, type_).code


def _first(f: Context, node: Any, type_: Type) -> str:
    """The first value of a member from what follows its name."""
    values = [f.value(one) for one in named(node)] if node.type in ("argument_list", "initializer_list") else None
    if type_.kind == "array" and (values is None or values):
        raise NotTranslated(f"`{short(node)}`: the initial value of an array", node)
    if type_.kind == "array":
        return _default(f, node, type_)
    if values is None:
        found = f.value(node)
    elif type_.kind == "guard":
        return "None"
    else:
        found = construct(f, node, type_, values, braces=node.type == "initializer_list")
        if len(values) == 1 and values[0].lvalue and found.code == values[0].code:
            found = replace(found, lvalue=True)
    return copy_of(found, fitting(f, node, found, type_))


def _chosen(f: Context, struct: Struct, node: Any, head: str) -> str:
    """The call of a constructor with the values in parentheses or braces."""
    values = [f.value(one) for one in named(node)] if node is not None else []
    one = chosen(node if node is not None else f.function.node, struct.constructors, [], values)
    if one.reason or one.template:
        raise NotTranslated(f"a constructor of {struct.name}", node)
    codes = [argument_code(f, node, value, p.type) for p, value in zip(one.parameters, values, strict=False)]
    return f"{one.python}({', '.join([head, *codes] if head else codes)})"


CONSTRUCTED.append(first_values)
