"""The backward of an operator, which is an operator of its own: ``ns::name_backward``."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from rawkern.base import operator_state
from rawkern.base import torch_private as private
from rawkern.errors import LaunchError
from rawkern.operators.batching import batched, one_by_one, run_formerly_batched, without_batch
from rawkern.operators.context import make_context, nest
from rawkern.operators.declaration import Declaration
from rawkern.operators.unknown import raising, unknown


class Reverse:
    """An operator's backward: the user's function, once it is defined, and the operator around it.

    Gradients, saved tensors and so on are flat here: the items of lists stand among the others, and `counts` tells how
    many each list has.
    """

    def __init__(self, declaration: Declaration) -> None:
        self.declaration = declaration
        self.function: Callable[..., Any] | None = None
        self.saved = [declaration.param(name) for name in declaration.save]
        self.overload: Any = None
        #: Whether its steps, where they are to be differentiated, compute hidden outputs again from the inputs.
        self.recomputes = False

    def define(self, function: Callable[..., Any], library: torch.library.Library) -> None:
        """Put the operator around the user's function into torch's registry; it is ready once `function` is set."""
        decl = self.declaration
        taken = {p.name for p in decl.params} | set(decl.outputs) | set(decl.hidden)

        def free(name: str) -> str:
            while name in taken:
                name += "_"
            return name

        params = [f"Tensor? {free(f'grad_{name}')}" for name in decl.outputs]
        params += [
            f"{'Tensor[]' if p is not None and p.kind == 'list' else 'Tensor?'} {name}"
            for name, p in zip(decl.save, self.saved, strict=True)
        ]
        params += [f"{p.type} {p.name}" for p in decl.values]
        params += [f"bool[] {free('needs')}", f"SymInt[] {free('sizes')}", f"int[] {free('ranks')}"]
        params += [f"int[] {free('counts')}"]
        many = ", ".join(["Tensor"] * len(decl.tensors))
        returns = "Tensor[]" if decl.has_lists else f"({many})"
        name = f"{decl.name}_backward"
        rest = f"({', '.join(params)}) -> {returns}"
        # A graph that was compiled and kept on disk calls this name. With another save or schema it must not find it.
        seed = f"{decl.schema} {decl.save} {decl.hidden} {rest}"
        self.hash = f"r{hashlib.sha256(seed.encode()).hexdigest()[:12]}"
        full = f"{name}.{self.hash}"
        library.define(f"{full}{rest}", tags=(torch.Tag.pt2_compliant_tag,))
        for key in ("CPU", "CUDA"):
            library.impl(full, self._run, key)
        torch.library.register_fake(f"{decl.namespace}::{full}", self._fake, lib=library)
        library.impl(full, self._autograd, "Autograd", with_keyset=True)
        library.impl(full, self._at_vmap, "FuncTorchBatched")
        library.impl(full, partial(run_formerly_batched, decl.qualified, self._formerly_batched), "Batched")
        self.overload = getattr(getattr(getattr(torch.ops, decl.namespace), name), self.hash)

    # --- the user's function ------------------------------------------------------------------------------------------

    def compute(
        self, grads: Sequence[Any], saved: Sequence[Any], values: Any, needs: Any, shapes: Any, counts: Any
    ) -> tuple[torch.Tensor | None, ...]:
        """Run the user's function; one gradient, or None, for each tensor input."""
        assert self.function is not None
        if not self.declaration.strided:
            grads = [g if g is None or g.is_contiguous() else g.contiguous() for g in grads]
        found = self.function(make_context(self.declaration, saved, values, needs, shapes, counts), *grads)
        return self._flat(found, needs, counts)

    def fitting(
        self, found: Any, needs: Sequence[bool], shapes: Any, dtypes: Any, counts: Any
    ) -> tuple[torch.Tensor | None, ...]:
        """What the user's function returned, flat; raises for gradients that do not fit their inputs."""
        return self.checked(self._flat(found, needs, counts), shapes, dtypes, counts)

    def checked(
        self, flat: tuple[torch.Tensor | None, ...], shapes: Any, dtypes: Any, counts: Any
    ) -> tuple[torch.Tensor | None, ...]:
        """Raise for gradients that do not fit their inputs."""
        for i, grad in enumerate(flat):
            if grad is not None and (grad.shape != shapes[i] or grad.dtype is not dtypes[i]):
                self._reject(i, grad, shapes[i], dtypes[i], counts)
        return flat

    def _flat(self, found: Any, needs: Sequence[bool], counts: Sequence[int]) -> tuple[torch.Tensor | None, ...]:
        decl = self.declaration
        found = (None,) * len(decl.tensors) if found is None else (found,) if isinstance(found, torch.Tensor) else found
        if not isinstance(found, (tuple, list)) or len(found) not in (len(decl.params), len(decl.tensors)):
            got = f"{len(found)} gradients" if isinstance(found, (tuple, list)) else f"a {type(found).__name__}"
            names = ", ".join(p.name for p in decl.tensors)
            raise RuntimeError(
                f"the backward of {decl.qualified} returned {got}; it returns one for each tensor ({names}), "
                "None where there is none"
            )
        if len(found) != len(decl.tensors):
            for p, grad in zip(decl.params, found, strict=True):
                if grad is not None and not p.is_tensor:
                    raise RuntimeError(
                        f"the backward of {decl.qualified} returned a gradient for {p.name}, which is not a tensor; "
                        "return None in its place"
                    )
            found = [grad for p, grad in zip(decl.params, found, strict=True) if p.is_tensor]
        if counts:
            lengths, flat = iter(counts), []
            for p, grad in zip(decl.tensors, found, strict=True):
                if p.kind != "list":
                    flat.append(grad)
                    continue
                n = next(lengths)
                if grad is not None and (not isinstance(grad, (tuple, list)) or len(grad) != n):
                    raise RuntimeError(f"the backward of {decl.qualified} returns for {p.name} a list of {n} gradients")
                flat += [None] * n if grad is None else grad
            found = flat
        for i, grad in enumerate(found):
            if grad is not None and not isinstance(grad, torch.Tensor):
                raise RuntimeError(
                    f"the backward of {decl.qualified} returned a {type(grad).__name__} for "
                    f"{self._argument(i, counts)}; a gradient is a tensor or None"
                )
        return tuple(grad if need else None for grad, need in zip(found, needs, strict=True))

    def _argument(self, index: int, counts: Sequence[int]) -> str:
        names, lengths = [], iter(counts)
        for p in self.declaration.tensors:
            names += [f"{p.name}[{i}]" for i in range(next(lengths))] if p.kind == "list" else [p.name]
        return names[index]

    def _reject(self, index: int, grad: torch.Tensor, shape: Any, dtype: torch.dtype, counts: Sequence[int]) -> None:
        """Raise for a gradient that does not fit its input."""
        name = self._argument(index, counts)
        if grad.shape != shape:
            got, is_ = f"has shape {tuple(grad.shape)}", f"shape {tuple(shape)}"
        else:
            got, is_ = f"is {grad.dtype}", f"{dtype}"
        raise RuntimeError(
            f"the backward of {self.declaration.qualified} returned a gradient for {name} that {got}, "
            f"where {name} has {is_}"
        )

    # --- the operator -------------------------------------------------------------------------------------------------

    def call(
        self, grads: Sequence[Any], saved: Sequence[Any], values: Any, needs: Any, shapes: Any, counts: Any
    ) -> tuple[torch.Tensor | None, ...]:
        """Go through the dispatcher; as `compute`."""
        if counts:
            saved = nest(saved, self.saved, self.declaration, counts)
        sizes = [size for shape in shapes if shape is not None for size in shape]
        ranks = [-1 if shape is None else len(shape) for shape in shapes]
        found = self.overload(*grads, *saved, *values, list(needs), sizes, ranks, list(counts))
        found = (found,) if isinstance(found, torch.Tensor) else found
        return tuple(grad if need and not _is_nothing(grad) else None for grad, need in zip(found, needs, strict=True))

    def _unpack(self, args: Sequence[Any]) -> tuple[Any, ...]:
        """Arguments of the operator as those of `compute`."""
        decl = self.declaration
        first, second = len(decl.outputs), len(decl.outputs) + len(decl.save)
        needs, sizes, ranks, counts = args[second + len(decl.values) :]
        saved: list[Any] = []
        for item in args[first:second]:
            saved += item if isinstance(item, (list, tuple)) else [item]
        shapes = _shapes(sizes, ranks)
        same = next((g.shape for g in args[:first] if g is not None), None)
        if self.declaration.elementwise and same is not None and all(s == shapes[0] for s in shapes if s is not None):
            # Those of this call: batches of vmap and shards of a DTensor have other sizes than the whole.
            shapes = [None if s is None else same for s in shapes]
        return args[:first], saved, args[second : second + len(decl.values)], needs, shapes, counts

    def _packed(self, found: Sequence[Any], like: torch.Tensor) -> Any:
        """What the operator returns: an empty tensor of bools where there is no gradient."""
        full = [torch.empty(0, dtype=torch.bool, device=like.device) if grad is None else grad for grad in found]
        return full if self.declaration.has_lists else full[0] if len(full) == 1 else tuple(full)

    def _below(self, args: Sequence[Any]) -> Any:
        unpacked = self._unpack(args)
        given = [t for t in (*unpacked[0], *unpacked[1]) if t is not None]
        found = list(self.compute(*unpacked))
        for i, grad in enumerate(found):  # an operator's outputs are memory of their own
            if grad is not None and any(private.same_memory(grad, t) for t in (*given, *found[:i]) if t is not None):
                found[i] = grad.clone()
        return self._packed(found, given[0])

    def _run(self, *args: Any) -> Any:
        with operator_state.inside_op():
            return self._below(args)

    def _fake(self, *args: Any) -> Any:
        with operator_state.inside_op(fake=True):
            return self._below(args)

    def _autograd(self, keyset: Any, *args: Any) -> Any:
        unpacked = self._unpack(args)
        given = [t for t in (*unpacked[0], *unpacked[1]) if t is not None]

        modes = private.Below()

        def below() -> Any:
            with modes:
                return self.overload.redispatch(keyset & private.after_autograd, *args)

        recorded = torch.is_grad_enabled() and any(t.requires_grad for t in given)
        if not recorded and not private.forward_mode():
            return below()
        try:
            guarded = (unpacked[0], self._guarded(unpacked[1], unpacked[0]), *unpacked[2:])
            return self._packed(composed(self.compute, *guarded), given[0])
        except LaunchError:
            pass
        with private.single_level():
            return _once(self.declaration).apply(below, *given)

    def _guarded(self, saved: list[Any], grads: Sequence[Any]) -> list[Any]:
        """Hidden outputs depend on the inputs in a way that nothing here knows: a derivative that needs it raises."""
        decl = self.declaration
        if not decl.hidden or decl.has_lists:
            return saved
        anchors = [t for t in saved if t is not None and t.requires_grad]  # the inputs, if they are there
        anchors = anchors or [t for t in grads if t is not None and t.requires_grad]
        if not anchors:
            return saved
        found = list(saved)
        for i, name in enumerate(decl.save):
            t = saved[i]
            if name in decl.hidden and t is not None and t.is_floating_point():
                found[i] = unknown(
                    t,
                    anchors,
                    f"{decl.qualified}: its hidden output {name} has no derivative, and the backward reads it, so the "
                    "operator cannot be differentiated twice; "
                    + (_INSTEAD if decl.finished else "let the backward compute it again from the inputs"),
                )
        return found

    # --- vmap ---------------------------------------------------------------------------------------------------------

    def _at_vmap(self, *args: Any) -> Any:
        """With batched tensors: step by step where the backward consists of operators, else by the rule."""
        if self._in_steps(args, [t.shape for t in self._tensors(args)]):
            try:
                return self._packed(composed(self.compute, *self._unpack(args)), self._tensors(args)[0])
            except RuntimeError:  # a launch, or a step without a rule; each item alone says what is wrong with it
                pass
        return private.by_vmap_rule(self._batched, self.overload, *args)

    def _formerly_batched(self, info: Any, dims: Sequence[Any], *args: Any) -> Any:
        """The rule for torch's former vmap, which has none for many steps: they go through the present one."""
        places = [i for i, a in enumerate(args) if isinstance(a, torch.Tensor)]

        def run(*tensors: torch.Tensor) -> Any:
            full = dict(zip(places, tensors, strict=True))
            return self._at_vmap(*(full.get(i, a) for i, a in enumerate(args)))

        if self.declaration.has_lists:
            return self._batched(info, dims, *args)
        found = torch.func.vmap(run, tuple(dims[i] for i in places))(*(args[i] for i in places))
        return found, 0 if isinstance(found, torch.Tensor) else (0,) * len(found)

    def _tensors(self, args: Sequence[Any]) -> list[torch.Tensor]:
        return [t for t in args[: len(self.declaration.outputs) + len(self.declaration.save)] if t is not None]

    def _in_steps(self, args: Sequence[Any], shapes: Sequence[Any]) -> bool:
        """Whether to try the steps: not where one call does the batch, nor where a derivative has to be guarded."""
        decl = self.declaration
        guarded = set(decl.hidden).intersection(decl.save) and not self.recomputes
        return not (decl.has_lists or guarded or self._one_shape(args, shapes))

    def _one_shape(self, args: Sequence[Any], shapes: Sequence[Any]) -> bool:
        every = [*(s for s in _shapes(*args[-3:-1]) if s is not None), *(s for s in shapes if s is not None)]
        return self.declaration.elementwise and all(s == every[0] for s in every)

    def _batched(self, info: Any, dims: Sequence[Any], *args: Any) -> Any:
        """The rule for vmap: elementwise operators do the whole batch at once, others are called for each item."""
        second = len(self.declaration.outputs) + len(self.declaration.save)
        if self._one_shape(args, without_batch(dims[:second], args[:second])):
            found = self.overload(
                *batched(self.declaration.strided, [i < second for i in range(len(args))], info.batch_size, dims, args)
            )
            many = [found] if isinstance(found, torch.Tensor) else found
        else:
            many = one_by_one(self.overload, info.batch_size, dims, args, _is_nothing)
        out = [None if _is_nothing(t) else 0 for t in many]
        if self.declaration.has_lists:
            return list(many), out
        return (many[0], out[0]) if len(many) == 1 else (tuple(many), tuple(out))


