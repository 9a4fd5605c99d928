"""Launches of a function that are kept, and made at once for arguments of layouts that were met before."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from rawkern.base import torch_private as private
from rawkern.operators.native import ALIGNMENT, Calls, Launches, Make, Place, Step, View, watching
from rawkern.operators.recording import Absent, Empty, Part, Trace, apart

MOST_MET = 256  # calls that are told apart


class Kept:
    """A function that does the same for all tensors of some layouts and for the same other arguments.

    The second and the third time that it gets such arguments, what it does is recorded. Where that is the same, and
    nothing but allocations and launches, `calls` has it from then on, or else that it is not.

    Parameters
    ----------
    count : int
        Its arguments.
    record : callable
        Calls it with arguments of which no two share memory; returns the result, and what it did.
    about : callable
        What an autograd function keeps of a call with some arguments, besides tensors.
    """

    def __init__(
        self,
        count: int,
        record: Callable[[Sequence[Any]], tuple[Any, Trace]],
        about: Callable[[Sequence[Any]], Any] = lambda args: None,
    ) -> None:
        self.calls = Calls(count)
        self._record, self._about = record, about
        self._met: dict[Any, Any] = {}  # how often, then what was recorded; None once it is known

    def learn(self, args: Sequence[Any]) -> Any:
        """Meet a call that is not native: what the function returns, or None where it has yet to be called."""
        key = _key(args)
        before = None if key is None else self._met.get(key, 0)
        if before is None:
            return None
        if before == 0:
            if len(self._met) >= MOST_MET:
                self._met.clear()
                self.calls.forget()
            self._met[key] = 1
            return None
        given = apart(args)
        if _key(given) != key:
            return None
        result, found = self._record(given)
        same = found.same()
        self._met[key] = same if before == 1 and not found.rejection else None
        if self._met[key] is None:
            self.calls.learn(args, _launches(args, found) if before == same else None, self._about(args))
        return result


def _key(args: Sequence[Any]) -> Any:
    """What tells calls apart; None for one that is not kept."""
    tensors = [a for a in args if isinstance(a, torch.Tensor)]
    if watching.look(*tensors) is not False or private.autocast_enabled():
        return None
    return tuple(
        (a.shape, a.stride(), a.dtype, a.device, a.data_ptr() % ALIGNMENT)
        if isinstance(a, torch.Tensor)
        else (type(a), tuple(a) if type(a) is list else a)
        for a in args
    )


def _launches(args: Sequence[Any], found: Trace) -> Launches | None:
    """What a call does; None where that is more than launches, or they take other things than a call is known by."""
    if not all(step.by_address for step in found.steps):
        return None
    makes: list[Make | View] = []
    places: dict[Any, Place] = {}  # of memory, and of parts of it

    def made(make: Make | View) -> Place:
        makes.append(make)
        return Place(len(args) + len(makes) - 1)

    def place(part: Part, result: bool) -> Place | None:
        """Where a part is, as it is launched with or, of this very shape, as a result."""
        held, size = found.memories[part.memory], math.prod(part.shape)
        if held.input is not None:  # a part has all that there is of an expanded one, too
            extent = sum((n - 1) * step for n, step in zip(held.shape, held.strides, strict=True)) + 1
            return Place(held.input) if not part.offset and size == extent and not result else None
        every = not part.offset and size == math.prod(held.shape)
        if held.fill is not None:
            return None
        if part.memory not in places:
            shape = part.shape if every else held.shape
            places[part.memory] = made(Make(shape, held.dtype, held.device))
        if every and (not result or makes[places[part.memory] - len(args)].shape == part.shape):
            return places[part.memory]
        if part not in places:
            places[part] = made(View(places[part.memory], part.offset, part.shape))
        return places[part]

    results: list[Place] = []
    for told in found.outputs:
        if isinstance(told, Absent):
            results.append(Place(-1))
        elif (where := made(Make(*told)) if isinstance(told, Empty) else told and place(told, True)) is not None:
            results.append(where)
        else:
            return None
    steps: list[Step] = []
    for step in found.steps:
        given: list[Any] = []
        for a in step.arguments.values():
            given.append(place(a, False) if isinstance(a, Part) else a)
            if isinstance(a, Empty) or (isinstance(a, Part) and given[-1] is None):
                return None
        steps.append(Step(step.launcher, tuple(given)))
    return Launches(makes, steps, results)
