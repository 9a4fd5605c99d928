"""What profiled launches cost: kernels usual and under ``rawkern.profile()``, in turns, and compiling them."""

from __future__ import annotations

import statistics
import time

import torch

import rawkern
from benchmarks.checked import CODE, ROUNDS, launches, timed
from benchmarks.harness import Report, Table
from rawkern.compile.programs import compile_program
from rawkern.compile.source import CPU_ARCH, from_text
from rawkern.engines.cpu.checker.bounds import Bounds
from rawkern.engines.cpu.profiler.instrument import Profiler
from rawkern.engines.cpu.runtime.grid import shape_of
from rawkern.engines.cpu.runtime.jit import Translation


def compile_ratio(translation: Translation, name: str, block: tuple[int, ...]) -> float:
    """How many times as long as usual machine code that counts takes to make."""
    shape = shape_of((*block, 1, 1)[:3])
    times: dict[type, list[float]] = {Bounds: [], Profiler: []}
    for _ in range(3):
        for instrument, found in times.items():
            start = time.thread_time()
            translation.compile(name, translation.globals(), shape, instrument)
            found.append(time.thread_time() - start)
    return min(times[Profiler]) / min(times[Bounds])


def main() -> None:
    torch.set_num_threads(1)
    report = Report("profiled", "What profiled launches cost")
    report.notes.append("Medians of rounds in which the two take turns; processor time of one thread, no compilation.")
    table = Table("CPU engine", ("kernel (one core each)", "usual launch", "profiled", "times", "compile time, times"))
    numbers = {}
    module = rawkern.RawModule(code=CODE)
    translation = Translation(compile_program(from_text(CODE), CPU_ARCH).ptx)
    for title, (name, grid, block, arguments) in launches().items():
        launch = getattr(module, name)[grid, block]
        usual, profiled = [], []
        for _ in range(ROUNDS + 1):  # the first compiles
            usual.append(timed(lambda launch=launch, arguments=arguments: launch(*arguments), 10))
            with rawkern.profile():
                profiled.append(timed(lambda launch=launch, arguments=arguments: launch(*arguments), 2))
        a, b = statistics.median(usual[1:]), statistics.median(profiled[1:])
        compiling = compile_ratio(translation, name, block)
        table.rows.append((title, f"{a * 1e3:.2g} ms", f"{b * 1e3:.2g} ms", f"{b / a:.1f}", f"{compiling:.2f}"))
        numbers[title] = {"usual": a, "profiled": b, "compile_ratio": compiling}
    report.add(table, numbers)
    report.write()


if __name__ == "__main__":
    main()
