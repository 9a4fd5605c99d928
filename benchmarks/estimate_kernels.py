"""Kernels whose times are estimated first and measured then: none of them was there when the model was made."""

from __future__ import annotations

from typing import Any

from benchmarks.harness import RESULTS

Row = dict[str, Any]
GALLERY = RESULTS.parent.parent / "examples" / "gallery"
_M, _L = 1 << 20, 1 << 24

_MOVES = r"""
extern "C" __global__ void tiles(const float* x, float* y, int rows, int columns) {
  __shared__ float t[32][33];
  x += (long long)blockIdx.z * rows * columns, y += (long long)blockIdx.z * rows * columns;
  int c = blockIdx.x * 32 + threadIdx.x, r = blockIdx.y * 32 + threadIdx.y;
  for (int i = 0; i < 32; i += 8)
    if (c < columns && r + i < rows) t[threadIdx.y + i][threadIdx.x] = x[(r + i) * columns + c];
  __syncthreads();
  c = blockIdx.y * 32 + threadIdx.x, r = blockIdx.x * 32 + threadIdx.y;
  for (int i = 0; i < 32; i += 8)
    if (c < rows && r + i < columns) y[(r + i) * rows + c] = t[threadIdx.x][threadIdx.y + i];
}
extern "C" __global__ void columns_out(const float* x, float* y, int rows, int columns) {
  x += (long long)blockIdx.z * rows * columns, y += (long long)blockIdx.z * rows * columns;
  int c = blockIdx.x * 32 + threadIdx.x, r = blockIdx.y * 8 + threadIdx.y;
  if (c < columns && r < rows) y[c * rows + r] = x[r * columns + c];
}
extern "C" __global__ void columns_in(const float* x, float* y, int rows, int columns) {
  x += (long long)blockIdx.z * rows * columns, y += (long long)blockIdx.z * rows * columns;
  int r = blockIdx.x * 32 + threadIdx.x, c = blockIdx.y * 8 + threadIdx.y;
  if (c < columns && r < rows) y[c * rows + r] = x[r * columns + c];
}
extern "C" __global__ void rows_of(const float* table, const int* index, float* y, int n, int width) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n * width) y[i] = table[index[i / width] * width + i % width];
}
extern "C" __global__ void packs_of(const float4* table, const int* index, float4* y, int n, int width) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n * width) y[i] = table[index[i / width] * width + i % width];
}
extern "C" __global__ void a_thread_a_row(const float* table, const int* index, float* y, int n, int width) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) for (int k = 0; k < width; k++) y[i * width + k] = table[index[i] * width + k];
}
"""
_PRODUCTS = r"""
extern "C" __global__ void thread_a_row(const float* a, const float* x, float* y, int n) {
  int r = blockIdx.x * blockDim.x + threadIdx.x;
  float s = 0;
  for (int c = 0; c < n; c++) s += a[(long long)r * n + c] * x[c];
  y[r] = s;
}
extern "C" __global__ void thread_a_column(const float* a, const float* x, float* y, int n) {
  int c = blockIdx.x * blockDim.x + threadIdx.x;
  float s = 0;
  for (int r = 0; r < n; r++) s += a[(long long)r * n + c] * x[r];
  y[c] = s;
}
extern "C" __global__ void warp_a_row(const float* a, const float* x, float* y, int n) {
  int r = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
  float s = 0;
  for (int c = lane; c < n; c += 32) s += a[(long long)r * n + c] * x[c];
  for (int d = 16; d; d /= 2) s += __shfl_down_sync(~0u, s, d);
  if (!lane) y[r] = s;
}
extern "C" __global__ void small(const float* a, const float* b, float* c) {
  __shared__ float s[32][33], t[32][33];
  a += blockIdx.x * 1024, b += blockIdx.x * 1024, c += blockIdx.x * 1024;
  int x = threadIdx.x;
  for (int y = threadIdx.y; y < 32; y += 8) s[y][x] = a[y * 32 + x], t[y][x] = b[y * 32 + x];
  __syncthreads();
  for (int y = threadIdx.y; y < 32; y += 8) {
    float v = 0;
    for (int k = 0; k < 32; k++) v += s[y][k] * t[k][x];
    c[y * 32 + x] = v;
  }
}
extern "C" __global__ void eight(const float* a, const float* b, float* c, int n) {
  __shared__ float s[8][128], t[8][128];
  int i = threadIdx.x, x = i % 16, y = i / 16;
  float sums[8][8] = {}, u[8], v[8];
  a += blockIdx.y * 128 * n, b += blockIdx.x * 128;
  for (int k = 0; k < n; k += 8) {
    for (int j = 0; j < 4; j++) {
      s[i % 8][i / 8 + 32 * j] = a[(i / 8 + 32 * j) * n + k + i % 8];
      t[i / 128 + 2 * j][i % 128] = b[(k + i / 128 + 2 * j) * n + i % 128];
    }
    __syncthreads();
    for (int l = 0; l < 8; l++) {
      for (int j = 0; j < 8; j++) u[j] = s[l][y * 8 + j], v[j] = t[l][x + 16 * j];
      for (int p = 0; p < 8; p++) for (int q = 0; q < 8; q++) sums[p][q] += u[p] * v[q];
    }
    __syncthreads();
  }
  for (int p = 0; p < 8; p++)
    for (int q = 0; q < 8; q++) c[(blockIdx.y * 128 + y * 8 + p) * n + blockIdx.x * 128 + x + 16 * q] = sums[p][q];
}
template <class T> __device__ void tile(const T* a, const T* b, T* c, int n) {
  __shared__ T s[16][16], t[16][16];
  int x = threadIdx.x, y = threadIdx.y, r = blockIdx.y * 16 + y, q = blockIdx.x * 16 + x;
  T v = 0;
  for (int k = 0; k < n; k += 16) {
    s[y][x] = a[r * n + k + x], t[y][x] = b[(k + y) * n + q];
    __syncthreads();
    for (int j = 0; j < 16; j++) v += s[y][j] * t[j][x];
    __syncthreads();
  }
  c[r * n + q] = v;
}
extern "C" __global__ void doubles(const double* a, const double* b, double* c, int n) { tile(a, b, c, n); }
extern "C" __global__ void integers(const int* a, const int* b, int* c, int n) { tile(a, b, c, n); }
"""
_SUMS = r"""
__device__ float warp_sum(float v) { for (int d = 16; d; d /= 2) v += __shfl_xor_sync(~0u, v, d); return v; }
__device__ float block_sum(float v) {
  __shared__ float s[32];
  v = warp_sum(v);
  if (threadIdx.x % 32 == 0) s[threadIdx.x / 32] = v;
  __syncthreads();
  v = warp_sum(threadIdx.x % 32 < blockDim.x / 32 ? s[threadIdx.x % 32] : 0.0f);
  __syncthreads();
  return v;
}
extern "C" __global__ void sum(const float* x, float* y, int n) {
  float v = 0;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) v += x[i];
  v = block_sum(v);
  if (!threadIdx.x) atomicAdd(y, v);
}
extern "C" __global__ void sum4(const float4* x, float* y, int n) {
  float v = 0;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    float4 u = x[i];
    v += u.x + u.y + u.z + u.w;
  }
  v = block_sum(v);
  if (!threadIdx.x) atomicAdd(y, v);
}
extern "C" __global__ void rms_halves(const __half2* x, __half2* y, int n) {
  x += (long long)blockIdx.x * n, y += (long long)blockIdx.x * n;
  float s = 0;
  for (int i = threadIdx.x; i < n; i += blockDim.x) { float2 v = __half22float2(x[i]); s += v.x * v.x + v.y * v.y; }
  s = rsqrtf(block_sum(s) / (2 * n) + 1e-6f);
  for (int i = threadIdx.x; i < n; i += blockDim.x) y[i] = __hmul2(x[i], __float2half2_rn(s));
}
extern "C" __global__ void norm_warp(const float* x, float* y, int n) {
  int row = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x % 32;
  x += (long long)row * n, y += (long long)row * n;
  float v[32], s = 0, q = 0;
  for (int k = 0; k < 32; k++) s += v[k] = x[k * 32 + lane];
  s = warp_sum(s) / n;
  for (int k = 0; k < 32; k++) q += (v[k] - s) * (v[k] - s);
  q = rsqrtf(warp_sum(q) / n + 1e-5f);
  for (int k = 0; k < 32; k++) y[k * 32 + lane] = (v[k] - s) * q;
}
extern "C" __global__ void channel(const float* x, float* y, int channels, int size, int batch) {
  float s = 0, q = 0;
  for (int b = 0; b < batch; b++) for (int i = threadIdx.x; i < size; i += blockDim.x) {
    float v = x[(b * channels + blockIdx.x) * size + i];
    s += v, q += v * v;
  }
  s = block_sum(s), q = block_sum(q);
  if (!threadIdx.x) y[2 * blockIdx.x] = s, y[2 * blockIdx.x + 1] = q;
}
extern "C" __global__ void softmax_warp(const float* x, float* y, int n) {
  int row = blockIdx.x * 4 + threadIdx.x / 32, lane = threadIdx.x % 32;
  x += (long long)row * n, y += (long long)row * n;
  float m = -INFINITY, s = 0;
  for (int i = lane; i < n; i += 32) {
    float v = x[i], most = fmaxf(m, v);
    s = s * __expf(m - most) + __expf(v - most), m = most;
  }
  float most = m;
  for (int d = 16; d; d /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, d));
  s = 1 / warp_sum(s * __expf(m - most));
  for (int i = lane; i < n; i += 32) y[i] = __expf(x[i] - most) * s;
}
extern "C" __global__ void softmax_kept(const float* x, float* y, int n) {
  extern __shared__ float row[];
  x += (long long)blockIdx.x * n, y += (long long)blockIdx.x * n;
  float s = 0;
  for (int i = threadIdx.x; i < n; i += blockDim.x) s += row[i] = expf(x[i]);
  s = 1 / block_sum(s);
  for (int i = threadIdx.x; i < n; i += blockDim.x) y[i] = row[i] * s;
}
extern "C" __global__ void one_query(const float* q, const float* k, const float* v, float* y, int keys) {
  __shared__ float p[128], o[128];
  int t = threadIdx.x, head = blockIdx.x, per = keys / gridDim.y;
  long long first = ((long long)head * keys + blockIdx.y * per) * 128;
  q += head * 128, k += first, v += first;
  float sum = 0, out = 0;
  for (int j = 0; j < per; j += 128) {
    for (int w = t / 32; w < 128; w += 4) {
      float s = 0;
      for (int d = t % 32; d < 128; d += 32) s += q[d] * k[(j + w) * 128 + d];
      s = warp_sum(s);
      if (t % 32 == 0) p[w] = __expf(s * 0.01f);
    }
    __syncthreads();
    for (int w = 0; w < 128; w++) out += p[w] * v[(j + w) * 128 + t], sum += p[w];
    __syncthreads();
  }
  o[t] = out / sum;
  y[(head * gridDim.y + blockIdx.y) * 128 + t] = o[t];
}
"""
_SCANS = r"""
extern "C" __global__ void steps(const float* x, float* y, int n) {
  __shared__ float s[2][512];
  int t = threadIdx.x, i = blockIdx.x * 512 + t, at = 0;
  s[0][t] = x[i];
  __syncthreads();
  for (int d = 1; d < 512; d *= 2, at = !at) { s[!at][t] = s[at][t] + (t >= d ? s[at][t - d] : 0); __syncthreads(); }
  y[i] = s[at][t];
}
extern "C" __global__ void tree(const float* x, float* y, int n) {
  __shared__ float s[1024];
  int t = threadIdx.x, i = blockIdx.x * 1024, d = 1;
  s[2 * t] = x[i + 2 * t], s[2 * t + 1] = x[i + 2 * t + 1];
  for (int k = 512; k; k /= 2, d *= 2) {
    __syncthreads();
    if (t < k) s[d * (2 * t + 2) - 1] += s[d * (2 * t + 1) - 1];
  }
  if (!t) s[1023] = 0;
  for (int k = 1; k < 1024; k *= 2) {
    d /= 2;
    __syncthreads();
    if (t < k) {
      float v = s[d * (2 * t + 1) - 1];
      s[d * (2 * t + 1) - 1] = s[d * (2 * t + 2) - 1], s[d * (2 * t + 2) - 1] += v;
    }
  }
  __syncthreads();
  y[i + 2 * t] = s[2 * t], y[i + 2 * t + 1] = s[2 * t + 1];
}
extern "C" __global__ void bitonic(float* x) {
  __shared__ float s[1024];
  int t = threadIdx.x;
  x += blockIdx.x * 1024;
  s[t] = x[t], s[t + 512] = x[t + 512];
  for (int k = 2; k <= 1024; k *= 2) for (int j = k / 2; j; j /= 2) {
    __syncthreads();
    int a = 2 * t - (t & (j - 1)), b = a + j;
    float u = s[a], v = s[b];
    if ((u > v) == !(a & k)) s[a] = v, s[b] = u;
  }
  __syncthreads();
  x[t] = s[t], x[t + 512] = s[t + 512];
}
extern "C" __global__ void exchange(float* x, int j, int k) {
  int t = blockIdx.x * blockDim.x + threadIdx.x, a = 2 * t - (t & (j - 1)), b = a + j;
  float u = x[a], v = x[b];
  if ((u > v) == !(a & k)) x[a] = v, x[b] = u;
}
extern "C" __global__ void fourier(const float2* x, float2* y) {
  __shared__ float2 s[1024];
  int t = threadIdx.x;
  for (int i = t; i < 1024; i += 512) s[__brev(i) >> 22] = x[blockIdx.x * 1024 + i];
  for (int half = 1; half < 1024; half *= 2) {
    __syncthreads();
    int k = t & (half - 1), a = 2 * t - k, b = a + half;
    float w, z;
    __sincosf(-3.14159265f * k / half, &w, &z);
    float2 u = s[a], v = s[b], p = make_float2(v.x * z - v.y * w, v.x * w + v.y * z);
    s[a] = make_float2(u.x + p.x, u.y + p.y), s[b] = make_float2(u.x - p.x, u.y - p.y);
  }
  __syncthreads();
  for (int i = t; i < 1024; i += 512) y[blockIdx.x * 1024 + i] = s[i];
}
"""
_GRIDS = r"""
extern "C" __global__ void seven(const float* x, float* y, int n) {
  int a = blockIdx.x * blockDim.x + threadIdx.x, b = blockIdx.y * blockDim.y + threadIdx.y;
  int c = blockIdx.z * blockDim.z + threadIdx.z, i = (c * n + b) * n + a, m = n * n;
  if (a && b && c && a < n - 1 && b < n - 1 && c < n - 1)
    y[i] = 0.1f * (x[i - 1] + x[i + 1] + x[i - n] + x[i + n] + x[i - m] + x[i + m]) + 0.4f * x[i];
}
extern "C" __global__ void planes(const float* x, float* y, int n) {
  __shared__ float t[10][34];
  int a = threadIdx.x + 1, b = threadIdx.y + 1, u = blockIdx.x * 32 + threadIdx.x, v = blockIdx.y * 8 + threadIdx.y;
  int i = v * n + u, m = n * n;
  float before = 0, here = x[i], next;
  for (int z = 0; z < n - 1; z++, i += m, before = here, here = next) {
    next = x[i + m];
    t[b][a] = here;
    if (a == 1) t[b][0] = u ? x[i - 1] : 0;
    if (a == 32) t[b][33] = u < n - 1 ? x[i + 1] : 0;
    if (b == 1) t[0][a] = v ? x[i - n] : 0;
    if (b == 8) t[9][a] = v < n - 1 ? x[i + n] : 0;
    __syncthreads();
    y[i] = 0.1f * (t[b][a - 1] + t[b][a + 1] + t[b - 1][a] + t[b + 1][a] + before + next) + 0.4f * here;
    __syncthreads();
  }
}
extern "C" __global__ void blur_rows(const float* x, const float* w, float* y, int width, int height) {
  int c = blockIdx.x * blockDim.x + threadIdx.x, r = blockIdx.y;
  float s = 0;
  for (int k = -8; k <= 8; k++) s += w[k + 8] * x[r * width + min(max(c + k, 0), width - 1)];
  y[r * width + c] = s;
}
extern "C" __global__ void blur_columns(const float* x, const float* w, float* y, int width, int height) {
  int c = blockIdx.x * blockDim.x + threadIdx.x, r = blockIdx.y;
  float s = 0;
  for (int k = -8; k <= 8; k++) s += w[k + 8] * x[min(max(r + k, 0), height - 1) * width + c];
  y[r * width + c] = s;
}
extern "C" __global__ void blur_shared(const float* x, const float* w, float* y, int width, int height) {
  __shared__ float t[272], f[17];
  int c = blockIdx.x * 256 + threadIdx.x, r = blockIdx.y;
  if (threadIdx.x < 17) f[threadIdx.x] = w[threadIdx.x];
  for (int i = threadIdx.x; i < 272; i += 256)
    t[i] = x[r * width + min(max((int)blockIdx.x * 256 + i - 8, 0), width - 1)];
  __syncthreads();
  float s = 0;
  for (int k = 0; k < 17; k++) s += f[k] * t[threadIdx.x + k];
  y[r * width + c] = s;
}
extern "C" __global__ void twice(const float* x, float* y, int n) {
  int c = blockIdx.x * 32 + threadIdx.x, r = blockIdx.y * 8 + threadIdx.y;
  float u = fminf(fmaxf(0.5f * c - 0.25f, 0), n - 1.001f), v = fminf(fmaxf(0.5f * r - 0.25f, 0), n - 1.001f);
  int i = u, j = v;
  float a = u - i, b = v - j;
  const float* p = x + j * n + i;
  y[r * 2 * n + c] = (1 - b) * ((1 - a) * p[0] + a * p[1]) + b * ((1 - a) * p[n] + a * p[n + 1]);
}
extern "C" __global__ void fractal(int* y, int n, int most) {
  int c = blockIdx.x * blockDim.x + threadIdx.x, r = blockIdx.y * blockDim.y + threadIdx.y, k = 0;
  float a = 3.0f * c / n - 2.2f, b = 3.0f * r / n - 1.5f, u = 0, v = 0;
  for (; k < most && u * u + v * v < 4; k++) { float t = u * u - v * v + a; v = 2 * u * v + b, u = t; }
  y[r * n + c] = k;
}
"""
_MATH = r"""
template <class T> __device__ T normal(T d) { return T(0.5) * erfc(-d * T(0.70710678)); }
template <class T> __device__ void options(const T* s, const T* x, const T* t, T* call, T* put, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  T price = s[i] * 30 + 5, strike = x[i] * 100 + 1, years = t[i] * 10 + T(0.25), root = sqrt(years);
  T a = (log(price / strike) + (T(0.02) + T(0.045)) * years) / (T(0.3) * root), b = a - T(0.3) * root;
  T e = exp(T(-0.02) * years);
  call[i] = price * normal(a) - strike * e * normal(b);
  put[i] = strike * e * normal(-b) - price * normal(-a);
}
extern "C" __global__ void options_float(
    const float* s, const float* x, const float* t, float* c, float* p, int n) { options(s, x, t, c, p, n); }
extern "C" __global__ void options_double(
    const double* s, const double* x, const double* t, double* c, double* p, int n) { options(s, x, t, c, p, n); }
extern "C" __global__ void axpy_double(const double* x, double* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] += 0.5 * x[i];
}
extern "C" __global__ void axpy_halves(const __half2* x, __half2* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = __hfma2(x[i], __float2half2_rn(0.5f), y[i]);
}
extern "C" __global__ void gelu_halves(const __half2* x, __half2* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float2 v = __half22float2(x[i]);
  v.x = 0.5f * v.x * (1 + tanhf(0.79788456f * (v.x + 0.044715f * v.x * v.x * v.x)));
  v.y = 0.5f * v.y * (1 + tanhf(0.79788456f * (v.y + 0.044715f * v.y * v.y * v.y)));
  y[i] = __float22half2_rn(v);
}
extern "C" __global__ void walk(float* y, int steps) {
  unsigned s = blockIdx.x * blockDim.x + threadIdx.x + 1, hits = 0;
  for (int k = 0; k < steps; k++) {
    s ^= s << 13, s ^= s >> 17, s ^= s << 5;
    float a = s * 2.3283064e-10f;
    s ^= s << 13, s ^= s >> 17, s ^= s << 5;
    float b = s * 2.3283064e-10f;
    hits += a * a + b * b < 1;
  }
  y[blockIdx.x * blockDim.x + threadIdx.x] = 4.0f * hits / steps;
}
extern "C" __global__ void powers(const int* x, int* y, int n, int modulus) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  unsigned long long v = x[i], p = 1;
  for (int e = 1000003; e; e /= 2) { if (e & 1) p = p * v % (unsigned)modulus; v = v * v % (unsigned)modulus; }
  y[i] = p;
}
extern "C" __global__ void digits(const int* x, int* y, int n, int base) {
  int i = blockIdx.x * blockDim.x + threadIdx.x, v = x[i], s = 0;
  for (int k = 0; k < 12; k++) s += v % base, v /= base;
  y[i] = s;
}
extern "C" __global__ void gravity(const float4* p, float4* v, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  float4 me = p[i], a = make_float4(0, 0, 0, 0);
  for (int j = 0; j < n; j++) {
    float4 o = __ldg(p + j);
    float x = o.x - me.x, y = o.y - me.y, z = o.z - me.z;
    float r = rsqrtf(x * x + y * y + z * z + 0.01f), f = o.w * r * r * r;
    a.x += f * x, a.y += f * y, a.z += f * z;
  }
  v[i] = a;
}
extern "C" __global__ void close_pairs(const float4* p, float4* v, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  float4 me = p[i], a = make_float4(0, 0, 0, 0);
  for (int j = 0; j < n; j++) {
    float4 o = __ldg(p + j);
    float x = o.x - me.x, y = o.y - me.y, z = o.z - me.z, r = x * x + y * y + z * z;
    if (r < 0.04f && j != i) {
      float q = 1 / r, e = q * q * q, f = (e * e - e) * sqrtf(q);
      a.x += f * x, a.y += f * y, a.z += f * z;
    }
  }
  v[i] = a;
}
extern "C" __global__ void insertion(float* x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  float v[24];
  for (int k = 0; k < 24; k++) {
    float one = x[k * n + i];
    int at = k;
    while (at && v[at - 1] > one) v[at] = v[at - 1], at--;
    v[at] = one;
  }
  for (int k = 0; k < 24; k++) x[k * n + i] = v[k];
}
extern "C" __global__ void __launch_bounds__(256, 4) polynomials(const float* x, float* y, int n) {
  float u[96];
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  for (int k = 0; k < 96; k++) u[k] = x[(k * n + i) % n] + k;
  for (int step = 0; step < 16; step++) for (int k = 0; k < 96; k++) u[k] = u[k] * u[(k * 7 + 5) % 96] + 0.5f;
  float s = 0;
  for (int k = 0; k < 96; k++) s += u[k];
  y[i] = s;
}
extern "C" __global__ void heavy(const float* x, float* y, int rounds) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  float v = x[i], a = 0.1f, b = 0.2f, c = 0.3f;
  for (int k = 0; k < rounds; k++) v = v * 0.99f + 0.1f, a = a * v + 0.1f, b = b * v + a, c = c * 0.5f + b;
  y[i] = v + a + b + c;
}
"""
_INDEXED = r"""
extern "C" __global__ void chase(const int* next, int* y, int steps) {
  int i = blockIdx.x * blockDim.x + threadIdx.x, at = i * 511;
  for (int k = 0; k < steps; k++) at = next[at];
  y[i] = at;
}
extern "C" __global__ void add(const int* to, const float* x, float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) atomicAdd(y + to[i], x[i]);
}
extern "C" __global__ void largest(const int* to, int* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) atomicMax(y + to[i] % 32, i);
}
extern "C" __global__ void counts(const int* x, int* y, int n) {
  __shared__ int own[4096];
  for (int i = threadIdx.x; i < 4096; i += blockDim.x) own[i] = 0;
  __syncthreads();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) atomicAdd(own + x[i], 1);
  __syncthreads();
  for (int i = threadIdx.x; i < 4096; i += blockDim.x) if (own[i]) atomicAdd(y + i, own[i]);
}
__device__ int length(int r) { return 1 + ((unsigned)r * 2654435761u >> 26); }
extern "C" __global__ void ragged_thread(const float* a, const int* c, const float* x, float* y, int n) {
  int r = blockIdx.x * blockDim.x + threadIdx.x;
  float s = 0;
  for (int k = 0; k < length(r); k++) s += a[r * 64 + k] * x[c[r * 64 + k]];
  y[r] = s;
}
extern "C" __global__ void ragged_warp(const float* a, const int* c, const float* x, float* y, int n) {
  int r = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
  float s = 0;
  for (int k = lane; k < length(r); k += 32) s += a[r * 64 + k] * x[c[r * 64 + k]];
  for (int d = 16; d; d /= 2) s += __shfl_down_sync(~0u, s, d);
  if (!lane) y[r] = s;
}
extern "C" __global__ void lookups(const int* x, const int* table, int* y, int n) {
  __shared__ int t[256];
  t[threadIdx.x] = table[threadIdx.x];
  __syncthreads();
  int i = blockIdx.x * 256 + threadIdx.x;
  unsigned v = x[i], c = ~0u;
  for (int k = 0; k < 4; k++, v >>= 8) c = c >> 8 ^ t[(c ^ v) & 255];
  y[i] = ~c;
}
"""
_HALVES = "#include <cuda_fp16.h>\n"


