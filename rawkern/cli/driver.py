"""NVIDIA's driver and its GPUs, queried directly, which works even if torch and CuPy are missing or incompatible."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

_COMPUTE_MAJOR, _COMPUTE_MINOR, _MULTIPROCESSORS = 75, 76, 16  # CU_DEVICE_ATTRIBUTE_*
_NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE


@dataclass(frozen=True)
class Gpu:
    """One GPU."""

    name: str
    capability: tuple[int, int]
    memory: int  # bytes
    multiprocessors: int


@dataclass(frozen=True)
class Driver:
    """The driver's version and GPUs."""

    release: str  # "580.82.07", "" if it is not known
    cuda: tuple[int, int]  # the newest CUDA it supports, (0, 0) where there is no driver
    gpus: tuple[Gpu, ...]
    problem: str = ""  # why there is no driver, or why it shows no GPU


def driver() -> Driver:
    """Query the driver; `problem` says what is wrong."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return Driver("", (0, 0), (), "no NVIDIA driver: the system has no libcuda.so.1")
    version = ctypes.c_int()
    library.cuDriverGetVersion(ctypes.byref(version))
    cuda = version.value // 1000, version.value % 1000 // 10
    status = library.cuInit(0)
    if status:
        why = (
            "the driver finds no GPU"
            if status == _NO_DEVICE
            else f"the driver does not start: {_name(library, status)}"
        )
        return Driver(_release(), cuda, (), why)
    count = ctypes.c_int()
    library.cuDeviceGetCount(ctypes.byref(count))
    gpus = tuple(_gpu(library, index) for index in range(count.value))
    return Driver(_release(), cuda, gpus, "" if gpus else "the driver shows no GPU (see CUDA_VISIBLE_DEVICES)")


def _gpu(library: ctypes.CDLL, index: int) -> Gpu:
    device, memory, name = ctypes.c_int(), ctypes.c_size_t(), ctypes.create_string_buffer(256)
    library.cuDeviceGet(ctypes.byref(device), index)
    library.cuDeviceGetName(name, len(name), device)
    library.cuDeviceTotalMem_v2(ctypes.byref(memory), device)

    def attribute(number: int) -> int:
        value = ctypes.c_int()
        library.cuDeviceGetAttribute(ctypes.byref(value), number, device)
        return value.value

    capability = attribute(_COMPUTE_MAJOR), attribute(_COMPUTE_MINOR)
    return Gpu(name.value.decode(errors="replace"), capability, memory.value, attribute(_MULTIPROCESSORS))


def _name(library: ctypes.CDLL, status: int) -> str:
    text = ctypes.c_char_p()
    library.cuGetErrorName(status, ctypes.byref(text))
    return text.value.decode() if text.value else f"error {status}"


def _release() -> str:
    """The driver's own number, from NVML, which comes with it."""
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return ""
    text = ctypes.create_string_buffer(96)
    if library.nvmlInit_v2():
        return ""
    try:
        return text.value.decode() if not library.nvmlSystemGetDriverVersion(text, len(text)) else ""
    finally:
        library.nvmlShutdown()
