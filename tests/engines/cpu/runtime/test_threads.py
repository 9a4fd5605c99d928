"""Launches from several threads, after a fork, from signal handlers, and with any number of worker threads."""

from __future__ import annotations

import os
import signal
import subprocess
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

import rawkern
from rawkern.errors import LaunchError
from tests import forked

CODE = r"""
#include <cassert>
extern "C" __global__ void affine(int n, int a, const int* x, int* out) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) out[i] = x[i] * a + i;
}
extern "C" __global__ void blocksum(int n, int a, const int* x, int* out) {
    __shared__ int s[128];
    int t = threadIdx.x, i = blockIdx.x * 128 + t;
    s[t] = i < n ? x[i] * a : 0;
    __syncthreads();
    for (int d = 64; d; d /= 2) { if (t < d) s[t] += s[t + d]; __syncthreads(); }
    if (t == 0) out[blockIdx.x] = s[0];
}
extern "C" __global__ void fails(int n, int a, const int* x, int* out) { assert(threadIdx.x != a); out[threadIdx.x] = a; }
extern "C" __global__ void prints(int a, const float* where) { if (threadIdx.x % 16 == 0) printf("%d %d\n", a, threadIdx.x); }
"""


@pytest.fixture
def module() -> rawkern.RawModule:
    return rawkern.RawModule(code=CODE)


def affine(x: torch.Tensor, a: int) -> torch.Tensor:
    return x * a + torch.arange(len(x), dtype=torch.int32, device=x.device)


def test_threads_launch_the_same_kernel(device, module):
    """Compiled once, by whichever comes first; each thread's arguments are its own."""
    barrier = threading.Barrier(8)

    def work(number: int) -> int:
        x = torch.arange(number * 100 + 10_000, dtype=torch.int32, device=device)
        barrier.wait()
        wrong = 0
        for r in range(60):
            out = torch.full_like(x, -1)
            module.affine[1 + r % 9, 96](len(x), number * 1000 + r, x, out)
            wrong += not torch.equal(out, affine(x, number * 1000 + r))
        return wrong

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(work, range(8))) == 0


def test_threads_launch_kernels_with_barriers(device, module):
    def work(number: int) -> int:
        x = torch.arange(128 * 40, dtype=torch.int32, device=device) + number
        wrong = 0
        for r in range(40):
            out = torch.full((40,), -1, dtype=torch.int32, device=device)
            module.blocksum[40, 128](len(x), r, x, out)
            wrong += not torch.equal(out, (x * r).view(40, 128).sum(1).int())
        return wrong

    with ThreadPoolExecutor(6) as pool:
        assert sum(pool.map(work, range(6))) == 0


def test_new_modules_in_several_threads(device):
    """Different kernels compile and run at a time."""

    def work(number: int) -> bool:
        kernel = rawkern.RawKernel(
            f'extern "C" __global__ void k{number}(int* o) {{ o[threadIdx.x] = threadIdx.x * {number} + {number % 3}; }}'
        )
        out = torch.full((50,), -1, dtype=torch.int32, device=device)
        kernel[1, 50](out)
        return out.tolist() == [t * number + number % 3 for t in range(50)]

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(work, range(1, 25)))


def test_failures_stay_in_their_thread(module):
    x = torch.zeros(4, dtype=torch.int32)

    def work(number: int) -> int:
        right = 0
        for r in range(20):
            out = torch.full((64,), -1, dtype=torch.int32)
            if number % 2:
                module.fails[1, 64](4, 64 + number, x, out)
                right += (out == 64 + number).all().item()
            else:
                with pytest.raises(LaunchError, match=rf"thread \({r},0,0\)"):
                    module.fails[1, 64](4, r, x, out)
                right += 1
        return right

    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(work, range(6))) == [20] * 6


def test_printf_from_several_threads(capfd, module):
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda a: module.prints[2, 40](a, torch.empty(1)), range(12)))
    lines = sorted(capfd.readouterr().out.splitlines())
    assert lines == sorted(f"{a} {t}" for a in range(12) for _ in range(2) for t in (0, 16, 32))


def test_a_thread_ends_and_another_comes(device, module):
    """What a thread keeps for its launches goes with it."""
    x = torch.arange(500, dtype=torch.int32, device=device)
    for r in range(30):
        out = torch.full_like(x, -1)
        thread = threading.Thread(target=lambda r=r, out=out: module.affine[4, 64](500, r, x, out))
        thread.start()
        thread.join()
        assert torch.equal(out, affine(x, r))


