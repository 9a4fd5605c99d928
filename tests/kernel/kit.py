"""Kernels that these tests share, and small things to write and to look at."""

from __future__ import annotations

import ctypes
import os
import struct
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from rawkern.base.attributes import Attributes
from rawkern.base.records import CPU, DONE, TARGET

SAXPY = r"""
extern "C" __global__ void saxpy(int n, float a, const float* x, float* y) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] += a * x[i];
}"""


MANY = r"""
#define REAL float
typedef unsigned int index_t;
__global__ void scale(float* x, float s, int n) { int i = threadIdx.x; if (i < n) x[i] *= s; }
__global__ void scale(double* x, double s, int n) { int i = threadIdx.x; if (i < n) x[i] *= s; }
namespace deep { namespace er {
__global__ void fill(REAL* x, REAL v, index_t n) { if (threadIdx.x < n) x[threadIdx.x] = v; }
} }
template <class T, int N> __global__ void axpy(T a, const T* x, T* y, int n) {
    int i = threadIdx.x;
    if (i < n) y[i] += N * a * x[i];
}"""


class Target:
    """What an engine has for launches, with a function of Python's as its native one."""

    busy = linked = False

    def __init__(self, signature: Any, block: Any, attributes: Attributes, launch: Callable[..., None]) -> None:
        self.block, self.attributes = block, attributes
        self.native = 0  # launches that native code has made

        def go(target: int, x: int, y: int, z: int, params: int, pointers: int) -> int:
            self.native += 1
            launch((x, y, z), struct.unpack(signature.format, ctypes.string_at(params, signature.size)))
            return DONE

        self.run = lambda grid, stream, bound: launch(grid, bound.values)
        self._go = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, *[ctypes.c_int] * 3, *[ctypes.c_void_p] * 2)(go)
        address = ctypes.cast(self._go, ctypes.c_void_p).value
        self._record = ctypes.create_string_buffer(
            struct.pack(TARGET.format("device", "multiple"), CPU, 0, address, block[0], (attributes.cluster or (1,))[0])
        )
        self.address = ctypes.addressof(self._record)


class Recorder:
    """An engine that writes down what it would launch."""

    def __init__(self) -> None:
        self.launches: list[dict[str, Any]] = []
        self.attributes = {"max_threads_per_block": 1024, "shared_size_bytes": 0, "local_size_bytes": 0, "num_regs": 8}
        self.loaded = 0
        self.memory = (ctypes.c_char * 64)()
        self.architecture, self.most_of_cluster = "sm_80", 0
        self.cluster: tuple[int, int, int] | None = None

    def shared_variables(self) -> None:
        return None

    def load_module(self, program: Any, *, device: torch.device | None, variables: Any = None) -> Any:
        self.loaded += 1
        return types.SimpleNamespace(
            kernel=lambda symbol, signature, **_: self.kernel(symbol, signature, program),
            global_view=lambda name: (ctypes.addressof(self.memory), 24),
        )

    def kernel(self, symbol: str, signature: Any, program: Any) -> Any:
        def launch(grid: Any, block: Any, shared_mem: int, attributes: Attributes, values: tuple[Any, ...]) -> None:
            self.launches.append(
                {
                    "symbol": symbol,
                    "grid": grid,
                    "block": block,
                    "shared_mem": shared_mem,
                    "values": values,
                    "attributes": attributes,
                    "program": program,
                }
            )

        def target(block: Any, shared_mem: int, attributes: Attributes) -> Any:
            asked = block, shared_mem, attributes
            return Target(signature, block, attributes, lambda grid, values: launch(grid, *asked, values))

        return types.SimpleNamespace(
            target=target, attributes=self.attributes, max_shared_mem=49152, architecture=self.architecture,
            cluster=self.cluster, most_of_cluster=lambda *_: self.most_of_cluster,
        )  # fmt: skip

    def configurations(self) -> list[tuple[Any, Any, int]]:
        return [(one["grid"], one["block"], one["shared_mem"]) for one in self.launches]


def xy(n: int = 37, device: str = "cpu", dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.linspace(-2.7, 3.9, n, device=device, dtype=dtype)
    return x, torch.linspace(5.5, -1.25, n, device=device, dtype=dtype)


def write(path: Path, text: str) -> Path:
    """Save a file as an editor does: written aside, then moved into its place."""
    aside = path.with_name(path.name + "~")
    aside.write_text(text)
    os.replace(aside, path)
    return path


def one_file(tmp_path: Path, factor: str = "2") -> Path:
    write(tmp_path / "factor.h", f"#define FACTOR {factor}\n")
    text = '#include "factor.h"\nextern "C" __global__ void times(const float* x, float* y, int n) {\n' + (
        "    int i = threadIdx.x;\n    if (i < n) y[i] = FACTOR * x[i];\n}\n"
    )
    return write(tmp_path / "times.cu", text)
