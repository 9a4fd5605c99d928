"""Loops: counted ones as ranges, the others as while."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rawkern.base.tree import named, text_of
from rawkern.extensions import types as t
from rawkern.extensions.arithmetic import common
from rawkern.extensions.context import Context, Variable, short, statement
from rawkern.extensions.spelling import declared_type
from rawkern.extensions.statements import run
from rawkern.extensions.syntax import assigned_whole, has, identifiers
from rawkern.extensions.types import Type
from rawkern.extensions.untranslated import NotTranslated
from rawkern.extensions.values import Value, converted, copy_of


@statement("for_statement")
def for_(f: Context, node: Any) -> None:
    first, condition = node.child_by_field_name("initializer"), node.child_by_field_name("condition")
    update, body = node.child_by_field_name("update"), node.child_by_field_name("body")
    with f.scope():
        if _counted(f, node, first, condition, update, body):
            return
        if first is not None:
            f.statement(first) if first.type == "declaration" else run(f, first)
        head = f.condition(condition) if condition is not None else "True"
        with f.block(f"while {head}:"):
            f.updates.append([update] if update is not None else [])
            f.breakable.append("loop")
            f.body(body)
            f.breakable.pop()
            f.updates.pop()
            if update is not None:
                run(f, update)


def _counted(f: Context, node: Any, first: Any, condition: Any, update: Any, body: Any) -> bool:
    """``for (int i = a; i < b; i++)`` with an i and a b that the body leaves alone, as a range."""
    if first is None or condition is None or update is None or first.type != "declaration":
        return False
    declarator = first.child_by_field_name("declarator")
    if declarator is None or declarator.type != "init_declarator":
        return False
    if sum(first.field_name_for_child(k) == "declarator" for k in range(first.child_count)) != 1:
        return False
    name_node = declarator.child_by_field_name("declarator")
    if name_node.type != "identifier" or condition.type != "binary_expression":
        return False
    name = text_of(name_node)
    operator = text_of(condition.child_by_field_name("operator"))
    if operator not in ("<", "<=", ">", ">=", "!=") or text_of(condition.child_by_field_name("left")) != name:
        return False
    step = _step_of(update, name)
    bound = condition.child_by_field_name("right")
    down = operator in (">", ">=")
    if step is None or (step[0] == "-") != down or (operator == "!=" and step != ("+", None)):
        return False
    changed = f.changed(body)
    used = identifiers(bound) | (identifiers(step[1]) if step[1] is not None else set())
    if name in changed or used & changed or any(_calls_out(one) for one in (bound, step[1]) if one is not None):
        return False
    type_ = declared_type(f, first.child_by_field_name("type"), None)
    start = f.value(declarator.child_by_field_name("value"))
    type_ = start.type if type_.kind == "auto" else type_
    if type_.kind != "int":
        return False
    start = converted(start, type_)
    end = f.value(bound)
    if end.type.kind != "int":
        return False
    by = f.value(step[1]) if step[1] is not None else None
    if by is not None and (by.type.kind != "int" or by.limits[0] < 1):
        return False
    if operator == "!=" and start.limits[1] > end.limits[0]:
        return False  # it may begin beyond its end, and wrap
    common_ = _common(type_, end.type)
    if common_ != type_.name and start.limits[0] < 0:
        return False
    if common_ != end.type.name and end.limits[0] < 0:
        return False  # compared as unsigned numbers
    stop = end.code
    if operator in ("<=", ">="):
        stop = (
            f"{end.code} {'-' if down else '+'} 1" if end.constant is None else str(end.constant + (-1 if down else 1))
        )
    parts = [stop] if start.constant == 0 and by is None and not down else [start.code, stop]
    if by is not None or down:
        parts.append(f"{'-' if down else ''}{by.code if by is not None else 1}")
    low, high = start.limits[0], end.limits[1] - (operator in ("<", "!="))
    if down:
        low, high = max(end.limits[0], 0) if operator == ">=" else end.limits[0], start.limits[1]
        if type_.name.startswith("u"):
            return False
    most = t.LIMITS[type_.name]
    if low < most[0]:
        low = most[0]
    if not down and start.constant is not None and end.limits[1] <= start.constant:
        high = start.constant
    variable = f.declare(name, type_, low=low, high=min(max(high, low), most[1]))
    with f.block(f"for {variable.python} in range({', '.join(parts)}):"):
        f.updates.append([])
        f.breakable.append("loop")
        f.body(body)
        f.breakable.pop()
        f.updates.pop()
    return True


def _common(a: Type, b: Type) -> str:
    return common(a, b).name


def _step_of(update: Any, name: str) -> tuple[str, Any] | None:
    """The sign and the node of a loop's step; None for a node of 1."""
    if update.type == "update_expression" and text_of(update.child_by_field_name("argument")) == name:
        return text_of(update.child_by_field_name("operator"))[0], None
    if update.type == "assignment_expression" and text_of(update.child_by_field_name("left")) == name:
        operator = text_of(update.child_by_field_name("operator"))
        if operator in ("+=", "-="):
            return operator[0], update.child_by_field_name("right")
    return None


