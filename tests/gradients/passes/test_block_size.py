"""Backwards with another number of threads in a block, and kernels that may depend on it."""

from __future__ import annotations

import pytest
import torch

import rawkern
from rawkern.errors import NotDifferentiable
from rawkern.gradients.derive import derive
from rawkern.gradients.reading.reader import Launched
from rawkern.gradients.reading.syntax import Where
from tests.gradients.cases import BLOCK_REDUCTIONS

HEAD = "(const float* x, const float* w, const int* at, float* y, float* z, int n) {\n"
HEAD += "    __shared__ float part[32];\n    int t = threadIdx.x, row = blockIdx.x * n;\n"
LOOP = "for (int c = t; c < n; c += blockDim.x)"
#: Kernels whose threads only share out rows.
ROWS = {
    "softmax": f"float m = -INFINITY, sum = 0; {LOOP} m = fmaxf(m, x[row + c]); m = block_max(m, part);"
    f"{LOOP} sum += expf(x[row + c] - m); sum = block_sum(sum, part);"
    f"{LOOP} y[row + c] = expf(x[row + c] - m) / sum;",
    "mean of a thread's share": f"float sum = 0; {LOOP} sum -= x[row + c] * w[c]; sum = block_sum(sum, part);"
    f"{LOOP} y[row + c] = x[row + c] * sum / blockDim.x;",
    "the first thread sets": f"float sum = 0; {LOOP} sum += x[row + c] * x[row + c]; sum = block_sum(sum, part);"
    "if (t == 0) y[blockIdx.x] = sqrtf(sum + 1);",
    "two by two": "float sum = 0; for (int c = 2 * t; c < n; c += 2 * blockDim.x) sum += x[row + c] * w[c];"
    f"sum = block_sum(sum, part); {LOOP} y[row + c] = x[row + c] * sum;",
    "rows of a block": "for (int r = 0; r < 2; ++r) { int start = (blockIdx.x * 2 + r) * (n / 2); float sum = 0;"
    "for (int c = t; c < n / 2; c += blockDim.x) sum += sinf(x[start + c]); sum = block_sum(sum, part);"
    "for (int c = t; c < n / 2; c += blockDim.x) y[start + c] = x[start + c] * sum; }",
    "a loop and a condition in it": f"float sum = 0; {LOOP} sum += x[row + c]; sum = block_sum(sum, part);"
    f"{LOOP} {{ float v = 0; for (int k = 0; k < 3; ++k) v += w[(c + k) % n] * x[row + c]; if (at[c] > 1) v *= sum;"
    "y[row + c] = v; }",
    "atomic additions": f"float sum = 0; {LOOP} sum += x[row + c]; sum = block_sum(sum, part);"
    f"{LOOP} atomicAdd(&y[at[c]], x[row + c] * sum);",
}
SUM = f"float sum = 0; {LOOP} sum += x[row + c]; sum = block_sum(sum, part);"
#: Kernels that may compute something else with other blocks.
OTHERS = {
    "no row": "y[row + t] = x[row + t];",
    "a thread's number": f"{SUM} {LOOP} y[row + c] = x[row + c] * sum * t;",
    "a thread's number in an index": f"{SUM} {LOOP} y[row + c] = x[row + c] * sum * w[t];",
    "a sum that begins in each thread": f"float sum = 1; {LOOP} sum += x[row + c]; sum = block_sum(sum, part);"
    f"{LOOP} y[row + c] = x[row + c] * sum;",
    "a sum of what threads have alike": f"float sum = block_sum(w[0], part); {LOOP} y[row + c] = x[row + c] * sum;",
    "a recurrence": f"float sum = 0; {LOOP} sum = 0.5f * sum + x[row + c]; sum = block_sum(sum, part);"
    f"{LOOP} y[row + c] = x[row + c] * sum;",
    "a thread's part of a sum": f"float own = 0; {LOOP} own += x[row + c]; float sum = block_sum(own, part);"
    f"{LOOP} y[row + c] = x[row + c] * sum + own;",
    "a product of a thread's part": f"float own = 0; {LOOP} own += x[row + c]; float sum = block_sum(own * own, part);"
    f"{LOOP} y[row + c] = x[row + c] * sum;",
    "one of several elements": f"{SUM} {LOOP} y[row + c % 64] = x[row + c] * sum;",
    "elements of the same thread's iterations": f"{SUM} {LOOP} {{ y[row + c] = x[row + c] * sum;"
    "y[row + c + blockDim.x] = sum; }",
    "additions of every thread": f"{SUM} {LOOP} y[row + c] = sum * x[row + c]; atomicAdd(&z[blockIdx.x], sum);",
    "another thread than the first": f"{SUM} if (t == 1) y[blockIdx.x] = sum;",
    "two threads": f"{SUM} if (t < 2) y[blockIdx.x] = sum;",
    "the first thread, or the others": f"{SUM} float v; if (t == 0) v = sum; else v = 2 * sum;"
    f"{LOOP} y[row + c] = x[row + c] * v;",
    "the first thread in a row": f"{SUM} bool first = t == 0; {LOOP} y[row + c] = first ? sum : x[row + c];",
    "sums of warps": f"float sum = 0; {LOOP} sum += x[row + c];"
    "for (int o = 16; o > 0; o >>= 1) sum += __shfl_xor_sync(0xffffffff, sum, o);"
    f"{LOOP} y[row + c] = x[row + c] * sum;",
    "a row in shared memory": f"__shared__ float s[512]; {LOOP} s[c] = x[row + c]; __syncthreads();"
    f"{SUM} {LOOP} y[row + c] = s[n - 1 - c] * sum;",
    "what follows the last": f"{SUM} int c = t; for (; c < n; c += blockDim.x) y[row + c] = x[row + c] * sum;"
    "if (c < n + 3) z[blockIdx.x] = sum;",
    "a step that is something else": f"{SUM} for (int c = t; c < n; c += 64) y[row + c] = x[row + c] * w[c + 64] * sum;"
    "for (int c = t; c < n; c += 32) z[row + c] = sum;",
}


