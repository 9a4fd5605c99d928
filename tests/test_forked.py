"""A forked program runs and ends as one of a new interpreter."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import forked

SHOW = "import os, sys; print(sys.argv[1:], __name__, os.environ.get('GIVEN'), os.getcwd(), sys.path[1], input())"


@pytest.mark.parametrize("how", ["code", "module", "file"])
def test_what_a_program_sees(how: str, tmp_path: Path) -> None:
    (tmp_path / "shown.py").write_text(SHOW)
    words = {"code": ["-c", SHOW], "module": ["-m", "shown"], "file": [str(tmp_path / "shown.py")]}[how]
    environment = os.environ | {"GIVEN": "1", "PYTHONPATH": "/nowhere"}
    outputs = [
        subprocess.run(
            [*python, *words, "a", "b"],
            input="text\n",
            cwd=tmp_path,
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
        ).stdout
        for python in ([sys.executable], forked.python())
    ]
    assert outputs[0] == outputs[1] == f"['a', 'b'] __main__ 1 {tmp_path} /nowhere text\n"


@pytest.mark.parametrize(
    "code",
    [
        "pass",
        "raise SystemExit(130)",
        "raise SystemExit('words')",
        "import os; os._exit(7)",
        "1 / 0",
        "import os; os.kill(os.getpid(), 9)",
        "raise KeyboardInterrupt",
        "import atexit; atexit.register(print, 'end')",
    ],
)
def test_how_it_ends(code: str) -> None:
    new, fork = (
        subprocess.run([*python, "-c", code], capture_output=True, text=True)
        for python in ([sys.executable], forked.python())
    )
    assert (fork.returncode, fork.stdout, fork.stderr) == (new.returncode, new.stdout, new.stderr)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_it_ends_with_its_client(number: int) -> None:
    if signal.getsignal(number) == signal.SIG_IGN:
        pytest.skip(
            "this process ignores the signal, as processes in the background of a script do, and so do its children"
        )
    code = "import os, time; print(os.getpid(), flush=True); time.sleep(1000)"
    with subprocess.Popen(
        [*forked.python(), "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as client:
        assert client.stdout is not None
        program = int(client.stdout.readline())
        os.kill(program, 0)
        client.send_signal(number)
        assert client.stdout.read() == ""  # until no process has it open
        assert client.wait(60) == -number
    with pytest.raises(ProcessLookupError):
        while True:
            os.kill(program, 0)
