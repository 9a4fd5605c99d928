"""Largest errors of PTX's approximate instructions, beside the bounds that the PTX ISA manual states."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

import rawkern
from benchmarks.harness import Report, Table

COUNT = 1 << 16  # inputs of each instruction
TINY, HUGE = -126.0, 127.9  # exponents of normal f32 numbers


def between(low: float, high: float) -> Callable[[np.random.Generator], np.ndarray]:
    """Inputs spread evenly, and some close to zero where the interval holds it."""

    def draw(rng: np.random.Generator) -> np.ndarray:
        x = rng.uniform(low, high, COUNT)
        if low <= 0 <= high:
            x[::8] *= 2.0 ** rng.uniform(-30, 0, len(x[::8]))
        return x

    return draw


def powers(low: float, high: float, signed: bool = False) -> Callable[[np.random.Generator], np.ndarray]:
    """Inputs of all magnitudes from 2^low to 2^high."""

    def draw(rng: np.random.Generator) -> np.ndarray:
        x = 2.0 ** rng.uniform(low, high, COUNT)
        return np.where(rng.random(COUNT) < 0.5, -x, x) if signed else x

    return draw


@dataclass(frozen=True)
class Function:
    """An instruction on an interval; `bound` is the manual's, for the relative or absolute error."""

    instruction: str
    interval: str
    draw: Callable[[np.random.Generator], np.ndarray]
    exact: Callable[..., np.ndarray]
    bound: float
    relative: bool = True
    operands: int = 1

    @property
    def double(self) -> bool:
        return self.instruction.endswith("f64")


def reciprocal_root(x: np.ndarray) -> np.ndarray:
    return 1 / np.sqrt(x)


PI = float(np.pi)
FUNCTIONS = (
    Function("ex2.approx.f32", "[-126, 128)", between(-126, 127.99), np.exp2, 2**-22),
    Function("ex2.approx.ftz.f32", "[-126, 128)", between(-126, 127.99), np.exp2, 2**-22),
    Function("lg2.approx.f32", "(1/2, 2)", between(0.5001, 1.9999), np.log2, 2**-22, relative=False),
    Function("lg2.approx.f32", "[2, 2^128)", powers(1, HUGE), np.log2, 2**-22),
    Function("lg2.approx.f32", "(2^-126, 1/2]", powers(TINY, -1), np.log2, 2**-22),
    Function("sin.approx.f32", "[-2 pi, 2 pi]", between(-2 * PI, 2 * PI), np.sin, 2**-20.5, relative=False),
    Function("cos.approx.f32", "[-2 pi, 2 pi]", between(-2 * PI, 2 * PI), np.cos, 2**-20.5, relative=False),
    Function("sin.approx.f32", "[-100 pi, 100 pi]", between(-100 * PI, 100 * PI), np.sin, 2**-14.7, relative=False),
    Function("cos.approx.f32", "[-100 pi, 100 pi]", between(-100 * PI, 100 * PI), np.cos, 2**-14.7, relative=False),
    Function("tanh.approx.f32", "[-12, 12]", between(-12, 12), np.tanh, 2**-10.987),
    Function("rcp.approx.f32", "normal results", powers(-125.5, 125.5, True), np.reciprocal, 2**-23),
    Function("rcp.approx.ftz.f32", "normal results", powers(-125.5, 125.5, True), np.reciprocal, 2**-23),
    Function("sqrt.approx.f32", "normal", powers(TINY, HUGE), np.sqrt, 2**-23),
    Function("rsqrt.approx.f32", "normal", powers(TINY, HUGE), reciprocal_root, 2**-22.9),
    Function("div.approx.f32", "2^-62 to 2^62", powers(-62, 62, True), np.divide, 2**-22, operands=2),
    Function("div.full.f32", "2^-62 to 2^62", powers(-62, 62, True), np.divide, 2**-22, operands=2),
    Function("rcp.approx.ftz.f64", "2^-1000 to 2^1000", powers(-1000, 1000, True), np.reciprocal, 2**-20),
    Function("rsqrt.approx.ftz.f64", "2^-1000 to 2^1000", powers(-1000, 1000), reciprocal_root, 2**-20),
    Function("rsqrt.approx.f64", "2^-1000 to 2^1000", powers(-1000, 1000), reciprocal_root, 2**-51),
)


