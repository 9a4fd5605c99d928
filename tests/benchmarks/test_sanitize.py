"""What `benchmarks.sanitize` runs, and how it reads the tools' logs."""

from __future__ import annotations

import pytest
import torch

from benchmarks import sanitize

LOG = """\
========= COMPUTE-SANITIZER
========= Program hit cudaErrorInvalidValue (error 1) due to "invalid argument" on CUDA API call to cudaMalloc.
=========     Saved host backtrace up to driver entry point at error
=========     Host Frame: main [0x2e] in python3
========= Invalid __global__ write of size 4 bytes
=========     at planted+0xb0
=========     by thread (0,0,0) in block (0,0,0)
=========     Access at 0x7f5c3d000100 is out of bounds
=========
========= Invalid __global__ write of size 4 bytes
=========     at planted+0xb0
=========     by thread (1,0,0) in block (0,0,0)
=========
========= Uninitialized __global__ memory read of size 8 bytes
=========     at void at::native::fill_kernel<int>(int*)+0x40
=========     by thread (0,0,0) in block (0,0,0)
========= Error: Race reported between Write access at softmax<float>+0x110 and Read access at softmax<float>+0x1f0 [2 hazards]
=========
========= ERROR SUMMARY: 4 errors
"""


def test_a_log_is_sorted_by_whose_kernel_it_was() -> None:
    found = sanitize.findings(LOG)
    assert found.own == {
        "Invalid __global__ write of size 4 bytes (planted)": 2,
        "Error: Race reported between Write access at softmax<float>+... and Read access at softmax<float>+... "
        "[2 hazards] (softmax<float>)": 1,
    }
    assert list(found.others.values()) == [1] and "fill_kernel" in next(iter(found.others))
    assert sum(found.calls.values()) == 1
    assert found.finished
    assert not sanitize.findings(LOG[: LOG.index("========= ERROR")]).finished


def test_every_public_operator_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {"mul", "adamw_", "embedding"} < set(sanitize.operators(torch.float32))
    monkeypatch.setattr(sanitize, "over_rows", lambda dtype: {})
    with pytest.raises(RuntimeError, match=r"not run here: adamw_, add_layer_norm, .*softmax"):
        sanitize.operators(torch.float32)


@pytest.mark.parametrize("name", ["cross_entropy", "adamw_"])
def test_they_run(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "cuda", lambda self: self)
    sanitize.operators(torch.float32)[name]()
