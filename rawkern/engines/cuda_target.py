"""Launches of a kernel on a GPU: the native ones' record and function, and the slow path through Python.

Nothing here synchronizes, or copies but for variables that several programs of a module have.
"""

from __future__ import annotations

import ctypes
import functools
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, Protocol

import torch

from rawkern.arguments.slow_path import Bound
from rawkern.base import table
from rawkern.base import torch_private as private
from rawkern.base.attributes import PLAIN, Attributes
from rawkern.base.libcuda import libcuda
from rawkern.base.llvm import LoadedObject, stored_object
from rawkern.base.records import CUDA, DECLINED, DONE, TARGET, Filled, Record, filled
from rawkern.base.table import address_of, python_function
from rawkern.engines.cuda_variables import copy_back, copy_in
from rawkern.errors import LaunchError

Dim3 = tuple[int, int, int]
#: What native launches know of a kernel with one shape of block: `Target` fills it. `attributes` are so many of the
#: driver's CUlaunchAttribute; `most_blocks` limits cooperative grids, 0 for none.
CUDA_TARGET = Record(
    "Target",
    (
        *TARGET.fields,
        ("function", "ptr"), ("context", "ptr"), ("block_x", "i32"), ("block_y", "i32"), ("block_z", "i32"),
        ("shared_mem", "i32"), ("attributes", "ptr"), ("count", "i32"), ("index", "i32"), ("most_blocks", "i64"),
        ("forked", "ptr"), ("current_context", "ptr"), ("launch", "ptr"), ("stream_of", "ptr"), ("clear", "ptr"),
        ("save_thread", "ptr"), ("restore_thread", "ptr"),
    ),
)  # fmt: skip
# CU_LAUNCH_ATTRIBUTE_*: all blocks at the same time, blocks of a cluster, programmatic dependent launch.
COOPERATIVE, CLUSTER_DIMENSION, PROGRAMMATIC_STREAM_SERIALIZATION = 2, 4, 6
ATTRIBUTE = 72  # bytes of a CUlaunchAttribute
_CONFIG = "=7I4xQQI4x"  # CUlaunchConfig
_forked = ctypes.c_int64(0)

FORK = (
    "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the 'spawn' "
    "start method (a kernel on CPU tensors runs after a fork too)"
)


class Kernel(Protocol):
    """What launches need of a kernel: `rawkern.engines.cuda.EngineKernel`."""

    name: str
    module: Any
    function: int
    cluster: Dim3 | None
    multiprocessors: int
    offsets: tuple[int, ...]
    pack: Callable[..., bytes]

    def most_blocks(self, block: Dim3, shared_mem: int, attributes: Attributes) -> int: ...

    def failed(self, error: Exception) -> NoReturn: ...


def packed(attributes: Attributes, compiled: Dim3 | None) -> bytes:
    """The driver's CUlaunchAttribute of each: an id, padding, and 64 bytes of a value.

    A cluster that the code was compiled for is none of them.
    """
    rows: list[tuple[int, ...]] = []
    if attributes.cooperative:
        rows.append((COOPERATIVE, 1, 0, 0))
    if attributes.cluster is not None and not any(compiled or ()):
        rows.append((CLUSTER_DIMENSION, *attributes.cluster))
    if attributes.programmatic:
        rows.append((PROGRAMMATIC_STREAM_SERIALIZATION, 1, 0, 0))
    return b"".join(struct.pack("=i4x3I52x", *row) for row in rows)


