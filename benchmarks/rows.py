"""Operators over rows on a GPU, forward and backward, beside torch's, torch.compile's and Liger-Kernel's."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch._dynamo.config
import torch._functorch.config
import torch.nn.functional as F

import rawkern
from benchmarks.harness import Report, Table, Timing, compare, failed

ROWS, COLUMNS = 8192, 4096
TOKENS, CLASSES = 4096, 32768
SPIN = 10_000_000  # cycles the GPU is kept busy with while the host enqueues what is timed
CALLS = 10
CONTENDERS = ("torch", "torch.compile", "Liger", "rawkern")


@dataclass(frozen=True)
class Case:
    """An operator by each contender, its inputs, and the elements that forward and backward have to read and write."""

    contenders: dict[str, Callable[..., Any]]
    inputs: tuple[torch.Tensor, ...]
    forward: int
    backward: int


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


def on_gpu(run: Callable[[], Any], calls: int) -> float:
    """Seconds per call on the GPU's clock, with the host's time hidden behind a kernel that only waits."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda._sleep(SPIN)
    start.record()
    for _ in range(calls):
        run()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1000 / calls


def bandwidth() -> float:
    """Bytes per second that a large copy reads and writes."""
    x = torch.empty(1 << 28, device="cuda")
    y = torch.empty_like(x)
    return 2 * x.nbytes / compare({"copy": lambda: y.copy_(x)}, timer=on_gpu, most_calls=5, patience=0)["copy"].median


def measured(case: Case, rounds: int) -> tuple[dict[str, Timing], dict[str, Timing]]:
    """Times of forward and backward of all contenders."""
    contenders = dict(case.contenders)
    contenders["torch.compile"] = torch.compile(contenders["torch"], fullgraph=True, dynamic=False)
    forwards, backwards, errors = {}, {}, {}
    wanted = case.contenders["torch"](*case.inputs)
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    grads = [torch.randn_like(t) for t in wanted]

    def backward(results: tuple[torch.Tensor, ...]) -> Any:
        return torch.autograd.grad(results, case.inputs, grads, retain_graph=True)

    for name, run in contenders.items():
        try:
            result = run(*case.inputs)
            results = result if isinstance(result, tuple) else (result,)
            for a, b in zip(results, wanted, strict=True):
                torch.testing.assert_close(a, b, rtol=0.02, atol=0.02 * b.abs().max().item())
            forwards[name] = lambda run=run: run(*case.inputs)
            backwards[name] = lambda results=results: backward(results)
        except Exception as error:
            errors[name] = failed(error)
    options: dict[str, Any] = {"baseline": "torch", "rounds": rounds, "timer": on_gpu, "most_calls": CALLS}
    both = (compare(contenders, patience=0, **options) for contenders in (forwards, backwards))
    return tuple(found | errors for found in both)  # type: ignore[return-value]


def row(name: str, times: tuple[dict[str, Timing], ...], limits: list[float]) -> tuple[str, ...]:
    """The cells of one operator: forward / backward of each contender, the limits, and what rawkern makes of them."""
    cells = []
    for contender in CONTENDERS:
        found = [t[contender] for t in times if contender in t]
        error = next((t.error for t in found if t.error), "")
        cells.append(error or " / ".join(f"{t.median * 1e6:.1f}" for t in found))
    shares = [f"{t['rawkern'].median / limit:.2f}" if limit else "-" for t, limit in zip(times, limits, strict=True)]
    return name, *cells, " / ".join(f"{t * 1e6:.1f}" if t else "-" for t in limits), " / ".join(shares)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", nargs="*", help="operators to measure, by name")
    options = parser.parse_args()
    torch._functorch.config.donated_buffer = False  # a graph that is run backwards many times cannot donate
    torch._dynamo.config.cache_size_limit = 64
    report = Report("rows-gpu", "Operators over rows on the GPU")
    rate = bandwidth()
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
            numbers[name] = measured(case, options.rounds)
            limits = [elements * dtype.itemsize / rate for elements in (case.forward, case.backward)]
            table.rows.append(row(name, numbers[name], limits))
            print(*table.rows[-1], sep=" | ", flush=True)
        report.add(table, numbers)
    report.write()


if __name__ == "__main__":
    main()
