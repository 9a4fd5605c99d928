"""Tensors whose elements are not strided memory raise by name at the boundary of every operator."""

from __future__ import annotations

import pytest
import torch

import rawkern

pytestmark = pytest.mark.filterwarnings("ignore:.*prototype stage", "ignore:Sparse .* support is in beta")

DENSE = torch.tensor([[0.0, 5, 0, 1], [7, 0, 0, 0], [0, 0, 2, 0], [0, 3, 0, 0]])
ROW = torch.tensor([0.0, 2.0, 0.0, 1.0])
WORKAROUNDS = {"nested": "values()", "jagged": "values()"}


def tensor(layout: str, like: torch.Tensor = DENSE) -> torch.Tensor:
    """A tensor of a layout, of the shape and dtype of a strided one."""
    if layout in ("nested", "jagged"):
        kind = torch.jagged if layout == "jagged" else torch.strided
        rows = list(like.reshape(4, -1)) if like.numel() > 4 else [like.flatten(), like.flatten()[:2]]
        return torch.nested.nested_tensor(rows, dtype=like.dtype, layout=kind)
    return {
        "sparse_coo": torch.Tensor.to_sparse, "sparse_csr": torch.Tensor.to_sparse_csr,
        "sparse_csc": torch.Tensor.to_sparse_csc, "sparse_bsr": lambda t: t.to_sparse_bsr((2, 2)),
        "sparse_bsc": lambda t: t.to_sparse_bsc((2, 2)), "_mkldnn": torch.Tensor.to_mkldnn,
    }[layout](like)  # fmt: skip


LAYOUTS = ["sparse_coo", "sparse_csr", "sparse_csc", "sparse_bsr", "sparse_bsc", "nested", "jagged"]
LAYOUTS += ["_mkldnn"] if torch.backends.mkldnn.is_available() else []

plus = rawkern.elementwise("T x", "T y", "y = x + 1", "layouts_plus")
product = rawkern.elementwise("T x, raw T z, float32 w", "T y", "y = x * z[0] + w", "layouts_product")
total = rawkern.reduction("T x, T z", "T y", "x * z", "a + b", "y = a", "0", "layouts_total")
kernel = rawkern.RawKernel(
    'extern "C" __global__ void k(const float* x, float* y) { y[threadIdx.x] = x[threadIdx.x]; }'
)


@rawkern.op("rawkern_test::takes_anything")
def takes_anything(x: torch.Tensor, more: list[torch.Tensor], last: torch.Tensor | None = None) -> torch.Tensor:
    """An implementation that launches nothing, so only the boundary can raise."""
    return torch.zeros(4)


@rawkern.op("rawkern_test::changes", mutates_args=["x"])
def changes(x: torch.Tensor, by: torch.Tensor) -> None:
    return None


COS = torch.ones(4, 2)
INDICES = torch.zeros(3, dtype=torch.int64)
#: What a tensor may be given for, by the names of the operator and of the argument in the message.
CALLS = {
    "square x": rawkern.square,
    "mul a": lambda t: rawkern.mul(t, DENSE),
    "mul b": lambda t: rawkern.mul(DENSE, t),
    "scale x": lambda t: rawkern.scale(t, 2.0),
    "relu x": rawkern.relu,
    "relu_ x": rawkern.relu_,
    "silu gate": rawkern.silu,
    "silu gate ": lambda t: rawkern.silu(t, inplace=True),
    "gelu gate": rawkern.gelu,
    "gelu_tanh gate": lambda t: rawkern.gelu(t, "tanh"),
    "swiglu gate": lambda t: rawkern.swiglu(t, DENSE),
    "swiglu up": lambda t: rawkern.swiglu(DENSE, t),
    "geglu up": lambda t: rawkern.geglu(DENSE, t),
    "add_sin_cos b": lambda t: rawkern.add_sin_cos(DENSE, t),
    "dropout input": rawkern.dropout,
    "dropout input ": lambda t: rawkern.dropout(t, training=False),
    "rotary_embedding x": lambda t: rawkern.rotary_embedding(t, COS, COS),
    "rotary_embedding sin": lambda t: rawkern.rotary_embedding(DENSE, COS, t),
    "adamw_ params[0]": lambda t: adamw(t, DENSE),
    "adamw_ grads[0]": lambda t: adamw(DENSE, t),
    "nbody_forces positions": lambda t: rawkern.nbody_forces(t, ROW),
    "sum x": lambda t: rawkern.sum(t),
    "sum x ": lambda t: rawkern.sum(t, 1),
    "sum x  ": lambda t: rawkern.mean(t, (0, 1)),
    "softmax x": lambda t: rawkern.softmax(t, 1),
    "softmax x  ": lambda t: rawkern.log_softmax(t, 1),
    "layer_norm input": lambda t: rawkern.layer_norm(t, 4),
    "layer_norm weight": lambda t: rawkern.layer_norm(DENSE, (4, 4), weight=t),
    "add_layer_norm residual": lambda t: rawkern.add_layer_norm(DENSE, t, 4),
    "rms_norm input": lambda t: rawkern.rms_norm(t, 4),
    "add_rms_norm input": lambda t: rawkern.add_rms_norm(t, DENSE, 4),
    "cross_entropy input": lambda t: rawkern.cross_entropy(t, torch.zeros(4, dtype=torch.int64)),
    "cross_entropy weight": lambda t: rawkern.cross_entropy(DENSE, torch.zeros(4, dtype=torch.int64), t),
    "embedding input": lambda t: rawkern.embedding(t, DENSE),
    "embedding weight": lambda t: rawkern.embedding(INDICES, t),
    "scale_by_sign_of_sum x": rawkern.scale_by_sign_of_sum,
    "layouts_plus x": plus,
    "layouts_plus out": lambda t: plus(DENSE, out=t),
    "layouts_plus x ": plus.in_place,
    "layouts_product x": lambda t: product(t, ROW, 2.0),
    "layouts_product z": lambda t: product(DENSE, t, 2.0),
    "layouts_product w": lambda t: product(DENSE, ROW, t),
    "layouts_total x": lambda t: total(t, DENSE),
    "layouts_total z": lambda t: total(DENSE, t, axis=1),
    "layouts_total out": lambda t: total(DENSE, DENSE, out=t),
    "takes_anything x": lambda t: takes_anything(t, []),
    "takes_anything more[1]": lambda t: takes_anything(DENSE, [ROW, t]),
    "takes_anything last": lambda t: takes_anything(DENSE, [], t),
    "takes_anything x ": lambda t: torch.ops.rawkern_test.takes_anything(t, []),
    "changes by": lambda t: changes(DENSE.clone(), t),
    "changes x": lambda t: changes(t, DENSE),
    "k x": lambda t: kernel[1, 16](t, DENSE.clone()),
    "k y": lambda t: kernel[1, 16](DENSE, t),
    "from_torch the tensor": rawkern.from_torch,
    "gelu gate ": lambda t: rawkern.nn.GELU()(t),
    "layer_norm input ": lambda t: rawkern.nn.LayerNorm(4)(t),
    "softmax x ": lambda t: rawkern.nn.Softmax(1)(t),
    "RotaryEmbedding input": lambda t: rawkern.nn.RotaryEmbedding(4)(t),
}


