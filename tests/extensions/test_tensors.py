"""Functions and methods of tensors where C++ says it otherwise than Python. The expected values are those of libtorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

from tests.extensions.kit import load

HEAD = "std::vector<torch::Tensor> f{}(torch::Tensor x, torch::Tensor y, torch::Tensor i, int64_t n) {{ {} }}\n"


def _changed(*changes: Any) -> Callable[..., list[torch.Tensor]]:
    """What is left of x when some of its elements are assigned."""

    def function(x: torch.Tensor, y: torch.Tensor, i: torch.Tensor) -> list[torch.Tensor]:
        x = x.clone()
        for where, value in changes:
            x[where] = value(x, y) if callable(value) else value
        return [x]

    return function


CASES: list[tuple[str, Callable[..., Any]]] = [
    # the body of the function; what it returns
    ("return {x.index({Slice(1)}), x.index({Slice(1, 2)}), x.index({Slice()})};", lambda x, y, i: [x[1:], x[1:2], x]),
    ("x.select(0, 1) = y[0]; return {x};", _changed((1, lambda x, y: y[0]))),
    ("x.slice(0, 0, 1) = 5; return {x};", _changed((0, 5))),
    ("x.slice(0, 0, 1) += 1; x.narrow(1, 0, 1) *= n; return {x};",
     _changed((0, lambda x, y: x[0] + 1), ((slice(None), 0), lambda x, y: x[:, 0] * 2))),
    ("return {x.index_put_({i.slice(0, 0, 2)}, y.slice(0, 0, 2), true)};",
     lambda x, y, i: [x.clone().index_put_((i[:2],), y[:2], True)]),
    ("return {torch::zeros({3}).index_add_(0, i, y[0], 2.0)};", lambda x, y, i: [torch.zeros(3).index_add_(0, i, y[0] * 2)]),
    ("return {i.bincount({}, 6)};", lambda x, y, i: [torch.bincount(i, minlength=6)]),
    ("return {at::conv1d(x.unsqueeze(0), y.unsqueeze(0), {}, 1, 1)};",
     lambda x, y, i: [functional.conv1d(x[None], y[None], padding=1)]),
    ("return {at::batch_norm(x, {}, {}, {}, {}, true, 0.1, 1e-5, false)};",
     lambda x, y, i: [functional.batch_norm(x, None, None, training=True)]),
    ("return {torch::tensordot(x, y, {1}, {1})};", lambda x, y, i: [x @ y.t()]),
    ("return {torch::broadcast_tensors({x, y[0]})[1]};", lambda x, y, i: [y[0].expand(3, 4)]),
    ('return {torch::meshgrid({torch::arange(2), torch::arange(3)}, "ij")[0]};',
     lambda x, y, i: [torch.arange(2)[:, None].expand(2, 3)]),
    ("auto a = x.accessor<float, 2>(); return {torch::tensor(a.size(1) * 10 + a.stride(0))};",
     lambda x, y, i: [torch.tensor(44)]),
    ("std::vector<torch::Tensor> v = {x, y}; std::swap(v[0], v[1]); return v;", lambda x, y, i: [y, x]),
    ("std::vector<torch::Tensor> v = {x, y}; auto t = v[0]; t = t + 1; for (auto& u : v) u = u * 2; return v;",
     lambda x, y, i: [x * 2, y * 2]),
]  # fmt: skip


@pytest.fixture(scope="module")
def e(tmp_path_factory: pytest.TempPathFactory) -> Any:
    functions = "".join(HEAD.format(k, body) for k, (body, _) in enumerate(CASES))
    return load(tmp_path_factory.mktemp("tensors"), f"using namespace torch::indexing;\n{functions}")


@pytest.mark.parametrize("k", range(len(CASES)), ids=[body[:50] for body, _ in CASES])
def test_tensors_are_those_of_libtorch(k: int, e: Any) -> None:
    x, y, i = torch.arange(12.0).view(3, 4) + 0.5, torch.arange(12.0).view(3, 4).flip(1), torch.tensor([2, 0, 1, 1])
    expected = CASES[k][1](x, y, i)
    found = getattr(e, f"f{k}")(x, y, i, 2)
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)
