"""Findings: what makes a kernel slow according to its counts, with line, cost and remedy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from rawkern.profiling import rules_execution, rules_memory
from rawkern.profiling.costs import work

if TYPE_CHECKING:
    from rawkern.profiling.counted import Counted
    from rawkern.profiling.devices import Gpu

SHARE = 0.01  # of a launch's work, from which a finding is reported
#: Each takes a launch and a GPU (or None), and yields (kind, line, cost, message, remedy).
RULES: tuple[Callable[..., Iterator[tuple[str, int | str, float, str, str]]], ...] = (
    *rules_memory.RULES,
    *rules_execution.RULES,
)


@dataclass(frozen=True)
class Finding:
    """One thing that makes a kernel slower than it has to be.

    Attributes
    ----------
    kind : str
        ``"strided"``, ``"bank_conflicts"``, ``"divergent_branch"``, ... (see the page on profiles).
    kernel : str
        Its name.
    line : int or str
        The line of the source, ``"header.cuh:12"`` in a header, 0 for the launch as a whole.
    cost : float
        Approximate cost in cycles of one multiprocessor: for sorting findings, not a measure of time.
    message, remedy : str
        What was seen, and what to do about it.
    launches : int
        How many launches had it; the cost is that of all, the numbers in the message are those of the first.
    """

    kind: str
    kernel: str
    line: int | str
    cost: float
    message: str
    remedy: str
    launches: int = 1

    def __str__(self) -> str:
        where = f"line {self.line}" if isinstance(self.line, int) and self.line else str(self.line or "launch")
        return f"{self.kernel}, {where}: {self.message}; {self.remedy}"

    def as_dict(self) -> dict[str, Any]:
        """The finding as plain data.

        Returns
        -------
        dict
            The attributes by name.
        """
        return asdict(self)


def findings(launches: Iterable[Counted], named: Gpu | None) -> list[Finding]:
    """All findings, the costliest first; several of the same kind in one line of a kernel are merged."""
    found: dict[tuple[str, str, int | str], Finding] = {}
    for launch, times in _alike(launches):
        for key, one in _of(launch, named).items():
            known = found.get(key, replace(one, cost=0.0, launches=0))
            found[key] = replace(known, cost=known.cost + times * one.cost, launches=known.launches + times)
    return sorted(found.values(), key=_cost, reverse=True)


def _of(launch: Counted, named: Gpu | None) -> dict[tuple[str, str, int | str], Finding]:
    """The findings of one launch that are large enough to report."""
    here: dict[tuple[str, str, int | str], Finding] = {}
    for rule in RULES:
        for kind, line, cost, message, remedy in rule(launch, launch.gpu(named)):
            key = (kind, launch.kernel, line)
            one, known = Finding(kind, launch.kernel, line, cost, message, remedy), here.get(key)
            here[key] = one if known is None else replace(max(known, one, key=_cost), cost=known.cost + cost)
    least = SHARE * work(launch.total)
    return {key: one for key, one in here.items() if one.cost >= least}


def _alike(launches: Iterable[Counted]) -> Iterator[tuple[Counted, int]]:
    """Launches without duplicates, each with the number of launches that did the same."""
    found: dict[Any, list[Counted]] = {}
    for launch in launches:
        shape = launch.kernel, launch.grid, launch.block, launch.shared_mem, launch.device, launch.sample
        counts = launch.counts.counters.tobytes(), tuple(launch.touched.items())
        found.setdefault((*shape, *counts), []).append(launch)
    for same in found.values():
        yield same[0], len(same)


def _cost(finding: Finding) -> float:
    return finding.cost
