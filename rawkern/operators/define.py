"""rawkern.op: kernels to a differentiable torch operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import isfunction
from typing import Any, Literal, ParamSpec, Protocol, TypeVar, overload

import torch

from rawkern.base.api_boundary import api_boundary
from rawkern.operators.declaration import declare
from rawkern.operators.operator import Operator
from rawkern.operators.public import make_public

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
F = TypeVar("F", bound=Callable[..., Any])


class DefinedOperator(Protocol[P, R_co]):
    """The function that `rawkern.op` makes: called as the function it was made of."""

    __name__: str
    overload: torch._ops.OpOverload
    operator: Operator

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Run the operator."""
        ...

    def backward(self, function: F) -> F:
        """Define the backward."""
        ...

    def jvp(self, function: F) -> F:
        """Define the forward-mode derivative."""
        ...

    def vmap(self, function: F) -> F:
        """Define the rule for vmap."""
        ...


class _Visible(Protocol):
    """Makes an operator whose callers get what the function returns; one in place returns what it has changed."""

    @overload
    def __call__(self, function: Callable[P, None]) -> DefinedOperator[P, Any]: ...
    @overload
    def __call__(self, function: Callable[P, R]) -> DefinedOperator[P, R]: ...


class _PartlyHidden(Protocol):
    """Makes an operator whose callers get the first of what the function returns."""

    def __call__(self, function: Callable[P, Any]) -> DefinedOperator[P, Any]: ...


