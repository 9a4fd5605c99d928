"""Profiled launches do what launches do, are counted once in each profile that is on, and fail as ever."""

from __future__ import annotations

import os
import threading

import pytest
import torch

import rawkern
from rawkern.launch import intercept

SCALE = """
__device__ int calls;
__constant__ float factor = 2;
extern "C" __global__ void scale(float* x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] *= factor;
  if (i == 0) calls++;
}
extern "C" __global__ void beyond(float* x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  x[i] += 1;
}
extern "C" __global__ void indirect(float** x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i % 2][i / 2] += 1;
}
extern "C" __global__ void shuffled(float* x, const long long* at, int n) {
  __shared__ float s[256];
  s[threadIdx.x * 7 % 256] = threadIdx.x;
  __syncthreads();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    if (at[i] % 3) atomicAdd(&x[at[i]], s[at[i] % 256]);
}
"""


@pytest.fixture(scope="module")
def module():
    return rawkern.RawModule(SCALE)


def test_results_are_those_of_launches_without_a_profile(device, module):
    x = torch.arange(100.0, device=device)
    expected = x * 2
    before = x._version
    with rawkern.profile() as report:
        module.get_function("scale").forall(100)(x, 100)
    assert torch.equal(x, expected)
    assert x._version > before
    assert report["scale"].counters["l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"] == 13 + 1
    (launch,) = report.as_dict()["launches"]
    assert launch["distinct_sectors"] == {"x": 13, "variables": 1}
    assert launch["device"].startswith(device)
    assert ("milliseconds" in launch) == (device == "cuda")


def test_variables_are_those_of_all_launches(device):
    module = rawkern.RawModule(SCALE)
    x = torch.ones(4, device=device)
    calls = module.get_global("calls", device=device)
    module.get_global("factor", device=device).fill_(5)
    module.get_function("scale")[1, 32](x, 4)
    with rawkern.profile():
        module.get_function("scale")[1, 32](x, 4)
    assert torch.equal(x.cpu(), torch.full((4,), 25.0))
    assert calls.item() == 2
    if device == "cuda":  # those for the CPU are left alone
        assert module.get_global("calls", device="cpu").item() == 0


def test_a_launch_is_in_each_active_profile(module):
    x, scale = torch.ones(64), module.get_function("scale")
    with rawkern.profile() as outer:
        scale[2, 32](x, 64)
        with rawkern.profile() as inner:
            scale[2, 32](x, 64)
        scale[2, 32](x, 64)
    scale[2, 32](x, 64)
    assert (len(outer), len(inner)) == (3, 1)
    assert torch.equal(x, torch.full((64,), 16.0))
    assert not intercept.active()
    twice = rawkern.profile()
    with twice, pytest.raises(RuntimeError, match="this profile is already active"), twice:
        pass
    assert not intercept.active()
    with rawkern.profile() as empty:
        pass
    assert str(empty) == "no launch was profiled"


def test_operators_formulas_and_backward_passes_are_counted(device):
    scaled = rawkern.elementwise("float32 a, float32 x", "float32 y", "y = a * x * x", "scaled")
    x = torch.randn(1000, device=device, requires_grad=True)
    with rawkern.profile() as report:
        scaled(3.0, x).sum().backward()
        rawkern.gelu(x).sum().backward()
    assert len(report) >= 4
    assert all(each.sectors for each in report)
    assert x.grad is not None


def test_a_fault_is_reported_as_checks_do_and_loses_no_counts(module):
    x, beyond = torch.zeros(40), module.get_function("beyond")
    with rawkern.profile() as report:
        module.get_function("scale")[2, 32](x, 40)
        with pytest.raises(rawkern.OutOfBoundsError, match=r"x\[40\]") as found:
            beyond[2, 32](x, 40)
        beyond[1, 32](x, 40)
    assert "line 11" in str(found.value) or ":11" in str(found.value)
    assert [each.name for each in report] == ["scale", "beyond"]
    assert report["beyond"].sectors == 8


