"""Random kernels of threads, blocks and loops, and the arguments that all random kernels take.

A program mixes branches, loops of every class, shared memory, shuffles, atomics and device functions over values that
stay small. It is correct by construction: barriers and shuffles are reached by all threads, and each phase between two
barriers writes places that only their own thread reads.
"""

from __future__ import annotations

import random

import torch

BLOCK, BLOCKS, N = 64, 2, 120
FUNCTIONS = """
__device__ float wave(float v) { return sinf(v); }
__device__ float bend(float a, float b) { if (a > b) return wave(a) * b; return a - cosf(b); }
__device__ void swap_mix(float& a, float& b, float c) { float t = a; a = b * c; b = t + sinf(c); }
template <typename T> __device__ T lerp(T a, T b, T s) { return a + s * (b - a); }
"""


class Program:
    """One random kernel, by its seed."""

    block, grid, shared_mem = (BLOCK, 1, 1), (BLOCKS, 1, 1), 0
    functions, weights_type = FUNCTIONS, "const float*"

    def __init__(self, seed: int) -> None:
        self.seed, self.r = seed, random.Random(seed)
        self.names: list[str] = []
        self.count = 0
        self.lines: list[str] = []
        self.depth = 1
        self.uniform = True  # whether all threads of the block are here
        self.shared: list[str] = []
        self.source = self._make()

    def _make(self) -> str:
        self.uniform = self.r.random() < 0.75
        self.say("int t = threadIdx.x, i = blockIdx.x * blockDim.x + threadIdx.x;")
        if not self.uniform:
            self.say("if (i >= n) return;")
        self.say("int c = i < n ? i : n - 1;")
        self.declare("x[c]")
        self.declare(self.weight("t % 7"))
        self.statements(self.r.randint(2, 4))
        self.last()
        if self.r.random() < 0.4:
            self.say(f"atomicAdd(&z[c % 5], {self.value(2)});")
        elif self.r.random() < 0.5:
            self.say(f"if (t == 3) z[blockIdx.x] = {self.value(1)};")
        shared = self.declarations()
        body = "\n".join(self.lines)
        return (
            f'{self.functions}\nextern "C" __global__ void program(const float* x, {self.weights_type} w, const int* at, float* y, float* z, int n, int m)'
            f" {{\n{shared}{body}\n}}\n"
        )

    # What `Places` does in other ways -------------------------------------------------------------------------------

    def arguments(self) -> tuple:
        return arguments(self.seed)

    def weight(self, at: str) -> str:
        return f"w[{at}]"

    def array(self, extent: str = "[64]") -> str:
        name = self.fresh("s")
        self.shared.append(name + extent)
        return name

    def declarations(self) -> str:
        return "".join(f"    __shared__ float {name};\n" for name in self.shared)

    def more(self) -> list:
        return []

    def last(self) -> None:
        self.say(
            f"if (i < n) y[i] = {self.value(2)};"
            if self.r.random() < 0.7
            else f"if (i < n) y[n - 1 - i] += {self.value(2)};"
        )
        if " += " not in self.lines[-1]:
            self.again(random.Random(~self.seed))

    def again(self, r: random.Random) -> None:
        """Set some of the outputs a second time."""
        if r.random() < 0.3:
            names = [f"sinf({name})" for name in self.names[:1]]
            self.say(f"if (i < n && {r.choice(['t % 3 == 0', 'x[c] > 0.2f'])}) y[i] = {r.choice(['0.0f', *names])};")

    # Lines ----------------------------------------------------------------------------------------------------------

    def say(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def fresh(self, hint: str = "v") -> str:
        self.count += 1
        return f"{hint}{self.count}"

    def declare(self, text: str) -> str:
        name = self.fresh()
        self.say(f"float {name} = {text};")
        self.names.append(name)
        return name

    # Expressions ----------------------------------------------------------------------------------------------------

    def value(self, depth: int) -> str:
        r = self.r
        if depth == 0 or r.random() < 0.15:
            return r.choice([*self.names[-6:], *self.names[-3:], f"{r.uniform(-1, 1):.2f}f", "x[c]", "x[at[c]]"])
        a, b = self.value(depth - 1), self.value(depth - 1)
        return r.choice([
            f"({a} + {b})", f"({a} - {b})", f"sinf({a} * {b})", f"tanhf({a}) * cosf({b})", f"bend({a}, {b})", f"lerp({a}, {b}, 0.3f)",
            f"fmaxf({a}, {b})", f"({a} > {b} ? {a} : x[(c + 1) % n])", f"({a} < 0.1f ? sinf({b}) : {a})", f"{a} / (2.0f + sinf({b}))",
            f"fmaf({a}, 0.5f, sinf({b}))", f"sqrtf(1.0f + {a} * {a})", f"expf(-fabsf({a}))", f"(float)(t % 3) * {a}",
        ])  # fmt: skip

    # Statements -----------------------------------------------------------------------------------------------------

    def statements(self, n: int) -> None:
        kinds = [
            self.assign,
            self.assign,
            self.branch,
            self.total,
            self.recurrence,
            self.extreme,
            self.mixed,
            self.called,
            self.weights,
        ]
        if self.uniform:
            kinds += [self.neighbours, self.shuffle, self.tree, self.tiles, self.broadcast]
        kinds += self.more()
        for _ in range(n):
            self.r.choice(kinds)()

    def inner(self, n: int, uniform: bool = True) -> None:
        names, before = list(self.names), self.uniform
        self.depth += 1
        self.uniform = self.uniform and uniform
        self.statements(n)
        self.depth -= 1
        self.names, self.uniform = names, before

    def assign(self) -> None:
        if self.names and self.r.random() < 0.5:
            name = self.r.choice(self.names)
            self.say(f"{name} {self.r.choice(['=', '+=', '-=', '*='])} sinf({self.value(2)});")
        else:
            self.declare(self.value(2))

    def called(self) -> None:
        if len(self.names) > 1:
            a, b = self.r.sample(self.names, 2)
            self.say(f"swap_mix({a}, {b}, {self.value(1)});")

    def branch(self) -> None:
        uniform = self.r.random() < 0.3
        self.say(
            f"if ({self.r.choice(['n > 3', 'blockIdx.x == 0']) if uniform else f'{self.value(1)} > {self.value(1)}'}) {{"
        )
        self.inner(self.r.randint(1, 2), uniform)
        if self.r.random() < 0.5:
            self.say("} else {")
            self.inner(self.r.randint(1, 2), uniform)
        self.say("}")

    def total(self) -> None:
        name, k = self.declare(self.r.choice(["0.0f", self.value(1)])), self.fresh("k")
        bound = self.r.choice(["5", "w_count", "t % 4 + 1", "3"]).replace("w_count", "7")
        self.say(f"for (int {k} = {self.r.choice(['0', '1'])}; {k} < {bound}; ++{k}) {{")
        self.names.remove(name)
        names = list(self.names)
        self.depth += 1
        term = self.declare(self.r.choice([self.weight(k), f"x[(c + {k}) % n]", f"x[c] * {k}"]))
        if self.r.random() < 0.5:
            self.inner_if(f"{name} += {term} * {self.value(1)};", term)
        self.say(f"{name} {self.r.choice(['+=', '-='])} sinf({term} * {self.value(1)});")
        self.depth -= 1
        self.names = [*names, name]
        self.say("}")

    def inner_if(self, text: str, term: str) -> None:
        self.say(f"if ({term} > 0.1f) {text}")

    def recurrence(self) -> None:
        name, k = self.declare(self.value(1)), self.fresh("k")
        self.say(
            self.r.choice(
                [
                    f"for (int {k} = 0; {k} < {self.r.randint(1, 6)}; ++{k}) {{",
                    f"for (int {k} = 8; {k} > 0; {k} /= 2) {{",
                ]
            )
        )
        names = list(self.names)
        self.depth += 1
        term, seventh = self.declare(f"x[(c + {k}) % n] * {self.value(1)}"), f"{k} % 7"
        self.say(
            f"{name} = {self.r.choice([f'sinf({name} * {term})', f'0.5f * {name} + {term}', f'{name} * {self.weight(seventh)}'])};"
        )
        if self.r.random() < 0.4:
            self.inner(1, self.uniform)
        self.depth -= 1
        self.names = names
        self.say("}")

    def extreme(self) -> None:
        name, k = self.declare(self.r.choice(["-1e30f", "x[c]"])), self.fresh("k")
        term = self.r.choice([f"x[(c + {k} * 3) % n]", f"x[(c + {k}) % n] * {self.weight(k)}"])
        update = self.r.choice([f"{name} = fmaxf({name}, {term});", f"if ({term} > {name}) {name} = {term};"])
        self.say(f"for (int {k} = 0; {k} < 6; ++{k}) {update}")

    def mixed(self) -> None:
        """Two variables that a loop carries, one of them into the other."""
        a, b, k = self.declare(self.value(1)), self.declare("0.0f"), self.fresh("k")
        self.say(f"for (int {k} = 0; {k} < 4; ++{k}) {{ {b} += {a} * x[(c + {k}) % n]; {a} = cosf({a}); }}")

    def weights(self) -> None:
        k, name = self.fresh("k"), self.declare("0.0f")
        self.say(f"for (int {k} = 0; {k} < 7; ++{k}) {name} += {self.weight(k)} * {self.names[0]};")

    def neighbours(self) -> None:
        s = self.array()
        self.say(f"{s}[t] = {self.value(1)};")
        self.say("__syncthreads();")
        for _ in range(self.r.randint(1, 2)):
            self.declare(f"{s}[{self.r.choice(['t ^ 1', '63 - t', '(t + 5) % 64', '0', 't'])}] * {self.value(1)}")
        self.say("__syncthreads();")
        if self.r.random() < 0.5:
            self.say(f"if (t < 32) {s}[t] = {self.value(1)} + {s}[t];")
            self.say("__syncthreads();")
            self.declare(f"{s}[(t * 3) % 64]")
            self.say("__syncthreads();")

    def broadcast(self) -> None:
        s = self.array("[2]")
        self.say(f"if (t == {self.r.choice([0, 17])}) {s}[1] = {self.value(2)};")
        self.say("__syncthreads();")
        self.declare(f"{s}[1] * {self.value(1)}")
        self.say("__syncthreads();")

    def tree(self) -> None:
        s, k = self.array(), self.fresh("k")
        self.say(f"{s}[t] = {self.value(1)};")
        self.say("__syncthreads();")
        step = self.r.choice(
            [
                f"{s}[t] += {s}[t + {k}];",
                f"{s}[t] = fmaxf({s}[t], {s}[t + {k}]);",
                f"{s}[t] = sinf({s}[t]) * {s}[t + {k}];",
            ]
        )
        self.say(f"for (int {k} = 32; {k} > 0; {k} >>= 1) {{ if (t < {k}) {step} __syncthreads(); }}")
        self.declare(f"{s}[0] * 0.1f")
        self.say("__syncthreads();")

    def tiles(self) -> None:
        s, k, j, name = self.array(), self.fresh("k"), self.fresh("j"), self.declare("0.0f")
        self.names.remove(name)
        self.say(f"for (int {k} = 0; {k} < {self.r.choice(['n', '128', '64'])}; {k} += 64) {{")
        self.depth += 1
        self.say(f"{s}[t] = {k} + t < n ? x[{k} + t] * {self.value(1)} : 0.0f;")
        self.say("__syncthreads();")
        self.say(
            f"for (int {j} = 0; {j} < 8; ++{j}) {name} += {self.r.choice([f'{s}[{j}] * {s}[63 - t]', f'sinf({s}[(t + {j}) % 64])'])};"
        )
        self.say("__syncthreads();")
        self.depth -= 1
        self.say("}")
        self.names.append(name)

    def shuffle(self) -> None:
        v = self.value(1)
        text = self.r.choice([f"__shfl_xor_sync(0xffffffff, {v}, {self.r.choice([1, 4, 16])})", f"__shfl_down_sync(0xffffffff, {v}, {self.r.choice([1, 8])})",
                              f"__shfl_up_sync(0xffffffff, {v}, 3)", f"__shfl_sync(0xffffffff, {v}, {self.r.choice([0, 31])})"])  # fmt: skip
        if self.r.random() < 0.4:
            k, name = self.fresh("k"), self.declare(v)
            self.say(
                f"for (int {k} = 16; {k} > 0; {k} >>= 1) {name} += 0.5f * __shfl_xor_sync(0xffffffff, {name}, {k});"
            )
        else:
            self.declare(text)


def arguments(seed: int) -> tuple:
    draw = torch.Generator().manual_seed(seed)
    x, w = torch.rand(N, generator=draw) * 2 - 1, torch.rand(7, generator=draw) * 2 - 1
    at = torch.randint(0, N, (N,), generator=draw, dtype=torch.int32)
    return x, w, at, torch.zeros(N), torch.zeros(5), N, 12
