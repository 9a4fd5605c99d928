"""``rawkern.op(backward="derive")``: the backward of an operator from the derived backwards of its launches."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

import torch

from rawkern.base import environment, operator_state
from rawkern.base import torch_private as private
from rawkern.errors import LaunchError, NotDifferentiable
from rawkern.gradients.derived import Derived, Shape
from rawkern.gradients.launching import summed
from rawkern.gradients.verify import overlap
from rawkern.kernel import RawKernel
from rawkern.launch.builds import last_edit
from rawkern.operators.declaration import Declaration
from rawkern.operators.recording import Memory, Recorded, Recording, Trace, replayed
from rawkern.operators.second import Second, apart, check_deterministic
from rawkern.operators.traced import Traced, carried
from rawkern.operators.unknown import unknown

VERIFY = "RAWKERN_VERIFY"  # "1": derived backwards are verified at their first use; set by the plugin for pytest
MOST_VERIFIED = 100_000  # elements of the tensors of a launch that is verified unasked


def check_declaration(decl: Declaration) -> None:
    """Reject operators whose backward cannot be derived, whatever they launch."""
    name = decl.qualified
    if decl.in_place or any(p.mutated for p in decl.params):
        raise TypeError(
            f"{name}: backward='derive' does not support operators that change arguments; return new tensors"
        )
    if decl.hidden:
        raise TypeError(f"{name}: backward='derive' needs no hidden outputs; remove hidden=")
    if decl.has_lists:
        raise TypeError(f"{name}: backward='derive' does not support lists of tensors; pass them one by one")
    if tuple(decl.save) != tuple(p.name for p in decl.tensors):
        raise TypeError(f"{name}: backward='derive' saves all tensors; remove save=")


def derived_backward(traced: Traced, max_iterations: int | None, verify: bool | None) -> Callable[..., Any]:
    """The backward of an operator, as `rawkern.op` takes one."""
    decl = traced.declaration
    settings = _Settings(decl.qualified, traced, max_iterations, verify, last_edit())

    def backward(ctx: Any, *grads: torch.Tensor | None) -> Any:
        saved = iter(ctx.saved_tensors)
        args = [next(saved) if p.is_tensor else getattr(ctx, p.name) for p in decl.params]
        if operator_state.in_fake_op():
            return [torch.empty_like(a) if need else None for a, need in zip(args, ctx.needs_input_grad, strict=True)]
        if operator_state.composing():
            tensors = [t for t in (*args, *grads) if isinstance(t, torch.Tensor)]
            seen = private.forward_mode() or private.transforms() or private.dispatch_modes()
            if seen or any(t.numel() and not private.has_memory(t) for t in tensors):
                raise LaunchError(f"{decl.qualified}: its derived backward consists of launches")
            return _Twice.apply(settings, args, list(ctx.needs_input_grad), len(grads), *grads, *args)
        node = getattr(ctx, "node", None)  # of autograd's graph; None where the backward was called as an operator
        return _Run(settings, args, ctx.needs_input_grad, node).gradients(grads)

    return backward


@dataclass
class _Settings:
    """What all runs of an operator's backward share."""

    name: str
    traced: Traced
    max_iterations: int | None
    verify: bool | None
    edit: int  # the last edit of any source when the operator was defined
    known: weakref.WeakKeyDictionary[Any, dict[Any, Derived | NotDifferentiable]] = field(
        default_factory=weakref.WeakKeyDictionary
    )
    verified: weakref.WeakSet[Derived] = field(default_factory=weakref.WeakSet)


