"""Data of GPUs by name, for the bounds of reports; each number with its source."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from rawkern.base.nearest import did_you_mean


@dataclass(frozen=True)
class Gpu:
    """A GPU: rates per second, where a fused multiply-add is two operations; its clock is the maximum."""

    name: str
    arch: str
    multiprocessors: int
    clock: float  # cycles per second
    memory: float  # bytes per second
    float32: float
    float64: float

    @property
    def shared(self) -> float:
        """Wavefronts of shared memory per second: one per cycle and multiprocessor."""
        return self.multiprocessors * self.clock


# NVIDIA's data sheets have memory and floating-point rates; multiprocessors and clocks are those of the architectures'
# white papers (V100, A100 and H100) and of CUDA's device query.
_ROWS = (
    # name, architecture, multiprocessors, GHz, GB/s, Tflop/s of float32 and float64
    ("h200", "sm_90", 132, 1.980, 4800, 66.9, 33.5),  # data sheet of the H200 SXM: 67 and 34 Tflop/s, 4.8 TB/s
    ("h100", "sm_90", 132, 1.980, 3350, 66.9, 33.5),  # data sheet of the H100 SXM: 67 and 34 Tflop/s, 3.35 TB/s
    (
        "a100",
        "sm_80",
        108,
        1.410,
        2039,
        19.5,
        9.7,
    ),  # data sheet of the A100 SXM 80 GB: 19.5, 9.7 Tflop/s, 2,039 GB/s
    ("b200", "sm_100", 148, 1.965, 8000, 74.5, 37.2),  # data sheet of the HGX B200: an eighth of 600 and 296 Tflop/s
    ("rtx4090", "sm_89", 128, 2.520, 1008, 82.6, 1.29),  # white paper of the Ada architecture: 82.6 Tflop/s, 1,008 GB/s
    ("l4", "sm_89", 58, 2.040, 300, 30.3, 0.473),  # data sheet of the L4: 30.3 Tflop/s, 300 GB/s
    ("v100", "sm_70", 80, 1.530, 900, 15.7, 7.8),  # data sheet of the V100 SXM2: 15.7 and 7.8 Tflop/s, 900 GB/s
    ("t4", "sm_75", 40, 1.590, 320, 8.1, 0.254),  # data sheet of the T4: 8.1 Tflop/s, 320 GB/s
)
GPUS = {
    name: Gpu(name, arch, count, ghz * 1e9, rate * 1e9, single * 1e12, double * 1e12)
    for name, arch, count, ghz, rate, single, double in _ROWS
}


def gpu_named(name: str) -> Gpu:
    """The GPU of a name such as ``"h200"`` or the driver's ``"NVIDIA H200"``.

    ValueError if the GPU is not in the table.
    """
    if not isinstance(name, str):
        raise TypeError(f"device is {name!r}; pass the name of a GPU: {', '.join(GPUS)}")
    found = found_gpu(name)
    if found is None:
        raise ValueError(f"unknown device {name!r}; pass one of {', '.join(GPUS)}, or None{did_you_mean(name, GPUS)}")
    return found


def found_gpu(name: str) -> Gpu | None:
    """Like `gpu_named`, but None for unknown GPUs."""
    words = name.lower().replace("-", " ").split()
    if "laptop" in words:  # a different chip with the same number
        return None
    words += [f"{one}{other}" for one, other in pairwise(words)]
    return next((gpu for gpu in GPUS.values() if gpu.name in words), None)
