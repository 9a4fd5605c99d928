"""Times of launches: medians over repeats, measured by the GPU or the host."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from rawkern.base.timing import gpu_seconds, nothing
from rawkern.base.torch_private import sleep_on_gpu
from rawkern.launch import native

_WARM = 3  # launches before the first that counts
_CHUNK = 20  # launches queued during one pause of the GPU, so that it never waits for the host
_PAUSE = 4_000_000  # cycles of that pause, about 2 ms; enqueueing a chunk takes less
_ENOUGH = 2.0  # seconds after which a measurement on the CPU ends


def launch_seconds(
    launch: Callable[[], Any], device: torch.device, repeats: int, restore: Callable[[], Any] = nothing
) -> float:
    """The median of `launch_times`."""
    return statistics.median(launch_times(launch, device, repeats, restore))


def launch_times(
    launch: Callable[[], Any], device: torch.device, repeats: int, restore: Callable[[], Any] = nothing
) -> list[float]:
    """The times of launches: on a GPU from start to end by events, on the CPU those of the calls.

    Long launches are repeated fewer than ``repeats`` times. ``restore`` undoes what the launch changed; it is
    called before each repeat, outside the measured time.
    """
    for _ in range(_WARM):
        restore()
        launch()
        native.wait()
    if device.type == "cuda":
        return _on_gpu(launch, restore, repeats)
    times: list[float] = []
    end = time.perf_counter() + _ENOUGH
    while len(times) < repeats and (len(times) < 3 or time.perf_counter() < end):
        restore()
        start = time.perf_counter()
        launch()
        times.append(time.perf_counter() - start)
    return times


def _on_gpu(launch: Callable[[], Any], restore: Callable[[], Any], repeats: int) -> list[float]:
    times: list[float] = []
    while len(times) < repeats:
        sleep_on_gpu(_PAUSE)
        times += gpu_seconds(launch, _CHUNK, restore)
    return times[:repeats]


def host_seconds(launch: Callable[[], Any], device: torch.device, calls: int = 200, rounds: int = 7) -> float:
    """The host time of a call, the best of several rounds; the GPU is synchronized between rounds."""
    best = float("inf")
    for _ in range(rounds):
        if device.type == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            launch()
        best = min(best, (time.perf_counter() - start) / calls)
    if device.type == "cuda":
        torch.cuda.synchronize()
    return best