_PURE = {
    "size", "numel", "dim", "sizes", "ndimension", "stride", "value", "length", "min", "max", "shape", "data_ptr",
}  # fmt: skip


def _calls_out(node: Any) -> bool:
    """Whether an expression has calls whose value may differ from one turn of a loop to the next."""
    stack = [node]
    while stack:
        one = stack.pop()
        if one.type == "call_expression":
            called = one.child_by_field_name("function")
            last = called.child_by_field_name("field") if called.type == "field_expression" else called
            if text_of(last).rsplit("::", 1)[-1] not in _PURE:
                return True
        if one.type in ("update_expression", "assignment_expression"):
            return True
        stack += one.children
    return False


@statement("for_range_loop")
def for_range(f: Context, node: Any) -> None:
    value = f.value(node.child_by_field_name("right"))
    declarator = node.child_by_field_name("declarator")
    if value.type.kind not in ("vector", "sizes", "list", "array", "any", "tensor"):
        raise NotTranslated(f"`{short(node.child_by_field_name('right'))}`: a loop over {value.type}", node)
    type_ = declared_type(f, node.child_by_field_name("type"), declarator, node)
    with f.scope():
        item = t.TENSOR if value.type.kind == "tensor" else t.INT64 if value.type.kind == "sizes" else value.type.item
        if type_.kind == "auto":
            type_ = replace_reference(item, type_)
        inner = declarator
        while inner.type not in ("identifier", "structured_binding_declarator"):
            inner = named(inner)[-1]
        if inner.type == "structured_binding_declarator":
            raise NotTranslated(f"`{short(node)}`: several names for an element", node)
        name = text_of(inner)
        body = node.child_by_field_name("body")
        whole, compound = assigned_whole(body)
        placed = (
            name in whole or (name in compound and item.kind != "tensor") or (item.number and name in f.changed(body))
        )
        code = value.code
        if type_.reference and not type_.const and placed:  # elements are assigned: by their places
            if value.type.kind not in ("vector", "array") or not code.replace(".", "_").isidentifier():
                raise NotTranslated(f"`{short(declarator)}`: elements that are assigned through a reference", node)
            at = f.temporary("place")
            f.scopes[-1][name] = Variable(f"{code}[{at}]", item, kind="reference")
            head = f"for {at} in range(len({code})):"
        else:
            limits = {}
            if name not in f.assigned and value.type.kind == "sizes":
                limits = {"low": 0, "high": 2**40}
            elif name not in f.assigned and isinstance(value.extra, Value) and type_.name == item.name:
                limits = {"low": value.extra.low, "high": value.extra.high}
            variable = f.declare(name, type_, **limits)
            head = f"for {variable.python} in {code}:"
        with f.block(head):
            f.updates.append([])
            f.breakable.append("loop")
            if not type_.reference or (type_.number and type_.name != item.name):
                here = f.scopes[-1][name].python
                element = Value(here, item, lvalue=name in f.changed(body))
                made = copy_of(element, converted(element, type_) if type_.number and type_ != item else element)
                if made != here:
                    f.emit(f"{here} = {made}")
            f.body(body)
            f.breakable.pop()
            f.updates.pop()


def replace_reference(item: Type, type_: Type) -> Type:
    return replace(item, reference=type_.reference, const=type_.const)


@statement("while_statement")
def while_(f: Context, node: Any) -> None:
    with f.block(f"while {f.condition(node.child_by_field_name('condition'))}:"):
        f.updates.append([])
        f.breakable.append("loop")
        f.body(node.child_by_field_name("body"))
        f.breakable.pop()
        f.updates.pop()


@statement("do_statement")
def do(f: Context, node: Any) -> None:
    body, condition = node.child_by_field_name("body"), node.child_by_field_name("condition")
    if text_of(condition).strip("() ") in ("0", "false"):  # do { ... } while (0), as macros have it
        if has(body, ("break_statement", "continue_statement")):
            raise NotTranslated("a do-while(0) that is left by break", node)
        f.body(body)
        return
    if has(body, ("continue_statement",)):
        raise NotTranslated("a do-while loop with continue", node)
    with f.block("while True:"):
        f.updates.append([])
        f.breakable.append("loop")
        f.body(body)
        f.breakable.pop()
        f.updates.pop()
        with f.block(f"if not ({f.condition(condition)}):"):
            f.emit("break")


@statement("break_statement")
def break_(f: Context, node: Any) -> None:
    if not f.breakable:
        raise NotTranslated("`break` outside of a loop", node)
    if f.breakable[-1] == "switch":
        raise NotTranslated("a `break` inside of a case, before its end", node)
    f.emit("break")


@statement("continue_statement")
def continue_(f: Context, node: Any) -> None:
    if not f.updates:
        raise NotTranslated("`continue` outside of a loop", node)
    for update in f.updates[-1]:
        run(f, update)
    f.emit("continue")
