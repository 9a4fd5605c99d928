"""Kernels that return and break out of loops, add to what they have set, take addresses, exchange parts of a warp."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from tests.gradients.cases import case


@case(r"""
#include <cstdio>
#include <cassert>
#define CHECK(x) do { if (!(x)) { printf("failed %s\n", #x); } } while (0)
#define CEIL_DIV(a, b) (((a) + (b) - 1) / (b))
// Computes out[i] = index of the bucket, returns early
__device__ float piecewise_linear(const float* __restrict__ knots, const float* __restrict__ values, int n, float x) {
    for (int i = 0; i < n - 1; i++) {
        if (x < knots[i + 1]) {
            float t = (x - knots[i]) / (knots[i + 1] - knots[i]);
            return values[i] * (1.0f - t) + values[i + 1] * t;
        }
    }
    return values[n - 1];
}
__global__ void lut(const float* x, const float* knots, const float* values, float* y, int n, int k) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    assert(k > 1);
    y[i] = piecewise_linear(knots, values, k, x[i]);
#ifdef DEBUG
    if (i == 0) printf("y[0] = %f\n", y[i]);
#endif
}""", 32, 2, lambda r: (r(40), torch.linspace(-1, 1, 7), r(7), r(40), 40, 7), name="lut", max_iterations=8)  # fmt: skip
def lut(x, knots, values, y, n, k):
    i = torch.bucketize(x.detach(), knots.detach(), right=True).clamp(max=6) - 1
    i = i.clamp(0, 5)
    t = (x - knots[i]) / (knots[i + 1] - knots[i])
    return {"y": torch.where(x < knots[-1], values[i] * (1 - t) + values[i + 1] * t, values[-1])}


@case("""
__device__ float sdf(float3 p, float r) { return sqrtf(p.x*p.x+p.y*p.y+p.z*p.z) - r; }
__device__ bool trace(float3 o, float3 d, float r, float& t_out) {
  float t = 0.f;
  for (int i = 0; i < 32; i++) {
    float3 p = {o.x + t*d.x, o.y + t*d.y, o.z + t*d.z};
    float h = sdf(p, r);
    if (h < 1e-3f) { t_out = t; return true; }
    t += h;
    if (t > 10.f) return false;
  }
  return false;
}
__global__ void trace_k(const float3* d, const float* r, float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float t;
  y[i] = trace(make_float3(0,0,-3), d[i], *r, t) ? t * t : -1.f;
}""", 32, 2, lambda r: (F.normalize(torch.cat([r(40, 2) * 0.5, torch.ones(40, 1)], 1), dim=-1), torch.tensor([1.0]), r(40), 40), name="trace_k")  # fmt: skip
def trace_k(d, r, y, n):
    t = torch.zeros(40, dtype=d.dtype)
    out = torch.full((40,), -1.0, dtype=d.dtype)
    live = torch.ones(40, dtype=torch.bool)
    for _ in range(32):
        h = (t[:, None] * d + d.new_tensor([0, 0, -3.0])).norm(dim=-1) - r
        hit = live & (h < 1e-3)
        out = torch.where(hit, t * t, out)
        live = live & ~hit
        t = torch.where(live, t + h, t)
        live = live & ~(t > 10)
    return {"y": out}


@case("""
#define CUDA_1D_KERNEL_LOOP(i, n) for (int i = (blockIdx.x * blockDim.x) + threadIdx.x; i < (n); i += (blockDim.x * gridDim.x))
template <typename T>
__global__ void roi_pool_forward_kernel_impl(int nthreads, const T* input, const T spatial_scale, int channels, int height, int width,
    int pooled_height, int pooled_width, const T* rois, T* output, int* argmax_data) {
  CUDA_1D_KERNEL_LOOP(index, nthreads) {
    // (n, c, ph, pw) is an element in the pooled output
    int pw = index % pooled_width;
    int ph = (index / pooled_width) % pooled_height;
    int c = (index / pooled_width / pooled_height) % channels;
    int n = index / pooled_width / pooled_height / channels;
    const T* offset_rois = rois + n * 5;
    int roi_batch_ind = offset_rois[0];
    int roi_start_w = round(offset_rois[1] * spatial_scale);
    int roi_start_h = round(offset_rois[2] * spatial_scale);
    int roi_end_w = round(offset_rois[3] * spatial_scale);
    int roi_end_h = round(offset_rois[4] * spatial_scale);
    // Force malformed ROIs to be 1x1
    int roi_width = max(roi_end_w - roi_start_w + 1, 1);
    int roi_height = max(roi_end_h - roi_start_h + 1, 1);
    T bin_size_h = static_cast<T>(roi_height) / static_cast<T>(pooled_height);
    T bin_size_w = static_cast<T>(roi_width) / static_cast<T>(pooled_width);
    int hstart = static_cast<int>(floor(static_cast<T>(ph) * bin_size_h));
    int wstart = static_cast<int>(floor(static_cast<T>(pw) * bin_size_w));
    int hend = static_cast<int>(ceil(static_cast<T>(ph + 1) * bin_size_h));
    int wend = static_cast<int>(ceil(static_cast<T>(pw + 1) * bin_size_w));
    hstart = min(max(hstart + roi_start_h, 0), height);
    hend = min(max(hend + roi_start_h, 0), height);
    wstart = min(max(wstart + roi_start_w, 0), width);
    wend = min(max(wend + roi_start_w, 0), width);
    bool is_empty = (hend <= hstart) || (wend <= wstart);
    // Define an empty pooling region to be zero
    T maxval = is_empty ? 0 : -FLT_MAX;
    // If nothing is pooled, argmax = -1 causes nothing to be backprop'd
    int maxidx = -1;
    const T* offset_input = input + (roi_batch_ind * channels + c) * height * width;
    for (int h = hstart; h < hend; ++h) {
      for (int w = wstart; w < wend; ++w) {
        int input_index = h * width + w;
        if (offset_input[input_index] > maxval) {
          maxval = offset_input[input_index];
          maxidx = input_index;
        }
      }
    }
    output[index] = maxval;
    argmax_data[index] = maxidx;
  }
}""", 32, 1, lambda r: (2 * 2 * 2 * 2, r(1, 2, 8, 8), 1.0, 2, 8, 8, 2, 2, torch.tensor([[0., 1, 1, 4, 4], [0, 2, 3, 7, 6]]), r(2, 2, 2, 2), torch.zeros(16, dtype=torch.int32)), name="roi_pool_forward_kernel_impl<float>", wrt=("input",), max_iterations=8)  # fmt: skip
def roi_pool(nt, input, sc, C, H, W, ph, pw, rois, output, am):
    out = []
    for b, x1, y1, x2, y2 in [[0, 1, 1, 4, 4], [0, 2, 3, 7, 6]]:
        for c in range(2):
            for i in range(2):
                for j in range(2):
                    hh, ww = (y2 - y1 + 1) / 2, (x2 - x1 + 1) / 2
                    h0, h1, w0, w1 = (
                        math.floor(i * hh) + y1,
                        math.ceil((i + 1) * hh) + y1,
                        math.floor(j * ww) + x1,
                        math.ceil((j + 1) * ww) + x1,
                    )
                    out.append(input[b, c, h0 : min(h1, 8), w0 : min(w1, 8)].max())
    return {"output": torch.stack(out).view(2, 2, 2, 2)}


@case("""
__global__ void early(const float* x, const int* idx, float* y, int n, int m) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; ; i += gridDim.x * blockDim.x) {
    if (i >= n) return;
    int j = idx[i];
    if (j < 0 || j >= m) continue;
    float v = x[j];
    y[i] = v > 0 ? v * v : -v;
  }
}""", 32, 2, lambda r: (r(30), torch.tensor([k * 7 % 33 - 1 for k in range(100)], dtype=torch.int32), torch.zeros(100), 100, 30), max_iterations=4)  # fmt: skip
def early(x, idx, y, n, m):
    ok = (idx >= 0) & (idx < m)
    v = x[idx.long().clamp(0, 29)]
    return {"y": torch.where(ok, torch.where(v > 0, v * v, -v), torch.zeros(100, dtype=x.dtype))}


@case("""
__global__ void naive_mm(const float* A, const float* B, const float* bias, float* C, int M, int N, int K) {
    for (int idx = blockIdx.x * blockDim.x + threadIdx.x; idx < M * N; idx += gridDim.x * blockDim.x) {
        int r = idx / N, c = idx % N;
        C[idx] = bias[c] * bias[c];
        for (int k = 0; k < K; k++) C[idx] += A[r * K + k] * B[k * N + c];
        if (c % 2) C[idx] -= bias[0];
    }
}""", 32, 1, lambda r: (r(7, 9), r(9, 6), r(6), r(7, 6), 7, 6, 9))  # fmt: skip
def naive_mm(A, B, bias, C, M, N, K):
    return {"C": bias**2 + A @ B - bias[0] * (torch.arange(6) % 2)}


@case("""
__global__ void newton_sqrt(const float* a, float* y, int n, float tol) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float x = a[i];
    int it = 0;
    while (true) {
        float nx = 0.5f * (x + a[i] / x);
        if (fabsf(nx - x) < tol || ++it >= 30) { x = nx; break; }
        x = nx;
    }
    y[i] = x;
}""", 32, 2, lambda r: (1.5 + r(40), r(40), 40, 1e-5), wrt=("a",), max_iterations=30)  # fmt: skip
def newton_sqrt(a, y, n, tol):
    return {"y": a.sqrt()}


@case("""
__global__ void masked_mean(const float* x, const unsigned char* mask, float* out, int n) {
    int row = blockIdx.x; int lane = threadIdx.x;
    float s = 0.f; int cnt = 0;
    for (int base = 0; base < n; base += 32) {
        int c = base + lane;
        bool keep = c < n && mask[row * n + c];
        unsigned ballot = __ballot_sync(0xffffffff, keep);
        if (keep) s += x[row * n + c];
        cnt += __popc(ballot);
    }
    for (int o = 16; o; o >>= 1) s += __shfl_down_sync(0xffffffff, s, o);
    if (lane == 0) out[row] = cnt > 0 ? s / cnt : 0.f;
}""", 32, 3, lambda r: (r(3, 50), (r(3, 50) > 0).to(torch.uint8), r(3), 50))  # fmt: skip
def masked_mean(x, mask, out, n):
    return {"out": (x * mask).sum(1) / mask.sum(1)}


@case("""
__global__ void segment_reduce16(const float* x, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float v = i < n ? x[i] * x[i] : 0.f;
    #pragma unroll
    for (int delta = 8; delta >= 1; delta /= 2) v += __shfl_down_sync(0xffffffff, v, delta, 16);
    if (threadIdx.x % 16 == 0 && i < n) out[i / 16] = sqrtf(v);
}""", 64, 2, lambda r: (r(112), r(7), 112))  # fmt: skip
def segment_reduce16(x, out, n):
    return {"out": (x * x).view(7, 16).sum(1).sqrt()}


@case("""
__device__ void solve_quadratic(float a, float b, float c, float* x0, float* x1) {
  float disc = sqrtf(fmaxf(b * b - 4.f * a * c, 1e-6f));
  *x0 = (-b - disc) / (2.f * a);
  *x1 = (-b + disc) / (2.f * a);
  if (*x0 > *x1) { float tmp = *x0; *x0 = *x1; *x1 = tmp; }
}
__device__ void matvec(const float m[9], const float v[3], float out[3]) {
  for (int i = 0; i < 3; i++) { out[i] = 0.f; for (int j = 0; j < 3; j++) out[i] += m[3 * i + j] * v[j]; }
}
__device__ inline void cross3(const float* a, const float* b, float* o) { o[0] = a[1]*b[2]-a[2]*b[1]; o[1] = a[2]*b[0]-a[0]*b[2]; o[2] = a[0]*b[1]-a[1]*b[0]; }
__global__ void cstyle(const float* p, float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float lo, hi, m[9], v[3] = {p[3*i], p[3*i+1], p[3*i+2]}, w[3], c[3];
  solve_quadratic(1.5f + v[0], v[1], -1.f - v[2], &lo, &hi);
  for (int k = 0; k < 9; ++k) m[k] = k % 4 == 0 ? hi : lo * (float)k;
  matvec(m, v, w);
  cross3(v, w, c);
  y[i] = c[0] + c[1] * c[2] + w[0];
}""", 32, 2, lambda r: (r(40, 3), r(40), 40))  # fmt: skip
def cstyle(p, y, n):
    a, b, c = 1.5 + p[:, 0], p[:, 1], -1 - p[:, 2]
    d = (b * b - 4 * a * c).clamp(min=1e-6).sqrt()
    lo, hi = (-b - d) / (2 * a), (-b + d) / (2 * a)
    lo, hi = torch.minimum(lo, hi), torch.maximum(lo, hi)
    m = torch.stack([hi if k % 4 == 0 else lo * k for k in range(9)], -1).view(-1, 3, 3)
    w = (m @ p[..., None])[..., 0]
    c = torch.linalg.cross(p, w)
    return {"y": c[:, 0] + c[:, 1] * c[:, 2] + w[:, 0]}


@case("""
namespace sdf {
__device__ inline float sphere(float3 p, float r) { return sqrtf(p.x*p.x + p.y*p.y + p.z*p.z) - r; }
__device__ inline float plane(float3 p, float h) { return p.y + h; }
__device__ inline float smin(float a, float b, float k) {
    float h = fmaxf(k - fabsf(a - b), 0.0f) / k;
    return fminf(a, b) - h * h * k * 0.25f;
}
}  // namespace sdf
__device__ float map_scene(float3 p, float radius) {
    return sdf::smin(sdf::sphere(p, radius), sdf::plane(p, 0.8f), 0.3f);
}
constexpr int MAX_STEPS = 48;
__global__ void march(const float* dirs, const float* radius, float* depth, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float3 d = make_float3(dirs[3*i], dirs[3*i+1], dirs[3*i+2]);
    float t = 0.0f;
    for (int s = 0; s < MAX_STEPS; ++s) {
        float3 p = make_float3(t * d.x, t * d.y, -3.0f + t * d.z);
        float dist = map_scene(p, radius[0]);
        if (dist < 1e-2f) break;
        t += dist;
        if (t > 20.0f) break;
    }
    depth[i] = t;
}""", 32, 2, lambda r: (F.normalize(torch.cat([r(40, 2) * 0.3, torch.ones(40, 1)], 1), dim=-1), torch.tensor([1.0]), r(40), 40))  # fmt: skip
def march(dirs, radius, depth, n):
    t = torch.zeros(40, dtype=dirs.dtype)
    on = torch.ones(40, dtype=torch.bool)
    for _ in range(48):
        p = t[:, None] * dirs + dirs.new_tensor([0, 0, -3.0])
        a, b, k = p.norm(dim=-1) - radius, p[:, 1] + 0.8, 0.3
        h = (k - (a - b).abs()).clamp(min=0) / k
        dist = torch.minimum(a, b) - h * h * k * 0.25
        on = on & ~(dist < 1e-2)
        t = torch.where(on, t + dist, t)
        on = on & ~(t > 20)
    return {"depth": t}


@case("""
__forceinline__ __device__ float3 transformPoint4x3(const float3& p, const float* matrix) {
    float3 transformed = {
        matrix[0] * p.x + matrix[4] * p.y + matrix[8] * p.z + matrix[12],
        matrix[1] * p.x + matrix[5] * p.y + matrix[9] * p.z + matrix[13],
        matrix[2] * p.x + matrix[6] * p.y + matrix[10] * p.z + matrix[14],
    };
    return transformed;
}
__forceinline__ __device__ float4 transformPoint4x4(const float3& p, const float* matrix) {
    float4 transformed = {
        matrix[0] * p.x + matrix[4] * p.y + matrix[8] * p.z + matrix[12],
        matrix[1] * p.x + matrix[5] * p.y + matrix[9] * p.z + matrix[13],
        matrix[2] * p.x + matrix[6] * p.y + matrix[10] * p.z + matrix[14],
        matrix[3] * p.x + matrix[7] * p.y + matrix[11] * p.z + matrix[15]
    };
    return transformed;
}
__forceinline__ __device__ float ndc2Pix(float v, int S) { return ((v + 1.0) * S - 1.0) * 0.5; }
__forceinline__ __device__ bool in_frustum(int idx, const float* orig_points, const float* viewmatrix, const float* projmatrix, bool prefiltered, float3& p_view) {
    float3 p_orig = { orig_points[3 * idx], orig_points[3 * idx + 1], orig_points[3 * idx + 2] };
    p_view = transformPoint4x3(p_orig, viewmatrix);
    if (p_view.z <= 0.2f) {
        if (prefiltered) { printf("Point is filtered although prefiltered is set. This shouldn't happen!"); }
        return false;
    }
    return true;
}
__global__ void preprocessCUDA(int P, const float* orig_points, const float* viewmatrix, const float* projmatrix, const int W, int H, float2* points_xy_image, float* depths, bool prefiltered) {
    int idx = threadIdx.x + blockIdx.x * blockDim.x;
    if (idx >= P) return;
    points_xy_image[idx] = {0.f, 0.f};
    depths[idx] = 0;
    float3 p_view;
    if (!in_frustum(idx, orig_points, viewmatrix, projmatrix, prefiltered, p_view)) return;
    float3 p_orig = { orig_points[3 * idx], orig_points[3 * idx + 1], orig_points[3 * idx + 2] };
    float4 p_hom = transformPoint4x4(p_orig, projmatrix);
    float p_w = 1.0f / (p_hom.w + 0.0000001f);
    float3 p_proj = { p_hom.x * p_w, p_hom.y * p_w, p_hom.z * p_w };
    float2 point_image = { ndc2Pix(p_proj.x, W), ndc2Pix(p_proj.y, H) };
    depths[idx] = p_view.z;
    points_xy_image[idx] = point_image;
}""", 32, 2, lambda r: (40, r(40, 3), torch.eye(4).view(-1) + torch.tensor([0.0] * 14 + [0.9, 0]) , torch.eye(4).view(-1) + 0.1 * torch.arange(16), 32, 24, r(40, 2), r(40), False), name="preprocessCUDA")  # fmt: skip
def preprocess_gs(P, pts, view, proj, W, H, xy, depths, pre):
    h = F.pad(pts, (0, 1), value=1.0)
    v, q = h @ view.view(4, 4), h @ proj.view(4, 4)
    ok = v[:, 2] > 0.2
    w = 1 / (q[:, 3] + 1e-7)
    px = torch.stack([((q[:, 0] * w + 1) * W - 1) * 0.5, ((q[:, 1] * w + 1) * H - 1) * 0.5], -1)
    return {"depths": torch.where(ok, v[:, 2], 0.0), "points_xy_image": torch.where(ok[:, None], px, 0.0)}


@case("""
__global__ void softmax_forward_kernel1(float* out, const float* inp, int N, int C) {
    // inp is (N, C); out is (N, C), each row of inp will get softmaxed
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < N) {
        const float* inp_row = inp + i * C;
        float* out_row = out + i * C;
        float maxval = -INFINITY;
        for (int j = 0; j < C; j++) {
            if (inp_row[j] > maxval) {
                maxval = inp_row[j];
            }
        }
        double sum = 0.0;
        for (int j = 0; j < C; j++) {
            out_row[j] = expf(inp_row[j] - maxval);
            sum += out_row[j];
        }
        for (int j = 0; j < C; j++) {
            out_row[j] /= (float)sum;
        }
    }
}""", 32, 1, lambda r: (r(20, 9), r(20, 9), 20, 9), name="softmax_forward_kernel1")  # fmt: skip
def softmax_in_place(out, inp, N, C):
    return {"out": inp.softmax(-1)}


@case("""
__global__ void fused_add_rms_norm(float* __restrict__ out, float* __restrict__ res_out, const float* __restrict__ x, const float* __restrict__ residual,
    const float* __restrict__ weight, float eps, int hidden_size) {
  __shared__ float s_variance[64];
  float variance = 0.0f;
  for (int idx = threadIdx.x; idx < hidden_size; idx += blockDim.x) {
    float z = x[blockIdx.x * hidden_size + idx];
    z += residual[blockIdx.x * hidden_size + idx];
    variance += z * z;
    res_out[blockIdx.x * hidden_size + idx] = z;
  }
  s_variance[threadIdx.x] = variance;
  __syncthreads();
  for (int k = blockDim.x / 2; k > 0; k /= 2) {
    if (threadIdx.x < k) s_variance[threadIdx.x] += s_variance[threadIdx.x + k];
    __syncthreads();
  }
  const float scale = rsqrtf(s_variance[0] / hidden_size + eps);
  for (int idx = threadIdx.x; idx < hidden_size; idx += blockDim.x) {
    out[blockIdx.x * hidden_size + idx] = res_out[blockIdx.x * hidden_size + idx] * scale * weight[idx];
  }
}""", 64, 3, lambda r: (r(3, 100), r(3, 100), r(3, 100), r(3, 100), r(100), 1e-5, 100))  # fmt: skip
def fused_add_rms_norm(out, res_out, x, residual, weight, eps, h):
    z = x + residual
    return {"res_out": z, "out": z * (z.square().mean(-1, keepdim=True) + eps).rsqrt() * weight}


@case(r"""
__global__ void max_pool(const float* in, float* out, int* index, int H, int W, int K, int stride, int OH, int OW) {
    int ow = blockIdx.x * blockDim.x + threadIdx.x, oh = blockIdx.y * blockDim.y + threadIdx.y, c = blockIdx.z;
    if (ow >= OW || oh >= OH) return;
    float best = -INFINITY;
    int at = -1;
    for (int i = 0; i < K; ++i)
        for (int j = 0; j < K; ++j) {
            int h = oh * stride + i - 1, w = ow * stride + j - 1;
            if (h >= 0 && h < H && w >= 0 && w < W) {
                float v = in[(c * H + h) * W + w];
                if (v > best || isnan(v)) {
                    best = v;
                    at = h * W + w;
                }
            }
        }
    out[(c * OH + oh) * OW + ow] = best;
    index[(c * OH + oh) * OW + ow] = at;
}""", (4, 4), (2, 2, 3), lambda r: (r(3, 11, 9), r(3, 6, 5), torch.zeros(3, 6, 5, dtype=torch.int32), 11, 9, 3, 2, 6, 5), name="max_pool")  # fmt: skip
def max_pool(x, out, index, height, width, size, stride, rows, columns):
    return {"out": F.max_pool2d(x, size, stride, padding=1)}


@case(r"""
__global__ void masked_least(const float* x, const int* keep, float* y, int rows, int n) {
    int r = blockIdx.x * blockDim.x + threadIdx.x;
    if (r >= rows) return;
    float least = 5.0f;
    for (int c = 0; c < n; ++c)
        if (keep[c]) least = fminf(least, x[r * n + c] * x[r * n + c]);
    y[r] = sqrtf(least);
}""", 8, 2, lambda r: (r(9, 20), torch.arange(20, dtype=torch.int32) % 3, r(9), 9, 20), name="masked_least")  # fmt: skip
def masked_least(x, keep, y, rows, n):
    return {"y": x.square().masked_fill(keep == 0, 5.0).amin(1).sqrt()}


@case(r"""
__global__ void joined(const float* a, const float* b, const float* w, float* y, int n, int m) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    float sum = 0.0f;
    if (i >= n + m) return;
    for (int k = 0; k < 3; k++) {
        const float* part = (i + k) % (n + m) < n ? a : b - n;
        const float v = part[(i + k) % (n + m)];
        sum += w[k] * v * v;
    }
    y[i] = sum;
}""", 32, 2, lambda r: (r(20), r(30), r(3), r(50), 20, 30), name="joined")  # fmt: skip
def joined(a, b, w, y, n, m):
    whole = torch.cat([a, b]).square()
    return {"y": sum(w[k] * whole.roll(-k) for k in range(3))}


@case(r"""
__global__ void softmax_of_warps(float* out, const float* inp, float scale, int rows, int T) {
    const int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x & 31;
    if (row >= rows) return;
    const float* x = inp + row * T;
    float* y = out + row * T;
    const int own = row % T;
    float most = -INFINITY, sum = 0.0f;
    for (int i = lane; i <= own; i += 32) most = most > x[i] ? most : x[i];
    for (int o = 16; o > 0; o /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffff, most, o));
    for (int i = lane; i <= own; i += 32) { float e = expf(scale * (x[i] - most)); y[i] = e; sum += e; }
    for (int o = 16; o > 0; o /= 2) sum += __shfl_xor_sync(0xffffffff, sum, o);
    for (int i = lane; i <= own; i += 32) y[i] *= 1.0f / sum;
}""", 96, 3, lambda r: (r(8, 40), r(8, 40), 0.5, 8, 40), name="softmax_of_warps", atomics=0)  # fmt: skip
def softmax_of_warps(out, x, scale, rows, n):
    kept = torch.arange(n) <= torch.arange(rows)[:, None] % n
    return {"out": (scale * x).masked_fill(~kept, -torch.inf).softmax(1).masked_fill(~kept, 0)}


@case(r"""
__global__ void maxima(const float* x, const float* w, float* y, int n) {
    __shared__ float s[32];
    s[threadIdx.x] = x[threadIdx.x] * w[threadIdx.x];
    __syncthreads();
    float a = s[0], b = -1e30f, c = -1e30f, d = -1e30f, e = -1e30f;
    for (int i = 1; i < n; i++) if (s[i] > a) a = s[i];
    for (int i = 0; i < n; i++) if (i != 3 && s[i] > b) { b = s[i]; }
    for (int i = 0; i < n; i++) if (s[i] > 0.1f) { float v = s[i] * s[i]; if (c < v) c = v; }
    for (int i = 0; i < n; i++) if (s[i] * w[i] > d) d = s[i] * w[i];
    for (int i = 0; i < n; i++) for (int j = 0; j < 2; j++) if (s[(i + j) % 32] > e) e = s[(i + j) % 32];
    y[threadIdx.x] = (a + 2 * b + 3 * c + 4 * d + 5 * e) * s[threadIdx.x];
}""", 32, 1, lambda r: (r(32), r(32), r(32), 20), name="maxima")  # fmt: skip
def maxima(x, w, y, n):
    s = x * w
    b = torch.cat([s[:3], s[4:n]]).max()
    c = s[:n][s[:n] > 0.1].square().max()
    return {"y": (s[:n].max() + 2 * b + 3 * c + 4 * (s * w)[:n].max() + 5 * s[: n + 1].max()) * s}


@case(r"""
__global__ void binomial(const float* price, const float* up, float* value, int n) {
    __shared__ float v[33];
    __shared__ float most[32];
    int t = threadIdx.x;
    float p = up[blockIdx.x], s = price[blockIdx.x];
    for (int i = t; i <= 32; i += 32) v[i] = fmaxf(s * expf(0.1f * (2 * i - 32)) - 1.0f, 0.0f);
    most[t] = 0.0f;
    __syncthreads();
    for (int i = 32; i > 0; --i) {
        float low = v[t], high = v[t + 1];
        __syncthreads();
        if (t < i) {
            float kept = most[t];
            v[t] = p * high + (1.0f - p) * low;
            most[t] = kept * 0.5f + 0.1f * v[t] * kept + p;
        }
        __syncthreads();
    }
    if (t == 0) value[blockIdx.x] = v[0] + n * most[0];
}""", 32, 3, lambda r: (r(3).abs() + 0.5, r(3).abs() * 0.3 + 0.2, r(3), 2), name="binomial")  # fmt: skip
def binomial(price, up, value, n):
    p = up[:, None]
    v = (price[:, None] * (0.1 * (2 * torch.arange(33) - 32)).exp() - 1).clamp(min=0)
    most = torch.zeros(3)
    for _ in range(32):
        v = p * v[:, 1:] + (1 - p) * v[:, :-1]
        most = most * 0.5 + 0.1 * v[:, 0] * most + up
    return {"value": v[:, 0] + n * most}
