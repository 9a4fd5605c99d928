"""A few random kernels of each run; ``python -m tests.gradients.random_programs`` tries as many as one likes."""

from __future__ import annotations

import random
import shutil

import pytest

from rawkern.gradients.backward import block_redistribution, privatized_sums, tile_reverse
from rawkern.gradients.backward.memory_reverse import MemoryReverse
from rawkern.gradients.code.tree import BARRIER
from rawkern.gradients.index import injective
from rawkern.gradients.passes import prefetching
from tests.conftest import SEED
from tests.gradients import host
from tests.gradients.random_pipelines import Pipelines
from tests.gradients.random_programs import kept, outcome


@pytest.mark.parametrize("seed", (23, 5, 2))
def test_on_the_cpu_engine(seed) -> None:
    assert outcome(seed) == "right"


@pytest.mark.skipif(shutil.which("g++") is None, reason="compiles for the host with g++")
def test_many_on_the_host() -> None:
    import os

    drawn = random.Random(int(os.environ[SEED])).randrange(10**6)
    for seeds in (kept(), range(drawn, drawn + 20)):
        right, refused, wrong = host.outcomes(seeds)
        assert not wrong, wrong
        assert right >= len(seeds) * 0.8, refused


@pytest.mark.skipif(shutil.which("g++") is None, reason="compiles for the host with g++")
def test_the_comparison_sees_a_wrong_backward(tmp_path) -> None:
    found, _ = host.programs(range(16, 32))
    for seed, (original, understood, text, program) in found.items():
        spoilt = text.source.replace("* cos(", "* sin(").replace("* -sin(", "* sin(").replace("(1.0 - ", "(1.0 + ")
        found[seed] = original, understood, text.__class__(**{**vars(text), "source": spoilt}), program
    library = host.built(found, str(tmp_path))
    said = [host.check(library, text, seed, program) for seed, (_, _, text, program) in found.items()]
    assert sum(each is not None for each in said) >= 4


@pytest.mark.skipif(shutil.which("g++") is None, reason="compiles for the host with g++")
@pytest.mark.parametrize(
    "old, new, said",
    [
        ("grad_y[", "((double*)8)[", "SIGSEGV"),
        ("    const int t = ", "    __trap();\n    const int t = ", "__trap()"),
        ("    const int t = ", "    __builtin_assume(threadIdx.x == 0);\n    const int t = ", "assumption"),
    ],
)
def test_the_comparison_survives_faults(old, new, said, tmp_path) -> None:
    found, _ = host.programs((1005,))
    (original, understood, text, program) = found[1005]
    assert old in text.source
    spoilt = text.__class__(**{**vars(text), "source": text.source.replace(old, new)})
    library = host.built({1005: (original, understood, spoilt, program)}, str(tmp_path))
    assert said in str(host.check(library, spoilt, 1005, program))
    assert said in str(host.check(library, spoilt, 1005, program))


@pytest.mark.skipif(shutil.which("g++") is None, reason="compiles for the host with g++")
def test_the_comparison_sees_additions_that_meet(monkeypatch) -> None:
    monkeypatch.setattr(MemoryReverse, "alone", lambda *_, **__: True)
    _, _, wrong = host.outcomes((4, 13, 14, 17))
    assert sum("without an atomic operation" in said for said in wrong.values()) >= 2


@pytest.mark.skipif(shutil.which("g++") is None, reason="compiles for the host with g++")
def test_the_comparison_sees_sums_of_blocks_that_meet(monkeypatch) -> None:
    monkeypatch.setattr(privatized_sums, "_one_thread", lambda kernel, reads: True)
    _, _, wrong = host.outcomes(range(60, 72))
    assert sum("without an atomic operation" in said for said in wrong.values()) >= 2


@pytest.mark.skipif(shutil.which("g++") is None, reason="compiles for the host with g++")
def test_the_comparison_sees_tiles_of_another_threads_values(monkeypatch) -> None:
    number = tile_reverse._number
    monkeypatch.setattr(tile_reverse, "_number", lambda block, layout, digits=None: number(block, layout))
    _, _, wrong = host.outcomes(range(2, 26, 4))
    assert len(wrong) >= 2


@pytest.mark.skipif(shutil.which("g++") is None, reason="compiles for the host with g++")
def test_the_comparison_sees_missing_barriers(monkeypatch) -> None:
    monkeypatch.setattr(
        block_redistribution, "without_redundant_barriers", lambda lines, _: [line for line in lines if line != BARRIER]
    )
    _, _, wrong = host.outcomes(range(11, 100, 16))
    assert len(wrong) >= 2


@pytest.mark.skipif(shutil.which("g++") is None, reason="compiles for the host with g++")
def test_the_comparison_sees_offsets_that_lead_to_another_threads_element(monkeypatch) -> None:
    above = injective.MixedRadix._above
    beside = lambda total: injective.BESIDE in total.symbols  # noqa: E731
    monkeypatch.setattr(
        injective.MixedRadix, "_above", lambda self, total, *a: [None] if beside(total) else above(self, total, *a)
    )
    _, _, wrong = host.outcomes(range(9, 200, 16))
    assert sum("without an atomic operation" in said for said in wrong.values()) >= 2


@pytest.mark.skipif(shutil.which("g++") is None, reason="compiles for the host with g++")
def test_the_comparison_sees_tiles_of_another_iteration(monkeypatch) -> None:
    monkeypatch.setattr(prefetching, "_same_store", lambda *_: True)
    _, _, wrong = host.outcomes({seed: Pipelines(seed) for seed in (1, 23, 32)})
    assert len(wrong) >= 2
