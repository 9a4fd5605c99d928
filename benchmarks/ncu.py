"""What profiles count beside what Nsight Compute counted on an H200: `python -m benchmarks.ncu`.

The launches are those of ``tests/data/h200_ncu.json``. Counts that differ are listed with the reason: machine code is
not PTX.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

import rawkern
from rawkern.profiling.counters import OF_PTX

ROOT = Path(__file__).resolve().parent
DATA = ROOT.parent / "tests" / "data" / "h200_ncu.json"
RESULT = ROOT / "results" / "ncu.md"

_LOOPS = "ptxas unrolls the loop: other branches, for several rounds at a time"
_PREDICATED = "ptxas predicates one or two instructions in place of a branch around them"
_JOINED = "ptxas joins adjacent loads of shared memory into wider ones"
_SUNK = "ptxas moves the last addition into the branch of the one lane that needs its result"
_BRANCHES = ("smsp__sass_branch_targets", "smsp__sass_inst_executed_op_branch")
_BRANCHES = ("smsp__sass_branch_targets", "smsp__sass_inst_executed_op_branch")
#: Why counts differ, by kernel and the beginning of the counter's name.
EXCEPTIONS: dict[tuple[str, str], str] = {
    **{("*", name): "counts PTX instructions; machine code has others" for name in OF_PTX},
    **{("divergent", name): _LOOPS for name in _BRANCHES},
    **{("matmul", name): _LOOPS for name in _BRANCHES},
    **{("reduce", name): _PREDICATED for name in _BRANCHES},
    ("reduce", "smsp__sass_thread_inst_executed_op_fadd"): _SUNK,
    ("matmul", "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld"): _JOINED,
    ("matmul", "smsp__sass_inst_executed_op_shared_ld"): _JOINED,
}


@dataclass(frozen=True)
class Row:
    """One counter of one kernel."""

    kernel: str
    counter: str
    ours: float
    theirs: float

    @property
    def equal(self) -> bool:
        return self.ours == self.theirs

    @property
    def reason(self) -> str:
        """Why it differs; empty where nothing is known that it should."""
        found = (why for (kernel, name), why in EXCEPTIONS.items() if self._is(kernel, name))
        return next(found, "")

    def _is(self, kernel: str, name: str) -> bool:
        return kernel in ("*", self.kernel) and self.counter.startswith(name)


@cache
def truth() -> dict[str, Any]:
    return json.loads(DATA.read_text())


def argument(text: str | int, dtype: torch.dtype | None) -> torch.Tensor | int:
    """An argument as the data describes it, as elements of another type where the kernel's pointer has one."""
    if isinstance(text, int):
        return text
    match = re.fullmatch(r"(\w+)\((.*)\)", text)
    assert match is not None
    kind, words = match[1], [word.strip() for word in match[2].split(",")]
    if kind == "randn":
        made = torch.randn(*map(int, words), generator=torch.Generator().manual_seed(1))
    elif kind == "randint":
        seeded = torch.Generator().manual_seed(2)
        made = torch.randint(0, int(words[0]), (int(words[1]),), dtype=torch.int32, generator=seeded)
    else:
        own = getattr(torch, words.pop()) if not words[-1].isdigit() else torch.float32
        made = torch.zeros(*map(int, words), dtype=own)
    if dtype is None or made.dtype == dtype:
        return made
    return made.view(dtype)


_POINTERS = {"char": torch.int8, "double": torch.float64, "int": torch.int32, "P": torch.uint8}
_VECTORS = {"float2": 2, "float4": 4}


def arguments(kernel: dict[str, Any]) -> list[torch.Tensor | int]:
    """The arguments of one of the data's launches."""
    declared = re.search(r"\bk\(([^)]*)\)", kernel["source"])
    assert declared is not None
    found = []
    for text, parameter in zip(kernel["arguments"], declared[1].split(","), strict=True):
        word = parameter.replace("const", "").split("*")[0].split()[-1]
        made = argument(text, _POINTERS.get(word) if "unsigned" not in parameter else None)
        if word in _VECTORS and isinstance(made, torch.Tensor):
            made = made.view(-1, _VECTORS[word])
        found.append(made)
    return found


def profiled(kernel: dict[str, Any]) -> dict[str, Any]:
    """One of the data's launches, profiled."""
    made = rawkern.RawKernel(kernel["source"], "k", options=("-std=c++17",))
    with rawkern.profile() as report:
        made[kernel["grid"], kernel["block"], kernel["shared_mem"]](*arguments(kernel))
    return report.as_dict(instructions=True)["launches"][0]


def compared(kernel: dict[str, Any]) -> list[Row]:
    """All counters of one of the data's launches."""
    ours = profiled(kernel)["counters"]
    return [Row(kernel["name"], name, ours[name], theirs) for name, theirs in kernel["counters"].items()]


def table(rows: list[Row]) -> str:
    """A page: how many are equal, and those that are not."""
    kernels = len({row.kernel for row in rows})
    same = sum(row.equal for row in rows)
    lines = [
        "# Counts beside Nsight Compute's\n",
        f"{same} of {len(rows)} counters of {kernels} kernels are equal. The others, but for the numbers of",
        "instructions, which are those of PTX:\n",
        "| kernel | counter | counted | Nsight Compute | reason |",
        "| --- | --- | --- | --- | --- |",
    ]  # fmt: skip
    for row in rows:
        if not row.equal and row.counter not in OF_PTX:
            lines.append(f"| {row.kernel} | `{row.counter}` | {row.ours:g} | {row.theirs:g} | {row.reason or '?'} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    rows = [row for kernel in truth()["kernels"] for row in compared(kernel)]
    text = table(rows)
    RESULT.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
