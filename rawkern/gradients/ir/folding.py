"""Integer operators on what is known, as C computes them."""

from __future__ import annotations

import operator
from collections.abc import Callable

OPERATORS: dict[str, Callable[[int, int], int]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.floordiv, "%": operator.mod,
    "<<": operator.lshift, ">>": operator.rshift, "<": operator.lt, ">": operator.gt, "<=": operator.le,
    ">=": operator.ge, "==": operator.eq, "!=": operator.ne, "&": operator.and_, "|": operator.or_, "^": operator.xor,
}  # fmt: skip


def folded(sign: str, a: int | None, b: int | None, kind: str) -> int | None:
    """The result of an integer operator on what is known; None where C leaves it open."""
    if a is None or b is None or (sign in "/%" and (b <= 0 or a < 0)):
        return None
    if sign in ("<<", ">>") and not (0 <= b < 31 and a >= 0):
        return None
    if sign in ("&", "|", "^") and (a < 0 or b < 0):
        return None
    found = int(OPERATORS[sign](a, b))
    return found if (0 if kind.startswith("unsigned") else -(2**31)) <= found < 2**31 else None
