"""Control flow: conditions, loops, switches, returns, exceptions."""

from __future__ import annotations

from typing import Any

from rawkern.base.tree import named, text_of
from rawkern.extensions import types as t
from rawkern.extensions.checks import message
from rawkern.extensions.construction import fitting
from rawkern.extensions.context import RETURNED, Context, short, statement
from rawkern.extensions.declarations import declare
from rawkern.extensions.functions import declared_name
from rawkern.extensions.spelling import declared_type
from rawkern.extensions.statements import run
from rawkern.extensions.untranslated import NotTranslated
from rawkern.extensions.values import Value, copy_of


@statement("if_statement")
def if_(f: Context, node: Any) -> None:
    _branch(f, node, "if")


def _branch(f: Context, node: Any, word: str) -> None:
    clause = node.child_by_field_name("condition")
    inside = named(clause)
    with f.scope():
        if len(inside) > 1 or inside[0].type in ("declaration", "init_statement"):
            if word == "elif":
                raise NotTranslated(f"`{short(clause)}`: a declaration in a condition", node)
            for one in inside[:-1]:
                for each in named(one) if one.type == "init_statement" else [one]:
                    f.statement(each)
        last = inside[-1]
        if last.type == "declaration":
            declarator = last.child_by_field_name("declarator")
            type_ = declared_type(f, last.child_by_field_name("type"), declarator, last)
            declare(f, declared_name(declarator), type_, last.child_by_field_name("value"), last)
            last = declarator if declarator.type == "identifier" else named(declarator)[-1]
        condition = f.condition(last)
        other = node.child_by_field_name("alternative")
        if condition in ("True", "False") and word == "if":  # decided, as checks of CUDA's errors are
            taken = node.child_by_field_name("consequence") if condition == "True" else other
            if taken is not None:
                inside = named(taken) if taken.type == "else_clause" else [taken]
                for one in inside:
                    f.body(one)
            return
        with f.block(f"{word} {condition}:"):
            f.body(node.child_by_field_name("consequence"))
        if other is None:
            return
        following = named(other)[0] if named(other) else None
        if following is None:
            return
        if following.type == "if_statement" and _plain(following):
            _branch(f, following, "elif")
            return
        with f.block("else:"):
            f.body(following)


def _plain(node: Any) -> bool:
    inside = named(node.child_by_field_name("condition"))
    return len(inside) == 1 and inside[0].type != "declaration"


# Switches ---------------------------------------------------------------------------------------------------------


@statement("switch_statement")
def switch(f: Context, node: Any) -> None:
    value = f.value(node.child_by_field_name("condition"))
    body = node.child_by_field_name("body")
    with f.scope():
        code = value.code
        if not code.replace(".", "").replace("_", "").isalnum():
            subject = f.temporary("subject")
            f.emit(f"{subject} = {code}")
            code = subject
        cases = _cases(f, node, body)
        word = "if"
        default = None
        for labels, statements in cases:
            if None in labels:
                default = statements
                continue
            tests = []
            for label in labels:
                tests.append(f.value(label).code)
            test_code = f"{code} == {tests[0]}" if len(tests) == 1 else f"{code} in ({', '.join(tests)})"
            with f.block(f"{word} {test_code}:"):
                _case(f, statements)
            word = "elif"
        if default is not None:
            if word == "if":
                _case(f, default)
            else:
                with f.block("else:"):
                    _case(f, default)


def _cases(f: Context, node: Any, body: Any) -> list[tuple[list[Any], list[Any]]]:
    """The labels and statements of each case; the label None is that of default."""
    found: list[tuple[list[Any], list[Any]]] = []
    labels: list[Any] = []
    children = [one for one in named(body)]
    for k, one in enumerate(children):
        if one.type != "case_statement":
            if one.type in ("declaration", "alias_declaration", "static_assert_declaration") and not found:
                f.statement(one)
                continue
            if found and one.type in ("break_statement", "expression_statement", "return_statement"):
                found[-1][1].append(one)
                continue
            raise NotTranslated(f"`{short(one)}` in a switch", one)
        label = one.child_by_field_name("value")
        labels.append(label)
        statements = [child for child in named(one) if child != label]
        if not statements and k + 1 < len(children):
            continue
        found.append((labels, statements))
        labels = []
    for k in range(len(found) - 2, -1, -1):
        labels, statements = found[k]
        if not _leaves(statements):  # it goes on in the next one
            if any(one.type == "declaration" for one in found[k + 1][1]):
                raise NotTranslated("a case that goes on in the next one, which declares a variable", node)
            found[k] = (labels, [*statements, *found[k + 1][1]])
    return found


