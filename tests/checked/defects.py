"""What a kernel with a planted bug is, and the arguments that some of them share."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Defect:
    """A kernel with one bug: `arguments(device)` gives what it is launched with."""

    name: str
    error: str
    code: str
    grid: int | tuple
    block: int | tuple
    arguments: Callable[[str], tuple]
    shared: int = 0
    says: str = ""  # a pattern for the message
    options: tuple[str, ...] = ()
    device_memory: bool = False  # holds addresses, which a copy on the host does not

    @property
    def lines(self) -> list[int]:
        """The lines that are marked."""
        return [n for n, line in enumerate(self.code.splitlines(), 1) if "// defect" in line]

    @property
    def title(self) -> str:
        """What the bug is: the comment in the code's first line."""
        return re.match(r"\s*// (.*)", self.code)[1]


def floats(n: int) -> Callable[[str], tuple]:
    return lambda device: (n, torch.arange(n, dtype=torch.float32, device=device), torch.zeros(n, device=device))


def ints(n: int, m: int | None = None) -> Callable[[str], tuple]:
    def make(device: str) -> tuple:
        x = torch.arange(n, dtype=torch.int32, device=device) % 61
        return n, x, torch.zeros(m or n, dtype=torch.int32, device=device)

    return make


def freed(device: str) -> tuple:
    table, out = torch.zeros(1, dtype=torch.int64, device=device), torch.zeros(32, device=device)
    table[0] = torch.randn(32, device=device).data_ptr()
    return 32, table, out
