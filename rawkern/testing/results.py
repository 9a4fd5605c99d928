"""What a call gave beside what it should have given."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from rawkern.testing.guards import unwritten

__all__ = ["TOLERANCE", "Outcome", "Problem", "compare", "same_bits"]

# Relative to the largest element: roundings of sums; torch's own tolerances for half types.
TOLERANCE = {
    torch.float64: 1e-10,
    torch.complex128: 1e-10,
    torch.float32: 1e-5,
    torch.complex64: 1e-5,
    torch.float16: 2e-3,
    torch.bfloat16: 1.6e-2,
}
SLACK = 16  # times what float32 costs the reference itself


@dataclass(frozen=True)
class Problem:
    """What is wrong with one call.

    Attributes
    ----------
    kind : str
        "values", "unwritten", "guard", "input", "raises" or "refused".
    text : str
        In words, one line.
    """

    kind: str
    text: str


@dataclass(frozen=True)
class Outcome:
    """What a call gave.

    Attributes
    ----------
    results : tuple of torch.Tensor
        What it returned, and then the tensors it has written to.
    grads : dict
        For the sample's leaves the gradients; None where a result does not depend on one.
    """

    results: tuple[torch.Tensor, ...]
    grads: dict[int, torch.Tensor | None]


def compare(
    what: str,
    got: torch.Tensor,
    exact: torch.Tensor,
    rough: torch.Tensor | None,
    input_dtype: torch.dtype | None,
    tolerance: float | None,
    factor: float = 1.0,
) -> Problem | None:
    """What is wrong with one tensor, or None.

    Parameters
    ----------
    exact : torch.Tensor
        What it should be, in float64 where it is floating.
    rough : torch.Tensor or None
        The same computed in float32: what that loses is allowed for.
    input_dtype : torch.dtype or None
        Of the inputs; the coarser of theirs and the result's decides the tolerance.
    """
    if got.shape != exact.shape:
        return Problem("values", f"{what} has shape {tuple(got.shape)}, not {tuple(exact.shape)}")
    inexact = got.is_floating_point() or got.is_complex()
    if inexact != (exact.is_floating_point() or exact.is_complex()):
        return Problem("values", f"{what} is {_name(got.dtype)}, the reference gives {_name(exact.dtype)}")
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
    finite = expected[expected.isfinite()]
    largest = float(finite.abs().max()) if finite.numel() else 0.0
    most = allowed * largest
    if rough is not None and rough.shape == exact.shape:
        lost = (rough.detach().to(wide) - exact.detach()).abs().nan_to_num(0, 0, 0)
        eps = torch.finfo(got.dtype).eps / torch.finfo(torch.float32).eps
        most += SLACK * min(eps, 1.0) * factor * (float(lost.max()) if lost.numel() else 0.0)
    close = torch.isclose(found, expected, rtol=allowed, atol=most, equal_nan=True)
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
            f"{what}{where} is never written ({int(left.sum())} of {got.numel()} elements); it should be "
            f"{_value(expected, where)}",
        )
    where = _first(wrong)
    text = f"{what}{where} is {_value(got, where)}, it should be {_value(expected, where)}"
    if got.numel() > 1:
        text += f" ({count} of {got.numel()} elements are wrong"
        difference = (got.to(expected.dtype) - expected).abs() if got.dtype != torch.bool else wrong
        largest = difference[wrong].nan_to_num(0, 0, 0).max() if got.is_floating_point() else 0
        text += f", by {float(largest):.3g} at most)" if largest else ")"
    return Problem("values", text)


def _first(mask: torch.Tensor) -> list[int]:
    return mask.nonzero()[0].tolist()


def _value(t: torch.Tensor, index: list[int]) -> str:
    value = t[tuple(index)].item()
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors consist of the same bytes."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.numel() == 0:
        return True
    a, b = (t.detach().contiguous().reshape(-1).view(torch.uint8) for t in (a, b))
    return torch.equal(a, b)
