"""`rawkern cache` counts and removes rawkern's own entries, and nothing else."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from rawkern.base import cache
from rawkern.cli import main

DAY = 86400


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "cache"
    monkeypatch.setenv("RAWKERN_CACHE_DIR", str(path))
    return path


def _put(key: str, nbytes: int, days: float = 0.0) -> Path:
    cache.put(key, bytes(nbytes))
    (entry,) = (entry for entry in cache.entries() if entry.key == key)
    os.utime(entry.path, (time.time() - days * DAY,) * 2)
    return entry.path


@pytest.fixture
def strangers(folder: Path) -> list[Path]:
    """Files in the directory that are not the cache's, under names ever more like those of entries."""
    own = _put("program-real", 10)
    wrong = "00" if own.parent.name != "00" else "01"
    paths = [folder / "notes.txt", folder / "ab" / "notes.txt", folder / "xy" / ".tmp-abcdefgh", folder / wrong / own.name,
             own.parent / "not a key.bin", own.parent / "sub" / own.name, own.parent / ".tmp-mine.txt"]  # fmt: skip
    for path in paths:
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
    own.unlink()
    outside = folder.parent / "outside"
    outside.write_text("mine")
    own.symlink_to(outside)
    return [*paths, own, outside]


def test_info_counts_by_kind_and_age(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = {"program-a": 1000, "program-b": 3000, "code-c": 500, "names-d": 20}
    for key, days in zip(sizes, (0, 3, 10, 400), strict=True):
        _put(key, sizes[key], days)
    header = cache.info().nbytes - sum(sizes.values())
    each = header // len(sizes)
    assert main(["cache", "info", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["directory"] == str(folder) and found["writable"] is True
    assert (found["entries"], found["bytes"]) == (4, 4520 + header)
    assert found["kinds"] == {
        "program": {"entries": 2, "bytes": 4000 + 2 * each},
        "code": {"entries": 1, "bytes": 500 + each},
        "names": {"entries": 1, "bytes": 20 + each},
    }
    assert {age: group["bytes"] - each for age, group in found["written_within"].items()} == {
        "a day": 1000, "a week": 3000, "30 days": 500, "longer ago": 20
    }  # fmt: skip
    assert main(["cache"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [str(folder), "4 entries, 4.7 kB"]
    assert lines[4].split() == ["PTX", "and", "cubins", "2", "4.1", "kB"]
    assert lines[-1].split() == ["longer", "ago", "1", f"{20 + each}", "B"]


@pytest.mark.parametrize("option", ["--older-than=30d", "--yes"])
def test_what_belongs_to_clear_is_not_passed_over(
    option: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cache", option]) == 1
    out, err = capsys.readouterr()
    assert not out and "go with `rawkern cache clear`" in err


def test_clear_removes_old_entries_only(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for key, days in (("program-new", 0), ("program-old", 31), ("code-old", 29.9)):
        _put(key, 100, days)
    assert main(["cache", "clear", "--older-than", "30d"]) == 0
    assert "removed 1 entry, " in capsys.readouterr().out
    assert {entry.key for entry in cache.entries()} == {"program-new", "code-old"}
    assert main(["cache", "clear", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["removed"] == 2
    assert cache.info().entries == 0
    assert main(["cache"]) == 0
    assert capsys.readouterr().out.splitlines() == [str(folder), "0 entries, 0 B"]


def test_clear_leaves_what_is_not_its_own(folder: Path, strangers: list[Path]) -> None:
    half_written = _put("program-x", 5).parent / ".tmp-k3_9abcd"
    half_written.write_bytes(b"half")
    assert cache.info().entries == 1
    assert main(["cache", "clear"]) == 0
    assert cache.info().entries == 0 and not half_written.exists()
    assert all(path.read_text() == "mine" for path in strangers)


@pytest.mark.parametrize(("answer", "status", "left"), [("y", 0, 0), ("", 1, 1), ("no", 1, 1)])
def test_clear_asks_on_a_terminal(
    folder: Path, answer: str, status: int, left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    _put("program-x", 5)
    asked = []
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda text: asked.append(text) or answer)
    assert main(["cache", "clear"]) == status
    assert cache.info().entries == left and asked[0].startswith("remove 1 entry, 53 B, from ")
    assert main(["cache", "clear", "--yes"]) == 0
    assert cache.info().entries == 0 and len(asked) == 1


@pytest.mark.parametrize("age", ["30", "d", "-1d", "3 days", "1y", ""])
def test_a_wrong_age_raises(folder: Path, age: str, capsys: pytest.CaptureFixture[str]) -> None:
    _put("program-x", 5)
    with pytest.raises(SystemExit) as stopped:
        main(["cache", "clear", f"--older-than={age}"])
    assert stopped.value.code == 2 and "use a number with a unit (s, m, h, d or w)" in capsys.readouterr().err
    assert cache.info().entries == 1


def test_a_directory_that_is_not_safe(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder.mkdir()
    folder.chmod(0o777)
    assert main(["cache", "clear"]) == 1
    out, err = capsys.readouterr()
    assert not out and err.startswith("rawkern: others can write to the cache directory")
