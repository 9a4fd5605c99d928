"""Python processes in which CuPy is not installed, and NVRTC neither; on a GPU, NVRTC alone is gone."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.forked import python

ROOT = Path(__file__).resolve().parent.parent
_CUPY = """
import importlib.abc, sys
class Blocked(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("cupy", "cupyx", "cupy_backends"):
            raise ImportError(f"{name} is blocked")
import torch, rawkern
from rawkern.compile import toolchain
if DEVICE == "cpu":
    sys.meta_path.insert(0, Blocked())
    toolchain._cupy_folder = lambda: ""
"""
_COMPILER = """
toolchain._libraries = lambda: []
def compiles():
    try:
        rawkern.RawKernel("__global__ void f(int n) { int never_in_a_cache; }").ptx()
    except rawkern.MissingDependencyError:
        return False
    return True
assert not compiles()
"""


def run(script: str, device: str, cache: Path, *paths: Path, compiler: bool = False) -> str:
    """Run a script, whose ``DEVICE`` is the device's name, with an empty cache; return what it printed.

    With `compiler` there is NVRTC.
    """
    begin = _CUPY if compiler else _CUPY + _COMPILER
    path = os.pathsep.join((*map(str, paths), str(ROOT), os.environ.get("PYTHONPATH", "")))
    done = subprocess.run(
        [*python(), "-c", f"DEVICE = {device!r}\n{begin}\n{script}"], capture_output=True, text=True, timeout=120,
        env=os.environ | {"RAWKERN_CACHE_DIR": str(cache), "PYTHONPATH": path},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout
