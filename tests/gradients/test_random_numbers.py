"""Random numbers of curand's counter generator are drawn again in the backward."""

from __future__ import annotations

import pytest
import torch

import rawkern

SOURCE = """
#include <curand_kernel.h>
extern "C" __global__ void noise(const float* x, float* y, float* drawn, int n, unsigned long long seed) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    curandStatePhilox4_32_10_t state;
    curand_init(seed, i, 3, &state);
    if (i >= n) return;
    float factor = curand_uniform(&state), first = curand_normal(&state), total = 0.f;
    for (int k = 0; k < 2; ++k) {
        float4 four = curand_uniform4(&state);
        total += x[i] * x[i] * four.z;
        drawn[i * 8 + k] = four.z;
        if (factor > 0.5f) { float2 two = curand_normal2(&state); total += x[i] * two.y; drawn[i * 8 + 2 + k] = two.y; }
    }
    float second = curand_normal(&state), third = (float)(curand(&state) >> 8);
    y[i] = total + (factor > 0.5f ? x[i] * first : x[i] * second) + third * x[i];
    drawn[i * 8 + 4] = factor;
    drawn[i * 8 + 5] = first;
    drawn[i * 8 + 6] = second;
    drawn[i * 8 + 7] = third;
}"""


def test_draws_are_the_forward_s() -> None:
    kernel, n = rawkern.RawKernel(SOURCE, "noise"), 40
    x, y, d = torch.rand(n), torch.empty(n), torch.zeros(n, 8)
    kernel[2, 32](x, y, d, n, 11)
    found = kernel.derive(block=32)
    grads = found(2, (x, y, d, n, 11), {"y": torch.ones(n)})
    right = 2 * x * (d[:, 0] + d[:, 1]) + d[:, 2] + d[:, 3] + torch.where(d[:, 4] > 0.5, d[:, 5], d[:, 6]) + d[:, 7]
    assert d[:, 5].std() > 0.5 and not torch.equal(d[:, 5], d[:, 6])
    torch.testing.assert_close(grads["x"], right)


def test_four_draws_by_number() -> None:
    """As dropout is published: (&rand.x)[k] in a loop."""
    source = """#include <curand_kernel.h>
    extern "C" __global__ void dropout(const float* x, float* y, float* mask, int n, float p, unsigned long long seed) {
        int at = blockIdx.x * blockDim.x + threadIdx.x;
        curandStatePhilox4_32_10_t state;
        curand_init(seed, at, 0, &state);
        for (int i = at * 4; i < n; i += gridDim.x * blockDim.x * 4) {
            float4 rand = curand_uniform4(&state);
            for (int k = 0; k < 4; ++k) {
                mask[i + k] = (&rand.x)[k] > p ? 1.f / (1.f - p) : 0.f;
                y[i + k] = (&rand.x)[k] > p ? x[i + k] / (1.f - p) : 0.f;
            }
        }
    }"""
    kernel, n = rawkern.RawKernel(source, "dropout"), 240
    x, y, mask = torch.rand(n), torch.empty(n), torch.zeros(n)
    kernel[2, 16](x, y, mask, n, 0.3, 5)
    found = kernel.derive(block=16)
    grads = found(2, (x, y, mask, n, 0.3, 5), {"y": torch.ones(n)})
    assert 0.5 < (mask > 0).float().mean() < 0.9 and found.atomics == 0
    torch.testing.assert_close(grads["x"], mask)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("curandState s; curand_init(1, 2, 3, &s); y[0] = x[0] * curand_uniform(&s);", "the type curandState is not known"),
        ("curandStatePhilox4_32_10_t s; curand_init(1, 2, 3, &s); y[0] = x[0] * curand_log_normal(&s, 0.f, 1.f);", "curand_log_normal is not replayed"),
        ("curandStatePhilox4_32_10_t s; curand_init(1, 2, 3, &s); float v = 0.f; for (int k = 0; k < 3; ++k) v += curand_normal(&s) * x[k]; y[0] = v;",
         "curand_normal, which keeps a second number, in a loop"),
        ("curandStatePhilox4_32_10_t s; y[0] = x[0] * curand_uniform(&s);", "has no value"),
    ],
)  # fmt: skip
def test_what_is_not_replayed_is_refused(body, reason) -> None:
    source = f'#include <curand_kernel.h>\nextern "C" __global__ void k(const float* x, float* y) {{ {body} }}'
    with pytest.raises(rawkern.NotDifferentiable, match=reason):
        rawkern.RawKernel(source, "k").derive(block=1)
