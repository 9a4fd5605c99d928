"""Activations and other elementwise functions."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

from rawkern.base.overrides import overridable
from rawkern.formulas.elementwise import Elementwise, elementwise
from rawkern.library.instances import C_NAMES, floating

_HALVES = (torch.float16, torch.bfloat16)


class _Pair:
    """One expression as two operators: the one for half types uses faster functions (`fast.cuh`)."""

    def __init__(self, inputs: str, operation: str, backward: str, name: str, half: str | None = None) -> None:
        self.full = elementwise(inputs, "T y", operation, f"rawkern::{name}", backward=backward)
        self.half = elementwise(
            inputs,
            "T y",
            half or operation,
            f"rawkern::{name}_half",
            backward=backward,
            preamble='#include "fast.cuh"',
            options=("-prec-div=false",),
        )
        self._of_dtype = dict.fromkeys(C_NAMES, self.full) | dict.fromkeys(_HALVES, self.half)
        #: Native calls of the first; the public function says with `for_users` what makes all others.
        self.fast = self.full.loop.fast

    def for_users(self, public: Any) -> None:
        """Say what makes the calls of users that are not native."""
        self.fast.for_users(public, self.full.operator.operator.recorded)

    def of(self, op: str, first: Any, *others: Any) -> Elementwise:
        """Return the operator for these arguments of a public function; TypeError for another dtype of the first."""
        found = self._of_dtype.get(first.dtype) if isinstance(first, torch.Tensor) else None
        if found is None:
            found = self._of_dtype[floating(op, "the argument", first).dtype]
        for a in others:
            if not (isinstance(a, torch.Tensor) and a.dtype in _HALVES):
                return self.full
        return found


def _call(op: str, pair: _Pair, *tensors: Any) -> Any:
    """Call an operator of a pair, for any arguments; for plain tensors of the usual dtypes `fast` has done so."""
    found = pair.of(op, *tensors)
    if is_dynamo_compiling():
        return found(*tensors)
    return found.guarded(*tensors) if found is pair.full else found.loop.fast.call(*tensors)


_CDF = "T(0.5) * (T(1) + erf({0} * T(0.7071067811865476)))"
_PDF = "T(0.3989422804014327) * exp(T(-0.5) * {0} * {0})"
_INNER = "T(0.7978845608028654) * {0} * (T(1) + T(0.044715) * {0} * {0})"

# The statements of an activation f of `gate`: f and its derivative df.
_SILU = "const T s = T(1) / (T(1) + exp(-gate)); const T f = gate * s, df = s * (T(1) + gate * (T(1) - s));"
_GELU = {
    "none": f"const T below = {_CDF.format('gate')}; const T f = gate * below; "
    f"const T df = below + gate * {_PDF.format('gate')};",
    "tanh": f"const T t = tanh({_INNER.format('gate')}); const T half = T(0.5) * (T(1) + t); const T f = gate * half, "
    "df = half + T(0.5) * gate * (T(1) - t * t) * T(0.7978845608028654) * (T(1) + T(0.134145) * gate * gate);",
}


def _activation(statements: str, name: str, half: str | None = None) -> _Pair:
    """Make ``y = f(gate)``; `half` is a function of fast.cuh for it."""
    half = half and f"y = {half}(gate)"
    return _Pair("T gate", f"{statements} y = f", f"{statements} grad_gate = grad_y * df", name, half)


def _gated(statements: str, name: str, half: str | None = None) -> _Pair:
    """Make ``y = f(gate) * up``."""
    backward = f"{statements} grad_gate = grad_y * up * df; grad_up = grad_y * f"
    half = half and f"y = {half}(gate) * up"
    return _Pair("T gate, T up", f"{statements} y = f * up", backward, name, half)


_silu = _activation(_SILU, "silu")
_swiglu = _gated(_SILU, "swiglu")
_gelu = {
    "none": _activation(_GELU["none"], "gelu", "fast_gelu"),
    "tanh": _activation(_GELU["tanh"], "gelu_tanh", "fast_gelu_tanh"),
}
_geglu = {
    "none": _gated(_GELU["none"], "geglu", "fast_gelu"),
    "tanh": _gated(_GELU["tanh"], "geglu_tanh", "fast_gelu_tanh"),
}
_add_sin_cos = _Pair(
    "T a, T b",
    "y = (a + b) + sin(a) * cos(b)",
    "grad_a = grad_y * (1 + cos(a) * cos(b)); grad_b = grad_y * (1 - sin(a) * sin(b))",
    "add_sin_cos",
)


def silu(input: torch.Tensor, inplace: bool = False) -> torch.Tensor:
    """Return ``input / (1 + exp(-input))``; as `torch.nn.functional.silu`, differentiable any number of times.

    Parameters
    ----------
    input : torch.Tensor
        float16, bfloat16 (both computed in float32), float32 or float64, of any shape and strides.
    inplace : bool
        Write the result over ``input``, and return it.

    Returns
    -------
    torch.Tensor
        Of the same shape, dtype and device; ``input`` itself if in place.

    Raises
    ------
    TypeError
        For another dtype.
    """
    if inplace or is_dynamo_compiling():
        return _any_silu(input, inplace)
    return _silu.fast.call(input)


def gelu(input: torch.Tensor, approximate: str = "none") -> torch.Tensor:
    """Return ``input * P(N < input)`` for a normal N; as `torch.nn.functional.gelu`, differentiable.

    Parameters
    ----------
    input : torch.Tensor
        As for `silu`.
    approximate : {"none", "tanh"}
        "tanh" for ``input / 2 * (1 + tanh(sqrt(2 / pi) * (input + 0.044715 * input**3)))``.

    Returns
    -------
    torch.Tensor
        Of the same shape, dtype and device.

    Raises
    ------
    TypeError, ValueError
        For another dtype; for another approximation.
    """
    pair = _gelu.get(approximate)
    if pair is None or is_dynamo_compiling():
        return _any_gelu(input, approximate)
    return pair.fast.call(input)


def swiglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """Return ``silu(gate) * up``; differentiable any number of times.

    Parameters
    ----------
    gate, up : torch.Tensor
        float16, bfloat16 (both computed in float32), float32 or float64, of shapes that broadcast.

    Returns
    -------
    torch.Tensor
        Of the broadcast shape and the promoted dtype.

    Raises
    ------
    TypeError
        For another dtype.
    """
    return _any_swiglu(gate, up) if is_dynamo_compiling() else _swiglu.fast.call(gate, up)


def geglu(gate: torch.Tensor, up: torch.Tensor, approximate: str = "none") -> torch.Tensor:
    """Return ``gelu(gate, approximate) * up``; differentiable any number of times.

    Parameters
    ----------
    gate, up : torch.Tensor
        float16, bfloat16 (both computed in float32), float32 or float64, of shapes that broadcast.
    approximate : {"none", "tanh"}
        As for `gelu`.

    Returns
    -------
    torch.Tensor
        Of the broadcast shape and the promoted dtype.

    Raises
    ------
    TypeError
        For another dtype.
    ValueError
        For another approximation.
    """
    pair = _geglu.get(approximate)
    if pair is None or is_dynamo_compiling():
        return _any_geglu(gate, up, approximate)
    return pair.fast.call(gate, up)


def add_sin_cos(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return ``(a + b) + sin(a) * cos(b)``, one kernel instead of torch's five; differentiable any number of times.

    Parameters
    ----------
    a, b : torch.Tensor
        float16, bfloat16 (both computed in float32), float32 or float64, of shapes that broadcast.

    Returns
    -------
    torch.Tensor
        Of the broadcast shape and the promoted dtype.

    Raises
    ------
    TypeError
        For another dtype.
    """
    return _any_add_sin_cos(a, b) if is_dynamo_compiling() else _add_sin_cos.fast.call(a, b)


