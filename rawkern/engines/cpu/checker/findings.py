"""What a checked launch is given and gives back: memory it may touch, and what was found, as plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Dim3 = tuple[int, int, int]


@dataclass(frozen=True)
class Piece:
    """Memory that a launch may touch: an argument's or a variable's.

    `parameter` is the offset of its address among the kernel's parameters, where it stands there; `itemsize` the bytes
    of an element. Elements of a strided tensor lie in `size` bytes from the first to the last. `followed`: races are
    looked for.
    """

    name: str
    address: int
    size: int
    itemsize: int
    read_only: bool
    parameter: int | None = None
    followed: bool = True

    @property
    def end(self) -> int:
        return self.address + self.size


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
