"""libcu++ inside kernels: values against NumPy, atomics of all kinds, waiting. (NVRTC takes none of thrust's headers.)"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import rawkern

CODE = r"""
#include <cuda/atomic>
#include <cuda/latch>
#include <cuda/semaphore>
#include <cuda/std/array>
#include <cuda/std/bit>
#include <cuda/std/chrono>
#include <cuda/std/complex>
#include <cuda/std/expected>
#include <cuda/std/functional>
#include <cuda/std/limits>
#include <cuda/std/mdspan>
#include <cuda/std/numeric>
#include <cuda/std/optional>
#include <cuda/std/span>
#include <cuda/std/tuple>
#include <cuda/std/variant>
namespace std_ = cuda::std;

extern "C" __global__ void complexes(const double* x, double* out) {
    int t = threadIdx.x;
    std_::complex<double> z(x[t], 0.5), w(1, x[t]), f[6] = {z * w, z / w, std_::exp(z), std_::sqrt(w), std_::pow(z, w), std_::tanh(z)};
    for (int k = 0; k < 6; k++) { out[t * 12 + 2 * k] = f[k].real(); out[t * 12 + 2 * k + 1] = f[k].imag(); }
}
extern "C" __global__ void values(const double* x, double* out) {
    int t = threadIdx.x;
    double* o = out + t * 12;
    auto tuple = std_::tuple_cat(std_::make_tuple(t, x[t]), std_::make_tuple('c'));
    auto [a, b, c] = tuple;
    o[0] = std_::apply([](auto... v) { return (double(v) + ...); }, tuple) + (a + b + c) * 1000;
    std_::array<int, 5> array;
    for (int k = 0; k < 5; k++) array[k] = t * k;
    int sum = 0;
    for (int v : std_::span<int>(array.data() + 1, 3)) sum += v;
    o[1] = sum + array.back() + array.size() * 1000;
    std_::optional<int> odd;
    if (t & 1) odd = t;
    std_::expected<int, char> third = t % 3 ? std_::expected<int, char>(t) : std_::unexpected<char>('x');
    o[2] = odd.value_or(-1) + 1000 * (third ? *third : third.error());
    std_::variant<int, double, char> v;
    if (t % 3 == 0) v = t; else if (t % 3 == 1) v = t * 0.5; else v = 'q';
    o[3] = std_::visit([](auto a) { return double(a) * 2; }, v) + 1000 * v.index();
    std_::chrono::milliseconds time = std_::chrono::hours(2) + std_::chrono::minutes(t);
    o[4] = time.count() + std_::chrono::duration_cast<std_::chrono::seconds>(time).count();
    unsigned u = 0x80000001u >> (t & 7) | t;
    o[5] = std_::popcount(u) + 100 * std_::countl_zero(u) + 10000 * std_::countr_zero(u | 16) + 1000000 * std_::bit_width(u);
    o[6] = std_::rotl(u, t & 31);
    int memory[32];
    for (int k = 0; k < 32; k++) memory[k] = k * t;
    using E = std_::extents<int, std_::dynamic_extent, 4>;
    std_::mdspan<int, E, std_::layout_left> left(memory, E(8));
    std_::mdspan<int, E> right(memory, 8);
    o[7] = left(t & 7, 3) * 1000 + right(t & 7, 2) + left.extent(0) + right.stride(0);
    o[8] = std_::gcd(t + 12, 18) + std_::midpoint(3, t) * 100 + std_::accumulate(memory, memory + 32, 0) * 10000;
    o[9] = std_::bind_front([](int a, int b) { return a * 10 + b; }, 4)(t) + std_::invoke(std_::plus<>{}, 1, t);
    o[10] = std_::numeric_limits<float>::max() * std_::numeric_limits<double>::epsilon() + std_::numeric_limits<short>::min();
    o[11] = std_::bit_cast<int>((float)x[t]);
}

