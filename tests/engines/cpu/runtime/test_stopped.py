"""Launches that are ended from outside, by a limit of time or Ctrl-C, say where their warps are."""

from __future__ import annotations

import re
import signal
import subprocess
import textwrap
import time

import pytest
import torch

import rawkern
from tests import forked

#: Bodies, and what is said of the 100 warps of a launch; the first loop has no line.
SPINS = "a loop that waits for other threads"
ENDLESS = {
    "plain_loop": (
        "unsigned i = 1; while (i) i += 2; x[0] = i;",
        "1 warp computing, in a loop: an unknown source line",
    ),
    "spin": (
        "while (atomicAdd(x, 0) == 0) { }",
        rf"100 warps in {SPINS}: .*line 3 \(warp [01] of block \(\d+,0,0\) and others\)",
    ),
    "is_volatile": ("while (*(volatile int*)x == 0) { }", rf"100 warps in {SPINS}: .*line 4"),
    "one_lane": (
        "if (threadIdx.x == 5) while (*(volatile int*)x == 0) { } __syncthreads();",
        rf"(?s)50 warps in {SPINS}: .*line 5 .*50 warps at a barrier: .*line 5",
    ),
    "barriers": (
        "while (__syncthreads_or(threadIdx.x == 3)) { }",
        r"1 warp (computing, in a loop|at a barrier): .*line 6 \(warp [01] of block \(\d+,0,0\)\)",
    ),
    "called": ("endless(x);", r"1 warp computing, in a loop: .*line 1 \(warp [01] of"),
    "data": (
        "int i = threadIdx.x; while (x[i & 63] == 0) i = i * 5 + 1; x[0] = i;",
        r"1 warp computing, in a loop: .*line 8 \(warp [01] of",
    ),
}
SOURCE = (
    "__device__ __noinline__ void endless(int* x) {"
    " unsigned i = x[1]; do { i = i * 3 + 1; } while (i != 7 || x[0] == 0); x[2] = i; }\n"
) + "\n".join(f'extern "C" __global__ void {name}(int* x) {{ {body} }}' for name, (body, _) in ENDLESS.items())


@pytest.fixture(scope="module")
def module() -> rawkern.RawModule:
    return rawkern.RawModule(SOURCE)


@pytest.mark.parametrize("name", ENDLESS)
@pytest.mark.timeout(20)
def test_a_time_limit_ends_an_endless_kernel(module, name):
    kernel, x = module.get_function(name), torch.zeros(64, dtype=torch.int32)
    for _ in range(2):
        start = time.perf_counter()
        with rawkern.time_limit(0.1), pytest.raises(rawkern.LaunchTimeoutError, match=r"longer than 0\.1 s") as caught:
            kernel[50, 64](x)
        assert time.perf_counter() - start < 10  # with compiling
        assert str(caught.value).startswith(
            f"{name}: the launch takes longer than 0.1 s (rawkern.time_limit); its warps are\n"
        )
        assert re.search(ENDLESS[name][1], str(caught.value)), caught.value
    if name not in ("plain_loop", "barriers", "called"):
        with rawkern.time_limit(10):
            kernel[50, 64](x.fill_(1))  # those that look at it end


def run_python(code: str) -> subprocess.Popen:
    return subprocess.Popen([*forked.python(), "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("threads", ["OpenMP's", "started for it"])
@pytest.mark.timeout(30)
def test_an_interrupt_ends_endless_kernels(threads):
    """Also in a forked child, which has no threads of OpenMP's."""
    process = run_python(f"""
        import os
        import signal
        import torch
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs start with it ignored
        import rawkern
        if {threads == "started for it"} and (child := os.fork()):
            signal.signal(signal.SIGINT, lambda *_: os.kill(child, signal.SIGINT))
            os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        module = rawkern.RawModule({SOURCE!r})
        square = rawkern.RawKernel('extern "C" __global__ void sq(float* x) {{ x[threadIdx.x] *= x[threadIdx.x]; }}')
        for name in {list(ENDLESS)}:
            kernel, x = module.get_function(name), torch.zeros(64, dtype=torch.int32)
            try:
                with rawkern.time_limit(0.01):
                    kernel[50, 64](x)  # the signal is to meet the launch, not the compiler
            except rawkern.LaunchTimeoutError:
                print("ready", flush=True)
            try:
                kernel[50, 64](x)
                print("ended by itself")
            except KeyboardInterrupt as error:
                print("interrupted", *error.__notes__, sep="; ", end="; ")
            y = torch.arange(64.0)
            square[1, 64](y)
            print((y == torch.arange(64.0) ** 2).all().item(), end=" end\\n", flush=True)
    """)
    try:
        assert process.stdout is not None
        for name, (_, where) in ENDLESS.items():
            assert process.stdout.readline() == "ready\n"
            time.sleep(0.1)
            assert process.poll() is None
            process.send_signal(signal.SIGINT)
            start, text = time.perf_counter(), ""
            while not text.endswith("end\n") and process.poll() is None:
                text += process.stdout.readline()
            assert time.perf_counter() - start < 2
            assert text.startswith(f"interrupted; {name}: the launch was stopped; its warps were\n") and text.endswith(
                "True end\n"
            )
            assert re.search(where, text), text
        assert process.wait(10) == 0
    finally:
        process.kill()
        process.wait()
