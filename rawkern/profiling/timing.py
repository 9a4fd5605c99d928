"""Times of launches on a GPU, and its copy rate."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from rawkern.base import streams
from rawkern.base import torch_private as private
from rawkern.base.forking import cached_property
from rawkern.base.timing import gpu_seconds

if TYPE_CHECKING:
    from rawkern.launch import intercept
    from rawkern.launch.builds import Build

#: GPU cycles that the host needs to issue a launch, and to issue one of a source's first two, which compile code.
_AHEAD, _AHEAD_FIRST = 2_000_000, 200_000_000
_COPIED, _COPIES = 1 << 28, 10  # bytes, much larger than the caches; and repetitions
_before: weakref.WeakKeyDictionary[Build, int] = weakref.WeakKeyDictionary()  # number of launches so far


@dataclass
class Timed:
    """One launch between two events of its stream.

    `first`: the source's first one in this process, with cold caches; `late`: the GPU was idle before the host
    issued it, so the time includes the host's.
    """

    events: tuple[Any, Any]
    stream: int
    first: bool
    late: bool

    @cached_property
    def milliseconds(self) -> float:
        self.events[1].synchronize()
        return self.events[0].elapsed_time(self.events[1])

    def since(self, other: Timed) -> float:
        """Milliseconds from the start of another launch on the same GPU to the start of this one."""
        self.events[1].synchronize()
        return other.events[0].elapsed_time(self.events[0]) if other is not self else 0.0


def timed(given: intercept.Launch, device: torch.device, build: Build) -> Timed:
    """Run a launch; until it is issued, the GPU is kept busy with other work."""
    stream = torch.cuda.current_stream(device)
    if given.stream is not None:
        stream = torch.cuda.ExternalStream(streams.stream_handle(given.stream), device=device)
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    launches = _before.get(build, 0)
    with torch.cuda.device(device), torch.cuda.stream(stream):
        private.sleep_on_gpu(_AHEAD_FIRST if launches < 2 else _AHEAD)
        before.record(stream)
    given.proceed()
    after.record(stream)
    late = before.query()
    _before[build] = launches + 1
    return Timed((before, after), stream.cuda_stream, launches == 0, late)


@cache
def copy_rate(device: str) -> float | None:
    """The GPU's copy rate in bytes read and written per second, measured once; None without enough free memory."""
    with torch.cuda.device(device):
        try:
            source = torch.empty(_COPIED, dtype=torch.uint8, device=device)
            target = torch.empty_like(source)
        except torch.cuda.OutOfMemoryError:
            return None
        gpu_seconds(lambda: target.copy_(source), 3)
        private.sleep_on_gpu(_AHEAD)
        return 2 * _COPIED / min(gpu_seconds(lambda: target.copy_(source), _COPIES))
