"""Memory around a tensor that no kernel may write to: it keeps wild writes from other memory, and shows them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from rawkern.cli.expressions import POISON

__all__ = ["Margins", "surround"]

_BYTES = 1 << 20  # on each side; a multiple of every alignment


@dataclass(frozen=True)
class Margins:
    """A tensor in the middle of a buffer."""

    tensor: torch.Tensor
    buffer: torch.Tensor

    def written(self) -> int | None:
        """The index, from the tensor's beginning, of an element outside of it that has been written; None if none."""
        size, end = self.tensor.element_size(), self.buffer.numel() - _BYTES
        behind, ahead = self.buffer[end:] != POISON, self.buffer[:_BYTES] != POISON
        if behind.any():
            return self.tensor.numel() + int(behind.int().argmax()) // size
        if ahead.any():
            return -1 - int(ahead.flip(0).int().argmax()) // size
        return None


def surround(tensor: torch.Tensor) -> Margins:
    """Copy a tensor into the middle of a buffer; its bytes are no NaNs, so that ``y[i] += 1`` changes them, too."""
    buffer = torch.full((2 * _BYTES + tensor.nbytes,), POISON, dtype=torch.uint8, device=tensor.device)
    inside = buffer[_BYTES : _BYTES + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
    inside.copy_(tensor)
    return Margins(inside, buffer)
