"""Devices and kernels of an extension; tensors of the CPU are taken where C++ asks for a CUDA device's."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch

from rawkern.launch.builds import PathLike
from rawkern.module import RawModule, find_source


class Switch:
    """Whether a CPU's tensor passes for one of a CUDA device: ``x.is_cuda()`` and the like."""

    cpu_as_cuda = True


class Kernels(dict[str, Any]):
    """The kernels of a source by their names, instances of templates among them: ``kernels["k<float, 4>"]``.

    A path that is not absolute is looked for in the current directory and then beside the module that has it.
    """

    def __init__(
        self,
        path: PathLike | None = None,
        code: str | None = None,
        options: Sequence[str] = (),
        include_dirs: Sequence[PathLike] = (),
    ) -> None:
        super().__init__()
        if path is not None:
            path = os.path.abspath(find_source(path, sys._getframe(1).f_globals.get("__file__")))
        module = RawModule(code, path=path, options=options, include_dirs=include_dirs, strided=True)
        self.module = RawModule.of_unit(module.unit.untracked())

    def __missing__(self, name: str) -> Any:
        kernel = self[name] = self.module.get_function(name)
        return kernel

    def constant(self, expression: str) -> Any:
        """A constant of the source, which the compiler knows."""
        return self.module.constant(expression)

    def symbol(self, name: str) -> torch.Tensor:
        """A ``__device__`` variable."""
        return self.module.get_global(name)


def is_cuda(subject: Any) -> bool:
    """Whether a tensor or device is taken for a CUDA device's."""
    if isinstance(subject, torch.Tensor):
        return subject.is_cuda or (subject.is_cpu and Switch.cpu_as_cuda)
    kind = _kind(subject)
    return kind == "cuda" or (kind == "cpu" and Switch.cpu_as_cuda)


def device_type(subject: Any) -> str:
    """The type of a tensor's device."""
    return _kind(subject)


def _kind(subject: Any) -> str:
    if isinstance(subject, torch.Tensor):
        return subject.device.type
    return subject.type if isinstance(subject, torch.device) else str(subject)


def cuda_device(index: int | None = None) -> torch.device:
    """The CUDA device that C++ means; the CPU where there is none."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device() if index is None or index < 0 else index)


def device_index(device: torch.device) -> int:
    """``device.index()``."""
    return -1 if device.index is None else device.index


def synchronize() -> int:
    """``cudaDeviceSynchronize``."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return 0


def memory_format_of(tensor: torch.Tensor) -> torch.memory_format:
    """``tensor.suggest_memory_format()``."""
    if tensor.dim() == 4 and _last(tensor, torch.channels_last):
        return torch.channels_last
    if tensor.dim() == 5 and _last(tensor, torch.channels_last_3d):
        return torch.channels_last_3d
    return torch.contiguous_format


def _last(tensor: torch.Tensor, format: torch.memory_format) -> bool:
    return tensor.is_contiguous(memory_format=format) and not tensor.is_contiguous()


def is_dense(tensor: torch.Tensor) -> bool:
    """``tensor.is_non_overlapping_and_dense()``."""
    expected = 1
    for stride, size in sorted(
        (stride, size) for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size != 1
    ):
        if size == 0:
            return True
        if stride != expected:
            return False
        expected *= size
    return True


_MEMBERS = {
    "multiProcessorCount": "multi_processor_count", "warpSize": "warp_size", "totalGlobalMem": "total_memory",
    "sharedMemPerBlock": "shared_memory_per_block", "sharedMemPerBlockOptin": "shared_memory_per_block_optin",
    "sharedMemPerMultiprocessor": "shared_memory_per_multiprocessor", "l2CacheSize": "L2_cache_size",
    "regsPerMultiprocessor": "regs_per_multiprocessor",
    "maxThreadsPerMultiProcessor": "max_threads_per_multi_processor",
    "major": "major", "minor": "minor", "name": "name",
}  # fmt: skip


def device_properties() -> Any:
    """``cudaDeviceProp`` of the current device; that of the CPU engine where there is no GPU."""
    found = SimpleNamespace(
        name="CPU engine", major=8, minor=0, multiProcessorCount=os.cpu_count() or 1, warpSize=32,
        maxThreadsPerBlock=1024, maxThreadsDim=[1024, 1024, 64], maxGridSize=[2**31 - 1, 65535, 65535],
        sharedMemPerBlock=48 << 10, sharedMemPerBlockOptin=227 << 10, sharedMemPerMultiprocessor=228 << 10,
        regsPerBlock=65536, regsPerMultiprocessor=65536, maxThreadsPerMultiProcessor=2048, l2CacheSize=40 << 20,
        totalGlobalMem=8 << 30, maxBlocksPerMultiProcessor=32, clockRate=1000000, memoryClockRate=1000000,
        memoryBusWidth=64, concurrentKernels=1,
    )  # fmt: skip
    if torch.cuda.is_available():
        of = torch.cuda.get_device_properties(torch.cuda.current_device())
        for member, name in _MEMBERS.items():
            if hasattr(of, name):
                setattr(found, member, getattr(of, name))
    return found


def device_attribute(name: str) -> int:
    """``cudaDeviceGetAttribute`` by the attribute's name."""
    special = {
        "ComputeCapabilityMajor": "major",
        "ComputeCapabilityMinor": "minor",
        "MaxSharedMemoryPerBlock": "sharedMemPerBlock",
        "MaxSharedMemoryPerBlockOptin": "sharedMemPerBlockOptin",
        "MaxSharedMemoryPerMultiprocessor": "sharedMemPerMultiprocessor",
        "MaxRegistersPerBlock": "regsPerBlock",
    }
    bare = re.sub(r".*cudaDevAttr", "", name)
    member = special.get(bare, bare[:1].lower() + bare[1:])
    found = getattr(device_properties(), member, None)
    if found is None:
        raise NotImplementedError(f"the attribute {name} of a device is not known here")
    return found


def potential_block_size(kernel: Any, shared: int, limit: int) -> tuple[int, int]:
    """``cudaOccupancyMaxPotentialBlockSize``: blocks that fill the device, of as many threads as a kernel takes."""
    threads = min(kernel.max_threads_per_block, limit or 1024)
    return active_blocks(kernel, threads, shared) * device_properties().multiProcessorCount, threads


def active_blocks(kernel: Any, threads: int, shared: int) -> int:
    """``cudaOccupancyMaxActiveBlocksPerMultiprocessor``, by the kernel's threads and shared memory."""
    found = device_properties()
    blocks = found.maxThreadsPerMultiProcessor // max(threads, 1)
    used = shared + kernel.shared_size_bytes
    return max(min(blocks, 32, found.sharedMemPerMultiprocessor // used if used else 32), 0)
