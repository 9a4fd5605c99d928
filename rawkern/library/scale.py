"""scale(x, s) = x * s for a number s."""

from __future__ import annotations

import numbers
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

from rawkern.library.instances import mapped, not_a_tensor
from rawkern.operators import op

__all__ = ["scale"]


def scale(x: torch.Tensor, s: float) -> torch.Tensor:
    """Return x * s, elementwise; differentiable with respect to x any number of times.

    Half types are computed in float32 and rounded once; s is rounded to the type that is computed in, as in torch.

    Parameters
    ----------
    x : torch.Tensor
        float16, bfloat16, float32 or float64, of any shape and strides, on the CPU or a GPU.
    s : float or int
        A number of Python or NumPy; `rawkern.mul` takes a tensor.

    Returns
    -------
    torch.Tensor
        Of the shape, dtype and device of x.

    Raises
    ------
    TypeError
        For another dtype, an x that is no tensor or an s that is no real number.
    """
    return _any(x, s) if is_dynamo_compiling() else _forward.call(x, s)


def _any(x: torch.Tensor, s: float) -> torch.Tensor:
    if not isinstance(x, torch.Tensor):
        not_a_tensor("scale", x)
    if type(s) is not float:
        s = _number(s)
    return _scale(x, s)


_forward = mapped("scale", "scale", 2, numbers=(1,))
_forward.for_users(_any)


def _number(s: Any) -> float:
    if isinstance(s, numbers.Real):
        return float(s)
    way_out = "; use rawkern.mul for a product of tensors" if isinstance(s, torch.Tensor) else ""
    raise TypeError(f"scale: s is {type(s).__name__}, it must be a real number{way_out}")


@op("rawkern::scale", save=(), elementwise=True, strided=True)
def _scale(x: torch.Tensor, s: float) -> torch.Tensor:
    return _forward.run(x, s)


@_scale.backward
def _(ctx: Any, grad_out: torch.Tensor) -> torch.Tensor:
    return _forward.call(grad_out, ctx.s)
