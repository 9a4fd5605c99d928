"""Programs on rawkern: plain or checked, on the CPU engine or a GPU, and how they came out."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

import rawkern

from .launches import difference, inputs, outputs
from .reference import PRELUDE
from .tree import Listing


@dataclass(frozen=True)
class Failure:
    """One program that failed; failures are counted by `kind`."""

    seed: int
    kind: str
    detail: str

    @property
    def manner(self) -> str:
        """What two failures have in common that have one cause: the kind, and of an error what it says without its numbers."""
        if "Error" not in self.kind:
            return self.kind
        text = re.sub(r"kernel\.cu:\d+", "", self.detail.split("; it comes from")[0].splitlines()[0])
        words = re.sub(r"[%\w]*\d+\w*", "#", text)
        return f"{self.kind}: {words[:100]}"


class Modules:
    """Programs in as few modules as their options allow."""

    def __init__(self, programs: Sequence[Listing]):
        self._modules = {}
        for options in dict.fromkeys(program.options for program in programs):
            mine = [p for p in programs if p.options == options]
            text = "\n".join([PRELUDE, *(p.text for p in mine)])
            self._modules[options] = rawkern.RawModule(code=text, options=options), mine[0].name

    def compile(self) -> None:
        for module, name in self._modules.values():
            getattr(module, name).ptx()

    def run(self, program: Listing, device: str = "cpu", checked: bool = False) -> dict[str, np.ndarray]:
        kernel = getattr(self._modules[program.options][0], program.name)
        given = [torch.from_numpy(a).to(device) for a in inputs().values()]
        out = {name: torch.from_numpy(a).to(device) for name, a in outputs(program).items()}
        with rawkern.check() if checked else contextlib.nullcontext():
            kernel[program.grid, program.block](*given, *out.values(), program.p, program.q)
        return {name: t.cpu().numpy() for name, t in out.items()}


def outcome(
    modules: Modules, program: Listing, want: dict[str, np.ndarray] | None, device: str = "cpu", checked: bool = False
) -> Failure | dict[str, np.ndarray]:
    """Run a program once and compare, if there is something to compare with; returns its results if all is well."""
    prefix = "checked: " if checked else "" if device == "cpu" else f"{device}: "
    try:
        got = modules.run(program, device, checked)
    except Exception as error:
        return Failure(program.seed, f"{prefix}{type(error).__name__}", str(error)[:1500])
    wrong = difference(got, want, program) if want is not None else ""
    return Failure(program.seed, f"{prefix}wrong result", wrong) if wrong else got
