"""Random kernels that load tiles under conditions, and read what these have set, or what another iteration left."""

from __future__ import annotations

import random

from tests.gradients.random_kernels import arguments


class Guards:
    """One random kernel, by its seed."""

    grid, shared_mem = (2, 1, 1), 0

    def __init__(self, seed: int) -> None:
        self.seed, self.r = seed, random.Random(seed)
        self.block = self.r.choice([(64, 1, 1), (64, 1, 1), (8, 8, 1)])
        self.source = self._make()

    def arguments(self) -> tuple:
        return arguments(self.seed)

    def _make(self) -> str:
        r, flat = self.r, self.block[1] == 1
        tile = 64 if flat else 8
        lines = [
            "int tx = threadIdx.x, ty = threadIdx.y, t = tx + 8 * ty;" if not flat else "int t = threadIdx.x;",
            "int i = blockIdx.x * 64 + t, c = i < n ? i : n - 1;",
            "float own = x[c] * w[t % 7], sum = 0.0f;",
        ]
        place = "t" if flat else "ty][tx"
        lines += [f"s1[{place}] = {r.choice(['0.3f * own', '0.5f'])};", "__syncthreads();"]
        lines += [f"for (int k = 0; k < n; k += {tile}) {{", f"int most = min({tile}, n - k);"]
        lines += self._load(place, "t" if flat else "tx", tile, r.choice(["t", "ty"]) if not flat else "t")
        lines += ["__syncthreads();", *self._read(flat, tile), "__syncthreads();", "}"]
        lines += ["if (i < n) y[i] = sum * own;"]
        head = 'extern "C" __global__ void program(const float* x, const float* w, const int* at, float* y, float* z, int n, int m)'
        shared = f"__shared__ float s1{'[64]' if flat else '[8][8]'};"
        return "\n".join([f"{head} {{", *("    " + line for line in [shared, *lines]), "}\n"])

    def _guard(self, at: str, tile: int) -> str:
        """A condition that a place of the tile is one of the array."""
        less = self.r.choice(["", "", "", " - 1", " - 3"])
        return self.r.choice(
            [f"k + {at} < n{less}", f"{at} < most{less}", f"!(k + {at} >= n{less})", f"{at} < n - k{less}"]
        )

    def _load(self, place: str, at: str, tile: int, row: str) -> list[str]:
        r, guard = self.r, self._guard(at, tile)
        value = r.choice([f"x[(k + {at}) % n]", f"x[(k + {row}) % n] * own"])
        guard += r.choice(["", "", "", f" && {row} < m", f" && {row} < 64", " && m > 3", " && own > 0.0f"])
        kind = r.random()
        if kind < 0.25:
            return [f"if ({guard}) s1[{place}] = {value};", f"else s1[{place}] = {r.choice(['0.0f', 'own'])};"]
        if kind < 0.4:
            return [f"s1[{place}] = 0.1f;", f"if ({guard}) s1[{place}] = {value};"]
        if kind < 0.5:
            return [f"if ({guard}) {{ if (m > 5) s1[{place}] = {value}; else s1[{place}] = 2.0f * {value}; }}"]
        return [f"if ({guard}) s1[{place}] = {value};"]

    def _read(self, flat: bool, tile: int) -> list[str]:
        r = self.r
        at = r.choice(["j", "j", "j", "(j + 1) % 8"])
        place = r.choice([at, at, at, "t"]) if flat else r.choice([f"ty][{at}", f"ty][{at}", f"{at}][tx", "ty][tx"])
        guard = self._guard(r.choice(["j", "j", "t" if flat else "tx"]), tile)
        sums = [f"sum += s1[{place}] * own;", f"sum += sinf(s1[{place}]);", f"sum = fmaxf(sum, s1[{place}] * own);"]
        body = r.choice([*sums, *sums, f"sum = 0.9f * sum + s1[{place}];"])
        kind, end = r.random(), r.choice(["", "", " - 1"])
        if kind < 0.35:
            return [f"for (int j = 0; j < most{end}; ++j) {body}"]
        if kind < 0.6:
            return [f"for (int j = 0; j < {tile} && {guard}; ++j) {body}"]
        if kind < 0.8:
            return [f"for (int j = 0; j < {tile}; ++j) if ({guard}) {body}"]
        return [f"for (int j = 0; j < {tile}; ++j) {body}"]
