"""Which elements of a gradient are claimed to be set, against all that the threads of a launch read."""

from __future__ import annotations

import itertools

import pytest
import torch

from rawkern.gradients.derive import derive
from rawkern.gradients.launching import begin
from rawkern.gradients.reading.reader import Launched
from rawkern.gradients.reading.syntax import Where

INDEX, ROW = "int i = blockIdx.x * blockDim.x + threadIdx.x;", "int r = blockIdx.y * blockDim.y + threadIdx.y;"
UNSIGNED = "unsigned i = blockIdx.x * blockDim.x + threadIdx.x;"
# By name: block, grid, text, the indices read by a thread (i, r, t, b) in Python, whether all of them are claimed.
CASES = {
    "whole": (8, 3, f"{INDEX} y[i] = x[i];", lambda i, r, t, b: [i], True),
    "tail": (8, 3, f"{INDEX} if (i < n) y[i] = x[i];", lambda i, r, t, b: [i] if i < 20 else [], True),
    "left early": (8, 3, f"{INDEX} if (i >= n) return; y[i] = x[i];", lambda i, r, t, b: [i] if i < 20 else [], True),
    "left in between": (8, 3, f"{INDEX} float v = x[i]; if (i > n - 3) return; y[i] = v;", lambda i, r, t, b: [i], False),
    "shifted": (8, 3, f"{INDEX} if (i < n) y[i] = x[i + m];", lambda i, r, t, b: [i + 5] if i < 20 else [], True),
    "not the first": (8, 3, f"{INDEX} if (i >= 2 && i < n) y[i] = x[i];", lambda i, r, t, b: [i] if 2 <= i < 20 else [], False),
    "wraps around": (8, 3, f"{UNSIGNED} if (i - 1 < n) y[i] = x[i];", lambda i, r, t, b: [i] if 1 <= i < 21 else [], False),
    "a bound below 0": (8, 3, f"{UNSIGNED} if (i < n - 21) y[i] = x[i];", lambda i, r, t, b: [i], False),
    "even ones": (8, 3, f"{INDEX} y[i] = x[2 * i];", lambda i, r, t, b: [2 * i], False),
    "of data": (8, 3, f"{INDEX} if (z[i] > 2.0f) y[i] = x[i];", lambda i, r, t, b: [], False),
    "quotient": (8, 3, f"{INDEX} if (i < n / 2) y[i] = x[i];", lambda i, r, t, b: [i] if i < 10 else [], True),
    "rows": (4, (3, 2), f"{INDEX} int r = blockIdx.y; if (i < m) y[r * m + i] = x[r * m + i];",
             lambda i, r, t, b: [r * 5 + i] if i < 5 else [], True),
    "rows too short": (4, (1, 2), f"{INDEX} int r = blockIdx.y; if (i < m) y[r * m + i] = x[r * m + i];",
                       lambda i, r, t, b: [r * 5 + i] if i < 5 else [], False),
    "two axes": ((4, 2), (2, 2), f"{INDEX} {ROW} if (i < m && r < 3) y[r * m + i] = x[r * m + i];",
                 lambda i, r, t, b: [r * 5 + i] if i < 5 and r < 3 else [], True),
    "two axes and an end": ((4, 2), (2, 2), f"{INDEX} {ROW} if (i >= m || r * m + i >= 13) return; y[r * m + i] = x[r * m + i];",
                            lambda i, r, t, b: [r * 5 + i] if i < 5 and r * 5 + i < 13 else [], True),
    "loop": (4, 3, "for (int c = threadIdx.x; c < n; c += 4) y[blockIdx.x * n + c] = x[blockIdx.x * n + c];",
             lambda i, r, t, b: [b * 20 + c for c in range(t, 20, 4)], True),
    "loop of others": (4, 3, "for (int c = threadIdx.x; c < n; c += 8) y[blockIdx.x * n + c] = x[blockIdx.x * n + c];",
                       lambda i, r, t, b: [b * 20 + c for c in range(t, 20, 8)], False),
    "loop from 1": (4, 3, "for (int c = threadIdx.x + 1; c < n; c += 4) y[blockIdx.x * n + c] = x[blockIdx.x * n + c];",
                    lambda i, r, t, b: [b * 20 + c for c in range(t + 1, 20, 4)], False),
    "through the grid": (4, 2, f"{INDEX} for (int c = i; c < n; c += gridDim.x * blockDim.x) y[c] = x[c];",
                         lambda i, r, t, b: list(range(i, 20, 8)), True),
    "in part": (4, 2, f"{INDEX} for (int c = i; c < n; c += gridDim.x * blockDim.x) if (c != 3) y[c] = x[c];",
                lambda i, r, t, b: [c for c in range(i, 20, 8) if c != 3], False),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_claims_what_is_read(name) -> None:
    block, grid, text, read, whole = CASES[name]
    block, grid = ((*(s if isinstance(s, tuple) else (s,)), 1, 1)[:3] for s in (block, grid))
    source = f'extern "C" __global__ void k(const float* x, const float* z, float* y, int n, int m) {{ {text} }}'
    found = derive(source, "k", where=Where("a test", "k", str), launched=Launched(block), wrt=("x",))
    numbers = {"n": 20, "m": 5}
    grad = begin(torch.ones(100), found.sets["x"].certain(numbers, grid), 7.0)
    claimed = set((grad == 7).nonzero().flatten().tolist())
    assert ("x" in found.sets) and (grad[[k for k in range(100) if k not in claimed]] == 0).all()
    threads = itertools.product(range(grid[0]), range(grid[1]), range(block[0]), range(block[1]))
    actual = {k for bx, by, tx, ty in threads for k in read(bx * block[0] + tx, by * block[1] + ty, tx, bx)}
    if name == "a bound below 0":
        actual = set()  # more than the array has
    assert claimed <= actual
    assert bool(claimed) == whole and (not whole or claimed == actual)
