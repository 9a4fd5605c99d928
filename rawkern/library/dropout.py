"""dropout(x, p), with the same random numbers in forward and backward and none of them kept."""

from __future__ import annotations

from typing import Any

import torch

from rawkern.arguments.memory import reject_layout
from rawkern.base.overrides import overridable
from rawkern.library.instances import floating, kernel
from rawkern.operators import op


@overridable
def dropout(input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
    """Set elements to zero with probability ``p`` and divide the others by 1 - p; as `torch.nn.functional.dropout`.

    The choice depends on a seed, drawn from torch's generator of the device, and on an element's position. The
    backward computes it again, so only the seed is stored. The numbers are not those of torch's dropout.

    Parameters
    ----------
    input : torch.Tensor
        float16, bfloat16 (both computed in float32), float32 or float64, of any shape and strides.
    p : float
        In [0, 1]; kept to 32 bits, for half types to 16.
    training : bool
        Otherwise the input is returned.
    inplace : bool
        Write the result over ``input``, and return it.

    Returns
    -------
    torch.Tensor
        Of the same shape, dtype and device; ``input`` itself if in place or not training.

    Raises
    ------
    TypeError
        For another dtype.
    ValueError
        For a ``p`` outside of [0, 1].
    """
    if not 0.0 <= p <= 1.0:
        raise ValueError(f"dropout: p is {p!r}; a probability is between 0 and 1")
    floating("dropout", "the argument", input)
    reject_layout("dropout", "input", input)
    if not training or p == 0.0:
        return input
    seed = torch.randint(2**62, (), device=input.device)
    out = _dropout(input, seed, float(p))
    return input.copy_(out) if inplace else out


@op("rawkern::dropout", save=("seed",))
def _dropout(x: torch.Tensor, seed: torch.Tensor, p: float) -> torch.Tensor:
    if not x.is_contiguous() or x.is_neg():
        x = x.contiguous().resolve_neg()
    bits = 16 if x.dtype.itemsize == 2 else 32
    out = torch.empty_like(x)
    n = x.numel()
    # The words reach no further than 2^bits - 1, which p = 1 does not drop but scale by 0.
    drop, scale = min(round(p * 2**bits), 2**bits - 1), 1 / (1 - p) if p < 1 else 0.0
    kernel("dropout", "dropout", x.dtype).forall(-(-n // (8 if bits == 16 else 4)))(x, out, seed, drop, scale, n)
    return out


_dropout.vmap(_dropout.operator.one_by_one)


@_dropout.backward
def _(ctx: Any, grad_out: torch.Tensor) -> tuple[torch.Tensor, None]:
    (seed,) = ctx.saved_tensors
    return _dropout(grad_out, seed, ctx.p), None


@_dropout.jvp
def _(ctx: Any, tangent: torch.Tensor, _: Any) -> torch.Tensor:
    (seed,) = ctx.saved_tensors
    return _dropout(tangent, seed, ctx.p)
