"""Elementwise formulas computed into tensors that a call gives for the outputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from rawkern.base.operator_state import inside_op
from rawkern.base.torch_private import PLAIN
from rawkern.formulas.loop import Loop
from rawkern.formulas.promotion import as_outs, check_out, device_of, joint_shape, output_dtypes, overlap
from rawkern.operators.recorded import quiet


@dataclass(frozen=True)
class Given:
    """How a loop computes into given tensors.

    ``operator`` makes outputs and returns them; None where the inputs do not settle what those are. ``into`` is an
    operator that changes tensors given after the inputs; None where nothing needs it. ``letters`` are those that the
    given outputs alone tell, ``updated`` the outputs that start with what they hold.
    """

    loop: Loop
    operator: Any
    into: Any
    letters: tuple[str, ...]
    updated: tuple[str, ...]

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
        shape, device = self._shape(tensors, outs), device_of([t for t in (*tensors, *outs) if t.dim()] or tensors)
        for t, p in zip(outs, loop.outputs, strict=True):
            check_out(name, what, t, t.shape if p.raw else shape, p.dtype or dtypes[p.type], device)
        updated = self.updated if update else ()
        if quiet() and all(type(t) in PLAIN and not t.is_neg() and not t.is_conj() for t in (*tensors, *outs)):
            with inside_op():
                self.write(tensors, dtypes, outs, updated)
        elif updated or self.operator is None:
            self.into(*tensors, *outs)
        else:
            first = next(k for k, p in enumerate(loop.inputs) if not p.raw)
            tensors[first] = tensors[first].expand(shape)
            found = self.operator(*tensors)
            for t, value in zip(outs, (found,) if isinstance(found, torch.Tensor) else found, strict=True):
                t.copy_(value)
        return outs[0] if len(outs) == 1 else outs

    def write(
        self,
        tensors: Sequence[torch.Tensor],
        dtypes: dict[str, torch.dtype],
        outs: Sequence[torch.Tensor],
        updated: tuple[str, ...],
    ) -> None:
        """Run the loop, which reads the inputs as they are before."""
        raw = [p.raw for p in self.loop.inputs]
        apart = [
            t.clone() if any(overlap(t, o, r or p.raw) for o, p in zip(outs, self.loop.outputs, strict=True)) else t
            for t, r in zip(tensors, raw, strict=True)
        ]
        self.loop.run(apart, dtypes, out=outs, updated=updated)

    def _shape(self, tensors: Sequence[torch.Tensor], outs: Sequence[torch.Tensor]) -> torch.Size:
        """The shape of the loop: the inputs' own, or that of the outputs if the inputs broadcast to it."""
        shape = joint_shape(
            self.loop.name, [t.shape for t, p in zip(tensors, self.loop.inputs, strict=True) if not p.raw]
        )
        given = [t.shape for t, p in zip(outs, self.loop.outputs, strict=True) if not p.raw]
        if not given or given[0] == shape or any(each != given[0] for each in given):
            return shape
        fits = len(shape) <= len(given[0]) and all(
            size in (1, wide) for size, wide in zip(reversed(shape), reversed(given[0]), strict=False)
        )
        return given[0] if fits else shape
