"""z3 as the judge of `rawkern.gradients.index`: ``python -m tests.gradients.index.oracle`` asks as much as one likes.

Random kernels are read, and each question is asked of their accesses. Whatever is claimed must have no counterexample;
what is not claimed, though z3 proves it, is listed.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import z3

from rawkern.gradients import ir
from rawkern.gradients.derive import derive
from rawkern.gradients.index import affine, covers, disjoint, guards, injective, ranges, threads
from rawkern.gradients.index.affine import GROUP, LANE, constant, poly, symbol
from rawkern.gradients.index.uniform import uniform
from rawkern.gradients.ir import Access, Kernel, Loop, Store, Value, index_of, place_of
from rawkern.gradients.passes import pipeline
from rawkern.gradients.reading.reader import Launched
from rawkern.gradients.reading.syntax import Where
from tests.gradients.index import random_accesses
from tests.gradients.index.machine import Machine, both, loops_of, negated, parameters

STEPS = 400_000  # of z3, for a question: about a second
GRID = 1 << 16  # blocks along an axis at most


class _Read(Exception):
    """The kernel, before any pass."""


def read(source: str, block: tuple[int, int, int]) -> Kernel:
    """A kernel as it is read."""

    def stop(name: str, kernel: Kernel) -> None:
        if name == "read":
            kernel.group = threads.group_of(kernel.body, kernel.block[0])
            raise _Read(kernel)

    with pipeline.watched(stop):
        try:
            derive(source, "f", where=Where("f.cu", "f", str), launched=Launched(block), wrt=("x",))
        except _Read as found:
            return found.args[0]
    raise AssertionError("not read")


@dataclass(frozen=True)
class Asked:
    """A question: what index/ says, and what is satisfiable only if it does not hold."""

    question: str
    of: str
    claimed: bool
    denied: list[Any]


class Judge:
    """The threads of a kernel's launch as terms of z3."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel, self.facts, self.shared = kernel, list[Any](), dict[str, Any]()
        for name, kind in parameters(kernel).items():
            low, high = (0, 1 << 32) if kind.startswith("unsigned") else (-(1 << 31), 1 << 31)
            self._variable(name, low, high)
        for axis in "xyz":
            self._variable(f"gridDim.{axis}", 1, GRID)

    def _variable(self, name: str, low: Any, high: Any) -> Any:
        if name not in self.shared:
            self.shared[name] = z3.Int(name)
            self.facts += [self.shared[name] >= low, self.shared[name] < high]
        return self.shared[name]

    def machine(self, own: str, block: str = "", loops: dict[Loop, Any] | None = None) -> Machine:
        """A thread of its own; `block`: of which block, if that is another's, too; loops whose iterations are others'."""

        def named(s: Any) -> Any:
            if isinstance(s, Loop):
                return (
                    (loops or {}).get(s)
                    if s in (loops or {})
                    else self._variable(f"{own} loop{s.node} {s.order}", 0, 1 << 31)
                )
            if isinstance(s, Value):  # what is not followed, such as the variable of a loop that counts down
                whose = "" if loops is not None and uniform(s) else own
                return self._variable(
                    f"{whose} {s.type} {s.attr.order if s.op == 'phi' else s.order}", -(1 << 31), 1 << 31
                )
            if s in (GROUP, LANE):
                x = named("threadIdx.x")
                return x / self.kernel.group if s == GROUP else x % self.kernel.group
            of, _, axis = s.partition(".")
            k = "xyz".find(axis)
            if of == "threadIdx":
                return self._variable(f"{own} {s}", 0, self.kernel.block[k])
            if of == "blockIdx":
                return self._variable(f"{block or own} {s}", 0, self.shared[f"gridDim.{axis}"])
            return self.kernel.block[k] if of == "blockDim" else self.shared[s]

        return Machine(named)

    def at(self, machine: Machine, access: Access) -> tuple[Any, list[Any]]:
        """The element that a thread accesses, and what holds if it does."""
        index = machine.value(index_of(access)[0])
        reached = machine.reaches(access)
        size = next(iter(place_of(access).array.sizes), 0) or 1 << 31  # type: ignore[union-attr]
        return index, [*machine.needs, reached, index >= 0, index < size]

    def unsatisfiable(self, terms: list[Any]) -> bool | None:
        """Whether there is surely no launch like this; None if z3 does not know."""
        solver = z3.Solver()
        solver.set("rlimit", STEPS)
        solver.add(*self.facts, *(t for t in terms if t is not True))
        if any(t is False for t in terms):
            return True
        found = solver.check()
        return None if found == z3.unknown else found == z3.unsat


