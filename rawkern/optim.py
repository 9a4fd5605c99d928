"""Optimizers whose step is CUDA C: `AdamW`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from rawkern.arguments.memory import reject_layout
from rawkern.library.adamw import adamw_

__all__ = ["AdamW"]


def __dir__() -> list[str]:
    return __all__


class AdamW(torch.optim.AdamW):
    """`torch.optim.AdamW` with its step in one launch for each dtype and device; a state dict fits both.

    Each process updates its local part of a DTensor, such as a parameter under FSDP2.

    Parameters
    ----------
    params, lr
        As for `torch.optim.AdamW`.
    **options
        Its others: ``betas``, ``eps``, ``weight_decay``, ``maximize``.

    Raises
    ------
    ValueError
        For ``amsgrad``, ``differentiable``, ``capturable`` or ``fused``, which are not supported.
    """

    def __init__(self, params: Any, lr: float = 1e-3, **options: Any) -> None:
        for name in ("amsgrad", "differentiable", "capturable", "fused"):
            _reject(name, options.get(name))
        super().__init__(params, lr=lr, **options)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update the parameters that have gradients.

        Parameters
        ----------
        closure : callable, optional
            Called first, with gradients recorded.

        Returns
        -------
        object
            What the closure returns.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            _reject("amsgrad", group["amsgrad"])  # of one group, or from a state dict
            by_step: dict[int, list[torch.Tensor]] = {}
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    reject_layout("rawkern.optim.AdamW", "a parameter", p)
                if p.grad.is_sparse:
                    raise RuntimeError("rawkern.optim.AdamW takes no sparse gradients; use torch.optim.SparseAdam")
                if not state:
                    state["step"] = torch.tensor(0.0)
                    state["exp_avg"] = torch.zeros_like(p, memory_format=torch.preserve_format)
                    state["exp_avg_sq"] = torch.zeros_like(p, memory_format=torch.preserve_format)
                state["step"] += 1
                by_step.setdefault(int(state["step"].item()), []).append(p)
            for step, members in by_step.items():
                adamw_(
                    [_local(p) for p in members],
                    [_local(p.grad, p) for p in members],
                    [_local(self.state[p]["exp_avg"], p) for p in members],
                    [_local(self.state[p]["exp_avg_sq"], p) for p in members],
                    step=step,
                    lr=float(group["lr"]),
                    betas=group["betas"],
                    eps=group["eps"],
                    weight_decay=group["weight_decay"],
                    maximize=group["maximize"],
                )
        return loss


def _reject(name: str, value: Any) -> None:
    if value:
        raise ValueError(f"rawkern.optim.AdamW has no {name}; use torch.optim.AdamW")


def _local(t: Any, like: Any = None) -> torch.Tensor:
    """Return what this process has of a DTensor, placed as `like`: each element's step is its own."""
    if not hasattr(t, "placements"):
        return t
    if like is not None and t.placements != like.placements:
        t = t.redistribute(like.device_mesh, like.placements)
    return t.to_local()
