"""A task in KernelBench's form: a linear layer and a ReLU."""

import torch


class Model(torch.nn.Module):
    def __init__(self, features, out):
        super().__init__()
        self.linear = torch.nn.Linear(features, out)

    def forward(self, x):
        return torch.relu(self.linear(x))


def get_inputs():
    return [torch.randn(65, 100)]


def get_init_inputs():
    return [100, 33]
