"""Derived backwards against torch's autograd in double, and against finite differences."""

from __future__ import annotations

import contextlib

import pytest
import torch

import rawkern
from rawkern.gradients import launching
from tests.gradients.all_cases import CASES


def arguments(case, device):
    draw = torch.Generator().manual_seed(3)
    args = case.make(lambda *shape: torch.rand(shape, generator=draw) * 2 - 1 + 0.01)
    return moved(args, lambda t: t.to(device))


def moved(args, change):
    """Arguments with all tensors changed, those in structs and lists, too."""
    if isinstance(args, torch.Tensor):
        return change(args)
    if isinstance(args, dict):
        return {n: moved(a, change) for n, a in args.items()}
    return type(args)(moved(a, change) for a in args) if isinstance(args, list | tuple) else args


def derived(case):
    return rawkern.RawKernel(case.source, case.name).derive(
        block=case.block, grid=case.grid, shared_mem=case.shared_mem, wrt=case.wrt, max_iterations=case.max_iterations
    )


@pytest.mark.parametrize("name", CASES)
def test_agrees_with_autograd(name, device, monkeypatch) -> None:
    """In double, with every access checked on the CPU engine; and the text reads well."""
    monkeypatch.setattr(launching, "_processors", lambda _: 1)
    monkeypatch.setattr(launching, "_at_a_time", lambda *_: 1)  # one block has the sums of all
    monkeypatch.setattr(launching, "_elements", lambda _, blocks, most: min(most, 2))
    case, draw = CASES[name], torch.Generator().manual_seed(5)
    args, here = arguments(case, "cpu"), arguments(case, device)
    found = derived(case)
    wide = moved(args, lambda t: t.double() if t.is_floating_point() else t)
    named, own = found.named(wide), found.named(here)
    for each in found.wrt:
        named[each] = torch.as_tensor(named[each], dtype=torch.float64).detach().clone().requires_grad_()
    results = case.reference(*named.values())
    weights = {n: torch.randn(r.shape, generator=draw, dtype=torch.float64) for n, r in results.items()}
    expected = torch.autograd.grad(
        sum((r * weights[n]).sum() for n, r in results.items()), [named[n] for n in found.wrt], allow_unused=True
    )
    with rawkern.check() if device == "cpu" else contextlib.nullcontext():
        grads = found(case.grid, here, {n: w.to(own[n]) for n, w in weights.items()})
    for each, right in zip(found.wrt, expected, strict=True):
        scale = max(1.0, float(right.abs().max()))
        torch.testing.assert_close(
            grads[each].cpu().double().view(right.shape), right, rtol=case.tolerance, atol=0.1 * case.tolerance * scale
        )
    if case.atomics is not None:
        assert found.atomics == case.atomics, found.source
    assert max(map(len, found.source.splitlines())) <= 120, found.source
    assert f"// The backward of {case.name}" in found.source


@pytest.mark.parametrize("name", ["saxpy", "softmax", "matmul", "recurrence", "forces", "spmv", "halves"])
def test_agrees_with_a_difference_quotient(name) -> None:
    assert derived(CASES[name]).verify(CASES[name].grid, arguments(CASES[name], "cpu")) < 1e-5
