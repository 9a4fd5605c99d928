"""Operators whose backward is derived from the kernels that they launch."""

from __future__ import annotations

import gc
import time

import pytest
import torch
from torch import Tensor

import rawkern
from rawkern.gradients.derived import Derived

KERNELS = rawkern.RawModule(r"""
__device__ float act(float v) { return v / (1.0f + expf(-v)); }
extern "C" __global__ void gate(const float* x, const float* w, float* y, int n, int m) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = act(x[i]) * w[i % m];
}
extern "C" __global__ void rms(const float* x, float* y, int m) {
    __shared__ float part[64];
    int t = threadIdx.x; int row = blockIdx.x;
    float s = 0.f;
    for (int j = t; j < m; j += 64) s += x[row * m + j] * x[row * m + j];
    part[t] = s;
    __syncthreads();
    for (int k = 32; k > 0; k /= 2) { if (t < k) part[t] += part[t + k]; __syncthreads(); }
    float r = rsqrtf(part[0] / m + 1e-5f);
    for (int j = t; j < m; j += 64) y[row * m + j] = x[row * m + j] * r;
}
extern "C" __global__ void residual(const float* x, const float* b, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] * x[i] + b[i];
}
extern "C" __global__ void added(const float* x, const float* b, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] + b[i];
}
extern "C" __global__ void sine(const float* x, const float* b, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = sinf(x[i] + b[i]);
}
extern "C" __global__ void twice(float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = 2.0f;
}
""")


