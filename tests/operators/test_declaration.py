"""rawkern.op: type hints to a schema, and what raises."""

from __future__ import annotations

import ctypes
from typing import Any, Optional

import pytest
import torch
from torch import Tensor

import rawkern
from rawkern.base import torch_private as private

from .cases import numbers
from .kernels import affine, mul, relu_, scale


def define(function: Any, **options: Any) -> Any:
    return rawkern.op("rawkern_test::defined_here", **options)(function)


def test_schemas() -> None:
    def every(
        a: Tensor,
        b: Optional[Tensor],  # noqa: UP045 - as older code spells it
        c: Tensor | None,
        d: list[Tensor],
        n: int,
        s: float = 1.5,
        flag: bool = False,
        *,
        mode: str = "x, Tensor y",
        dtype: torch.dtype | None = None,
        where: torch.device | None = None,
        sizes: list[int],
    ) -> tuple[Tensor, Tensor]:
        return a.clone(), a.clone()

    op = define(every, mutates_args=("c",), hidden=("second",), save=("a", "out", "second", "d"))
    assert str(op.overload._schema) == (
        "rawkern_test::defined_here(Tensor a, Tensor? b, Tensor(a2!)? c, Tensor[] d, SymInt n, float s=1.5, "
        'bool flag=False, *, str mode="x, Tensor y", ScalarType? dtype=None, Device? where=None, SymInt[] sizes) '
        "-> (Tensor, Tensor)"
    )
    op.backward(lambda ctx, grad: None)
    assert str(op.operator.reverse.overload._schema).partition("(")[2] == (
        "Tensor? grad_out, Tensor? a, Tensor? out, Tensor? second, Tensor[] d, SymInt n, float s, bool flag, str mode, "
        "ScalarType? dtype, Device? where, SymInt[] sizes, bool[] needs, SymInt[] sizes_, int[] ranks, int[] counts) "
        "-> Tensor[]"
    )
    assert str(relu_.overload._schema) == "rawkern_test::relu_(Tensor(a0!) x) -> ()"


def test_the_function_keeps_its_face() -> None:
    assert mul.__name__ == "mul" and mul.__doc__ == "Return a * b; the backward launches a kernel."
    assert mul.__module__ == scale.__module__ == __name__.rpartition(".")[0] + ".kernels"
    with pytest.raises(TypeError, match=r"scale\(\) missing 1 required positional argument: 's'"):
        scale(torch.ones(3))
    with pytest.raises(TypeError, match="takes 2 positional arguments but 3 were given"):
        scale(torch.ones(3), 1.0, 2)


def test_values_arrive_as_they_are_declared() -> None:
    got: list[Any] = []

    def keep(
        x: Tensor, s: float, n: int, flag: bool, mode: str, dtype: torch.dtype, where: torch.device, sizes: list[int]
    ) -> Tensor:
        got.append((s, n, flag, mode, dtype, where, sizes))
        return x.clone()

    op = define(keep)
    given = (0.5, 3, True, "fast", torch.float16, torch.device("cpu"), [1, 2])
    op(torch.ones(3), *given)
    op.overload(torch.ones(3), *given)
    assert got == [given, given]
    got.clear()
    op(torch.ones(3), 2, 3, True, "fast", torch.float16, "cpu", (1, 2))  # what the dispatcher converts
    assert got == [(2.0, 3, True, "fast", torch.float16, torch.device("cpu"), [1, 2])] and type(got[0][0]) is float
    with pytest.raises(
        RuntimeError, match=r"rawkern_test::defined_here\(\) Expected a value of type 'float' for .*'s'"
    ):
        op(torch.ones(3), "half", *given[1:])


def hint_less(x):
    return x


def wrong_type(x: Tensor, y: dict) -> Tensor:
    return x


def no_tensor(n: int) -> Tensor:
    return torch.ones(n)


def by_keyword(*, x: Tensor) -> Tensor:
    return x


def plain(x: Tensor, y: Tensor) -> Tensor:
    return x + y


