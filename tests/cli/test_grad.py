"""`rawkern grad`: what it prints and writes, and its exit status."""

from __future__ import annotations

import json

import pytest
import torch

import rawkern
from rawkern.cli import main

SOURCE = """\
__global__ void gain(const float* x, const float* w, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] * expf(w[i] * GAIN);
}
__global__ void bits(const float* x, float* y) { y[threadIdx.x] = x[__float_as_int(x[0]) & 1]; }
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "gain.cu"
    path.write_text(SOURCE)
    return str(path)


def test_prints_the_text(file, capsys) -> None:
    assert main(["grad", file, "gain", "-D", "GAIN=0.5f", "--wrt", "x", "--block", "64"]) == 0
    text = capsys.readouterr().out
    assert "gain_backward" in text and "grad_x[i] =" in text and "grad_w" not in text


def test_prints_the_kernel_after_each_pass(file, capsys) -> None:
    assert main(["grad", file, "gain", "-D", "GAIN=0.5f", "--passes"]) == 0
    text = capsys.readouterr().out
    heads = [line for line in text.splitlines() if line.startswith("--- ")]
    assert heads[0] == "--- read" and heads[-1] == "--- dead code" and len(heads) == len(set(heads)) > 5
    assert "load x[" in text and "gain_backward" in text.rpartition("---")[2]


def test_writes_a_file_that_can_be_launched(file, tmp_path, capsys) -> None:
    out = str(tmp_path / "backward.cu")
    assert main(["grad", file, "gain", "-D", "GAIN=0.5f", "-o", out]) == 0
    assert "gain_backward<4>, 0 atomic additions" in capsys.readouterr().out
    x, w = torch.rand(100), torch.rand(100)
    for each in (1, 4):
        grads = torch.zeros(100), torch.zeros(100)
        kernel = rawkern.load(out, options=("-DGAIN=0.5f",)).get_function(f"gain_backward<{each}>")
        kernel[1, 256](x, w, 100, *grads, torch.ones(100), 1)
        torch.testing.assert_close(grads[0], torch.exp(w * 0.5))
        torch.testing.assert_close(grads[1], x * 0.5 * torch.exp(w * 0.5))


def test_json(file, capsys) -> None:
    assert main(["grad", file, "gain", "-D", "GAIN=0.5f", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["kernel"] == "gain" and shown["backward"] == "gain_backward<4>" and shown["wrt"] == ["x", "w"]
    assert "grad_x[i] =" in shown["source"] and shown["atomics"] == 0 and shown["block"] == [256, 1, 1]


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["bits"], r"gain.cu:5: bits has no derived backward: __float_as_int has no known derivative"),
        (["gain", "--block", "a"], "invalid block dimensions 'a'"),
        (["gain", "-D", "GAIN=2", "--wrt", "n"], "wrt names 'n'"),
        (["gian"], "rawkern: there is no kernel 'gian'; the source has gain, bits; did you mean 'gain'?"),
    ],
)
def test_says_what_is_wrong(file, capsys, arguments, said) -> None:
    assert main(["grad", file, *arguments, *(["-D", "GAIN=2"] if arguments[0] != "gain" else [])]) == 1
    assert said in capsys.readouterr().err
