"""Times on a GPU of the kernels of docs/tutorials; `benchmarks.page` makes the tables in these pages of them.

The kernels are those of the pages: their code is run on the CPU, on its small sizes, and what it defines is launched
here on large tensors.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from benchmarks.harness import RESULTS, Report, Table, compare, gpu_sample, plain, scaled

PAGES = RESULTS.parent.parent / "docs" / "tutorials"
Runs = dict[str, Callable[[], Any]]
FENCE = re.compile(r"^```(python|cuda|output)([^\n]*)\n(.*?)^```$", re.M | re.S)


def page(name: str, folder: Path) -> SimpleNamespace:
    """What the code of a page defines; its files are written to the folder."""
    names: dict[str, Any] = {"__name__": "page"}
    blocks = FENCE.findall((PAGES / f"{name}.md").read_text())
    with contextlib.chdir(folder), contextlib.redirect_stdout(io.StringIO()):
        for (language, file, code), (following, *_) in itertools.pairwise([*blocks, ("", "", "")]):
            if file.strip():
                Path(file.strip()).write_text(code)
            elif language == "python":
                # The output that is shown may be an error; tests/test_docs.py compares it.
                with contextlib.suppress(*[Exception] * (following == "output")):
                    exec(compile(code, name, "exec"), names)
    return SimpleNamespace(**names)


def vector_add(p: Any, x: Callable[..., torch.Tensor]) -> Runs:
    n = 1 << 26
    a, b, c = x(n), x(n), x(n)
    matrices, grid = [t.view(8192, 8192) for t in (a, b, c)], (8192 // 32, 8192 // 8)
    columns = p.two.get_function("by_columns")
    return {
        "torch.add(a, b, out=c)": lambda: torch.add(a, b, out=c),
        "add.forall(n), blocks of 256": lambda: p.add.forall(n)(a, b, c, n),
        "add, blocks of 32": lambda: p.add.forall(n, block=32)(a, b, c, n),
        "add, blocks of 1024": lambda: p.add.forall(n, block=1024)(a, b, c, n),
        "add_strided, 1056 blocks of 256": lambda: p.stride[1056, 256](a, b, c, n),
        "by_rows, 8192 x 8192": lambda: p.two.by_rows[grid, (32, 8)](*matrices, 8192, 8192),
        "by_columns, 8192 x 8192": lambda: columns[grid, (32, 8)](*matrices, 8192, 8192),
    }


def reduction(p: Any, x: Callable[..., torch.Tensor]) -> Runs:
    import rawkern

    values, names = x(1 << 22), ("atomics", "pairs", "halves")  # atomics takes 2 ns an element
    return {
        "x.sum()": values.sum,
        "rawkern.sum(x)": lambda: rawkern.sum(values),
        **{name: lambda name=name: p.total(name, values) for name in names},
        "shuffles, 1056 blocks": lambda: p.total("shuffles", values, grid=1056),
    }


def matmul(p: Any, x: Callable[..., torch.Tensor]) -> Runs:
    a, b = x(2048, 2048), x(2048, 2048)
    return {"A @ B": lambda: a @ b} | {name: lambda name=name: p.matmul(name, a, b) for name in p.TILES}


def tensor_cores(p: Any, x: Callable[..., torch.Tensor]) -> Runs:
    n = 4096
    a, b, c = x(n, n).half(), x(n, n).half(), x(n, n)
    single = p.fragments.get_function("one_tile<float>")
    return {
        "A @ B, float16 result": lambda: a @ b,
        "four_warps": lambda: p.tiles.four_warps[(n // 64, n // 64), 128](a, b, c, n, n, n),
        "one_tile": lambda: single[(n // 16, n // 16), 32](a, b, c, n, n, n),
    }


def softmax(p: Any, x: Callable[..., torch.Tensor]) -> Runs:
    import rawkern

    rows, runs = x(8192, 1024).requires_grad_(), {}
    g = x(8192, 1024)
    for name, f in {
        "torch.softmax": lambda t: torch.softmax(t, 1),
        "the kernels above": p.softmax,
        "rawkern.softmax": lambda t: rawkern.softmax(t, 1),
    }.items():
        y = f(rows)
        runs[f"{name}, forward"] = lambda f=f: f(rows)
        runs[f"{name}, backward"] = lambda y=y: torch.autograd.grad(y, rows, g, retain_graph=True)
    return runs


def attention(p: Any, x: Callable[..., torch.Tensor]) -> Runs:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    q, k, v = (x(16, 4096, 64) for _ in range(3))

    def torchs(backend: SDPBackend) -> torch.Tensor:
        with sdpa_kernel(backend):
            return torch.nn.functional.scaled_dot_product_attention(q[None], k[None], v[None])

    half = [t.half()[None] for t in (q, k, v)]

    def flash() -> torch.Tensor:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return torch.nn.functional.scaled_dot_product_attention(*half)

    return {
        "torch, the matrix written out": lambda: torchs(SDPBackend.MATH),
        "torch, memory-efficient": lambda: torchs(SDPBackend.EFFICIENT_ATTENTION),
        "torch, FlashAttention, float16": flash,
        "the kernel above": lambda: p.attention(q, k, v),
        "the kernel above, causal": lambda: p.attention(q, k, v, True),
    }


def wrong_to_line(p: Any, x: Callable[..., torch.Tensor]) -> Runs:
    import rawkern

    image, out = x(8192, 8192), x(8192, 8192)
    direct = rawkern.RawKernel(r"""
