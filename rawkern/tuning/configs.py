"""Configurations: what users may give, all of a space, and the kernel that one of them stands for."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from rawkern.base.nearest import did_you_mean
from rawkern.compile.files import read as read_file
from rawkern.compile.includes import closure
from rawkern.compile.nvrtc import include_path
from rawkern.compile.source import Source
from rawkern.kernel import RawKernel

Config = dict[str, Any]
Space = dict[str, list[Any]]

LAUNCH = ("block", "grid", "shared_mem", "cluster")  # names that say how to launch, and not what to compile
OPTIONS = "options"
_NAME = re.compile(r"[A-Za-z_]\w*\Z")
_WORD = re.compile(r"[A-Za-z_]\w*")
_PLACE = re.compile(r"\{(\w+)\}")


def read(
    configs: Any, where: Callable[[Config], Any] | None, kernel_name: str
) -> tuple[tuple[Config, ...], Space | None]:
    """Check what a user gave: the configurations, and the space they are all of, if it was one.

    TypeError or ValueError for an invalid configuration, or if there is none.
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
        made = [config for config in made if where(Asked(config))]
    if not made:
        raise ValueError(f"autotune of {kernel_name} has no configurations{' left' if where is not None else ''}")
    if len({hashed(config) for config in made}) < len(made):
        raise ValueError("configs has a configuration twice")
    for name in ("block", *places(kernel_name)):
        if any(name in config for config in made) and not all(name in config for config in made):
            raise ValueError(f"some configurations have {name!r} and others do not; give it to all of them")
    return tuple(made), space


class Asked(Mapping[str, Any], dict[str, Any]):  # type: ignore[misc]  # a dict whose reads all go through here
    """A configuration that notes the names that a function asks it for."""

    def __init__(self, config: Config) -> None:
        dict.__init__(self, config)
        self.names: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        if not dict.__contains__(self, name):
            there = f"it has {', '.join(dict.keys(self)) or 'none'}{did_you_mean(name, dict.keys(self))}"
            raise KeyError(f"the configuration has no {name!r}; {there}")
        self.names.add(name)
        return dict.__getitem__(self, name)

    def __contains__(self, name: object) -> bool:
        self.names.add(str(name))
        return dict.__contains__(self, name)

    def __iter__(self) -> Iterator[str]:
        return dict.__iter__(self)

    def __len__(self) -> int:
        return dict.__len__(self)


def unused(kernel: RawKernel, configs: Iterable[Config]) -> list[str]:
    """The names of configurations that are neither in the source, its headers and options nor in the kernel's name."""
    configs = list(configs)
    names = dict.fromkeys(name for config in configs for name in config)
    source = kernel.build().source
    left = [name for name in names if name != OPTIONS and name not in places(kernel.name)]
    if source.binary is not None:
        return left
    values = {str(value) for config in configs for value in config.values()}  # macros may stand for others
    words = set(_WORD.findall(" ".join([*source.texts(), *source.options, *values])))
    left = [name for name in left if name in LAUNCH or name not in words]
    return [name for name in left if name in LAUNCH or not _in_headers(source, name)]


def _in_headers(source: Source, name: str) -> bool:
    """Whether a name is in a header that the source includes, CUDA's own among them."""
    found, _, _ = closure(source.text, None, source.options, include_path(source))
    word = re.compile(rf"\b{name}\b".encode())
    return any(word.search(read_file(path) or b"") for path in found)


def rejection(kernel: RawKernel, name: str, tuned: str) -> ValueError:
    """The error for a name of configurations that nothing uses."""
    if name in LAUNCH:
        return ValueError(
            f"autotune of {tuned}: {name!r} is in the configurations, but this launch does not use it; "
            f"launch with a function that does: lambda c: c[{name!r}]"
        )
    source = kernel.build().source
    words = dict.fromkeys([*LAUNCH, OPTIONS, *places(kernel.name), *_WORD.findall(" ".join(source.texts()))])
    joined = any("##" in text for text in source.texts())
    way = f"; a name that ## joins goes into options, ('-D{name}=...',)" if joined else ""
    return ValueError(
        f"autotune of {tuned}: nothing uses {name!r} of the configurations: {source.title} and its headers do not "
        f"have the name, and no function of this launch asks for it{did_you_mean(name, words)}{way}"
    )


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
    raise TypeError(
        f"configuration {name}={value!r}: a macro or template argument must be a number, a bool or a string"
    )


def _config(config: Any) -> Config:
    if not isinstance(config, Mapping):
        raise TypeError(f"a configuration is {type(config).__name__} {config!r}; pass a dict, such as {{'block': 128}}")
    return {_name(name): _value(name, value) for name, value in config.items()}


def _choices(name: Any, values: Any) -> list[Any]:
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise TypeError(f"configs[{name!r}] is {values!r}; in a dict of lists, pass the list of all its values")
    found = [_value(name, value) for value in values]
    if not found:
        raise ValueError(f"configs[{name!r}] is empty, so there are no configurations")
    return found


def _name(name: Any) -> str:
    if not isinstance(name, str) or not _NAME.match(name):
        raise ValueError(
            f"configuration parameter {name!r}: it is block, grid, shared_mem, cluster, options or the name of a macro "
            "or template argument"
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
