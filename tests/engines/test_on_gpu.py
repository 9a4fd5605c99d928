"""The engine for GPUs on one."""

from __future__ import annotations

import os
import re
import signal
import threading
from typing import Any

import pytest
import torch

import rawkern
from rawkern.errors import LaunchError
from tests.engines.kit import values

ADD = r"""
extern "C" __global__ void add(int n, float a, const float* x, float* y) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a + x[i];
}"""


SPIN = r"""
extern "C" __global__ void spin(long long cycles, const float* x, float* y, int n) {
    long long start = clock64();
    while (clock64() - start < cycles) {}
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = 2.0f * x[i];
}"""


TILE = r"""
extern "C" __global__ void reverse(const float* x, float* y, int n) {
    extern __shared__ float tile[];
    for (int i = threadIdx.x; i < n; i += blockDim.x) tile[i] = x[i];
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x) y[i] = tile[n - 1 - i];
}"""


RANKS = r"""
#include <cooperative_groups.h>
namespace cg = cooperative_groups;
extern "C" __global__ void DIMS ranks(int* out) {
    __shared__ int mine;
    auto cluster = cg::this_cluster();
    if (threadIdx.x == 0) mine = blockIdx.x;
    cluster.sync();
    unsigned next = (cluster.block_rank() + 1) % cluster.num_blocks();
    if (threadIdx.x == 0) out[blockIdx.x] = *cluster.map_shared_rank(&mine, next);
    cluster.sync();
}"""


@pytest.mark.gpu
def test_launches_run_on_torchs_current_stream() -> None:
    spin = rawkern.RawKernel(SPIN)
    x = values()
    out = torch.full_like(x, float("nan"))
    spin.forall(x.numel())(1, x, out, x.numel())
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        first = torch.full_like(x, float("nan"))
        spin.forall(x.numel())(100_000_000, x, first, x.numel())
        second = torch.full_like(x, float("nan"))
        spin.forall(x.numel())(1, first, second, x.numel())  # ordered after the first, or it reads NaN
    assert not stream.query()
    stream.synchronize()
    torch.testing.assert_close(second, 4 * x)


@pytest.mark.gpu
def test_repeated_launches_follow_the_current_stream() -> None:
    spin = rawkern.RawKernel(SPIN)
    x = values()
    out = torch.full_like(x, float("nan"))
    for _ in range(4):
        spin.forall(x.numel())(1, x, out, x.numel())
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        spin.forall(x.numel())(100_000_000, x, out, x.numel())
    assert not stream.query() and torch.cuda.current_stream().query()
    torch.cuda.synchronize()


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["torch", "cupy"])
def test_stream_argument_and_recording(kind: str) -> None:
    spin = rawkern.RawKernel(SPIN)
    x = values()
    spin.forall(x.numel())(1, x, torch.empty_like(x), x.numel())
    if kind == "torch":
        side = torch.cuda.Stream()
    else:
        import cupy

        side = cupy.cuda.Stream(non_blocking=True)
    torch.cuda.synchronize()
    out = torch.full_like(x, float("nan"))
    torch.cuda.synchronize()
    source = x.clone()
    torch.cuda.synchronize()
    spin((4,), (256,), (100_000_000, source, out, x.numel()), stream=side)
    del source  # recorded on the stream: its memory is not given out while the kernel runs
    for _ in range(4):
        torch.full((x.numel(),), 1e30, device="cuda")
    torch.cuda.synchronize()
    torch.testing.assert_close(out, 2 * x)


@pytest.mark.gpu
def test_launch_returns_before_the_kernel_ends() -> None:
    spin = rawkern.RawKernel(SPIN)
    x = values()
    out = torch.empty_like(x)
    spin.forall(x.numel())(1, x, out, x.numel())
    torch.cuda.synchronize()
    spin.forall(x.numel())(200_000_000, x, out, x.numel())
    assert not torch.cuda.current_stream().query()
    torch.cuda.synchronize()


