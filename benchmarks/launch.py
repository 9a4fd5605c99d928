"""What a launch costs the host, what bandwidth kernels reach, how long an edit takes: on a GPU if there is one.

Every contender is tried by itself: one that is not installed, or fails, has its error in the table.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import rawkern
from benchmarks import sources
from benchmarks.harness import Report, Table, Timing, compare, failed, sample, scaled, summary, timing_table

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
N = 1024 if CUDA else 1  # elements of a launch: few, so that the GPU is done before the host has launched the next
BLOCK = 256
GRID = -(-N // BLOCK)
Make = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], Callable[[], Any]]

# Launches of c = a * b ----------------------------------------------------------------------------------------


def own_index(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> Callable[[], Any]:
    k = rawkern.RawKernel(sources.MULTIPLY)
    return lambda: k[GRID, BLOCK](a, b, c, N)


def own_forall(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> Callable[[], Any]:
    k = rawkern.RawKernel(sources.MULTIPLY)
    return lambda: k.forall(N)(a, b, c, N)


def own_cupy_form(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> Callable[[], Any]:
    k = rawkern.RawKernel(sources.MULTIPLY)
    return lambda: k((GRID,), (BLOCK,), (a, b, c, N))


def own_settled(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> Callable[[], Any]:
    launch = rawkern.RawKernel(sources.MULTIPLY)[GRID, BLOCK]
    return lambda: launch(a, b, c, N)


def torch_mul(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> Callable[[], Any]:
    return lambda: torch.mul(a, b, out=c)


def cupy_dlpack(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> Callable[[], Any]:
    import cupy
    import numpy

    k = cupy.RawKernel(sources.MULTIPLY, "multiply")
    of: Callable[[Any], Any] = cupy.cuda.Stream.from_external
    if not hasattr(torch.cuda.Stream, "__cuda_stream__"):  # an older torch

        def of(stream: torch.cuda.Stream) -> Any:
            return cupy.cuda.ExternalStream(stream.cuda_stream)

    def run() -> None:
        with of(torch.cuda.current_stream()):
            arrays = [cupy.from_dlpack(tensor) for tensor in (a, b, c)]
            k((GRID,), (BLOCK,), (*arrays, numpy.int32(N)))

    return run


def cupy_pointers(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> Callable[[], Any]:
    import cupy
    import numpy

    k = cupy.RawKernel(sources.MULTIPLY, "multiply")
    n = numpy.int32(N)
    return lambda: k((GRID,), (BLOCK,), (a.data_ptr(), b.data_ptr(), c.data_ptr(), n))


def torch_compile_kernel(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> Callable[[], Any]:
    make = getattr(torch.cuda, "_compile_kernel", None) or torch.cuda.compile_kernel  # type: ignore[attr-defined]
    k = make(sources.MULTIPLY, "multiply")
    return lambda: k((GRID, 1, 1), (BLOCK, 1, 1), [a, b, c, N])


def triton(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> Callable[[], Any]:
    from benchmarks import triton_kernels

    k: Any = triton_kernels.multiply
    return lambda: k[(GRID,)](a, b, c, N, BLOCK=BLOCK)


LOAD_INLINE = (
    r"""
#include <torch/extension.h>
#include <c10/cuda/CUDAStream.h>
"""
    + sources.MULTIPLY
    + r"""
void launch(torch::Tensor a, torch::Tensor b, torch::Tensor c, int64_t n) {
    multiply<<<(n + 255) / 256, 256, 0, c10::cuda::getCurrentCUDAStream()>>>(
        a.data_ptr<float>(), b.data_ptr<float>(), c.data_ptr<float>(), (int)n);
}
"""
)


def load_inline(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> Callable[[], Any]:
    from torch.utils.cpp_extension import load_inline as build

    module = build(
        name=f"rawkern_benchmark_{time.time_ns()}",
        cpp_sources="void launch(torch::Tensor a, torch::Tensor b, torch::Tensor c, int64_t n);",
        cuda_sources=LOAD_INLINE,
        functions=["launch"],
    )
    return lambda: module.launch(a, b, c, N)


OWN: dict[str, Make] = {
    "rawkern: k[g, b](...)": own_index,
    "rawkern: k.forall(n)(...)": own_forall,
    "rawkern: k((g,), (b,), (...))": own_cupy_form,
    "rawkern: launch = k[g, b]; launch(...)": own_settled,
}
RIVALS: dict[str, Make] = {
    "cupy.RawKernel, cupy.from_dlpack of each tensor, torch's stream": cupy_dlpack,
    "cupy.RawKernel, data_ptr() ints (nothing checked, CuPy's stream)": cupy_pointers,
    "torch.cuda._compile_kernel": torch_compile_kernel,
    "Triton": triton,
}
TORCH = "torch.mul(a, b, out=c)"


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


def launches(report: Report, rounds: int, inline: bool) -> None:
    makes: dict[str, Make] = {TORCH: torch_mul, **OWN}
    if CUDA:
        makes |= RIVALS | ({"load_inline (C++)": load_inline} if inline else {})
    contenders, broken = built({name: lambda make=make: checked(make) for name, make in makes.items()})
    x = torch.randn(N, device=DEVICE)
    more, errors = built({"rawkern.square(x)": lambda: own_square(x), "torch.square(x)": lambda: lambda: x.square()})
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


def own_square(x: torch.Tensor) -> Callable[[], Any]:
    if not torch.equal(rawkern.square(x), x * x):
        raise RuntimeError("wrong result")
    return lambda: rawkern.square(x)


def built(makes: dict[str, Callable[[], Callable[[], Any]]]) -> tuple[dict[str, Callable[[], Any]], dict[str, Timing]]:
    """Build each contender; those that cannot be built, with their errors."""
    contenders, errors = {}, {}
    for name, make in makes.items():
        try:
            contenders[name] = make()
        except Exception as error:
            errors[name] = failed(error)
    return contenders, errors


def launch_time(run: Callable[[], Any], calls: int) -> float:
    """Seconds per call on the host's clock, without the time that the GPU is behind."""
    return sample(run, calls, finish)


