"""What an operator's function does, as data: the memory it has and its launches, with the very values they were given.

The backward that is derived is of these launches. The function itself may draw a seed, or read what changes; so it is
not asked again where the forward's recording is at hand.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from rawkern.arguments.addresses import Address
from rawkern.arguments.signature import Param
from rawkern.arguments.slow_path import Arguments, arrange
from rawkern.base import operator_state
from rawkern.base import torch_private as private
from rawkern.errors import NotDifferentiable
from rawkern.launch import intercept
from rawkern.launch.builds import last_edit
from rawkern.launch.config import LaunchConfig
from rawkern.launch.unit import Kernel, State, device_of
from rawkern.operators.declaration import Declaration

#: Allocations, and which argument they are filled with: a number, or the place of the one that says it.
_FILLED: dict[str, Callable[[Any, Any], Any]] = {
    **dict.fromkeys(("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"), lambda a, k: None),
    **dict.fromkeys(("zeros", "zeros_like", "new_zeros"), lambda a, k: 0),
    **dict.fromkeys(("ones", "ones_like", "new_ones"), lambda a, k: 1),
    **dict.fromkeys(("full", "full_like"), lambda a, k: k["fill_value"] if "fill_value" in k else a[1]),
    "new_full": lambda a, k: k["fill_value"] if "fill_value" in k else a[2],
}
_VIEWS = frozenset(
    ("view", "_unsafe_view", "reshape", "as_strided", "slice", "select", "squeeze", "unsqueeze", "transpose", "t",
     "permute", "expand", "alias", "detach", "narrow", "split", "unbind", "_reshape_alias", "split_with_sizes",
     "chunk", "unfold", "diagonal", "lift_fresh")
)  # fmt: skip
_CONVERSIONS = frozenset(("to", "resolve_neg", "resolve_conj"))  # which return what needs none itself
_T: Any = torch.Tensor
#: Methods through which Python gets at the numbers of a tensor, and past torch's calls.
_READERS = {_T.numpy, _T.tolist, _T.__array__, _T.__dlpack__, _T.__dlpack_device__, _T.__cuda_array_interface__.__get__}
_ADDRESSES = {_T.data_ptr, _T.untyped_storage, _T.storage}


class Held(NamedTuple):
    """Memory that a function has: an argument, or what it allocates."""

    input: int | None  # which parameter
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    fill: Any = None


class Part(NamedTuple):
    """A contiguous tensor within a memory."""

    memory: int
    offset: int  # elements
    shape: tuple[int, ...]


class Empty(NamedTuple):
    """A tensor without elements."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


class Absent(NamedTuple):
    """A result that is None."""


class Step(NamedTuple):
    """A launch: its arguments by name, tensors as parts; `numbers` are tensors that were passed by value."""

    launcher: Any
    kernel: Kernel
    config: LaunchConfig
    arguments: dict[str, Any]
    numbers: dict[str, Part]
    values: tuple[Any, ...]  # what tells launches apart
    by_address: bool  # whether all that the kernel is told of tensors, of any strides, is where they are


@dataclass
class Trace:
    """What one run of a function did."""

    memories: list[Held] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    outputs: list[Part | Empty | Absent | None] = field(default_factory=list)  # None: no such part of its memory
    given: set[int] = field(default_factory=set)  # parameters whose memory a launch got
    addressed: set[int] = field(default_factory=set)  # those whose address Python was told
    rejection: str = ""  # why nothing can be derived of it
    edit: int = 0  # the last of any source

    def same(self) -> tuple[Any, ...]:
        """What two runs have to have in common for one to stand for the other."""
        return self.rejection, *self.memories, *self.outputs, *(s.values for s in self.steps)

    def fits(self, args: Sequence[Any]) -> bool:
        """Whether it may be that of a call with these arguments."""
        inputs = {m.input: m for m in self.memories if m.input is not None}
        return all(
            (tuple(a.shape), a.dtype, a.device) == (inputs[k].shape, inputs[k].dtype, inputs[k].device)
            if k in inputs
            else a.numel() == 0
            for k, a in enumerate(args)
            if isinstance(a, torch.Tensor)
        )


# A run that is seen through ------------------------------------------------------------------------------------------


