"""Expressions of CUDA C as a tree: immutable nodes, how they are built, and questions about them.

Arithmetic on nodes builds nodes, and an index an element: ``-d * x[i]``. Beside nodes a string stands for a variable
and an int for a number.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast


def _operator(sign: str) -> Callable[[Any, Given], Binary]:
    return lambda self, other: Binary(sign, node(self), node(other))


def _reflected(sign: str) -> Callable[[Any, Given], Binary]:
    return lambda self, other: Binary(sign, node(other), node(self))


class Expression:
    """A node, with the operators that build others.

    Nothing assigns to a node. `frozen` would say so, and make each of the hundreds take three times as long.
    """

    __iter__ = None  # though it has elements

    @functools.cached_property
    def words(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The variables that are named, and the functions that are called."""
        every = list(nodes(node(self)))
        return tuple(e.name for e in every if isinstance(e, Name)), tuple(
            e.function for e in every if isinstance(e, Call)
        )

    def __neg__(self) -> Unary:
        return Unary("-", node(self))

    def __getitem__(self, index: Given) -> Index:
        return Index(node(self), node(index))

    __add__, __radd__ = _operator("+"), _reflected("+")
    __sub__, __rsub__ = _operator("-"), _reflected("-")
    __mul__, __rmul__ = _operator("*"), _reflected("*")
    __truediv__, __rtruediv__ = _operator("/"), _reflected("/")
    __mod__ = _operator("%")