# Bandwidth ----------------------------------------------------------------------------------------------------


def device_time(run: Callable[[], Any], calls: int) -> float:
    """Seconds per call on the GPU's clock."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(calls):
        run()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1000 / calls


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
    contenders, errors = built(
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
    timings = compare(contenders, baseline=copy, rounds=rounds, most_calls=10, timer=device_time) | errors
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


def edits(report: Report, rounds: int, inline: bool) -> None:
    """Time from source text, or a saved edit, to the first result; no text is used twice, so no cache has it."""
    a, b = torch.randn(N, device=DEVICE), torch.randn(N, device=DEVICE)
    c = torch.full_like(a, float("nan"))
    fresh = itertools.count(time.time_ns() % 1_000_000)

    def edited() -> str:
        return sources.MULTIPLY.replace("a[i] * b[i]", f"a[i] * b[i] + 0.0f * {next(fresh)}.0f")

    def own() -> float:
        start = time.perf_counter()
        rawkern.RawKernel(edited())[GRID, BLOCK](a, b, c, N)
        finish()
        return time.perf_counter() - start

    def through_cupy() -> float:
        import cupy
        import numpy

        start = time.perf_counter()
        cupy.RawKernel(edited(), "multiply")(
            (GRID,), (BLOCK,), (a.data_ptr(), b.data_ptr(), c.data_ptr(), numpy.int32(N))
        )
        finish()
        return time.perf_counter() - start

    def through_torch() -> float:
        make = getattr(torch.cuda, "_compile_kernel", None) or torch.cuda.compile_kernel  # type: ignore[attr-defined]
        start = time.perf_counter()
        make(edited(), "multiply")((GRID, 1, 1), (BLOCK, 1, 1), [a, b, c, N])
        finish()
        return time.perf_counter() - start

    def through_load_inline() -> float:
        start = time.perf_counter()
        load_inline(a, b, c)()
        finish()
        return time.perf_counter() - start

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "multiply.cu"
        path.write_text(edited())
        k = rawkern.load(path).multiply

        def own_file() -> float:
            path.write_text(edited())
            time.sleep(0.12)  # files are looked at every 100 ms, an editor's user takes longer
            start = time.perf_counter()
            k[GRID, BLOCK](a, b, c, N)
            finish()
            return time.perf_counter() - start

        cases: dict[str, tuple[Callable[[], float], int]] = {
            "rawkern, a new source text": (own, rounds),
            "rawkern, the launch after an edit of the .cu file": (own_file, rounds),
        }
        if CUDA:
            cases["cupy.RawKernel, a new source text"] = (through_cupy, rounds)
            cases["torch.cuda._compile_kernel, a new source text"] = (through_torch, rounds)
        if CUDA and inline:
            cases["load_inline"] = (through_load_inline, 1)
        timings = {name: repeated(run, count) for name, (run, count) in cases.items()}
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
    parser.add_argument("--load-inline", action="store_true", help="compare with load_inline, which takes minutes")
    parser.add_argument("--log2n", type=int, default=28, help="elements of the bandwidth table, as a power of two")
    options = parser.parse_args()
    report = Report("launch-gpu", "Launches on the GPU") if CUDA else Report("launch-cpu", "Launches on the CPU")
    if not CUDA:
        torch.set_num_threads(1)
        report.notes.append("This machine has no GPU: the launches are the CPU engine's.")
    parts: list[Callable[[], None]] = [lambda: launches(report, options.rounds, options.load_inline)]
    if CUDA:
        parts.append(lambda: bandwidth(report, options.rounds, 1 << options.log2n))
    parts.append(lambda: edits(report, 5, options.load_inline))
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
