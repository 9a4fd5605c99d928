"""PTX text as tokens: words, numbers, strings and punctuation, whatever blanks and comments stand between them.

A mnemonic or a name with its suffixes is one token (``ld.global.L1::no_allocate.f32``, ``%tid.x``), a directive another
(``.reg``); so is a whole ``.section``, which holds nothing but debug information.
"""

from __future__ import annotations

import re
from itertools import islice

from rawkern.errors import UnsupportedError

_TOKEN = re.compile(
    r"""
    (?: \s+ | //[^\n]* | /\*.*?\*/ )*
    (
      (?: [A-Za-z_][\w$]* | [$%][\w$]+ ) (?: \.\w+ (?: ::\w+ )* )*    # a name or a mnemonic
    | 0[A-Za-z]\w* | \d+\.\d*(?:[eE][+-]?\d+)? | \d+[eE][+-]?\d+ | \d\w*    # a number
    | \.\d+(?:[eE][+-]?\d+)?(?!\w)
    | \.section\b[^{}]*\{[^{}]*\}
    | \.\w+ (?: ::\w+ )*    # a directive or a suffix
    | "[^"]*"
    | << | >> | <= | >= | == | != | && | \|\| | \S
    )
    """,
    re.X | re.S,
)
_OPEN, _CLOSE = frozenset("([{"), frozenset(")]}")

END = ""  # follows the last token
#: What reading raises where text is not PTX at all, besides UnsupportedError.
MALFORMED = (IndexError, KeyError, ValueError, TypeError, AttributeError, RecursionError)


def tokens(text: str) -> list[str]:
    return [*_TOKEN.findall(text), END]


def line_of(text: str, number: int) -> int:
    """The line in which a token stands."""
    found = next(islice(_TOKEN.finditer(text), number, None), None)
    return text.count("\n", 0, found.start(1) if found else len(text)) + 1


def is_name(token: str) -> bool:
    return token[:1].isalpha() or (token[:1] in ("_", "$", "%") and len(token) > 1)


def split(part: list[str]) -> list[list[str]]:
    """Split tokens at the commas outside of brackets."""
    if not part:
        return []
    found: list[list[str]] = [[]]
    depth = 0
    for token in part:
        if token == "," and not depth:
            found.append([])
            continue
        if token in _OPEN:
            depth += 1
        elif token in _CLOSE:
            depth -= 1
            if depth < 0:
                break
        found[-1].append(token)
    if depth or not all(found):
        raise UnsupportedError(f"PTX operands not understood: {shown(part)!r}")
    return found


def closing(stream: list[str], pos: int) -> int:
    """Where the bracket at `pos` is closed; the end of the text if it is not."""
    depth = 0
    for at in range(pos, len(stream)):
        if stream[at] in _OPEN:
            depth += 1
        elif stream[at] in _CLOSE:
            depth -= 1
            if depth == 0:
                return at
    return len(stream) - 1


def semicolon(stream: list[str], pos: int) -> int:
    """Where the next semicolon stands, or the text's end."""
    try:
        return stream.index(";", pos)
    except ValueError:
        return len(stream) - 1


def shown(part: list[str]) -> str:
    """Tokens as text, for a message."""
    return re.sub(r" (?=[,;:)\]}])|(?<=[(\[{@!]) ", "", " ".join(part))