def text_of(body: str, block=(64, 1, 1), **options):
    source = f'{BLOCK_REDUCTIONS}extern "C" __global__ void f{HEAD}    {body}\n}}'
    return derive(source, "f", where=Where("f.cu", "f", str), launched=Launched(block), **options)


@pytest.fixture(scope="module")
def module() -> rawkern.RawModule:
    return rawkern.RawModule(
        BLOCK_REDUCTIONS
        + "\n".join(f'extern "C" __global__ void k{k}{HEAD}    {body}\n}}' for k, body in enumerate(ROWS.values()))
    )


@pytest.mark.parametrize("name", ROWS)
def test_rows_have_the_same_gradients_with_other_blocks(module, name, device) -> None:
    kernel, n, rows = module.get_function(f"k{[*ROWS].index(name)}"), 150, 6
    draw = torch.Generator().manual_seed(0)
    x, w, y = (torch.randn(shape, generator=draw).to(device) for shape in ((rows, n), (n + 4,), (rows, n)))
    args = x, w, torch.arange(n, dtype=torch.int32, device=device) * 7 % 11, torch.zeros_like(y), torch.zeros(rows), n
    args = tuple(a.to(device) if isinstance(a, torch.Tensor) else a for a in args)
    derived = kernel.derive(grid=rows, block=64, wrt=("x",))
    want = derived(rows, args, {"y": y})["x"]
    for threads in (32, 256):
        other = derived.with_threads(threads)
        assert other is not None and other.block == (threads, 1, 1) and other.with_threads(threads) is other
        torch.testing.assert_close(other(rows, args, {"y": y})["x"], want, rtol=2e-5, atol=2e-5)
    assert other.verify(rows, args) < 1e-6
    assert derived.with_threads(64) is derived


@pytest.mark.parametrize("name", OTHERS)
def test_what_may_depend_on_the_number_of_threads(name) -> None:
    with pytest.raises(NotDifferentiable, match="the kernel may depend on its 64 threads; keep their number"):
        text_of(OTHERS[name], wrt=("x",) if "x[" in OTHERS[name] else ("w",), threads=128)
    assert text_of(OTHERS[name], wrt=("x",) if "x[" in OTHERS[name] else ("w",)).block == (64, 1, 1)
