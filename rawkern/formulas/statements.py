"""C statements of formulas as text, without the code that differentiates them."""

from __future__ import annotations

import re

#: Why a formula has no derivative, with a parameter's name.
NO_COMPLEX = "{} is complex, and derivatives are derived of real numbers; pass backward= with the statements for it"


def names_in(text: str) -> set[str]:
    """Return the identifiers that stand in a piece of C, comments and strings aside."""
    text = re.sub(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\])*\"", " ", text, flags=re.S)
    return set(re.findall(r"(?<![\w.])[A-Za-z_]\w*", text))


def closed(statements: str) -> str:
    """Return statements after which others can stand on the same line: what ends in a comment ends its line."""
    statements = statements.rstrip().rstrip(";")
    return f"{statements}\n;" if re.search(r"(//|^\s*#)[^\n]*\Z", statements, re.M) else f"{statements};"
