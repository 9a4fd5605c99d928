"""A candidate: one thread for each element of the result."""

import torch

import rawkern

kernel = rawkern.RawKernel(r"""
extern "C" __global__ void linear_relu(int rows, int in, int out,
                                       const float* x, const float* w, const float* b, float* y) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= rows * out) return;
    float sum = b[i % out];
    for (int k = 0; k < in; k++) sum += x[i / out * in + k] * w[i % out * in + k];
    y[i] = sum < 0 ? 0 : sum;
}""")


class ModelNew(torch.nn.Module):
    def __init__(self, features, out):
        super().__init__()
        self.linear = torch.nn.Linear(features, out)

    def forward(self, x):
        w, b = self.linear.weight, self.linear.bias
        y = torch.empty(x.shape[0], w.shape[0], device=x.device)
        kernel.forall(y.numel())(x.shape[0], w.shape[1], w.shape[0], x, w, b, y)
        return y
