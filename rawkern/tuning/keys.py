"""The key of a launch: its device and the values of the arguments that a choice depends on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from rawkern.arguments.signature import Signature
from rawkern.base.generated import run
from rawkern.base.nearest import did_you_mean
from rawkern.base.nested import Holder, tensors_in
from rawkern.base.torch_private import PLAIN
from rawkern.tuning.record import plain


class Key:
    """Names of parameters or a function of the arguments; `hot` makes the key of a launch, in generated code."""

    def __init__(self, given: Sequence[str] | Callable[..., Any]) -> None:
        self.function = given if callable(given) else None
        self.names: tuple[Any, ...] = ()
        if not callable(given):
            self.names = tuple(given) if isinstance(given, Iterable) and not isinstance(given, str) else (None,)
        if not all(isinstance(name, str) for name in self.names):
            raise TypeError(f"key is {given!r}; pass a list of parameter names, or a function of the arguments")
        self._given = self.function or self.names
        # On disk a choice stands under this, too.
        self.text = getattr(given, "__qualname__", type(given).__name__) if callable(given) else ",".join(self.names)
        self.hot: Callable[[Sequence[Any]], Any] = _unknown
        self._made: dict[str, Callable[[Sequence[Any]], Any]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return Key, (self._given,)

    def prepare(self, signature: Signature, args: Sequence[Any]) -> tuple[Any, ...]:
        """Return the key of arguments, whatever they are, and make `hot` fit for those that follow.

        TypeError for an argument that has no value to compare, or what the function returned; ValueError if there is no
        such parameter.
        """
        at = {param.name: param.index for param in signature.params}
        for name in self.names:
            if name not in at:
                raise ValueError(
                    f"autotune: the key {name!r} is not a parameter of {signature}{did_you_mean(name, at)}"
                )
        found = self._slow_path(args, [at[name] for name in self.names])
        plain(list(found))
        if (first := next(filter(None, map(_plain_tensor, range(len(args)), args)), None)) is not None:
            parts = [f"{first}.get_device()"]
            if self.function is not None:
                parts.append("hashable(function(*args))")
            for i in (at[name] for name in self.names):
                tensor = isinstance(args[i], torch.Tensor) and args[i].ndim
                parts += [f"args[{i}].dtype", f"args[{i}].shape"] if tensor else [f"args[{i}]"]
            text = ", ".join(parts)
            if text not in self._made:
                self._made[text] = self._generated(text)
            self.hot = self._made[text]
        return found

    def values(self, found: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return a key without its device, as it is shown and kept."""
        return tuple(plain(list(found[1:])))

    def _slow_path(self, args: Sequence[Any], positions: Sequence[int]) -> tuple[Any, ...]:
        device = device_index(args)
        if self.function is not None:
            return device, _hashable(self.function(*args))
        parts: list[Any] = [device]
        for value in (args[i] for i in positions):
            if hasattr(value, "dtype") and hasattr(value, "shape") and getattr(value, "ndim", 0):
                parts += [value.dtype if isinstance(value, torch.Tensor) else str(value.dtype), tuple(value.shape)]
            else:
                parts.append(value.item() if hasattr(value, "item") else value)
        return tuple(parts)

    def _generated(self, parts: str) -> Callable[[Sequence[Any]], Any]:
        """A function of plain arguments like those that the parts were found with; None is for others."""
        text = (
            "def hot(args):\n"
            "    try:\n"
            f"        return ({parts},)\n"
            "    except (AttributeError, IndexError):\n"
            "        return None\n"
        )
        return run(text, "<rawkern key>", {"function": self.function, "hashable": _hashable})["hot"]


def _plain_tensor(index: int, value: Any) -> str | None:
    """Code for the tensor of an argument, where it is one of torch's own classes or a holder of one."""
    if isinstance(value, Holder):
        return f"args[{index}].tensor" if type(value.tensor) in PLAIN else None
    return f"args[{index}]" if type(value) in PLAIN else None


def _unknown(args: Sequence[Any]) -> None:
    """The key of arguments before the first launch."""


def _hashable(value: Any) -> Any:
    return tuple(map(_hashable, value)) if isinstance(value, (list, tuple)) else value


def device_index(args: Sequence[Any]) -> int:
    """The CUDA index of the first array, -1 for the CPU; as `devices.default_device` where there is none."""
    for value in args:
        for tensor in tensors_in(value):
            return tensor.get_device()
        if hasattr(value, "__dlpack_device__"):
            kind, index = value.__dlpack_device__()
            return index if kind == 2 else -1  # kDLCUDA
        if hasattr(value, "__cuda_array_interface__") and torch.cuda.is_available():
            return torch.cuda.current_device()
    return torch.cuda.current_device() if torch.cuda.is_available() else -1
