"""Elementwise operators and reductions as what modules hold: pickled, saved, copied, sent to another process."""

from __future__ import annotations

import copy
import io
import multiprocessing
import pickle

import pytest
import torch

import rawkern

silu = rawkern.elementwise("T x, raw T w", "T y", "y = x / (1 + exp(-x)) * w[0]", "pickled_silu", options=("-DA=1",))
norm = rawkern.reduction("T x", "T y", "x * x", "a + b", "y = sqrt(a)", "0", "mylib::pickled_norm", preamble="// none")
half = rawkern.reduction("T x", "T y", "x", "a + b", "y = a / 2", "0", "halved", backward="grad_x = grad_y / 2")


class Both(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.silu, self.norm, self.half = silu, norm, half

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.half(self.norm(self.silu(x, x[0]), axis=1))


def result(module: torch.nn.Module) -> list[float]:
    return module(torch.linspace(-1, 1, 12).view(3, 4)).reshape(1).tolist()


@pytest.mark.parametrize("operator", [silu, norm, half], ids=lambda f: f.name)
def test_a_pickle_is_the_operator_itself(operator) -> None:
    for protocol in (2, pickle.HIGHEST_PROTOCOL):
        assert pickle.loads(pickle.dumps(operator, protocol)) is operator
    assert copy.copy(operator) is copy.deepcopy({"f": operator})["f"] is operator


def test_saved_in_a_module() -> None:
    file = io.BytesIO()
    torch.save(Both(), file)
    file.seek(0)
    assert result(torch.load(file, weights_only=False)) == result(Both())


def test_sent_to_a_process() -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(result, (Both(),)) == result(Both())
