"""Tensors over a storage share its memory."""

from __future__ import annotations

import torch

from rawkern.base.storage import tensor_over


def test_all_of_a_storage_or_a_part(device: str) -> None:
    x = torch.arange(6.0, device=device)
    whole = tensor_over(x[2:].untyped_storage())
    assert whole.dtype == torch.uint8 and whole.numel() == 24 and whole.data_ptr() == x.data_ptr()
    part = tensor_over(x.untyped_storage(), torch.float32, 1, (2, 2), (1, 2))
    assert part.device == x.device and part.tolist() == [[1, 3], [2, 4]]
    part[0, 1] = -1.5
    assert x.tolist() == [0, 1, 2, -1.5, 4, 5]
