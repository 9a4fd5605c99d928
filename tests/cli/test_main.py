"""The command line as a whole: help, exit statuses, interrupts, pipes."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import rawkern as package
from rawkern.base import environment
from rawkern.cli import main
from tests import forked
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


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("RAWKERN_CHECK", "fulll", "'fulll'; it is one of off, bounds, full; did you mean 'full'?"),
        ("RAWKERN_ARCH", "h100", "'h100'; it is one of sm_70"),
        ("RAWKERN_ORDER", "-1", "'-1'; a seed is an int, 0 or more"),
        ("RAWKERN_OPTIMIZE", "3", "'3'; it is 2, for fast kernels, or 0"),
        ("RAWKERN_TIME_LIMIT", "soon", "'soon'; a time limit is a number of seconds"),
    ],
)
def test_a_wrong_environment_variable_ends_with_2(name: str, value: str, said: str) -> None:
    command = "profile" if name == "RAWKERN_ORDER" else "run"
    words = [command, str(ROOT / "tests/cli/kernels.cu"), "plain", "0", "zeros(1)", "--forall", "1"]
    done = rawkern(*words, **{name: value})
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"rawkern: the environment variable {name} is {said}")
    assert done.stderr.count("\n") == 1


def test_every_environment_variable_is_known() -> None:
    read = {
        name for file in (ROOT / "rawkern").rglob("*.py") for name in re.findall(r"RAWKERN_[A-Z_]+", file.read_text())
    }
    told = set(re.findall(r"^\| `(RAWKERN_[A-Z_]+)", (ROOT / "docs/modules.md").read_text(), re.M))
    assert (
        set(environment.VARIABLES) == told == {name for name in read if name != "RAWKERN_RANDOM_EFFORT"} - {"RAWKERN_"}
    )


def test_ctrl_c_ends_with_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("rawkern.cli.cache._info", interrupted)
    assert main(["cache"]) == 130
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("arguments", [("run", __file__, "k"), ("bench",), ("cache",)])
def test_a_library_that_is_missing_is_named(arguments: tuple[str, ...]) -> None:
    done = rawkern(*arguments, python=("-S",), RAWKERN_CACHE_DIR="")  # no site-packages
    name = "platformdirs" if arguments == ("cache",) else "torch"
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"rawkern: No module named '{name}'; `rawkern doctor` shows what is missing and how to install it\n"
    )


def test_ctrl_c_during_a_launch(tmp_path: Path) -> None:
    file = tmp_path / "endless.cu"
    file.write_text('extern "C" __global__ void endless(volatile int* x) { x[1] = 1; while (!x[0]) {} }')
    with endless([*forked.python(), "-c", _ENDLESS, str(file)]) as process:
        assert process.stdout
        assert process.stdout.readline() == "launching\n"
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, "", "")


@contextlib.contextmanager
def endless(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    """A program that does not end by itself; nothing of it is left, whatever a test finds."""
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


_ENDLESS = """
import sys
from rawkern.cli import main, run
launch = run.launch_of
def announced(*arguments, **options):
    found = launch(*arguments, **options)
    print("launching", flush=True)
    return found
run.launch_of = announced
sys.exit(main(["run", sys.argv[1], "endless", "zeros(2)", "--forall", "1", "--device", "cpu"]))
"""


def test_ctrl_c_reaches_a_launch_in_its_child(tmp_path: Path) -> None:
    file = tmp_path / "endless.cu"
    file.write_text("""#include <cstdio>
extern "C" __global__ void endless(volatile int* x) { printf("launched\\n"); while (!x[0]) {} }""")
    command = [sys.executable, "-u", "-m", "rawkern", "run", str(file), "endless", "zeros(2)", "--grid", "1", "--block", "1", "--device", "cpu"]  # fmt: skip
    with endless(command) as process:
        assert process.stdout and process.stdout.readline() == "launched\n"
        process.send_signal(signal.SIGINT)  # to the parent alone, which passes it on
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, "", "")


def test_no_standard_output_is_no_defect() -> None:
    command = f"exec {sys.executable} -m rawkern cache >&-"
    done = subprocess.run(command, shell=True, cwd=ROOT, stderr=subprocess.PIPE, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


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


def test_help_imports_no_torch() -> None:
    """Which takes longer than all else of it."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "rawkern", "--help"], cwd=ROOT, capture_output=True, text=True
    )
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert done.returncode == 0 and "rawkern.cli" in imported
    assert not imported & {"torch", "numpy", "llvmlite", "cupy", "sympy"}
