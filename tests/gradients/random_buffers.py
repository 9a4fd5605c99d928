"""Random kernels whose blocks keep a row in shared memory: each thread its part, set and read again in later loops."""

from __future__ import annotations

import random

from tests.gradients.random_kernels import arguments


class Buffers:
    """One random kernel, by its seed."""

    grid, shared_mem = (2, 1, 1), 0

    def __init__(self, seed: int) -> None:
        self.seed, self.r = seed, random.Random(seed)
        self.block = (self.r.choice([8, 16, 32]), 1, 1)
        self.known, self.count = ["0.5f", "w[2]"], 0
        self.source = self._make()

    def arguments(self) -> tuple:
        return arguments(self.seed)

    def _make(self) -> str:
        r = self.r
        lines = ["__shared__ float s1[256], s2[32];", "int t = threadIdx.x, row = blockIdx.x, width = n / 2 - 2;"]
        if r.random() < 0.2:
            lines += [f"for (int c = t; c < 256; c += {self.block[0]}) s1[c] = {r.choice(['0.0f', 'w[c % 7]'])};"]
        lines += [f"for (int c = t; c < width; c += {self.block[0]}) s1[c] = {self._value('w[c % 7]', 2)};"]
        for _ in range(r.randint(2, 4)):
            lines += ["__syncthreads();", *self._pass()]
        if r.random() < 0.2:
            lines += ["__syncthreads();", "for (int q = 0; q < 2; ++q) {"]
            lines += [*self._pass(inner=True), "__syncthreads();", *self._pass(inner=True), "__syncthreads();", "}"]
        last = f"y[row * width + c] = {self._value('s1[c]', 2)};"
        lines += ["__syncthreads();", self._head(), last, "}"]
        head = 'extern "C" __global__ void program(const float* x, const float* w, const int* at, float* y, float* z, int n, int m)'
        body = "\n".join("    " + line for line in lines)
        if r.random() < 0.3:
            body = body.replace("s1[", "s1[1][").replace("s1[1][256]", "s1[2][256]")
        return f"{head} {{\n{body}\n}}\n"

    def _head(self) -> str:
        head = f"for (int c = t; c < width; c += {self.block[0]}) {{"
        others = (("c < width", "c < width - 1"), ("c = t", "c = t + 1"))
        return head.replace(*self.r.choice(others)) if self.r.random() < 0.1 else head

    def _value(self, element: str, depth: int) -> str:
        if depth == 0:
            return self.r.choice(["x[row * width + c]", "x[row * width + c]", element, element, *self.known])
        a, b = self._value(element, depth - 1), self._value(element, depth - 1)
        return self.r.choice([f"({a} + {b})", f"sinf({a}) * {b}", f"{a} * {b}", f"expf({a} * 0.3f)", f"({a} - {b})"])

    def _pass(self, inner: bool = False) -> list[str]:
        """A loop over the row; other threads' elements are read where none is set."""
        r, lines = self.r, []
        element = r.choice(["s1[c]"] * 8 + ["s1[width - 1 - c]"])
        kind = r.choice(["set", "set", "set", "sum", "other"])
        name = f"a{self.count}"
        self.count += 1
        if kind == "other":
            value = self._value(r.choice(["s1[(c + 3) % width]", "s1[c / 2]"]), 2)
        else:
            value = self._value(element, 2)
        before = [f"float {name} = {r.choice(['0.0f', 'w[1]'])};"]
        if kind == "set":
            if r.random() < 0.3:
                lines += [
                    f"float d = {value};",
                    "for (int k = 0; k < 3; ++k) d += x[row * width + k] * w[(c + k) % 7];",
                ]
                value = "d"
            if r.random() < 0.2:
                lines += [f"if ({r.choice(['c % 3', 'd > 0.1f' if value == 'd' else 'c < 9'])}) {value.strip()[:0]}"
                          f"{{ {element} = {value}; }} else {{ {element} = {self._value(element, 1)}; }}"]  # fmt: skip
            else:
                sets = r.choice(
                    [f"{element} = {value};"] * 3 + [f"{element} *= {value};", f"if (c % 4 != 1) {element} = {value};"]
                )
                lines.append(sets)
            if r.random() < 0.1 and element == "s1[c]":
                lines.insert(0, f"if (c >= {self.block[0]}) s1[c - {self.block[0]}] = x[row * width];")
            if r.random() < 0.4:
                lines.append(f"{name} += {element};")
        else:
            lines.append(f"{name} += {value};")
        lines = [*before, self._head(), *lines, "}"]
        if r.random() < 0.4:
            width = self.block[0]
            lines += ["__syncthreads();", f"s2[t] = {name};", "__syncthreads();",
                      f"for (int k = {width // 2}; k > 0; k >>= 1) {{ if (t < k) s2[t] += s2[t + k]; __syncthreads(); }}",
                      f"{name} = s2[0] * 0.1f;", "__syncthreads();"]  # fmt: skip
        if not inner:
            self.known.append(f"sinf({name})")
        return lines
