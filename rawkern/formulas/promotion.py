"""Arguments of elementwise operators and reductions: torch's rules of promotion, numbers, devices."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch.compiler import is_dynamo_compiling

from rawkern.arguments.memory import dtype_name, reject_layout
from rawkern.base.operator_state import in_fake_op
from rawkern.formulas.broadcasting import broadcast
from rawkern.formulas.parameters import Parameter, check_dtype

Argument = torch.Tensor | complex | np.generic  # an int, a bool and a float are complex to type checkers
Result = torch.Tensor | Any  # a tensor, or a tuple of them for several outputs, which no type expresses


def joint_shape(name: str, shapes: Sequence[torch.Size]) -> torch.Size:
    """Return the shape that shapes broadcast to.

    Raises
    ------
    RuntimeError
        They do not broadcast; `name` is the operator's.
    """
    first, *rest = shapes
    same = all(len(shape) == len(first) for shape in rest)  # else the sizes, which may be symbolic, are not compared
    if same and all(shape == first for shape in rest):
        return first
    known = not (in_fake_op() or is_dynamo_compiling())  # what stands for any size has no hash
    try:
        return broadcast(*shapes) if known else torch.broadcast_shapes(*shapes)
    except RuntimeError as error:
        if type(error) is not RuntimeError:  # torch's own, of sizes that it does not know yet
            raise
        given = ", ".join(str(tuple(shape)) for shape in shapes)
        raise RuntimeError(
            f"{name}: shapes {given} do not broadcast; sizes of an axis, counted from the last one, are equal or 1"
        ) from None


def prepare(
    name: str,
    inputs: Sequence[Parameter],
    letters: Sequence[str],
    args: Sequence[Any],
    floats: Collection[str] = (),
    told: Mapping[str, torch.dtype] = MappingProxyType({}),
) -> tuple[list[torch.Tensor], dict[str, torch.dtype]]:
    """Make tensors of all arguments, of the dtypes that a loop takes, on one device; find out what its letters are.

    The letters among `floats` are of floating point: torch's default dtype where all arguments are integers. A letter
    that has numbers alone is what it is `told` to be.

    Raises
    ------
    TypeError
        For an argument that is neither a strided tensor nor a number, or whose dtype is not the parameter's.
    ValueError
        For tensors on several devices.
    """
    for p, a in zip(inputs, args, strict=True):
        if isinstance(a, torch.Tensor):
            reject_layout(name, p.name, a)
            continue
        if isinstance(a, np.generic) and a.dtype.kind in "biufc":
            continue
        if not isinstance(a, (bool, int, float, complex)) or p.raw:
            raise TypeError(f"{name}: {p.name} is {shown(a)}; pass a tensor{'' if p.raw else ' or a number'}")
    args = [a.item() if isinstance(a, np.generic) else a for a in args]
    given = [a for a in args if isinstance(a, torch.Tensor)]
    device = device_of(given) if given else torch.device("cpu")
    dtypes: dict[str, torch.dtype] = {}
    for letter in letters:
        values = [a for p, a in zip(inputs, args, strict=True) if p.type == letter]
        if letter in told and not any(isinstance(a, torch.Tensor) for a in values):
            dtypes[letter] = told[letter]
        else:
            dtypes[letter] = _promote(values)
        if letter in floats and not (dtypes[letter].is_floating_point or dtypes[letter].is_complex):
            dtypes[letter] = torch.get_default_dtype()
        check_dtype(name, f"{letter} is", dtypes[letter])
    found = []
    for p, a in zip(inputs, args, strict=True):
        dtype = p.dtype or dtypes[p.type]
        if not isinstance(a, torch.Tensor):
            found.append(_number(name, p, a, dtype, device))
            continue
        if a.device != device and a.dim():
            named = next(q.name for q, t in zip(inputs, args, strict=True) if t is not a and _on(t, device))
            raise ValueError(f"{name}: {p.name} is on {a.device}, {named} is on {device}; pass tensors on one device")
        if p.dtype is not None and a.dtype is not dtype and a.dim():
            raise TypeError(f"{name}: {p.name} is {dtype_name(a.dtype)}, the operator takes {dtype_name(dtype)} there; "
                            f"pass {p.name}.to(torch.{dtype_name(dtype)})")  # fmt: skip
        found.append(a.to(device=device, dtype=dtype))
    return found, dtypes


def _number(name: str, p: Parameter, value: complex, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    wrong = isinstance(value, complex) and not dtype.is_complex
    if not dtype.is_floating_point and not dtype.is_complex and dtype is not torch.bool:
        info = torch.iinfo(dtype)
        wrong = wrong or isinstance(value, float) or not info.min <= value <= info.max  # type: ignore[operator]
    if wrong:
        raise TypeError(f"{name}: {p.name} is {value!r}, which does not fit {dtype_name(dtype)}")
    return torch.full((), value, dtype=dtype, device=device)


def _promote(values: Sequence[Any]) -> torch.dtype:
    """The dtype that torch promotes tensors and numbers to: tensors with dimensions first, numbers last."""
    tensors = [v for v in values if isinstance(v, torch.Tensor)]
    if len(tensors) == len(values) and all(t.dtype is tensors[0].dtype for t in tensors):
        return tensors[0].dtype
    numbers = [_number_dtype(v) for v in values if not isinstance(v, torch.Tensor)]
    found: torch.dtype | None = None
    for dtypes in (numbers, [t.dtype for t in tensors if not t.dim()], [t.dtype for t in tensors if t.dim()]):
        if dtypes:
            higher = functools.reduce(torch.promote_types, dtypes)
            found = higher if found is None else _combined(higher, found)
    assert found is not None
    return found


def _number_dtype(value: complex) -> torch.dtype:
    if isinstance(value, complex):
        return torch.get_default_dtype().to_complex()
    if isinstance(value, float):
        return torch.get_default_dtype()
    return torch.bool if isinstance(value, bool) else torch.int64


def _combined(higher: torch.dtype, lower: torch.dtype) -> torch.dtype:
    """A dtype and one of lower rank, which counts only if it is of a higher category (c10's combine_categories)."""
    if higher.is_complex or (higher.is_floating_point and not lower.is_complex):
        return higher
    if higher is torch.bool or lower.is_floating_point or lower.is_complex:
        return torch.promote_types(higher, lower)
    return higher


def device_of(tensors: Sequence[torch.Tensor]) -> torch.device:
    """The device of the result: a CPU tensor of no dimensions goes with any."""
    return next((t.device for t in tensors if t.dim() or t.device.type != "cpu"), tensors[0].device)


def as_outs(name: str, what: str, out: Any, tensors: Sequence[torch.Tensor], count: int) -> tuple[torch.Tensor, ...]:
    """Return the tensors given for outputs as a tuple; they are for computing without autograd only."""
    outs = (out,) if isinstance(out, torch.Tensor) else tuple(out) if isinstance(out, (tuple, list)) else ()
    if len(outs) != count or not all(isinstance(t, torch.Tensor) for t in outs):
        raise TypeError(f"{name}: {what} is {shown(out)}; pass {count} tensor{'' if count == 1 else 's'}")
    for t in outs:
        reject_layout(name, what, t)
    if torch.is_grad_enabled() and any(t.requires_grad for t in (*tensors, *outs)):
        raise RuntimeError(f"{name}: {what} can't be used with tensors that require grad; use torch.no_grad()")
    return outs


def output_dtypes(
    name: str, outputs: Sequence[Parameter], letters: Sequence[str], outs: Sequence[torch.Tensor]
) -> dict[str, torch.dtype]:
    """What letters of outputs alone are, by the tensors given for those."""
    found: dict[str, torch.dtype] = {}
    for p, t in zip(outputs, outs, strict=True):
        if p.type in letters and found.setdefault(p.type, t.dtype) is not t.dtype:
            raise TypeError(f"{name}: {p.type} is {dtype_name(found[p.type])} and {dtype_name(t.dtype)}")
    return found


def with_size(
    name: str, many: int, args: tuple[Any, ...], outputs: Sequence[Parameter], out: Any, size: int | None
) -> tuple[Any, ...]:
    """The arguments of ``many`` inputs that are not looped over, with one that has the loop's size after them.

    Outputs that are given, in ``out`` or after the inputs, settle it where ``size`` does not; raw ones don't.
    """
    every = args[many:] if out is None else (out,) if isinstance(out, torch.Tensor) else tuple(out)
    tensors = [t for t in (*every, *args) if isinstance(t, torch.Tensor)]
    given = [t for t, p in zip(every, outputs, strict=False) if not p.raw]
    if size is None and not given:
        way = "pass size=" if all(p.raw for p in outputs) else "pass size=, or the outputs"
        raise ValueError(f"{name}: no input determines the number of elements; {way}")
    if size is not None and (not isinstance(size, (int, torch.SymInt)) or size < 0):
        raise ValueError(f"{name}: size is {size!r}; pass the number of elements, 0 or more")
    shape = (size,) if size is not None else joint_shape(name, [t.shape for t in given if isinstance(t, torch.Tensor)])
    one = torch.zeros((), dtype=torch.bool, device=tensors[0].device if tensors else None)
    return *args[:many], one.expand(shape), *args[many:]


def check_out(
    name: str, what: str, t: torch.Tensor, shape: Sequence[int], dtype: torch.dtype, device: torch.device
) -> None:
    """Raise unless `t` can take an output of this shape, dtype and device."""
    if t.shape != torch.Size(shape):
        raise ValueError(f"{name}: {what} has shape {tuple(t.shape)}; the result has {tuple(shape)}")
    if t.dtype is not dtype:
        raise TypeError(f"{name}: {what} is {dtype_name(t.dtype)}; the result is {dtype_name(dtype)}")
    if t.device != device:
        raise ValueError(f"{name}: {what} is on {t.device}; the arguments are on {device}")
    if any(step == 0 and size > 1 for step, size in zip(t.stride(), t.shape, strict=True)):
        raise ValueError(f"{name}: {what} has elements that share memory; pass {what}.clone()")


def one_dtype(args: Sequence[Any], floats: bool) -> bool:
    """Whether all are tensors of one dtype, of floats if asked, on one device: then there is nothing to prepare."""
    first = args[0]
    if not isinstance(first, torch.Tensor) or (floats and not first.is_floating_point()):
        return False
    dtype, device = first.dtype, first.get_device()
    for a in args[1:]:
        if not isinstance(a, torch.Tensor) or a.dtype is not dtype or a.get_device() != device:
            return False
    return True


def overlap(t: torch.Tensor, out: torch.Tensor, indexed: bool = False) -> bool:
    """Whether writing `out` could change elements of `t` before they are read; some of one are `indexed` anywhere."""
    if t.untyped_storage().data_ptr() != out.untyped_storage().data_ptr():
        return False
    return indexed or (t.data_ptr(), t.shape, t.stride()) != (out.data_ptr(), out.shape, out.stride())


def _on(value: Any, device: torch.device) -> bool:
    return isinstance(value, torch.Tensor) and value.device == device


def shown(value: Any) -> str:
    """What an argument is, for a message."""
    kind = type(value).__name__
    return f"the {kind} {value!r}" if isinstance(value, (int, float, str, complex)) else f"a {kind}"
