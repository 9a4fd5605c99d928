"""Random kernels that read elements next to each other: fields of one thread each, halves of rows, or almost."""

from __future__ import annotations

import random

from tests.gradients.random_kernels import N, arguments


class Offsets:
    """One random kernel, by its seed."""

    shared_mem = 0

    def __init__(self, seed: int) -> None:
        self.seed, self.r = seed, random.Random(seed)
        self.block = self.r.choice([(16, 1, 1), (8, 2, 1), (12, 1, 1)])
        self.grid = self.r.choice([(2, 1, 1), (3, 1, 1), (2, 2, 1)])
        self.source = self._make()

    def arguments(self) -> tuple:
        return arguments(self.seed)

    def _make(self) -> str:
        r, (width, height, _) = self.r, self.block
        threads = width * height
        lines = [f"int t = threadIdx.x + {width} * threadIdx.y, b = blockIdx.x + gridDim.x * blockIdx.y;"]
        kind = r.choice(["fields", "fields", "rows", "rows", "plane", "tiles"])
        close = "}"
        if kind == "fields":
            stride = r.choice([2, 3, 4])
            lines += [f"int i = blockIdx.x * {threads} + t;", f"if (i < {r.choice(['n', 'm', 'n / 4'])} && i < n) {{"]
            base, gap, out = f"{stride} * i", r.choice(["1", "1", "2"]), "i"
            most, step = stride, r.choice([1, 1, 1, 0])
        elif kind == "rows":
            width_of = r.choice(["m", "n / 8", "9"])
            end = r.choice(["d", "d", "d - 1", "d + 1"])
            lines += [f"int d = {width_of};", f"for (int c = t; c < {end}; c += {threads}) {{"]
            many = r.choice([2, 2, 3])
            base, gap, out = f"b * {many} * d + c", r.choice(["d", "d", "1"]), "b * (d + 1) + c"
            most, step = many, 1
        elif kind == "plane":
            lines += [f"int c = blockIdx.x * {width} + threadIdx.x, q = blockIdx.y * {height} + threadIdx.y;"]
            lines += ["if (c < m && q < n / m) {"]
            base, gap, out, most, step = f"(q * m + c) * {r.choice([2, 3])}", "1", "q * m + c", 3, 1
        else:
            far = r.choice([threads, threads, threads // 2])
            base, gap, out, most, step = f"b * {2 * threads} + t", str(far), f"b * {threads} + t", 2, 1
            close = ""
        offsets = [k * step if step else r.randint(0, 4) for k in range(most)]
        if r.random() < 0.25:
            offsets[r.randrange(len(offsets))] = r.choice([most, 1, most + 1])
        if r.random() < 0.3:
            offsets.append(r.choice(offsets))
        if r.random() < 0.2:
            offsets.pop(0)
        reads = [f"{base} + {k} * {gap}" if k else base for k in offsets]
        if r.random() < 0.15:
            reads = [f"n - 1 - ({each})" for each in reads]
        total = []
        for k, each in enumerate(reads):
            guard = f"{each} >= 0 && {each} < n"
            if kind != "fields" and r.random() < 0.2:
                guard += r.choice([" && b != 1", " && t != 3", " && x[t] > 0.1f"])
            lines += [f"float v{k} = 0.3f;", f"if ({guard}) v{k} = x[{each}];"]
            total.append(r.choice([f"v{k}", f"sinf(v{k})", f"v{k} * w[{k % 7}]"]))
        result = " * ".join(f"(1.0f + {each})" if r.random() < 0.7 else each for each in total)
        if kind == "fields" and r.random() < 0.4:
            places = [f"y[{stride} * i + {k}]" for k in r.choice([(0, 1), (1, 0), (0,), (0, stride - 1)])]
            lines += [f"if ({place[2:-1]} < {N}) {place} = {result} * {k + 1}.0f;" for k, place in enumerate(places)]
            result = "0.5f * v0"
        elif kind == "rows" and end[-1] != "1" and r.random() < 0.4:
            lines += [
                f"if ({at} < {N}) y[{at}] = v0 * {k}.5f;" for k, at in enumerate(("b * 2 * d + c", "b * 2 * d + d + c"))
            ]
        lines += (
            [f"if ({out} < {N}) y[{out}] = {result};"]
            if kind != "rows" and "y[" not in lines[-1]
            else [f"atomicAdd(&z[t % 5], {result});"]
        )
        head = 'extern "C" __global__ void program(const float* x, const float* w, const int* at, float* y, float* z, int n, int m)'
        return "\n".join([f"{head} {{", *("    " + line for line in [*lines, close]), "}\n"])
