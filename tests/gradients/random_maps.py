"""Random kernels whose threads have nothing to do with one another: maps of one or two axes, in strides, of a few elements each.

Inputs that are added have one gradient, outputs are set under conditions, read again and added to.
"""

from __future__ import annotations

import random

import torch

from tests.gradients.random_kernels import N, arguments


class Maps:
    """One random kernel, by its seed."""

    shared_mem = 0

    def __init__(self, seed: int) -> None:
        self.seed, self.r = seed, random.Random(seed)
        self.n, self.count, self.set = self.r.choice([N, N, 96, 97, 60]), 0, set[str]()
        kind = self.r.choice(["flat", "flat", "rows", "strides", "several"])
        self.block, self.grid = (self.r.choice([16, 32]), 1, 1), (8, 1, 1)
        self.inputs = ["x[i]", "w[i]", "x[i]", "w[i]", "w[i % m]"]
        place = "blockIdx.x * blockDim.x + threadIdx.x"
        if kind == "rows":
            shapes = [((8, 4, 1), (2, 3, 1)), ((16, 2, 1), (1, 5, 1)), ((4, 4, 1), (3, 3, 1))]
            (self.block, self.grid), self.n = self.r.choice(shapes), N
            self.inputs += ["w[c]", "w[r]"]
            head = [
                f"int c = {place}, r = {place.replace('.x', '.y')}, i = r * m + c;",
                self._guard(
                    ["c < m && r < n / m", "r < n / m && c < m", "c < m && r < 10", "c < m - 1 && r > 0 && r < 10"]
                ),
            ]
        elif kind == "strides":
            self.grid = (2, 1, 1)
            head = [f"for (int i = {place}; i < n; i += gridDim.x * blockDim.x) {{"]
        elif kind == "several":
            first = self.r.choice([f"({place}) * 4 + k", f"{place} + k * gridDim.x * blockDim.x"])
            head = [f"for (int k = 0; k < 4; ++k) {{ int i = {first};", "if (i >= n) continue;"]
        else:
            integer = self.r.choice(["int", "int", "unsigned", "long long"])
            head = [
                f"{integer} i = {place};",
                self._guard(["i < n", "i < n", "i < n - 3", "i < n / 2", "i < n && i != 5", "i < n && x[i] > -0.5f"]),
            ]
        self.at = {each: self.r.choice(["i", "i", "i", "n - 1 - i"]) for each in "yz"}
        self.known: list[str] = []
        lines = [*head, *self._statements(self.r.randint(1, 3)), *self._output()]
        lines += ["}"] * (sum(line.count("{") - line.count("}") for line in lines))
        head = 'extern "C" __global__ void program(const float* x, const float* w, const int* at, float* y, float* z, int n, int m)'
        self.source = "\n".join([f"{head} {{", *("    " + line for line in lines), "}\n"])

    def arguments(self) -> tuple:
        x, _, at, y, *_ = arguments(self.seed)
        draw = torch.Generator().manual_seed(~self.seed & 0xFFFFFFFF)
        return x, torch.rand(N, generator=draw) * 2 - 1, at, y, torch.zeros(N), self.n, 12

    def _guard(self, conditions: list[str]) -> str:
        condition = self.r.choice(conditions)
        return f"if ({condition}) {{" if self.r.random() < 0.6 else f"if (!({condition})) return;"

    def _value(self, depth: int) -> str:
        if depth == 0:
            return self.r.choice([*self.inputs, *self.known, *self.known, "0.7f"])
        a, b = self._value(depth - 1), self._value(depth - 1)
        return self.r.choice([f"({a} + {b})", f"({a} + {b})", f"({a} - {b})", f"{a} * {b}", f"sinf({a})", f"sinf({a} + {b})",
                              f"({self._test()} ? {a} : {b})", f"fmaxf({a}, {b})"])  # fmt: skip

    def _test(self) -> str:
        return self.r.choice(["x[i] > 0.1f", "i % 2", "w[i] < x[i]", "i > 7", "i < n - 9", "m > 3"])

    def _statements(self, n: int) -> list[str]:
        return [
            line
            for _ in range(n)
            for line in self.r.choice([self._declare, self._declare, self._output, self._branch])()
        ]

    def _declare(self) -> list[str]:
        value = self._value(self.r.randint(1, 2))
        self.count += 1
        self.known.append(f"v{self.count}")
        return [f"float v{self.count} = {value};"]

    def _output(self) -> list[str]:
        """An element of an output; once it is set it may be read, added to and set again."""
        name = self.r.choice("yyz")
        element = f"{name}[{self.at[name]}]"
        sign = self.r.choice(["=", "=", "+=", "*="]) if name in self.set else "="
        lines = [f"{element} {sign} {self._value(2)};"]
        self.set.add(name)
        if self.r.random() < 0.3:
            self.count += 1
            lines.append(f"float v{self.count} = {element};")
            self.known.append(f"v{self.count}")
        return lines

    def _branch(self) -> list[str]:
        known, before = list(self.known), set(self.set)
        then = self._statements(self.r.randint(1, 2))
        self.known, first, self.set = list(known), self.set, set(before)
        other = self._statements(1) if self.r.random() < 0.6 else []
        self.known, self.set = known, first & self.set
        return [f"if ({self._test()}) {{", *then, *(["} else {", *other] if other else []), "}"]
