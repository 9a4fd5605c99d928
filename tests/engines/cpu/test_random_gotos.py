"""Kernels that jump about at random, as no structured program does: lanes diverge, wait and reconverge at all kinds of places."""

from __future__ import annotations

import random

import pytest
import torch

import rawkern

pytestmark = pytest.mark.usefixtures("optimized")

BLOCKS, FUEL, KERNELS, WARPS = 8, 24, 12, 3
MASK = 0xFFFFFFFF


def graph(rng: random.Random) -> list[tuple[int, int, int]]:
    """For each place: the two that follow it, and how often of 16 times it is the first; beyond the last is the end."""
    places = []
    for k in range(BLOCKS):
        back = rng.random() < 0.3
        yes, no = (rng.randrange(0 if back and j else k + 1, BLOCKS + 1) for j in range(2))
        places.append((yes, no, rng.choice([0, 2, 8, 14, 16])))
    return places


def source(name: str, places: list[tuple[int, int, int]], waits: bool) -> str:
    """A kernel in CUDA C++; ``v`` is a value that some places make and others read; `waits`: loops look at memory."""
    lines = [f'extern "C" __global__ void {name}(const unsigned* x, unsigned* out) {{',
             "    int i = threadIdx.x, fuel = " + str(FUEL) + "; unsigned h = x[i], r = 1, v = h & 7;"]  # fmt: skip
    look = "h ^= *(const volatile unsigned*)(x + i);" if waits else ""
    for k, (yes, no, often) in enumerate(places):
        # memory in between keeps the compiler from making selections of branches
        work = f"v = r ^ {k * 77 + 5}u;" if k % 3 == 0 else f"out[i] = r; r += v * {k}u;"
        lines += [
            f"L{k}: r = r * 5u + {k}u; {work} h = h * 1664525u + 1013904223u; {look}",
            f"    if (fuel-- == 0) goto L{BLOCKS};",
            f"    if ((h >> 28) < {often}u) goto L{yes}; else goto L{no};",
        ]
    return "\n".join([*lines, f"L{BLOCKS}: out[i] = r ^ v;\n}}"])


def expected(places: list[tuple[int, int, int]], start: int, waits: bool) -> int:
    """What one thread writes in the end."""
    fuel, r, v, k, h = FUEL, 1, start & 7, 0, start
    while k < BLOCKS:
        yes, no, often = places[k]
        r = (r * 5 + k) & MASK
        if k % 3 == 0:
            v = r ^ (k * 77 + 5)
        else:
            r = (r + v * k) & MASK
        h = (h * 1664525 + 1013904223) & MASK ^ (start if waits else 0)
        fuel -= 1
        k = BLOCKS if fuel < 0 else yes if h >> 28 < often else no
    return r ^ v


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("waits", [False, True])
def test_threads_find_their_ways(seed: int, waits: bool) -> None:
    """Warps that part, and one whose lanes all go the same way; in loops that may wait for others lanes take turns."""
    rng = random.Random(seed)
    graphs = [graph(rng) for _ in range(KERNELS)]
    module = rawkern.RawModule(code="\n".join(source(f"k{n}", places, waits) for n, places in enumerate(graphs)))
    starts = [rng.getrandbits(32) for _ in range(32 * (WARPS - 1))] + [rng.getrandbits(32)] * 32
    x = torch.tensor(starts).to(torch.uint32)
    for n, places in enumerate(graphs):
        out = torch.full((32 * WARPS,), 77, dtype=torch.int32).view(torch.uint32)
        getattr(module, f"k{n}")[1, 32 * WARPS](x, out)
        assert out.tolist() == [expected(places, h, waits) for h in starts], f"kernel k{n} of seed {seed}"
