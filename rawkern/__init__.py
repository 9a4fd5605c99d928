"""Write CUDA C, call it on torch tensors: no build step, no copies, no GPU needed to test it."""

import ast
import importlib
import sys
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
        # `name` and `obj`: the traceback then says which name is meant.
        raise AttributeError(f"module 'rawkern' has no attribute {name!r}", name=name, obj=sys.modules[__name__])
    from rawkern.base.scopes import uncollected

    with uncollected:
        if home == "rawkern":
            value = importlib.import_module(f"rawkern.{name}")
        else:
            value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, "__version__"})


def load_ipython_extension(shell: Any) -> None:
    """Give a notebook the magic ``%%cuda``: IPython's ``%load_ext rawkern`` calls it."""
    from rawkern.notebook import register

    register(shell)


def _find_operators() -> None:
    """Make ``torch.ops.rawkern`` import a built-in operator at its first use, for example by a saved program.

    Its module is that of the public name with which its name begins.
    """
    import torch

    homes = {name: home for name, home in _HOME.items() if home.startswith("rawkern.library.")}
    homes |= {name.replace("layer_", ""): homes[name] for name in ("layer_norm", "add_layer_norm")}

    class Operators(type(torch.ops.aten)):  # type: ignore[misc]
        __module__ = type(torch.ops.aten).__module__  # saved programs have it as the beginning of names

        def __getattr__(self, name: str) -> Any:
            try:
                return super().__getattr__(name)
            except AttributeError:
                if name.startswith("_"):
                    raise
            beginnings = [known for known in homes if name.startswith(known)]
            if beginnings:  # other names cannot be built-in operators
                importlib.import_module(homes[max(beginnings, key=len)])
            return super().__getattr__(name)

    setattr(torch.ops, "rawkern", Operators("rawkern"))  # noqa: B010 - torch declares no such attribute


class _WhenTorchComes:
    """Finds torch as all others do, and runs `_find_operators` when it is imported."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != "torch":
            return None
        from importlib.util import find_spec

        sys.meta_path.remove(self)  # type: ignore[arg-type]
        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                run(module)
                _find_operators()

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


if "torch" in sys.modules:
    _find_operators()
else:
    sys.meta_path.insert(0, _WhenTorchComes())  # type: ignore[arg-type]
