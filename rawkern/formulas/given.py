"""Elementwise formulas computed into tensors that a call gives for the outputs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from rawkern.base.operator_state import inside_op
from rawkern.base.torch_private import PLAIN
from rawkern.formulas.loop import Loop
from rawkern.formulas.parameters import Parameter
from rawkern.formulas.promotion import (
    as_outs,
    check_out,
    device_of,
    joint_shape,
    output_dtypes,
    overlap,
    refuse_wrapped,
)
from rawkern.formulas.updated import names_of_old, updated, with_old_values
from rawkern.operators.recorded import quiet


@dataclass(frozen=True)
class Given:
    """How a loop computes into given tensors.

    ``operator`` is the loop's, None where the inputs do not settle what the outputs are; ``letters`` are those that the
    given outputs alone tell. ``updating`` is for statements that read outputs: the same with old values as inputs, and
    which outputs those are of.
    """

    loop: Loop
    operator: Any
    letters: tuple[str, ...]
    updating: tuple[Given, tuple[int, ...]] | None

    def compute(
        self,
        tensors: list[torch.Tensor],
        dtypes: dict[str, torch.dtype],
        out: Any,
        what: str = "out",
        *,
        update: bool = True,
    ) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """Compute into tensors; with ``update`` the statements may read what those hold."""
        loop, name = self.loop, self.loop.name
        outs = as_outs(name, what, out, tensors, len(loop.outputs))
        dtypes = {**dtypes, **output_dtypes(name, loop.outputs, self.letters, outs)}
        if update and self.updating is not None:
            other, places = self.updating
            old = [outs[k] for k in places]
            for k, t in zip(places, old, strict=True):
                p = loop.outputs[k]
                check_out(name, what, t, t.shape, p.dtype or dtypes[p.type], device_of([*tensors, *outs]))
            return other.compute([*tensors, *(t.detach() for t in old)], dtypes, outs, what)
        shape = joint_shape(name, [t.shape for t, p in zip(tensors, loop.inputs, strict=True) if not p.raw])
        device = device_of([t for t in (*tensors, *outs) if t.dim()] or tensors)
        for t, p in zip(outs, loop.outputs, strict=True):
            check_out(name, what, t, t.shape if p.raw else shape, p.dtype or dtypes[p.type], device)
        if self.operator is not None and (
            not quiet() or any(t.is_neg() or type(t) not in PLAIN for t in (*tensors, *outs))
        ):
            found = self.operator(*tensors)
            for t, value in zip(outs, (found,) if isinstance(found, torch.Tensor) else found, strict=True):
                t.copy_(value)
        else:
            if not quiet():
                refuse_wrapped(name, (*tensors, *outs))
            apart = [t.clone() if any(overlap(t, o) for o in outs) else t for t in tensors]
            # What has no operator is a launch like any other to those who watch, which refuses what would lose it.
            with inside_op() if quiet() else contextlib.nullcontext():
                loop.run(apart, dtypes, out=outs)
        return outs[0] if len(outs) == 1 else outs


def given(
    loop: Loop,
    operator: Any,
    letters: tuple[str, ...],
    another: Callable[[str, tuple[Parameter, ...], tuple[Parameter, ...], str], Any],
) -> Given:
    """What computes into given tensors; ``another`` makes an operator with such an attribute, `Elementwise`."""
    names = [p.name for p in loop.outputs if not p.raw]
    found = updated(loop.operation, names)
    if not found:
        return Given(loop, operator, letters, None)
    old = names_of_old(found, [p.name for p in loop.inputs], f"{loop.operation} {loop.preamble}")
    inputs = tuple(replace(p, name=old[p.name]) for p in loop.outputs if p.name in old)
    places = tuple(k for k, p in enumerate(loop.outputs) if p.name in old)
    other = another(loop.name, (*loop.inputs, *inputs), loop.outputs, with_old_values(loop.operation, old))
    return Given(loop, operator, letters, (other.given, places))