@rawkern.op("rawkern_test_derived::layer", backward="derive")
def layer(x: Tensor, w: Tensor) -> Tensor:
    n, m = x.numel(), x.shape[-1]
    h = torch.empty_like(x)
    KERNELS.gate.forall(n)(x, w, h, n, m)
    out = torch.empty_like(x)
    KERNELS.rms[n // m, 64](h, out, m)
    return out


def reference(x, w):
    h = torch.nn.functional.silu(x) * w
    return h * (h.square().mean(-1, keepdim=True) + 1e-5).rsqrt()


@pytest.fixture
def inputs(device):
    draw = torch.Generator().manual_seed(1)
    x, w, v = (torch.randn(*shape, generator=draw).to(device) for shape in ((6, 100), (100,), (6, 100)))
    return x.requires_grad_(), w.requires_grad_(), v


def agrees(found, expected):
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("how", ["eager", "compiled"])
def test_gradients_of_two_launches_with_memory_between(inputs, how) -> None:
    x, w, v = inputs
    function = torch.compile(layer, fullgraph=True, backend="aot_eager") if how == "compiled" else layer
    found = torch.autograd.grad((function(x, w) * v).sum(), (x, w))
    agrees(found, torch.autograd.grad((reference(x, w) * v).sum(), (x, w)))


def test_only_what_is_asked_for(inputs) -> None:
    x, w, v = inputs
    found = torch.autograd.grad((layer(x.detach(), w) * v).sum(), w)
    agrees(found, torch.autograd.grad((reference(x.detach(), w) * v).sum(), w))


def test_one_tensor_in_two_places(device) -> None:
    draw = torch.Generator().manual_seed(1)
    x, v = (torch.rand(8, generator=draw).to(device) for _ in range(2))
    x.requires_grad_()
    found = torch.autograd.grad((layer(x, x) * v).sum(), x)
    agrees(found, torch.autograd.grad((reference(x[None], x) * v).sum(), x))


@rawkern.op("rawkern_test_derived::residuals", backward="derive")
def residuals(x: Tensor, b: Tensor, c: Tensor) -> Tensor:
    h, out = torch.empty_like(x), torch.empty_like(x)
    KERNELS.residual.forall(x.numel())(x, b, h, x.numel())
    KERNELS.residual.forall(x.numel())(h, c, out, x.numel())
    return out


@pytest.mark.parametrize("how", ["eager", "compiled"])
@pytest.mark.parametrize("twice", [False, True])
def test_gradients_that_are_handed_on(device, how, twice) -> None:
    """That of c is the output's, and no other is changed by it; b and c may be the same tensor."""
    x, b, c, v = (torch.randn(6, 100, generator=torch.Generator().manual_seed(k)).to(device) for k in range(4))
    for t in (x, b, c):
        t.requires_grad_()
    c, kept = b if twice else c, v.clone()
    function = torch.compile(residuals, fullgraph=True, backend="aot_eager") if how == "compiled" else residuals
    found = torch.autograd.grad(function(x, b, c), (x, b, c), v)
    agrees(found, torch.autograd.grad((x.square() + b).square() + c, (x, b, c), v))
    if how == "eager":
        assert twice or found[2].data_ptr() == v.data_ptr()
    assert torch.equal(v, kept)


@rawkern.op("rawkern_test_derived::added", backward="derive")
def added(x: Tensor, b: Tensor) -> Tensor:
    out = torch.empty_like(x)
    KERNELS.added.forall(x.numel())(x, b, out, x.numel())
    return out


@rawkern.op("rawkern_test_derived::sine", backward="derive")
def sine(x: Tensor, b: Tensor) -> Tensor:
    out = torch.empty_like(x)
    KERNELS.sine.forall(x.numel())(x, b, out, x.numel())
    return out


@pytest.mark.parametrize("how", ["eager", "compiled"])
def test_gradients_that_are_handed_on_are_accumulated_apart(device, how) -> None:
    """Autograd adds in place to a gradient that has no other owner; a gradient that is passed on has one."""
    x, b = (torch.randn(6, 100, device=device).requires_grad_() for _ in range(2))
    grad = torch.ones(6, 100, device=device)
    function = torch.compile(added, fullgraph=True, backend="aot_eager") if how == "compiled" else added
    for k in range(1, 4):
        function(x, b).backward(grad)
        function(x, x.detach()).view(-1).backward(grad.view(-1))
        assert (grad == 1).all() and (b.grad == k).all() and (x.grad == 2 * k).all()
    a, c = (torch.randn(6, 100, device=device).requires_grad_() for _ in range(2))
    waved = torch.compile(sine, fullgraph=True, backend="aot_eager") if how == "compiled" else sine
    for k in range(1, 4):  # of what two arguments have
        waved(a, b.detach()).backward(grad)
        waved(a, c).backward(grad)
        torch.testing.assert_close(c.grad, k * torch.cos(a + c).detach())
        torch.testing.assert_close(a.grad, k * (torch.cos(a + c) + torch.cos(a + b)).detach())
    c = torch.randn(6, 100, device=device).requires_grad_()
    for k in range(1, 4):  # the gradient of memory between two launches goes to two arguments
        residuals(x.detach(), c, b.detach()).backward(grad)
        torch.testing.assert_close(c.grad, 2 * k * (x.detach() ** 2 + c.detach()))


def test_gradients_that_are_handed_on_are_not_added_to(device) -> None:
    """Autograd adds to what it takes for its own memory: two parameters may not have one."""
    x, b, c, d, e = (torch.randn(6, 100, device=device).requires_grad_() for _ in range(5))
    for _ in range(2):
        ((residuals(x, b, c) + residuals(x, d, e)) * 2.0).sum().backward()
    assert len({t.grad.data_ptr() for t in (x, b, c, d, e)}) == 5
    assert torch.equal(c.grad, torch.full_like(c, 4.0)) and torch.equal(e.grad, c.grad)
    out, v = residuals(x, b, c), torch.ones_like(x)
    c.grad = None
    for _ in range(2):
        out.backward(v, retain_graph=True)
    assert torch.equal(v, torch.ones_like(x)) and torch.equal(c.grad, 2 * v)


def test_checkpoint_and_a_gradient_that_is_expanded(inputs) -> None:
    x, w, _ = inputs
    out = torch.utils.checkpoint.checkpoint(layer, x, w, use_reentrant=False)
    agrees(torch.autograd.grad(out.sum(), (x, w)), torch.autograd.grad(reference(x, w).sum(), (x, w)))


def test_export(inputs) -> None:
    class Layer(torch.nn.Module):
        def forward(self, x: Tensor, w: Tensor) -> Tensor:
            return layer(x, w)

    x, w, v = inputs
    exported = torch.export.export(Layer(), (x, w)).module()
    found = torch.autograd.grad((exported(x, w) * v).sum(), (x, w))
    agrees(found, torch.autograd.grad((reference(x, w) * v).sum(), (x, w)))


def test_distributed_data_parallel() -> None:
    from torch import distributed

    draw = torch.Generator().manual_seed(3)

    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.rand(100, generator=draw))

        def forward(self, x: Tensor) -> Tensor:
            return layer(x, self.weight)

    def trained() -> None:
        model, x = torch.nn.parallel.DistributedDataParallel(Layer()), torch.rand(6, 100, generator=draw)
        model(x).square().sum().backward()
        w = model.module.weight
        right = torch.autograd.grad(reference(x, w).square().sum(), w)
        agrees([w.grad], right)

    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        trained()
    finally:
        # The model goes before the group: as the group's last owner it would wait for the group's threads, and they for
        # the GIL that it holds.
        gc.collect()
        distributed.destroy_process_group()


