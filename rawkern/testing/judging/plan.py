"""The plan of calls: which inputs a candidate gets, in which memory, and how it is called."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rawkern.launch import level
from rawkern.testing.judging import wire
from rawkern.testing.judging.task import Task
from rawkern.testing.samples import Sample

ORDERS = (0, 1, 2)  # of blocks and warps, by their seeds: the first is from the last to the first
SLOW = 1 << 17  # elements above which smaller inputs are used for all checks


@dataclass(frozen=True)
class Step:
    """One call.

    Memory that no kernel has written yet is filled with NaN (the largest integers) or zeros.
    """

    title: str
    check: str
    sample: Sample
    fill: str = "nan"
    again: bool = False  # in the previous call's memory
    level: str = level.BOUNDS
    order: int | None = None  # the seed of the order of blocks and warps
    launch: bool = True  # whether kernels run
    late: bool = False  # whether the inputs are written late on another stream


FIRST = "the sample"


def steps(task: Task, kernel: bool, seeds: int, sizes: Sequence[int], special: Sequence[str]) -> Iterator[Step]:
    """All calls, in order; calls with the same inputs in the same memory follow each other."""
    sample = task.sample(0)
    yield Step(FIRST, "right", sample)
    yield Step("once more", "deterministic", sample, again=True)
    yield Step("zeros in new memory", "output", sample, "zero", again=True)
    for number in range(1, seeds):
        yield Step(f"seed {number}", "right", task.sample(number), again=number == 1)
    if task.device.type == "cpu":  # on a GPU the hardware decides
        for seed in ORDERS:
            yield Step(f"order {seed}", "order", sample, order=seed)
    varied = list(task.resized(sizes, kernel)) if not (kernel and task.configuration.fixed) else []
    for title, other in varied:
        yield Step(title, "sizes", other)
    for kind in special:
        if (other := task.special(kind)) is not None:
            yield Step(kind, "special", other)
    if not kernel:
        yield Step("no kernels", "honest", sample, launch=False)
    if task.device.type == "cuda":
        yield Step("late inputs", "honest", sample, late=True)
    small = [other for _, other in varied if _elements(other) <= SLOW]
    checked = sample if _elements(sample) <= SLOW or not small else max(small, key=_elements)
    yield Step("checks in full", "findings", checked, level=level.FULL)


def _elements(sample: Sample) -> int:
    return sum(t.numel() for t in sample.tensors)


def request(task: Task, step: Step, kernel: bool) -> tuple[dict[str, Any], Sequence[Any]]:
    """A step as it is sent to the candidate's process."""
    sample, tensors = step.sample, []
    args = task.arguments(sample)
    asked = {
        "do": "call", "args": wire.encoded(args, tensors), "names": list(sample.names),
        "outputs": task.places(sample, task.outputs), "mutates": task.places(sample, task.mutates),
        "how": task.configuration.of(args, task.outputs) if kernel else None,
        "fill": step.fill, "again": step.again, "level": step.level, "order": step.order, "launch": step.launch,
        "late": step.late,
    }  # fmt: skip
    return asked, tensors
