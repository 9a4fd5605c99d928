#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>

template <int kThreads>
__global__ void softmax_kernel(const float* x, float* y, int columns) {
  extern __shared__ float row[];
  __shared__ float parts[kThreads];
  x += (int64_t)blockIdx.x * columns, y += (int64_t)blockIdx.x * columns;
  float most = -INFINITY;
  for (int k = threadIdx.x; k < columns; k += kThreads) most = fmaxf(most, row[k] = x[k]);
  parts[threadIdx.x] = most;
  for (int half = kThreads / 2; half; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) parts[threadIdx.x] = fmaxf(parts[threadIdx.x], parts[threadIdx.x + half]);
  }
  __syncthreads();
  most = parts[0];
  __syncthreads();
  float sum = 0;
  for (int k = threadIdx.x; k < columns; k += kThreads) sum += row[k] = expf(row[k] - most);
  parts[threadIdx.x] = sum;
  for (int half = kThreads / 2; half; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) parts[threadIdx.x] += parts[threadIdx.x + half];
  }
  __syncthreads();
  for (int k = threadIdx.x; k < columns; k += kThreads) y[k] = row[k] / parts[0];
}

torch::Tensor softmax(const torch::Tensor& x) {
  TORCH_CHECK(x.dim() == 2, "x must be a matrix, got ", x.dim(), " dimensions");
  auto y = torch::empty_like(x);
  const size_t shared = x.size(1) * sizeof(float);
  if (x.size(1) <= 128)
    softmax_kernel<32><<<x.size(0), 32, shared>>>(x.data_ptr<float>(), y.data_ptr<float>(), x.size(1));
  else
    softmax_kernel<256><<<x.size(0), 256, shared>>>(x.data_ptr<float>(), y.data_ptr<float>(), x.size(1));
  return y;
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("run", &softmax); }
