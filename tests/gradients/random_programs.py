"""Random kernels, each derived and compared with a finite difference: ``python -m tests.gradients.random_programs``.

Programs of `random_kernels`, `random_objects`, `random_places` and the others in turn, on the CPU engine; `host` compares many more.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

import rawkern
from tests.gradients.random_blocks import Blocks
from tests.gradients.random_buffers import Buffers
from tests.gradients.random_corners import Corners
from tests.gradients.random_flat import Flat
from tests.gradients.random_groups import Groups
from tests.gradients.random_inplace import InPlace
from tests.gradients.random_kernels import Program
from tests.gradients.random_locals import Locals
from tests.gradients.random_maps import Maps
from tests.gradients.random_maxima import Maxima
from tests.gradients.random_objects import Objects
from tests.gradients.random_offsets import Offsets
from tests.gradients.random_pipelines import Pipelines
from tests.gradients.random_places import Places
from tests.gradients.random_rows import Rows
from tests.gradients.random_shared_out import SharedOut
from tests.gradients.random_stencils import Stencil
from tests.gradients.random_tapes import Tapes
from tests.gradients.random_tiles import Tiles
from tests.gradients.random_trees import Trees
from tests.gradients.random_versions import Versions

KINDS = {
    kind.__name__: kind
    for kind in (
        Program,
        Objects,
        Places,
        Tiles,
        Stencil,
        Rows,
        Blocks,
        Offsets,
        InPlace,
        Maxima,
        Groups,
        Trees,
        Buffers,
        Corners,
        Flat,
        Maps,
        Versions,
        Pipelines,
        Tapes,
        Locals,
        SharedOut,
    )
}
#: Seeds that failed once, by kind; the suite runs them.
KEPT = {
    "Program": (8, 12, 500012), "Stencil": (3, 7), "Tiles": (74,), "Objects": (196,), "Tapes": (128216,),
}  # fmt: skip


def kept() -> dict[int, Any]:
    """The programs of the kept seeds, numbered."""
    return dict(enumerate(KINDS[kind](seed) for kind, seeds in KEPT.items() for seed in seeds))


def program_of(seed: int) -> Any:
    """A program of each kind in turn."""
    others = {5: Maxima, 7: InPlace, 9: Offsets, 11: Blocks, 13: Groups, 14: Buffers, 15: Trees}
    if seed % 16 == 8:
        return (Corners, Maps, Flat, Versions, Pipelines, Tapes, Locals, SharedOut)[seed // 16 % 8](seed)
    if seed % 16 in others:
        return others[seed % 16](seed)
    return (Program, Places, Tiles, Stencil, Objects, Places, Rows, Stencil)[seed % 8](seed)


def outcome(seed: int) -> str:
    """ "right", or why it is not supported; ArithmeticError and others for what is wrong."""
    program = program_of(seed)
    kernel = rawkern.RawKernel(program.source, "program")
    try:
        derived = kernel.derive(block=program.block, shared_mem=program.shared_mem)
    except rawkern.NotDifferentiable as error:
        return str(error).partition("derived backward: ")[2]
    derived.verify(program.grid, program.arguments(), seed=seed)
    return "right"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--show", action="store_true", help="print the first program and its backward")
    options = parser.parse_args()
    if options.show:
        program = program_of(options.first)
        print(program.source)
        print(
            rawkern.RawKernel(program.source, "program")
            .derive(block=program.block, shared_mem=program.shared_mem)
            .source
        )
    start, wrong, right, refused = time.time(), [], 0, {}
    for seed in range(options.first, options.first + options.count):
        if time.time() - start > options.seconds:
            break
        try:
            found = outcome(seed)
        except Exception as error:
            wrong.append(seed)
            print(f"seed {seed}: {type(error).__name__}: {str(error)[:300]}", flush=True)
            continue
        right += found == "right"
        if found != "right":
            refused[found] = refused.get(found, 0) + 1
    others = sum(refused.values())
    print(f"{right} right, {others} not supported, {len(wrong)} wrong: {wrong}; {time.time() - start:.0f} s")
    for reason, times in sorted(refused.items(), key=lambda item: -item[1])[:12]:
        print(f"{times:4} {reason}")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