def pair(x: Tensor) -> tuple[Tensor, Tensor]:
    return x + 1, x + 2


def number(x: Tensor) -> int:
    return 1


def nothing(x: Tensor) -> None:
    pass


def reserved(x: Tensor, shapes: int) -> Tensor:
    return x


REJECTED: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
    (hint_less, {}, TypeError, "its type hints do not form a schema: .*Parameter x must have a type annotation"),
    (wrong_type, {}, TypeError, "its type hints do not form a schema: .*Parameter y has unsupported type"),
    (no_tensor, {}, TypeError, "an operator needs a tensor parameter, and its tensors must not be keyword-only"),
    (by_keyword, {}, TypeError, "an operator needs a tensor parameter, and its tensors must not be keyword-only"),
    (number, {}, TypeError, "returns SymInt; an operator returns tensors: Tensor, tuple"),
    (nothing, {}, ValueError, "returns 0 tensors, 0 of them hidden; at least one is visible"),
    (reserved, {}, ValueError, "a parameter cannot be called shapes, which means something else on ctx"),
    (plain, {"save": ("z",)}, ValueError, "save names 'z', which is not one of the tensors out, x, y"),
    (plain, {"save": "x"}, TypeError, "save is the string 'x'; pass a tuple of names"),
    (plain, {"save": ("x", "x")}, ValueError, "save has a name twice: x, x"),
    (plain, {"save": {"x": ()}}, ValueError, r"save\['x'\] is \(\); it names one or more tensor parameters"),
    (plain, {"save": {"x": ("z",)}}, ValueError, r"save\['x'\] is \('z',\); it names one or more tensor parameters"),
    (plain, {"hidden": ("h",)}, ValueError, "returns 1 tensors, 1 of them hidden; at least one is visible"),
    (pair, {"hidden": ("x",)}, ValueError, "a parameter and a hidden output are called x; rename one of them"),
    (plain, {"mutates_args": ("z",)}, TypeError, "its type hints do not form a schema: .*'z'"),
    (plain, {"autocast": torch.int32}, ValueError, "autocast is torch.int32; pass a floating-point dtype, 'lower' or"),
    (
        plain,
        {"autocast": {"cpu": "x"}},
        ValueError,
        "autocast is 'x'; pass a floating-point dtype, 'lower' or 'widest'",
    ),
    (plain, {"autocast": {"xpu": "lower"}}, ValueError, "autocast names the device 'xpu'; choose 'cpu' or 'cuda'"),
    (plain, {"autocast": "x"}, ValueError, "autocast is 'x'; pass a floating-point dtype, 'lower' or 'widest'"),
    (
        plain,
        {"autocast": "lower", "mutates_args": ("x",)},
        ValueError,
        "arguments that are changed in place cannot be cast",
    ),
]


@pytest.mark.parametrize("function, options, error, message", REJECTED)
def test_rejected_declarations(function: Any, options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=rf"rawkern_test::defined_here\S* ?(?s:.)*{message}"):
        define(function, **options)


def test_rejected_names() -> None:
    for name in ("mul", "a::b::c", "a::", "::b", "a.b::c", "a::b.c"):
        with pytest.raises(ValueError, match="is not an operator name; write 'namespace::name'"):
            rawkern.op(name)(plain)
    given: Any
    for given, words in ((plain, "the function plain"), (None, "a NoneType")):
        with pytest.raises(
            TypeError, match=rf"takes the operator's name, got {words}; write @rawkern.op\('mylib::NAME'\)"
        ):
            rawkern.op(given)


