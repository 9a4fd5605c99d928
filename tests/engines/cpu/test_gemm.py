"""The pipelined GEMM of examples/hopper_gemm.py: sizes that are not multiples of its tiles, other orders, checks."""

from __future__ import annotations

import pytest
import torch

import rawkern
from benchmarks.hopper_gemm import checked, example


def needs_wgmma(device: str) -> None:
    if device == "cuda" and torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("this GPU has no wgmma")


def factors(m: int, n: int, k: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(m, k, device=device).bfloat16(), torch.randn(n, k, device=device).bfloat16()


@pytest.mark.parametrize("size", [(512, 512, 512), (256, 256, 8), (300, 264, 200), (1, 8, 1032), (257, 1024, 64)])
def test_sizes(device: str, size: tuple[int, int, int]) -> None:
    needs_wgmma(device)
    a, b = factors(*size, device)
    checked(a, b, example().matmul(a, b, example().fixed))


@pytest.mark.gpu
def test_large() -> None:
    needs_wgmma("cuda")
    for size in ((8192, 8192, 1024), (4097, 2056, 4104)):
        a, b = factors(*size, "cuda")
        for _ in range(3):
            checked(a, b, example().matmul(a, b))


def test_orders() -> None:
    """Warps run ahead of others of their group, and copies come at once or late: no thread reads what is not there."""
    a, b = factors(256, 256, 1024, "cpu")
    expected = example().matmul(a, b, example().fixed)
    for seed in range(4):
        with rawkern.order(seed):
            assert expected.equal(example().matmul(a, b, example().fixed))


def test_checked() -> None:
    a, b = factors(256, 256, 512, "cpu")
    expected = example().matmul(a, b, example().fixed)
    with rawkern.check():
        assert expected.equal(example().matmul(a, b, example().fixed))


def test_lines() -> None:
    """The kernel has at most 150 lines of CUDA C."""
    assert len(example().SOURCE.strip().splitlines()) <= 150
