"""``rawkern bench``: times a launch, two operators and an edit on this machine, next to torch, in a few seconds."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import rawkern
from rawkern.cli.text import CommandError, duration, step, table

if TYPE_CHECKING:
    import torch

_PRODUCT = """
extern "C" __global__ void product(int n, const float* a, const float* b, float* c) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) c[i] = a[i] * b[i];
}
"""
_EDITED = """
extern "C" __global__ void edited(float* x) { x[threadIdx.x] = %d; }
"""
_ROUNDS, _REPEATS, _EDITS = 3, 30, 5
# Elements: larger than the caches of most machines, but still quick.
_SHAPES = {
    "square": {"cpu": (1 << 22,), "cuda": (1 << 26,)},
    "softmax": {"cpu": (1024, 4096), "cuda": (8192, 4096)},
}
_LAUNCH = 256  # elements; so few that only the launch costs time


@dataclass(frozen=True)
class Result:
    """One line: seconds of rawkern and, where torch has an equivalent, of torch."""

    device: str
    what: str
    rawkern: float
    torch: float | None = None
    nbytes: int = 0  # read and written, where memory bandwidth is the limit


def declare(commands: Any) -> None:
    """Add the command's parser."""
    parser = commands.add_parser(
        "bench",
        help="time a launch, two operators and an edit on this machine, next to torch",
        description="On each device, measure the host's time for a launch, square and softmax "
        "next to torch's, and the time from saving an edited kernel to its result. Takes a few seconds.",
    )
    parser.add_argument("--device", action="append", default=[], metavar="NAME", help="cpu or cuda (default: all)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(main=main)


def main(options: argparse.Namespace) -> int:
    """Run the command."""
    with step("importing torch"):
        import torch

    devices = options.device or ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    for name in devices:
        if name not in ("cpu", "cuda"):
            raise CommandError(f"--device {name}: bench measures cpu and cuda")
        if name == "cuda" and not torch.cuda.is_available():
            raise CommandError("--device cuda: torch sees no GPU")
    results = [result for name in devices for result in _measured(torch.device(name))]
    machine = {"rawkern": rawkern.__version__, "torch": torch.__version__, "threads": torch.get_num_threads()}
    if options.json:
        print(json.dumps({**machine, "results": [asdict(result) for result in results]}, indent=2))
        return 0
    gpu = f", {torch.cuda.get_device_name()}" if "cuda" in devices else ""
    versions = f"rawkern {rawkern.__version__}, torch {torch.__version__}"
    print(f"{versions}, {platform.machine()}, {machine['threads']} threads{gpu}\n")
    print(table(("device", "", "rawkern", "torch", "torch/rawkern", ""), list(map(_row, results)), left=(0, 1)))
    return 0


def _row(result: Result) -> Sequence[str]:
    theirs = "" if result.torch is None else duration(result.torch)
    ratio = "" if result.torch is None else f"{result.torch / result.rawkern:.2f}"
    rate = f"{result.nbytes / result.rawkern / 1e9:.0f} GB/s" if result.nbytes else ""
    return result.device, result.what, duration(result.rawkern), theirs, ratio, rate


def _measured(device: torch.device) -> list[Result]:
    results = []
    parts = {"a launch": _launch, **{name: partial(_operator, name=name) for name in _SHAPES}, "an edit": _edit}
    for what, measure in parts.items():
        with step(f"measuring {what} on {device}"):
            results.append(measure(device))
    return results


# Measurements -----------------------------------------------------------------------------------------------


def _launch(device: torch.device) -> Result:
    import torch

    from rawkern.cli.timing import host_seconds

    kernel = rawkern.RawKernel(_PRODUCT)
    a, b, c = (torch.rand(_LAUNCH, device=device) for _ in range(3))
    covering = kernel.forall(_LAUNCH)
    covering(_LAUNCH, a, b, c)
    _same("product", c, a * b)
    ours, theirs = _in_turns(
        lambda: host_seconds(lambda: kernel.forall(_LAUNCH)(_LAUNCH, a, b, c), device),
        lambda: host_seconds(lambda: torch.mul(a, b, out=c), device),
    )
    return Result(device.type, f"launch: c = a * b on {_LAUNCH} floats, host time", ours, theirs)


def _operator(device: torch.device, name: str) -> Result:
    import torch

    from rawkern.cli.timing import launch_seconds

    shape = _SHAPES[name][device.type]
    x = torch.randn(shape, device=device)
    args = (x, -1) if name == "softmax" else (x,)
    ours, theirs = (partial(getattr(library, name), *args) for library in (rawkern, torch))
    _same("the operator", ours(), theirs())
    times = _in_turns(lambda: launch_seconds(ours, device, _REPEATS), lambda: launch_seconds(theirs, device, _REPEATS))
    size = f"{x.numel() >> 20} Mi" if x.dim() == 1 else " x ".join(map(str, shape))
    return Result(device.type, f"{name} of {size} floats", *times, 2 * x.nbytes)


def _edit(device: torch.device) -> Result:
    """The time from a changed file to the result of the new code: detect, compile, load, launch."""
    import torch

    x = torch.zeros(32, device=device)
    number = time.time_ns() % 10**6 * _EDITS  # new in each run, so that no program comes from the cache
    times = []
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "edited.cu")
        for edit in range(_EDITS + 1):
            start = time.perf_counter()
            with open(path, "w") as file:
                file.write(_EDITED % (number + edit))
            if not edit:
                kernel = rawkern.RawKernel(path=path)
            while x[0].item() != number + edit:
                kernel[1, 32](x)
            times.append(time.perf_counter() - start)
    return Result(device.type, "edit to result: from saving a file to its new result", statistics.median(times[1:]))


def _in_turns(ours: Callable[[], float], theirs: Callable[[], float]) -> tuple[float, float]:
    """The best of several rounds of both; they alternate, so that noise affects both alike."""
    pairs = [(ours(), theirs()) for _ in range(_ROUNDS)]
    return min(pair[0] for pair in pairs), min(pair[1] for pair in pairs)


def _same(what: str, ours: torch.Tensor, theirs: torch.Tensor) -> None:
    import torch

    if not torch.allclose(ours, theirs, rtol=1e-5, atol=1e-7):
        raise CommandError(f"{what} gives results that differ from torch's; nothing was measured (run: rawkern doctor)")
