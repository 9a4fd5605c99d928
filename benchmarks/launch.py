"""What a launch costs the host, what bandwidth kernels reach, how long an edit takes: on a GPU if there is one.

Every contender is tried by itself: one that is not installed, or fails, has its error in the table.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import struct
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import rawkern
from benchmarks import rivals, sources
from benchmarks.harness import Report, Table, Timing, compare, failed, gpu_sample, sample, scaled, summary, timing_table
from benchmarks.rivals import BLOCK, BUILT, CUDA, GRID, LOAD, OWN, RIVALS, TORCH, Make, N

FOLDER = f"rawkern_benchmark_{time.time_ns()}"  # of load_inline's build, so that an edit finds what was built before
BUILT = BUILT | {LOAD: functools.partial(rivals.load_inline, name=FOLDER)}
OWN_TEXT = "rawkern, a new source text"
COMPILING: dict[str, Callable[..., Callable[[], Any]]] = {
    "cupy.RawKernel": rivals.cupy_pointers,
    "torch.cuda._compile_kernel": rivals.torch_compile_kernel,
    "cuda.core": rivals.cuda_core,
}

DEVICE = "cuda" if CUDA else "cpu"

# Launches of c = a * b ----------------------------------------------------------------------------------------


def finish() -> None:
    """Wait for the GPU, if there is one."""
    if CUDA:
        torch.cuda.synchronize()


def checked(make: Make) -> Callable[[], Any]:
    """Build a contender and see that its product is right."""
    a, b = torch.randn(N, device=DEVICE), torch.randn(N, device=DEVICE)
    c = torch.full_like(a, float("nan"))
    run = make(a, b, c)
    run()
    finish()
    if not torch.equal(c, a * b):
        raise RuntimeError("wrong result")
    return run


def launches(report: Report, rounds: int, builds: bool) -> dict[str, float]:
    """Host time of a launch by each contender; return the seconds that it took to build those that run nvcc."""
    makes: dict[str, Make] = {TORCH: rivals.torch_mul, **OWN, **(RIVALS if CUDA else {}), **(BUILT if builds else {})}
    contenders, broken, seconds = built({name: lambda make=make: checked(make) for name, make in makes.items()})
    x = torch.randn(N, device=DEVICE)
    more, errors, _ = built({"rawkern.square(x)": lambda: own_square(x), "torch.square(x)": lambda: lambda: x.square()})
    timings = compare(
        contenders | more, baseline=TORCH, rounds=rounds, seconds=0.003, most_calls=500, timer=launch_time
    )
    order = [*makes, "torch.square(x)", "rawkern.square(x)"]
    timings |= broken | errors
    goal = {"rawkern: k[g, b](...)": "4.5 us" if CUDA else "ratio 10"}
    what = f"Host time of one launch: three float32 tensors of {N} element{'s' * CUDA} and an int, {DEVICE}"
    note = "The last two allocate their result." + (
        "" if CUDA else " On the CPU a launch ends with the kernel's end; both with one thread."
    )
    report.add(timing_table(what, {name: timings[name] for name in order}, note, goal), timings)
    return {name: seconds[name] for name in BUILT if name in contenders}


def addresses(report: Report, rounds: int) -> None:
    """Launches on the CPU whose pointers are in a struct or a table, with the default checks and without."""
    module = rawkern.RawModule(sources.ADDRESSES)
    for n in (256, 65536):
        tensors = [torch.randn(n) for _ in range(3)] + [torch.empty(n)]
        packed = struct.pack("<QQQQi4x", *(t.data_ptr() for t in tensors), n)
        table = torch.tensor([t.data_ptr() for t in tensors])
        members = dict(zip("abcyn", (*tensors, n), strict=True))
        given = {
            "plain": ("plain", *tensors, n), "packed": ("packed", packed), "dict": ("packed", members),
            "table": ("table", table, n), "list": ("list", tensors, n),
        }  # fmt: skip
        runs = {
            name: functools.partial(module.get_function(kernel)[-(-n // 256), 256], *args)
            for name, (kernel, *args) in given.items()
        }
        want = tensors[0] + tensors[1] * tensors[2]
        for name, run in runs.items():
            tensors[3].fill_(float("nan"))
            run()
            if not torch.allclose(tensors[3], want, atol=1e-5):
                raise RuntimeError(f"wrong result of {name}")

        def timer(run: Callable[[], Any], calls: int) -> float:
            level, launch = run()
            with rawkern.check(level=level):
                launch()
                return sample(launch, calls)

        for name, run in runs.items():
            pairs = {f"{name}, {level}": functools.partial(tuple, (level, run)) for level in ("off", "bounds")}
            timings = compare(pairs, baseline=f"{name}, off", rounds=rounds, most_calls=200, timer=timer)
            goal = {f"{name}, bounds": "1.5"}
            report.add(timing_table(f"Pointers, {name}, {n} elements, by checks", timings, goal=goal), timings)


def signatures(report: Report, rounds: int) -> None:
    """The launches after the first of kernels with lists of parameter types that no launch has had before."""
    types = ("const float*", "int", "double", "short", "unsigned", "float", "const int*", "long long")
    x, whole = torch.zeros(4, device=DEVICE), torch.zeros(4, dtype=torch.int32, device=DEVICE)
    given = {"const float*": x, "const int*": whole}
    timings: dict[str, Timing] = {}
    for count in (3, 13, 41):
        taken: dict[str, list[float]] = {"second": [], "slowest of the next 200": []}
        for _ in range(rounds):
            number = time.time_ns()
            params = ["float*", *(types[number >> 3 * k % 48 & 7] for k in range(count - 1))]
            text = ", ".join(f"{t} a{k}" for k, t in enumerate(params))
            run = rawkern.RawKernel(f'extern "C" __global__ void k{number}({text}) {{}}')[1, 32]
            args = [x, *(given.get(t, 1) for t in params[1:])]
            run(*args)
            finish()
            times = [launch_time(lambda run=run, args=args: run(*args), 1) for _ in range(201)]
            taken["second"].append(times[0])
            taken["slowest of the next 200"].append(max(times[1:]))
        timings |= {f"{count} arguments, {name}": summary(values) for name, values in taken.items()}
    goals = dict.fromkeys(timings, "5 ms")
    report.add(timing_table("Launches with a new list of parameter types", timings, goal=goals), timings)


def own_square(x: torch.Tensor) -> Callable[[], Any]:
    if not torch.equal(rawkern.square(x), x * x):
        raise RuntimeError("wrong result")
    return lambda: rawkern.square(x)


def built(
    makes: dict[str, Callable[[], Callable[[], Any]]],
) -> tuple[dict[str, Callable[[], Any]], dict[str, Timing], dict[str, float]]:
    """Build each contender; those that cannot be built, with their errors; the seconds that the others took."""
    contenders, errors, seconds = {}, {}, {}
    for name, make in makes.items():
        start = time.perf_counter()
        try:
            contenders[name] = make()
        except Exception as error:
            errors[name] = failed(error)
        seconds[name] = time.perf_counter() - start
    return contenders, errors, seconds


def launch_time(run: Callable[[], Any], calls: int) -> float:
    """Seconds per call on the host's clock, without the time that the GPU needs to catch up."""
    return sample(run, calls, finish)


