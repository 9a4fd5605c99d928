"""Random kernels whose threads have one number each, of which they take rows and columns: ``i / m`` and ``i % m``."""

from __future__ import annotations

import random

import torch

SIZE = 1 << 18


class Flat:
    """One random kernel, by its seed."""

    shared_mem = 0

    def __init__(self, seed: int) -> None:
        self.seed, self.r = seed, random.Random(seed)
        self.block, self.grid = (self.r.choice([8, 16, 32]), 1, 1), (self.r.randint(1, 4), 1, 1)
        self.m, self.n = self.r.randint(1, 6), self.r.randint(20, 110)
        self.source = self._make()

    def arguments(self) -> tuple:
        draw = torch.Generator().manual_seed(self.seed)
        x, w = (torch.rand(size, generator=draw) * 2 - 1 for size in (SIZE, 97))
        at = torch.zeros(SIZE, dtype=torch.int32)
        return x, w, at, torch.zeros(SIZE), torch.zeros(SIZE), self.n, self.m

    def _make(self) -> str:
        r = self.r
        sizes = [r.choice(["m", "m", "3", "4", "(m * 2)"]) for _ in range(r.choice([1, 2, 2]))]
        number = r.choice(["int", "int", "unsigned", "long long"])
        place = r.choice(["blockIdx.x * blockDim.x + threadIdx.x", "blockIdx.x * blockDim.x + threadIdx.x",
                          f"(blockIdx.x * {self.block[0]} + threadIdx.x) * 2"])  # fmt: skip
        strides = r.random() < 0.25
        head = f"for ({number} i = {place}; i < n; i += blockDim.x * gridDim.x) {{" if strides else (
            f"{number} i = {place}; if (i < n) {{" if r.random() < 0.7 else f"{number} i = {place}; if (i < 4 * n) {{"
        )  # fmt: skip
        digits = self._digits(sizes)
        names = [f"d{k}" for k in range(len(digits))]
        lines = [f"{r.choice(['int', number])} {name} = {text};" for name, text in zip(names, digits, strict=True)]
        self.names, self.sizes = names, [*sizes, "50"]
        value = f"x[{self._index()}] * w[({self._index()}) % 97] + sinf(x[{self._index()}])"
        if r.random() < 0.3:  # with a loop over one more digit, in the middle
            lines += ["float v = 0.0f;", "for (int c = 0; c < m; ++c) {",
                      f"    v += x[{self._index('c')}] * w[({self._index(r.choice(['c', '']))}) % 97];", "}"]  # fmt: skip
            value = f"v + {value}"
        store = r.choice(["y[i]", "y[i]", f"y[{self._index(right=True)}]", "atomicAdd"])
        put = f"atomicAdd(&y[{self._index()}], {value});" if store == "atomicAdd" else f"{store} = {value};"
        head_ = 'extern "C" __global__ void program(const float* x, const float* w, const int* at, float* y, float* z, int n, int m)'
        return "\n".join([f"{head_} {{", f"    {head}", *("        " + each for each in (*lines, put)), "    }", "}\n"])

    def _digits(self, sizes: list[str]) -> list[str]:
        """Expressions for the digits of i, the last one first."""
        r = self.r
        if len(sizes) == 1:
            (a,) = sizes
            return [r.choice([f"i % {a}", f"i - i / {a} * {a}", "(i & 3)" if a == "4" else f"i % {a}"]),
                    r.choice([f"i / {a}", "(i >> 2)" if a == "4" else f"i / {a}"])]  # fmt: skip
        a, b = sizes
        middle = r.choice([f"i / {a} % {b}", f"i % ({a} * {b}) / {a}", f"(i - i / ({a} * {b}) * ({a} * {b})) / {a}"])
        return [
            r.choice([f"i % {a}", f"i % ({b} * {a}) % {a}"]),
            middle,
            r.choice([f"i / ({b} * {a})", f"i / {a} / {b}"]),
        ]

    def _index(self, more: str = "", right: bool = False) -> str:
        """An index made of the digits in some order; at times not of all, or with another factor."""
        r = self.r
        digits = list(zip(self.names, self.sizes, strict=True))
        if not right and r.random() < 0.15:
            return "i"
        if r.random() < 0.5:
            r.shuffle(digits)
        if more:
            digits.insert(r.randrange(len(digits) + 1), (more, "m"))
        if not right and r.random() < 0.2:
            digits.pop(r.randrange(len(digits)))
        text, factor = "", ""
        for name, size in digits:
            text += (" + " if text else "") + (f"{name} * ({factor})" if factor else name)
            wrong = not right and r.random() < 0.1
            factor = (f"{factor} * " if factor else "") + ("2" if wrong else size)
        return text or "0"
