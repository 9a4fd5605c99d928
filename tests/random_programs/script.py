"""A failing program as a Python script that stands alone."""

from __future__ import annotations

import inspect
import re
import tempfile
from pathlib import Path

import numpy as np

from . import launches
from .engine import Failure
from .reference import PRELUDE, Reference, available
from .tree import Program

TEMPLATE = '''"""{title}

Seed {seed} of tests.random_programs, made small. Prints what the engine gives and what g++ gives.
"""

import contextlib
import random

import numpy as np
import torch

import rawkern

SOURCE = r"""
{source}"""
WANT = {want}  # index: value, of those that are set

{inputs}

total = {total}
acc = (np.arange(64, dtype=np.uint64) * 2654435761 + 12345).astype(np.uint32)
acc[40:44] = acc[60] = 0
wide = np.arange({wide}, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
wide[13] = 0
left = {{"out": np.full({rows} * total, {unset}, np.int64),
        "own": (np.arange(8 * total) * 40503 % 1000003 - 500000).astype(np.int32), "acc": acc, "wide": wide}}
arrays = [torch.from_numpy(a) for a in [*inputs().values(), *left.values()]]
try:
    with rawkern.check() if {checked} else contextlib.nullcontext():
        rawkern.RawKernel(SOURCE, options={options})[{grid}, {block}](*arrays, {p}, {q})
except Exception as error:
    print(f"got {{type(error).__name__}}: {{error}}")
    print("want no error")
for name, want in WANT.items():
    got = {{k: left[name].tolist()[k] for k in want}}
    if got != want:
        print(name, "got ", list(got.values()))
        print(name, "want", list(want.values()))
'''


def helpers(text: str) -> str:
    """The lines of the prelude that a program needs."""
    return "".join(
        line + "\n" for line in PRELUDE.splitlines() if "(" in line and f"{line.split('(')[0].split()[-1]}(" in text
    )


def script(program: Program, failure: Failure) -> str:
    """The text of a script that runs `program` and prints what is wrong."""
    text, want = program.text(), {}
    text = text.removeprefix(f"namespace n{program.seed} {{\n").removesuffix("}\n")
    if available():
        with tempfile.TemporaryDirectory() as folder:
            left, before = Reference([program], Path(folder)).run(program), launches.outputs(program)
            want = {name: {int(k): int(a[k]) for k in np.flatnonzero(a != before[name])} for name, a in left.items()}
    total = program.threads * int(np.prod(program.grid))
    return TEMPLATE.format(
        title=f"{failure.manner}", seed=program.seed, source=helpers(text) + text, want=want, total=total,
        inputs=re.sub(r' +""".*"""\n', "", inspect.getsource(launches.inputs)),
        wide=len(launches.outputs(program)["wide"]), rows=program.rows, unset=launches.UNSET,
        checked=failure.kind.startswith("checked"), options=program.options, grid=program.grid, block=program.block,
        p=program.p, q=program.q,
    )  # fmt: skip
