"""Modules around rawkern's operators, under torch.nn's names: their state dicts fit torch's, both ways.

Those that torch.nn has are subclasses of its modules and take the same arguments; what an operator does not do raises,
with the operator's message, when the module is called.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from rawkern.arguments.memory import reject_layout
from rawkern.base.overrides import overridable
from rawkern.library.activations import geglu, gelu, silu, swiglu
from rawkern.library.cross_entropy import cross_entropy
from rawkern.library.dropout import dropout
from rawkern.library.elementwise import relu, relu_
from rawkern.library.embedding import embedding
from rawkern.library.norm import add_layer_norm, add_rms_norm, layer_norm, rms_norm
from rawkern.library.rotary import rotary_embedding
from rawkern.library.softmax import log_softmax, softmax

__all__ = [
    "GEGLU",
    "GELU",
    "CrossEntropyLoss",
    "Dropout",
    "Embedding",
    "LayerNorm",
    "LogSoftmax",
    "RMSNorm",
    "ReLU",
    "RotaryEmbedding",
    "SiLU",
    "Softmax",
    "SwiGLU",
]


def __dir__() -> list[str]:
    return __all__


class ReLU(nn.ReLU):
    """`torch.nn.ReLU` through `rawkern.relu`."""

    def forward(self, input: Tensor) -> Tensor:
        return relu_(input) if self.inplace else relu(input)


class SiLU(nn.SiLU):
    """`torch.nn.SiLU` through `rawkern.silu`."""

    def forward(self, input: Tensor) -> Tensor:
        return silu(input, self.inplace)


class GELU(nn.GELU):
    """`torch.nn.GELU` through `rawkern.gelu`."""

    def forward(self, input: Tensor) -> Tensor:
        return gelu(input, self.approximate)


class Softmax(nn.Softmax):
    """`torch.nn.Softmax` through `rawkern.softmax`; the dimension is required."""

    def __init__(self, dim: int) -> None:
        super().__init__(dim)

    def forward(self, input: Tensor) -> Tensor:
        return softmax(input, self.dim)  # type: ignore[arg-type]


class LogSoftmax(nn.LogSoftmax):
    """`torch.nn.LogSoftmax` through `rawkern.log_softmax`; the dimension is required."""

    def __init__(self, dim: int) -> None:
        super().__init__(dim)

    def forward(self, input: Tensor) -> Tensor:
        return log_softmax(input, self.dim)  # type: ignore[arg-type]


class Dropout(nn.Dropout):
    """`torch.nn.Dropout` through `rawkern.dropout`: its own random numbers, and no stored mask."""

    def forward(self, input: Tensor) -> Tensor:
        return dropout(input, self.p, self.training, self.inplace)


class Embedding(nn.Embedding):
    """`torch.nn.Embedding` through `rawkern.embedding`, without max_norm, scale_grad_by_freq and sparse."""

    def forward(self, input: Tensor) -> Tensor:
        return embedding(
            input, self.weight, self.padding_idx, self.max_norm, self.norm_type, self.scale_grad_by_freq, self.sparse
        )


class LayerNorm(nn.LayerNorm):
    """`torch.nn.LayerNorm` through `rawkern.layer_norm`; with a residual, it adds that first.

    ``norm(x, residual)`` returns the norm of the sum and the sum, as `rawkern.add_layer_norm` does in one kernel.
    """

    def forward(self, input: Tensor, residual: Tensor | None = None) -> Any:
        given = self.normalized_shape, self.weight, self.bias, self.eps
        return layer_norm(input, *given) if residual is None else add_layer_norm(input, residual, *given)


class RMSNorm(nn.RMSNorm):
    """`torch.nn.RMSNorm` through `rawkern.rms_norm`; with a residual, it adds that first.

    ``norm(x, residual)`` returns the norm of the sum and the sum, as `rawkern.add_rms_norm` does in one kernel.
    """

    def forward(self, input: Tensor, residual: Tensor | None = None) -> Any:
        given = self.normalized_shape, self.weight, self.eps
        return rms_norm(input, *given) if residual is None else add_rms_norm(input, residual, *given)


class CrossEntropyLoss(nn.CrossEntropyLoss):
    """`torch.nn.CrossEntropyLoss` through `rawkern.cross_entropy`; targets are class indices, not probabilities."""

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return cross_entropy(
            input,
            target,
            self.weight,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
            label_smoothing=self.label_smoothing,
        )


class _Gated(nn.Module):
    """down_proj(activation(gate_proj(x), up_proj(x)))."""

    activation: Callable[[Tensor, Tensor], Tensor]

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        out_features: int | None = None,
        bias: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        out_features = in_features if out_features is None else out_features
        self.gate_proj = nn.Linear(in_features, hidden_features, bias, device, dtype)
        self.up_proj = nn.Linear(in_features, hidden_features, bias, device, dtype)
        self.down_proj = nn.Linear(hidden_features, out_features, bias, device, dtype)

    def forward(self, input: Tensor) -> Tensor:
        return self.down_proj(self.activation(self.gate_proj(input), self.up_proj(input)))


class SwiGLU(_Gated):
    """The feed-forward block ``down_proj(silu(gate_proj(x)) * up_proj(x))``, with one kernel between the products.

    From Shazeer, GLU Variants Improve Transformer, 2020; the parameters have the names that they have in Llama.

    Parameters
    ----------
    in_features, hidden_features : int
        Sizes of the last dimension of the input and between the products.
    out_features : int, optional
        Size of the result's last dimension; by default the input's.
    bias : bool
        Whether the three `torch.nn.Linear` have one.
    device, dtype
        Of the parameters.
    """

    def activation(self, gate: Tensor, up: Tensor) -> Tensor:
        return swiglu(gate, up)


class GEGLU(_Gated):
    """The feed-forward block ``down_proj(gelu(gate_proj(x)) * up_proj(x))``; otherwise as `rawkern.nn.SwiGLU`.

    Parameters
    ----------
    in_features, hidden_features, out_features, bias, device, dtype
        As for `rawkern.nn.SwiGLU`.
    approximate : {"none", "tanh"}
        As for `rawkern.gelu`.
    """

    def __init__(self, *args: Any, approximate: str = "none", **options: Any) -> None:
        super().__init__(*args, **options)
        self.approximate = approximate

    def activation(self, gate: Tensor, up: Tensor) -> Tensor:
        return geglu(gate, up, self.approximate)

    def extra_repr(self) -> str:
        return f"approximate={self.approximate!r}"


@overridable
def turned(input: Tensor, cos: Tensor, sin: Tensor, input_pos: Tensor | None, interleaved: bool) -> Tensor:
    """What `RotaryEmbedding` does, with its tables."""
    reject_layout("RotaryEmbedding", "input", input)
    most, dim = len(cos), 2 * cos.shape[-1]
    if input.dim() < 2 or input.shape[-1] != dim:
        raise ValueError(f"RotaryEmbedding: input has shape {tuple(input.shape)}; it has to be (..., {dim})")
    if input_pos is not None:
        return rotary_embedding(input, cos[input_pos], sin[input_pos], interleaved=interleaved)
    length = input.shape[-2]
    if length > most:
        raise ValueError(f"RotaryEmbedding: input has {length} positions, the tables {most}; pass a max_seq_len")
    return rotary_embedding(input, cos[:length], sin[:length], interleaved=interleaved)


class RotaryEmbedding(nn.Module):
    """Rotate pairs of queries and keys by angles that grow with the position; without parameters or state.

    Pair k at position m is rotated by m * base ** (-2 k / dim) (Su et al., RoFormer, 2021). Tables of cosines and
    sines stay in float32 under ``.to(dtype)``, because half types cannot distinguish the angles of distant positions.

    Parameters
    ----------
    dim : int
        Elements of a head, even.
    max_seq_len : int
        Positions in the tables.
    base : float
        See above.
    interleaved : bool
        Whether a pair is (x[2 k], x[2 k + 1]); otherwise it is (x[k], x[k + dim / 2]), as in Llama of Hugging Face.
    device
        Of the tables.

    Raises
    ------
    ValueError
        For an odd ``dim``.
    """

    cos: Tensor
    sin: Tensor

    def __init__(
        self,
        dim: int,
        max_seq_len: int = 4096,
        base: float = 10_000.0,
        *,
        interleaved: bool = False,
        device: Any = None,
    ) -> None:
        super().__init__()
        if dim % 2:
            raise ValueError(f"RotaryEmbedding: dim is {dim}; it has to be even")
        self.dim, self.max_seq_len, self.base, self.interleaved = dim, max_seq_len, base, interleaved
        self._fill(device)

    def _fill(self, device: Any) -> None:
        rates = self.base ** (-torch.arange(0, self.dim, 2, dtype=torch.float64, device=device) / self.dim)
        angles = torch.arange(self.max_seq_len, dtype=torch.float64, device=device).outer(rates)
        self.register_buffer("cos", angles.cos().float(), persistent=False)
        self.register_buffer("sin", angles.sin().float(), persistent=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> RotaryEmbedding:
        before = self.cos
        super()._apply(fn, recurse)
        if self.cos is not before:  # moved, converted, or memory without values from to_empty
            self._fill(self.cos.device)
        return self

    def forward(self, input: Tensor, input_pos: Tensor | None = None) -> Tensor:
        """Return the input, (..., positions, dim), with its pairs rotated.

        Parameters
        ----------
        input : torch.Tensor
            Floating-point, (..., positions, dim).
        input_pos : torch.Tensor, optional
            int64 positions, of a shape that broadcasts to ``input.shape[:-1]``; by default 0, 1, 2, ...

        Returns
        -------
        torch.Tensor
            Of the input's shape and dtype.

        Raises
        ------
        TypeError
            For an input that is not a strided tensor.
        ValueError
            For more positions than ``max_seq_len``, or another last dimension than ``dim``.
        """
        return turned(input, self.cos, self.sin, input_pos, self.interleaved)

    def extra_repr(self) -> str:
        return f"{self.dim}, max_seq_len={self.max_seq_len}, base={self.base}, interleaved={self.interleaved}"
