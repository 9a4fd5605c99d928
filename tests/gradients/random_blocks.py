"""Random kernels whose blocks all read the same tiles, in a loop whose iterations they can deal out, or almost."""

from __future__ import annotations

import random

from tests.gradients.random_kernels import arguments


class Blocks:
    """One random kernel, by its seed."""

    shared_mem = 0

    def __init__(self, seed: int) -> None:
        self.seed, self.r = seed, random.Random(seed)
        self.block = self.r.choice([(8, 4, 1), (16, 2, 1), (32, 1, 1), (4, 8, 1), (8, 2, 2)])
        self.grid = self.r.choice([(2, 1, 1), (3, 2, 1), (2, 3, 1), (5, 1, 1), (1, 4, 1), (2, 2, 2), (9, 1, 1)])
        self.source = self._make()

    def arguments(self) -> tuple:
        return arguments(self.seed)

    def _make(self) -> str:
        r, (width, height, depth) = self.r, self.block
        rows, threads = height * depth, width * height * depth
        self.odd = 0.0 if r.random() < 0.6 else 0.12  # how often what cannot be dealt out
        lines = [
            f"int tx = threadIdx.x, ty = threadIdx.y + {height} * threadIdx.z, t = tx + {width} * ty;",
            f"int i = ((blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x) * {threads} + t;",
            f"float own = {self._rare('w[t % 7]', r.choice(['cosf(t * 0.1f)', '(i % 5) * 0.3f']))};",
            f"float sum = {self._rare('own', '0.0f')}, other = 0.2f;",
            f"int q = {r.choice(['t', 'blockIdx.x', 'blockIdx.y + i', '3'])}, p = blockIdx.y * 8 + tx;",
        ]
        step = r.choice([threads, 16, 8])
        end = self._rare("blockIdx.x * 8 + 16", r.choice(["n", "m * 4", "48", "n / 2", "blockIdx.y * 16 + 32"]))
        first = r.choice(["0", "0", "8", "m"])
        change = r.choice([f"k += {step}", f"k += {step}, q += 2", f"k += {step}, p += {step}"])
        head = f"for (int k = {first}; k {r.choice(['<', '<', '<='])} {end}; {change}) {{"
        if r.random() < 0.1:
            head = f"for (int k = 100; k > 3; k -= {step}) {{"
        lines += [head, *self._tiles(width), "__syncthreads();"]
        for _ in range(r.choice([1, 1, 2])):
            lines += self._product(width, rows, threads)
        lines += [f"atomicAdd(&z[(k + t) % 5], {r.choice(['s2[t]', 'own * 0.1f'])});"] if r.random() < 0.1 else []
        lines += ["__syncthreads();", "}"]
        lines += ["__syncthreads();", "sum += s2[t];"] if r.random() < self.odd else []
        result = r.choice(["sum", "sum * other" if r.random() < self.odd else "sum + other", "sum * own + other"])
        result = self._rare(f"sinf({result})", result)
        where = self._rare("i % n", "i")
        lines += [f"if (i < n) y[{where}] = {result};"] if r.random() < 0.8 else [f"atomicAdd(&z[t % 5], {result});"]
        head = 'extern "C" __global__ void program(const float* x, const float* w, const int* at, float* y, float* z, int n, int m)'
        shared = f"__shared__ float s1[{rows}][{width}], s2[{threads}];"
        return "\n".join([f"{head} {{", *("    " + line for line in [shared, *lines]), "}\n"])

    def _rare(self, odd: str, text: str) -> str:
        return odd if self.r.random() < self.odd else text

    def _tiles(self, width: int) -> list[str]:
        """What an iteration stores."""
        r = self.r
        place = lambda: r.choice(  # noqa: E731
            ["k + t", "k + tx", "blockIdx.y * 8 + k + t", "p", "n - 1 - k - t", "k * 2 + ty", "blockIdx.z + k + tx"]
            + ["blockIdx.x * 16 + k + tx", "q + k"] * (r.random() < 0.4)
        )
        a, b = place(), self._rare("at[(k + t) % n]", place())
        factor = r.choice(["1.5f", "own", "(q % 3)", "cosf(blockIdx.x * 0.3f)"])
        inside = f"{a} >= 0 && {a} < n" + r.choice(["", "", " && blockIdx.x != 1", " && k != 16", " && q < 90"])
        lines = [f"s1[ty][tx] = {inside} ? x[{a}] * {factor} : 0.5f;"]
        lines += r.choice(
            [
                [f"s2[t] = ({b}) % 7 >= 0 ? w[({b}) % 7] : 0.1f;"],
                [f"s2[t] = {b} >= 0 && {b} < n ? sinf(x[{b}]) + own : 0.0f;"],
                [f"float v = {b} >= 0 && {b} < n ? x[{b}] : own;", "s2[t] = v * v;"],
                ["s2[t] = own;"],
            ]
        )
        return lines

    def _product(self, width: int, rows: int, threads: int) -> list[str]:
        r = self.r
        most = r.choice([8, 8, 16])
        reads = [f"s1[ty][j % {width}]", f"s1[j % {rows}][tx]", f"s2[j % {threads}]", f"s2[(t + j) % {threads}]"]
        if most <= width:
            reads += ["s1[ty][j]"] * 3
        if most <= rows:
            reads += ["s1[j][tx]"] * 3
        if most * width <= threads:
            reads += [f"s2[j * {width} + tx]"] * 3
        a, b = r.choice(reads), r.choice([*reads, "own", "0.7f"])
        term = r.choice([f"{a} * {b}", f"{a} * {b}", f"sinf({a}) * {b}", f"{a} * {b} * own", f"fmaf({a}, {b}, own)"])
        change = self._rare(f"sum = fmaxf(sum, {term});", f"sum += {term};")
        body = [change, *([f"other -= {r.choice(reads)} * 0.1f;"] if r.random() < 0.3 else [])]
        lines = [f"for (int j = 0; j < {most}; ++j) {{", *body, "}"]
        if r.random() < 0.15:
            lines = [f"if ({r.choice(['k > 8', 'blockIdx.x < 2', 'i < n'])}) {{", *lines, "}"]
        return lines