extern "C" __global__ void direct(const float* image, float* out, int rows, int columns) {
    int column = blockIdx.x * 16 + threadIdx.x, row = blockIdx.y * 16 + threadIdx.y;
    if (row >= rows || column >= columns) return;
    float sum = 0;
    for (int dy = -1; dy < 2; dy++)
        for (int dx = -1; dx < 2; dx++)
            sum += image[max(0, min(rows - 1, row + dy)) * columns + max(0, min(columns - 1, column + dx))];
    out[row * columns + column] = sum / 9;
}""")
    at = ((512, 512), (16, 16))
    return {
        "blur, 8192 x 8192": lambda: p.kernel[at](image, out, 8192, 8192),
        "without a tile": lambda: direct[at](image, out, 8192, 8192),
    }


def tuned(p: Any, x: Callable[..., torch.Tensor]) -> Runs:
    import rawkern

    rows = x(16384, 4096)
    out = x(16384)

    def run(config: dict[str, int]) -> Callable[[], Any]:
        kernel = p.tuned.kernel(config)
        return lambda: kernel[16384, config["BLOCK"]](rows, out, 4096)

    runs: Runs = {"x.sum(1)": lambda: rows.sum(1), "rawkern.sum(x, 1)": lambda: rawkern.sum(rows, 1)}
    for config in p.tuned.configs:
        runs[" ".join(f"{key}={value}" for key, value in config.items())] = run(config)
    return runs


TUTORIALS = {
    "vector-add": vector_add,
    "reduction": reduction,
    "matmul": matmul,
    "tensor-cores": tensor_cores,
    "softmax": softmax,
    "attention": attention,
    "wrong-to-line": wrong_to_line,
    "tuned": tuned,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=TUTORIALS, default=list(TUTORIALS), help="then nothing is kept")
    chosen = parser.parse_args()
    report = Report("tutorials-gpu", "Kernels of the tutorials on a GPU")
    report.notes.append("Seconds of GPU time of a call, median of 15 rounds; contenders take turns.")
    with tempfile.TemporaryDirectory() as folder:
        for name in chosen.only:
            torch.manual_seed(0)
            runs = TUTORIALS[name](page(name, Path(folder)), lambda *shape: torch.randn(*shape, device="cuda"))
            timings = compare(runs, timer=gpu_sample, most_calls=200)
            rows = [(run, t.error or scaled(t.median)) for run, t in timings.items()]
            report.add(Table(name, ("", "GPU time"), rows), plain(timings))
    if chosen.only == list(TUTORIALS):
        report.write()


if __name__ == "__main__":
    main()
