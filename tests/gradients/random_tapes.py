"""Random kernels that read, overwrite and read again an output in loops: what iterations read is kept on tapes."""

from __future__ import annotations

import random

from tests.gradients.random_kernels import N, arguments


class Tapes:
    """One random kernel, by its seed."""

    shared_mem = 0

    def __init__(self, seed: int) -> None:
        self.seed, self.r = seed, random.Random(seed)
        self.block, self.grid = self.r.choice([((8, 1, 1), (2, 1, 1)), ((4, 1, 1), (3, 1, 1)), ((4, 2, 1), (1, 2, 1))])
        self.threads = self.block[0] * self.block[1] * self.grid[0] * self.grid[1]
        self.width = self.r.choice([1, 2, N // self.threads])
        self.tile = self.r.random() < 0.4
        self.source = self._make()

    def arguments(self) -> tuple:
        return arguments(self.seed)

    def _make(self) -> str:
        r = self.r
        lines = [
            'extern "C" __global__ void program(const float* x, const float* w, const int* at, float* y, float* z, int n, int m) {',
            "int t = threadIdx.x + blockDim.x * threadIdx.y;",
            f"int i = t + (blockIdx.x + gridDim.x * blockIdx.y) * {self.block[0] * self.block[1]};",
            *(["__shared__ float s1[64];"] if self.tile else []),
            "float keep = 0.0f;",
        ]
        if not self.tile and r.random() < 0.2:
            lines.append(f"if (i >= {self.threads - 2}) return;")
        if r.random() < 0.5:
            lines += self._rows("y[{e}] = {v};", ["x[{e}]", "y[{e}]"])
        lines += self._loop(0, r.choice([1, 1, 2]))
        if r.random() < 0.6:
            lines += self._rows("y[{e}] = {v};", ["y[{e}]", "x[{e}]", "keep"])
        if r.random() < 0.5:
            lines.append("atomicAdd(&z[i % 5], keep * 0.5f);")
        return "\n    ".join(lines) + "\n}\n"

    def _head(self, k: str, outer: str | None) -> str:
        r = self.r
        most = r.choice(["3", "m / 4", "m / 5 + 1", "min(m / 3, n / 8)", *([f"{outer} + 2"] * 2 if outer else [])])
        kind = r.choice(["int", "int", "unsigned", "long long"])
        if outer and kind != "int":
            kind, most = "int", most
        heads = [
            f"for ({kind} {k} = 0; {k} < {most}; ++{k}) {{",
            f"for ({kind} {k} = 1; {k} <= {most}; {k} += 2) {{",
            f"for (int {k} = {r.choice(['3', '3', most])} - 1; {k} >= 0; --{k}) {{",
            f"for (int {k} = 2 * ({r.choice(['3', '2', most])}); {k} > 1; {k} -= 3) {{",
        ]
        if outer:
            heads.append(f"for (int {k} = {outer}; {k} < m / 3; ++{k}) {{")
        if not self.tile:
            heads.append(f"for (int {k} = t % 3; {k} < {most}; {k} += {r.choice(['1', '2', 'gridDim.y'])}) {{")
        return r.choice([*heads, heads[0]])

    def _loop(self, depth: int, nested: int) -> list[str]:
        r, k = self.r, "jkl"[depth]
        lines = [self._head(k, "jkl"[depth - 1] if depth else None)]
        if self.tile and not depth:
            lines += [f"s1[t] = x[(i + (int){k} * 3) % n] * w[(int){k} % 7];", "__syncthreads();"]
        for _ in range(r.choice([1, 1, 2])):
            reads = ["y[{e}]", "y[{e}]", "x[{e}]", f"0.3f * (int){k}", *(["keep"] if r.random() < 0.2 else [])]
            reads += (
                [f"s1[(t + {r.choice(['1', '3', f'(int){k}'])}) % {self.block[0] * self.block[1]}]"]
                if self.tile
                else []
            )
            lines += self._rows(r.choice([
                "y[{e}] = {v};", "y[{e}] = {v};", "y[{e}] += {v};", "y[{e}] *= cosf({v});", "if (y[{e}] > 0.1f) y[{e}] = {v};",
                "float old = y[{e}]; y[{e}] = {v}; keep += old * y[{e}];", "keep += {v};",
                "if (x[{e}] > 0.0f) {{ y[{e}] = {v}; }} else {{ keep += y[{e}]; }}",
            ]), reads)  # fmt: skip
        if nested > 1:
            lines.insert(r.choice([len(lines), 1 + 2 * self.tile]), "\n    ".join(self._loop(depth + 1, nested - 1)))
        if self.tile and not depth:
            lines.append("__syncthreads();")
        if not self.tile and r.random() < 0.05:
            lines.append("if (keep > 3.0f) break;")
        return [*lines, "}"]

    def _rows(self, text: str, reads: list[str]) -> list[str]:
        """A statement for each element of a thread."""
        r = self.r
        layout = "i * {w} + c" if r.random() < 0.97 else "i + c"  # seldom an element of several threads
        if not hasattr(self, "layout"):
            self.layout = r.choice([layout, layout, layout, f"i + c * {self.threads}"])
        e = "i" if self.width == 1 else self.layout.format(w=self.width)
        line = text.format(e=e, v=self._value(reads).format(e=e))
        return [line] if self.width == 1 else [f"for (int c = 0; c < {self.width}; ++c) {{ {line} }}"]

    def _value(self, reads: list[str], depth: int = 2) -> str:
        r = self.r
        if depth == 0:
            return r.choice([*reads, *reads, f"{r.uniform(-1, 1):.2f}f", "w[3]"])
        a, b = self._value(reads, depth - 1), self._value(reads, depth - 1)
        return r.choice(
            [f"0.5f * ({a} + {b})", f"({a} - {b})", f"sinf({a})", f"sinf({a} * {b})", f"fmaxf({a}, {b})", f"tanhf({a})"]
        )
