"""Literals: numbers with their types, text, characters."""

from __future__ import annotations

import ast
import re
from typing import Any

from rawkern.base.tree import named, text_of
from rawkern.extensions import types as t
from rawkern.extensions.arithmetic import negative
from rawkern.extensions.context import Context, expression, short
from rawkern.extensions.types import LIMITS, Type
from rawkern.extensions.untranslated import NotTranslated
from rawkern.extensions.values import Value, converted

_NUMBER = re.compile(r"(0[xX][\da-fA-F]+|0[bB][01]+|\d+)([uUlLzZ]*)\Z")


@expression("number_literal")
def number(f: Context, node: Any) -> Value:
    text = text_of(node).replace("'", "")
    if text[0] in "+-":  # the tree takes a sign for a part of the number
        found = _number(text[1:].lstrip())
        return negative(found) if text[0] == "-" else found
    return _number(text)


def _number(text: str) -> Value:
    match = _NUMBER.match(text)
    if match is None:
        single = text.lower().endswith("f") and not text.lower().startswith("0x")
        digits = text.rstrip("fFlL")
        number_ = float.fromhex(digits) if digits.lower().startswith("0x") else float(digits)
        code = digits if not digits.lower().startswith("0x") else repr(number_)
        code = "0" + code if code.startswith(".") else code + "0" if code.endswith(".") else code
        code = repr(number_) if "e" not in code.lower() else code
        return converted(Value(code, t.DOUBLE), t.FLOAT) if single else Value(code, t.DOUBLE)
    digits, suffix = match[1], match[2].lower()
    octal = len(digits) > 1 and digits[0] == "0" and digits.isdigit()
    value = int(digits, 8) if octal else int(digits, 0)
    decimal = digits.isdigit() and not octal
    names = ["uint64", "uint64"] if "u" in suffix and "l" in suffix else None
    names = names or (["uint32", "uint64"] if "u" in suffix else None)
    names = names or (["int64", "uint64"] if "l" in suffix else None)
    names = names or (["int32", "int64"] if decimal else ["int32", "uint32", "int64", "uint64"])
    name = next((one for one in names if value <= LIMITS[one][1]), names[-1])
    return Value(digits if decimal else hex(value), Type("int", name), value, value)


@expression("true", "false")
def boolean(f: Context, node: Any) -> Value:
    return Value(text_of(node).capitalize(), t.BOOL)


@expression("null", "nullptr")
def null(f: Context, node: Any) -> Value:
    return Value("None", t.NULL)


@expression("string_literal", "concatenated_string", "raw_string_literal")
def string(f: Context, node: Any) -> Value:
    if node.type == "concatenated_string":
        return Value(repr("".join(ast.literal_eval(f.value(one).code) for one in named(node))), t.STRING)
    text = text_of(node)
    if node.type == "raw_string_literal":
        inside = re.match(r'\w*R"([^()\\ ]*)\((.*)\)\1"\Z', text, re.S)
        return Value(repr(inside[2] if inside else ""), t.STRING)
    try:
        return Value(repr(ast.literal_eval(text.lstrip("LuU8"))), t.STRING)
    except (SyntaxError, ValueError):
        raise NotTranslated(f"the literal {short(node)}", node) from None


@expression("char_literal")
def character(f: Context, node: Any) -> Value:
    code = ord(ast.literal_eval(text_of(node)))
    return Value(str(code), Type("int", "int8"), code, code)