struct Pair { int count, value; };
extern "C" __global__ void atomics(unsigned long long* global, int* out) {
    __shared__ int plain;
    __shared__ double wide;
    __shared__ cuda::atomic<Pair, cuda::thread_scope_block> pair;
    int t = threadIdx.x;
    if (t == 0) { plain = 0; wide = 0; pair.store(Pair{1, 2}); }
    __syncthreads();
    cuda::atomic_ref<int, cuda::thread_scope_block> a(plain);
    cuda::atomic_ref<double, cuda::thread_scope_block> b(wide);
    a.fetch_add(t, cuda::memory_order_relaxed); a.fetch_max(3, cuda::memory_order_acq_rel); b.fetch_add(0.5, cuda::memory_order_release);
    cuda::atomic_ref<unsigned long long, cuda::thread_scope_device> g(*global);
    unsigned long long seen = g.load(cuda::memory_order_acquire);
    while (!g.compare_exchange_weak(seen, seen * 3 + 1, cuda::memory_order_seq_cst)) { }
    cuda::atomic_ref<unsigned long long, cuda::thread_scope_system> s(global[1]);
    s ^= 1ull << (t & 63); s++; s.fetch_min(~0ull);
    cuda::atomic_ref<unsigned, cuda::thread_scope_thread> own(((unsigned*)(global + 2))[t]);
    own.store(t); own |= 256; out[t * 4 + 3] = own.exchange(5, cuda::memory_order_acq_rel);
    Pair q = pair.load();
    while (!pair.compare_exchange_strong(q, Pair{q.count + 1, q.value * 2 % 1000003})) { }
    __syncthreads();
    out[t * 4] = a.load(); out[t * 4 + 1] = (int)(b.load() * 2); out[t * 4 + 2] = pair.load().count * 10000000 + pair.load().value;
}
extern "C" __global__ void waiting(int* out) {
    __shared__ cuda::atomic<int, cuda::thread_scope_block> flag;
    __shared__ alignas(8) char room[2][64];
    __shared__ int inside, most;
    using Latch = cuda::latch<cuda::thread_scope_block>;
    using Semaphore = cuda::counting_semaphore<cuda::thread_scope_block, 8>;
    auto latch = (Latch*)room[0];
    auto semaphore = (Semaphore*)room[1];
    int t = threadIdx.x, n = blockDim.x;
    if (t == 0) { flag.store(0); new (latch) Latch(n); new (semaphore) Semaphore(3); inside = most = 0; }
    __syncthreads();
    semaphore->acquire();
    atomicMax(&most, atomicAdd(&inside, 1) + 1);
    atomicSub(&inside, 1);
    semaphore->release();
    if (t == n - 1) { flag.store(7, cuda::memory_order_release); flag.notify_all(); } else flag.wait(0);
    out[t] = flag.load() * 100;
    latch->arrive_and_wait();
    out[t] += most;
    if (t % 2) { flag.fetch_add(1); while (flag.load(cuda::memory_order_acquire) < 7 + n / 2) { } }
    out[t] += 1000 * (latch->try_wait() && (t % 2 == 0 || flag.load() == 7 + n / 2));
}
"""


@pytest.fixture(scope="module")
def module():
    return rawkern.RawModule(code=CODE, options=("-default-device",))  # lambdas are for the device as well


def empty(shape, dtype, device: str) -> torch.Tensor:
    return torch.from_numpy(np.full(shape, 77, dtype)).to(device)


X = np.linspace(-3.7, 4.1, 64)
T = np.arange(64)


def test_complex(device, module):
    out = empty((64, 6, 2), np.float64, device)
    module.complexes[1, 64](torch.from_numpy(X).to(device), out)
    z, w = X + 0.5j, 1 + 1j * X
    want = np.stack([z * w, z / w, np.exp(z), np.sqrt(w), z**w, np.tanh(z)], 1)
    got = out.cpu().numpy()
    np.testing.assert_allclose(got[..., 0] + 1j * got[..., 1], want, rtol=1e-12)


def test_values(device, module):
    out = empty((64, 12), np.float64, device)
    module.values[1, 64](torch.from_numpy(X).to(device), out)
    u = (0x80000001 >> (T & 7)) | T
    kinds = np.choose(T % 3, [T * 2.0, T * 1.0, np.full(64, 226.0)])
    third = np.where(T % 3, T, ord("x"))
    low = np.array([(int(v) | 16) & -(int(v) | 16) for v in u])
    width = np.array([int(v).bit_length() for v in u])
    rotated = [(int(v) << (t & 31) | int(v) >> (32 - (t & 31))) & 0xFFFFFFFF for t, v in zip(T, u, strict=True)]
    limits = np.finfo(np.float32).max.astype(np.float64) * np.finfo(np.float64).eps - 32768
    want = [
        (T + X + 99) * 1001, T * 6 + T * 4 + 5000, np.where(T & 1, T, -1) + 1000 * third, kinds + 1000 * (T % 3),
        (120 + T) * 60 * 1001, [int(v).bit_count() for v in u] + 100 * (32 - width) + 10000 * np.log2(low) + 10**6 * width,
        rotated, ((T & 7) + 24) * T * 1000 + ((T & 7) * 4 + 2) * T + 8 + 4,
        [math.gcd(int(t) + 12, 18) for t in T] + (3 + (T - 3) // 2 + ((T < 3) & ((T - 3) % 2 != 0))) * 100 + T * 496 * 10000,
        40 + T + 1 + T, np.full(64, limits), X.astype(np.float32).view(np.int32),
    ]  # fmt: skip
    np.testing.assert_allclose(out.cpu(), np.stack([np.asarray(w, np.float64) for w in want], 1), rtol=1e-15)


def test_atomics(device, module):
    out, memory = empty((64, 4), np.int32, device), torch.zeros(2 + 32, dtype=torch.int64, device=device)
    module.atomics[1, 64](memory.view(torch.uint64), out)
    value, pair = 0, 2
    for _ in range(64):
        value, pair = (value * 3 + 1) & (2**64 - 1), pair * 2 % 1000003
    assert int(memory[0]) & (2**64 - 1) == value
    assert memory[2:].view(torch.int32).eq(5).all()
    want = np.stack([np.full(64, T.sum()), np.full(64, 64), np.full(64, 65 * 10**7 + pair), T | 256], 1)
    np.testing.assert_array_equal(out.cpu(), want)


@pytest.mark.parametrize("threads", [32, 96])
def test_waiting(device, module, threads):
    out = empty(threads, np.int32, device)
    module.waiting[1, threads](out)
    got = out.cpu().numpy()
    assert ((got >= 1701) & (got <= 1703)).all() and len(set(got)) == 1
