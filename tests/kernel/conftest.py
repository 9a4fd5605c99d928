"""What the tests without an engine run on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rawkern.compile.source import Watch
from rawkern.launch import builds, level
from tests.kernel.kit import Recorder


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    recorder = Recorder()
    monkeypatch.setattr(builds, "engine", lambda device: recorder)
    with level.scoped(level.BOUNDS):  # a checked launch would run on the true one
        yield recorder


@pytest.fixture(autouse=True)
def _look_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Watch, "INTERVAL", 0.0)
