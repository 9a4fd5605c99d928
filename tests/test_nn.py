"""rawkern.nn against torch.nn: results, gradients, and state dicts that go both ways."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch

import rawkern
from tests.library.common import numbers

nn, F = rawkern.nn, torch.nn.functional
WEIGHTS = torch.tensor([0.5, 2.0, 1.25, 0.0, 3.0, 0.75, 1.0])
CLASSES = torch.tensor([3, -100, 6, 0, 2])
# name, arguments, inputs
CASES: list[tuple[str, dict[str, Any], Any]] = [
    ("ReLU", {}, (5, 7)),
    ("ReLU", {"inplace": True}, (5, 7)),
    ("SiLU", {}, (5, 7)),
    ("SiLU", {"inplace": True}, (5, 7)),
    ("GELU", {}, (5, 7)),
    ("GELU", {"approximate": "tanh"}, (5, 7)),
    ("Softmax", {"dim": -1}, (5, 7)),
    ("LogSoftmax", {"dim": 0}, (5, 7)),
    ("LayerNorm", {"normalized_shape": 7, "eps": 1e-3}, (3, 5, 7)),
    ("LayerNorm", {"normalized_shape": (5, 7), "bias": False}, (3, 5, 7)),
    ("LayerNorm", {"normalized_shape": 7, "elementwise_affine": False}, (3, 5, 7)),
    ("RMSNorm", {"normalized_shape": 7}, (3, 5, 7)),
    ("RMSNorm", {"normalized_shape": (5, 7), "eps": 1e-3}, (3, 5, 7)),
    ("Embedding", {"num_embeddings": 7, "embedding_dim": 5, "padding_idx": 2}, torch.tensor([[0, 2, 6], [2, 6, 6]])),
    ("CrossEntropyLoss", {}, (5, 7)),
    ("CrossEntropyLoss", {"weight": WEIGHTS, "label_smoothing": 0.2}, (5, 7)),
    ("CrossEntropyLoss", {"ignore_index": 3, "reduction": "sum"}, (5, 7)),
    ("Dropout", {"p": 0.0}, (5, 7)),
]
NAMES = [f"{name}-{'-'.join(options) or 'plain'}" for name, options, _ in CASES]


def pair(name: str, options: dict[str, Any], device: str) -> tuple[torch.nn.Module, torch.nn.Module]:
    """A module of rawkern in float32 and torch's of the same parameters in float64, filled through state dicts."""
    theirs = getattr(torch.nn, name)(**options)
    for seed, parameter in enumerate(theirs.parameters()):
        parameter.data.copy_(numbers(tuple(parameter.shape), torch.float32, "cpu", seed=seed + 5))
    ours = getattr(nn, name)(**options)
    ours.load_state_dict(theirs.state_dict())
    return ours.to(device), theirs.to(device, torch.float64)


