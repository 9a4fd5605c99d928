"""Square without a GPU: rawkern's CPU engine beside numba-cuda's simulator and Triton's interpreter.

Each runs in processes of its own. A rival that is not installed is left out, and the table says so; `--python` names
another Python that has the rivals.
"""

from __future__ import annotations

import argparse
import sys

from benchmarks import sources
from benchmarks.harness import Report, Table, Timing, failed, fresh, plain, python_environment, scaled, summary

# Each program makes `run` and `check` for n elements; the ending times `run` and prints the seconds of each call.
ENDING = """
import json, time
run(); check()
times = []
while len(times) < 3 or (sum(times) < 1.0 and len(times) < 25):
    start = time.perf_counter()
    run()
    times.append(time.perf_counter() - start)
print(json.dumps([times, VERSION]))
"""

RAWKERN = """
import torch, rawkern
torch.set_num_threads(1)
x = torch.randn(n)
y = torch.full_like(x, float("nan"))
launch = rawkern.RawKernel({source!r}).forall(n)
def run(): launch(n, x, y)
def check(): assert torch.equal(y, x * x)
VERSION = rawkern.__version__
"""

TORCH = """
import torch
torch.set_num_threads(1)
x = torch.randn(n)
y = torch.empty_like(x)
def run(): torch.mul(x, x, out=y)
def check(): assert torch.equal(y, x * x)
VERSION = torch.__version__
"""

NUMBA = """
import numpy as np
from numba import cuda
import numba_cuda
x = np.random.randn(n).astype(np.float32)
y = np.full_like(x, np.nan)
@cuda.jit
def square(x, y):
    i = cuda.grid(1)
    if i < x.size:
        y[i] = x[i] * x[i]
def run(): square[(n + 255) // 256, 256](x, y)
def check(): assert np.array_equal(y, x * x)
VERSION = numba_cuda.__version__
"""

TRITON = """
import torch, triton
from benchmarks.triton_kernels import square
torch.set_num_threads(1)
x = torch.randn(n)
y = torch.full_like(x, float("nan"))
def run(): square[((n + 1023) // 1024,)](x, y, n, BLOCK=1024)
def check(): assert torch.equal(y, x * x)
VERSION = triton.__version__
"""

RAWKERN = RAWKERN.format(source=sources.SQUARE)
# (name, program, environment, elements, whether it is a rival with a Python of its own)
CONTENDERS = (
    ("rawkern's CPU engine", RAWKERN, {}, (1 << 12, 1 << 16, 1 << 20, 1 << 24), False),
    ("Triton's interpreter, blocks of 1024", TRITON, {"TRITON_INTERPRET": "1"}, (1 << 12, 1 << 16, 1 << 20), True),
    ("numba-cuda's simulator, blocks of 256", NUMBA, {"NUMBA_ENABLE_CUDASIM": "1"}, (1 << 12,), True),
    ("torch.mul(x, x, out=y)", TORCH, {}, (1 << 12, 1 << 16, 1 << 20, 1 << 24), False),
)


def timed(rounds: int, rivals: str) -> tuple[dict[str, dict[int, Timing]], dict[str, str]]:
    """Seconds per call by contender and number of elements; and versions."""
    times: dict[str, dict[int, list[float]]] = {}
    errors: dict[str, str] = {}
    versions: dict[str, str] = {}
    for _ in range(rounds):
        for name, program, settings, sizes, rival in CONTENDERS:
            for n in sizes:
                if name in errors:
                    continue
                try:
                    environment = python_environment() | settings
                    python = rivals if rival else sys.executable
                    taken, versions[name] = fresh(f"n = {n}\n" + program + ENDING, environment, python=python)
                    times.setdefault(name, {}).setdefault(n, []).append(summary(taken).median)
                except Exception as error:
                    text = str(error)
                    missing = text.startswith(("ModuleNotFoundError", "ImportError"))
                    errors[name] = f"not installed, left out ({text})" if missing else failed(error).error
    found = {name: {n: summary(values) for n, values in by_size.items()} for name, by_size in times.items()}
    for name, error in errors.items():
        found[name] = {0: failed(error)}
    return found, versions


def figures(value: float) -> str:
    """Three figures, without an exponent."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="processes of each contender, in turns")
    parser.add_argument("--python", default=sys.executable, help="a Python that has triton, torch and numba-cuda")
    options = parser.parse_args()
    report = Report("simulators", "Square without a GPU")
    report.settle()
    found, versions = timed(options.rounds, options.python)
    report.notes.append(
        "y = x * x on float32, one thread each; compilation and first call left out. Medians over processes of the "
        "median in each. Both rivals interpret their kernels in Python, to help find errors."
    )
    report.notes.append("Versions: " + "; ".join(f"{name}: {version}" for name, version in versions.items()))
    columns = (
        "",
        "elements",
        "ns per element",
        "median of a call",
        "times rawkern's",
    )
    table = Table("ns per element", columns)
    own = found["rawkern's CPU engine"]
    for name, *_ in CONTENDERS:
        for n, timing in found.get(name, {}).items():
            if timing.error:
                table.rows.append((name, "", timing.error, "", ""))
                continue
            each = timing.median / n * 1e9
            per = timing.median / own[n].median if n in own else 0.0
            row = (name, f"{n:,}", figures(each), scaled(timing.median), figures(per))
            table.rows.append(row)
    report.add(table, plain(found))
    report.write()


if __name__ == "__main__":
    main()
