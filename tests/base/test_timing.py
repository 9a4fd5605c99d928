"""The GPU's time of what is enqueued, alone."""

from __future__ import annotations

import pytest
import torch

from rawkern.base.timing import gpu_seconds
from rawkern.base.torch_private import sleep_on_gpu


@pytest.mark.gpu
def test_each_repeat_without_what_comes_before_it() -> None:
    x = torch.zeros(8, device="cuda")
    x.add_(1)  # is loaded
    sleep_on_gpu(10_000_000)
    times = gpu_seconds(lambda: x.add_(1), 5, lambda: sleep_on_gpu(1_000_000))
    assert len(times) == 5 and 0 < max(times) < 1e-4 and x.tolist() == [6] * 8
    assert min(gpu_seconds(lambda: sleep_on_gpu(1_000_000), 3)) > 1e-4
