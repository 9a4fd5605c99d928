"""Kinds of statements, and blocks of them chosen at random."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .expressions import Scope, Taste, Var
from .tree import Stmt


@dataclass(frozen=True)
class Kind:
    """A kind of statement: how often, in which programs (all, if no feature is named), for which levels."""

    name: str
    weight: float
    make: Callable[[Taste, Scope, int], Stmt | None]
    feature: str = ""
    least: int = 0  # level of the scope
    most: int = 3
    deep: bool = False  # holds blocks


KINDS: list[Kind] = []


def kind(weight: float, feature: str = "", least: int = 0, most: int = 3, deep: bool = False):
    """Add a function that makes a statement to those that `block` chooses from."""

    def add(make):
        KINDS.append(Kind(make.__name__, weight, make, feature, least, most, deep))
        return make

    return add


def block(taste: Taste, scope: Scope, depth: int, most: int = 3) -> list[Stmt]:
    count = taste.rng.randint(1, most) if taste.budget > 0 else 1
    return [statement(taste, scope, depth if taste.budget > 0 else 0) for _ in range(count)]


def statement(taste: Taste, scope: Scope, depth: int) -> Stmt:
    taste.budget -= 1
    fitting = [k for k in KINDS if k.least <= scope.level <= k.most and (depth > 0 or not k.deep)]
    fitting = [k for k in fitting if not k.feature or k.feature in taste.features]
    # what lanes can do together is seldom possible, so it is chosen more often where it is
    weights = [k.weight * (1 + 2 * (k.least > 0)) for k in fitting]
    while True:
        made = taste.rng.choices(fitting, weights)[0].make(taste, scope, depth)
        if made is not None:
            return made


def target(taste: Taste, scope: Scope, t: str | None = None) -> Var | None:
    """Something to write to that lanes have each for themselves; of type `t`, where there is one."""
    found = [v for v in scope.vars if v.write and v.rank == 0]
    same = [v for v in found if v.type == t]
    return taste.rng.choice(same or found) if found else None
