"""Python that is written while the program runs."""

from __future__ import annotations

import linecache
from typing import Any


def run(text: str, file: str, space: dict[str, Any]) -> dict[str, Any]:
    """Execute generated code, so that tracebacks show it."""
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    space.setdefault("__name__", __name__)  # its frames are rawkern's
    exec(compile(text, file, "exec"), space)
    return space
