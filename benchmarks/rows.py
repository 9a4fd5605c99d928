"""Operators over rows on a GPU, forward and backward, beside torch's, torch.compile's and Liger-Kernel's."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

import rawkern
from benchmarks.harness import Report, Table
from benchmarks.passes import Case, bandwidth, measured, row, settings

ROWS, COLUMNS = 8192, 4096
TOKENS, CLASSES = 4096, 32768
CONTENDERS = ("torch", "torch.compile", "Liger", "rawkern")


def cases(dtype: torch.dtype) -> dict[str, Callable[[], Case]]:
    def numbers(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device="cuda", dtype=dtype, requires_grad=True)

    whole = ROWS * COLUMNS

    def softmax() -> Case:
        contenders = {"torch": lambda x: F.softmax(x, -1), "rawkern": lambda x: rawkern.softmax(x, -1)}
        return Case(contenders, (numbers(ROWS, COLUMNS),), 2 * whole, 3 * whole)

    def layer_norm() -> Case:
        contenders = {
            "torch": lambda x, w, b: F.layer_norm(x, (COLUMNS,), w, b),
            "rawkern": lambda x, w, b: rawkern.layer_norm(x, (COLUMNS,), w, b),
            "Liger": lambda x, w, b: liger("layer_norm", "LigerLayerNormFunction")(x, w, b, 1e-5),
        }
        inputs = numbers(ROWS, COLUMNS), numbers(COLUMNS), numbers(COLUMNS)
        return Case(contenders, inputs, 2 * whole, 3 * whole)

    def rms_norm() -> Case:
        contenders = {
            "torch": lambda x, w: F.rms_norm(x, (COLUMNS,), w, 1e-5),
            "rawkern": lambda x, w: rawkern.rms_norm(x, (COLUMNS,), w, 1e-5),
            "Liger": lambda x, w: liger("rms_norm", "LigerRMSNormFunction")(x, w, 1e-5, 0.0, "llama", False),
        }
        return Case(contenders, (numbers(ROWS, COLUMNS), numbers(COLUMNS)), 2 * whole, 3 * whole)

    def add_rms_norm() -> Case:
        def composed(x: torch.Tensor, r: torch.Tensor, w: torch.Tensor) -> Any:
            s = x + r
            return F.rms_norm(s, (COLUMNS,), w, 1e-5), s

        contenders = {"torch": composed, "rawkern": lambda x, r, w: rawkern.add_rms_norm(x, r, (COLUMNS,), w, 1e-5)}
        inputs = numbers(ROWS, COLUMNS), numbers(ROWS, COLUMNS), numbers(COLUMNS)
        return Case(contenders, inputs, 4 * whole, 4 * whole)

    def cross_entropy() -> Case:
        target = torch.randint(0, CLASSES, (TOKENS,), device="cuda")
        contenders = {
            "torch": lambda x: F.cross_entropy(x, target),
            "rawkern": lambda x: rawkern.cross_entropy(x, target),
        }
        return Case(contenders, (numbers(TOKENS, CLASSES),), TOKENS * CLASSES, 2 * TOKENS * CLASSES)

    def total(dim: int | None) -> Callable[[], Case]:
        contenders = {"torch": lambda x: torch.sum(x, dim), "rawkern": lambda x: rawkern.sum(x, dim)}
        return lambda: Case(contenders, (numbers(ROWS, COLUMNS),), whole, 0)

    def sign() -> Case:
        contenders = {
            "torch": lambda x: torch.where(x.sum() > 0, 2 * x, -2 * x),
            "rawkern": rawkern.scale_by_sign_of_sum,
        }
        return Case(contenders, (numbers(ROWS, COLUMNS),), 3 * whole, 2 * whole)

    def embedding() -> Case:
        index = torch.randint(0, 32000, (16384,), device="cuda")
        contenders = {
            "torch": lambda table: F.embedding(index, table),
            "rawkern": lambda table: rawkern.embedding(index, table),
        }
        return Case(contenders, (numbers(32000, 1024),), 2 * 16384 * 1024, (16384 + 32000) * 1024)

    return {
        "softmax": softmax,
        "layer_norm": layer_norm,
        "rms_norm": rms_norm,
        "residual + rms_norm": add_rms_norm,
        "cross_entropy": cross_entropy,
        "sum of rows": total(1),
        "sum of columns": total(0),
        "sum of all": total(None),
        "scale_by_sign_of_sum": sign,
        "embedding": embedding,
    }


def liger(module: str, name: str) -> Callable[..., Any]:
    from importlib import import_module

    return getattr(import_module(f"liger_kernel.ops.{module}"), name).apply


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", nargs="*", help="operators to measure, by name")
    options = parser.parse_args()
    settings()
    report = Report("rows-gpu", "Operators over rows on the GPU")
    rate = bandwidth("cuda")
    report.notes.append(
        f"Microseconds of GPU time, forward / backward, medians; the sizes are {ROWS} x {COLUMNS}, for cross_entropy "
        f"{TOKENS} x {CLASSES}, for embedding 16384 rows of 1024 out of 32000. The limit is the time for reading each "
        f"input and writing each result once, at the rate of a large copy in the same run, {rate / 1e9:.0f} GB/s. The "
        "backward of torch's own sum is a view, so it has no limit here; ours and that of torch.compile write it out."
    )
    for dtype in (torch.bfloat16, torch.float32):
        table = Table(str(dtype), ("operator", *CONTENDERS, "limit", "rawkern / limit"))
        numbers = {}
        for name, make in cases(dtype).items():
            if options.only and name not in options.only:
                continue
            case = make()
            numbers[name] = measured(case, "cuda", options.rounds)
            limits = [elements * dtype.itemsize / rate for elements in (case.forward, case.backward)]
            table.rows.append(tuple(row(name, numbers[name], limits, CONTENDERS)))
            print(*table.rows[-1], sep=" | ", flush=True)
        report.add(table, numbers)
    report.write()


if __name__ == "__main__":
    main()
