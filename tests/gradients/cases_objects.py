"""Kernels with structs that have methods, constructors and operators; namespaces, lambdas, templates of structs."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from tests.gradients.cases import case


@case("""
#include <math.h>
// A minimal vector class, as used in the ray tracer
struct Vec3 {
    float x, y, z;
    __host__ __device__ Vec3() : x(0), y(0), z(0) {}
    __host__ __device__ Vec3(float x_, float y_, float z_) : x(x_), y(y_), z(z_) {}
    __host__ __device__ inline Vec3 operator+(const Vec3& b) const { return Vec3(x + b.x, y + b.y, z + b.z); }
    __host__ __device__ inline Vec3 operator-(const Vec3& b) const { return Vec3(x - b.x, y - b.y, z - b.z); }
    __host__ __device__ inline Vec3 operator*(float s) const { return Vec3(x * s, y * s, z * s); }
    __host__ __device__ inline float dot(const Vec3& b) const { return x * b.x + y * b.y + z * b.z; }
    __host__ __device__ inline float length() const { return sqrtf(dot(*this)); }
    __host__ __device__ inline Vec3 normalized() const { float inv = 1.0f / length(); return *this * inv; }
    __host__ __device__ Vec3& operator+=(const Vec3& b) { x += b.x; y += b.y; z += b.z; return *this; }
};
__host__ __device__ inline Vec3 cross(const Vec3& a, const Vec3& b) {
    return Vec3(a.y * b.z - a.z * b.y, a.z * b.x - a.x * b.z, a.x * b.y - a.y * b.x);
}
struct Ray {
    Vec3 origin;
    Vec3 dir;
    __device__ Vec3 at(float t) const { return origin + dir * t; }
};
__device__ bool hit_sphere(const Vec3& center, float radius, const Ray& r, float& t) {
    Vec3 oc = r.origin - center;
    float b = oc.dot(r.dir);
    float c = oc.dot(oc) - radius * radius;
    float disc = b * b - c;
    if (disc < 0.0f) return false;
    t = -b - sqrtf(disc);
    return t > 0.001f;
}
__global__ void render(const float* __restrict__ dirs, const float* __restrict__ spheres, int num_spheres, float* __restrict__ fb, int num_rays) {
    int idx = threadIdx.x + blockIdx.x * blockDim.x;
    if (idx >= num_rays) return;
    Ray r;
    r.origin = Vec3(0.0f, 0.0f, -3.0f);
    r.dir = Vec3(dirs[3 * idx], dirs[3 * idx + 1], dirs[3 * idx + 2]).normalized();
    Vec3 color(0.1f, 0.1f, 0.2f);
    float closest = 1e20f;
    for (int s = 0; s < num_spheres; s++) {
        Vec3 center(spheres[4 * s], spheres[4 * s + 1], spheres[4 * s + 2]);
        float t;
        if (hit_sphere(center, spheres[4 * s + 3], r, t) && t < closest) {
            closest = t;
            Vec3 n = (r.at(t) - center).normalized();
            color = Vec3(n.x + 1.0f, n.y + 1.0f, n.z + 1.0f) * 0.5f;
        }
    }
    fb[3 * idx + 0] = color.x;
    fb[3 * idx + 1] = color.y;
    fb[3 * idx + 2] = color.z;
}""", 32, 2, lambda r: (torch.cat([r(50, 2) * 0.4, torch.ones(50, 1)], 1), torch.tensor([[0.1, -0.1, 0.2, 1.0], [0.9, 0.5, -0.4, 0.5]]), 2, r(50, 3), 50), max_iterations=4)  # fmt: skip
def render(dirs, spheres, ns, fb, n):
    d = F.normalize(dirs, dim=-1)
    o = dirs.new_tensor([0, 0, -3.0])
    color = dirs.new_tensor([0.1, 0.1, 0.2]).expand(50, 3)
    closest = torch.full((50,), 1e20, dtype=dirs.dtype)
    for s in range(ns):
        oc = o - spheres[s, :3]
        b, c = d @ oc, oc @ oc - spheres[s, 3] ** 2
        h = b * b - c
        t = -b - h.clamp(min=1e-30).sqrt()
        nn = F.normalize(o + t[:, None] * d - spheres[s, :3], dim=-1)
        hit = (h >= 0) & (t > 1e-3) & (t < closest)
        color = torch.where(hit[:, None], 0.5 * (nn + 1), color)
        closest = torch.where(hit, t, closest)
    return {"fb": color}


@case("""
struct WelfordData { float mean; float m2; int n; };
__device__ __forceinline__ WelfordData welford_combine(WelfordData a, WelfordData b) {
    if (a.n == 0) return b;
    if (b.n == 0) return a;
    float delta = b.mean - a.mean;
    int n = a.n + b.n;
    float nb_over_n = (float)b.n / n;
    return {a.mean + delta * nb_over_n, a.m2 + b.m2 + delta * delta * a.n * nb_over_n, n};
}
__global__ void batch_norm_stats(const float* __restrict__ x, float* __restrict__ mean, float* __restrict__ var, int N, int C, int HW) {
    int c = blockIdx.x;
    WelfordData w{0.f, 0.f, 0};
    for (int i = threadIdx.x; i < N * HW; i += blockDim.x) {
        int n = i / HW, p = i % HW;
        float v = x[(n * C + c) * HW + p];
        w.n++;
        float d1 = v - w.mean;
        w.mean += d1 / w.n;
        w.m2 += d1 * (v - w.mean);
    }
    for (int offset = 16; offset > 0; offset >>= 1) {
        WelfordData o;
        o.mean = __shfl_down_sync(0xffffffff, w.mean, offset);
        o.m2 = __shfl_down_sync(0xffffffff, w.m2, offset);
        o.n = __shfl_down_sync(0xffffffff, w.n, offset);
        w = welford_combine(w, o);
    }
    __shared__ WelfordData smem[32];
    int lane = threadIdx.x & 31, wid = threadIdx.x >> 5;
    if (lane == 0) smem[wid] = w;
    __syncthreads();
    if (threadIdx.x == 0) {
        WelfordData t = smem[0];
        for (int k = 1; k < blockDim.x / 32; ++k) t = welford_combine(t, smem[k]);
        mean[c] = t.mean;
        var[c] = t.m2 / t.n;
    }
}""", 64, 3, lambda r: (r(4, 3, 25), r(3), r(3), 4, 3, 25), max_iterations=4)  # fmt: skip
def batch_norm_stats(x, mean, var, N, C, HW):
    return {"mean": x.mean((0, 2)), "var": x.var((0, 2), unbiased=False)}


@case("""
// Spherical harmonics, as in 3D Gaussian splatting
__device__ const float SH_C0 = 0.28209479177387814f;
__device__ const float SH_C1 = 0.4886025119029199f;
__device__ const float SH_C2[] = { 1.0925484305920792f, -1.0925484305920792f, 0.31539156525252005f, -1.0925484305920792f, 0.5462742152960396f };
namespace glm { struct vec3 { float x, y, z; }; }
__device__ float3 operator*(const float s, const float3 v) { return {s * v.x, s * v.y, s * v.z}; }
__device__ float3 operator+(const float3 a, const float3 b) { return {a.x + b.x, a.y + b.y, a.z + b.z}; }
__device__ float3 operator-(const float3 a, const float3 b) { return {a.x - b.x, a.y - b.y, a.z - b.z}; }
__device__ float3 computeColorFromSH(int idx, int deg, int max_coeffs, const float3* means, float3 campos, const float* shs) {
    float3 pos = means[idx];
    float3 dir = pos - campos;
    float len = sqrtf(dir.x * dir.x + dir.y * dir.y + dir.z * dir.z);
    dir = (1.0f / len) * dir;
    const float3* sh = ((const float3*)shs) + idx * max_coeffs;
    float3 result = SH_C0 * sh[0];
    if (deg > 0) {
        float x = dir.x;
        float y = dir.y;
        float z = dir.z;
        result = result - SH_C1 * y * sh[1] + SH_C1 * z * sh[2] - SH_C1 * x * sh[3];
        if (deg > 1) {
            float xx = x * x, yy = y * y, zz = z * z;
            float xy = x * y, yz = y * z, xz = x * z;
            result = result +
                SH_C2[0] * xy * sh[4] +
                SH_C2[1] * yz * sh[5] +
                SH_C2[2] * (2.0f * zz - xx - yy) * sh[6] +
                SH_C2[3] * xz * sh[7] +
                SH_C2[4] * (xx - yy) * sh[8];
        }
    }
    result.x += 0.5f; result.y += 0.5f; result.z += 0.5f;
    return {fmaxf(result.x, 0.0f), fmaxf(result.y, 0.0f), fmaxf(result.z, 0.0f)};
}
__global__ void sh_kernel(int P, int D, int M, const float3* means, const float* shs, float* out) {
    auto idx = blockIdx.x * blockDim.x + threadIdx.x;
    if (idx >= P) return;
    float3 c = computeColorFromSH(idx, D, M, means, make_float3(0.f, 0.f, -2.f), shs);
    out[idx * 3 + 0] = c.x;
    out[idx * 3 + 1] = c.y;
    out[idx * 3 + 2] = c.z;
}""", 32, 2, lambda r: (40, 2, 9, r(40, 3), r(40, 9, 3), r(40, 3)), name="sh_kernel")  # fmt: skip
def sh_kernel(P, D, M, means, shs, out):
    d = F.normalize(means - means.new_tensor([0, 0, -2.0]), dim=-1)
    x, y, z = d.T
    C2 = [1.0925484305920792, -1.0925484305920792, 0.31539156525252005, -1.0925484305920792, 0.5462742152960396]
    b = torch.stack(
        [
            0.28209479177387814 + 0 * x,
            -0.4886025119029199 * y,
            0.4886025119029199 * z,
            -0.4886025119029199 * x,
            C2[0] * x * y,
            C2[1] * y * z,
            C2[2] * (2 * z * z - x * x - y * y),
            C2[3] * x * z,
            C2[4] * (x * x - y * y),
        ],
        -1,
    )
    return {"out": ((b[..., None] * shs).sum(1) + 0.5).clamp(min=0)}


@case("""
struct Quaternion {
    float w, x, y, z;
    __device__ Quaternion normalized() const {
        const float n = rsqrtf(w * w + x * x + y * y + z * z);
        return Quaternion{w * n, x * n, y * n, z * n};
    }
};
struct Mat3 {
    float m[3][3];
    __device__ float& operator()(int i, int j) { return m[i][j]; }
    __device__ const float& operator()(int i, int j) const { return m[i][j]; }
};
__device__ Mat3 to_matrix(const Quaternion& q) {
    Mat3 R;
    R(0, 0) = 1.f - 2.f * (q.y * q.y + q.z * q.z); R(0, 1) = 2.f * (q.x * q.y - q.w * q.z); R(0, 2) = 2.f * (q.x * q.z + q.w * q.y);
    R(1, 0) = 2.f * (q.x * q.y + q.w * q.z); R(1, 1) = 1.f - 2.f * (q.x * q.x + q.z * q.z); R(1, 2) = 2.f * (q.y * q.z - q.w * q.x);
    R(2, 0) = 2.f * (q.x * q.z - q.w * q.y); R(2, 1) = 2.f * (q.y * q.z + q.w * q.x); R(2, 2) = 1.f - 2.f * (q.x * q.x + q.y * q.y);
    return R;
}
__global__ void covariance(const float* quats, const float* scales, float* cov, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    Quaternion q = {quats[4 * i], quats[4 * i + 1], quats[4 * i + 2], quats[4 * i + 3]};
    const Mat3 R = to_matrix(q.normalized());
    float S[3] = {expf(scales[3 * i]), expf(scales[3 * i + 1]), expf(scales[3 * i + 2])};
    int k = 0;
    for (int a = 0; a < 3; ++a)
        for (int b = a; b < 3; ++b) {
            float s = 0.f;
            for (int c = 0; c < 3; ++c) s += R(a, c) * S[c] * S[c] * R(b, c);
            cov[6 * i + k++] = s;
        }
}""", 32, 2, lambda r: (r(40, 4), r(40, 3), r(40, 6), 40))  # fmt: skip
def covariance(q, s, cov, n):
    w, x, y, z = F.normalize(q, dim=-1).T
    R = torch.stack(
        [
            1 - 2 * (y * y + z * z),
            2 * (x * y - w * z),
            2 * (x * z + w * y),
            2 * (x * y + w * z),
            1 - 2 * (x * x + z * z),
            2 * (y * z - w * x),
            2 * (x * z - w * y),
            2 * (y * z + w * x),
            1 - 2 * (x * x + y * y),
        ],
        -1,
    ).view(-1, 3, 3)
    C = R @ torch.diag_embed((2 * s).exp()) @ R.transpose(1, 2)
    return {"cov": C[:, [0, 0, 0, 1, 1, 2], [0, 1, 2, 1, 2, 2]]}


@case("""
struct Camera { float3 pos; float focal; int width; };
struct Hit { float t; bool ok; };
template <typename T> struct Vec2 { T u, v; 
  __device__ Vec2() = default;
  __device__ Vec2(T u_, T v_) : u(u_), v(v_) {}
  __device__ friend Vec2 operator+(const Vec2& a, const Vec2& b) { return {a.u + b.u, a.v + b.v}; }
  __device__ T operator[](int i) const { return i == 0 ? u : v; }
  static __device__ Vec2 ones() { return Vec2(T(1), T(1)); }
  static constexpr int dim = 2;
};
using Vec2f = Vec2<float>;
template <typename F> __device__ float apply(F f, float v) { return f(v); }
template <typename T> __device__ T dot(const Vec2<T>& a, const Vec2<T>& b) { return a.u * b.u + a.v * b.v; }
__device__ inline Hit plane(const Camera& cam, const float d) { 
  if (fabsf(d) < 1e-3f) return {0.f, false};
  return {cam.pos.z / d, true}; }