def _shapes(sizes: Sequence[int], ranks: Sequence[int]) -> list[torch.Size | None]:
    """The shapes of the inputs, as the operator gets them: all sizes and how many each has, -1 for none."""
    found, at = [], 0
    for rank in ranks:
        found.append(None if rank < 0 else torch.Size(sizes[at : at + rank]))
        at += max(rank, 0)
    return found


def _is_nothing(grad: torch.Tensor) -> bool:
    return grad.dtype is torch.bool


def composed(function: Callable[..., Any], *args: Any) -> Any:
    """Call a function whose steps are themselves to be differentiated; a raw launch in it raises `LaunchError`."""
    with operator_state.inside_op(composed=True):
        return function(*args)


_INSTEAD = "where second derivatives are needed, take torch's functions instead"  # the caller cannot fix it


def _once(decl: Declaration) -> Any:
    """An autograd function for what launches kernels itself, and so has no derivative."""
    name = f"{decl.qualified}_backward"
    what_to_do = "make it of differentiable operators (a kernel in it becomes one through rawkern.op)"
    what_to_do = _INSTEAD if decl.finished else what_to_do
    return raising(
        f"{name} launches kernels itself, so it cannot be differentiated again; {what_to_do}",
        f"{name} launches kernels itself and has no forward-mode derivative; {what_to_do}",
    )
