"""Random kernels with running maxima in loops of loops, under conditions, or almost: what else asks for them."""

from __future__ import annotations

import random

from tests.gradients.random_kernels import arguments


class Maxima:
    """One random kernel, by its seed."""

    shared_mem = 0

    def __init__(self, seed: int) -> None:
        self.seed, self.r = seed, random.Random(seed)
        self.block, self.grid = (self.r.choice([8, 32]), 1, 1), (2, 1, 1)
        r, (low, sign) = self.r, self.r.choice([("-9.0f", ">"), ("9.0f", "<")])
        self.low, self.sign, self.function = low, sign, "fmaxf" if sign == ">" else "fminf"
        lines = [
            "int i = blockIdx.x * blockDim.x + threadIdx.x;",
            f"float m1 = {r.choice([low, low, '0.1f', 'x[i % 7]'])}, s = 0.0f;",
            *self._loop(r.choice([1, 1, 2, 2, 3]), []),
        ]
        if r.random() < 0.3:
            lines += self._loop(1, [])
        lines.append(f"if (i < n) y[i] = {r.choice(['m1', 'sinf(m1)', 'm1 * x[i]', 'm1 + s', 'm1 * m1'])};")
        head = 'extern "C" __global__ void program(const float* x, const float* w, const int* at, float* y, float* z, int n, int m)'
        self.source = "\n".join([f"{head} {{", *("    " + line for line in lines), "}\n"])

    def arguments(self) -> tuple:
        return arguments(self.seed)

    def _value(self, names: list[str]) -> str:
        r = self.r
        at = " + ".join([*(f"{name} * {k}" for name, k in zip(names, (7, 3, 1), strict=False)), "i * 5"])
        value = f"x[({at}) % n]"
        return r.choice(
            [value, value, f"sinf({value} * 3.0f)", f"{value} * w[{names[-1]} % 7]", f"({value} - x[{names[0]}])"]
        )

    def _loop(self, depth: int, outer: list[str]) -> list[str]:
        r, name = self.r, f"k{len(outer)}"
        names = [*outer, name]
        end = r.choice(["m / 4", "5", "m / 3", "m"]) if depth == 1 else r.choice(["m / 4", "3", "m / 6"])
        inner = self._loop(depth - 1, names) if depth > 1 else self._update(names)
        if r.random() < 0.4:
            inner = [f"if ({self._test(names)}) {{", *inner, "}"]
        if r.random() < 0.08:
            inner.append(
                r.choice(["s += m1;", "m1 *= 0.5f;", f"s += {self._value(names)};", f"m1 = {self._value(names)};"])
            )
        return [f"for (int {name} = {r.choice(['0', '0', '1'])}; {name} < {end}; ++{name}) {{", *inner, "}"]

    def _test(self, names: list[str]) -> str:
        return self.r.choice(
            [
                f"({names[-1]} + i) % 3",
                f"x[{names[-1]}] < 0.5f",
                f"{names[0]} + i < 60",
                "m1 < 0.9f" if self.r.random() < 0.1 else "i > 2",
            ]
        )

    def _either(self) -> str:
        return f"m1 = m1 {self.sign} v ? m1 : v;" if self.seed % 3 else f"m1 = v {self.sign} m1 ? v : m1;"

    def _update(self, names: list[str]) -> list[str]:
        v = self._value(names)
        return self.r.choice(
            [
                [f"m1 = {self.function}(m1, {v});"],
                [f"float v = {v};", self._either()],
                [f"float v = {v};", f"if (v {self.sign} m1) m1 = v;"],
                [f"float v = {v};", f"if (m1 {'<' if self.sign == '>' else '>'} v) m1 = v;"],
                [f"float v = {v};", f"if (v {self.sign} m1 && v < 0.95f) m1 = v;"],
                [f"m1 = {self.function}({v}, m1);"],
            ]
        )
