"""The words of `rawkern run`'s command line to the kernel's arguments."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch

from rawkern.cli.expressions import Maker, dtypes_behind, value
from rawkern.cli.text import Refused
from rawkern.signature import Signature

__all__ = ["evaluated", "tensors_in"]

_NAMED = re.compile(r"([A-Za-z_]\w*)\s*=(?!=)\s*(.*)\Z", re.S)


def evaluated(
    texts: Sequence[str], signature: Signature, device: torch.device, seed: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Evaluate the arguments by parameter: first the numbers, whose names the tensors may use.

    Returns
    -------
    arguments : dict
        All of them, in the order of the parameters.
    numbers : dict
        Those that are numbers, which grid and block may use.

    Raises
    ------
    Refused
        For one that is missing, too many, or cannot be evaluated.
    """
    by_parameter = _by_parameter(texts, signature)
    generator = torch.Generator().manual_seed(seed)
    numbers: dict[str, Any] = {}
    values: dict[str, Any] = {}
    for param in sorted(signature.params, key=lambda param: param.is_pointer):
        maker = Maker(dtypes_behind(param.ctype), generator, device, numbers)
        try:
            made = value(by_parameter[param.name], maker)
        except Refused as error:
            raise Refused(f"argument {param.name} ({param}): {error}") from None
        values[param.name] = made
        if isinstance(made, (int, float, complex)):
            numbers[param.name] = made
    return {param.name: values[param.name] for param in signature.params}, numbers


def _by_parameter(texts: Sequence[str], signature: Signature) -> dict[str, str]:
    """Which argument belongs to which parameter."""
    names = [param.name for param in signature.params]
    found: dict[str, str] = {}
    for text in texts:
        named = _NAMED.match(text)
        free = next((name for name in names if name not in found), None)
        name, expression = (named[1], named[2]) if named else (free, text)
        if name is None:
            raise Refused(f"{text!r} is one argument too many; the kernel is {signature}")
        if name not in names:
            raise Refused(f"there is no parameter {name!r}; the kernel is {signature}")
        if name in found:
            raise Refused(f"{name!r} is given twice: {found[name]!r} and {expression!r}")
        found[name] = expression
    if missing := [name for name in names if name not in found]:
        raise Refused(f"no value for {', '.join(missing)}; the kernel is {signature}")
    return found


def tensors_in(arguments: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The tensors among the arguments, those in lists by index."""
    found = {}
    for name, argument in arguments.items():
        items = enumerate(argument) if isinstance(argument, list) else [(None, argument)]
        found |= {name if i is None else f"{name}[{i}]": item for i, item in items if isinstance(item, torch.Tensor)}
    return found
