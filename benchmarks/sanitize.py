"""compute-sanitizer over the kernels of rawkern's operators on a GPU: memcheck, racecheck, initcheck and synccheck.

A tool watches a process in which each operator runs once, forward and backward, over ragged shapes; another with a
planted mistake shows what a clean report of it is worth. The exit status is 1 where a tool finds something in rawkern's
kernels, or does not finish. torch's caching of memory is off, so that
each tensor ends where its allocation ends.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import rawkern
from benchmarks.harness import Report, Table, short

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
DTYPES = (torch.bfloat16, torch.float32, torch.float64)
FOREIGN = re.compile(r"\b(at::|at_cuda_detail|cub::|thrust::|c10::)|_ZN(2at|3cub|6thrust|3c10)")  # torch's own kernels

# What runs under the tools --------------------------------------------------------------------------------------


def made(dtype: torch.dtype, *shape: int) -> Tensor:
    """Numbers copied from the CPU, so that no kernel of torch's makes them."""
    return torch.randn(*shape).to(dtype).cuda().requires_grad_()


def differentiated(f: Callable[..., Any], *inputs: Tensor) -> None:
    """Run f and its backward."""
    found = f(*inputs)
    outs = [t for t in ((found,) if isinstance(found, Tensor) else found) if t.requires_grad]
    leaves = [t for t in inputs if t.requires_grad]
    torch.autograd.grad(outs, leaves, [torch.randn(t.shape).to(t.dtype).cuda() for t in outs])


def elementwise(dtype: torch.dtype) -> dict[str, Callable[[], None]]:
    one = {
        "square": rawkern.square,
        "relu": rawkern.relu,
        "relu_": lambda x: rawkern.relu_(x * 1),
        "scale": lambda x: rawkern.scale(x, 1.5),
        "silu": rawkern.silu,
        "gelu": lambda x: rawkern.gelu(x) + rawkern.gelu(x, "tanh"),
        "dropout": lambda x: rawkern.dropout(x, 0.3),
    }
    two = {
        "mul": rawkern.mul,
        "swiglu": rawkern.swiglu,
        "geglu": rawkern.geglu,
        "add_sin_cos": rawkern.add_sin_cos,
    }

    def run_one(f: Callable[[Tensor], Tensor]) -> None:
        for n in (1, 1003, 65537):
            differentiated(f, made(dtype, n))
        differentiated(f, made(dtype, 37, 41).detach()[:, 1:38].requires_grad_())  # no pack of it is aligned

    def run_two(f: Callable[[Tensor, Tensor], Tensor]) -> None:
        for n in (1, 1003, 65537):
            differentiated(f, made(dtype, n), made(dtype, n))
        differentiated(f, made(dtype, 37, 41), made(dtype, 41))
        differentiated(f, made(dtype, 37, 40), made(dtype, 40, 37).detach().t().requires_grad_())

    ones = {name: lambda f=f: run_one(f) for name, f in one.items()}
    return ones | {name: lambda f=f: run_two(f) for name, f in two.items()}


def over_rows(dtype: torch.dtype) -> dict[str, Callable[[], None]]:
    def rows(f: Callable[..., Any], weights: int = 0, same: int = 1) -> None:
        for count, n in ((3, 1), (37, 31), (5, 1000), (67, 1024), (300, 4104), (2, 33000)):
            inputs = [made(dtype, count, n) for _ in range(same)]
            differentiated(lambda *t, n=n: f(n, *t), *inputs, *(made(dtype, n) for _ in range(weights)))

    def cross_entropy() -> None:
        for count, n in ((3, 2), (37, 31), (5, 1000), (9, 32771)):
            target = torch.randint(0, n, (count,)).cuda()
            differentiated(lambda x, t=target: rawkern.cross_entropy(x, t, label_smoothing=0.1), made(dtype, count, n))

    def embedding() -> None:
        index = torch.cat([torch.randint(0, 50, (333,)), torch.zeros(100, dtype=torch.int64)]).cuda()
        for n in (1, 33, 256):
            differentiated(lambda table: rawkern.embedding(index, table), made(dtype, 50, n))

    def sums(f: Callable[..., Tensor]) -> None:
        for shape in ((3, 5), (1000, 37), (7, 4100, 5), (70001,)):
            for dim in (None, 0, len(shape) - 1):
                differentiated(lambda x, dim=dim: f(x, dim), made(dtype, *shape))

    def rotary() -> None:
        angle = torch.rand(17, 8)
        cos, sin = angle.cos().to(dtype).cuda(), angle.sin().to(dtype).cuda()
        for interleaved in (False, True):
            f = lambda x, i=interleaved: rawkern.rotary_embedding(x, cos, sin, interleaved=i)  # noqa: E731
            differentiated(f, made(dtype, 3, 17, 16))

    def adamw() -> None:
        p, g, m, v = ([made(dtype, n).detach() for n in (1, 1003, 40000)] for _ in range(4))
        rawkern.adamw_(p, g, m, [t.abs() for t in v], step=2)

    def nbody() -> None:
        for dims in (2, 3):
            for n in (1, 33, 1001):
                differentiated(rawkern.nbody_forces, made(dtype, dims, n), made(dtype, n))

    return {
        "softmax": lambda: rows(lambda n, x: rawkern.softmax(x, -1)),
        "log_softmax": lambda: rows(lambda n, x: rawkern.log_softmax(x, 0)),
        "layer_norm": lambda: rows(lambda n, x, w, b: rawkern.layer_norm(x, n, w, b), weights=2),
        "rms_norm": lambda: rows(lambda n, x, w: rawkern.rms_norm(x, n, w), weights=1),
        "add_layer_norm": lambda: rows(lambda n, x, r, w, b: rawkern.add_layer_norm(x, r, n, w, b), 2, 2),
        "add_rms_norm": lambda: rows(lambda n, x, r, w: rawkern.add_rms_norm(x, r, n, w), 1, 2),
        "scale_by_sign_of_sum": lambda: rows(lambda n, x: rawkern.scale_by_sign_of_sum(x)),
        "cross_entropy": cross_entropy,
        "embedding": embedding,
        "sum": lambda: sums(rawkern.sum),
        "mean": lambda: sums(rawkern.mean),
        "rotary_embedding": rotary,
        "adamw_": adamw,
        "nbody_forces": nbody,
    }


