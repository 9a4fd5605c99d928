"""Numbers and tables as commands print them."""

from __future__ import annotations

import io
import sys

import pytest

from rawkern.cli import text


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_table_aligns_numbers_right_and_names_left() -> None:
    shown = text.table(("name", "n", "where"), [("a", 1, "x"), ("longer", 1000, "")], left=(0, 2))
    assert shown == "name       n  where\na          1  x\nlonger  1000"


@pytest.mark.parametrize(
    ("nbytes", "shown"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (1.5e6, "1.5 MB"), (8e10, "80.0 GB"), (2e12, "2.0 TB")],
)
def test_amount(nbytes: float, shown: str) -> None:
    assert text.amount(nbytes) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.0, "0.00 us"),
        (3.345e-6, "3.35 us"),
        (41.04e-3, "41.0 ms"),
        (1.2, "1.20 s"),
        (312.0, "312 s"),
        (999e-6, "999 us"),
    ],
)
def test_duration(seconds: float, shown: str) -> None:
    assert text.duration(seconds) == shown


def test_plural() -> None:
    assert [text.plural(n, w) for n, w in ((1, "entry"), (0, "entry"), (2, "kernel"))] == [
        "1 entry",
        "0 entries",
        "2 kernels",
    ]


def test_progress_and_color_only_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "30")
    for stream, marks in ((Terminal(), True), (io.StringIO(), False)):
        monkeypatch.setattr(sys, "stderr", stream)
        with text.step("compiling"):
            pass
        assert ("compiling ..." in stream.getvalue()) is marks
        assert stream.getvalue().endswith("\r\x1b[K") is marks
        assert (text.paint("ok", "green", stream) == "ok") is not marks
    narrow = Terminal()
    monkeypatch.setattr(sys, "stderr", narrow)
    with text.step("compiling " + 40 * "x"):
        pass
    assert len(narrow.getvalue().split("\x1b[K")[1].strip("\r")) < 30  # a wrapped line could not be taken back
    monkeypatch.setenv("TERM", "dumb")
    assert text.paint("ok", "green", Terminal()) == "ok"
    with text.step("compiling"):
        assert sys.stderr is narrow and "compiling ..." not in narrow.getvalue()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    assert text.paint("ok", "green", Terminal()) == "ok"


def test_user_errors_turns_only_the_named_kinds() -> None:
    with pytest.raises(text.CommandError, match="too many"), text.user_errors(ValueError):
        raise ValueError("too many")
    with pytest.raises(KeyError), text.user_errors(ValueError):
        raise KeyError("x")
