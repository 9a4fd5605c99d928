"""Grids, blocks and special registers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import rawkern
from tests.engines.cpu.emit.kit import POISON, ints

WHERE = r"""extern "C" __global__ void k(int* out) {
    int block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    int thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    int at = (block * blockDim.x * blockDim.y * blockDim.z + thread) * 8;
    out[at] += threadIdx.x; out[at + 1] += threadIdx.y; out[at + 2] += threadIdx.z;
    out[at + 3] += blockIdx.x; out[at + 4] += blockIdx.y; out[at + 5] += blockIdx.z;
    unsigned lane; asm("mov.u32 %0, %%laneid;" : "=r"(lane));
    out[at + 6] += lane;
    unsigned le; asm("mov.u32 %0, %%lanemask_le;" : "=r"(le));
    out[at + 7] += __popc(le) * 100 + (blockDim.x * 7 + blockDim.y * 5 + blockDim.z * 3 + gridDim.x * 2 + gridDim.y + gridDim.z);
}"""


@pytest.mark.parametrize(
    ("grid", "block"),
    [
        ((1,), (1,)), ((3,), (33,)), ((2, 3), (7, 5)), ((2, 2, 3), (3, 4, 5)), ((1, 2), (32, 3)), ((2,), (64, 2, 2)),
        ((1, 1, 4), (1, 1, 40)), ((1,), (1, 64)), ((1,), (16, 16)), ((2,), (8, 3, 5)), ((1,), (1024,)), ((1,), (96, 1, 3)),
        ((1,), (1, 1, 64)), ((5, 1, 2), (31, 2)),
    ],
)  # fmt: skip
def test_every_thread_knows_its_place(device, grid, block):
    g, b = (*grid, 1, 1)[:3], (*block, 1, 1)[:3]
    blocks, threads = int(np.prod(g)), int(np.prod(b))
    out = torch.zeros(blocks * threads + 5, 8, dtype=torch.int32, device=device)
    rawkern.RawKernel(WHERE)(grid, block, (out,))
    t, bl = np.arange(threads), np.arange(blocks)
    want = np.zeros((blocks, threads, 8), dtype=np.int64)
    want[:, :, 0], want[:, :, 1], want[:, :, 2] = t % b[0], t // b[0] % b[1], t // (b[0] * b[1])
    want[:, :, 3] = (bl % g[0])[:, None]
    want[:, :, 4] = (bl // g[0] % g[1])[:, None]
    want[:, :, 5] = (bl // (g[0] * g[1]))[:, None]
    want[:, :, 6] = t % 32
    want[:, :, 7] = (t % 32 + 1) * 100 + b[0] * 7 + b[1] * 5 + b[2] * 3 + g[0] * 2 + g[1] + g[2]
    np.testing.assert_array_equal(out[:-5].cpu().numpy().reshape(want.shape), want)
    assert (out[-5:] == 0).all(), "threads beyond the last one ran"


def test_one_kernel_with_many_block_shapes(device):
    """The same kernel object, launched with shapes that need different code, keeps them apart."""
    kernel = rawkern.RawKernel(WHERE)
    for block in [(40,), (32, 2), (5, 7), (40,), (64, 2), (1, 50)]:
        b = (*block, 1, 1)[:3]
        threads = int(np.prod(b))
        out = torch.zeros(2 * threads, 8, dtype=torch.int32, device=device)
        kernel(2, block, (out,))
        t = np.arange(threads)
        got = out.cpu().numpy().reshape(2, threads, 8)
        for k, want in enumerate((t % b[0], t // b[0] % b[1], t // (b[0] * b[1]))):
            np.testing.assert_array_equal(got[:, :, k], np.stack([want, want]), err_msg=f"{block}")


def test_grid_stride_loop(device):
    code = r"""extern "C" __global__ void k(int n, const int* x, int* out) {
        for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) out[i] = x[i] * 3 - i;
    }"""
    kernel, x = rawkern.RawKernel(code), ints(5003)
    for grid, block in [(1, 1), (2, 33), (7, 96), (3, 1024)]:
        out = torch.full((5003,), POISON, dtype=torch.int32, device=device)
        kernel[grid, block](5003, x.to(device), out)
        np.testing.assert_array_equal(out.cpu().numpy(), x.numpy() * 3 - np.arange(5003), err_msg=f"{grid}, {block}")


@pytest.mark.parametrize("shape", [(37, 19), (64, 4), (16, 40), (1, 70)])
def test_image_in_two_dimensions(device, shape):
    code = r"""extern "C" __global__ void k(int w, int h, const float* in, float* out) {
        int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
        if (x >= w || y >= h) return;
        float s = 0;
        for (int dy = -1; dy <= 1; dy++)
            for (int dx = -1; dx <= 1; dx++) {
                int xx = x + dx, yy = y + dy;
                if (xx < 0 || xx >= w || yy < 0 || yy >= h) continue;
                s += in[yy * w + xx] * (1 + dx + 2 * dy);
            }
        out[y * w + x] = s;
    }"""
    w, h = shape
    image = torch.randn(h, w, dtype=torch.float64).float()
    weights = torch.tensor([[1 + dx + 2 * dy for dx in (-1, 0, 1)] for dy in (-1, 0, 1)], dtype=torch.float64)
    want = torch.nn.functional.conv2d(image.double()[None, None], weights[None, None], padding=1)[0, 0]
    kernel = rawkern.RawKernel(code)
    for block in [(16, 16), (32, 4), (8, 3), (5, 7)]:
        out = torch.full((h, w), float("nan"), device=device)
        kernel((-(-w // block[0]), -(-h // block[1])), block, (w, h, image.to(device), out))
        torch.testing.assert_close(out.cpu().double(), want, rtol=1e-5, atol=1e-5)


def test_large_grid_of_small_blocks(device):
    code = r"""extern "C" __global__ void k(int* out) { out[blockIdx.y * gridDim.x + blockIdx.x] = blockIdx.x * 3 + blockIdx.y; }"""
    out = torch.full((300, 1001), POISON, dtype=torch.int32, device=device)
    rawkern.RawKernel(code)((1001, 300), 1, (out,))
    want = torch.arange(1001)[None, :] * 3 + torch.arange(300)[:, None]
    assert torch.equal(out.cpu(), want.int())


def test_device_time_goes_on(device):
    code = r"""extern "C" __global__ void k(long long* out) {
        long long a = clock64(); unsigned long long t; asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
        int c = 0; while (clock64() - a < 20000) c++;
        unsigned long long u; asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(u));
        out[threadIdx.x] = clock64() - a; out[32 + threadIdx.x] = u - t;
    }"""
    out = torch.full((64,), -1, dtype=torch.int64, device=device)
    rawkern.RawKernel(code)[1, 32](out)
    assert (out[:32] >= 20000).all() and (out[32:] >= 0).all()


def test_threads_end_in_a_device_function(device):
    """exit in a function that is called, also under a barrier of the others."""
    code = r"""
    __device__ __noinline__ int checked(int x) {
        if (x % 3 == 0) asm volatile("exit;");
        return x * 2;
    }
    extern "C" __global__ void k(const int* x, int* out, int* count) {
        int i = threadIdx.x, v = x[i];
        out[i] = -1;
        v = checked(v);
        __syncthreads();
        atomicAdd(count, 1);
        out[i] = v;
    }"""
    x = torch.arange(96, dtype=torch.int32) * 7 % 50
    out, count = (
        torch.full((96,), 77, dtype=torch.int32, device=device),
        torch.zeros(1, dtype=torch.int32, device=device),
    )
    rawkern.RawKernel(code)[1, 96](x.to(device), out, count)
    assert torch.equal(out.cpu(), torch.where(x % 3 == 0, -1, x * 2).int())
    assert count.item() == (x % 3 != 0).sum()


def test_a_branch_table_under_a_predicate():
    code = r"""extern "C" __global__ void k(const int* x, int* out) {
        int i = threadIdx.x, r = 50;
        asm volatile("{ .reg .pred p; .reg .u32 t; setp.lt.s32 p, %1, 3; mov.u32 t, %1;\n"
            "T: .branchtargets A, B, C;\n"
            "@p brx.idx t, T;\n mov.u32 %0, 99; bra E;\n"
            "A: mov.u32 %0, 10; bra E;\n B: mov.u32 %0, 11; bra E;\n C: mov.u32 %0, 12;\n E: }" : "+r"(r) : "r"(x[i]));
        out[i] = r;
    }"""
    x = torch.arange(64, dtype=torch.int32) * 5 % 6
    out = torch.full((64,), 77, dtype=torch.int32)
    rawkern.RawKernel(code)[1, 64](x, out)
    assert torch.equal(out, torch.where(x < 3, x + 10, 99).int())


def test_a_branch_table_goes_round_a_loop():
    """Some lanes go back while others have left for two places after it."""
    code = r"""extern "C" __global__ void k(const int* x, int* out) {
        int i = threadIdx.x, n = x[i], r = 0;
        asm volatile("{ .reg .u32 t;\n T: .branchtargets HEAD, A, B;\n"
            "HEAD: div.s32 %0, %0, 3; add.s32 %0, %0, 1; rem.s32 t, %0, 3; mad.lo.s32 %1, %1, 5, t; add.s32 %1, %1, 1;\n"
            "brx.idx t, T;\n"
            "A: add.s32 %1, %1, 1000000; bra E;\n B: add.s32 %1, %1, 2000000;\n E: }" : "+r"(n), "+r"(r));
        out[i] = r;
    }"""
    x = torch.cat([torch.arange(60), torch.tensor([42, 123, 366, 1095])]).int()
    out = torch.full((64,), 77, dtype=torch.int32)
    rawkern.RawKernel(code)[1, 64](x, out)

    def steps(n: int) -> int:
        r = t = 0
        while t == 0:
            n = n // 3 + 1
            t = n % 3
            r = r * 5 + t + 1
        return r + t * 1000000

    assert out.tolist() == [steps(n) for n in x.tolist()]


def test_lanes_leap_over_others_to_where_nobody_waits(device):
    """The way to B and to D leads over a block where others may wait; in the last two warps no lane does."""
    code = r"""extern "C" __global__ void k(const int* x, int* out) {
        int i = threadIdx.x, r = x[i] * 100;
        asm volatile("{ .reg .pred p;\n setp.eq.s32 p, %1, 0;\n @p bra A;\n bra B;\n A: add.s32 %0, %0, 10;\n bra E;\n"
            "B: setp.eq.s32 p, %1, 1;\n @p bra C;\n bra D;\n C: add.s32 %0, %0, 20;\n bra E;\n D: add.s32 %0, %0, 30;\n E: }"
            : "+r"(r) : "r"(x[i]));
        out[i] = r;
    }"""
    x = torch.cat([torch.arange(64) * 5 % 3, torch.arange(32) % 2 + 1, torch.full((32,), 2)]).int()
    out = torch.full((128,), 77, dtype=torch.int32, device=device)
    rawkern.RawKernel(code)[1, 128](x.to(device), out)
    assert torch.equal(out.cpu(), (x * 100 + torch.tensor([10, 20, 30])[x.long()]).int())


def test_both_ways_of_a_branch_are_one(device):
    code = r"""extern "C" __global__ void k(const int* x, int* out) {
        int i = threadIdx.x, r = 5;
        asm volatile("{ .reg .pred p;\n setp.eq.s32 p, %1, 0;\n @p bra NEXT;\n NEXT: add.s32 %0, %0, %1;\n }" : "+r"(r) : "r"(x[i]));
        out[i] = r;
    }"""
    x = torch.arange(64, dtype=torch.int32) % 3
    out = torch.full((64,), 77, dtype=torch.int32, device=device)
    rawkern.RawKernel(code)[1, 64](x.to(device), out)
    assert torch.equal(out.cpu(), x + 5)


def test_labels_of_inline_assembly_are_its_own(device):
    """Forward and backward, in two copies of the same text."""
    code = r"""
    __device__ int steps(int n) {
        int r;
        asm volatile("{ .reg .pred p; .reg .s32 t; mov.s32 t, %1; mov.s32 %0, 0;\n"
            "LOOP: setp.le.s32 p, t, 1;\n @p bra DONE;\n { .reg .pred p; .reg .s32 q; and.b32 q, t, 1; setp.eq.s32 p, q, 0;\n"
            "@p bra EVEN;\n mad.lo.s32 t, t, 3, 1;\n bra NEXT;\n EVEN: shr.s32 t, t, 1;\n NEXT: }\n"
            "add.s32 %0, %0, 1;\n bra LOOP;\n DONE: }" : "=r"(r) : "r"(n));
        return r;
    }
    extern "C" __global__ void k(int* out) { int i = threadIdx.x; out[i] = steps(i) * 1000 + steps(i + 1); }"""
    out = torch.full((32,), -1, dtype=torch.int32, device=device)
    rawkern.RawKernel(code)[1, 32](out)

    def steps(n: int) -> int:
        count = 0
        while n > 1:
            n, count = n // 2 if n % 2 == 0 else 3 * n + 1, count + 1
        return count

    assert out.tolist() == [steps(i) * 1000 + steps(i + 1) for i in range(32)]


def test_conditions_that_a_debug_build_leaves_constant(device):
    """-G folds the test to ``mov.pred %p, -1`` and keeps the branch on it."""
    code = r"""
    extern "C" __global__ void k(int* out) {
        int i = threadIdx.x, v = i;
        if (i & 0) v = -1;
        for (int q = 0; q < 3; q++)
            if (!(i & 0)) v += 100;
        out[i] = v;
    }"""
    out = torch.zeros(40, dtype=torch.int32, device=device)
    rawkern.RawKernel(code, options=("-G",))[1, 40](out)
    assert out.tolist() == [i + 300 for i in range(40)]
