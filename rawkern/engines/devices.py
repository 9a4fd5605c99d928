"""Which engine runs on which device, and where a kernel without tensors runs."""

from __future__ import annotations

import functools
import importlib
from typing import Any

import torch

from rawkern.compile.source import Source
from rawkern.errors import LaunchError

CPU = torch.device("cpu")
GRAPHS_OVERLAP = 12030  # the driver's version from which CUDA graphs record programmatic dependent launches


def engine(device: torch.device) -> Any:
    """The engine of a device: a module with ``load_module``; LaunchError for a GPU where torch sees none."""
    if device.type == "cuda" and not torch.cuda.is_available():
        raise LaunchError(f"an argument is on {device}, and torch sees no GPU; `rawkern doctor` shows why")
    return importlib.import_module("rawkern.engines.cuda" if device.type == "cuda" else "rawkern.engines.cpu")


def architecture(device: torch.device, source: Source) -> str:
    """What a program of a source is compiled for on a device; where it is compiled already, what the device is."""
    if device.type == "cpu":
        return source.cpu_arch
    return engine(device).architecture(device, source.binary is not None)


@functools.cache
def overlaps(device: torch.device) -> bool:
    """Whether a kernel may begin on a device while the one before it ends, in CUDA graphs too."""
    if device.type != "cuda" or not torch.cuda.is_available() or torch.cuda.get_device_capability(device) < (9, 0):
        return False
    return engine(device).driver_version() >= GRAPHS_OVERLAP


def default_device() -> torch.device:
    """Where a kernel without tensor arguments runs: on the current CUDA device if there is one, else on the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return CPU


def normalized(device: torch.device | str | int) -> torch.device:
    """The device with its index; only "cpu" and "cuda" run kernels."""
    if type(device) is int:
        device = f"cuda:{device}"  # torch itself cannot tell where there is no GPU
    try:
        given = torch.device(device)
    except (RuntimeError, TypeError):
        raise ValueError(f"device is {device!r}; pass 'cpu', 'cuda', 'cuda:1' or a torch.device") from None
    if given.type == "cpu":
        return CPU
    if given.type != "cuda":
        raise ValueError(f"rawkern runs on cpu and cuda, not on {given}")
    if given.index is not None:
        return given
    if not torch.cuda.is_available():
        raise ValueError("device is cuda, and torch sees no GPU here; pass 'cpu', or leave it out")
    return torch.device("cuda", torch.cuda.current_device())
