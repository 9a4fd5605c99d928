"""Shared memory that threads overwrite: read as an array for each time, only where each read means one of them."""

from __future__ import annotations

import pytest

import rawkern
from rawkern.gradients.derive import derive
from rawkern.gradients.reading.reader import Launched
from rawkern.gradients.reading.syntax import Where

LOOP = "for (int k = 0; k < m; ++k)"
SET, AGAIN = f"{LOOP} s[t * m + k] = x[k] * q;", f"{LOOP} s[t * m + k] = sinf(s[t * m + k]);"
SUM = f"{LOOP} sum += s[t * m + k];"
OTHERS = f"{LOOP} sum += s[(t + 1) % 32 * m + k];"
# What a tile's iteration does, and how many arrays there are for s; 0: it is not supported.
CASES = {
    "twice": (f"{SET} {AGAIN} {SUM}", 2),
    "three times, read in between": (f"{SET} {SUM} {AGAIN} {SUM} {AGAIN} {SUM}", 3),
    "in one iteration": (f"{SET} {LOOP} {{ s[t * m + k] *= x[t]; sum += s[t * m + k]; s[t * m + k] += 1.0f; }} {SUM}", 3),
    "read in another order after the last": (f"{SET} {AGAIN} {LOOP} sum += s[t * m + m - 1 - k];", 2),
    "of other threads after the last": (f"{SET} {AGAIN} __syncthreads(); {OTHERS}", 2),
    "under one condition": (f"{SET} {AGAIN} {SUM}".replace("s[t * m + k] =", "if (k != 2) s[t * m + k] ="), 0),
    "in another order": (f"{SET} {LOOP} s[t * m + m - 1 - k] = sinf(s[t * m + k]); {SUM}", 0),
    "read in another order in between": (f"{SET} {LOOP} sum += s[t * m + m - 1 - k]; {AGAIN} {SUM}", 0),
    "another order while it is set": (f"{SET} {LOOP} s[t * m + k] = sinf(s[t * m + m - 1 - k]); {SUM}", 0),
    "all but the first": (f"{SET} {AGAIN.replace('k = 0', 'k = 1')} {SUM}", 0),
    "one of them": (f"{SET} {LOOP} s[t * m] = sinf(s[t * m] + x[k]); {SUM}", 0),
    "other bounds": (f"{SET} {AGAIN.replace('k < m', 'k < n')} {SUM}", 0),
    "of the iteration before": (f"{SUM} {SET} {AGAIN}", 0),
    "of other threads": (f"{SET} __syncthreads(); {OTHERS} __syncthreads(); {AGAIN} {SUM}", 0),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_arrays_for_each_time(name: str) -> None:
    body, arrays = CASES[name]
    source = f"""extern "C" __global__ void program(const float* x, float* y, int n, int m) {{
        __shared__ float s[512];
        int t = threadIdx.x;
        float sum = 0;
        for (int q = 0; q < n; ++q) {{ {body} __syncthreads(); }}
        y[t] = sum;
    }}"""

    def derived() -> str:
        return derive(source, "program", where=Where("a text", "program", str), launched=Launched((32, 1, 1))).source

    if arrays == 0:
        with pytest.raises(rawkern.NotDifferentiable, match=r"\bs\b"):
            derived()
    else:
        found = derived()
        names = ["s", "s_before", "s_before_2", "s_before_3"]
        assert [f" grad_{n}[512];" in found for n in names] == [k < arrays for k in range(4)]
