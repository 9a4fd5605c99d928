"""Calls of the source's own functions: which overload, its template arguments, its parameters."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from rawkern.base.tree import text_of
from rawkern.extensions import types as t
from rawkern.extensions.classes import alike
from rawkern.extensions.construction import argument_code
from rawkern.extensions.context import Context, changeable, changed_by_calls, short
from rawkern.extensions.launches import deduce, matched
from rawkern.extensions.overloads import chosen
from rawkern.extensions.program import Function, Parameter, Struct, Unit
from rawkern.extensions.spelling import argument_of, pieces_of, quoted, spelled, type_of
from rawkern.extensions.statements import assign
from rawkern.extensions.types import Type
from rawkern.extensions.untranslated import NotTranslated
from rawkern.extensions.values import Value, converted, options_code


def call_own(
    f: Context,
    node: Any,
    functions: list[Function],
    given: list[Any] | None,
    nodes: list[Any],
    name: str = "",
    *,
    prefix: str = "",
    of: dict[str, Type] | None = None,
) -> Value:
    """A call of one of the functions of a name; of methods, what precedes it and its class's type parameters."""
    values = [f.value(one) for one in nodes]
    if "::" in name:
        functions = [one for one in functions if f"::{one.name}".endswith(f"::{name.removeprefix('::')}")] or functions
    try:
        one = chosen(node, [each for each in functions if each.unit is f.unit] or functions, given or [], values)
    except NotTranslated:
        one = chosen(node, functions, given or [], values)
    if one.variadic:
        raise NotTranslated(f"`{short(node)}`: {one.name} takes any number of arguments", node)
    known, codes = template_codes(f, node, one, given or [], values)
    known = (of or {}) | known
    changed: list[Any] = []
    for parameter, value, argument in zip(one.parameters, values, nodes, strict=False):
        if value.type.kind == "pack":
            raise NotTranslated(f"`{short(node)}`: arguments that are not counted", node)
        type_ = substituted(parameter.type, known)
        if parameter.name in one.targets:
            if value.type.kind != "address" or value.extra is None:
                raise NotTranslated(f"`{short(argument)}`: a pointer for {parameter.name}", argument)
            argument = value.extra
            value = f.value(argument)
            if value.type.name != parameter.type.name:
                raise NotTranslated(f"`{short(node)}`: a pointer to {value.type} for {parameter.type}", argument)
        if parameter.name in one.rebinds:
            if any(text_of(one) == text_of(argument) for one in changed):
                raise NotTranslated(f"`{short(node)}`: {text_of(argument)} by two references", argument)
            changed.append(argument)
            codes.append(value.code)
            continue
        codes.append(argument_code(f, argument, value, type_))
    codes += [options_code(value) for value in values[len(one.parameters) :]]  # of a pack
    returned = substituted(one.returns, known)
    made = Value(f"{prefix}{one.python}({', '.join(codes)})", t.plain(returned), lvalue=returned.reference)
    return _assigning(f, node, one, made, changed) if changed else made


def _assigning(f: Context, node: Any, one: Function, made: Value, changed: list[Any]) -> Value:
    """A call that assigns what it takes by reference: it returns that after its value."""
    around = node.parent
    assigned = around.type == "assignment_expression" and around.parent.type == "expression_statement"
    if not (assigned or around.type in ("expression_statement", "return_statement", "init_declarator")):
        raise NotTranslated(
            f"`{short(node)}`: {one.name} changes what it takes by reference, inside of an expression", node
        )
    targets, after = [], []
    for argument in changed:
        variable = f.find(text_of(argument)) if argument.type == "identifier" else None
        if variable is not None and variable.kind == "value":
            f.writes(variable)
            targets.append(variable.python)
        else:
            targets.append(f.temporary())
            after.append((argument, targets[-1]))
    result = "_" if around.type == "expression_statement" else f.temporary("result")
    f.emit(f"{', '.join(targets if made.type.kind == 'void' else [result, *targets])} = {made.code}")
    for argument, name in after:
        assign(f, node, argument, Value(name, t.plain(f.value(argument).type)))
    return Value("None", t.VOID) if made.type.kind == "void" else Value(result, made.type)


def settle_references(functions: Iterable[tuple[Unit, Function]]) -> None:
    """Find the parameters that functions change by passing them on."""
    waiting = [(unit, one) for unit, one in functions if one.node is not None and changeable(one)]
    found = any(one.rebinds for _, one in waiting)
    while found:
        found = False
        for unit, one in waiting:
            body = one.node.child_by_field_name("body")
            rest = {each.name for each in changeable(one)} - one.rebinds
            passed = changed_by_calls(unit, body, whole=True) & rest if rest and body is not None else set()
            one.rebinds |= passed
            found = found or bool(passed)


def settle_specializations(functions: Sequence[tuple[Unit, Function]]) -> None:
    """Let templates of functions call their specializations; one that cannot be told is not translated."""
    for unit, one in functions:
        if not one.specializes:
            continue
        bare = one.name.rsplit("::", 1)[-1]
        named_ = [each for _, each in functions if each.name.rsplit("::", 1)[-1] == bare and each.template]
        found = [(each, said) for each in named_ if (said := _condition(unit, each, one)) is not None]
        if len(found) == 1:
            found[0][0].specializations.append((found[0][1], one))
            continue
        for each in named_:
            each.reason = each.reason or f"{one.name} is specialized in a way that is not understood"


