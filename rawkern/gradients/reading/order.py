"""The order in which C++17 evaluates what has side effects; where it leaves that open, the source is rejected.

An assignment evaluates its right side first. Operands and arguments come in any order, so none may change what another
needs; only calls among them may, because they do not overlap with others, and are compiled from left to right.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any

from rawkern.base.tree import text_of
from rawkern.gradients.ir import Array
from rawkern.gradients.reading.context import Context, Noted
from rawkern.gradients.reading.handlers import cuda_functions
from rawkern.gradients.reading.places import Cell, Given, Var
from rawkern.gradients.reading.syntax import CHANGES, calls, contains


def apart(ctx: Context, node: Any, operands: Sequence[Any], read: Callable[[Any], Any]) -> list[Any]:
    """Read operands that come in any order."""
    if not any(contains(getattr(o, "node", o), (*CHANGES, "call_expression")) for o in operands):
        return [read(each) for each in operands]
    pairs = [_noting(ctx, lambda each=each: read(each)) for each in operands]
    for (_, first), (_, second) in combinations(pairs, 2):
        _refuse_clash(ctx, node, first, second)
    return [found for found, _ in pairs]


def of_values(*names: str, arguments: int | None = None) -> Callable[[Any], Any]:
    """Register the function below for calls of these of CUDA's functions: (ctx, node, name, what each argument is)."""

    def register(function: Any) -> Any:
        @cuda_functions(*names, arguments=arguments)
        def handler(ctx: Context, node: Any, name: str, given: Sequence[Any]) -> Any:
            return function(ctx, node, name, *apart(ctx, node, given, ctx.expression))

        return function

    return register


def right_first(ctx: Context, left: Any, right: Any) -> bool:
    """Whether it makes a difference that the right side of an assignment comes first."""
    if right.type == "initializer_list" or left.type == "identifier":
        return False
    return (
        any(name in ctx.file.functions for name in calls(right))
        or contains(left, (*CHANGES, "call_expression"))
        or contains(right, (*CHANGES, "lambda_expression"))
    )


def assigned_to(ctx: Context, node: Any, right: Callable[[], Any], left: Callable[[], Any]) -> tuple[Any, Any]:
    """Right and left side of an assignment, read in this order."""
    value, first = _noting(ctx, right)
    found, second = _noting(ctx, left)
    _refuse_clash(ctx, node, [each for each in first if each.late], [b._replace(depth=-1) for b in second])
    return value, found


def _noting(ctx: Context, make: Callable[[], Any]) -> tuple[Any, list[Noted]]:
    """Call, and tell what that reads and changes."""
    noted: list[Noted] = []
    with ctx.using(noted=noted):
        found = make()
        place = found.found if isinstance(found, Given) else found
        if isinstance(place, Var):  # read later, by whom it is given to
            ctx.note_variable(place, late=True)
        elif isinstance(place, Cell):
            ctx.note(place.place.array, False, late=True)
    if ctx.noted is not None:
        ctx.noted += [each._replace(late=False) for each in noted]
    return found, noted


def _refuse_clash(ctx: Context, node: Any, first: Sequence[Noted], second: Sequence[Noted]) -> None:
    """Reject two operands one of which changes what the other needs, unless a call does and they come in order."""
    here = len(ctx.callers)
    for a in first:
        for b in second:
            alike = a.what == b.what if isinstance(a.what, Array) else a.what is b.what
            own = any(each.changed and each.depth == here for each in (a, b))
            if alike and (own or (b.changed and a.late)):
                raise ctx.refuse(
                    node, f"{text_of(node)!r} changes {a.what.name} and uses it, in an order that C++ leaves open",
                    "write two statements",
                )  # fmt: skip
