"""Configurations: what users may give, all of a space, and the kernel that one of them stands for."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from rawkern.kernel import RawKernel

Config = dict[str, Any]
Space = dict[str, list[Any]]

LAUNCH = ("block", "grid", "shared_mem")  # names that say how to launch, and not what to compile
_NAME = re.compile(r"[A-Za-z_]\w*\Z")
_PLACE = re.compile(r"\{(\w+)\}")


def read(
    configs: Any, where: Callable[[Config], Any] | None, kernel_name: str
) -> tuple[tuple[Config, ...], Space | None]:
    """Check what a user gave: the configurations, and the space they are all of, if it was one.

    TypeError or ValueError for what is no configuration, and for none at all.
    """
    space = None
    if isinstance(configs, Mapping):
        space = {_name(name): _choices(name, values) for name, values in configs.items()}
        made = [dict(zip(space, values, strict=True)) for values in itertools.product(*space.values())]
    elif isinstance(configs, Iterable) and not isinstance(configs, (str, bytes)):
        made = [_config(one) for one in configs]
    else:
        raise TypeError(
            f"configs is {type(configs).__name__}; pass a list of dicts, or a dict of lists for all of them"
        )
    if where is not None:
        made = [config for config in made if where(config)]
    if not made:
        raise ValueError(f"autotune of {kernel_name} has no configurations{' left' if where is not None else ''}")
    if len({hashed(config) for config in made}) < len(made):
        raise ValueError("configs has a configuration twice")
    for name in ("block", *places(kernel_name)):
        if any(name in config for config in made) and not all(name in config for config in made):
            raise ValueError(f"some configurations have {name!r} and some have not; give it to all of them")
    return tuple(made), space


def hashed(config: Config) -> str:
    """A configuration as a key; 1, 1.0 and True are the same for Python and not for C."""
    return json.dumps(config, sort_keys=True)


def places(kernel_name: str) -> list[str]:
    """The names in braces, which template arguments take the place of."""
    return _PLACE.findall(kernel_name)


def shown(config: Config) -> str:
    """A configuration in words: ``block=(32, 8) TILE=32``."""
    return " ".join(f"{name}={value}" for name, value in config.items()) or "no parameters"


def compiled(kernel: RawKernel, config: Config) -> tuple[str | None, tuple[str, ...]]:
    """What a configuration is compiled as: the kernel's name, None if it is its own, and options on top of its own."""
    name, filled = None, set(places(kernel.name)) & set(config)
    if filled:
        name = _PLACE.sub(
            lambda match: _spelled(match[1], config[match[1]]) if match[1] in filled else match[0], kernel.name
        )
    macros = [
        f"-D{key}={_spelled(key, value)}"
        for key, value in config.items()
        if key not in filled and key not in LAUNCH and key != "options"
    ]
    return name, (*config.get("options", ()), *macros)


def _spelled(name: str, value: Any) -> str:
    """A value as CUDA C has it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float, str)):
        return str(value)
    raise TypeError(f"configuration {name}={value!r}: a macro or template argument is a number, a bool or a string")


def _config(config: Any) -> Config:
    if not isinstance(config, Mapping):
        raise TypeError(f"a configuration is {type(config).__name__} {config!r}; pass a dict, such as {{'block': 128}}")
    return {_name(name): _value(name, value) for name, value in config.items()}


def _choices(name: Any, values: Any) -> list[Any]:
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise TypeError(f"configs[{name!r}] is {values!r}; in a dict of lists it is the list of all its values")
    found = [_value(name, value) for value in values]
    if not found:
        raise ValueError(f"configs[{name!r}] is empty, so there are no configurations")
    return found


def _name(name: Any) -> str:
    if not isinstance(name, str) or not _NAME.match(name):
        raise ValueError(
            f"configuration parameter {name!r}: it is block, grid, shared_mem, options or the name of a macro or "
            "template argument"
        )
    return name


def _value(name: str, value: Any) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, (list, tuple)):
        value = tuple(item.item() if isinstance(item, np.generic) else item for item in value)
    items = value if isinstance(value, tuple) else (value,)
    if name == "options":
        right, need = isinstance(value, tuple) and all(isinstance(item, str) for item in items), "a tuple of strings"
    elif name in LAUNCH:
        right, need = all(type(item) is int for item in items), "an int or a tuple of ints"
    else:
        right, need = isinstance(value, (bool, int, float, str)), "a number, a bool or a string"
    if not right:
        raise TypeError(f"configuration {name}={value!r}: it has to be {need}")
    return value
