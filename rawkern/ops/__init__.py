"""Ready-made operators, forward and backward in CUDA C (`cuda_src/`), one family per file."""

from rawkern.ops.activations import add_sin_cos, geglu, gelu, silu, swiglu
from rawkern.ops.adamw import adamw_
from rawkern.ops.dropout import dropout
from rawkern.ops.mul import mul
from rawkern.ops.relu import relu, relu_
from rawkern.ops.rotary import rotary_embedding
from rawkern.ops.scale import scale
from rawkern.ops.square import square

__all__ = [
    "adamw_",
    "add_sin_cos",
    "dropout",
    "geglu",
    "gelu",
    "mul",
    "relu",
    "relu_",
    "rotary_embedding",
    "scale",
    "silu",
    "square",
    "swiglu",
]
