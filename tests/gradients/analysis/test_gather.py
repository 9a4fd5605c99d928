"""Gradients that the thread of an element gathers."""

from __future__ import annotations

import torch

import rawkern


def test_updates_in_place_of_several_elements_a_thread() -> None:
    """Written out, an iteration reads what was there before the store of another: that is not known to be apart."""
    kernel = rawkern.RawKernel(
        """extern "C" __global__ void k(const float* x, float* y) {
            int i = threadIdx.x + blockIdx.x * 4;
            if (i < 10) for (int c = 0; c < 2; ++c) y[i + c * 12] = sinf(y[i + c * 12] * x[i + c * 12]);
        }""",
        "k",
    )
    derived = kernel.derive(block=4)
    generator = torch.Generator().manual_seed(3)
    assert derived.verify(3, [torch.randn(24, generator=generator) for _ in range(2)]) < 1e-8
