"""Runs one engine on a tiny kernel in its own process, so that a crash does not end the doctor."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from typing import Any

_SOURCE = """
extern "C" __global__ void rawkern_doctor(int n, float a, const float* x, float* y) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i] + y[i];
}
"""
_CHILD = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]); from rawkern.cli import probe; probe.main(sys.argv[1])"
)
PYTHON = [sys.executable]  # what the child is started with
_ANSWER = "rawkern-doctor:"
_N = 1000  # not a multiple of the block size
_PATIENCE = 120.0  # seconds: torch's import on a cold disk, and a compilation


def probe(device: str) -> dict[str, Any]:
    """Run the kernel on a device in a child process.

    Returns ``first`` and ``launch``, seconds of the first launch (including compilation) and of a later one; or
    ``error``, a message.
    """
    command = [*PYTHON, "-c", _CHILD, device, json.dumps(sys.path)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE)
    except subprocess.TimeoutExpired:
        return {"error": f"not done after {_PATIENCE:.0f} s"}
    answers = [line for line in done.stdout.splitlines() if line.startswith(_ANSWER)]
    if answers:
        return json.loads(answers[-1].removeprefix(_ANSWER))
    if done.returncode < 0:
        return {"error": f"the process died of {signal.Signals(-done.returncode).name}"}
    last = done.stderr.strip().splitlines()[-1:] or ["it printed nothing"]
    return {"error": f"the process ended with {done.returncode}: {last[0]}"}


def main(device: str) -> None:
    """Run the kernel here and print what `probe` reads."""
    try:
        answer: dict[str, Any] = _run(device)
    except Exception as error:  # the doctor reports whatever an engine raises
        answer = {"error": f"{type(error).__name__}: {error}"}
    print(_ANSWER + json.dumps(answer))


def _run(device: str) -> dict[str, float]:
    import torch

    import rawkern

    kernel = rawkern.RawKernel(_SOURCE)
    x, y = torch.linspace(-3, 3, _N, device=device), torch.full((_N,), 0.25, device=device)
    expected = (1.5 * x.double() + y.double()).cpu()
    start = time.perf_counter()
    launch = kernel.forall(_N, block=96)
    launch(_N, 1.5, x, y)
    result = y.double().cpu()
    first = time.perf_counter() - start
    wrong = int(((result - expected).abs() > 1e-6).sum())
    if wrong:
        raise ArithmeticError(f"{wrong} of {_N} elements are wrong, such as {result[0]} for {expected[0]}")
    times = []
    for _ in range(100):
        start = time.perf_counter()
        kernel.forall(_N, block=96)(_N, 0.0, x, y)
        times.append(time.perf_counter() - start)
    if device != "cpu":
        torch.cuda.synchronize()
    return {"first": first, "launch": sorted(times)[len(times) // 2]}
