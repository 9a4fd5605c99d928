"""No test is told to leave tuning out."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAWKERN_AUTOTUNE", raising=False)
