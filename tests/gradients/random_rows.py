"""Random kernels whose blocks go through rows several times: sums, maxima and reductions of one element after another."""

from __future__ import annotations

import random

import torch

from tests.gradients.random_kernels import arguments


class Rows:
    """One random kernel, by its seed."""

    grid, shared_mem = (2, 1, 1), 0

    def __init__(self, seed: int) -> None:
        self.seed, self.r = seed, random.Random(seed)
        self.block = self.r.choice([(16, 1, 1), (32, 1, 1), (64, 1, 1)])
        self.known, self.count = ["0.5f", "w[2]"], 0
        self.weight = "w[c % 7]" if seed // 8 % 2 else "w[c]"
        self.source = self._make()

    def arguments(self) -> tuple:
        x, w, at, y, z, n, m = arguments(self.seed)
        draw = torch.Generator().manual_seed(~self.seed & 0xFFFFFFFF)
        if self.seed // 8 % 3 == 0:  # rows that all threads go through equally often
            n -= n % (2 * self.block[0])
        return x, torch.cat([w, w.new_zeros(53).uniform_(-1, 1, generator=draw)]), at, y, z, n, m

    def _make(self) -> str:
        r, width = self.r, self.block[0]
        lines = ["int t = threadIdx.x, row = blockIdx.x, width = n / 2;"]
        self.head = f"for (int c = t; c < width; c += {width}) {{"
        self.at = r.choice(["row * width + c", "row * width + c", "n - 1 - row * width - c"])
        self.tests = r.choice([[""], [""], ["", "c != 3", "x[row * width + c] > 0.1f"], ["c != 3", "c < m", "c > 4"]])
        for _ in range(r.randint(1, 3)):
            lines += self._pass()
        lines += [self._head(), *self._guarded([f"y[row * width + c] = {self._value(2)};"]), "}"]
        lines += [f"if (t == 0) z[row] = {self.known[-1]};"] if r.random() < 0.2 else []
        lines += [f"atomicAdd(&z[t % 5], {self.known[-1]});"] if r.random() < 0.2 else []
        if any("s1[" in line for line in lines):
            lines.insert(0, f"__shared__ float s1[{width}];")
        head = 'extern "C" __global__ void program(const float* x, const float* w, const int* at, float* y, float* z, int n, int m)'
        return "\n".join([f"{head} {{", *("    " + line for line in lines), "}\n"])

    def _value(self, depth: int) -> str:
        if depth == 0:
            return self.r.choice([*[f"x[{self.at}]"] * 3, *self.known, self.weight])
        a, b = self._value(depth - 1), self._value(depth - 1)
        if self.seed // 16 % 2:  # what is cheap to compute again
            return self.r.choice([f"({a} + {b})", f"({a} - {b})", f"{a} * {b}"])
        return self.r.choice(
            [f"({a} + {b})", f"sinf({a}) * {b}", f"{a} * {b}", f"expf({a} - 1.0f)", f"fmaxf({a}, {b})"]
        )

    def _head(self) -> str:
        head, others = self.head, (("c < width", "c < width - 1"), ("c = t", "c = t + 1"))
        return head.replace(*self.r.choice(others)) if self.r.random() < 0.2 else head

    def _guarded(self, lines: list[str]) -> list[str]:
        test = self.r.choice(self.tests)
        return [f"if ({test}) {{", *lines, "}"] if test else lines

    def _pass(self) -> list[str]:
        """A loop over the row, and what its threads found made one number."""
        r, width = self.r, self.block[0]
        self.count += 1
        name = f"a{self.count}"
        value, largest = self._value(2), r.random() < 0.4
        if largest:
            term = f"float g = {value};"
            step = r.choice(
                [f"{name} = fmaxf({name}, g);", f"if (g > {name}) {name} = g;", f"{name} = fminf({name}, g);"]
            )
            body, start = [term, step], r.choice(["-1e30f", "0.2f", "w[1]"])
            start = "1e30f" if "fminf" in step and start.startswith("-") else start
        else:
            body, start = self._guarded([f"{name} += {value};"]), r.choice(["0.0f", "w[3]"])
        lines = [f"float {name} = {start};", self._head(), *body, "}"]
        kind = r.randrange(4)
        if kind == 0:
            join = "fmaxf(s1[t], s1[t + k])" if largest else "s1[t] + s1[t + k]"
            lines += [f"s1[t] = {name};", "__syncthreads();",
                      f"for (int k = {width // 2}; k > 0; k >>= 1) {{ if (t < k) s1[t] = {join}; __syncthreads(); }}",
                      f"{name} = s1[0] * 0.1f;", "__syncthreads();"]  # fmt: skip
        elif kind == 1 and width >= 32:
            join = f"{name} = fmaxf({name}, o);" if largest else f"{name} += o;"
            lines += [
                f"for (int k = 16; k > 0; k >>= 1) {{ float o = __shfl_xor_sync(0xffffffff, {name}, k); {join} }}"
            ]
        self.known.append(f"{name} * 0.05f" if self.seed // 16 % 2 and not largest else f"sinf({name})")
        return lines