@dataclass(unsafe_hash=True)
class Name(Expression):
    """A variable, or what a thread has of its own, as ``threadIdx.x``."""

    name: str

    @property
    def words(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return (self.name,), ()


@dataclass(unsafe_hash=True)
class Literal(Expression):
    """A number that is not negative, or a word for one: ``0.5f``, ``true``, ``INFINITY``."""

    text: str

    @property
    def words(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return (), ()


@dataclass(unsafe_hash=True)
class Unary(Expression):
    """``-x``, ``!x``, ``~x``, the address ``&x``."""

    sign: str
    of: Node


@dataclass
class Binary(Expression):
    """``left sign right``."""

    sign: str
    left: Node
    right: Node

    def __hash__(self) -> int:
        return hash((self.sign, self.right))  # not of what stands left: sums may have thousands of terms


@dataclass(unsafe_hash=True)
class Ternary(Expression):
    """``test ? yes : no``."""

    test: Node
    yes: Node
    no: Node


@dataclass(unsafe_hash=True)
class Call(Expression):
    """``function(args)``."""

    function: str
    args: tuple[Node, ...]


@dataclass(unsafe_hash=True)
class Index(Expression):
    """``of[at]``."""

    of: Node
    at: Node


@dataclass(unsafe_hash=True)
class Member(Expression):
    """``of.name``."""

    of: Node
    name: str


@dataclass(unsafe_hash=True)
class Cast(Expression):
    """``(type)of``; `bits`: ``reinterpret_cast<type>(of)``."""

    type: str
    of: Node
    bits: bool = False


Node = Name | Literal | Unary | Binary | Ternary | Call | Index | Member | Cast
Given = Expression | str | int
OWN = ("threadIdx", "blockIdx", "blockDim", "gridDim")  # the same names along x, y and z
SUMS, PRODUCTS, COMPARISONS = ("+", "-"), ("*", "/"), ("<", "<=", ">", ">=", "==", "!=")

# Building -------------------------------------------------------------------------------------------------------------


def node(given: Given) -> Node:
    """A node as it is; of a string a variable, of an int a number."""
    if isinstance(given, Expression):
        return cast(Node, given)
    return Name(given) if isinstance(given, str) else literal(str(given))


def literal(text: str) -> Node:
    """A constant as IR spells it: with a sign, or converted."""
    if text.startswith("-"):
        return Unary("-", literal(text[1:]))
    if text.startswith("("):
        kind, _, rest = text[1:].partition(")")
        return Cast(kind, literal(rest))
    return Literal(text)


def number(value: float | str, kind: str) -> Node:
    """A floating-point number of a type."""
    text = value if isinstance(value, str) else f"{value:.17g}"
    text = text if any(c in text for c in ".en") else f"{text}.0"
    return literal(text if kind == "double" else f"{text}f")


def infix(left: Given, sign: str, right: Given) -> Binary:
    """A comparison or any other binary operation."""
    return Binary(sign, node(left), node(right))


def call(function: str, *args: Given) -> Call:
    return Call(function, tuple(map(node, args)))


def address(of: Given) -> Unary:
    return Unary("&", node(of))


def where(test: Node, yes: Given, no: Given) -> Ternary:
    return Ternary(test, node(yes), node(no))


def element(of: Given, index: Sequence[Given], path: Sequence[str] = ()) -> Node:
    """An element of an array, or a member of one: members that are numbers are elements of arrays."""
    found = node(of)
    for each in index:
        found = Index(found, node(each))
    for each in path:
        found = Index(found, Literal(each)) if each.isdigit() else Member(found, each)
    return found


def special(attr: str) -> Node:
    """What IR spells: as ``threadIdx.x``, a parameter or a member of one, or whether one is null."""
    if " " in attr:
        pointer, sign, null = attr.strip("()").split(" ")
        return Binary(sign, Name(pointer), Literal(null))
    of, *path = attr.replace("[", ".").replace("]", "").split(".")
    return Name(attr) if of in OWN else element(of, (), path)


def chained(sign: str, terms: Sequence[Given]) -> Node:
    """Terms joined by an operator, from the left."""
    found = node(terms[0])
    for each in terms[1:]:
        found = Binary(sign, found, node(each))
    return found


def both(*tests: Given) -> Node:
    """That all of these hold."""
    return chained("&&", tests)


def total(terms: Sequence[Node]) -> Node:
    """The sum of terms; those with a minus before them are subtracted."""
    found = terms[0]
    for each in terms[1:]:
        less = positive(each)
        found = found + each if less is None else found - less
    return found


def positive(e: Node) -> Node | None:
    """A product or quotient without the minus before it; None where there is none."""
    if isinstance(e, Binary) and e.sign in PRODUCTS and not isinstance(e.right, Unary):
        left = positive(e.left)
        return None if left is None else Binary(e.sign, left, e.right)
    return e.of if isinstance(e, Unary) and e.sign == "-" else None


def added(first: Node, e: Node) -> Node:
    """A sum, added to from the left: first + a - b for a - b."""
    if isinstance(e, Binary) and e.sign in SUMS:
        return Binary(e.sign, added(first, e.left), e.right)
    return total([first, e])


def times(first: Node, e: Node) -> Node:
    """A product, multiplied from the left: first * a / b for a / b."""
    if isinstance(e, Binary) and e.sign in PRODUCTS:
        return Binary(e.sign, times(first, e.left), e.right)
    return first * e


def thread_number(block: tuple[int, int, int]) -> Node:
    """The number of a thread in its block."""
    found = special("threadIdx.x")
    if block[1:] != (1, 1):
        found += block[0] * special("threadIdx.y")
    return found + block[0] * block[1] * special("threadIdx.z") if block[2] != 1 else found


def thread_of_launch(block: tuple[int, int, int], grid: Sequence[int | None]) -> tuple[Node, Node]:
    """The number of a thread in a launch, and how many there are, as long long."""
    axes = [a for a, blocks in zip("xyz", grid, strict=True) if blocks != 1] or ["x"]
    last = axes.pop()
    number, count = (Cast("long long", special(f"{of}.{last}")) for of in ("blockIdx", "gridDim"))
    for axis in reversed(axes):
        along = special(f"gridDim.{axis}")
        number, count = number * along + special(f"blockIdx.{axis}"), count * along
    threads = block[0] * block[1] * block[2]
    return number * threads + thread_number(block), count * threads


def written(p: Mapping[tuple[Any, ...], int]) -> Node:
    """A polynomial of parameters and digits as C."""
    found: Node | None = None
    for key, value in p.items():
        parts = [special(s) if isinstance(s, str) else _settled(s) for s in key]
        factor = abs(value) if found is not None else value  # no minus before the first: it may be unsigned
        term = chained("*", [*parts, *([factor] if factor != 1 or not parts else [])])
        found = term if found is None else Binary("-" if value < 0 else "+", found, term)
    return found or Literal("0")


def _settled(v: Any) -> Node:
    """A number of a launch as C."""
    if v.op == "binary":
        return Binary(v.attr, _settled(v.args[0]), _settled(v.args[1]))
    if v.op == "cast":
        return _settled(v.args[0])
    return literal(v.attr) if v.op == "const" else special(v.attr)


# Asking and rewriting -------------------------------------------------------------------------------------------------


def children(e: Node) -> tuple[Node, ...]:
    """The operands of a node, in the order of the text."""
    match e:
        case Name() | Literal():
            return ()
        case Binary():
            return e.left, e.right
        case Ternary():
            return e.test, e.yes, e.no
        case Call():
            return e.args
        case Index():
            return e.of, e.at
        case Unary() | Cast() | Member():
            return (e.of,)
    return ()


def nodes(e: Node) -> Iterator[Node]:
    """A node and all below it, in the order of the text."""
    left = [e]
    while left:  # sums may have thousands of terms
        e = left.pop()
        yield e
        left += reversed(children(e))


def names(e: Node) -> tuple[str, ...]:
    """The variables that are named."""
    return e.words[0]


def calls(e: Node) -> tuple[str, ...]:
    """The functions that are called."""
    return e.words[1]


def integer(e: Node) -> int | None:
    """The integer that a literal is."""
    if not isinstance(e, Literal):
        return None
    try:
        return int(e.text.rstrip("uUlL"), 0)
    except ValueError:
        return None


def accesses(e: Node) -> Iterator[Index]:
    """The elements that are accessed, each once however many dimensions it has, by its first index."""
    return (each for each in nodes(e) if isinstance(each, Index) and not isinstance(each.of, Index))


def base(e: Node) -> str | None:
    """The array that an element or member is of; None for what is not an element."""
    inside = e
    while isinstance(inside, Index | Member):
        inside = inside.of
    return inside.name if isinstance(inside, Name) and inside is not e else None


def mapped(e: Node, change: Callable[[Node], Node | None]) -> Node:
    """A tree with the topmost nodes for which `change` gives another in their place."""
    spine: list[Binary] = []  # not by recursion to the left: sums may have thousands of terms
    new = change(e)
    while new is None and isinstance(e, Binary):
        spine.append(e)
        e = e.left
        new = change(e)
    found = new or _rebuilt(e, change)
    for each in reversed(spine):
        right = mapped(each.right, change)
        same = found is each.left and right is each.right
        found = each if same else Binary(each.sign, found, right)
    return found


def _rebuilt(e: Node, change: Callable[[Node], Node | None]) -> Node:
    given = children(e)
    found = tuple([mapped(each, change) for each in given])
    if all(map(operator.is_, found, given)):  # what stays as it is knows its words
        return e
    match e:
        case Ternary():
            return Ternary(*found)
        case Call():
            return replace(e, args=found)
        case Index():
            return Index(*found)
        case Unary() | Cast() | Member():
            return replace(e, of=found[0])
    return e


def substituted(e: Node, new: Mapping[str, Node]) -> Node:
    """A tree with expressions for variables."""
    if new.keys().isdisjoint(names(e)):
        return e
    return mapped(e, lambda each: new.get(each.name) if isinstance(each, Name) else None)


def renamed(e: Node, new: Mapping[str, str]) -> Node:
    """A tree with other names for variables."""
    return substituted(e, {a: Name(b) for a, b in new.items()})
