"""Ready-made operators, forward and backward in CUDA C (`cuda_src/`), one family per file."""

from rawkern.ops.activations import add_sin_cos, geglu, gelu, silu, swiglu
from rawkern.ops.adamw import adamw_
from rawkern.ops.cross_entropy import cross_entropy
from rawkern.ops.dropout import dropout
from rawkern.ops.embedding import embedding
from rawkern.ops.mul import mul
from rawkern.ops.nbody import nbody_forces
from rawkern.ops.norm import add_layer_norm, add_rms_norm, layer_norm, rms_norm
from rawkern.ops.relu import relu, relu_
from rawkern.ops.rotary import rotary_embedding
from rawkern.ops.scale import scale
from rawkern.ops.scale_by_sign_of_sum import scale_by_sign_of_sum
from rawkern.ops.softmax import log_softmax, softmax
from rawkern.ops.square import square
from rawkern.ops.sum import mean, sum

__all__ = [
    "adamw_",
    "add_layer_norm",
    "add_rms_norm",
    "add_sin_cos",
    "cross_entropy",
    "dropout",
    "embedding",
    "geglu",
    "gelu",
    "layer_norm",
    "log_softmax",
    "mean",
    "mul",
    "nbody_forces",
    "relu",
    "relu_",
    "rms_norm",
    "rotary_embedding",
    "scale",
    "scale_by_sign_of_sum",
    "silu",
    "softmax",
    "square",
    "sum",
    "swiglu",
]
