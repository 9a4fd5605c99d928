"""Kernels that run, from one thread and several."""

from __future__ import annotations

import os
import pickle
import re
import signal
import threading
import types
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import rawkern
from rawkern.errors import CompileError
from rawkern.launch import launcher
from tests.kernel.kit import MANY, SAXPY, Recorder, one_file, write, xy


def test_saxpy_in_every_form(device: str) -> None:
    kernel = rawkern.RawKernel(SAXPY)
    n = 1003
    x, y = xy(n, device)
    expected = y.double() + 2.5 * x.double()
    launches: list[Callable[[torch.Tensor], None]] = [
        lambda out: kernel[(n + 127) // 128, 128](n, 2.5, x, out),
        lambda out: kernel.forall(n)(n, 2.5, x, out),
        lambda out: kernel.forall(n, block=100)(n, 2.5, x, out),
        lambda out: kernel(((n + 63) // 64,), (64,), (n, 2.5, x, out)),
        lambda out: kernel[8, 128](y=out, n=n, x=x, a=2.5),
    ]
    for launch in launches:
        out = y.clone()
        launch(out)
        torch.testing.assert_close(out.double(), expected, rtol=1e-6, atol=1e-6)


def test_nothing_to_do_succeeds(device: str) -> None:
    kernel = rawkern.RawKernel(SAXPY)
    empty = torch.empty(0, device=device)
    kernel.forall(0)(0, 2.0, empty, empty)
    x, y = xy(5, device)
    before = y.clone()
    kernel.forall(0)(5, 2.0, x, y)
    assert torch.equal(y, before)


def test_templates_overloads_and_namespaces_run(device: str) -> None:
    many = rawkern.RawModule(MANY)
    x, y = xy(37, device, torch.float64)
    out = y.clone()
    many.get_function("axpy<double, 4>")[1, 64](0.25, x, out, 37)
    torch.testing.assert_close(out, y + x)
    out = x.clone()
    many.get_function("scale(double*, double, int)")[1, 64](out, -3.0, 37)
    torch.testing.assert_close(out, -3 * x)
    out = torch.full((37,), float("nan"), device=device)
    many.fill[1, 64](out, 1.5, 30)
    assert (out[:30] == 1.5).all() and out[30:].isnan().all()


def test_an_instance_whose_name_has_the_architecture_in_it(device: str) -> None:
    """As those with arguments of cub's types, which live in an inline namespace that is named for the architecture."""
    kernel = rawkern.RawKernel(
        r"""
#define JOINED(a, b) a##b
#define FOR(a, b) JOINED(a, b)
namespace lib { inline namespace FOR(sm_, __CUDA_ARCH_LIST__) { enum Mode { ONE = 1, TWO }; } }
template <lib::Mode M> __global__ void fill(float* x) { x[threadIdx.x] = M; }""",
        "fill<lib::TWO>",
    )
    x = torch.zeros(5, device=device)
    kernel[1, 5](x)
    assert x.tolist() == [2] * 5
    with rawkern.check():
        kernel[1, 5](x)
    state = kernel.state()
    symbols = {state.entry_in(state.build.program(arch, state.asked)).symbol for arch in ("compute_80", "sm_90")}
    assert len(symbols) == 2 and state.entry.symbol in symbols


@pytest.mark.parametrize("default", ["cpu", "meta"])
def test_the_default_device_means_nothing_to_launches(device: str, default: str) -> None:
    """Neither a table of pointers, nor numbers that torch rounds, nor checked launches depend on it."""
    kernel = rawkern.RawKernel(r"""
#include <cuda_fp8.h>
extern "C" __global__ void add(const float* const* parts, __nv_fp8_e4m3 s, float* x, int n) {
    int i = threadIdx.x;
    if (i < n) x[i] = parts[0][i] + parts[1][i] * float(s);
}""")
    a, b, x = torch.arange(3.0, device=device), torch.ones(3, device=device), torch.zeros(3, device=device)
    with torch.device(default):
        kernel[1, 32]([a, b], 1.5, x, 3)
        with rawkern.check():
            kernel[1, 32]([a, b], 1.5, x, 3)
    assert x.tolist() == [1.5, 2.5, 3.5]


def test_dynamic_shared_memory(device: str) -> None:
    kernel = rawkern.RawKernel(
        r"""extern "C" __global__ void reverse(const float* x, float* y) {
            extern __shared__ float tile[];
            tile[threadIdx.x] = x[blockIdx.x * blockDim.x + threadIdx.x];
            __syncthreads();
            y[blockIdx.x * blockDim.x + threadIdx.x] = tile[blockDim.x - 1 - threadIdx.x];
        }"""
    )
    x, _ = xy(96 * 5, device)
    y = torch.full_like(x, float("nan"))
    kernel[5, 96, 96 * 4](x, y)
    torch.testing.assert_close(y, x.view(5, 96).flip(1).reshape(-1))


def test_shared_memory_over_the_limit(device: str) -> None:
    kernel = rawkern.RawKernel(SAXPY)
    x, y = xy(37, device)
    with pytest.raises(ValueError, match=r"saxpy: shared_mem is 100000000 bytes, the maximum on sm_\d+ is \d+ bytes"):
        kernel[1, 64, 100_000_000](37, 2.0, x, y)


def test_attributes(device: str) -> None:
    attributes = rawkern.RawKernel(SAXPY).attributes
    assert set(attributes) >= {
        "num_regs",
        "shared_size_bytes",
        "local_size_bytes",
        "const_size_bytes",
        "max_threads_per_block",
        "ptx_version",
    }
    assert attributes["max_threads_per_block"] == 1024
    assert attributes["shared_size_bytes"] == 0
    kernel = rawkern.RawKernel(SAXPY)
    for name in ("num_regs", "shared_size_bytes", "local_size_bytes", "const_size_bytes", "max_threads_per_block"):
        assert getattr(kernel, name) == attributes[name]
    assert kernel.ptx_version == attributes["ptx_version"] and kernel.binary_version == attributes["binary_version"]
    kernel.max_dynamic_shared_size_bytes = 1 << 16  # type: ignore[attr-defined]  # what CuPy needs does no harm


def test_a_module_compiles_when_it_is_told_to() -> None:
    module = rawkern.RawModule(SAXPY)
    module.compile()
    assert module.unit.current().compiled_for()
    with pytest.raises(CompileError, match="expected a"):
        rawkern.RawModule(SAXPY + "}").compile()
    with pytest.raises(CompileError, match=r"name an instance of k, such as k<float>"):
        rawkern.RawModule("template <class T> __global__ void k(T* x) {}").compile()


def test_edit_and_rerun(device: str, tmp_path: Path) -> None:
    path = one_file(tmp_path)
    times = rawkern.load(path).times
    x, _ = xy(37, device)
    for factor in ("2", "-0.25f", "1e3f"):
        write(tmp_path / "factor.h", f"#define FACTOR {factor}\n")
        y = torch.full_like(x, float("nan"))
        times[1, 64](x, y, 37)
        torch.testing.assert_close(y, float(factor.rstrip("f")) * x)
    write(path, path.read_text().replace("FACTOR * x[i]", "x[i] - FACTOR"))
    times[1, 64](x, y, 37)
    torch.testing.assert_close(y, x - 1000.0)


def test_threads_get_their_own_results(device: str) -> None:
    kernel = rawkern.RawKernel(SAXPY)
    n = 501
    x, _ = xy(n, device)
    outs = [torch.zeros(n, device=device) for _ in range(6)]
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for _ in range(100):
                kernel.forall(n)(n, float(number), x, outs[number])
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    for number, out in enumerate(outs):
        torch.testing.assert_close(out, 100.0 * number * x, rtol=1e-4, atol=1e-4)


def test_a_pickled_kernel_runs(device: str) -> None:
    kernel = pickle.loads(pickle.dumps(rawkern.RawKernel(SAXPY)))
    x, y = xy(37, device)
    out = y.clone()
    kernel.forall(37)(37, -1.5, x, out)
    torch.testing.assert_close(out, y - 1.5 * x)


def test_launches_bump_versions(device: str) -> None:
    kernel = rawkern.RawKernel(SAXPY)
    x, y = xy(37, device)
    versions = x._version, y._version
    kernel.forall(37)(37, 2.0, x, y)
    assert (x._version, y._version) == (versions[0], versions[1] + 1)


@pytest.mark.parametrize("warm", [0, 3])
def test_torch_compile_breaks_the_graph_at_a_launch_and_nowhere_else(device: str, warm: int) -> None:
    import torch._dynamo as dynamo

    dynamo.reset()
    dynamo.utils.counters.clear()
    kernel = rawkern.RawKernel(SAXPY)

    @torch.compile(backend="eager")
    def shifted(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = y + 1
        kernel.forall(x.numel())(x.numel(), -0.5, x, out)
        return out * 2

    for n in (37, 41):
        x, y = xy(n, device)
        for _ in range(warm):
            kernel.forall(n)(n, 1.0, x, y.clone())
        torch.testing.assert_close(shifted(x, y), (y + 1 - 0.5 * x) * 2)
    breaks = list(dynamo.utils.counters["graph_break"])
    assert breaks and all("wrap it in rawkern.op" in reason for reason in breaks)
    assert not dynamo.utils.counters["unimplemented"]


def test_a_stream_means_nothing_on_the_cpu() -> None:
    kernel = rawkern.RawKernel(SAXPY)
    x, y = xy()
    for stream in (torch.cpu.current_stream(), types.SimpleNamespace(__cuda_stream__=lambda: (0, 7))):
        out = y.clone()
        kernel((1,), (64,), (37, 0.75, x, out), stream=stream)
        torch.testing.assert_close(out, y + 0.75 * x)
    for wrong in (3, 0, True, "default", object()):
        with pytest.raises(TypeError, match=r"stream is (the integer|a)"):
            kernel((1,), (64,), (37, 0.75, x, out), stream=wrong)
    torch.testing.assert_close(out, y + 0.75 * x)


def test_a_kernel_after_a_fork() -> None:
    """The CPU engine works in a forked child."""
    kernel = rawkern.RawKernel(SAXPY)
    n = 100_000
    x, y = xy(n)
    expected = (y + 2.0 * x).numpy()
    kernel.forall(n)(n, 0.0, x, y)
    read, written = os.pipe()
    child = os.fork()
    if not child:
        signal.alarm(60)
        try:
            kernel.forall(n)(n, 2.0, x, y)
            # NumPy compares: torch's own threads do not survive a fork.
            os.write(written, b"right" if np.allclose(y.numpy(), expected) else b"wrong")
        except BaseException as error:
            os.write(written, repr(error).encode())
        os._exit(0)
    os.close(written)
    os.waitpid(child, 0)
    with os.fdopen(read, "rb") as file:
        assert file.read() == b"right"


@pytest.mark.rawkern_unchecked("the checker's own memory is not what this measures")
def test_peak_memory_stays_flat_on_the_cpu() -> None:
    kernel = rawkern.RawKernel(SAXPY)
    n = 2**24
    x, y = xy(n)
    kernel.forall(n)(n, 0.0, x, y)

    def peak() -> int:
        text = Path("/proc/self/status").read_text()
        return int(re.search(r"VmHWM:\s+(\d+) kB", text)[1]) * 1024  # type: ignore[index]

    try:
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak to what is in use
    except OSError:
        pytest.skip("this kernel does not let the peak be reset")
    before = peak()
    for _ in range(3):
        kernel.forall(n)(n, 0.0, x, y)
    assert peak() - before < x.nbytes // 4


@pytest.mark.gpu
def test_both_engines_agree() -> None:
    source = r"""
    extern "C" __global__ void mix(const float* x, const int* k, float* y, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        float v = i < n ? x[i] : 0.0f;
        for (int s = 16; s > 0; s >>= 1) v += __shfl_xor_sync(0xffffffffu, v, s);
        if (i < n) y[i] = (k[i] % 3 == 0 ? v : x[i] * 0.5f) + (float)(k[i] / 7);
    }"""
    kernel = rawkern.RawKernel(source)
    x = torch.randn(10_007)
    k = torch.randint(-1000, 1000, (10_007,), dtype=torch.int32)
    out = {}
    for device in ("cpu", "cuda"):
        out[device] = torch.full((10_007,), float("nan"), device=device)
        kernel.forall(10_007)(x.to(device), k.to(device), out[device], 10_007)
    torch.testing.assert_close(out["cuda"].cpu(), out["cpu"])


def test_repeated_launches_go_through_one_function(recorder: Recorder) -> None:
    kernel = rawkern.RawKernel(SAXPY)
    x, y = xy()
    held = kernel[1, 64]
    for count in range(1, 6):
        kernel[1, 64](37, 2.0, x, y)
        held(37, 2.0, x, y)
        kernel.forall(37)(37, 2.0, x, y)
        kernel((1,), (64,), (37, 2.0, x, y), stream=torch.cpu.current_stream())
        assert len(recorder.launches) == 4 * count
    repeated = kernel[1, 64]
    repeated(37, 2.0, y=y, x=x)
    repeated(np.int32(37), 2, x, y)
    assert {one["values"] for one in recorder.launches} == {(37, 2.0, x.data_ptr(), y.data_ptr())}
    with pytest.raises(TypeError, match="saxpy takes 4 arguments, 3 were given"):
        repeated(37, 2.0, x)
    with pytest.raises(ValueError, match="is not contiguous"):
        held(37, 2.0, x[::2], y)
    with pytest.raises(OverflowError, match="out of range for int"):
        repeated(2**31, 2.0, x, y)
    with pytest.raises(TypeError, match="takes 4 arguments, 5 were given"):
        repeated(37, 2.0, x, y, y)


def test_repeated_launches_with_null_pointers(recorder: Recorder) -> None:
    kernel, (x, y) = rawkern.RawKernel(SAXPY), xy()
    for _ in range(7):
        kernel[1, 64](37, 2.0, x, y)
        kernel[1, 64](37, 2.0, x[:0], y)
        kernel[1, 64](37, 2.0, None, y)
        values = [launch["values"][2] for launch in recorder.launches[-3:]]
        assert values == [x.data_ptr(), 0, 0]
    (target,) = kernel[1, 64].plan.built[1].values()
    assert target.native >= 3 * 7 - 2  # the first two find out what native code needs to know
    kernel[1, 64](37, 2.0, None, None)
    with pytest.raises(TypeError, match="argument 1 'n' is None"):
        kernel[1, 64](None, 2.0, None, y)
    with pytest.raises(TypeError, match="argument 4 'y' is float64"):
        kernel[1, 64](37, 2.0, None, y.double())


def test_kernels_see_null_pointers(device: str) -> None:
    kernel = rawkern.RawKernel(
        'extern "C" __global__ void k(const float* x, float* y, int n) '
        "{ int i = threadIdx.x; if (i < n) y[i] = x ? x[i] : -1.5f; }"
    )
    x, y = xy(device=device)
    for _ in range(4):
        kernel[1, 64](None, y, 37)
        assert y.tolist() == [-1.5] * 37
        kernel[1, 64](x, y, 37)
        assert torch.equal(x, y)
        kernel[1, 64](x[:0], y, 37)
        assert y.tolist() == [-1.5] * 37


def test_repeated_launches_see_an_edited_file(recorder: Recorder, tmp_path: Path) -> None:
    path = write(tmp_path / "saxpy.cu", SAXPY)
    kernel = rawkern.load(path).saxpy
    x, y = xy()
    first = kernel[1, 64]
    for _ in range(4):
        kernel[1, 64](37, 2.0, x, y)
    held = kernel[1, 64]
    write(path, SAXPY.replace("int n, float a", "float a, int n"))
    launches = len(recorder.launches)
    for count in range(1, 5):
        for launch in (first, held, kernel[1, 64]):
            launch(2.0, 37, x, y)
            assert recorder.launches[-1]["values"] == (2.0, 37, x.data_ptr(), y.data_ptr())
        assert len(recorder.launches) == launches + 3 * count
    with pytest.raises(TypeError, match="'n' is the float 2"):
        held(2.0, 2.5, x, y)


def test_forall_of_a_pair_is_no_n_and_block(recorder: Recorder) -> None:
    kernel = rawkern.RawKernel(SAXPY)
    kernel.forall(37, block=64)
    with pytest.raises(TypeError):
        kernel.forall((37, 64))  # type: ignore[arg-type]


def test_a_launcher_says_what_it_is(recorder: Recorder) -> None:
    kernel = rawkern.RawKernel(SAXPY, "saxpy")
    assert repr(kernel[2, 64]).startswith("<launch of saxpy, LaunchConfig(grid=(2, 1, 1), block=(64, 1, 1)")
    assert isinstance(kernel[2, 64], launcher.Launcher)
