"""Conditions in statements that hold for a whole block if they hold for its first and last place along each axis.

Comparisons of integers that are linear in a thread's place hold for all places between two if they hold for both. That
is so in all integers, and so in C's while nothing wraps around: signed integers must not; of what is computed modulo
2^32, only a place and a few more is compared.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Any

from rawkern.gradients import types
from rawkern.gradients.code import expressions as expr
from rawkern.gradients.code.expressions import OWN, Binary, Cast, Literal, Name, Node, Ternary, Unary
from rawkern.gradients.index.affine import Terms as Poly
from rawkern.gradients.index.affine import add, multiply
from rawkern.gradients.ir import Kernel

FEW = 1 << 20
INTEGERS = ("int", "unsigned int", "long long", "unsigned long long")  # the types of those that are looked at
_COMPARED = {"<": ">=", "<=": ">", ">": "<=", ">=": "<"}


@dataclass(frozen=True)
class _Comparison:
    left: Node
    sign: str
    right: Node
    less: Mapping[tuple[Any, ...], int]  # left less right
    modulo: bool  # whether it is made modulo 2^32

    @property
    def at_most(self) -> Poly:
        """It as an integer that is at most 0."""
        p = add({}, dict(self.less), 1 if self.sign in ("<", "<=") else -1)
        return add(p, {(): 1}) if self.sign in ("<", ">") else p

    def implies(self, other: _Comparison) -> bool:
        """Whether it says at least what another does, of the same integers."""
        rest = add(self.at_most, other.at_most, -1)
        return self.modulo == other.modulo and all(key == () for key in rest) and rest.get((), 0) >= 0


class Unknown(Exception):
    """An integer that is not a polynomial of places and numbers of the launch."""


class Conditions:
    """What is known of the integers in statements, and which conditions were taken to hold."""

    def __init__(self, kernel: Kernel, whole: Mapping[str, Poly], sizes: Set[str]) -> None:
        self.kernel, self.whole = kernel, whole
        self.place: dict[str, str] = {}  # by axis: the name of a thread's place
        self.kinds: dict[str, str] = {}
        self.defined: dict[str, Node] = {}  # constants of the statements
        self.polys: dict[str, Poly] = {}
        self.modulo = {n for n, kind, _ in kernel.params if str(kind).startswith("unsigned")}  # integers that wrap
        self.held: list[_Comparison] = []
        numbers = {n: kind for n, kind, pointer in kernel.params if not pointer and isinstance(kind, str)}
        self.params = sizes | {n for n, kind in numbers.items() if not types.is_float(kind)}

    def hold(self, condition: Node, only_known: bool = False) -> bool:
        """Take a condition to hold, if it can be asked of a whole block."""
        found = self._comparison(condition)
        if found is None:
            return False
        if only_known:
            return any(held.implies(found) for held in self.held)
        self.held.append(found)
        return True

    def fails(self, condition: Node, only_known: bool = False) -> bool:
        """Take each of some alternatives to fail, if they can be asked of a whole block."""
        others = [_negated(part) for part in parts(condition, "||")]
        if any(other is None or self._comparison(other) is None for other in others):
            return False
        return all(self.hold(other, only_known) for other in others if other)

    def define(self, kind: str, name: str, value: Node) -> None:
        try:
            p = self.poly(value)
        except Unknown:
            return
        if kind == "int" and any(isinstance(e, Cast) and "long" in e.type for e in expr.nodes(self._expanded(value))):
            return  # what does not fit is cut off
        axis = next((a for a, whole in self.whole.items() if p == whole and a not in self.place), None)
        if axis is not None:
            self.place[axis] = name
        self.kinds[name], self.polys[name] = kind, p
        plain = kind == "int" and not self._wraps(value)
        self.defined[name] = value if plain else Cast(kind, value)  # of its type elsewhere, too
        if kind != "int" or (axis is None and self._wraps(value) and self._shifted(p) is None):
            self.modulo.add(name)

    def ends(self, axis: str) -> tuple[Node, Node]:
        """The first and the last place of a block along an axis."""
        n = self.kernel.block["xyz".index(axis)]
        if self.kernel.grid["xyz".index(axis)] == 1:
            return Literal("0"), Literal(str(n - 1))
        block = expr.special(f"blockIdx.{axis}")
        return (block * n, block * n + (n - 1)) if n > 1 else (block, block)

    # Comparisons --------------------------------------------------------------------------------------------------

    def _comparison(self, e: Node) -> _Comparison | None:
        """A comparison of integers that depends on a thread's place and is linear in each axis."""
        if not isinstance(e, Binary) or e.sign not in _COMPARED:
            return None
        try:
            sides = self.poly(e.left), self.poly(e.right)
        except Unknown:
            return None
        p, places = add(sides[0], sides[1], -1), self._places()
        own = {s for key in p for s in key if s in places}
        linear = all(sum(s in own for s in key) == len({s for s in key if s in own}) for key in p)
        raw = any(isinstance(s, str) and s.startswith(("threadIdx", "blockIdx")) for key in p for s in key)
        wraps = self._wraps(e)
        if not own or raw or not linear or (wraps and not _place_alone(sides, set(places))):
            return None
        return _Comparison(e.left, e.sign, e.right, p, wraps)

    def _wraps(self, e: Node) -> bool:
        """Whether some of it may be computed modulo 2^32."""
        match e:
            case Literal(text):
                return text.rstrip("lL").endswith(("u", "U"))
            case Name(name):
                return name in self.modulo or name.startswith(OWN)
            case Cast("int", Name(name)) if name.startswith(OWN):
                return False
            case Cast("int", Binary() | Unary() | Ternary()):
                return True
            case Cast(kind) if kind.startswith("unsigned"):
                return True
        return any(map(self._wraps, expr.children(e)))

    def _shifted(self, p: Poly) -> tuple[str, int] | None:
        """An integer as a place and a small number, which no wrapping around changes once it is an int."""
        shift, names = p.get((), 0), [s for s in self._places() if p.get((s,)) == 1]
        fits = len(names) == 1 and len(p) == 1 + (() in p) and abs(shift) < FEW
        return (self._places()[names[0]], shift) if fits else None

    def _places(self) -> dict[str, str]:
        """The symbols of places, and their names."""
        return {f"at {a}": n for a, n in self.place.items()}

    def asked(self, ends: dict[str, tuple[str, str]]) -> list[Node]:
        """The conditions that were taken to hold, at the ends of a block's places."""
        found: list[Node] = []
        self.held.sort(key=lambda held: max(map(len, held.less), default=0))
        for k, held in enumerate(self.held):  # products last: what bounds them comes before
            if any(
                other.implies(held) and (i < k or not held.implies(other))
                for i, other in enumerate(self.held)
                if i != k
            ):
                continue
            whole = Binary(held.sign, self._expanded(held.left), self._expanded(held.right))
            for corner in self._corners(held):
                new = {self._places()[s]: Name(ends[self._places()[s]][end]) for s, end in corner.items()}
                found.append(expr.substituted(whole, new))
        return list(dict.fromkeys(found))

    def _corners(self, held: _Comparison) -> Iterator[dict[str, int]]:
        """For which ends of the places a comparison is the hardest to meet: 0 for the first, 1 for the last."""
        choices: dict[str, tuple[int, ...]] = {}
        for s in self._places():
            keys = [key for key in held.less if s in key]
            if len(keys) == 1 and len(keys[0]) == 1:
                choices[s] = (int((held.less[keys[0]] > 0) == (held.sign in ("<", "<="))),)
            elif keys:
                choices[s] = (0, 1)
        for picked in itertools.product(*choices.values()):
            yield dict(zip(choices, picked, strict=True))

    def _expanded(self, e: Node) -> Node:
        """With constants of the statements by what they are, but for the places themselves."""

        def value(each: Node) -> Node | None:
            if not isinstance(each, Name) or each.name in self.place.values() or each.name not in self.defined:
                return None
            if shifted := self._shifted(self.polys[each.name]):
                place, by = Name(shifted[0]), shifted[1]
                return place + by if by > 0 else place - -by if by else place
            return self._expanded(self.defined[each.name])

        return expr.mapped(e, value)

    # Integers -----------------------------------------------------------------------------------------------------

    def poly(self, e: Node) -> Poly:
        """An integer as a polynomial of places and numbers of the launch."""
        match e:
            case Literal() if (n := expr.integer(e)) is not None:
                return {(): n} if n else {}
            case Name(name):
                return self._variable(name)
            case Cast(kind, of) if kind in INTEGERS:
                return self.poly(of)
            case Unary("-", of):
                return add({}, self.poly(of), -1)
            case Binary("*", left, right):
                return multiply(self.poly(left), self.poly(right))
            case Binary("+" | "-" as sign, left, right):
                return add(self.poly(left), self.poly(right), 1 if sign == "+" else -1)
            case Binary("/" | "%") if set(expr.names(e)) <= self.params:
                for each in (e.left, e.right):
                    self.poly(each)  # or it is unknown
                return {(expr.mapped(e, _unconverted),): 1}
        raise Unknown

    def _variable(self, name: str) -> Poly:
        if name in self.polys:
            axis = next((a for a, n in self.place.items() if n == name), None)
            return {(f"at {axis}",): 1} if axis else self.polys[name]
        of, _, axis = name.partition(".")
        k = "xyz".find(axis) if axis else -1
        extents = {"threadIdx": self.kernel.block, "blockIdx": self.kernel.grid}.get(of)
        if k >= 0 and extents is not None and extents[k] == 1:
            return {}
        if k >= 0 and of == "blockDim":
            return {(): self.kernel.block[k]}
        if name in self.params or (k >= 0 and of in OWN):
            return {(name,): 1}
        raise Unknown


def _unconverted(e: Node) -> Node | None:
    return expr.mapped(e.of, _unconverted) if isinstance(e, Cast) else None


def _place_alone(sides: tuple[Poly, Poly], places: Set[str]) -> bool:
    """Whether one side is a place, and perhaps a few more, and the other has none: nothing wraps in a block."""
    counts = [sum(s in places for key in p for s in key) for p in sides]
    side = sides[counts.index(max(counts))]
    few = all((key == () and 0 < v < FEW) or (len(key) == 1 and key[0] in places and v == 1) for key, v in side.items())
    return sorted(counts) == [0, 1] and few


def _negated(e: Node) -> Node | None:
    """The opposite of a comparison; None for what is not one."""
    if isinstance(e, Unary) and e.sign == "!":
        return e.of
    return Binary(_COMPARED[e.sign], e.left, e.right) if isinstance(e, Binary) and e.sign in _COMPARED else None


def parts(e: Node, by: str) -> list[Node]:
    """The operands of && or ||, however they are grouped."""
    return [*parts(e.left, by), *parts(e.right, by)] if isinstance(e, Binary) and e.sign == by else [e]
