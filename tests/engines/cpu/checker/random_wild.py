"""Random kernels whose indices, structs and pointers may lead outside: ``python -m tests.engines.cpu.checker.random_wild``.

Each program makes a few accesses to arrays of random types and sizes, through parameters, structs, tables, shared and
local memory and the heap, with indices from the thread's and from memory. It runs in full, which says what is wrong, and
at bounds, which must raise one of those findings or run to its end, and change nothing around the arrays.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field

import torch

import rawkern

DTYPES = {"signed char": torch.int8, "short": torch.int16, "int": torch.int32, "long long": torch.int64,
          "float": torch.float32, "double": torch.float64}  # fmt: skip
WIDE = {"float": ("float2", "float4"), "int": ("int2", "int4"), "double": ("double2",), "short": ("short2", "short4")}
MEMORY = (rawkern.OutOfBoundsError, rawkern.MisalignedError, rawkern.ReadOnlyError, rawkern.FreedMemoryError)
ZONE = 1 << 12


@dataclass
class Wild:
    """A program: its text, its arrays' types and numbers of elements, and the launch."""

    text: str
    arrays: list[tuple[str, int]]
    grid: int
    block: int
    lines: list[str] = field(default_factory=list)


def make(seed: int) -> Wild:
    r = random.Random(seed)
    block, grid = r.choice((16, 32, 50, 64, 96)), r.choice((1, 1, 2, 3))
    threads = block * grid
    arrays = [(r.choice(list(DTYPES)), r.choice((threads, threads, 2 * threads, threads + 7, 40))) for _ in range(5)]
    shared, local = r.choice((block, block + 3, 32)), r.choice((4, 9, 16))
    lines = []

    def index(size: int) -> str:
        inside = [f"abs(i * {r.randrange(1, 9)} + {r.randrange(9)}) % {size}", f"(i ^ {r.randrange(8)}) % {size}",
                  f"t % {size}", f"pick[{r.randrange(8)}] % {size}"]  # fmt: skip
        wild = [f"i + {r.randrange(-2, 3)}", f"i * {r.randrange(1, 4)} - {r.randrange(3)}", "t", f"pick[i % 8] + {size - 40}",
                f"(long long)i << {r.randrange(1, 40)}", f"-i + {r.randrange(size)}", f"{size} - 1 + (t == {r.randrange(block)})"]  # fmt: skip
        return r.choice(inside if r.random() < 0.8 else wild)

    def access() -> None:
        k = r.randrange(3)
        kind, size = arrays[k]
        guard = r.choice(("", "", f"if (t % {r.randrange(2, 5)} == 0) ", f"if (i < {r.randrange(1, threads + 9)}) "))
        where = r.randrange(10)
        if where < 3:  # a parameter, the last of which is read-only
            if r.random() < 0.3 and kind in WIDE:
                wide = r.choice(WIDE[kind])
                lines.append(
                    f"{guard}sum += (double)(({'const ' if k == 2 else ''}{wide}*)a{k})[{index(size // 4)}].x;"
                )
            elif k == 2 or r.random() < 0.5:
                lines.append(f"{guard}sum += (double)a{k}[{index(size)}];")
            elif kind in ("int", "float") and r.random() < 0.4:
                lines.append(f"{guard}atomicAdd(a{k} + ({index(size)}), ({kind})1);")
            else:
                lines.append(f"{guard}a{k}[{index(size)}] = ({kind})(t + {r.randrange(9)});")
        elif where == 3:
            lines.append(f"{guard}sum += (double)s.p[{index(arrays[3][1])}];")
        elif where == 4:
            lines.append(f"{guard}table[pick[{r.randrange(8)}] % 2][{index(arrays[4][1])}] = ({arrays[4][0]})t;")
        elif where == 5:
            lines.append(f"{guard}sum += sh[{index(shared)}];")
        elif where == 6:
            lines.append(f"{guard}lo[{index(local)}] += 1;")
        elif where == 7:
            lines.append(
                f"for (int k = 0; k < {r.randrange(1, 5)}; ++k) {{ {guard}sum += (double)a{k}[abs({index(size)} + k * pick[1]) % {size + (r.random() < 0.1)}]; }}"
            )
        elif where == 8:
            n = r.randrange(1, 30)
            lines.append(
                f"{{ int* h = (int*)malloc({4 * n}); if (h) {{ for (int k = 0; k < {n}; ++k) h[k] = k; sum += h[{index(n)}]; free(h); }} }}"
            )
        else:
            lines.append(f"{guard}sum += called(a{k}, {index(size)});")

    for _ in range(r.randrange(3, 9)):
        access()
    types = [kind for kind, _ in arrays]
    called = "\n".join(
        f"__device__ __noinline__ double called(const {kind}* p, long long k) {{ return (double)p[k] + 1; }}"
        for kind in dict.fromkeys(types[:3])
    )
    text = (
        f"""struct S {{ const {types[3]}* p; int n; }};
{called}
extern "C" __global__ void wild({types[0]}* a0, {types[1]}* a1, const {types[2]}* a2, S s, {types[4]}** table, const int* pick, double* out) {{
    int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
    __shared__ int sh[{shared}];
    double lo[{local}];
    double sum = 0;
    for (int k = t; k < {shared}; k += blockDim.x) sh[k] = k;
    for (int k = 0; k < {local}; ++k) lo[k] = k + pick[0];
    __syncthreads();
    """
        + "\n    ".join(lines)
        + f"""
    for (int k = 0; k < {local}; ++k) sum += lo[k] * (pick[2] + k);
    out[i] = sum;
}}"""
    )
    return Wild(text, arrays, grid, block, lines)


