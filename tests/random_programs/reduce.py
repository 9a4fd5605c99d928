"""Make a failing program small: parts of its tree are taken out or replaced for as long as it fails in the same way."""

from __future__ import annotations

import copy
import itertools
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from math import prod
from pathlib import Path

from . import isolated
from .batch import Batch
from .engine import Failure
from .programs import generate
from .reference import STRICT
from .tree import C_TYPES, DIVERGENT, PER_BLOCK, Expr, Program, Stmt

SHAPES = ((1,), (2,), (32,), (33,), (64,))


def failure_of(program: Program, limit: float, settings: dict, crashes: bool) -> Failure | None:
    """How a program fails, in this process or, if it may crash, in another; g++ traps what C++ leaves undefined."""
    settings = {**settings, "listings": {program.seed: program.listing()}, "flags": STRICT}
    if crashes:
        found = isolated.run_all(iter([[program.seed]]), 1, limit, lambda count, took: None, **settings)
    else:
        with tempfile.TemporaryDirectory() as folder:
            return next(Batch([program.seed], Path(folder), **settings).failures(), None)
    return next(found, None)


def reduce(failure: Failure, limit: float, settings: dict, report: Callable[[str], None] = print) -> Program:
    """The smallest program found that fails like `failure`; each step is small, so it takes a while."""
    settings = {**settings, "check_all": failure.kind.startswith("checked")}
    best, tried = generate(failure.seed), 0

    def fails(program: Program) -> bool:
        nonlocal tried
        tried += 1
        found = failure_of(program, limit, settings, not re.search("Error|wrong", failure.kind))
        alike = found is not None and found.manner == failure.manner
        if sys.stderr.isatty():
            print(
                f"seed {failure.seed}: {tried} tried, {len(program.listing().text)} characters",
                end="\r",
                file=sys.stderr,
            )
        return alike

    if not fails(best):
        report(f"seed {failure.seed}: not again, or not defined: {failure.manner}")
        return best
    before = None
    while before != best.listing():
        before = best.listing()
        for step in (_shapes, _statements, _unwrapped, _operands, _expressions, _parts):
            best = _descend(best, step, fails)
    report(f"seed {failure.seed}: {failure.manner}: {len(before.text)} characters after {tried} programs")
    return best


def _descend(program: Program, step: Callable[[Program], Iterator[Callable[[], Program]]], fails) -> Program:
    """Take each change of a kind that leaves the failure; those that follow are made of the changed program."""
    position = 0
    while True:
        for change in itertools.islice(step(program), position, None):
            smaller = change()
            if smaller.listing() != program.listing() and fails(smaller):
                program = smaller
                break  # the change at this position is another one now
            position += 1
        else:
            return program


# Each of these yields functions that make one changed program each. -----------------------------------------------------


def _shapes(program: Program) -> Iterator[Callable[[], Program]]:
    size = len(program.block), prod(program.block)
    smaller = [block for block in SHAPES if (1, prod(block)) < size]
    tried = {"options": [program.options[:1]], "grid": [(1,)], "block": smaller, "p": [0], "q": [0]}
    for name, values in tried.items():
        for value in values:
            if getattr(program, name) != value:
                yield lambda name=name, value=value: _with(program, lambda p: setattr(p, name, value))


def _with(program: Program, change: Callable[[Program], None]) -> Program:
    new = copy.deepcopy(program)
    change(new)
    return new


def lists(program: Program) -> Iterator[list[Stmt]]:
    """All lists of statements, outer ones first."""
    waiting = [program.body, *(f.body for f in program.functions), program.declarations, program.ending]
    waiting += [f.declarations for f in program.functions]
    while waiting:
        here = waiting.pop(0)
        yield here
        waiting += [body for statement in here for body in statement.bodies]


def _statements(program: Program) -> Iterator[Callable[[], Program]]:
    """Leave statements out, many at once first."""
    for n, here in enumerate(lists(program)):
        size = len(here)
        while size:
            for start in range(0, len(here), size):

                def cut(p: Program, n=n, start=start, size=size) -> None:
                    del next(itertools.islice(lists(p), n, None))[start : start + size]

                yield lambda cut=cut: _with(program, cut)
            size //= 2


def _unwrapped(program: Program) -> Iterator[Callable[[], Program]]:
    """Put a block in the place of the statement that holds it."""
    for n, here in enumerate(lists(program)):
        for k, statement in enumerate(here):
            for b in range(len(statement.bodies)):

                def unwrap(p: Program, n=n, k=k, b=b) -> None:
                    found = next(itertools.islice(lists(p), n, None))
                    found[k : k + 1] = found[k].bodies[b]

                yield lambda unwrap=unwrap: _with(program, unwrap)


def owners(program: Program) -> Iterator[Stmt]:
    for here in lists(program):
        yield from here
    yield from (f.result for f in program.functions)


def _operands(program: Program) -> Iterator[Callable[[], Program]]:
    """Put the simplest operands in the place of all that statements have: of the whole program, of each statement."""

    def flatten(statements: Iterable[Stmt]) -> None:
        for statement in statements:
            statement.args = [e if not e.args else next(_simpler(e)) for e in statement.args]

    yield lambda: _with(program, lambda p: flatten(owners(p)))
    for n in range(sum(1 for _ in owners(program))):
        yield lambda n=n: _with(program, lambda p: flatten([next(itertools.islice(owners(p), n, None))]))


def _expressions(program: Program) -> Iterator[Callable[[], Program]]:
    """Put constants, variables and operands in the place of expressions."""
    for n, owner in enumerate(owners(program)):
        for k, e in enumerate(owner.args):
            for simple in _simpler(e):

                def put(p: Program, n=n, k=k, simple=simple) -> None:
                    next(itertools.islice(owners(p), n, None)).args[k] = simple

                yield lambda put=put: _with(program, put)


def _simpler(e: Expr) -> Iterator[Expr]:
    """Expressions of the same type with less in them, the same over as many lanes."""
    leaves = _LEAVES[e.type]
    simple = [k for k, leaf in enumerate(leaves) if leaf[0] == e.text()]  # no leaf is replaced by one that follows it
    yield from (Expr(e.type, *leaf) for leaf in leaves[: simple[0] if simple else None] if leaf[2] >= e.rank)
    yield from (a for a in e.args if a.type == e.type and a.rank >= e.rank)
    for k, a in enumerate(e.args):
        for simple in _simpler(a):
            yield Expr(e.type, e.form, (*e.args[:k], simple, *e.args[k + 1 :]), e.rank)


_SUFFIXES = {"s32": "", "u32": "u", "s64": "ll", "u64": "ull", "f32": ".0f", "f64": ".0"}
_LEAVES = {
    t: [(f"{n}{_SUFFIXES[t]}" if t in _SUFFIXES else f"({c}){n}", (), PER_BLOCK) for n in (0, 1)]
    for t, c in C_TYPES.items()
} | {"bool": [("false", (), PER_BLOCK), ("true", (), PER_BLOCK), ("(lane & 1)", (), DIVERGENT)]}
_LEAVES["s32"] += [("tid", (), DIVERGENT)]
_LEAVES["u32"] += [("s", (), DIVERGENT)]


def _parts(program: Program) -> Iterator[Callable[[], Program]]:
    """Leave out functions, types and constants."""
    for name in ("functions", "parts"):
        for k in range(len(getattr(program, name))):
            yield lambda name=name, k=k: _with(program, lambda p: getattr(p, name).pop(k))