# Worker threads -----------------------------------------------------------------------------------------------------------


def test_results_do_not_depend_on_the_number_of_workers(module):
    """Also where the order of blocks can be seen: each block's work is the same, and all blocks run."""
    x = torch.arange(128 * 700 - 31, dtype=torch.int32)
    floats = torch.randn(100_003, generator=torch.Generator().manual_seed(1))
    code = r"""extern "C" __global__ void k(int n, const float* x, float* out) {
        __shared__ float s[256];
        int t = threadIdx.x; float v = 0;
        for (int i = blockIdx.x * 256 + t; i < n; i += gridDim.x * 256) v += x[i] * x[i];
        s[t] = v;
        __syncthreads();
        for (int d = 128; d; d /= 2) { if (t < d) s[t] += s[t + d]; __syncthreads(); }
        if (t == 0) out[blockIdx.x] = s[0];
    }"""
    kernel = rawkern.RawKernel(code)
    before = torch.get_num_threads()
    seen = []
    try:
        for threads in (1, 2, 3, 7, 1, 16):
            torch.set_num_threads(threads)
            a, b, c = torch.full_like(x, -1), torch.full((700,), -1, dtype=torch.int32), torch.full((37,), float("nan"))
            for _ in range(3):
                module.affine[311, 128](len(x), 3, x, a)
                module.blocksum[700, 128](len(x), 2, x, b)
                kernel[37, 256](len(floats), floats, c)
            seen.append((a, b, c))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(seen[0][0], affine(x, 3))
    padded = torch.nn.functional.pad(x.long() * 2, (0, 31)).view(700, 128).sum(1)
    assert torch.equal(seen[0][1], padded.int())
    for a, b, c in seen[1:]:
        assert torch.equal(a, seen[0][0]) and torch.equal(b, seen[0][1]) and torch.equal(c, seen[0][2])


def test_blocks_of_one_launch_run_on_several_cores():
    """Two blocks that wait for each other need both to run, on one core or on more."""
    code = r"""extern "C" __global__ void k(int* flags) {
        if (threadIdx.x == 0) {
            atomicExch(flags + blockIdx.x, 1);
            while (atomicAdd(flags + (blockIdx.x ^ 1), 0) == 0) { }
        }
    }"""
    kernel = rawkern.RawKernel(code)
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            flags = torch.zeros(16, dtype=torch.int32)
            kernel[16, 32](flags)
            assert (flags == 1).all()
    finally:
        torch.set_num_threads(before)


@pytest.mark.rawkern_unchecked("of launches on several threads, which checked ones are not")
def test_workers_without_openmp(module, monkeypatch):
    """Where no OpenMP runtime is loaded, threads are started for the launch, and for each time that it goes on."""
    from rawkern.engines.cpu.runtime import grid, threads

    started = []
    run = threads.run_threads
    for place in (grid, threads):
        monkeypatch.setattr(place, "openmp", lambda: 0)
        monkeypatch.setattr(place, "run_threads", lambda *args: (started.append(args[2]), run(*args)))
    before = torch.get_num_threads()
    x = torch.arange(128 * 700 - 31, dtype=torch.int32)
    try:
        torch.set_num_threads(3)
        for _ in range(4):
            a, b = torch.full_like(x, -1), torch.full((700,), -1, dtype=torch.int32)
            module.affine[311, 128](len(x), 3, x, a)
            module.blocksum[700, 128](len(x), 2, x, b)
            assert torch.equal(a, affine(x, 3))
            assert torch.equal(b, torch.nn.functional.pad(x.long() * 2, (0, 31)).view(700, 128).sum(1).int())
    finally:
        torch.set_num_threads(before)
    assert started and set(started) == {3}


# Forks and signals ---------------------------------------------------------------------------------------------------------------


