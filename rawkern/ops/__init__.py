"""Ready-made operators, forward and backward in CUDA C (`cuda_src/`), one family per file."""

from rawkern.ops.mul import mul
from rawkern.ops.relu import relu, relu_
from rawkern.ops.scale import scale
from rawkern.ops.square import square

__all__ = ["mul", "relu", "relu_", "scale", "square"]