def test_saved_only_for_some_gradients() -> None:
    def product(x: Tensor, y: Tensor, s: float) -> Tensor:
        return x * y * s

    op = define(product, save={"x": ("y",), "y": ("x",)})
    seen = []

    @op.backward
    def _(ctx, grad):
        x, y = ctx.saved_tensors
        seen.append((x is None, y is None, ctx.shapes))
        return None if y is None else grad * y * ctx.s, None if x is None else grad * x * ctx.s, None

    for needs in ((True, False), (False, True), (True, True)):
        x, y = (torch.full((3,), v, requires_grad=need) for v, need in zip((2.0, 3.0), needs, strict=True))
        for context in (torch.enable_grad, lambda: torch.device("cpu")):
            x.grad = y.grad = None
            with context():
                op(x, y, 0.5).sum().backward()
            assert seen.pop() == (not needs[1], not needs[0], ((3,), (3,), None))
            assert (x.grad is None or x.grad.tolist() == [1.5] * 3) and (y.grad is None or y.grad.tolist() == [1] * 3)
            assert (x.grad is not None, y.grad is not None) == needs


# --- arguments ------------------------------------------------------------------------------------------------------


def test_tensors_on_two_devices(device: str) -> None:
    other = "meta" if device == "cpu" else "cpu"
    x, y = torch.ones(3, device=device), torch.ones(3, device=other)
    with pytest.raises(ValueError) as caught:
        mul(y, x)
    place = x.device
    assert str(caught.value) == f"rawkern_test::mul: a is on {other}, b is on {place}; pass tensors on one device"
    with pytest.raises(ValueError, match=f"rawkern_test::affine: x is on {place}, bias is on {other}"):
        affine(x, None, y)
    op = define(lambda_over_list)
    with pytest.raises(ValueError, match=rf"defined_here: items\[0\] is on {place}, items\[2\] is on {other}"):
        op([x, x, y])


def lambda_over_list(items: list[Tensor]) -> Tensor:
    return items[0].clone()


def test_numbers_in_tensors_may_be_on_the_cpu(device: str) -> None:
    def shifted(x: Tensor, by: Tensor) -> Tensor:
        return x + by

    assert torch.equal(define(shifted)(torch.ones(3, device=device), torch.tensor(2.0)).cpu(), torch.full((3,), 3.0))


def test_wrong_dtypes_name_kernel_and_argument(device: str) -> None:
    x = torch.ones(3, device=device, dtype=torch.float64)
    for inputs in ((x, x.float()), (x.requires_grad_(), x.detach().float())):
        with pytest.raises(TypeError, match=r"mul<double>: argument 2 'b' is float32, the kernel reads const double"):
            mul(*inputs)
        with pytest.raises(TypeError, match=r"mul<double>: argument 2 'b' is float32, the kernel reads const double"):
            mul(*(t.to("meta") for t in inputs))
    with pytest.raises(RuntimeError, match=r"rawkern_test::mul\(\) Expected a value of type 'Tensor' for argument 'b'"):
        mul(x, "x")


# --- gradients ------------------------------------------------------------------------------------------------------

GRADIENTS: list[tuple[Any, str]] = [
    (
        lambda ctx, g: (g, g, g, g),
        r"returned 4 gradients; it returns one for each tensor \(x, y\), None where there is",
    ),
    (lambda ctx, g: g, r"returned 1 gradients; it returns one for each tensor \(x, y\)"),
    (lambda ctx, g: 1.0, r"returned a float; it returns one for each tensor \(x, y\)"),
    (lambda ctx, g: (g, 1.0), "returned a float for y; a gradient is a tensor or None"),
    (lambda ctx, g: (g, g[:1].clone()), r"returned a gradient for y that has shape \(1,\), where y has shape \(3,\)"),
    (lambda ctx, g: (g.double(), g), "returned a gradient for x that is torch.float64, where x has torch.float32"),
    (lambda ctx, g: (g, g, g), "returned a gradient for s, which is not a tensor; return None in its place"),
]


@pytest.mark.parametrize("backward, message", GRADIENTS)
def test_rejected_gradients(backward: Any, message: str) -> None:
    def weighted(x: Tensor, y: Tensor, s: float) -> Tensor:
        return x + s * y

    op = define(weighted)
    op.backward(backward)
    x, y = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    for context in (torch.enable_grad, lambda: torch.device("cpu")):
        with context():
            out = op(x, y, 0.5)
        with pytest.raises(RuntimeError, match=f"the backward of rawkern_test::defined_here {message}"):
            out.backward(torch.ones(3))
        with pytest.raises(RuntimeError, match=f"the backward of rawkern_test::defined_here {message}"):
            out = op(x, y, 0.5)
            torch.autograd.grad(out, (x, y), torch.ones(3), create_graph=True)


