// The snake activation, x + sin(a x)^2 / a, elementwise; grids of one dimension that cover n.
#include <cuda_fp16.h>

template <typename T> __global__ void snake(const T* x, T* y, float a, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float v = x[i], s = sinf(a * v);
    y[i] = v + s * s / a;
}

// grad_x = grad_y * (1 + sin(2 a x))
template <typename T> __global__ void snake_backward(const T* x, const T* grad_y, T* grad_x, float a, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    grad_x[i] = float(grad_y[i]) * (1.0f + sinf(2.0f * a * float(x[i])));
}
