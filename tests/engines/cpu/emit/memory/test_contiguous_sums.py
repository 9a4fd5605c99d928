"""Sums of floats in memory that several threads of the host add to: contiguous ones at a time, and others."""

from __future__ import annotations

import pytest
import torch

import rawkern

SOURCE = r"""
template <typename T> __global__ void scatter(const int* at, const T* v, T* out, int n, int most) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n && i % 64 < most) atomicAdd(&out[at[i]], v[i]);
}
template <typename T> __global__ void rows(T* out, int width) {
    atomicAdd(&out[threadIdx.y * width + threadIdx.x], (T)(1 + threadIdx.x));
}
template <typename T> __global__ void olds(T* out, T* old) {
    old[blockIdx.x * 64 + threadIdx.x] = atomicAdd(&out[threadIdx.x], (T)1);
}
"""
N = 640


@pytest.fixture(scope="module")
def module():
    names = [f"{name}<{kind}>" for name in ("scatter", "rows", "olds") for kind in ("float", "double")]
    return rawkern.RawModule(SOURCE, name_expressions=names)


@pytest.mark.parametrize("kind", ["float", "double"])
@pytest.mark.parametrize("most", [64, 37])
def test_places_of_all_kinds_are_added_to(module, device, kind, most) -> None:
    draw = torch.Generator().manual_seed(2)
    straight = torch.arange(N) % 200
    places = [straight, straight + 1, straight.flip(0), torch.randint(0, 300, (N,), generator=draw), straight // 2]
    places += [torch.where(torch.arange(N) % 9 == 0, 7, straight + 3)]
    v = torch.randint(-8, 8, (N,), generator=draw).to(getattr(torch, kind))
    active = torch.arange(N) % 64 < most
    for at in places:
        out = torch.zeros(300, dtype=v.dtype, device=device)
        args = at.int().to(device), v.to(device), out, N, most
        module.get_function(f"scatter<{kind}>")[-(-N // 64), 64](*args)
        assert torch.equal(out.cpu(), torch.zeros(300, dtype=v.dtype).index_add_(0, at[active], v[active]))


@pytest.mark.parametrize("kind", ["float", "double"])
def test_blocks_that_run_at_the_same_time_lose_nothing(module, device, kind) -> None:
    out = torch.zeros(64, dtype=getattr(torch, kind), device=device)
    module.get_function(f"rows<{kind}>")[3000, (16, 4)](out, 16)
    assert torch.equal(out.cpu(), 3000 * (1 + torch.arange(64) % 16).to(out.dtype))


@pytest.mark.parametrize("kind", ["float", "double"])
def test_old_values_are_each_seen_once(module, device, kind) -> None:
    out, old = (torch.zeros(size, dtype=getattr(torch, kind), device=device) for size in (64, 64 * 50))
    module.get_function(f"olds<{kind}>")[50, 64](out, old)
    assert torch.equal(old.view(50, 64).cpu().sort(0).values, torch.arange(50.0).to(old.dtype)[:, None].expand(50, 64))
