"""The pip command in messages is one that works, however rawkern was installed."""

from __future__ import annotations

import json
import sys
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest

from rawkern.base import pip


@pytest.mark.parametrize(
    ("origin", "expected"),
    [
        (None, "rawkern[tune]"),  # from an index
        ("file:///gone/with%20space", "rawkern[tune] @ file:///gone/with%20space"),
        ("file:///wheels/rawkern-1.whl", "rawkern[tune] @ file:///wheels/rawkern-1.whl"),
        ("FOLDER", "FOLDER[tune]"),
    ],
)
def test_installed(origin: str | None, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "with space"
    folder.mkdir()
    url = folder.as_uri() if origin == "FOLDER" else origin
    known = SimpleNamespace(read_text=lambda name: url and json.dumps({"url": url, "dir_info": {}}))
    monkeypatch.setattr(pip, "_ROOT", tmp_path)
    monkeypatch.setattr(metadata, "distribution", lambda name: known)
    assert pip.command("tune") == f'pip install "{expected.replace("FOLDER", str(folder))}"'


def test_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def distribution(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", distribution)
    monkeypatch.setattr(pip, "_ROOT", tmp_path)
    assert pip.command("cpu") == 'pip install "rawkern[cpu]"'
    (tmp_path / "pyproject.toml").write_text("")  # a clone
    assert pip.command("cpu") == f'pip install -e "{tmp_path}[cpu]"'


@pytest.mark.parametrize(("cuda", "extra"), [(None, "cpu"), ("12.8", "cuda12"), ("13.0", "cuda13"), ("14.1", "cuda13")])
def test_the_compilers_extra_is_that_of_torch(cuda: str | None, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(version=SimpleNamespace(cuda=cuda)))
    assert pip.command().endswith(f'[{extra}]"')
