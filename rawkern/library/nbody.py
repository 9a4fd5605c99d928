"""nbody_forces: gravitation between all pairs of bodies without an N x N temporary."""

from __future__ import annotations

import functools
from typing import Any

import torch

from rawkern.arguments.memory import reject_layout
from rawkern.base.operator_state import in_fake_op
from rawkern.base.overrides import overridable
from rawkern.kernel import RawKernel
from rawkern.library.instances import floating, kernel
from rawkern.operators import op


@overridable
def nbody_forces(
    positions: torch.Tensor, masses: torch.Tensor, *, G: float = 6.67e-11, softening: float = 0.0
) -> torch.Tensor:
    """Return the force on each body, by Newton's law; differentiable once, in positions and masses.

    ``F_i = sum over j of G m_i m_j (p_j - p_i) / (|p_j - p_i|^2 + softening^2)^(3/2)``, which is Plummer's law where
    there is a softening; coincident bodies contribute nothing. The squares of distances have to be within the dtype's
    range.

    Parameters
    ----------
    positions : torch.Tensor
        (D, N), D = 2 or 3, N below 2^31; float16, bfloat16 (both computed in float32), float32 or float64.
    masses : torch.Tensor
        (N,), of the same dtype and device.
    G : float
        Gravitational constant; the default is the SI value, for metres and kilograms and forces in newtons.
    softening : float
        In the units of the positions.

    Returns
    -------
    torch.Tensor
        (D, N), of the positions' dtype.

    Raises
    ------
    TypeError, ValueError
        For other dtypes, shapes or devices, or a negative softening.
    """
    for name, t in (("positions", positions), ("masses", masses)):
        floating("nbody_forces", name, t)
        reject_layout("nbody_forces", name, t)
    if positions.dtype is not masses.dtype:
        raise TypeError(
            f"nbody_forces: positions is {positions.dtype}, masses is {masses.dtype}; pass tensors of one dtype"
        )
    if positions.dim() != 2 or positions.shape[0] not in (2, 3):
        raise ValueError(f"nbody_forces: positions has shape {tuple(positions.shape)}; pass (2, N) or (3, N)")
    if masses.dim() != 1 or masses.shape[0] != positions.shape[1]:
        raise ValueError(
            f"nbody_forces: masses has shape {tuple(masses.shape)}; positions has {positions.shape[1]} bodies"
        )
    if positions.get_device() != masses.get_device():
        raise ValueError(
            f"nbody_forces: positions is on {positions.device}, masses is on {masses.device}; pass them on one device"
        )
    if softening < 0:
        raise ValueError(f"nbody_forces: softening is {softening}; it can't be negative")
    return _forces(positions, masses, float(G), float(softening))


@op("rawkern::nbody_forces", save=("positions", "masses"))
def _forces(positions: torch.Tensor, masses: torch.Tensor, G: float, softening: float) -> torch.Tensor:
    out = torch.empty(positions.shape, dtype=positions.dtype, device=positions.device)
    none = torch.empty(1, dtype=positions.dtype, device=positions.device)  # launches with null pointers are slower
    _run("nbody_forces", (), positions, masses, G, softening, out, none)
    return out


_forces.vmap(_forces.operator.one_by_one)


@_forces.backward
def _(ctx: Any, grad_out: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None, None]:
    positions, masses = ctx.saved_tensors
    grad_positions = torch.empty(positions.shape, dtype=positions.dtype, device=positions.device)
    grad_masses = torch.empty(masses.shape, dtype=masses.dtype, device=masses.device)
    _run("nbody_backward", (grad_out,), positions, masses, ctx.G, ctx.softening, grad_positions, grad_masses)
    return grad_positions, grad_masses, None, None


def _run(
    name: str,
    grads: tuple[torch.Tensor, ...],
    positions: torch.Tensor,
    masses: torch.Tensor,
    G: float,
    softening: float,
    out: torch.Tensor,
    rest: torch.Tensor,
) -> None:
    dims, n = positions.shape
    if in_fake_op() or n == 0:
        return
    positions, masses = positions.contiguous(), masses.contiguous()
    real = torch.float64 if positions.dtype is torch.float64 else torch.float32
    soft = softening**2 >= torch.finfo(real).tiny  # else its square is 0, and coincident bodies have to be told
    forces, finish, threads, per = _kernels(name, positions.dtype, dims, soft, positions.is_cuda)
    blocks = -(-n // (threads * per))
    parts = max(1, min(-(-n // threads), 64, _GPU_BLOCKS // blocks if positions.is_cuda else 1))
    chunk = -(-n // (parts * threads)) * threads  # whole tiles
    parts = -(-n // chunk)
    rows = dims + len(grads)
    partial = torch.empty((parts, rows, n), dtype=real, device=positions.device)
    forces[(blocks, parts), threads](*grads, positions, masses, partial, n, chunk, softening)
    finish.forall(rows * n)(partial, masses, out, rest, n, rows, parts, dims, G)


_GPU_BLOCKS = 3200  # keeps every multiprocessor busy to the end, with slices few enough to add up


@functools.cache
def _kernels(
    name: str, dtype: torch.dtype, dims: int, soft: bool, on_gpu: bool
) -> tuple[RawKernel, RawKernel, int, int]:
    """Return the kernel, the one that adds its slices, threads of a block and bodies of a thread."""
    threads, per = (32, 4) if on_gpu else (128, 1)
    forces = kernel("nbody", name, dtype, f"{dims}, {threads}, {per}, {'true' if soft else 'false'}")
    return forces, kernel("nbody", "nbody_finish", dtype), threads, per
