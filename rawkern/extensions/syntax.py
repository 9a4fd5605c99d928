"""Questions about the tree of a part of a source."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rawkern.base.tree import named, text_of


def nodes_in(node: Any) -> Iterator[Any]:
    """A node and all in it."""
    stack = [node]
    while stack:
        one = stack.pop()
        yield one
        stack += one.children


def root_name(node: Any) -> str:
    """The name of what an expression of members and elements is a part of; "" for another expression."""
    while node is not None and node.type != "identifier":
        if node.type == "call_expression":  # list.back()
            called = node.child_by_field_name("function")
            node = called if called is not None and called.type == "field_expression" else None
        elif node.type == "parenthesized_expression":
            node = (named(node) or [None])[0]
        else:
            node = node.child_by_field_name("argument")
    return text_of(node) if node is not None else ""


def references(node: Any) -> list[tuple[str, Any]]:
    """The references that a part of a source declares: each name with the node of what it refers to."""
    found = []
    for one in nodes_in(node):
        field = {"init_declarator": "value", "for_range_loop": "right"}.get(one.type)
        declarator = one.child_by_field_name("declarator")
        if field is not None and declarator is not None and declarator.type == "reference_declarator":
            name, value = named(declarator)[-1], one.child_by_field_name(field)
            if name.type == "identifier" and value is not None:
                found.append((text_of(name), value))
    return found


def is_target(node: Any, name: str) -> bool:
    """Whether a function returns a number by a pointer: all that it says of it is ``*name``, which it assigns."""
    found = False
    for one in nodes_in(node):
        if one.type == "identifier" and text_of(one) == name:
            around = one.parent
            if around.type != "pointer_expression" or text_of(around.children[0]) != "*":
                return False
            target = around
            while target.parent.type == "parenthesized_expression":
                target = target.parent
            user = target.parent
            found = found or (user.type == "assignment_expression" and user.child_by_field_name("left") == target)
            found = found or user.type == "update_expression"
    return found


def through_references(found: set[str], pairs: list[tuple[str, Any]]) -> set[str]:
    """Names with those that refer to them, and that they refer to: what changes one changes the other."""
    links = [(name, root_name(value)) for name, value in pairs]
    size = -1
    while size != len(found):
        size = len(found)
        for a, b in links:
            if b and (a in found or b in found):
                found |= {a, b}
    return found


def assigned_names(node: Any) -> set[str]:
    """Names of C++ that a part of a source may change."""
    return through_references(_assigned(node), references(node))


def _assigned(node: Any) -> set[str]:
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
            if text_of(called) in _ASSIGNING:
                found |= identifiers(one.child_by_field_name("arguments"))
        if name := root_name(target):
            found.add(name)
        stack += one.children
    return found


def assigned_whole(node: Any) -> tuple[set[str], set[str]]:
    """Names that are assigned themselves, not in a member or element: by ``=``, and by other operators."""
    whole: set[str] = set()
    compound: set[str] = set()
    for one in nodes_in(node):
        target = None
        if one.type == "assignment_expression":
            target = one.child_by_field_name("left")
            found = whole if text_of(one.child_by_field_name("operator")) == "=" else compound
        elif one.type == "update_expression":
            target, found = one.child_by_field_name("argument"), compound
        elif one.type == "call_expression" and text_of(one.child_by_field_name("function")) in _ASSIGNING:
            whole |= identifiers(one.child_by_field_name("arguments"))
        if target is not None and target.type == "identifier":
            found.add(text_of(target))
    for name, value in references(node):
        if value.type == "identifier":
            for names in (whole, compound):
                names |= {text_of(value)} if name in names else set()
    return whole, compound


_ASSIGNING = ("std::tie", "tie", "std::swap", "swap")
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


def declared_in(node: Any) -> set[str]:
    """Names of the variables that a part of a source declares."""
    found: set[str] = set()
    for one in nodes_in(node):
        if one.type in ("declaration", "for_range_loop", "parameter_declaration"):
            for k, child in enumerate(one.children):
                if one.field_name_for_child(k) == "declarator":
                    while child is not None and child.type != "identifier":
                        child = child.child_by_field_name("declarator") or next(
                            (each for each in named(child) if each.type.endswith(("declarator", "identifier"))), None
                        )
                    found |= {text_of(child)} if child is not None else set()
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


def array_sizes(declarator: Any) -> list[Any]:
    """The nodes of an array's sizes, the outermost first."""
    sizes = []
    while declarator is not None and declarator.type in ("array_declarator", "pointer_declarator"):
        if declarator.type == "array_declarator":
            sizes.insert(0, declarator.child_by_field_name("size"))
        declarator = declarator.child_by_field_name("declarator")
    return sizes