@pytest.mark.gpu
def test_cuda_graph() -> None:
    draw = torch.Generator().manual_seed(2)
    x, w, v = (torch.randn(*shape, generator=draw).cuda() for shape in ((6, 100), (100,), (6, 100)))
    x.requires_grad_()
    w.requires_grad_()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            torch.autograd.grad((layer(x, w) * v).sum(), (x, w))
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = torch.autograd.grad((layer(x, w) * v).sum(), (x, w))
    with torch.no_grad():
        x.copy_(torch.randn(6, 100, generator=draw))
    graph.replay()
    agrees(found, torch.autograd.grad((reference(x, w) * v).sum(), (x, w)))


STENCIL = rawkern.RawKernel(r"""
extern "C" __global__ void laplace(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i > 0 && i < n - 1) y[i] = x[i - 1] * x[i + 1] - x[i] * x[i] * x[i];
}""")


@rawkern.op("rawkern_test_derived::map", backward="derive")
def mapped(x: Tensor, w: Tensor) -> Tensor:
    out = torch.empty_like(x)
    KERNELS.gate.forall(x.numel())(x, w, out, x.numel(), w.numel())
    return out


@rawkern.op("rawkern_test_derived::row", backward="derive")
def row(x: Tensor, w: Tensor) -> Tensor:
    out = torch.empty_like(x)
    KERNELS.rms[x.shape[0], 64](x, out, x.shape[1])
    return out