@pytest.mark.gpu
@pytest.mark.parametrize("warm", [1, 3])
def test_graph_capture_and_replay(warm: int) -> None:
    add = rawkern.RawKernel(ADD)
    x = values()
    out = torch.full_like(x, float("nan"))
    for _ in range(warm):
        add.forall(x.numel())(x.numel(), 1.5, x, out)
    out.fill_(float("nan"))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        add.forall(x.numel())(x.numel(), 1.5, x, out)
    assert out.isnan().all()
    graph.replay()
    torch.testing.assert_close(out, x + 1.5)
    x.mul_(2)
    graph.replay()
    torch.testing.assert_close(out, x + 1.5)


@pytest.mark.gpu
def test_first_launch_in_a_capture_says_warm_up() -> None:
    add = rawkern.RawKernel(ADD.replace("a + x", "a - x"))
    x = values()
    out = torch.empty_like(x)
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(LaunchError, match="warm up first"), torch.cuda.graph(graph):
        add.forall(x.numel())(x.numel(), 1.5, x, out)
    torch.cuda.synchronize()
    add.forall(x.numel())(x.numel(), 1.5, x, out)
    torch.testing.assert_close(out, 1.5 - x)


@pytest.mark.gpu
def test_big_shared_memory_up_to_the_devices_maximum() -> None:
    reverse = rawkern.RawKernel(TILE)
    most = torch.cuda.get_device_properties(0).shared_memory_per_block_optin
    n = most // 4
    x = values(n)
    out = torch.full_like(x, float("nan"))
    reverse[1, 256, n * 4](x, out, n)
    torch.testing.assert_close(out, x.flip(0))
    with pytest.raises(ValueError, match=rf"shared_mem is {most + 4} bytes, the maximum on sm_\d+ is {most} bytes"):
        reverse[1, 256, most + 4](x, out, n)


@pytest.mark.gpu
def test_a_thread_whose_first_cuda_call_is_a_launch() -> None:
    add = rawkern.RawKernel(ADD)
    x = values()
    outs = [torch.full_like(x, float("nan")) for _ in range(4)]
    add.forall(x.numel())(x.numel(), 0.0, x, torch.empty_like(x))
    torch.cuda.synchronize()
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for _ in range(2000):
                add.forall(x.numel())(x.numel(), float(number), x, outs[number])
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.cuda.synchronize()
    assert not errors
    for number, out in enumerate(outs):
        torch.testing.assert_close(out, x + number)


@pytest.mark.gpu
def test_first_launch_of_all_in_a_thread() -> None:
    add = rawkern.RawKernel(ADD.replace("a + x", "a * x"))
    x = values()
    out = torch.full_like(x, float("nan"))
    torch.cuda.synchronize()
    thread = threading.Thread(target=lambda: add.forall(x.numel())(x.numel(), 3.0, x, out))
    thread.start()
    thread.join()
    torch.cuda.synchronize()
    torch.testing.assert_close(out, 3 * x)


@pytest.mark.gpu
def test_a_forked_child_raises_as_torch_does() -> None:
    add = rawkern.RawKernel(ADD)
    x = values()
    out = torch.empty_like(x)
    add.forall(x.numel())(x.numel(), 0.0, x, out)
    torch.cuda.synchronize()
    read, write = os.pipe()
    child = os.fork()
    if not child:
        signal.alarm(60)
        try:
            add.forall(x.numel())(x.numel(), 0.0, x, out)
            os.write(write, b"launched")
        except BaseException as error:
            os.write(write, str(error).encode())
        os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    with os.fdopen(read, "rb") as file:
        assert b"Cannot re-initialize CUDA in forked subprocess" in file.read()


@pytest.mark.gpu
def test_memory_stays_flat() -> None:
    add = rawkern.RawKernel(ADD)
    x = values(2**22)
    out = torch.empty_like(x)
    add.forall(x.numel())(x.numel(), 0.0, x, out)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    for _ in range(10):
        add.forall(x.numel())(x.numel(), 0.0, x, out)
    torch.cuda.synchronize()
    assert torch.cuda.max_memory_allocated() == before


