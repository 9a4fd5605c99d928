"""Python without what is superfluous, in lines that are not too long."""

from __future__ import annotations

import ast
import functools
from typing import Any

_WIDTH = 120


@functools.lru_cache(maxsize=1024)  # an edit leaves most functions as they are
def tidy(code: str) -> str:
    """Python without what is superfluous, in lines that are not too long."""
    tree = ast.parse(code)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.If | ast.While | ast.For):
            _drop(node)
    tree = ast.fix_missing_locations(_Items().visit(_Known().visit(tree)))
    plain = ast.unparse(tree)
    lines = [double_quoted(line) for line in plain.split("\n")]
    if all(len(line) <= _WIDTH for line in lines):
        return "\n".join(lines)
    found = "\n".join(part for line in lines for part in wrapped(line))
    try:
        same = ast.dump(ast.parse(found)) == ast.dump(ast.parse(plain))
    except SyntaxError:  # broken inside of a string
        same = False
    return found if same else plain


def double_quoted(line: str) -> str:
    """A line with the quotes that most people write; as it is where it has both kinds."""
    return line if '"' in line or "\\" in line else line.replace("'", '"')


def _drop(node: Any) -> None:
    """Drop a return at the very end, and what follows one."""
    if isinstance(node, ast.FunctionDef):
        last = node.body[-1]
        if isinstance(last, ast.Return) and last.value is None and len(node.body) > 1:
            node.body.pop()
    for name in ("body", "orelse"):
        body = getattr(node, name, None)
        for k, one in enumerate(body or []):
            if isinstance(one, ast.Return | ast.Raise) and body is not None:
                del body[k + 1 :]
                break


class _Known(ast.NodeTransformer):
    """Take ``value(x)`` for x where it is known not to be None."""

    def visit_IfExp(self, node: ast.IfExp) -> Any:
        self.generic_visit(node)
        name = _not_none(node.test)
        if name is not None:
            node.body = _Plain(name).visit(node.body)
            same = ast.unparse(node.body) == name
            if same and isinstance(node.orelse, ast.Constant) and node.orelse.value is None:
                return node.body
        return node

    def visit_If(self, node: ast.If) -> Any:
        self.generic_visit(node)
        name = _not_none(node.test)
        if name is not None and name.isidentifier() and not _assigns(node.body, name):
            node.body = [_Plain(name).visit(one) for one in node.body]
        return node


class _Items(ast.NodeTransformer):
    """Write ``x[i] = y`` and ``x[a:b]`` for calls of ``__setitem__`` and ``slice``."""

    def visit_Expr(self, node: ast.Expr) -> Any:
        self.generic_visit(node)
        called = node.value.func if isinstance(node.value, ast.Call) else None
        if isinstance(called, ast.Attribute) and called.attr == "__setitem__" and isinstance(node.value, ast.Call):
            place, value = node.value.args
            return ast.Assign([ast.Subscript(called.value, _sliced(place), ast.Store())], value)
        return node

    def visit_Subscript(self, node: ast.Subscript) -> Any:
        self.generic_visit(node)
        node.slice = _sliced(node.slice)
        return node


def _sliced(place: ast.expr) -> ast.expr:
    if isinstance(place, ast.Tuple):
        return ast.Tuple([_sliced(one) for one in place.elts], ast.Load())
    if isinstance(place, ast.Call) and isinstance(place.func, ast.Name) and place.func.id == "slice":
        ends = [None if isinstance(one, ast.Constant) and one.value is None else one for one in place.args]
        ends = [None, *ends] if len(ends) == 1 else ends
        return ast.Slice(*ends)
    return place


class _Plain(ast.NodeTransformer):
    def __init__(self, name: str) -> None:
        self.name = name

    def visit_Call(self, node: ast.Call) -> Any:
        self.generic_visit(node)
        called = isinstance(node.func, ast.Name) and node.func.id == "value" and len(node.args) == 1
        return node.args[0] if called and ast.unparse(node.args[0]) == self.name else node


def _not_none(test: ast.expr) -> str | None:
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.IsNot):
        right = test.comparators[0]
        if isinstance(right, ast.Constant) and right.value is None:
            return ast.unparse(test.left)
    return None


def _assigns(body: list[ast.stmt], name: str) -> bool:
    return any(
        isinstance(one, ast.Name) and one.id == name and isinstance(one.ctx, ast.Store)
        for part in body
        for one in ast.walk(part)
    )


def wrapped(line: str) -> list[str]:
    """A line in pieces of at most 120 characters, broken after commas in brackets."""
    if len(line) <= _WIDTH:
        return [line]
    indent = len(line) - len(line.lstrip())
    deeper = " " * (indent + (8 if line.lstrip().startswith(("def ", "if ", "elif ", "while ")) else 4))
    out = []
    while len(line) > _WIDTH and (at := _break(line, len(deeper) if out else indent)) is not None:
        out.append(line[:at].rstrip())
        line = deeper + line[at:].lstrip()
    return [*out, line]


def _break(line: str, indent: int) -> int | None:
    """Where a line may be broken: after the last comma that is not inside of a string."""
    found, quote, depth = None, "", 0
    for at, character in enumerate(line):
        if quote:
            if character == quote and line[at - 1] != "\\":
                quote = ""
            continue
        if character in "\"'":
            quote = character
        elif character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
        elif character == "," and depth > 0 and indent + 20 < at < _WIDTH:
            found = at + 1
        if at >= _WIDTH and found:
            break
    return found
