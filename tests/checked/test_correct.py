"""No report on correct kernels, and the results of the usual launch."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

import rawkern

_spec = importlib.util.spec_from_file_location("correct", Path(__file__).with_name("correct.py"))
correct = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(correct)


def ints(n: int) -> torch.Tensor:
    return torch.randint(-99, 99, (n,), generator=torch.Generator().manual_seed(n), dtype=torch.int32)


X = torch.rand(256, generator=torch.Generator().manual_seed(1))
LAUNCHES = {
    "last_block": (8, 32, lambda: (X, torch.zeros(8), torch.zeros(1))),
    "all_fence": (8, 32, lambda: (X, torch.zeros(256), torch.zeros(256))),
    "locked": (6, 64, lambda: (torch.zeros(1, dtype=torch.int32),)),
    "flags": (1, 64, lambda: (ints(32), ints(32))),
    "named": (1, 64, lambda: (ints(128), ints(128) * 0)),
    "own_atomic": (4, 64, lambda: (X, torch.zeros(1))),
    "early": (2, 64, lambda: (100, ints(128), ints(128) * 0, torch.zeros(1, dtype=torch.int32))),
    "early_inside": (1, 64, lambda: (ints(64), ints(64) * 0)),
    "early_with_result": (1, 64, lambda: (ints(64), ints(64) * 0)),
    "groups": (1, 64, lambda: (ints(64), ints(64) * 0)),
    "library": (1, 64, lambda: (ints(128), ints(128) * 0)),
    "filled": (1, 64, lambda: (ints(64), ints(64) * 0)),
    "stages": (1, 64, lambda: (4, X, torch.zeros(64))),
    "block_pipeline": (1, 64, lambda: (4, X, torch.zeros(64))),
    "own_copies": (1, 64, lambda: (X, torch.zeros(64))),
    "counted_copies": (1, 64, lambda: (ints(128), ints(64) * 0)),
    "on_heap": (2, 64, lambda: (ints(64), ints(64) * 0)),
    "arrays": (1, 64, lambda: (5, ints(64), ints(64) * 0)),
    "best": (1, 64, lambda: (ints(64), ints(64) * 0)),
    "maybe": (1, 32, lambda: (7, ints(32), ints(32) * 0)),
}


@pytest.fixture(scope="module")
def module():
    return rawkern.RawModule(code=correct.CODE, options=("-default-device",))


@pytest.mark.parametrize("name", LAUNCHES)
def test_no_report_and_the_same_results(module, name):
    grid, block, arguments = LAUNCHES[name]
    usual, checked = arguments(), arguments()
    kernel = getattr(module, name)
    kernel[grid, block](*usual)
    with rawkern.check():
        kernel[grid, block](*checked)
    for a, b in zip(usual, checked, strict=True):
        assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


def test_cooperative_grid():
    kernel = rawkern.RawModule(code=correct.CODE, options=("-default-device",), enable_cooperative_groups=True).steps
    usual, checked = (X.clone(), X * 0, 256), (X.clone(), X * 0, 256)
    kernel[4, 64](*usual)
    with rawkern.check():
        kernel[4, 64](*checked)
    assert torch.equal(usual[0], checked[0])


def test_addresses_in_tensors_lead_to_live_tensors():
    kernel = rawkern.RawKernel(r"""
    struct Node { float value; Node* next; };
    extern "C" __global__ void chase(float* const* table, const Node* first, float* out) {
        float sum = table[0][threadIdx.x];
        for (const Node* n = first; n; n = n->next) sum += n->value;
        out[threadIdx.x] = sum;
    }""")
    x, out, second = X[:32].clone(), torch.zeros(32), torch.zeros(16, dtype=torch.uint8)
    second.view(torch.float32)[0] = 2.5
    first = torch.zeros(16, dtype=torch.uint8)
    first.view(torch.float32)[0] = 1.25
    first.view(torch.int64)[1] = second.data_ptr()
    table = torch.tensor([x.data_ptr()])
    with rawkern.check():
        kernel[1, 32](table, first, out)
    assert torch.equal(out, x + 1.25 + 2.5)
    hidden = torch.zeros(1, dtype=torch.float64)  # an address that no integer tensor holds
    hidden.view(torch.int64)[0] = x.data_ptr()
    other = rawkern.RawKernel(
        'extern "C" __global__ void k(const double* at, float* out)'
        "{ out[threadIdx.x] = (*(const float* const*)at)[threadIdx.x]; }"
    )
    with rawkern.check(), pytest.raises(rawkern.OutOfBoundsError, match="never passed"):
        other[1, 32](hidden, out)
    with rawkern.check(x):
        other[1, 32](hidden, out)
    assert torch.equal(out, x)


def test_parameters_are_memory_of_the_launch():
    kernel = rawkern.RawKernel(r"""
    struct Strides { long long of[4]; };
    extern "C" __global__ void k(int n, const Strides s, const float* x, float* out) {
        int i = threadIdx.x, at = 0;
        for (int d = 0, rest = i; d < n; d++, rest /= 2) at += rest % 2 * s.of[d];
        out[i] = x[at];
    }""")
    x, out = X[:16].clone(), torch.zeros(16)
    with rawkern.check():
        kernel[1, 16](4, {"of": [8, 4, 2, 1]}, x, out)
    assert torch.equal(out, x.view(2, 2, 2, 2).permute(3, 2, 1, 0).flatten())
