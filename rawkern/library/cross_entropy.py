"""cross_entropy: log_softmax and the negative log likelihood of class indices in one pass over the logits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rawkern.arguments.memory import reject_layout
from rawkern.base.overrides import overridable
from rawkern.errors import LaunchError
from rawkern.library.instances import check_index, kernel, not_a_tensor
from rawkern.library.rows import BLOCK, WARP, accumulator, contiguous, pieces, plan, run, sizes
from rawkern.operators import op

REDUCTIONS = ("none", "mean", "sum")
SHORT_HELD = 2  # packs of short rows that a thread keeps; long ones are read as a stream


@overridable
def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """Return the cross entropy of logits and class indices; differentiable once, with respect to the logits.

    No tensor of probabilities is kept: the backward reads the logits again, with one number for each row. The loss,
    with smoothing e and class weights w, is that of `torch.nn.functional.cross_entropy`:
    (1 - e) * w[y] * (lse - x[y]) + e / C * sum(w * (lse - x)), where lse = log(sum(exp(x))).

    Parameters
    ----------
    input : torch.Tensor
        Logits, (C,), (N, C) or (N, C, d1, ...), of float16, bfloat16, float32 or float64 and any strides.
    target : torch.Tensor
        int64 class indices, (), (N,) or (N, d1, ...); 0 <= target < C, or ``ignore_index``. Another index stops the
        kernel with an assertion.
    weight : torch.Tensor, optional
        A factor for each class, (C,), of the input's dtype; it gets no gradient.
    ignore_index : int
        Targets that do not count, neither for the loss nor for its mean.
    reduction : str
        "mean" (over the weights of all targets), "sum", or "none" for a loss for each target.
    label_smoothing : float
        Between 0 and 1: how much of the target is spread over all classes.

    Returns
    -------
    torch.Tensor
        Of the input's dtype; 0-d, or with "none" of the target's shape.

    Raises
    ------
    TypeError
        For another dtype (class probabilities as targets are not supported), or something that is not a tensor.
    ValueError
        For shapes that do not fit, or options that do not exist.
    IndexError
        For a target that is not a class, on the CPU; on a GPU its assertion fails, and later calls report it.
    """
    if not (isinstance(input, Tensor) and isinstance(target, Tensor)):
        not_a_tensor("cross_entropy", input, target)
    for name, t in (("input", input), ("target", target), ("weight", weight)):
        if isinstance(t, Tensor):
            reject_layout("cross_entropy", name, t)
    _check(input, target, weight, reduction, label_smoothing)
    return _cross_entropy(input, target, weight, ignore_index, float(label_smoothing), reduction)


def _check(x: Tensor, target: Tensor, weight: Any, reduction: str, smoothing: float) -> None:
    if target.dtype is not torch.int64:
        raise TypeError(
            f"cross_entropy: target is {target.dtype}, it must be int64 class indices; for class probabilities use "
            "-(target * rawkern.log_softmax(input, 1)).sum(1).mean()"
        )
    wanted = x.shape[:1] + x.shape[2:] if x.dim() > 1 else torch.Size()
    if x.dim() == 0 or target.shape != wanted:
        raise ValueError(
            f"cross_entropy: input has shape {tuple(x.shape)} and target {tuple(target.shape)}; they must be (C,) and "
            "(), (N, C) and (N,), or (N, C, d1, ...) and (N, d1, ...)"
        )
    classes = x.shape[min(1, x.dim() - 1)]
    if weight is not None:
        if not isinstance(weight, Tensor):
            raise TypeError(f"cross_entropy: weight is {type(weight).__name__}, it must be a tensor or None")
        if weight.shape != (classes,):
            raise ValueError(f"cross_entropy: weight has shape {tuple(weight.shape)}, it must be {(classes,)}")
        if weight.requires_grad and torch.is_grad_enabled():
            raise ValueError("cross_entropy: weight gets no gradient; pass weight.detach()")
    if reduction not in REDUCTIONS:
        raise ValueError(f"cross_entropy: reduction is {reduction!r}, it must be one of {', '.join(REDUCTIONS)}")
    if not 0 <= smoothing <= 1:
        raise ValueError(f"cross_entropy: label_smoothing is {smoothing}, it must be between 0 and 1")


@op(
    "rawkern::cross_entropy",
    save=("x", "target", "weight", "lse", "totals"),
    hidden=("lse", "totals"),
    autocast=torch.float32,
)
def _cross_entropy(
    x: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int, smoothing: float, reduction: str
) -> tuple[Tensor, Tensor, Tensor]:
    """The loss, and for the backward lse of each row and two totals (see cross_entropy.cu)."""
    x, target = contiguous(x), contiguous(target)
    weight = weight if weight is None else contiguous(weight)
    rows, n, inner = sizes(x, min(1, x.dim() - 1))
    lse = x.new_empty(rows, dtype=accumulator(x.dtype))
    losses, totals = torch.empty_like(lse), lse.new_empty(2)
    if target.numel():
        found = plan(rows, n, inner, x, held=SHORT_HELD, most_threads=256)
        arguments = x, target, weight, losses, lse, rows, n, inner, ignore_index, smoothing
        try:
            run("cross_entropy", "cross_entropy", x, found, smoothing > 0, *arguments)
        except LaunchError:
            check_index("cross_entropy", "target", target, n, "classes", ignore_index)
            raise
    loss = None if reduction == "none" else x.new_empty(())
    group = BLOCK if x.is_cuda else WARP
    total = kernel("cross_entropy", "cross_entropy_total", x.dtype, str(group))
    total[1, group](losses, target, weight, loss, totals, rows, n, ignore_index, reduction == "mean")
    return losses.to(x.dtype, copy=True).view(target.shape) if loss is None else loss, lse, totals


_cross_entropy.vmap(_cross_entropy.operator.one_by_one)


@_cross_entropy.backward
def _(ctx: Any, grad_loss: Tensor) -> tuple[Tensor, None, None]:
    x, target, weight, lse, totals = ctx.saved_tensors
    x, target, grad_loss = contiguous(x), contiguous(target), contiguous(grad_loss)
    weight = weight if weight is None else contiguous(weight)
    grad_x = torch.empty_like(x)
    if x.numel():
        rows, n, inner = sizes(x, min(1, x.dim() - 1))
        found, size = pieces(rows, n, inner, x, grad_x)
        arguments = grad_loss, x, target, weight, lse, totals, grad_x
        options = rows, n, inner, size, ctx.ignore_index, ctx.smoothing, ctx.reduction == "none"
        run("cross_entropy", "cross_entropy_backward", x, found, ctx.smoothing > 0, *arguments, *options)
    return grad_x, None, None
