"""adamw_: one step of AdamW over many tensors in one launch for each dtype."""

from __future__ import annotations

import functools
import struct
from collections.abc import Sequence

import torch

from rawkern.arguments.memory import reject_layout
from rawkern.base import torch_private as private
from rawkern.base.streams import current_stream
from rawkern.base.torch_private import PLAIN, increment_version
from rawkern.errors import LaunchError
from rawkern.formulas.axes import PACK_BYTES
from rawkern.launch import level
from rawkern.library.instances import C_NAMES, floating, kernel

_THREADS, _GPU_THREADS = 256, 128  # small blocks end, and free their place on a GPU, one soon after another
_CHUNK = 1 << 14  # elements a block updates on the CPU; on a GPU a thread updates one pack: more in flight
_STEP = struct.Struct("7d")  # Step of adamw.cu


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
    lr, betas, eps, weight_decay, maximize : float, (float, float), float, float, bool
        As for `torch.optim.AdamW`.

    Raises
    ------
    TypeError, ValueError
        For tensors that do not go together, named by list and index.
    """
    if private.dispatch_modes() or private.transforms() or private.jit_tracing():
        raise LaunchError(
            "adamw_: tracing, torch.func and dispatch modes do not see a step that changes tensors in one launch; "
            "make it outside of them"
        )
    if private.stream_capturing():
        raise LaunchError("adamw_: a CUDA graph would replay the same step; call it outside of the graph")
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
    numbers = (lr, *betas, eps, weight_decay, 1 - betas[0] ** step, (1 - betas[1] ** step) ** 0.5)
    for (dtype, state, device), members in groups.items():
        given = [[tensors[k] for k in members] for tensors in (params, grads, exp_avgs, exp_avg_sqs)]
        used = [[t if t.is_contiguous() else t.contiguous() for t in tensors] for tensors in given]
        sizes = tuple([t.numel() for t in used[0]])
        on_gpu = device.type == "cuda"
        # The CPU engine makes its own vectors.
        width = PACK_BYTES // max(dtype.itemsize, state.itemsize) if on_gpu else 1
        threads = _GPU_THREADS if on_gpu else _THREADS
        chunk = threads * width if on_gpu else _CHUNK
        which, first = _chunks(sizes, chunk, device)
        rows = (*(tuple([t.data_ptr() for t in tensors]) for tensors in used), sizes)
        table = _table(rows, device, current_stream(device) if on_gpu else 0)
        sign = -1.0 if maximize else 1.0
        run = kernel("adamw", "adamw", dtype, C_NAMES[state], str(width))
        behind = [] if on_gpu else [t for tensors in used for t in tensors]
        with level.lent.scoped(behind):
            run[which.numel(), threads](table, len(sizes), which, first, chunk, sign, _STEP.pack(*numbers))
        for k in (0, 2, 3):
            for t, copy in zip(given[k], used[k], strict=True):
                if copy is not t:
                    t.copy_(copy)
            increment_version(tuple(t for t, copy in zip(given[k], used[k], strict=True) if copy is t))


def _check(k: int, p: torch.Tensor, others: dict[str, torch.Tensor]) -> None:
    floating("adamw_", f"params[{k}]", p)
    for name, t in (("params", p), *others.items()):
        reject_layout("adamw_", f"{name}[{k}]", t)
        if type(t) not in PLAIN or t.is_neg() or t.is_meta:
            raise TypeError(f"adamw_: {name}[{k}] is not a plain tensor ({type(t).__name__})")
    averages = others["exp_avgs"].dtype
    for name, t in others.items():
        allowed = (p.dtype,) if name == "grads" else (p.dtype, torch.float32)
        if t.dtype not in allowed or (name == "exp_avg_sqs" and t.dtype is not averages):
            raise TypeError(f"adamw_: {name}[{k}] is {t.dtype}, params[{k}] is {p.dtype}; pass {name} in that dtype")
        if t.shape != p.shape:
            raise ValueError(f"adamw_: {name}[{k}] has shape {tuple(t.shape)}, params[{k}] has {tuple(p.shape)}")
        if t.get_device() != p.get_device():
            raise ValueError(f"adamw_: {name}[{k}] is on {t.device}, params[{k}] is on {p.device}")


@functools.lru_cache(maxsize=64)
def _table(rows: tuple[tuple[int, ...], ...], device: torch.device, stream: int) -> torch.Tensor:
    """Return the table of adamw.cu on a device, kept since most steps have the addresses of the one before.

    The copy is ordered with the launches of its stream alone, so each stream has its own.
    """
    return torch.tensor(rows).to(device, non_blocking=True)


@functools.lru_cache(maxsize=64)
def _chunks(sizes: tuple[int, ...], chunk: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each chunk's tensor and first element."""
    counts = torch.tensor([-(-size // chunk) for size in sizes])
    which = torch.repeat_interleave(counts)
    first = (torch.arange(len(which)) - (counts.cumsum(0) - counts)[which]) * chunk
    return which.to(device, torch.int32), first.to(device)
