"""Lambdas: as functions in functions, or written where they are called."""

from __future__ import annotations

from typing import Any

from rawkern.base.tree import named, text_of
from rawkern.extensions import types as t
from rawkern.extensions.context import OF_MODULE, Context, Variable, declared, expression, short
from rawkern.extensions.macros import HOISTED
from rawkern.extensions.spelling import declared_type, spelled, type_of
from rawkern.extensions.syntax import declared_in, identifiers
from rawkern.extensions.types import Type
from rawkern.extensions.untranslated import NotTranslated
from rawkern.extensions.values import Value, converted, copy_of


def parameters_of(f: Context, node: Any) -> list[tuple[str, Type, Any]]:
    """The parameters of a lambda or function: name, type, node of the default value."""
    declarator = node.child_by_field_name("declarator")
    while declarator is not None and declarator.child_by_field_name("parameters") is None:
        declarator = declarator.child_by_field_name("declarator")
    found = []
    for one in named(declarator.child_by_field_name("parameters")) if declarator is not None else []:
        if one.type not in ("parameter_declaration", "optional_parameter_declaration"):
            raise NotTranslated(f"`{short(one)}`: a parameter pack", one)
        inner = one.child_by_field_name("declarator")
        type_ = declared_type(f, one.child_by_field_name("type"), inner, one)
        while inner is not None and inner.type != "identifier":
            deeper = inner.child_by_field_name("declarator")
            inner = deeper or next((each for each in named(inner) if each.type != "type_qualifier"), None)
        found.append((text_of(inner) if inner is not None else "", type_, one.child_by_field_name("default_value")))
    return [one for one in found if one[1].kind != "void"]


def _copies(f: Context, node: Any, body: Any) -> list[tuple[Variable, Value]]:
    """What a lambda captures by value and that changes: variables, which become parameters with their values now."""
    captures = node.child_by_field_name("captures")
    said = [] if captures is None else [one.strip() for one in text_of(captures)[1:-1].split(",")]
    used = identifiers(body)
    if "=" in said:
        names = used - {one[1:].strip() for one in said if one.startswith("&")}
    else:
        names = {one for one in said if one.isidentifier() and one != "this"} & used
    found = []
    for name in sorted(names):
        variable = f.find(name)
        if variable is None or variable.depth == OF_MODULE or variable.kind not in ("value", "reference"):
            continue
        if name in f.changed(body) - declared_in(body):
            raise NotTranslated(f"a lambda that changes its own copy of {name}", node)
        if name in f.assigned and name not in declared_in(body):
            if variable.kind == "reference":
                raise NotTranslated(f"a lambda with a copy of the reference {name}", node)
            found.append((variable, Value(variable.python, variable.type, lvalue=True)))
    if any("=" in one and len(one) > 1 for one in said):
        raise NotTranslated("a lambda that declares a variable among what it captures", node)
    return found


@declared("lambda_expression")
def define_lambda(f: Context, name: str, node: Any) -> Variable:
    """Write a lambda as a function of Python."""
    body = node.child_by_field_name("body")
    copies = _copies(f, node, body)
    parameters = parameters_of(f, node)
    returns = Type("auto")
    declarator = node.child_by_field_name("declarator")
    for one in named(declarator) if declarator is not None else []:
        if one.type == "trailing_return_type":
            returns = type_of(f, named(one)[0])
    passed = f.declared.get(name, [])
    words_ = text_of(body)
    passed = [(one, kind) for one, kind in passed if one in words_] if passed else []
    shown = "body" if name.startswith(HOISTED) else name
    python = f.python_name(shown)
    variable = Variable(python, Type("lambda"), kind="function", depth=f.depth)
    f.scopes[-1][name] = variable
    f.depth += 1
    f.nonlocals.append(set())
    f.of_module.append(set())
    f.returns.append(returns)
    updates, f.updates = f.updates, []
    breakable, f.breakable = f.breakable, []
    f.tail.append("function")
    heads = []
    with f.scope():
        for one, kind in passed:
            if kind == "typename":
                made = f.declare(one, t.ANY, kind="type")
                made.type = Type("param", made.python)
            else:
                made = f.declare(one, t.named_type(kind) or t.INT)
            heads.append(made.python)
        changed = f.changed(body)
        for one, type_, default in parameters:
            if type_.reference and not type_.const and one in changed and type_.kind not in ("struct", "vector", "map"):
                raise NotTranslated(f"a lambda that changes its parameter {one}, a reference of the caller's", node)
            if type_.kind == "auto":
                type_ = t.ANY
            made = f.declare(one or f"_{len(heads)}", type_)
            heads.append(made.python + (f"={f.of_type(default, type_).code}" if default is not None else ""))
        heads += [f"{one.python}={copy_of(whole, whole)}" for one, whole in copies]
        f.emit(f"def {python}({', '.join(heads)}):")
        f.level += 1
        at = len(f.out)
        f.statements(named(body))
        if len(f.out) == at:
            f.emit("pass")
        f.out[at:at] = f.scope_lines()
        f.level -= 1
    f.tail.pop()
    f.updates, f.breakable = updates, breakable
    found = f.returns.pop()
    f.nonlocals.pop()
    f.of_module.pop()
    f.depth -= 1
    variable.extra = {
        "parameters": [(one, type_) for one, type_, _ in parameters],
        "passed": passed,
        "returns": t.VOID if found.kind == "auto" else found,
        "defaults": sum(default is not None for _, _, default in parameters),
    }
    return variable


