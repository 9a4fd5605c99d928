"""Tensor maps: what Hopper's tensor copies (TMA) know of a tensor, passed to a kernel by value.

A GPU takes the 128 bytes that its driver makes. For the CPU engine they are a record of our own.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch

from rawkern.arguments.dlpack import dtype_word
from rawkern.arguments.memory import describe, dtype_name
from rawkern.arguments.scalars import Where
from rawkern.base import operator_state, table
from rawkern.base.api_boundary import api_boundary
from rawkern.base.libcuda import libcuda
from rawkern.base.nested import Holder
from rawkern.base.records import CPU, CUDA
from rawkern.errors import LaunchError, UnsupportedError

SIZE = 128  # bytes of a CUtensorMap
MOST_RANK = 5
#: The CPU engine's: magic, type, rank, interleave, swizzle; address; sizes, strides; extents of the box, their steps;
#: fill, L2 promotion, whether im2col; its corners; and where the memory ends. Beyond the rank sizes, extents and steps
#: are 1, strides 0. With im2col the box is of channels and pixels.
_RECORD = struct.Struct("<I4BQ5q4q5H5B3B2x3h3hQ")
#: What a tensor's memory was when a map of it was made, by its rank: address; device, by kind and number; rank, dtype;
#: sizes, strides.
_KEYS = tuple(struct.Struct(f"<QiiiI{2 * rank}q") for rank in range(MOST_RANK + 1))
_made: dict[tuple[bytes, _Form, int | None], bytes] = {}  # maps by what they were made for
_MOST_MADE = 4096
MAGIC = int.from_bytes(b"TMap", "little")
#: CUtensorMapDataType: number, bytes, and whether a copy may fill with NaN.
_TYPES = {
    **dict.fromkeys(("uint8", "int8", "bool", "float4_e2m1fn_x2"), (0, 1, False)),
    **dict.fromkeys([f"float8_{x}" for x in ("e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz", "e8m0fnu")], (0, 1, False)),
    "uint16": (1, 2, False), "int16": (1, 2, False), "uint32": (2, 4, False), "int32": (3, 4, False),
    "uint64": (4, 8, False), "int64": (5, 8, False), "float16": (6, 2, True), "float32": (7, 4, True),
    "float64": (8, 8, True), "bfloat16": (9, 2, True),
    "float32_ftz": (10, 4, True), "tf32": (11, 4, True), "tf32_ftz": (12, 4, True),
}  # fmt: skip
_OF_FLOAT32 = ("float32_ftz", "tf32", "tf32_ftz")
_SWIZZLES = (0, 32, 64, 128)  # bytes, in the driver's order
_INTERLEAVES = (0, 16, 32)
_PROMOTIONS = (0, 64, 128, 256)
_FILLS = ("zero", "nan")
_MOST_SIZE, _MOST_STRIDE, _MOST_BOX, _MOST_STEP = 1 << 32, 1 << 40, 256, 8
_MOST_PIXELS, _MOST_CORNER = 1024, {3: 1 << 15, 4: 1 << 7, 5: 1 << 4}


class _Form(NamedTuple):
    """What the driver is told, as it wants it: the innermost dimension first; numbers for names."""

    type: int
    box: tuple[int, ...]
    steps: tuple[int, ...]
    interleave: int
    swizzle: int
    promotion: int
    fill: int
    corners: tuple[tuple[int, ...], tuple[int, ...]] | None = None  # of im2col: the lower and the upper one


class TensorMap(Holder):
    """A tensor and how boxes of it are copied, from `tensor_map`; pass it for a ``CUtensorMap`` parameter."""

    __slots__ = ("_dtype", "_form", "_known", "read_only")

    def __init__(self, tensor: torch.Tensor, form: _Form, read_only: bool) -> None:
        self.tensor, self.read_only, self._form, self._dtype = tensor, read_only, form, tensor.dtype
        self._known = b""

    def __repr__(self) -> str:
        box = f"box {self._form.box[::-1]}"
        return f"<tensor map of a {tuple(self.tensor.shape)} {dtype_name(self.tensor.dtype)} tensor, {box}>"

    def encoded(self, where: Where | str = "tensor_map") -> bytes:
        """The 128 bytes for the device that the tensor is on, made again where it has moved or changed its shape."""
        t = self.tensor
        if t.dim() != len(self._form.steps):
            raise ValueError(
                f"{where}: the tensor has {t.dim()} dimensions by now, its map was made for {len(self._form.steps)}"
            )
        if t.dtype != self._dtype:
            now, then = dtype_name(t.dtype), dtype_name(self._dtype)
            raise TypeError(f"{where}: the tensor is {now} by now, its map was made for {then}; make another map")
        key = _key(t)
        if not self._known.startswith(key):
            end = None if t.is_cuda else t.untyped_storage().data_ptr() + t.untyped_storage().nbytes()
            data = _made.get((key, self._form, end))
            if data is None:
                geometry = _geometry(t, self._form, str(where))
                data = _of_cpu(*geometry, self._form, end) if end is not None else _of_driver(*geometry, self._form)
                if len(_made) >= _MOST_MADE:
                    _made.clear()
                _made[key, self._form, end] = data
            self._known = key + data
        return self._known[len(key) :]


def _key(t: torch.Tensor) -> bytes:
    """What a map is made for, as a DLTensor has it, which native code compares."""
    device = (CUDA, t.get_device()) if t.is_cuda else (CPU, 0)
    shape = t.shape
    return _KEYS[len(shape)].pack(t.data_ptr(), *device, len(shape), dtype_word(t.dtype), *shape, *t.stride())


#: Where native code finds in an object what it needs.
TENSOR_AT, READ_ONLY_AT, KNOWN_AT = (table.slot_offset(TensorMap, name) for name in ("tensor", "read_only", "_known"))


@api_boundary
def tensor_map(
    tensor: torch.Tensor, box: int | Sequence[int], *, swizzle: int = 0,
    element_strides: int | Sequence[int] | None = None, interleave: int = 0, fill: str = "zero", l2_promotion: int = 0,
    im2col: tuple[Sequence[int], Sequence[int]] | None = None, dtype: str | None = None, read_only: bool = False,
) -> TensorMap:  # fmt: skip
    """Describe a tensor for Hopper's tensor copies (TMA): what ``cuTensorMapEncodeTiled`` does, on both engines.

    Pass it for a kernel's parameter ``const __grid_constant__ CUtensorMap map``, whose address ``&map`` the copies
    take. It keeps the tensor alive and follows it: a launch passes the tensor's current address, shape and strides.

    Parameters
    ----------
    tensor : torch.Tensor
        1 to 5 dimensions; the last one is contiguous, the other strides and the address are multiples of 16 bytes.
    box : int or sequence of int
        The elements that one copy moves, for each dimension of the tensor in the tensor's order: 1 to 256.
        Coordinates in the kernel have the other order, the last dimension's first.
    swizzle : int, default 0
        How 16-byte units are permuted in shared memory, by the bytes of a row: 0, 32, 64 or 128.
    element_strides : int or sequence of int, optional
        Steps of 1 to 8 elements, for each dimension. The last dimension's is ignored.
    interleave : int, default 0
        Bytes of a channel slice: 0, 16 or 32. Not on the CPU.
    fill : {"zero", "nan"}, default "zero"
        The value of elements outside the tensor.
    l2_promotion : int, default 0
        Bytes that L2 fetches: 0, 64, 128 or 256.
    im2col : pair of sequences of int, optional
        For copies in im2col mode, of a tensor of images (N, W, C), (N, H, W, C) or (N, D, H, W, C): the lower and the
        upper corner of the pixels that are visited, in the tensor's order, the upper one from an image's last pixel.
        ``box`` is then the number of pixels, up to 1024, and of channels; ``element_strides`` are the steps.
    dtype : {"float32_ftz", "tf32", "tf32_ftz"}, optional
        Other types for elements of float32. Copies of the last two round to tf32.
    read_only : bool, default False
        Kernels do not write the tensor through this map. Otherwise each launch counts as a change of the tensor.

    Returns
    -------
    TensorMap
        An argument for kernels. Its ``tensor`` is the tensor.

    Raises
    ------
    TypeError, ValueError
        The driver or the GPU would reject the map.
    """
    name = "tensor_map"
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{name}: tensor is a {type(tensor).__name__}; pass a torch tensor")
    fake = operator_state.state.level == operator_state.FAKE
    if not fake and not (table.is_plain(tensor) and tensor.data_ptr()):
        describe(tensor, Where(name, 1, "tensor"), "its memory", True)
    if not isinstance(read_only, bool):
        raise TypeError(f"{name}: read_only is {read_only!r}; pass True or False")
    kind, rank, form = tensor.dtype, tensor.dim(), None
    if type(box) is tuple and element_strides is None and im2col is None:
        with contextlib.suppress(TypeError):  # `_form` says what is wrong with a value that is not hashable
            form = _tiled(kind, rank, swizzle, interleave, fill, l2_promotion, dtype, *box)
    if form is None:
        form = _form(kind, rank, box, swizzle, element_strides, interleave, fill, l2_promotion, im2col, dtype)
    made = TensorMap(tensor, form, read_only)
    if not fake:
        made.encoded()
    return made


def _form(
    kind: torch.dtype, rank: int, box: Any, swizzle: Any, element_strides: Any, interleave: Any, fill: Any,
    l2_promotion: Any, im2col: Any, dtype: Any,
) -> _Form:  # fmt: skip
    """What is asked for of a tensor, if it is what the driver takes."""
    if not 1 <= rank <= MOST_RANK:
        raise ValueError(f"tensor_map: the tensor has {rank} dimensions; a tensor map has 1 to {MOST_RANK}: reshape it")
    steps = (1,) * rank if element_strides is None else element_strides
    number, size, floats = _type(kind, dtype)
    extents = _numbers("box", box, rank, _MOST_BOX) if im2col is None else _numbers("box", box, 2, _MOST_PIXELS)
    form = _Form(
        number, extents, _numbers("element_strides", steps, rank, _MOST_STEP),
        _choice("interleave", interleave, _INTERLEAVES), _choice("swizzle", swizzle, _SWIZZLES),
        _choice("l2_promotion", l2_promotion, _PROMOTIONS), _choice("fill", fill, _FILLS),
        None if im2col is None else _corners(im2col, rank),
    )  # fmt: skip
    _check_form(form, rank, size, floats)
    return form


@lru_cache(maxsize=1024, typed=True)
def _tiled(
    kind: torch.dtype, rank: int, swizzle: Any, interleave: Any, fill: Any, l2_promotion: Any, dtype: Any, *box: Any
) -> _Form:
    """The same for what is asked for again and again; each extent for itself, as True is 1 but of another type."""
    return _form(kind, rank, box, swizzle, None, interleave, fill, l2_promotion, None, dtype)


def _type(kind: torch.dtype, dtype: str | None) -> tuple[int, int, bool]:
    name = dtype_name(kind)
    if dtype is not None:
        if dtype not in _OF_FLOAT32:
            raise ValueError(f"tensor_map: dtype is {dtype!r}; pass one of {', '.join(map(repr, _OF_FLOAT32))} or None")
        if name != "float32":
            raise TypeError(f"tensor_map: dtype is {dtype!r}, which is for elements of float32; the tensor has {name}")
        name = dtype
    if name not in _TYPES:
        raise TypeError(
            f"tensor_map: the tensor is {name}, which tensor copies do not know; pass a view of another dtype"
        )
    return _TYPES[name]


def _numbers(name: str, value: Any, rank: int, most: int) -> tuple[int, ...]:
    """A number for each dimension, the innermost first."""
    numbers = (value,) if isinstance(value, int) else tuple(value) if isinstance(value, (tuple, list)) else None
    if numbers is None or any(isinstance(x, bool) or not isinstance(x, int) for x in numbers):
        raise TypeError(f"tensor_map: {name} is {value!r}; pass a tuple of {rank} ints, one for each dimension")
    if len(numbers) != rank:
        raise ValueError(f"tensor_map: {name} has {len(numbers)} numbers; pass {rank}, one for each dimension")
    for k, x in enumerate(numbers):
        if not 1 <= x <= most:
            raise ValueError(f"tensor_map: {name}[{k}] is {x}; it is 1 to {most}")
    return numbers[::-1]


def _corners(im2col: Any, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The corners of im2col, the innermost dimension first."""
    if rank < 3:
        raise ValueError(f"tensor_map: im2col needs images, with channels, of 3 to 5 dimensions; the tensor has {rank}")
    two, most = isinstance(im2col, (tuple, list)) and len(im2col) == 2, _MOST_CORNER[rank]
    found = []
    for corner in im2col if two else [None]:
        numbers = tuple(corner) if isinstance(corner, (tuple, list)) else ()
        if len(numbers) != rank - 2 or any(isinstance(x, bool) or not isinstance(x, int) for x in numbers):
            raise TypeError(f"tensor_map: im2col is {im2col!r}; pass two tuples of {rank - 2} ints, the box's corners")
        for x in numbers:
            if not -most <= x < most:
                raise ValueError(f"tensor_map: im2col has {x}; with {rank} dimensions it is {-most} to {most - 1}")
        found.append(numbers[::-1])
    return found[0], found[1]