class Arrays:
    """The arrays of a program, each with guard zones around it that must not change."""

    def __init__(self, wild: Wild, seed: int) -> None:
        self.zones: list[torch.Tensor] = []
        generator = torch.Generator().manual_seed(seed)
        self.arrays = [self._array(DTYPES[kind], n, generator) for kind, n in wild.arrays]
        self.second = self._array(DTYPES[wild.arrays[4][0]], wild.arrays[4][1], generator)
        self.pick = self._array(torch.int32, 8, generator)
        self.out = self._array(torch.float64, wild.grid * wild.block, generator)

    def _array(self, dtype: torch.dtype, n: int, generator: torch.Generator) -> torch.Tensor:
        size = n * dtype.itemsize
        whole = torch.full((2 * ZONE + size,), 0x5A, dtype=torch.uint8)
        self.zones += [whole[:ZONE], whole[ZONE + size :]]
        return whole[ZONE : ZONE + size].view(dtype).copy_(torch.randint(0, 50, (n,), generator=generator))

    def given(self) -> tuple:
        a = self.arrays
        return (*a[:3], {"p": a[3], "n": 3}, [a[4], self.second], self.pick, self.out)

    def intact(self) -> bool:
        return all(bool((zone == 0x5A).all()) for zone in self.zones)


def trial(seed: int) -> str:
    """What is wrong with the levels for a program; nothing if they agree."""
    wild = make(seed)
    kernel = rawkern.RawKernel(wild.text)
    found: set[tuple[type, int]] = set()
    lines = wild.text.splitlines()
    full, bounds = Arrays(wild, seed), Arrays(wild, seed)
    try:
        with rawkern.check():
            kernel[wild.grid, wild.block](*full.given())
    except rawkern.CheckError as error:
        found = {(report.error, report.line) for report in error.reports if report.error in MEMORY}  # no use after free
    for _ in range(2):
        raised = None
        try:
            kernel[wild.grid, wild.block](*bounds.given())
        except rawkern.CheckError as error:
            kind = type(error)
            if kind is rawkern.FreedMemoryError:  # after its piece of the heap there may be a free one
                kind = rawkern.OutOfBoundsError
            raised = kind, error.reports[0].line if error.reports else 0
        if not bounds.intact():
            return "memory around an array was changed"
        # what an index past a piece of the heap reaches, another piece or free memory, depends on the heap's history
        sure = {(error, line) for error, line in found if "malloc" not in lines[line - 1]}
        if raised is not None and "malloc" in lines[raised[1] - 1]:
            return ""
        if (raised is None and sure) or (raised is not None and raised not in found):
            return f"full found {sorted((e.__name__, n) for e, n in found)}, bounds raised {raised}"
        bounds = Arrays(wild, seed)
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    seeds = range(options.seed, options.seed + options.count)
    failures = 0
    for start in range(0, len(seeds), 100):  # fresh processes for each part; one that dies is told, by the executor
        part = seeds[start : start + 100]
        with ProcessPoolExecutor(options.jobs, multiprocessing.get_context("spawn")) as pool:
            for seed, future in [(seed, pool.submit(trial, seed)) for seed in part]:
                try:
                    what = future.result()
                except Exception as error:
                    what = f"{type(error).__name__}: {error}"
                if what:
                    failures += 1
                    print(f"seed {seed}: {what}", flush=True)
    print(f"{len(seeds)} programs, {failures} failures", flush=True)
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