@overload
def op(
    name: str,
    *,
    save: Sequence[str] | Mapping[str, Sequence[str]] | None = None,
    mutates_args: Sequence[str] = (),
    elementwise: bool = False,
    strided: bool = False,
    autocast: torch.dtype | str | Mapping[str, torch.dtype | str] | None = None,
    backward: Literal["derive"] | None = None,
    max_iterations: int | None = None,
    verify: bool | None = None,
) -> _Visible: ...
@overload
def op(
    name: str,
    *,
    save: Sequence[str] | Mapping[str, Sequence[str]] | None = None,
    mutates_args: Sequence[str] = (),
    hidden: Sequence[str],
    elementwise: bool = False,
    strided: bool = False,
    autocast: torch.dtype | str | Mapping[str, torch.dtype | str] | None = None,
    backward: Literal["derive"] | None = None,
    max_iterations: int | None = None,
    verify: bool | None = None,
) -> _PartlyHidden: ...
@api_boundary
def op(
    name: str,
    *,
    save: Sequence[str] | Mapping[str, Sequence[str]] | None = None,
    mutates_args: Sequence[str] = (),
    hidden: Sequence[str] = (),
    elementwise: bool = False,
    strided: bool = False,
    autocast: torch.dtype | str | Mapping[str, torch.dtype | str] | None = None,
    backward: str | None = None,
    max_iterations: int | None = None,
    verify: bool | None = None,
) -> Any:
    """Make a torch operator of a function that launches kernels.

    The function's type hints are the operator's schema. It runs for CUDA and CPU tensors, and for fake ones, where its
    launches check their arguments and do nothing: so torch.compile, torch.export and CUDA graphs know the operator.

    ::

        @rawkern.op("mylib::mul", save=("a", "b"))
        def mul(a: Tensor, b: Tensor) -> Tensor:
            out = torch.empty_like(a)
            kernels.mul.forall(a.numel())(a, b, out, a.numel())
            return out

        @mul.backward
        def _(ctx, grad_out):
            a, b = ctx.saved_tensors
            ...
            return grad_a, grad_b

    Parameters
    ----------
    name : str
        ``"namespace::name"``. Defining it again replaces the operator, as running a notebook's cell again does.
    save : sequence of str, or mapping of str to sequence of str, optional
        What the backward gets: names of tensor parameters, of outputs (``out``; ``out0``, ``out1`` ... where there are
        several visible ones) and of hidden outputs. By default all tensor parameters. A parameter that is changed in
        place is saved as the operator leaves it. A mapping says for which parameters' gradients each is saved:
        ``{"a": ("b",), "b": ("a",)}`` saves a only if b requires grad; the backward gets None for what is not saved.
    mutates_args : sequence of str
        Parameters the function writes to. A function that returns None is an in-place operator: the call returns the
        tensors it has changed, in the order of the parameters (one of them not in a tuple), and gradients flow through
        them. Where it returns tensors, those are the results, and what it changes beside must not require grad.
    hidden : sequence of str
        Names for the last tensors that the function returns, which callers do not get: what the backward needs (a
        log-sum-exp, a seed). They are not differentiable.
    elementwise : bool
        Whether each element of an output depends only on the elements of the inputs in the same place, outputs having
        the shape of the inputs or of what they broadcast to. Gives vmap, sharding of DTensors (but not in place) and,
        from the backward, forward-mode AD.
    strided : bool
        Whether tensors may have any strides where rawkern could make them contiguous: gradients, and what vmap moves.
        Else they come contiguous.
    autocast : torch.dtype, str or mapping, optional
        What floating-point tensors are cast to in a region of torch.autocast: a dtype, ``"lower"`` for the region's own
        dtype or ``"widest"`` for the widest among them. ``{"cuda": torch.float32}`` is for tensors on GPUs only.

    backward : "derive", optional
        Derive the backward from the source of the kernels that the function launches: their backwards run in reverse
        order. The function may only allocate, take views and launch; anything else raises an error at the
        first backward. A function with one launch also has a second derivative.
    max_iterations : int, optional
        As for `RawKernel.derive`.
    verify : bool, optional
        Whether the first use of each derived backward is compared with finite differences, as by `Derived.verify`:
        it takes three compilations, and runs the launch seven times in double on the CPU engine. By default that is
        done in tests (under pytest with rawkern's plugin), for launches with up to 100,000 elements.

    Returns
    -------
    callable
        Takes a function and returns one with the same parameters, and these attributes:

        ``backward`` : decorator of ``f(ctx, *grads)``, with one gradient for each visible output (for an in-place
        operator, each changed tensor), None for one that nothing depends on. It returns a gradient, or None, for each
        parameter, or for each tensor parameter; alone and not in a tuple if that is one; for a list of tensors a list.
        Shape and dtype are those of the input. Results not asked for by ``ctx.needs_input_grad`` are dropped.
        On ctx there are ``saved_tensors`` (in the order of ``save``), ``needs_input_grad`` and ``shapes`` (one for each
        parameter: False and None for other types) and each parameter that is not a tensor under its name.
        Double backward works if it is made of differentiable operators: those of torch, or of rawkern.op.

        ``jvp`` : decorator of ``f(ctx, *tangents)``, with a tangent or None for each tensor parameter; returns a
        tangent or None for each visible output. It is made of operators, not of launches.

        ``vmap`` : decorator of ``f(info, in_dims, *args)`` that returns results and their batch dimensions, as for
        `torch.library.register_vmap`.

        ``overload`` : the `torch._ops.OpOverload`, for `torch.library.opcheck` and graphs.

    Raises
    ------
    TypeError, ValueError
        The type hints make no schema, or a name is wrong.

    Notes
    -----
    Parameters are Tensor, Tensor | None, list[Tensor], int, float, bool, str, torch.dtype, torch.device and what else
    `torch.library.infer_schema` knows; sizes that torch.compile keeps symbolic arrive as SymInt in the fake run only.
    The function returns new memory: neither an input nor a view of one, and no two results share any; else it raises
    ValueError. Outputs are called out, or out0, out1 and so on, followed by an underscore where a parameter has that
    name. A function that returns ``tuple[Tensor]`` returns a tuple of one.
    """

    if not isinstance(name, str):
        given = f"the function {name.__name__}" if isfunction(name) else f"a {type(name).__name__}"
        raise TypeError(f"rawkern.op takes the operator's name, got {given}; write @rawkern.op('mylib::NAME')")
    if backward not in (None, "derive"):
        raise ValueError(f"{name}: backward is {backward!r}; pass 'derive', or use the operator's decorator")
    if backward is None and (verify is not None or max_iterations is not None):
        raise ValueError(f"{name}: verify and max_iterations are only for backward='derive'; remove them")

    @api_boundary
    def make(function: Callable[..., Any]) -> Any:
        kind = {"elementwise": elementwise, "strided": strided, "autocast": autocast, "derived": backward == "derive"}
        operator = Operator(declare(function, name, save, mutates_args, hidden, **kind), function)
        if backward == "derive":
            # What reads kernels takes long to import, and most operators have no need of it.
            from rawkern.operators.derived import check_declaration, derived_backward

            check_declaration(operator.declaration)
            assert operator.traced is not None
            operator.set_backward(derived_backward(operator.traced, max_iterations, verify))
        public: Any = make_public(operator)
        for name_of in ("__name__", "__qualname__", "__module__", "__doc__", "__annotations__"):
            setattr(public, name_of, getattr(function, name_of))
        public.operator = operator
        public.overload = operator.overload
        public.backward = operator.set_backward
        public.jvp = operator.set_jvp
        public.vmap = operator.set_vmap
        return public

    return make
