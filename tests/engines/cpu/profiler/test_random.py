"""Counts of random kernels are those of the requests that plain Python finds; `programs` tries more of them."""

from __future__ import annotations

import os

import pytest

from tests.engines.cpu.profiler.programs import difference

EFFORT = int(os.environ.get("RAWKERN_RANDOM_EFFORT", "1"))


@pytest.mark.parametrize("seed", range(5 * EFFORT))
def test_random_kernels(seed):
    assert not difference(seed)
