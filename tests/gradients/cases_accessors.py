"""Kernels that take PyTorch's accessors: indices of several dimensions, sizes, rows, updates in place."""

from __future__ import annotations

import torch

from tests.gradients.cases import case


@case(
    """
    #include <torch/extension.h>
    template <typename scalar_t> __device__ __forceinline__ scalar_t logistic(scalar_t v) { return 1 / (1 + exp(-v)); }
    template <typename scalar_t>
    __global__ void highway(const torch::PackedTensorAccessor32<scalar_t, 3, torch::RestrictPtrTraits> parts,
                            const torch::PackedTensorAccessor32<scalar_t, 2, torch::RestrictPtrTraits> x,
                            torch::PackedTensorAccessor32<scalar_t, 2, torch::RestrictPtrTraits> y) {
      const int c = blockIdx.x * blockDim.x + threadIdx.x, n = blockIdx.y;
      if (c >= parts.size(2)) return;
      const auto gate = logistic(parts[n][0][c]);
      y[n][c] = gate * tanh(parts[n][1][c]) + (scalar_t(1) - gate) * x[n][c] * x[n][c];
    }""",
    32, (3, 4), lambda r: (r(4, 2, 70), r(4, 70), r(4, 70)), name="highway<float>", atomics=0,
)  # fmt: skip
def highway(parts, x, y):
    gate = parts[:, 0].sigmoid()
    return {"y": gate * parts[:, 1].tanh() + (1 - gate) * x * x}


@case(
    """
    #include <torch/extension.h>
    using Matrix = torch::PackedTensorAccessor64<float, 2>;
    template <typename scalar_t>
    __device__ scalar_t product(const torch::TensorAccessor<scalar_t, 1> row, const Matrix& b, int64_t j) {
      scalar_t sum = 0;
      for (int64_t k = 0; k < row.size(0); ++k) sum += row[k] * b[k][j];
      return sum;
    }
    __global__ void updated(const Matrix a, const Matrix b, Matrix state, float rate) {
      const int64_t j = blockIdx.x * blockDim.x + threadIdx.x, i = blockIdx.y;
      if (j >= state.size(1)) return;
      auto row = a[i];
      state[i][j] = tanhf(state[i][j]) + rate * product(row, b, j);
    }""",
    32, (2, 3), lambda r: (r(3, 5), r(5, 40), r(3, 40), 0.5),
)  # fmt: skip
def updated(a, b, state, rate, state_before):
    return {"state": state_before.tanh() + rate * a @ b}


@case(
    """
    #include <torch/extension.h>
    __global__ void into_the_next_row(const at::PackedTensorAccessor32<float, 2> x, at::PackedTensorAccessor32<float, 2> y) {
      const int r = blockIdx.x, c = threadIdx.x;
      y[r][c] = x[r][c] * x[r][c + 1];
    }""",
    32, 3, lambda r: (r(4, 32), r(3, 32)), atomics=2,
)  # fmt: skip
def into_the_next_row(x, y):
    """What `c + 1` leads to may be another block's, as nothing says that it is below x.size(1)."""
    flat = x.flatten()
    return {"y": (flat[:96] * flat[1:97]).view(3, 32)}


@case(
    """
    #include <torch/extension.h>
    #include <ATen/cuda/Atomic.cuh>
    #define VIEW(type, rank) torch::PackedTensorAccessor32<type, rank, torch::RestrictPtrTraits>
    __global__ void pooled(const VIEW(float, 2) x, const VIEW(float, 1) w, const VIEW(int64_t, 1) of, VIEW(float, 2) y) {
      const int c = blockIdx.x * blockDim.x + threadIdx.x, i = blockIdx.y;
      if (c < x.size(1)) gpuAtomicAdd(&y[of[i]][c], w[i] * x[i][c]);
    }""",
    32, (2, 5), lambda r: (r(5, 40), r(5), torch.tensor([0, 2, 0, 1, 2]), r(3, 40)),
)  # fmt: skip
def pooled(x, w, of, y):
    return {"y": torch.zeros_like(y, dtype=torch.float64).index_add(0, of, w[:, None] * x)}