@rawkern.op("rawkern_test_derived::stencil", backward="derive")
def stencil(x: Tensor, w: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    STENCIL.forall(x.numel())(x, out, x.numel())
    return out


def stencil_in_torch(x, w):
    flat = x.flatten()
    inner = flat[:-2] * flat[2:] - flat[1:-1] ** 3
    return torch.nn.functional.pad(inner, (1, 1)).view_as(x)


TWICE = {
    "map": (mapped, lambda x, w: torch.nn.functional.silu(x) * w),
    "row": (row, lambda x, w: x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt()),
    "stencil": (stencil, stencil_in_torch),
    "handed on": (added, lambda x, b: x + b),
    "sum": (sine, lambda x, b: torch.sin(x + b)),
}


@pytest.mark.parametrize("name", TWICE)
def test_second_derivatives(inputs, name) -> None:
    x, w, v = inputs
    if name in ("handed on", "sum"):
        w = v.clone().requires_grad_()
    given = v.flip(0).requires_grad_()

    def second(function):
        out = function(x, w)
        grads = torch.autograd.grad(out, (x, w), given, create_graph=True, allow_unused=True)
        penalty = sum((g.sin() * (k + 1)).sum() for k, g in enumerate(grads) if g is not None)
        found = torch.autograd.grad(penalty + out.sum(), (x, w, given), allow_unused=True)
        return [torch.zeros_like(t) if g is None else g for g, t in zip(found, (x, w, given), strict=True)]

    for a, b in zip(second(TWICE[name][0]), second(TWICE[name][1]), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


def test_third_derivatives_raise(inputs) -> None:
    x, w, _ = inputs
    (g,) = torch.autograd.grad(mapped(x, w).sum(), x, create_graph=True)
    (again,) = torch.autograd.grad(g.square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="third derivative"):
        torch.autograd.grad(again.sum(), x)


def test_second_derivatives_of_several_launches_are_rejected(inputs) -> None:
    x, w, v = inputs
    (g,) = torch.autograd.grad((layer(x, w) * v).sum(), x, create_graph=True)
    with pytest.raises(
        rawkern.NotDifferentiable, match="layer has no second derivative: it makes 2 launches; make an operator"
    ):
        torch.autograd.grad(g.sum(), x)

    def of_operators(x, w):  # one operator for each launch
        return row(mapped(x, w), w)

    found, right = [], []
    for function, into in ((of_operators, found), (reference, right)):
        (g,) = torch.autograd.grad((function(x, w) * v).sum(), x, create_graph=True)
        into += torch.autograd.grad(g.square().sum(), (x, w))
    torch.testing.assert_close(found, right, rtol=1e-3, atol=1e-3)


def test_deterministic_algorithms_reject_atomics(inputs) -> None:
    x, w, _ = inputs
    out = layer(x, w)
    torch.use_deterministic_algorithms(True)
    try:
        with pytest.raises(RuntimeError, match="use_deterministic_algorithms"):
            out.sum().backward()
    finally:
        torch.use_deterministic_algorithms(False)


def rejected(name, function):
    return rawkern.op(f"rawkern_test_derived::{name}", backward="derive")(function)


def test_torch_calls_in_the_function_are_rejected(inputs) -> None:
    def function(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        KERNELS.rms[6, 64](x * 2, out, 100)
        return out

    with pytest.raises(rawkern.NotDifferentiable, match=r"aten\.mul.*lost"):
        rejected("calls", function)(inputs[0]).sum().backward()


def test_memory_written_twice_is_rejected(inputs) -> None:
    def function(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        KERNELS.rms[6, 64](x, out, 100)
        KERNELS.twice.forall(300)(out, 300)
        return out

    with pytest.raises(rawkern.NotDifferentiable, match="written"):
        rejected("rewrites", function)(inputs[0]).sum().backward()


IN_PLACE = rawkern.RawModule(r"""
extern "C" __global__ void bias_tanh(float* h, const float* b, int n, int m) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) h[i] = tanhf(h[i] + b[i % m]);
}
extern "C" __global__ void positive(float* h, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n && h[i] < 0.0f) h[i] = 0.0f;
}
extern "C" __global__ void softmax(float* h, int rows, int m) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    float sum = 0.0f;
    for (int c = 0; c < m; ++c) { h[row * m + c] = expf(h[row * m + c]); sum += h[row * m + c]; }
    for (int c = 0; c < m; ++c) h[row * m + c] /= sum;
}
""")


@rawkern.op("rawkern_test_derived::in_place", backward="derive")
def in_place(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    n, m = x.numel(), x.shape[-1]
    h, out = torch.empty_like(x), torch.empty_like(x)
    KERNELS.gate.forall(n)(x, w, h, n, m)
    IN_PLACE.bias_tanh.forall(n)(h, b, n, m)
    IN_PLACE.positive.forall(n // 2)(h, n // 2)  # a part of it
    KERNELS.gate.forall(n)(h, w, out, n, m)
    IN_PLACE.softmax.forall(n // m)(out, n // m, m)
    return h, out


@pytest.mark.parametrize("how", ["eager", "compiled"])
def test_memory_that_launches_overwrite_in_place(inputs, how) -> None:
    """Each saves what was there before; the gradient takes its place in the reverse."""
    x, w, v = inputs
    b = v[0].detach().clone().requires_grad_()
    h, out = (torch.compile(in_place, fullgraph=True) if how == "compiled" else in_place)(x, w, b)
    mean = torch.linspace(0, 1, h.numel(), device=h.device).view_as(h)
    found = torch.autograd.grad((out * v + h * mean).sum(), (x, w, b))
    inner = torch.tanh(torch.nn.functional.silu(x) * w + b)
    half = inner.flatten()[: inner.numel() // 2].relu()
    inner = torch.cat([half, inner.flatten()[inner.numel() // 2 :]]).view_as(x)
    agrees((h, out), (inner, (torch.nn.functional.silu(inner) * w).softmax(-1)))
    right = torch.autograd.grad(((torch.nn.functional.silu(inner) * w).softmax(-1) * v + inner * mean).sum(), (x, w, b))
    agrees(found, right)


def test_what_is_read_before_it_is_overwritten_is_rejected(inputs) -> None:
    """Its backward would need what is gone."""

    @rawkern.op("rawkern_test_derived::lost", backward="derive")
    def lost(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        n, m = x.numel(), x.shape[-1]
        h, out = torch.empty_like(x), torch.empty_like(x)
        KERNELS.gate.forall(n)(x, w, h, n, m)
        KERNELS.gate.forall(n)(h, w, out, n, m)
        IN_PLACE.positive.forall(n)(h, n)
        return h, out

    x, w, v = inputs
    with pytest.raises(rawkern.NotDifferentiable, match="positive writes to h, which an earlier launch has read"):
        torch.autograd.grad((lost(x, w)[1] * v).sum(), (x, w))


def test_what_comes_through_a_pointer_that_is_not_const_is_rejected(inputs) -> None:
    def function(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        KERNELS.rms[6, 64](x, out, 100)
        KERNELS.twice.forall(300)(x, 300)
        return out

    with pytest.raises(rawkern.LaunchError, match=r"twice writes to y, which is the operator's argument x"):
        rejected("changes", function)(inputs[0])


def test_declarations_that_cannot_be_derived() -> None:
    def in_place(x: Tensor) -> None: ...

    with pytest.raises(TypeError, match="does not support operators that change arguments"):
        rawkern.op("rawkern_test_derived::changed", mutates_args=("x",), backward="derive")(in_place)
    with pytest.raises(ValueError, match="backward is 'yes'"):
        rawkern.op("rawkern_test_derived::yes", backward="yes")


SQUARE = """extern "C" __global__ void square(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = %s * x[i] * x[i];
}"""


def edited(path, factor) -> None:
    path.write_text(SQUARE % factor)
    time.sleep(0.12)  # how long a file is taken to be what it was


@pytest.mark.parametrize("how", ["eager", "compiled"])
def test_an_edit_between_forward_and_backward_is_rejected(tmp_path, how) -> None:
    edited(tmp_path / "square.cu", "1.0f")
    kernel = rawkern.RawKernel(path=tmp_path / "square.cu", name="square")

    def function(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        kernel.forall(x.numel())(x, out, x.numel())
        return out

    op = rawkern.op(f"rawkern_test_derived::square_{how}", backward="derive")(function)
    op = torch.compile(op, fullgraph=True, backend="aot_eager") if how == "compiled" else op
    x = torch.rand(50).requires_grad_()
    before = op(x)
    agrees(torch.autograd.grad(before.sum(), x, retain_graph=True), [2 * x])
    edited(tmp_path / "square.cu", "3.0f")
    after = op(x)  # that a forward of the new text has run changes nothing for what ran before
    with pytest.raises(rawkern.LaunchError, match=r"square\.cu was edited since"):
        before.sum().backward()
    if how == "eager":
        agrees(torch.autograd.grad(after.sum(), x), [6 * x])
        return
    with pytest.raises(rawkern.LaunchError, match="define the operator and compile"):
        after.sum().backward()


def test_first_use_is_verified_where_that_is_asked_for(monkeypatch) -> None:
    calls = []
    monkeypatch.setattr(Derived, "verify", lambda self, grid, args: calls.append((grid, len(args))))
    kernel = rawkern.RawKernel(SQUARE % "2.0f", "square")

    def function(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        kernel.forall(x.numel())(x, out, x.numel())
        return out

    def run(name, verify, n=50):
        op = rawkern.op(f"rawkern_test_derived::{name}", backward="derive", verify=verify)(function)
        for _ in range(2):
            op(torch.rand(n).requires_grad_()).sum().backward()
        found = len(calls)
        calls.clear()
        return found

    assert run("verified", True) == 1 and run("not_verified", False) == 0
    assert run("in_a_test", None) == 1, "the plugin for pytest asks for it"
    assert run("large", None, 60_000) == 0 and run("large_asked", True, 60_000) == 1
    monkeypatch.setenv("RAWKERN_VERIFY", "0")
    assert run("not_in_tests", None) == 0
    with pytest.raises(ValueError, match="verify and max_iterations are only for backward='derive'"):
        rawkern.op("rawkern_test_derived::by_hand", verify=True)(function)
