"""Kernels to tune, and what was chosen."""

from __future__ import annotations

from typing import Any

import torch

import rawkern
from rawkern.tuning.record import Tuning

# WORK makes it slow, ADDED wrong.
SOURCE = r"""
#ifndef WORK
#define WORK 0
#endif
#ifndef ADDED
#define ADDED 0
#endif
extern "C" __global__ void saxpy(int n, float a, const float* x, float* y) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float sum = a * x[i];
    // The CPU engine compiles for 800; what is much for it is nothing for a GPU.
    for (int k = 0; k < WORK * (__CUDA_ARCH__ > 800 ? 100 : 1); k++) sum = sum * 1.5f - 0.5f * sum;
    y[i] += sum + ADDED;
}
"""


SLOW = 3000


def inputs(device: str, n: int = 1003) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    x, y = torch.randn(n, device=device), torch.randn(n, device=device)
    return x, y, y + 2.5 * x


def tuned_saxpy(tag: str, configs: Any = None, **options: Any) -> Any:
    """A kernel of its own source, so that tests that run at the same time have other choices."""
    kernel = rawkern.RawKernel(f"// {tag}\n{SOURCE}")
    return rawkern.autotune(kernel, configs or {"WORK": [SLOW, 0], "block": [64, 256]}, **options)


def chosen(tuned: Any) -> Tuning:
    (only,) = tuned.tunings
    return only
