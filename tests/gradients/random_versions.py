"""Random kernels whose threads overwrite what each of them has in shared memory, within the iterations of a loop."""

from __future__ import annotations

import random

from tests.gradients.random_kernels import arguments


class Versions:
    """One random kernel, by its seed."""

    grid, shared_mem = (2, 1, 1), 0

    def __init__(self, seed: int) -> None:
        self.seed, self.r = seed, random.Random(seed)
        self.block = (self.r.choice([8, 16, 32]), 1, 1)
        self.known, self.count, self.width = ["0.5f", "w[2]"], 0, self.r.choice([3, 4, 5])
        self.source = self._make()

    def arguments(self) -> tuple:
        return arguments(self.seed)

    def _make(self) -> str:
        r, threads, width = self.r, self.block[0], self.width
        self.end = str(width) if r.random() < 0.3 else "m"  # which is 12
        width = width if self.end != "m" else 12
        size, own = threads * width, self.end
        declared, self.element = r.choice(
            [
                (f"float s1[{size}]", f"s1[t * {own} + K]"),
                (f"float s1[{size}]", f"s1[K * {threads} + t]"),
                (f"float s1[{threads}][{width}]", "s1[t][K]"),
                (f"float s1[{size + 64}]", f"s1[64 + t * {own} + K]"),
            ]
        )
        lines = [f"__shared__ {declared}, s2[64];", "int t = threadIdx.x, row = blockIdx.x;", "float sum = w[1];"]
        self.whole = r.random() < 0.9  # whether the first pass sets all of it
        if not self.whole:
            lines += [f"for (int k = 0; k < {self.end}; ++k) {self.element} = {r.choice(['w[K % 7]', 'x[t + K]'])};"]
        loop = r.random() < 0.6
        lines += [f"for (int q = 0; q < {r.choice(['3', 'm % 4'])}; ++q) {{"] if loop else ["{ int q = 1;"]
        if r.random() < 0.5:
            lines += ["__syncthreads();", "s2[t] = x[(row * 8 + q * 3 + t) % n];", "__syncthreads();"]
            self.known += ["s2[(K + q) % 8]", "s2[t]"]
        lines += self._pass(first=True)
        for _ in range(r.randint(1, 4)):
            lines += self._pass(first=False)
        if r.random() < 0.3:  # those of another thread
            last = self.element.replace("t", "((t + 1) % 8)", 1)
            lines += ["__syncthreads();", self._head(), f"sum += {self._value(2, last)};", "}"]
        else:
            lines += [self._head(), f"sum += {self._value(2)};", "}"]
        lines += ["__syncthreads();", "}"]
        if r.random() < 0.3:
            lines += ["__syncthreads();", self._head(), f"sum += {self.element};", "}"]
        lines += [f"y[row * {threads} + t] = sum;"]
        head = 'extern "C" __global__ void program(const float* x, const float* w, const int* at, float* y, float* z, int n, int m)'
        body = "\n".join("    " + line.replace("K", "k") for line in lines)
        return f"{head} {{\n{body}\n}}\n"

    def _head(self) -> str:
        odd = self.r.random() < 0.06
        return f"for (int k = {int(odd)}; k < {self.end}; ++k) {{"

    def _value(self, depth: int, element: str = "") -> str:
        if depth == 0:
            own = element or self.element
            return self.r.choice(["x[(row * 31 + t + 2 * K) % n]", own, own, own, *self.known])
        a, b = self._value(depth - 1, element), self._value(depth - 1, element)
        return self.r.choice([f"({a} + {b})", f"sinf({a}) * {b}", f"{a} * {b}", f"cosf({a})", f"({a} - {b})"])

    def _pass(self, first: bool) -> list[str]:
        """A loop in which each thread sets what it has, or reads it."""
        r, lines = self.r, []
        self.count += 1
        name, kind = (
            f"a{self.count}",
            "set" if first else r.choice(["set"] * 9 + ["twice", "twice", "sum", "sum", "sum", "other"]),
        )
        value = self._value(2, "x[(t + K) % n]" if first else "")
        if kind in ("set", "twice"):
            test = r.random() < 0.1 and not (first and self.whole) and f"if ({r.choice(['K != 1', 't % 2'])}) "
            lines.append(f"{test or ''}{self.element} = {value};")
            if kind == "twice":
                lines.append(f"{self.element} = {self._value(2)};")
            if r.random() < 0.4:
                lines.append(f"{name} += {self.element};")
        elif kind == "sum":
            lines.append(f"{name} = fmaxf({name}, {value});" if r.random() < 0.4 else f"{name} += {value};")
        else:
            other = self.element.replace("K", f"({self.end} - 1 - K)")
            lines.append(f"{name} += {self._value(1, other)};")
        head = f"for (int k = 0; k < {self.end}; ++k) {{" if first and self.whole else self._head()
        lines = [f"float {name} = {r.choice(['0.0f', 'w[3]'])};", head, *lines, "}"]
        self.known.append(f"sinf({name})")
        return [*lines, "__syncthreads();"] if r.random() < 0.3 else lines