def _condition(unit: Unit, template: Function, one: Function) -> str | None:
    """When a template's parameters mean a specialization, in Python; None where it is not one of this template."""
    if len(template.parameters) != len(one.parameters) or len(template.template) < len(one.template_arguments):
        return None
    places = [{k for k, p in enumerate(each.parameters) if p.name in each.rebinds} for each in (template, one)]
    if places[0] != places[1]:
        return None
    f, tests = Context(unit, one), []
    for k, parameter in enumerate(template.template):
        node = one.template_arguments[k] if k < len(one.template_arguments) else None
        try:
            if parameter.keyword == "value" and node is not None:
                tests.append(f"{parameter.python} == {_value_code(f, node, parameter)}")
                continue
            if node is not None:
                code = _type_code(f, node, type_of(f, node))
            else:
                pairs = zip(template.parameters, one.parameters, strict=True)
                types = (matched(a.type, b.type, parameter.name) for a, b in pairs)
                code = spelled(f, next(each for each in types if each is not None))
        except (NotTranslated, StopIteration):
            return None
        if parameter.keyword != "type":
            return None
        tests.append(f"same_type({parameter.python}, {code})")
    return " and ".join(tests)


def settle_structs(units: Sequence[Unit]) -> None:
    """Let templates of structs stand for their specializations, where all of those are used in the same way."""
    for unit in units:
        for struct in unit.structs.values():
            if not struct.specializations or struct.special != "is specialized":
                continue
            found = [(_meant(unit, struct, one), one) for _, one in struct.specializations]
            if all(said is not None and alike(struct, one) for said, one in found):
                found.sort(key=lambda pair: -len(pair[0] or ()))  # the one with the most conditions is meant
                struct.specializations = [(" and ".join(said or ()), one) for said, one in found]
                struct.special = ""


def _meant(unit: Unit, template: Struct, one: Struct) -> list[str] | None:
    """When a template's parameters mean a specialization, in Python; None where that is not understood.

    The specialization's own parameters get the names of those that they stand for.
    """
    if len(template.parameters) != len(one.arguments):
        return None
    own = {p.name: p for p in one.parameters}
    stands: dict[str, str] = {}
    f, tests = Context(unit, Function(one.name, "")), []
    for parameter, node in zip(template.parameters, one.arguments, strict=True):
        if parameter.keyword == "pack":
            return None
        if text_of(node) in own and text_of(node) not in stands:
            stands[text_of(node)] = parameter.python
            continue
        if own.keys() & set(re.findall(r"\w+", text_of(node))):
            return None
        try:
            if parameter.keyword == "value":
                tests.append(f"{parameter.python} == {_value_code(f, node, parameter)}")
            else:
                tests.append(f"same_type({parameter.python}, {_type_code(f, node, type_of(f, node))})")
        except NotTranslated:
            return None
    if stands.keys() != own.keys():
        return None
    one.standing = [stands[p.name] for p in one.parameters]
    return tests


def template_codes(
    f: Context, node: Any, one: Function, given: list[Any], values: list[Value]
) -> tuple[dict[str, Type], list[str]]:
    """The types that the template's parameters stand for, and the code of the first arguments."""
    known: dict[str, Type] = {}
    codes: list[str] = []
    for k, parameter in enumerate(one.template):
        if parameter.keyword == "pack":
            if k < len(given):
                raise NotTranslated(f"`{short(node)}`: a pack of template arguments", node)
            codes.append(f"[{', '.join(_pack_code(f, value) for value in values[len(one.parameters) :])}]")
            continue
        if k < len(given):
            if parameter.keyword == "type":
                known[parameter.name] = type_of(f, given[k]) if _is_type(f, given[k]) else t.ANY
                codes.append(_type_code(f, given[k], known[parameter.name]))
            else:
                codes.append(_value_code(f, given[k], parameter))
            continue
        code = deduce(f, parameter, [p.type for p in one.parameters], values) if parameter.keyword == "type" else None
        if code is not None:
            known[parameter.name] = _known(f, parameter, one, values)
            codes.append(code)
        elif parameter.default is not None:
            if parameter.keyword == "type":
                known[parameter.name] = type_of(f, parameter.default)
                codes.append(spelled(f, known[parameter.name]))
            else:
                codes.append(_value_code(f, parameter.default, parameter))
        else:
            raise NotTranslated(f"`{short(node)}`: the template argument {parameter.name}, which is not deduced", node)
    return known, codes


def _is_type(f: Context, node: Any) -> bool:
    return True


def _type_code(f: Context, node: Any, type_: Type) -> str:
    if type_.kind in ("any", "struct", "vector", "tensor"):
        return quoted(pieces_of(f, node))
    return spelled(f, type_)


def _value_code(f: Context, node: Any, parameter: Parameter) -> str:
    inner = node
    if node.type == "type_descriptor":
        inner = node.child_by_field_name("type")
    value = f.value(inner)
    if parameter.type.kind in ("int", "bool", "float"):
        return converted(value, parameter.type).code
    if value.type.kind in ("int", "bool", "kernel", "any"):
        return value.code
    return quoted(argument_of(f, node))


def _pack_code(f: Context, value: Value) -> str:
    """The text of the type of an argument that a pack takes."""
    return f"*{value.type.name}" if value.type.kind == "pack" else spelled(f, t.plain(value.type))


def _known(f: Context, parameter: Parameter, one: Function, values: list[Value]) -> Type:
    for p, value in zip(one.parameters, values, strict=False):
        found = matched(p.type, value.type, parameter.name)
        if found is not None:
            return found
    return t.ANY


def substituted(type_: Type, known: dict[str, Type]) -> Type:
    """A type of a template with the types that its parameters stand for."""
    if type_.kind == "param" and type_.spelled in known:
        found = known[type_.spelled]
        return replace(found, reference=type_.reference, const=type_.const)
    if type_.of:
        return replace(type_, of=tuple(substituted(one, known) for one in type_.of))
    return type_
