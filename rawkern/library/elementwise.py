"""square, scale, relu and mul: elementwise loops as operators, differentiable any number of times.

A call with plain tensors is one native call (`Map`); everything else goes through the operator.
"""

from __future__ import annotations

import functools
import numbers
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from rawkern.base.operator_state import composing, in_fake_op
from rawkern.base.overrides import overridable
from rawkern.formulas.loop import Loop
from rawkern.library.instances import C_NAMES, c_name, not_a_tensor
from rawkern.operators import op

_SQUARE = Loop.parsed("square", "T x", "T y", "y = x * x")
_SQUARE_GRAD = Loop.parsed("square_backward", "T g, T x", "T d", "d = g * (2 * x)")
_SCALE = Loop.parsed("scale", "T x, float64 s", "T y", "y = x * T(s)")
_RELU = Loop.parsed("relu", "T x", "T y", "y = x < 0 ? T(0) : x")  # NaN and -0.0 stay
_RELU_GRAD = Loop.parsed("relu_backward", "T g, T y", "T d", "d = y <= 0 ? T(0) : g")
_MUL = Loop.parsed("mul", "T x, T w", "T y", "y = x * w")
_MUL_GRAD = Loop.parsed("mul_backward", "T g, T x, T w", "T d, T e", "d = g * w; e = g * x")


def _run(loop: Loop, x: Tensor, *rest: Any) -> Tensor:
    """Run a loop inside an operator, for the dtypes there are."""
    c_name(loop.name, x.dtype)
    return loop.fast.run(x, *rest)


def _checked(name: str, call: Any, x: Any) -> Tensor:
    """Call an operator, with what has to be a tensor."""
    if not isinstance(x, Tensor):
        not_a_tensor(name, x)
    return call(x)


# square -------------------------------------------------------------------------------------------------------------


def square(x: Tensor) -> Tensor:
    """Return x * x, elementwise; differentiable any number of times.

    Half types are computed in float32 and rounded once.

    Parameters
    ----------
    x : torch.Tensor
        float16, bfloat16, float32 or float64, of any shape and strides, on the CPU or a GPU.

    Returns
    -------
    torch.Tensor
        Of the same shape, dtype and device.

    Raises
    ------
    TypeError
        For another dtype, or something that is not a tensor.
    """
    return _checked("square", _square, x) if is_dynamo_compiling() else _SQUARE.fast.call(x)


@op("rawkern::square", elementwise=True, strided=True)
def _square(x: Tensor) -> Tensor:
    return _run(_SQUARE, x)


@op("rawkern::square_grad", elementwise=True, strided=True)
def _square_grad(grad_out: Tensor, x: Tensor) -> Tensor:
    """Return grad_out * 2x, an operator of its own, so that the backward has a backward."""
    return _run(_SQUARE_GRAD, grad_out, x)


@_square.backward
def _(ctx: Any, grad_out: Tensor) -> Tensor:
    return _SQUARE_GRAD.fast.call(grad_out, *ctx.saved_tensors)