@pytest.mark.gpu
def test_cooperative_grid_sync() -> None:
    source = r"""
    #include <cooperative_groups.h>
    extern "C" __global__ void total(const int* x, int* parts, int* out, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) atomicAdd(&parts[blockIdx.x], x[i]);
        cooperative_groups::this_grid().sync();
        if (i == 0) { int s = 0; for (int b = 0; b < gridDim.x; b++) s += parts[b]; out[0] = s; }
    }"""
    total = rawkern.RawKernel(source, enable_cooperative_groups=True)
    x = torch.arange(-500, 4000, device="cuda", dtype=torch.int32)
    parts = torch.zeros(64, device="cuda", dtype=torch.int32)
    out = torch.full((1,), -1, device="cuda", dtype=torch.int32)
    total[64, 128](x, parts, out, x.numel())
    assert out.item() == x.sum().item()
    with pytest.raises(LaunchError, match="a cooperative launch needs all 1000000 blocks at once"):
        total[1000000, 128](x, parts, out, x.numel())


@pytest.mark.multigpu
def test_each_device_runs_its_own_tensors() -> None:
    add = rawkern.RawKernel(ADD)
    for _ in range(2):
        for index in (1, 0):
            x = values(device=f"cuda:{index}")
            out = torch.full_like(x, float("nan"))
            add.forall(x.numel())(x.numel(), float(index), x, out)
            assert torch.cuda.current_device() == 0
            torch.testing.assert_close(out, x + index)


