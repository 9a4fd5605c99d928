"""What autograd makes of square, mul, scale, relu and relu_."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import rawkern

from .common import DTYPES, LAYOUTS, layouts, numbers, same_bits, special

Op = Callable[..., torch.Tensor]
OPS: dict[str, tuple[Op, Op]] = {
    "square": (rawkern.square, torch.square),
    "scale": (lambda x: rawkern.scale(x, -0.75), lambda x: x * -0.75),
    "relu": (rawkern.relu, torch.relu),
    "relu_": (lambda x: rawkern.relu_(x + 0), torch.relu),
    "mul": (lambda x: rawkern.mul(x, x), lambda x: x * x),
}
ops = pytest.mark.parametrize("name", OPS)
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype)[6:])


def leaf(x: torch.Tensor) -> torch.Tensor:
    return x.detach().requires_grad_()


def assert_close(got: torch.Tensor, exact: torch.Tensor, dtype: torch.dtype) -> None:
    """Compare a gradient with a float64 one; up to two roundings for a sum of two products."""
    assert got.dtype == dtype
    info = torch.finfo(dtype)
    torch.testing.assert_close(
        got.double(), exact, rtol=4 * info.eps, atol=max(info.tiny, 2.0**-24 * (info.bits == 16))
    )


@ops
@pytest.mark.parametrize("shape", [(), (0,), (1,), (5, 7)], ids=str)
def test_gradcheck(name: str, shape: tuple[int, ...], device: str) -> None:
    x = leaf(numbers(shape, torch.float64, device) + 0.01)
    assert gradcheck(OPS[name][0], (x,))
    assert gradgradcheck(OPS[name][0], (x,))


BROADCASTS = [((3, 4), (3, 4)), ((3, 4), (4,)), ((3, 1), (1, 4)), ((), (3, 2)), ((2, 1, 3), (4, 1)), ((0, 3), (3,))]


@pytest.mark.parametrize("shapes", BROADCASTS, ids=str)
@pytest.mark.parametrize("needed", [(True, True), (True, False), (False, True)], ids=["both", "a", "b"])
def test_gradcheck_mul(shapes: tuple[tuple[int, ...], tuple[int, ...]], needed: tuple[bool, bool], device: str) -> None:
    a, b = (
        numbers(shape, torch.float64, device, seed).requires_grad_(need)
        for seed, (shape, need) in enumerate(zip(shapes, needed, strict=True))
    )
    assert gradcheck(rawkern.mul, (a, b))
    assert gradgradcheck(rawkern.mul, (a, b))


@ops
@dtypes
def test_gradients_of_every_dtype(name: str, dtype: torch.dtype, device: str) -> None:
    ours, theirs = OPS[name]
    for n in (1, 9, 1003):
        x, g = numbers(n, dtype, device), numbers(n, dtype, device, seed=1)
        mine, exact = leaf(x), leaf(x.double())
        (got,) = torch.autograd.grad(ours(mine), mine, g)
        (want,) = torch.autograd.grad(theirs(exact), exact, g.double())
        assert_close(got, want, dtype)


@ops
@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradients_of_every_layout(name: str, layout: str, device: str) -> None:
    ours, theirs = OPS[name]
    x = layouts(torch.float32, device)[layout]
    mine, exact = leaf(x), leaf(x.double())
    # A gradient that is repeated in memory (that of a sum), one in another order, a contiguous one.
    for made in (torch.ones_like(x[..., :1] if x.dim() else x).expand(x.shape), x.mT if x.dim() > 1 else x):
        g = made.reshape(x.shape) if made.shape != x.shape else made
        (got,) = torch.autograd.grad(ours(mine), mine, g)
        (want,) = torch.autograd.grad(theirs(exact), exact, g.double())
        assert_close(got, want, torch.float32)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradients_of_mul_of_every_layout(layout: str, device: str) -> None:
    x = layouts(torch.float32, device)[layout]
    y = numbers(tuple(x.shape), torch.float32, device, seed=5)
    for a, b in ((x, y), (y, x)):
        mine, exact = (leaf(a), leaf(b)), (leaf(a.double()), leaf(b.double()))
        rawkern.mul(*mine).sum().backward()
        (exact[0] * exact[1]).sum().backward()
        for got, want in zip(mine, exact, strict=True):
            assert got.grad is not None and want.grad is not None
            assert_close(got.grad, want.grad, torch.float32)


def test_mixed_dtypes_give_each_its_gradient(device: str) -> None:
    a = leaf(numbers((3, 4), torch.float16, device))
    b = leaf(numbers(4, torch.float32, device, seed=1))
    rawkern.mul(a, b).sum().backward()
    assert a.grad is not None and b.grad is not None
    assert a.grad.dtype == torch.float16 and b.grad.dtype == torch.float32
    torch.testing.assert_close(a.grad, b.detach().expand(3, 4).half())
    torch.testing.assert_close(b.grad, a.detach().float().sum(0))


def test_mul_makes_only_the_gradients_that_are_needed(device: str) -> None:
    a, b = leaf(numbers(9, torch.float32, device)), numbers(9, torch.float32, device, seed=1)
    out = rawkern.mul(a, b)
    saved = [t for t in out.grad_fn.saved_tensors if t is not None]  # type: ignore[union-attr]
    assert len(saved) == 1 and saved[0].data_ptr() == b.data_ptr()
    out.sum().backward()
    assert b.grad is None and torch.equal(a.grad, b)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_relu_at_special_values(dtype: torch.dtype, device: str) -> None:
    x = special(dtype, device)
    mine, theirs = leaf(x), leaf(x)
    g = numbers(x.numel(), dtype, device)
    rawkern.relu(mine).backward(g)
    torch.relu(theirs).backward(g)
    assert torch.equal(mine.grad, theirs.grad)  # type: ignore[arg-type]


@ops
def test_no_graph_where_none_is_wanted(name: str, device: str) -> None:
    x = numbers(5, torch.float32, device)
    assert OPS[name][0](x).grad_fn is None
    with torch.no_grad():
        assert not OPS[name][0](leaf(x)).requires_grad
    with torch.inference_mode():
        assert OPS[name][0](x).is_inference()
    assert OPS[name][0](leaf(x)).grad_fn is not None


def test_a_changed_input_is_noticed(device: str) -> None:
    x = leaf(numbers(5, torch.float32, device)) + 0
    out = rawkern.square(x)
    rawkern.relu_(x)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


# In place ------------------------------------------------------------------------------------------------------------


def test_in_place_returns_its_argument_and_counts_versions(device: str) -> None:
    x = numbers(9, torch.float32, device)
    want, version, address = torch.relu(x), x._version, x.data_ptr()
    assert rawkern.relu_(x) is x
    assert x._version > version and x.data_ptr() == address and torch.equal(x, want)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_in_place_changes_the_tensor_itself(layout: str, device: str) -> None:
    x = layouts(torch.float32, device)[layout]
    want = torch.relu(x)
    if "expanded" in layout:
        with pytest.raises(RuntimeError, match="single memory location"):
            rawkern.relu_(x)
        return
    assert rawkern.relu_(x) is x
    assert torch.equal(x, want)


def test_in_place_of_a_part_leaves_the_rest(device: str) -> None:
    x = numbers((6, 6), torch.float32, device)
    want = x.clone()
    want[1::2, ::3].relu_()
    rawkern.relu_(x[1::2, ::3])
    assert torch.equal(x, want)


def test_in_place_on_a_leaf_is_rejected_before_it_changes(device: str) -> None:
    x = leaf(numbers(5, torch.float32, device))
    before = x.detach().clone()
    with pytest.raises(RuntimeError, match="a leaf that requires grad"):
        rawkern.relu_(x)
    with pytest.raises(RuntimeError, match="a view of a leaf that requires grad"):
        rawkern.relu_(x[1:])
    assert torch.equal(x.detach(), before)
    with torch.no_grad():
        rawkern.relu_(x)
    assert torch.equal(x.detach(), before.relu())


def test_in_place_under_autograd(device: str) -> None:
    x, g = numbers((4, 6), torch.float32, device), numbers((4, 6), torch.float32, device, seed=1)
    for part in (slice(None), (slice(1, 3), slice(0, None, 2))):
        mine, theirs = leaf(x), leaf(x)
        a, b = mine * 2, theirs * 2
        rawkern.relu_(a[part])
        b[part].relu_()
        a.backward(g)
        b.backward(g)
        assert torch.equal(a, b) and torch.equal(mine.grad, theirs.grad)  # type: ignore[arg-type]


# Life in a program ---------------------------------------------------------------------------------------------------


def test_a_small_network_trains_as_in_torch(device: str) -> None:
    def steps(square: Op, relu: Op, mul: Op) -> list[float]:
        torch.manual_seed(0)
        layers = torch.nn.ModuleList([torch.nn.Linear(3, 8), torch.nn.Linear(8, 1)]).to(device)
        optimizer = torch.optim.SGD(layers.parameters(), lr=0.05)
        x = numbers((16, 3), torch.float32, device)
        target, weight = numbers((16, 1), torch.float32, device, 1), numbers((16, 1), torch.float32, device, 2).abs()
        losses = []
        for _ in range(5):
            optimizer.zero_grad()
            loss = mul(square(layers[1](relu(layers[0](x))) - target), weight).mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    ours = steps(rawkern.square, rawkern.relu, rawkern.mul)
    assert ours == pytest.approx(steps(torch.square, torch.relu, torch.mul), rel=1e-4)
    assert ours[-1] < ours[0]


def test_several_threads(device: str) -> None:
    wrong: list[object] = []

    def work(seed: int) -> None:
        for n in range(1, 60):
            x = leaf(numbers(n * 17, torch.float32, device, seed))
            rawkern.square(x).sum().backward()
            if x.grad is None or not torch.equal(x.grad, 2 * x.detach()):
                wrong.append((seed, n))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_checkpoint(device: str) -> None:
    from torch.utils.checkpoint import checkpoint

    x = leaf(numbers(33, torch.float32, device))
    out = checkpoint(lambda x: rawkern.square(rawkern.relu(x)), x, use_reentrant=False)
    out.sum().backward()  # type: ignore[union-attr]
    assert torch.equal(x.grad, 2 * x.detach().relu())  # type: ignore[arg-type]


def test_parameters_and_subclasses(device: str) -> None:
    weight = torch.nn.Parameter(numbers(5, torch.float32, device))
    rawkern.mul(copy.deepcopy(weight), weight).sum().backward()
    assert torch.equal(weight.grad, weight.detach())  # type: ignore[arg-type]


@pytest.mark.gpu
@dtypes
@pytest.mark.parametrize("name", OPS)
def test_both_engines_give_the_same(name: str, dtype: torch.dtype) -> None:
    """The same source, the same bits: values and gradients, special values among them."""
    x = torch.cat([numbers(1003, dtype, "cpu"), special(dtype, "cpu")])
    g = numbers(x.numel(), dtype, "cpu", seed=1)
    results = []
    for device in ("cpu", "cuda"):
        mine = leaf(x.to(device))
        out = OPS[name][0](mine)
        out.backward(g.to(device))
        assert mine.grad is not None
        results.append((out.detach().cpu(), mine.grad.cpu()))
    for on_cpu, on_gpu in zip(*results, strict=True):
        assert same_bits(on_cpu, on_gpu)
