#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>

template <typename scalar_t>
__device__ __forceinline__ scalar_t sigmoid(scalar_t z) { return scalar_t(1) / (scalar_t(1) + exp(-z)); }

template <typename scalar_t>
__global__ void cell_kernel(
    const torch::PackedTensorAccessor32<scalar_t, 3, torch::RestrictPtrTraits> gates,
    const torch::PackedTensorAccessor32<scalar_t, 2, torch::RestrictPtrTraits> old_cell,
    torch::PackedTensorAccessor32<scalar_t, 2, torch::RestrictPtrTraits> new_h,
    torch::PackedTensorAccessor32<scalar_t, 2, torch::RestrictPtrTraits> new_cell) {
  const int n = blockIdx.y, c = blockIdx.x * blockDim.x + threadIdx.x;
  if (c >= gates.size(2)) return;
  new_cell[n][c] = old_cell[n][c] + sigmoid(gates[n][0][c]) * tanh(gates[n][2][c]);
  new_h[n][c] = tanh(new_cell[n][c]) * sigmoid(gates[n][1][c]);
}

std::tuple<torch::Tensor, torch::Tensor> cell(torch::Tensor input, torch::Tensor weights, torch::Tensor bias, torch::Tensor old_cell) {
  auto gates = torch::addmm(bias, input, weights.transpose(0, 1)).reshape({input.size(0), 3, old_cell.size(1)});
  auto new_h = torch::zeros_like(old_cell), new_cell = torch::zeros_like(old_cell);
  const dim3 blocks((old_cell.size(1) + 127) / 128, input.size(0));
  AT_DISPATCH_FLOATING_TYPES(gates.scalar_type(), "cell", ([&] {
    cell_kernel<scalar_t><<<blocks, 128>>>(
        gates.packed_accessor32<scalar_t, 3, torch::RestrictPtrTraits>(),
        old_cell.packed_accessor32<scalar_t, 2, torch::RestrictPtrTraits>(),
        new_h.packed_accessor32<scalar_t, 2, torch::RestrictPtrTraits>(),
        new_cell.packed_accessor32<scalar_t, 2, torch::RestrictPtrTraits>());
  }));
  return {new_h, new_cell};
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("run", &cell); }
