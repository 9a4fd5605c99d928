"""C statements of elementwise expressions as text, without the code that differentiates them."""

from __future__ import annotations

import functools
import re

#: Why statements have no derivative, with a parameter's name.
NO_COMPLEX = (
    "{} is complex, but derivatives are only derived for real numbers; pass backward= with the statements for it"
)


@functools.lru_cache(maxsize=1024)
def names_in(text: str) -> frozenset[str]:
    """Return the identifiers in a piece of C, except in comments and strings."""
    text = re.sub(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\])*\"", " ", text, flags=re.S)
    return frozenset(re.findall(r"(?<![\w.])[A-Za-z_]\w*", text))


def closed(statements: str) -> str:
    """Return statements that can be followed by others on the same line: a final comment gets a newline."""
    statements = statements.rstrip().rstrip(";")
    return f"{statements}\n;" if re.search(r"(//|^\s*#)[^\n]*\Z", statements, re.M) else f"{statements};"
