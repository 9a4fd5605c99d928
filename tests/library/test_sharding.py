"""Built-in elementwise operators of DTensors: each process computes its own part, forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import rawkern
from tests.library.common import numbers

if not torch.distributed.is_available():
    pytest.skip("this torch is built without torch.distributed", allow_module_level=True)

from torch.distributed.tensor import DTensor, Replicate, Shard, init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

OPERATORS: dict[str, Callable[..., torch.Tensor]] = {
    "square": rawkern.square,
    "relu": rawkern.relu,
    "silu": rawkern.silu,
    "gelu": rawkern.gelu,
    "gelu_tanh": lambda x: rawkern.gelu(x, "tanh"),
    "mul": rawkern.mul,
    "swiglu": rawkern.swiglu,
    "geglu": rawkern.geglu,
    "geglu_tanh": lambda a, b: rawkern.geglu(a, b, "tanh"),
    "add_sin_cos": rawkern.add_sin_cos,
}
PAIRS = ("mul", "swiglu", "geglu", "geglu_tanh", "add_sin_cos")


@pytest.fixture
def mesh() -> Iterator[Any]:
    """Two processes of which this is the first; a collective between them would not do anything."""
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield init_device_mesh("cpu", (2,))
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("name", OPERATORS)
def test_parts_stay_parts(name: str, mesh: Any) -> None:
    operator = OPERATORS[name]
    for dtype, placement in (
        (torch.float32, Shard(0)),
        (torch.float32, Shard(1)),
        (torch.bfloat16, Shard(0)),
        (torch.float32, Replicate()),
    ):
        local = [numbers((3, 5), dtype, "cpu", seed=s).requires_grad_() for s in range(2 if name in PAIRS else 1)]
        shards = [DTensor.from_local(t.detach(), mesh, [placement]).requires_grad_() for t in local]
        out, expected = operator(*shards), operator(*local)
        assert isinstance(out, DTensor) and out.placements == (placement,)
        whole = {Shard(0): (6, 5), Shard(1): (3, 10)}.get(placement, (3, 5))
        assert out.shape == whole and torch.equal(out.to_local(), expected)
        direction = numbers((3, 5), dtype, "cpu", seed=7)
        grads = torch.autograd.grad(out, shards, DTensor.from_local(direction, mesh, [placement]))
        for grad, right in zip(grads, torch.autograd.grad(expected, local, direction), strict=True):
            assert isinstance(grad, DTensor) and grad.placements == (placement,)
            assert torch.equal(grad.to_local(), right)


def test_adamw_updates_the_part_of_this_process(mesh: Any) -> None:
    """Parameters, gradients and averages stay DTensors; an uneven shard may be empty."""
    whole = numbers((5, 3), torch.float32, "cpu")
    parts, grads = [whole[:3].clone(), whole[:1].clone(), whole[:0].clone()], []
    ours = [
        torch.nn.Parameter(DTensor.from_local(p.clone(), mesh, [Shard(0)], shape=(rows, 3), stride=(3, 1)))
        for p, rows in zip(parts, (5, 1, 1), strict=True)
    ]
    theirs = [torch.nn.Parameter(p) for p in parts]
    one, two = rawkern.optim.AdamW(ours, lr=0.1), torch.optim.AdamW(theirs, lr=0.1)
    for seed in (1, 2):
        grads = [numbers(tuple(p.shape), torch.float32, "cpu", seed=seed) for p in parts]
        for p, q, g in zip(ours, theirs, grads, strict=True):
            p.grad, q.grad = DTensor.from_local(g, mesh, [Shard(0)], shape=p.shape, stride=(3, 1)), g.clone()
        one.step()
        two.step()
    for p, q in zip(ours, theirs, strict=True):
        assert one.state[p]["exp_avg"].placements == (Shard(0),)
        torch.testing.assert_close(p.to_local(), q, rtol=1e-6, atol=1e-6)
