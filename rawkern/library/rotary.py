"""rotary_embedding(x, cos, sin): pairs of elements turned by an angle that depends on the position."""

from __future__ import annotations

from typing import Any

import torch

from rawkern.arguments.memory import reject_layout
from rawkern.base.operator_state import in_fake_op
from rawkern.base.overrides import overridable
from rawkern.formulas.loop import Loop
from rawkern.library.instances import floating
from rawkern.operators import op
from rawkern.operators.batching import in_front

_loop = Loop.parsed(
    "rotary",
    "T a, T b, S cosine, S sine, int32 sign",
    "T c, T d",
    "c = a * cosine - sign * b * sine; d = b * cosine + sign * a * sine",
)


@overridable
def rotary_embedding(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *, interleaved: bool = False
) -> torch.Tensor:
    """Rotate each pair (a, b) of the last dimension to (a cos - b sin, b cos + a sin); differentiable in ``x``.

    From Su et al., RoFormer: Enhanced Transformer with Rotary Position Embedding, 2021.

    Parameters
    ----------
    x : torch.Tensor
        (..., D) with even D; float16, bfloat16 (both computed in float32), float32 or float64, of any strides.
    cos, sin : torch.Tensor
        Floating-point, of a shape that broadcasts to x's with D / 2 for D, such as (positions, D / 2).
    interleaved : bool
        Whether a pair is (x[2 k], x[2 k + 1]); otherwise it is (x[k], x[k + D / 2]).

    Returns
    -------
    torch.Tensor
        Of the shape, dtype and device of ``x``.

    Raises
    ------
    TypeError
        For tensors that are not floating-point.
    ValueError
        For shapes that don't fit.
    """
    for name, t in (("x", x), ("cos", cos), ("sin", sin)):
        floating("rotary_embedding", name, t)
        reject_layout("rotary_embedding", name, t)
    if x.dim() == 0 or x.shape[-1] % 2:
        raise ValueError(f"rotary_embedding: x has shape {tuple(x.shape)}; the last dimension has to be even")
    half = (*x.shape[:-1], x.shape[-1] // 2)
    for name, t in (("cos", cos), ("sin", sin)):
        if t.dim() > x.dim() or any(n not in (1, m) for n, m in zip(reversed(t.shape), reversed(half), strict=False)):
            raise ValueError(f"rotary_embedding: {name} has shape {tuple(t.shape)}, which does not broadcast to {half}")
    if cos.dtype is not sin.dtype:
        raise TypeError(f"rotary_embedding: cos is {cos.dtype}, sin is {sin.dtype}; pass the same dtype")
    return _rotary(x, cos, sin, interleaved, 1)


@op("rawkern::rotary_embedding", save=("cos", "sin"))
def _rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool, sign: int) -> torch.Tensor:
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if not in_fake_op():
        turn = torch.tensor(sign, dtype=torch.int32, device="cpu")
        inputs = [*_halves(x, interleaved), cos, sin, turn]
        _loop.run(inputs, {"T": x.dtype, "S": cos.dtype}, out=_halves(out, interleaved))
    return out


@_rotary.vmap
def _(
    info: Any, dims: Any, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool, sign: int
) -> tuple[torch.Tensor, int]:
    x = in_front(x, dims[0], info.batch_size)

    def table(t: torch.Tensor, dim: int | None) -> torch.Tensor:
        if dim is None:
            return t
        t = t.movedim(dim, 0)
        return t.reshape(len(t), *[1] * (x.dim() - t.dim()), *t.shape[1:])

    return _rotary.overload(x, table(cos, dims[1]), table(sin, dims[2]), interleaved, sign), 0


@_rotary.backward
def _(ctx: Any, grad_out: torch.Tensor) -> tuple[torch.Tensor, None, None, None, None]:
    for name, needed in zip(("cos", "sin"), ctx.needs_input_grad[1:3], strict=True):
        if needed:
            raise RuntimeError(f"rotary_embedding: {name} has no gradient; pass {name}.detach()")
    cos, sin = ctx.saved_tensors
    return _rotary(grad_out, cos, sin, ctx.interleaved, -ctx.sign), None, None, None, None


def _halves(x: torch.Tensor, interleaved: bool) -> tuple[torch.Tensor, torch.Tensor]:
    if interleaved:
        return x[..., ::2], x[..., 1::2]
    half = x.shape[-1] // 2
    return x[..., :half], x[..., half:]
