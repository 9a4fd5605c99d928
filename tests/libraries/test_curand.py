"""curand's device functions inside kernels: Philox against NumPy's arithmetic, the others by their own rules and moments."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import rawkern
from rawkern.compile.toolchain import toolchain

pytestmark = pytest.mark.skipif(
    not any("curand_kernel.h" in path for path, _, _ in toolchain().stamps),
    reason="curand's headers are not installed: pip install nvidia-curand",
)

CODE = r"""
#include <curand_kernel.h>
extern "C" __global__ void philox(unsigned long long seed, unsigned long long offset, unsigned* bits, float* uniform, double* wide) {
    int t = blockIdx.x * blockDim.x + threadIdx.x;
    curandStatePhilox4_32_10_t s;
    curand_init(seed, t, offset, &s);
    for (int k = 0; k < 3; k++) bits[t * 7 + k] = curand(&s);
    uint4 four = curand4(&s);
    bits[t * 7 + 3] = four.x; bits[t * 7 + 4] = four.y; bits[t * 7 + 5] = four.z; bits[t * 7 + 6] = four.w;
    uniform[t] = curand_uniform(&s);
    wide[t] = curand_uniform_double(&s);
}
template <class State> __device__ void moments(State& s, float* out) {
    out[0] = curand_uniform(&s); out[1] = curand_normal(&s); out[2] = curand_normal_double(&s);
    out[3] = curand_poisson(&s, 4.5); out[4] = curand_log_normal(&s, 0.f, 0.5f); out[5] = curand_uniform_double(&s);
}
extern "C" __global__ void xorwow(unsigned* bits, float* out) {
    int t = blockIdx.x * blockDim.x + threadIdx.x;
    curandStateXORWOW_t s, skipped;
    curand_init(1234, t, 0, &s);
    skipped = s;
    skipahead(5, &skipped);
    for (int k = 0; k < 5; k++) bits[t * 6 + k] = curand(&s);
    bits[t * 6 + 5] = curand(&s) == curand(&skipped);
    moments(s, out + t * 6);
}
extern "C" __global__ void mrg(unsigned* bits, float* out) {
    int t = blockIdx.x * blockDim.x + threadIdx.x;
    curandStateMRG32k3a_t s;
    curand_init(77, 0, t * 3, &s);                 // three numbers of one sequence each
    for (int k = 0; k < 3; k++) bits[t * 3 + k] = curand(&s);
    curand_init(77, t, 0, &s);
    moments(s, out + t * 6);
}
extern "C" __global__ void sobol(const unsigned* vectors, unsigned start, unsigned* bits, float* uniform) {
    int t = threadIdx.x;
    auto directions = (curandDirectionVectors32_t*)vectors;
    curandStateSobol32_t s;
    curand_init(directions[t % 2], start + t / 2 * 4, &s);
    for (int k = 0; k < 4; k++) bits[t * 4 + k] = curand(&s);
    uniform[t] = curand_uniform(&s);
}
"""


@pytest.fixture(scope="module")
def curand():
    return rawkern.RawModule(code=CODE)


def empty(shape, dtype, device: str) -> torch.Tensor:
    return torch.from_numpy(np.full(shape, 77, dtype)).to(device)


def unit(bits: np.ndarray) -> np.ndarray:
    """What `curand_uniform` makes of 32 bits: rounded to float32, scaled, half a step added."""
    return (bits.astype(np.float32).astype(np.float64) * 2.0**-32 + 2.0**-33).astype(np.float32)


def philox(counter: np.ndarray, key: int) -> np.ndarray:
    """Philox4x32-10 (Salmon et al., 2011) of counters (n, 4)."""
    c = counter.astype(np.uint64)
    k0, k1, low = key & 0xFFFFFFFF, key >> 32, np.uint64(0xFFFFFFFF)
    for _ in range(10):
        p0, p1 = c[:, 0] * np.uint64(0xD2511F53), c[:, 2] * np.uint64(0xCD9E8D57)
        c = np.stack([(p1 >> np.uint64(32)) ^ c[:, 1] ^ np.uint64(k0), p1 & low,
                      (p0 >> np.uint64(32)) ^ c[:, 3] ^ np.uint64(k1), p0 & low], 1)  # fmt: skip
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return c.astype(np.uint32)


@pytest.mark.parametrize("offset", [0, 6, 2**34 + 4])
def test_philox(device, curand, offset):
    seed, n = 0x123456789ABCDEF, 70
    bits, uniform, wide = empty((n, 7), np.int32, device), empty(n, np.float32, device), empty(n, np.float64, device)
    curand.philox[2, 35](seed, offset, bits.view(torch.uint32), uniform, wide)
    stream = []  # 16 numbers of each thread's sequence from `offset` on
    for block in range(5):
        count = offset // 4 + block
        counter = np.array([[count & 0xFFFFFFFF, count >> 32, t, 0] for t in range(n)])
        stream.append(philox(counter, seed))
    numbers = np.concatenate(stream, 1)[:, offset % 4 :]
    want = np.concatenate([numbers[:, :3], numbers[:, 3:7]], 1)
    np.testing.assert_array_equal(bits.cpu().numpy().view(np.uint32), want)
    np.testing.assert_array_equal(uniform.cpu(), unit(numbers[:, 7]))
    assert ((wide > 0) & (wide <= 1)).all() and len(set(wide.tolist())) == n


def check_moments(out: torch.Tensor) -> None:
    """Mean and standard deviation of what `moments` draws, within five standard errors."""
    x = out.cpu().numpy().reshape(-1, 6).astype(np.float64)
    root = np.sqrt(len(x))
    known = [(0.5, 12**-0.5), (0, 1), (0, 1), (4.5, 4.5**0.5), (np.exp(0.125), 0.604), (0.5, 12**-0.5)]
    for column, (mean, deviation) in zip(x.T, known, strict=True):
        assert abs(column.mean() - mean) < 5 * deviation / root
        assert abs(column.std() / deviation - 1) < 0.1
    assert (x[:, 3] == x[:, 3].astype(int)).all()
    correlations = np.corrcoef(x.T) - np.eye(6)
    assert abs(correlations).max() < 6 / root


def test_xorwow(device, curand):
    """Marsaglia's recurrence holds between the numbers of a thread, and skipping lands where drawing does."""
    n = 2048
    bits, out = empty((n, 6), np.int32, device), empty((n, 6), np.float32, device)
    curand.xorwow[16, 128](bits.view(torch.uint32), out)
    drawn = bits.cpu().numpy().view(np.uint32)
    assert (drawn[:, 5] == 1).all()
    assert len(np.unique(drawn[:, :5])) > 5 * n - 20
    check_moments(out)


