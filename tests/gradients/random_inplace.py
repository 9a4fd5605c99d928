"""Random kernels that overwrite an output in place, or almost: what they read of it may be another thread's."""

from __future__ import annotations

import random

from tests.gradients.random_kernels import arguments


class InPlace:
    """One random kernel, by its seed."""

    shared_mem = 0

    def __init__(self, seed: int) -> None:
        self.seed, self.r = seed, random.Random(seed)
        self.block, self.grid = (self.r.choice([4, 8, 32]), 1, 1), (self.r.choice([1, 2, 3]), 1, 1)
        lines = self.r.choice([self._each, self._strided, self._rows, self._rows, self._again, self._pairs])()
        head = 'extern "C" __global__ void program(const float* x, const float* w, const int* at, float* y, float* z, int n, int m)'
        self.source = "\n".join([f"{head} {{", *("    " + line for line in lines), "}\n"])

    def arguments(self) -> tuple:
        return arguments(self.seed)

    def value(self, reads: list[str], depth: int = 2) -> str:
        r = self.r
        if depth == 0:
            return r.choice([*reads, *reads, f"{r.uniform(-1, 1):.2f}f", "w[3]"])
        a, b = self.value(reads, depth - 1), self.value(reads, depth - 1)
        return r.choice([f"({a} + {b})", f"({a} - {b})", f"sinf({a})", f"{a} * {b}", f"fmaxf({a}, {b})"])

    def _of(self, index: str) -> str:
        """What a thread reads; seldom an element that another sets."""
        other = self.r.random() < 0.03
        return f"y[{index} + 1]" if other else f"y[{index}]"

    def _statements(self, i: str) -> list[str]:
        r, lines = self.r, []
        reads = [self._of(i), self._of(i), f"x[{i}]", "w[2]"]
        if r.random() < 0.4:
            lines.append(f"float v = {self.value(reads)};")
            reads.append("v")
        for _ in range(r.choice([1, 1, 2])):
            sets = r.choice(
                [f"y[{i}] = {{}};", f"y[{i}] = {{}};", f"y[{i}] *= {{}};", f"if ({reads[0]} > 0.1f) y[{i}] = {{}};"]
            )
            lines.append(sets.format(r.choice([self.value(reads), self.value(reads, 1), "0.0f"])))
        if r.random() < 0.2:
            lines.append(f"atomicAdd(&z[({i}) % 5], {self.value(reads)});")
        return lines

    def _each(self) -> list[str]:
        shift = self.r.choice(["", "", " + 2"])
        lines = [f"int i = blockIdx.x * blockDim.x + threadIdx.x{shift};"]
        return [
            *lines,
            f"if (i < n - 1{self.r.choice(['', ' && i % 3', ' && at[i] > 9'])}) {{",
            *self._statements("i"),
            "}",
        ]

    def _strided(self) -> list[str]:
        step = self.r.choice(["gridDim.x * blockDim.x", "gridDim.x * blockDim.x", "blockDim.x"])
        head = f"for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n - 1; i += {step}) {{"
        return [head, *self._statements("i"), "}"]

    def _again(self) -> list[str]:
        """A loop whose iterations mean the same element, or one each."""
        i = self.r.choice(["i", "i", "i * 3 + k"])
        head = f"for (int k = 0; k < {self.r.choice(['3', 'm / 4'])}; ++k) {{"
        return [
            "int i = blockIdx.x * blockDim.x + threadIdx.x;",
            f"if (i < n / 3 - 1) {head}",
            *self._statements(i),
            "}",
        ]

    def _pairs(self) -> list[str]:
        """Two elements of a thread: next to each other, or of the halves of a row."""
        r = self.r
        row, width = r.choice([("", "n"), (f"y += blockIdx.x * {r.choice(['m', 'm', '(m - 1)'])};", "m")])
        half = r.choice([f"{width} / 2", f"{width} / 2", f"{width} >> 1", f"{width} / 3"])
        first, second = r.choice([("2 * i", "2 * i + 1"), ("2 * i", "2 * i + 1"), ("i", f"i + {half}"), ("i", "i + 1")])
        reads = ["a", "b", "x[i]"]
        return [
            f"int i = {'threadIdx.x' if row else 'blockIdx.x * blockDim.x + threadIdx.x'}; {row}",
            "{" if row and self.block[0] == 4 and r.random() < 0.5 else f"if (i < {half}) {{",
            f"float a = y[{first}], b = y[{second}];",
            f"y[{first}] = {self.value(reads)};",
            f"y[{second}] = {self.value(reads)};",
            "}",
        ]

    def _rows(self) -> list[str]:
        """Several loops of a row each, as an in-place softmax has them."""
        r = self.r
        width = r.choice(["4", "m"])
        lines = ["int row = blockIdx.x * blockDim.x + threadIdx.x; if (row >= n / 12 - 1) return;"]
        loop = f"for (int c = 0; c < {width}; ++c) "
        at = f"row * {width} + c"
        lines.append("float m1 = -9.0f, s = 0.0f;")
        if r.random() < 0.5:
            lines.append(f"{loop}m1 = fmaxf(m1, {self._of(at)});")
        if r.random() < 0.6:
            lines.append(f"{loop}s += {self.value([self._of(at), f'x[{at}]'])};")
        body = self.value([self._of(at), f"x[{at}]", "m1" if r.random() < 0.5 else "s"])
        lines.append(f"{loop}{{ y[{at}] = {body}; s += {r.choice([self._of(at), 'w[1]'])}; }}")
        if r.random() < 0.6:
            lines.append(f"{loop}y[{at}] *= {self.value(['s', f'x[{at}]'], 1)};")
        return lines
