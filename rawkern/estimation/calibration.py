"""What small kernels measure of a GPU: figures of `cards` that differ from card to card and from driver to driver."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch

from rawkern.base import torch_private as private
from rawkern.base.timing import gpu_seconds
from rawkern.estimation.cards import Card
from rawkern.kernel import RawKernel
from rawkern.module import RawModule

#: `chase` follows one element to the next, so that each load waits for the one before; `tally` updates one address that
#: ptxas cannot tell to be one, so that lanes' integers are not added up before.
_CODE = r"""
extern "C" __global__ void nothing() {}
extern "C" __global__ void add(float* x) { atomicAdd(x, 1.0f); }
extern "C" __global__ void tally(int* x, int n) { atomicAdd(x + threadIdx.x % n, 1); }
extern "C" __global__ void chase(const int* next, int* from, int steps) {
  int at = *from;
  for (int k = 0; k < steps; k++) at = __ldcg(next + at);
  *from = at;
}
"""
_REPEATS, _AHEAD = 10, 2_000_000
_SMALL, _LARGE, _STEPS = 1 << 20, 1 << 28, 4096  # elements that L2 holds, and that it does not; loads of a chase
_STRIDE = 129  # elements from one load to the next: another line; so many loads come back to none of them soon
_BLOCKS, _UPDATES = 1 << 18, 1 << 16


def figures(card: Card) -> dict[str, float]:
    """Measure the current CUDA device, in about ten seconds; `card` is what is known of it."""
    module = RawModule(_CODE)
    nothing, add, tally, chase = map(module.get_function, ("nothing", "add", "tally", "chase"))
    x, total = torch.zeros(1, device="cuda"), torch.zeros(1, dtype=torch.int32, device="cuda")
    empty = _seconds(lambda: nothing[1, 32]())
    blocks = (_seconds(lambda: nothing[_BLOCKS, 32]()) - empty) / _BLOCKS
    hot = (_seconds(lambda: add[_UPDATES // 256, 256](x)) - empty) / _UPDATES
    step = (_seconds(lambda: tally[_UPDATES // 256, 256](total, 1)) - empty) / _UPDATES
    source = torch.empty(_LARGE, dtype=torch.int32, device="cuda")
    target = torch.empty_like(source)
    copied = 2 * source.nbytes / _seconds(lambda: target.copy_(source))
    near, far = (_latency(chase, source, count) * card.gpu.clock for count in (_SMALL, _LARGE))
    return {
        "empty": max(0.0, empty * 1e6 - card.constants.launch),  # the model adds them up
        "block_interval": blocks * 1e9, "hot": hot * 1e9, "step": step * 1e9, "dram_share": copied / card.gpu.memory,
        "l2_latency": near, "dram_latency": max(0.0, far - near),
    }  # fmt: skip


def _latency(chase: RawKernel, memory: torch.Tensor, count: int) -> float:
    """Seconds of one load, of `count` elements that are followed from one to the next, on from where a launch ended."""
    torch.arange(_STRIDE, count + _STRIDE, out=memory[:count]).remainder_(count)
    at = torch.zeros(1, dtype=torch.int32, device="cuda")
    few, many = (_seconds(lambda steps=steps: chase[1, 1](memory, at, steps)) for steps in (_STEPS, 2 * _STEPS))
    return (many - few) / _STEPS


def _seconds(launch: Callable[[], object]) -> float:
    for _ in range(3):
        launch()
    return statistics.median(gpu_seconds(launch, _REPEATS, lambda: private.sleep_on_gpu(_AHEAD)))
