"""CUDA streams of torch, CuPy and others as raw handles, and tensors that are in use on one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from rawkern.base import torch_private as private


def current_stream(device: torch.device | int) -> int:
    """The raw handle (`cudaStream_t` as an integer) of torch's current stream on a CUDA device; 0 is the default one.

    Costs 0.07 us through torch's own C function.
    """
    index = device if isinstance(device, int) else device.index
    return private.raw_stream(torch.cuda.current_device() if index is None else index)


def stream_handle(stream: Any) -> int:
    """The raw handle of a torch stream, a CuPy stream, or any object with `__cuda_stream__`.

    Integers raise: their device is not known, nor whether the stream still exists; wrap one in
    `torch.cuda.ExternalStream(handle)`.
    """
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        found: Any = protocol() if callable(protocol) else protocol
        return int(found[1])  # (version, handle)
    for name in ("cuda_stream", "ptr"):  # torch before it had the protocol, CuPy
        handle = getattr(stream, name, None)
        if isinstance(handle, int):
            return handle
    if isinstance(stream, int) and not isinstance(stream, bool):
        raise TypeError(f"stream is the integer {stream}; pass torch.cuda.ExternalStream({stream})")
    raise TypeError(
        f"stream is a {type(stream).__name__}; pass a torch or CuPy stream, an object with __cuda_stream__, or None "
        "for torch's current stream"
    )


_recorded_streams: dict[int, Any] = {}


def record(tensors: Iterable[torch.Tensor], stream: Any) -> None:
    """Tell torch's allocator that CUDA tensors are in use on `stream`, so that their memory is not reused too early.

    `stream` is anything `stream_handle` takes. CPU tensors are passed over. A stream that is not torch's is kept for
    the rest of the process: the allocator comes back to it whenever it is that a tensor is freed.
    """
    on_gpu = [t for t in tensors if t.is_cuda and t.numel()]
    if not on_gpu:
        return
    if not isinstance(stream, torch.cuda.Stream):
        _recorded_streams[stream_handle(stream)] = stream
    for t in on_gpu:
        known = stream if isinstance(stream, torch.cuda.Stream) else None
        t.record_stream(known or torch.cuda.ExternalStream(stream_handle(stream), device=t.device))
