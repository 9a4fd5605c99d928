"""Python processes in which nothing compiles CUDA: NVRTC is gone, on the CPU CuPy as well."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_BEGIN = """
import importlib.abc, sys
class Blocked(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.startswith(BLOCKED):
            raise ImportError(f"{name} is blocked")
class Gone:
    def __getattr__(self, name):
        raise ImportError("nvrtc is blocked")
BLOCKED = ("nvidia.cuda_nvrtc", "cupy.cuda.nvrtc") + (("cupy", "cupy_backends") if DEVICE == "cpu" else ())
sys.meta_path.insert(0, Blocked())
if DEVICE != "cpu":
    import cupy.cuda
    cupy.cuda.nvrtc = Gone()
import torch, rawkern
def compiles():
    try:
        rawkern.RawKernel("__global__ void f(int n) { int never_in_a_cache; }").ptx()
    except rawkern.MissingDependencyError:
        return False
    return True
assert not compiles()
"""


def run(script: str, device: str, cache: Path, *paths: Path) -> str:
    """Run a script, whose ``DEVICE`` is the device's name, with an empty cache; return what it printed."""
    path = os.pathsep.join((*map(str, paths), str(ROOT), os.environ.get("PYTHONPATH", "")))
    done = subprocess.run(
        [sys.executable, "-c", f"DEVICE = {device!r}\n{_BEGIN}\n{script}"], capture_output=True, text=True, timeout=120,
        env=os.environ | {"RAWKERN_CACHE_DIR": str(cache), "PYTHONPATH": path},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout
