"""Machine code in memory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

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
    done = subprocess.run([sys.executable, "-c", FAR_APART, how], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
