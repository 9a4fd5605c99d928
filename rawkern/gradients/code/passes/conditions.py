"""Conditions in lines of CUDA C that can be asked of a whole block: of its first and last place along each axis.

Comparisons of integers that are linear in a thread's place hold for all places between two if they hold for both. That
is so in all integers, and so in C's while nothing wraps around: signed integers must not; of what is computed modulo
2^32, only a place and a few more is compared.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator, Mapping, Set
from typing import Any

from rawkern.gradients import types
from rawkern.gradients.code.expressions import bare
from rawkern.gradients.index.affine import Terms as Poly
from rawkern.gradients.index.affine import add, multiply
from rawkern.gradients.ir import Kernel

FEW = 1 << 20
INTEGERS = re.compile(r"(?:unsigned |long )*(?:int|long|size_t)")  # the types of those that are looked at
_CAST = re.compile(r"\((unsigned int|unsigned long long|size_t|unsigned|long long|int)\)(?=[\w(])")
_MODULO = re.compile(r"unsigned|size_t|\b\d+[uU]|\(int\)\(|(?<!\(int\))\b(gridDim|blockDim|blockIdx|threadIdx)\.")
_COMPARED = {"<": ">=", "<=": ">", ">": "<=", ">=": "<"}
#: Left, operator, right; left less right; whether it is made modulo 2^32.
_Comparison = tuple[str, str, str, Poly, bool]


class Unknown(Exception):
    """An integer that is no polynomial of places and numbers of the launch."""


class Conditions:
    """What is known of the integers in lines, and which conditions were taken to hold."""

    def __init__(self, kernel: Kernel, whole: Mapping[str, Poly], sizes: Set[str]) -> None:
        self.kernel, self.whole = kernel, whole
        self.place: dict[str, str] = {}  # by axis: the name of a thread's place
        self.kinds: dict[str, str] = {}
        self.spelled: dict[str, str] = {}  # of constants in the lines, as they are defined
        self.polys: dict[str, Poly] = {}
        self.modulo = {n for n, kind, _ in kernel.params if str(kind).startswith("unsigned")}  # integers that wrap
        self.held: list[_Comparison] = []
        numbers = {n: kind for n, kind, pointer in kernel.params if not pointer and isinstance(kind, str)}
        self.params = sizes | {n for n, kind in numbers.items() if not types.is_float(kind)}

    def hold(self, condition: str, only_known: bool = False) -> bool:
        """Take a condition to hold, if it can be asked of a whole block."""
        found = self._comparison(condition)
        if found is None:
            return False
        if only_known:
            return any(_implies(held, found) for held in self.held)
        self.held.append(found)
        return True

    def fails(self, condition: str, only_known: bool = False) -> bool:
        """Take each of some alternatives to fail, if they can be asked of a whole block."""
        others = [_negated(part) for part in parts(condition, "||")]
        if any(other is None or self._comparison(other) is None for other in others):
            return False
        return all(self.hold(other, only_known) for other in others if other)

    def define(self, kind: str, name: str, text: str) -> None:
        try:
            p = self.poly(text)
        except Unknown:
            return
        if kind == "int" and "long" in self._expanded(text):
            return  # what does not fit is cut off
        axis = next((a for a, whole in self.whole.items() if p == whole and a not in self.place), None)
        if axis is not None:
            self.place[axis] = name
        self.kinds[name], self.polys[name] = kind, p
        plain = kind == "int" and not self._wraps(text)
        self.spelled[name] = text if plain else f"({kind})({text})"  # of its type elsewhere, too
        if kind != "int" or (axis is None and self._wraps(text) and self._shifted(p) is None):
            self.modulo.add(name)

    def ends(self, axis: str) -> tuple[str, str]:
        """The first and the last place of a block along an axis."""
        n = self.kernel.block["xyz".index(axis)]
        if self.kernel.grid["xyz".index(axis)] == 1:
            return "0", str(n - 1)
        first = f"blockIdx.{axis}" + (f" * {n}" if n > 1 else "")
        return first, f"{first} + {n - 1}" if n > 1 else first

    # Comparisons --------------------------------------------------------------------------------------------------

    def _comparison(self, text: str) -> _Comparison | None:
        """A comparison of integers that depends on a thread's place and is linear in each axis."""
        split = _compared(bare(text.strip()))
        if split is None:
            return None
        left, operator, right = split
        try:
            sides = self.poly(left), self.poly(right)
        except Unknown:
            return None
        p, places = add(sides[0], sides[1], -1), self._places()
        own = {s for key in p for s in key if s in places}
        linear = all(sum(s in own for s in key) == len({s for s in key if s in own}) for key in p)
        raw = any(s.startswith(("threadIdx", "blockIdx")) for key in p for s in key)
        wraps = self._wraps(f"{left} {operator} {right}")
        if not own or raw or not linear or (wraps and not _place_alone(sides, set(places))):
            return None
        return left, operator, right, p, wraps

    def _wraps(self, text: str) -> bool:
        """Whether some of it may be computed modulo 2^32."""
        return bool(_MODULO.search(text)) or not self.modulo.isdisjoint(re.findall(r"\w+", text))

    def _shifted(self, p: Poly) -> tuple[str, int] | None:
        """An integer as a place and a small number, which no wrapping around changes once it is an int."""
        shift, names = p.get((), 0), [s for s in self._places() if p.get((s,)) == 1]
        fits = len(names) == 1 and len(p) == 1 + (() in p) and abs(shift) < FEW
        return (self._places()[names[0]], shift) if fits else None

    def _places(self) -> dict[str, str]:
        """The symbols of places, and their names."""
        return {f"at {a}": n for a, n in self.place.items()}

    def asked(self, ends: dict[str, tuple[str, str]]) -> list[str]:
        """The conditions that were taken to hold, at the ends of a block's places."""
        found: list[str] = []
        self.held.sort(key=lambda held: max(map(len, held[3]), default=0))
        for k, (left, operator, right, p, _) in enumerate(self.held):  # products last: what bounds them comes before
            if any(
                _implies(other, self.held[k]) and (i < k or not _implies(self.held[k], other))
                for i, other in enumerate(self.held)
                if i != k
            ):
                continue
            lefts, rights = self._expanded(left), self._expanded(right)
            for corner in self._corners(operator, p):
                new = {self._places()[s]: ends[self._places()[s]][end] for s, end in corner.items()}
                found.append(f"{bare(_put(lefts, new))} {operator} {bare(_put(rights, new))}")
        return list(dict.fromkeys(found))

    def _corners(self, operator: str, p: Poly) -> Iterator[dict[str, int]]:
        """For which ends of the places a comparison is the hardest to meet: 0 for the first, 1 for the last."""
        choices: dict[str, tuple[int, ...]] = {}
        for s in self._places():
            keys = [key for key in p if s in key]
            if len(keys) == 1 and len(keys[0]) == 1:
                choices[s] = (int((p[keys[0]] > 0) == (operator in ("<", "<="))),)
            elif keys:
                choices[s] = (0, 1)
        for picked in itertools.product(*choices.values()):
            yield dict(zip(choices, picked, strict=True))

    def _expanded(self, text: str) -> str:
        """With constants of the lines by what they are, but for the places themselves."""

        def value(m: re.Match[str]) -> str:
            if m[0] in self.place.values() or m[0] not in self.spelled:
                return m[0]
            if shifted := self._shifted(self.polys[m[0]]):
                return (
                    f"({shifted[0]} {'+' if shifted[1] > 0 else '-'} {abs(shifted[1])})" if shifted[1] else shifted[0]
                )
            inner = self._expanded(self.spelled[m[0]])
            return inner if re.fullmatch(r"\w+", inner) else f"({inner})"

        return re.sub(r"(?<![\w.])[A-Za-z_]\w*", value, text)

    # Integers -----------------------------------------------------------------------------------------------------

    def poly(self, text: str) -> Poly:
        plain = re.sub(r"\b(\d+)(?:[uU]?[lL]{0,2})\b", r"\1", _CAST.sub("", text))
        try:
            return self._node(ast.parse(plain.strip(), mode="eval").body, plain.strip())
        except (SyntaxError, ValueError):
            raise Unknown from None

    def _node(self, node: Any, text: str) -> Poly:
        if isinstance(node, ast.Constant) and type(node.value) is int:
            return {(): node.value} if node.value else {}
        if isinstance(node, ast.Name) and node.id in self.polys:
            axis = next((a for a, n in self.place.items() if n == node.id), None)
            return {(f"at {axis}",): 1} if axis else self.polys[node.id]
        if isinstance(node, ast.Name) and node.id in self.params:
            return {(node.id,): 1}
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            k = "xyz".find(node.attr)
            extents = {"threadIdx": self.kernel.block, "blockIdx": self.kernel.grid}.get(node.value.id)
            if extents is not None and k >= 0:
                return {} if extents[k] == 1 else {(f"{node.value.id}.{node.attr}",): 1}
            if node.value.id == "blockDim":
                return {(): self.kernel.block[k]}
            if node.value.id == "gridDim":
                return {(f"gridDim.{node.attr}",): 1}
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return add({}, self._node(node.operand, text), -1)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub | ast.Mult):
            a, b = self._node(node.left, text), self._node(node.right, text)
            product = isinstance(node.op, ast.Mult)
            return multiply(a, b) if product else add(a, b, -1 if isinstance(node.op, ast.Sub) else 1)
        names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div | ast.Mod) and names <= self.params:
            return {(ast.unparse(node),): 1}
        raise Unknown


