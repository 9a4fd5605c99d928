"""Elementwise operators under torch's transforms and compiler, and what raises."""

from __future__ import annotations

import functools

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import rawkern
from tests.formulas.kit import add, fused, fused_reference, parts, silu, values


def test_gradcheck_first_second_and_forward(device):
    a, b = (values(3, 4, dtype=torch.float64, device=device, seed=k).requires_grad_() for k in (0, 1))
    row = values(4, dtype=torch.float64, device=device, seed=2).requires_grad_()
    assert gradcheck(fused, (a, b), check_forward_ad=True)
    assert gradcheck(fused, (a, row), check_forward_ad=True)
    assert gradgradcheck(fused, (a, row))
    assert gradcheck(silu, (a,), check_forward_ad=True)
    assert gradgradcheck(silu, (a,))  # a given backward is differentiated in turn


def double_values(*shape: int, device: str, seed: int = 0) -> torch.Tensor:
    return values(*shape, dtype=torch.float64, device=device, seed=seed).requires_grad_()


def test_export_does_not_compare_sizes_of_other_dimensions(device):
    op = rawkern.elementwise("T x, T b", "T y", "y = x * b", "exported")

    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return op(x, x[0]), rawkern.mul(x, x[0])

    x = values(4, 8, device=device)
    program = torch.export.export(Model(), (x,), dynamic_shapes={"x": {0: torch.export.Dim("rows")}})
    x = values(8, 8, device=device)
    torch.testing.assert_close(program.module()(x), (x * x[0], x * x[0]))


def test_forward_mode_of_some_inputs_that_broadcast(device):
    op = rawkern.elementwise("T x, T b", "T y, T z", "y = x + b; z = b * b + i * b", "joined")
    x, b = double_values(3, 1, device=device), double_values(4, device=device, seed=1)
    index = torch.arange(12.0, device=device, dtype=torch.float64).view(3, 4)
    for k in (0, 1):
        found = torch.func.jvp(lambda t: op(*((t, b) if k == 0 else (x, t))), ((x, b)[k],), ((x, b)[k],))  # noqa: B023
        tangents = (x.expand(3, 4), torch.zeros_like(index)) if k == 0 else (b.expand(3, 4), (2 * b + index) * b)
        torch.testing.assert_close(found[1], tangents)


def test_jvp_of_a_jvp(device):
    op = rawkern.elementwise("T x, T tan_x", "T y", "y = sin(x) * exp(tan_x)", "twice")
    x = values(4, dtype=torch.float64, device=device)
    found = torch.func.jacfwd(torch.func.jacfwd(lambda t: op(t, t)))(x)
    torch.testing.assert_close(found, torch.func.jacfwd(torch.func.jacfwd(lambda t: t.sin() * t.exp()))(x))


