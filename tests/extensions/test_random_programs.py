"""Random host functions return what g++ makes of them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.extensions.random_functions import compare

EFFORT = int(os.environ.get("RAWKERN_RANDOM_EFFORT", "1"))


@pytest.mark.skipif(shutil.which("g++") is None, reason="compares with g++")
def test_random_programs_return_what_cpp_returns(tmp_path: Path) -> None:
    found = compare(tmp_path, range(120 * EFFORT))
    assert not found.wrong, f"{len(found.wrong)} wrong\n{found.wrong[0]}"
    assert not found.untranslated
    assert found.same > 500 * EFFORT and found.undefined > 100 * EFFORT  # both kinds of ends are tried


def test_a_comparison_finds_what_differs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("g++") is None:
        pytest.skip("compares with g++")
    monkeypatch.setattr("rawkern.extensions.cpp.div", lambda a, b: a // b)  # rounds down
    assert compare(tmp_path, range(120)).wrong