def run_python(code: str, timeout: float = 60, environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        [*forked.python(), "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout,
        check=False, env=os.environ | (environment or {}),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_a_forked_child_runs_kernels():
    """Compiled before the fork or after it, large launches too. (torch itself must not use its threads in the child.)"""
    output = run_python(f"""
        import os
        import numpy as np
        import torch
        import rawkern
        module = rawkern.RawModule(code={CODE!r})
        x = torch.arange(200_000, dtype=torch.int32)
        torch.set_num_threads(2)

        def right(a):
            out = torch.from_numpy(np.full(len(x), -1, np.int32))
            module.affine[400, 256](len(x), a, x, out)
            return bool((out.numpy() == x.numpy() * a + x.numpy()).all())

        assert right(3)
        for first in (False, True):
            child = os.fork()
            if child == 0:
                ok = right(5)
                if first:
                    out = torch.from_numpy(np.full(1563, -1, np.int32))
                    module.blocksum[1563, 128](len(x), 1, x, out)
                    ok = ok and int(out.numpy().astype("int64").sum()) == sum(range(200_000))
                os._exit(0 if ok else 1)
            assert os.waitpid(child, 0)[1] == 0, first
            assert right(7)
        print("done")
    """)
    assert output.endswith("done\n")


def test_a_child_forked_while_other_threads_compile():
    """The child finds no lock taken, neither rawkern's nor one inside the compilers."""
    output = run_python("""
        import os
        import threading
        import time
        import torch
        import rawkern

        def source(name, count):
            body = "".join(f"x[i] = x[i] * {k}.5f + sinf(x[i]);" for k in range(count))
            return f'extern "C" __global__ void {name}(float* x) {{ int i = threadIdx.x; {body} }}'

        def compile_and_run(name, count=3):
            x = torch.zeros(32)
            rawkern.RawKernel(source(name, count))[1, 32](x)
            return bool((x == 0).all())

        assert compile_and_run("first")
        shared = rawkern.RawKernel(source("shared", 4))
        threads = [threading.Thread(target=compile_and_run, args=(f"large{k}", 4)) for k in range(2)]
        threads.append(threading.Thread(target=lambda: shared[1, 32](torch.zeros(32))))
        for t in threads:
            t.start()
        forks = 0
        while any(t.is_alive() for t in threads) or forks == 0:
            child = os.fork()
            if child == 0:
                x = torch.zeros(32)
                shared[1, 32](x)
                os._exit(0 if compile_and_run(f"child{forks}") and bool((x == 0).all()) else 1)
            assert os.waitpid(child, 0)[1] == 0
            forks += 1
            time.sleep(0.05)
        print("done")
    """)
    assert output.endswith("done\n")


def test_a_child_forked_while_other_threads_take_memory_from_the_device_heap():
    """One of them holds its lock most of the time."""
    output = run_python("""
        import os
        import threading
        import torch
        import rawkern

        kernel = rawkern.RawKernel('''extern "C" __global__ void k(int n, int* x) {
            for (int i = 0; i < n; ++i) { int* p = (int*)malloc(8); *p = i; x[blockIdx.x * 32 + threadIdx.x] += *p; free(p); }
        }''')

        def launch():
            x = torch.zeros(128, dtype=torch.int32)
            kernel[4, 32](200, x)
            return bool((x == 19900).all())

        def busy():
            while not stop:
                launch()

        stop = []
        assert launch()
        thread = threading.Thread(target=busy)
        thread.start()
        for _ in range(20):
            child = os.fork()
            if child == 0:
                os._exit(0 if launch() else 1)
            assert os.waitpid(child, 0)[1] == 0
        stop.append(True)
        thread.join()
        print("done")
    """)
    assert output.endswith("done\n")


def test_a_forked_child_of_a_pool_runs_kernels(module):
    """The child of a process whose other threads launch."""
    x = torch.arange(5000, dtype=torch.int32)
    stop = threading.Event()

    def busy() -> None:
        out = torch.empty_like(x)
        while not stop.is_set():
            module.affine[4, 64](5000, 2, x, out)

    module.affine[4, 64](5000, 2, x, torch.empty_like(x))  # a fork while another thread imports cannot be fixed here
    thread = threading.Thread(target=busy)
    thread.start()
    try:
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                out = torch.from_numpy(np.full(5000, -1, np.int32))
                module.affine[4, 64](5000, 9, x, out)
                good = bool((out.numpy() == x.numpy() * 9 + np.arange(5000)).all())
                os.write(write, b"good" if good else b"bad!")
            finally:
                os._exit(0)
        os.close(write)
        assert os.read(read, 4) == b"good"
        os.close(read)
        os.waitpid(child, 0)
    finally:
        stop.set()
        thread.join()


def test_a_signal_handler_launches():
    """The handler runs between two slices of a long kernel, and may launch that very kernel."""
    output = run_python("""
        import signal
        import torch
        import rawkern
        kernel = rawkern.RawKernel('''extern "C" __global__ void k(long long rounds, unsigned* out) {
            unsigned v = threadIdx.x; volatile unsigned* o = out;
            for (long long r = 0; r < rounds && o[64] == 0; r++) v = v * 1664525u + 1013904223u;
            out[threadIdx.x] = v;
        }''')
        outer, inner = torch.zeros(65, dtype=torch.int32), torch.zeros(65, dtype=torch.int32)
        calls = []

        def handler(number, frame):
            kernel[1, 64](10, inner)
            calls.append(1)
            if len(calls) == 3:
                outer[64] = 1                # lets the interrupted kernel end
                signal.setitimer(signal.ITIMER_REAL, 0)

        kernel[1, 64](3, outer)
        outer.zero_()
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.2, 0.1)
        kernel[1, 64](10**15, outer)
        v = torch.arange(64)
        for _ in range(10):
            v = (v * 1664525 + 1013904223) % 2**32
        print(len(calls), (inner[:64].long() % 2**32 == v).all().item(), (outer[:64] != 0).all().item())
    """)
    assert output == "3 True True\n"


def test_an_exception_from_a_signal_handler_ends_the_kernel(module):
    """As a timeout does; the same kernel works afterwards."""
    kernel = rawkern.RawKernel(
        'extern "C" __global__ void k(volatile int* x) { __shared__ int s; s = 0; while (x[0] == 0) { __syncthreads(); } x[1] = 1; }'
    )

    class Timeout(Exception):
        pass

    def handler(number, frame):
        raise Timeout

    x = torch.zeros(2, dtype=torch.int32)
    old = signal.signal(signal.SIGALRM, handler)
    try:
        for _ in range(3):
            signal.setitimer(signal.ITIMER_REAL, 0.15)
            with pytest.raises(Timeout):
                kernel[3, 64](x)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
    x[0] = 1
    kernel[3, 64](x)
    assert x[1].item() == 1


def test_other_python_threads_run_meanwhile():
    """A long kernel does not hold the interpreter."""
    kernel = rawkern.RawKernel('extern "C" __global__ void k(volatile int* x) { while (x[0] == 0) { } }')
    x = torch.zeros(1, dtype=torch.int32)
    kernel.forall(0)(x)
    thread = threading.Thread(target=kernel[2, 32], args=(x,))
    thread.start()
    x[0] = 1  # only reached if the launch let go
    thread.join(20)
    assert not thread.is_alive()


def test_fewer_threads_than_asked_for():
    """OpenMP has a limit of its own; the workers that get no thread run after the others, now and when they go on."""
    code = r"""
        import torch, rawkern
        torch.set_num_threads(3)
        module = rawkern.RawModule(code=r'''
        extern "C" __global__ void square(int n, const float* x, float* y) {
            int i = blockIdx.x * blockDim.x + threadIdx.x;
            if (i < n) y[i] = x[i] * x[i];
        }
        extern "C" __global__ void slow(int turns, int* out) {
            __shared__ int s;
            if (threadIdx.x == 0) s = 0;
            __syncthreads();
            int v = threadIdx.x;
            for (int k = 0; k < turns; k++) v = v * 1664525 + 1013904223;
            atomicAdd(&s, v);
            __syncthreads();
            if (threadIdx.x == 0) out[blockIdx.x] = s;
        }''')
        x = torch.randn(1 << 20)
        y = torch.empty_like(x)
        for _ in range(4):
            module.square.forall(len(x))(len(x), x, y)
            assert torch.equal(y, x * x)
        out = torch.empty(6, dtype=torch.int32)
        for turns in (1000, 10_000_000):
            for _ in range(2):
                out.fill_(-1)
                module.slow[6, 64](turns, out)
                assert len(set(out.tolist())) == 1 and out[0] != -1, out
    """
    assert run_python(code, environment={"OMP_THREAD_LIMIT": "1"}) == ""


def test_a_child_forked_while_another_thread_computes_a_property():
    """Python 3.11's own has one lock for all instances."""
    output = run_python("""
        import os
        import threading
        from rawkern.base.forking import cached_property

        begun, go_on = threading.Event(), threading.Event()

        class Kept:
            @cached_property
            def value(self):
                if threading.current_thread() is not threading.main_thread():
                    begun.set()
                    go_on.wait()
                return object()

        other = Kept()
        thread = threading.Thread(target=lambda: other.value)
        thread.start()
        begun.wait()
        child = os.fork()
        if child == 0:
            kept = Kept()
            os._exit(0 if kept.value is kept.value else 1)
        assert os.waitpid(child, 0)[1] == 0
        go_on.set()
        thread.join()
        assert other.value is other.value
        print("done")
    """)
    assert output.strip().endswith("done")
