"""Python that is written while the program runs."""

from __future__ import annotations

import linecache
from typing import Any


def run(text: str, file: str, space: dict[str, Any]) -> dict[str, Any]:
    """Execute generated code, so that tracebacks show it; `file` begins with ``<rawkern``, for `frames.own`.

    Its globals have no ``__name__``, as Dynamo would look for them in the module of that name.
    """
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    exec(compile(text, file, "exec"), space)
    return space
