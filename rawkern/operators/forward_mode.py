"""Forward-mode derivative of elementwise operators, from their backward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from rawkern.operators.reverse import Reverse


def elementwise_jvp(
    reverse: Reverse, saved: Sequence[Any], about: Any, tangents: Sequence[torch.Tensor | None]
) -> tuple[Any, ...]:
    """The tangents of an elementwise operator's outputs.

    Every output's Jacobian with respect to every input is diagonal, so its product with a vector is the product of the
    vector with it, which the backward computes: for output j, the sum over i of the i-th gradient of tangent i.
    """
    decl = reverse.declaration
    values, shapes, _, counts = about
    shape = next(shape for shape in shapes if shape is not None)
    results: list[Any] = []
    for j in range(len(decl.outputs)):
        total: Any = None
        for i, tangent in enumerate(tangents):
            if tangent is None:
                continue
            if tangent.dtype.is_complex or any(s is not None and s != shape for s in shapes):
                what = "complex tensors" if tangent.dtype.is_complex else "inputs of different shapes"
                raise NotImplementedError(
                    f"{decl.qualified}: there is no forward-mode derivative for {what}; "
                    + (
                        "use reverse mode: torch.func.vjp, jacrev"
                        if decl.finished
                        else f"define one with @{decl.name}.jvp"
                    )
                )
            grads: list[torch.Tensor | None] = [None] * len(decl.outputs)
            grads[j] = tangent
            needs = [k == i for k in range(len(tangents))]
            part = reverse.call(grads, saved, values, needs, shapes, counts)[i]
            if part is not None:
                total = part if total is None else total + part
        results.append(total)
    return tuple(results)
