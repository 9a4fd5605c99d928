"""The tests' cache folder. Fixture ``device`` and the markers are those of rawkern's own pytest plugin."""

from __future__ import annotations

import os

import pytest

# Named here for source trees that are not installed; where rawkern is, it is loaded already.
pytest_plugins = ["rawkern.testing.plugin", "pytester"]


@pytest.fixture(scope="session", autouse=True)
def _cache_directory(tmp_path_factory: pytest.TempPathFactory):
    """Keep the tests' compiled code out of the user's cache; the workers of a run share what they compile."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base) / "compiled"
    folder.mkdir(mode=0o700, exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAWKERN_CACHE_DIR", str(folder))
        yield
