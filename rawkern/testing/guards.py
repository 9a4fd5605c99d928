"""Guarded memory: for inputs, and for the tensors of every launch inside `watched`."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from rawkern.base.nested import mapped
from rawkern.base.storage import tensor_over
from rawkern.base.torch_private import has_memory
from rawkern.launch import intercept

GUARD = 8192  # bytes on each side: a block of 1024 threads that each write 8 bytes past the end


@dataclass(frozen=True)
class Guarded:
    """A tensor in the middle of a buffer."""

    name: str
    tensor: torch.Tensor
    buffer: torch.Tensor
    before: torch.Tensor | None  # an input's original bytes; None if the contents may change
    byte: int  # the value of the guards
    itemsize: int
    guard: int = GUARD  # bytes on each side

    def outside(self) -> tuple[str, int] | None:
        """Where memory around the tensor is overwritten, "after" or "before" it, and how many elements away."""
        after, before = self.buffer[self.buffer.numel() - self.guard :], self.buffer[: self.guard].flip(0)
        for side, memory in (("after", after), ("before", before)):
            wrong = memory != self.byte
            if bool(wrong.any()):
                return side, int(wrong.int().argmax()) // self.itemsize
        return None

    def damage(self, written: bool) -> tuple[str, str] | None:
        """An illegal overwrite: the kind ("guard", "input") and a description, or None."""
        if (found := self.outside()) is not None:
            side, near = found
            edge = "end" if side == "after" else "beginning"
            return "guard", f"memory {side} {self.name} is overwritten, {near} elements from its {edge}"
        was = self.before
        if was is None:
            return None
        if written:
            was, t = was.clone(), self.tensor
            tensor_over(was.untyped_storage(), t.dtype, t.storage_offset(), t.shape, t.stride()).copy_(t)
        wrong = self.buffer != was
        if not bool(wrong.any()):
            return None
        index = _index_of(self.tensor, (int(wrong.nonzero()[0]) - self.guard) // self.itemsize)
        if index is None:
            return "guard", f"memory between the elements of {self.name} is overwritten"
        return "input", f"{self.name}{list(index)} is changed, which is not declared (mutates=)"


def _index_of(t: torch.Tensor, at: int) -> tuple[int, ...] | None:
    """The index of the element at an offset, in elements, from the beginning of the guarded memory."""
    at -= int(t.storage_offset()) - GUARD // t.element_size()
    found = [0] * t.dim()
    for d in sorted(range(t.dim()), key=lambda d: -t.stride(d)):
        if t.stride(d) > 0:
            found[d] = max(0, min(at // t.stride(d), t.shape[d] - 1))
            at -= found[d] * t.stride(d)
    return tuple(found) if at == 0 else None


def place(name: str, values: torch.Tensor, how: tuple[tuple[int, ...], int, int], device: torch.device) -> Guarded:
    """Lay values out in guarded memory of a device, as `samples.spread` says."""
    strides, start, count = how
    byte = 0xFF if values.is_floating_point() or values.is_complex() else 0  # NaN; no wild index
    size = values.dtype.itemsize
    buffer = torch.full((2 * GUARD + count * size,), byte, dtype=torch.uint8, device=device)
    t = tensor_over(buffer.untyped_storage(), values.dtype, GUARD // size + start, values.shape, strides)
    if 0 in strides and values.numel():
        narrowed = [
            slice(0, 1) if s == 0 and n > 1 else slice(None) for s, n in zip(strides, values.shape, strict=True)
        ]
        t[tuple(narrowed)].copy_(values[tuple(narrowed)])
    else:
        t.copy_(values)
    return Guarded(name, t, buffer, buffer.clone(), byte, t.element_size())


def surround(name: str, values: torch.Tensor, byte: int, guard: int = GUARD) -> Guarded:
    """Copy a tensor into guarded memory with contiguous elements; the contents may change."""
    buffer = torch.full((2 * guard + values.nbytes,), byte, dtype=torch.uint8, device=values.device)
    inside = buffer[guard : guard + values.nbytes].view(values.dtype).view(values.shape)
    inside.copy_(values)
    return Guarded(name, inside, buffer, None, byte, values.element_size(), guard)


@contextlib.contextmanager
def watched(inputs: Sequence[Guarded] = ()) -> Iterator[list[tuple[str, str]]]:
    """Put guards around the tensors of every launch, and fill new memory so that unwritten elements show.

    Inputs are not new memory: a NaN in them is a value, and keeps its bits.

    Yields the list that collects damage, as kinds and descriptions. A launch gets copies of its tensors with guards
    around each storage, which are copied back; so kernels must not access them through saved addresses.
    """
    found: list[tuple[str, str]] = []
    values = frozenset(g.buffer.data_ptr() for g in inputs)

    def guarded(launch: intercept.Launch) -> None:
        copies = _Copies(values)
        moved = tuple(copies.of(a, i) for i, a in enumerate(launch.args))
        named = {k: copies.of(v, k) for k, v in launch.kwargs.items()}
        if launch.stream is not None and torch.cuda.is_available():
            torch.cuda.synchronize()
        launch.proceed(args=moved, kwargs=named)
        if launch.stream is not None and torch.cuda.is_available():
            torch.cuda.synchronize()
        kernel = launch.launcher.plan.kernel
        names = [p.name for p in kernel.current(moved, named).signature.params]
        found.extend((kind, f"{kernel.name}: {text}") for kind, text in copies.back(names))

    with intercept.intercepted(guarded), filled_allocations():
        yield found


class _Copies:
    """Copies of tensors with guards around each storage; tensors that share memory also share it in the copies."""

    def __init__(self, values: frozenset[int]) -> None:
        self.values = values  # addresses of the inputs' storages
        # By address: the bytes of a storage, their copy, and the argument.
        self.storages: dict[int, tuple[torch.Tensor, Guarded, int | str]] = {}

    def of(self, value: Any, which: int | str) -> Any:
        """A value with its tensors copied; `which` is the argument's position or name."""
        return mapped(lambda _, leaf: self._leaf(leaf, which), value)

    def _leaf(self, value: Any, which: int | str) -> Any:
        if not isinstance(value, torch.Tensor) or not has_memory(value) or value.is_neg() or value.is_conj():
            return value
        storage = value.untyped_storage()
        if storage.data_ptr() not in self.storages:
            raw = tensor_over(storage)
            byte = 0xFF if value.is_floating_point() or value.is_complex() else 0
            copy = replace(surround("", raw, byte), itemsize=value.element_size())
            if byte and storage.data_ptr() not in self.values:
                _mark(copy.tensor, value.dtype)
            self.storages[storage.data_ptr()] = raw, copy, which
        buffer = self.storages[storage.data_ptr()][1].buffer
        start = GUARD // value.element_size() + value.storage_offset()
        made = tensor_over(buffer.untyped_storage(), value.dtype, start, value.shape, value.stride())
        return made.requires_grad_() if value.requires_grad else made

    def back(self, names: Sequence[str]) -> Iterator[tuple[str, str]]:
        """Copy everything back; yield overwritten guards. `names` are the parameters' names."""
        for raw, copy, which in self.storages.values():
            raw.copy_(copy.tensor)
            name = names[which] if isinstance(which, int) and which < len(names) else f"argument {which}"
            if (damage := replace(copy, name=name).damage(False)) is not None:
                yield damage


