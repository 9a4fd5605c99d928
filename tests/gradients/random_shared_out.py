"""Random kernels whose threads share out rows of global memory, as in norms and softmax: sums and maxima of a row, of
what earlier ones gave, then elements of an output.

Most have the same gradients with blocks of any size; some depend on it in one place.
"""

from __future__ import annotations

import random

from tests.gradients.cases import BLOCK_REDUCTIONS
from tests.gradients.random_kernels import arguments


class SharedOut:
    """One random kernel, by its seed."""

    shared_mem = 0

    def __init__(self, seed: int) -> None:
        self.seed, self.r = seed, random.Random(seed)
        r = self.r
        self.block, self.grid = (r.choice([32, 64]), 1, 1), (r.choice([1, 2, 3]), 1, 1)
        self.length = r.choice([1, 8, 24, 30, 31])
        self.row = r.choice(["row", "row", "row + 1", "blockIdx.x * n", "blockIdx.x * m"])
        lines = ["__shared__ float s1[32];", "const int t = threadIdx.x, row = blockIdx.x * n;"]
        known = ["0.5f"]
        for k in range(r.choice([1, 2, 2, 3])):
            lines += self._reduction(f"v{k}", known)
            known.append(f"v{k}")
        lines += self._output("y", known)
        head = 'extern "C" __global__ void program(const float* x, const float* w, const int* at, float* y, float* z, int n, int m)'
        self.source = "\n".join([BLOCK_REDUCTIONS, f"{head} {{", *("    " + line for line in lines), "}\n"])

    def arguments(self) -> tuple:
        x, w, at, y, z, *_ = arguments(self.seed)
        return x, w, at, y, z, self.length, 32

    def _loop(self, body: str) -> str:
        until = self.r.choice(["n"] * 8 + ["n - 1"])
        return f"for (int c = t; c < {until}; c += blockDim.x) {body}"

    def _value(self, known: list[str]) -> str:
        r = self.r
        x, other = f"x[{self.row} + c]", r.choice(known)
        return r.choice([f"{x} * {x}", f"sinf({x}) * {other}", f"expf({x} - {other})", f"{x} * w[c % 7]", f"{x} * {other} + 0.1f * c",
                         f"({x} - {other}) * ({x} - {other})", f"fmaxf({x}, {other})"])  # fmt: skip

    def _reduction(self, name: str, known: list[str]) -> list[str]:
        r, value = self.r, self._value(known)
        if r.random() < 0.3:
            return [
                f"float {name} = -3e38f;",
                self._loop(f"{name} = fmaxf({name}, {value});"),
                f"{name} = block_max({name}, s1);",
            ]
        begin = r.choice(["0.0f"] * 9 + ["0.1f"])  # in each thread
        found = [f"float {name} = {begin};", self._loop(f"{name} += {value};"), f"{name} = block_sum({name}, s1);"]
        return [*found, *r.choice([[], [f"{name} = 1.0f / sqrtf({name} * {name} + 1.0f);"], [f"{name} = {name} / n;"]])]

    def _output(self, array: str, known: list[str]) -> list[str]:
        r = self.r
        place = r.choice([f"{array}[{self.row} + c]"] * 6 + [f"{array}[{self.row} + n - 1 - c]"])
        sets = f"{place} = {self._value(known)} * {known[-1]};"
        if r.random() < 0.2:
            sets = f"if ({r.choice(['c % 3 > 0', 'at[c] > 20', 'c < n - 2'])}) {sets}"
        return [self._loop(f"{{ {sets} }}"), *r.choice([[], [], [f"if (t == 0) z[blockIdx.x] = {known[-1]};"]])]