def formulas(dtype: torch.dtype) -> dict[str, Callable[[], None]]:
    huber = rawkern.elementwise("T x, T y", "T z", "z = x * x < y ? x * x : fabs(x)", "rawkern_sanitize::huber")
    norm = rawkern.reduction("T x", "T y", "x * x", "a + b", "y = sqrt(a)", "0", "rawkern_sanitize::norm")

    def elementwise() -> None:
        differentiated(huber, made(dtype, 1003), made(dtype, 1003))
        differentiated(huber, made(dtype, 33, 1, 40).detach().transpose(0, 1).requires_grad_(), made(dtype, 7, 1, 40))

    def reduction() -> None:
        for axis in (None, 0, 1):
            differentiated(lambda x, axis=axis: norm(x, axis=axis), made(dtype, 1001, 37))

    return {"elementwise": elementwise, "reduction": reduction}


def operators(dtype: torch.dtype) -> dict[str, Callable[[], None]]:
    """What each operator runs; one that is public and missing here is an error."""
    found = elementwise(dtype) | over_rows(dtype) | formulas(dtype)
    public = {
        n for n in rawkern.__all__ if getattr(getattr(rawkern, n), "__module__", "").startswith("rawkern.library.")
    }
    if missing := public - set(found):
        raise RuntimeError(f"not run here: {', '.join(sorted(missing))}")
    return found


PLANTED = {
    "memcheck": ("x[blockDim.x + threadIdx.x] = 1.0f;", "a write past the end of a tensor"),
    "racecheck": (
        "__shared__ float s[64]; s[threadIdx.x] = x[threadIdx.x]; x[threadIdx.x] = s[63 - threadIdx.x];",
        "shared memory read before a barrier",
    ),
    "initcheck": ("x[threadIdx.x] += 1.0f;", "a read of uninitialized memory"),
    "synccheck": (
        "if (threadIdx.x % 32 < 16) { __syncwarp(0xffff0000u); x[threadIdx.x] = 1.0f; }",
        "a __syncwarp by lanes that its mask leaves out",
    ),
}


def inside(tool: str, planted: bool) -> None:
    """What a tool watches; the last line of output says what ran."""
    if planted:
        source = f'extern "C" __global__ void planted(float* x) {{ {PLANTED[tool][0]} }}'
        rawkern.RawKernel(source)[1, 64](torch.empty(64, device="cuda"))
        torch.cuda.synchronize()
        return
    F.silu(torch.zeros(1, device="cuda"))
    cases = 0
    for dtype in DTYPES:
        for run in operators(dtype).values():
            run()
            cases += 1
    torch.cuda.synchronize()
    from rawkern.engines import cuda

    loaded = [one for one in gc.get_objects() if isinstance(one, cuda.EngineKernel)]
    print(json.dumps({"operators": cases, "kernels": len({one.name for one in loaded}), "instances": len(loaded)}))


# What they report -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Findings:
    """What a tool reports: findings in rawkern's kernels, in others (torch's), and rejected driver calls."""

    own: dict[str, int]
    others: dict[str, int]
    calls: dict[str, int]
    finished: bool  # with a summary