def _mark(raw: torch.Tensor, dtype: torch.dtype) -> None:
    """Make torch fill with a NaN that no operation produces: all bits of a float set."""
    size = dtype.itemsize // (2 if dtype.is_complex else 1)
    whole = {2: torch.int16, 4: torch.int32, 8: torch.int64}.get(size)
    if whole is None:
        return
    real = {torch.complex64: torch.float32, torch.complex128: torch.float64}.get(dtype, dtype)
    filling = torch.full((1,), float("nan"), dtype=real).view(whole).item()
    words = raw[: raw.numel() // size * size].view(whole)
    words[words == filling] = -1


@contextlib.contextmanager
def filled_allocations() -> Iterator[None]:
    """Let torch fill memory that it allocates without writing to it."""
    fill = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    before = torch.get_deterministic_debug_mode()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*deterministic.*")
        torch.set_deterministic_debug_mode("warn")  # use_deterministic_algorithms imports torch.compile's modules: 1 s
        torch.utils.deterministic.fill_uninitialized_memory = True  # type: ignore[attr-defined]
        try:
            yield
        finally:
            torch.set_deterministic_debug_mode(before)
            torch.utils.deterministic.fill_uninitialized_memory = fill  # type: ignore[attr-defined]


def unwritten(t: torch.Tensor) -> torch.Tensor:
    """Which elements still have the fill value of new memory, as a bool tensor of the same shape."""
    if t.numel() == 0 or t.dtype == torch.bool:
        return torch.zeros(t.shape, dtype=torch.bool, device=t.device)
    if not (t.is_floating_point() or t.is_complex()):
        return t == torch.iinfo(t.dtype).max
    return (bytes_of(t).reshape(-1, t.element_size()) == 0xFF).all(1).reshape(t.shape)


def bytes_of(t: torch.Tensor) -> torch.Tensor:
    """The bytes of the elements, in order."""
    # contiguous() keeps the strides of a single element, whatever they are, and view() accepts only 1.
    return t.detach().clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8)