def grads(module: torch.nn.Module, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """The result and the gradients of floating inputs and of parameters."""
    leaves = [t.requires_grad_() for t in inputs if t.is_floating_point()]
    # In-place modules may not write over a leaf.
    out = module(*(t * 1 if t.is_floating_point() else t for t in inputs))
    direction = numbers(tuple(out.shape), out.dtype, out.device.type, seed=9)
    return [out.detach(), *torch.autograd.grad(out, [*leaves, *module.parameters()], direction)]


@pytest.mark.parametrize(("name", "options", "shape"), CASES, ids=NAMES)
def test_parity(name: str, options: dict[str, Any], shape: Any, device: str) -> None:
    ours, theirs = pair(name, options, device)
    assert isinstance(ours, getattr(torch.nn, name)) and type(ours) is not type(theirs)
    x = shape if isinstance(shape, torch.Tensor) else numbers(shape, torch.float32, "cpu")
    inputs = [x.to(device)]
    if name == "CrossEntropyLoss":
        classes = CLASSES.clamp(min=0) if "ignore_index" in options else CLASSES
        inputs.append(classes.to(device))
    expected = grads(theirs, [t.double() if t.is_floating_point() else t for t in inputs])
    got = grads(ours, inputs)
    assert len(got) == len(expected) > 0
    for mine, exact in zip(got, expected, strict=True):
        assert mine.dtype is torch.float32 and mine.device == exact.device
        torch.testing.assert_close(mine.double(), exact, rtol=2e-6, atol=5e-6)


@pytest.mark.parametrize(("name", "options", "shape"), CASES, ids=NAMES)
def test_state_dicts_go_both_ways(name: str, options: dict[str, Any], shape: Any) -> None:
    ours, theirs = pair(name, options, "cpu")
    assert [(k, v.shape) for k, v in ours.state_dict().items()] == [
        (k, v.shape) for k, v in theirs.state_dict().items()
    ]
    back = getattr(torch.nn, name)(**options)
    back.load_state_dict(ours.state_dict())
    for key, value in back.state_dict().items():
        assert torch.equal(value.double(), theirs.state_dict()[key])
    assert repr(ours) == repr(back)
    for copied in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        assert type(copied) is type(ours)
        assert all(torch.equal(a, b) for a, b in zip(copied.parameters(), ours.parameters(), strict=True))


def test_to_changes_dtype(device: str) -> None:
    ours = nn.RMSNorm(7).to(device=device, dtype=torch.bfloat16)
    assert ours.weight.dtype is torch.bfloat16 and ours.weight.device.type == device
    x = numbers((5, 7), torch.bfloat16, device) * 0.05  # so small that another eps would show
    expected = F.rms_norm(x.double(), (7,), eps=torch.finfo(torch.float32).eps)
    assert ours(x).dtype is torch.bfloat16
    torch.testing.assert_close(ours(x).double(), expected, rtol=8e-3, atol=1e-3)


@pytest.mark.parametrize("name", ["LayerNorm", "RMSNorm"])
def test_norm_of_a_sum(name: str, device: str) -> None:
    ours, theirs = pair(name, {"normalized_shape": 7}, device)
    x, residual = (numbers((3, 5, 7), torch.float32, device, seed=s).requires_grad_() for s in (0, 1))
    out, summed = ours(x, residual)
    assert torch.equal(summed, x + residual)
    exact = theirs((x + residual).double())
    torch.testing.assert_close(out.double(), exact, rtol=2e-6, atol=5e-6)
    got = torch.autograd.grad((out * out).sum() + 3 * summed.sum(), (x, residual, ours.weight))
    expected = torch.autograd.grad(
        (exact * exact).sum() + 3 * (x + residual).double().sum(), (x, residual, theirs.weight)
    )
    for mine, true in zip(got, expected, strict=True):
        torch.testing.assert_close(mine.double(), true.double(), rtol=1e-5, atol=1e-4)


def test_dropout_follows_the_mode(device: str) -> None:
    module, x = nn.Dropout(0.25), torch.ones(4000, device=device)
    out = module(x)
    torch.testing.assert_close(out.unique(), torch.tensor([0.0, 4 / 3], device=device))
    assert 0.2 < (out == 0).float().mean().item() < 0.3
    assert module.eval()(x) is x
    with pytest.raises(ValueError, match="dropout probability"):
        nn.Dropout(1.5)


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("SwiGLU", {}, lambda gate, up: F.silu(gate) * up),
        ("GEGLU", {"bias": True}, lambda gate, up: F.gelu(gate) * up),
        ("GEGLU", {"approximate": "tanh"}, lambda gate, up: F.gelu(gate, approximate="tanh") * up),
    ],
)
def test_gated_blocks(name: str, options: dict[str, Any], expected: Any, device: str) -> None:
    torch.manual_seed(0)
    block = getattr(nn, name)(6, 10, 3, device=device, **options)
    names = ["gate_proj", "up_proj", "down_proj"]
    assert list(dict(block.named_children())) == names
    assert (block.down_proj.out_features, block.up_proj.out_features) == (3, 10)
    assert getattr(nn, name)(6, 10).down_proj.out_features == 6
    assert all((linear.bias is not None) == bool(options.get("bias")) for linear in block.children())
    exact = copy.deepcopy(block).double()
    x = numbers((4, 6), torch.float32, device)
    got = grads(block, [x])
    x = x.detach().double().requires_grad_()
    true = exact.down_proj(expected(exact.gate_proj(x), exact.up_proj(x)))
    direction = numbers((4, 3), torch.float32, device, seed=9).double()
    expected = [true.detach(), *torch.autograd.grad(true, [x, *exact.parameters()], direction)]
    for mine, wanted in zip(got, expected, strict=True):
        torch.testing.assert_close(mine.double(), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("interleaved", [False, True])
def test_rotary_embedding(interleaved: bool, device: str) -> None:
    """As products of complex numbers, in float64."""
    rotary = nn.RotaryEmbedding(6, max_seq_len=50, base=100.0, interleaved=interleaved).to(device)
    assert not rotary.state_dict() and not list(rotary.parameters())
    x = numbers((2, 3, 4, 6), torch.float32, "cpu")
    for positions in (None, torch.tensor([7, 0, 49, 3]), torch.arange(8).view(2, 1, 4) * 5):
        at = torch.arange(4) if positions is None else positions
        angles = at[..., None].double() * 100.0 ** (-torch.arange(3).double() / 3)
        a, b = (x[..., ::2], x[..., 1::2]) if interleaved else (x[..., :3], x[..., 3:])
        turned = torch.complex(a.double(), b.double()) * torch.polar(torch.ones_like(angles), angles)
        expected = (
            torch.view_as_real(turned).flatten(-2) if interleaved else torch.cat([turned.real, turned.imag], dim=-1)
        )
        got = rotary(x.to(device), None if positions is None else positions.to(device))
        torch.testing.assert_close(got.cpu().double(), expected, rtol=1e-6, atol=1e-6)


def test_rotary_tables_stay_exact() -> None:
    """.to(dtype) and to_empty leave the tables in float32 with the right values."""
    right = nn.RotaryEmbedding(4, max_seq_len=3000)
    empty = nn.RotaryEmbedding(4, max_seq_len=3000, device="meta")
    assert empty.cos.is_meta and torch.nn.Sequential(empty).to("meta")[0].cos.is_meta
    for moved in (copy.deepcopy(right).bfloat16(), torch.nn.Sequential(empty).to_empty(device="cpu")[0]):
        assert moved.cos.dtype is moved.sin.dtype is torch.float32
        assert torch.equal(moved.cos, right.cos) and torch.equal(moved.sin, right.sin)
    exact = torch.arange(3000).double()
    torch.testing.assert_close(right.sin[:, 0].double(), exact.sin(), rtol=0, atol=1e-7)


def test_compiles_without_a_graph_break(device: str) -> None:
    torch.manual_seed(0)
    layers = torch.nn.Sequential(nn.Embedding(9, 8), nn.RMSNorm(8), nn.RotaryEmbedding(8), nn.SwiGLU(8, 16), nn.SiLU())
    loss = nn.CrossEntropyLoss()
    layers.to(device)

    def step(x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return loss(layers(x).flatten(0, 1), targets.flatten())

    x, targets = torch.randint(8, (2, 3, 5), generator=torch.Generator().manual_seed(0)).to(device)
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    results = []
    for function in (step, compiled):
        value = function(x, targets)
        results.append([value, *torch.autograd.grad(value, list(layers.parameters()))])
    for got, expected in zip(*results, strict=True):
        torch.testing.assert_close(got, expected)


def test_rejections() -> None:
    with pytest.raises(TypeError, match="dim"):
        nn.Softmax()  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="RotaryEmbedding: dim is 5; it has to be even"):
        nn.RotaryEmbedding(5)
    rotary = nn.RotaryEmbedding(4, max_seq_len=8)
    with pytest.raises(ValueError, match=r"input has 9 positions, the tables 8; pass a max_seq_len"):
        rotary(torch.zeros(9, 4))
    with pytest.raises(ValueError, match=r"input has shape \(9, 6\); it has to be \(\.\.\., 4\)"):
        rotary(torch.zeros(9, 6))
    with pytest.raises(ValueError, match="embedding: max_norm, scale_grad_by_freq and sparse are not supported"):
        nn.Embedding(4, 4, sparse=True)(torch.tensor([1]))
    with pytest.raises(TypeError, match=r"cross_entropy: target is torch\.float32, it must be int64 class indices"):
        nn.CrossEntropyLoss()(torch.zeros(2, 3), torch.zeros(2, 3))