@_square_grad.backward
def _(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
    # grad_out * 2x is symmetric: with respect to x it is grad * 2 grad_out.
    grad_out, x = ctx.saved_tensors
    need_grad_out, need_x = ctx.needs_input_grad
    return _square_grad(grad, x) if need_grad_out else None, _square_grad(grad, grad_out) if need_x else None


# scale --------------------------------------------------------------------------------------------------------------


def scale(x: Tensor, s: float) -> Tensor:
    """Return x * s, elementwise; differentiable with respect to x any number of times.

    Half types are computed in float32 and rounded once; s is rounded to the type that is computed in, as in torch.

    Parameters
    ----------
    x : torch.Tensor
        As for `square`.
    s : float or int
        A number of Python or NumPy; `rawkern.mul` takes a tensor.

    Returns
    -------
    torch.Tensor
        Of the shape, dtype and device of x.

    Raises
    ------
    TypeError
        For another dtype, an x that is not a tensor or an s that is not a real number.
    """
    return _any_scale(x, s) if is_dynamo_compiling() else _SCALE.fast.call(x, s)


def _any_scale(x: Tensor, s: float) -> Tensor:
    if not isinstance(x, Tensor):
        not_a_tensor("scale", x)
    if type(s) is not float:
        s = _number(s)
    return _scale(x, s)


def _number(s: Any) -> float:
    if isinstance(s, numbers.Real):
        return float(s)
    what_to_do = "; use rawkern.mul for a product of tensors" if isinstance(s, Tensor) else ""
    raise TypeError(f"scale: s is {type(s).__name__}, it must be a real number{what_to_do}")


@op("rawkern::scale", save=(), elementwise=True, strided=True)
def _scale(x: Tensor, s: float) -> Tensor:
    return _run(_SCALE, x, s)


@_scale.backward
def _(ctx: Any, grad_out: Tensor) -> Tensor:
    return _SCALE.fast.call(grad_out, ctx.s)


# relu ---------------------------------------------------------------------------------------------------------------


def relu(x: Tensor) -> Tensor:
    """Return x where it is not negative, else 0; differentiable any number of times.

    As in torch, NaN stays NaN and the derivative at 0 is 0.

    Parameters
    ----------
    x : torch.Tensor
        float16, bfloat16, float32 or float64, of any shape and strides, on the CPU or a GPU.

    Returns
    -------
    torch.Tensor
        Of the same shape, dtype and device.

    Raises
    ------
    TypeError
        For another dtype, or something that is not a tensor.
    """
    return _checked("relu", _relu, x) if is_dynamo_compiling() else _RELU.fast.call(x)


@overridable
def relu_(x: Tensor) -> Tensor:
    """Set the negative elements of x to 0 and return x; otherwise as `relu`.

    Parameters
    ----------
    x : torch.Tensor
        float16, bfloat16, float32 or float64, of any shape and strides, on the CPU or a GPU.

    Returns
    -------
    torch.Tensor
        x itself.

    Raises
    ------
    TypeError
        For another dtype, or something that is not a tensor.
    RuntimeError
        For a leaf that requires grad, or a view of one, while gradients are recorded, as in torch.
    """
    return _checked("relu_", _relu_, x)


@op("rawkern::relu", save=("out",), elementwise=True, strided=True)
def _relu(x: Tensor) -> Tensor:
    return _run(_RELU, x)


@op("rawkern::relu_", mutates_args=("x",), elementwise=True, strided=True)
def _relu_(x: Tensor) -> None:
    if x.dtype in C_NAMES and x.is_contiguous() and not x.is_neg():
        _RELU.run([x], {"T": x.dtype}, out=[x], launch=not in_fake_op())
    else:
        x.copy_(_run(_RELU, x))


@op("rawkern::relu_grad", save=("y",), elementwise=True, strided=True)
def _relu_grad(grad_out: Tensor, y: Tensor) -> Tensor:
    """Return grad_out where the operator let x through, an operator of its own, so that the backward has a backward."""
    return _run(_RELU_GRAD, grad_out, y)


def _relu_backward(ctx: Any, grad_out: Tensor) -> Tensor:
    return _RELU_GRAD.fast.call(grad_out, *ctx.saved_tensors)


_relu.backward(_relu_backward)
_relu_.backward(_relu_backward)


@_relu_grad.backward
def _(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
    return _RELU_GRAD.fast.call(grad, *ctx.saved_tensors), None


# mul ----------------------------------------------------------------------------------------------------------------


def mul(a: Tensor, b: Tensor) -> Tensor:
    """Return the elementwise product a * b; differentiable any number of times.

    Shapes are broadcast and dtypes promoted as torch does. Half types are computed in float32 and rounded once.

    Parameters
    ----------
    a, b : torch.Tensor
        On one device, of any shapes that broadcast and any strides. At least one of them is float16, bfloat16,
        float32 or float64.

    Returns
    -------
    torch.Tensor
        Of the broadcast shape and the promoted dtype.

    Raises
    ------
    TypeError
        For another promoted dtype, or an argument that is not a tensor (`rawkern.scale` takes a number).
    ValueError
        For tensors on two devices.
    RuntimeError
        For shapes that do not broadcast.
    """
    return _any_mul(a, b) if is_dynamo_compiling() else _MUL.fast.call(a, b)


def _any_mul(a: Tensor, b: Tensor) -> Tensor:
    if not (isinstance(a, Tensor) and isinstance(b, Tensor)):
        not_a_tensor("mul", a, b)
    if a.get_device() != b.get_device():
        raise ValueError(f"mul: a is on {a.device}, b is on {b.device}; pass tensors on one device")
    if a.dtype is not b.dtype:
        dtype = torch.result_type(a, b)
        a, b = a.to(dtype), b.to(dtype)
    return _mul(a, b)


@op("rawkern::mul", save={"a": ("b",), "b": ("a",)}, elementwise=True, strided=True)
def _mul(a: Tensor, b: Tensor) -> Tensor:
    if a.dim() != b.dim() or a.shape != b.shape:
        a, b = torch.broadcast_tensors(a, b)
    return _run(_MUL, a, b)


@_mul.backward
def _(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, Tensor | None]:
    a, b = ctx.saved_tensors
    shape_a, shape_b = ctx.shapes
    if a is not None and b is not None and shape_a == shape_b and not (torch.is_grad_enabled() or composing()):
        return _MUL_GRAD.fast.run(grad_out, a, b)
    grad_a = None if b is None else _summed(_mul(grad_out, b), shape_a)
    grad_b = None if a is None else _summed(_mul(grad_out, a), shape_b)
    return grad_a, grad_b


@_mul.jvp
def _(ctx: Any, tangent_a: Tensor | None, tangent_b: Tensor | None) -> Tensor:
    a, b = ctx.saved_tensors
    parts = [_mul(t, other) for t, other in ((tangent_a, b), (tangent_b, a)) if t is not None]
    return parts[0] + parts[1] if len(parts) == 2 else parts[0]


def _summed(grad: Tensor, shape: torch.Size) -> Tensor:
    """Sum a gradient over the dimensions that broadcasting repeated."""
    return grad if grad.shape == shape else grad.sum_to_size(shape)


for _which, _operator, _slow_path in (
    (_SQUARE, _square, overridable(functools.partial(_checked, "square", _square), square)),
    (_SQUARE_GRAD, _square_grad, _square_grad), (_RELU_GRAD, _relu_grad, _relu_grad),
    (_RELU, _relu, overridable(functools.partial(_checked, "relu", _relu), relu)),
    (_SCALE, _scale, overridable(_any_scale, scale)), (_MUL, _mul, overridable(_any_mul, mul)),
):  # fmt: skip
    _which.fast.for_users(_slow_path, _operator.operator.recorded)
