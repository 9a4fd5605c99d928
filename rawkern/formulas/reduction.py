"""`rawkern.reduction`: a differentiable reduction from expressions for mapping, joining and finishing."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Sequence
from typing import Any

import torch

from rawkern.base.operator_state import composing, in_fake_op
from rawkern.base.overrides import given_to_stand_in, stands_in
from rawkern.base.shared import Shared
from rawkern.errors import NotDifferentiable
from rawkern.formulas.declared import check_assigned, declared, qualified_name, read_parameters, typed
from rawkern.formulas.derivative import derive, names_in
from rawkern.formulas.elementwise import Elementwise, make_elementwise
from rawkern.formulas.gradient import with_letters, without_grads
from rawkern.formulas.parameters import Parameter, differentiable, floating
from rawkern.formulas.promotion import as_outs, check_out, joint_shape, prepare
from rawkern.formulas.reduce_loop import ReduceLoop
from rawkern.operators import op
from rawkern.operators.batching import batched
from rawkern.operators.declaration import output_names


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

    The conventions are those of `cupy.ReductionKernel`, plus a backward. The result does not differ from run to run:
    there are no atomics. Half types are accumulated in float.

    Parameters
    ----------
    in_params, out_params : str
        As for `rawkern.elementwise`, without ``raw``.
    map_expr : str
        Expression for one element: ``"x * x"``; ``_J`` is its index among the reduced ones, in row-major order.
    reduce_expr : str
        Expression that joins ``a`` and ``b``: ``"a + b"``. It has to be associative and commutative.
    post_map_expr : str
        Statements that assign every output from ``a``: ``"y = sqrt(a)"``; ``count`` is the number of elements that
        became one (long long).
    identity : str
        Expression to start from, which changes nothing when joined: ``"0"``.
    name : str
        Of the kernel, and in error messages; may have a namespace: ``"mylib::norm"``.
    reduce_type : str, optional
        Type of ``a`` and ``b``: a letter, a dtype, or a struct of the preamble; by default the first output's.
    backward : str, optional
        Statements for one element that assign ``grad_X`` for each floating input X, from the inputs, the outputs,
        ``grad_Y`` for each floating output Y, ``count`` and ``_J``: ``"grad_x = grad_y * x / y"``. By default they are
        derived, for sums (see ``backward_source``).
    preamble : str
        CUDA C put before the kernel.

    Returns
    -------
    Reduction
        Call it with tensors and ``axis=``, ``keepdims=``.

    Raises
    ------
    ValueError
        For parameters or expressions that don't make an operator.

    Examples
    --------
    >>> norm = rawkern.reduction("T x", "T y", "x * x", "a + b", "y = sqrt(a)", "0", "norm")
    >>> norm(torch.randn(100, 1000, requires_grad=True), axis=1).sum().backward()
    """
    fixed, namespace, short = qualified_name("reduction", name, "norm")
    inputs, outputs = read_parameters("a reduction", name, in_params, out_params)
    for p in (*inputs, *outputs):
        if p.raw:
            raise ValueError(f"{name}: {p.name} is raw; a reduction takes whole arrays, write a RawKernel instead")
        if p.name in ("a", "b", "count", "_J", "axis", "keepdims"):
            raise ValueError(f"{name}: {p.name} means something else in a reduction; give the parameter another name")
    check_assigned(name, inputs, outputs, "post_map_expr", post_map_expr, backward)
    parts = (map_expr, reduce_expr, post_map_expr, str(identity), reduce_type, preamble)
    return make_reduction(fixed, namespace, short, backward, inputs, outputs, *parts)


