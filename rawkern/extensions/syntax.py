"""Questions about the tree of a part of a source."""

from __future__ import annotations

from typing import Any

from rawkern.base.tree import named, text_of


def assigned_names(node: Any) -> set[str]:
    """Names of C++ that a part of a source may change."""
    found: set[str] = set()
    stack = [node]
    while stack:
        one = stack.pop()
        target = None
        if one.type == "assignment_expression":
            target = one.child_by_field_name("left")
        elif one.type == "update_expression" or (
            one.type in ("pointer_expression", "unary_expression") and text_of(one.children[0]) == "&"
        ):
            target = one.child_by_field_name("argument")
        elif one.type == "call_expression":
            called = one.child_by_field_name("function")
            if called.type == "field_expression" and text_of(called.child_by_field_name("field")) in _CHANGING:
                target = called.child_by_field_name("argument")
            if text_of(called) in ("std::tie", "tie", "std::swap", "swap"):
                found |= identifiers(one.child_by_field_name("arguments"))
        while target is not None and target.type not in ("identifier",):
            target = target.child_by_field_name("argument")
        if target is not None:
            found.add(text_of(target))
        stack += one.children
    return found


_CHANGING = {
    "push_back", "emplace_back", "pop_back", "resize", "clear", "insert", "erase", "assign", "reserve", "swap", "reset",
    "emplace",
}  # fmt: skip


def identifiers(node: Any) -> set[str]:
    found: set[str] = set()
    stack = [node]
    while stack:
        one = stack.pop()
        if one.type == "identifier":
            found.add(text_of(one))
        stack += one.children
    return found


def has(node: Any, kinds: tuple[str, ...]) -> bool:
    """Whether a part has statements of a kind, but for those of loops, switches and lambdas in it."""
    stack = list(node.children)
    while stack:
        one = stack.pop()
        if one.type in kinds:
            return True
        inner = {"for_statement", "while_statement", "do_statement", "lambda_expression", "for_range_loop"}
        if one.type not in inner | ({"switch_statement"} if "break_statement" in kinds else set()):
            stack += one.children
    return False


def lambda_of(node: Any) -> Any:
    """The lambda in parentheses; None for another expression."""
    while node is not None and node.type == "parenthesized_expression" and len(named(node)) == 1:
        node = named(node)[0]
    return node if node is not None and node.type == "lambda_expression" else None
