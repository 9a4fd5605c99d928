// Functions of a warp of PyTorch's C++ headers (ATen/cuda/DeviceUtils.cuh), which many files define themselves.
#pragma once
#include <rawkern/torch.h>

template <typename T> __device__ __forceinline__ T WARP_SHFL(T value, int lane, int width = 32, unsigned int mask = 0xffffffff) { return __shfl_sync(mask, value, lane, width); }
template <typename T> __device__ __forceinline__ T WARP_SHFL_XOR(T value, int lane_mask, int width = 32, unsigned int mask = 0xffffffff) { return __shfl_xor_sync(mask, value, lane_mask, width); }
template <typename T> __device__ __forceinline__ T WARP_SHFL_UP(T value, unsigned int delta, int width = 32, unsigned int mask = 0xffffffff) { return __shfl_up_sync(mask, value, delta, width); }
template <typename T> __device__ __forceinline__ T WARP_SHFL_DOWN(T value, unsigned int delta, int width = 32, unsigned int mask = 0xffffffff) { return __shfl_down_sync(mask, value, delta, width); }
template <> __device__ __forceinline__ c10::Half WARP_SHFL<c10::Half>(c10::Half value, int lane, int width, unsigned int mask) { return c10::Half(static_cast<unsigned short>(WARP_SHFL<int>(value.x, lane, width, mask)), c10::Half::from_bits()); }
template <> __device__ __forceinline__ c10::Half WARP_SHFL_XOR<c10::Half>(c10::Half value, int lane, int width, unsigned int mask) { return c10::Half(static_cast<unsigned short>(WARP_SHFL_XOR<int>(value.x, lane, width, mask)), c10::Half::from_bits()); }
template <> __device__ __forceinline__ c10::Half WARP_SHFL_UP<c10::Half>(c10::Half value, unsigned int lane, int width, unsigned int mask) { return c10::Half(static_cast<unsigned short>(WARP_SHFL_UP<int>(value.x, lane, width, mask)), c10::Half::from_bits()); }
template <> __device__ __forceinline__ c10::Half WARP_SHFL_DOWN<c10::Half>(c10::Half value, unsigned int lane, int width, unsigned int mask) { return c10::Half(static_cast<unsigned short>(WARP_SHFL_DOWN<int>(value.x, lane, width, mask)), c10::Half::from_bits()); }
template <> __device__ __forceinline__ c10::BFloat16 WARP_SHFL<c10::BFloat16>(c10::BFloat16 value, int lane, int width, unsigned int mask) { return c10::BFloat16(static_cast<unsigned short>(WARP_SHFL<int>(value.x, lane, width, mask)), c10::BFloat16::from_bits()); }
template <> __device__ __forceinline__ c10::BFloat16 WARP_SHFL_XOR<c10::BFloat16>(c10::BFloat16 value, int lane, int width, unsigned int mask) { return c10::BFloat16(static_cast<unsigned short>(WARP_SHFL_XOR<int>(value.x, lane, width, mask)), c10::BFloat16::from_bits()); }
template <> __device__ __forceinline__ c10::BFloat16 WARP_SHFL_UP<c10::BFloat16>(c10::BFloat16 value, unsigned int lane, int width, unsigned int mask) { return c10::BFloat16(static_cast<unsigned short>(WARP_SHFL_UP<int>(value.x, lane, width, mask)), c10::BFloat16::from_bits()); }
template <> __device__ __forceinline__ c10::BFloat16 WARP_SHFL_DOWN<c10::BFloat16>(c10::BFloat16 value, unsigned int lane, int width, unsigned int mask) { return c10::BFloat16(static_cast<unsigned short>(WARP_SHFL_DOWN<int>(value.x, lane, width, mask)), c10::BFloat16::from_bits()); }
template <typename T> __device__ __forceinline__ c10::complex<T> WARP_SHFL(c10::complex<T> value, int lane, int width = 32, unsigned int mask = 0xffffffff) { return c10::complex<T>(__shfl_sync(mask, value.real_, lane, width), __shfl_sync(mask, value.imag_, lane, width)); }
template <typename T> __device__ __forceinline__ c10::complex<T> WARP_SHFL_XOR(c10::complex<T> value, int lane_mask, int width = 32, unsigned int mask = 0xffffffff) { return c10::complex<T>(__shfl_xor_sync(mask, value.real_, lane_mask, width), __shfl_xor_sync(mask, value.imag_, lane_mask, width)); }
template <typename T> __device__ __forceinline__ c10::complex<T> WARP_SHFL_UP(c10::complex<T> value, unsigned int delta, int width = 32, unsigned int mask = 0xffffffff) { return c10::complex<T>(__shfl_up_sync(mask, value.real_, delta, width), __shfl_up_sync(mask, value.imag_, delta, width)); }
template <typename T> __device__ __forceinline__ c10::complex<T> WARP_SHFL_DOWN(c10::complex<T> value, unsigned int delta, int width = 32, unsigned int mask = 0xffffffff) { return c10::complex<T>(__shfl_down_sync(mask, value.real_, delta, width), __shfl_down_sync(mask, value.imag_, delta, width)); }
__device__ __forceinline__ unsigned int WARP_BALLOT(int predicate, unsigned int mask = 0xffffffff) { return __ballot_sync(mask, predicate); }
__device__ __forceinline__ int WARP_ANY(int predicate, unsigned int mask = 0xffffffff) { return __any_sync(mask, predicate); }
__device__ __forceinline__ unsigned int ACTIVE_MASK() { return __activemask(); }
__device__ __forceinline__ void WARP_SYNC(unsigned int mask = 0xffffffff) { __syncwarp(mask); }
__device__ __forceinline__ int getLaneId() { int id; asm("mov.s32 %0, %%laneid;" : "=r"(id)); return id; }
