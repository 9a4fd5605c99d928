"""The gradient of an elementwise operator: a loop from its backward statements, which is an operator in turn."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from rawkern.base.forking import cached_property
from rawkern.base.operator_state import composing, in_fake_op
from rawkern.errors import NotDifferentiable
from rawkern.formulas.loop import Loop
from rawkern.formulas.parameters import Formula, Parameter, differentiable, floating
from rawkern.formulas.promotion import joint_shape
from rawkern.formulas.reduce_loop import sum_to
from rawkern.formulas.statements import NO_COMPLEX, closed, names_in


@dataclass(eq=False)
class Gradient:
    """What an operator's autograd runs.

    Attributes
    ----------
    loop : Loop
        The operator's.
    source : callable
        Returns the statements of the backward.
    make : callable
        ``make(name, inputs, outputs, operation)`` returns an operator, for derivatives of the derivative.
    derived : bool
        Whether those statements are derived, which holds for real numbers.
    """

    loop: Loop
    source: Callable[[], str]
    make: Callable[[str, tuple[Parameter, ...], tuple[Parameter, ...], str], Any]
    derived: bool = True

    @cached_property
    def saved(self) -> tuple[str, ...]:
        """The inputs that the backward reads or that tell it a letter's dtype; none where it cannot be derived."""
        try:
            names = names_in(self.text)
        except NotDifferentiable:
            return ()
        known = {p.type for p in self.loop.outputs if floating(p)} if len(self.loop.letters) == 1 else set()
        return (*(p.name for p in with_letters(self.loop.inputs, names, known)),)

    @cached_property
    def text(self) -> str:
        """The statements of the backward; where they read an output, it is computed again before them."""
        loop, text = self.loop, self.source()
        if not any(p.name in names_in(text) for p in loop.outputs):
            return text
        outputs = "".join(f"{p.compute} {p.name} = 0; " for p in loop.outputs)
        return f"{outputs}{{ {closed(loop.operation)} }} {text}"

    @cached_property
    def inputs(self) -> tuple[Parameter, ...]:
        return (*self.loop.output_grads, *(p for p in self.loop.inputs if p.name in self.saved))

    @cached_property
    def passed_on(self) -> dict[str, str]:
        """The gradients that are those of an output as they are, as for a sum: nothing has to compute them."""
        text, known = self.text, {p.name: p.type for p in self.loop.outputs if floating(p)}
        if re.search(r"[{#]|//|/\*|\breturn\b", text):
            return {}
        found = {}
        for p in (p for p in self.loop.inputs if differentiable(p)):
            plain = re.search(rf"(?:^|;)\s*grad_{p.name}\s*=\s*grad_(\w+)\s*(?:;|$)", text)
            once = len(re.findall(rf"\bgrad_{p.name}\b", text)) == 1
            if plain and once and known.get(plain[1]) == p.type:
                found[f"grad_{p.name}"] = plain[1]
        return found

    @cached_property
    def straight(self) -> bool:
        """Whether the loop of the backward takes the gradient that there is, and makes one for each input."""
        return (
            len(self.loop.outputs) == 1 and len(self.loop.input_grads) == len(self.loop.inputs) and not self.passed_on
        )

    @cached_property
    def grad_loop(self) -> Loop:
        loop = self.loop
        return Loop(
            f"{self.loop.name}_backward", self.inputs, self.loop.input_grads, self.text, loop.preamble, loop.options
        )

    def operator(self, wanted: tuple[bool, ...]) -> Any:
        """The backward as a differentiable operator, for some of the gradients."""
        inputs, outputs, text = without_grads(self.inputs, self.loop.input_grads, wanted, self.text)
        return self.make(f"{self.loop.name}_backward", inputs, outputs, text)

    def backward(self, ctx: Any, *grads: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        loop, needs = self.loop, ctx.needs_input_grad
        if self.derived:
            reject_complex(loop, (*grads, *ctx.saved_tensors))
        if self.straight and all(needs) and not composing():
            found = self.grad_loop.fast.run(*grads, *ctx.saved_tensors)
            many = (found,) if isinstance(found, torch.Tensor) else found
            return tuple(g if g.shape == shape else sum_to(g, shape) for g, shape in zip(many, ctx.shapes, strict=True))
        can = [differentiable(p) for p in loop.inputs]
        wanted = tuple(n for n, d in zip(needs, can, strict=True) if d)
        for p, n in zip(loop.inputs, needs, strict=True):
            if n and p.raw:
                raise RuntimeError(f"{loop.name}: the raw parameter {p.name} has no gradient; pass {p.name}.detach()")
        of = {p.name: g for g, p in zip(grads, loop.outputs, strict=True) if g is not None}
        given = [g for g, p in zip(grads, loop.outputs, strict=True) if floating(p)]
        some = next(g for g in given if g is not None)
        given = [
            some.new_zeros((), dtype=p.dtype or some.dtype) if g is None else g
            for g, p in zip(given, self.inputs, strict=False)
        ]
        tensors = [*given, *ctx.saved_tensors]
        if composing():
            found = self.operator(wanted)(*tensors)
            found = iter([found] if isinstance(found, torch.Tensor) else found)
            results = iter([next(found) if w else None for w in wanted])
        else:
            same = [of.get(self.passed_on.get(p.name, "")) for p in self.loop.input_grads]
            left = tuple(w and g is None for w, g in zip(wanted, same, strict=True))
            found = self.run(tensors, left) if any(left) else same
            results = iter([f if g is None or not w else g for f, g, w in zip(found, same, wanted, strict=True)])
        every = [next(results) if d else None for d in can]
        return tuple(
            g if g is None or g.shape == shape else g.sum_to_size(shape) if composing() else sum_to(g, shape)
            for g, shape in zip(every, ctx.shapes, strict=True)
        )

    def run(self, tensors: Sequence[torch.Tensor], wanted: tuple[bool, ...]) -> tuple[torch.Tensor | None, ...]:
        loop = self.grad_loop
        return loop.run(tensors, loop.dtypes(tensors), wanted, launch=not in_fake_op())

    def jvp(self, ctx: Any, *tangents: torch.Tensor | None) -> Any:
        loop = self.loop
        if self.derived:
            reject_complex(loop, (*tangents, *ctx.saved_tensors))
        known = [(p, t) for p, t in zip(loop.inputs, tangents, strict=True) if t is not None and differentiable(p)]
        for p, t in zip(loop.inputs, tangents, strict=True):
            if p.raw and t is not None:
                raise RuntimeError(f"{loop.name}: the raw parameter {p.name} has no derivative")
        tan = _unused("tan", (*loop.inputs, *loop.outputs))
        inputs = (
            *(Parameter(f"{tan}{p.name}", p.type) for p, _ in known),
            *(q for q in self.inputs if q in loop.inputs),
        )
        outputs = tuple(p for p in loop.outputs if floating(p))
        text = ""
        for y in outputs:
            text += "{ " + "".join(f"const {q.compute} grad_{q.name} = {int(q is y)}; " for q in outputs)
            text += "".join(f"{q.compute} {q.name} = 0; " for q in self.loop.input_grads)
            total = " + ".join(f"grad_{p.name} * {tan}{p.name}" for p, _ in known)
            text += f"{closed(self.text)} {tan}{y.name} = {total}; }} "
        made = tuple(Parameter(f"{tan}{p.name}", p.type) for p in outputs)
        forward = self.make(f"{loop.name}_jvp", inputs, made, text)
        first, *rest = (t for _, t in known)
        shape = joint_shape(loop.name, [s for p, s in zip(loop.inputs, ctx.shapes, strict=True) if not p.raw])
        found = forward(first if first.shape == shape else first.expand(shape), *rest, *ctx.saved_tensors)
        found = iter([found] if isinstance(found, torch.Tensor) else found)
        return tuple(next(found) if floating(p) else None for p in loop.outputs)


def reject_complex(expression: Formula, tensors: Sequence[torch.Tensor | None]) -> None:
    """Raise NotDifferentiable if a letter of an expression that is derived stands for a complex dtype."""
    if any(t is not None and t.is_complex() for t in tensors):
        name = next((p.name for p in expression.inputs if p.generic), expression.inputs[0].name)
        raise NotDifferentiable(f"{expression.name}: {NO_COMPLEX.format(name)}")


def with_letters(inputs: Sequence[Parameter], names: Collection[str], known: Collection[str]) -> list[Parameter]:
    """Return the inputs that a backward reads, and one for each letter that these and what is `known` do not tell."""
    found = [p for p in inputs if p.name in names]
    told = {*known, *(p.type for p in found)}
    for p in inputs:
        if p.generic and not p.raw and p.type not in told and (floating(p) or p.type in names):
            told.add(p.type)
            found.append(p)
    return [p for p in inputs if p in found]


def _unused(prefix: str, parameters: Sequence[Parameter]) -> str:
    """The prefix with a number, such that no parameter has it."""
    made = (f"{prefix}{k}_" for k in range(1, 100))
    return next(each for each in made if not any(p.name.startswith(each) for p in parameters))


def without_grads(
    inputs: tuple[Parameter, ...], outputs: tuple[Parameter, ...], wanted: tuple[bool, ...], text: str
) -> tuple[tuple[Parameter, ...], tuple[Parameter, ...], str]:
    """Turn a backward into an operation that has a backward of its own, in which ``grad_X`` means another thing.

    Outputs that are not wanted become variables.
    """
    g = _unused("g", (*inputs, *outputs))

    def renamed(p: Parameter) -> Parameter:
        return Parameter(re.sub("^grad_", g, p.name), p.type, p.raw)

    text = re.sub(r"\bgrad_(?=\w)", g, text)
    outputs = tuple(map(renamed, outputs))
    unwanted = [p for p, w in zip(outputs, wanted, strict=True) if not w]
    text = "".join(f"{p.compute} {p.name} = 0; " for p in unwanted) + text
    return tuple(map(renamed, inputs)), tuple(p for p, w in zip(outputs, wanted, strict=True) if w), text
