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

#: What the engine says where it cannot let lanes elsewhere run; the one error that a correct program may raise.
LIMIT = (
    "waits for other threads in a recursive function, and other lanes of its warp are not in that call; "
    "on the CPU engine all lanes of a warp must make such calls together"
)


@dataclass(frozen=True)
class Failure:
    """One program that failed; failures are counted by `kind`."""

    seed: int
    kind: str
    detail: str

    @property
    def unsupported(self) -> bool:
        """Whether the program needs what the engine does not support, which is not a failure."""
        return self.kind.endswith("LaunchError") and LIMIT in self.detail

    @property
    def manner(self) -> str:
        """What two failures have in common that have one cause: the kind, and of an error what it says without its numbers."""
        if self.unsupported:
            return "unsupported"
        if "Error" not in self.kind:
            return self.kind
        text = re.sub(r"\S+\.py:\d+, line \d+", "", self.detail.split("; it comes from")[0].splitlines()[0])
        words = re.sub(r"[%\w]*\d+\w*", "#", text)
        return f"{self.kind}: {words[:100]}"


def _group(program: Listing) -> tuple[tuple[str, ...], int]:
    """What programs of one module have alike; tables of functions are compiled with each kernel of their module."""
    return program.options, program.seed if "_type" in program.text else 0


class Modules:
    """Programs in as few modules as their options allow."""

    def __init__(self, programs: Sequence[Listing]):
        self._modules = {}
        for key in dict.fromkeys(map(_group, programs)):
            mine, options = [p for p in programs if _group(p) == key], key[0]
            text = "\n".join([PRELUDE, *(p.text for p in mine)])
            self._modules[key] = rawkern.RawModule(code=text, options=options), mine[0].name

    def compile(self) -> None:
        for module, name in self._modules.values():
            getattr(module, name).ptx()

    def run(self, program: Listing, device: str = "cpu", checked: bool = False) -> dict[str, np.ndarray]:
        kernel = getattr(self._modules[_group(program)][0], program.name)
        given = [torch.from_numpy(a).to(device) for a in inputs().values()]
        out = {name: torch.from_numpy(a).to(device) for name, a in outputs(program).items()}
        with rawkern.check() if checked else contextlib.nullcontext():
            kernel[program.grid, program.block](*given, *out.values(), program.p, program.q)
        return {name: t.cpu().numpy() for name, t in out.items()}


def outcome(
    modules: Modules, program: Listing, want: dict[str, np.ndarray] | None, device: str = "cpu", checked: bool = False
) -> Failure | dict[str, np.ndarray]:
    """Run a program and compare, if there is something to compare with; returns its results if all is well.

    Plain runs are two: what one has left in memory shows in the other if the engine reads what it has not set.
    """
    prefix = "checked: " if checked else "" if device == "cpu" else f"{device}: "
    for _ in range(1 if checked else 2):
        try:
            got = modules.run(program, device, checked)
        except Exception as error:
            return Failure(program.seed, f"{prefix}{type(error).__name__}", str(error)[:1500])
        wrong = difference(got, got if want is None else want, program)
        if wrong:
            return Failure(program.seed, f"{prefix}wrong result", wrong)
        want = got
    return got
