"""`rawkern.elementwise`: a differentiable operator from statements for one element."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch

from rawkern.arguments.memory import reject_layout
from rawkern.base.api_boundary import api_boundary
from rawkern.base.forking import cached_property
from rawkern.base.operator_state import composing, in_fake_op
from rawkern.base.overrides import call_stand_in, is_stand_in
from rawkern.base.shared import Shared
from rawkern.compile.options import settings
from rawkern.formulas.declared import (
    check_assigned,
    check_texts,
    computes_floats,
    declared,
    qualified_name,
    read_parameters,
    typed,
)
from rawkern.formulas.given import Given
from rawkern.formulas.gradient import Gradient, without_grads
from rawkern.formulas.loop import Loop
from rawkern.formulas.parameters import Formula, Parameter, differentiable, floating
from rawkern.formulas.promotion import Argument, Result, one_dtype, prepare, with_size
from rawkern.formulas.statements import names_in
from rawkern.formulas.updated import updated
from rawkern.operators import op

#: If no input is looped over, a dummy input of this size is, which no statement reads.
SIZE = Parameter("size_", "bool")
_IND_SIZE = re.compile(r"\b_ind\s*\.\s*size\s*\(\s*\)")  # CuPy's name of n


@api_boundary
def elementwise(
    in_params: str,
    out_params: str,
    operation: str,
    name: str,
    *,
    backward: str | None = None,
    preamble: str = "",
    options: Sequence[str] = (),
) -> Elementwise:
    """Make a differentiable torch operator from statements for one element, in CUDA C.

    The conventions are those of `cupy.ElementwiseKernel`, plus a backward. Inputs are broadcast and their dtypes
    promoted as torch does, integers to floating point where the statements call ``exp`` or another function of such
    numbers; half types are computed in float and rounded once; any strides are taken, and layouts such as
    channels_last are kept. On a GPU a thread moves 16 bytes at a time.

    Parameters
    ----------
    in_params, out_params : str
        Types and names, such as ``"T x, T y, float32 a"``. A letter stands for the dtype to which torch promotes all
        arguments with that letter. Other types are NumPy's names: float16, bfloat16, float32, float64, bool,
        int8 to uint64, and complex64 and complex128, which are ``cuda::std::complex``. With ``raw``, as in
        ``"raw T x"``, the statements index the array: ``x[i + 1]``; a raw parameter is not differentiated, and one that
        is an output is always given. A letter used only by outputs, or only by numbers, takes the dtype of the output
        that the call passes.
    operation : str
        Statements that assign every output: ``"y = x / (1 + exp(-x))"``. Inside, ``T`` is the type that is computed
        in, ``i`` the index of the element in row-major order (long long), ``n`` the number of elements. An output that
        they read, or do not assign in every case, starts with what the tensor that a call gives for it holds
        (``"param -= lr * grad"``); one that the call makes starts at 0.
    name : str
        Of the kernel, and in error messages; may have a namespace: ``"mylib::silu"``.
    backward : str, optional
        Statements that assign ``grad_X`` for each floating input X, from the inputs, the outputs and ``grad_Y`` for
        each floating output Y: ``"T s = 1 / (1 + exp(-x)); grad_x = grad_y * s * (1 + x * (1 - s))"``. By default
        they are derived from ``operation`` (see ``backward_source``).
    preamble : str
        CUDA C put before the kernel: device functions, constants, includes.
    options : sequence of str
        For the compiler, as for `rawkern.RawKernel`.

    Returns
    -------
    Elementwise
        Call it on tensors and numbers.

    Raises
    ------
    ValueError
        For parameters or statements that don't make an operator.

    Examples
    --------
    >>> silu = rawkern.elementwise("T x", "T y", "y = x / (1 + exp(-x))", "silu")
    >>> silu(torch.randn(1000, requires_grad=True)).sum().backward()
    """
    check_texts(
        "elementwise", in_params=in_params, out_params=out_params, operation=operation, name=name, backward=backward,
        preamble=preamble,
    )  # fmt: skip
    settings(options, ())  # raises for values that are not options
    qualified = qualified_name("elementwise", name, "silu")
    inputs, outputs = read_parameters("an elementwise operator", name, in_params, out_params, given_outputs=True)
    if all(p.raw for p in inputs):
        inputs += (SIZE,)
    operation = _IND_SIZE.sub("n", operation)
    backward = backward if backward is None else _IND_SIZE.sub("n", backward)
    _check_parameters(name, inputs, outputs, backward)
    check_assigned(name, inputs, outputs, "the operation", operation, backward)
    return make_elementwise(*qualified, inputs, outputs, operation, backward, preamble, tuple(options))


def _check_parameters(
    name: str, inputs: tuple[Parameter, ...], outputs: tuple[Parameter, ...], backward: str | None
) -> None:
    if backward is None:
        return
    if raw := [p.name for p in outputs if p.raw]:
        raise ValueError(f"{name}: {raw[0]} is a raw output, which has no gradient; remove backward")
    for p in (*inputs, *outputs):
        if p.name.startswith("grad_"):
            raise ValueError(
                f"{name}: {p.name} is a parameter, but in backward= that name means a gradient; rename the parameter"
            )
    formula = Formula(name, inputs, outputs)
    allowed = {p.name for p in (*formula.input_grads, *formula.output_grads)}
    for each in sorted(n for n in names_in(backward) if n.startswith("grad_") and n not in allowed):
        raise ValueError(f"{name}: backward names {each}; choose from {', '.join(sorted(allowed))}")


class Elementwise(Shared):
    """An elementwise operator, made by `rawkern.elementwise`: call it as a function.

    Attributes
    ----------
    name : str
    """

    name: str
    key: tuple[Any, ...]
    loop: Loop
    operator: Any
    given: Given
    _namespace: str
    _backward: str | None
    _plain: bool
    guarded: Any  # what users call that is not native
    _floats: set[str]
    _sized: bool
    _open: tuple[str, ...]  # letters of outputs alone: what they are is told by the tensors given for the outputs

    def __init__(
        self,
        qualified: str,
        fixed: bool,
        namespace: str,
        name: str,
        inputs: tuple[Parameter, ...],
        outputs: tuple[Parameter, ...],
        operation: str,
        backward: str | None,
        preamble: str,
        options: tuple[str, ...] = (),
    ) -> None:
        self.key = (fixed, namespace, name, inputs, outputs, operation, backward, preamble, options)
        self.name = name
        self._namespace = namespace
        self.loop = Loop(name, inputs, outputs, operation, preamble, options)
        self._backward = backward
        self.guarded = api_boundary(self._prepared_call)
        self.loop.fast.for_users(self.guarded)
        self._sized = SIZE in inputs
        self._open = tuple(x for x in self.loop.letters if all(p.type != x for p in inputs))
        self._plain = len(self.loop.letters) == 1 and all(p.generic and not p.raw for p in inputs)
        self._floats = {p.type for p in outputs if p.generic} if computes_floats(operation) else set()
        self.operator = None if self._open or self.loop.raw_outputs else self._define(qualified)
        if self.operator is not None:
            self.loop.fast.for_users(self.guarded, self.operator.operator.recorded)
        changed = updated(operation, [p.name for p in outputs if not p.raw])
        into = self._define_into(f"{qualified}_into") if changed or self.operator is None else None
        self.given = Given(self.loop, self.operator, into, self._open, changed)

    @property
    def __name__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[Any, ...]:
        return make_elementwise, self.key

    def __repr__(self) -> str:
        return f"<rawkern.elementwise {self.loop.spelled}>"

    @property
    def source(self) -> str:
        """The CUDA C of the kernels, as it is compiled for arrays."""
        return self.loop.source()

    @cached_property
    def backward_source(self) -> str:
        """The statements of the backward: as given, or as derived from the operation.

        Raises
        ------
        NotDifferentiable
            The operation holds something that can't be differentiated; the message names it.
        """
        if self._backward is not None:
            return self._backward
        from rawkern.formulas.derivative import derive  # takes long to import

        loop = self._differentiated
        inputs = {p.name: p.compute for p in loop.inputs if not p.raw}
        outputs = {p.name: p.compute for p in loop.outputs}
        known = {p.name for p in loop.outputs if floating(p)}
        wanted = [p.name for p in loop.inputs if differentiable(p)]
        return derive(loop.operation, inputs, outputs, known, wanted, self.name)

    # --- calls --------------------------------------------------------------------------------------------------------

    def __call__(
        self, *args: Argument, out: torch.Tensor | Sequence[torch.Tensor] | None = None, size: int | None = None
    ) -> Result:
        """Compute the outputs.

        Parameters
        ----------
        *args : torch.Tensor or number
            One for each input, of shapes that broadcast, on one device (a CPU tensor of no dimensions goes with any);
            tensors for the outputs may follow, as with CuPy.
        out : torch.Tensor or tuple of them, optional
            Where the outputs go: of the broadcast shape and the outputs' dtypes; any strides without overlap. Not for
            tensors that require grad.
        size : int, optional
            The number of elements, where every input is raw (or there is none) and no outputs are given.

        Returns
        -------
        torch.Tensor or tuple of torch.Tensor
            One for each output.

        Raises
        ------
        TypeError
            For a wrong number of arguments, one that is neither a strided tensor nor a number, or a dtype other than
            declared.
        ValueError
            For tensors on several devices, or an ``out`` that doesn't fit.
        RuntimeError
            For shapes that don't broadcast.
        """
        if self._sized:
            args = with_size(self.name, len(self.loop.inputs) - 1, args, self.loop.outputs, out, size)
        elif size is not None:
            raise ValueError(
                f"{self.name}: size is only for operators whose inputs are all raw; here broadcasting determines it"
            )
        if torch.compiler.is_dynamo_compiling():
            return self._prepared_call(*args, out=out)
        return self.loop.fast.call(*args) if out is None else self.guarded(*args, out=out)

    def _prepared_call(self, *args: Any, out: Any = None) -> Any:
        if any(map(is_stand_in, args)):
            return call_stand_in(self, *args, **({} if out is None else {"out": out}))
        loop = self.loop
        many = len(loop.inputs)
        if out is None and len(args) == many + len(loop.outputs):
            args, out = args[:many], args[many:]
        if len(args) != many:
            named = [p.name for p in loop.inputs if p is not SIZE]
            got = len(args) - self._sized
            raise TypeError(f"{self.name}() takes {len(named)} arguments ({', '.join(named)}), got {got}")
        if loop.raw_outputs and out is None:
            p = next(p for p in loop.outputs if p.raw)
            raise TypeError(f"{self.name}: the size of the raw output {p.name} is not known; pass it after the inputs")
        if self._open and out is None:
            p = next(p for p in loop.outputs if p.type in self._open)
            raise TypeError(f"{self.name}: no input determines {p.type}; pass the output {p.name} after the inputs")
        if self._plain and out is None and one_dtype(args, bool(self._floats)):  # then there is nothing to prepare
            try:
                return self.operator(*args)
            except TypeError:
                for p, t in zip(loop.inputs, args, strict=True):
                    reject_layout(self.name, p.name, t)
                raise
        if out is None:
            return self.operator(*self._prepared(args)[0])
        return self.given.compute(*self._prepared(args, out), out)

    def in_place(self, x: torch.Tensor, *rest: Argument) -> torch.Tensor:
        """Write the result over the first argument, and return it; differentiable, as torch's ``add_`` is.

        Parameters
        ----------
        x : torch.Tensor
            The first input.
        *rest : torch.Tensor or number
            The other inputs.

        Returns
        -------
        torch.Tensor
            ``x`` itself.

        Raises
        ------
        TypeError
            The operator has several outputs, the result is not of x's dtype, or no input is looped over.
        ValueError
            The result is not of x's shape.
        """
        if len(self.loop.outputs) != 1:
            raise TypeError(f"{self.name} has {len(self.loop.outputs)} outputs; only one can go into {self._first}")
        if self.operator is None or self._sized:
            raise TypeError(f"{self.name}: the inputs do not determine the output; pass out=")
        tensors, dtypes = self._prepared((x, *rest))
        if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
            x.copy_(self.operator(x.clone() if tensors[0] is x else tensors[0], *tensors[1:]))
            return x
        self.given.compute([t.detach() for t in tensors], dtypes, (x,), self._first, update=False)
        return x

    @property
    def _first(self) -> str:
        return self.loop.inputs[0].name

    def _prepared(self, args: Sequence[Any], out: Any = ()) -> tuple[list[torch.Tensor], dict[str, torch.dtype]]:
        loop = self.loop
        letters = [x for x in loop.letters if x not in self._open]
        outs = out if isinstance(out, (tuple, list)) else (out,)
        told = {p.type: t.dtype for p, t in zip(loop.outputs, outs, strict=False) if isinstance(t, torch.Tensor)}
        return prepare(self.name, loop.inputs, letters, args, self._floats, told)

    # --- the operator -------------------------------------------------------------------------------------------------

    def _define(self, qualified: str) -> Any:
        """Define the torch operator: all inputs are tensors of the parameters' dtypes."""
        loop = self.loop

        def forward(*tensors: torch.Tensor) -> Any:
            return loop.fast.run(*tensors)

        typed(forward, self.name, loop.inputs, len(loop.outputs))
        gradient = Gradient(self._differentiated, lambda: self.backward_source, self._another, self._backward is None)
        save = []
        if loop.input_grads and any(map(floating, loop.outputs)):
            own = zip(loop.inputs, gradient.loop.inputs, strict=True)
            save = [p.name for p, renamed in own if renamed.name in gradient.saved]
        operator = op(qualified, save=save, elementwise=not self._places, strided=True)(forward)
        if self._places:
            operator.vmap(operator.operator.one_by_one)
        operator.backward(gradient.backward)
        operator.jvp(gradient.jvp)
        return operator

    def _define_into(self, qualified: str) -> Any:
        """Define the torch operator that changes tensors which are given for the outputs, after the inputs."""
        loop = self.loop

        def write(*tensors: torch.Tensor) -> None:
            if not in_fake_op():
                many, dtypes = len(loop.inputs), loop.dtypes(tensors)
                self.given.write(tensors[:many], dtypes, tensors[many:], self.given.updated)

        typed(write, self.name, (*loop.inputs, *loop.outputs), 0)
        operator = op(
            qualified, mutates_args=[p.name for p in loop.outputs], elementwise=not self._places, strided=True
        )(write)
        if self._places:
            operator.vmap(operator.operator.one_by_one)
        return operator

    @property
    def _places(self) -> bool:
        """Whether it matters which element is which, or how many there are."""
        return self.loop.indexed or bool({"i", "n"} & names_in(f"{self.loop.operation}\n{self._backward}"))

    @cached_property
    def _differentiated(self) -> Loop:
        """The loop, in which ``grad_X`` can stand for a gradient: parameters of such names have others."""
        loop = self.loop
        if not any(p.name.startswith("grad_") for p in (*loop.inputs, *loop.outputs)):
            return loop
        every = (True,) * len(loop.outputs)
        return Loop(loop.name, *without_grads(loop.inputs, loop.outputs, every, loop.operation), *self._rest)

    @property
    def _rest(self) -> tuple[str, tuple[str, ...]]:
        return self.loop.preamble, self.loop.options

    def _another(
        self, name: str, inputs: tuple[Parameter, ...], outputs: tuple[Parameter, ...], operation: str
    ) -> Elementwise:
        """An operator for a derivative of this one."""
        return make_elementwise(False, self._namespace, name, inputs, outputs, operation, None, *self._rest)

    def composed(self, tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Compute as a step of another operator: differentiable where that is differentiated, else straight."""
        found = self.operator(*tensors) if composing() else self.loop.fast.run(*tensors)
        return (found,) if isinstance(found, torch.Tensor) else found


def make_elementwise(*key: Any) -> Elementwise:
    """The operator of a declaration, as `declared` takes it."""
    return declared(Elementwise, *key)
