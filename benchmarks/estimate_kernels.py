"""Kernels whose times are estimated first and measured then: families that the model was not fitted on."""

from __future__ import annotations

from typing import Any

Row = dict[str, Any]
_HEAD = 'extern "C" __global__ void k'
_I = "int i = blockIdx.x * blockDim.x + threadIdx.x;"
_M, _L = 1 << 20, 1 << 24


def _row(family: str, variant: str, grid: Any, block: Any, args: list[str], source: str) -> Row:
    return {
        "family": family, "variant": variant, "source": source, "kernel": "k", "args": args, "grid": grid,
        "block": block,
    }  # fmt: skip


def _stencils() -> list[Row]:
    five = (
        f"{_HEAD}(const float* x, float* y, int n) {{ int c = blockIdx.x * blockDim.x + threadIdx.x, "
        "r = blockIdx.y * blockDim.y + threadIdx.y; if (c > 0 && r > 0 && c < n - 1 && r < n - 1) { int i = r * n + c; "
        "y[i] = 0.2f * (x[i] + x[i - 1] + x[i + 1] + x[i - n] + x[i + n]); } }"
    )
    tiled = (
        f"{_HEAD}(const float* x, float* y, int n) {{ __shared__ float t[18][34]; int c = blockIdx.x * 32 + "
        "threadIdx.x, "
        "r = blockIdx.y * 16 + threadIdx.y; for (int j = threadIdx.y; j < 18; j += 16) for (int i = "
        "threadIdx.x; i < 34; "
        "i += 32) { int u = min(max(blockIdx.y * 16 + j - 1, 0), n - 1), v = min(max(blockIdx.x * 32 + i - "
        "1, 0), n - 1); "
        "t[j][i] = x[u * n + v]; } __syncthreads(); int a = threadIdx.y + 1, b = threadIdx.x + 1; "
        "y[r * n + c] = 0.2f * (t[a][b] + t[a][b - 1] + t[a][b + 1] + t[a - 1][b] + t[a + 1][b]); }"
    )
    seven = (
        f"{_HEAD}(const float* x, float* y, int n) {{ int c = blockIdx.x * blockDim.x + threadIdx.x, r = "
        "blockIdx.y + 1; "
        "int m = n * n; if (c > 0 && c < n - 1 && r < n - 1) for (int z = 1; z < n - 1; z++) { int i = z * m "
        "+ r * n + c; "
        "y[i] = x[i] + 0.1f * (x[i - 1] + x[i + 1] + x[i - n] + x[i + n] + x[i - m] + x[i + m] - 6 * x[i]); } }"
    )
    args = [f"f:{_L}", f"f:{_L}", "n:4096"]
    cube = [f"f:{_L}", f"f:{_L}", "n:256"]
    return [
        _row("stencil", "4096 block 32x8", [128, 512], [32, 8], args, five),
        _row("stencil", "4096 block 256x1", [16, 4096], [256, 1], args, five),
        _row("stencil", "4096 in tiles", [128, 256], [32, 16], args, tiled),
        _row("stencil", "256^3 along z", [1, 254], [256, 1], cube, seven),
    ]


