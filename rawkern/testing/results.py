"""Compares a call's results with the expected ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from rawkern.arguments.memory import dtype_name
from rawkern.testing.guards import bytes_of, unwritten

# Relative to the largest element: rounding of sums; torch's tolerances for half types.
TOLERANCE = {
    torch.float64: 1e-10,
    torch.complex128: 1e-10,
    torch.float32: 1e-5,
    torch.complex64: 1e-5,
    torch.float16: 2e-3,
    torch.bfloat16: 1.6e-2,
}
SLACK = 16  # factor on the reference's own error in float32
CANCELLED = 0.1  # share of the tolerance for a sample's results: the error left when numbers of that size cancel
MOST_LOST = 1e-3  # of the largest element: the largest error of float32 that is allowed for in all elements


@dataclass(frozen=True)
class Problem:
    """A problem with one call."""

    kind: str  # "values", "unwritten", "guard", "input", "raises" or "rejected"
    text: str  # one line
    placed: bool = False  # the text names the line of the kernel


@dataclass(frozen=True)
class Outcome:
    """The results of a call."""

    results: tuple[torch.Tensor, ...]  # returned tensors, then the tensors it wrote
    grads: dict[int, torch.Tensor | None]  # of the sample's leaves; None if no result depends on the leaf


def compare(
    what: str,
    got: torch.Tensor,
    exact: torch.Tensor,
    rough: torch.Tensor | None,
    input_dtype: torch.dtype | None,
    tolerance: float | None,
    factor: float = 1.0,
    like: torch.Tensor | None = None,
) -> Problem | None:
    """A problem with one tensor, or None.

    `exact` is the expected result, in float64 if it is floating-point; `rough` is the same computed in float32, whose
    error is allowed. `input_dtype` is the least precise dtype of the inputs; the less precise of it and the result's
    dtype determines the tolerance. `like` is the result for the sample: other inputs may cancel, with errors as large.
    """
    if got.shape != exact.shape:
        return Problem("values", f"{what} has shape {tuple(got.shape)}, not {tuple(exact.shape)}")
    inexact = got.is_floating_point() or got.is_complex()
    if inexact != (exact.is_floating_point() or exact.is_complex()):
        return Problem("values", f"{what} is {dtype_name(got.dtype)}, the reference returns {dtype_name(exact.dtype)}")
    poison = unwritten(got).cpu()
    got = got.detach().cpu()
    if not inexact:
        wrong = got != exact.cpu()
        if got.dtype == torch.bool:
            wrong |= poison
        return _problem(what, got, exact, wrong, poison)
    wide = torch.complex128 if got.is_complex() else torch.float64
    expected, found = exact.detach().cpu().to(got.dtype).to(wide), got.to(wide)
    allowed = max(TOLERANCE.get(d, 0.0) for d in (got.dtype, input_dtype) if d is not None) or 0.1
    allowed = (allowed if tolerance is None else tolerance) * factor
    largest = max(_largest(expected), CANCELLED * _largest(like) if like is not None else 0.0)
    most: Any = allowed * largest
    if rough is not None and rough.shape == exact.shape:
        lost = (rough.detach().to(wide) - exact.detach()).abs().nan_to_num(0, 0, 0)
        eps = torch.finfo(got.dtype).eps / torch.finfo(torch.float32).eps
        # One element of a discontinuous result (round, argmax) may be entirely wrong; the others must still be right.
        lost = lost.clamp(min=min(float(lost.max()), MOST_LOST * largest)) if lost.numel() else lost
        most = most + SLACK * min(eps, 1.0) * factor * lost
    near = ((found - expected).abs() <= most + allowed * expected.abs()) & expected.isfinite()
    close = near | (found == expected) | (found.isnan() & expected.isnan())
    return _problem(what, got, expected, ~close, poison)


def _problem(
    what: str, got: torch.Tensor, expected: torch.Tensor, wrong: torch.Tensor, poison: torch.Tensor
) -> Problem | None:
    count = int(wrong.sum())
    if not count:
        return None
    left = wrong & poison
    if bool(left.any()):
        where = _first(left)
        return Problem(
            "unwritten",
            f"{what}{_index(where)} is never written ({int(left.sum())} of {got.numel()} elements); it should be "
            f"{_value(expected, where)}",
        )
    where = _first(wrong)
    is_, should_be = _value(got, where), _value(expected, where)
    if is_ == should_be:
        is_, should_be = (str(t[tuple(where)].item()) for t in (got, expected))
    text = f"{what}{_index(where)} is {is_}, it should be {should_be}"
    if got.numel() > 1:
        text += f" ({count} of {got.numel()} elements are wrong"
        difference = (got.to(expected.dtype) - expected).abs() if got.dtype != torch.bool else wrong
        largest = difference[wrong].nan_to_num(0, 0, 0).max() if got.is_floating_point() else 0
        text += f", by {float(largest):.3g} at most)" if largest else ")"
    return Problem("values", text)


def _first(mask: torch.Tensor) -> list[int]:
    return mask.nonzero()[0].tolist()


def _index(where: list[int]) -> str:
    return str(where) if where else ""


def _largest(t: torch.Tensor) -> float:
    """The largest finite absolute value; 0 if there is none."""
    finite = t.detach().cpu()[t.detach().cpu().isfinite()]
    return float(finite.abs().max()) if finite.numel() else 0.0


def _value(t: torch.Tensor, index: list[int]) -> str:
    value = t[tuple(index)].item()
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors consist of the same bytes."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.numel() == 0:
        return True
    return torch.equal(bytes_of(a), bytes_of(b))
