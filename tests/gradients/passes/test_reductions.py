"""Which texts are sums and maxima over a block, and which only look like it."""

from __future__ import annotations

import shutil

import pytest

from rawkern.gradients.derive import derive
from rawkern.gradients.passes import reductions
from rawkern.gradients.reading.reader import Launched
from rawkern.gradients.reading.syntax import Where
from tests.gradients import host
from tests.gradients.random_trees import Trees

BEGIN = "s[t] = x[i] * x[i]; __syncthreads();"
TREE = "for (int k = 32; k > 0; k >>= 1) { if (t < k) s[t] += s[t + k]; __syncthreads(); }"
READ = "y[i] = s[0] * x[i];"


def derived(body: str, block=(64, 1, 1)) -> str:
    source = (
        'extern "C" __global__ void f(const float* x, float* y, int n) {\n'
        "    __shared__ float s[64], q[64];\n"
        f"    int t = threadIdx.x, i = blockIdx.x * 64 + t;\n    {body}\n}}"
    )
    return derive(source, "f", where=Where("f.cu", "f", str), launched=Launched(block)).source


TREES = {
    "halves": TREE,
    "from the end": "float v = s[t]; __syncthreads(); s[63 - t] = v; __syncthreads();" + TREE,
    "ends in a warp": "if (t < 32) { volatile float* w = s; w[t] += w[t + 32]; w[t] += w[t + 16]; w[t] += w[t + 8];"
    "w[t] += w[t + 4]; w[t] += w[t + 2]; w[t] += w[t + 1]; } __syncthreads();",
    "division": "for (int k = blockDim.x / 2; k >= 1; k /= 2) { if (t < k) s[t] = s[t] + s[t + k]; __syncthreads(); }",
    "barrier first": "for (int k = 32; k > 0; k >>= 1) { __syncthreads(); if (t < k) s[t] += s[t + k]; } __syncthreads();",
    "neighbors": "for (int k = 1; k < 64; k *= 2) { if (t % (2 * k) == 0) s[t] += s[t + k]; __syncthreads(); }",
    "strides": "for (int k = 1; k < 64; k *= 2) { int j = 2 * k * t; if (j < 64) s[j] += s[j + k]; __syncthreads(); }",
    "by hand": "".join(f"if (t < {k}) s[t] = s[t + {k}] + s[t]; __syncthreads();" for k in (32, 16, 8, 4, 2, 1)),
    "one adds": "if (t == 0) { s[0] = s[0] + s[1]; s[0] = s[0] + (s[2] + s[3]); } __syncthreads();"
    "if (t == 0) { " + "".join(f"s[0] += s[{k}];" for k in range(4, 64)) + "} __syncthreads();",
}


@pytest.mark.parametrize("form", TREES)
def test_trees(form) -> None:
    text = derived(f"{BEGIN} {TREES[form]} {READ}")
    assert "block_sum(" in text and "float s[" not in text
    again = derived(f"{BEGIN} {TREES[form]} float a = s[0]; __syncthreads(); s[t] = a * x[i]; __syncthreads();"
                    f"{TREES[form].replace('+=', '= fmaxf(s[0], 0.0f) +')} if (t == 0) y[blockIdx.x] = s[0];")  # fmt: skip
    assert ("float s[" in again) == ("+=" in TREES[form])  # all of an array, or nothing


def test_maxima_and_two_arrays() -> None:
    both = (
        "s[t] = x[i]; q[t] = x[i] * x[i]; __syncthreads(); for (int k = 32; k > 0; k >>= 1) {"
        "if (t < k) { s[t] = fminf(s[t], s[t + k]); q[t] = max(q[t], q[t + k]); } __syncthreads(); }"
    )
    text = derived(f"{both} y[i] = s[0] * q[0];")
    assert (
        "block_min(" in text and "block_max(" in text and "__shared__ float s[" not in text.partition("_backward(")[2]
    )
    assert text.count("__syncthreads_count(") == 2


