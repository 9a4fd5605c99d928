"""Compares two reports: which line of which kernel got worse."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

#: Counters for which more is worse; the sums include those of loads, stores and the like.
COUNTERS = (
    "smsp__inst_executed.sum",
    "memory_l2_theoretical_sectors_global",
    "memory_l1_wavefronts_shared",
    "l1tex__t_sectors_pipe_lsu_mem_local_op_ld.sum",
    "l1tex__t_sectors_pipe_lsu_mem_local_op_st.sum",
    "smsp__sass_branch_targets_threads_divergent.sum",
    "atomic_conflicts",
    "barrier_waits",
)


@dataclass(frozen=True)
class Change:
    """A counter of a line that has changed.

    Attributes
    ----------
    kernel : str
    line : str
        Its number now, or its old number if it was removed.
    text : str
        The source of the line.
    counter : str
        Nsight Compute's name.
    before, after : float
    """

    kernel: str
    line: str
    text: str
    counter: str
    before: float
    after: float

    @property
    def worse(self) -> bool:
        return self.after > self.before

    def __str__(self) -> str:
        return (
            f"{self.kernel}, line {self.line}: {self.counter} {self.before:,g} -> {self.after:,g}  {self.text.strip()}"
        )


class Comparison:
    """What has changed; true if anything got worse.

    Attributes
    ----------
    worse, better : list of Change
        The largest differences first.
    """

    def __init__(self, changes: list[Change]) -> None:
        ordered = sorted(changes, key=lambda change: abs(change.after - change.before), reverse=True)
        self.worse = [change for change in ordered if change.worse]
        self.better = [change for change in ordered if not change.worse]

    def __bool__(self) -> bool:
        return bool(self.worse)

    def __str__(self) -> str:
        parts = [(name, found) for name, found in (("worse", self.worse), ("better", self.better)) if found]
        return "\n".join(f"{name}:\n" + "\n".join(f"  {one}" for one in found) for name, found in parts) or "no change"


def compared(old: dict[str, Any], new: dict[str, Any]) -> Comparison:
    """Compare the data of two reports; ValueError if they counted different launches or blocks."""
    changes: list[Change] = []
    before, after = _by_kernel(old), _by_kernel(new)
    for kernel in before.keys() & after.keys():
        if len(before[kernel]) != len(after[kernel]):
            raise ValueError(
                f"{kernel} was launched {len(before[kernel])} times then and {len(after[kernel])} times now; "
                "profile the same launches"
            )
        for one, other in zip(before[kernel], after[kernel], strict=True):
            counted = [each.get("sampled_blocks", "all") for each in (one, other)]
            if counted[0] != counted[1]:
                raise ValueError(
                    f"{counted[0]} blocks of {kernel} were counted then and {counted[1]} now; use the same sample="
                )
            changes += _changes(kernel, one, other)
    return Comparison(changes)


def _by_kernel(data: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for launch in data["launches"]:
        found.setdefault(launch["kernel"], []).append(launch)
    return found


def _changes(kernel: str, old: dict[str, Any], new: dict[str, Any]) -> Iterator[Change]:
    before, after = _by_text(old), _by_text(new)
    for key in {**before, **after}:
        was, now = before.get(key), after.get(key)
        line = (now or was or ("", {}))[0]
        for counter in COUNTERS:
            then, here = (found[1].get(counter, 0) if found else 0 for found in (was, now))
            if then != here:
                yield Change(kernel, line, key[0], counter, then, here)


def _by_text(launch: dict[str, Any]) -> dict[tuple[str, int], tuple[str, dict[str, float]]]:
    """Lines with their counters by source text, numbered where the same text occurs again."""
    source = {str(line): text for line, text in launch["source"].items()}
    found: dict[tuple[str, int], tuple[str, dict[str, float]]] = {}
    seen: dict[str, int] = {}
    for line, counters in launch["lines"].items():
        text = source.get(str(line), str(line)).strip()
        seen[text] = seen.get(text, -1) + 1
        found[text, seen[text]] = str(line), counters
    return found
