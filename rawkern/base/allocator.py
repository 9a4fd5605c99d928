"""`rawkern.use_torch_allocator`: CuPy's arrays in the memory that torch's caching allocator holds."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import torch

from rawkern.base import pip
from rawkern.base import torch_private as private
from rawkern.base.storage import tensor_over
from rawkern.base.torch_private import current_device
from rawkern.errors import MissingDependencyError, UnsupportedError


class use_torch_allocator:
    """Let CuPy allocate from torch's caching allocator, so that a process has one pool of GPU memory instead of two.

    It holds from the call on, for all threads and devices; as a context, ``with rawkern.use_torch_allocator(): ...``,
    until its end. Arrays allocated meanwhile stay valid and count in `torch.cuda.memory_allocated`.

    An array's memory belongs to CuPy's current stream at allocation and is reused only there, as
    in CuPy's own pool. Unlike CuPy's pool, the allocator first waits for rawkern's launches on other streams.
    While a CUDA graph is captured, make CuPy's stream the one of the capture
    (``with cupy.cuda.Stream.from_external(torch.cuda.current_stream()): ...``): arrays are then in the graph's pool.

    Raises
    ------
    UnsupportedError
        torch finds no GPU.
    MissingDependencyError
        CuPy is not installed.
    ValueError
        Inside `cupy.cuda.using_allocator`, which prevents changing the allocator of all threads.

    Notes
    -----
    What CuPy's own pool holds without using it is given back, on the current device. Where memory runs out, the error
    is CuPy's ``OutOfMemoryError``. `cupy.get_default_memory_pool()` has no part in any of this afterwards; CuPy's
    pinned host memory is left as it is.
    """

    def __init__(self) -> None:
        if not torch.cuda.is_available():
            raise UnsupportedError("use_torch_allocator: CuPy's arrays are GPU memory, and torch finds no GPU here")
        cupy = _cupy()
        torch.cuda.init()
        self._before = cupy.cuda.get_allocator()
        cupy.cuda.set_allocator(_allocate)
        cupy.get_default_memory_pool().free_all_blocks()

    def undo(self) -> None:
        """Go back to the allocator that CuPy had before."""
        _cupy().cuda.set_allocator(self._before)

    def __enter__(self) -> use_torch_allocator:
        return self

    def __exit__(self, *error: object) -> None:
        self.undo()


class Block:
    """Memory of one CuPy array: a storage of torch, and the stream that it may be used on."""

    __slots__ = ("storage", "stream")

    def __init__(self, storage: torch.UntypedStorage, stream: int) -> None:
        self.storage = storage
        self.stream = stream


def _allocate(nbytes: int) -> Any:
    """Allocate on CuPy's current stream and device; CuPy calls this."""
    cuda = _cupy().cuda
    index = current_device()
    stream = cuda.get_current_stream().ptr
    stream = 0 if stream == 1 else stream  # the legacy default stream has two names
    try:
        # A storage and no tensor: modes of torch's dispatcher are about tensors.
        if stream == private.raw_stream(index):
            storage = torch.UntypedStorage(nbytes, device=_device(index))
        else:
            with torch.cuda.stream(_external(stream, index)):
                storage = torch.UntypedStorage(nbytes, device=_device(index))
    except torch.OutOfMemoryError as error:
        raise cuda.memory.OutOfMemoryError(nbytes, torch.cuda.memory_allocated(index)) from error
    return cuda.MemoryPointer(cuda.UnownedMemory(storage.data_ptr(), nbytes, Block(storage, stream), index), 0)


def record(values: Iterable[Any], stream: int, device: int) -> None:
    """Do what `used_on` does for all CuPy arrays among arguments and in their lists."""
    for value in values:
        if isinstance(value, (list, tuple)):
            record(value, stream, device)
        else:
            memory = getattr(getattr(value, "data", None), "mem", None)
            used_on(getattr(memory, "_owner", None), stream, device)


def used_on(owner: Any, stream: int, device: int) -> None:
    """Tell torch's allocator of a launch on another stream than a CuPy array's own; others' memory is passed over."""
    if type(owner) is Block and owner.stream != stream:
        tensor_over(owner.storage).record_stream(_external(stream, device))


@functools.lru_cache(maxsize=256)
def _external(stream: int, device: int) -> torch.cuda.Stream:
    """A stream of CuPy's as torch has it."""
    return torch.cuda.default_stream(device) if stream == 0 else torch.cuda.ExternalStream(stream, device=device)


@functools.cache
def _device(index: int) -> torch.device:
    return torch.device("cuda", index)


@functools.cache
def _cupy() -> Any:
    try:
        import cupy
    except ImportError as error:
        raise MissingDependencyError(f"use_torch_allocator needs CuPy ({error}); run: {pip.command()}") from error
    return cupy
