"""What a checked launch is given and gives back: memory it may touch, and what was found, as plain data."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from rawkern.arguments.memory import Piece

Dim3 = tuple[int, int, int]


@dataclass(frozen=True)
class Place:
    """Who did something where: site (`check.Site` as a dict), thread and block."""

    site: dict[str, Any]
    thread: Dim3
    block: Dim3
    lane: int


@dataclass(frozen=True)
class Finding:
    """One thing that the checker found; `kind` as in `check_layout.KINDS`.

    `piece` is the memory meant, `offset` the byte in it (or the address, where there is none); `extra` are lanes.
    """

    kind: str
    place: Place
    piece: Piece | None
    offset: int
    other: Place | None
    extra: int = 0


class Host(Protocol):
    """Who makes the launches of a kernel."""

    def explain(self, finding: Finding) -> Exception:
        """The error that says what was found."""
        ...

    def given(self) -> list[tuple[int, int]]:
        """Start and size in bytes of memory that launches may touch besides their arguments'."""
        ...

    def reachable(self, address: int, values: Sequence[int | bytes]) -> list[tuple[int, int]]:
        """Start and size in bytes of the live memory that addresses among `values` point to.

        `address` is the one that is looked for.
        """
        ...

    def led_to(self) -> Sequence[weakref.ref[torch.Tensor]]:
        """The tensors of this memory, and of some that was found before."""
        ...
