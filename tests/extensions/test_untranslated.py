"""What is not translated raises when it is called, with its line and what to do; all else works."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import rawkern
from tests.extensions.kit import load

CASES = {
    "thrust": ("thrust::sort(x.data_ptr<float>(), x.data_ptr<float>() + 3);", "thrust::sort", "call torch.sort"),
    "cub": (
        "void* t = nullptr; size_t n = 0; cub::DeviceScan::InclusiveSum(t, n, x.data_ptr<float>(), x.data_ptr<float>(), 3);",
        "cub::DeviceScan::InclusiveSum",
        "call torch.cumsum",
    ),
    "cublas": ("cublasSgemm(h, n, n);", "cublas", "call torch.matmul"),
    "malloc": ("float* p; cudaMallocHost(&p, 100);", "cudaMallocHost", "torch::empty"),
    "autograd": ("auto y = Scale::apply(x);", "torch::autograd::Function", "torch.autograd.Function in Python"),
    "static": ("static int calls[4]; calls[0]++;", "a static array", "write this function in Python"),
    "unknown": ("frobnicate(x);", "frobnicate", "not in these sources"),
    "method": ("x.frobnicate();", "method frobnicate", "torch does not have"),
    "fallthrough": (
        "switch (x.dim()) { case 1: x.zero_(); case 2: int n = 3; x.fill_(n); }",
        "goes on in the next one",
        "",
    ),
    "reference": ("int& m = x.data_ptr<int>()[0]; m = 3;", "a reference to a number", ""),
    "goto": ("again: x.zero_(); goto again;", "again", ""),
    "event": (
        "float ms; cudaEvent_t a, b; cudaEventElapsedTime(&ms, a, b);",
        "cudaEventElapsedTime",
        "torch.cuda.Event",
    ),
    "inside": ("if (step(x) > 3) x.zero_();", "step changes what it takes by reference", ""),
    "lambda": ("int n = 1; auto g = [](int& m) { m += 1; }; g(n);", "a lambda that changes its parameter m", ""),
    "undeclared": ("x.fill_(unknown_name);", "the unknown name unknown_name", ""),
}


@pytest.fixture(scope="module")
def extension(tmp_path_factory: pytest.TempPathFactory) -> Any:
    source = """
__global__ void k(float* x) { x[0] = 3; }
int step(torch::Tensor& x) { x = x + 1; return 5; }
void good(torch::Tensor x) { k<<<1, 1>>>(x.data_ptr<float>()); }
"""
    source += "".join(f"void bad_{name}(torch::Tensor x) {{ {body} }}\n" for name, (body, _, _) in CASES.items())
    return load(tmp_path_factory.mktemp("untranslated"), source)


def test_all_else_works(extension: Any, device: torch.device) -> None:
    x = torch.zeros(3, device=device)
    extension.good(x)
    assert x[0] == 3 and list(extension.untranslated) == [f"bad_{name}" for name in CASES]


@pytest.mark.parametrize("name", CASES)
def test_it_raises_when_it_is_called(name: str, extension: Any) -> None:
    _, what, instead = CASES[name]
    line = 8 + list(CASES).index(name)
    with pytest.raises(rawkern.UnsupportedError, match=rf"bad_{name} is not translated: ext\.cu:{line}: ") as info:
        getattr(extension, f"bad_{name}")(torch.zeros(3))
    assert what in str(info.value) and instead in str(info.value)