def pairs(judge: Judge, asked_of: list[Access], within_block: bool, same: bool = False) -> Iterator[tuple[Any, ...]]:
    """Two threads at two of the accesses, in one element; `same`: in the same iterations of loops around both."""
    for a, b in itertools.combinations_with_replacement(asked_of, 2):
        first = judge.machine("A", "block" if within_block else "", {} if same else None)
        common = {loop: first.symbols(loop) for loop in loops_of(a) if loop in loops_of(b)} if same else None
        second = judge.machine("B", "block" if within_block else "", common)
        (i, one), (j, other) = judge.at(first, a), judge.at(second, b)
        digits = ["threadIdx.x", "threadIdx.y"] + ([] if within_block else ["blockIdx.x", "blockIdx.y"])
        apart = z3.Or(*(first.symbols(d) != second.symbols(d) for d in digits if extent(judge.kernel, d) != 1))
        yield a, b, first, second, apart, [*one, *other, i == j]


def extent(kernel: Kernel, digit: str) -> int | None:
    of, _, axis = digit.partition(".")
    return (kernel.block if of == "threadIdx" else kernel.grid)["xyz".index(axis)]


def of_injective(judge: Judge, asked_of: list[Access], within_block: bool, iterations: bool, assume: bool) -> Asked:
    assumed: list[Any] | None = [] if assume else None
    found = injective.injective(
        judge.kernel, asked_of, within_block=within_block, iterations=iterations, assumed=assumed
    )
    meets = []
    for a, b, first, second, apart, there in pairs(judge, asked_of, within_block):
        wrong = apart
        if found is not None and found[a] != found[b]:
            wrong = True
        if iterations and a is b:
            wrong = z3.Or(wrong, *(first.symbols(loop) != second.symbols(loop) for loop in loops_of(a)))
        meets.append(z3.And(*there, wrong))
    launch = judge.machine("A")
    denied = [*(launch.of(low) <= launch.of(high) for low, high in assumed or ()), z3.Or(*meets)]
    name = "injective" + " within a block" * within_block + " with iterations" * iterations + ", assuming" * assume
    return Asked(name, described(asked_of), found is not None, denied)


def of_disjoint(judge: Judge, a: Access, b: Access, same: bool) -> Asked:
    found = disjoint.disjoint(judge.kernel, a, b, uniform if same else None)
    meets = [z3.And(*there, apart) for x, y, _, _, apart, there in pairs(judge, [a, b], True, same) if (x, y) == (a, b)]
    return Asked("disjoint" + ", in one iteration" * same, described([a, b]), found, [z3.Or(*meets)])


def of_bounds(judge: Judge, access: Access) -> Iterator[Asked]:
    low, high = ranges.bounds(judge.kernel, access)
    index, there = judge.at(judge.machine("A"), access)
    if low > 0 or high < 1 << 30:
        out = [*([index < int(low)] if low > 0 else []), *([index > int(high)] if high < 1 << 30 else [])]
        yield Asked("range", described([access]), True, [*there, z3.Or(*out)])


def of_implies(judge: Judge, access: Access, r: random.Random) -> Iterator[Asked]:
    """Of the index and its digits, that they are below numbers of the launch, or above one another."""
    index = poly(index_of(access)[0])
    own, whole = list(index.symbols), ranges.Ranges(ranges.extents(judge.kernel), guards.guards(access).above)
    ends = [*map(symbol, parameters(judge.kernel)), constant(r.randint(0, 40)), index, *map(symbol, own)]
    machine = judge.machine("A")
    _, there = judge.at(machine, access)
    for a, b in r.sample(list(itertools.permutations(ends, 2)), 3):
        p = a - b + r.choice([0, 0, 1, 1, -1, 2])
        if p.symbols:
            yield Asked("implies", f"{affine_text(p)} >= 1", whole.implies(p), [*there, machine.of(p) <= 0])


def of_setter(judge: Judge, store: Store, load: Value) -> Asked | None:
    loop = next((each for each in loops_of(store) if each in loops_of(load)), None)
    if loop is None:
        return None
    under, within, block = [], [], store.block
    while block is not loop.body:
        parent = block.parent
        under += [(parent.condition, block is parent.then)] if isinstance(parent, ir.If) else []
        within += [parent] if isinstance(parent, Loop) else []
        block = parent.block
    by = covers.setter(judge.kernel, store, load, under[::-1], within[::-1])
    reader = judge.machine("A")
    wanted, there = judge.at(reader, load)
    if by is None:
        return Asked("set before", described([store, load]), False, [True])
    own = {s: reader.of(p) for s, p in by.items()}
    writer = Machine(lambda s: own[s] if s in own else reader.symbols(s))
    exists = [both(own[d] >= 0, own[d] < extent(judge.kernel, d)) for d in own if isinstance(d, str)]
    exists += [own[d] >= 0 for d in own if isinstance(d, Loop)]
    index, reached = writer.value(store.index[0]), writer.reaches(store)
    return Asked(
        "set before", described([store, load]), True, [*there, negated(z3.And(*exists, reached, index == wanted))]
    )


