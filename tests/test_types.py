"""What a type checker says of a program that uses rawkern: data/typed.py has it, with the errors that it is to find."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).parent / "data" / "typed.py"


def test_a_type_checker_finds_the_errors_and_no_others() -> None:
    """One run over all cases: where a line ends in ``# error: WORD``, pyright has to report it in words with that."""
    lines = enumerate(PROGRAM.read_text().splitlines(), 1)
    expected = {number: match[1] for number, line in lines if (match := re.search(r"# error: (.+)$", line))}
    # The interpreter is named: pyright would ask the `python` on PATH, that of an activated environment at best.
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "--outputjson", str(PROGRAM)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, cwd=PROGRAM.parents[2])
    found: dict[int, str] = {}
    for each in json.loads(done.stdout)["generalDiagnostics"]:
        number = each["range"]["start"]["line"] + 1
        found[number] = found.get(number, "") + each["message"]
    assert found.keys() == expected.keys(), found
    assert not {number: found[number] for number, word in expected.items() if word not in found[number]}
