"""Kernels over columns of numbers, and what to compare them with."""

from __future__ import annotations

import numpy as np
import torch

import rawkern

INT_EDGES = [
    0,
    1,
    -1,
    2,
    -2,
    3,
    7,
    -7,
    10,
    127,
    -128,
    255,
    65535,
    2**31 - 1,
    -(2**31),
    2**31,
    2**32 - 1,
    2**32,
    2**62,
    2**63 - 1,
    -(2**63),
    -(2**63) + 1,
]


def run(code: str, n: int, *arrays: np.ndarray, device: str, out: list, options=()) -> list[np.ndarray]:
    """Run ``k(int n, inputs..., outputs...)`` on n threads; outputs by dtype, poisoned first."""
    tensors = [torch.from_numpy(a.view(f"i{a.itemsize}") if a.dtype.kind in "uV" else a).to(device) for a in arrays]
    results = [torch.full((n * np.dtype(d).itemsize,), 0xA5, dtype=torch.uint8, device=device) for d in out]
    views = [r.view({"i": {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}, "f": {2: torch.float16, 4: torch.float32,
             8: torch.float64}}["i" if np.dtype(d).kind in "uV" else np.dtype(d).kind][np.dtype(d).itemsize])
             for r, d in zip(results, out, strict=True)]  # fmt: skip
    rawkern.RawKernel(code, options=options).forall(n, block=96)(n, *tensors, *views)
    return [r.cpu().numpy().view(d) for r, d in zip(results, out, strict=True)]


def pairs(edges: list[int], dtype, extra: int = 400) -> tuple[np.ndarray, np.ndarray]:
    """Every pair of edges, and random values of all magnitudes."""
    bits = np.dtype(dtype).itemsize * 8
    wrap = [e & (1 << bits) - 1 for e in edges]
    a, b = np.meshgrid(np.array(wrap, dtype=np.uint64), np.array(wrap, dtype=np.uint64))
    rng = np.random.default_rng(1)
    c, d = (
        rng.integers(0, 2**64 - 1, extra, dtype=np.uint64) >> rng.integers(0, 60, extra).astype(np.uint64)
        for _ in range(2)
    )
    unsigned = f"u{bits // 8}"
    return (np.concatenate([x.ravel(), y]).astype(unsigned).view(dtype) for x, y in ((a, c), (b, d)))  # type: ignore[return-value]


def wrap(values: list[int], dtype) -> np.ndarray:
    bits = np.dtype(dtype).itemsize * 8
    return np.array([v & (1 << bits) - 1 for v in values], dtype=f"u{bits // 8}").view(dtype)
