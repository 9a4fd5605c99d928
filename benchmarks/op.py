"""What an operator costs the host, over the launch in it: rawkern.op, a hand-written autograd.Function, custom_op.

All of them run the same two kernels, on tensors so small that little else is timed.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import rawkern
from benchmarks.harness import Report, Table, Timing, compare, sample, scaled, timing_table

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
N = 16

module = rawkern.RawModule(r"""
extern "C" __global__ void multiply(const float* a, const float* b, float* out, long long n) {
    long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < n) out[i] = a[i] * b[i];
}
extern "C" __global__ void multiply_backward(
    const float* g, const float* a, const float* b, float* grad_a, float* grad_b, long long n) {
    long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < n) { grad_a[i] = g[i] * b[i]; grad_b[i] = g[i] * a[i]; }
}
""")
multiply, multiply_backward = module.get_function("multiply"), module.get_function("multiply_backward")


def forward(a: Tensor, b: Tensor) -> Tensor:
    """The launch, and nothing else."""
    out = torch.empty_like(a)
    n = a.numel()
    multiply.forall(n)(a, b, out, n)
    return out


def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
    a, b = ctx.saved_tensors
    grad_a, grad_b = torch.empty_like(a), torch.empty_like(b)
    n = a.numel()
    multiply_backward.forall(n)(grad, a, b, grad_a, grad_b, n)
    return grad_a, grad_b


class Written(torch.autograd.Function):
    """What one writes by hand."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return forward(a, b)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        return backward(ctx, grad.contiguous())


HELD, HELD_BACKWARD = multiply.forall(N), multiply_backward.forall(N)


def held(a: Tensor, b: Tensor) -> Tensor:
    """The same with a launcher that is kept."""
    out = torch.empty_like(a)
    HELD(a, b, out, N)
    return out


def held_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
    a, b = ctx.saved_tensors
    grad_a, grad_b = torch.empty_like(a), torch.empty_like(b)
    HELD_BACKWARD(grad, a, b, grad_a, grad_b, N)
    return grad_a, grad_b


class Held(torch.autograd.Function):
    """What one writes by hand, with launchers that are kept."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return held(a, b)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        return held_backward(ctx, grad)


def save_both(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


own = rawkern.op("rawkern_benchmark::own")(forward)
own.backward(backward)
own_held = rawkern.op("rawkern_benchmark::own_held")(held)
own_held.backward(held_backward)
custom = torch.library.custom_op("rawkern_benchmark::custom", forward, mutates_args=())
custom.register_autograd(backward, setup_context=save_both)
custom.register_fake(torch.mul)
CALLS: dict[str, Callable[..., Any]] = {
    "the launch alone": forward,
    "rawkern.op": own,
    "rawkern.op, launchers kept": own_held,
    "rawkern.op through the dispatcher": own.overload,
    "autograd.Function, written by hand": Written.apply,
    "autograd.Function, launchers kept": Held.apply,
    "torch.library.custom_op": custom,
}


def timer(run: Callable[[], Any], calls: int) -> float:
    """Seconds per call; on the CPU those of this thread, which other programs do not add to."""
    if CUDA:
        return sample(run, calls, torch.cuda.synchronize)
    start = time.thread_time()
    for _ in range(calls):
        run()
    return (time.thread_time() - start) / calls


def over(timings: dict[str, Timing], base: str, title: str, note: str, goals: dict[str, str]) -> Table:
    """A table with each contender's time less that of the launch."""
    table = timing_table(title, timings, note, goals)
    table.columns = (*table.columns, "over it")
    launch = timings[base].median
    table.rows = [
        (*row, "" if t.error else scaled(max(t.median - launch, 0.0)))
        for row, t in zip(table.rows, timings.values(), strict=True)
    ]
    return table


def squares(report: Report, rounds: int, note: str) -> None:
    """A built-in operator and an elementwise expression next to torch's."""
    functions = {"torch.square": torch.square, "rawkern.square": rawkern.square}
    functions["an elementwise formula"] = rawkern.elementwise("T x", "T y", "y = x * x", "square_of")
    x, grad = torch.randn(N, device=DEVICE), torch.randn(N, device=DEVICE)
    leaf = x.clone().requires_grad_()
    tables: dict[str, tuple[str, dict[str, Callable[[], Any]]]] = {
        "square without grad": ("1.2", {name: lambda f=f: f(x) for name, f in functions.items()}),
        "square with grad, forward": ("1.5", {name: lambda f=f: f(leaf) for name, f in functions.items()}),
        "square and its sum, forward and backward": (
            "1.3",
            {name: lambda f=f: torch.autograd.grad(f(leaf).sum(), leaf) for name, f in functions.items()},
        ),
        "square, forward and backward": (
            "1.3",
            {name: lambda f=f: torch.autograd.grad(f(leaf), leaf, grad) for name, f in functions.items()},
        ),
    }
    for title, (goal, calls) in tables.items():
        report.settle()
        timings = compare(calls, baseline="torch.square", rounds=rounds, most_calls=1000, timer=timer)
        report.add(timing_table(title, timings, note, {"rawkern.square": goal}), timings)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=25)
    rounds = parser.parse_args().rounds
    report = Report(f"op-{'gpu' if CUDA else 'cpu'}", "What an operator costs the host")
    base = "the launch alone"
    a, b, grad = (torch.randn(N, device=DEVICE) for _ in range(3))
    calls = {name: lambda f=f: f(a, b) for name, f in CALLS.items()}
    report.settle()
    timings = compare(calls, baseline=base, rounds=rounds, most_calls=2000, timer=timer)
    where = "the GPU" if CUDA else "the CPU; time of this thread alone"
    note = f"float32 tensors of {N} elements on {where}. 'over it' is the time over the launch alone."
    report.add(over(timings, base, "Without grad", note, {"rawkern.op": "1 us over it"}), timings)

    x, y = a.clone().requires_grad_(), b.clone().requires_grad_()
    calls = {base: calls[base]} | {name: lambda f=f: f(x, y) for name, f in CALLS.items() if name != base}
    report.settle()
    timings = compare(calls, baseline="autograd.Function, written by hand", rounds=rounds, most_calls=2000, timer=timer)
    goals = {"rawkern.op": "1, that is no more than by hand", "rawkern.op, launchers kept": "that of the other one"}
    report.add(over(timings, base, "Forward, with grad", "As before; both tensors require grad.", goals), timings)

    def both(f: Callable[..., Any]) -> Callable[[], Any]:
        return lambda: torch.autograd.grad(f(x, y), (x, y), grad)

    calls = {name: both(f) for name, f in CALLS.items() if name != base}
    report.settle()
    timings = compare(calls, baseline="autograd.Function, written by hand", rounds=rounds, most_calls=1000, timer=timer)
    report.add(timing_table("Forward and backward", timings, "torch.autograd.grad for both tensors.", goals), timings)

    squares(report, rounds, note)

    calls = {}
    for name in ("rawkern.op", "torch.library.custom_op"):
        compiled = torch.compile(lambda a, b, f=CALLS[name]: f(a, b), fullgraph=True, backend="aot_eager")
        calls[name] = lambda f=compiled: f(a, b)
    report.settle()
    timings = compare(calls, baseline="torch.library.custom_op", rounds=rounds, most_calls=1000, timer=timer)
    report.add(
        timing_table("Compiled, without grad", timings, "torch.compile with aot_eager, the operator alone."), timings
    )
    report.write()


if __name__ == "__main__":
    main()