def _leaves(statements: list[Any]) -> bool:
    """Whether statements never reach their end."""
    if not statements:
        return False
    last = statements[-1]
    while last.type == "compound_statement" and named(last):
        last = named(last)[-1]
    if last.type in ("break_statement", "return_statement", "throw_statement", "continue_statement"):
        return True
    if last.type == "if_statement" and last.child_by_field_name("alternative") is not None:
        other = named(last.child_by_field_name("alternative"))
        return _leaves([last.child_by_field_name("consequence")]) and _leaves(other[:1])
    text = text_of(last)
    return last.type == "expression_statement" and text.startswith(
        ("TORCH_CHECK(false", "TORCH_CHECK_NOT_IMPLEMENTED(false", "AT_ERROR", "TORCH_CHECK(0")
    )


def _case(f: Context, statements: list[Any]) -> None:
    """A case's statements, less the break that ends it."""
    flat = list(statements)
    with f.scope():
        while flat and flat[-1].type == "compound_statement":
            last = flat.pop()
            for one in flat:
                f.statement(one)
            flat = list(named(last))
        if flat and flat[-1].type == "break_statement":
            flat.pop()
        while len(flat) == 1 and flat[0].type == "compound_statement":
            flat = list(named(flat[0]))
            if flat and flat[-1].type == "break_statement":
                flat.pop()
        f.breakable.append("switch")
        for one in flat:
            f.statement(one)
        f.breakable.pop()


# Ends ---------------------------------------------------------------------------------------------------------------


@statement("return_statement")
def return_(f: Context, node: Any) -> None:
    inside = named(node)
    if f.tail and f.tail[-1] != "function":
        _return_in_place(f, node, inside)
        return
    expected = f.returns[-1]
    if f.rebound and len(f.returns) == 1:
        value = fitting(f, node, f.value(inside[0]), expected).code if inside and expected.kind != "void" else ""
        f.emit(f"return {', '.join([value, *f.rebound] if value else f.rebound)}")
        return
    if not inside:
        f.emit("return self" if f.function.constructor and len(f.returns) == 1 else "return")
        return
    value = f.value(inside[0]) if inside[0].type != "call_expression" else _returned_call(f, inside[0])
    if value is None:
        return
    if expected.kind == "void":
        if value.code and value.code != "None":
            f.emit(value.code)
        f.emit("return")
        return
    if expected.kind in ("auto", "any"):
        f.returns[-1] = t.plain(value.type)
        f.emit(f"return {copy_of(value, value) if '.' in value.code else value.code}")
        return
    owner = f.function.owner
    if owner is not None and owner.autograd and len(f.returns) == 1 and expected.kind == "vector":
        items = value.code if value.items is None else ""
        codes = [one.code for one in value.items or ()]
        f.emit(f"return tuple({items})" if items else f"return {', '.join(codes)}{',' if len(codes) == 1 else ''}")
        return
    if expected.reference and value.lvalue:
        f.emit(f"return {value.code}")
        return
    f.emit(f"return {fitting(f, node, value, expected).code}")


def _returned_call(f: Context, node: Any) -> Value | None:
    """The value of a call that is returned; None where the call has been written with its own returns."""
    return RETURNED[node.type](f, node)


def _return_in_place(f: Context, node: Any, inside: list[Any]) -> None:
    """A return of a lambda that is written where it is called; its returns end it, as has been checked."""
    if not inside:
        return
    run(f, inside[0])


_ERRORS = {
    "runtime_error": "RuntimeError", "logic_error": "RuntimeError", "invalid_argument": "ValueError",
    "domain_error": "ValueError", "length_error": "ValueError", "out_of_range": "IndexError",
    "range_error": "ValueError", "overflow_error": "OverflowError", "value_error": "ValueError",
    "type_error": "TypeError", "index_error": "IndexError", "exception": "RuntimeError", "Error": "RuntimeError",
    "bad_alloc": "MemoryError", "NotImplementedError": "NotImplementedError", "TypeError": "TypeError",
    "ValueError": "ValueError", "IndexError": "IndexError", "LinAlgError": "RuntimeError",
}  # fmt: skip


@statement("throw_statement")
def throw(f: Context, node: Any) -> None:
    inside = named(node)
    if not inside:
        raise NotTranslated("`throw` without an error", node)
    one = inside[0]
    if one.type in ("string_literal", "concatenated_string"):
        f.emit(f"raise RuntimeError({message(f, inside)})")
        return
    called = one.child_by_field_name("function") or one.child_by_field_name("type")
    error = _ERRORS.get(text_of(called).rsplit("::", 1)[-1]) if called is not None else None
    arguments = one.child_by_field_name("arguments") or one.child_by_field_name("value")
    if error is None or arguments is None:
        raise NotTranslated(f"`{short(node)}`", node)
    said = named(arguments)
    if said and said[0].type == "initializer_list":  # where it is, of c10's errors
        said = said[1:]
    f.emit(f"raise {error}({message(f, said)})")


@statement("try_statement")
def try_(f: Context, node: Any) -> None:
    raise NotTranslated("`try`", node)
