"""Running maxima and minima: variables that an iteration keeps, or replaces by what is computed without them."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from rawkern.gradients.analysis.loops import rests_on
from rawkern.gradients.index import scev
from rawkern.gradients.ir import COLLECTIVE, Barrier, Carried, If, Loop, Store, Value, inside, operands, walk


def maximum(c: Carried, uses: Counter[Value]) -> tuple[Value, str, Value] | None:
    """What a running maximum (">") or minimum ("<") is taken of, if the variable is one and used for nothing else.

    So is a variable that an iteration either keeps or replaces by what is computed without it ("if" a condition), as
    that of the nearest neighbor, which the condition may compare.
    """
    v = c.next
    if (of := _extremum(v)) is not None:
        others = [a for a in v.args if a is not c.phi]
        return (others[0], of, v) if len(others) == 1 and uses[c.phi] == uses[v] == 1 else None
    test, sides = _choice(v)
    if test is None or sides[1] is not c.phi or uses[v] != 1 or not inside(v.block, sides[0].block):
        return None
    keeper: Any = v.attr if v.op == "result" else v
    return (sides[0], "if", test) if _only_decides(c, keeper, test, sides[0]) else None


def _extremum(v: Value) -> str | None:
    """ ">" of a call of fmax, "<" of one of fmin."""
    name = v.attr[0].name if v.op == "call" and not isinstance(v.attr, str) else ""
    return {"fmax": ">", "fmin": "<"}.get(name)


def _choice(v: Value) -> tuple[Value | None, tuple[Value, ...]]:
    """What decides between two values, and these."""
    if v.op == "result" and isinstance(v.attr, If):
        return v.attr.condition, next((a, b) for r, a, b in v.attr.results if r is v)
    return (v.args[0], v.args[1:]) if v.op == "select" else (None, ())


def changes(c: Carried, uses: Counter[Value]) -> Value | None:
    """Of a running maximum under conditions, or of a loop in the loop: the value that takes what is new.

    An iteration keeps the variable, or replaces it by what is computed without it; nothing else asks for it. So the
    last iteration that changed it is all that matters.
    """
    phi, v, kept = c.phi, c.next, 0  # how often it is kept on the way
    while v is not phi and uses[v] == 1 and inside(v.block, phi.attr.body):
        test, sides = _choice(v)
        others = [side for side in sides if side is not phi]
        if test is None or len(others) != 1:
            return v if _takes(v, phi, uses, kept) else None
        kept += 1
        if not rests_on(others[0], phi):
            return v if sides[1] is phi and uses[phi] == kept + _asked(test, phi, uses) else None
        v = others[0] if v.op == "result" and not rests_on(test, phi) else phi
    return None


def _takes(v: Value, phi: Value, uses: Counter[Value], kept: int) -> bool:
    """Whether a value is an extremum with what a variable has no part in, or a loop in the loop goes on with it."""
    if v.op == "result" and isinstance(v.attr, Loop):
        return _runs_on(v, phi, uses, kept)
    others = [a for a in v.args if a is not phi]
    alone = uses[phi] == kept + 1 and len(others) == 1
    return _extremum(v) is not None and alone and not rests_on(others[0], phi)


def _runs_on(v: Value, phi: Value, uses: Counter[Value], kept: int) -> bool:
    """Whether a loop in the loop goes on with the variable in the same way."""
    inner = next(each for each in v.attr.carried if each.result is v)
    alike = maximum(inner, uses) is not None or changes(inner, uses) is not None
    return inner.init is phi and uses[phi] == kept + 1 and alike and chooses(v.attr, inner)


def _asked(test: Value, phi: Value, uses: Counter[Value]) -> float:
    """How often a test asks for a loop's variable; endless if what it computes with that is used for more."""
    tree, left = {test}, [test]
    while left:
        v = left.pop()
        if v.op in ("phi", "result") and v is not phi and rests_on(v, phi):
            return math.inf
        left += [a for a in v.args if a not in tree]
        tree.update(v.args)
    inner = Counter(a for v in tree for a in v.args)
    with_it = (v for v in tree - {phi} if rests_on(v, phi))
    return inner[phi] if all(uses[v] == inner[v] + (v is test) for v in with_it) else math.inf


def _only_decides(c: Carried, keeper: Any, test: Value, new: Value) -> bool:
    """Whether a variable is kept once, by `keeper`, and else only a part of the test that this asks."""
    loop: Any = c.phi.attr
    tree, left = set(), [test]
    while left:
        value = left.pop()
        left += [a for a in value.args if a not in tree]
        tree.add(value)
    depends = {c.phi}
    for item in [*walk(loop.test), *walk(loop.body)]:
        used = [v for v in operands(item) if v in depends]
        if item is keeper:
            if used.count(c.phi) != 1 or new in depends:
                return False
        elif used and item in tree:
            depends.add(item)
        elif used:
            return False
    return not any(each.init is c.phi or each.next is c.phi for each in loop.carried)


def chooses(loop: Loop, c: Carried) -> bool:
    """Whether the iteration that sets a running maximum is all that its backward needs: any can be begun alone."""
    steps = scev.induction(loop)
    return all(other is c or other.phi in steps for other in loop.carried) and not any(
        isinstance(i, Store | Barrier)
        or (isinstance(i, Loop) and not any(each.init is c.phi for each in i.carried))
        or (isinstance(i, Value) and i.op in COLLECTIVE)
        for i in walk(loop.body)
    )
