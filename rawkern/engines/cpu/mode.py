"""How launches on the CPU run: what they have in common that does not change from one to the next."""

from __future__ import annotations

from dataclasses import dataclass

from rawkern.base import gpus

_UNGUARDED, _GPU = 1 << 16, 1 << 17  # steps of the word, above what DLPack counts devices with


@dataclass(frozen=True)
class Mode:
    """`guarded`: accesses are compared with the launch's memory. `ordered`: blocks and warps run in an order by a seed.

    `gpu`: whose limits launches keep; None: that which a kernel's code is for.
    """

    guarded: bool = True
    ordered: bool = False
    gpu: gpus.Specification | None = None

    @property
    def word(self) -> int:
        """What tells a mode from others for native launches, which know of no order: 0 is the first one's."""
        number = int(self.gpu.name.removeprefix("sm_")) if self.gpu else 0
        return (0 if self.guarded else _UNGUARDED) + _GPU * number


FIRST = Mode()