def _place_alone(sides: tuple[Poly, Poly], places: Set[str]) -> bool:
    """Whether one side is a place, and perhaps a few more, and the other has none: nothing wraps in a block."""
    counts = [sum(s in places for key in p for s in key) for p in sides]
    side = sides[counts.index(max(counts))]
    few = all((key == () and 0 < v < FEW) or (len(key) == 1 and key[0] in places and v == 1) for key, v in side.items())
    return sorted(counts) == [0, 1] and few


def _implies(held: _Comparison, wanted: _Comparison) -> bool:
    """Whether a comparison says at least what another does, of the same integers."""
    a, b = _at_most(held), _at_most(wanted)
    rest = add(a, b, -1)
    return held[4] == wanted[4] and all(key == () for key in rest) and rest.get((), 0) >= 0


def _at_most(c: _Comparison) -> Poly:
    """A comparison as an integer that is at most 0."""
    p = add({}, c[3], 1 if c[1] in ("<", "<=") else -1)
    return add(p, {(): 1}) if c[1] in ("<", ">") else p


def _compared(text: str) -> tuple[str, str, str] | None:
    """A comparison as its sides; None if it is anything else."""
    depth, found = 0, []
    for m in re.finditer(r"[()\[\]]|<=|>=|==|!=|<<|>>|[<>?&|]", text):
        depth += m[0] in "([" or -(m[0] in ")]")
        if depth == 0 and m[0] not in "()[]":
            found.append(m)
    if len(found) != 1 or found[0][0] not in _COMPARED:
        return None
    return text[: found[0].start()].strip(), found[0][0], text[found[0].end() :].strip()


def _negated(text: str) -> str | None:
    text = bare(text.strip())
    if text.startswith("!(") and bare(text[1:]) != text[1:]:
        return bare(text[1:])
    found = _compared(text)
    return f"{found[0]} {_COMPARED[found[1]]} {found[2]}" if found else None


def parts(text: str, by: str) -> list[str]:
    """The operands of && or ||, however they are grouped."""
    text, depth, start, found = bare(text.strip()), 0, 0, []
    for k, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if depth == 0 and text.startswith("||" if by == "&&" else "&&", k):
            return [text]
        if depth == 0 and text.startswith(by, k):
            found.append(text[start:k])
            start = k + 2
    if not found:
        return [text]
    return [part for each in (*found, text[start:]) for part in parts(each, by)]


def _put(text: str, new: dict[str, str]) -> str:
    """A text with other names."""
    return re.sub(r"(?<![\w.])[A-Za-z_]\w*", lambda m: new.get(m[0], m[0]), text)
