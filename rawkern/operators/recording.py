"""The launches of an operator's function, without making them: for a backward that is derived from them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from rawkern.arguments.careful import arrange
from rawkern.errors import NotDifferentiable
from rawkern.launch import intercept
from rawkern.launch.config import LaunchConfig
from rawkern.launch.unit import Kernel, device_of

_ALLOCATIONS = frozenset(
    ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "zeros", "zeros_like", "new_zeros",
     "ones", "ones_like", "new_ones", "full", "full_like", "new_full")
)  # fmt: skip
_VIEWS = frozenset(
    ("view", "_unsafe_view", "reshape", "as_strided", "slice", "select", "squeeze", "unsqueeze", "transpose", "t",
     "permute", "expand", "alias", "detach", "narrow", "split", "unbind", "_reshape_alias", "split_with_sizes",
     "chunk", "unfold", "diagonal", "lift_fresh")
)  # fmt: skip


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
    make: Callable[[], None]


@dataclass
class Recording:
    """What a function did: the memory it had, its launches in order, and what it returned."""

    memories: list[Memory] = field(default_factory=list)
    launches: list[Recorded] = field(default_factory=list)
    outputs: tuple[torch.Tensor, ...] = ()

    def memory_of(self, tensor: torch.Tensor) -> Memory | None:
        """The memory that a tensor lies in."""
        at = tensor.data_ptr()
        return next((m for m in self.memories if m.start <= at < m.end), None)


class _Watch(TorchDispatchMode):
    """Lets allocations and views pass, and nothing else."""

    def __init__(self, recording: Recording, name: str) -> None:
        super().__init__()
        self.recording, self.name = recording, name

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        called = func.overloadpacket.__name__
        if func.namespace != "aten" or called not in _ALLOCATIONS | _VIEWS:
            raise NotDifferentiable(
                f"{self.name}: its function calls {func}, whose gradient would be lost; a derived backward is of "
                f"allocations, views and launches alone: call it outside of the operator, or write a backward by hand"
            )
        result = func(*args, **(kwargs or {}))
        if called in _ALLOCATIONS:
            self.recording.memories.append(Memory(result, None))
        return result


def record(
    name: str, function: Callable[..., Any], args: Sequence[Any], tensors: Sequence[torch.Tensor | None]
) -> Recording:
    """Call an operator's function with its launches caught."""
    found = Recording([Memory(t, k) for k, t in enumerate(tensors) if t is not None and t.numel()])
    thread = threading.get_ident()

    def caught(launch: intercept.Launch) -> None:
        if threading.get_ident() != thread:
            return launch.proceed()
        if launch.stream is not None:
            raise NotDifferentiable(
                f"{name}: a launch names a stream; leave it out, so that its backward runs on torch's"
            )
        kernel, launcher = launch.launcher.plan.kernel, launch.launcher
        state = kernel.current(launch.args, launch.kwargs)
        given = arrange(state.signature, launch.args, launch.kwargs)
        if launcher.n != 0:
            device = device_of(given, {}) or torch.device("cpu")
            config, _ = launcher.plan.target(launcher, state, device)
            named = dict(zip((p.name for p in state.signature.params), given, strict=True))
            found.launches.append(Recorded(kernel, config, named, lambda: launcher(*given)))  # type: ignore[operator]
        return None

    with intercept.intercepted(caught), _Watch(found, name):
        result = function(*args)
    found.outputs = (result,) if isinstance(result, torch.Tensor) else tuple(result or ())
    return found
