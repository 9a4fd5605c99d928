"""Random kernels with parts of one shared array: tiles of rows, and rows of each thread's own; some parts overlap."""

from __future__ import annotations

import random

from tests.gradients.random_kernels import arguments


class Parts:
    """One random kernel, by its seed."""

    grid, block = (2, 1, 1), (32, 1, 1)

    def __init__(self, seed: int) -> None:
        self.seed, self.r = seed, random.Random(seed)
        self.width, self.own = self.r.choice([1, 2, 3, 4]), self.r.choice([1, 2, 3])
        self.overlap = self.r.choice([0, 0, 0, 0, 1, 3])
        self.size = 32 * (self.width + self.own) + 8
        self.shared_mem = 4 * self.size if self.r.random() < 0.6 else 0
        self.source = self._make()

    def arguments(self) -> tuple:
        return arguments(self.seed)

    def _make(self) -> str:
        r, size = self.r, self.size
        start = 32 * self.width - self.overlap
        lines = ["extern __shared__ float s1[];" if self.shared_mem else f"__shared__ float s1[{size}];"]
        lines += ["int t = threadIdx.x, i = blockIdx.x * 32 + t, q = i < n ? i : n - 1;"]
        lines += ["float own = x[q] * w[t % 7], sum = 0.0f;"]
        lines += [f"float* a = s1; float* b = {r.choice([f's1 + {start}', f'&s1[{start}]', f'a + {start}'])};"]
        if self.overlap or r.random() < 0.1:
            lines += [f"for (int e = t; e < {size}; e += 32) s1[e] = 0.3f;"]
        else:
            lines += [f"for (int e = t; e < {32 * self.width}; e += 32) a[e] = {r.choice(['0.3f', '0.1f * own'])};"]
            lines += [f"for (int c = 0; c < {self.own}; ++c) b[t * {self.own} + c] = 0.2f;"]
        lines += ["__syncthreads();", "for (int k = 0; k < n; k += 32) {"]
        apart = ["__syncthreads();"] if self.overlap else []
        passes = [*self._load(), "__syncthreads();", *self._rows(apart)]
        later = [*apart, *self._read(), "__syncthreads();"]
        lines += [*passes, *later, "}", "if (i < n) y[i] = sum * own;"]
        head = 'extern "C" __global__ void program(const float* x, const float* w, const int* at, float* y, float* z, int n, int m)'
        return "\n".join([f"{head} {{", *("    " + line for line in lines), "}\n"])

    def _guard(self, at: str) -> str:
        less = self.r.choice(["", "", "", "", "", "", " - 1"])
        return self.r.choice([f"k + {at} < n{less}", f"{at} < n - k{less}", f"{at} < min(32, n - k){less}"])

    def _load(self) -> list[str]:
        """A tile, a row by each thread or an element after the other by all."""
        r, width = self.r, self.width
        if r.random() < 0.3:
            each = f"a[e] = x[(k * {width} + e) % n];"
            return [f"for (int e = t; e < {32 * width}; e += 32) {each}"]
        row = r.choice(["t", "t", "t", "(31 - t)"])
        place = r.choice([f"{row} * {width} + c", f"{row} * {width} + c", f"{row} + 32 * c"])
        most = r.choice([*[str(width)] * 6, f"{max(width - 1, 1)}", "t % 4"])
        guard = r.choice(["", "", "", " if (c < m)", f" if ({self._guard('t')})", " if (k + c < n)"])
        body = f"for (int c = 0; c < {most if most != 't % 4' else f'min({width}, t % 4)'}; ++c){guard} a[{place}] = x[(k + t + c) % n];"
        self.place = place.replace("(31 - t)", "j").replace("t", "j")
        guard = self._guard("t")
        return [
            r.choice(
                [
                    f"if ({guard}) {body}",
                    f"if ({guard}) {{ {body} }} else {{ {body.replace('x[', 'w[2] * x[')} }}",
                    body,
                ]
            )
        ]

    def _rows(self, apart: list[str]) -> list[str]:
        """What a thread keeps for itself alone."""
        r, own = self.r, self.own
        value = r.choice(["x[(k + c) % n] * own", f"sinf(a[t * {self.width}] + c * own)", "w[c] * own", "0.5f * own"])
        value = "w[c] * own" if self.overlap and "a[" in value else value
        store = f"for (int c = 0; c < {own}; ++c) b[t * {own} + c] = {value};"
        reads = [f"sum += b[t * {own} + c] * w[c];", f"sum += sinf(b[t * {own} + c]);", f"sum += cosf(b[c + t * {own}]);",
                 f"sum = 0.9f * sum + b[t * {own} + c];" if r.random() < 0.2 else f"sum -= b[t * {own} + c];"]  # fmt: skip
        read = f"for (int c = 0; c < {r.choice([own, own, max(own - 1, 1)])}; ++c) {r.choice(reads)}"
        if r.random() < 0.2:
            store = f"if ({self._guard('t')}) {store}"
        found = [store, *apart, read] if r.random() < 0.95 else [read, *apart, store]
        if r.random() < 0.1:  # in place
            found += [*apart, f"for (int c = 0; c < {own}; ++c) b[t * {own} + c] = expf(-b[t * {own} + c]);", read]
        return [*apart, *found]

    def _read(self) -> list[str]:
        r, width = self.r, self.width
        place = r.choice([getattr(self, "place", "j * 1 + c"), f"j * {width} + c"])
        place = place if width > 1 or "32" not in place else "j + c"
        body = r.choice(
            [f"sum += a[{place}] * own;", f"sum += sinf(a[{place}]) * w[c];", f"sum += a[{place}] * a[{place}];"]
        )
        inner = f"for (int c = 0; c < {width}; ++c) {body}"
        kind = r.random()
        if kind < 0.4:
            return [f"for (int j = 0; j < min(32, n - k); ++j) {inner}"]
        if kind < 0.7:
            return [f"for (int j = 0; j < 32; ++j) if ({self._guard('j')}) {inner}"]
        return [f"for (int j = 0; j < 32; ++j) {inner}"]