def test_parameters_that_are_called_as_gradients(device):
    op = rawkern.elementwise("T grad_y, T x", "T grad_x", "grad_x = grad_y * cos(x)", "sin_backward")
    inputs = double_values(5, device=device), double_values(5, device=device, seed=1)
    assert torch.autograd.gradcheck(op, inputs, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(op, inputs)
    with pytest.raises(ValueError, match="grad_y is a parameter, but in backward= that name means a gradient"):
        rawkern.elementwise("T grad_y", "T z", "z = grad_y", "f", backward="grad_grad_y = grad_z")


def test_statements_that_end_in_a_comment(device):
    op = rawkern.elementwise("T x", "T y", "y = exp(x) // e", "e", backward="grad_x = grad_y * y // itself")
    x = double_values(5, device=device)
    assert torch.autograd.gradcheck(op, x, check_forward_ad=True) and torch.autograd.gradgradcheck(op, x)


@pytest.mark.parametrize("operation, expected", [("y = x * i", [0.0, 1, 2, 3]), ("y = x * n", [4.0] * 4)])
def test_vmap_where_places_matter(device, operation, expected):
    """Index and number are those of an item of the batch."""
    op = rawkern.elementwise("T x", "T y", operation, "placed")
    assert torch.func.vmap(op)(torch.ones(3, 4, device=device)).tolist() == [expected] * 3


@pytest.mark.parametrize("graph", [False, True])
def test_dtypes_that_no_gradient_tells(device, graph):
    op = rawkern.elementwise("T x, U w", "float64 y", "y = (double)x * 2 + w", "wider")
    x, w = values(5, device=device).requires_grad_(), values(5, dtype=torch.float16, device=device).requires_grad_()
    grads = torch.autograd.grad(op(x, w).sum(), (x, w), create_graph=graph)
    torch.testing.assert_close(grads, (torch.full_like(x, 2), torch.ones_like(w)))
    _, tangent = torch.func.jvp(lambda w: op(x, w), (w.detach(),), (torch.ones_like(w),))
    torch.testing.assert_close(tangent, torch.ones(5, dtype=torch.float64, device=device))


def test_backward_that_reads_the_output(device):
    tanh = rawkern.elementwise(
        "T x", "T y", "T e = exp(2 * x); y = (e - 1) / (e + 1)", "tanh_", backward="grad_x = grad_y * (1 - y * y)"
    )
    x = values(10, dtype=torch.float64, device=device).requires_grad_()
    assert gradcheck(tanh, (x,), check_forward_ad=True)
    assert gradgradcheck(tanh, (x,))


def test_only_wanted_gradients(device):
    a, b = values(8, device=device).requires_grad_(), values(8, device=device, seed=1)
    fused(a, b).sum().backward()
    want = 1 + a.detach().cos() * b.cos()
    torch.testing.assert_close(a.grad, want)
    assert b.grad is None


def test_half_gradients(device):
    for dtype in (torch.float16, torch.bfloat16):
        a, b = (values(100, dtype=dtype, device=device, seed=k).requires_grad_() for k in (0, 1))
        fused(a, b).sum().backward()
        wide = [t.detach().double().requires_grad_() for t in (a, b)]
        fused_reference(*wide).sum().backward()
        for t, w in zip((a, b), wide, strict=True):
            assert t.grad is not None and w.grad is not None and t.grad.dtype is dtype
            torch.testing.assert_close(t.grad, w.grad.to(dtype))


def test_what_is_saved(device):
    x = values(4, device=device).requires_grad_()
    assert len(add(x, x).grad_fn.saved_tensors) == 0
    assert len(silu(x).grad_fn.saved_tensors) == 1


def test_transforms(device):
    a, b = values(5, 3, dtype=torch.float64, device=device), values(5, 3, dtype=torch.float64, device=device, seed=1)
    torch.testing.assert_close(torch.func.vmap(fused)(a, b), fused_reference(a, b))
    torch.testing.assert_close(torch.func.vmap(fused, in_dims=(1, None))(a, b[:, 0]), fused_reference(a.t(), b[:, 0]))
    loss = lambda x: fused(x, x * 2).sum()  # noqa: E731
    want = lambda x: fused_reference(x, x * 2).sum()  # noqa: E731
    x = a[0]
    torch.testing.assert_close(torch.func.grad(loss)(x), torch.func.grad(want)(x))
    torch.testing.assert_close(torch.func.hessian(loss)(x), torch.func.hessian(want)(x))
    torch.testing.assert_close(torch.func.vmap(torch.func.grad(loss))(a), torch.func.vmap(torch.func.grad(want))(a))
    _, tangent = torch.func.jvp(fused, (a, b), (b, a))
    _, want_tangent = torch.func.jvp(fused_reference, (a, b), (b, a))
    torch.testing.assert_close(tangent, want_tangent)


@pytest.mark.parametrize("op", [silu, fused, parts], ids=lambda op: op.name)
def test_opcheck(device, op):
    inputs = [values(4, 3, device=device, seed=k).requires_grad_() for k in range(len(op.loop.inputs))]
    torch.library.opcheck(op.operator.overload, tuple(inputs))


def test_compile_without_a_graph_break(device):
    def step(a, b):
        y = fused(silu(a) * 2, b)
        z = add(y, 1.5)
        silu.in_place(z)
        return z.sum()

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager", dynamic=True)
    for n in (8, 9):
        a, b = (values(n, 3, device=device, seed=k).requires_grad_() for k in (0, 1))
        wanted = [t.detach().clone().requires_grad_() for t in (a, b)]
        compiled(a, b).backward()
        step(*wanted).backward()
        torch.testing.assert_close([a.grad, b.grad], [t.grad for t in wanted])


def test_checkpoint(device):
    from torch.utils.checkpoint import checkpoint

    a = values(10, device=device).requires_grad_()
    checkpoint(lambda x: fused(silu(x), x), a, use_reentrant=False).sum().backward()
    want = a.detach().clone().requires_grad_()
    fused_reference(torch.nn.functional.silu(want), want).sum().backward()
    torch.testing.assert_close(a.grad, want.grad)


@pytest.mark.gpu
def test_cuda_graph():
    x = values(1000, device="cuda")
    silu(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = silu(x)
    x.copy_(values(1000, device="cuda", seed=3))
    graph.replay()
    torch.testing.assert_close(y, torch.nn.functional.silu(x))


@pytest.mark.gpu
def test_more_than_2_to_the_31_elements():
    x = torch.arange(2**31 + 77, device="cuda", dtype=torch.int64).to(torch.uint8)
    op = rawkern.elementwise("T x", "T y", "y = x + (i > 2147483647)", "above")
    y = op(x)
    assert torch.equal(y[: 2**31], x[: 2**31])
    assert torch.equal(y[2**31 :], x[2**31 :] + 1)
    twice = op(x[:-1].reshape(-1, 2)[:, 0])
    assert torch.equal(twice, x[:-1:2])


def test_same_declaration_is_the_same_operator():
    assert rawkern.elementwise("T x", "T y", "y = x + 1", "same") is rawkern.elementwise(
        "T x", "T y", "y = x + 1", "same"
    )
    one, two = (rawkern.elementwise("T x", "T y", f"y = x + {k}", "one_name") for k in (1, 2))
    x = torch.zeros(3)
    assert one(x)[0] == 1 and two(x)[0] == 2


def test_sources():
    assert "silu_element" in silu.source
    assert silu.backward_source.startswith("T s = ")
    assert "cos(a)" in fused.backward_source
    assert repr(fused) == "<rawkern.elementwise fused(T a, T b) -> T y>"


DECLARATIONS = [
    (("T x", "T y", "y = x", "1x"), "is not an identifier"),
    (("T", "T y", "y = x", "f"), "'T' is not a parameter"),
    (("what x", "T y", "y = x", "f"), "has no known type"),
    (("T x, T x", "T y", "y = x", "f"), "the name x is used twice"),
    (("T x", "T x", "x = x", "f"), "x is an input and an output"),
    (("T x", "T y", "z = x", "f"), "does not assign the output y"),
    (("T i", "T y", "y = i", "f"), "uses the reserved name"),
    (("k x", "k y", "y = x", "f"), "uses the reserved name k"),
    (("T lambda", "T y", "y = lambda", "f"), "is named like a Python keyword; write lambda_"),
    (("T x", "", "y = 1", "f"), "at least one output"),
]


@pytest.mark.parametrize(("arguments", "message"), DECLARATIONS, ids=[str(k) for k in range(len(DECLARATIONS))])
def test_declarations_rejected(arguments, message):
    with pytest.raises(ValueError, match=message):
        rawkern.elementwise(*arguments)


def test_backward_rejected():
    make = functools.partial(rawkern.elementwise, "T a, T b", "T y", "y = a * b", "times")
    with pytest.raises(ValueError, match="times: backward does not assign grad_b; where it is zero, write grad_b = 0"):
        make(backward="grad_a = grad_y * b")
    with pytest.raises(ValueError, match="times: backward names grad_c; choose from grad_a, grad_b, grad_y"):
        make(backward="grad_a = grad_y * b; grad_b = grad_y * a; grad_c = 0")


def test_calls_rejected(device):
    x = values(4, device=device)
    with pytest.raises(TypeError, match=r"fused\(\) takes 2 arguments \(a, b\), got 1"):
        fused(x)
    with pytest.raises(TypeError, match="fused: b is the str 'x'; pass a tensor or a number"):
        fused(x, "x")
    with pytest.raises(TypeError, match=r"silu: T is complex32; there is one for float16, "):
        silu(x.to(torch.complex32))
    with pytest.raises(TypeError, match=r"z is 1j, which does not fit float32"):
        rawkern.elementwise("T x, float32 z", "T y", "y = x * z", "real_number")(x, 1j)
    with pytest.raises(RuntimeError, match=r"shape|size"):
        fused(x, values(3, device=device))
    whole = rawkern.elementwise("T x, int8 k", "T y", "y = x * k", "times_k")
    with pytest.raises(TypeError, match="times_k: k is 200, which does not fit int8"):
        whole(x, 200)
    with pytest.raises(TypeError, match=r"times_k: k is 1\.5, which does not fit int8"):
        whole(x, 1.5)
    picked = rawkern.elementwise("raw T table, T x", "T y", "y = table[i] * x", "picked")
    with pytest.raises(RuntimeError, match="picked: the raw parameter table has no gradient"):
        picked(x.clone().requires_grad_(), x).sum().backward()


def test_what_cannot_be_differentiated_runs_without_grad(device):
    op = rawkern.elementwise(
        "T x",
        "T y",
        "y = twice(x)",
        "opaque",
        preamble="template <typename T> __device__ T twice(T x) { return 2 * x; }",
    )
    x = values(4, device=device)
    torch.testing.assert_close(op(x), 2 * x)
    with pytest.raises(
        rawkern.NotDifferentiable,
        match=r"opaque: can't differentiate it: twice has no known derivative; pass backward=",
    ):
        op(x.requires_grad_()).sum().backward()


@pytest.mark.gpu
def test_two_devices_rejected():
    with pytest.raises(ValueError, match=r"fused: b is on cuda:0, a is on cpu; pass tensors on one device"):
        fused(values(4), values(4, device="cuda"))
