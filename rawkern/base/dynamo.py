"""Keeping torch.compile out of rawkern's own code: a raw launch is a graph break, and runs as it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch.torch_version import TorchVersion

F = TypeVar("F", bound=Callable[..., Any])

_REASON = "a raw kernel launch is not recorded in a graph; wrap it in rawkern.op"
# Dynamo's table of what to do with frames. It is there without importing Dynamo, which takes long.
_frames: Any = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)


def untraced(function: F) -> F:
    """Mark a function that torch.compile must neither trace nor compile, nor what it calls; calls cost nothing more.

    `torch.compiler.disable` would do the same with a wrapper around each call.
    """
    function._torchdynamo_disable = True  # type: ignore[attr-defined]
    function._torchdynamo_disable_msg = _REASON  # type: ignore[attr-defined]
    try:
        skip = _frames._FrameAction.SKIP
        _frames.set_code_exec_strategy(function.__code__, _frames._FrameExecStrategy(skip, skip))
    except AttributeError:  # another torch: it would trace these functions, and break the graph at the launch in them
        pass
    return function


def _exporting() -> bool:
    return getattr(torch.compiler, "_is_exporting_flag", False)


#: Whether torch.export traces. Dynamo before torch 2.13 takes the public function for True in graphs of its own, too;
#: it reads a function of ours as it stands.
exporting: Callable[[], bool] = torch.compiler.is_exporting if TorchVersion(torch.__version__) >= "2.13" else _exporting
