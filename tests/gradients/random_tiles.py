"""Random kernels whose threads all read tiles of shared memory, in loops that can be transposed, or almost."""

from __future__ import annotations

import random

from tests.gradients.random_kernels import arguments


class Tiles:
    """One random kernel, by its seed."""

    grid, shared_mem = (2, 1, 1), 0

    def __init__(self, seed: int) -> None:
        self.seed, self.r = seed, random.Random(seed)
        self.block = self.r.choice([(8, 8, 1), (16, 4, 1), (64, 1, 1), (4, 4, 4), (4, 16, 1)])
        self.source = self._make()

    def arguments(self) -> tuple:
        return arguments(self.seed)

    def _make(self) -> str:
        r, (width, height, depth) = self.r, self.block
        lines = [
            f"int tx = threadIdx.x, ty = threadIdx.y, t = tx + {width} * (ty + {height} * threadIdx.z);",
            "int i = blockIdx.x * 64 + t, c = i < n ? i : n - 1;",
            "float own = x[c] * w[t % 7], bend = sinf(own), sum = 0.0f, other = own;",
            "int q = t, p = at[c];",
            "if (own > 0.0f) q = t + 1;",
        ]
        steps = r.choice(
            ["", "for (int k = 0; k < n; k += 64) {", "for (int k = 0; k < 128; k += 64) {", "if (n > 3) {"]
        )
        at = "k + t" if "k" in steps else "t"
        lines += [steps] if steps else []
        lines += [
            f"s1[{'threadIdx.z * ' + str(height) + ' + ' if depth > 1 else ''}ty][tx] = {at} < n ? x[{at}] * own : 0.5f;",
            f"s2[t] = {r.choice(['cosf(own)', 'x[c]', 'bend * x[(c + 1) % n]'])};",
            "__syncthreads();",
        ]
        clean = r.random() < 0.4
        for _ in range(1 if clean else r.choice([1, 1, 2])):
            lines += self._product() if clean else self._loop()
            if r.random() < 0.3 and not clean:
                lines += ["__syncthreads();", f"other += {self._a(str(self.block[1] - 1), '1')} * own;"]
        lines += ["__syncthreads();"]
        if r.random() < 0.3 and not clean:
            lines += ["s2[t] = sum;", "__syncthreads();", *self._loop(), "__syncthreads();"]
        lines += ["}"] if steps else []
        lines += ["if (i < n) y[i] = sum * other;"]
        head = 'extern "C" __global__ void program(const float* x, const float* w, const int* at, float* y, float* z, int n, int m)'
        shared = f"__shared__ float s1[{height * depth}][{width}], s2[64];"
        return "\n".join([f"{head} {{", *("    " + line for line in [shared, *lines]), "}\n"])

    def _a(self, row: str, column: str) -> str:
        return f"s1[{row}][{column}]"

    def _product(self) -> list[str]:
        """A loop that reads all of one array, and part of the other."""
        width, height, depth = self.block
        most, read, other = self.r.choice(
            [
                (width, "s1[ty][j]", "s2[j]"),
                (height * depth, "s1[j][tx]", "s2[t]"),
                (64 // width, f"s2[j * {width} + tx]", f"s1[ty][j % {width}]"),
                (64, "s2[j]", "own"),
            ]
        )
        term = self.r.choice([f"{read} * {other}", f"sinf({read}) * own", f"{read} * x[(c + j) % n] + {other}"])
        return [f"for (int j = 0; j < {most}; ++j) sum += {term};"]

    def _loop(self) -> list[str]:
        r, (width, height, depth) = self.r, self.block
        most = r.choice([width, height * depth, 64 // width])
        first, step = r.choice([(0, 1), (0, 1), (0, 1), (1, 1), (0, 2), (1, 3)])
        kind = r.choice(["int", "int", "unsigned"])
        reads = ["s2[j]", "s2[63 - t]", "s2[(t + j) % 64]", "s1[0][j % 2]", "s2[0]"]
        if most <= width:
            reads += [f"s2[{'tx + j' if width < 64 else 't'}]", "s2[2 * ty + j]"]
            reads += ["s1[ty][j]"] * 3 + [f"s2[ty * {width} + j]"] * 2 + [f"s1[{height * depth - 1}][j]"]
        if most <= height * depth:
            reads += ["s1[j][tx]"] * 3 + [f"s2[j * {width} + tx]"] * 2 + ["s1[j][0]"]
        others = ["x[q % n]", "x[p]", "q * 0.1f"] if r.random() < 0.15 else []
        others += ["own", "bend", "(float)(j % 3)", "w[j % 7]", "x[(c + j) % n]", "(j + ty > 3 ? own : bend)", "x[at[c]]", "0.7f",
                  "(i < n ? 1.0f : own)", "(k0 + tx) * 0.1f"]  # fmt: skip
        lines = ["int k0 = blockIdx.x + 2 * ty;"] if r.random() < 0.9 else ["int k0 = m - t;"]
        body = [f"float v = {r.choice(reads)} * {r.choice([*reads, *others])};"]
        body += [f"v = {self._term(reads, others)};"] if r.random() < 0.6 else []
        if r.random() < 0.1:
            body += ["if (v > 0.3f) sum += v;"]
        body += [f"sum += {r.choice(['v', 'sinf(v)', 'v * own'])};"]
        if r.random() < 0.3:
            body += [f"other {r.choice(['+=', '-='])} {r.choice(reads)} * {r.choice(others)};"]
        loop = f"for ({kind} j = {first}; j < {most}; j += {step}) {{"
        return ["{", *lines, loop, *body, "}", "}"]

    def _term(self, reads: list[str], others: list[str]) -> str:
        a, b = self.r.choice([*reads, "v"]), self.r.choice([*reads, *others])
        return self.r.choice(
            [
                f"v + {a} * {b}",
                f"fmaxf(v, {a})",
                f"sinf({a} - {b}) * v",
                f"v / (2.0f + {a} * {a})",
                f"fmaf({a}, {b}, v)",
            ]
        )
