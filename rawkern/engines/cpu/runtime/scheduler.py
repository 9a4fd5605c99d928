"""The scheduler's text in two parts: what each kernel has of its own, and what is compiled once for all of them.

A kernel's own are functions that lead to its body, and what is inlined. The rest would be half of what a small kernel
takes to compile.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import astuple, dataclass
from functools import cache

from rawkern.base.llvm import FULL, QUICK, Cpu, declaration, host
from rawkern.engines.cpu.emit.instrument import Instrument
from rawkern.engines.cpu.records import runtime

SWITCH = ("rk_switch", "rk_start")  # as assembly
BLOCK_BEGINS = "; {block_begins}"  # stands where each kernel says itself what happens
_FUNCTION = re.compile(r"^define (?:internal )?(\S+) @(\w+)\((.*?)\)([^{]*)\{\n.*?^\}\n", re.M | re.S)


@dataclass(frozen=True)
class Scheduler:
    """The scheduler of kernels with an instrument that wait, or that do not, for one CPU."""

    own: str  # LLVM IR in each kernel's object file
    shared: str  # LLVM IR of an object file for all kernels
    names: tuple[str, ...]  # functions of that
    suffix: str  # appended to their names in kernels: not all schedulers are the same

    def calls(self, text: str) -> str:
        """A kernel's text with the names that the functions have for kernels."""
        return re.sub(rf"@({'|'.join(self.names)})\b", rf"@\1{self.suffix}", text)


@cache
def scheduler(instrument: type[Instrument], waiting: bool, cpu: Cpu, effort: int = FULL) -> Scheduler:
    """Part the text, for code of an effort: what leads to the kernel's body, and what is inlined, is its own."""
    wide = "avx512f" in cpu.arithmetic()
    native = cpu.machine == host().machine
    hooks = instrument.barrier_opens, instrument.cluster_opens, BLOCK_BEGINS
    text = runtime(waiting, cpu.machine, *hooks, native, wide, effort == QUICK)
    own, shared, names = [], [], []
    for found in _FUNCTION.finditer(text):
        result, name, params, more = found.groups()
        if re.search(r"@rk_(block|body|warp_main)\b", found[0]):
            own.append(found[0].replace("define internal", "define", 1))
        elif "alwaysinline" in more:
            own.append(found[0])
            shared.append(found[0])
        else:
            own.append(f"{declaration(result, name, params)}\n")
            shared.append(found[0].replace("define internal", "define", 1))
            names.append(name)
    rest = _FUNCTION.sub("", text)
    assembly = [line for line in rest.splitlines() if line.startswith("module asm")]
    common = [line for line in rest.splitlines() if not line.startswith("module asm")]
    linked = instrument.linked()
    return Scheduler(
        "\n".join([*common, *own, linked]),
        "\n".join([*assembly, *common, *shared, linked, "!1 = !{}"]),
        tuple(names),
        suffix(instrument, waiting, cpu),
    )


def suffix(instrument: type[Instrument], waiting: bool, cpu: Cpu) -> str:
    """The suffix of the names of a scheduler's functions."""
    return "_" + hashlib.sha256(repr((instrument.name, waiting, astuple(cpu))).encode()).hexdigest()[:8]
