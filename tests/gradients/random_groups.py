"""Random kernels of other kinds, two or three of whose blocks are groups of a larger one: a warp for each row, and so."""

from __future__ import annotations

import re
from typing import Any

from tests.gradients.random_inplace import InPlace
from tests.gradients.random_kernels import Program
from tests.gradients.random_maxima import Maxima
from tests.gradients.random_offsets import Offsets
from tests.gradients.random_places import Places
from tests.gradients.random_rows import Rows
from tests.gradients.random_stencils import Stencil

KINDS = (InPlace, Maxima, Stencil, Places, Offsets, Program, Rows)


class Groups:
    """One random kernel, by its seed; one of another kind where its threads have shared memory, or blocks that are not rows."""

    def __init__(self, seed: int) -> None:
        program: Any = KINDS[seed // 16 % len(KINDS)](seed)
        self.source, self.block, self.grid = program.source, program.block, program.grid
        self.arguments, self.shared_mem = program.arguments, program.shared_mem
        width, number = self.block[0], next((k for k in (3, 2) if self.grid[0] % k == 0), 1)
        if "__shared__" in self.source or "__sync" in self.source or self.block[1:] != (1, 1) or number == 1:
            return
        divided, rest = ((f"/ {width}", f"% {width}"), (f">> {width.bit_length() - 1}", f"& {width - 1}"))[
            not width & (width - 1) and seed % 32 < 16
        ]
        head, _, body = self.source.partition("program(")
        new = {
            "threadIdx.x": f"(threadIdx.x {rest})", "blockIdx.x": f"(blockIdx.x * {number} + (threadIdx.x {divided}))",
            "blockDim.x": f"{width}u", "gridDim.x": f"(gridDim.x * {number})",
        }  # fmt: skip
        if seed // 64 % 2:  # by the place in the launch
            place = "(blockIdx.x * blockDim.x + threadIdx.x)"
            new |= {"threadIdx.x": f"({place} {rest})", "blockIdx.x": f"({place} {divided})"}
        self.source = head + "program(" + re.sub("|".join(map(re.escape, new)), lambda m: new[m[0]], body)
        self.block, self.grid = (width * number, 1, 1), (self.grid[0] // number, *self.grid[1:])