def test_mrg32k3a(device, curand):
    """L'Ecuyer's recurrences, of which one thread's numbers continue the other's."""
    n = 2048
    bits, out = empty((n, 3), np.int32, device), empty((n, 6), np.float32, device)
    curand.mrg[16, 128](bits.view(torch.uint32), out)
    drawn = bits.cpu().numpy().view(np.uint32).ravel()
    assert len(np.unique(drawn)) > 3 * n - 20
    assert abs((drawn / 2**32).mean() - 0.5) < 5 * 12**-0.5 / np.sqrt(len(drawn))
    check_moments(out)


def test_sobol(device, curand):
    """Bits by Gray code from the direction numbers; the second dimension has those of the polynomial x + 1."""
    one = [1 << (31 - k) for k in range(32)]
    two = [1 << 31]
    for _ in range(31):
        two.append(two[-1] ^ two[-1] >> 1)
    directions = np.array([one, two], np.uint32)
    bits, uniform = empty((64, 4), np.int32, device), empty(64, np.float32, device)
    start = 1000
    vectors = torch.from_numpy(directions.view(np.int32).ravel()).to(device)
    curand.sobol[1, 64](vectors, start, bits.view(torch.uint32), uniform)

    def value(dimension: int, index: int) -> int:
        gray, x = index ^ index >> 1, 0
        for k in range(32):
            if gray >> k & 1:
                x ^= int(directions[dimension, k])
        return x

    want = np.array([[value(t % 2, start + t // 2 * 4 + k) for k in range(5)] for t in range(64)], np.uint32)
    np.testing.assert_array_equal(bits.cpu().numpy().view(np.uint32), want[:, :4])
    np.testing.assert_array_equal(uniform.cpu(), unit(want[:, 4]))
