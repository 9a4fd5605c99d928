"""Which engine runs on which device, and where a kernel without tensors runs."""

from __future__ import annotations

import importlib
from typing import Any

import torch

from rawkern.compile.programs import CPU_ARCH

CPU = torch.device("cpu")


def engine(device: torch.device) -> Any:
    """The engine of a device: a module with ``load_module``."""
    return importlib.import_module("rawkern.engines.cuda" if device.type == "cuda" else "rawkern.engines.cpu")


def architecture(device: torch.device, *, compiled: bool = False) -> str:
    """What a program for the device is compiled for; where it is compiled already, what the device is."""
    return engine(device).architecture(device, compiled) if device.type == "cuda" else CPU_ARCH


def default_device() -> torch.device:
    """Where a kernel without tensor arguments runs: on the current CUDA device if there is one, else on the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return CPU


def normalised(device: torch.device | str | int) -> torch.device:
    """The device with its index; only "cpu" and "cuda" run kernels."""
    given = torch.device(device)
    if given.type == "cpu":
        return CPU
    if given.type != "cuda":
        raise ValueError(f"rawkern runs on cpu and cuda, not on {given}")
    return given if given.index is not None else torch.device("cuda", torch.cuda.current_device())
