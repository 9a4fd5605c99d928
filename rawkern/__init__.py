"""Write CUDA C, call it on torch tensors: no build step, no copies, no GPU needed to test it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Where each public name is defined. Nothing is imported before it is used: `import rawkern` costs next to nothing.
_HOME = {
    "RawKernel": "kernel",
    "RawModule": "module",
    "load": "module",
    "from_torch": "tensors",
    "to_torch": "tensors",
    "op": "operators",
    "check": "checking",
    "autotune": "tuning.tuned",
    "use_torch_allocator": "allocator",
    "set_limit": "limits",
    "get_limit": "limits",
    "Report": "reports",
    "elementwise": "formulas.elementwise",
    "reduction": "formulas.reduction",
    "CompileError": "errors",
    "CheckError": "errors",
    "OutOfBoundsError": "errors",
    "MisalignedError": "errors",
    "FreedMemoryError": "errors",
    "ReadOnlyError": "errors",
    "UninitializedReadError": "errors",
    "RaceError": "errors",
    "BarrierError": "errors",
    "WarpSyncError": "errors",
    "LaunchError": "errors",
    "MissingDependencyError": "errors",
    "NotDifferentiable": "errors",
    "RawkernError": "errors",
    "UnsupportedError": "errors",
    "square": "ops.square",
    "mul": "ops.mul",
    "scale": "ops.scale",
    "relu": "ops.relu",
    "relu_": "ops.relu",
    "silu": "ops.activations",
    "gelu": "ops.activations",
    "swiglu": "ops.activations",
    "geglu": "ops.activations",
    "add_sin_cos": "ops.activations",
    "dropout": "ops.dropout",
    "rotary_embedding": "ops.rotary",
    "adamw_": "ops.adamw",
    "nbody_forces": "ops.nbody",
    "optim": "optim",
    "nn": "nn",
    "testing": "testing",
    "sum": "ops.sum",
    "mean": "ops.sum",
    "softmax": "ops.softmax",
    "log_softmax": "ops.softmax",
    "layer_norm": "ops.norm",
    "add_layer_norm": "ops.norm",
    "rms_norm": "ops.norm",
    "add_rms_norm": "ops.norm",
    "cross_entropy": "ops.cross_entropy",
    "embedding": "ops.embedding",
    "scale_by_sign_of_sum": "ops.scale_by_sign_of_sum",
}

__all__ = [  # noqa: RUF022 - in the order of the documentation
    "RawKernel",
    "RawModule",
    "load",
    "from_torch",
    "to_torch",
    "op",
    "check",
    "autotune",
    "use_torch_allocator",
    "set_limit",
    "get_limit",
    "Report",
    "elementwise",
    "reduction",
    "square",
    "mul",
    "scale",
    "relu",
    "relu_",
    "silu",
    "gelu",
    "swiglu",
    "geglu",
    "add_sin_cos",
    "dropout",
    "rotary_embedding",
    "adamw_",
    "nbody_forces",
    "optim",
    "nn",
    "testing",
    "sum",
    "mean",
    "softmax",
    "log_softmax",
    "layer_norm",
    "add_layer_norm",
    "rms_norm",
    "add_rms_norm",
    "cross_entropy",
    "embedding",
    "scale_by_sign_of_sum",
    "CompileError",
    "CheckError",
    "OutOfBoundsError",
    "MisalignedError",
    "FreedMemoryError",
    "ReadOnlyError",
    "UninitializedReadError",
    "RaceError",
    "BarrierError",
    "WarpSyncError",
    "LaunchError",
    "MissingDependencyError",
    "NotDifferentiable",
    "RawkernError",
    "UnsupportedError",
]

if TYPE_CHECKING:
    from rawkern import nn, optim, testing
    from rawkern.allocator import use_torch_allocator
    from rawkern.checking import check
    from rawkern.errors import (
        BarrierError,
        CheckError,
        CompileError,
        FreedMemoryError,
        LaunchError,
        MisalignedError,
        MissingDependencyError,
        NotDifferentiable,
        OutOfBoundsError,
        RaceError,
        RawkernError,
        ReadOnlyError,
        UninitializedReadError,
        UnsupportedError,
        WarpSyncError,
    )
    from rawkern.formulas.elementwise import elementwise
    from rawkern.formulas.reduction import reduction
    from rawkern.kernel import RawKernel
    from rawkern.limits import get_limit, set_limit
    from rawkern.module import RawModule, load
    from rawkern.operators import op
    from rawkern.ops.activations import add_sin_cos, geglu, gelu, silu, swiglu
    from rawkern.ops.adamw import adamw_
    from rawkern.ops.cross_entropy import cross_entropy
    from rawkern.ops.dropout import dropout
    from rawkern.ops.embedding import embedding
    from rawkern.ops.mul import mul
    from rawkern.ops.nbody import nbody_forces
    from rawkern.ops.norm import add_layer_norm, add_rms_norm, layer_norm, rms_norm
    from rawkern.ops.relu import relu, relu_
    from rawkern.ops.rotary import rotary_embedding
    from rawkern.ops.scale import scale
    from rawkern.ops.scale_by_sign_of_sum import scale_by_sign_of_sum
    from rawkern.ops.softmax import log_softmax, softmax
    from rawkern.ops.square import square
    from rawkern.ops.sum import mean, sum
    from rawkern.reports import Report
    from rawkern.tensors import from_torch, to_torch
    from rawkern.tuning.tuned import autotune


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'rawkern' has no attribute {name!r}")
    module = importlib.import_module(f"rawkern.{home}")
    value = module if home == name else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
