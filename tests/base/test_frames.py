"""Where in the user's code a call comes from, and what messages make of it."""

from __future__ import annotations

import os
import re
import sys
import timeit
from pathlib import Path
from types import SimpleNamespace

import pytest

from rawkern.base import frames, generated


def test_caller_is_the_innermost_frame_of_the_user() -> None:
    file, line = __file__, sys._getframe().f_lineno + 1
    assert frames.caller() == (file, line)
    inside = generated.run("def ask(frames): return frames.caller()", "<rawkern something>", {})
    line = sys._getframe().f_lineno + 1
    assert inside["ask"](frames) == (file, line)
    theirs: dict = {"__name__": "rawkernel_users", "frames": frames}
    exec(compile("\n\nfound = frames.caller()", "<stdin>", "exec"), theirs)
    assert theirs["found"] == ("<stdin>", 3)


def test_asking_costs_about_a_microsecond() -> None:
    """A frame is looked at, nothing is read or searched."""
    assert min(timeit.repeat(frames.caller, number=1000, repeat=5)) < 20e-3


def test_spelling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert frames.spelled((str(tmp_path / "train.py"), 12)) == "train.py:12"
    assert frames.spelled((str(tmp_path / "src" / "train.py"), 12)) == f"src{os.sep}train.py:12"
    assert frames.spelled((f"{tmp_path}2/train.py", 12)) == f"{tmp_path}2/train.py:12"
    assert frames.spelled(("<stdin>", 1)) == "<stdin>:1"


def test_cells_have_the_names_that_ipython_gives_them(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"/tmp/ipykernel_1/2.py": ("Cell", "In[3]")}  # as IPython.core.compilerop.CachingCompiler has them
    shell = SimpleNamespace(compile=SimpleNamespace(format_code_name=names.get))
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    assert frames.spelled(("/tmp/ipykernel_1/2.py", 4)) == "Cell In[3]:4"
    assert re.fullmatch(r".*test_frames\.py:4", frames.spelled((__file__, 4)))
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: None))
    assert frames.spelled(("/tmp/ipykernel_1/2.py", 4)) == "/tmp/ipykernel_1/2.py:4"
