"""What makes planted defects of Hopper kernels right makes checks silent, and plain launches of wrong ones show."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import rawkern
from tests.checked.planted_hopper import FINDINGS, PAIRS, table

TESTS = Path(__file__).parents[1]


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair[0].name)
def test_the_correct_twin_is_silent(pair) -> None:
    defect, right = pair
    assert right.code != defect.code
    kernel, arguments = rawkern.RawKernel(right.code, "k"), right.arguments("cpu")
    tensors = [a for a in arguments if isinstance(a, torch.Tensor)]
    kernel[right.grid, right.block, right.shared](*arguments)
    plain = [x.clone() for x in tensors]
    for x in plain:
        assert not x.isnan().any()
    with rawkern.check():
        kernel[right.grid, right.block, right.shared](*arguments)
    assert all(map(torch.equal, plain, tensors))


DEPENDENT = r"""
extern "C" __global__ void first(const float* w, float* x) {
    x[threadIdx.x] += w[threadIdx.x];
    asm volatile("griddepcontrol.launch_dependents;");
}
extern "C" __global__ void second(const float* w, const float* x, float* y, int early) {
    float a = w[threadIdx.x], b = 0;
    if (early) b = x[threadIdx.x];                   // defect
    if (threadIdx.x == 0 || blockDim.x == 32) asm volatile("griddepcontrol.wait;" ::: "memory");
    __syncthreads();
    y[threadIdx.x] = a + b + x[threadIdx.x];
}
extern "C" __global__ void never(const float* x, float* y) {
    y[threadIdx.x] = x[threadIdx.x];                 // defect
}"""


def test_what_the_launch_before_writes_is_read_after_a_wait_for_it() -> None:
    """Where one may begin before the other has ended; weights, and what that launch does not write, may be read."""
    module = rawkern.RawModule(DEPENDENT)
    first, second, never = (module.get_function(name) for name in ("first", "second", "never"))
    w, x, y, other = (torch.ones(64) for _ in range(4))
    dependent, careless = second.configured(programmatic=True), never.configured(programmatic=True)
    late = r"reads x\[0\], which the launch before this one may still write.* griddepcontrol\.wait"
    with rawkern.check():
        first[1, 64](w, x)
        dependent[1, 64](w, x, y, 0)
        second[1, 64](w, x, y, 1)  # an ordinary launch begins when the one before has ended
        careless[1, 64](x, other)  # which writes another tensor
        for kernel, arguments in ((dependent, (w, x, y, 1)), (careless, (x, y))):
            first[1, 64](w, x)
            with pytest.raises(rawkern.RaceError, match=late) as caught:
                kernel[1, 64](*arguments)
            assert "// defect" in caught.value.reports[0].access.excerpt
            assert len(caught.value.reports) == 1
    assert x.tolist() == [4] * 64


def test_the_table_of_findings_is_what_is_planted() -> None:
    """Each kind of finding has defects that are planted, each of those is one of a kind, and the page says so."""
    pairs = {defect.name: defect.error for defect, _ in PAIRS}
    for what, _, error, planted in FINDINGS:
        assert planted, what
        for name in planted:
            file, _, test = name.partition("::")
            assert pairs[name] == error if not test else f"def {test}(" in (TESTS / file).read_text(), name
    assert set(pairs) == {name for *_, planted in FINDINGS for name in planted if "::" not in name}
    assert table() in (TESTS.parent / "docs" / "checking.md").read_text()
