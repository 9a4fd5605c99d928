"""What makes planted defects of Hopper kernels right makes checks silent, and plain launches of wrong ones show."""

from __future__ import annotations

import pytest
import torch

import rawkern
from tests.checked.planted_hopper import PAIRS


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
