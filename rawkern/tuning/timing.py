"""How long a launch takes: CUDA events on a GPU, the shortest wall-clock time on the CPU engine."""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable

import torch

from rawkern.base.timing import gpu_seconds
from rawkern.launch import native

FEWEST = 3  # runs of a configuration, however slow
GPU_RUNS, GPU_SECONDS = 50, 0.02  # at most so many, or about so long in all
GPU_WAKES = 0.05  # seconds of work after which a GPU's clocks are what they stay at
GPU_AHEAD = 20  # times that the cache is emptied first, so that the host gets ahead of the GPU and stays there
CPU_RUNS, CPU_SECONDS = 30, 0.2
HOPELESS = 2.0  # times the best so far: not worth more runs
DISTURBED = 0.03  # seconds for which another program may keep a CPU


def seconds(
    device: torch.device, launch: Callable[[], None], before: Callable[[], None], best: float | None = None
) -> float:
    """Measure one launch, in seconds.

    It has been launched before, so that everything is compiled and loaded. ``before`` is called before each launch, and
    not timed. What is slower than ``best``, the best time so far, by far is not measured further.

    On a GPU the median of events' times is taken, with a cold L2 cache, as `triton.testing.do_bench` does: the kernel
    that empties the cache also keeps the GPU busy until the launch has been issued. On the CPU others only add to the
    time, so the minimum counts.
    """
    before()
    launch()
    native.wait()
    return _on_gpu(device, launch, before, best) if device.type == "cuda" else _on_cpu(launch, before, best)


def _on_cpu(launch: Callable[[], None], before: Callable[[], None], best: float | None) -> float:
    shortest, total, runs = float("inf"), 0.0, 0
    while runs < FEWEST or (runs < CPU_RUNS and total < CPU_SECONDS):
        before()
        start = time.perf_counter()
        launch()
        took = time.perf_counter() - start
        shortest, total, runs = min(shortest, took), total + took, runs + 1
        if total > DISTURBED and best is not None and shortest > HOPELESS * best:
            break
    return shortest


def _on_gpu(device: torch.device, launch: Callable[[], None], before: Callable[[], None], best: float | None) -> float:
    emptying = torch.empty(_cache_bytes(device), dtype=torch.uint8, device=device)

    def prepare() -> None:
        before()
        emptying.zero_()

    def run(count: int) -> list[float]:
        for _ in range(GPU_AHEAD):
            emptying.zero_()
        return gpu_seconds(launch, count, prepare)

    with torch.cuda.device(device):
        run(FEWEST)  # a launcher's first launches take longer
        started = time.perf_counter()
        while best is None and time.perf_counter() - started < GPU_WAKES:
            run(FEWEST)
        middle = statistics.median(run(FEWEST))
        if best is not None and middle > HOPELESS * best:
            return middle
        more = int(min(GPU_RUNS, GPU_SECONDS / max(middle, 1e-6)))
        return statistics.median(run(more)) if more > FEWEST else middle


@functools.cache
def _cache_bytes(device: torch.device) -> int:
    """Twice the L2 cache, so that none of what was in it stays."""
    return 2 * max(getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0), 32 << 20)
