"""What checked launches cost: kernels usual and under ``rawkern.check()``, in turns, processor time of one thread."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

import rawkern
from benchmarks.harness import Report, Table

N, SIDE, ROUNDS = 1 << 20, 256, 9
CODE = r"""
extern "C" __global__ void square(const float* x, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = x[i] * x[i];
}
extern "C" __global__ void add_short(const short* x, short* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = x[i] + 1;
}
extern "C" __global__ void sums(const float* x, float* out, int n) {
    __shared__ float s[256];
    int t = threadIdx.x, i = blockIdx.x * 256 + t;
    s[t] = i < n ? x[i] : 0;
    __syncthreads();
    for (int h = 128; h; h /= 2) { if (t < h) s[t] += s[t + h]; __syncthreads(); }
    if (t == 0) out[blockIdx.x] = s[0];
}
extern "C" __global__ void softmax(const float* x, float* out, int n) {
    __shared__ float part[8];
    int t = threadIdx.x;
    const float* row = x + (long long)blockIdx.x * n;
    float m = -1e30f, s = 0;
    for (int i = t; i < n; i += 256) m = fmaxf(m, row[i]);
    for (int d = 16; d; d /= 2) m = fmaxf(m, __shfl_xor_sync(~0u, m, d));
    if (t % 32 == 0) part[t / 32] = m;
    __syncthreads();
    for (int w = 0; w < 8; w++) m = fmaxf(m, part[w]);
    __syncthreads();
    for (int i = t; i < n; i += 256) s += expf(row[i] - m);
    for (int d = 16; d; d /= 2) s += __shfl_xor_sync(~0u, s, d);
    if (t % 32 == 0) part[t / 32] = s;
    __syncthreads();
    s = 0;
    for (int w = 0; w < 8; w++) s += part[w];
    for (int i = t; i < n; i += 256) out[(long long)blockIdx.x * n + i] = expf(row[i] - m) / s;
}
extern "C" __global__ void transpose(const float* x, float* out, int n) {
    __shared__ float tile[32][33];
    int i = blockIdx.x * 32 + threadIdx.x, j = blockIdx.y * 32;
    for (int r = threadIdx.y; r < 32; r += 8) tile[r][threadIdx.x] = x[(j + r) * n + i];
    __syncthreads();
    i = blockIdx.y * 32 + threadIdx.x, j = blockIdx.x * 32;
    for (int r = threadIdx.y; r < 32; r += 8) out[(j + r) * n + i] = tile[threadIdx.x][r];
}
extern "C" __global__ void matmul(const float* a, const float* b, float* c, int n) {
    __shared__ float as[16][16], bs[16][16];
    int tx = threadIdx.x, ty = threadIdx.y, row = blockIdx.y * 16 + ty, col = blockIdx.x * 16 + tx;
    float sum = 0;
    for (int p = 0; p < n; p += 16) {
        as[ty][tx] = a[row * n + p + tx];
        bs[ty][tx] = b[(p + ty) * n + col];
        __syncthreads();
        for (int k = 0; k < 16; k++) sum += as[ty][k] * bs[k][tx];
        __syncthreads();
    }
    c[row * n + col] = sum;
}
extern "C" __global__ void histogram(const unsigned char* x, int* bins, int n) {
    __shared__ int s[256];
    s[threadIdx.x] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) atomicAdd(&s[x[i]], 1);
    __syncthreads();
    atomicAdd(&bins[threadIdx.x], s[threadIdx.x]);
}
extern "C" __global__ void nbody(const float4* p, float4* f, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float4 me = p[i];
    float x = 0, y = 0, z = 0;
    for (int j = 0; j < n; j++) {
        float4 o = p[j];
        float dx = o.x - me.x, dy = o.y - me.y, dz = o.z - me.z;
        float r = rsqrtf(dx * dx + dy * dy + dz * dz + 0.01f), k = o.w * r * r * r;
        x += k * dx; y += k * dy; z += k * dz;
    }
    f[i] = make_float4(x, y, z, 0);
}
"""


def launches() -> dict[str, tuple[str, tuple, tuple, tuple]]:
    """What each row launches: kernel, grid, block, arguments."""
    x, a, shorts = torch.rand(N), torch.rand(SIDE, SIDE), torch.zeros(N, dtype=torch.int16)
    bytes_ = torch.randint(0, 256, (N,), dtype=torch.uint8)
    return {
        "square, 2^20 float32": ("square", (N // 256,), (256,), (x, torch.zeros(N), N)),
        "x + 1, 2^20 int16": ("add_short", (N // 256,), (256,), (shorts, shorts.clone(), N)),
        "sums of blocks of 256 in shared memory, 2^20": ("sums", (N // 256,), (256,), (x, torch.zeros(N // 256), N)),
        "softmax of 1024 rows of 1024": ("softmax", (1024,), (256,), (x, torch.zeros(N), 1024)),
        "transpose 1024 x 1024, tiles in shared memory": ("transpose", (32, 32), (32, 8), (x, torch.zeros(N), 1024)),
        "matmul 256^3, tiles of 16 x 16": ("matmul", (16, 16), (16, 16), (a, a.clone(), torch.zeros(SIDE, SIDE), SIDE)),
        "histogram with shared atomics, 2^20": (
            "histogram", (64,), (256,), (bytes_, torch.zeros(256, dtype=torch.int32), N)
        ),
        "n-body, 1024": ("nbody", (8,), (128,), (torch.rand(1024, 4), torch.zeros(1024, 4), 1024)),
        "square of 32, which is what Python takes": ("square", (1,), (32,), (x[:32], torch.zeros(32), 32)),
    }  # fmt: skip


def timed(run: Callable[[], object], count: int) -> float:
    """Seconds of this thread."""
    start = time.thread_time()
    for _ in range(count):
        run()
    return (time.thread_time() - start) / count


def main() -> None:
    torch.set_num_threads(1)
    report = Report("checked", "What checked launches cost")
    report.notes.append("Medians of rounds in which the two take turns; processor time of one thread, no compilation.")
    table = Table("CPU engine", ("kernel (one core each)", "usual launch", "checked", "times"))
    numbers = {}
    module = rawkern.RawModule(code=CODE)
    for title, (name, grid, block, arguments) in launches().items():
        launch = getattr(module, name)[grid, block]
        usual, checked = [], []
        for _ in range(ROUNDS + 1):  # the first compiles
            usual.append(timed(lambda launch=launch, arguments=arguments: launch(*arguments), 10))
            with rawkern.check():
                checked.append(timed(lambda launch=launch, arguments=arguments: launch(*arguments), 1))
        a, b = statistics.median(usual[1:]), statistics.median(checked[1:])
        table.rows.append(
            (title, f"{a * 1e3:.2g} ms", f"{b * 1e3:.2g} ms", f"{b / a:.1f}" if b < 9.95 * a else f"{b / a:.0f}")
        )
        numbers[title] = {"usual": a, "checked": b}
    report.add(table, numbers)
    report.write()


if __name__ == "__main__":
    main()
