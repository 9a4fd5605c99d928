"""Random programs on the CPU engine, new ones in each run: what they leave behind is what g++ makes of the same text."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.random_programs.batch import Batch
from tests.random_programs.reference import available

SEED = int(os.environ["RAWKERN_RANDOM_SEED"])  # of this run, drawn in conftest.py
CASES, COUNT = 8, 25

pytestmark = pytest.mark.skipif(not available(), reason="there is no g++, which makes the reference")


@pytest.mark.parametrize("case", range(CASES))
def test_new_programs(case: int, tmp_path: Path) -> None:
    """Repeat a run with RAWKERN_RANDOM_SEED=..., one program with python -m tests.random_programs --seed ... --count 1."""
    first = SEED + case * COUNT
    failures = list(Batch(range(first, first + COUNT), tmp_path).failures())
    assert not failures, "\n\n".join(f"seed {f.seed}: {f.kind}: {f.detail}" for f in failures)