def test_gradients_of_integers_and_lists() -> None:
    def gather(items: list[Tensor], index: Tensor) -> Tensor:
        return torch.stack(items)[index]

    op = define(gather)
    op.backward(lambda ctx, g: ([g.sum(0)], g))
    items = [torch.ones(3, requires_grad=True), torch.ones(3)]
    index = torch.tensor([0, 1, 1])
    with pytest.raises(RuntimeError, match="returns for items a list of 2 gradients"):
        op(items, index).sum().backward()
    op = define(gather)
    op.backward(lambda ctx, g: ([g.sum(0)[:2], None], g))
    with pytest.raises(RuntimeError, match=r"returned a gradient for items\[0\] that has shape \(2,\)"):
        op(items, index).sum().backward()
    op = define(gather)
    op.backward(lambda ctx, g: ([g.sum(0), g.sum(0)], g))  # what is not asked for is dropped, that of integers too
    op(items, index).sum().backward()
    assert items[0].grad.tolist() == [3, 3, 3] and items[1].grad is None and index.grad is None
    with pytest.raises(RuntimeError, match="only Tensors of floating point"):
        index.requires_grad_()


def test_integer_outputs_take_no_gradient() -> None:
    def largest(x: Tensor) -> tuple[Tensor, Tensor]:
        value, index = x.max(-1)
        return value.clone(), index.clone()

    op = define(largest, save=("out1",))
    op.backward(lambda ctx, g, none: torch.zeros(ctx.shapes[0]).scatter(-1, ctx.saved_tensors[0][:, None], g[:, None]))
    x = numbers(4, 5, device="cpu", dtype=torch.float32).requires_grad_()
    value, index = op(x)
    assert value.requires_grad and not index.requires_grad
    value.sum().backward()
    assert torch.equal(x.grad, torch.zeros(4, 5).scatter(-1, index[:, None], 1.0))


def test_without_a_backward() -> None:
    op = define(plain)
    x = torch.ones(3, requires_grad=True)
    out = op(x, x)
    assert out.requires_grad
    with pytest.raises(NotImplementedError) as caught:
        out.sum().backward()
    assert str(caught.value) == (
        "rawkern_test::defined_here has no backward; define one with @defined_here.backward, or have it "
        'derived from the CUDA: rawkern.op(..., backward="derive")'
    )


def test_a_second_backward_is_rejected() -> None:
    op = define(plain)
    op.backward(lambda ctx, g: (g, g))
    with pytest.raises(ValueError, match="already has a backward; define the operator again to change it"):
        op.backward(lambda ctx, g: (g, g))


def test_lists_changed_in_place_have_no_backward() -> None:
    def change(items: list[Tensor]) -> None:
        items[0].mul_(2)

    op = define(change, mutates_args=("items",))
    with pytest.raises(TypeError, match="an operator that changes a list of tensors has no backward"):
        op.backward(lambda ctx, g: g)


# --- again ----------------------------------------------------------------------------------------------------------


def test_defining_an_operator_again() -> None:
    x = torch.ones(3, requires_grad=True)
    for factor in (2.0, 3.0):

        def times(x: Tensor, factor: float = factor) -> Tensor:
            return x * factor

        op = define(times)
        op.backward(lambda ctx, g, factor=factor: g * factor * 10)
        for call in (op, torch.ops.rawkern_test.defined_here, torch.compile(op, backend="aot_eager", fullgraph=True)):
            out = call(x)
            assert out.tolist() == [factor] * 3
            assert torch.autograd.grad(out.sum(), x)[0].tolist() == [factor * 10] * 3

    def other(x: Tensor, y: Tensor) -> Tensor:
        return x - y

    op = define(other)
    assert torch.ops.rawkern_test.defined_here(x, x).tolist() == op(x, x).tolist() == [0, 0, 0]


