"""Random kernels with local arrays whose indices are data: filled up to a count, sorted, overwritten in nested loops."""

from __future__ import annotations

import random

from tests.gradients.random_kernels import arguments

HEAD = 'extern "C" __global__ void program(const float* x, const float* w, const int* at, float* y, float* z, int n, int m)'
PAIR = """struct Pair {
    float a, b;
    __device__ Pair() {}
    __device__ Pair(float p, float q) { a = p; b = q; }
    __device__ Pair operator+(const Pair& o) const { return Pair(a + o.a, b * o.b); }
};
__device__ inline void mix(const Pair& p, Pair& q) { q = Pair(p.b, sinf(q.a)); }
"""


class Locals:
    """One random kernel, by its seed."""

    shared_mem = 0

    def __init__(self, seed: int) -> None:
        self.seed, self.r = seed, random.Random(seed)
        r = self.r
        self.block, self.grid = (r.choice([4, 8]), 1, 1), (r.choice([1, 2]), 1, 1)
        self.size, self.pairs = r.choice([4, 5, 6]), r.random() < 0.3
        self.known, self.count, self.depth = ["0.5f", "w[t % 7]", "x[i]"], 0, 0
        size = self.size
        lines = [f"{'Pair' if self.pairs else 'float'} l1[{size}];", f"float l2[2][{size}] = {{{{0.5f}}}};"]
        lines += ["float sum = w[1];", "int c = 0;", *self._filled()]
        for _ in range(r.randint(2, 5)):
            lines += self._pass()
        lines += ["y[i] = sum + " + self._value(1) + ";"]
        begin = ["int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;"]
        if r.random() < 0.5:
            begin.append("if (i >= n - 3) return;")
        elif r.random() < 0.5:
            lines = ["if (i < n - 3) {", *lines, "}"]
        body = "\n".join("    " + line for line in [*begin, *lines])
        self.source = f"{PAIR}{HEAD} {{\n{body}\n}}\n"

    def arguments(self) -> tuple:
        *rest, _ = arguments(self.seed)
        return (*rest, self.seed % self.size)  # m, which is an index

    def _filled(self) -> list[str]:
        """All elements get values; the first c are those that the data selects."""
        r, k = self.r, self._fresh("k")
        value = "Pair(x[i + K], w[K] * x[i])" if self.pairs else r.choice(["x[i + K]", "w[K] * x[i]", "sinf(x[i] + K)"])
        lines = [f"for (int {k} = 0; {k} < {self.size}; ++{k}) l1[{k}] = {value.replace('K', k)};"]
        if r.random() < 0.7:
            k = self._fresh("k")
            lines += [f"for (int {k} = 0; {k} < {self.size}; ++{k}) {{"]
            lines += [f"    if (x[i + {k}] > -0.2f) {{ l1[c]{self._member()} = x[i + {k}] * w[2]; ++c; }}", "}"]
        else:
            lines += ["c = at[i] % " + f"{self.size + 1};"]
        return lines

    def _fresh(self, hint: str) -> str:
        self.count += 1
        return f"{hint}{self.count}"

    def _member(self) -> str:
        return self.r.choice([".a", ".b"]) if self.pairs else ""

    def _index(self, k: str = "") -> str:
        size = self.size
        ways = ["m", f"at[i] % {size}", f"(t + m) % {size}", str(self.r.randrange(size))]
        if k:
            ways += [k, k, k, f"({k} + 1) % {size}", f"{size - 1} - {k}", f"({k} + m) % {size}"]
        return self.r.choice(ways)

    def _element(self, k: str = "") -> str:
        if self.r.random() < 0.3:
            return f"l2[{self.r.choice(['0', '1', 't % 2'])}][{self._index(k)}]"
        return f"l1[{self._index(k)}]{self._member()}"

    def _value(self, depth: int, k: str = "") -> str:
        if depth == 0:
            return self.r.choice([self._element(k), self._element(k), *self.known])
        a, b = self._value(depth - 1, k), self._value(depth - 1, k)
        return self.r.choice([f"({a} + {b})", f"sinf({a}) * {b}", f"{a} * {b}", f"cosf({a})", f"({a} - {b})"])

    def _loop(self, body: list[str], k: str) -> list[str]:
        end = self.r.choice(["c", "c", str(self.size), str(self.size)])
        return [f"for (int {k} = 0; {k} < {end}; ++{k}) {{", *("    " + line for line in body), "}"]

    def _sort(self) -> list[str]:
        j, i, what = self._fresh("j"), self._fresh("i"), self._member()
        kind = "Pair" if self.pairs else "float"
        swap = f"{{ {kind} v = l1[{i}]; l1[{i}] = l1[{i} + 1]; l1[{i} + 1] = v; }}"
        test = f"l1[{i}]{what} {self.r.choice('<>')} l1[{i} + 1]{what}"
        return [
            f"for (int {j} = 0; {j} < c - 1; ++{j}) {{",
            f"    for (int {i} = 0; {i} < c - {j} - 1; ++{i}) {{",
            f"        if ({test}) {swap}",
            "    }",
            "}",
        ]

    def _pass(self) -> list[str]:
        r, k = self.r, self._fresh("k")
        kind = r.choice(["set", "set", "sum", "sort", "swap", "nested", "if", "one", "scalar", "mixed"])
        if kind == "sort":
            return self._sort()
        if kind == "one":
            return [f"{self._element()} {r.choice(['=', '+='])} {self._value(2)};"]
        if kind == "swap":
            return [f"{{ float v = {self._element()}; {self._element()} = {self._element()}; {self._element()} = v; }}"]
        if kind == "sum":
            return self._loop([f"sum += {self._value(2, k)};"], k)
        if kind == "scalar":  # which a tape keeps, beside what it is computed from
            return self._loop([f"sum = {r.choice(['sum * ', 'cosf(sum) + '])}{self._value(1, k)};"], k)
        if kind == "if" and self.depth < 2:
            return [f"if ({self._value(0)} > 0.1f) {{", *self._inner(), "}"]
        if kind == "nested" and self.depth < 2:
            return self._loop(self._inner(), k)
        if kind == "mixed" and self.pairs:
            return self._loop([f"mix(l1[{self._index(k)}], l1[{self._index(k)}]);"], k)
        some = f"if ({self._value(0, k)} > 0.f) " if r.random() < 0.3 else ""
        return self._loop([f"{some}{self._element(k)} = {self._value(2, k)};"], k)

    def _inner(self) -> list[str]:
        self.depth += 1
        lines = [line for _ in range(self.r.randint(1, 2)) for line in self._pass()]
        self.depth -= 1
        return ["    " + line for line in lines]