def _choice(name: str, value: Any, choices: tuple[Any, ...]) -> int:
    if isinstance(value, bool) or value not in choices:
        raise ValueError(f"tensor_map: {name} is {value!r}; pass one of {', '.join(map(repr, choices))}")
    return choices.index(value)


def _check_form(form: _Form, rank: int, size: int, floats: bool) -> None:
    row, last = form.box[0] * size, f"box[{len(form.box) - 1}] is {form.box[0]}"
    if form.box[0] > _MOST_BOX:
        raise ValueError(f"tensor_map: {last}; channels are 1 to {_MOST_BOX}")
    if form.interleave:
        if rank < 3:
            raise ValueError(f"tensor_map: interleave needs at least 3 dimensions, the tensor has {rank}")
        if _INTERLEAVES[form.interleave] == 32 and _SWIZZLES[form.swizzle] != 32:
            raise ValueError(f"tensor_map: swizzle is {_SWIZZLES[form.swizzle]}; interleave=32 needs swizzle=32")
    elif row % 16:
        few = f"pass a multiple of {16 // math.gcd(16, size)}"
        raise ValueError(f"tensor_map: {last}, rows of {row} bytes, which are not a multiple of 16; {few}")
    elif form.swizzle and row > _SWIZZLES[form.swizzle]:
        span = _SWIZZLES[form.swizzle]
        most = span // size
        raise ValueError(f"tensor_map: {last}, rows of {row} bytes; swizzle={span} takes at most {most} elements")
    if _FILLS[form.fill] == "nan" and not floats:
        raise ValueError("tensor_map: fill is 'nan', which integers have none of; pass 'zero'")


