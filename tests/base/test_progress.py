"""Progress bars: where somebody watches, and nowhere else."""

from __future__ import annotations

import io
import sys
import time
from types import SimpleNamespace

import pytest

import rawkern
from rawkern.base import progress
from tests.kernel.kit import SAXPY


class Terminal(io.StringIO):
    """What says that it is a terminal."""

    def isatty(self) -> bool:
        return True


def work(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO | None, delay: float = 0.0) -> str:
    """What three parts of some work show."""
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(progress, "DELAY", delay)
    with progress.progress("some work", 3, "part") as step:
        for _ in range(3):
            time.sleep(0.11)  # a bar is drawn at most ten times a second
            step()
    return "" if stream is None else stream.getvalue()


def test_a_terminal_shows_a_bar_and_no_trace_of_it_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tqdm", reason="bars are tqdm's")
    shown = work(monkeypatch, Terminal())
    assert "some work:  67%" in shown and "2/3" in shown
    assert shown.endswith("\r") and not shown.rstrip("\r").rpartition("\r")[2].strip()


def test_short_work_and_what_nobody_watches_are_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    assert work(monkeypatch, Terminal(), delay=5.0).strip() == ""
    assert work(monkeypatch, io.StringIO()) == ""
    assert work(monkeypatch, None) == ""
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)  # not installed
    assert work(monkeypatch, Terminal()) == ""


def test_a_notebook_shows_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tqdm", reason="bars are tqdm's")
    for config, shown in (({"IPKernelApp": {}}, True), ({}, False)):
        shell = SimpleNamespace(config=config)
        monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda shell=shell: shell))
        assert ("some work" in work(monkeypatch, io.StringIO())) is shown


def test_tuning_and_check_kernel_show_theirs(monkeypatch: pytest.MonkeyPatch, tmp_path: pytest.TempPathFactory) -> None:
    pytest.importorskip("tqdm", reason="bars are tqdm's")
    import torch

    seen: list[tuple[str, int | None]] = []

    class Bar(SimpleNamespace):
        def __enter__(self) -> Bar:
            return self

        def __exit__(self, *_: object) -> None:
            seen.append((self.desc, self.total, self.done))

        def update(self) -> None:
            self.done += 1

    monkeypatch.setattr(progress, "_watched", lambda: True)
    monkeypatch.setattr(progress, "_tqdm", lambda: lambda **given: Bar(done=0, **given))
    x = torch.zeros(64)
    tuned = rawkern.autotune(rawkern.RawKernel(SAXPY), {"block": [32, 64]}, retune=True)
    tuned.forall(64)(64, 2.0, x, x.clone())
    rawkern.testing.check_kernel(rawkern.square, torch.randn(3), devices=["cpu"], skip=["compile", "opcheck"])
    (first, second) = seen
    assert first == ("autotune saxpy", 2, 2)
    assert second[:2] == ("check_kernel square", None) and second[2] > 3
