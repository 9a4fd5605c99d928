"""Profiles of a sample of blocks: right counts of just these, the same each time, and the launch as without them."""

from __future__ import annotations

import pytest
import torch

import rawkern
from rawkern.engines.cpu.profiler.launch import chosen

CODE = r"""
extern "C" __global__ void uneven(volatile float* x, int* next) {
  int b = blockIdx.x + gridDim.x * blockIdx.y;
  for (int k = 0; k < b % 7 + b / 100; k++)
    x[b * 32 + threadIdx.x] = x[b * 32 + threadIdx.x] + 1;
  if (!threadIdx.x) atomicAdd(next, 1);
}
extern "C" __global__ void waiting(volatile int* x) {
  while (*x < blockIdx.x);
  if (!threadIdx.x) *x = blockIdx.x + 1;
}
"""
TOGETHER = r"""
#include <cooperative_groups.h>
extern "C" __global__ void together(int* x) {
  cooperative_groups::this_grid().sync();
  x[blockIdx.x] = 1;
}
"""
GRID = (20, 15)
STORES = "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum"


@pytest.fixture(scope="module")
def module():
    return rawkern.RawModule(CODE)


def rounds(block: int) -> int:
    return block % 7 + block // 100


def test_samples_have_one_block_of_each_part():
    for blocks, sample in ((300, 7), (300, 299), (2**40, 1000), (5, 1)):
        found = chosen(blocks, sample).tolist()
        assert len(found) == sample
        assert all(k * blocks // sample <= n < (k + 1) * blocks // sample for k, n in enumerate(found))
    assert chosen(300, 40).tolist() == chosen(300, 40).tolist()
    assert {n % 16 for n in chosen(1 << 20, 256).tolist()} == set(range(16))  # in no step with rows of the grid


def test_counts_are_those_of_the_sample_and_results_those_of_the_launch(device, module):
    x, count = torch.zeros(300 * 32, device=device), torch.zeros(1, dtype=torch.int32, device=device)
    expected = torch.tensor([float(rounds(b)) for b in range(300)], device=device).repeat_interleave(32)
    with rawkern.profile(sample=40) as report:
        module.get_function("uneven")[GRID, 32](x, count)
    assert torch.equal(x, expected)
    assert count.item() == 300
    (launch,) = report.as_dict()["launches"]
    sample = chosen(300, 40).tolist()
    assert launch["sampled_blocks"] == 40
    assert launch["counters"][STORES] == sum(map(rounds, sample))
    assert launch["distinct_sectors"]["x"] == 4 * sum(1 for b in sample if rounds(b))
    assert "40 of 300 blocks were counted; all counts are for these blocks" in str(report)
    with rawkern.profile(sample=40) as again:
        module.get_function("uneven")[GRID, 32](x, count)
    assert again.as_dict()["launches"][0]["counters"] == launch["counters"]


def test_profiles_with_different_samples_coexist(module):
    x, count = torch.zeros(300 * 32), torch.zeros(1, dtype=torch.int32)
    with (
        rawkern.profile(device="h200") as whole,
        rawkern.profile(sample=40, device="h200") as some,
        rawkern.profile(sample=300) as enough,
        rawkern.profile(sample=3) as few,
        rawkern.order(5),
    ):
        module.get_function("uneven")[GRID, 32](x, count)
    assert count.item() == 300
    found = [report["uneven"].counters[STORES] for report in (whole, some, enough, few)]
    assert found == [sum(map(rounds, blocks)) for blocks in (range(300), chosen(300, 40), range(300), chosen(300, 3))]
    assert "sampled_blocks" not in enough.as_dict()["launches"][0]
    assert "bounds" in whole.as_dict()["launches"][0]
    assert "bounds" not in some.as_dict()["launches"][0]
    assert "roofline" not in some._repr_html_()
    with pytest.raises(ValueError, match="all blocks of uneven were counted then and 40 now; use the same sample="):
        some.compare(whole)


def test_blocks_that_wait_for_each_other_raise(module):
    x = torch.zeros(300, dtype=torch.int32)
    with rawkern.profile(sample=4) as report:
        for kernel in (module.get_function("waiting"), rawkern.RawKernel(TOGETHER, enable_cooperative_groups=True)):
            with pytest.raises(
                rawkern.LaunchError, match="sample is 4 blocks, but blocks of this kernel wait for each"
            ):
                kernel[8, 32](x)
            kernel[4, 32](x.zero_())
    assert len(report) == 2
    assert x[:4].tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (0, ValueError, "sample is 0; count 1 block or more"),
        (1.5, TypeError, "sample is 1.5; pass a number of blocks"),
        (True, TypeError, "sample is True; pass a number of blocks"),
    ],
)
def test_other_samples_raise(value, error, message):
    with pytest.raises(error, match=message):
        rawkern.profile(sample=value)