@pytest.mark.parametrize(
    "body",
    [
        f"{BEGIN} {TREE.replace('32', '16')} {READ}",  # of half the threads
        f"{BEGIN} {TREE.replace('k > 0', 'k > 1')} {READ}",
        f"{BEGIN} {TREE} y[i] = s[t / 2] * x[i];",
        f"{BEGIN} {TREE} if (t == 0) s[0] = s[0] * 0.5f; __syncthreads(); {READ}",
        f"{BEGIN} {TREE.replace('s[t] += s[t + k]', 's[t] = s[t] * 0.5f + s[t + k]')} {READ}",
        f"{BEGIN} {TREE.replace('t < k', 't < k && x[i] > 0.0f')} {READ}",
        f"{BEGIN} {TREE.replace('__syncthreads();', '')} __syncthreads(); {READ}",
        f"{BEGIN} if (t > 31) s[t - 32] += s[t]; {TREE.replace('32', '16')} {READ}",
        f"if (t > 40) return; {BEGIN} {TREE} {READ}",
        f"{BEGIN} float a = 0.0f; for (int k = 32; k > 0; k >>= 1) {{ if (t < k) {{ s[t] += s[t + k]; a = s[t]; }}"
        f"__syncthreads(); if (k == 2 && t < k) y[i] = s[t]; }} {READ}",
        f"{BEGIN} if (n > 3) {{ {TREE} }} {READ}",
        f"s[t] = 1.0f; __syncthreads(); if (n > 3) s[t] = x[i]; __syncthreads(); {TREE} {READ}",
    ],
)
def test_no_trees(body) -> None:
    assert "__shared__ float s[" in derived(body)


def test_of_other_blocks() -> None:
    assert "__shared__ float s[" in derived(f"{BEGIN} {TREE} {READ}", (128, 1, 1))
    assert "__shared__ float s[" in derived(f"{BEGIN} {TREE.replace('32', '8')} {READ}", (16, 1, 1))
    rank = "t += threadIdx.y * 16; i += threadIdx.y * 16;"
    assert "__shared__ float s[" not in derived(f"{rank} {BEGIN} {TREE} {READ}", (16, 4, 1))


ROW = "int lane = t % 32, row = blockIdx.x * 2 + t / 32;"
LEFT = "if (row >= n) return;"
SUM = "for (int o = 16; o > 0; o /= 2) v += __shfl_down_sync(0xffffffff, v, o);"


@pytest.mark.parametrize("end", ["if (lane == 0) y[row] = v * x[0];", "y[i] = x[i] * __shfl_sync(0xffffffff, v, 0);"])
@pytest.mark.parametrize("begin", [ROW, ROW + LEFT])
def test_of_warps(begin, end) -> None:
    text = derived(f"{begin} float v = x[i]; {SUM} {end}").partition("_backward(")[2]
    assert "warp_sum(" in text and "__shfl" not in text


@pytest.mark.parametrize(
    "body",
    [
        f"{ROW} float v = x[i]; {SUM} y[i] = v * x[0];",
        f"{ROW} float v = x[i]; {SUM.replace('16', '8')} if (lane == 0) y[row] = v;",
        f"{ROW} if (x[row] > 0.0f) return; float v = x[i]; {SUM} if (lane == 0) y[row] = v;",
        f"{ROW} float v = x[i]; {SUM.replace('v +=', 'v = v * 0.5f +')} if (lane == 0) y[row] = v;",
    ],
)
def test_of_no_warps(body) -> None:
    assert "__shfl" in derived(body).partition("_backward(")[2]


@pytest.mark.skipif(shutil.which("g++") is None, reason="compiles for the host with g++")
def test_the_comparison_sees_trees_that_leave_out_threads(monkeypatch) -> None:
    combined = reductions._Run._combined
    monkeypatch.setattr(reductions._Run, "_combined", lambda self, *args: combined(self, *args) and self.all[args[-1]])
    _, _, wrong = host.outcomes({seed: Trees(seed) for seed in (7, 8, 10, 54, 80, 83)})
    assert len(wrong) >= 3
