"""Global and shared memory: patterns of addresses, widths, strides."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

import rawkern
from rawkern.base.llvm import host
from rawkern.compile.nvrtc import run_nvrtc
from rawkern.compile.source import CPU_ARCH, from_text
from rawkern.engines.cpu.analysis.storage import lay_out_globals
from rawkern.engines.cpu.emit.instrument import Instrument
from rawkern.engines.cpu.runtime import jit
from tests.engines.cpu.emit.memory.kit import MODULE, SIZES, poison, ramp, same


def pattern(name: str, ctype: str, n: int, *rest, device: str, size: int | None = None):
    """Run one pattern; returns (input, what came out), the output as long as the input and poisoned first."""
    dtype = SIZES[ctype]
    x = ramp(size or n, dtype)
    out = poison(len(x), dtype, device)
    rest = tuple(r.to(device) if isinstance(r, torch.Tensor) else r for r in rest)
    MODULE.get_function(f"{name}<{ctype}>").forall(n, block=96)(n, x.to(device), out, *rest)
    return x, out.cpu()


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
    x, got = pattern("before", ctype, 77, device=device)
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


@pytest.mark.rawkern_unchecked("of the usual build's code")
@pytest.mark.timeout(60)
def test_lanes_very_far_apart_take_no_more_code() -> None:
    """The code asks for memory ahead of time: of no more lines than lanes, and of none where they are far apart."""
    kernel = rawkern.RawKernel("""extern "C" __global__ void k(const float* x, float* y) {
        __shared__ float s[32];
        long long i = threadIdx.x;
        s[i] = x[i << 39];
        __syncthreads();
        y[i << 39] = s[i] + 1;
        y[i * 40] = s[i];
    }""")
    x, y = torch.ones(32), torch.zeros(32)
    with pytest.raises(rawkern.OutOfBoundsError):
        kernel[1, 32](x, y)
    kernel[1, 1](x, y)
    assert y[0] == 1


UNROLLED = r"""
extern "C" __global__ void rows(int n, const int* x, int* y, int* sums) {  // NVVM unrolls the loop in part
    int s = 0;
    for (int c = threadIdx.x; c < n; c += 64) {
        s = 3 * s + x[blockIdx.x * n + c];
        y[blockIdx.x * n + c] = s;
    }
    sums[blockIdx.x * 64 + threadIdx.x] = s;
}
extern "C" __global__ void strided(int n, long long inner, const int* x, int* y) {
    for (int i = threadIdx.x; i < n; i += 64) y[i * inner] = x[i * inner] + 1;
}
extern "C" __global__ void shared(int n, const int* first, int* y) {  // the same from shared memory, to equal addresses
    __shared__ int s[32];
    int t = threadIdx.x, c = first[t];
    s[t] = t * t;
    __syncthreads();
    for (int k = 0; k < c; k++) y[32 * k + t] = s[(k + t) % 32] + s[k % 32];
    for (int k = c; k < n; k++) y[32 * k + t] = s[k % 32] - 7;
}
"""


@pytest.mark.parametrize("n", [1, 63, 64, 100, 191, 192, 256, 300, 511, 512, 513, 1000])
def test_loops_that_are_unrolled_in_part(device: str, n: int) -> None:
    """Lanes come to the second loop from the same round of the first, or from different ones."""
    x, y = torch.randint(-99, 99, (3, n), dtype=torch.int32), torch.full((3, n), -1, dtype=torch.int32, device=device)
    sums, want = torch.full((3, 64), -1, dtype=torch.int32, device=device), torch.zeros(3, 64, dtype=torch.int32)
    rawkern.RawKernel(UNROLLED, "rows")[3, 64](n, x.to(device), y, sums)
    for c in range(n):
        want[:, c % 64] = 3 * want[:, c % 64] + x[:, c]
        assert torch.equal(y[:, c].cpu(), want[:, c % 64])
    assert torch.equal(sums.cpu(), want)


@pytest.mark.parametrize("together", [True, False])
def test_lanes_that_leave_a_loop_in_different_rounds(device: str, together: bool) -> None:
    n, lanes = 9, torch.arange(32)
    first = torch.full((32,), 4) if together else lanes * 7 % 10
    y = torch.full((n, 32), -1, dtype=torch.int32, device=device)
    rawkern.RawKernel(UNROLLED, "shared")[1, 32](n, first.int().to(device), y)
    for k in range(n):
        before = ((k + lanes) % 32) ** 2 + k**2
        assert torch.equal(y[k].cpu().long(), torch.where(k < first, before, torch.full((32,), k**2 - 7)))


@pytest.mark.parametrize("inner", [1, 2, 0])
def test_strides_that_the_launch_tells(device: str, inner: int) -> None:
    n = 300
    x, y = torch.arange(2 * n, dtype=torch.int32), torch.full((2 * n,), -1, dtype=torch.int32, device=device)
    rawkern.RawKernel(UNROLLED, "strided")[1, 64](n, inner, x.to(device), y)
    want, at = torch.full((2 * n,), -1, dtype=torch.int32), inner * torch.arange(n)
    want[at] = x[at] + 1
    assert torch.equal(y.cpu(), want)


@pytest.mark.parametrize("name", ["rows", "strided"])
def test_whole_warps_access_neighbors_that_are_not_known_to_be(name: str) -> None:
    """The second of the two loops that NVVM makes of one loads vectors, too: four in a round."""
    result = run_nvrtc(from_text(UNROLLED), CPU_ARCH)
    translation = jit.Translation(result.ptx)
    text = translation.lower(name, lay_out_globals(translation.parsed()), "line", host(), Instrument).text
    assert len(re.findall(r"= load <32 x i32>, ptr %\w+, align 4", text)) >= 5
