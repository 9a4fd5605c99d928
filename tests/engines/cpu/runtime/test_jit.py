"""Machine code in memory."""

from __future__ import annotations

import gc
import os
import subprocess
from pathlib import Path

import pytest
import torch

import rawkern
from rawkern.base import llvm
from rawkern.base.llvm import FULL, QUICK
from rawkern.engines.cpu.runtime import jit
from tests import forked

FAR_APART = r'''
import ctypes, mmap, sys
import torch, rawkern

libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def reserved(size):
    return libc.mmap(None, size, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)


def kernel(more):  # code of several pages, constants of one
    return rawkern.RawKernel(r"""
extern "C" __global__ void k(float* x, int n) {
    __shared__ float s[64];
    for (int i = 0; i < n; i++) {
        s[threadIdx.x] = erff(x[threadIdx.x]) + powf(i, 1.7f) + MORE;
        __syncthreads();
        x[threadIdx.x] = s[63 - threadIdx.x] * 0.125f;
        __syncthreads();
    }
}""", options=(f"-DMORE={more}",))


x, again = torch.arange(64.0), torch.arange(64.0)
kernel("3.0f")[1, 64](x, 3)  # all libraries are there
if sys.argv[1] == "checked":
    rawkern.check().__enter__()
single = [reserved(mmap.PAGESIZE) for _ in range(400)]
large = reserved(6 << 30)
while reserved(2 * mmap.PAGESIZE) > large:
    pass
for address in single[::2]:  # pages for constants that are free above the large area; for the code there is room below
    libc.munmap(address, mmap.PAGESIZE)
kernel("(1.0f + 2.0f)")[1, 64](again, 3)
assert torch.equal(x, again)
'''


@pytest.mark.parametrize("how", ["usual", "checked"])
def test_code_and_constants_lie_together(how: str, tmp_path: Path) -> None:
    """Also where other libraries leave single free pages more than 2 GB away, as CUDA's do."""
    environment = os.environ | {"RAWKERN_CACHE_DIR": str(tmp_path)}
    tmp_path.chmod(0o700)
    done = subprocess.run([*forked.python(), "-c", FAR_APART, how], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


def test_quick_code_has_the_same_results(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is compiled beside the other, which stays in the cache."""
    compiled, efforts = jit.object_file, []
    monkeypatch.setattr(jit, "object_file", lambda *args, **more: efforts.append(args[4:]) or compiled(*args, **more))
    x, found = torch.linspace(-3, 3, 1000), {}
    for effort in (FULL, QUICK):
        kernel = rawkern.RawKernel(
            r"""extern "C" __global__ void quick(const float* x, float* y, int n) {
                __shared__ float s[64];
                int i = blockIdx.x * 64 + threadIdx.x;
                s[threadIdx.x] = i < n ? expf(x[i]) / 3 : 0;
                __syncthreads();
                for (int k = 0; k < (i & 15); k++) s[threadIdx.x] += s[threadIdx.x] * 0.1f;
                if (i < n) y[i] = s[threadIdx.x] + sinf(x[i]);
            }"""
            + f"// {effort}"
        )
        found[effort] = torch.empty_like(x)
        with llvm.optimization.scoped(effort):
            kernel[16, 64](x, found[effort], 1000)
        assert (effort,) in efforts
        efforts.clear()
    assert torch.equal(found[FULL], found[QUICK])
    with pytest.raises(ValueError, match="RAWKERN_OPTIMIZE is '1'; it is 2, for fast kernels, or 0"):
        llvm.parse_effort("1", llvm.OPTIMIZE)


@pytest.mark.parametrize("enabled", [True, False])
def test_no_garbage_is_looked_for_while_code_is_lowered(monkeypatch: pytest.MonkeyPatch, enabled: bool) -> None:
    """And as before afterwards, also after an error."""
    seen: list[bool] = []

    def lower(*args: object) -> None:
        seen.append(gc.isenabled())
        raise KeyError

    monkeypatch.setattr("rawkern.engines.cpu.emit.program.lower", lower)
    was, kernel = gc.isenabled(), rawkern.RawKernel('extern "C" __global__ void garbage(float* y) { y[7] = 1; }')
    try:
        (gc.enable if enabled else gc.disable)()
        with pytest.raises(KeyError):
            kernel[1, 32](torch.zeros(8))
        assert seen == [False] and gc.isenabled() == enabled
    finally:
        (gc.enable if was else gc.disable)()
