"""Stand-ins for tensors, such as the proxies of torch.fx: a function called with one is recorded, and not run."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch.compiler import is_dynamo_compiling
from torch.overrides import handle_torch_function

from rawkern.base.api_boundary import hide

F = TypeVar("F", bound=Callable[..., Any])


#: Classes of most arguments. Their objects are tensors, or have nothing to do with them.
_USUAL = frozenset((torch.Tensor, torch.nn.Parameter, int, float, bool, str, type(None), torch.dtype, tuple, list))


def is_stand_in(value: Any) -> bool:
    """Whether an object that is not a tensor overrides torch's functions."""
    return not isinstance(value, torch.Tensor) and hasattr(type(value), "__torch_function__")


def call_stand_in(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What the stand-ins among the arguments make of a call of a public function."""
    found = [value for value in (*args, *kwargs.values()) if is_stand_in(value)]
    return handle_torch_function(function, found, *args, **kwargs)


def overridable(function: F, public: Callable[..., Any] | None = None) -> F:
    """A public function that leaves calls with stand-ins to them, as torch's own functions do.

    `public` is what they see. Errors leave it as they leave a `api_boundary`.
    """

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if is_dynamo_compiling():
            return function(*args, **kwargs)
        try:
            for value in args:
                if type(value) not in _USUAL:
                    break
            else:
                if not kwargs:  # quickly
                    return function(*args)
            for value in (*args, *kwargs.values()):
                if type(value) not in _USUAL and is_stand_in(value):
                    return call_stand_in(public or call, *args, **kwargs)
            return function(*args, **kwargs)
        except Exception as error:
            hide(error)
            raise

    made: Any = call
    return made
