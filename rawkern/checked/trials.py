"""Checked launches made once more: in another order, with other numbers, and as the source has them."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from rawkern.compile import programs
from rawkern.launch import level, modes

if TYPE_CHECKING:
    from rawkern.arguments.slow_path import Bound
    from rawkern.engines.cpu.checker.findings import Finding
    from rawkern.errors import LaunchError
    from rawkern.launch.config import LaunchConfig
    from rawkern.launch.unit import State

#: Builds: that of all checked launches; of those that may begin before the one before has ended; with branches
#: followed; not optimized.
CHECKED, DEPENDENT, COVERED, PLAIN = "checked", "dependent", "covered", "plain"
BOTH = 3  # sides of a branch
#: Kinds of findings that do not depend on whether values are initialized; and on whether a kernel accepts them.
OF_ACCESSES = ("BOUNDS", "MISALIGNED", "FREED", "READ_ONLY", "RACE")
OF_THREADS = (
    "RACE", "DIVERGENT_BARRIER", "DIFFERENT_BARRIERS", "SKIPPED_BARRIER", "NOT_BEGUN", "ENDED", "DEADLOCK",
    "MASK_WITHOUT_SELF", "MASK_NOT_HERE",
)  # fmt: skip


@dataclass
class Run:
    """What came of one: findings, the error it ended with, its build's table, and the sides of branches."""

    found: list[Finding]
    error: LaunchError | None
    table: dict[str, Any]
    sides: dict[tuple, int]


class Launch(Protocol):
    """A launch that can be made more than once."""

    @property
    def state(self) -> State: ...
    @property
    def config(self) -> LaunchConfig: ...
    @property
    def bound(self) -> Bound: ...
    def run(self, build: str = ..., values: tuple[Any, ...] | None = ...) -> Run: ...
    def sites(self) -> list[dict[str, Any]]: ...
    def undone(self) -> AbstractContextManager[None]: ...


def made(launch: Launch, asked: level.Trials) -> Iterator[tuple[str, Run]]:
    """Make the trials that are asked for; yields how, and what came of it. Memory is as before."""
    for seed in asked.orders:
        with launch.undone(), modes.order(seed):
            yield f"in the order rawkern.order({seed})", launch.run()
    if not asked.optimized:
        yield "in unoptimized code", _as_written(launch)
    if asked.inputs:
        yield from _inputs(launch, asked)


def _as_written(launch: Launch) -> Run:
    """What an unoptimized build finds at accesses that the usual one does not have."""
    there = Counter(map(_access, launch.sites()))
    with launch.undone():
        run = launch.run(PLAIN)
    every = Counter(map(_access, run.table["sites"]))
    run.error = None  # the usual build will say so

    def deleted(site: dict[str, Any]) -> bool:
        return bool(site["lines"]) and every[_access(site)] > there[_access(site)]

    run.found = [
        f
        for f in run.found
        if f.kind in OF_ACCESSES and (deleted(f.place.site) or (f.other is not None and deleted(f.other.site)))
    ]
    return run


def _access(site: dict[str, Any]) -> tuple:
    """What an access does, and where the source has it."""
    return site["what"], tuple(map(tuple, site["lines"][:1]))


def _inputs(launch: Launch, asked: level.Trials) -> Iterator[tuple[str, Run]]:
    """Try other numbers; those that make lanes go a new way are changed further."""
    names = [param.name for param in launch.state.signature.params]

    def run(values: tuple[Any, ...]) -> Run:
        with launch.undone():
            return launch.run(COVERED, values)

    given = launch.bound.values
    first = run(given)
    covered, seen = dict(first.sides), {given}
    work, left = list(_changed(launch, given, first)), asked.inputs
    while work and left and any(sides != BOTH for sides in covered.values()):
        values = work.pop(0)
        if values in seen:
            continue
        seen.add(values)
        left -= 1
        tried = run(values)
        if tried.error is not None or any(f.kind not in OF_THREADS for f in tried.found):
            continue  # the kernel does not take them
        if any(sides & ~covered.get(key, 0) for key, sides in tried.sides.items()):
            work += _changed(launch, values, tried)
        for key, sides in tried.sides.items():
            covered[key] = covered.get(key, 0) | sides
        if tried.found:
            changes = (f"{n} = {v}" for n, v, old in zip(names, values, given, strict=True) if v != old)
            yield f"with {', '.join(changes)}", tried
    source = launch.state.build.source
    own = programs.own_files(source)
    for (lines, number), sides in covered.items():
        file, line = next(((f, n) for f, n in lines if f in own), lines[0] if lines else ("", 0))
        key = (launch.state.entry.name, source.place(file, line) if file else "an unknown line", line, number)
        asked.branches[key] = asked.branches.get(key, 0) | sides


def _changed(launch: Launch, values: tuple[Any, ...], run: Run) -> Iterator[tuple[Any, ...]]:
    """Values of which one decides on branches and is another."""
    params = launch.state.signature.params
    threads = launch.config.threads
    grid = launch.config.grid[0] * launch.config.grid[1] * launch.config.grid[2]
    choices = []
    for number, constants in run.table["steering"].items():
        param = params[int(number)]
        if param.ctype.kind not in ("int", "bool"):
            continue
        old = values[param.index]
        near = [x + d for x in constants if abs(x) < 1 << 62 for d in (0, 1, -1)]
        numbers = dict.fromkeys([*near, 0, 1, 2, old - 1, old + 1, threads, threads * grid, -1])
        fits = [x for x in numbers if x != old and _packs(param.ctype.code, x)]
        choices.append([(*values[: param.index], x, *values[param.index + 1 :]) for x in fits])
    for k in range(max(map(len, choices), default=0)):  # each parameter in turn
        yield from (each[k] for each in choices if k < len(each))


def _packs(code: str, number: int) -> bool:
    try:
        struct.pack(f"<{code}", number)
    except (struct.error, OverflowError):
        return False
    return True


def untaken(asked: level.Trials) -> list[str]:
    """The branches that have gone one way only, or that no thread has come to."""
    found: dict[str, None] = {}
    for (kernel, where, _, _), sides in sorted(asked.branches.items(), key=lambda item: item[0][1:]):
        if sides != BOTH:
            how = "goes one way only" if sides else "is not come to"
            found[f"{kernel}: {where}: the branch {how}"] = None
    return list(found)
