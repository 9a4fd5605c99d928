"""Which parameters' memory a kernel may write to."""

from __future__ import annotations

import pytest

import rawkern

HEAD = 'extern "C" __global__ void k(float* x, float* y, const int* idx, long long n) { int i = threadIdx.x; '
BODIES = {
    "y[i] = x[i];": "y",
    "atomicAdd(&x[n], y[0]);": "x",
    "for (int j = 0; j < n; ++j) *y++ = x[j] + *idx;": "y",
    "reinterpret_cast<float4*>(y)[i] = reinterpret_cast<float4*>(x)[i];": "y",
    "y[idx[i]] = x[idx[0]];": "y",
    "__shared__ float s[32]; s[i] = x[i]; __syncthreads(); y[i] = s[31 - i];": "y",
    "float a[64]; for (int j = 0; j < n; ++j) a[j] = x[j]; y[i] = a[idx[i]];": "y",
    "if (n > 3) x[i] = 1; else y[i] = 1;": "xy",
    "if (x[i] > 0) return;": "",
    "float* p = n > 3 ? x : y; p[i] = 1;": None,
    "*(float*)((long long)y + n) = x[0];": None,
    "(*(float**)x)[i] = y[0];": None,
}


@pytest.mark.parametrize("body", BODIES)
def test_parameters_that_are_written(body) -> None:
    state = rawkern.RawKernel(HEAD + body + "}", "k").state()
    found = {p.name: state.may_write(p) for p in state.signature.params if p.is_pointer}
    assert found.pop("idx") is False
    wanted = BODIES[body]
    assert found == {name: None if wanted is None else name in wanted for name in "xy"}