# Bandwidth ----------------------------------------------------------------------------------------------------


def bandwidth(report: Report, rounds: int, n: int) -> None:
    x = torch.randn(n, device=DEVICE)
    y, want = torch.full_like(x, float("nan")), x * x

    def launch(source: str, threads: int) -> Callable[[], Any]:
        run = rawkern.RawKernel(source).forall(threads)
        y.fill_(float("nan"))
        run(n, x, y)
        if not torch.equal(y, want):
            raise RuntimeError("wrong result")
        return lambda: run(n, x, y)

    def square() -> Callable[[], Any]:
        if not torch.equal(rawkern.square(x), want):
            raise RuntimeError("wrong result")
        return lambda: rawkern.square(x)

    def through_triton() -> Callable[[], Any]:
        from benchmarks import triton_kernels

        k: Any = triton_kernels.square
        return lambda: k[(-(-n // 1024),)](x, y, n, BLOCK=1024)

    copy = "y.copy_(x)"
    contenders, errors, _ = built(
        {
            copy: lambda: lambda: y.copy_(x),
            "torch.mul(x, x, out=y)": lambda: lambda: torch.mul(x, x, out=y),
            "torch.square(x)": lambda: lambda: torch.square(x),
            "rawkern.square(x)": square,
            "RawKernel, one float per thread": lambda: launch(sources.SQUARE, n),
            "RawKernel, one float4 per thread": lambda: launch(sources.SQUARE4, n // 4),
            "Triton": through_triton,
        }
    )
    timings = compare(contenders, baseline=copy, rounds=rounds, most_calls=10, timer=gpu_sample) | errors
    table = Table(f"square of {n} float32 on the GPU", ("", "GB/s", "median", "time by that of copy_"))
    for name, timing in timings.items():
        if timing.error:
            table.rows.append((name, timing.error, "", ""))
        else:
            table.rows.append(
                (name, f"{8 * n / timing.median / 1e9:.0f}", scaled(timing.median), f"{timing.ratio:.2f}")
            )
    report.add(table, timings)


# Edit to result -----------------------------------------------------------------------------------------------


def edits(report: Report, rounds: int, builds: dict[str, float]) -> None:
    """Time from source text, or a saved edit, to the first result; no text is used twice, so no cache has it.

    `builds` are the seconds that contenders took to be built for the first time, from an empty folder.
    """
    a, b = torch.randn(N, device=DEVICE), torch.randn(N, device=DEVICE)
    c, want = torch.empty_like(a), a * b
    fresh = itertools.count(time.time_ns() % 1_000_000)

    def edited() -> str:
        # other machine code as well: NVRTC keeps that of the same code under another text
        return sources.MULTIPLY.replace("i < n", f"i < n && n != -{next(fresh)}")

    def timed(run: Callable[[], Any]) -> float:
        c.fill_(float("nan"))
        finish()
        start = time.perf_counter()
        run()
        finish()
        elapsed = time.perf_counter() - start
        if not torch.equal(c, want):
            raise RuntimeError("wrong result")
        return elapsed

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "multiply.cu"
        path.write_text(edited())
        k = rawkern.load(path).multiply

        def own_file() -> float:
            path.write_text(edited())
            time.sleep(0.12)  # files are looked at every 100 ms, an editor's user takes longer
            return timed(lambda: k[GRID, BLOCK](a, b, c, N))

        cases: dict[str, tuple[Callable[[], float], int]] = {
            OWN_TEXT: (lambda: timed(lambda: rawkern.RawKernel(edited())[GRID, BLOCK](a, b, c, N)), rounds),
            "rawkern, the launch after an edit of the .cu file": (own_file, rounds),
        }
        for name, make in COMPILING.items() if CUDA else ():
            again = lambda make=make: timed(lambda: make(a, b, c, source=edited())())  # noqa: E731
            cases[f"{name}, a new source text"] = (again, rounds)
        if LOAD in builds:
            again = lambda: timed(lambda: rivals.load_inline(a, b, c, source=edited(), name=FOLDER)())  # noqa: E731
            cases[f"{LOAD}, an edit of the CUDA source"] = (again, 1)
        timings = {name: repeated(run, count) for name, (run, count) in cases.items()}
    timings |= {f"{name}, first build": summary([seconds]) for name, seconds in builds.items()}
    report.add(timing_table("Edit to first result", timings), timings)


def repeated(run: Callable[[], float], rounds: int) -> Timing:
    try:
        if rounds > 1:
            run()
        return summary([run() for _ in range(rounds)])
    except Exception as error:
        return failed(error)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--no-nvcc", action="store_true", help="leave out what runs nvcc, which takes a minute")
    parser.add_argument("--log2n", type=int, default=28, help="elements of the bandwidth table, as a power of two")
    options = parser.parse_args()
    report = Report("launch-gpu", "Launches on the GPU") if CUDA else Report("launch-cpu", "Launches on the CPU")
    if not CUDA:
        torch.set_num_threads(1)
        report.notes.append("This machine has no GPU: the launches are the CPU engine's.")
    builds: dict[str, float] = {}
    parts: list[Callable[[], None]] = [
        lambda: builds.update(launches(report, options.rounds, CUDA and not options.no_nvcc)),
        (lambda: bandwidth(report, options.rounds, 1 << options.log2n))
        if CUDA
        else (lambda: addresses(report, options.rounds)),
        lambda: signatures(report, 5),
        lambda: edits(report, 9, builds),
    ]
    for part in parts:
        report.settle(5 if CUDA else 20)
        try:
            part()
        except Exception as error:
            report.notes.append(f"A part failed: {failed(error).error}")
            print(report.notes[-1], flush=True)
    report.write()


if __name__ == "__main__":
    main()
