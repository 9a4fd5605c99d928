"""The kernels that leave their memory, which the CPU engine must stop, under compute-sanitizer's memcheck on a GPU.

Each kernel of `tests.engines.cpu.checker.wild` is wrong one way and runs in a process of its own; that memcheck reports
it shows that it is wrong there, too. torch's caching of memory is off, so that each tensor ends where its allocation
ends.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

import rawkern
from benchmarks.harness import Report, Table
from benchmarks.sanitize import findings
from tests.engines.cpu.checker import wild

N = 64  # elements of an array


def launch(name: str) -> None:
    """What memcheck watches."""
    kernel = rawkern.RawModule(wild.source()).get_function(name)
    x, y, p, first, second = (torch.arange(N).float().cuda() for _ in range(5))
    kernel[1, N, 256](N, x, y, torch.arange(N).int().cuda(), {"p": p, "n": 16}, [first, second], None)
    torch.cuda.synchronize()


def watched(sanitizer: str, name: str, limit: float) -> str:
    """What memcheck says of a kernel; nothing where it finds nothing."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        command = [sanitizer, "--tool", "memcheck", "--log-file", str(log), "--print-limit", "20"]
        environment = os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
        try:
            subprocess.run(
                [*command, sys.executable, "-m", "benchmarks.wild", "--inside", name], env=environment, timeout=limit,
                capture_output=True, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return f"not finished after {limit:.0f} s"
        text = log.read_text() if log.exists() else ""
    found = findings(text)
    own = [what.rpartition(" (")[0] for what in found.own]
    return "; ".join(dict.fromkeys(own)) or "; ".join(found.calls)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    parser.add_argument("--limit", type=float, default=120, help="seconds for a kernel")
    options = parser.parse_args()
    if options.inside:
        launch(options.inside)
        return
    sanitizer = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path="/usr/local/cuda/bin")
    if sanitizer is None or not torch.cuda.is_available():
        sys.exit("compute-sanitizer and a GPU are needed: it comes with the CUDA toolkit")
    rawkern.RawModule(wild.source()).get_function(wild.ROWS[0][0]).attributes  # noqa: B018  # compiled once, for all
    names = [name for name, _, _ in wild.ROWS]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        said = dict(zip(names, pool.map(lambda name: watched(sanitizer, name, options.limit), names), strict=True))
    report = Report("wild-gpu", "Kernels that leave their memory, under compute-sanitizer")
    found = sum(bool(text) for text in said.values())
    report.notes.append(
        f"Of {len(names)} kernels, each of which the CPU engine stops with the exception named here, memcheck reports "
        f"{found}. The others stay inside what a block's shared memory, a thread's local memory or the module's "
        "constants take as a whole, or write through a pointer to const, which it does not tell."
    )
    table = Table("Kernels", ("kernel", "on the CPU engine", "memcheck on a GPU"))
    table.rows += [(name, error, said[name] or "nothing") for name, error, _ in wild.ROWS]
    report.add(table, said)
    report.write()


if __name__ == "__main__":
    main()
