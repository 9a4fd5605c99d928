"""Elementwise operators and AdamW of DTensors, in two processes."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import pytest
import torch

from tests import forked

SCRIPT = r"""
import os
import sys
import torch
import torch.distributed as dist
from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh
from rawkern.optim import AdamW
from tests.operators.kernels import mul, relu_, scale, smooth_mul, unit

torch.set_num_threads(1)
child = os.fork()  # both have imported what takes long
rank = 0 if child else 1
dist.init_process_group("gloo", init_method="tcp://127.0.0.1:" + sys.argv[1], rank=rank, world_size=2)
mesh = init_device_mesh("cpu", (2,))
a, b = (torch.randn(5, 8, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))
cases = [(Shard(0), Shard(0), Shard(0)), (Shard(1), Shard(1), Shard(1)), (Replicate(), Shard(1), Shard(1)),
         (Shard(1), Shard(0), None), (Replicate(), Replicate(), Replicate())]
for product in (mul, smooth_mul):
    for place_a, place_b, expected in cases:
        x, y = (distribute_tensor(t, mesh, [p]).requires_grad_() for t, p in ((a, place_a), (b, place_b)))
        out = product(x, y)
        assert expected is None or out.placements == (expected,), (out.placements, expected)
        assert torch.equal(out.full_tensor(), a * b)
        assert out.to_local().numel() == a.numel() or isinstance(out.placements[0], Shard)
        (3 * scale(out, 2.0)).sum().backward()
        assert torch.equal(x.grad.full_tensor(), 6 * b) and torch.equal(y.grad.full_tensor(), 6 * a)
x = distribute_tensor(a, mesh, [Shard(0)])
for rejected in (relu_, unit):
    try:
        rejected(x)
        raise SystemExit(f"{rejected.__name__} took a DTensor")
    except NotImplementedError as error:
        assert f"rawkern_test.{rejected.__name__}.default does not have a sharding strategy" in str(error), error
# The weight is whole everywhere and its gradient a sum over the processes: AdamW's step has to add that up first.
whole = b[:5].t().clone().requires_grad_()
weight = torch.nn.Parameter(distribute_tensor(whole.detach(), mesh, [Replicate()]))
scale(distribute_tensor(a, mesh, [Shard(0)]) @ weight, 2.0).square().sum().backward()
assert weight.grad.placements[0].is_partial(), weight.grad.placements
(2 * a @ whole).square().sum().backward()
AdamW([weight], lr=0.1, eps=1.0).step()
torch.optim.AdamW([whole], lr=0.1, eps=1.0).step()
torch.testing.assert_close(weight.full_tensor(), whole)
dist.destroy_process_group()
assert not child or os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch is built without torch.distributed")
def test_shardings_are_propagated(tmp_path: Path) -> None:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    command = [*forked.python(), "-c", SCRIPT, str(port)]
    done = subprocess.run(command, env=environment, stderr=subprocess.PIPE, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
