"""CuPy's form of a launch, ``kernel(grid, block, args)``, with what CuPy and torch allow in it and no other form has.

Parts may be named and left out, as in torch's; a grid or block of 0 is 1; numbers may be addresses; a cooperative grid
of one dimension shrinks to what the device holds.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from numbers import Integral, Number
from typing import Any

from rawkern.arguments import addresses
from rawkern.base.api_boundary import api_boundary
from rawkern.errors import LaunchError
from rawkern.launch.unit import Kernel

Form = tuple[Any, ...]  # grid, block and arguments
_PARTS = {"grid": 1, "block": 1, "args": (), "shared_mem": 0, "stream": None}


@api_boundary
def complete(name: str, form: tuple[Any, ...], named: Mapping[str, Any]) -> tuple[Form, int, Any]:
    """The parts of a launch, shared memory and stream, some of them named, in torch's order, or left out."""
    given = dict(zip(_PARTS, form, strict=False))
    parts = {**_PARTS, **named, **given}
    args = () if parts["args"] is None else parts["args"]
    sizes = all(isinstance(parts[part], (Number, tuple, list)) for part in ("grid", "block"))
    known = len(form) <= len(_PARTS) and named.keys() <= _PARTS.keys() - given.keys()
    if not known or not sizes or not isinstance(args, (tuple, list)):
        shown = ", ".join([type(value).__name__ for value in form] + [f"{key}=..." for key in named])
        raise TypeError(
            f"{name}: a launch is kernel[grid, block](*args), kernel.forall(n)(*args) or "
            f"kernel(grid, block, (arg, ...), shared_mem=0, stream=None); got kernel({shown})"
        )
    return (parts["grid"], parts["block"], args), parts["shared_mem"], parts["stream"]


@api_boundary
def adapted(kernel: Kernel, form: Form, error: Exception) -> Form | None:
    """The launch that CuPy makes where another form fails with an error; None where CuPy fails, too."""
    grid, block, args = form
    if isinstance(error, LaunchError):
        return _shrunk(kernel, form, error.most_blocks)
    if isinstance(error, TypeError):
        return with_addresses(kernel, form)
    at_least = _at_least_one(grid), _at_least_one(block)
    return (*at_least, args) if _sizes(grid) != _sizes(at_least[0]) or _sizes(block) != _sizes(at_least[1]) else None


@api_boundary
def with_addresses(kernel: Kernel, form: Form) -> Form | None:
    """The launch with an `Address` for each number that is given for a pointer; None where there is none."""
    grid, block, args = form
    if not any(map(addresses.is_address, args)):
        return None
    found = addresses.resolve(kernel.current(args, {}).signature, args)
    return None if found is None else (grid, block, found)


def _sizes(size: Any) -> tuple[Any, ...]:
    return tuple(size) if isinstance(size, (tuple, list)) else (size,)


def _at_least_one(size: Any) -> Any:
    return tuple(1 if isinstance(each, Integral) and each == 0 else each for each in _sizes(size))


def _shrunk(kernel: Kernel, form: Form, most: int | None) -> Form | None:
    grid, block, args = form
    first, *rest = _sizes(grid)
    if not most or any(size != 1 for size in rest):
        return None
    warnings.warn(
        f"{kernel.name}: the device holds {most} of the {first} blocks of this cooperative grid at a time; "
        f"launching {most}",
        stacklevel=5,
    )
    return most, block, args
