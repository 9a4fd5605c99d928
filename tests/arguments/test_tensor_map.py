"""Tensor maps: what the driver would reject, by name, and how they are passed."""

from __future__ import annotations

import re

import pytest
import torch

import rawkern
from rawkern.errors import LaunchError, UnsupportedError

X = torch.zeros(4, 6, 64)
TAKES = (
    '#include <cuda.h>\nextern "C" __global__ void k(const __grid_constant__ CUtensorMap map, float* x) { x[0] = 1; }'
)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tensor": 3}, "tensor is a int; pass a torch tensor"),
        ({"tensor": torch.zeros(())}, "has 0 dimensions; a tensor map has 1 to 5"),
        ({"tensor": X.to(torch.complex64)}, "the tensor is complex64"),
        ({"tensor": torch.zeros(65)[1:], "box": 32}, "address is not a multiple of 16 bytes; pass a clone()"),
        ({"tensor": X[:, :, :0]}, "dimension 2 of the tensor has 0 elements"),
        ({"tensor": X.transpose(1, 2), "box": (1, 4, 4)}, "last dimension has stride 64, not 1"),
        (
            {"tensor": torch.zeros(4, 6, 65)},
            "dimension 1 of the tensor has a stride of 260 bytes, not a multiple of 16",
        ),
        ({"tensor": torch.zeros(1 << 7, 1, 1).expand(-1, 6, 64)}, "last dimension has stride 0, not 1"),
        ({"box": (1, 2)}, "box has 2 numbers; pass 3, one for each dimension"),
        ({"box": (1, 2, 257)}, "box[2] is 257; it is 1 to 256"),
        ({"box": (0, 2, 32)}, "box[0] is 0; it is 1 to 256"),
        ({"box": (1, 2, 3)}, "box[2] is 3, rows of 12 bytes, which are not a multiple of 16; pass a multiple of 4"),
        ({"box": "32"}, "box is '32'; pass a tuple of 3 ints"),
        ({"swizzle": 64}, "rows of 128 bytes; swizzle=64 takes at most 16 elements"),
        ({"swizzle": 3}, "swizzle is 3; pass one of 0, 32, 64, 128"),
        ({"element_strides": (1, 9, 1)}, "element_strides[1] is 9; it is 1 to 8"),
        ({"interleave": 32}, "swizzle is 0; interleave=32 needs swizzle=32"),
        ({"interleave": 16}, "interleave is not supported on the CPU engine"),
        ({"tensor": X[0], "box": (2, 32), "interleave": 16}, "interleave needs at least 3 dimensions"),
        ({"tensor": X.int(), "fill": "nan"}, "fill is 'nan', which integers have none of"),
        ({"fill": "one"}, "fill is 'one'; pass one of 'zero', 'nan'"),
        ({"l2_promotion": 32}, "l2_promotion is 32; pass one of 0, 64, 128, 256"),
        ({"box": (8, 4), "im2col": ((0,), (0, 1))}, "im2col is ((0,), (0, 1)); pass two tuples of 1 ints"),
        ({"box": (8, 4), "im2col": ((0,), (40000,))}, "im2col has 40000; with 3 dimensions it is -32768 to 32767"),
        ({"box": (8, 4), "im2col": ((3,), (-3,))}, "im2col from 3 to -3 leaves nothing of a dimension of 6 pixels"),
        ({"box": (1025, 4), "im2col": ((0,), (0,))}, "box[0] is 1025; it is 1 to 1024"),
        ({"box": (8, 260), "im2col": ((0,), (0,))}, "box[1] is 260; channels are 1 to 256"),
        ({"tensor": X[0], "box": (8, 4), "im2col": ((), ())}, "im2col needs images, with channels, of 3 to 5"),
        ({"dtype": "half"}, "dtype is 'half'; pass one of 'float32_ftz', 'tf32', 'tf32_ftz' or None"),
        ({"tensor": X.half(), "dtype": "tf32"}, "which is for elements of float32; the tensor has float16"),
        ({"read_only": 1}, "read_only is 1; pass True or False"),
    ],
)
def test_what_is_rejected(change: dict, message: str) -> None:
    arguments = {"tensor": X, "box": (1, 2, 32)} | change
    with pytest.raises((TypeError, ValueError, UnsupportedError), match=f"^tensor_map: .*{re.escape(message)}"):
        rawkern.tensor_map(arguments.pop("tensor"), arguments.pop("box"), **arguments)


def test_launches_with_maps() -> None:
    """Where a map fits, and when the tensor's change shows; a launch looks at the tensor as it is by then."""
    kernel, out = rawkern.RawKernel(TAKES), torch.zeros(1)
    x = torch.zeros(4, 64)
    map_, version = rawkern.tensor_map(x, (2, 32)), x._version
    assert repr(map_) == "<tensor map of a (4, 64) float32 tensor, box (2, 32)>"
    kernel[1, 1](map_, out)
    assert x._version == version + 1 and out.item() == 1
    kernel[1, 1](rawkern.tensor_map(x, (2, 32), read_only=True), out)
    assert x._version == version + 1
    with pytest.raises(TypeError, match=r"argument 2 'x' is a tensor map, the kernel takes float\*; declare"):
        kernel[1, 1](map_, map_)
    w = torch.zeros(4, 64, requires_grad=True)
    with pytest.raises(LaunchError, match=r"argument 1 'map' maps a tensor that requires grad.*read_only=True"):
        kernel[1, 1](rawkern.tensor_map(w, (2, 32)), out)
    kernel[1, 1](rawkern.tensor_map(w, (2, 32), read_only=True), out)
    x.data = torch.zeros(4, 65)
    with pytest.raises(ValueError, match=r"argument 1 'map': dimension 0 of the tensor has a stride of 260 bytes"):
        kernel[1, 1](map_, out)


def test_a_map_follows_its_tensor_but_not_to_another_dtype() -> None:
    x = torch.nn.Parameter(torch.zeros(4, 64))
    made = rawkern.tensor_map(x, (2, 32))
    x.data = torch.ones(8, 64)
    assert made.encoded() == rawkern.tensor_map(x, (2, 32)).encoded()
    x.data = torch.ones(8, 64, dtype=torch.float16)
    with pytest.raises(TypeError, match="the tensor is float16 by now, its map was made for float32; make another map"):
        made.encoded()
    x.data = torch.ones(8, 8, 64)
    with pytest.raises(ValueError, match="has 3 dimensions by now, its map was made for 2"):
        made.encoded()


def test_what_was_asked_for_before_is_told_from_what_is_like_it() -> None:
    rawkern.tensor_map(X, (1, 2, 32), swizzle=128)
    for box, options, message in (
        ((True, 2, 32), {}, "box is (True, 2, 32)"), ((1, 2.0, 32), {}, "box is (1, 2.0, 32)"),
        ((1, 2, 32), {"swizzle": True}, "swizzle is True"), ((1, 2, [32]), {}, "box is (1, 2, [32])"),
        ((1, 2, 32), {"swizzle": [128]}, "swizzle is [128]"),
    ):  # fmt: skip
        with pytest.raises((TypeError, ValueError), match=re.escape(message)):
            rawkern.tensor_map(X, box, **options)
