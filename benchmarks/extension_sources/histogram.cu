#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>

__global__ void histogram_kernel(const int* x, int* counts, int bins, int n) {
  extern __shared__ int own[];
  for (int k = threadIdx.x; k < bins; k += blockDim.x) own[k] = 0;
  __syncthreads();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) atomicAdd(own + x[i], 1);
  __syncthreads();
  for (int k = threadIdx.x; k < bins; k += blockDim.x) atomicAdd(counts + k, own[k]);
}

torch::Tensor histogram(torch::Tensor x, int64_t bins) {
  auto counts = torch::empty({bins}, x.options());
  auto stream = at::cuda::getCurrentCUDAStream();
  C10_CUDA_CHECK(cudaMemsetAsync(counts.data_ptr<int>(), 0, bins * sizeof(int), stream));
  int blocks = std::min<int64_t>((x.numel() + 255) / 256, 64);
  histogram_kernel<<<blocks, 256, bins * sizeof(int), stream>>>(x.data_ptr<int>(), counts.data_ptr<int>(), bins, x.numel());
  return counts;
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("run", &histogram); }
