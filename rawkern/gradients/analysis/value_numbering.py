"""What values are computed from, as keys: equal keys mean equal values, wherever in a kernel they stand."""

from __future__ import annotations

from typing import Any

from rawkern.gradients.index.affine import Poly, poly
from rawkern.gradients.index.scev import induction, plain
from rawkern.gradients.ir import Access, Block, If, Loop, Value, index_of


def key(value: Value, loop: Loop | None = None) -> Any:
    """What a value is computed from, so that equal keys mean equal values; None for what may change in the loop."""
    if value.op in ("const", "param", "special"):
        return (value.op, value.attr if value.const is None else value.const)
    if value.op == "phi" and value in induction(value.attr):
        if loop is not None and value.attr is loop:
            return None
        return key_of_loop(value.attr, loop, value)
    if value.op in ("cast", "unary", "binary", "select"):
        parts = [key(a, loop) for a in value.args]
        return None if None in parts else (value.op, value.type, value.attr, *parts)
    return None


def key_of_loop(inner: Loop, loop: Loop | None, phi: Value | None = None) -> Any:
    """What the iterations of a loop are computed from: start, step and bound of its variable."""
    test, steps = inner.condition, induction(inner)
    args = [plain(a) for a in test.args]
    phi = phi or next((a for a in args if a in steps), None)
    if inner is loop or test.op != "binary" or phi not in args or phi not in steps:
        return None
    # A bound that grows as well is what it starts with and its step: its key would ask for this one.
    bound = [part for a in args if a is not phi for part in steps.get(a, (a,))]
    parts = [key(v, loop) for v in (*steps[phi], *bound)]
    return None if None in parts else ("phi", test.attr, args.index(phi), *parts)


def reach(access: Access) -> Any:
    """What decides which elements a thread accesses: equal keys mean equal elements; None if not followed."""
    parts: list[Any] = [_keyed(poly(index)) for index in index_of(access)]
    block: Block | None = access.block
    while block is not None and block.parent is not None:
        parent = block.parent
        side = (
            (block is parent.then, key(parent.condition)) if isinstance(parent, If) else (0, key_of_loop(parent, None))
        )
        parts.append(None if side[1] is None else side)
        block = parent.block
    return None if None in parts else tuple(parts)


def _keyed(p: Poly) -> Any:
    found = []
    for symbols, value in p.items():
        keys = [s if isinstance(s, str) else key(s) if isinstance(s, Value) else key_of_loop(s, None) for s in symbols]
        if None in keys:
            return None
        found.append((tuple(sorted(keys, key=repr)), value))
    return tuple(sorted(found, key=repr))