@expression("lambda_expression")
def lambda_value(f: Context, node: Any) -> Value:
    variable = define_lambda(f, f.temporary("function"), node)
    return Value(variable.python, Type("lambda"), extra=variable.extra)


def call_lambda(f: Context, node: Any, variable: Variable, arguments: list[Any]) -> Value:
    """A call of a lambda that has a name."""
    extra = variable.extra
    if not isinstance(extra, dict):
        raise NotTranslated(f"`{short(node)}`", node)
    codes = []
    for name, _ in extra["passed"]:
        found = f.find(name)
        if found is None:
            raise NotTranslated(f"the unknown name {name}", node)
        codes.append(found.type.name if found.kind == "type" and found.type.kind == "param" else _passed(f, found))
    parameters = extra["parameters"]
    if not len(parameters) - extra["defaults"] <= len(arguments) <= len(parameters):
        raise NotTranslated(f"`{short(node)}`: a lambda with other parameters", node)
    for one, (_, type_) in zip(arguments, parameters, strict=False):
        value = f.value(one)
        codes.append(converted(value, t.plain(type_)).code if type_.kind != "any" else value.code)
    return Value(f"{variable.python}({', '.join(codes)})", extra["returns"])


def _passed(f: Context, variable: Variable) -> str:
    if variable.kind == "type":
        return spelled(f, variable.type)
    return variable.python


def returns_at_end(node: Any) -> bool:
    """Whether each return of a body is the last thing that it does."""
    return _at_end([one for one in named(node)])


def _at_end(statements: list[Any]) -> bool:
    for one in statements[:-1]:
        if _returns(one):
            return False
    if not statements:
        return True
    last = statements[-1]
    if last.type == "return_statement" or not _returns(last):
        return True
    if last.type == "compound_statement":
        return _at_end(named(last))
    if last.type == "if_statement":
        other = last.child_by_field_name("alternative")
        return _at_end([last.child_by_field_name("consequence")]) and (other is None or _at_end(named(other)))
    if last.type == "switch_statement":
        body = last.child_by_field_name("body")
        return all(_at_end([*_without_break(one)]) for one in named(body) if one.type == "case_statement")
    if last.type in ("case_statement", "else_clause"):
        return _at_end(named(last))
    return False


def _without_break(case: Any) -> list[Any]:
    value = case.child_by_field_name("value")
    inside = [one for one in named(case) if one != value]
    while inside and inside[-1].type == "break_statement":
        inside.pop()
    return inside


def _returns(node: Any) -> bool:
    stack = [node]
    while stack:
        one = stack.pop()
        if one.type == "return_statement":
            return True
        if one.type != "lambda_expression":
            stack += one.children
    return False


def in_place(f: Context, node: Any, how: str) -> bool:
    """Write the body of a lambda that is called here: as a statement ("place") or with its returns ("function").

    False where its returns do not allow it.
    """
    if parameters_of(f, node):
        return False
    body = node.child_by_field_name("body")
    if how == "place" and not returns_at_end(body):
        return False
    f.tail.append(how if how == "place" else (f.tail[-1] if f.tail else "function"))
    f.body(body)
    f.tail.pop()
    return True
