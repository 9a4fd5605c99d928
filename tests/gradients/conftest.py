"""The IR is verified after each pass, whatever a test derives."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rawkern.gradients import ir
from rawkern.gradients.passes import pipeline


@pytest.fixture(autouse=True)
def _verified() -> Iterator[None]:
    with pipeline.watched(lambda _, kernel: ir.verify(kernel)):
        yield
