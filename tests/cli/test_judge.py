"""``rawkern judge``: candidates in files, a task in another; a table for people, JSON for programs."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from rawkern.cli import main
from rawkern.testing import Worker
from tests.testing.judging import candidates

TASK = """
import torch

print("the task is read")
outputs, sizes, special = (2,), (257,), ("nan",)


def inputs():
    n = 1000
    return n, torch.randn(n), torch.empty(n)


def reference(n, x):
    return x * x


def forall(n, x, y):
    return n
"""


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with Worker() as made:
        yield made


@pytest.fixture
def folder(tmp_path: Path, worker: Worker, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a task and candidates. All runs of the command have one worker."""
    monkeypatch.setattr("rawkern.testing.judging.worker.Worker", lambda: contextlib.nullcontext(worker))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "task.py").write_text(TASK)
    for name in ("right", "drops NaN", "does not compile"):
        (tmp_path / f"{name.replace(' ', '_')}.cu").write_text(candidates.KERNELS[name])
    return tmp_path


def test_a_table(folder: Path, device: str, capsys: pytest.CaptureFixture[str]) -> None:
    files = ["right.cu", "drops_NaN.cu", "does_not_compile.cu"]
    assert main(["judge", "task.py", *files, "--device", device]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "the task is read"
    rows = {line.split("  ")[0]: line for line in lines[2:5]}
    assert "  right  " in rows["right.cu"] and "fails special" in rows["drops_NaN.cu"]
    assert "fails compiles" in rows["does_not_compile.cu"]
    assert "drops_NaN.cu: void square(int n, const float *x, float *y)" in lines
    assert any(line.startswith("  special: nan: output[0] is 0, it should be nan") for line in lines)
    assert any('identifier "intt" is undefined' in line for line in lines)


def test_json(folder: Path, device: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["judge", "task.py", "right.cu", "--device", device, "--json", "--seconds", "99"]) == 0
    out, err = capsys.readouterr()
    assert err == "the task is read\n"
    (verdict,) = json.loads(out)["verdicts"]
    assert verdict["ok"] and verdict["candidate"] == "right.cu" and verdict["launches"] == {"square": 1}
    assert verdict["checks"]["findings"] == {"state": "passed", "text": ""} and verdict["tampering"] == []


@pytest.mark.parametrize(
    "task, words, says",
    [
        (None, ["none.py", "right.cu"], "the file none.py does not exist"),
        (None, ["task.py", "none.cu"], "the file none.cu does not exist"),
        ("inputs = 1", ["task.py", "right.cu"], "task.py does not define 'reference'"),
        ("import nothing_of_the_kind", ["task.py", "right.cu"], "cannot be run: ModuleNotFoundError"),
    ],
)
def test_rejections(
    folder: Path, task: str | None, words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if task is not None:
        (folder / "task.py").write_text(task)
    assert main(["judge", *words]) == 1
    assert says in capsys.readouterr().err


def test_wrong_options(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["judge", "task.py", "right.cu", "--seconds", "-1"])
    assert ended.value.code == 2 and "'-1' is not a number of seconds above 0" in capsys.readouterr().err
