"""Rows that several loops read in shared memory: the same gradients, in bounds and without races; and what is not one."""

from __future__ import annotations

import pytest
import torch

import rawkern
from rawkern.gradients.derive import derive
from rawkern.gradients.reading.reader import Launched
from rawkern.gradients.reading.syntax import Where
from tests.gradients.cases import BLOCK_REDUCTIONS

HEAD = "(const float* x, const float* w, const int* at, float* y, int n, int s) {\n"
HEAD += "    __shared__ float part[32];\n    int t = threadIdx.x, row = blockIdx.x * n;\n"
LOOP = "for (int c = t; c < n; c += blockDim.x)"
SQUARES = f"float sum = 0; {LOOP} sum += x[row + c] * x[row + c]; sum = block_sum(sum, part);"
NORM = f"{SQUARES} {LOOP} y[row + c] = x[row + c] * sum;"
#: Kernels of whose backward two loops read a row that the first one does not, each with the array.
STAGED = {
    "of an output's gradient": (NORM, "grad_y"),
    "of a softmax": (
        f"float m = -INFINITY, sum = 0; {LOOP} m = fmaxf(m, x[row + c]); m = block_max(m, part);"
        f"{LOOP} sum += expf(x[row + c] - m); sum = block_sum(sum, part);"
        f"{LOOP} y[row + c] = expf(x[row + c] - m) / sum;",
        "grad_y",
    ),
    "at a place in the array": (f"{SQUARES} {LOOP} y[blockIdx.x * s + 3 + c] = x[row + c] * sum;", "grad_y"),
    "shorter than others": (
        f"float all = 0; {LOOP} all += w[c]; all = block_sum(all, part);"
        + NORM.replace("c < n", "c < s").replace("= x[row + c] * sum", "= x[row + c] * sum * all"),
        "grad_y",
    ),
    "after a shorter loop that reads it": (
        f"float all = 0; {LOOP} all += w[c]; all = block_sum(all, part);"
        f"float few = 0; {LOOP.replace('c < n', 'c < s')} few += x[row + c] * x[row + c] * 0.01f; few = block_sum(few, part);"
        f"float some = 0; {LOOP} some += x[row + c] * x[row + c] * few * 0.01f; some = block_sum(some, part);"
        f"float sum = 0; {LOOP} sum += x[row + c] * x[row + c] * some * 0.01f; sum = block_sum(sum, part);"
        "if (t == 0) y[blockIdx.x] = sum * all;",
        "x",
    ),
}
#: Kernels where none may be: an element may not be read, threads read others' elements, or one loop reads the row.
OTHERS = {
    "under a condition": f"{SQUARES} {LOOP} if (at[c] > 0) y[row + c] = x[row + c] * sum;",
    "only some of it": f"{SQUARES} {LOOP} {{ if (c > n / 2) continue; y[row + c] = x[row + c] * sum; }}",
    "backwards": f"{SQUARES} {LOOP} y[row + n - 1 - c] = x[row + c] * sum;",
    "of a place below": f"{SQUARES} {LOOP} y[row - s + c] = x[row + c] * sum;",
    "of what is found": f"{SQUARES} int from = at[blockIdx.x]; {LOOP} y[from + c] = x[row + c] * sum;",
    "read once": f"{LOOP} y[row + c] = x[row + c] * x[row + c];",
    "beside shared memory": f"__shared__ float q[64]; q[t] = x[row + t]; __syncthreads(); {SQUARES}"
    f"{LOOP} y[row + c] = x[row + c] * sum * q[63 - t];",
}


def text_of(body: str):
    source = f'{BLOCK_REDUCTIONS}extern "C" __global__ void f{HEAD}    {body}\n}}'
    return derive(source, "f", where=Where("f.cu", "f", str), launched=Launched((64, 1, 1)), wrt=("x",), stage=True)


@pytest.fixture(scope="module")
def module() -> rawkern.RawModule:
    bodies = [body for body, _ in STAGED.values()]
    return rawkern.RawModule(
        BLOCK_REDUCTIONS
        + "\n".join(f'extern "C" __global__ void k{k}{HEAD} {body}\n}}' for k, body in enumerate(bodies))
    )


@pytest.mark.parametrize("n", [152, 150, 0])  # rows of multiples of 16 bytes, and others
@pytest.mark.parametrize("name", STAGED)
def test_a_row_in_shared_memory_gives_the_same_gradients(module, name, n, device) -> None:
    derived = module.get_function(f"k{[*STAGED].index(name)}").derive(block=64, wrt=("x",))
    staged, rows = derived.with_threads(96, True), 3
    assert staged is not None and staged.with_threads(96, True) is staged
    assert f"copy_row({STAGED[name][1]}_row" in staged.source and "copy_row" not in derived.source
    draw = torch.Generator().manual_seed(0)
    y = torch.randn(rows * (n + 8) + 3, generator=draw).to(device)
    x = torch.randn(rows * n + 1, generator=draw).to(device)
    args = x, x, torch.zeros(1, dtype=torch.int32, device=device), torch.zeros_like(y), n, n // 2 or n
    if name == "at a place in the array":
        args = (*args[:-1], n + 4)
    want = derived(rows, args, {"y": y})["x"]
    torch.testing.assert_close(staged(rows, args, {"y": y})["x"], want, rtol=2e-5, atol=2e-5)
    if device == "cpu":
        with rawkern.check():
            staged(rows, args, {"y": y})
        _check_bulk_copies(staged, rows, args, y, want)


def _check_bulk_copies(staged, rows, args, y, want) -> None:
    """The same with the code for GPUs that copy in bulk, which the CPU engine runs as well."""
    source, named = staged.source, staged.named(args)
    assert source.count("#if __CUDA_ARCH__ >= 900") == 2
    run = staged.launch(named, (rows, 1, 1))
    kernel = rawkern.RawKernel(source.replace("#if __CUDA_ARCH__ >= 900", "#if 1"), run.kernel.name)
    found = torch.zeros_like(args[0])
    with rawkern.check():
        kernel[rows, staged.block, run.shared_mem](*run.given(staged.parameters, named, {"x": found, "y": y}))
    torch.testing.assert_close(found, want, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", OTHERS)
def test_what_stays_in_global_memory(name) -> None:
    found = text_of(OTHERS[name])
    assert found.stageable is None and not found.staged and "copy_row" not in found.source
    assert text_of(NORM).staged