def trace(decl: Declaration, function: Callable[..., Any], args: Sequence[Any], launching: bool) -> tuple[Any, Trace]:
    """Call an operator's function; what it returns, and what it did. Without `launching` its launches do nothing."""
    run = _Run(decl.qualified, [p.name for p in decl.params], apart(args), launching)
    return _traced(run, lambda *args: decl.call(function, args))


def trace_through(name: str, function: Callable[..., Any], args: Sequence[Any]) -> tuple[Any, Trace]:
    """As `trace`, of a function that may call operators which themselves allocate and launch, and no more than that.

    No two of its tensors share memory.
    """
    return _traced(_Run(name, [f"argument {k}" for k in range(len(args))], args, True, True), function)


#: The functions of operators that can be seen through.
transparent: dict[Any, Callable[..., Any]] = {}


def _traced(run: _Run, function: Callable[..., Any]) -> tuple[Any, Trace]:
    with intercept.intercepted(run.launched, own_thread=True), operator_state.inside_op(), _Reads(run), _Watch(run):
        result = function(*run.args)
    outputs = (result,) if isinstance(result, torch.Tensor) else tuple(result or ())
    run.trace.outputs = [Absent() if t is None else run.part(t) for t in outputs]
    run.trace.edit = last_edit()
    return result, run.trace


def apart(args: Sequence[Any]) -> list[Any]:
    """Arguments of which no two share memory, so that memory tells them apart."""
    found = list(args)
    tensors = [k for k, a in enumerate(args) if isinstance(a, torch.Tensor) and a.numel()]
    for n, k in enumerate(tensors):
        if any(
            _span(found[k])[0] < _span(found[j])[1] and _span(found[j])[0] < _span(found[k])[1] for j in tensors[:n]
        ):
            found[k] = args[k].clone()
    return found


def _span(t: torch.Tensor) -> tuple[int, int]:
    """The first address of a tensor, and the end."""
    last = sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True))
    return t.data_ptr(), t.data_ptr() + (last + 1) * t.element_size()


