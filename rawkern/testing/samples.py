"""Sample inputs and their variations: other dtypes, sizes and memory layouts."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from rawkern.base import torch_private as private
from rawkern.base.nearest import did_you_mean
from rawkern.base.nested import mapped
from rawkern.formulas.elementwise import Elementwise
from rawkern.formulas.reduction import Reduction

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
COMPLEX = (torch.complex64, torch.complex128)
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
INDICES = (torch.int32, torch.int64)
LAYOUTS = ("offset", "every other element", "rows apart", "transposed", "first transposed", "expanded")


@dataclass(frozen=True)
class _Slot:
    """The position of a tensor in the arguments."""

    index: int


@dataclass(frozen=True)
class Sample:
    """The arguments of a call, with placeholders for tensors."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    tensors: tuple[torch.Tensor, ...]  # on the CPU, contiguous, without gradients
    names: tuple[str, ...]  # of the tensors, in messages
    written: frozenset[int]  # those that the operator writes
    leaves: frozenset[int]  # those whose gradients are checked
    main: torch.dtype | None  # the first floating-point dtype, or else the first dtype

    def filled(self, tensors: Sequence[torch.Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a call with these tensors in place of the sample's."""

        def fill(_: str, value: Any) -> Any:
            return tensors[value.index] if isinstance(value, _Slot) else value

        return mapped(fill, self.args), mapped(fill, self.kwargs)

    def dtypes(self) -> tuple[torch.dtype, ...]:
        """The dtypes that the tensors of the main dtype could have."""
        kinds = (FLOATS, COMPLEX, INTEGERS)
        return next((kind for kind in kinds if self.main in kind), () if self.main is None else (self.main,))

    def as_dtype(self, dtype: torch.dtype) -> Sample:
        """The sample with the tensors of the main dtype converted."""
        made = tuple(t.to(dtype) if t.dtype == self.main else t for t in self.tensors)
        return replace(self, tensors=made, main=dtype)

    def with_indices(self, dtype: torch.dtype) -> Sample | None:
        """The sample with its integer tensors converted if it has floating-point ones; None if that changes nothing."""
        if self.main not in (*FLOATS, *COMPLEX) or all(
            t.dtype not in INDICES or t.dtype == dtype for t in self.tensors
        ):
            return None
        return replace(self, tensors=tuple(t.to(dtype) if t.dtype in INDICES else t for t in self.tensors))

    def sizes(self) -> list[int]:
        """The sizes of dimensions above 1, largest first."""
        return sorted({n for t in self.tensors for n in t.shape if n > 1}, reverse=True)

    def resized(self, old: int, new: int, numbers: bool = False) -> Sample:
        """The sample with all dimensions of one size set to another: cut, or extended with elements of the sample.

        With `numbers`, ints of that value among the arguments change too.
        """
        index = torch.arange(new, device="cpu")
        if new > old:
            index[old:] = torch.randint(old, (new - old,), device="cpu", generator=torch.Generator().manual_seed(new))
        tensors = []
        for t in self.tensors:
            for dim in [d for d, n in enumerate(t.shape) if n == old]:
                t = t.index_select(dim, index)
            tensors.append(t)

        def change(_: str, value: Any) -> Any:
            return new if type(value) is int and value == old and numbers else value

        args, kwargs = mapped(change, self.args), mapped(change, self.kwargs)
        return replace(self, args=args, kwargs=kwargs, tensors=tuple(tensors))

    def expanded(self) -> Sample:
        """The sample with the values of a layout in which first dimensions are expanded."""
        tensors = [
            t[:1].expand(t.shape).contiguous() if i not in self.written and t.dim() and t.shape[0] > 1 else t
            for i, t in enumerate(self.tensors)
        ]
        return replace(self, tensors=tuple(tensors))

    def finite(self) -> Sample:
        """The sample without NaN and infinities, which some tools treat as errors."""
        return replace(self, tensors=tuple(_finite(t) for t in self.tensors))

    def halved(self) -> Sample:
        """The sample with its floating-point values halved."""
        return replace(
            self, tensors=tuple(t / 2 if t.is_floating_point() or t.is_complex() else t for t in self.tensors)
        )

    def shapes(self) -> str:
        """The tensors' names and shapes, as text."""
        return ", ".join(
            f"{name} {'x'.join(map(str, t.shape)) or 'of no dimensions'}"
            for name, t in zip(self.names, self.tensors, strict=True)
        )


def make_sample(
    op: Callable[..., Any],
    inputs: Sequence[Any],
    kwargs: Mapping[str, Any],
    mutates: Sequence[str | int] | None,
    caller: str = "check_kernel",
) -> Sample:
    """Separate the tensors from the arguments of a call.

    TypeError if there is none, ValueError if `mutates` names none of them.
    """
    tensors: list[torch.Tensor] = []
    names: list[str] = []
    owners: list[str | int] = []

    def take(owner: str | int) -> Callable[[str, Any], Any]:
        def of(name: str, value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            tensors.append(value)
            names.append(name)
            owners.append(owner)
            return _Slot(len(tensors) - 1)

        return of

    called = _parameter_names(op, len(inputs))
    args = tuple(mapped(take(called[i] or i), v, called[i] or f"input {i}") for i, v in enumerate(inputs))
    named = {key: mapped(take(key), value, key) for key, value in kwargs.items()}
    if not tensors:
        raise TypeError(f"{caller}: none of the sample inputs is a tensor")
    written = _written(op, mutates, owners, [called[i] or i for i in range(len(inputs))], caller)
    floats = [i for i, t in enumerate(tensors) if t.is_floating_point() or t.is_complex()]
    leaves = [i for i in floats if tensors[i].requires_grad] or floats
    main = tensors[floats[0] if floats else 0].dtype
    plain = tuple(t.detach().cpu().contiguous() for t in tensors)
    return Sample(args, named, plain, tuple(names), written, frozenset(leaves), main)


def _parameter_names(op: Callable[..., Any], count: int) -> list[str | None]:
    """The names of the first positional parameters; None after the last."""
    found: list[str | None] = []
    if isinstance(op, (Elementwise, Reduction)):
        found += [p.name for p in op.loop.inputs]
    elif (schema := private.schema_of(op)) is not None:
        found += [a.name for a in schema.arguments if not a.kwarg_only]
    else:
        with contextlib.suppress(TypeError, ValueError):
            parameters = inspect.signature(op).parameters.values()
            found += [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return (found + [None] * count)[:count]


def _written(
    op: Any,
    mutates: Sequence[str | int] | None,
    owners: Sequence[str | int],
    called: Sequence[str | int],
    caller: str,
) -> frozenset[int]:
    """The tensors that are written: those given, else those of the operator's schema."""
    if mutates is None:
        mutates = private.written_arguments(op)
    wanted = {called[m] if type(m) is int and m < len(called) else m for m in mutates}
    if unknown := wanted.difference(owners):
        wrong = min(unknown, key=str)
        there = f"those are {', '.join(map(str, dict.fromkeys(owners)))}{did_you_mean(wrong, owners)}"
        raise ValueError(f"{caller}: mutates names {wrong!r}, which is not a tensor of the sample inputs; {there}")
    return frozenset(i for i, owner in enumerate(owners) if owner in wanted)


def _finite(t: torch.Tensor) -> torch.Tensor:
    good = t.isfinite()
    if bool(good.all()):
        return t
    other = t[good][0] if bool(good.any()) else torch.ones((), dtype=t.dtype, device=t.device)
    return torch.where(good, t, other)


def spread(layout: str, shape: torch.Size, first: bool) -> tuple[tuple[int, ...], int, int]:
    """The memory layout of a shape: strides, elements before the first, total elements."""
    dims, row = len(shape), list(shape)
    scale, start = 1, 0
    if layout == "expanded" and dims and shape[0] > 1:
        row[0] = 1
    if layout == "rows apart" and dims > 1:
        row[-1] += 3
    if layout == "every other element":
        scale, start = 2, 1
    if layout == "offset" or (layout == "rows apart" and dims <= 1):
        start = 1
    order = list(range(dims))
    if layout == "transposed" or (layout == "first transposed" and first):
        order.reverse()
    strides, step = [0] * dims, scale
    for d in reversed(order):
        strides[d] = step
        step *= max(row[d], 1)
    if layout == "expanded" and dims and shape[0] > 1:
        strides[0] = 0
    return tuple(strides), start, start + step