# Any calls of these, also with stand-ins ------------------------------------------------------------------------------


def _anyhow_silu(input: Any, inplace: bool = False) -> torch.Tensor:
    return _silu.of("silu", input).in_place(input) if inplace else _call("silu", _silu, input)


def _anyhow_gelu(input: Any, approximate: str) -> torch.Tensor:
    return _call("gelu", _chosen("gelu", _gelu, approximate), input)


def _anyhow_geglu(gate: Any, up: Any, approximate: str) -> torch.Tensor:
    return _call("geglu", _chosen("geglu", _geglu, approximate), gate, up)


def _chosen(name: str, table: dict[str, _Pair], approximate: str) -> _Pair:
    if approximate not in table:
        raise ValueError(f"{name}: approximate is {approximate!r}; it is 'none' or 'tanh'")
    return table[approximate]


_any_silu = overridable(_anyhow_silu, silu)
_any_gelu = overridable(_anyhow_gelu, gelu)
_any_geglu = overridable(_anyhow_geglu, geglu)
_any_swiglu = overridable(partial(_call, "swiglu", _swiglu), swiglu)
_any_add_sin_cos = overridable(partial(_call, "add_sin_cos", _add_sin_cos), add_sin_cos)
_silu.for_users(_any_silu)
_swiglu.for_users(_any_swiglu)
_add_sin_cos.for_users(_any_add_sin_cos)
for _which in ("none", "tanh"):
    _gelu[_which].for_users(lambda gate, which=_which: _any_gelu(gate, which))
    _geglu[_which].for_users(lambda gate, up, which=_which: _any_geglu(gate, up, which))
