"""Write CUDA C, call it on torch tensors: no build step, no copies, no GPU needed to test it."""

import ast
import importlib
from pathlib import Path
from typing import Any

from rawkern._version import __version__ as __version__


def _homes() -> dict[str, str]:
    """The module of each public name, as ``__init__.pyi`` has them: type checkers read the same lines."""
    stub = ast.parse(Path(__file__).with_suffix(".pyi").read_text())
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in imports for alias in node.names}


# Nothing is imported before it is used: `import rawkern` costs next to nothing.
_HOME = _homes()
__all__ = [name for name in _HOME if not name.startswith("_")]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'rawkern' has no attribute {name!r}")
    if home == "rawkern":
        value = importlib.import_module(f"rawkern.{name}")
    else:
        value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, "__version__"})