def test_counts_are_the_same_for_any_number_of_threads(module):
    shuffled = module.get_function("shuffled")
    at = torch.randint(0, 5000, (20000,), generator=torch.Generator().manual_seed(3))
    found, usual = [], torch.get_num_threads()
    for threads in (1, 2, 5):
        torch.set_num_threads(threads)
        with rawkern.profile() as report:
            shuffled[40, 256](torch.zeros(5000), at, 20000)
        found.append(report.as_dict(instructions=True))
    torch.set_num_threads(usual)
    assert found[0] == found[1] == found[2]
    assert found[0]["launches"][0]["counters"]["atomic_conflicts"] > 400


def test_counts_are_the_same_in_any_order_and_at_any_level(module):
    shuffled = module.get_function("shuffled")
    at = torch.randint(0, 500, (2000,), generator=torch.Generator().manual_seed(4))
    found = []
    for setting in (rawkern.check(level="bounds"), rawkern.check(level="off"), rawkern.order(3)):
        with setting, rawkern.profile() as report:
            shuffled[10, 256](torch.zeros(500), at, 2000)
        found.append(report.as_dict(instructions=True))
    assert found[0] == found[1] == found[2]


def test_launches_of_several_threads_are_each_counted_right(module):
    scale, tensors = module.get_function("scale"), [torch.ones(3200) for _ in range(4)]

    def launch(x: torch.Tensor) -> None:
        for _ in range(5):
            scale[100, 32](x, 3200)

    with rawkern.profile() as report:
        threads = [threading.Thread(target=launch, args=(x,)) for x in tensors]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(report) == 20
    counts = [
        launch["lines"][6]["l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"] for launch in report.as_dict()["launches"]
    ]
    assert set(counts) == {400}
    assert all(torch.equal(x, torch.full((3200,), 32.0)) for x in tensors)


def test_a_forked_child_counts_for_itself(module):
    x, scale = torch.ones(64), module.get_function("scale")
    with rawkern.profile() as report:
        scale[2, 32](x, 64)
        child = os.fork()
        if not child:
            try:
                scale[2, 32](x, 64)
                os._exit(0 if len(report) == 2 else 1)
            finally:
                os._exit(2)
        assert os.waitpid(child, 0)[1] == 0
    assert len(report) == 1


def test_addresses_in_tensors_are_followed(module):
    a, b = torch.zeros(16), torch.zeros(16)
    with rawkern.profile() as report:
        module.get_function("indirect")[1, 32]([a, b], 32)
    assert torch.equal(a + b, torch.full((16,), 2.0))
    assert sum(report.as_dict()["launches"][0]["distinct_sectors"].values()) == 2 + 2 + 1


def test_other_hooks_get_the_launch_as_well(module):
    seen, x = [], torch.ones(64)

    def hook(launch: intercept.Launch) -> None:
        seen.append(x.clone())
        launch.proceed()

    with intercept.intercepted(hook), rawkern.profile() as report:
        module.get_function("scale")[2, 32](x, 64)
    assert len(report) == 1
    assert torch.equal(seen[0], torch.ones(64))
    assert torch.equal(x, torch.full((64,), 2.0))


def test_nothing_is_counted_of_an_empty_launch(module):
    with rawkern.profile() as report:
        module.get_function("scale").forall(0)(torch.ones(4), 0)
    assert len(report) == 0


@pytest.mark.gpu
def test_a_captured_launch_raises(module):
    x, scale = torch.ones(64, device="cuda"), module.get_function("scale")
    scale[2, 32](x, 64)
    raises = pytest.raises(rawkern.LaunchError, match="a CUDA graph captures cannot be profiled")
    with rawkern.profile(), raises, torch.cuda.graph(torch.cuda.CUDAGraph()):
        scale[2, 32](x, 64)