def adamw(param: torch.Tensor, grad: torch.Tensor) -> None:
    rawkern.adamw_([param], [grad], [torch.zeros(4, 4)], [torch.zeros(4, 4)], step=1)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("call", CALLS)
def test_rejected_by_name(call, layout):
    what, name = call.strip().split(" ", 1)
    t = tensor(layout)
    with pytest.raises(TypeError) as caught:
        CALLS[call](t)
    message = str(caught.value)
    assert what in message and f"{name} " in message.replace("'", ""), message
    assert ("is a nested tensor" if layout in WORKAROUNDS else f"has layout {layout}") in message
    assert message.endswith(f".{WORKAROUNDS.get(layout, 'to_dense()')}")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_in_every_mode(layout):
    """Under autograd, autocast, a torch mode, inference mode and torch.compile the way to the kernel is another."""
    wanted = "nested tensor" if layout in WORKAROUNDS else f"has layout {layout}"
    for function in (rawkern.square, rawkern.gelu, lambda t: rawkern.softmax(t, 1), lambda t: takes_anything(t, [])):
        t = tensor(layout)
        with pytest.raises(TypeError, match=wanted):
            function(t.requires_grad_(layout != "_mkldnn"))
        with pytest.raises(TypeError, match=wanted), torch.no_grad():
            function(t)
        with pytest.raises(TypeError, match=wanted), torch.inference_mode():
            function(tensor(layout))
        with pytest.raises(TypeError, match=wanted), torch.autocast("cpu", torch.bfloat16):
            function(t)
        with pytest.raises(TypeError, match=wanted), torch.device("cpu"):
            function(t)
        with pytest.raises(TypeError, match=wanted), rawkern.check():
            function(t)


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name != "nested"])  # torch gives those no gradient
def test_parameters_of_another_layout(layout):
    parameter = torch.nn.Parameter(tensor(layout))
    parameter.grad = parameter.detach()
    with pytest.raises(TypeError, match=r"AdamW: a parameter (is a nested tensor|has layout \w+); pass"):
        rawkern.optim.AdamW([parameter]).step()


def test_gradients_of_another_layout():
    """What autograd brings is made strided, or raises."""
    for function in (rawkern.square, rawkern.gelu, plus, lambda x: rawkern.softmax(x, 1)):
        x = DENSE.clone().requires_grad_()
        with pytest.raises(TypeError, match=r"grad_\w+ has layout sparse_coo; pass grad_\w+\.to_dense\(\)"):
            function(x).backward(DENSE.to_sparse())


def test_workarounds_of_layouts():
    for layout in LAYOUTS:
        t = tensor(layout)
        dense = t.values() if layout in WORKAROUNDS else t.to_dense()
        assert torch.equal(rawkern.square(dense), dense * dense)
        if layout not in WORKAROUNDS:
            assert torch.equal(rawkern.gelu(dense), rawkern.gelu(DENSE))


def test_strided_tensors_of_all_kinds_are_taken():
    for t in (DENSE.T, DENSE[::2, 1:], DENSE.expand(2, 4, 4), torch.nn.Parameter(DENSE), DENSE.to(torch.float64)):
        assert torch.equal(rawkern.square(t), t * t)
        torch.testing.assert_close(rawkern.gelu(t), torch.nn.functional.gelu(t))
    assert takes_anything(torch.empty(2, 0), [DENSE.T]).shape == (4,)
    assert rawkern.square(torch.empty(3, device="meta")).is_meta
