"""Variations of a trial: other dtypes, layouts, sizes; and the smallest one that still fails."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from rawkern.testing.results import Outcome, Problem
from rawkern.testing.samples import LAYOUTS, spread
from rawkern.testing.trials import Target, Trial, exact

SIZES = (1, 257, 1025)  # the larger ones are not multiples of a warp, pack or block
GRADIENTS = {"gradients transposed": "transposed", "gradients expanded, as those of sum()": "expanded"}
LONGEST = 20.0  # seconds for reducing a failing input
LARGEST = 1 << 15  # elements of a grown tensor


def legal(target: Target, trial: Trial) -> Outcome | None:
    """The reference's outcome for a trial; None if it rejects the inputs."""
    try:
        return exact(target, trial)
    except Exception:
        return None


def resized(target: Target, trial: Trial, old: int, new: int) -> tuple[Trial, Outcome] | None:
    """The trial with one size replaced, if the reference accepts that; with or without numbers of that value."""
    for numbers in (False, True):
        other = replace(trial, sample=trial.sample.resized(old, new, numbers), title=f"{new} in place of {old}")
        most = max(t.numel() for t in other.sample.tensors)
        if (new < old or most <= LARGEST) and (found := legal(target, other)) is not None:
            return other, found
    return None


def sizes(target: Target, trial: Trial) -> Iterator[tuple[Trial, Outcome]]:
    """Trials with sizes that are not multiples of a block, one size at a time."""
    for old in trial.sample.sizes():
        for new in dict.fromkeys((*SIZES, old - 1)):
            if new not in (0, old) and (found := resized(target, trial, old, new)) is not None:
                yield found


def layouts(trial: Trial) -> Iterator[Trial]:
    """Trials with tensors in other memory layouts."""
    for layout in LAYOUTS:
        sample = trial.sample.expanded() if layout == "expanded" else trial.sample
        if layout == "first transposed" and len(sample.tensors) < 2:
            continue
        plain = [spread("contiguous", t.shape, False) for t in sample.tensors]
        other = [spread(layout, t.shape, i == 0) for i, t in enumerate(sample.tensors)]
        if any(a != b and t.numel() for a, b, t in zip(plain, other, sample.tensors, strict=True)):
            yield replace(trial, sample=sample, layout=layout, title=layout)
    if trial.backward:  # the operator may reject inputs, but its caller does not choose the gradients' layouts
        for title, layout in GRADIENTS.items():
            yield replace(trial, gradients=layout, title=title)


def small(target: Target, trial: Trial, largest: int = 3) -> Trial:
    """The trial with each size reduced as far as the reference accepts it."""
    for old in trial.sample.sizes():
        for new in range(min(largest, old - 1), old):
            if (found := resized(target, trial, old, new)) is not None:
                trial = replace(found[0], title=trial.title)
                break
            if new > 2 * largest:
                break
    return trial


def shrunk(
    target: Target, trial: Trial, fails: Callable[[Trial, Outcome], Problem | None], tries: int = 60
) -> tuple[Trial, Problem | None]:
    """The smallest trial that still fails, with its problem; None if no smaller one was found.

    Each size is halved, then lowered by one, as long as the reference accepts it and attempts are left.
    """
    end = time.monotonic() + LONGEST
    best: tuple[Trial, Problem | None] = trial, None
    smaller = True
    while smaller:
        smaller = False
        for old in best[0].sample.sizes():
            for new in dict.fromkeys(n for n in (1, old // 2, old - 1) if n > 0):
                if (tries := tries - 1) < 0 or time.monotonic() > end:
                    return best
                found = resized(target, best[0], old, new)
                if found is not None and (problem := fails(*found)) is not None:
                    best, smaller = (replace(found[0], title=trial.title), problem), True
                    break
    return best
