"""The gradient of a reduction: elementwise steps, from its expressions or from statements that were given."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from rawkern.base.forking import cached_property
from rawkern.base.operator_state import composing, in_fake_op
from rawkern.errors import NotDifferentiable
from rawkern.formulas.elementwise import Elementwise, make_elementwise
from rawkern.formulas.gradient import reject_complex, with_letters, without_grads
from rawkern.formulas.parameters import Parameter, differentiable, floating
from rawkern.formulas.promotion import joint_shape
from rawkern.formulas.reduce_loop import ReduceLoop
from rawkern.formulas.statements import names_in

# What the statements of a backward know besides: how many elements became one, and the index among them.
_COUNTS = (Parameter("count", "int64"), Parameter("_J", "int64"))


@dataclass(eq=False)
class ReduceGradient:
    """What a reduction's autograd runs.

    Attributes
    ----------
    loop : ReduceLoop
        The reduction's.
    namespace : str
        For the operators of the steps.
    backward : str or None
        The statements that were given.
    make : callable
        Makes another reduction, as `make_reduction`.
    """

    loop: ReduceLoop
    namespace: str
    backward: str | None
    make: Callable[..., Any]
    _last_steps: dict[tuple[bool, ...], tuple[Elementwise, list[str]]] = field(default_factory=dict)

    @cached_property
    def source(self) -> str:
        """The statements of the backward for one element: as given, or as derived of a sum, a maximum or a minimum.

        Raises
        ------
        NotDifferentiable
            It is none of these, or an expression can't be differentiated; the message says what it is.
        """
        if self.backward is not None:
            return self.backward
        real = self.loop.accumulator
        post, mapped = self._derived
        share = "grad_a"
        if self._extreme:
            share = f"({self.loop.map}) == a ? grad_a / (how many such elements there are) : 0"
        return f"{real} grad_a = 0;\n{{ {post} }}\nconst {real} grad_mapped_ = {share};\n{{ {mapped} }}"

    @cached_property
    def _extreme(self) -> bool:
        """Whether this is a maximum or a minimum, of which the backward is derived."""
        text = re.sub(r"[\s()]", "", self.loop.reduce)
        chosen = re.fullmatch(r"([ab])[<>]=?([ab])\?([ab]):([ab])", text)
        either = re.fullmatch(r"f?(max|min)f?(a,b|b,a)", text) or (
            chosen and chosen[1] != chosen[2] and chosen[3] != chosen[4]
        )
        return bool(either) and self.backward is None and not self.loop.struct

    @cached_property
    def _derived(self) -> tuple[str, str]:
        """The statements that assign ``grad_a`` from the outputs' gradients, and the inputs' from ``grad_mapped_``."""
        from rawkern.formulas.derivative import derive  # takes long to import

        loop = self.loop
        if loop.struct:
            raise NotDifferentiable(
                f"{self.loop.name}: can't derive the backward of a struct, {loop.accumulator}; pass backward="
            )
        if not self._extreme and re.sub(r"[\s()]", "", loop.reduce) not in ("a+b", "b+a"):
            raise NotDifferentiable(
                f"{self.loop.name}: can derive the backward of a sum (a + b), a maximum or a minimum, not of "
                f"'{loop.reduce}'; pass backward="
            )
        real = loop.accumulator
        outputs = {p.name: p.compute for p in loop.outputs}
        known = {p.name for p in loop.outputs if floating(p)}
        post = derive(loop.post, {"a": real, "count": "long long"}, outputs, known, ["a"], self.loop.name)
        inputs = {p.name: p.compute for p in loop.inputs} | {"_J": "long long"}
        wanted = [p.name for p in loop.inputs if differentiable(p)]
        return post, derive(f"mapped_ = {loop.map}", inputs, {"mapped_": real}, {"mapped_"}, wanted, self.loop.name)

    @cached_property
    def reads(self) -> tuple[str, ...]:
        """What the backward reads of inputs, outputs and ``a``; nothing where it can't be derived."""
        try:
            names = names_in(self.source)
        except NotDifferentiable:
            return ()
        if self._extreme:  # which is computed again, from all inputs
            names = {*names, *(p.name for p in self.loop.inputs)} - {"a"}
        known = [*(p.name for p in self.loop.inputs), *(p.name for p in self.loop.outputs), "a"]
        return tuple(name for name in known if name in names)

    @cached_property
    def saved(self) -> tuple[str, ...]:
        """What is saved: what the backward reads or tells it a dtype, all inputs if it may compute the accumulator."""
        inputs = [p.name for p in self.loop.inputs] if "a" in self.reads else []
        told = {p.type for p in self.loop.outputs if floating(p)}
        letters = (p.name for p in with_letters(self.loop.inputs, self.reads, told))
        return tuple(dict.fromkeys([*inputs, *letters, *self.reads]))

    def _total(self, dtype: torch.dtype | None) -> Any:
        """The accumulator, of this dtype, as an operator of its own."""
        loop = self.loop
        output = Parameter("total_", str(dtype).removeprefix("torch."))
        parts = (loop.inputs, (output,), loop.map, loop.reduce, "total_ = a", loop.identity, loop.reduce_type)
        return self.make(False, self.namespace, f"{self.loop.name}_total", None, *parts, loop.preamble)

    @cached_property
    def _types(self) -> dict[str, str]:
        """Of inputs, outputs and ``a``, which has its own letter: float where outputs are half types."""
        types = {p.name: p.type for p in (*self.loop.inputs, *self.loop.outputs)}
        return types | {"a": next(x for x in "ABCDEFGHIJKLMNOPQRSTUVWXYZ" if x not in self.loop.letters)}

    @cached_property
    def _first_step(self) -> tuple[Elementwise, list[str]] | None:
        """Makes the accumulator's gradient: costly, but there are few. None where the backward has one step.

        That is where the accumulator is only scaled, and where a second step alone could not tell a dtype.
        """
        if self.backward is not None or "a" not in self.reads:
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
            given, text = self.loop.output_grads, self.source
            if self._first_step is not None:
                given, text = (Parameter("grad_mapped_", self._types["a"]),), self._derived[1]
            found = self._last_steps[wanted] = self._step("backward", given, self.loop.input_grads, wanted, text)
        return found

    def _read_by(self, text: str) -> list[Parameter]:
        read = names_in(text)
        return [Parameter(x, self._types[x]) for x in self.reads if x in read]

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
            False, self.namespace, f"{self.loop.name}_{name}", inputs, outputs, text, None, preamble
        ), names

    @functools.cache  # noqa: B019 - there are as many as declarations, which are kept
    def _extreme_steps(self, dtype: torch.dtype, wanted: tuple[bool, ...]) -> tuple[Any, Any, Any, Any]:
        """What each element is mapped to, the greatest or least of that, the gradient of it, and those of the inputs.

        Mapped elements are compared as they lie in memory: computed again beside other things, they could be rounded
        in another way.
        """
        loop, (post, mapped), name = self.loop, self._derived, str(dtype).removeprefix("torch.")
        counts = [p for p in _COUNTS if p.name in names_in(loop.map)]
        kind = loop.reduce_type or loop.outputs[0].type
        kind = kind if kind in loop.letters else name

        def step(what: str, inputs: Sequence[Parameter], outputs: Any, text: str, asked: tuple[bool, ...]) -> Any:
            told = {p.type for p in inputs}
            more = [next(p for p in loop.inputs if p.type == x) for x in loop.letters if x not in told]
            inputs = (*inputs, *more)
            made = make_elementwise(
                False, self.namespace, f"{loop.name}_{what}", *without_grads(inputs, outputs, asked, text), None,
                loop.preamble,
            )  # fmt: skip
            return made, [p.name for p in inputs]

        elements = step(
            "mapped", (*loop.inputs, *counts), (Parameter("mapped_", name),), f"mapped_ = {loop.map}", (True,)
        )
        parts = ("each_", loop.reduce, "top_ = a", loop.identity, None, loop.preamble)
        best = self.make(
            False, self.namespace, f"{loop.name}_best", None, (Parameter("each_", kind),), (Parameter("top_", kind),),
            *parts,
        )  # fmt: skip
        read = [p for p in (*loop.outputs, *_COUNTS) if p.name in names_in(post)]
        given = (*loop.output_grads, Parameter("a", name), *read)
        first = step("accumulator", given, (Parameter("grad_a", name),), post, (True,))
        given = (Parameter("grad_mapped_", name), *loop.inputs, *(p for p in _COUNTS if p.name in names_in(mapped)))
        return elements, best, first, step("backward", given, loop.input_grads, mapped, wanted)

    def _of_extreme(
        self,
        axis: Sequence[int],
        dtype: torch.dtype,
        wanted: tuple[bool, ...],
        few: dict[str, Any],
        known: dict[str, Any],
    ) -> tuple[torch.Tensor, ...]:
        """The gradients of a maximum or minimum, shared equally by the elements that attain it."""
        (elements, names), best, first, last = self._extreme_steps(dtype, wanted)
        (mapped,) = elements.composed([known[name] for name in names])
        few["a"] = best.operator(mapped, list(axis), True)
        hit = mapped == few["a"]
        ties = hit.sum(list(axis), keepdim=True) if axis else hit
        (grad_a,) = first[0].composed([{**known, **few}[name] for name in first[1]])
        known["grad_mapped_"] = torch.where(hit, grad_a / ties, torch.zeros_like(mapped))
        return last[0].composed([known[name] for name in last[1]])

    def run(self, ctx: Any, *grads: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        loop = self.loop
        if self.backward is None:
            reject_complex(loop, (*grads, *ctx.saved_tensors))
        shapes = ctx.shapes[: len(loop.inputs)]
        full = joint_shape(loop.name, shapes)

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
        saved = dict(zip(self.saved, ctx.saved_tensors, strict=True))
        if composing() and "a" in self.reads:  # the accumulator is a function of the inputs: differentiate that
            arrays = [saved[p.name] for p in loop.inputs]
            dtype = loop.accumulator_dtype(loop.dtypes(arrays))
            saved["a"] = self._total(dtype).operator(*arrays, ctx.axis, ctx.keepdims)
        few |= {name: reduced(t) for name, t in saved.items() if name not in inputs}
        known = {name: t for name, t in saved.items() if name in inputs}
        can = [differentiable(p) for p in loop.inputs]
        wanted = tuple(n for n, d in zip(ctx.needs_input_grad[: len(can)], can, strict=True) if d)
        count, texts = math.prod(full[d] for d in ctx.axis), names_in(self.source)
        if "count" in texts:
            few["count"] = torch.full((), 0 if in_fake_op() else count, dtype=torch.int64, device=some.device)
        if "_J" in texts:
            index = torch.arange(count, device=some.device)
            known["_J"] = index.reshape([size if d in ctx.axis else 1 for d, size in enumerate(full)])
        if self._extreme:
            dtype = loop.accumulator_dtype(loop.dtypes([saved[p.name] for p in loop.inputs]))
            assert dtype is not None  # it is not a struct
            found = self._of_extreme(ctx.axis, dtype, wanted, few, known)
        else:
            first, (operator, names) = self._first_step, self._last_step(wanted)
            if first is not None:
                (few["grad_mapped_"],) = first[0].composed([few[name] for name in first[1]])
            known |= {name: t.expand(full) for name, t in few.items() if name in names}
            found = operator.composed([known[name] for name in names])
        results = iter(found)
        needs = iter(wanted)
        every = [(next(results) if next(needs) else None) if d else None for d in can]
        every = [g if g is None else g.sum_to_size(shape) for g, shape in zip(every, shapes, strict=True)]
        return (*every, None, None)
