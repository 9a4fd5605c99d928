"""Memory that comes to an end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch


class Limited:
    """Functions that allocate, by where they are; they raise MemoryError once they have been called `left` times."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *functions: tuple[Any, str]) -> None:
        self.left: int | None = None  # as often as they are called
        for owner, name in functions:
            monkeypatch.setattr(owner, name, self._limited(getattr(owner, name)))

    def _limited(self, make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def new(*given: Any, **how: Any) -> torch.Tensor:
            if self.left == 0:
                raise MemoryError("no more")
            if self.left is not None:
                self.left -= 1
            return make(*given, **how)

        return new
