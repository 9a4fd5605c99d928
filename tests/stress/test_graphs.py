"""CUDA graphs of operators with their backward: replayed with other numbers, on other streams, among each other."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import rawkern

from .chains import AXPB, chain, close, expected, inputs, step

pytestmark = pytest.mark.gpu


def captured(run: Callable[[], tuple[Tensor, ...]], pool: object = None) -> tuple[torch.cuda.CUDAGraph, tuple]:
    """A graph of a run, after a warm-up on a side stream, and the tensors that a replay writes."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        outs = run()
    return graph, outs


def put(given: tuple[Tensor, ...], seed: int) -> None:
    """Other numbers in the same memory."""
    with torch.no_grad():
        for t, fresh in zip(given, inputs(seed, "cuda"), strict=True):
            t.copy_(fresh)


def test_replays_with_other_numbers() -> None:
    given = inputs(0, "cuda")
    graph, outs = captured(lambda: step(chain, given))
    for seed in (5, 6, 7, 5):
        put(given, seed)
        for t in outs:
            t.fill_(float("nan"))
        graph.replay()
        close(outs, expected(seed, "cuda"))
        for a, b in zip(outs, step(chain, given), strict=True):
            assert torch.equal(a, b)


def test_graphs_that_share_a_pool_replayed_in_turns_on_streams() -> None:
    many = [inputs(k, "cuda") for k in range(3)]
    graphs, pool = [], None
    for given in many:
        graph, outs = captured(lambda given=given: step(chain, given), pool)
        pool = pool or graph.pool()
        graphs.append((graph, outs))
    stream = torch.cuda.Stream()
    for k in (0, 2, 1, 0, 1, 2):
        graph, outs = graphs[k]
        put(many[k], 10 + k)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            graph.replay()
        torch.cuda.current_stream().wait_stream(stream)
        close(outs, expected(10 + k, "cuda"))


def test_a_graph_with_branches_on_streams() -> None:
    """Launches on streams that fork from the captured one and join it again."""
    n, kernel = 4099, rawkern.RawKernel(AXPB)
    ys = [torch.zeros(n, device="cuda") for _ in range(4)]
    branches = [torch.cuda.Stream() for _ in ys]

    def run() -> tuple[Tensor, ...]:
        main = torch.cuda.current_stream()
        for k, (branch, y) in enumerate(zip(branches, ys, strict=True)):
            branch.wait_stream(main)
            with torch.cuda.stream(branch):
                for i in range(5):
                    kernel.forall(n)(n, 0.5, float(k + i), 20_000 if k == 0 else 0, y)
        for branch in branches:
            main.wait_stream(branch)
        return (torch.stack(ys).sum(0),)

    graph, (total,) = captured(run)
    torch.cuda.synchronize()
    for y in ys:
        y.zero_()
    want = [0.0] * len(ys)
    for _ in range(10):
        graph.replay()
        for k in range(len(ys)):
            for i in range(5):
                want[k] = 0.5 * want[k] + k + i
        torch.testing.assert_close(total, torch.full_like(total, sum(want)))


def test_dropout_draws_anew_at_each_replay() -> None:
    x = torch.ones(100_003, device="cuda", requires_grad=True)
    seeds = set()

    def run() -> tuple[Tensor, ...]:
        y = rawkern.dropout(x, 0.25)
        return y.detach(), *torch.autograd.grad(y, x, torch.ones_like(y))

    graph, (y, grad) = captured(run)
    for _ in range(5):
        graph.replay()
        assert torch.equal(y, grad)  # the same elements, forward and backward
        assert abs((y == 0).float().mean().item() - 0.25) < 0.01
        seeds.add(tuple(y[:64].tolist()))
    assert len(seeds) == 5


def test_graphed_callables() -> None:
    torch.manual_seed(1)
    module = torch.nn.Sequential(torch.nn.Linear(33, 77), rawkern.nn.LayerNorm(77), rawkern.nn.GELU()).cuda()
    sample = torch.randn(20, 33, device="cuda", requires_grad=True)
    other = torch.randn(20, 33, device="cuda")
    wanted = _grads(module, other)
    graphed = torch.cuda.make_graphed_callables(module, (sample,))
    close(_grads(graphed, other), wanted)


def _grads(module: Callable[..., Tensor], x: Tensor) -> tuple[Tensor, ...]:
    x = x.clone().requires_grad_()
    parameters = list(module.parameters())  # type: ignore[attr-defined]
    return torch.autograd.grad(module(x).square().mean(), (x, *parameters))
