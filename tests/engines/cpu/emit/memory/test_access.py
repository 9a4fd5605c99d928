"""Memory: every space, width and pattern of addresses; nothing is written but what the kernel writes."""

from __future__ import annotations

import numpy as np
import pytest
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


# Patterns of addresses in global memory --------------------------------------------------------------------------------

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
template <class T> __global__ void behind(int n, const T* in, T* out) {   // pointers that point past what they read
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    const T* end = in + n; T* last = out + n - 1;
    if (i < n) last[-i] = end[-1 - i];
}
"""
MODULE = rawkern.RawModule(code=PATTERNS)


def pattern(name: str, ctype: str, n: int, *rest, device: str, size: int | None = None):
    """Run one pattern; returns (input, what came out), the output as long as the input and poisoned first."""
    dtype = SIZES[ctype]
    x = ramp(size or n, dtype)
    out = poison(len(x), dtype, device)
    rest = tuple(r.to(device) if isinstance(r, torch.Tensor) else r for r in rest)
    MODULE.get_function(f"{name}<{ctype}>").forall(n, block=96)(n, x.to(device), out, *rest)
    return x, out.cpu()


def same(got: torch.Tensor, want: torch.Tensor) -> None:
    np.testing.assert_array_equal(got.numpy(), want.numpy())


@pytest.mark.parametrize("ctype", SIZES)
def test_copies_keep_to_their_range(device, ctype):
    for offset in (0, 1, 3):
        x, got = pattern("copy", ctype, 333, offset, device=device, size=350)
        want = poison(350, x.dtype, "cpu")
        want[offset : offset + 333] = x[offset : offset + 333]
        same(got, want)


@pytest.mark.parametrize("ctype", SIZES)
def test_backwards(device, ctype):
    for name in ("reverse", "reversed_store"):
        x, got = pattern(name, ctype, 333, device=device)
        same(got, x.flip(0))
    x, got = pattern("behind", ctype, 77, device=device)
    same(got, x)


@pytest.mark.parametrize("ctype", SIZES)
def test_strides(device, ctype):
    for stride in (1, 2, 7):
        x, got = pattern("strided", ctype, 200, stride, device=device, size=200 * stride)
        want = poison(len(x), x.dtype, "cpu")
        want[::stride] = x[::stride]
        same(got, want)
    x, got = pattern("every_third", ctype, 100, device=device, size=300)
    want = poison(300, x.dtype, "cpu")
    want[1::3] = x[1::3]
    same(got, want)


@pytest.mark.parametrize("ctype", SIZES)
def test_gather_and_scatter(device, ctype):
    index = torch.randperm(333, generator=torch.Generator().manual_seed(1)).int()
    x, got = pattern("gather", ctype, 333, index, device=device)
    same(got, x[index.long()])
    x, got = pattern("gather", ctype, 333, index // 50, device=device)
    same(got, x[index.long() // 50])
    x, got = pattern("scatter", ctype, 333, index, device=device)
    want = torch.empty_like(x)
    want[index.long()] = x
    same(got, want)
    runs = torch.cat([torch.arange(40, 80), torch.arange(8), torch.full((52,), 7), torch.arange(60, 28, -1)]).int()
    x, got = pattern("gather", ctype, len(runs), runs, device=device)
    same(got, x[runs.long()])


@pytest.mark.parametrize("ctype", SIZES)
def test_broadcast_and_holes(device, ctype):
    x, got = pattern("broadcast", ctype, 333, device=device)
    i = torch.arange(333)
    same(got, torch.where(i % 2 == 1, x[0], x[i // 8]))
    x, got = pattern("odd_lanes", ctype, 333, device=device)
    want = poison(333, x.dtype, "cpu")
    want[1::2] = x[1::2]
    same(got, want)


@pytest.mark.rawkern_finding("RaceError")
def test_collisions_leave_one_of_the_values(device):
    code = r"""extern "C" __global__ void k(int n, int* out) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) { out[i / 5] = i; out[1000] = i; }
    }"""
    out = torch.full((1001,), -1, dtype=torch.int32, device=device)
    rawkern.RawKernel(code).forall(333)(333, out)
    got = out.cpu()
    assert (got[:67] // 5 == torch.arange(67)).all() and (got[67:1000] == -1).all() and 0 <= got[1000] < 333


def test_overlapping_stores_are_in_program_order(device):
    """A later store of the same lane wins, byte by byte."""
    code = r"""extern "C" __global__ void k(int n, unsigned* out) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i >= n) return;
        unsigned char* b = (unsigned char*)(out + i);
        out[i] = 0x11223344u;
        b[1] = 0xAA;
        *(unsigned short*)(b + 2) = 0xBEEF;
        b[3] = (unsigned char)i;
        unsigned short low = *(unsigned short*)b;
        ((unsigned char*)out)[4 * i] = low >> 8;
    }"""
    out = torch.zeros(100, dtype=torch.int32, device=device)
    rawkern.RawKernel(code).forall(100)(100, out)
    same(out.cpu().long() & 0xFFFFFFFF, torch.arange(100) << 24 | 0xEFAAAA)


# Widths, sign extension, vectors ---------------------------------------------------------------------------------------


def test_narrow_types_extend_and_truncate(device):
    code = r"""extern "C" __global__ void k(int n, const signed char* a, const unsigned char* b, const short* c, const unsigned short* d,
                                            int* out, signed char* e, short* f, bool* g, long long* h) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i >= n) return;
        out[i] = a[i] * 3 - b[i] * 5 + c[i] * 7 - d[i];
        e[i] = out[i]; f[i] = out[i]; g[i] = a[i] & 4; h[i] = (long long)a[i] << 33 | d[i];
    }"""
    n = 300
    a, b, c = ramp(n, torch.int8), ramp(n, torch.uint8), ramp(n, torch.int16)
    d = ramp(n, torch.int16, 9).view(torch.uint16)
    outs = [
        torch.empty(n, dtype=t, device=device) for t in (torch.int32, torch.int8, torch.int16, torch.bool, torch.int64)
    ]
    rawkern.RawKernel(code).forall(n)(n, *(t.to(device) for t in (a, b, c, d)), *outs)
    a64, b64, c64, d64 = (t.numpy().astype(np.int64) for t in (a, b, c, d))
    want = a64 * 3 - b64 * 5 + c64 * 7 - d64
    wants = (want, want.astype(np.int8), want.astype(np.int16), (a64 & 4) != 0, (a64 << 33) | d64)
    for got, w in zip(outs, wants, strict=True):
        np.testing.assert_array_equal(got.cpu().numpy(), w)


VECTORS = [("float2", "float", 2), ("float4", "float", 4), ("int2", "int", 2), ("int4", "int", 4), ("short2", "short", 2),
           ("short4", "short", 4), ("uchar2", "unsigned char", 2), ("uchar4", "unsigned char", 4), ("double2", "double", 2),
           ("longlong2", "long long", 2), ("float3", "float", 3)]  # fmt: skip


@pytest.mark.parametrize(("vector", "scalar", "count"), VECTORS)
def test_vector_types(device, vector, scalar, count):
    """Loads and stores of whole vectors: in order, reversed, gathered, with lanes off, and with swapped members."""
    code = rf"""
    __device__ {vector} turn({vector} v) {{ auto t = v.x; v.x = v.y; v.y = t; return v; }}
    extern "C" __global__ void k(int n, const {vector}* in, {vector}* a, {vector}* b, {vector}* c, {vector}* d, const int* index) {{
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i >= n) return;
        a[i] = in[i];
        b[n - 1 - i] = turn(in[i]);
        c[index[i]] = in[i];
        if (i % 3 == 1) d[i] = turn(in[index[i]]);
    }}"""
    n, dtype = 210, SIZES[scalar]
    x = ramp(n * count, dtype).view(n, count)
    index = torch.randperm(n, generator=torch.Generator().manual_seed(5))
    a, b, c, d = (poison(n * count, dtype, device) for _ in range(4))
    rawkern.RawKernel(code).forall(n, block=64)(n, x.flatten().to(device), a, b, c, d, index.int().to(device))
    turned = x[:, [1, 0, 2, 3][:count]]
    same(a.cpu().view(n, count), x)
    same(b.cpu().view(n, count), turned.flip(0))
    want = torch.empty_like(x)
    want[index] = x
    same(c.cpu().view(n, count), want)
    want = poison(n * count, dtype, "cpu").view(n, count)
    want[1::3] = turned[index][1::3]
    same(d.cpu().view(n, count), want)


def test_float4_with_uniform_and_partial_warps(device):
    code = r"""extern "C" __global__ void k(int n, const float4* in, float4* out, float* sums) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        float4 first = in[blockIdx.x];                        // one address for all lanes
        float4 s = make_float4(0, 0, 0, 0);
        for (int j = i; j < n; j += gridDim.x * blockDim.x) {
            float4 v = __ldg(in + j);
            s.x += v.x; s.y += v.y; s.z += v.z; s.w += v.w;
            out[j] = make_float4(v.w + first.x, v.z, v.y, v.x);
        }
        sums[i] = s.x + s.y * 2 + s.z * 3 + s.w * 4;
    }"""
    n, grid, block = 203, 2, 48
    x = ramp(4 * n, torch.float32).view(n, 4)
    out, sums = poison(4 * n, torch.float32, device), poison(grid * block, torch.float32, device)
    rawkern.RawKernel(code)[grid, block](n, x.flatten().to(device), out, sums)
    j = torch.arange(n)
    want = x.flip(1).double()
    want[:, 0] += x[j % (grid * block) // block, 0].double()
    torch.testing.assert_close(out.cpu().view(n, 4), want.float())
    weighted = (x.double() * torch.tensor([1.0, 2, 3, 4])).sum(1)
    want = torch.zeros(grid * block, dtype=torch.float64).index_add_(0, j % (grid * block), weighted)
    torch.testing.assert_close(sums.cpu().double(), want, rtol=1e-5, atol=1e-5)


# Shared memory ----------------------------------------------------------------------------------------------------------


def test_static_shared_arrays_do_not_overlap(device):
    code = r"""
    __device__ int helper(int t) { __shared__ int inner[40]; inner[t] = t * 11; __syncthreads(); return inner[39 - t]; }
    extern "C" __global__ void k(int* out, double* out2) {
        __shared__ char a[13]; __shared__ double b[40]; __shared__ short c[40]; __shared__ int2 d[40]; __shared__ float m[4][10];
        int t = threadIdx.x;
        if (t < 13) a[t] = t - 6;
        b[t] = t * 0.25; c[t] = -t; d[t] = make_int2(t, blockIdx.x); m[t / 10][t % 10] = t + 0.5f;
        __syncthreads();
        int h = helper(t);
        int at = blockIdx.x * 40 + t;
        out[at] = a[(t + 5) % 13] + c[39 - t] * 100 + d[(t + 1) % 40].x * 10000 + d[0].y * 1000000 + h * 7;
        out2[at] = b[39 - t] + m[3 - t / 10][9 - t % 10] * 1000;
    }"""
    out, out2 = poison(120, torch.int32, device), poison(120, torch.float64, device)
    rawkern.RawKernel(code)[3, 40](out, out2)
    t, block = np.arange(120) % 40, np.arange(120) // 40
    want = (t + 5) % 13 - 6 - (39 - t) * 100 + (t + 1) % 40 * 10000 + block * 1000000 + (39 - t) * 77
    np.testing.assert_array_equal(out.cpu().numpy(), want)
    np.testing.assert_array_equal(out2.cpu().numpy(), (39 - t) * 0.25 + (39 - t + 0.5) * 1000)


@pytest.mark.parametrize("bytes_", [512, 100 * 1024])
def test_dynamic_shared_memory(device, bytes_):
    code = r"""extern "C" __global__ void k(int words, int* out) {
        extern __shared__ __align__(16) int s[];
        __shared__ int fixed[33];
        unsigned size; asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(size));
        for (int i = threadIdx.x; i < words; i += blockDim.x) s[i] = i * 3 + blockIdx.x;
        if (threadIdx.x < 33) fixed[threadIdx.x] = -7;
        __syncthreads();
        int sum = 0;
        for (int i = threadIdx.x; i < words; i += blockDim.x) sum += s[words - 1 - i] ^ i;
        atomicAdd(out + blockIdx.x, sum + fixed[threadIdx.x % 33] + 7);
        if (threadIdx.x == 0) out[4 + blockIdx.x] = size;
    }"""
    out = torch.zeros(8, dtype=torch.int32, device=device)
    rawkern.RawKernel(code)[4, 100, bytes_](bytes_ // 4, out)
    i = np.arange(bytes_ // 4, dtype=np.int64)
    want = [(((len(i) - 1 - i) * 3 + b) ^ i).sum() for b in range(4)]
    np.testing.assert_array_equal(out.cpu().numpy(), np.array([*want, *[bytes_] * 4]).astype(np.int32))


def test_two_views_of_dynamic_shared_memory(device):
    """The usual way to have several arrays: pointers into one."""
    code = r"""extern "C" __global__ void k(float* out) {
        extern __shared__ char raw[];
        float* f = (float*)raw; double* d = (double*)(raw + 256); unsigned char* c = (unsigned char*)(d + 50);
        int t = threadIdx.x;
        f[t] = t * 0.5f; d[t] = t * 0.125; c[t] = 255 - t;
        __syncthreads();
        int r = (t * 7 + 3) % 50;
        out[t] = f[r] + (float)d[49 - r] + c[r];
    }"""
    out = poison(50, torch.float32, device)
    rawkern.RawKernel(code)((1,), (50,), (out,), shared_mem=256 + 400 + 50)
    r = (np.arange(50) * 7 + 3) % 50
    np.testing.assert_array_equal(out.cpu().numpy(), r * 0.5 + (49 - r) * 0.125 + 255 - r)


def test_generic_pointer_to_shared_or_global(device):
    code = r"""
    __device__ __noinline__ int sum(const int* p, int n) { int s = 0; for (int i = 0; i < n; i++) s += p[i]; return s; }
    __device__ __noinline__ void put(int* p, int v) { *p = v; }
    extern "C" __global__ void k(const int* in, int* out) {
        __shared__ int s[64]; int local[8];
        int t = threadIdx.x;
        s[t] = in[t] * 2;
        for (int i = 0; i < 8; i++) local[i] = t * i;
        __syncthreads();
        const int* p = t % 3 == 0 ? s + t / 2 : t % 3 == 1 ? in + t / 2 : local;
        put(&local[7], 1000); put(&s[(t + 1) % 64] + 0 * t, s[(t + 1) % 64]);
        __syncthreads();
        out[t] = sum(p, 5 + (t % 3 == 2 ? 3 : 0)) + (__isShared(p) ? 1000000 : 0) + (__isLocal(p) ? 2000000 : 0)
               + (__isGlobal(p) ? 3000000 : 0);
    }"""
    x = torch.arange(64, dtype=torch.int32) * 5 - 80
    out = poison(64, torch.int32, device)
    rawkern.RawKernel(code)[1, 64](x.to(device), out)
    v, want = x.numpy(), []
    for t in range(64):
        part = v[t // 2 : t // 2 + 5].sum()
        local = sum(t * i for i in range(7)) + 1000
        want.append([part * 2 + 1000000, part + 3000000, local + 2000000][t % 3])
    np.testing.assert_array_equal(out.cpu().numpy(), want)


# Local memory, constants, globals ----------------------------------------------------------------------------------------


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


# Ordered accesses, pointer arithmetic -------------------------------------------------------------------------------------


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


def test_inputs_and_neighbours_stay_untouched(device):
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


# Strides known at compile time, in whole and partial warps ---------------------------------------------------------------

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
