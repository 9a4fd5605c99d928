"""The environment variables that rawkern reads, and the error for a value that one of them cannot have."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")

PREFIX = "RAWKERN_"
VARIABLES = (
    "RAWKERN_ARCH", "RAWKERN_AUTOTUNE", "RAWKERN_CACHE_DIR", "RAWKERN_CHECK", "RAWKERN_FULL_TRACEBACK",
    "RAWKERN_OPTIMIZE", "RAWKERN_ORDER", "RAWKERN_SOURCES", "RAWKERN_TIME_LIMIT", "RAWKERN_VERIFY",
)  # fmt: skip


class EnvironmentVariableError(ValueError):
    """A value that an environment variable cannot have."""


def read(name: str, parse: Callable[[str, str], T], default: T) -> T:
    """A variable's value, parsed by a function of its value and its name for messages; the default if it is not set."""
    text = os.environ.get(name, "").strip()
    if not text:
        return default
    try:
        return parse(text, f"the environment variable {name}")
    except ValueError as error:
        raise EnvironmentVariableError(str(error)) from None


def choice(name: str, choices: Sequence[str]) -> str:
    """A variable's value, which is one of several, or "" where it is not set."""

    def parse(text: str, source: str) -> str:
        if text not in choices:
            raise ValueError(f"{source} is {text!r}; it is {', '.join(choices)} or not set")
        return text

    return read(name, parse, "")
