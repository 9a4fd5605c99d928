"""Rows that blocks keep in shared memory: what is computed again may only be made of what is still there."""

from __future__ import annotations

import pytest
import torch

import rawkern

FIRST = "for (int i = t; i < n; i += 32) row[i] = q[i % 32] * x[i];"
SECOND = "for (int i = t; i < n; i += 32) { row[i] = expf(row[i]); s += row[i]; }"
LAST = "for (int i = t; i < n; i += 32) { y[i] += row[n - 1 - i] * s; }"
SYNC = "__syncthreads();"
BODIES = {
    "as it was": (f"{FIRST} {SECOND} {SYNC} {LAST}", True),
    "set in between": (f"{FIRST} {SYNC} q[31 - t] = x[t + 32]; {SYNC} {SECOND} {SYNC} {LAST}", False),
    "set afterwards": (f"{FIRST} {SYNC} {SECOND} q[31 - t] = x[t + 32]; {SYNC} {LAST}", False),
    "set in the next round": (f"for (int r = 0; r < m; ++r) {{ q[31 - t] = x[t + r]; {SYNC} {FIRST} {SYNC} {SECOND} {SYNC} {LAST} {SYNC} }}", False),
    "read in between": (f"{FIRST} {SYNC} for (int i = t; i < n; i += 32) z += row[n - 1 - i]; {SYNC} {SECOND} {SYNC} {LAST}", False),
    "added to in between": (f"{FIRST} {SYNC} row[t] += x[t]; {SYNC} {SECOND} {SYNC} {LAST}", False),
}  # fmt: skip


@pytest.mark.parametrize("what", BODIES)
def test_a_row_is_computed_again_from_what_is_still_there(what) -> None:
    body, certain = BODIES[what]
    source = f"""extern "C" __global__ void k(const float* x, float* y, int n, int m) {{
        __shared__ float q[32], row[128];
        int t = threadIdx.x;
        float s = 0.f, z = 0.f;
        q[t] = x[t + 5];
        __syncthreads();
        {body}
        y[t] += z;
    }}"""
    draw = torch.Generator().manual_seed(1)
    try:
        found = rawkern.RawKernel(source, "k").derive(block=32, max_iterations=4)
    except rawkern.NotDifferentiable as error:
        assert not certain and ("of another iteration" in str(error) or "written again" in str(error))
    else:
        assert found.verify(1, (torch.rand(128, generator=draw), torch.zeros(128), 70, 2)) < 1e-5
