"""Programs on rawkern: plain or checked, on the CPU engine or a GPU, and how they came out."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
import torch

import rawkern

from .launches import difference, inputs, outputs
from .reference import PRELUDE
from .tree import Program

_UNSIGNED = {"acc": torch.uint32, "wide": torch.uint64}


@dataclass(frozen=True)
class Failure:
    """One program that failed: `kind` is what failures are grouped by."""

    seed: int
    kind: str
    detail: str

    def as_dict(self) -> dict:
        return asdict(self)


class Modules:
    """Programs in as few modules as their options allow; one alone if the compiler refuses them together."""

    def __init__(self, programs: Sequence[Program]):
        self._modules = {}
        for options in dict.fromkeys(program.options for program in programs):
            text = "\n".join([PRELUDE, *(p.text() for p in programs if p.options == options)])
            self._modules[options] = rawkern.RawModule(code=text, options=options)

    def run(self, program: Program, device: str = "cpu", checked: bool = False) -> dict[str, np.ndarray]:
        kernel = getattr(self._modules[program.options], program.name)
        left = outputs(program)
        given = [torch.from_numpy(a).to(device) for a in inputs().values()]
        out = {name: torch.from_numpy(a).to(device) for name, a in left.items()}
        with rawkern.check() if checked else contextlib.nullcontext():
            kernel[program.grid, program.block](*given, *out.values(), program.p, program.q)
        return {name: t.cpu().numpy() for name, t in out.items()}


def outcome(
    modules: Modules, program: Program, want: dict[str, np.ndarray], device: str = "cpu", checked: bool = False
) -> Failure | None:
    """Run a program once and compare; None if all is well."""
    prefix = "checked: " if checked else ""
    try:
        got = modules.run(program, device, checked)
    except Exception as error:
        return Failure(program.seed, f"{prefix}{type(error).__name__}", str(error)[:1500])
    wrong = difference(got, want, program)
    return Failure(program.seed, f"{prefix}wrong result", wrong) if wrong else None
