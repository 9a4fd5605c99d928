#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>

template <int kThreads>
__global__ void scan_kernel(const float* x, float* y, int columns) {
  __shared__ float sums[kThreads];
  float before = 0;
  x += (int64_t)blockIdx.x * columns, y += (int64_t)blockIdx.x * columns;
  for (int start = 0; start < columns; start += kThreads) {
    int k = start + threadIdx.x;
    sums[threadIdx.x] = k < columns ? x[k] : 0;
    for (int step = 1; step < kThreads; step *= 2) {
      __syncthreads();
      float other = threadIdx.x >= step ? sums[threadIdx.x - step] : 0;
      __syncthreads();
      sums[threadIdx.x] += other;
    }
    __syncthreads();
    if (k < columns) y[k] = before + sums[threadIdx.x];
    before += sums[kThreads - 1];
    __syncthreads();
  }
}

template <int kThreads>
void launch(const torch::Tensor& x, torch::Tensor& y) {
  scan_kernel<kThreads><<<x.size(0), kThreads>>>(x.data_ptr<float>(), y.data_ptr<float>(), x.size(1));
}

torch::Tensor scan(torch::Tensor x) {
  auto y = torch::empty_like(x);
  if (x.size(1) > 64) launch<256>(x, y);
  else launch<64>(x, y);
  return y;
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("run", &scan); }
