"""The time of derived backwards (``kernel.derive``) by that of their kernels, on a GPU or on the CPU engine."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

import rawkern
from benchmarks.harness import Report, Table, scaled, short
from rawkern.base.timing import gpu_seconds

SOURCE = r"""
extern "C" __global__ void saxpy(int n, float a, const float* x, const float* z, float* y) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i] + z[i];
}
extern "C" __global__ void stencil(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= 1 && i < n - 1) y[i] = 0.25f * x[i - 1] + 0.5f * x[i] + 0.25f * x[i + 1];
}
extern "C" __global__ void stencil2d(const float* x, float* y, int n) {
    int c = blockIdx.x * blockDim.x + threadIdx.x, r = blockIdx.y * blockDim.y + threadIdx.y;
    if (r >= 1 && r < n - 1 && c >= 1 && c < n - 1)
        y[r * n + c] = x[r * n + c]
                     + 0.1f * (x[(r - 1) * n + c] + x[(r + 1) * n + c] + x[r * n + c - 1] + x[r * n + c + 1]);
}
extern "C" __global__ void softmax(const float* x, float* y, int n) {
    __shared__ float s[256];
    int t = threadIdx.x, row = blockIdx.x;
    float m = -3.402823466e38f;
    for (int c = t; c < n; c += 256) m = fmaxf(m, x[row * n + c]);
    s[t] = m;
    __syncthreads();
    for (int k = 128; k > 0; k >>= 1) {
        if (t < k) s[t] = fmaxf(s[t], s[t + k]);
        __syncthreads();
    }
    m = s[0];
    __syncthreads();
    float sum = 0;
    for (int c = t; c < n; c += 256) sum += expf(x[row * n + c] - m);
    s[t] = sum;
    __syncthreads();
    for (int k = 128; k > 0; k >>= 1) {
        if (t < k) s[t] += s[t + k];
        __syncthreads();
    }
    sum = s[0];
    for (int c = t; c < n; c += 256) y[row * n + c] = expf(x[row * n + c] - m) / sum;
}
extern "C" __global__ void matmul(const float* a, const float* b, float* c, int n) {
    __shared__ float ta[16][16], tb[16][16];
    int r = blockIdx.y * 16 + threadIdx.y, col = blockIdx.x * 16 + threadIdx.x;
    float sum = 0;
    for (int k = 0; k < n; k += 16) {
        ta[threadIdx.y][threadIdx.x] = a[r * n + k + threadIdx.x];
        tb[threadIdx.y][threadIdx.x] = b[(k + threadIdx.y) * n + col];
        __syncthreads();
        for (int j = 0; j < 16; ++j) sum += ta[threadIdx.y][j] * tb[j][threadIdx.x];
        __syncthreads();
    }
    c[r * n + col] = sum;
}
extern "C" __global__ void block_sums(const float* x, float* out, int n) {
    __shared__ float s[256];
    int t = threadIdx.x, i = blockIdx.x * 256 + t;
    s[t] = i < n ? x[i] : 0.0f;
    __syncthreads();
    for (int k = 128; k > 0; k >>= 1) {
        if (t < k) s[t] += s[t + k];
        __syncthreads();
    }
    if (t == 0) out[blockIdx.x] = s[0];
}
__device__ float block_sum(float v, float* part) {
    for (int o = 16; o > 0; o >>= 1) v += __shfl_xor_sync(0xffffffff, v, o);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
    __syncthreads();
    float total = 0;
    for (int k = 0; k < blockDim.x / 32; ++k) total += part[k];
    __syncthreads();
    return total;
}
__device__ float block_max(float v, float* part) {
    for (int o = 16; o > 0; o >>= 1) v = fmaxf(v, __shfl_xor_sync(0xffffffff, v, o));
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
    __syncthreads();
    float largest = part[0];
    for (int k = 1; k < blockDim.x / 32; ++k) largest = fmaxf(largest, part[k]);
    __syncthreads();
    return largest;
}
extern "C" __global__ void softmax_shuffles(const float* x, float* y, int n) {
    __shared__ float part[32];
    const float* row = x + blockIdx.x * n;
    float m = -INFINITY, sum = 0;
    for (int c = threadIdx.x; c < n; c += blockDim.x) m = fmaxf(m, row[c]);
    m = block_max(m, part);
    for (int c = threadIdx.x; c < n; c += blockDim.x) sum += expf(row[c] - m);
    sum = block_sum(sum, part);
    for (int c = threadIdx.x; c < n; c += blockDim.x) y[blockIdx.x * n + c] = expf(row[c] - m) / sum;
}
extern "C" __global__ void layer_norm(const float* x, const float* w, const float* b, float* y, int n) {
    __shared__ float part[32];
    const float* row = x + blockIdx.x * n;
    float sum = 0, squares = 0;
    for (int c = threadIdx.x; c < n; c += blockDim.x) sum += row[c];
    float mean = block_sum(sum, part) / n;
    for (int c = threadIdx.x; c < n; c += blockDim.x) squares += (row[c] - mean) * (row[c] - mean);
    float scale = rsqrtf(block_sum(squares, part) / n + 1e-5f);
    for (int c = threadIdx.x; c < n; c += blockDim.x) y[blockIdx.x * n + c] = (row[c] - mean) * scale * w[c] + b[c];
}
extern "C" __global__ void gated(const float* x, const float* gate, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] * gate[i] / (1.0f + expf(-gate[i]));
}
__device__ float warp_max(float v) {
    for (int o = 16; o > 0; o >>= 1) v = fmaxf(v, __shfl_xor_sync(0xffffffff, v, o));
    return v;
}
__device__ float warp_sum(float v) {
    for (int o = 16; o > 0; o >>= 1) v += __shfl_xor_sync(0xffffffff, v, o);
    return v;
}
extern "C" __global__ void log_softmax(const float* x, float* y, int rows, int n) {  // a warp for each row
    int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (row >= rows) return;
    x += row * n;
    float largest = -INFINITY, sum = 0;
    for (int c = lane; c < n; c += 32) largest = fmaxf(largest, x[c]);
    largest = warp_max(largest);
    for (int c = lane; c < n; c += 32) sum += expf(x[c] - largest);
    sum = logf(warp_sum(sum));
    for (int c = lane; c < n; c += 32) y[row * n + c] = x[c] - largest - sum;
}
extern "C" __global__ void add_rms_norm(const float* x, const float* residual, const float* w, float* y, int n) {
    __shared__ float part[32];
    int start = blockIdx.x * n;
    float squares = 0;
    for (int c = threadIdx.x; c < n; c += blockDim.x) {
        float v = x[start + c] + residual[start + c];
        squares += v * v;
    }
    float scale = rsqrtf(block_sum(squares, part) / n + 1e-6f);
    for (int c = threadIdx.x; c < n; c += blockDim.x)
        y[start + c] = (x[start + c] + residual[start + c]) * scale * w[c];
}
template <int TIMES>  // a row in registers
__global__ void add_rms_norm_kept(const float* x, const float* residual, const float* w, float* y, int n) {
    __shared__ float part[32];
    int start = blockIdx.x * n;
    float v[TIMES], squares = 0;
    #pragma unroll
    for (int k = 0; k < TIMES; ++k) {
        int c = threadIdx.x + k * 256;
        v[k] = x[start + c] + residual[start + c];
        squares += v[k] * v[k];
    }
    float scale = rsqrtf(block_sum(squares, part) / n + 1e-6f);
    #pragma unroll
    for (int k = 0; k < TIMES; ++k) {
        int c = threadIdx.x + k * 256;
        y[start + c] = v[k] * scale * w[c];
    }
}
extern "C" __global__ void bodies(const float4* p, float4* force, int n) {
    __shared__ float4 tile[256];
    int i = blockIdx.x * 256 + threadIdx.x;
    float4 own = p[i];
    float fx = 0, fy = 0, fz = 0;
    for (int start = 0; start < n; start += 256) {
        tile[threadIdx.x] = p[start + threadIdx.x];
        __syncthreads();
        for (int k = 0; k < 256; ++k) {
            float dx = tile[k].x - own.x, dy = tile[k].y - own.y, dz = tile[k].z - own.z;
            float inverse = rsqrtf(dx * dx + dy * dy + dz * dz + 0.01f);
            float pull = tile[k].w * inverse * inverse * inverse;
            fx += pull * dx;
            fy += pull * dy;
            fz += pull * dz;
        }
        __syncthreads();
    }
    force[i] = make_float4(fx, fy, fz, 0.0f);
}
"""


@dataclass(frozen=True)
class Row:
    """``make(scale)`` gives grid, block and arguments, for a GPU (scale 1) or smaller; `formula`: the same in torch."""

    kernel: str
    goal: float  # on a GPU
    make: Callable[[int], tuple[Any, Any, tuple[Any, ...]]]
    wrt: tuple[str, ...] | None = None
    formula: Callable[..., torch.Tensor] | None = None
    label: str = ""

    @property
    def name(self) -> str:
        return self.label or self.kernel


def _neighbors(x: torch.Tensor, y: torch.Tensor, n: int) -> torch.Tensor:
    return 0.25 * x[:-2] + 0.5 * x[1:-1] + 0.25 * x[2:]


def _cross(x: torch.Tensor, y: torch.Tensor, n: int) -> torch.Tensor:
    return x[1:-1, 1:-1] + 0.1 * (x[:-2, 1:-1] + x[2:, 1:-1] + x[1:-1, :-2] + x[1:-1, 2:])


def _added_norm(x: torch.Tensor, residual: torch.Tensor, w: torch.Tensor, y: torch.Tensor, n: int) -> torch.Tensor:
    return torch.nn.functional.rms_norm(x + residual, (n,), w, 1e-6)


def _flat(n: int) -> tuple[int, int]:
    return -(-n // 256), 256


def _rows(n: int, scale: int, multiple: int = 1) -> int:
    """How many rows of a length there are: 2^25 elements in all on a GPU."""
    return (1 << 25) // scale // n // multiple * multiple


def _softmax(n: int, scale: int, block: int = 256) -> tuple[Any, Any, tuple[Any, ...]]:
    rows = _rows(n, scale)
    return rows, block, (torch.randn(rows, n), torch.zeros(rows, n), n)


def _layer_norm(n: int, scale: int, block: int = 256) -> tuple[Any, Any, tuple[Any, ...]]:
    rows = _rows(n, scale)
    return rows, block, (torch.randn(rows, n), torch.randn(n), torch.randn(n), torch.zeros(rows, n), n)


def _log_softmax(n: int, scale: int) -> tuple[Any, Any, tuple[Any, ...]]:
    rows = _rows(n, scale, 8)
    return rows // 8, 256, (torch.randn(rows, n), torch.zeros(rows, n), rows, n)


def _add_rms_norm(n: int, scale: int, block: int = 256) -> tuple[Any, Any, tuple[Any, ...]]:
    rows = _rows(n, scale)
    return rows, block, (torch.randn(rows, n), torch.randn(rows, n), torch.randn(n), torch.zeros(rows, n), n)


def _label(kernel: str, n: int, plain: int) -> str:
    return kernel if n == plain else f"{kernel}, rows of {n}"


ROWS = (
    Row("saxpy", 1.6, lambda s: (*_flat(n := (1 << 26) // s), (n, 2.0, *(torch.randn(n) for _ in range(3)))),
        ("x", "z"), lambda n, a, x, z, y: a * x + z),
    Row("stencil", 2.0, lambda s: (*_flat(n := (1 << 26) // s), (torch.randn(n), torch.zeros(n), n)),
        formula=_neighbors),
    Row("stencil2d", 2.0, lambda s: ((n // 32, n // 8), (32, 8), (torch.randn(n, n), torch.zeros(n, n), n))
        if (n := 8192 // int(s**0.5)) else None, formula=_cross),
    *(Row("softmax", 2.2, partial(_softmax, n), formula=lambda x, y, n: x.softmax(-1), label=_label("softmax", n, 4096))
        for n in (4096, 4000, 1000, 8192, 12000)),
    *(Row("softmax_shuffles", 2.2, partial(_softmax, n, block=block), formula=lambda x, y, n: x.softmax(-1),
        label=f"softmax_shuffles, rows of {n}, blocks of {block}")
        for n, block in ((1000, 256), (4096, 1024), (8192, 1024), (32000, 256), (32000, 1024), (50304, 1024))),
    *(Row("layer_norm", 2.2, partial(_layer_norm, n), label=_label("layer_norm", n, 4096),
        formula=lambda x, w, b, y, n: torch.nn.functional.layer_norm(x, (n,), w, b))
        for n in (4096, 4000, 1000, 8192, 16384)),
    Row("layer_norm", 2.2, partial(_layer_norm, 4096, block=1024), label="layer_norm, rows of 4096, blocks of 1024",
        formula=lambda x, w, b, y, n: torch.nn.functional.layer_norm(x, (n,), w, b)),
    Row("gated", 1.6, lambda s: (*_flat(n := (1 << 26) // s), (*(torch.randn(n) for _ in range(2)), torch.zeros(n), n)),
        formula=lambda x, gate, y, n: x * torch.nn.functional.silu(gate)),
    *(Row("log_softmax", 2.2, partial(_log_softmax, n), formula=lambda x, y, rows, n: x.log_softmax(-1),
        label=_label("log_softmax", n, 512)) for n in (512, 500)),
    *(Row(kernel, 2.2, partial(_add_rms_norm, n, block=block), formula=_added_norm, label=label)
        for kernel, n, block, label in (
            ("add_rms_norm", 4096, 256, ""), ("add_rms_norm", 4000, 256, "add_rms_norm, rows of 4000"),
            ("add_rms_norm", 4096, 1024, "add_rms_norm, rows of 4096, blocks of 1024"),
            ("add_rms_norm_kept<16>", 4096, 256, "add_rms_norm, a row in registers"))),
    Row("bodies", 5.0, lambda s: (n // 256, 256, (torch.randn(n, 4), torch.zeros(n, 4), n))
        if (n := 8192 // int(s**0.5)) else None),
    Row("matmul", 4.0, lambda s: ((n // 16, n // 16), (16, 16), (*(torch.randn(n, n) for _ in range(3)), n))
        if (n := 2048 // int(s**0.5)) else None),
    Row("block_sums", 1.2, lambda s: (*_flat(n := (1 << 26) // s), (torch.randn(n), torch.zeros(-(-n // 256)), n))),
)  # fmt: skip


def seconds(run: Callable[[], Any], device: str, rounds: int) -> float:
    run()
    if device == "cuda":
        torch.cuda._sleep(200_000_000)  # so that all launches wait, and the host's time is not counted
        return statistics.median(gpu_seconds(run, rounds))
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def rivals(
    row: Row, args: tuple[Any, ...], wrt: tuple[str, ...], named: Any, device: str, rounds: int
) -> dict[str, float]:
    """The backward of the same in torch, compiled; its forward; and that which keeps what the backward reads."""
    if row.formula is None:
        return {}
    torch._dynamo.reset()
    formula = torch.compile(row.formula)
    leaves = {n: named[n].clone().requires_grad_() for n in wrt}
    given = [leaves.get(n, a) for n, a in zip(named, args, strict=True)]
    forward = seconds(lambda: formula(*args), device, rounds)
    keeping = seconds(lambda: formula(*given), device, rounds)
    found = formula(*given)
    grad, inputs = torch.ones_like(found), list(leaves.values())
    backward = seconds(lambda: torch.autograd.grad(found, inputs, grad, retain_graph=True), device, rounds)
    return {"compiled": backward, "compiled forward": forward, "compiled forward that keeps": keeping}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--alone", action="store_true", help="without torch.compile")
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    module = rawkern.RawModule(SOURCE, name_expressions=("add_rms_norm_kept<16>",))
    report = Report(f"gradients-{'gpu' if device == 'cuda' else 'cpu'}", "Derived backwards by their forwards")
    report.notes.append(
        "Medians; on a GPU of its time alone. A backward is the call of what `kernel.derive` returns: memory for "
        "gradients, set to zero where needed, and the launch. Goals are for a GPU; on the CPU engine it is 5 for "
        "all. saxpy's z gets the gradient of y, handed on, by torch too. The last columns are "
        "torch.compile's forward alone and with what it keeps for its backward: a derived backward needs nothing "
        "kept, and computes it again."
    )
    table, numbers = (
        Table(
            "Kernels",
            (
                "kernel",
                "forward",
                "backward",
                "ratio",
                "goal",
                "torch.compile's",
                "atomics left",
                "its forward",
                "its forward that keeps",
                "forward + backward by theirs",
            ),
        ),
        {},
    )
    for row in ROWS:
        grid, block, args = row.make(1 if device == "cuda" else 64)
        args = tuple(a.to(device) if isinstance(a, torch.Tensor) else a for a in args)
        kernel = module.get_function(row.kernel)
        try:
            derived = kernel.derive(grid=grid, block=block, wrt=row.wrt)
            named = derived.named(args)
            grads = {name: torch.ones_like(named[name]) for name in derived.outputs}
            forward = seconds(lambda: kernel[grid, block](*args), device, options.rounds)  # noqa: B023
            backward = seconds(lambda: derived(grid, args, grads), device, options.rounds)  # noqa: B023
            others = {} if options.alone else rivals(row, args, derived.wrt, named, device, options.rounds)
        except Exception as error:
            table.rows.append((row.name, "", "", short(f"{type(error).__name__}: {error}"), *[""] * 6))
            continue
        goal = row.goal if device == "cuda" else 5.0
        numbers[row.name] = {"forward": forward, "backward": backward, "ratio": backward / forward, "goal": goal}
        numbers[row.name] |= others
        ratio = f"{backward / forward:.2f}"
        times = scaled(forward), scaled(backward)
        compiled = [scaled(t) for t in others.values()] or [""] * 3
        both = others["compiled"] + others["compiled forward that keeps"] if others else 0.0
        total = f"{(forward + backward) / both:.2f}" if both else ""
        found = compiled[0], str(derived.atomics), *compiled[1:], total
        table.rows.append((row.name, *times, ratio, f"{goal:g}", *found))
    report.add(table, numbers)
    report.write()


if __name__ == "__main__":
    main()
