"""The kernels that docs/profiling.md makes fast, step by step, on a GPU: beside torch and a copy."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import rawkern
from benchmarks.harness import Report, Table, Timing, compare, gpu_sample, scaled

PAGE = Path(__file__).resolve().parents[1] / "docs" / "profiling.md"
N = 8192  # rows and columns of the matrix, and a row's length of what is added up


def page() -> dict[str, Any]:
    """What the blocks of the page define, up to its reduction."""
    names: dict[str, Any] = {}
    for block in re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.M | re.S):
        exec(block, names)
        if "module" in names:
            return names
    raise LookupError(f"{PAGE.name} has no reduction")


def right(run: Callable[[], Any], found: torch.Tensor, expected: torch.Tensor, error: float = 0.0) -> Callable[[], Any]:
    """A contender, once its result has been seen to be right."""
    found.zero_()
    run()
    torch.testing.assert_close(found, expected, rtol=0, atol=error)
    return run


def transposes(names: dict[str, Any]) -> dict[str, Callable[[], Any]]:
    x, y = torch.randn(N, N, device="cuda"), torch.empty(N, N, device="cuda")
    grid, block = (N // 32, N // 32), (32, 8)
    steps = {"naive": names["transpose"]}
    steps |= {
        f"tiles of 32 x {pitch} floats": rawkern.RawKernel(names["TILED"].replace("PITCH", str(pitch)))
        for pitch in (32, 33)
    }
    made = {name: right(lambda k=k: k[grid, block](x, y, N), y, x.T) for name, k in steps.items()}
    return {**made, "torch": right(lambda: y.copy_(x.T), y, x.T), "a copy": lambda: y.copy_(x)}


def reductions(names: dict[str, Any]) -> dict[str, Callable[[], Any]]:
    x, out = torch.randn(N * N, device="cuda"), torch.zeros(1, device="cuda")
    kernels, total = names["module"].get_function, x.double().sum().float()[None]
    runs: dict[str, Callable[[], Any]] = {
        "naive": lambda: kernels("naive")[N * N // 256, 256](x, out, N * N),
        "better": lambda: kernels("better")[1056, 256](x, out, N * N),
        "wide": lambda: kernels("wide")[1056, 256](x.view(-1, 4), out, N * N // 4),
    }
    made = {name: right(run, out, total, 20.0) for name, run in runs.items() if name != "naive"}
    return {"naive": runs["naive"], **made, "torch": lambda: x.sum()}  # naive: floats added one by one, far from exact


def table(title: str, found: dict[str, Timing], moved: int) -> Table:
    made = Table(title, ("", "time", "GB/s", "times as fast as naive"))
    for name, timing in found.items():
        rate = f"{moved / timing.median / 1e9:,.0f}"
        made.rows.append((name, scaled(timing.median), rate, f"{1 / timing.ratio:.1f}" if timing.ratio else ""))
    return made


def main() -> None:
    if not torch.cuda.is_available():
        raise SystemExit("benchmarks.steps needs a GPU")
    names, report = page(), Report("steps-gpu", "Kernels made fast by their profiles")
    report.notes.append("Medians of the GPU's own time; contenders take turns.")
    for title, contenders, moved in (
        (f"Transpose of {N} x {N} float32", transposes(names), 8 * N * N),
        (f"Sum of {N * N:,} float32", reductions(names), 4 * N * N),
    ):
        found = compare(contenders, baseline="naive", rounds=7, most_calls=20, timer=gpu_sample)
        report.add(table(title, found, moved), found)
    report.write()


if __name__ == "__main__":
    main()
