"""The GEMM of examples/hopper_gemm.py beside torch.matmul, in bfloat16: rates on a Hopper GPU, results compared.

    python -m benchmarks.hopper_gemm [--sizes 8192 4096 ...] [--config STAGES=4 BAND=8]

Prints the rate of each and their ratio, and keeps them in ``results/hopper_gemm.*`` if the sizes are the usual ones.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

import torch

import rawkern
from benchmarks.harness import Report, Table, compare, gpu_sample

SIZES = (8192, 4096, 2048)


@cache
def example() -> ModuleType:
    """The example as a module."""
    path = Path(__file__).resolve().parent.parent / "examples" / "hopper_gemm.py"
    spec = importlib.util.spec_from_file_location("hopper_gemm", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["hopper_gemm"] = module
    spec.loader.exec_module(module)
    return module


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="*", default=SIZES)
    parser.add_argument("--config", nargs="*", help="instead of the tuned one")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    gemm = example().tuned
    if options.config:
        given = {name: int(value) for name, value in (pair.split("=") for pair in options.config)}
        gemm = rawkern.autotune(example().kernel, [given])
    report = Report("hopper_gemm", "A GEMM for Hopper beside torch.matmul")
    table = Table(
        "bfloat16, m = n = k", ("size", "torch.matmul, TFLOP/s", "rawkern, TFLOP/s", "ratio", "error", "configuration"),
        note="Medians of GPU time. Ratio: rawkern's rate by torch's. Error: the largest, in units of that of the sum's "
        "rounding to bfloat16; torch's beside it.",
    )  # fmt: skip
    numbers = {}
    for size in options.sizes:
        a, b = (torch.randn(size, size, device="cuda").bfloat16() for _ in range(2))
        errors = checked(a, b, example().matmul(a, b, gemm))
        times = compare(
            {"torch": lambda a=a, b=b: a @ b.T, "rawkern": lambda a=a, b=b: example().matmul(a, b, gemm)},
            baseline="torch", rounds=options.rounds, seconds=0.05, most_calls=200, timer=gpu_sample,
        )  # fmt: skip
        rates = {name: 2 * size**3 / time.median / 1e12 for name, time in times.items()}
        ratio = 1 / times["rawkern"].ratio if times["rawkern"].ratio else float("nan")
        config = "given" if options.config else str(gemm.tunings[-1].config)
        numbers[size] = rates | {"ratio": ratio, "errors": errors}
        table.rows.append((
            str(size), f"{rates['torch']:.0f}", f"{rates['rawkern']:.0f}", f"{ratio:.2f}",
            " / ".join(f"{error:.2f}" for error in errors), config,
        ))  # fmt: skip
    report.add(table, numbers)
    if not options.config and tuple(options.sizes) == SIZES:
        report.write()


def checked(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> tuple[float, float]:
    """Errors of a result and of torch's, against sums in float32; raises if the former is wrong.

    In half units in the last place of bfloat16, plus what sums in float32 may differ by.
    """
    precise = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    exact = a.float() @ b.float().T
    torch.backends.cuda.matmul.allow_tf32 = precise
    unit = exact.abs() * 2.0**-8 + 2.0**-18 * a.shape[1]
    ours, theirs = (((x.float() - exact).abs() / unit).max().item() for x in (c, a @ b.T))
    if not ours <= max(1.1, 1.1 * theirs):
        raise AssertionError(f"the largest error is {ours:.2f} units, torch's {theirs:.2f}")
    return ours, theirs


if __name__ == "__main__":
    main()
