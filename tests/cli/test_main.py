"""The command line as a whole: help, exit statuses, interrupts, pipes."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
import tomllib

import pytest

import rawkern as package
from rawkern.cli import main
from tests.cli.command import ROOT, rawkern


def test_help_and_version_import_nothing_heavy() -> None:
    script = (
        "import sys, contextlib\nfrom rawkern.cli import main\n"
        "with contextlib.suppress(SystemExit): main(['--help'])\n"
        "print(*sorted({'torch', 'numpy', 'cupy', 'llvmlite'} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stderr.strip() == "" and "doctor" in done.stdout
    shown = rawkern("--version")
    assert (shown.returncode, shown.stdout) == (0, f"rawkern {package.__version__}\n")


def test_entry_point() -> None:
    with open(ROOT / "pyproject.toml", "rb") as file:
        assert tomllib.load(file)["project"]["scripts"] == {"rawkern": "rawkern.cli:main"}


@pytest.mark.parametrize("arguments", [[], ["nothing"], ["cache", "burn"], ["doctor", "--what"]])
def test_a_wrong_command_line_ends_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    out, err = capsys.readouterr()
    assert stopped.value.code == 2 and not out and err.startswith("usage: rawkern")


def test_ctrl_c_ends_with_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("rawkern.cli.cache._info", interrupted)
    assert main(["cache"]) == 130
    assert capsys.readouterr() == ("", "")


def test_a_reader_that_goes_away_is_no_error() -> None:
    script = "import sys\nfrom rawkern.cli import main\nsys.stdin.readline()\nsys.exit(main(['cache']))"
    process = subprocess.Popen(
        [sys.executable, "-c", script], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    assert process.stdin and process.stdout and process.stderr
    process.stdout.close()
    process.stdin.write("go\n")
    process.stdin.close()
    assert process.wait(60) == 128 + signal.SIGPIPE
    assert process.stderr.read() == ""
    process.stderr.close()


def test_help_is_quick() -> None:
    times = []
    for _ in range(3):
        start = time.perf_counter()
        assert rawkern("--help").returncode == 0
        times.append(time.perf_counter() - start)
    assert min(times) < 1.0  # 0.1 s where nothing else runs; torch's import alone takes longer than this