@dataclass(frozen=True)
class Worst:
    """The largest error of an instruction, and the input that shows it."""

    error: float
    at: tuple[float, ...]


def source() -> str:
    """A kernel that runs every instruction on its own inputs."""
    lines = []
    for k, f in enumerate(FUNCTIONS):
        kind = ("d", "double", "p", "q") if f.double else ("f", "float", "x", "y")
        letter, ctype, inputs, result = kind
        operands = ", ".join(f"%{j + 1}" for j in range(f.operands))
        values = ", ".join(f'"{letter}"({inputs}[({k} * 2 + {j}) * n + i])' for j in range(f.operands))
        lines.append(f'{{ {ctype} r; asm("{f.instruction} %0, {operands};" : "={letter}"(r) : {values});')
        lines.append(f"  {result}[{k} * n + i] = r; }}")
    body = "\n        ".join(lines)
    return f"""extern "C" __global__ void approximate(int n, const float* x, const double* p, float* y, double* q) {{
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i >= n) return;
        {body}
    }}"""


def measure(device: str = "cpu") -> list[Worst]:
    """The largest error of each of `FUNCTIONS` on a device, against 80-bit arithmetic where the host has it."""
    rng = np.random.default_rng(0)
    inputs = np.array([[f.draw(rng) for _ in range(2)] for f in FUNCTIONS])
    with np.errstate(over="ignore"):  # of inputs that only instructions on f64 get
        single, double = torch.from_numpy(inputs.astype(np.float32)).to(device), torch.from_numpy(inputs).to(device)
    y = torch.full((len(FUNCTIONS), COUNT), float("nan"), device=device)
    q = y.double()
    rawkern.RawKernel(source()).forall(COUNT)(COUNT, single.view(-1), double.view(-1), y.view(-1), q.view(-1))
    found = []
    for k, f in enumerate(FUNCTIONS):
        x = (double if f.double else single)[k, : f.operands].cpu().numpy()
        got = (q if f.double else y)[k].cpu().numpy().astype(np.longdouble)
        want = f.exact(*x.astype(np.longdouble))
        error = abs(got - want) / (abs(want) if f.relative else 1)
        worst = int(np.where(np.isnan(error), np.inf, error).argmax())
        found.append(Worst(float(error[worst]), tuple(map(float, x[:, worst]))))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", help="another one's results are shown and not kept")
    device = parser.parse_args().device
    report = Report("accuracy", "Errors of PTX's approximate instructions")
    report.notes.append(
        f"The largest error over {COUNT:,} inputs of each interval against 80-bit arithmetic, and the largest that the "
        "PTX ISA manual allows. All other arithmetic instructions are exact or rounded as PTX says, bit for bit."
    )
    table = Table(
        "CPU engine" if device == "cpu" else device, ("instruction", "inputs", "error", "bound", "largest", "at")
    )
    numbers = {}
    for f, worst in zip(FUNCTIONS, measure(device), strict=True):
        kind, at = "relative" if f.relative else "absolute", ", ".join(f"{v:.9g}" for v in worst.at)
        table.rows.append(
            (f.instruction, f.interval, kind, *(f"2^{np.log2(v):.1f}" for v in (f.bound, worst.error)), at)
        )
        numbers[f"{f.instruction} {f.interval}"] = {"bound": f.bound, "error": worst.error, "at": list(worst.at)}
    report.add(table, numbers)
    if device == "cpu":
        report.write()


if __name__ == "__main__":
    main()
