"""The reference: programs compiled by g++, where each thread of a block is a fiber."""

from __future__ import annotations

import ctypes
import itertools
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from .launches import inputs, outputs
from .tree import Listing

HERE = Path(__file__).parent
PRELUDE = (HERE / "prelude.cuh").read_text()
# Contraction would round differently; two types of pointers look at one memory in these programs.
FLAGS = (
    "-std=c++17",
    "-O0",
    "-w",
    "-shared",
    "-fPIC",
    "-ffp-contract=off",
    "-frounding-math",
    "-fno-strict-aliasing",
    "-x",
    "c++",
)
#: Flags with which a program that C++ does not define traps, or has other results.
STRICT = (
    "-fsanitize=undefined,float-cast-overflow",
    "-fno-sanitize=alignment,vptr",
    "-fsanitize-undefined-trap-on-error",
    "-ftrivial-auto-var-init=pattern",
)
_numbers = itertools.count()


class InvalidProgramError(Exception):
    """A program that CUDA or C++ does not define: a defect of the generator."""


class _Launch(ctypes.Structure):
    _fields_ = [(name, ctypes.c_void_p) for name in ("kernel", "in_", "fin", "out", "own", "acc", "wide")] + [
        ("p", ctypes.c_int), ("q", ctypes.c_int)]  # fmt: skip


def available() -> bool:
    return shutil.which("g++") is not None


def source(programs: Sequence[Listing]) -> str:
    return "\n".join(['#include "cuda_host_math.h"', PRELUDE, *(program.text for program in programs)])


class Reference:
    """Several programs, compiled together."""

    def __init__(self, programs: Sequence[Listing], folder: Path, flags: Sequence[str] = ()):
        path = folder / f"reference{os.getpid()}_{next(_numbers)}.so"
        done = subprocess.run(
            ["g++", *FLAGS, *flags, f"-I{HERE}", "-o", str(path), "-"],
            input=source(programs),
            text=True,
            capture_output=True,
        )
        if done.returncode:
            raise InvalidProgramError(done.stderr[:2000])
        self._library = ctypes.CDLL(str(path))
        self._library.rk_launch.restype = ctypes.c_char_p
        path.unlink()

    def run(self, program: Listing, backwards: bool = False) -> dict[str, np.ndarray]:
        """What a program leaves; `backwards` takes blocks and threads in the other order."""
        left, given = outputs(program), inputs()
        where = {"in_": given["in"], "fin": given["fin"], **left}
        launch = _Launch(p=program.p, q=program.q, **{name: a.ctypes.data for name, a in where.items()})
        launch.kernel = ctypes.cast(getattr(self._library, program.name), ctypes.c_void_p).value
        sizes = [(*shape, 1, 1)[:3] for shape in (program.grid, program.block)]
        shape = (ctypes.c_uint * 6)(*sizes[0], *sizes[1])
        problem = self._library.rk_launch(ctypes.byref(launch), shape, backwards)
        if problem:
            raise InvalidProgramError(problem.decode())
        return left
