#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>

template <typename scalar_t>
__global__ void leaky_kernel(const scalar_t* x, scalar_t* y, float slope, int64_t n) {
  int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i] < scalar_t(0) ? scalar_t(slope * float(x[i])) : x[i];
}

torch::Tensor leaky(torch::Tensor x, double slope) {
  TORCH_CHECK(x.is_cuda() && x.is_contiguous(), "x must be a contiguous CUDA tensor");
  auto y = torch::empty_like(x);
  const int64_t n = x.numel();
  const int threads = 256;
  AT_DISPATCH_FLOATING_TYPES_AND_HALF(x.scalar_type(), "leaky", ([&] {
    leaky_kernel<scalar_t><<<(n + threads - 1) / threads, threads, 0, at::cuda::getCurrentCUDAStream()>>>(
        x.data_ptr<scalar_t>(), y.data_ptr<scalar_t>(), slope, n);
  }));
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return y;
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("run", &leaky); }