def _histograms() -> list[Row]:
    whole = f"{_HEAD}(const int* x, int* h, int n) {{ {_I} if (i < n) atomicAdd(&h[x[i]], 1); }}"
    parts = (
        f"{_HEAD}(const int* x, int* h, int n) {{ __shared__ int s[256]; s[threadIdx.x] = 0; __syncthreads(); "
        f"{_I} for (; i < n; i += gridDim.x * blockDim.x) atomicAdd(&s[x[i]], 1); __syncthreads(); "
        "atomicAdd(&h[threadIdx.x], s[threadIdx.x]); }"
    )
    return [
        _row("histogram", "2^24, 256 bins in memory", _L // 256, 256, [f"i:{_L}:256", "i:256:1", f"n:{_L}"], whole),
        _row(
            "histogram", "2^24, 65536 bins in memory", _L // 256, 256, [f"i:{_L}:65536", "i:65536:1", f"n:{_L}"], whole
        ),
        _row("histogram", "2^24, 256 bins in blocks", 1056, 256, [f"i:{_L}:256", "i:256:1", f"n:{_L}"], parts),
    ]


def _indexed() -> list[Row]:
    gather = f"{_HEAD}(const int* p, const float* x, float* y, int n) {{ {_I} if (i < n) y[i] = x[p[i]]; }}"
    scatter = f"{_HEAD}(const int* p, const float* x, float* y, int n) {{ {_I} if (i < n) y[p[i]] = x[i]; }}"
    small, large = ([f"p:{n}", f"f:{n}", f"f:{n}", f"n:{n}"] for n in (_M, _L))
    return [
        _row("gather", "2^20 permuted", _M // 256, 256, small, gather),
        _row("gather", "2^24 permuted", _L // 256, 256, large, gather),
        _row("gather", "2^24 of 2^16", _L // 256, 256, [f"i:{_L}:65536", "f:65536", f"f:{_L}", f"n:{_L}"], gather),
        _row("scatter", "2^20 permuted", _M // 256, 256, small, scatter),
        _row("scatter", "2^24 permuted", _L // 256, 256, large, scatter),
    ]


def _scans() -> list[Row]:
    scan = (
        f"{_HEAD}(const float* x, float* y, int n) {{ __shared__ float s[32]; {_I} float v = i < n ? x[i] : 0; "
        "int l = threadIdx.x & 31, w = threadIdx.x >> 5; for (int o = 1; o < 32; o *= 2) { "
        "float u = __shfl_up_sync(~0u, v, o); if (l >= o) v += u; } if (l == 31) s[w] = v; __syncthreads(); "
        "if (!w) { float u = l < blockDim.x / 32 ? s[l] : 0; for (int o = 1; o < 32; o *= 2) { "
        "float a = __shfl_up_sync(~0u, u, o); if (l >= o) u += a; } s[l] = u; } __syncthreads(); "
        "if (i < n) y[i] = v + (w ? s[w - 1] : 0); }"
    )
    args = [f"f:{_L}", f"f:{_L}", f"n:{_L}"]
    return [_row("scan", f"2^24 block {b}", _L // b, b, args, scan) for b in (128, 512, 1024)]


def _convolutions() -> list[Row]:
    direct = (
        f"{_HEAD}(const float* x, const float* w, float* y, int n) {{ int c = blockIdx.x * 32 + threadIdx.x, "
        "r = blockIdx.y * 8 + threadIdx.y; float s = 0; for (int j = 0; j < 7; j++) for (int i = 0; i < 7; i++) { "
        "int u = r + j - 3, v = c + i - 3; if (u >= 0 && v >= 0 && u < n && v < n) s += w[j * 7 + i] * x[u * n + v]; } "
        "y[r * n + c] = s; }"
    )
    tiled = (
        f"{_HEAD}(const float* x, const float* w, float* y, int n) {{ __shared__ float t[22][38]; "
        "for (int j = threadIdx.y; j < 22; j += 16) for (int i = threadIdx.x; i < 38; i += 32) { "
        "int u = blockIdx.y * 16 + j - 3, v = blockIdx.x * 32 + i - 3; "
        "t[j][i] = u >= 0 && v >= 0 && u < n && v < n ? x[u * n + v] : 0; } __syncthreads(); float s = 0; "
        "for (int j = 0; j < 7; j++) for (int i = 0; i < 7; i++) s += w[j * 7 + i] * t[threadIdx.y + "
        "j][threadIdx.x + i]; "
        "y[(blockIdx.y * 16 + threadIdx.y) * n + blockIdx.x * 32 + threadIdx.x] = s; }"
    )
    args = [f"f:{1 << 22}", "f:49", f"f:{1 << 22}", "n:2048"]
    return [
        _row("convolution", "2048 by 7x7", [64, 256], [32, 8], args, direct),
        _row("convolution", "2048 by 7x7 in tiles", [64, 128], [32, 16], args, tiled),
    ]


def _sparse() -> list[Row]:
    lane = (
        f"{_HEAD}(const int* c, const float* a, const float* x, float* y, int n) {{ {_I} if (i < n) {{ float s = 0; "
        "for (int j = 0; j < 32; j++) s += a[i * 32 + j] * x[c[i * 32 + j]]; y[i] = s; } }"
    )
    warp = (
        f"{_HEAD}(const int* c, const float* a, const float* x, float* y, int n) {{ {_I} int r = i >> 5, l = i & 31; "
        "if (r < n) { float s = a[r * 32 + l] * x[c[r * 32 + l]]; for (int o = 16; o; o >>= 1) "
        "s += __shfl_down_sync(~0u, s, o); if (!l) y[r] = s; } }"
    )
    n = 1 << 18
    args = [f"i:{32 * n}:{n}", f"f:{32 * n}", f"f:{n}", f"f:{n}", f"n:{n}"]
    return [
        _row("sparse product", "2^18 rows of 32, a lane each", n // 256, 256, args, lane),
        _row("sparse product", "2^18 rows of 32, a warp each", n // 8, 256, args, warp),
    ]


def _attention() -> list[Row]:
    source = (
        f"{_HEAD}(const float* q, const float* k, const float* v, float* y, int n) {{ __shared__ float s[2][32][64]; "
        "int t = threadIdx.x, r = blockIdx.x * 64 + t, h = blockIdx.y * n; float a[64], o[64] = {}, m = -1e30f, z = 0; "
        "for (int d = 0; d < 64; d++) a[d] = q[(h + r) * 64 + d] * 0.125f; for (int j = 0; j < n; j += 32) { "
        "for (int i = t; i < 2048; i += 64) { (&s[0][0][0])[i] = k[(h + j) * 64 + i]; (&s[1][0][0])[i] = "
        "v[(h + j) * 64 + i]; } "
        "__syncthreads(); for (int i = 0; i < 32; i++) { float p = 0; for (int d = 0; d < 64; d++) p += a[d] "
        "* s[0][i][d]; "
        "float b = fmaxf(m, p), e = __expf(m - b), f = __expf(p - b); z = z * e + f; m = b; "
        "for (int d = 0; d < 64; d++) o[d] = o[d] * e + f * s[1][i][d]; } __syncthreads(); } "
        "for (int d = 0; d < 64; d++) y[(h + r) * 64 + d] = o[d] / z; }"
    )
    args = [*[f"f:{8 * 1024 * 64}"] * 4, "n:1024"]
    return [_row("attention", "8 heads, 1024 x 64", [16, 8], 64, args, source)]


def _others() -> list[Row]:
    wide = f"{_HEAD}(const float4* x, float4* y, int n) {{ {_I} if (i < n) y[i] = x[i]; }}"
    double = (
        f"{_HEAD}(const float* x, float* y, int n) {{ {_I} if (i < n) {{ double v = x[i]; "
        "for (int j = 0; j < 256; j++) v = fma(v, 0.999, 0.001); y[i] = v; } }"
    )
    norm = (
        f"{_HEAD}(const float* x, float* y, int n) {{ __shared__ float s[64]; const float* r = x + (long "
        "long)blockIdx.x * n; "
        "int t = threadIdx.x; float a = 0, b = 0; for (int i = t; i < n; i += 256) { float v = r[i]; a += v; "
        "b += v * v; } "
        "for (int o = 16; o; o >>= 1) { a += __shfl_xor_sync(~0u, a, o); b += __shfl_xor_sync(~0u, b, o); } "
        "if (!(t & 31)) { s[t >> 5] = a; s[32 + (t >> 5)] = b; } __syncthreads(); a = b = 0; "
        "for (int i = 0; i < 8; i++) { a += s[i]; b += s[32 + i]; } a /= n; b = rsqrtf(b / n - a * a + 1e-5f); "
        "for (int i = t; i < n; i += 256) y[(long long)blockIdx.x * n + i] = (r[i] - a) * b; }"
    )
    counts = f"{_HEAD}(const float* x, int* y, int n) {{ {_I} if (i < n && x[i] > 0.5f) atomicAdd(y, 1); }}"
    return [
        _row("copy", "2^22 float4", (1 << 22) // 256, 256, [f"f:{_L}", f"f:{_L}", f"n:{1 << 22}"], wide),
        _row("math", "float64 fma 256", 4096, 256, [f"f:{_M}", f"f:{_M}", f"n:{_M}"], double),
        _row("layer norm", "4096x4096", 4096, 256, [f"f:{_L}", f"f:{_L}", "n:4096"], norm),
        _row("count", "2^24 to one address", _L // 256, 256, [f"f:{_L}", "i:1:1", f"n:{_L}"], counts),
    ]


def rows() -> list[Row]:
    """The kernels with their launches, as recorded rows have them."""
    return [
        *_stencils(), *_histograms(), *_indexed(), *_scans(), *_convolutions(), *_sparse(), *_attention(), *_others(),
    ]  # fmt: skip
