"""C as a rival: built with gcc into a temporary folder, called through ctypes."""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from pathlib import Path

import torch

FLAGS = ("-O3", "-march=native", "-fopenmp")


def library(source: Path, *flags: str) -> ctypes.CDLL:
    """Build C into a shared library and load it; raises OSError without gcc, CalledProcessError for an error.

    It is linked with the OpenMP runtime that comes with torch, if that is GNU's: with two runtimes in a process, the
    waiting threads of one take the cores from the other.
    """
    packages = Path(torch.__file__).parent.parent
    runtime = [*packages.glob("torch/lib/libgomp*.so*"), *packages.glob("torch.libs/libgomp*.so*")][:1]
    with tempfile.TemporaryDirectory() as folder:
        code, shared = Path(folder, "code.o"), Path(folder, "code.so")
        subprocess.run(["gcc", *FLAGS, "-fPIC", *flags, "-c", source, "-o", code], check=True)
        subprocess.run(["gcc", "-shared", code, *(runtime or ["-fopenmp"]), "-o", shared], check=True)
        return ctypes.CDLL(str(shared))
