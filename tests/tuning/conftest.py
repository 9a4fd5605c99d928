"""How these tests are timed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def _settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One thread: two of them wait for each other where other programs have the cores, and what is fast seems slow."""
    monkeypatch.delenv("RAWKERN_AUTOTUNE", raising=False)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
