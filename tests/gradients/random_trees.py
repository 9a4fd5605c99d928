"""Random kernels with sums and maxima over blocks and warps, by trees and shuffles, or with what is almost one."""

from __future__ import annotations

import random

from tests.gradients.random_kernels import arguments

SHAPES = ((32, 1, 1), (64, 1, 1), (128, 1, 1), (16, 4, 1), (8, 4, 2), (48, 1, 1))


class Trees:
    """One random kernel, by its seed."""

    shared_mem = 0

    def __init__(self, seed: int) -> None:
        self.seed, self.r = seed, random.Random(seed)
        r = self.r
        self.block, self.grid = r.choice(SHAPES), (2, 1, 1)
        self.values = 0
        x, y, z = self.block
        self.threads = x * y * z
        rank = "threadIdx.x"
        rank += f" + threadIdx.y * {x}" if y > 1 else ""
        rank += f" + threadIdx.z * blockDim.x * {y}" if z > 1 else ""
        lines = [
            f"__shared__ float s1[{self.threads}], s2[{self.threads}];",
            f"const int t = {rank}, row = blockIdx.x, i = row * {self.threads} + t;",
            "float a = x[i % n], b = 0.0f;",
        ]
        if r.random() < 0.3:
            lines.append(f"if (row > {r.choice([0, 3])}) return;")
        body = self._tree("s1", r.choice(["a", "a * a", "sinf(a)", "x[(i * 3) % n] * w[t % 7]"]), "b")
        if r.random() < 0.6:
            value = r.choice(["a - b", "a * b", "sinf(a + b)", "w[(t + row) % 7]"])
            body += [
                "__syncthreads();",
                *self._tree(r.choice(["s1", "s1", "s2"]), value, "a" if r.random() < 0.5 else "b"),
            ]
        if r.random() < 0.3:
            body = ["for (int turn = 0; turn < 2; ++turn) {", *body, "__syncthreads();", "a = a * 0.01f;", "}"]
        last = r.choice(
            ["if (i < n) y[i] = a * b;", "if (i < n) y[i] = sinf(b) + a;", "if (t == 0) y[row] = b + a * 0.1f;"]
        )
        head = 'extern "C" __global__ void program(const float* x, const float* w, const int* at, float* y, float* z, int n, int m)'
        self.source = "\n".join([f"{head} {{", *("    " + line for line in (*lines, *body, last)), "}\n"])

    def arguments(self) -> tuple:
        return arguments(self.seed)

    def _shuffled(self, s: str, value: str, name: str) -> list[str]:
        """The same by shuffles, and a place for each warp."""
        r, warps = self.r, self.threads // 32
        both, least = r.choice([("{} + {}", "0.0f"), ("{} + {}", "0.0f"), ("fmaxf({}, {})", "-3.402823466e38f"),
                                ("fminf({}, {})", "3.402823466e+38f")])  # fmt: skip
        least = r.choice([least] * 6 + ["0.1f"])
        v, k = f"v{self.values}", f"k{self.values}"
        self.values += 1

        def warp(shuffles: list[str], first: int = 16) -> str:
            other = f"__{r.choice(shuffles)}_sync(0xffffffff, {v}, o)"
            step = f"{v} += {other};" if "+" in both and r.random() < 0.5 else f"{v} = {both.format(v, other)};"
            return f"for (int o = {first}; o > 0; o {r.choice(['>>= 1', '/= 2'])}) {step}"

        every = ["shfl_xor"]
        if r.random() < 0.3:  # of the warp alone
            found = [f"float {v} = {value};", warp(["shfl_xor", "shfl_down"], r.choice([16] * 8 + [8]))]
            ends = [f"{name} = {v};", f"{name} = __shfl_sync(0xffffffff, {v}, 0);", f"if (t % 32 == 0) {name} = {v};"]
            return [*found, r.choice(ends)]
        found = [f"float {v} = {value};", warp(["shfl_xor", "shfl_down"], r.choice([16] * 8 + [8])), f"if (t % 32 == 0) {s}[t / 32] = {v};",
                 "__syncthreads();"]  # fmt: skip
        if r.random() < 0.5:
            begin = r.choice([(f"{s}[0]", 1), (least, 0)])
            found += [f"float r{v} = {begin[0]};", f"for (int {k} = {begin[1]}; {k} < {warps}; ++{k})"
                      f" r{v} = {both.format(f'r{v}', f'{s}[{k}]')};", f"{name} = r{v};"]  # fmt: skip
        elif r.random() < 0.5:
            found += [f"{v} = t < {warps} ? {s}[t] : {least};", f"if (t / 32 == 0) {{ {warp(['shfl_xor', 'shfl_down'])} }}",
                      f"if (t == 0) {s}[0] = {v};", "__syncthreads();", f"{name} = {s}[0];"]  # fmt: skip
        else:
            found += [f"{v} = t % 32 < {warps} ? {s}[t % 32] : {least};", warp(every), f"{name} = {v};"]
        return found

    def _tree(self, s: str, value: str, name: str) -> list[str]:
        """What puts a value of each thread into an array, combines them and reads the result."""
        r, n = self.r, self.threads
        if n % 32 == 0 and r.random() < 0.5:
            return self._shuffled(s, value, name)
        both = r.choice(["{} + {}", "{} + {}", "fmaxf({}, {})", "fminf({1}, {0})", "{1} + {0}"]).format
        top = 1 << ((n - 1).bit_length() - 1)  # also for a number of threads that is not a power of two
        at, to = ("{}", "{}") if r.random() < 0.9 else ("{} ^ 1", "{} ^ 1")
        inside = "" if n & (n - 1) == 0 else f" && t + k < {n}"

        def step(i: str, j: str) -> str:
            i, j = at.format(i), to.format(j)
            if both("a", "b") == "a + b" and r.random() < 0.5:
                return f"{s}[{i}] += {s}[{j}];"
            return f"{s}[{i}] = {both(f'{s}[{i}]', f'{s}[{j}]')}{r.choice([''] * 12 + [' * 0.5f'])};"

        halves = f"if (t < k{inside}) {step('t', 't + k')}"
        first, end = (top, r.choice(["k > 0", "k > 0", "k >= 1", "k > 0", "k > 1"]))
        first = r.choice([first] * 8 + [max(first // 2, 1)])
        half = r.choice(["k >>= 1", "k /= 2", "k = k / 2"])
        forms = [
            ["__syncthreads();", f"for (int k = {first}; {end}; {half}) {{", halves, "__syncthreads();", "}"],
            [f"for (unsigned k = {first}; {end}; {half}) {{", "__syncthreads();", halves, "}", "__syncthreads();"],
            ["__syncthreads();", f"for (int k = 1; k < {n}; k *= 2) {{",
             f"if (t % (2 * k) == 0 && t + k < {n}) {step('t', 't + k')}", "__syncthreads();", "}"],
            ["__syncthreads();", f"for (int k = 1; k < {n}; k <<= 1) {{", "int j = 2 * k * t;",
             f"if (j + k < {n}) {step('j', 'j + k')}", "__syncthreads();", "}"],
            ["__syncthreads();", *(line for k in (64, 32, 16, 8, 4, 2, 1) if k <= first for line in
             (f"if (t < {k} && t + {k} < {n}) {step('t', f't + {k}')}", "__syncthreads();"))],
        ]  # fmt: skip
        place = r.choice(["0"] * 12 + ["1", "t / 2", "t"])
        if at != "{}":
            place = r.choice(["1", "1", "0"])
        found = [f"{s}[t] = {value};", *r.choice(forms), f"{name} = {s}[{place}];"]
        if r.random() < 0.1:
            found += ["__syncthreads();", f"if (t == 0) {s}[0] *= 0.5f;", "__syncthreads();", f"{name} += {s}[0];"]
        return found
