"""How long work takes on a GPU, by the GPU's own clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def nothing() -> None:
    """What is to be done before a launch that needs nothing done."""


def gpu_seconds(run: Callable[[], Any], repeats: int, before: Callable[[], Any] = nothing) -> list[float]:
    """Measure what ``run`` enqueues on the current stream, from its start on the GPU to its end there: seconds of each.

    The repeats are enqueued without waiting; where the GPU comes to one before the host has enqueued all of it, the
    host's time counts too. So callers give the GPU other work first. ``before`` is called before each repeat, and not
    counted.
    """
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(repeats)]
    for start, end in events:
        before()
        start.record()
        run()
        end.record()
    torch.cuda.current_stream().synchronize()
    return [start.elapsed_time(end) * 1e-3 for start, end in events]
