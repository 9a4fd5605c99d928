"""Local memory, constants, globals; ordered accesses and pointers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import rawkern
from tests.engines.cpu.emit.memory.kit import MODULE, SIZES, poison, ramp, same


def test_local_arrays_with_computed_indices(device):
    code = r"""extern "C" __global__ void k(int n, const int* x, int* out) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i >= n) return;
        int a[10]; double d[5]; unsigned char c[7]; short2 p[3];
        for (int k = 0; k < 10; k++) a[(k * 7 + i) % 10] = k + x[i];
        for (int k = 0; k < 5; k++) d[k] = k * 0.5 + i;
        for (int k = 0; k < 7; k++) c[k] = i + k;
        for (int k = 0; k < 3; k++) p[k] = make_short2(k - i, k + i);
        int j = x[i] & 3;
        a[j] += 1000; d[j] *= 2; c[j + 2] ^= 0xff; p[j % 3].y = -1;
        int s = 0;
        for (int k = 0; k < 10; k++) s = s * 3 + a[k];
        for (int k = 0; k < 5; k++) s += (int)(d[(k + j) % 5] * 2);
        for (int k = 6; k >= 0; k--) s = s * 5 + c[(k + j) % 7];
        for (int k = 0; k < 3; k++) s += p[(k + j) % 3].x * 11 + p[(k + j) % 3].y * 13;
        out[i] = s;
    }"""

    def run(i: int, x: int) -> int:
        a = [0] * 10
        for k in range(10):
            a[(k * 7 + i) % 10] = k + x
        d = [k * 0.5 + i for k in range(5)]
        c = [(i + k) & 255 for k in range(7)]
        p = [[k - i, k + i] for k in range(3)]
        j = x & 3
        a[j] += 1000
        d[j] *= 2
        c[j + 2] ^= 0xFF
        p[j % 3][1] = -1
        s = 0
        for v in a:
            s = s * 3 + v
        s += sum(int(v * 2) for v in d)
        for k in range(6, -1, -1):
            s = s * 5 + c[(k + j) % 7]
        s += sum(u * 11 + v * 13 for u, v in p)
        return (s + 2**31) % 2**32 - 2**31

    x = torch.from_numpy(np.random.default_rng(2).integers(-50, 50, 300).astype(np.int32))
    out = poison(300, torch.int32, device)
    rawkern.RawKernel(code).forall(300)(300, x.to(device), out)
    np.testing.assert_array_equal(out.cpu().numpy(), [run(i, v) for i, v in enumerate(x.tolist())])


def test_insertion_sort_in_local_memory(device):
    code = r"""extern "C" __global__ void k(int n, const float* x, float* out) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i >= n) return;
        float a[33]; int m = 1 + i % 33;
        for (int k = 0; k < m; k++) {
            float v = x[i * 33 + k]; int j = k;
            while (j > 0 && a[j - 1] > v) { a[j] = a[j - 1]; j--; }
            a[j] = v;
        }
        for (int k = 0; k < m; k++) out[i * 33 + k] = a[k];
    }"""
    n = 150
    x = torch.randn(n, 33, generator=torch.Generator().manual_seed(0))
    out = poison(n * 33, torch.float32, device)
    rawkern.RawKernel(code).forall(n, block=64)(n, x.flatten().to(device), out)
    got = out.cpu().view(n, 33)
    for i in range(n):
        m = 1 + i % 33
        assert torch.equal(got[i, :m], x[i, :m].sort().values)
        assert got[i, m:].isnan().all()


def test_variables_of_the_module(device):
    code = r"""
    struct Pair { int a; double b; };
    __constant__ float weights[5] = {0.5f, -1.25f, 3.0f, 0.0f, 1e-3f};
    __constant__ Pair pairs[3] = {{1, 2.5}, {-3, 4.25}};
    __device__ int counter = 7;
    __device__ short table[2][3] = {{1, -2, 3}, {-4, 5, -6}};
    __device__ const char text[] = "lanes";
    __device__ int* where = &counter;
    __device__ const char* words[] = {"zero", "one", "two"};
    __device__ unsigned long long big = 0x123456789abcdef0ull;
    __device__ int zeros[4];
    extern "C" __global__ void k(float* out, int n) {
        int i = threadIdx.x;
        if (i >= n) return;
        out[i] = weights[i % 5] + pairs[i % 3].a * 100 + (float)pairs[i % 3].b * 10000 + table[i % 2][i % 3] + text[i % 6]
               + words[i % 3][i % 3] * 3 + (float)(big >> 60) + zeros[i % 4] + weights[2];
        if (i == 5) atomicAdd(where, 35);
    }"""
    module = rawkern.RawModule(code=code)
    out = poison(40, torch.float32, device)
    module.k[1, 64](out, 40)
    weights = np.array([0.5, -1.25, 3.0, 0.0, 1e-3])
    table, i = [[1, -2, 3], [-4, 5, -6]], np.arange(40)
    words = ["zero", "one", "two"]
    want = weights[i % 5] + np.array([1, -3, 0])[i % 3] * 100 + np.array([2.5, 4.25, 0])[i % 3] * 10000
    want += [table[k % 2][k % 3] + b"lanes\0"[k % 6] + ord(words[k % 3][k % 3]) * 3 + 1 + 3.0 for k in range(40)]
    np.testing.assert_allclose(out.cpu().numpy(), want.astype(np.float32), rtol=1e-6)
    counter = module.get_global("counter", device=device)
    assert counter.tolist() == [42]
    module.get_global("zeros", device=device).copy_(torch.tensor([0, 5, 0, 0], dtype=torch.int32))
    module.k[1, 64](out, 40)
    np.testing.assert_allclose(out.cpu().numpy(), (want + 5.0 * (i % 4 == 1)).astype(np.float32), rtol=1e-6)


def test_volatile_cached_and_fenced(device):
    code = r"""extern "C" __global__ void k(int n, volatile int* v, const int* c, int* out, volatile float4* w) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        __shared__ volatile int s[64];
        s[threadIdx.x] = i * 2;
        __threadfence_block();
        if (i < n) {
            v[i] = v[i] + 1; v[i] += 2;
            __threadfence(); __threadfence_system();
            __stcg(out + i, v[i] + __ldcg(c + i) + __ldca(c + i) + __ldcs(c + i) + __ldg(c + n - 1 - i) + __ldcv(c) + s[threadIdx.x]);
            w[i].y = w[i].x + w[i / 2].w;
        }
    }"""
    n = 100
    v, c = ramp(n, torch.int16).int(), ramp(n, torch.int16, 4).int()
    w = ramp(4 * n, torch.float32)
    v2, out, w2 = v.clone().to(device), poison(n, torch.int32, device), w.clone().to(device)
    rawkern.RawKernel(code).forall(n, block=64)(n, v2, c.to(device), out, w2)
    same(v2.cpu(), v + 3)
    same(out.cpu(), v + 3 + 3 * c + c.flip(0) + c[0] + 2 * torch.arange(n).int())
    w = w.view(n, 4)
    same(w2.cpu().view(n, 4)[:, 1], w[:, 0] + w[torch.arange(n) // 2, 3])


def test_index_arithmetic_wraps_as_32_bits(device):
    """Unsigned 32-bit indices wrap within a warp; the addresses must too."""
    code = r"""extern "C" __global__ void k(int n, const int* x, int* out, unsigned start, int shift) {
        unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i >= n) return;
        unsigned a = (start + i) & 63u, b = (start + i);
        unsigned char c = i + 250;
        out[i] = x[a] + 1000 * x[b - start] + (b < 100 ? x[b] * 7 : 0) + x[c & 127] * 3;
        int s = (int)(i * 67108864u) >> shift;          // i << 26 passes through the sign
        out[n + i] = x[64 + s];
        unsigned long long w = (unsigned long long)(start + i) * 4;   // wraps before it is widened
        out[2 * n + i] = (int)(w >> 32) * 1000 + (int)(w & 0xffff);
        out[3 * n + i] = *(const int*)((const char*)x + ((start + i) * 4 + 64u) % 512u);
    }"""
    n, start = 64, 0xFFFFFFF0
    x = torch.arange(128, dtype=torch.int32) * 3 + 1
    out = poison(4 * n, torch.int32, device)
    rawkern.RawKernel(code)[1, 64](n, x.to(device), out, start, 27)
    got, v = out.cpu().numpy().reshape(4, n), x.numpy().astype(np.int64)
    i = np.arange(n)
    b = (start + i) % 2**32
    want = (
        v[(start + i) & 63]
        + 1000 * v[i]
        + np.where(b < 100, v[np.minimum(b, 99)] * 7, 0)
        + v[(i + 250) % 256 & 127] * 3
    )
    np.testing.assert_array_equal(got[0], want)
    s = ((i << 26) + 2**31) % 2**32 - 2**31 >> 27
    np.testing.assert_array_equal(got[1], v[64 + s])
    w = b * 4
    np.testing.assert_array_equal(got[2], (w >> 32) * 1000 + (w & 0xFFFF))


def test_far_offsets_that_cancel(device):
    """Indices near 2^31 and beyond 32 bits, brought back by the pointer they are added to."""
    code = r"""extern "C" __global__ void k(int n, const int* x, int* out, long long far, unsigned top, int low) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i >= n) return;
        const int* p = x - far;
        const int* q = x - top;
        const int* r = x - low;
        out[i] = p[far + i];
        out[n + i] = q[(unsigned long long)top + i];
        out[2 * n + i] = r[low + i];                  // low is negative
        out[3 * n + i] = *(x + n - 1 - i);
        out[4 * n + i] = (x + 3 * i)[-2 * i];
    }"""
    n = 77
    x = torch.arange(3 * n, dtype=torch.int32) * 5 - 3
    out = poison(5 * n, torch.int32, device)
    rawkern.RawKernel(code).forall(n)(n, x.to(device), out, 2**40, 0x7FFFFFF0, -(2**31) + 100)
    got, i = out.cpu().view(5, n), torch.arange(n)
    for row, index in enumerate((i, i, i, n - 1 - i, i)):
        same(got[row], x[index])


def test_structs(device):
    code = r"""
    struct Inner { short s; char c; };
    struct Particle { double mass; float3 at; Inner tag; unsigned char flags[5]; };
    union Bits { float f; unsigned u; unsigned char b[4]; };
    struct Params { int n; float scale; Particle base; const float* x; };
    extern "C" __global__ void k(Params p, Particle* out, unsigned* bits) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i >= p.n) return;
        Particle q = p.base;
        q.mass *= i; q.at.x += p.x[i]; q.at.z = p.scale * i; q.tag.s -= i; q.tag.c = i; q.flags[i % 5] = 200 + i % 50;
        out[i] = q;
        Bits u; u.f = p.x[i]; u.b[0] ^= 0xff; u.u += 0x100;
        bits[i] = u.u ^ __float_as_uint(-p.x[i]) ^ (unsigned)__double_as_longlong((double)i);
    }"""
    inner = [("s", "<i2"), ("c", "i1")]
    particle = np.dtype({"names": ["mass", "at", "tag", "flags"], "formats": ["<f8", ("<f4", 3), np.dtype(inner, align=True), ("u1", 5)],
                         "offsets": [0, 8, 20, 24], "itemsize": 32})  # fmt: skip
    n = 90
    x = ramp(n, torch.float32)
    base = {"mass": 1.5, "at": (1.0, 2.0, 3.0), "tag": {"s": 300, "c": 1}, "flags": (1, 2, 3, 4, 5)}
    out, bits = torch.zeros(n * 32, dtype=torch.uint8, device=device), poison(n, torch.int32, device)
    kernel = rawkern.RawKernel(code)
    kernel.forall(n)({"n": n, "scale": 0.25, "base": base, "x": x.to(device)}, out, bits)
    got, i, v = out.cpu().numpy().view(particle), np.arange(n), x.numpy()
    np.testing.assert_array_equal(got["mass"], 1.5 * i)
    np.testing.assert_array_equal(
        got["at"], np.stack([1 + v, np.full(n, 2, np.float32), (i * 0.25).astype(np.float32)], 1)
    )
    np.testing.assert_array_equal(got["tag"]["s"], 300 - i)
    np.testing.assert_array_equal(got["tag"]["c"], i)
    flags = np.tile(np.arange(1, 6, dtype=np.uint8), (n, 1))
    flags[i, i % 5] = 200 + i % 50
    np.testing.assert_array_equal(got["flags"], flags)
    u = v.view(np.uint32)
    low = (i.astype(np.float64).view(np.uint64) & 0xFFFFFFFF).astype(np.uint32)
    np.testing.assert_array_equal(bits.cpu().numpy().view(np.uint32), ((u ^ 0xFF) + 0x100) ^ (u ^ 0x80000000) ^ low)


def test_memory_of_the_device_heap(device):
    code = r"""extern "C" __global__ void k(int n, int* out) {
        int i = threadIdx.x;
        if (i >= n) return;
        int* p = (int*)malloc((i + 1) * sizeof(int));
        for (int k = 0; k <= i; k++) p[k] = k * i;
        int s = 0;
        for (int k = i; k >= 0; k--) s += p[k];
        free(p);
        int* q = new int[4]; q[i % 4] = s; out[i] = q[i % 4]; delete[] q;
    }"""
    out = poison(50, torch.int32, device)
    rawkern.RawKernel(code)[1, 64](50, out)
    assert out.tolist() == [i * i * (i + 1) // 2 for i in range(50)]


def test_inputs_and_neighbors_stay_untouched(device):
    """Masked stores of every width into the middle of a buffer leave all other bytes."""
    for ctype in ("unsigned char", "short", "float", "double"):
        dtype = SIZES[ctype]
        whole = torch.zeros(1024, dtype=torch.uint8, device=device)
        size = dtype.itemsize
        start, n = 3 * 16, 37
        view = whole[start : start + n * size].view(dtype)
        x = torch.full((n,), 1 if not dtype.is_floating_point else -1.1, dtype=dtype, device=device)
        MODULE.get_function(f"copy<{ctype}>")[1, 64](n, x, view, 0)
        got = whole.cpu()
        assert (got[:start] == 0).all() and (got[start + n * size :] == 0).all()
        assert torch.equal(view, x)


SPACED = r"""
template <class T> __global__ void spaced(int n, const T* in, T* out) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    T* o = out + i * 9;
    o[0] = in[2 * i]; o[1] = in[2 * i + 1]; o[2] = in[3 * i]; o[3] = in[3 * i + 2]; o[4] = in[4 * i + 1]; o[5] = in[n - i];
    o[6] = in[5 * i]; o[7] = in[3 * n - 2 * i]; o[8] = in[~i + n];
}
template <class T> __global__ void rows(const T* in, T* out, int pitch) {   // the same in segments, and stored backwards
    int x = threadIdx.x, y = threadIdx.y, back = blockDim.x - 1 - x;
    out += y * pitch;
    in += y * pitch;
    out[back] = in[2 * x]; out[pitch * blockDim.y + x] = in[3 * x + 1]; out[2 * pitch * blockDim.y + back] = in[back];
}
"""


@pytest.mark.parametrize("ctype", SIZES)
def test_known_strides(device, ctype):
    module, dtype = rawkern.RawModule(code=SPACED), SIZES[ctype]
    kernel = module.get_function(f"spaced<{ctype}>")
    for n in (96, 77):
        x = ramp(5 * n, dtype)  # ends with the last element read, so that whole vectors must not reach beyond it
        out = poison(n * 9, dtype, device)
        kernel.forall(n, block=64)(n, x.to(device), out)
        i = torch.arange(n)
        where = [2 * i, 2 * i + 1, 3 * i, 3 * i + 2, 4 * i + 1, n - i, 5 * i, 3 * n - 2 * i, n - 1 - i]
        same(out.cpu().view(n, 9), torch.stack([x[w] for w in where], 1))
    kernel = module.get_function(f"rows<{ctype}>")
    for block in ((16, 4), (8, 6), (32, 2), (64, 1)):
        width, height = block
        pitch = 3 * width + 1
        x, out = ramp(pitch * height, dtype), poison(3 * pitch * height, dtype, device)
        kernel[1, block](x.to(device), out, pitch)
        rows, w = x.view(height, pitch), torch.arange(width)
        want = poison(3 * pitch * height, dtype, "cpu").view(3, height, pitch)
        want[0, :, :width] = rows[:, 2 * w].flip(1)
        want[1, :, :width] = rows[:, 3 * w + 1]
        want[2, :, :width] = rows[:, :width]
        same(out.cpu().view(3, height, pitch), want)


def test_index_in_a_wider_register(device):
    """``cvt`` may read the low half of a 64-bit register, also of one whose lanes differ by a constant step."""
    code = r"""extern "C" __global__ void k(unsigned char* out) {
        __shared__ unsigned char s[96];
        long long t = threadIdx.x, i;
        s[t] = t * 3;
        asm volatile("cvt.s64.s32 %0, %1;" : "=l"(i) : "l"(t));
        __syncthreads();
        unsigned char v = s[i];
        __syncthreads();
        out[i] = v + 1;
    }"""
    out = torch.full((96,), 77, dtype=torch.uint8, device=device)
    rawkern.RawKernel(code)[1, 96](out)
    assert out.tolist() == [(3 * t + 1) % 256 for t in range(96)]
