"""Random programs on the CPU engine, new ones in each run: they leave behind what g++ makes of the same text."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rawkern.base import llvm
from tests.random_programs.batch import Batch
from tests.random_programs.reference import available
from tests.random_programs.tree import Listing

SEED = int(os.environ["RAWKERN_RANDOM_SEED"])  # drawn in tests/conftest.py
CASES, COUNT = 4, 10
FOUND = sorted((Path(__file__).parents[2] / "random_programs" / "found").glob("*.cu"))

pytestmark = pytest.mark.skipif(not available(), reason="there is no g++, which compiles the reference")


@pytest.mark.parametrize("case", range(CASES))
def test_new_programs(case: int, tmp_path: Path) -> None:
    """Half of them as fast as for users, half compiled quickly."""
    first = SEED + case * COUNT
    with llvm.optimization.scoped(llvm.QUICK if case % 2 else llvm.FULL):
        failures = [f for f in Batch(range(first, first + COUNT), tmp_path).failures() if not f.unsupported]
    text = "\n\n".join(f"seed {f.seed}: {f.kind}: {f.detail}" for f in failures)
    assert not failures, f"{text}\n\npython -m tests.random_programs --count 1 --reduce 1 --seed {failures[0].seed}"


@pytest.mark.usefixtures("optimized")
@pytest.mark.parametrize("path", FOUND, ids=lambda path: path.stem)
def test_programs_that_failed_once(path: Path, tmp_path: Path) -> None:
    """Each plain and checked."""
    program = Listing.read(path)
    failures = list(Batch([program.seed], tmp_path, check_all=True, listings={program.seed: program}).failures())
    assert not failures, "\n\n".join(f"{f.kind}: {f.detail}" for f in failures)


@pytest.mark.gpu
@pytest.mark.usefixtures("optimized")
def test_new_programs_on_a_gpu(tmp_path: Path) -> None:
    """The engine, a GPU and g++ agree."""
    failures = [f for f in Batch(range(SEED, SEED + COUNT), tmp_path, device="cuda").failures() if not f.unsupported]
    assert not failures, "\n\n".join(f"seed {f.seed}: {f.kind}: {f.detail}" for f in failures)