class Target:
    """One kernel on one GPU with one shape of block, dynamic shared memory and launch attributes."""

    busy = False  # the driver has all it needs when a launch returns

    def __init__(self, owner: Kernel, block: Dim3, shared_mem: int, attributes: Attributes = PLAIN) -> None:
        self.owner, self.block, self.shared_mem, self.attributes = owner, block, shared_mem, attributes
        self.linked = False
        self._most = owner.most_blocks(block, shared_mem, attributes) if attributes.cooperative else 0
        rows = packed(attributes, owner.cluster)
        self._attributes = ctypes.create_string_buffer(rows, max(len(rows), 1))
        launch, current = _entries()
        self._launch = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 4)(launch)
        module = owner.module
        self._native = Filled(
            CUDA_TARGET,
            device=CUDA | module.index << 32, go=_go(), block=block[0],
            multiple=attributes.cluster[0] if attributes.cluster else 1, function=owner.function,
            context=module.context, block_x=block[0], block_y=block[1], block_z=block[2], shared_mem=shared_mem,
            attributes=ctypes.addressof(self._attributes), count=len(rows) // ATTRIBUTE, index=module.index,
            most_blocks=self._most, forked=ctypes.addressof(_forked), current_context=current, launch=launch,
            stream_of=table.field("work_stream"), clear=table.field("PyErr_Clear"),
            save_thread=python_function("PyEval_SaveThread"), restore_thread=python_function("PyEval_RestoreThread"),
        )  # fmt: skip
        self._copies = module.copies
        self.address = 0 if self._copies else self._native.address

    def run(self, grid: Dim3, stream: int | None, bound: Bound) -> None:
        """Launch on a stream, or torch's current one; returns at once."""
        if torch.cuda._is_in_bad_fork():
            raise RuntimeError(FORK)
        owner, driver = self.owner, self.owner.module.driver
        blocks = grid[0] * grid[1] * grid[2]
        if self._most and blocks > self._most:
            each = self._most // owner.multiprocessors
            error = LaunchError(
                f"{owner.name}: a cooperative launch needs all {blocks} blocks at once, cuda:{owner.module.index} "
                f"holds {self._most} of this kernel ({each} on each of {owner.multiprocessors} "
                f"multiprocessors); use fewer blocks and a grid-stride loop"
            )
            error.most_blocks = self._most
            raise error
        params = ctypes.create_string_buffer(owner.pack(*bound.values))
        start = ctypes.addressof(params)
        pointers = struct.pack(f"={len(owner.offsets)}Q", *(start + offset for offset in owner.offsets))
        stream = private.raw_stream(owner.module.index) if stream is None else stream
        config = struct.pack(
            _CONFIG, *grid, *self.block, self.shared_mem, stream, ctypes.addressof(self._attributes),
            self._native["count"],
        )  # fmt: skip
        if not driver.ctxGetCurrent():  # the thread's first CUDA call
            driver.ctxSetCurrent(owner.module.context)
        with owner.module.current():
            copy_in(self._copies, stream)
            status = self._launch(config, owner.function, pointers, None)
            copy_back(self._copies, stream)
        if status:
            owner.failed(driver.CUDADriverError(status))


def about_clusters(question: str, owner: Kernel, cluster: Dim3, block: Dim3, shared_mem: int) -> int:
    """Ask the driver's occupancy calculator about a kernel's clusters; 0 where it does not answer.

    ``"cuOccupancyMaxActiveClusters"``: how many the device holds at a time;
    ``"cuOccupancyMaxPotentialClusterSize"``: how many blocks one may have.
    """
    rows, found = packed(Attributes(cluster), owner.cluster), ctypes.c_int()
    attributes = ctypes.create_string_buffer(rows, max(len(rows), 1))
    config = struct.pack(_CONFIG, *cluster, *block, shared_mem, 0, ctypes.addressof(attributes), len(rows) // ATTRIBUTE)
    with owner.module.current():
        status = libcuda()[question](ctypes.byref(found), ctypes.c_void_p(owner.function), config)
    return 0 if status else found.value


@functools.cache
def _entries() -> tuple[int, int]:
    """The driver's cuLaunchKernelEx and cuCtxGetCurrent, by address."""
    return address_of(libcuda().cuLaunchKernelEx), address_of(libcuda().cuCtxGetCurrent)


@functools.cache
def _go() -> int:
    """The function that native launches call with a `CUDA_TARGET`."""
    table.table()
    text = Path(__file__).with_name("cuda.ll").read_text()
    text = filled(text, (CUDA_TARGET,), {"DONE": DONE, "DECLINED": DECLINED, "CUDA": CUDA})
    loaded = LoadedObject(stored_object(f"{CUDA_TARGET.llvm}\n{text}"))
    table.keep(loaded)
    return loaded.address("rk_cuda")


def _after_fork() -> None:
    _forked.value = 1  # the next launch takes the slow path, and is told that CUDA is gone in a forked child


os.register_at_fork(after_in_child=_after_fork)
