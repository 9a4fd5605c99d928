"""What all operators over rows have in common: opcheck, torch.compile with any sizes, and the choice of an instance."""

from __future__ import annotations

import pytest
import torch

import rawkern
from rawkern.library import cross_entropy, embedding, norm, rows, scale_by_sign_of_sum, softmax, sum  # noqa: F401
from tests.library.common import numbers


def _operators(device: str) -> dict[str, tuple]:
    """Operators that only gradients call, and arguments; `test_check_kernel.py` has the others."""
    x, y = numbers((5, 6, 8), torch.float32, device), numbers((5, 6, 8), torch.float32, device, seed=1)
    w = numbers(8, torch.float32, device, seed=2).requires_grad_()
    x.requires_grad_()
    ops = torch.ops.rawkern
    return {
        "softmax_grad": (ops.softmax_grad, (x, y, 2, True)),
        "sum_spread": (ops.sum_spread, (w, [5, 6, 8], [0, 1], False)),
    }


@pytest.mark.parametrize("name", list(_operators("cpu")))
def test_opcheck(name: str, device: str) -> None:
    operator, arguments = _operators(device)[name]
    torch.library.opcheck(operator.default, arguments)


def test_one_compilation_serves_all_sizes(device: str) -> None:
    def both(x, w, table, index):
        h, s = rawkern.add_rms_norm(rawkern.layer_norm(x, w.shape, w, w), x, w.shape, w)
        h = rawkern.softmax(h, -1) + rawkern.log_softmax(s, 0) + rawkern.sum(x, 0) + rawkern.mean(x, 1, True)
        return rawkern.cross_entropy(rawkern.scale_by_sign_of_sum(h + rawkern.embedding(index, table)), index)

    compiled = torch.compile(both, fullgraph=True, backend="aot_eager", dynamic=True)
    w, table = numbers(16, torch.float32, device), numbers((16, 16), torch.float32, device, seed=1).requires_grad_()
    for n in (6, 9, 12):
        x = numbers((n, 16), torch.float32, device, seed=n).requires_grad_()
        index = torch.arange(n, device=device)
        with torch.compiler.set_stance("default" if n == 6 else "fail_on_recompile"):
            got = compiled(x, w, table, index)
        wanted = both(x, w, table, index)
        torch.testing.assert_close(got, wanted)
        grads = (torch.autograd.grad(loss, (x, table)) for loss in (got, wanted))
        for a, b in zip(*grads, strict=True):
            torch.testing.assert_close(a, b)


def test_autocast_follows_torchs_lists(device: str) -> None:
    """On the CPU torch has fewer operators compute in float32 than on GPUs."""
    index = torch.arange(4, device=device)
    ours, theirs = rawkern, torch.nn.functional
    calls = [
        lambda f, x, w: f.softmax(x, 1),
        lambda f, x, w: f.log_softmax(x, 1),
        lambda f, x, w: f.layer_norm(x, (8,), w),
        lambda f, x, w: f.layer_norm(x, (8,)),
        lambda f, x, w: f.cross_entropy(x, index),
        lambda f, x, w: f.gelu(x),
        lambda f, x, w: f.embedding(index, x),
        lambda f, x, w: f.relu(x),
    ]
    if device == "cpu":  # releases of torch differ in what they do on GPUs
        calls.append(lambda f, x, w: f.rms_norm(x, (8,)))
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        x, w = numbers((4, 8), dtype, device), numbers((8,), torch.float32, device, seed=1)
        with torch.autocast(device, dtype=torch.bfloat16):
            for call in calls:
                found, expected = call(ours, x, w), call(theirs, x, w)
                torch.testing.assert_close(found, expected, rtol=0.02, atol=0.01)  # and of one dtype
            both = rawkern.add_layer_norm(x, x, 8, w)
            assert {t.dtype for t in both} == {calls[2](theirs, x, w).dtype}


def test_few_instances_for_many_shapes(device: str) -> None:
    found = set()
    x = torch.empty(1 << 20, device=device)
    for n in (1, 3, 4, 100, 128, 1000, 1001, 4096, 5000, 16384, 33333, 100_000):
        plan = rows.plan(8, n, 1, x)
        assert plan.held * plan.width * (plan.group if plan.group == 32 else plan.block) >= n or not plan.held
        found.add(plan.arguments)
    assert len(found) <= 7


def test_rows_of_any_length_are_kept_in_registers_on_the_cpu() -> None:
    """Up to 1024 floats, in packs where all rows are aligned to them; longer ones are read in packs.

    A large kernel keeps eight packs.
    """
    for n, width, held in ((253, 1, 8), (256, 4, 2), (1001, 1, 32), (1000, 4, 8), (1025, 1, 0), (1028, 4, 0)):
        plan = rows.plan(3, n, 1, torch.empty(3, n))
        assert (plan.width, plan.held, plan.group) == (width, held, rows.WARP)
        large = rows.plan(3, n, 1, torch.empty(3, n), cpu_held=rows.CPU_PACKS)
        assert (large.width, large.held) == ((width, held) if 0 < held <= 8 else (1, 0))


@pytest.mark.parametrize(
    ("n", "width", "held"), [(16, 1, 1), (33, 1, 2), (36, 1, 2), (100, 4, 1), (101, 1, 4), (256, 4, 2), (300, 4, 8)]
)
def test_threads_of_the_cpu_keep_no_more_than_short_rows_have(n: int, width: int, held: int) -> None:
    x = torch.randn(5, n)
    found = rows.plan(5, n, 1, x)
    assert (found.width, found.held) == (width, held)
    torch.testing.assert_close(rawkern.softmax(x, 1), torch.softmax(x, 1))
