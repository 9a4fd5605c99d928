"""`rawkern.reduction`: a differentiable reduction from expressions for mapping, joining and finishing."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch

from rawkern.base.api_boundary import api_boundary
from rawkern.base.operator_state import in_fake_op
from rawkern.base.overrides import call_stand_in, is_stand_in
from rawkern.base.shared import Shared
from rawkern.formulas.declared import (
    check_assigned,
    check_texts,
    computes_floats,
    declared,
    qualified_name,
    read_parameters,
    typed,
)
from rawkern.formulas.promotion import Argument, Result, as_outs, check_out, device_of, overlap, prepare
from rawkern.formulas.reduce_gradient import ReduceGradient
from rawkern.formulas.reduce_loop import ReduceLoop
from rawkern.formulas.updated import updated
from rawkern.operators import op
from rawkern.operators.batching import batched
from rawkern.operators.declaration import output_names


@api_boundary
def reduction(
    in_params: str,
    out_params: str,
    map_expr: str,
    reduce_expr: str,
    post_map_expr: str,
    identity: str,
    name: str,
    *,
    reduce_type: str | None = None,
    backward: str | None = None,
    preamble: str = "",
) -> Reduction:
    """Make a differentiable torch operator that reduces along axes, in CUDA C.

    The conventions are those of `cupy.ReductionKernel`, plus a backward. The result is the same in every run: there
    are no atomics. Half types are accumulated in float.

    Parameters
    ----------
    in_params, out_params : str
        As for `rawkern.elementwise`, without ``raw``.
    map_expr : str
        Expression for one element: ``"x * x"``; ``_J`` is its index among the reduced ones, in row-major order.
    reduce_expr : str
        Expression that combines ``a`` and ``b``: ``"a + b"``. It must be associative and commutative.
    post_map_expr : str
        Statements that assign every output from ``a``: ``"y = sqrt(a)"``; ``count`` is the number of elements that
        became one (long long). As for `rawkern.elementwise`, an output that they read starts with what the tensor
        given for it holds (``"y += a"``), else at 0.
    identity : str
        The neutral element of ``reduce_expr``: ``"0"``.
    name : str
        Of the kernel, and in error messages; may have a namespace: ``"mylib::norm"``.
    reduce_type : str, optional
        Type of ``a`` and ``b``: a letter, a dtype, or a struct of the preamble; by default the first output's.
    backward : str, optional
        Statements for one element that assign ``grad_X`` for each floating input X, from the inputs, the outputs,
        ``grad_Y`` for each floating output Y, ``count`` and ``_J``: ``"grad_x = grad_y * x / y"``. By default they are
        derived, for sums, maxima and minima (see ``backward_source``).
    preamble : str
        CUDA C put before the kernel.

    Returns
    -------
    Reduction
        Call it with tensors and ``axis=``, ``keepdims=`` (or torch's ``dim=``, ``keepdim=``).

    Raises
    ------
    ValueError
        For parameters or expressions that don't make an operator.

    Examples
    --------
    >>> norm = rawkern.reduction("T x", "T y", "x * x", "a + b", "y = sqrt(a)", "0", "norm")
    >>> norm(torch.randn(100, 1000, requires_grad=True), axis=1).sum().backward()
    """
    if isinstance(identity, (int, float)) and math.isfinite(identity):
        identity = str(identity)
    check_texts(
        "reduction", in_params=in_params, out_params=out_params, map_expr=map_expr, reduce_expr=reduce_expr,
        post_map_expr=post_map_expr, identity=identity, name=name, reduce_type=reduce_type, backward=backward,
        preamble=preamble,
    )  # fmt: skip
    for what, text in (("map_expr", map_expr), ("reduce_expr", reduce_expr), ("identity", identity)):
        if not text.strip(" ;\n"):
            raise ValueError(f"{name}: {what} is {text!r}; pass an expression in CUDA C")
    fixed, namespace, short = qualified_name("reduction", name, "norm")
    inputs, outputs = read_parameters("a reduction", name, in_params, out_params)
    for p in (*inputs, *outputs):
        if p.raw:
            raise ValueError(f"{name}: {p.name} is raw; a reduction takes whole arrays, write a RawKernel instead")
        if p.name in ("a", "b", "count", "_J", "axis", "keepdims"):
            raise ValueError(f"{name}: {p.name} means something else in a reduction; give the parameter another name")
    check_assigned(name, inputs, outputs, "post_map_expr", post_map_expr, backward)
    parts = (map_expr, reduce_expr, post_map_expr, identity, reduce_type, preamble)
    return make_reduction(fixed, namespace, short, backward, inputs, outputs, *parts)


class Reduction(Shared):
    """A reduction, made by `rawkern.reduction`: call it as a function.

    Attributes
    ----------
    name : str
    """

    name: str
    key: tuple[Any, ...]
    loop: ReduceLoop
    operator: Any
    _gradient: ReduceGradient
    _floats: set[str]
    _updated: tuple[str, ...]  # the outputs that start with what the tensors given for them hold
    _into: Any  # the operator that changes those

    def __init__(
        self, qualified: str, fixed: bool, namespace: str, name: str, backward: str | None, *parts: Any
    ) -> None:
        self.key = (fixed, namespace, name, backward, *parts)
        self.loop = ReduceLoop(name, *parts)
        _ = self.loop.letters  # torch.compile cannot run a cached_property's first time in Python 3.11
        self.name = name
        self._floats = set()
        if computes_floats(self.loop.map, self.loop.post):
            self._floats = {p.type for p in self.loop.outputs if p.generic}
        self._gradient = ReduceGradient(self.loop, namespace, backward, make_reduction)
        self.operator = self._define(qualified)
        self._updated = updated(self.loop.post, [p.name for p in self.loop.outputs])
        self._into = self._define_into(f"{qualified}_into") if self._updated else None

    @property
    def __name__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[Any, ...]:
        return make_reduction, self.key

    def __repr__(self) -> str:
        return f"<rawkern.reduction {self.loop.spelled}>"

    @property
    def source(self) -> str:
        """The CUDA C of the kernels."""
        return self.loop.source

    @property
    def backward_source(self) -> str:
        """The statements of the backward for one element: as given, or derived for a sum, maximum or minimum.

        Raises
        ------
        NotDifferentiable
            It can't be derived; the message says why.
        """
        return self._gradient.source

    def __call__(
        self,
        *args: Argument,
        axis: int | Sequence[int] | None = None,
        keepdims: bool = False,
        out: torch.Tensor | Sequence[torch.Tensor] | None = None,
        dim: int | Sequence[int] | None = None,
        keepdim: bool = False,
    ) -> Result:
        """Reduce.

        Parameters
        ----------
        *args : torch.Tensor or number
            One for each input, of shapes that broadcast, on one device; tensors for the outputs may follow, as with
            CuPy.
        axis, dim : int or tuple of int, optional
            What to reduce along, by NumPy's or torch's name; everything by default. No axis is named twice.
        keepdims, keepdim : bool
            Whether the reduced axes stay, with size 1.
        out : torch.Tensor or tuple of them, optional
            Where the outputs go, of their shapes and dtypes; not for tensors that require grad.

        Returns
        -------
        torch.Tensor or tuple of torch.Tensor
            One for each output. A reduction of no elements gives what the identity gives.

        Raises
        ------
        TypeError
            For a wrong number of arguments, one that is not a tensor, a dtype other than declared, or both names of an
            option.
        ValueError
            For tensors on several devices, or an ``out`` that doesn't fit.
        IndexError
            For an axis that is not there.
        """
        if dim is not None:
            if axis is not None:
                raise TypeError(f"{self.name}: axis is {axis} and dim is {dim}, which are synonyms; pass only one")
            axis = dim
        keepdims = keepdims or keepdim
        if any(map(is_stand_in, args)):
            return call_stand_in(self, *args, axis=axis, keepdims=keepdims, **({} if out is None else {"out": out}))
        loop, many = self.loop, len(self.loop.inputs)
        if out is None and len(args) == many + len(loop.outputs):
            args, out = args[:many], args[many:]  # type: ignore[assignment]
        if len(args) != many:
            names = ", ".join(p.name for p in loop.inputs)
            raise TypeError(f"{self.name}() takes {many} arguments ({names}), got {len(args)}")
        tensors, dtypes = prepare(self.name, loop.inputs, loop.letters, args, self._floats)
        axes = _axes(self.name, axis, max(t.dim() for t in tensors))
        if out is None:
            return self.operator(*tensors, axes, bool(keepdims))
        outs = as_outs(self.name, "out", out, tensors, len(loop.outputs))
        shape = loop.shape([t.shape for t in tensors], axes, bool(keepdims))
        for t, p in zip(outs, loop.outputs, strict=True):
            check_out(self.name, "out", t, shape, p.dtype or dtypes[p.type], device_of(tensors))
        if self._into is not None:
            self._into(*tensors, *outs, axes, bool(keepdims))
        else:
            found = self.operator(*tensors, axes, bool(keepdims))
            for t, value in zip(outs, (found,) if isinstance(found, torch.Tensor) else found, strict=True):
                t.copy_(value)
        return outs[0] if len(outs) == 1 else outs

    # --- the operator -------------------------------------------------------------------------------------------------

    def _define(self, qualified: str) -> Any:
        """Define the torch operator: all inputs are tensors of the parameters' dtypes, axes are sorted and >= 0."""
        loop, keep = self.loop, "a" in self._gradient.reads
        if keep and loop.struct:
            raise ValueError(
                f"{self.name}: backward reads a, which is the struct {loop.accumulator} and is not kept; "
                "compute what it needs from the inputs and outputs"
            )

        def forward(*args: Any) -> Any:
            *tensors, axis, keepdims = args
            launch = not in_fake_op()
            outs = loop.run(tensors, loop.dtypes(tensors), tuple(axis), keepdims, accumulated=keep, launch=launch)
            return outs[0] if len(outs) == 1 else outs

        typed(forward, self.name, loop.inputs, len(loop.outputs) + keep, axis=Sequence[int], keepdims=bool)
        outputs = output_names(len(loop.outputs), [*(p.name for p in loop.inputs), "axis", "keepdims"])
        names = dict(zip((p.name for p in loop.outputs), outputs, strict=True))
        save = [names.get(name, "accumulated" if name == "a" else name) for name in self._gradient.saved]
        operator = op(qualified, save=tuple(save), hidden=("accumulated",) if keep else ())(forward)

        @operator.vmap
        def _(info: Any, dims: Sequence[Any], *args: Any) -> Any:
            flags = [k < len(loop.inputs) for k in range(len(args))]
            *tensors, axis, keepdims = batched(True, flags, info.batch_size, dims, args)
            found = operator.overload(*tensors, [d + 1 for d in axis], keepdims)
            return found, 0 if isinstance(found, torch.Tensor) else (0,) * len(found)

        operator.operator.reverse.recomputes = True
        operator.backward(self._gradient.run)
        return operator

    def _define_into(self, qualified: str) -> Any:
        """Define the torch operator that changes tensors which are given for the outputs, after the inputs."""
        loop = self.loop

        def write(*args: Any) -> None:
            *given, axis, keepdims = args
            if not in_fake_op():
                tensors, outs = given[: len(loop.inputs)], given[len(loop.inputs) :]
                apart = [t.clone() if any(overlap(t, o, True) for o in outs) else t for t in tensors]
                loop.run(apart, loop.dtypes(given), tuple(axis), keepdims, out=outs, updated=self._updated)

        typed(write, self.name, (*loop.inputs, *loop.outputs), 0, axis=Sequence[int], keepdims=bool)
        operator = op(qualified, mutates_args=[p.name for p in loop.outputs], strided=True)(write)
        operator.vmap(operator.operator.one_by_one)
        return operator


def make_reduction(*key: Any) -> Reduction:
    """The operator of a declaration, as `declared` takes it."""
    return declared(Reduction, *key)


def _ints(name: str, axis: Any) -> list[int]:
    """Axes that are not one int of Python's."""
    try:
        if not isinstance(axis, Iterable) or isinstance(axis, (torch.Tensor, np.ndarray, str, bytes)):
            axis = (axis,)
        return [operator.index(d) for d in axis]
    except TypeError:
        raise TypeError(f"{name}: axis is {axis!r}; pass an int, a tuple of ints, or None for all") from None


def _axes(name: str, axis: int | Sequence[int] | None, dims: int) -> list[int]:
    """Return the axes in order, none negative."""
    if axis is None:
        return list(range(dims))
    found: list[int] = []
    for d in (axis,) if isinstance(axis, int) else _ints(name, axis):
        if not -max(dims, 1) <= d < max(dims, 1):
            raise IndexError(f"{name}: there is no axis {d}; the arguments have {dims} dimensions")
        d %= max(dims, 1)
        if d in found:
            raise ValueError(f"{name}: axis {d} is named twice")
        found.append(d)
    return sorted(found) if dims else []