def _geometry(t: torch.Tensor, form: _Form, name: str) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    """Address, sizes in elements and strides in bytes, the innermost first, if the driver takes them."""
    if t.device.type not in ("cpu", "cuda"):
        raise ValueError(f"{name}: the tensor is on {t.device}; rawkern runs on cpu and cuda: pass tensor.cpu()")
    unit = 32 if _INTERLEAVES[form.interleave] == 32 else 16
    address, size, rank = t.data_ptr(), t.element_size(), t.dim()
    if address % unit:
        raise ValueError(f"{name}: its address is not a multiple of {unit} bytes; pass a clone()")
    for k, n in enumerate(t.shape):
        if not 1 <= n <= _MOST_SIZE:
            raise ValueError(f"{name}: dimension {k} of the tensor has {n} elements; a tensor map has 1 to 2**32")
    if t.shape[-1] > 1 and t.stride(-1) != 1:
        fix = "pass contiguous(), or a transposed view"
        raise ValueError(f"{name}: the tensor's last dimension has stride {t.stride(-1)}, not 1; {fix}")
    sizes, strides = tuple(t.shape[::-1]), []
    for n, low, high in zip(sizes[1:], *form.corners, strict=False) if form.corners is not None else ():
        if low > n - 1 + high:
            raise ValueError(f"{name}: im2col from {low} to {high} leaves nothing of a dimension of {n} pixels")
    extent = -(-sizes[0] * size // unit) * unit
    for k in range(rank - 2, -1, -1):
        stride = t.stride(k) * size if t.shape[k] > 1 else extent  # of one element alone no stride is used
        if stride % unit or stride >= _MOST_STRIDE:
            rule = f"not a multiple of {unit}" if stride % unit else "2**40 or more"
            fix = "pad the rows: torch.nn.functional.pad(tensor, ...), or a view of a wider tensor"
            raise ValueError(f"{name}: dimension {k} of the tensor has a stride of {stride} bytes, {rule}; {fix}")
        strides.append(stride)
        extent = max(extent, stride * t.shape[k])
    return address, sizes, tuple(strides)


def _of_cpu(address: int, sizes: tuple[int, ...], strides: tuple[int, ...], form: _Form, end: int) -> bytes:
    if form.interleave:
        raise UnsupportedError("tensor_map: interleave is not supported on the CPU engine; pass a tensor on a GPU")
    lower, upper = form.corners or ((), ())
    # An extent is divided by the step at its place: those of im2col stand one further on.
    steps = (1, *form.steps[1:]) if form.corners is None else (1, 1, *form.steps[1:-1])
    return _RECORD.pack(
        MAGIC, form.type, len(sizes), form.interleave, form.swizzle, address, *_filled(sizes, 5, 1),
        *_filled(strides, 4, 0), *_filled(form.box, 5, 1), *_filled(steps, 5, 1), form.fill, form.promotion,
        int(form.corners is not None), *_filled(lower, 3, 0), *_filled(upper, 3, 0), end,
    )  # fmt: skip


def _filled(numbers: tuple[int, ...], count: int, rest: int) -> tuple[int, ...]:
    return (*numbers, *[rest] * (count - len(numbers)))


def _of_driver(address: int, sizes: tuple[int, ...], strides: tuple[int, ...], form: _Form) -> bytes:
    room = ctypes.create_string_buffer(2 * SIZE)
    start = -ctypes.addressof(room) % 64
    rank = len(sizes)
    words, halves = ctypes.c_uint64 * rank, ctypes.c_uint32 * rank
    to = ctypes.c_void_p(ctypes.addressof(room) + start)
    what = to, form.type, rank, ctypes.c_void_p(address), words(*sizes), words(*strides)
    steps = halves(*form.steps)
    how = form.interleave, form.swizzle, form.promotion, form.fill
    if form.corners is None:
        status = libcuda().cuTensorMapEncodeTiled(*what, halves(*form.box), steps, *how)
    else:
        lower, upper = (((ctypes.c_int32 * (rank - 2))(*corner)) for corner in form.corners)
        status = libcuda().cuTensorMapEncodeIm2col(*what, lower, upper, *form.box, steps, *how)
    if status:
        raise LaunchError(
            f"tensor_map: the driver does not take this tensor map (error {status}); tensor copies need a GPU of "
            "compute capability 9.0 or later"
        )
    return room.raw[start : start + SIZE]
