"""Checks and messages: TORCH_CHECK and its relatives, as exceptions with the same text."""

from __future__ import annotations

import ast
import re
from typing import Any

from rawkern.base.tree import named, text_of
from rawkern.extensions.arithmetic import compared
from rawkern.extensions.context import Context, short
from rawkern.extensions.operators import combined
from rawkern.extensions.spelling import quoted
from rawkern.extensions.untranslated import NotTranslated

_CHECKS = {
    "TORCH_CHECK": "RuntimeError", "TORCH_CHECK_WITH": "", "AT_CHECK": "RuntimeError", "AT_ASSERTM": "RuntimeError",
    "AT_ASSERT": "RuntimeError", "TORCH_INTERNAL_ASSERT": "RuntimeError", "TORCH_CHECK_VALUE": "ValueError",
    "TORCH_INTERNAL_ASSERT_DEBUG_ONLY": "RuntimeError", "TORCH_CHECK_TYPE": "TypeError",
    "TORCH_CHECK_INDEX": "IndexError", "TORCH_CHECK_NOT_IMPLEMENTED": "NotImplementedError", "assert": "AssertionError",
    "STD_TORCH_CHECK": "RuntimeError", "TORCH_CHECK_LINALG": "RuntimeError", "CHECK": "RuntimeError",
}  # fmt: skip
_COMPARED = {"EQ": "==", "NE": "!=", "LT": "<", "LE": "<=", "GT": ">", "GE": ">="}


def message(f: Context, nodes: list[Any]) -> str:
    """An expression of Python for a text that C++ puts together from values."""
    pieces: list[tuple[bool, str]] = []
    for node in nodes:
        value = f.value(node)
        if value.type.kind == "string" and value.code[:1] in "'\"":
            pieces.append((False, ast.literal_eval(value.code)))
        elif value.type.name in ("int8", "uint8"):  # C++ writes a character
            pieces.append((True, f"chr({value.code} & 255)"))
        elif value.type.kind in ("int", "string"):
            pieces.append((True, value.code))
        else:
            pieces.append((True, f"text({value.code})"))
    if any("\n" in text or "\\" in text for code, text in pieces if not code) or any(
        '"' in text and "'" in text for _, text in pieces
    ):
        parts = [text if code else repr(text) for code, text in pieces]
        return f"text({', '.join(parts)})" if any(code for code, _ in pieces) else repr("".join(p for _, p in pieces))
    return quoted(pieces)


def check(f: Context, node: Any, name: str) -> bool:
    """Translate a call of a check; False for another call."""
    arguments = named(node.child_by_field_name("arguments"))
    if name in _CHECKS and arguments:
        error = _CHECKS[name]
        if not error:
            raise NotTranslated(f"{name} with an error of C++", node)
        condition = arguments[0]
        said = arguments[1:]
        text = message(f, said) if said else _said(f, name, condition)
        test = _of_cpu(f.condition(condition))
        if test == "False":
            f.emit(f"raise {error}({text})")
        elif test != "True":
            with f.block(f"if {negated(test)}:"):
                f.emit(f"raise {error}({text})")
        return True
    if name == "THArgCheck" and len(arguments) >= 3:
        test = f.condition(arguments[0])
        with f.block(f"if {negated(test)}:"):
            f.emit(f"raise RuntimeError({message(f, arguments[2:3])})")
        return True
    if name in ("AT_ERROR", "TORCH_CHECK_FAIL"):
        f.emit(f"raise RuntimeError({message(f, arguments)})")
        return True
    if name in ("TORCH_WARN", "TORCH_WARN_ONCE", "AT_WARN"):
        f.emit(f"warnings.warn({message(f, arguments)}, stacklevel=2)")
        return True
    match = re.match(r"(?:TORCH_CHECK|CHECK|TORCH_INTERNAL_ASSERT)_(EQ|NE|LT|LE|GT|GE)\Z", name)
    if match and len(arguments) == 2:
        a, b = f.value(arguments[0]), f.value(arguments[1])
        operator = _COMPARED[match[1]]
        found = compared(operator, a, b) if a.type.number and b.type.number else combined(f, node, operator, a, b)
        shown = f"Check failed: {text_of(arguments[0])} {operator} {text_of(arguments[1])} ("
        pieces = [
            (False, shown),
            (True, f"text({a.code})"),
            (False, " vs. "),
            (True, f"text({b.code})"),
            (False, "). "),
        ]
        with f.block(f"if {negated(found.code)}:"):
            f.emit(f"raise RuntimeError({quoted(pieces)})")
        return True
    if name == "TORCH_CHECK_NOTNULL" or name == "CHECK_NOTNULL":
        raise NotTranslated(f"`{short(node)}`", node)
    return False


def _of_cpu(test: str) -> str:
    """A check's condition in which ``!x.is_cuda()`` asks for a tensor of the CPU, even where such pass for CUDA's."""
    if "not is_cuda(" not in test:
        return test
    tree = ast.parse(test, mode="eval").body

    def turned(node: ast.expr) -> ast.expr:
        if isinstance(node, ast.BoolOp):
            node.values = [turned(one) for one in node.values]
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not) and isinstance(node.operand, ast.Call):
            call = node.operand
            if isinstance(call.func, ast.Name) and call.func.id == "is_cuda":
                return ast.parse(f"device_type({ast.unparse(call.args[0])}) == 'cpu'", mode="eval").body
        return node

    made = turned(tree)
    return f"({ast.unparse(made)})" if isinstance(made, ast.BoolOp) else ast.unparse(made)


def _said(f: Context, name: str, condition: Any) -> str:
    """What a check without words says."""
    text = " ".join(text_of(condition).split())
    if name == "assert":
        return repr(f"Assertion `{text}' failed.")
    if name.startswith(("TORCH_INTERNAL_ASSERT", "AT_ASSERT")) and name != "AT_ASSERTM":
        line = f.line(condition.start_point[0])
        return repr(f'{text} INTERNAL ASSERT FAILED at "{f.function.path}":{line}, please report a bug to PyTorch. ')
    return f"expected({text!r})"


_INVERSE = {"==": "!=", "!=": "==", "<": ">=", ">=": "<", ">": "<=", "<=": ">", "is": "is not", "is not": "is"}


def negated(code: str) -> str:
    """``not code``, by its comparison turned round where that is the same."""
    try:
        tree = ast.parse(code, mode="eval").body
    except SyntaxError:
        return f"not {code}"
    if isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.Not):
        return ast.unparse(tree.operand)
    if (
        isinstance(tree, ast.Compare)
        and len(tree.ops) == 1
        and isinstance(tree.ops[0], ast.Eq | ast.NotEq | ast.Is | ast.IsNot)
    ):
        turned = {ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is}
        tree.ops = [turned[type(tree.ops[0])]()]
        return ast.unparse(tree)
    return f"not {code}"
