"""Launches that are checked in more than one way: other orders, other numbers, accesses that the compiler deletes."""

from __future__ import annotations

import pytest
import torch

import rawkern

CODE = r"""
__device__ int calls;
extern "C" {
__global__ void steered(int* x, int n, int mode) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    if (mode == 3)
        x[0] = i;                                    // defect
    else if (mode == 77)
        x[i] = 2;
    else
        x[i] += 1;
    if (x[i] == 100)
        x[i] = 3;
    if (i == 0) calls++;
}
__global__ void longer(int* x, int n) {  // the caller's n is what there is
    int i = threadIdx.x;
    if (i < n) x[i] = 1;
}
__global__ void dead(int* x) { __shared__ int s; s = threadIdx.x; x[threadIdx.x] = 1; }
__global__ void swapped(int* x) {  // what the usual build accepts
    int old = *x, seen;
    do {
        seen = old;
        old = atomicCAS(x, seen, seen + 1);
    } while (old != seen);
}
__global__ void first(int* x, int* y) {  // who comes first does what races
    int k = atomicAdd(x, 1);
    if (k == 0 && blockIdx.x == 1) y[0] = 1;
    if (blockIdx.x == 0) y[0] = 2;
}
}"""


@pytest.fixture(scope="module")
def kernels():
    return rawkern.RawModule(CODE)


def zeros(n: int, device: str = "cpu") -> torch.Tensor:
    return torch.zeros(n, dtype=torch.int32, device=device)


def test_numbers_that_decide_on_branches_are_tried(kernels, device):
    x, checks = zeros(64, device), rawkern.check(inputs=40)
    with pytest.raises(rawkern.RaceError) as caught, checks:
        kernels.steered[1, 64](x, 64, 0)
    assert caught.value.__notes__ == ["found with mode = 3, not in the launch as it is"]
    assert "// defect" in caught.value.reports[0].access.excerpt
    assert [text.partition(", ")[2] for text in checks.untaken] == ["line 13: the branch goes one way only"]
    if device == "cpu":  # all others are undone
        assert x.tolist() == [1] * 64 and kernels.get_global("calls", "cpu").tolist() == [1]


def test_values_that_a_kernel_does_not_take_are_passed_over(kernels):
    with rawkern.check(inputs=20) as checks:
        kernels.longer[1, 64](zeros(64), 64)
    assert checks.untaken == []


def test_accesses_that_the_compiler_deletes(kernels):
    with rawkern.check():
        kernels.dead[1, 64](zeros(64))
    with rawkern.check(optimized=False):
        with pytest.raises(rawkern.RaceError, match="writes s") as caught:
            kernels.dead[1, 64](zeros(64))
        assert caught.value.__notes__ == ["found in unoptimized code, not in the launch as it is"]
        x = zeros(1)
        kernels.swapped[2, 64](x)
    assert x.item() == 128


def test_orders(kernels):
    with rawkern.check():
        kernels.first[2, 1](zeros(1), zeros(1))
    x = zeros(1)
    with pytest.raises(rawkern.RaceError) as caught, rawkern.check(orders=(0,)):
        kernels.first[2, 1](x, zeros(1))
    assert caught.value.__notes__ == ["found in the order rawkern.order(0), not in the launch as it is"]
    assert x.item() == 2


@pytest.mark.parametrize(
    ("given", "says"),
    [({"inputs": -1}, "inputs is -1"), ({"orders": 3}, "orders is 3"), ({"orders": (-1,)}, "orders is -1")],
)
def test_what_is_no_number_of_trials(given, says):
    with pytest.raises((TypeError, ValueError), match=says):
        rawkern.check(**given)