@pytest.mark.multigpu
def test_threads_with_a_device_each_share_a_launcher() -> None:
    add = rawkern.RawKernel(ADD)
    xs = [values(device=f"cuda:{index}") for index in (0, 1)]
    outs = [torch.full_like(x, float("nan")) for x in xs]
    launch = add.forall(xs[0].numel())

    def work(index: int) -> None:
        torch.cuda.set_device(index)
        for i in range(500):
            launch(xs[index].numel(), float(index + i), xs[index], outs[index])

    threads = [threading.Thread(target=work, args=(index,)) for index in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for index in (0, 1):
        torch.testing.assert_close(outs[index], xs[index] + (index + 499))


@pytest.mark.multigpu
def test_tensors_on_two_devices_raise() -> None:
    add = rawkern.RawKernel(ADD)
    x = values(device="cuda:0")
    with pytest.raises(ValueError, match="cuda:1"):
        add.forall(x.numel())(x.numel(), 1.0, x, torch.empty_like(x, device="cuda:1"))


@pytest.mark.gpu
def test_clusters() -> None:
    """Blocks of a cluster read each other's shared memory, whether launch or source makes them clusters."""
    if torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("this GPU has no clusters")
    asked = rawkern.RawKernel(RANKS, options=("-DDIMS=",))
    given = rawkern.RawKernel(RANKS, options=("-DDIMS=__cluster_dims__(4,1,1)",))
    for kernel, size in ((asked.configured(cluster=2), 2), (asked.configured(cluster=16), 16), (given, 4)):
        for _ in range(3):  # on the slow path, then by native code
            out = torch.full((32,), -1, device="cuda", dtype=torch.int32)
            kernel[32, 64](out)
            assert out.tolist() == [block // size * size + (block + 1) % size for block in range(32)]
            with pytest.raises(ValueError, match=rf"grid.x is {size + 1}, and cluster.x is {size}"):
                kernel[size + 1, 64](out)
    out = torch.full((6,), -1, device="cuda", dtype=torch.int32)
    asked.configured(cluster=2).forall(5 * 64, block=64)(out)
    assert out.tolist() == [1, 0, 3, 2, 5, 4]
    with pytest.raises(ValueError, match=r"cluster is \(2, 1, 1\), and the source has __cluster_dims__\(4, 1, 1\)"):
        given.configured(cluster=2)[4, 64](out)
    whole = asked.configured(cluster=2, cooperative=True, programmatic=True)
    with pytest.raises(LaunchError, match="a cooperative launch needs all 1000000 blocks at once"):
        whole[1_000_000, 64](out)
    # Sixteen blocks that take all shared memory of a multiprocessor: where so many fit, they run.
    tile = rawkern.RawKernel(TILE).configured(cluster=16)
    x, y = torch.arange(64.0, device="cuda"), torch.zeros(64, device="cuda")
    try:
        tile[16, 64, 200 << 10](x, y, 64)
        assert y.tolist() == x.flip(0).tolist()
    except ValueError as error:
        assert re.search(r"cluster \(16, 1, 1\) has 16 blocks; .* at most \d+ of this kernel's fit", str(error))
    with pytest.raises(ValueError, match="shared_mem is 1048576 bytes"):
        tile[16, 64, 1 << 20](x, y, 64)


@pytest.mark.gpu
def test_clusters_in_graphs_and_autotune() -> None:
    if torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("this GPU has no clusters")
    kernel = rawkern.RawKernel(RANKS, options=("-DDIMS=",))
    pair = kernel.configured(cluster=2)
    out = torch.full((4,), -1, device="cuda", dtype=torch.int32)
    pair[4, 64](out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        pair[4, 64](out)
    out.fill_(-1)
    graph.replay()
    assert out.tolist() == [1, 0, 3, 2]
    tuned = rawkern.autotune(kernel, {"block": [32, 64], "cluster": [2, (4, 1)]})
    for _ in range(2):
        tuned[8](out := torch.full((8,), -1, device="cuda", dtype=torch.int32))
        assert out.tolist() in ([1, 0, 3, 2, 5, 4, 7, 6], [1, 2, 3, 0, 5, 6, 7, 4])


@pytest.mark.gpu
def test_programmatic_dependent_launches() -> None:
    """The second kernel begins while the first one spins, and waits for what it writes."""
    if torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("this GPU has no programmatic dependent launches")
    module = rawkern.RawModule(r"""
    #include <cuda_device_runtime_api.h>
    extern "C" __global__ void first(float* x, float value, int n) {
        cudaTriggerProgrammaticLaunchCompletion();
        long long start = clock64();
        while (clock64() - start < 1000000) {}
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) x[i] = value;
    }
    extern "C" __global__ void second(const float* x, float* y, int n) {
        cudaGridDependencySynchronize();
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) y[i] = 2 * x[i];
    }""")
    first, second = module.get_function("first"), module.get_function("second").configured(programmatic=True)
    x = torch.zeros(1000, device="cuda")
    for value in range(1, 9):  # on the slow path, then by native code
        y = torch.full_like(x, float("nan"))
        first.forall(1000)(x, value, 1000)
        second.forall(1000)(x, y, 1000)
        assert y.eq(2 * value).all()


@pytest.mark.gpu
def test_cooperative_launches_by_configured() -> None:
    """Blocks meet at the grid's barrier, in clusters as well where the GPU has them."""
    kernel = rawkern.RawKernel(r"""
    #include <cooperative_groups.h>
    extern "C" __global__ void rotate(const float* x, float* scratch, float* y) {
        int i = blockIdx.x * blockDim.x + threadIdx.x, n = gridDim.x * blockDim.x;
        scratch[i] = x[i];
        cooperative_groups::this_grid().sync();
        y[i] = scratch[(i + blockDim.x) % n];
    }""")
    ways: list[dict[str, Any]] = [{"cooperative": True}]
    if torch.cuda.get_device_capability() >= (9, 0):
        ways.append({"cooperative": True, "cluster": 4})
    x = values(32 * 64)
    for way in ways:
        for _ in range(3):
            y, scratch = torch.full_like(x, float("nan")), torch.full_like(x, float("nan"))
            kernel.configured(**way)[32, 64](x, scratch, y)
            torch.testing.assert_close(y, x.roll(-64), rtol=0, atol=0)
    with pytest.raises(LaunchError, match="all 1000000 blocks at once, cuda:0 holds") as caught:
        kernel.configured(cooperative=True)[1_000_000, 64](x, x, x)
    assert (caught.value.most_blocks or 0) in range(1, 1_000_000)
