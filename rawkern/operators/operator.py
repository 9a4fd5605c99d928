"""An operator in torch's dispatcher: schema, kernels, fake implementation, autograd and vmap."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd import forward_ad

from rawkern import _torch_private as private
from rawkern import binder, tensors
from rawkern.operators.batching import refuse_batches, run_batched
from rawkern.operators.context import make_context, nest
from rawkern.operators.declaration import Declaration
from rawkern.operators.forward_mode import elementwise_jvp
from rawkern.operators.recorded import make_function
from rawkern.operators.reverse import Reverse, composed

__all__ = ["Operator"]


class Operator:
    """An operator from one function; `rawkern.op` makes it and gives the user a plain function for it.

    Defining an operator again, as a notebook does, takes the former one out of torch's registry.
    """

    def __init__(
        self,
        declaration: Declaration,
        function: Callable[..., Any],
        *,
        elementwise: bool,
        strided: bool,
        autocast: torch.dtype | str | None,
    ) -> None:
        self.declaration = decl = declaration
        self.function = function
        self.elementwise = elementwise
        self.strided = strided
        self.autocast = autocast
        self.reverse: Reverse | None = None
        self.tangent: Callable[..., Any] | None = None
        self.batch: Callable[..., Any] | None = None
        self.arrange = _arranger(decl)
        former = _defined.pop(decl.qualified, None)
        if former is not None:
            private.destroy(former.library)
        self.library = torch.library.Library(decl.namespace, "FRAGMENT")
        self.library.define(decl.schema, tags=(torch.Tag.pt2_compliant_tag,))
        for key in ("CPU", "CUDA"):
            self.library.impl(decl.name, self._run, key)
        torch.library.register_fake(decl.qualified, self._fake, lib=self.library)
        self.library.impl(decl.name, self._autograd, "Autograd", with_keyset=True)
        self.overload = getattr(getattr(torch.ops, decl.namespace), decl.name).default
        self.record = make_function(self)
        self._register_vmap()
        _defined[decl.qualified] = self

    # --- what the dispatcher calls ------------------------------------------------------------------------------------

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        full = self.arrange(*args, **kwargs)
        with tensors.inside_op():
            return self._checked(full)

    def _fake(self, *args: Any, **kwargs: Any) -> Any:
        full = self.arrange(*args, **kwargs)
        with tensors.inside_op(fake=True):
            return self._checked(full)

    def _checked(self, args: Sequence[Any]) -> Any:
        """Call the user's function and see that it returns what the schema says."""
        decl = self.declaration
        self.one_device(args)
        keyword = {p.name: a for p, a in zip(decl.params, args, strict=True) if p.keyword_only}
        result = self.function(*args[: len(args) - len(keyword)], **keyword)
        self.verify(result, args)
        if decl.mutated:
            private.increment_version(tuple(self.changed(args)))
        return result

    def one_device(self, args: Sequence[Any]) -> None:
        """Raise unless all tensors are on one device."""
        first: tuple[str, torch.device] | None = None
        for p, value in zip(self.declaration.params, args, strict=True):
            if not p.is_tensor or value is None:
                continue
            for i, t in enumerate(value if p.kind == "list" else [value]):
                name = f"{p.name}[{i}]" if p.kind == "list" else p.name
                if first is None:
                    first = name, t.device
                elif t.device != first[1]:
                    raise ValueError(
                        f"{self.declaration.qualified}: {first[0]} is on {first[1]}, {name} is on {t.device}; "
                        "pass tensors on one device"
                    )

    def verify(self, result: Any, args: Sequence[Any]) -> None:
        """Raise unless the function's result is what its type hints say, in memory of its own."""
        decl = self.declaration
        wanted = len(decl.returned)
        if wanted == 0:
            if result is not None:
                raise TypeError(f"{decl.qualified} returned a {type(result).__name__}; it is declared to return None")
            return
        many = result if wanted > 1 else (result,)
        if not isinstance(many, (tuple, list)) or len(many) != wanted:
            got = f"{len(many)} values" if isinstance(many, (tuple, list)) else f"a {type(many).__name__}"
            raise TypeError(f"{decl.qualified} returned {got}; it is declared to return {wanted} tensors")
        given: list[tuple[str, torch.Tensor]] = []
        for p, value in zip(decl.params, args, strict=True):
            if p.is_tensor and value is not None:
                given += [(p.name, t) for t in (value if p.kind == "list" else [value])]
        for name, t in zip(decl.returned, many, strict=True):
            if not isinstance(t, torch.Tensor):
                raise TypeError(f"{decl.qualified} returned a {type(t).__name__} for {name}; it is declared a tensor")
            for other, memory in given:
                if private.same_memory(t, memory):
                    raise ValueError(
                        f"{decl.qualified} returned memory of {other} as {name}; return a new tensor, or name what it "
                        "changes in mutates_args and return None"
                    )
            given.append((name, t))

    def changed(self, args: Sequence[Any]) -> list[torch.Tensor]:
        """The tensors that the operator writes to."""
        found: list[torch.Tensor] = []
        for p, value in zip(self.declaration.params, args, strict=True):
            if p.mutated and value is not None:
                found += value if p.kind == "list" else [value]
        return found

    # --- autograd -----------------------------------------------------------------------------------------------------

    def _autograd(self, keyset: Any, *args: Any, **kwargs: Any) -> Any:
        full = self.arrange(*args, **kwargs)
        below = _Below(self, keyset)
        flat = self.flat(full)
        recorded = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in flat)
        if not recorded and forward_ad._current_level < 0:
            return below(*full)
        if recorded:
            self.refuse_changes(full)
        try:
            with private.single_level():
                found = self.apply(below, full, flat)
        finally:
            below.saved = below.inputs = ()
        decl = self.declaration
        if not decl.in_place:
            return found
        found = found if isinstance(found, tuple) else (found,)
        hidden = found[len(found) - len(decl.hidden) :]
        return None if not hidden else hidden[0] if len(hidden) == 1 else hidden

    def flat(self, args: Sequence[Any]) -> list[Any]:
        """All tensors, and None for optional ones that are not given; items of lists among the others."""
        found: list[Any] = []
        for p, value in zip(self.declaration.params, args, strict=True):
            if p.is_tensor:
                found += value if p.kind == "list" else [value]
        return found

    def apply(self, run: Callable[..., Any], args: Sequence[Any], flat: Sequence[Any]) -> Any:
        """Run through the autograd function."""
        decl = self.declaration
        values = [a for p, a in zip(decl.params, args, strict=True) if not p.is_tensor]
        if decl.has_lists:
            counts = tuple(len(a) for p, a in zip(decl.params, args, strict=True) if p.kind == "list")
            return self.record.apply(run, counts, *values, *flat)
        return self.record.apply(run, *values, *flat)

    def refuse_changes(self, args: Sequence[Any]) -> None:
        """Raise for changes that autograd does not allow; it says so itself only after the data is overwritten."""
        name = self.declaration.qualified
        for p, value in zip(self.declaration.params, args, strict=True):
            if not p.mutated or value is None:
                continue
            for t in value if p.kind == "list" else [value]:
                if not self.declaration.in_place and t.requires_grad:
                    raise RuntimeError(
                        f"{name}: {p.name} requires grad and is changed beside the outputs, where autograd cannot follow; "
                        "use torch.no_grad() or pass a detached tensor"
                    )
                base = t if t.is_leaf else t._base
                if base is not None and base.is_leaf and base.requires_grad:
                    leaf = "a leaf" if t.is_leaf else "a view of a leaf"
                    raise RuntimeError(
                        f"{name}: {p.name} is {leaf} that requires grad and cannot be changed in place; "
                        "use torch.no_grad() or pass a copy"
                    )

    def forward_mode(self, run: Any, about: Any, tangents: Sequence[torch.Tensor | None]) -> Any:
        """The tangents of what the autograd function returns."""
        decl = self.declaration
        values, shapes, _, counts = about
        ctx = make_context(decl, run.saved, values, [t is not None for t in tangents], shapes, counts)
        if self.tangent is not None:
            found = composed(
                self.tangent, ctx, *(nest(tangents, decl.tensors, decl, counts) if decl.has_lists else tangents)
            )
        elif self.elementwise and self.reverse is not None:
            found = elementwise_jvp(self, run, about, tangents)
        else:
            raise NotImplementedError(
                f"{decl.qualified} has no forward-mode derivative; define one with @{decl.name}.jvp"
            )
        found = (found,) if isinstance(found, torch.Tensor) or found is None else tuple(found)
        if len(found) != len(decl.outputs):
            raise RuntimeError(
                f"the jvp of {decl.qualified} returned {len(found)} tangents; it has {len(decl.outputs)} outputs"
            )
        if decl.in_place:  # autograd wants the tangent of what is changed to be changed, too
            changed = [t for p, t in zip(decl.tensors, tangents, strict=True) if p.mutated]
            found = tuple(
                new if old is None or new is None else old.copy_(new) for old, new in zip(changed, found, strict=True)
            )
        found += (None,) * len(decl.hidden)
        return found[0] if len(found) == 1 else found

    # --- what the user adds -------------------------------------------------------------------------------------------

    def set_backward(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Define the backward."""
        if self.reverse is not None:
            raise ValueError(
                f"{self.declaration.qualified} has a backward already; define the operator again to change it"
            )
        if self.declaration.in_place and any(p.kind == "list" for p in self.declaration.mutated):
            raise TypeError(f"{self.declaration.qualified}: an operator that changes a list of tensors has no backward")
        self.reverse = Reverse(self, function)
        return function

    def set_jvp(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Define the forward-mode derivative."""
        self.tangent = function
        return function

    def set_vmap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Define the rule for vmap."""
        self.batch = function
        return function

    # --- vmap ---------------------------------------------------------------------------------------------------------

    def _register_vmap(self) -> None:
        qualified = self.declaration.qualified

        def rule(info: Any, dims: Any, *args: Any) -> Any:
            if self.batch is not None:
                return self.batch(info, dims, *args)
            return (run_batched if self.elementwise else refuse_batches)(self, info, dims, args)

        torch.library.register_vmap(qualified, rule, lib=self.library)


class _Below:
    """The operator below autograd, for one call; holds what forward mode needs until that call is over."""

    __slots__ = ("inputs", "keyset", "op", "saved")

    def __init__(self, op: Operator, keyset: Any) -> None:
        self.op = op
        self.keyset = keyset
        self.saved: tuple[Any, ...] = ()
        self.inputs: tuple[Any, ...] = ()

    @property
    def watched(self) -> bool:
        return forward_ad._current_level >= 0

    def __call__(self, *args: Any) -> Any:
        params = self.op.declaration.params
        keyword = {p.name: a for p, a in zip(params, args, strict=True) if p.keyword_only}
        with private.below_autograd():
            return self.op.overload.redispatch(
                self.keyset & private.after_autograd, *args[: len(args) - len(keyword)], **keyword
            )


def _arranger(decl: Declaration) -> Callable[..., tuple[Any, ...]]:
    """``f(*args, **kwargs)`` as the operator takes them, to all arguments in order, with the defaults."""
    defaults = {f"d{i}": p.default for i, p in enumerate(decl.signature.parameters.values())}
    names = ", ".join(p.name for p in decl.params)
    text = f"def arrange({parameters(decl)}):\n    return ({names},)\n"
    return binder.run(text, f"<rawkern arguments {decl.qualified}>", defaults)["arrange"]


def parameters(decl: Declaration) -> str:
    """The parameters as Python code, with defaults ``dN``."""
    parts, star = [], False
    for i, p in enumerate(decl.signature.parameters.values()):
        if p.kind is p.KEYWORD_ONLY and not star:
            parts.append("*")
            star = True
        parts.append(p.name if p.default is p.empty else f"{p.name}=d{i}")
    return ", ".join(parts)


_defined: dict[str, Operator] = {}
