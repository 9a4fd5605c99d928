"""Operators beside torch's, torch.compile's and Liger-Kernel's, forward and backward, with the limit that memory sets.

On a GPU elementwise operators have 2^26 elements, on the CPU 2^22. Operators over rows (`benchmarks.rows`) are measured
on a GPU only; `benchmarks.cpu_rows` has their CPU side.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import rawkern
from benchmarks import rows
from benchmarks.harness import Report, Table, Timing, failed
from benchmarks.passes import Case, bandwidth, measured, microseconds, row, settings, timed
from examples.nbody import G, planets, torch_forces

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
N = 1 << (26 if CUDA else 22)
WIDTH = 4096  # of a bias, and of the matrix that is reduced
LENGTH, HEAD = 4096, 128  # positions and size of a head that is rotated
TENSORS = 16  # parameters of AdamW, of N elements together
BODIES = 10_000 if CUDA else 2_000
CONTENDERS = ("torch", "torch.compile", *(["Liger"] if CUDA else []), "rawkern")

bias_add = rawkern.elementwise("T x, T b", "T y", "y = x + b", "rawkern_benchmark::bias_add")
norm = rawkern.reduction("T x", "T y", "x * x", "a + b", "y = sqrt(a)", "0", "rawkern_benchmark::norm")

#: torch's, rawkern's, the number of inputs, and elements that the backward moves for each element of the result.
ELEMENTWISE: dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor], int, int]] = {
    "silu": (lambda x: F.silu(x), rawkern.silu, 1, 3),
    "gelu": (lambda x: F.gelu(x), rawkern.gelu, 1, 3),
    "gelu, tanh": (lambda x: F.gelu(x, approximate="tanh"), lambda x: rawkern.gelu(x, "tanh"), 1, 3),
    "swiglu": (lambda a, b: F.silu(a) * b, rawkern.swiglu, 2, 5),
    "geglu": (lambda a, b: F.gelu(a) * b, rawkern.geglu, 2, 5),
    "add_sin_cos": (lambda a, b: (a + b) + torch.sin(a) * torch.cos(b), rawkern.add_sin_cos, 2, 5),
    "dropout": (lambda x: F.dropout(x, 0.5), lambda x: rawkern.dropout(x, 0.5), 1, 2),
    "square": (lambda x: x.square(), rawkern.square, 1, 3),
    "mul": (lambda a, b: a * b, rawkern.mul, 2, 5),
}


def numbers(dtype: torch.dtype, *shape: int) -> Tensor:
    return torch.randn(*shape, device=DEVICE, dtype=dtype).requires_grad_()


def elementwise(name: str) -> Callable[[torch.dtype], Case]:
    theirs, ours, inputs, back = ELEMENTWISE[name]

    def make(dtype: torch.dtype) -> Case:
        tensors = tuple(numbers(dtype, N) for _ in range(inputs))
        contenders = {"torch": theirs, "rawkern": ours}
        return Case(contenders, tensors, (inputs + 1) * N, back * N, random=name == "dropout")

    return make


def broadcast(dtype: torch.dtype) -> Case:
    contenders = {"torch": lambda x, b: x + b, "rawkern": bias_add}
    return Case(contenders, (numbers(dtype, N // WIDTH, WIDTH), numbers(dtype, WIDTH)), 2 * N, N)


def rotary(dtype: torch.dtype) -> Case:
    angle = torch.rand(LENGTH, HEAD // 2, device=DEVICE) * 6.3

    def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        a, b = x.chunk(2, dim=-1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)

    x = numbers(dtype, N // (LENGTH * HEAD), LENGTH, HEAD)
    contenders = {"torch": rotated, "rawkern": rawkern.rotary_embedding}
    return Case(contenders, (x, angle.cos().to(dtype), angle.sin().to(dtype)), 2 * N, 2 * N)


def reduced(axis: int | None) -> Callable[[torch.dtype], Case]:
    def make(dtype: torch.dtype) -> Case:
        contenders = {
            "torch": lambda x: torch.linalg.vector_norm(x, dim=axis),
            "rawkern": lambda x: norm(x, axis=axis),
        }
        return Case(contenders, (numbers(dtype, N // WIDTH, WIDTH),), N, 2 * N)

    return make


CASES: dict[str, Callable[[torch.dtype], Case]] = {
    **{name: elementwise(name) for name in ELEMENTWISE},
    "x + bias by rawkern.elementwise": broadcast,
    "rotary_embedding": rotary,
    "norm by rawkern.reduction, axis 0": reduced(0),
    "norm by rawkern.reduction, axis 1": reduced(1),
    "norm by rawkern.reduction, all": reduced(None),
    **(rows.CASES if CUDA else {}),
}


def adamw(dtype: torch.dtype, rounds: int) -> dict[str, Timing]:
    """One step of AdamW over tensors of N elements together; states have the parameters' dtype."""

    def tensors() -> list[Tensor]:
        return [torch.zeros(N // TENSORS, device=DEVICE, dtype=dtype) for _ in range(TENSORS)]

    grads = [torch.randn_like(t) for t in tensors()]

    def optimizer(**options: Any) -> torch.optim.AdamW:
        params = [torch.nn.Parameter(t) for t in tensors()]
        for p, g in zip(params, grads, strict=True):
            p.grad = g
        return torch.optim.AdamW(params, **options)

    ours = tensors(), grads, tensors(), tensors()
    contenders: dict[str, Callable[[], Any]] = {
        "torch": optimizer(fused=True).step,
        "rawkern": lambda: rawkern.adamw_(*ours, step=3),
    }
    errors = {}
    compiled = torch.compile(optimizer(foreach=True, capturable=CUDA).step)
    try:
        compiled()
        contenders["torch.compile"] = compiled
    except Exception as error:
        errors["torch.compile"] = failed(error)
    return timed(contenders, DEVICE, rounds) | errors


def nbody(rounds: int) -> tuple[dict[str, Timing], ...]:
    positions, masses = (t.requires_grad_() for t in planets(BODIES, DEVICE))
    contenders = {"torch": torch_forces, "rawkern": lambda p, m: rawkern.nbody_forces(p, m, G=G)}
    return measured(Case(contenders, (positions, masses), 0, 0), DEVICE, rounds)


def nbody_table(times: tuple[dict[str, Timing], ...]) -> Table:
    contenders = tuple(c for c in CONTENDERS if c in times[0])
    cells = row("", times, [0.0] * len(times), contenders)[1 : 1 + len(contenders)]
    compiled, own = times[0]["torch.compile"], times[0]["rawkern"].median
    table = Table(f"n-body, {BODIES:,} bodies, float32", (*contenders, "torch.compile / rawkern, forward"))
    table.rows.append((*cells, "-" if compiled.error else f"{compiled.median / own:.1f}"))
    table.note = "Distances, powers and sums, bound by instructions, not by memory."
    if CUDA:
        table.note += f" Goals of the forward: 56 us, and an eighth of torch.compile's. It took {microseconds(own)} us."
    return table


def operator_table(dtype: torch.dtype, wanted: list[str], rate: float, rounds: int) -> tuple[Table, dict[str, Any]]:
    """Measure the operators in one dtype; each is shown at once. The numbers: forward, backward and their limits."""
    table, found = Table(str(dtype).removeprefix("torch."), ("operator", *CONTENDERS, "limit", "rawkern / limit")), {}
    for name in (name for name in (*CASES, "adamw_") if name in wanted):
        if name == "adamw_":
            times, elements = (adamw(dtype, rounds),), [7 * N]
        else:
            case = CASES[name](dtype)
            times, elements = measured(case, DEVICE, rounds), [case.forward, case.backward]
        limits = [many * dtype.itemsize / rate for many in elements]
        table.rows.append(tuple(row(name, times, limits, CONTENDERS)))
        found[name] = dict(zip(("forward", "backward"), times, strict=False)) | {"limits": limits}
        print(*table.rows[-1], sep=" | ", flush=True)
    return table, found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", nargs="*", choices=[*CASES, "adamw_", "nbody"], help="results are not kept")
    options = parser.parse_args()
    wanted = options.only or [*CASES, "adamw_", "nbody"]
    settings()
    report = Report(f"operators-{'gpu' if CUDA else 'cpu'}", "Operators beside torch's")
    rate = bandwidth(DEVICE)
    report.data["bytes per second of a copy"] = rate
    where = "GPU time" if CUDA else "one thread's time on the CPU"
    report.notes.append(
        f"Microseconds of {where}, forward / backward, medians; {N:,} elements. The limit is the time for reading each "
        "input and writing each result once, at the rate of a large copy in the same run, "
        f"{rate / 1e9:,.0f} GB/s. Matrices have {WIDTH} columns. The gradient of x in x + bias is that of the result, "
        "so the limit is that of reading it once for the bias. torch's AdamW is the fused one, "
        "torch.compile has the foreach one."
    )
    if CUDA:
        report.notes.append(
            f"Operators over rows: {rows.ROWS} x {rows.COLUMNS}, cross_entropy {rows.TOKENS} x {rows.CLASSES}, "
            f"embedding {rows.LOOKUPS} rows of {rows.WIDTH} out of {rows.ENTRIES}. The backward of torch's own sum is "
            "a view, so it has no limit here; rawkern's and that of torch.compile write it out. Liger-Kernel's cross "
            "entropy writes the gradient over its input in the forward, so there is no time of it to compare."
        )
    for dtype in (torch.bfloat16, torch.float32):
        table, found = operator_table(dtype, wanted, rate, options.rounds)
        if table.rows:
            report.add(table, found)
    if "nbody" in wanted:
        times = nbody(options.rounds)
        report.add(nbody_table(times), dict(zip(("forward", "backward"), times, strict=True)))
    if not options.only:
        report.write()


if __name__ == "__main__":
    main()
