"""What a launch is asked for besides grid, block and shared memory: CUDA's launch attributes."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from rawkern.base.gpus import Dim3


@dataclass(frozen=True, slots=True)
class Attributes:
    """`cluster`: how many blocks of the grid are one cluster; None: as the kernel's source has it, or none.

    `cooperative`: all blocks run at the same time. `programmatic`: the kernel may begin before the one before it on
    the stream has ended, and waits for it by ``griddepcontrol.wait``.
    """

    cluster: Dim3 | None = None
    cooperative: bool = False
    programmatic: bool = False

    @property
    def together(self) -> int:
        """Blocks of a cluster."""
        return prod(self.cluster or ())


PLAIN = Attributes()