def rows() -> list[Row]:
    """The kernels with their launches, as recorded rows have them."""
    return [*_moves(), *_products(), *_sums(), *_scans(), *_grids(), *_math(), *_indexed(), *_gallery()]


def _row(family: str, variant: str, grid: Any, block: Any, args: str, source: str, kernel: str, shared: int = 0) -> Row:
    return {
        "family": family, "variant": variant, "source": source, "kernel": kernel, "args": args.split(), "grid": grid,
        "block": block, "shared": shared,
    }  # fmt: skip


def _moves() -> list[Row]:
    size = 64 * 513 * 257
    flat = f"f:{size} f:{size} n:513 n:257"
    n, tables = 1 << 16, {"random": "i", "sorted": "s"}
    found = [
        _row("batched transpose", "64 x 513x257 in tiles", [9, 17, 64], [32, 8], flat, _MOVES, "tiles"),
        _row("batched transpose", "64 x 513x257 columns written", [9, 65, 64], [32, 8], flat, _MOVES, "columns_out"),
        _row("batched transpose", "64 x 513x257 columns read", [17, 33, 64], [32, 8], flat, _MOVES, "columns_in"),
    ]
    for order, kind in tables.items():
        args = f"f:{1 << 24} {kind}:{n}:{1 << 18} f:{n * 64} n:{n}"
        found += [
            _row("embedding", f"2^16 of 2^18 x 64, {order}", n // 4, 256, f"{args} n:64", _MOVES, "rows_of"),
            _row("embedding", f"2^16 of 2^18 x 64, {order}, float4", n // 16, 256, f"{args} n:16", _MOVES, "packs_of"),
        ]
    args = f"f:{1 << 24} i:{n}:{1 << 18} f:{n * 64} n:{n} n:64"
    return [
        *found,
        _row("embedding", "2^16 of 2^18 x 64, a thread each", n // 128, 128, args, _MOVES, "a_thread_a_row"),
    ]


def _products() -> list[Row]:
    vector, square = "f:16777216 f:4096 f:4096 n:4096", "f:589824 f:589824 f:589824 n:768"
    return [
        _row("matrix by vector", "4096, a thread a row", 32, 128, vector, _PRODUCTS, "thread_a_row"),
        _row("matrix by vector", "4096, a thread a column", 32, 128, vector, _PRODUCTS, "thread_a_column"),
        _row("matrix by vector", "4096, a warp a row", 512, 256, vector, _PRODUCTS, "warp_a_row"),
        _row("products", "4096 of 32", 4096, [32, 8], "f:4194304 f:4194304 f:4194304", _PRODUCTS, "small"),
        _row("products", "768, 8x8 a thread", [6, 6], 256, square, _PRODUCTS, "eight"),
        _row(
            "products", "2048, 8x8 a thread", [16, 16], 256, "f:4194304 f:4194304 f:4194304 n:2048", _PRODUCTS, "eight"
        ),
        _row("products", "768 float64", [48, 48], [16, 16], "d:589824 d:589824 d:589824 n:768", _PRODUCTS, "doubles"),
        _row(
            "products", "768 int32", [48, 48], [16, 16], "i:589824:9 i:589824:9 i:589824:9 n:768", _PRODUCTS, "integers"
        ),
    ]


def _sums() -> list[Row]:
    source, heads = _HALVES + _SUMS, "f:4096 f:8388608 f:8388608 f:131072 n:2048"
    return [
        _row("reduction", "2^24, 16384 blocks", 16384, 256, f"f:{_L} f:1 n:{_L}", source, "sum"),
        _row("reduction", "2^24, 528 blocks", 528, 512, f"f:{_L} f:1 n:{_L}", source, "sum"),
        _row("reduction", "2^24, float4", 528, 256, f"f:{_L} f:1 n:{_L // 4}", source, "sum4"),
        _row("few blocks", "sum of 2^20 by one block", 1, 1024, f"f:{_M} f:1 n:{_M}", source, "sum"),
        _row("few blocks", "sum of 2^20 by 16 blocks", 16, 1024, f"f:{_M} f:1 n:{_M}", source, "sum"),
        _row("norms", "rms, 8192x2048 halves", 8192, 256, f"h:{_L} h:{_L} n:1024", source, "rms_halves"),
        _row("norms", "rows of 1024, a warp each", 2048, 256, f"f:{_L} f:{_L} n:1024", source, "norm_warp"),
        _row("norms", "256 channels of 16 x 4096", 256, 512, f"f:{_L} f:512 n:256 n:4096 n:16", source, "channel"),
        _row("row softmax", "65536x256, a warp each", 16384, 128, f"f:{_L} f:{_L} n:256", source, "softmax_warp"),
        _row("row softmax", "2048x8192, a warp each", 512, 128, f"f:{_L} f:{_L} n:8192", source, "softmax_warp"),
        _row(
            "row softmax", "2048x8192 kept in blocks", 2048, 512, f"f:{_L} f:{_L} n:8192", source, "softmax_kept", 32768
        ),
        _row("one query", "32 heads, 2048 keys", [32, 1], 128, heads, source, "one_query"),
        _row("one query", "32 heads, 2048 keys in 16 parts", [32, 16], 128, heads, source, "one_query"),
    ]


def _scans() -> list[Row]:
    n = 1 << 22
    flat = f"f:{n} f:{n} n:{n}"
    return [
        _row("prefix sums", "2^22, steps of 512", n // 512, 512, flat, _SCANS, "steps"),
        _row("prefix sums", "2^22, trees of 1024", n // 1024, 512, flat, _SCANS, "tree"),
        _row("sort", "2^22, bitonic in blocks", n // 1024, 512, f"f:{n}", _SCANS, "bitonic"),
        _row("sort", "2^22, far exchange", n // 512, 256, f"f:{n} n:{1 << 16} n:{1 << 18}", _SCANS, "exchange"),
        _row("sort", "2^22, near exchange", n // 512, 256, f"f:{n} n:1 n:{1 << 18}", _SCANS, "exchange"),
        _row("fourier", "4096 of 1024", 4096, 512, f"f:{2 * n} f:{2 * n}", _SCANS, "fourier"),
    ]


def _grids() -> list[Row]:
    cube, image = f"f:{192**3} f:{192**3} n:192", f"f:{1 << 23} f:17 f:{1 << 23} n:4096 n:2048"
    return [
        _row("3D stencil", "192^3 blocks 32x4x2", [6, 48, 96], [32, 4, 2], cube, _GRIDS, "seven"),
        _row("3D stencil", "192^3 blocks 8x8x8", [24, 24, 24], [8, 8, 8], cube, _GRIDS, "seven"),
        _row("3D stencil", "192^3 by planes", [6, 24], [32, 8], cube, _GRIDS, "planes"),
        _row("blur", "4096x2048 rows", [16, 2048], 256, image, _GRIDS, "blur_rows"),
        _row("blur", "4096x2048 rows in blocks", [16, 2048], 256, image, _GRIDS, "blur_shared"),
        _row("blur", "4096x2048 columns", [16, 2048], 256, image, _GRIDS, "blur_columns"),
        _row("resize", "2048 to 4096", [128, 512], [32, 8], f"f:{2048 * 2048} f:{_L} n:2048", _GRIDS, "twice"),
        _row("fractal", "2048, blocks 32x8", [64, 256], [32, 8], "i:4194304:1 n:2048 n:256", _GRIDS, "fractal"),
        _row("fractal", "2048, blocks 256x1", [8, 2048], [256, 1], "i:4194304:1 n:2048 n:256", _GRIDS, "fractal"),
    ]


def _math() -> list[Row]:
    n, source = 1 << 22, _HALVES + _MATH
    return [
        _row("options", "2^22 float", n // 256, 256, f"{f'f:{n} ' * 5}n:{n}", source, "options_float"),
        _row("options", "2^20 double", _M // 128, 128, f"{f'd:{_M} ' * 5}n:{_M}", source, "options_double"),
        _row("half and double", "axpy, 2^24 doubles", _L // 256, 256, f"d:{_L} d:{_L} n:{_L}", source, "axpy_double"),
        _row(
            "half and double",
            "axpy, 2^25 halves",
            _L // 256,
            256,
            f"h:{2 * _L} h:{2 * _L} n:{_L}",
            source,
            "axpy_halves",
        ),
        _row(
            "half and double",
            "gelu, 2^25 halves",
            _L // 256,
            256,
            f"h:{2 * _L} h:{2 * _L} n:{_L}",
            source,
            "gelu_halves",
        ),
        _row("random walk", "2^20 of 256", _M // 256, 256, f"f:{_M} n:256", source, "walk"),
        _row("random walk", "2^14 of 4096", 64, 256, f"f:{1 << 14} n:4096", source, "walk"),
        _row(
            "division",
            "powers, 64 bits",
            _M // 256,
            256,
            f"i:{_M}:1000000 i:{_M}:1 n:{_M} n:998244353",
            source,
            "powers",
        ),
        _row("division", "digits, 32 bits", n // 256, 256, f"i:{n}:100000000 i:{n}:1 n:{n} n:10", source, "digits"),
        _row("gravity", "16384 from memory", 128, 128, "f:65536 f:65536 n:16384", source, "gravity"),
        _row("gravity", "16384, close pairs", 128, 128, "f:65536 f:65536 n:16384", source, "close_pairs"),
        _row("local memory", "insertion of 24", 1024, 128, f"f:{24 << 17} n:{1 << 17}", source, "insertion"),
        _row("local memory", "96 values", 512, 256, f"f:{1 << 17} f:{1 << 17} n:{1 << 17}", source, "polynomials"),
        _row(
            "few blocks",
            "1024 rounds, 264 blocks of 1024",
            264,
            1024,
            f"f:{1 << 19} f:{1 << 19} n:1024",
            source,
            "heavy",
        ),
        _row(
            "few blocks",
            "1024 rounds, 270 blocks of 1024",
            270,
            1024,
            f"f:{1 << 19} f:{1 << 19} n:1024",
            source,
            "heavy",
        ),
    ]


def _indexed() -> list[Row]:
    n = 1 << 22
    to = {bins: f"i:{n}:{bins} f:{n} f:{bins} n:{n}" for bins in (1 << 10, 1 << 21)}
    rows, matrix = 1 << 16, f"f:{1 << 22} i:{1 << 22}:{1 << 20} f:{1 << 20} f:{1 << 16} n:{1 << 16}"
    return [
        _row("chase", "one thread, 2^14", 1, 1, f"c:{1 << 14} i:1:1 n:4096", _INDEXED, "chase"),
        _row("chase", "one thread, 2^22", 1, 1, f"c:{1 << 22} i:1:1 n:4096", _INDEXED, "chase"),
        _row("chase", "2^16 threads, 2^25", 256, 256, f"c:{1 << 25} i:{1 << 16}:1 n:64", _INDEXED, "chase"),
        _row("atomics", "2^22 floats to 2^10", n // 256, 256, to[1 << 10], _INDEXED, "add"),
        _row("atomics", "2^22 floats to 2^21", n // 256, 256, to[1 << 21], _INDEXED, "add"),
        _row("atomics", "largest of 2^22 at 32", n // 256, 256, f"i:{n}:1024 i:32:1 n:{n}", _INDEXED, "largest"),
        _row("block counts", "2^22 in 4096 bins", 264, 512, f"i:{n}:4096 i:4096:1 n:{n}", _INDEXED, "counts"),
        _row("ragged rows", "2^16 of 1 to 64, a thread each", rows // 128, 128, matrix, _INDEXED, "ragged_thread"),
        _row("ragged rows", "2^16 of 1 to 64, a warp each", rows // 4, 128, matrix, _INDEXED, "ragged_warp"),
        _row(
            "lookups",
            "2^22 in 256",
            n // 256,
            256,
            f"i:{n}:{1 << 30} i:256:{1 << 30} i:{n}:1 n:{n}",
            _INDEXED,
            "lookups",
        ),
    ]


def _gallery() -> list[Row]:
    """Kernels of the examples, as they stand there."""

    def source(name: str) -> str:
        return (GALLERY / f"{name}.py").read_text().split('r"""')[1].split('"""')[0]

    logits, pairs, n = 64 * 50257, 4096 * 16 * 64, 1 << 20
    rope = f"f:{2 * pairs} f:{2 * pairs} i:4096:4096 n:{pairs} n:{pairs} n:16 n:16 n:128 x:10000 n:0"
    blocks = n // 256
    return [
        _row("gallery", "rope, 4096 x 16 x 128", 2 * pairs // 256, 256, rope, source("rope"), "rope"),
        _row(
            "gallery", "sample, 64 x 50257", 64, 256, f"f:{logits} l:64 n:50257 x:0.8 n:1", source("sampling"), "sample"
        ),
        _row(
            "gallery",
            "sort, digits counted",
            blocks,
            256,
            f"u:{n}:{1 << 30} i:{16 * blocks}:1 n:{n} n:4",
            source("sort"),
            "count",
        ),
        _row(
            "gallery",
            "quantize, 4096x4096",
            512,
            256,
            f"f:{_L} i:4194304:1 f:4096 n:4096 n:4096 n:1024",
            source("quantized_matmul"),
            "quantize",
        ),
        _row(
            "gallery",
            "int8 product, 1024",
            [64, 64],
            [16, 16],
            f"i:262144:{1 << 30} i:262144:{1 << 30} f:1024 f:1024 f:{n} n:1024 n:1024 n:256",
            source("quantized_matmul"),
            "multiply",
        ),
        _row(
            "gallery",
            "histogram, 2^24 in 64 bins",
            1024,
            256,
            f"f:{_L} i:64:1 n:{_L} n:64 x:0 x:1",
            source("histogram"),
            "histogram",
            256,
        ),
    ]
