"""adamw_: one step of AdamW over many tensors in one launch for each dtype."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch

from rawkern.kernel import RawKernel
from rawkern.module import own_sources
from rawkern.ops.instances import C_NAMES

__all__ = ["adamw_"]

_CHUNK = 1 << 15  # elements a block updates


@torch.no_grad()
def adamw_(
    params: Sequence[torch.Tensor],
    grads: Sequence[torch.Tensor],
    exp_avgs: Sequence[torch.Tensor],
    exp_avg_sqs: Sequence[torch.Tensor],
    *,
    step: int,
    lr: float = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 1e-2,
    maximize: bool = False,
) -> None:
    """Update parameters and averages in place, as `torch.optim.AdamW` does.

    Parameters
    ----------
    params, grads : sequence of torch.Tensor
        Parameters and their gradients, each pair of one dtype (float16, bfloat16, float32 or float64), shape and
        device. Half types are computed in float32.
    exp_avgs, exp_avg_sqs : sequence of torch.Tensor
        Averages of the gradients and of their squares, of the parameters' shapes, in their dtype or float32.
    step : int
        The number of this step, 1 for the first.
    lr, betas, eps, weight_decay, maximize
        As for `torch.optim.AdamW`.

    Raises
    ------
    TypeError, ValueError
        For tensors that do not go together, named by list and index.
    """
    if step < 1:
        raise ValueError(f"adamw_: step is {step}; the first is 1")
    many = len(params)
    lists = {"grads": grads, "exp_avgs": exp_avgs, "exp_avg_sqs": exp_avg_sqs}
    for name, tensors in lists.items():
        if len(tensors) != many:
            raise ValueError(f"adamw_: {name} has {len(tensors)} tensors, params has {many}")
    groups: dict[tuple[torch.dtype, torch.dtype, torch.device], list[int]] = {}
    for k, p in enumerate(params):
        _check(k, p, {name: tensors[k] for name, tensors in lists.items()})
        if p.numel():
            groups.setdefault((p.dtype, exp_avgs[k].dtype, p.device), []).append(k)
    rest = (
        -1.0 if maximize else 1.0, lr, betas[0], betas[1], eps, weight_decay,
        1 - betas[0] ** step, (1 - betas[1] ** step) ** 0.5,
    )  # fmt: skip
    for (dtype, state, device), members in groups.items():
        copies = {k: params[k].contiguous() for k in members}
        averages = {k: exp_avgs[k].contiguous() for k in members}
        squares = {k: exp_avg_sqs[k].contiguous() for k in members}
        sizes = tuple(params[k].numel() for k in members)
        count, which, first = _chunks(sizes, device)
        _kernel(dtype, state)[which.numel(), 256](
            [copies[k] for k in members], [grads[k].contiguous() for k in members],
            [averages[k] for k in members], [squares[k] for k in members],
            count, which, first, _CHUNK, *rest,
        )  # fmt: skip
        for k in members:
            for given, used in ((params[k], copies[k]), (exp_avgs[k], averages[k]), (exp_avg_sqs[k], squares[k])):
                if given is not used and given.data_ptr() != used.data_ptr():
                    given.copy_(used)


def _check(k: int, p: torch.Tensor, others: dict[str, torch.Tensor]) -> None:
    if p.dtype not in C_NAMES:
        names = ", ".join(str(d).removeprefix("torch.") for d in C_NAMES)
        raise TypeError(f"adamw_: params[{k}] is {p.dtype}; there is adamw_ for {names}")
    for name, t in others.items():
        allowed = (p.dtype,) if name == "grads" else (p.dtype, torch.float32)
        if t.dtype not in allowed or (name == "exp_avg_sqs" and t.dtype is not others["exp_avgs"].dtype):
            raise TypeError(f"adamw_: {name}[{k}] is {t.dtype}, params[{k}] is {p.dtype}; pass {name} in that dtype")
        if t.shape != p.shape:
            raise ValueError(f"adamw_: {name}[{k}] has shape {tuple(t.shape)}, params[{k}] has {tuple(p.shape)}")
        if t.device != p.device:
            raise ValueError(f"adamw_: {name}[{k}] is on {t.device}, params[{k}] is on {p.device}")


@functools.cache
def _kernel(dtype: torch.dtype, state: torch.dtype) -> RawKernel:
    return RawKernel(path=own_sources() / "adamw.cu", name=f"adamw<{C_NAMES[dtype]}, {C_NAMES[state]}>")


@functools.lru_cache(maxsize=64)
def _chunks(sizes: tuple[int, ...], device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return each tensor's number of elements, and each chunk's tensor and first element."""
    chunks = [(k, first) for k, size in enumerate(sizes) for first in range(0, size, _CHUNK)]
    which = torch.tensor([k for k, _ in chunks], dtype=torch.int32, device=device)
    first = torch.tensor([at for _, at in chunks], dtype=torch.int64, device=device)
    return torch.tensor(sizes, dtype=torch.int64, device=device), which, first
