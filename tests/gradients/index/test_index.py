"""What index/ claims holds, z3 says; and what it does not claim, though it holds."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
from pathlib import Path

import pytest

from rawkern.gradients import ir
from rawkern.gradients.analysis.definite_writes import cover
from rawkern.gradients.index import covers, ranges
from rawkern.gradients.index.affine import poly
from rawkern.gradients.index.answers import changing, unchanged
from rawkern.gradients.index.covers import covered
from rawkern.gradients.index.injective import injective
from tests.conftest import SEED
from tests.gradients.index.machine import Impossible, Machine
from tests.gradients.index.oracle import Asked, Judge, Outcome, extent, of_injective, read

HEAD = 'extern "C" __global__ void f(const float* x, float* y, int n, int m, int w)'
PLACE = "int t = threadIdx.x, b = blockIdx.x, i = b * blockDim.x + t, row = i / 32, lane = i % 32;"

#: Typical indices of an array, and what is around them.
TYPICAL = {
    "a place for each thread": ("if (i < n)", ["i"]),
    "fields of structs": ("if (i < n)", ["3 * i", "3 * i + 1", "3 * i + 2"]),
    "from the end": ("if (i < n)", ["n - 1 - i"]),
    "rows as wide as a launch says": ("if (i < w)", ["blockIdx.y * w + i"]),
    "columns": ("if (i < n)", ["blockIdx.y + i * gridDim.y"]),
    "a row for each block": ("for (int k = t; k < w; k += blockDim.x)", ["b * w + k"]),
    "a row for each warp": ("for (int k = lane; k < w; k += 32)", ["row * w + k"]),
    "strides of the grid": ("for (int k = i; k < n; k += gridDim.x * blockDim.x)", ["k"]),
    "halves": ("if (i < n / 2)", ["i", "i + n / 2"]),
    "row and column of a number": ("if (i < n)", ["i / w * w + i % w"]),
    "a transposed image": ("if (i < w * m)", ["(i % w) * m + i / w"]),
    "pairs, one apart": ("if (i < n)", ["2 * i + i % 2"]),
}
#: z3 proves these, and index/ does not: the list is on a page, too.
PAGE = Path(__file__).parents[3] / "docs" / "gradients-internals.md"
MISSED = {
    "coprime steps": ("if (i < n)", ["b * 130 + 3 * (t / 3) + 2 * (t % 3)"]),
    "backwards in a block": ("if (i < n)", ["b * 64 + 63 - t"]),
    "a choice": ("if (i < n)", ["b * 64 + (t < 32 ? t + 32 : t - 32)"]),
    "a bound that does nothing": ("if (i < n)", ["b * 64 + min(t, 63)"]),
}


def asked(around: str, indices: list[str], assume: bool = True) -> tuple[Judge, Asked]:
    """Whether threads and iterations are told apart by the elements that they read, `assume`: of fitting launches."""
    source = f"{HEAD} {{ {PLACE} {around} y[i] = {' + '.join(f'x[{index}]' for index in indices)}; }}\n"
    kernel = read(source, (64, 1, 1))
    reads = [i for i in ir.walk(kernel.body) if getattr(i, "op", "") == "load"]
    judge = Judge(kernel)
    return judge, of_injective(judge, reads, within_block=False, iterations=True, assume=assume)


@pytest.mark.parametrize("what", TYPICAL)
def test_typical_indices_tell_threads_apart(what) -> None:
    judge, found = asked(*TYPICAL[what])
    assert found.claimed
    assert judge.unsatisfiable(found.denied) is not False


@pytest.mark.parametrize("what", MISSED)
def test_what_z3_proves_besides(what) -> None:
    judge, found = asked(*MISSED[what], assume=False)
    assert judge.unsatisfiable(found.denied) is True
    assert not found.claimed, "it is proved now: a typical index"
    around, (index,) = MISSED[what]
    assert f"| {what} | `{around}` | `{index}` |" in PAGE.read_text()


def test_z3_contradicts_nothing() -> None:
    drawn = random.Random(int(os.environ[SEED])).randrange(10**6)
    found = Outcome()
    for seed in (*range(6), *range(drawn, drawn + 10)):
        found.ask(seed, besides=False)
    assert not found.wrong, found.wrong[0]
    assert found.claims.total() >= 20
    assert found.unknown.total() <= 0.2 * found.claims.total(), found.table()


def test_z3_contradicts_what_is_wrong(monkeypatch) -> None:
    implies = ranges.Ranges.implies
    monkeypatch.setattr(ranges.Ranges, "implies", lambda self, p: implies(self, p + 1))
    monkeypatch.setattr(covers._Witness, "meets", lambda self, condition: True)
    found = Outcome()
    for seed in range(12):
        found.ask(seed, besides=False)
    assert {wrong.split(": ")[1].split(" of ")[0].split(",")[0] for wrong in found.wrong} >= {"implies", "set before"}
    assert len(found.wrong) >= 3


def reached(kernel: ir.Kernel, load: ir.Value, launch: dict, grid: tuple[int, int, int]) -> set[int]:
    """The elements that a load reads in a launch, by running it."""
    digits = ["threadIdx.x", "threadIdx.y", "blockIdx.x"]
    found = set()
    for numbers in itertools.product(*(range(extent(kernel, d) or grid[0]) for d in digits)):
        own = launch | dict(zip(digits, numbers, strict=True))
        machine = Machine(own.__getitem__)
        with contextlib.suppress(Impossible):
            if machine.reaches(load):
                found.add(machine.value(load.args[0]))
    return found


DENSE = [
    "i",
    "b * 24 + t",
    "t * 3 + b",
    "u * 24 + t",
    "(b * 4 + u) * 24 + t",
    "(t * 4 + u) * 3",
    "b * w + t",
    "t * w + u",
    "2 * i",
    "i + m",
]
CUTS = [
    "i < n",
    "t < w",
    "t < 24",
    "i < n && t < w",
    "b < m",
    "u < m",
    "t < n - 24 * b",
    "i < n / 2",
    "i <= n",
    "u < 4 && i < n",
]


def test_what_is_covered_is_reached() -> None:
    """By counting, in launches of a few blocks."""
    claimed = 0
    for number, (index, cut) in enumerate(itertools.product(DENSE, CUTS)):
        if number % 2:
            continue
        place = "int t = threadIdx.x, u = threadIdx.y, b = blockIdx.x, i = b * 24 + t;"
        kernel = read(f"{HEAD} {{ {place} if ({cut}) y[{index}] = x[{index}]; }}", (24, 4, 1))
        load = next(i for i in ir.walk(kernel.body) if getattr(i, "op", "") == "load")
        found, r = cover(kernel, load), random.Random(number)
        for _ in range(3 if found is not None else 0):
            numbers, grid = (
                {"n": r.randint(1, 60), "m": r.randint(1, 5), "w": r.choice([4, 9, 24])},
                (r.randint(1, 3), 1, 1),
            )
            first, end = covered(found, numbers, grid)
            claimed += end > first
            assert {*range(first, end)} <= reached(kernel, load, numbers | {"gridDim.x": grid[0]}, grid), (
                index,
                cut,
                numbers,
                grid,
            )
    assert claimed > 20


def test_variables_are_of_the_threads_that_come_there() -> None:
    source = f"""{HEAD} {{ __shared__ float s; {PLACE}
        if (t == 0) s = x[i];
        __syncthreads();
        if (t == 0) y[i] = s;
        if (t == 1) y[i] = s + 1.0f;
        y[i + n] = s;
    }}\n"""
    kernel = read(source, (64, 1, 1))
    set_, same, other, every = (i for i in ir.walk(kernel.body) if (p := ir.place_of(i)) is not None and p.array.shared)
    assert injective(kernel, [set_, same], within_block=True) is not None
    assert injective(kernel, [set_], within_block=False) is None
    assert injective(kernel, [set_, other], within_block=True) is None
    assert injective(kernel, [every], within_block=True) is None


def test_answers_are_kept_only_while_nothing_changes() -> None:
    kernel = read(f"{HEAD} {{ {PLACE} if (i < n) y[i] = x[i]; }}", (64, 1, 1))
    store = next(i for i in ir.walk(kernel.body) if isinstance(i, ir.Store))
    with unchanged():
        assert poly(store.index[0]) is poly(store.index[0])
        with unchanged():
            found = injective(kernel, [store])
        assert found and injective(kernel, [store]) is found
        with changing():
            assert injective(kernel, [store]) is not found
    with unchanged():
        assert injective(kernel, [store]) is not found
    before = poly(store.index[0])
    store.index[0].op, store.index[0].attr = "special", "threadIdx.x"
    assert poly(store.index[0]) != before