class _Run:
    """A run of a function while it lasts."""

    def __init__(
        self, name: str, names: Sequence[str], args: Sequence[Any], launching: bool, through: bool = False
    ) -> None:
        self.name, self.names, self.args = name, names, args
        self.launching, self.through = launching, through  # whether it sees through operators
        self.trace = Trace()
        self.ours = False  # whether torch is called by a launch
        self.tensors: list[torch.Tensor] = []  # alive, so that no two have one address
        self.spans: list[tuple[int, int]] = []
        for k, a in enumerate(args):
            if isinstance(a, torch.Tensor) and a.numel():
                self.hold(a, k)

    def hold(self, t: torch.Tensor, k: int | None, fill: Any = None) -> None:
        self.trace.memories.append(Held(k, tuple(t.shape), t.stride(), t.dtype, t.device, fill))
        self.tensors.append(t)
        self.spans.append(_span(t))

    def reject(self, reason: str) -> None:
        """Note down why nothing can be derived; the first reason counts."""
        self.trace.rejection = self.trace.rejection or f"{self.name}: {reason}"

    def memory_of(self, t: torch.Tensor) -> int | None:
        at = t.data_ptr() if t.layout is torch.strided else 0
        return next((k for k, (start, end) in enumerate(self.spans) if start <= at < end), None)

    def input_of(self, t: torch.Tensor) -> int | None:
        """Which parameter's memory a tensor lies in."""
        memory = self.memory_of(t) if t.numel() else None
        return None if memory is None else self.trace.memories[memory].input

    def part(self, t: torch.Tensor) -> Part | Empty | None:
        """A tensor as a part of memory; None where it is none."""
        if not t.numel():
            return Empty(tuple(t.shape), t.dtype, t.device)
        k = self.memory_of(t)
        if k is None or self.trace.memories[k].dtype != t.dtype or not t.is_contiguous():
            return None
        return Part(k, (t.data_ptr() - self.spans[k][0]) // t.element_size(), tuple(t.shape))

    # Launches -----------------------------------------------------------------------------------------------------

    def launched(self, launch: intercept.Launch) -> None:
        """The hook that sees its launches."""
        self.ours = True
        try:
            with private.without_torch_function():
                self._note(launch)
                if self.launching:
                    launch.proceed()
        finally:
            self.ours = False
        return None

    def _note(self, launch: intercept.Launch) -> None:
        if launch.stream is not None:
            self.reject("a launch names a stream; leave it out, so that its backward runs on torch's")
        launcher, kernel = launch.launcher, launch.launcher.plan.kernel
        state = kernel.current(launch.args, launch.kwargs)
        given = arrange(state.signature, launch.args, launch.kwargs)
        arguments: dict[str, Any] = {}
        numbers: dict[str, Part] = {}
        values: list[Any] = []
        for param, value in zip(state.signature.params, given, strict=True):
            arguments[param.name], told = self._argument(kernel, state, param, value, numbers)
            values.append(told)
        for part in (*arguments.values(), *numbers.values()):
            if isinstance(part, Part) and (k := self.trace.memories[part.memory].input) is not None:
                self.trace.given.add(k)
        if launcher.n != 0 and not self.trace.rejection:
            config, _ = launcher.plan.target(launcher, state, device_of(given, {}) or torch.device("cpu"))
            of = (state.build.source.title, kernel.name, config, *values)
            pointers = all(p.is_pointer for p in state.signature.params if p.takes_tensor)
            known = state.strided and pointers and not numbers
            self.trace.steps.append(Step(launcher, kernel, config, arguments, numbers, of, known))

    def _argument(
        self, kernel: Kernel, state: State, param: Param, value: Any, numbers: dict[str, Part]
    ) -> tuple[Any, Any]:
        """An argument as it is kept, and what tells it from others."""
        what = f"{param.name} of {kernel.name}"
        if param.takes_tensor:
            target = param.ctype.target
            if value is None:
                return None, None
            if not isinstance(value, torch.Tensor) or (target is not None and target.kind == "pointer"):
                self.reject(
                    f"{what} is {_how(value)}, through which gradients would be lost; "
                    "pass each tensor itself, to a parameter of its own"
                )
                return None, None
            part = self.part(value)
            if part is None:
                self.reject(
                    f"{what} is not a contiguous view of an argument or of memory that the function allocates; "
                    "pass it as an argument of the operator"
                )
            return part, part
        if isinstance(value, torch.Tensor) and param.ctype.kind != "opaque":
            part = self.part(value) if value.is_cpu else None
            if isinstance(part, Part):
                numbers[param.name] = part
            else:
                self.reject(
                    f"{what} is a tensor from elsewhere; pass it as an argument of the operator, or its .item()"
                )
                return None, None
            value = value.item()
        if (type(value) not in (int, float, bool) and _has_memory(value)) or (
            param.ctype.layout is not None and _points(param.ctype)
        ):
            self.reject(
                f"{what} is a {type(value).__name__} with memory in it, through which gradients would be lost; "
                "pass each tensor itself, to a parameter of its own"
            )
            return None, None
        if type(value) in (int, float, bool):
            return value, (type(value), repr(value))
        where = state.signature.wheres[param.index]
        told = Arguments(False, state.signature.struct_layout).value(param.ctype, value, where)
        return copy.deepcopy(value), repr(told)


def _how(value: Any) -> str:
    """What a pointer is given instead of a tensor."""
    if isinstance(value, (list, tuple)):
        return "a list of tensors"
    return "an address" if isinstance(value, (int, Address)) else f"a {type(value).__name__}"


def _has_memory(value: Any) -> bool:
    """Whether there is a tensor or an array in a value."""
    if isinstance(value, dict):
        return any(map(_has_memory, value.values()))
    if isinstance(value, (list, tuple)):
        return any(map(_has_memory, value))
    return (hasattr(value, "__dlpack__") and getattr(value, "ndim", 0) != 0) or isinstance(value, torch.Tensor)


def _points(ctype: Any) -> bool:
    """Whether a struct has a pointer."""
    members = ctype.layout.members
    return not members or any("*" in m.type or "&" in m.type for m in members)


class _Watch(TorchDispatchMode):
    """Sees the calls of torch: allocations and views may be, and nothing else."""

    def __init__(self, run: _Run) -> None:
        super().__init__()
        self.run = run

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        called, kwargs = func.overloadpacket.__name__, kwargs or {}
        if self.run.ours:
            return func(*args, **kwargs)
        if self.run.through and func in transparent:
            with self:
                return transparent[func](*args, **kwargs)
        if func.namespace == "aten" and called in _CONVERSIONS and func(*args, **kwargs) is args[0]:
            return args[0]
        if func.namespace != "aten" or called not in _FILLED.keys() | _VIEWS:
            self.run.reject(
                f"its function calls {func}, whose gradient would be lost; a derived backward is of allocations, "
                "views and launches alone: call it outside of the operator, or write a backward by hand"
            )
            if not self.run.launching:
                raise NotDifferentiable(self.run.trace.rejection)
        result = func(*args, **kwargs)
        if called in _FILLED and func.namespace == "aten" and result.numel():
            self.run.hold(result, None, _FILLED[called](args, kwargs))
        return result


class _Reads(TorchFunctionMode):
    """Sees how Python gets at the memory of arguments."""

    def __init__(self, run: _Run) -> None:
        super().__init__()
        self.run = run

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not self.run.ours and (func in _READERS or func in _ADDRESSES):
            k = self.run.input_of(args[0])
            if k is not None and func in _ADDRESSES:
                self.run.trace.addressed.add(k)
            elif k is not None:
                name = getattr(func, "__name__", "").replace("__get__", "its address")
                self.run.reject(
                    f"its function reads {self.run.names[k]} by {name}, through which gradients would be "
                    "lost; pass the tensor itself to a launch"
                )
        return func(*args, **(kwargs or {}))


# The same again ------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Memory:
    """A tensor of an operator's function: an input, or one that it allocates."""

    tensor: torch.Tensor
    input: int | None  # which of the operator's tensors

    @property
    def start(self) -> int:
        return self.tensor.data_ptr()

    @property
    def end(self) -> int:
        return self.start + self.tensor.numel() * self.tensor.element_size()


@dataclass(frozen=True)
class Recorded:
    """One launch: its kernel, configuration and arguments by parameter name, and a way to make it."""

    kernel: Kernel
    config: LaunchConfig
    arguments: dict[str, Any]
    numbers: dict[str, torch.Tensor]  # those passed by value, as they were
    make: Callable[[], None]


@dataclass
class Recording:
    """A trace with tensors in it: its memory, its launches in order, and what it returns."""

    memories: list[Memory] = field(default_factory=list)
    launches: list[Recorded] = field(default_factory=list)
    outputs: list[torch.Tensor | None] = field(default_factory=list)

    def memory_of(self, tensor: torch.Tensor) -> Memory | None:
        """The memory that a tensor lies in."""
        at = tensor.data_ptr()
        return next((m for m in self.memories if m.start <= at < m.end), None)


def replayed(found: Trace, args: Sequence[Any]) -> Recording:
    """What a trace was of, for these arguments, with other memory for what it allocated."""
    tensors = [args[m.input] if m.input is not None else _allocated(m) for m in found.memories]

    def tensor(part: Any) -> Any:
        if isinstance(part, Part):
            whole = tensors[part.memory]
            flat = whole.as_strided((whole.numel(),), (1,))
            size = torch.Size(part.shape).numel()
            return flat[part.offset : part.offset + size].view(part.shape)
        if isinstance(part, Empty):
            return torch.empty(part.shape, dtype=part.dtype, device=part.device)
        return part

    made = Recording([Memory(t, m.input) for t, m in zip(tensors, found.memories, strict=True)])
    for step in found.steps:
        named = {n: tensor(v) for n, v in step.arguments.items()}
        given, numbers = tuple(named.values()), {n: tensor(part) for n, part in step.numbers.items()}
        make = lambda launcher=step.launcher, given=given: launcher(*given)  # noqa: E731
        made.launches.append(Recorded(step.kernel, step.config, named, numbers, make))
    made.outputs = [tensor(part) for part in found.outputs]
    return made


def _allocated(memory: Held) -> torch.Tensor:
    made = torch.empty_strided(memory.shape, memory.strides, dtype=memory.dtype, device=memory.device)
    return made if memory.fill is None else made.fill_(memory.fill)