# --- autocast -------------------------------------------------------------------------------------------------------


def test_autocast_on_one_kind_of_device() -> None:
    def same(x: Tensor) -> Tensor:
        return x.clone()

    for there, expected in (("cpu", torch.float32), ("cuda", torch.float16)):
        op = define(same, autocast={there: torch.float32})
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert op(torch.ones(3, dtype=torch.float16)).dtype is expected


@pytest.mark.parametrize("rule", [torch.float32, "lower", "widest", None])
def test_autocast(rule: Any, device: str) -> None:
    def second(x: Tensor, y: Tensor, index: Tensor | None, *, s: float = 1.0) -> Tensor:
        return y * s

    op = define(second, autocast=rule, save=())
    op.backward(lambda ctx, g: (None, g * ctx.s, None))
    half, single, double = (
        torch.ones(3, device=device, dtype=d) for d in (torch.float16, torch.float32, torch.float64)
    )
    index = torch.ones(3, device=device, dtype=torch.int32)
    expected = {torch.float32: (torch.float32,) * 2, "lower": (torch.bfloat16,) * 2}
    first, last = expected.get(
        rule, (torch.float32, torch.float32) if rule == "widest" else (torch.float16, torch.float32)
    )
    assert op(single, half, None).dtype is torch.float16
    with torch.autocast(device, dtype=torch.bfloat16):
        assert op(single, half, None).dtype is first
        assert op(half, single, index, s=2.0).dtype is last
        assert op(half, double, index).dtype is torch.float64
        half.requires_grad_()
        out = op(single, half, index, s=2.0)
    assert out.dtype is first
    out.sum().backward()
    assert half.grad.dtype is torch.float16 and half.grad.tolist() == [2, 2, 2]


# --- private torch names --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "_C._len_torch_function_stack",
        "_C._are_functorch_transforms_active",
        "_C._is_any_autocast_enabled",
        "autograd.function._SingleLevelFunction",
        "autograd.Function._backward_cls",
        "_C._AutoDispatchBelowAutograd",
        "_C._after_autograd_keyset",
        "_C._is_alias_of",
        "_C._is_fwd_grad_enabled",
        "_C._functorch.unwrap_if_dead",
        "_C._ExcludeDispatchKeyGuard",
        "library.Library._destroy",
        "autograd.forward_ad._set_fwd_grad_enabled",
        "autograd.forward_ad._current_level",
        "autograd.profiler._is_profiler_enabled",
        "_C._parse_dispatch_key",
        "_C._dispatch_keys",
        "_C._DisableFuncTorch",
        "utils._python_dispatch._disable_current_modes",
        "_remove_batch_dim",
        "_add_batch_dim",
    ],
)
def test_private_names_are_there(path: str) -> None:
    assert private._get(path) is not None, f"torch {torch.__version__} has no torch.{path}: find its successor"


def test_private_names_mean_what_they_say() -> None:
    x = torch.ones(4)
    assert private.same_memory(x, x[1:]) and not private.same_memory(x, x.clone())
    fake = x.to("meta")
    assert private.same_memory(fake, fake[1:]) and not private.same_memory(fake, fake.clone())
    assert not private.forward_mode()
    assert not private.transforms() and not private.function_modes() and not private.autocast_enabled()
    torch.func.vmap(lambda x: (x, pytest.fail("no transform") if not private.transforms() else None)[0])(x)
    with torch.device("cpu"), torch.autocast("cpu"):
        assert private.function_modes() == 1 and private.autocast_enabled()
    with private.single_level():
        pass
    enabled = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_int8)(private.autocast_function())  # of c10::DeviceType
    for kind, device in enumerate(("cpu", "cuda")):
        assert not enabled(kind)
        torch.set_autocast_enabled(device, True)
        try:
            assert enabled(kind) and not enabled(1 - kind)
        finally:
            torch.set_autocast_enabled(device, False)
