"""What a launch writes: found from its arguments, saved, put back, and compared with what it should be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from rawkern.arguments.memory import Memory
from rawkern.arguments.rules import Pointer
from rawkern.arguments.scalars import Where
from rawkern.arguments.slow_path import Arguments, bind
from rawkern.base.nested import tensors_in
from rawkern.base.storage import tensor_over
from rawkern.engines.devices import default_device
from rawkern.errors import LaunchError
from rawkern.interop import to_torch
from rawkern.launch import reachable, variables
from rawkern.launch.unit import State


class Written(Arguments):
    """Arguments on their way to C values, with the memory that the kernel may write, by parameter."""

    __slots__ = ("arrays", "outputs")

    def __init__(self, strided: bool, layout_of: Any) -> None:
        super().__init__(strided, layout_of)
        self.outputs: list[tuple[str, torch.Tensor]] = []
        self.arrays: list[torch.Tensor] = []  # the memory of arguments that are not tensors

    def found(self, pointer: Pointer, mapped: bool = False) -> None:
        super().found(pointer, mapped)
        memory, where = pointer.memory, pointer.where
        if pointer.writes:
            self.outputs.append((where.expr, _as_tensor(memory, where)))
        if memory.tensor is None and memory.contiguous:
            self.arrays.append(_as_tensor(memory, where))


def find(state: State, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[torch.device, Written, list[torch.Tensor]]:
    """Bind arguments, and return their device, what the kernel may write, and tensors that addresses lead to.

    Arguments of all kinds and the module's variables may contain addresses; the variables are read under its lock.
    Errors of the launch itself are raised.
    """
    signature = state.signature
    call = Written(state.strided, signature.struct_layout)
    bound = bind(signature, args, kwargs, state.strided, call)
    device = bound.device or default_device()
    with state.build.lock:
        passed = tensors_in((*args, *kwargs.values()))
        held = [*passed, *bound.tensors, *call.arrays, *variables.every(state, device)]
    behind = reachable.reached(held, signature.numbers(bound.values), device.type)
    return device, call, [tensor_over(t.untyped_storage()) for t in behind]


def _as_tensor(memory: Memory, where: Where) -> torch.Tensor:
    """The memory as a tensor: the user's own, or one-dimensional over an array that is none."""
    if memory.tensor is not None:
        return memory.tensor.detach()
    if not memory.contiguous:
        raise LaunchError(f"{where} is a {memory.kind} that is not contiguous, and tuning restores its contents; "
                          "pass a torch tensor")  # fmt: skip
    nbytes = memory.count * memory.itemsize
    if not nbytes:
        flat = torch.empty(0, dtype=torch.uint8)
    elif memory.device < 0:
        flat = variables.on_host(memory.pointer, nbytes, memory.owner)
    else:
        flat = variables.on_gpu(memory.pointer, nbytes, torch.device("cuda", memory.device), memory.owner)
    dtype = getattr(torch, memory.dtype, None)
    return flat.view(dtype) if isinstance(dtype, torch.dtype) else flat


class Saved:
    """The contents of tensors, to be put back."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._pairs = [(t, t.clone()) for t in tensors]

    @torch.no_grad()
    def restore(self) -> None:
        """Write the contents back; on a GPU this is queued on torch's current stream."""
        for t, content in self._pairs:
            t.copy_(content)


class Reference:
    """What the kernel should write, computed once by a function of the user's."""

    def __init__(self, function: Callable[..., Any], args: Sequence[Any], outputs: Sequence[tuple[str, torch.Tensor]],
                 rtol: float | None, atol: float | None) -> None:  # fmt: skip
        with torch.no_grad():
            found = function(*args)
            if found is None:  # it has done to the arguments what the kernel does
                self._expected = [t.clone() for _, t in outputs]
            else:
                given = [t for t in found if t is not None] if isinstance(found, (tuple, list)) else [found]
                if len(given) != len(outputs):
                    names = ", ".join(name for name, _ in outputs) or "nothing"
                    raise ValueError(
                        f"reference returned {len(given)} tensors, the kernel writes {names}; return one for each, in "
                        "this order, or write into the arguments and return None"
                    )
                self._expected = [to_torch(one).detach().clone() for one in given]
        self._outputs = outputs
        self._rtol, self._atol = rtol, atol

    def differs(self) -> str | None:
        """Say where the tensors are not as they should be; None if they all are."""
        for (name, actual), expected in zip(self._outputs, self._expected, strict=True):
            try:
                torch.testing.assert_close(
                    actual.reshape(-1),
                    expected.to(actual.device).reshape(-1),
                    rtol=self._rtol,
                    atol=self._atol,
                    equal_nan=True,
                    check_dtype=False,
                )
            except AssertionError as error:
                lines = [line for line in str(error).splitlines()[1:] if line.strip()] or [str(error)]
                return f"wrong {name}: " + "; ".join(line.strip() for line in lines)
        return None