__global__ void project(const Camera cam, const float* __restrict__ d, const float* s, float* out, int n) {
  const int i = threadIdx.x + blockIdx.x * blockDim.x;
  if (i >= n) return;
  const auto h = plane(cam, d[i]);
  Vec2f a(d[i], s[i]), b{s[i], 2.0f};
  Vec2f c = a + b + Vec2f::ones();
  auto square = [&](float v) { return v * v + h.t; };
  float total = 0.f;
  for (int k = 0; k < Vec2f::dim; ++k) total += square(c[k]);

  const auto [p, q] = c;
  float lo, hi;
  auto split = [&lo, &hi](float v) { lo = v < 0.f ? v : 0.f; hi = v - lo; };
  split(s[i]);
  out[i] = h.ok ? total * cam.focal + dot<float>(a, b) + p * q + lo * hi + apply(square, lo) : 0.f;
}""", 32, 2, lambda r: ({"pos": (0.0, 0.0, 2.0), "focal": 1.5, "width": 3}, 1.5 + r(40), r(40), r(40), 40))  # fmt: skip
def project(cam, d, s, out, n):
    t = 2.0 / d
    cu, cv = d + s + 1, s + 2 + 1
    lo = s.clamp(max=0)
    hi = s - lo
    return {"out": 1.5 * (cu**2 + cv**2 + 2 * t) + d * s + 2 * s + cu * cv + lo * hi + lo * lo + t}


@case("""
// Welford online in a class
class Stats {
 public:
  __device__ Stats() : n_(0.f), mean_(0.f), m2_(0.f) {}
  __device__ void push(float v) { n_ += 1.f; const float d = v - mean_; mean_ += d / n_; m2_ += d * (v - mean_); }
  __device__ float variance() const { return n_ > 1.f ? m2_ / n_ : 0.f; }
  __device__ float mean() const { return this->mean_; }
 private:
  float n_, mean_, m2_;
};
__global__ void norm_rows(const float* x, float* y, int rows) {
  constexpr int C = 6;
  int r = blockIdx.x * blockDim.x + threadIdx.x;
  if (r < rows) {
    Stats st;
    for (int c = 0; c < C; ++c) st.push(x[r * C + c]);
    const float inv = rsqrtf(st.variance() + 1e-5f);
    for (int c = 0; c < C; ++c) y[r * C + c] = (x[r * C + c] - st.mean()) * inv;
  }
}""", 32, 1, lambda r: (r(20, 6), r(20, 6), 20))  # fmt: skip
def norm_rows(x, y, rows):
    return {"y": F.layer_norm(x, (6,), eps=1e-5)}


@case("""
#include <limits>
#include <cfloat>
namespace util {
constexpr int kThreads = 64;
template <typename T> struct Limits { static constexpr T kMin = T(-1e30); };
template <typename T> __device__ __forceinline__ T clamp(T v, T lo, T hi) { return v < lo ? lo : (v > hi ? hi : v); }
namespace detail { __device__ inline float sq(float v) { return v * v; } }
using detail::sq;
}
using namespace util;
enum class Mode { A, B };
template <typename scalar_t, int N = util::kThreads>
__global__ void k4(const scalar_t* __restrict__ x, scalar_t* __restrict__ y, const int64_t n) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= n) return;
  scalar_t best = std::numeric_limits<scalar_t>::lowest();
  const scalar_t lo{-0.5f};
  for (int k = 0; k < 3; ++k) best = std::max(best, x[(i + k) % n]);
  y[i] = util::clamp(x[i], lo, scalar_t(0.5)) * util::detail::sq(best) + clamp<scalar_t>(x[i], lo, 0.25f) * (best > Limits<scalar_t>::kMin) + N * sq(x[i]);
}""", 32, 2, lambda r: (r(40), r(40), 40), name="k4<float>")  # fmt: skip
def k4(x, y, n):
    best = torch.stack([x, x.roll(-1), x.roll(-2)]).amax(0)
    return {"y": x.clamp(-0.5, 0.5) * best**2 + x.clamp(-0.5, 0.25) + 64 * x * x}


@case("""
template <typename T, int SIZE>
struct alignas(sizeof(T) * SIZE) AlignedVector { T val[SIZE]; };
template <int VEC>
__global__ void silu_vec(const float* __restrict__ x, float* __restrict__ y, int n) {
  using Vec = AlignedVector<float, VEC>;
  int i = (blockIdx.x * blockDim.x + threadIdx.x) * VEC;
  if (i < n) {
    Vec v = *reinterpret_cast<const Vec*>(x + i);
    Vec r;
    #pragma unroll
    for (int k = 0; k < VEC; ++k) { r.val[k] = v.val[k] / (1.f + __expf(-v.val[k])); }
    *reinterpret_cast<Vec*>(y + i) = r;
  }
}""", 32, 1, lambda r: (r(96), r(96), 96), name="silu_vec<4>")  # fmt: skip
def silu_vec(x, y, n):
    return {"y": F.silu(x)}


@case("""
template <typename T>
struct Sum { __device__ __forceinline__ T operator()(const T& a, const T& b) const { return a + b; } };
template <typename T>
struct Max { __device__ __forceinline__ T operator()(const T& a, const T& b) const { return max(a, b); } };
template <template <typename> class Op, typename T, int N = 32>
__device__ __forceinline__ T warp_all_reduce(T v) {
#pragma unroll
    for (int mask = N / 2; mask > 0; mask >>= 1) v = Op<T>()(v, __shfl_xor_sync(0xffffffff, v, mask));
    return v;
}
template <typename scalar_t>
__global__ void softmax_warp(const scalar_t* __restrict__ in, scalar_t* __restrict__ out, int rows, int cols) {
    const int row = blockIdx.x * blockDim.y + threadIdx.y;
    if (row >= rows) return;
    const scalar_t* x = in + static_cast<size_t>(row) * cols;
    scalar_t* y = out + static_cast<size_t>(row) * cols;
    scalar_t m = -INFINITY;
    for (int c = threadIdx.x; c < cols; c += warpSize) m = max(m, x[c]);
    m = warp_all_reduce<Max, scalar_t>(m);
    scalar_t s = 0;
    for (int c = threadIdx.x; c < cols; c += warpSize) s += expf(x[c] - m);
    s = warp_all_reduce<Sum, scalar_t>(s);
    for (int c = threadIdx.x; c < cols; c += warpSize) y[c] = expf(x[c] - m) / s;
}""", (32, 4), 2, lambda r: (r(7, 50), r(7, 50), 7, 50), name="softmax_warp<float>")  # fmt: skip
def softmax_warp(x, y, rows, cols):
    return {"out": x.softmax(-1)}


@case("""
struct Body { float4 p; float3 v; };
__global__ void step(const float* x, float* y, int n) {
  __shared__ Body bodies[32];

  int t = threadIdx.x, i = blockIdx.x * 32 + t;
  Body& me = bodies[t];
  me.p = make_float4(x[i], x[i] * x[i], 1.f, 0.f);
  me.v = {x[i], 0.f, 0.f};
  __syncthreads();
  float s = 0.f;
  #pragma unroll 4
  for (int k = 0; k < 32; ++k) { const Body& o = bodies[k]; s += o.p.y * me.v.x + o.v.x; }
  y[i] = s;
}""", 32, 2, lambda r: (r(64), r(64), 64))  # fmt: skip
def step(x, y, n):
    x = x.view(2, 32)
    return {"y": (x * (x * x).sum(1, keepdim=True) + x.sum(1, keepdim=True)).view(-1)}


@case("""
typedef struct { float r; float i; } cuComplex_t;
__device__ float magnitude2(float r, float i) { return r * r + i * i; }
struct cuComplexX {
    float   r; float   i;
    __device__ cuComplexX(float a, float b) : r(a), i(b) {}
    __device__ float magnitude2(void) { return r * r + i * i; }
    __device__ cuComplexX operator*(const cuComplexX& a) { return cuComplexX(r*a.r - i*a.i, i*a.r + r*a.i); }
    __device__ cuComplexX operator+(const cuComplexX& a) { return cuComplexX(r+a.r, i+a.i); }
};
__device__ float julia(float jx, float jy, float cr, float ci) {
    cuComplexX c(cr, ci);
    cuComplexX a(jx, jy);
    int i = 0;
    for (i = 0; i < 6; i++) {
        a = a * a + c;
        if (a.magnitude2() > 10)
            return a.magnitude2();
    }
    return a.magnitude2() * 0.5f;
}
__global__ void kernel(const float* x, const float* c, float* ptr, int DIM) {
    int offset = threadIdx.x + blockIdx.x * blockDim.x;
    if (offset < DIM) ptr[offset] = julia(x[2 * offset], x[2 * offset + 1], c[0], c[1]);
}""", 32, 2, lambda r: (r(40, 2), torch.tensor([-0.8, 0.156]), r(40), 40), name="kernel", tolerance=5e-4)  # fmt: skip
def julia(x, c, ptr, n):
    a = torch.complex(x[:, 0], x[:, 1])
    cc = torch.complex(c[0], c[1])
    out = torch.zeros(40, dtype=x.dtype)
    live = torch.ones(40, dtype=torch.bool)
    for _ in range(6):
        a = torch.where(live, a * a + cc, a)
        m = a.real**2 + a.imag**2
        hit = live & (m > 10)
        out = torch.where(hit, m, out)
        live = live & ~hit
    return {"ptr": torch.where(live, 0.5 * (a.real**2 + a.imag**2), out)}


# Structs with pointers by value, and lists of pointers.


@case(r"""
struct View {
    const float* x; const float* __restrict__ w; int n; float scale;
    __device__ float at(int i) const { return i < n ? x[i] : 0.f; }
};
struct Out { float* y; };
struct Params { View in; Out out; const int* order; float* extra[2]; const void* none; };
__device__ float weighted(const View& v, int i) { return v.at(i) * v.w[i % 4]; }
extern "C" __global__ void views(const __grid_constant__ Params p, float bias) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < p.in.n) {
        View v = p.in;
        const float* q = p.in.x;
        p.out.y[i] = weighted(v, p.order[i]) * p.in.scale + bias * q[i];
        p.extra[0][i] = q[i] * q[i];
        p.extra[1][i] = v.w[1];
    }
}""", 64, 2, lambda r: ({"in": {"x": r(100), "w": r(4), "n": 100, "scale": 2.0}, "out": {"y": r(100)},
                         "order": torch.arange(99, -1, -1, dtype=torch.int32), "extra": [r(100), r(100)], "none": None}, 3.0),
      wrt=("p_in_x", "p_in_w", "p_in_scale", "bias"))  # fmt: skip
def views(x, w, n, scale, y, order, first, second, none, bias):
    at = order.long()
    return {"p_out_y": x[at] * w[at % 4] * scale + bias * x, "p_extra_0": x * x, "p_extra_1": w[1].expand(n)}


@case(r"""
extern "C" __global__ void listed(const float* const* xs, float** ys, const void* scales, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const void* given = scales;
    const float* scale = static_cast<const float*>(given);
    float s = 0.f;
    for (int k = 0; k < 3; ++k) s += xs[k][i] * xs[(k + 1) % 3][n - 1 - i];
    ys[1][i] = s * scale[i];
    ys[0][i] = tanhf(ys[0][i]) * xs[2][i];
}""", 64, 2, lambda r: ([r(100) for _ in range(4)], [r(100), r(100)], r(100), 100))  # fmt: skip
def listed(a, b, c, first, second, scale, n, before):
    return {"ys_0": before.tanh() * c, "ys_1": scale * (a * b.flip(0) + b * c.flip(0) + c * a.flip(0))}
