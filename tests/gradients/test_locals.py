"""Local arrays with indices that are not known: in the text as such, with loops and with what a tape keeps of them."""

from __future__ import annotations

import re

import pytest
import torch

import rawkern
from tests.gradients.all_cases import CASES
from tests.gradients.test_derived import derived


def kernel(body):
    return rawkern.RawKernel(
        f'extern "C" __global__ void k(const float* x, const int* at, float* y, int n) {{\n{body}\n}}', "k"
    )


MOVED = """float a[6];
for (int k = 0; k < 6; ++k) a[k] = x[threadIdx.x + k];
for (int q = 0; q < LAST; ++q) a[at[q] % 6] = sinf(a[(at[q] + q) % 6]);
float sum = 0.0f;
for (int k = 0; k < 6; ++k) sum += a[k] * a[k];
y[threadIdx.x] = sum;"""


def arguments(n):
    return torch.rand(40), torch.arange(32, dtype=torch.int32) * 7 % 11, torch.empty(32), n


def test_loops_stay_and_tapes_are_as_long_as_counts_can_be() -> None:
    """The sort of up to 24 corners: 23 rounds by the count, 23 pairs by the array's length."""
    text = derived(CASES["overlaps"]).source
    assert "Corner shared[24];" in text and "Corner grad_shared[24];" in text and "__shared__" not in text
    assert re.findall(r"(\w+) shared_tape\w*(\[.*\]);", text)[:2] == [("Corner", "[23][24]"), ("float", "[23]")]
    assert len(text.splitlines()) < 800


def test_what_is_overwritten_after_a_loop_is_copied_once() -> None:
    text = derived(CASES["histogram_of_each"]).source
    assert text.count("sums_before[") == 3 and "tape" not in text


def test_the_most_iterations_of_a_loop_that_moves_an_array_are_asked_for() -> None:
    with pytest.raises(rawkern.NotDifferentiable, match=r": a carries a value .* as max_iterations"):
        kernel(MOVED.replace("LAST", "n")).derive(block=32)
    found = kernel(MOVED.replace("LAST", "n")).derive(block=32, max_iterations=9)
    assert found.verify(1, arguments(8)) < 1e-6
    for most in ("min(n, 8)", "n % 9"):
        assert kernel(MOVED.replace("LAST", most)).derive(block=32).verify(1, arguments(7)) < 1e-6


def test_a_bound_that_each_iteration_computes_again() -> None:
    found = kernel(MOVED.replace("LAST", "min(n, 8)").replace("sinf(", "0.5f * (")).derive(block=32)
    assert "const int iterations" in found.source or "min(n, 8) - 1" in found.source, found.source
    assert found.verify(1, arguments(7)) < 1e-6


def test_an_index_that_is_never_known_writes_no_loop_out() -> None:
    text = kernel(MOVED.replace("LAST", "5")).derive(block=32).source
    assert "a_tape[5]" in text and "a_3" not in text


def test_many_elements_lie_in_memory_and_begin_with_zeros() -> None:
    found = kernel("float a[300] = {x[0]}; a[n] += x[1]; a[299] += a[0] * x[2]; y[threadIdx.x] = a[n] * a[299];")
    text = found.derive(block=32)
    assert "for (int k = 1; k < 300; ++k) {\n        a[k] = 0.0f;" in text.source
    assert text.verify(1, arguments(7)) < 1e-6
