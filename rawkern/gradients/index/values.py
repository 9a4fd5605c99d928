"""Polynomials in numbers of a launch, once these are known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from rawkern.gradients.index.affine import Poly, poly
from rawkern.gradients.ir import Value

MOST = 2**31 - 1  # numbers above may have been meant to wrap around


class Unknown(Exception):
    """Nothing is certain."""


def value_of(p: Poly, known: Mapping[str, int]) -> int:
    """What a polynomial is; `Unknown` where it may be computed with another result than in all integers."""
    total = 0
    for key, value in p.items():
        for s in key:
            value *= _symbol(s, known)
        total += value
    if abs(total) > MOST:
        raise Unknown
    return total


def _symbol(symbol: Any, known: Mapping[str, int]) -> int:
    if is_quotient(symbol):
        a, b = (value_of(poly(x), known) for x in symbol.args)
        by = b if symbol.attr == "/" else 1 << b if 0 <= b < 31 else 0
        if a < 0 or by < 1:
            raise Unknown
        return a // by
    if symbol not in known or abs(known[symbol]) > MOST:
        raise Unknown
    return known[symbol]


def is_quotient(s: Any) -> bool:
    """Whether a symbol is a quotient of what has a value, once digits have."""
    divides = isinstance(s, Value) and s.op == "binary" and s.attr in ("/", ">>")
    return divides and all(has_value(poly(a)) for a in s.args)


def has_value(p: Poly) -> bool:
    """Whether a polynomial has a value at a launch, once its digits have."""
    return all(not isinstance(s, Value) or is_quotient(s) for s in p.symbols)


def numbers_of(arguments: Mapping[str, Any], grid: tuple[int, int, int]) -> dict[str, int]:
    """The integers among a launch's arguments, members of structs and sizes of tensors too, and its grid."""
    structs = {name: value for name, value in arguments.items() if isinstance(value, Mapping)}
    found = {f"{name}.{n}": v for name, value in structs.items() for n, v in value.items() if isinstance(v, int)}
    found |= {n: v for n, v in arguments.items() if isinstance(v, int)}
    tensors = {name: value for name, value in arguments.items() if isinstance(value, torch.Tensor)}
    found |= {f"{name}.size({k})": size for name, value in tensors.items() for k, size in enumerate(value.shape)}
    return found | {f"gridDim.{axis}": n for axis, n in zip("xyz", grid, strict=True)}


def number_of(p: Poly, arguments: Mapping[str, Any], grid: tuple[int, int, int]) -> int | None:
    """A number of a launch; None where that is not certain."""
    try:
        return value_of(p, numbers_of(arguments, grid))
    except Unknown:
        return None


def at_most(low: Poly, high: Poly, arguments: Mapping[str, Any], grid: tuple[int, int, int]) -> bool:
    """Whether one number of a launch is surely at most another."""
    a, b = (number_of(p, arguments, grid) for p in (low, high))
    return a is not None and b is not None and a <= b
