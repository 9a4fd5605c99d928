"""Forward and backward of operators by several contenders: time of the GPU alone, or of one thread of the CPU."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch._dynamo.config
import torch._functorch.config

from benchmarks.harness import Timing, compare, failed, gpu_sample

CALLS = 10
LARGE = 1 << 26  # floats of the copy that gives the limit


@dataclass(frozen=True)
class Case:
    """An operator by each contender, its inputs, and the elements that forward and backward have to read and write.

    The contenders' results are compared with those of "torch", unless they are random.
    """

    contenders: dict[str, Callable[..., Any]]
    inputs: tuple[torch.Tensor, ...]
    forward: int
    backward: int
    random: bool = False


def settings() -> None:
    """Let torch.compile take all cases, and graphs run backwards many times; on the CPU one thread does everything."""
    torch._functorch.config.donated_buffer = False  # a donated buffer is gone after the first backward
    torch._dynamo.config.cache_size_limit = 64
    torch.set_num_threads(1)  # before anything is compiled: the code is for so many threads


def on_thread(run: Callable[[], Any], calls: int) -> float:
    """Seconds per call of this thread's time on the CPU, which other programs do not add to."""
    start = time.thread_time()
    for _ in range(calls):
        run()
    return (time.thread_time() - start) / calls


def timed(contenders: dict[str, Callable[[], Any]], device: str, rounds: int) -> dict[str, Timing]:
    """Seconds per call of each contender, in turns."""
    timer = gpu_sample if device == "cuda" else on_thread
    return compare(contenders, baseline="torch", rounds=rounds, timer=timer, most_calls=CALLS, patience=0)


def bandwidth(device: str) -> float:
    """Bytes per second that a large copy reads and writes."""
    x = torch.empty(LARGE, device=device)
    y = torch.empty_like(x)
    return 2 * x.nbytes / timed({"copy": lambda: y.copy_(x)}, device, 7)["copy"].median


def measured(case: Case, device: str, rounds: int) -> tuple[dict[str, Timing], dict[str, Timing]]:
    """Times of forward and backward of all contenders, torch.compile of torch's among them."""
    contenders = dict(case.contenders)
    contenders["torch.compile"] = torch.compile(contenders["torch"], fullgraph=True, dynamic=False)
    forwards, backwards, errors = {}, {}, {}
    wanted = several(case.contenders["torch"](*case.inputs))
    grads = [torch.randn_like(t) for t in wanted]
    leaves = [t for t in case.inputs if t.requires_grad]

    def backward(results: tuple[torch.Tensor, ...]) -> Any:
        return torch.autograd.grad(results, leaves, grads, retain_graph=True)

    expected = backward(wanted)
    for name, run in contenders.items():
        try:
            results = several(run(*case.inputs))
            found = backward(results)
            if not case.random:
                for a, b in zip((*results, *found), (*wanted, *expected), strict=True):
                    torch.testing.assert_close(a, b, rtol=0.02, atol=0.02 * b.abs().max().item())
            forwards[name] = lambda run=run: run(*case.inputs)
            backwards[name] = lambda results=results: backward(results)
        except Exception as error:
            if name == "rawkern":  # there is nothing to show then
                raise
            errors[name] = failed(error)
    del wanted, expected
    return timed(forwards, device, rounds) | errors, timed(backwards, device, rounds) | errors


def several(result: Any) -> tuple[torch.Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


def row(name: str, times: tuple[dict[str, Timing], ...], limits: list[float], columns: tuple[str, ...]) -> list[str]:
    """The cells of one operator: forward / backward of each contender, the limits, and what rawkern makes of them."""
    cells = []
    for contender in columns:
        found = [t[contender] for t in times if contender in t]
        error = next((t.error for t in found if t.error), "")
        cells.append(error or " / ".join(microseconds(t.median) for t in found))
    shares = [f"{t['rawkern'].median / limit:.2f}" if limit else "-" for t, limit in zip(times, limits, strict=True)]
    return [name, *cells, " / ".join(microseconds(t) for t in limits), " / ".join(shares)]


def microseconds(seconds: float) -> str:
    return f"{seconds * 1e6:.1f}" if seconds else "-"
