"""The derivative of a derived backward, by the same pipeline, for operators of one launch of whole tensors."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from rawkern.errors import NotDifferentiable
from rawkern.gradients.derived import Derived
from rawkern.gradients.launching import summed
from rawkern.gradients.verify import overlap
from rawkern.operators.recording import Recorded, Recording


@dataclass(frozen=True)
class Second:
    """What derives the backward of an operator again.

    The backward of its launch is printed as a plain text, without the passes for speed, and that is derived as any
    other kernel.
    """

    name: str
    recording: Recording
    args: Sequence[Any]
    needs: Sequence[bool]
    plans: Sequence[tuple[Recorded, Derived | None]]
    derive: Callable[..., Derived]

    def gradients(
        self, grads: Sequence[torch.Tensor | None], wanted: Sequence[torch.Tensor | None]
    ) -> list[torch.Tensor | None]:
        """What `wanted`, of the backward's results, gives to the gradients that it took, then to the arguments."""
        launch, found = self._single()
        text, backward = found.plain
        names = text.gradients
        if text.exchanged or set(text.saved) & set(found.outputs):
            raise self._not_supported(f"{launch.kernel.name} may set an element twice, or reads what it has set")
        tensors = {n: t for n, t in launch.arguments.items() if isinstance(t, torch.Tensor)}
        memories = {n: self.recording.memory_of(t) for n, t in tensors.items()}
        inputs = {n: m.input for n, m in memories.items() if m is not None and m.input is not None}
        results = {n: k for n in text.outputs if (k := self._result(launch, n)) is not None}
        memory = {n: torch.zeros_like(tensors[n]) for n in names}
        for n, k in results.items():
            if (grad := grads[k]) is not None:
                memory[n] = grad.detach().view(tensors[n].shape)
        named = launch.arguments | found.variables(launch.arguments)
        run = backward.launch(named, launch.config.grid)
        values = [n for n in text.saved if n in inputs and self.needs[inputs[n]]]
        wrt = (*values, *(names[n] for n in text.outputs))
        try:
            second = self.derive(run.kernel, text.block, run.grid, run.shared_mem, wrt)
        except NotDifferentiable as error:
            raise self._not_supported(str(error)) from error
        check_deterministic(second, f"{self.name}: its second derivative")
        asked = {
            names[n]: given.contiguous().view(tensors[n].shape)
            for n in text.wrt
            if n in inputs and (given := wanted[inputs[n]]) is not None
        }
        made = second(run.grid, run.given(text.parameters, named, memory), asked)
        places = {n: len(grads) + inputs[n] for n in values} | {names[n]: k for n, k in results.items()}
        total: list[torch.Tensor | None] = [None] * (len(grads) + len(self.args))
        for n, k in places.items():
            like, before = (*grads, *self.args)[k], total[k]
            if like is not None:
                grad = made[n].view(like.shape)
                total[k] = grad if before is None else before + grad
        return total

    def _single(self) -> tuple[Recorded, Derived]:
        """The launch of a function that makes one, of whole tensors."""
        if len(self.plans) != 1:
            raise self._not_supported(f"it makes {len(self.plans)} launches", "make an operator of each launch")
        launch, found = self.plans[0]
        if found is None:
            raise self._not_supported(f"no gradient comes through {launch.kernel.name}")
        if found.before:
            raise self._not_supported(f"{launch.kernel.name} overwrites {', '.join(found.before.values())} in place")
        if launch.numbers:
            raise self._not_supported(f"{launch.kernel.name} takes {', '.join(launch.numbers)} by value from a tensor")
        for n, t in launch.arguments.items():
            if not isinstance(t, torch.Tensor):
                continue
            if summed(t.dtype) is not t.dtype:
                raise self._not_supported(f"{n} of {launch.kernel.name} is {t.dtype}")
            memory = self.recording.memory_of(t) if t.numel() else None
            if memory is None or memory.tensor.numel() != t.numel():
                raise self._not_supported(f"{n} of {launch.kernel.name} is empty or a part of a tensor")
        return launch, found

    def _result(self, launch: Recorded, name: str) -> int | None:
        """Which result of the operator a launch sets; None for memory that it does not return."""
        t = launch.arguments[name]
        memory = self.recording.memory_of(t)
        found = [
            (k, out.numel())
            for k, out in enumerate(self.recording.outputs)
            if out is not None and self.recording.memory_of(out) is memory
        ]
        if len(found) > 1 or any(size != t.numel() for _, size in found):
            raise self._not_supported(f"{name} of {launch.kernel.name} is more than one result, or a part of it is one")
        return found[0][0] if found else None

    def _not_supported(
        self, reason: str, what_to_do: str = "write its backward by hand, of operators"
    ) -> NotDifferentiable:
        return NotDifferentiable(f"{self.name} has no second derivative: {reason}; {what_to_do}")


def check_deterministic(found: Derived, what: str) -> None:
    """Raise, or warn where torch is to warn only, if sums that torch is to make alike differ from run to run."""
    if found.atomics and torch.are_deterministic_algorithms_enabled():
        said = (
            f"{what} adds floats atomically, in an order that differs from run to run, and "
            "torch.use_deterministic_algorithms is on"
        )
        if not torch.is_deterministic_algorithms_warn_only_enabled():
            raise RuntimeError(said)
        warnings.warn(said, stacklevel=3)


def apart(found: Sequence[torch.Tensor | None], given: Sequence[Any]) -> list[torch.Tensor | None]:
    """Gradients of which none shares memory with another, or with what was given."""
    tensors = [t for t in given if isinstance(t, torch.Tensor)]
    made: list[torch.Tensor | None] = []
    for grad in found:
        grad = grad.clone() if grad is not None and any(overlap(grad, t) for t in tensors) else grad
        made.append(grad)
        tensors += [grad] if grad is not None else []
    return made
