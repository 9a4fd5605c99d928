"""Expressions of CUDA C as text: operands in parentheses where C would read them otherwise, sums, polynomials."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any


def thread_number(block: tuple[int, int, int]) -> str:
    """The number of a thread in its block."""
    thread = "threadIdx.x" if block[1] == block[2] == 1 else f"threadIdx.x + {block[0]} * threadIdx.y"
    return thread + (f" + {block[0] * block[1]} * threadIdx.z" if block[2] != 1 else "")


def is_product(text: str) -> bool:
    """Whether a text is a product or quotient, or a single operand: nothing in it binds less than that."""
    return re.fullmatch(r"[\w.]+( [*/] [\w.]+)*", masked(text)) is not None


def masked(text: str) -> str:
    """A text with as many underscores for what stands in parentheses and brackets, and for those."""
    before = ""
    while before != text:
        before, text = text, re.sub(r"\([^()]*\)|\[[^\[\]]*\]", lambda m: "_" * len(m[0]), text)
    return text


def total(terms: Sequence[str]) -> str:
    """The sum of terms, as an expression."""
    text = ""
    for term in terms:
        minus = term.startswith("-") and is_product(term[1:])
        plain = minus or bare(term) != term or (not term.startswith("-") and not re.search(r"[?<>=&|^%]", term))
        part = term if plain else f"({term})"
        text = part if not text else f"{text} - {part[1:]}" if minus else f"{text} + {part}"
    return text


_WHOLE = re.compile(r"\d[\w.]*e[-+]\d+f?|[\w.]+")  # a number, a name, a call, an element, what is converted
_SUMS, _PRODUCTS, _COMPARISONS = ("+", "-"), ("*", "/"), ("<", "<=", ">", ">=", "==", "!=")


def operand(text: str, inner: str | None, operator: str | None = None, last: bool = True) -> str:
    """An operand, which the operator `inner` computes: in parentheses where C would read it otherwise."""
    looser = (inner in _PRODUCTS and operator in _SUMS) or (inner in (*_SUMS, *_PRODUCTS) and operator in _COMPARISONS)
    looser |= inner in _COMPARISONS and operator in ("&&", "||")
    same = any(inner in each and operator in each for each in (_SUMS, _PRODUCTS, ("&&",), ("||",))) and not last
    return text if looser or same or _WHOLE.fullmatch(masked(text)) else f"({text})"


def bare(text: str) -> str:
    """Without the parentheses around the whole."""
    if not (text.startswith("(") and text.endswith(")")):
        return text
    depth = 0
    for k, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if depth == 0 and k < len(text) - 1:
            return text
    return text[1:-1]


def written(p: Mapping[tuple[Any, ...], int]) -> str:
    """A polynomial of parameters and digits as C."""
    text = ""
    for key, value in p.items():
        parts = [s if isinstance(s, str) else _settled(s) for s in key]
        times = abs(value) if text else value  # no minus before the first, which may be unsigned and is then converted
        term = " * ".join([*parts, *([str(times)] if times != 1 or not parts else [])])
        text = f"{text} {'-' if value < 0 else '+'} {term}" if text else term
    return text or "0"


def _settled(v: Any) -> str:
    """A number of a launch as C."""
    if v.op == "binary":
        return f"({_settled(v.args[0])} {v.attr} {_settled(v.args[1])})"
    return _settled(v.args[0]) if v.op == "cast" else str(v.attr)
