// Sums of a warp and of a block of PyTorch's C++ headers (ATen/native/cuda/block_reduce.cuh).
#pragma once
#include <rawkern/torch_atomic.h>

namespace at { namespace native { namespace cuda_utils {
constexpr int kCUDABlockReduceNumThreads = 512;
constexpr int kCUDABlockReduceMaxThreads = 32 * 32;

struct Block1D {
  static __forceinline__ __device__ int Tid() { return threadIdx.x; }
  static __forceinline__ __device__ int Warps() { return blockDim.x / warpSize; }
};
struct Block2D {
  static __forceinline__ __device__ int Tid() { return threadIdx.x + threadIdx.y * blockDim.x; }
  static __forceinline__ __device__ int Warps() { return blockDim.x * blockDim.y / warpSize; }
};

template <typename T> __inline__ __device__ T WarpReduceSum(T value) {
#pragma unroll
  for (int offset = warpSize >> 1; offset > 0; offset >>= 1) value += WARP_SHFL_DOWN(value, offset);
  return value;
}
template <typename T, typename ReduceOp> __inline__ __device__ T WarpReduce(T value, const ReduceOp& op) {
#pragma unroll
  for (int offset = warpSize >> 1; offset > 0; offset >>= 1) value = op.combine(value, op.warp_shfl_down(value, offset));
  return value;
}
template <typename T, typename B = Block1D> __inline__ __device__ T BlockReduceSum(T value, T* shared) {
  const int tid = B::Tid(), lane = tid % warpSize, warp = tid / warpSize;
  value = WarpReduceSum(value);
  __syncthreads();
  if (lane == 0) shared[warp] = value;
  __syncthreads();
  value = tid < B::Warps() ? shared[lane] : T(0);
  return warp == 0 ? WarpReduceSum(value) : value;
}
template <typename T, class ReduceOp, typename B = Block1D>
__inline__ __device__ T BlockReduce(T value, const ReduceOp& op, const T& identity, T* shared) {
  const int tid = B::Tid(), lane = tid % warpSize, warp = tid / warpSize;
  value = WarpReduce(value, op);
  __syncthreads();
  if (lane == 0) shared[warp] = value;
  __syncthreads();
  value = tid < B::Warps() ? shared[lane] : identity;
  return warp == 0 ? WarpReduce(value, op) : value;
}
}}}  // namespace at::native::cuda_utils
