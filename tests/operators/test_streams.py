"""rawkern.op on GPUs: CUDA graphs and streams."""

from __future__ import annotations

import pytest
import torch

from .cases import numbers, unit_reference
from .kernels import mul, relu_, unit

pytestmark = pytest.mark.gpu


def test_captured_forward_and_backward() -> None:
    x = numbers(64, 33, device="cuda").requires_grad_()

    def step() -> torch.Tensor:
        loss = relu_(unit(mul(x, x)) - 0.1).sin().sum()
        (grad,) = torch.autograd.grad(loss, x)
        return grad

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()  # compiles and loads
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    for seed in (1, 2):
        with torch.no_grad():
            x.copy_(numbers(64, 33, device="cuda", seed=seed))
        captured.fill_(float("nan"))
        graph.replay()
        y = x.detach().clone().requires_grad_()
        (expected,) = torch.autograd.grad((unit_reference(y * y) - 0.1).relu().sin().sum(), y)
        torch.testing.assert_close(captured, expected)


def test_graph_trees() -> None:
    x = numbers(64, 33, device="cuda").requires_grad_()
    compiled = torch.compile(lambda x: unit(mul(x * 2, x)).sin().sum(), fullgraph=True, mode="reduce-overhead")
    for _ in range(4):
        (found,) = torch.autograd.grad(compiled(x), x)
        (expected,) = torch.autograd.grad(unit_reference(x * 2 * x).sin().sum(), x)
        torch.testing.assert_close(found, expected)


def test_backward_runs_on_the_stream_of_the_forward() -> None:
    side = torch.cuda.Stream()
    x = numbers(2048, 512, device="cuda").requires_grad_()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(20_000_000)  # the stream is late: work on another stream would come too early
        y = mul(x, x)
        out = unit(y).sum()
    out.backward()
    (expected,) = torch.autograd.grad(unit_reference(x * x).sum(), x)
    torch.testing.assert_close(x.grad, expected)


@pytest.mark.multigpu
def test_the_second_gpu() -> None:
    x = numbers(5, 7, device="cuda:1").requires_grad_()
    assert torch.equal(mul(x, x), x * x)
    with pytest.raises(ValueError, match="rawkern_test::mul: a is on cuda:0, b is on cuda:1"):
        mul(x.detach().to("cuda:0"), x)
