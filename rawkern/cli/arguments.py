"""Converts the words of `rawkern run`'s command line to the kernel's arguments."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any

import torch

from rawkern.arguments.signature import Signature
from rawkern.base.nearest import did_you_mean
from rawkern.base.nested import mapped
from rawkern.cli.expressions import Maker, dtypes_behind, members_of, value
from rawkern.cli.text import CommandError

_NAMED = re.compile(r"([A-Za-z_]\w*)\s*=(?!=)\s*(.*)\Z", re.S)


def evaluated(
    texts: Sequence[str], signature: Signature, device: torch.device, seed: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Evaluate the arguments by parameter: first the numbers, whose names the tensors may use.

    Returns all of them, in the order of the parameters, and those that are numbers, which grid and block may use. One
    that is missing, too many, or cannot be evaluated is `CommandError`.
    """
    by_parameter = _by_parameter(texts, signature)
    generator = torch.Generator().manual_seed(seed)
    params = {param.name: param for param in signature.params}
    numbers: dict[str, Any] = {}
    values: dict[str, Any] = {}
    for name in _in_order(by_parameter, signature):
        param = params[name]
        maker = Maker(dtypes_behind(param.ctype), generator, device, numbers, members_of(param.ctype))
        try:
            made = value(by_parameter[param.name], maker)
        except CommandError as error:
            raise CommandError(f"argument {param.name} ({param}): {error}") from None
        values[param.name] = made
        if isinstance(made, (int, float, complex)):
            numbers[param.name] = made
    return {param.name: values[param.name] for param in signature.params}, numbers


def _in_order(texts: dict[str, str], signature: Signature) -> list[str]:
    """The parameters in an order in which each number is known where it is used; tensors last."""
    plain = [param.name for param in signature.params if not param.is_pointer]
    uses = {name: [used for used in _names(texts[name]) if used in plain] for name in plain}
    try:
        order = list(TopologicalSorter(uses).static_order())
    except CycleError as error:
        circle = ", ".join(f"{name}={texts[name]}" for name in dict.fromkeys(error.args[1]))
        raise CommandError(f"{circle}: they depend on each other; write one as a number") from None
    return order + [param.name for param in signature.params if param.is_pointer]


def _names(text: str) -> set[str]:
    try:
        return {node.id for node in ast.walk(ast.parse(text.strip(), mode="eval")) if isinstance(node, ast.Name)}
    except (SyntaxError, ValueError):  # reported when it is evaluated
        return set()


def _by_parameter(texts: Sequence[str], signature: Signature) -> dict[str, str]:
    """Match arguments to parameters."""
    names = [param.name for param in signature.params]
    found: dict[str, str] = {}
    for text in texts:
        named = _NAMED.match(text)
        free = next((name for name in names if name not in found), None)
        name, expression = (named[1], named[2]) if named else (free, text)
        if name is None:
            raise CommandError(f"{text!r} is one argument too many for the kernel {signature}")
        if name not in names:
            raise CommandError(f"no parameter is named {name!r}; the kernel is {signature}{did_you_mean(name, names)}")
        if name in found:
            raise CommandError(f"{name!r} is given twice: {found[name]!r} and {expression!r}")
        found[name] = expression
    if missing := [name for name in names if name not in found]:
        raise CommandError(f"no value for {', '.join(missing)}; the kernel is {signature}")
    return found


def tensors_in(arguments: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The tensors among the arguments, also in lists and structs: ``"x"``, ``"parts[1]"``, ``"s.x"``."""
    found: dict[str, torch.Tensor] = {}
    replaced(arguments, lambda name, tensor: found.setdefault(name, tensor))
    return found


def replaced(arguments: dict[str, Any], instead: Callable[[str, torch.Tensor], Any]) -> dict[str, Any]:
    """The arguments with each tensor replaced."""

    def put(name: str, leaf: Any) -> Any:
        return instead(name, leaf) if isinstance(leaf, torch.Tensor) else leaf

    return {name: mapped(put, argument, name) for name, argument in arguments.items()}


def owner(name: str) -> str:
    """The parameter to which a tensor of `tensors_in` belongs."""
    return re.split(r"[.\[]", name)[0]
