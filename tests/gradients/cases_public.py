"""Kernels as people publish them: macros, casts to float4, tiles in dynamic shared memory, operators of vectors."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from tests.gradients.cases import case


@case("""
#define FLOAT4(value) (reinterpret_cast<float4*>(&(value))[0])
#define M_SQRT_2_PI M_SQRT2 * M_2_SQRTPI * 0.5f
#define MAX_EXP_F32 88.3762626647949f
#define MIN_EXP_F32 -88.3762626647949f
#define GELU_OPS gelu_tanh
__inline__ __device__ float gelu_tanh(float x) {
  return 0.5f * x * (1.0f + tanhf(M_SQRT_2_PI * (x + 0.044715f * x * x * x)));
}
__global__ void gelu_f32x4_kernel(float *x, float *y, int N) {
  int idx = (blockIdx.x * blockDim.x + threadIdx.x) * 4;
  if (idx < N) {
  float4 reg_x = FLOAT4(x[idx]);
  float4 reg_y;
  reg_x.x = fminf(fmaxf(reg_x.x, MIN_EXP_F32), MAX_EXP_F32);
  reg_x.y = fminf(fmaxf(reg_x.y, MIN_EXP_F32), MAX_EXP_F32);
  reg_x.z = fminf(fmaxf(reg_x.z, MIN_EXP_F32), MAX_EXP_F32);
  reg_x.w = fminf(fmaxf(reg_x.w, MIN_EXP_F32), MAX_EXP_F32);
  reg_y.x = GELU_OPS(reg_x.x);
  reg_y.y = GELU_OPS(reg_x.y);
  reg_y.z = GELU_OPS(reg_x.z);
  reg_y.w = GELU_OPS(reg_x.w);
  FLOAT4(y[idx]) = reg_y;
  }
}""", 32, 2, lambda r: (r(200), r(200), 200), name="gelu_f32x4_kernel")  # fmt: skip
def gelu4(x, y, N):
    return {"y": F.gelu(x, approximate="tanh")}


@case("""
__inline__ __device__ float warpReduceSum(float val) {
  for (int offset = warpSize/2; offset > 0; offset /= 2) 
    val += __shfl_down_sync(0xffffffff, val, offset);
  return val;
}
__inline__ __device__ float blockReduceSum(float val) {
  static __shared__ float shared[32]; // Shared mem for 32 partial sums
  int lane = threadIdx.x % warpSize;
  int wid = threadIdx.x / warpSize;
  val = warpReduceSum(val);     // Each warp performs partial reduction
  if (lane==0) shared[wid]=val; // Write reduced value to shared memory
  __syncthreads();              // Wait for all partial reductions
  //read from shared memory only if that warp existed
  val = (threadIdx.x < blockDim.x / warpSize) ? shared[lane] : 0;
  if (wid==0) val = warpReduceSum(val); //Final reduce within first warp
  return val;
}
extern "C" __global__ void layernorm(const float* __restrict__ x, const float* gamma, const float* beta, float* out, const int hidden, float eps) {
  __shared__ float s_mean, s_variance;
  float mean = 0.0f, variance = 0.0f;
  const float4* x4 = reinterpret_cast<const float4*>(x + blockIdx.x * hidden);
  for (int i = threadIdx.x; i < hidden / 4; i += blockDim.x) {
    float4 v = __ldg(x4 + i);
    mean += v.x + v.y + v.z + v.w;
  }
  mean = blockReduceSum(mean);
  if (threadIdx.x == 0) s_mean = mean / hidden;
  __syncthreads();
  for (int i = threadIdx.x; i < hidden / 4; i += blockDim.x) {
    float4 v = x4[i];
    float a = v.x - s_mean, b = v.y - s_mean, c = v.z - s_mean, d = v.w - s_mean;
    variance += a * a + b * b + c * c + d * d;
  }
  variance = blockReduceSum(variance);
  if (threadIdx.x == 0) s_variance = rsqrtf(variance / hidden + eps);
  __syncthreads();
  for (int i = threadIdx.x; i < hidden; i += blockDim.x)
    out[blockIdx.x * hidden + i] = (x[blockIdx.x * hidden + i] - s_mean) * s_variance * __ldg(&gamma[i]) + __ldg(&beta[i]);
}""", 64, 3, lambda r: (r(3, 80), r(80), r(80), r(3, 80), 80, 1e-5), name="layernorm")  # fmt: skip
def layernorm_nv(x, gamma, beta, out, hidden, eps):
    return {"out": F.layer_norm(x, (hidden,), gamma, beta, eps)}


@case("""
template <const int BM, const int BN, const int BK, const int TM, const int TN>
__global__ void __launch_bounds__((BM * BN) / (TM * TN), 1)
    sgemm2DBlocktiling(int M, int N, int K, float alpha, const float *A, const float *B, float beta, const float* Cin, float *C) {
  const uint cRow = blockIdx.y;
  const uint cCol = blockIdx.x;
  const int threadCol = threadIdx.x % (BN / TN);
  const int threadRow = threadIdx.x / (BN / TN);
  __shared__ float As[BM * BK];
  __shared__ float Bs[BK * BN];
  A += cRow * BM * K;
  B += cCol * BN;
  C += cRow * BM * N + cCol * BN;
  Cin += cRow * BM * N + cCol * BN;
  const uint innerRowA = threadIdx.x / BK;
  const uint innerColA = threadIdx.x % BK;
  const uint strideA = 16 / BK;
  const uint innerRowB = threadIdx.x / BN;
  const uint innerColB = threadIdx.x % BN;
  const uint strideB = 16 / BN;
  float threadResults[TM * TN] = {0.0};
  float regM[TM] = {0.0};
  float regN[TN] = {0.0};
  for (uint bkIdx = 0; bkIdx < K; bkIdx += BK) {
    for (uint loadOffset = 0; loadOffset < BM; loadOffset += strideA) {
      As[(innerRowA + loadOffset) * BK + innerColA] = A[(innerRowA + loadOffset) * K + innerColA];
    }
    for (uint loadOffset = 0; loadOffset < BK; loadOffset += strideB) {
      Bs[(innerRowB + loadOffset) * BN + innerColB] = B[(innerRowB + loadOffset) * N + innerColB];
    }
    __syncthreads();
    A += BK;     // move BK columns to right
    B += BK * N; // move BK rows down
    for (uint dotIdx = 0; dotIdx < BK; ++dotIdx) {
      for (uint i = 0; i < TM; ++i) {
        regM[i] = As[(threadRow * TM + i) * BK + dotIdx];
      }
      for (uint i = 0; i < TN; ++i) {
        regN[i] = Bs[dotIdx * BN + threadCol * TN + i];
      }
      for (uint resIdxM = 0; resIdxM < TM; ++resIdxM) {
        for (uint resIdxN = 0; resIdxN < TN; ++resIdxN) {
          threadResults[resIdxM * TN + resIdxN] += regM[resIdxM] * regN[resIdxN];
        }
      }
    }
    __syncthreads();
  }
  for (uint resIdxM = 0; resIdxM < TM; ++resIdxM) {
    for (uint resIdxN = 0; resIdxN < TN; ++resIdxN) {
      C[(threadRow * TM + resIdxM) * N + threadCol * TN + resIdxN] =
          alpha * threadResults[resIdxM * TN + resIdxN] +
          beta * Cin[(threadRow * TM + resIdxM) * N + threadCol * TN + resIdxN];
    }
  }
}""", 16, (2, 2), lambda r: (16, 16, 8, 0.5, r(16, 8), r(8, 16), 2.0, r(16, 16), r(16, 16)), name="sgemm2DBlocktiling<8, 8, 4, 2, 2>")  # fmt: skip
def sgemm(M, N, K, alpha, A, B, beta, Cin, C):
    return {"C": alpha * (A @ B) + beta * Cin}


@case("""
__device__ __forceinline__ float3 operator+(const float3& a, const float3& b) { return make_float3(a.x + b.x, a.y + b.y, a.z + b.z); }
__device__ __forceinline__ float3 operator-(const float3& a, const float3& b) { return make_float3(a.x - b.x, a.y - b.y, a.z - b.z); }
__device__ __forceinline__ float3 operator-(const float3& a) { return make_float3(-a.x, -a.y, -a.z); }
__device__ __forceinline__ float3 operator*(const float3& a, float s) { return make_float3(a.x * s, a.y * s, a.z * s); }
__device__ __forceinline__ float3 operator*(float s, const float3& a) { return a * s; }
__device__ __forceinline__ void operator+=(float3& a, const float3& b) { a.x += b.x; a.y += b.y; a.z += b.z; }
__device__ __forceinline__ float dot(float3 a, float3 b) { return a.x * b.x + a.y * b.y + a.z * b.z; }
__device__ __forceinline__ float3 normalize(float3 v) { return v * rsqrtf(dot(v, v)); }
__global__ void shade(const float3* dirs, const float3* center, const float* radius, float* image, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float3 d = normalize(dirs[i]);
    float3 o = make_float3(0.f, 0.f, -3.f), color = make_float3(0.1f, 0.1f, 0.2f);
    float3 oc = o - *center;
    float b = dot(oc, d), c = dot(oc, oc) - radius[0] * radius[0];
    float h = b * b - c;
    if (h > 0.0f) {
        float3 p = o + (-b - sqrtf(h)) * d;
        float3 normal = normalize(p - center[0]);
        color += fmaxf(dot(normal, -d), 0.f) * make_float3(0.9f, 0.5f, 0.3f);
    }
    image[3 * i + 0] = color.x;
    image[3 * i + 1] = color.y;
    image[3 * i + 2] = color.z;
}""", 32, 2, lambda r: (torch.cat([r(50, 2) * 0.4, torch.ones(50, 1)], 1), torch.tensor([[0.1, -0.1, 0.2]]), torch.tensor([1.0]), r(50, 3), 50))  # fmt: skip
def shade(dirs, center, radius, image, n):
    d = F.normalize(dirs, dim=-1)
    o = dirs.new_tensor([0, 0, -3.0])
    oc = o - center[0]
    b, c = d @ oc, oc @ oc - radius[0] ** 2
    h = b * b - c
    p = o + (-b - h.clamp(min=1e-30).sqrt())[:, None] * d
    base, tint = dirs.new_tensor([0.1, 0.1, 0.2]), dirs.new_tensor([0.9, 0.5, 0.3])
    lit = (F.normalize(p - center[0], dim=-1) * -d).sum(-1).clamp(min=0)
    return {"image": base + torch.where((h > 0)[:, None], lit[:, None] * tint, 0.0)}


@case("""
extern __shared__ float4 shPosition[];
__device__ float3 bodyBodyInteraction(float4 bi, float4 bj, float3 ai) {
  float3 r;
  r.x = bj.x - bi.x; r.y = bj.y - bi.y; r.z = bj.z - bi.z;
  float distSqr = r.x * r.x + r.y * r.y + r.z * r.z + 0.01f;
  float distSixth = distSqr * distSqr * distSqr;
  float invDistCube = 1.0f/sqrtf(distSixth);
  float s = bj.w * invDistCube;
  ai.x += r.x * s; ai.y += r.y * s; ai.z += r.z * s;
  return ai;
}
__device__ float3 tile_calculation(float4 myPosition, float3 accel) {
  int i;
  for (i = 0; i < blockDim.x; i++) {
    accel = bodyBodyInteraction(myPosition, shPosition[i], accel);
  }
  return accel;
}
__global__ void calculate_forces(const float4* globalX, float4* globalA, int N) {
  float4 myPosition;
  int i, tile;
  float3 acc = {0.0f, 0.0f, 0.0f};
  int gtid = blockIdx.x * blockDim.x + threadIdx.x;
  myPosition = globalX[gtid];
  for (i = 0, tile = 0; i < N; i += blockDim.x, tile++) {
    int idx = tile * blockDim.x + threadIdx.x;
    shPosition[threadIdx.x] = globalX[idx];
    __syncthreads();
    acc = tile_calculation(myPosition, acc);
    __syncthreads();
  }
  float4 acc4 = {acc.x, acc.y, acc.z, 0.0f};
  globalA[gtid] = acc4;
}""", 32, 2, lambda r: (r(64, 4), r(64, 4), 64), shared_mem=512, name="calculate_forces")  # fmt: skip
def forces(globalX, globalA, N):
    d = globalX[None, :, :3] - globalX[:, None, :3]
    s = globalX[None, :, 3] * (d.square().sum(-1) + 0.01) ** -1.5
    return {"globalA": F.pad((s[..., None] * d).sum(1), (0, 1))}


@case("""
__global__ void spmv_csr_vector(const int num_rows, const int* ptr, const int* indices, const float* data, const float* x, float* y) {
  extern __shared__ float vals[];
  int thread_id = blockDim.x * blockIdx.x + threadIdx.x; // global thread index
  int warp_id = thread_id / 32;                          // global warp index
  int lane = thread_id & (32 - 1);                       // thread index within the warp
  int row = warp_id;
  float sum = 0;
  if (row < num_rows) {
    int row_start = ptr[row];
    int row_end = ptr[row + 1];
    for (int jj = row_start + lane; jj < row_end; jj += 32) sum += data[jj] * x[indices[jj]];
  }
  #pragma unroll
  for (int offset = 16; offset > 0; offset >>= 1) sum += __shfl_down_sync(-1, sum, offset);
  vals[threadIdx.x] = sum;
  __syncwarp();
  if (lane == 0 && row < num_rows) y[row] = vals[threadIdx.x];
}""", 64, 10, lambda r: (20, torch.arange(0, 841, 42, dtype=torch.int32), torch.arange(840, dtype=torch.int32) * 7 % 30, r(840), r(30), r(20)), name="spmv_csr_vector", shared_mem=256)  # fmt: skip
def spmv(num_rows, ptr, indices, data, x, y):
    return {"y": (data * x[indices.long()]).view(20, 42).sum(-1)}


@case("""
#define BLOCK 32
#define RADIUS 3
typedef unsigned char byte;
__constant__ int unused[4];
extern "C" __global__ void conv1d_shared(const float* __restrict__ in, const float* __restrict__ mask, float* __restrict__ out, int n) {
  extern __shared__ unsigned char smem[];
  float* tile = reinterpret_cast<float*>(smem);
  float* w = (float*)(smem + (BLOCK + 2 * RADIUS) * sizeof(float));
  int gindex = threadIdx.x + blockIdx.x * blockDim.x;
  int lindex = threadIdx.x + RADIUS;
  if (threadIdx.x < 2 * RADIUS + 1) w[threadIdx.x] = mask[threadIdx.x];
  tile[lindex] = gindex < n ? in[gindex] : 0.0f;
  if (threadIdx.x < RADIUS) {
    tile[lindex - RADIUS] = gindex - RADIUS >= 0 ? in[gindex - RADIUS] : 0.0f;
    tile[lindex + BLOCK] = gindex + BLOCK < n ? in[gindex + BLOCK] : 0.0f;
  }
  __syncthreads();
  float result = 0;
  for (int offset = -RADIUS; offset <= RADIUS; offset++) result += tile[lindex + offset] * w[offset + RADIUS];
  if (gindex < n) out[gindex] = result;
}""", 32, 3, lambda r: (r(90), r(7), r(90), 90), shared_mem=180)  # fmt: skip
def conv1d_shared(inp, mask, out, n):
    return {"out": F.conv1d(inp[None, None], mask[None, None], padding=3)[0, 0]}


# As published, but that loads are of clamped indices, not under if (range.x + progress < range.y).
@case(r"""
#include <cooperative_groups.h>
namespace cg = cooperative_groups;
#define BLOCK_X 8
#define BLOCK_Y 4
#define BLOCK_SIZE (BLOCK_X * BLOCK_Y)
template <uint32_t CHANNELS>
__global__ void __launch_bounds__(BLOCK_X * BLOCK_Y)
renderCUDA(const uint2* __restrict__ ranges, const uint32_t* __restrict__ point_list, int W, int H,
           const float2* __restrict__ points_xy_image, const float* __restrict__ features,
           const float4* __restrict__ conic_opacity, float* __restrict__ final_T, uint32_t* __restrict__ n_contrib,
           const float* __restrict__ bg_color, float* __restrict__ out_color) {
    auto block = cg::this_thread_block();
    uint32_t horizontal_blocks = (W + BLOCK_X - 1) / BLOCK_X;
    uint2 pix_min = { block.group_index().x * BLOCK_X, block.group_index().y * BLOCK_Y };
    uint2 pix = { pix_min.x + block.thread_index().x, pix_min.y + block.thread_index().y };
    uint32_t pix_id = W * pix.y + pix.x;
    float2 pixf = { (float)pix.x, (float)pix.y };
    bool inside = pix.x < W && pix.y < H;
    bool done = !inside;
    uint2 range = ranges[block.group_index().y * horizontal_blocks + block.group_index().x];
    const int rounds = ((range.y - range.x + BLOCK_SIZE - 1) / BLOCK_SIZE);
    int toDo = range.y - range.x;
    __shared__ int collected_id[BLOCK_SIZE];
    __shared__ float2 collected_xy[BLOCK_SIZE];
    __shared__ float4 collected_conic_opacity[BLOCK_SIZE];
    float T = 1.0f;
    uint32_t contributor = 0;
    uint32_t last_contributor = 0;
    float C[CHANNELS] = { 0 };
    for (int i = 0; i < rounds; i++, toDo -= BLOCK_SIZE) {
        int num_done = __syncthreads_count(done);
        if (num_done == BLOCK_SIZE)
            break;
        int progress = i * BLOCK_SIZE + block.thread_rank();
        int coll_id = point_list[min(range.x + progress, range.y - 1)];
        collected_id[block.thread_rank()] = coll_id;
        collected_xy[block.thread_rank()] = points_xy_image[coll_id];
        collected_conic_opacity[block.thread_rank()] = conic_opacity[coll_id];
        block.sync();
        for (int j = 0; !done && j < min(BLOCK_SIZE, toDo); j++) {
            contributor++;
            float2 xy = collected_xy[j];
            float2 d = { xy.x - pixf.x, xy.y - pixf.y };
            float4 con_o = collected_conic_opacity[j];
            float power = -0.5f * (con_o.x * d.x * d.x + con_o.z * d.y * d.y) - con_o.y * d.x * d.y;
            if (power > 0.0f)
                continue;
            float alpha = min(0.99f, con_o.w * exp(power));
            if (alpha < 1.0f / 255.0f)
                continue;
            float test_T = T * (1 - alpha);
            if (test_T < 0.0001f) {
                done = true;
                continue;
            }
            for (int ch = 0; ch < CHANNELS; ch++)
                C[ch] += features[collected_id[j] * CHANNELS + ch] * alpha * T;
            T = test_T;
            last_contributor = contributor;
        }
    }
    if (inside) {
        final_T[pix_id] = T;
        n_contrib[pix_id] = last_contributor;
        for (int ch = 0; ch < CHANNELS; ch++)
            out_color[ch * H * W + pix_id] = C[ch] + T * bg_color[ch];
    }
}""", (8, 4), (2, 2), lambda r: (
    torch.tensor([[0, 45], [45, 50], [50, 50 + 64], [114, 120]], dtype=torch.int32), torch.arange(120, dtype=torch.int32) * 7 % 40,
    13, 7, 8 * r(40, 2) + torch.tensor([6.0, 3.0]), r(40, 3), torch.cat([0.05 + 0.05 * r(40, 1), 0.01 * r(40, 1), 0.06 + 0.05 * r(40, 1), 0.6 + 0.4 * r(40, 1)], 1),
    torch.zeros(7, 13), torch.zeros(7, 13, dtype=torch.int32), r(3), torch.zeros(3, 7, 13)),
    name="renderCUDA<3>", wrt=("points_xy_image", "features", "conic_opacity", "bg_color"), max_iterations=64,
)  # fmt: skip
def splats(ranges, point_list, W, H, points_xy_image, features, conic_opacity, final_T, n_contrib, bg_color, out_color):
    """Of 3D Gaussian splatting: what each pixel sees of a list of Gaussians."""
    color, left = torch.zeros(3, H, W, dtype=features.dtype), torch.ones(H, W, dtype=features.dtype)
    open_ = torch.ones(H, W, dtype=torch.bool)
    y, x = torch.meshgrid(torch.arange(H), torch.arange(W), indexing="ij")
    for tile, (first, end) in enumerate(ranges.tolist()):
        within = (y // 4 == tile // 2) & (x // 8 == tile % 2)
        for k in point_list[first:end].tolist():
            dx, dy = points_xy_image[k, 0] - x, points_xy_image[k, 1] - y
            a, b, c, opacity = conic_opacity[k]
            power = -0.5 * (a * dx * dx + c * dy * dy) - b * dx * dy
            alpha = (opacity * power.exp()).clamp(max=0.99)
            seen = within & open_ & (power <= 0) & (alpha >= 1 / 255)
            open_ = open_ & ~(seen & (left * (1 - alpha) < 0.0001))
            seen = seen & open_
            color = color + torch.where(seen, alpha * left, 0) * features[k].view(3, 1, 1)
            left = torch.where(seen, left * (1 - alpha), left)
    return {"final_T": left, "out_color": color + left * bg_color.view(3, 1, 1)}


@case(r"""
__global__ void bitonic(const float* values, float* sorted) {
    __shared__ float shared[16];
    const unsigned int tid = threadIdx.x;
    shared[tid] = values[blockIdx.x * 16 + tid];
    __syncthreads();
    for (unsigned int k = 2; k <= 16; k *= 2) {
        for (unsigned int j = k / 2; j > 0; j /= 2) {
            unsigned int ixj = tid ^ j;
            if (ixj > tid) {
                if ((tid & k) == 0) {
                    if (shared[tid] > shared[ixj]) {
                        float t = shared[tid]; shared[tid] = shared[ixj]; shared[ixj] = t;
                    }
                } else {
                    if (shared[tid] < shared[ixj]) {
                        float t = shared[tid]; shared[tid] = shared[ixj]; shared[ixj] = t;
                    }
                }
            }
            __syncthreads();
        }
    }
    sorted[blockIdx.x * 16 + tid] = shared[tid];
}""", 16, 2, lambda r: (r(2, 16), r(2, 16)))  # fmt: skip
def bitonic(values, sorted_values):
    return {"sorted": values.sort(-1).values}


@case(r"""
__global__ void scan(const float* g_idata, float* g_odata, int n) {
    extern __shared__ float temp[];
    int thid = threadIdx.x;
    int pout = 0, pin = 1;
    temp[pout * 32 + thid] = thid > 0 ? g_idata[thid - 1] : 0;
    temp[pin * 32 + thid] = 0;
    __syncthreads();
    for (int offset = 1; offset < 32; offset *= 2) {
        pout = 1 - pout;
        pin = 1 - pout;
        if (thid >= offset) temp[pout * 32 + thid] = temp[pin * 32 + thid] + temp[pin * 32 + thid - offset];
        else temp[pout * 32 + thid] = temp[pin * 32 + thid];
        __syncthreads();
    }
    g_odata[thid] = temp[pout * 32 + thid];
}""", 32, 1, lambda r: (r(32), r(32), 32), shared_mem=256)  # fmt: skip
def scan(g_idata, g_odata, n):
    return {"g_odata": g_idata.cumsum(0) - g_idata}


@case(r"""
__global__ void sgemm_double_buffered(const float* A, const float* B, float* C, int K, int N) {
    __shared__ float As[2][8][9];
    __shared__ float Bs[2][8][8];
    const int tx = threadIdx.x, ty = threadIdx.y;
    const int row = blockIdx.y * 8 + ty, col = blockIdx.x * 8 + tx;
    int write_stage = 1;
    As[0][ty][tx] = A[row * K + tx];
    Bs[0][ty][tx] = B[ty * N + col];
    __syncthreads();
    float sum = 0.f;
    for (int tile = 0; tile < K; tile += 8) {
        float ldg_a = 0.f, ldg_b = 0.f;
        if (tile + 8 < K) {
            ldg_a = A[row * K + tile + 8 + tx];
            ldg_b = B[(tile + 8 + ty) * N + col];
        }
        for (int k = 0; k < 8; ++k) sum += As[write_stage ^ 1][ty][k] * Bs[write_stage ^ 1][k][tx];
        if (tile + 8 < K) {
            As[write_stage][ty][tx] = ldg_a;
            Bs[write_stage][ty][tx] = ldg_b;
            __syncthreads();
            write_stage ^= 1;
        }
    }
    C[row * N + col] = sum;
}""", (8, 8), (2, 2), lambda r: (r(16, 24), r(24, 16), r(16, 16), 24, 16))  # fmt: skip
def sgemm_double_buffered(A, B, C, K, N):
    return {"C": A @ B}