# What the statements of a backward know besides: how many elements became one, and the index among them.
_COUNTS = (Parameter("count", "int64"), Parameter("_J", "int64"))


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
    _namespace: str
    _backward: str | None
    _last_steps: dict[tuple[bool, ...], tuple[Elementwise, list[str]]]

    def __init__(
        self, qualified: str, fixed: bool, namespace: str, name: str, backward: str | None, *parts: Any
    ) -> None:
        self.key = (fixed, namespace, name, backward, *parts)
        self.loop = ReduceLoop(name, *parts)
        _ = self.loop.letters  # torch.compile cannot run a cached_property's first time in Python 3.11
        self.name = name
        self._namespace = namespace
        self._backward = backward
        self._last_steps = {}
        self.operator = self._define(qualified)

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

    @functools.cached_property
    def backward_source(self) -> str:
        """The statements of the backward for one element: as given, or as derived from the expressions of a sum.

        Raises
        ------
        NotDifferentiable
            This is no sum, or an expression can't be differentiated; the message says what it is.
        """
        if self._backward is not None:
            return self._backward
        real = self.loop.accumulator
        post, mapped = self._derived
        return f"{real} grad_a = 0;\n{{ {post} }}\nconst {real} grad_mapped_ = grad_a;\n{{ {mapped} }}"

    @functools.cached_property
    def _derived(self) -> tuple[str, str]:
        """The statements that assign ``grad_a`` from the outputs' gradients, and the inputs' from ``grad_mapped_``."""
        loop = self.loop
        if loop.struct:
            raise NotDifferentiable(
                f"{self.name}: can't derive the backward of a struct, {loop.accumulator}; pass backward="
            )
        if re.sub(r"[\s()]", "", loop.reduce) not in ("a+b", "b+a"):
            raise NotDifferentiable(
                f"{self.name}: can derive the backward of a sum (a + b) only, not of '{loop.reduce}'; pass backward="
            )
        real = loop.accumulator
        outputs = {p.name: p.compute for p in loop.outputs}
        known = {p.name for p in loop.outputs if floating(p)}
        post = derive(loop.post, {"a": real, "count": "long long"}, outputs, known, ["a"], self.name)
        inputs = {p.name: p.compute for p in loop.inputs} | {"_J": "long long"}
        wanted = [p.name for p in loop.inputs if differentiable(p)]
        return post, derive(f"mapped_ = {loop.map}", inputs, {"mapped_": real}, {"mapped_"}, wanted, self.name)

    def __call__(
        self, *args: torch.Tensor, axis: int | Sequence[int] | None = None, keepdims: bool = False, out: Any = None
    ) -> Any:
        """Reduce.

        Parameters
        ----------
        *args : torch.Tensor or number
            One for each input, of shapes that broadcast, on one device.
        axis : int or tuple of int, optional
            What to reduce along; everything by default. No axis is named twice.
        keepdims : bool
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
            For a wrong number of arguments, one that is no tensor, or a dtype other than declared.
        ValueError
            For tensors on several devices, or an ``out`` that doesn't fit.
        IndexError
            For an axis that is not there.
        """
        if any(map(stands_in, args)):
            return given_to_stand_in(self, *args, axis=axis, keepdims=keepdims, **({} if out is None else {"out": out}))
        loop = self.loop
        if len(args) != len(loop.inputs):
            names = ", ".join(p.name for p in loop.inputs)
            raise TypeError(f"{self.name}() takes {len(loop.inputs)} arguments ({names}), got {len(args)}")
        tensors, _ = prepare(self.name, loop.inputs, loop.letters, args)
        result = self.operator(*tensors, _axes(self.name, axis, max(t.dim() for t in tensors)), bool(keepdims))
        if out is None:
            return result
        found = (result,) if isinstance(result, torch.Tensor) else result
        outs = as_outs(self.name, "out", out, tensors, len(loop.outputs))
        for t, value in zip(outs, found, strict=True):
            check_out(self.name, "out", t, value.shape, value.dtype, value.device)
            t.copy_(value)
        return outs[0] if len(outs) == 1 else outs

    # --- the operator -------------------------------------------------------------------------------------------------

    def _define(self, qualified: str) -> Any:
        """Define the torch operator: all inputs are tensors of the parameters' dtypes, axes are sorted and >= 0."""
        loop, keep = self.loop, "a" in self._reads
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
        save = [names.get(name, "accumulated" if name == "a" else name) for name in self._saved]
        operator = op(qualified, save=tuple(save), hidden=("accumulated",) if keep else ())(forward)

        @operator.vmap
        def _(info: Any, dims: Sequence[Any], *args: Any) -> Any:
            flags = [k < len(loop.inputs) for k in range(len(args))]
            *tensors, axis, keepdims = batched(True, flags, info.batch_size, dims, args)
            found = operator.overload(*tensors, [d + 1 for d in axis], keepdims)
            return found, 0 if isinstance(found, torch.Tensor) else (0,) * len(found)

        operator.backward(self._run_backward)
        return operator

    @functools.cached_property
    def _reads(self) -> tuple[str, ...]:
        """What the backward reads of inputs, outputs and ``a``; nothing where it can't be derived."""
        try:
            names = names_in(self.backward_source)
        except NotDifferentiable:
            return ()
        known = [*(p.name for p in self.loop.inputs), *(p.name for p in self.loop.outputs), "a"]
        return tuple(name for name in known if name in names)

    @functools.cached_property
    def _saved(self) -> tuple[str, ...]:
        """What is saved: what the backward reads or tells it a dtype, all inputs if it may compute the accumulator."""
        inputs = [p.name for p in self.loop.inputs] if "a" in self._reads else []
        told = {p.type for p in self.loop.outputs if floating(p)}
        letters = (p.name for p in with_letters(self.loop.inputs, self._reads, told))
        return tuple(dict.fromkeys([*inputs, *letters, *self._reads]))

    def _total(self, dtype: torch.dtype | None) -> Reduction:
        """The accumulator, of this dtype, as an operator of its own."""
        loop = self.loop
        output = Parameter("total_", str(dtype).removeprefix("torch."))
        parts = (loop.inputs, (output,), loop.map, loop.reduce, "total_ = a", loop.identity, loop.reduce_type)
        return make_reduction(False, self._namespace, f"{self.name}_total", None, *parts, loop.preamble)

    @functools.cached_property
    def _types(self) -> dict[str, str]:
        """Of inputs, outputs and ``a``, which has its own letter: float where outputs are half types."""
        types = {p.name: p.type for p in (*self.loop.inputs, *self.loop.outputs)}
        return types | {"a": next(x for x in "ABCDEFGHIJKLMNOPQRSTUVWXYZ" if x not in self.loop.letters)}

    @functools.cached_property
    def _first_step(self) -> tuple[Elementwise, list[str]] | None:
        """Makes the accumulator's gradient: costly, but there are few. None where the backward has one step.

        That is where the accumulator is only scaled, and where a second step alone could not tell a dtype.
        """
        if self._backward is not None or "a" not in self._reads:
            return None
        post, mapped = self._derived
        total = Parameter("grad_a", self._types["a"])
        if self._untold(self.loop.output_grads, (), post) or self._untold((), self.loop.input_grads, mapped):
            return None
        return self._step("accumulator", self.loop.output_grads, (total,), (True,), post)

    def _last_step(self, wanted: tuple[bool, ...]) -> tuple[Elementwise, list[str]]:
        """Makes the gradients of the inputs that are wanted."""
        found = self._last_steps.get(wanted)
        if found is None:
            given, text = self.loop.output_grads, self.backward_source
            if self._first_step is not None:
                given, text = (Parameter("grad_mapped_", self._types["a"]),), self._derived[1]
            found = self._last_steps[wanted] = self._step("backward", given, self.loop.input_grads, wanted, text)
        return found

    def _read_by(self, text: str) -> list[Parameter]:
        read = names_in(text)
        return [Parameter(x, self._types[x]) for x in self._reads if x in read]

    def _untold(self, given: Sequence[Parameter], outputs: Sequence[Parameter], text: str) -> list[str]:
        """The letters in a step's outputs or statements that none of its inputs has."""
        needed = {p.type for p in outputs} | names_in(text)
        told = {p.type for p in (*given, *self._read_by(text))}
        return [x for x in self.loop.letters if x in needed and x not in told]

    def _step(
        self,
        name: str,
        given: tuple[Parameter, ...],
        outputs: tuple[Parameter, ...],
        wanted: tuple[bool, ...],
        text: str,
    ) -> tuple[Elementwise, list[str]]:
        """A step of the backward as an elementwise operator, and the names of its inputs."""
        untold = self._untold(given, outputs, text)
        letters = [next(p for p in self.loop.inputs if p.type == letter) for letter in untold]
        inputs = (*given, *self._read_by(text), *letters, *(p for p in _COUNTS if p.name in names_in(text)))
        names = [p.name for p in inputs]
        inputs, outputs, text = without_grads(inputs, outputs, wanted, text)
        preamble = self.loop.preamble
        return make_elementwise(
            False, self._namespace, f"{self.name}_{name}", inputs, outputs, text, None, preamble
        ), names

    def _run_backward(self, ctx: Any, *grads: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        loop = self.loop
        shapes = ctx.shapes[: len(loop.inputs)]
        full = joint_shape(shapes)

        def reduced(t: torch.Tensor) -> torch.Tensor:
            for d in () if ctx.keepdims else ctx.axis:
                t = t.unsqueeze(d)
            return t

        some = next(g for g, p in zip(grads, loop.outputs, strict=True) if g is not None and floating(p))
        few = {}  # what there is one of for all that became one
        for g, p in zip(grads, loop.outputs, strict=True):
            if floating(p):
                few[f"grad_{p.name}"] = some.new_zeros(()) if g is None else reduced(g)
        inputs = {p.name for p in loop.inputs}
        saved = dict(zip(self._saved, ctx.saved_tensors, strict=True))
        if composing() and "a" in self._reads:  # the accumulator is a function of the inputs: differentiate that
            arrays = [saved[p.name] for p in loop.inputs]
            dtype = loop.accumulator_dtype(loop.dtypes(arrays))
            saved["a"] = self._total(dtype).operator(*arrays, ctx.axis, ctx.keepdims)
        few |= {name: reduced(t) for name, t in saved.items() if name not in inputs}
        known = {name: t for name, t in saved.items() if name in inputs}
        can = [differentiable(p) for p in loop.inputs]
        wanted = tuple(n for n, d in zip(ctx.needs_input_grad[: len(can)], can, strict=True) if d)
        first, (operator, names) = self._first_step, self._last_step(wanted)
        count = math.prod(full[d] for d in ctx.axis)
        if "count" in (*names, *(first[1] if first else ())):
            few["count"] = torch.full((), 0 if in_fake_op() else count, dtype=torch.int64, device=some.device)
        if "_J" in names:
            index = torch.arange(count, device=some.device)
            known["_J"] = index.reshape([size if d in ctx.axis else 1 for d, size in enumerate(full)])
        if first is not None:
            (few["grad_mapped_"],) = first[0].composed([few[name] for name in first[1]])
        known |= {name: t.expand(full) for name, t in few.items() if name in names}
        found = operator.composed([known[name] for name in names])
        results = iter(found)
        needs = iter(wanted)
        every = [(next(results) if next(needs) else None) if d else None for d in can]
        every = [g if g is None else g.sum_to_size(shape) for g, shape in zip(every, shapes, strict=True)]
        return (*every, None, None)


def make_reduction(*key: Any) -> Reduction:
    """The operator of a declaration, as `declared` takes it."""
    return declared(Reduction, *key)


def _axes(name: str, axis: int | Sequence[int] | None, dims: int) -> list[int]:
    """Return the axes in order, none negative."""
    if axis is None:
        return list(range(dims))
    found = []
    for d in (axis,) if isinstance(axis, int) else axis:
        if not -max(dims, 1) <= d < max(dims, 1):
            raise IndexError(f"{name}: there is no axis {d}; the arguments have {dims} dimensions")
        d %= max(dims, 1)
        if d in found:
            raise ValueError(f"{name}: axis {d} is named twice")
        found.append(d)
    return sorted(found) if dims else []
