"""An operator in torch's dispatcher: schema, kernels, fake implementation, autograd and vmap."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch.autograd import forward_ad

from rawkern.base import operator_state
from rawkern.base import torch_private as private
from rawkern.base.api_boundary import api_boundary
from rawkern.base.forking import Lock
from rawkern.operators.autocast import check_autocast, register_autocast
from rawkern.operators.batching import each_in_place, one_by_one, reject_batches, run_batched, run_formerly_batched
from rawkern.operators.checks import no_aliases, one_device, reject_changes, reject_layouts, unboxed, verify
from rawkern.operators.context import make_context, nest
from rawkern.operators.declaration import Declaration
from rawkern.operators.forward_mode import elementwise_jvp
from rawkern.operators.kept import Kept
from rawkern.operators.recorded import described, make_function
from rawkern.operators.recording import trace, transparent
from rawkern.operators.reverse import Reverse, composed
from rawkern.operators.sharding import register_shardings
from rawkern.operators.traced import Traced
from rawkern.operators.undeclared import Declared


class Operator:
    """An operator from one function; `rawkern.op` makes it and gives the user a plain function for it.

    Defining an operator again, as a notebook does, takes the former one out of torch's registry.
    """

    def __init__(self, declaration: Declaration, function: Callable[..., Any]) -> None:
        self.declaration = decl = declaration
        self.function = function
        if decl.boxed:
            self.function = functools.wraps(function)(lambda *args, **kw: unboxed(decl, function(*args, **kw)))
        self.kept = Kept(len(decl.params), self._trace, partial(described, decl)) if decl.keeps_launches else None
        self.launch: Callable[..., Any] = self.function if decl.finished else Declared(decl, self.function)
        if self.kept is not None:
            self.launch = partial(_learned, self.kept, self.function)
        self.traced = Traced(decl, Declared(decl, self.function, always=True)) if decl.derived else None
        self.direct: Callable[..., Any]  # the implementation, without the dispatcher; set with the public function
        self.reverse = Reverse(decl)
        self.tangent: Callable[..., Any] | None = None
        self.batch: Callable[..., Any] | None = None
        with _lock:
            _defined.pop(decl.qualified, None)
            _withdraw(decl)
            check_autocast(decl)
            self.record = make_function(self.reverse, self.forward_mode)
            try:
                self.library = _library(decl)
                self.overload = self._register(self.library, decl.name)
                if self.kept is not None:
                    transparent[self.overload] = self.function
                self.in_graphs = [self.overload]  # what torch.compile calls
                self.sharded = self._shard()
                _defined[decl.qualified] = self
            except BaseException:
                _withdraw(decl)
                raise

    @property
    def current(self) -> bool:
        """Whether it has not been defined again since."""
        return _defined.get(self.declaration.qualified) is self

    def _register(self, library: torch.library.Library, packet: str, overload: str = "") -> torch._ops.OpOverload:
        """Put the operator into torch's registry, under a name and that of an overload."""
        decl = self.declaration
        name = f"{packet}.{overload}" if overload else packet
        library.define(decl.schema.replace(decl.name, name, 1), tags=(torch.Tag.pt2_compliant_tag,))
        found = getattr(getattr(getattr(torch.ops, decl.namespace), packet), overload or "default")
        for key in ("CPU", "CUDA"):
            library.impl(name, self._run, key)
        torch.library.register_fake(f"{decl.namespace}::{name}", self._fake, lib=library)
        library.impl(name, partial(self._autograd, found), "Autograd", with_keyset=True)
        if decl.autocast is not None:
            register_autocast(decl, library, name, found)
        rule = partial(self._batched, found)
        torch.library.register_vmap(f"{decl.namespace}::{name}", rule, lib=library)
        library.impl(name, partial(run_formerly_batched, decl.qualified, rule), "Batched")
        return found

    def _trace(self, args: Sequence[Any]) -> Any:
        return trace(self.declaration, self.function, args, launching=True)

    def _shard(self) -> bool:
        """Tell DTensor how it shards; whether there is nothing left to tell."""
        return register_shardings(self.declaration, (self.overload, self.in_graphs[0]), self.reverse.overload)

    # --- what the dispatcher calls ------------------------------------------------------------------------------------

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        decl = self.declaration
        full = args if len(args) == len(decl.params) else decl.arrange(*args, **kwargs)
        one_device(decl, full)
        with operator_state.inside_op():
            result = self.direct(*full)
        no_aliases(decl, result, full)
        return result

    def _fake(self, *args: Any, **kwargs: Any) -> Any:
        decl = self.declaration
        full = decl.arrange(*args, **kwargs)
        reject_layouts(decl, full)
        one_device(decl, full)
        with operator_state.inside_op(fake=True), self._declared(full):
            result = decl.call(self.function, full)
        verify(decl, result, full)
        return result

    def _declared(self, args: Sequence[Any]) -> Any:
        """Within it, launches write to what is declared to be changed alone."""
        return self.launch.looked_through(args) if isinstance(self.launch, Declared) else contextlib.nullcontext()

    # --- autograd -----------------------------------------------------------------------------------------------------

    def _autograd(self, overload: Any, keyset: Any, *args: Any, **kwargs: Any) -> Any:
        if not self.sharded:
            self.sharded = self._shard()
        try:
            return self._above(overload, keyset, *args, **kwargs)
        except NotImplementedError:  # what torch raises where tensors of such a layout have no implementation
            reject_layouts(self.declaration, self.declaration.arrange(*args, **kwargs))
            raise

    def _above(self, overload: Any, keyset: Any, *args: Any, **kwargs: Any) -> Any:
        recorded = torch.is_grad_enabled() and private.any_requires_grad(*args, **kwargs)
        if not recorded and not private.forward_mode():
            with private.below_autograd():
                return overload.redispatch(keyset & private.after_autograd, *args, **kwargs)
        full = self.declaration.arrange(*args, **kwargs)
        below = _Call(self.declaration, overload, keyset)
        flat = self.declaration.flat(full)
        if recorded:
            reject_changes(self.declaration, full)
        try:
            with private.single_level():
                found = self.apply(below, full, flat)
        finally:
            below.saved = ()
        decl = self.declaration
        if not decl.in_place:
            return found
        found = found if isinstance(found, tuple) else (found,)
        hidden = found[len(found) - len(decl.hidden) :]
        return None if not hidden else hidden[0] if len(hidden) == 1 else hidden

    def apply(self, run: Callable[..., Any], args: Sequence[Any], flat: Sequence[Any]) -> Any:
        """Run through the autograd function."""
        decl = self.declaration
        values = [a for p, a in zip(decl.params, args, strict=True) if not p.is_tensor]
        if decl.has_lists:
            counts = tuple(len(a) for p, a in zip(decl.params, args, strict=True) if p.kind == "list")
            return self.record.apply(run, counts, *values, *flat)
        return self.record.apply(run, *values, *flat)

    @property
    def recorded(self) -> tuple[Any, Any, tuple[int, ...] | None] | None:
        """How a call is made that only autograd has to know of: ``function.apply(run, *inputs)``.

        With the autograd function and `run` come the places of what it saves among inputs and outputs, or None if it
        keeps more than that. None where the call is another one.
        """
        decl = self.declaration
        if decl.values or decl.has_lists or decl.hidden or decl.in_place or decl.derived or decl.autocast is not None:
            return None
        names = [*(p.name for p in decl.params), *decl.outputs]
        more = decl.described or decl.save_for
        return self.record, self.direct, None if more else tuple(map(names.index, decl.save))

    def native_for_users(self) -> None:
        """Have calls whose launches are known go to native code, also those that autograd has to know of."""
        decl = self.declaration
        if self.kept is None:
            return
        names = [*(p.name for p in decl.params), *decl.returned]
        order = [k for k, p in enumerate(decl.params) if not p.is_tensor]
        order += [k for k, p in enumerate(decl.params) if p.is_tensor]
        places = None if decl.save_for else list(map(names.index, decl.save))
        self.kept.calls.for_users(self.record, self.direct, order, len(decl.returned), len(decl.hidden), places)

    def forward_mode(self, run: Any, about: Any, tangents: Sequence[torch.Tensor | None]) -> Any:
        """The tangents of what the autograd function returns."""
        with run.below.forward_mode():
            return self._tangents(run, about, tangents)

    def _tangents(self, run: Any, about: Any, tangents: Sequence[torch.Tensor | None]) -> Any:
        decl = self.declaration
        values, shapes, _, counts = about
        # Of tensors that carry a tangent only the value: the jvp must not be differentiated at its own level.
        run.saved = tuple(None if t is None else forward_ad.unpack_dual(t).primal for t in run.saved)
        ctx = make_context(decl, run.saved, values, [t is not None for t in tangents], shapes, counts)
        if self.tangent is not None:
            found = composed(
                self.tangent, ctx, *(nest(tangents, decl.tensors, decl, counts) if decl.has_lists else tangents)
            )
        elif decl.elementwise and self.reverse.function is not None:
            found = elementwise_jvp(self.reverse, run.saved, about, tangents)
        else:
            what_to_do = (
                "use reverse mode: torch.func.vjp, jacrev" if decl.finished else f"define one with @{decl.name}.jvp"
            )
            raise NotImplementedError(f"{decl.qualified} has no forward-mode derivative; {what_to_do}")
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

    @api_boundary
    def set_backward(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Define the backward."""
        if self.reverse.function is not None:
            raise ValueError(
                f"{self.declaration.qualified} already has a backward; define the operator again to change it"
            )
        if self.declaration.in_place and any(p.kind == "list" for p in self.declaration.mutated):
            raise TypeError(f"{self.declaration.qualified}: an operator that changes a list of tensors has no backward")
        with _lock:
            try:
                library = _library(self.declaration)
                self.reverse.define(function, library)
                # A compiled graph kept on disk is found again by what it calls, and has the backward's name in it. So
                # graphs call a name of the operator that tells backwards of other saved tensors or schemas apart, too.
                # It is not an overload of the same name: torch mixes those up by their parameters when it removes them
                # from its registry.
                self.in_graphs[0] = self._register(library, f"{self.declaration.name}_compiled", self.reverse.hash)
                self.sharded = self._shard()
                self.reverse.function = function  # there is a backward from here on
            except BaseException:
                self.reverse.function, self.reverse.overload, self.in_graphs[0] = None, None, self.overload
                _withdraw(self.declaration, but=self.library)
                raise
        return function

    def set_jvp(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Define the forward-mode derivative."""
        self.tangent = function
        return function

    def set_vmap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Define the rule for vmap."""
        self.batch = function
        return function

    def one_by_one(self, info: Any, dims: Sequence[Any], *args: Any) -> Any:
        """A rule for vmap: a call for each item of the batch."""
        if self.declaration.in_place:
            return each_in_place(self.declaration, self.overload, info.batch_size, dims, args), None
        found = one_by_one(lambda *item: self.declaration.call(self.overload, item), info.batch_size, dims, args)
        return (found[0], 0) if len(found) == 1 else (tuple(found), (0,) * len(found))

    # --- vmap ---------------------------------------------------------------------------------------------------------

    def _batched(self, overload: Any, info: Any, dims: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        args = self.declaration.arrange(*args, **kwargs)
        dims = (*dims, *[None] * (len(args) - len(dims)))  # those of defaults, which the dispatcher leaves out
        if self.batch is not None:
            found, out_dims = self.batch(info, dims, *args)
            return unboxed(self.declaration, found), unboxed(self.declaration, out_dims)
        return (run_batched if self.declaration.elementwise else reject_batches)(
            self.declaration, overload, info, dims, args
        )


@dataclass(slots=True, eq=False)
class _Call:
    """The operator below autograd, for one call; holds what forward mode needs until that call is over."""

    declaration: Declaration
    overload: Any
    keyset: Any
    below: private.Below = field(default_factory=private.Below)
    saved: tuple[Any, ...] = ()

    @property
    def watched(self) -> bool:
        return private.forward_mode()

    def __call__(self, *args: Any) -> Any:
        keys = self.keyset & private.after_autograd
        with self.below:
            return self.declaration.call(partial(self.overload.redispatch, keys), args)


def _learned(kept: Kept, function: Callable[..., Any], *args: Any) -> Any:
    """Call a function, and keep its launches."""
    found = kept.learn(args)
    return function(*args) if found is None else found


_defined: dict[str, Operator] = {}
#: What torch's registry may have under an operator's name, of definitions that were interrupted as well.
_libraries: dict[str, list[torch.library.Library]] = {}
_lock = Lock()


def _library(decl: Declaration) -> torch.library.Library:
    """A library for parts of an operator; it is known before there is something in it."""
    found = torch.library.Library(decl.namespace, "FRAGMENT")
    _libraries.setdefault(decl.qualified, []).append(found)
    return found


def _withdraw(decl: Declaration, but: torch.library.Library | None = None) -> None:
    """Take an operator out of torch's registry, but for one of its libraries."""
    names = tuple(f"{decl.qualified}{end}" for end in ("", "_compiled", "_backward"))
    libraries = _libraries.get(decl.qualified, [])
    for library in [each for each in libraries if each is not but]:
        private.destroy(library, names)
        libraries.remove(library)