class _Run:
    """One run of a derived backward, of what the forward did; `node` of autograd's graph may have kept that."""

    def __init__(self, settings: _Settings, args: list[Any], needs: Sequence[bool], node: Any) -> None:
        self.settings, self.name = settings, settings.name
        self.args, self.needs = list(args), needs
        for k, a in enumerate(self.args):
            if isinstance(a, torch.Tensor):
                self.args[k] = self._apart(a.detach(), self.args[:k])
        known: Trace | None = node.trace if node is not None and node.trace is not None else carried.fitting(self.args)
        self.edit = known.edit if known is not None else None  # None: which the forward knew is not known
        self.trace = known if known is not None else settings.traced.again(self.args)
        if self.trace.rejection:
            raise NotDifferentiable(self.trace.rejection)
        self.recording: Recording = replayed(self.trace, self.args)
        self.buffers: dict[Memory, torch.Tensor] = {}
        self.borrowed: dict[Memory, torch.Tensor] = {}  # whose buffers are another tensor's memory: that

    def _apart(self, a: torch.Tensor, before: list[Any]) -> torch.Tensor:
        """A tensor that shares no memory with other arguments, so that memory identifies arguments."""
        if not a.is_contiguous():
            raise NotDifferentiable(
                f"{self.name}: a derived backward takes contiguous tensors; call .contiguous() first"
            )
        return a.clone() if any(isinstance(b, torch.Tensor) and overlap(a, b) for b in before) else a

    def gradients(self, grads: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
        """The gradient of each argument that needs one."""
        self._same_texts()
        plans = self._plans()
        self._recompute(plans)
        self._same_texts()  # still
        for output, grad in zip(self.recording.outputs, grads, strict=True):
            if grad is not None and grad.numel():
                self._start(output, grad)
        for launch, found in reversed(plans):
            if found is not None:
                self._reverse(launch, found)
        result: list[torch.Tensor | None] = []
        for k, (a, need) in enumerate(zip(self.args, self.needs, strict=True)):
            memory = next((m for m in self.recording.memories if m.input == k), None)
            if not need:
                result.append(None)
            elif memory is None or memory not in self.buffers:
                self._unused(k)
                result.append(torch.zeros_like(a))
            else:
                result.append(self._given_out(memory, a))
        return result

    def second(self) -> Second:
        """What derives this backward again."""
        self._same_texts()
        return Second(self.name, self.recording, self.args, self.needs, self._plans(), self._derived)

    def _unused(self, k: int) -> None:
        """Reject memory that no launch was given but whose address Python read: its use is not known."""
        if k in self.trace.addressed - self.trace.given:
            what = self.settings.traced.declaration.params[k].name
            raise NotDifferentiable(
                f"{self.name}: no launch is given {what}, but its address is read, through which its gradient "
                "would be lost; pass the tensor itself to a launch"
            )

    def _given_out(self, memory: Memory, a: torch.Tensor) -> torch.Tensor:
        """The gradient of an argument; what is another's too is the same object, so that autograd sees it in use.

        Otherwise autograd takes ownership of the gradient's memory and adds to it in place.
        """
        found = self.buffers[memory].view(a.shape).to(a.dtype)
        if memory not in self.borrowed or found.data_ptr() != self.buffers[memory].data_ptr():
            return found
        whole = self.borrowed[memory]
        fits = whole.shape == a.shape and whole.dtype == a.dtype and not whole.requires_grad
        return whole if fits else found.clone()

    # Before ---------------------------------------------------------------------------------------------------------

    def _plans(self) -> list[tuple[Recorded, Derived | None]]:
        """Each launch with its backward, None where no gradient flows; rejects memory that is written again."""
        active = {m for m in self.recording.memories if m.input is not None and self.needs[m.input]}
        events: list[tuple[torch.Tensor, str]] = []
        plans: list[tuple[Recorded, Derived | None]] = []
        for launch in self.recording.launches:
            state = launch.kernel.state()
            own = {p.name for p in state.signature.params}  # not what a derivation before has called arrays
            given = {n: t for n, t in launch.arguments.items() if isinstance(t, torch.Tensor) and n in own}
            pointers = {n: t for n, t in given.items() if t.numel()}
            pointers |= launch.numbers
            memories = {n: m for n, t in pointers.items() if (m := self.recording.memory_of(t)) is not None}
            const = set(launch.numbers)
            const |= {p.name for p in state.signature.params if p.takes_tensor and state.may_write(p) is False}
            wrt = tuple(n for n, m in memories.items() if m in active and m.tensor.is_floating_point())
            found = self._wanted(launch, wrt, const) if wrt else None
            outputs = found.outputs if found is not None else ()
            for n, t in pointers.items():
                adds = found is not None and n in outputs and n not in found.assigned
                kind = "read" if n in const else "add" if adds else "set"
                kind = "change" if found is not None and n in found.before.values() else kind
                self._event(launch, n, t, kind, events, memories[n])
            changed = [n for n in wrt if n not in const and n not in outputs]
            if changed:
                raise NotDifferentiable(
                    f"{self.name}: {launch.kernel.name} gets {', '.join(changed)} through a pointer that is not const, "
                    "so it may change what gradients depend on; declare it const"
                )
            if found is not None:
                found.check_overlaps(pointers)
                launch.arguments.update({n: launch.arguments[of] for n, of in found.before.items()})
            active |= {memories[n] for n in outputs if n in memories}
            plans.append((launch, found))
        return plans

    def _event(
        self,
        launch: Recorded,
        name: str,
        t: torch.Tensor,
        kind: str,
        events: list[tuple[torch.Tensor, str]],
        memory: Memory,
    ) -> None:
        if kind != "read" and memory.input is not None:
            raise NotDifferentiable(
                f"{self.name}: {launch.kernel.name} may write to {name}, an argument of the operator; declare it "
                "const, or give the launch memory of its own"
            )
        for other, before in events:
            clash = kind == "set" or (kind in ("add", "change") and before == "read")
            if clash and overlap(t, other):
                did = "read" if before == "read" else "written"
                raise NotDifferentiable(
                    f"{self.name}: {launch.kernel.name} writes to {name}, which an earlier launch has {did}; "
                    "use memory of its own for each result"
                )
        events.append((t, kind))

    def _wanted(self, launch: Recorded, wrt: Sequence[str], const: Set[str]) -> Derived | None:
        """The backward of a launch by its arguments in `wrt`; of those that are overwritten, as they were before."""
        names = [n for n in wrt if n in const]
        if len(names) < len(wrt):
            with contextlib.suppress(NotDifferentiable):  # then nothing is known of it, and it is rejected below
                names += [n for n, of in self._derive(launch, None).before.items() if of in wrt]
        found = self._derive(launch, tuple(names)) if names else None
        if found is not None:
            check_deterministic(found, f"{self.name}: the derived backward of {launch.kernel.name}")
        return found

    def _derive(self, launch: Recorded, wrt: tuple[str, ...] | None) -> Derived:
        config = launch.config
        given = launch.kernel, config.block, config.grid, config.shared_mem, wrt
        try:
            found = self._derived(*given)
        except NotDifferentiable:
            own = {p.name for p in launch.kernel.state().signature.params}
            numbers = {n: v for n, v in launch.arguments.items() if n in own and type(v) is int}
            found = self._with_constants(numbers, *given) if numbers else None
            if found is None:
                raise
        return found.fitting(config.grid, launch.arguments)

    def _with_constants(self, numbers: dict[str, int], *given: Any) -> Derived | None:
        """The backward of launches with these numbers alone, where there is none for all."""
        with contextlib.suppress(NotDifferentiable):
            return self._derived(*given, constants=numbers)
        return None

    def _derived(
        self, kernel: Any, block: Shape, grid: Shape, shared_mem: int, wrt: tuple[str, ...] | None,
        constants: dict[str, int] | None = None,
    ) -> Derived:  # fmt: skip
        """The backward of launches of a kernel, kept as long as that."""
        key = (kernel.build(), block, tuple(n == 1 for n in grid), shared_mem, wrt, *(constants or {}).items())
        cache = self.settings.known.setdefault(kernel, {})
        if key not in cache:
            try:
                cache[key] = RawKernel.of(kernel).derive(
                    block=block, grid=grid, shared_mem=shared_mem, wrt=wrt, max_iterations=self.settings.max_iterations,
                    constants=constants,
                )  # fmt: skip
            except NotDifferentiable as error:
                cache[key] = error
        found = cache[key]
        if isinstance(found, NotDifferentiable):
            raise found.with_traceback(None)
        return found

    def _same_texts(self) -> None:
        """Reject sources that were edited since the forward ran them."""
        for launch in self.recording.launches:
            build = launch.kernel.build()
            if build.edit <= (self.settings.edit if self.edit is None else self.edit):
                continue
            said = f"{self.name}: {build.source.title} was edited since the forward ran; run it again"
            if self.edit is None:
                said = (
                    f"{self.name}: {build.source.title} was edited since the operator was defined, and which text the "
                    "forward of a compiled graph ran is not known; define the operator and compile its callers again"
                )
            raise LaunchError(said)

    def _recompute(self, plans: list[tuple[Recorded, Derived | None]]) -> None:
        """Make the launches again whose results a backward reads, and keep what they overwrite in place."""
        last = len(plans) - 1 if any(d is not None and self._verifies(launch, d) for launch, d in plans) else -1
        for k, (launch, found) in enumerate(plans):
            for n in found.saved if found is not None else ():
                t = launch.arguments[n]
                memory = self.recording.memory_of(t) if isinstance(t, torch.Tensor) and t.numel() else None
                if memory is not None and memory.input is None:
                    last = max(last, k - 1)
        for k, (launch, found) in enumerate(plans[: last + 2]):
            for n, of in found.before.items() if found is not None else ():
                launch.arguments[n] = launch.arguments[of].clone()
            if k <= last:
                launch.make()

    # The run --------------------------------------------------------------------------------------------------------

    def _start(self, output: torch.Tensor | None, grad: torch.Tensor) -> None:
        memory = self.recording.memory_of(output) if output is not None else None
        if output is None or memory is None:
            raise NotDifferentiable(
                f"{self.name}: a result is not a contiguous view of memory that the function allocates; return one"
            )
        fits = output.numel() == memory.tensor.numel() and grad.is_contiguous() and summed(grad.dtype) is grad.dtype
        if memory not in self.buffers and fits and grad.data_ptr() % 16 == 0:
            self.buffers[memory] = grad.detach().view(-1)
            self.borrowed[memory] = grad
        else:
            self._own(memory)
            self._part(memory, output).add_(grad)

    def _own(self, memory: Memory) -> None:
        """Give memory a buffer for its gradient that may be written."""
        if memory in self.borrowed:
            self.buffers[memory] = self.buffers[memory].clone()
            del self.borrowed[memory]
        elif memory not in self.buffers:
            t = memory.tensor
            self.buffers[memory] = torch.zeros(t.numel(), dtype=summed(t.dtype), device=t.device)

    def _whole(self, memory: Memory | None) -> Memory:
        """Memory that is overwritten in place, with a buffer that may be written."""
        assert memory is not None
        self._own(memory)
        return memory

    def _part(self, memory: Memory, t: torch.Tensor) -> torch.Tensor:
        """The part of a memory's gradient that belongs to a tensor in it."""
        at = (t.data_ptr() - memory.start) // t.element_size()
        return self.buffers[memory][at : at + t.numel()].view(t.shape)

    def _reverse(self, launch: Recorded, found: Derived) -> None:
        tensors = {n: t for n, t in launch.arguments.items() if isinstance(t, torch.Tensor)}
        memories = {n: self.recording.memory_of(t) for n, t in (tensors | launch.numbers).items()}
        if not any(memories.get(n) in self.buffers for n in found.outputs):
            return
        memory_of = [memories.get(n) for n in found.wrt]
        whole = {n for n, t in tensors.items() if (m := memories[n]) is not None and t.numel() == m.tensor.numel()}
        kept = {
            n for n, of in found.handed.items()
            if {n, of} - whole or memories[n] in self.buffers or memory_of.count(memories[n]) > 1
            or (memories[of] in self.buffers) == (of in found.wrt) or memory_of.count(memories[of]) > 1
        }  # fmt: skip
        run = found.launch(launch.arguments, launch.config.grid, kept)
        grads, parts = {}, []
        before = {n: (self._whole(memories[of]), of) for n, of in found.before.items() if n in found.wrt}
        for n in sorted((n for kind, n in found.parameters if kind == "grad"), key=lambda n: n in run.handed):
            t, memory = launch.arguments[n], memories.get(n)
            if n in launch.numbers:
                grads[n] = found.start(launch.arguments, n, run)
                parts.append((memory, launch.numbers[n], grads[n]))
                continue
            if n in before:
                part = self._part(before[n][0], launch.arguments[before[n][1]])
                grads[n] = torch.zeros_like(part) if n in found.rest else part.clone()
                continue
            if memory is None or n in run.handed:
                of = memories.get(run.handed.get(n, ""))
                grads[n] = t if of is None else self.buffers[of]
                continue
            if n in found.sets and (memory in self.buffers or memory_of.count(memory) > 1):
                grads[n] = found.start(launch.arguments, n, run)
                parts.append((memory, t, grads[n]))
                continue
            if n in found.sets and t.numel() == memory.tensor.numel():
                self.buffers[memory] = found.start(launch.arguments, n, run).view(-1)
            elif n in found.wrt or n in found.exchanged or memory not in self.buffers:
                self._own(memory)
            grads[n] = self._part(memory, t)
        given = run.given(found.parameters, launch.arguments | found.variables(launch.arguments), grads)
        if self._verifies(launch, found):
            self.settings.verified.add(found)
            old = {of: launch.arguments[n] for n, of in found.before.items()}
            given_to = {n: old.get(n, v) for n, v in launch.arguments.items() if n not in found.before}
            found.verify(launch.config.grid, tuple(given_to.values()))
        run.run(found.block, given)
        for n, of in run.handed.items():
            memory, given_on = memories[n], memories[of]
            assert memory is not None and given_on is not None
            self.buffers[memory] = self.buffers[given_on]
            whole = self.borrowed.setdefault(given_on, self.buffers[given_on].view(launch.arguments[of].shape))
            self.borrowed[memory] = whole
        for n, (memory, of) in before.items():
            part = self._part(memory, launch.arguments[of])
            part.copy_(grads[n] + part if n in found.rest else grads[n])
        for memory, t, part in parts:
            self._own(memory)
            self._part(memory, t).add_(part.view(t.shape).to(t.device))

    def _verifies(self, launch: Recorded, found: Derived) -> bool:
        """Whether this run compares a derived backward with finite differences."""
        if found in self.settings.verified or self.settings.verify is False:
            return False
        tensors = [t for t in launch.arguments.values() if isinstance(t, torch.Tensor)]
        capturing = any(t.is_cuda for t in tensors) and torch.cuda.is_current_stream_capturing()
        if self.settings.verify is None:
            small = sum(t.numel() for t in tensors) <= MOST_VERIFIED
            return small and not capturing and environment.choice(VERIFY, ("0", "1")) == "1"
        if capturing:
            raise LaunchError(
                f"{self.name}: verify=True cannot check while a CUDA graph is captured; run it once before the capture"
            )
        return True


class _Twice(torch.autograd.Function):
    """A derived backward whose own derivative is wanted: that is derived from a plain text of it, by the same pipeline.

    It takes the gradients of the results, then the operator's arguments.
    """

    @staticmethod
    def forward(ctx: Any, settings: _Settings, args: list[Any], needs: list[bool], count: int, *given: Any) -> Any:
        with operator_state.inside_op():
            run = _Run(settings, args, needs, None)
            found = run.gradients(given[:count])
        ctx.run, ctx.count = run, count
        ctx.places = [k for k, t in enumerate(given) if isinstance(t, torch.Tensor)]
        ctx.save_for_backward(*(given[k] for k in ctx.places))
        ctx.set_materialize_grads(False)
        return tuple(apart(found, given))  # autograd wants each for itself

    @staticmethod
    def backward(ctx: Any, *wanted: torch.Tensor | None) -> Any:
        given: list[Any] = [None] * len(ctx.needs_input_grad[4:])
        for k, t in zip(ctx.places, ctx.saved_tensors, strict=True):  # which raises if one was overwritten
            given[k] = t
        with torch.no_grad(), operator_state.inside_op():
            found = ctx.run.second().gradients(given[: ctx.count], wanted)
        needs = ctx.needs_input_grad[4:]
        if torch.is_grad_enabled():
            said = f"{ctx.run.name}: a derived backward can be differentiated once, and this is its third derivative"
            anchors = [t for t in (*given, *wanted) if isinstance(t, torch.Tensor) and t.requires_grad]
            found = [None if g is None else unknown(g, anchors, said) for g in found]
        return None, None, None, None, *(g if need else None for g, need in zip(found, needs, strict=True))
