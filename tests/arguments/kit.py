"""Signatures to bind arguments to."""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import Any

import pytest

from rawkern.arguments.signature import Signature, make_signature
from rawkern.arguments.slow_path import Bound, bind
from rawkern.base.ctype import Member, StructLayout
from rawkern.errors import UnsupportedError

LAYOUTS = {
    # struct Params { int n; float a; const float* x; float* y; }
    "ns::Params": StructLayout(
        24,
        8,
        (
            Member("n", "int", 0),
            Member("a", "float", 4),
            Member("x", "float const*", 8),
            Member("y", "float*", 16),
        ),
    ),
    # struct Padded { char c; double d; short s[3]; Inner in; }
    "Padded": StructLayout(
        32,
        8,
        (Member("c", "char", 0), Member("d", "double", 8), Member("s", "short [3]", 16), Member("in", "Inner", 24)),
    ),
    "Inner": StructLayout(8, 4, (Member("i", "int", 0), Member("f", "float", 4))),
    "Opaque": StructLayout(12, 4, unknown="its member 'a' is private"),
}


def layout(name: str) -> StructLayout:
    if name not in LAYOUTS:
        raise UnsupportedError(f"the layout of type {name} cannot be found")
    return LAYOUTS[name]


def make(*params: str, names: tuple[str, ...] = (), name: str = "k") -> Signature:
    return make_signature(SimpleNamespace(name=name, params=params), names, layout)


def pack(*params: str, args: tuple[Any, ...]) -> bytes:
    signature = make(*params)
    return struct.pack(signature.format, *bind(signature, args).values)


def one(param: str, value: Any, **options: Any) -> Bound:
    return bind(make(param, names=("x",)), (value,), **options)


def rejects(param: str, value: Any, message: str, error: type[Exception] = TypeError, **options: Any) -> None:
    """The whole message must be `message`, after the words that name the argument."""
    with pytest.raises(error) as caught:
        one(param, value, **options)
    assert str(caught.value) == f"k: argument 1 'x' {message}"


SAXPY = make("int", "float", "float const*", "float*", names=("n", "a", "x", "y"), name="saxpy")
