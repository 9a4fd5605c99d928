"""What the tests of memory share."""

from __future__ import annotations

import numpy as np
import torch

import rawkern

SIZES = {"unsigned char": torch.uint8, "short": torch.int16, "int": torch.int32, "long long": torch.int64, "float": torch.float32,
         "double": torch.float64}  # fmt: skip


def ramp(n: int, dtype: torch.dtype, seed: int = 3) -> torch.Tensor:
    """Values that differ from each other and use the type's high bits."""
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_floating_point:
        return torch.randn(n, generator=generator, dtype=torch.float64).to(dtype)
    info = torch.iinfo(dtype)
    return torch.randint(info.min, info.max, (n,), generator=generator, dtype=torch.int64).to(dtype)


def poison(n: int, dtype: torch.dtype, device: str) -> torch.Tensor:
    return torch.full((n,), float("nan") if dtype.is_floating_point else 93, dtype=dtype, device=device)


PATTERNS = r"""
template <class T> __global__ void copy(int n, const T* in, T* out, int offset) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i + offset] = in[i + offset];
}
template <class T> __global__ void reverse(int n, const T* in, T* out) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = in[n - 1 - i];
}
template <class T> __global__ void reversed_store(int n, const T* in, T* out) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[n - 1 - i] = in[i];
}
template <class T> __global__ void strided(int n, const T* in, T* out, int stride) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i * stride] = in[i * stride];
}
template <class T> __global__ void every_third(int n, const T* in, T* out) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i * 3 + 1] = in[i * 3 + 1];
}
template <class T> __global__ void gather(int n, const T* in, T* out, const int* index) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = in[index[i]];
}
template <class T> __global__ void scatter(int n, const T* in, T* out, const int* index) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[index[i]] = in[i];
}
template <class T> __global__ void broadcast(int n, const T* in, T* out) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    T first = in[0], mine = in[i < n ? i / 8 : 0];
    if (i < n) out[i] = i % 2 ? first : mine;
}
template <class T> __global__ void odd_lanes(int n, const T* in, T* out) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n && i & 1) out[i] = in[i];
}
template <class T> __global__ void before(int n, const T* in, T* out) {   // pointers that point past what they read
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    const T* end = in + n; T* last = out + n - 1;
    if (i < n) last[-i] = end[-1 - i];
}
"""


MODULE = rawkern.RawModule(code=PATTERNS)


def same(got: torch.Tensor, want: torch.Tensor) -> None:
    np.testing.assert_array_equal(got.numpy(), want.numpy())