def findings(log: str) -> Findings:
    """Read a tool's log; a finding begins at the margin and names its kernel in a line further in."""
    own, others, calls = Counter[str](), Counter[str](), Counter[str]()
    lines = [line.removeprefix("=========") for line in log.splitlines() if line.startswith("=========")]
    finished = any("SUMMARY" in line for line in lines)
    for at, line in enumerate(lines):
        title = line[1:]
        if not title or title[0].isspace() or re.match(r"COMPUTE-SANITIZER|[A-Z ]*SUMMARY|Target application", title):
            continue
        rest = []
        for following in lines[at + 1 :]:
            if following[1:2] and not following[1].isspace():
                break
            rest.append(following.strip())
        what = re.sub(r"0x[0-9a-f]+", "...", title)
        if "CUDA API call" in what or "due to" in what:
            calls[what] += 1
            continue
        text = " ".join([title, *rest])
        found = re.search(r"\bat (?:0x[0-9a-f]+ in )?(.+?)(?:\+0x| in |$)", text)
        kernel = found[1] if found else "an unnamed kernel"
        (others if FOREIGN.search(text) else own)[short(f"{what} ({kernel})")] += 1
    return Findings(dict(own), dict(others), dict(calls), finished)


def watched(sanitizer: str, tool: str, planted: bool, limit: float) -> dict[str, Any]:
    """Run a tool over this file; what it found, what ran, and the seconds it took."""
    environment = os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        command = [sanitizer, "--tool", tool, "--log-file", str(log), "--print-limit", "200"]
        command += [sys.executable, "-m", "benchmarks.sanitize", "--inside", tool, *(["--planted"] if planted else [])]
        start = time.monotonic()
        pipe = subprocess.PIPE
        run = subprocess.Popen(command, env=environment, start_new_session=True, stdout=pipe, stderr=pipe, text=True)
        try:
            out, err = run.communicate(timeout=limit)
            failure = "" if run.returncode == 0 or planted else short(f"exit {run.returncode}: {err[-300:]}")
            ran = out.strip().splitlines()[-1:] if not planted and run.returncode == 0 else []
        except subprocess.TimeoutExpired:
            os.killpg(run.pid, signal.SIGKILL)  # the watched program as well: a planted kernel may never end
            run.communicate()
            failure, ran = f"not finished after {limit:.0f} s", []
        found = findings(log.read_text() if log.exists() else "")
    return {
        "seconds": round(time.monotonic() - start, 1),
        "ran": json.loads(ran[0]) if ran else {},
        "failure": failure or ("" if found.finished else "no summary"),
        "in rawkern's kernels": found.own,
        "in other kernels": found.others,
        "rejected calls": found.calls,
    }


def listed(counts: dict[str, int]) -> str:
    return "; ".join(f"{n} x {what}" for what, n in counts.items()) or "none"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inside", choices=TOOLS, help=argparse.SUPPRESS)
    parser.add_argument("--planted", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--limit", type=float, default=400, help="seconds for a tool")
    options = parser.parse_args()
    if options.inside:
        inside(options.inside, options.planted)
        return
    sanitizer = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path="/usr/local/cuda/bin")
    if sanitizer is None or not torch.cuda.is_available():
        sys.exit("compute-sanitizer and a GPU are needed: it comes with the CUDA toolkit")
    report = Report("sanitizer-gpu", "compute-sanitizer over rawkern's operators")
    version = subprocess.run([sanitizer, "--version"], capture_output=True, text=True).stdout.strip().splitlines()
    report.notes.append(next((line for line in version if line.startswith("Version")), "Version unknown"))
    inside("memcheck", False)  # compiles what the tools then find in the cache
    with ThreadPoolExecutor(2 * len(TOOLS)) as pool:
        jobs = {
            (tool, planted): pool.submit(watched, sanitizer, tool, planted, 60 if planted else options.limit)
            for tool in TOOLS
            for planted in (False, True)
        }
        results = {key: job.result() for key, job in jobs.items()}
    columns = ("tool", "ran", "findings in rawkern's kernels", "in torch's kernels", "rejected calls", "seconds")
    table = Table("Operators, forward and backward, over ragged shapes", columns)
    for tool in TOOLS:
        r = results[tool, False]
        ran = ", ".join(f"{n} {what}" for what, n in r["ran"].items()) or r["failure"]
        kinds = ("in rawkern's kernels", "in other kernels", "rejected calls")
        table.rows.append((tool, ran, *(listed(r[kind]) for kind in kinds), f"{r['seconds']:.0f}"))
    report.add(table, {tool: results[tool, False] for tool in TOOLS})
    table = Table("A planted mistake, which each tool should find", ("tool", "mistake", "found"))
    for tool in TOOLS:
        table.rows.append((tool, PLANTED[tool][1], listed(results[tool, True]["in rawkern's kernels"])))
    report.add(table, {tool: results[tool, True] for tool in TOOLS})
    report.write()
    clean = all(not r["failure"] and not r["in rawkern's kernels"] for (_, p), r in results.items() if not p)
    sys.exit(0 if clean else 1)


if __name__ == "__main__":
    main()
