"""Derived backwards against torch's autograd in double, and against difference quotients."""

from __future__ import annotations

import pytest
import torch

import rawkern
from tests.gradients import cases_models  # noqa: F401 (adds its own)
from tests.gradients.cases import CASES


def arguments(case, device):
    draw = torch.Generator().manual_seed(3)
    args = case.make(lambda *shape: torch.rand(shape, generator=draw) * 2 - 1 + 0.01)
    return tuple(a.to(device) if isinstance(a, torch.Tensor) else a for a in args)


def derived(case):
    return rawkern.RawKernel(case.source, case.name).derive(block=case.block, grid=case.grid, wrt=case.wrt)


@pytest.mark.parametrize("name", CASES)
def test_agrees_with_autograd_and_a_difference_quotient(name, device) -> None:
    case, draw = CASES[name], torch.Generator().manual_seed(5)
    args = arguments(case, device)
    found = derived(case)
    wide = [a.double() if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in args]
    named = found.named(wide)
    for each in found.wrt:
        value = named[each]
        named[each] = torch.as_tensor(value, dtype=torch.float64, device=device).detach().clone().requires_grad_()
    results = case.reference(*named.values())
    weights = {n: torch.randn(r.shape, generator=draw, dtype=torch.float64).to(device) for n, r in results.items()}
    expected = torch.autograd.grad(
        sum((r * weights[n]).sum() for n, r in results.items()), [named[n] for n in found.wrt], allow_unused=True
    )
    grads = found(case.grid, args, {n: w.float() for n, w in weights.items()})
    for each, right in zip(found.wrt, expected, strict=True):
        scale = max(1.0, float(right.abs().max()))
        torch.testing.assert_close(grads[each].double().view(right.shape), right, rtol=2e-4, atol=2e-5 * scale)
    if torch.device(device).type == "cpu":
        assert found.verify(case.grid, args) < 1e-5
    if case.atomics is not None:
        assert found.atomics == case.atomics, found.source


@pytest.mark.parametrize("name", CASES)
def test_reads_and_writes_no_wrong_memory(name) -> None:
    case = CASES[name]
    args = arguments(case, "cpu")
    found = derived(case)
    named = found.named(args)
    with rawkern.check():
        found(case.grid, args, {n: torch.ones_like(named[n]) for n in found.outputs})


@pytest.mark.parametrize("name", CASES)
def test_text_reads_well(name) -> None:
    case = CASES[name]
    source = derived(case).source
    assert max(map(len, source.splitlines())) <= 120, source
    assert f"// The backward of {case.name}" in source
