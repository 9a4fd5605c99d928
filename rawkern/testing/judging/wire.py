"""Sends values and tensors through a socket as JSON and bytes, so that reading a message cannot run code."""

from __future__ import annotations

import json
import math
import socket
import struct
import time
from collections.abc import Sequence
from typing import Any

import torch

_SIZE = struct.Struct("<QQ")  # bytes of JSON, bytes of tensors
_MOST_TEXT = 1 << 24
_MOST_DIMENSIONS = 64


class Broken(Exception):
    """The other side sent an invalid or too large message."""


class Late(Exception):
    """The time is up."""


# Values -----------------------------------------------------------------------------------------------------------


def encoded(value: Any, tensors: list[torch.Tensor], what: str = "the argument") -> Any:
    """A value for JSON; its tensors are appended to the list. TypeError for unsupported types."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return {"tensor": len(tensors) - 1}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    if type(value) in (list, tuple, torch.Size):
        kind = "list" if type(value) is list else "tuple"
        return {kind: [encoded(each, tensors, what) for each in value]}
    if type(value) is dict:
        pairs = [[encoded(k, tensors, what), encoded(v, tensors, what)] for k, v in value.items()]
        return {"dict": pairs}
    raise TypeError(
        f"{what} is of type {type(value).__name__}; a candidate's process takes tensors, numbers, text, dtypes, None, "
        "and lists, tuples and dicts of those"
    )


def decoded(value: Any, tensors: Sequence[torch.Tensor]) -> Any:
    """The inverse of `encoded`."""
    if not isinstance(value, dict):
        return value
    ((kind, held),) = value.items()
    if kind == "tensor":
        return tensors[held]
    if kind == "complex":
        return complex(*held)
    if kind == "dtype":
        return dtype_of(held)
    if kind == "dict":
        return {decoded(k, tensors): decoded(v, tensors) for k, v in held}
    made = [decoded(each, tensors) for each in held]
    return made if kind == "list" else tuple(made)


def dtype_of(name: Any) -> torch.dtype:
    found = getattr(torch, name, None) if isinstance(name, str) else None
    if not isinstance(found, torch.dtype):
        raise Broken(f"there is no dtype {name!r}")
    return found


# Messages ---------------------------------------------------------------------------------------------------------


def send(
    to: socket.socket, head: dict[str, Any], tensors: Sequence[torch.Tensor] = (), until: float | None = None
) -> None:
    """Send one message: values as JSON, then contiguous tensors in order. `until` is a time of `time.monotonic`."""
    plain = [t.detach().cpu().contiguous() for t in tensors]
    told = [[str(t.dtype).removeprefix("torch."), list(t.shape)] for t in plain]
    text = json.dumps({**head, "tensors": told}).encode()
    views = [_bytes(t) for t in plain if t.numel()]
    try:
        _wait(to, until)
        to.sendall(_SIZE.pack(len(text), sum(v.nbytes for v in views)) + text)
        for view in views:
            _wait(to, until)
            to.sendall(view)
    except TimeoutError:
        raise Late from None


def receive(of: socket.socket, most: int, until: float | None = None) -> tuple[dict[str, Any], list[torch.Tensor]]:
    """Read one message with a limit on the bytes of its tensors.

    EOFError if the other side has closed, `Late` after `until`, `Broken` for an invalid message.
    """
    length, nbytes = _SIZE.unpack(_read(of, _SIZE.size, until))
    if length > _MOST_TEXT or nbytes > most:
        raise Broken(f"a message of {length} bytes of text and {nbytes} bytes of tensors")
    try:
        head = json.loads(bytes(_read(of, length, until)))
        told = [(dtype_of(name), [int(n) for n in shape]) for name, shape in head["tensors"]]
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise Broken(f"an invalid message: {error}") from None
    if any(n < 0 or len(shape) > _MOST_DIMENSIONS for _, shape in told for n in shape):
        raise Broken("a tensor with an impossible shape")
    if sum(dtype.itemsize * math.prod(shape) for dtype, shape in told) != nbytes:
        raise Broken("tensors whose size differs from the message's")
    tensors = []
    for dtype, shape in told:
        t = torch.empty(shape, dtype=dtype)
        if t.numel():
            _read_into(of, _bytes(t), until)
        tensors.append(t)
    return head, tensors


def _bytes(t: torch.Tensor) -> memoryview:
    return t.reshape(-1).view(torch.uint8).numpy().data


def _read(of: socket.socket, count: int, until: float | None) -> bytearray:
    data = bytearray(count)
    _read_into(of, memoryview(data), until)
    return data


def _read_into(of: socket.socket, room: memoryview, until: float | None) -> None:
    while len(room):
        _wait(of, until)
        try:
            got = of.recv_into(room)
        except TimeoutError:
            raise Late from None
        except ConnectionResetError:
            got = 0
        if not got:
            raise EOFError
        room = room[got:]


def _wait(on: socket.socket, until: float | None) -> None:
    """Limit the next call on a socket to that time."""
    if until is None:
        on.settimeout(None)
        return
    left = until - time.monotonic()
    if left <= 0:
        raise Late
    on.settimeout(left)
