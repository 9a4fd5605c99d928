"""The command line in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests import forked

ROOT = Path(__file__).resolve().parents[2]


def rawkern(
    *arguments: str, python: tuple[str, ...] = (), new: bool = False, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run ``python -m rawkern`` of this tree; ``python`` are options of the interpreter.

    With `new`, or with options, the interpreter has not imported torch.
    """
    plain = not python and not new  # as torch is not in use yet, it forks launches
    path = os.pathsep.join([*environment.pop("PYTHONPATH", "").split(os.pathsep), str(ROOT)]).strip(os.pathsep)
    command = [*(forked.python() if plain else [sys.executable, *python]), "-m", "rawkern", *arguments]
    return subprocess.run(
        command, env={**os.environ, **environment, "PYTHONPATH": path}, capture_output=True, text=True, timeout=120
    )
