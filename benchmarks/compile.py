"""What the CPU engine takes to compile: seconds in NVRTC, in the lowering and in LLVM, for this CPU and for others.

For this CPU with the default checks, too, as users meet it.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import Report, Table, scaled
from benchmarks.hopper_gemm import example
from rawkern.base import llvm as base
from rawkern.compile.nvrtc import run_nvrtc
from rawkern.compile.source import CPU_ARCH, Source, from_text
from rawkern.engines.cpu.analysis.storage import lay_out_globals
from rawkern.engines.cpu.checker.bounds import Bounds
from rawkern.engines.cpu.emit.instrument import Instrument
from rawkern.engines.cpu.runtime import jit

FOLDER = Path(__file__).resolve().parent / "compiled"
#: Kernels by file, which is named like its kernel, with how a warp's threads lie in the block; `gemm` is an example.
KERNELS = {
    "saxpy": "line",
    "group_reduce": "line",
    "block_reduce": "line",
    "matmul": "rows",
    "raytrace": "rows",
    "bitonic_sort": "line",
    "block_sort": "line",
    "large": "line",
    "selective_scan": "line",
    "locked_product": "line",
    "gemm": "line",
}
# Seconds of lowering and LLVM on this CPU.
GOALS = {"raytrace": 0.3, "block_sort": 1.0, "selective_scan": 2.0, "locked_product": 6.0, "gemm": 3.0}
FACTOR = 5  # for another CPU at most this many times a goal
HERE, CHECKED = "this CPU", "this CPU, default checks"
Builds = dict[str, tuple[base.Cpu, type[Instrument]]]  # by what is reported of them


@dataclass(frozen=True)
class Step:
    """One kernel for one CPU: seconds of processor time, bytes of the object file."""

    lowering: float
    llvm: float
    size: int

    @property
    def total(self) -> float:
        return self.lowering + self.llvm


def cost(run: Callable[[], Any]) -> tuple[float, Any]:
    """Processor time of this thread, which other programs do not stretch, and the result."""
    start = time.thread_time()
    result = run()
    return time.thread_time() - start, result


def source_of(kernel: str) -> Source:
    if kernel == "gemm":
        return from_text(example().SOURCE, ("-DSTAGES=4", "-DBAND=8"))
    return from_text((FOLDER / f"{kernel}.cu").read_text())


def generated(ptx: str, kernel: str, shape: str, cpu: base.Cpu, instrument: type[Instrument]) -> Step:
    """Generate code for `cpu` once, from PTX to an object file, without any cache."""
    translation = jit.Translation(ptx)
    lowering, lowered = cost(
        lambda: translation.lower(kernel, lay_out_globals(translation.parsed()), shape, cpu, instrument)
    )
    llvm, codes = cost(lambda: [jit.emit(lowered, cpu), *(jit.function_code(t, cpu) for t in lowered.library.values())])
    return Step(lowering, llvm, sum(map(len, codes)))


def measured(source: Source, kernel: str, shape: str, builds: Builds, rounds: int) -> tuple[float, int, dict]:
    """Seconds of NVRTC, lines of PTX, and for each build the medians over the rounds."""
    nvrtc, result = cost(lambda: run_nvrtc(source, source.cpu_arch))
    if not result.ok:
        raise SystemExit(f"{kernel}.cu: {result.log}")
    found = {}
    for name, build in builds.items():
        steps = [generated(result.ptx, kernel, shape, *build) for _ in range(rounds)]
        middle = [statistics.median(getattr(s, part) for s in steps) for part in ("lowering", "llvm")]
        found[name] = Step(middle[0], middle[1], steps[0].size)
    return nvrtc, result.ptx.count("\n"), found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=list(KERNELS), choices=list(KERNELS), help="results are not kept")
    options = parser.parse_args()
    builds: Builds = {HERE: (base.host(), Instrument), CHECKED: (base.host(), Bounds)}
    builds |= {name: (base.OTHERS[name], Instrument) for name in ("haswell", "apple-m1")}
    report = Report("compile", "Compile times of the CPU engine")
    report.notes.append(
        "Processor time, no caches. NVRTC makes PTX, the lowering LLVM IR, LLVM an object file of machine code; the "
        f"goal is for the last two, and {FACTOR} times as much for another CPU, whose code is generated and not run. "
        "The first compilation of a process takes longer, as NVRTC and LLVM are loaded for it. Sources with inline "
        "assembly (locked_product, gemm) go to NVRTC in another process, whose time is not counted."
    )
    columns = ("kernel", "PTX lines", "NVRTC", "for", "lowering", "LLVM", "both", "goal", "object")
    table, numbers = Table("Compile times", columns), {}
    run_nvrtc(from_text("__global__ void k() {}"), CPU_ARCH)
    for kernel in options.only:
        nvrtc, lines, found = measured(source_of(kernel), kernel, KERNELS[kernel], builds, options.rounds)
        numbers[kernel] = {"nvrtc": nvrtc, "ptx lines": lines, **{name: asdict(step) for name, step in found.items()}}
        for name, step in found.items():
            first = name == HERE
            goal = GOALS[kernel] * (1 if name in (HERE, CHECKED) else FACTOR) if kernel in GOALS else None
            row = (kernel, str(lines), scaled(nvrtc)) if first else ("", "", "")
            spent = [scaled(seconds) for seconds in (step.lowering, step.llvm, step.total)]
            table.rows.append((*row, name, *spent, scaled(goal) if goal else "", f"{step.size / 1024:.0f} KiB"))
    report.add(table, numbers)
    if len(options.only) == len(KERNELS):
        report.write()


if __name__ == "__main__":
    main()
