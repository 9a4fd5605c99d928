"""What makes a kernel slow, by its counts: findings with line, cost and remedy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from rawkern.profiling import rules_execution, rules_memory
from rawkern.profiling.costs import work

if TYPE_CHECKING:
    from rawkern.profiling.counted import Counted
    from rawkern.profiling.devices import Gpu

SHARE = 0.01  # of a launch's work that is worth telling
#: Each is a function of a launch and a GPU, if one is known, which yields (kind, line, cost, message, remedy).
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
        Cycles of one multiprocessor that it costs, roughly: what puts findings in order, no measure of time.
    message, remedy : str
        What was seen, and what to do about it.
    launches : int
        How many launches had it; the cost is that of all, the message's numbers those of the first.
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
        """The finding as plain data."""
        return asdict(self)


def findings(launches: Iterable[Counted], named: Gpu | None) -> list[Finding]:
    """Everything found, the costliest first; one of the same kind in the same line of a kernel stands once."""
    found: dict[tuple[str, str, int | str], Finding] = {}
    for launch in launches:
        least = SHARE * work(launch.total)
        here: dict[tuple[str, str, int | str], Finding] = {}
        for rule in RULES:
            for kind, line, cost, message, remedy in rule(launch, launch.gpu(named)):
                key = (kind, launch.kernel, line)
                known = here.get(key)
                one = Finding(kind, launch.kernel, line, cost, message, remedy)
                here[key] = one if known is None else replace(max(known, one, key=_cost), cost=known.cost + cost)
        for key, one in here.items():
            if one.cost < least:
                continue
            known = found.get(key)
            found[key] = (
                one if known is None else replace(known, cost=known.cost + one.cost, launches=known.launches + 1)
            )
    return sorted(found.values(), key=_cost, reverse=True)


def _cost(finding: Finding) -> float:
    return finding.cost
