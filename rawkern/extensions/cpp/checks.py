"""ATen's checks of arguments, ``at::checkAllSameGPU`` and the like, with its messages."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch

from rawkern.extensions.cpp.devices import device_type, is_cuda
from rawkern.extensions.cpp.numbers import text

Argument = tuple[Any, str, int]  # at::TensorArg: a tensor, its name, its place


def _said(argument: Argument) -> str:
    _, name, place = argument
    return f"argument #{place} '{name}'" if place else f"'{name}'"


def _check(holds: bool, message: str, context: str) -> None:
    if not holds:
        raise RuntimeError(f"{message} (while checking arguments for {context})")


def _pairwise(context: str, arguments: Sequence[Argument], what: str, of: Any) -> None:
    given = [one for one in arguments if one[0] is not None]
    for one in given[1:]:
        first, other = of(given[0][0]), of(one[0])
        message = f"Expected tensor for {_said(given[0])} to have the same {what} as tensor for {_said(one)}"
        _check(first == other, f"{message}; but {what} {text(first)} does not equal {text(other)}", context)


def check_defined(context: str, arguments: Sequence[Argument]) -> None:
    """``checkAllDefined``."""
    for one in arguments:
        _check(one[0] is not None, f"Expected tensor for {_said(one)} to be non-null, but it was undefined", context)


def check_same_gpu(context: str, arguments: Sequence[Argument]) -> None:
    """``checkAllSameGPU``."""
    for one in arguments:
        if one[0] is not None:
            _check(is_cuda(one[0]), f"Expected tensor for {_said(one)} to be on a GPU, but it is on CPU", context)
    _pairwise(context, arguments, "device", lambda tensor: tensor.device)


def check_device_type(context: str, tensors: Sequence[Any], kind: str) -> None:
    """``checkDeviceType``."""
    for one in tensors:
        if one is not None:
            holds = is_cuda(one) if kind == "cuda" else device_type(one) == kind
            message = f"Expected tensor to have {kind} DeviceType, but got tensor with {device_type(one)} DeviceType"
            _check(holds, message, context)


def check_same_type(context: str, arguments: Sequence[Argument]) -> None:
    """``checkAllSameType``."""
    _pairwise(context, arguments, "type", lambda tensor: tensor.dtype)


def check_same_size(context: str, arguments: Sequence[Argument]) -> None:
    """``checkAllSameSize``."""
    _pairwise(context, arguments, "size", lambda tensor: list(tensor.shape))


def check_same_numel(context: str, arguments: Sequence[Argument]) -> None:
    """``checkAllSameNumel``."""
    _pairwise(context, arguments, "number of elements", lambda tensor: tensor.numel())


def check_contiguous(context: str, arguments: Sequence[Argument]) -> None:
    """``checkAllContiguous``."""
    for one in arguments:
        if one[0] is not None:
            message = f"Expected contiguous tensor, but got non-contiguous tensor for {_said(one)}"
            _check(one[0].is_contiguous(), message, context)


def check_dim(context: str, argument: Argument, dim: int) -> None:
    """``checkDim``."""
    found = argument[0].dim()
    message = f"Expected {dim}-dimensional tensor, but got {found}-dimensional tensor for {_said(argument)}"
    _check(found == dim, message, context)


def check_dim_range(context: str, argument: Argument, low: int, high: int) -> None:
    """``checkDimRange``."""
    found = argument[0].dim()
    message = f"Expected {low} to {high - 1} dimensions, but got {found}-dimensional tensor for {_said(argument)}"
    _check(low <= found < high, message, context)


def check_size(context: str, argument: Argument, *size: Any) -> None:
    """``checkSize``, of the whole shape or of one dimension."""
    if len(size) == 1:
        found, wanted = list(argument[0].shape), list(size[0])
        message = f"Expected tensor of size {wanted}, but got tensor of size {found} for {_said(argument)}"
    else:
        found, wanted = argument[0].shape[size[0]], size[1]
        message = f"Expected tensor to have size {wanted} at dimension {size[0]}, but got size {found} for "
        message += _said(argument)
    _check(found == wanted, message, context)


def check_numel(context: str, argument: Argument, count: int) -> None:
    """``checkNumel``."""
    found = argument[0].numel()
    message = f"Expected tensor for {_said(argument)} to have {count} elements; but it has {found} elements"
    _check(found == count, message, context)


def check_scalar_types(context: str, argument: Argument, dtypes: Sequence[torch.dtype]) -> None:
    """``checkScalarTypes``."""
    found = argument[0].dtype
    listed = ", ".join(map(text, dtypes))
    wanted = listed if len(dtypes) == 1 else f"one of the following scalar types: {listed}"
    message = f"Expected tensor for {_said(argument)} to have {wanted}; but got {text(found)} instead"
    _check(found in dtypes, message, context)


def alert_not_deterministic(caller: str) -> None:
    """``alertNotDeterministic``: an error or a warning where torch is to use deterministic algorithms."""
    if not torch.are_deterministic_algorithms_enabled():
        return
    message = f"{caller} does not have a deterministic implementation, but you set 'torch.use_deterministic_algorithms"
    if not torch.is_deterministic_algorithms_warn_only_enabled():
        raise RuntimeError(f"{message}(True)'.")
    warnings.warn(f"{message}(True, warn_only=True)'.", stacklevel=2)