def questions(kernel: Kernel, seed: int) -> Iterator[tuple[Judge, Asked]]:
    """All questions of a kernel."""
    r, every = random.Random(seed), [i for i in ir.walk(kernel.body) if place_of(i) is not None]
    groups: dict[str, list[Access]] = {}
    for access in every:
        groups.setdefault(place_of(access).array.name, []).append(access)  # type: ignore[union-attr]
    for accesses in groups.values():
        inside = place_of(accesses[0]).array.shared  # type: ignore[union-attr]
        for asked_of in {(a,): None for a in accesses} | {tuple(accesses): None}:
            judge = Judge(kernel)
            yield (
                judge,
                of_injective(judge, list(asked_of), inside or r.random() < 0.3, r.random() < 0.5, r.random() < 0.4),
            )
        for a, b in r.sample(list(itertools.combinations_with_replacement(accesses, 2)), 1):
            judge = Judge(kernel)
            yield judge, of_disjoint(judge, a, b, r.random() < 0.5)
        for access in r.sample(accesses, 1):
            judge = Judge(kernel)
            yield from ((judge, asked) for asked in (*of_bounds(judge, access), *of_implies(judge, access, r)))
        for store, load in itertools.product(accesses, accesses):
            if inside and isinstance(store, Store) and isinstance(load, Value):
                judge = Judge(kernel)
                asked = of_setter(judge, store, load)
                yield from [] if asked is None else [(judge, asked)]


def described(accesses: list[Access]) -> str:
    return " and ".join(f"{place_of(a).array.name}[{affine_text(poly(index_of(a)[0]))}]" for a in accesses)  # type: ignore[union-attr]


def affine_text(p: affine.Poly) -> str:
    def name(s: Any) -> str:
        if isinstance(s, Loop):
            return "k"
        if isinstance(s, Value):
            args = [affine_text(poly(a)) for a in s.args]
            return f"({f' {s.attr} '.join(args)})" if s.op == "binary" else f"{s.name or s.op}({', '.join(args)})"
        return s.replace("threadIdx", "t").replace("blockIdx", "b")

    terms = [" * ".join([*([str(v)] if v != 1 or not key else []), *map(name, key)]) for key, v in p.items()]
    return " + ".join(terms) or "0"


@dataclass
class Outcome:
    """What was found: claims by question, those that z3 contradicts, does not know, and what it proves besides."""

    claims: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    unknown: Counter[str] = field(default_factory=Counter)
    asked: Counter[str] = field(default_factory=Counter)
    missed: dict[str, list[str]] = field(default_factory=dict)

    def ask(self, seed: int, besides: bool = True) -> None:
        """All questions of a random kernel; `besides`: also what z3 proves and is not claimed."""
        made = (random_accesses.tiles if seed % 4 == 3 else random_accesses.accesses)(seed)
        kernel = read(made.source, made.block)
        for judge, asked in questions(kernel, seed):
            self.asked[asked.question] += 1
            if not asked.claimed and (not besides or "assuming" in asked.question or asked.question == "set before"):
                continue
            proved = judge.unsatisfiable(asked.denied)
            if asked.claimed:
                self.claims[asked.question] += 1
                self.unknown[asked.question] += proved is None
                self.wrong += [f"seed {seed}: {asked.question} of {asked.of}\n{made.source}"] if proved is False else []
            elif proved:
                self.missed.setdefault(asked.question, []).append(f"seed {seed}: {asked.of}")

    def table(self) -> str:
        """The figures of each question."""
        rows = [f"{'question':50}{'asked':>8}{'claimed':>9}{'unknown':>9}{'missed':>8}"]
        for name, asked in sorted(self.asked.items()):
            missed = len(self.missed.get(name, ()))
            rows.append(f"{name:50}{asked:8}{self.claims[name]:9}{self.unknown[name]:9}{missed:8}")
        return "\n".join(rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument(
        "--missed", type=int, default=5, help="how many to list, of each question, that z3 proves alone"
    )
    options = parser.parse_args()
    found, start = Outcome(), time.time()
    for seed in range(options.first, options.first + options.count):
        found.ask(seed, bool(options.missed))
    print(found.table())
    for question, missed in found.missed.items():
        print(f"\n{question}: z3 proves besides", *missed[: options.missed], sep="\n  ")
    print(f"\n{len(found.wrong)} wrong; {options.count} kernels, {time.time() - start:.0f} s")
    print(*found.wrong, sep="\n")
    return bool(found.wrong)


if __name__ == "__main__":
    sys.exit(main())
