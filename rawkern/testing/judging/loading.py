"""Loads a candidate's source as a callable: a kernel, a function or a model."""

from __future__ import annotations

import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

from rawkern.errors import CompileError
from rawkern.kernel import RawKernel
from rawkern.testing.judging import wire
from rawkern.testing.trials import problem_of

MODEL = "ModelNew"


class Unfit(Exception):
    """The candidate does not have the requested name or parameters."""


def load(
    request: dict[str, Any], tensors: Sequence[torch.Tensor], device: torch.device
) -> tuple[Callable[..., Any], dict[str, Any]]:
    """Compile or import a candidate; returns the callable, its name and signature. For CUDA C it is a `RawKernel`."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if request["language"] == "cuda":
        kernel = RawKernel(
            path=request["file"], name=request["entry"], options=request["options"],
            include_dirs=request["include_dirs"], enable_cooperative_groups=request["cooperative"],
        )  # fmt: skip
        try:
            signature = kernel.state(device).signature
        except ValueError as error:
            raise Unfit(str(error)) from None
        return kernel, {"entry": kernel.name, "signature": str(signature)}
    found: Any = _entry(_module(request["file"]), request["entry"])
    if inspect.isclass(found):
        init = wire.decoded(request["init"], [t.to(device) for t in tensors])
        fits(found, init)
        torch.manual_seed(request["seed"])
        made = found(*init)
        found = made.to(device) if isinstance(made, torch.nn.Module) else made
        name = type(found).__name__
    else:
        name = getattr(found, "__name__", str(found))
    return found, {"entry": name, "signature": f"{name}{_parameters(found)}"}


def _module(path: str) -> Any:
    name = os.path.basename(path).removesuffix(".py")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (CompileError, SyntaxError):
        raise
    except Exception as error:
        raise CompileError(f"the module cannot be imported: {problem_of(error).text}") from error
    return module


def _entry(module: Any, asked: str | None) -> Any:
    if asked is not None:
        found = getattr(module, asked, None)
        if not callable(found):
            raise Unfit(f"the module does not define a callable {asked!r}")
        return found
    if callable(model := getattr(module, MODEL, None)):
        return model
    own = {
        name: value
        for name, value in vars(module).items()
        if not name.startswith("_") and inspect.isfunction(value) and value.__module__ == module.__name__
    }
    if len(own) != 1:
        names = ", ".join(own) or "none"
        raise Unfit(f"the module has no class {MODEL}, and not exactly one public function: {names}; pass entry=")
    return next(iter(own.values()))


def _parameters(function: Any) -> str:
    try:
        return str(inspect.signature(function.forward if isinstance(function, torch.nn.Module) else function))
    except (TypeError, ValueError):  # implemented in C
        return "(...)"


def fits(function: Any, args: Sequence[Any]) -> None:
    """Raise `Unfit` for a function that cannot be called with that many arguments."""
    called = function.forward if isinstance(function, torch.nn.Module) else function
    try:
        signature = inspect.signature(called)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*args)
    except TypeError as error:
        name = getattr(function, "__name__", type(function).__name__)
        raise Unfit(f"{name}{signature} cannot be called with {len(args)} arguments: {error}") from None
