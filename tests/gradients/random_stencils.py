"""Random stencils: kernels whose reads of x are one read shifted, under conditions of many kinds."""

from __future__ import annotations

import random

from tests.gradients.random_kernels import arguments


class Stencil:
    """One random kernel, by its seed, with the shape of its blocks and of its grid."""

    shared_mem = 0

    def __init__(self, seed: int) -> None:
        self.seed, self.r = seed, random.Random(seed)
        self.flat = self.r.random() < 0.5
        self.block = (64, 1, 1) if self.flat else (8, 8, 1)
        self.grid = (self.r.choice([1, 2]), 1, 1) if self.flat else (self.r.choice([1, 2]), self.r.choice([1, 2]), 1)
        self.source = self._flat() if self.flat else self._rows()
        if self.r.random() < 0.25:
            self.source = self._window()

    def arguments(self) -> tuple:
        return arguments(self.seed)

    def value(self, reads: list[str], depth: int = 2) -> str:
        r = self.r
        if depth == 0:
            return r.choice([*reads, *reads, f"{r.uniform(-1, 1):.2f}f", "w[3]"])
        a, b = self.value(reads, depth - 1), self.value(reads, depth - 1)
        return r.choice(
            [
                f"({a} + {b})",
                f"({a} - {b})",
                f"sinf({a} * {b})",
                f"{a} * {b}",
                f"fmaxf({a}, {b})",
                f"({a} > {b} ? {a} : {b})",
            ]
        )

    def _wrapped(self, lines: list[str]) -> str:
        head = 'extern "C" __global__ void program(const float* x, const float* w, const int* at, float* y, float* z, int n, int m)'
        return "\n".join([f"{head} {{", *("    " + line for line in lines), "}\n"])

    def _outputs(self, index: str, reads: list[str]) -> list[str]:
        found = [f"y[{index}] = {self.value(reads, 3)};"]
        if self.r.random() < 0.3:
            found.append(f"atomicAdd(&z[({index}) % 5], {self.value(reads)});")
        if self.r.random() < 0.3:
            found.insert(0, f"if ({self.r.choice(reads)} > 0.1f)")
        return found

    def _flat(self) -> str:
        r = self.r
        offsets = r.sample([-3, -2, -1, 0, 1, 2, 4], r.randint(2, 4))
        low, high, start = -min(offsets), max(offsets), r.choice(["", "", " + 1", " + 2"])
        lines = [
            f"{r.choice(['int', 'int', 'unsigned', 'long long'])} i = blockIdx.x * blockDim.x + threadIdx.x{start};"
        ]
        kind = r.randrange(4)
        if kind == 0 and start == "":
            lines.append(f"if ((int)i < {low} || i >= n - {max(high, 0)}) return;")
        elif kind <= 1:
            lines += [f"if (i >= {max(low, 0)} && i + {max(high, 0)} < n) {{"]
        elif kind == 2:
            lines += ["if (i >= n) return;"]
        else:
            lines += ["if (i < n) {"]
        reads = []
        for k, d in enumerate(offsets):
            place = f"x[i{f' + {d}' if d > 0 else f' - {-d}' if d else ''}]"
            if kind >= 2:
                test = f"(int)i + {d} >= 0 && (int)i + {d} < n"
                lines.append(
                    r.choice(
                        [f"float v{k} = {test} ? {place} : 0.5f;", f"float v{k} = 0.0f; if ({test}) v{k} = {place};"]
                    )
                )
                reads.append(f"v{k}")
            else:
                reads.append(place)
        if r.random() < 0.35 and start == "":  # in strides of the grid
            step, kind = r.choice(["blockDim.x * gridDim.x"] * 3 + ["blockDim.x"]), lines[0].split(" i = ")[0]
            if step != "blockDim.x" or self.grid == (1, 1, 1):
                first = f"for ({kind} i = blockIdx.x * blockDim.x + threadIdx.x; i < {r.choice(['n', 'n', 'n - 3', 'm'])}; i += {step}) {{"
                lines = [first, *(line.replace("return", "continue") for line in lines[1:])]
                lines += ["float own = w[threadIdx.x % 7];"] if r.random() < 0.2 else []
                reads += ["own"] if "own" in lines[-1] else []
                self.strided = True
        lines += self._outputs("i", reads)
        return self._wrapped(lines + ["}"] * (sum(line.count("{") - line.count("}") for line in lines)))

    def _rows(self) -> str:
        r = self.r
        steps = r.sample(
            [(0, 0), (0, 1), (0, -1), (1, 0), (-1, 0), (1, 1), (-1, 1), (-1, -1), (2, 0), (0, -2)], r.randint(2, 5)
        )
        lines = ["int c = blockIdx.x * blockDim.x + threadIdx.x, r = blockIdx.y * blockDim.y + threadIdx.y;"]
        whole = "r >= 1 && r < n / m - 2 && c >= 2 && c < m - 1"
        kind = r.randrange(4)
        lines += [[f"if ({whole}) {{"], ["if (r < 1 || r >= n / m - 2 || c < 2 || c >= m - 1) return;"], ["if (r >= n / m || c >= m) return;"],
                  ["if (r < n / m && c < m) {"]][kind]  # fmt: skip
        reads = []
        for k, (dr, dc) in enumerate(steps):
            row = f"(r{f' + {dr}' if dr > 0 else f' - {-dr}' if dr else ''})"
            column = f"c{f' + {dc}' if dc > 0 else f' - {-dc}' if dc else ''}"
            place = f"x[{row} * m + {column}]"
            if kind >= 2:
                tests = [f"{row} >= 0 && {row} < n / m"] if dr else []
                tests += [f"{column} >= 0 && {column} < m"] if dc and r.random() < 0.8 else []
                tests += [f"{row} * m + {column} >= 0 && {row} * m + {column} < n"]
                lines.append(f"float v{k} = {' && '.join(tests)} ? {place} : 0.25f;")
                reads.append(f"v{k}")
            else:
                reads.append(place)
        lines += self._outputs("r * m + c", reads)
        return self._wrapped(lines + ["}"] * (sum(line.count("{") - line.count("}") for line in lines)))

    def _window(self) -> str:
        """Constant loops over the elements around one."""
        r = self.r
        low, high, step = r.choice([(-1, 1, 1), (0, 2, 1), (-1, 0, 1), (-2, 2, 2)])
        loop = lambda name: f"for (int {name} = {low}; {name} <= {high}; {name} += {step}) {{"  # noqa: E731
        carried = r.choice(
            ["sum += v;", "sum += v;", "sum -= v * own;", "sum = 0.5f * sum + v;", "sum = fmaxf(sum, v);"]
        )
        if self.flat:
            lines = [
                "int i = blockIdx.x * blockDim.x + threadIdx.x;",
                "if (i < n) {",
                "float own = w[i % 7], sum = 0.2f;",
            ]
            place, test, weight, out = "x[i + a]", "i + a >= 0 && i + a < n", f"w[(a + {-low}) % 7]", "i"
            lines += [loop("a")]
        else:
            lines = ["int c = blockIdx.x * blockDim.x + threadIdx.x, r = blockIdx.y * blockDim.y + threadIdx.y;"]
            lines += [
                r.choice(
                    [
                        "if (r < n / m && c < m) {",
                        "if (r >= n / m || c >= m) return;",
                        "if (r < n / m - 2 && c < m && r > 2) {",
                    ]
                )
            ]
            lines += ["float own = w[c % 7], sum = 0.2f;", loop("a"), loop("b"), "int q = r + a, d = c + b;"]
            place, weight, out = "x[q * m + d]", f"w[(a + b + {-2 * low}) % 7]", "r * m + c"
            test = r.choice(["q >= 0 && q < n / m && d >= 0 && d < m"] * 3 + ["q * m + d >= 0 && q * m + d < n"])
        value = r.choice([f"{place} * {weight}", f"sinf({place})", f"{place} * own"])
        body = [f"if (!({test})) continue;", f"float v = {value};", carried]
        if r.random() < 0.4:
            body = [f"if ({test}) {{", f"float v = {value};", carried, "}"]
        lines += [*body, "}"] + ["}"] * (not self.flat)
        lines += [f"y[{out}] = {r.choice(['sum', 'sum * own', 'sinf(sum)'])};"]
        return self._wrapped(lines + ["}"] * (sum(line.count("{") - line.count("}") for line in lines)))
