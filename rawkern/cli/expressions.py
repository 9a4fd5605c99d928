"""The arguments of `rawkern run`: a small language of numbers and tensors, parsed by Python and evaluated here.

An expression is a number (with the usual arithmetic, and the names of other number arguments), None, a tuple, list or
dict of expressions, or a tensor: one of `MAKERS`, or ``@file.npy``. Nothing else is evaluated.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from rawkern.base.ctype import CType, parse
from rawkern.base.nearest import did_you_mean
from rawkern.cli.text import CommandError, missing_file

_MAX_POWER = 1024  # of ** and <<: larger numbers fit no kernel's parameter and take long to compute
_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow, ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
}  # fmt: skip
_UNARY: dict[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.UAdd: operator.pos, ast.USub: operator.neg, ast.Invert: operator.invert,
}  # fmt: skip
_CONSTANTS: dict[str, Any] = {"inf": float("inf"), "nan": float("nan"), "pi": 3.141592653589793}
_ON_NUMBERS: dict[str, Callable[..., Any]] = {"int": int, "float": float, "min": min, "max": max}
POISON = 0xA5  # each byte of an integer tensor made by empty(); floats are NaN there


@dataclass(frozen=True)
class Maker:
    """The settings for making tensors."""

    # Those that the parameter accepts, the default first; empty if it accepts any (``void*``) or no tensor.
    dtypes: tuple[torch.dtype, ...]
    generator: torch.Generator  # on the CPU: a seed gives the same numbers on every device
    device: torch.device
    numbers: Mapping[str, Any]  # the arguments that are numbers, by name
    members: Mapping[str, CType] = field(default_factory=dict)  # the types of a struct's members, by name

    def of(self, member: str) -> Maker:
        """The settings for a member of the struct."""
        ctype = self.members.get(member)
        return replace(self, dtypes=dtypes_behind(ctype) if ctype else (), members=members_of(ctype) if ctype else {})


def dtypes_behind(ctype: CType) -> tuple[torch.dtype, ...]:
    """The dtypes of tensors for a pointer parameter, none for void and by-value types; structs are bytes."""
    target = ctype.target
    while target is not None and target.target is not None:  # a pointer to pointers takes a list of tensors
        target = target.target
    if target is None or target.kind in ("void", "function"):
        return ()
    return tuple(getattr(torch, name) for name in target.dtypes or ("uint8",))


def members_of(ctype: CType) -> dict[str, CType]:
    """The types of a struct's members, by name; none of other types and of structs that are not known."""
    return {member.name: parse(member.type) for member in ctype.layout.members} if ctype.layout else {}


def number(text: str, numbers: Mapping[str, Any]) -> Any:
    """Evaluate an expression without tensors, such as a grid: a number or a tuple of them."""
    found = value(text, Maker((), torch.Generator(), torch.device("cpu"), numbers))
    if any(isinstance(one, torch.Tensor) for one in (found if isinstance(found, tuple) else (found,))):
        raise CommandError(f"{text!r} is a tensor; pass a number")
    return found


def value(text: str, maker: Maker) -> Any:
    """Evaluate the expression of one argument; `CommandError` if it is not one, or cannot be evaluated."""
    text = text.strip()
    try:
        if text.startswith("@"):
            return _load(maker, text[1:])
        return _Reader(text, maker).read(ast.parse(text, mode="eval").body)
    except SyntaxError:
        raise CommandError(f"{text!r} is not an expression; write a number, or a tensor such as randn(1000)") from None
    except (ValueError, TypeError, RuntimeError, OverflowError, ArithmeticError, MemoryError) as error:
        reason = str(error).partition("\n")[0] or repr(error)
        raise CommandError(f"{text!r} cannot be evaluated: {reason}") from error


class _Reader:
    """One expression on its way to a value."""

    def __init__(self, text: str, maker: Maker) -> None:
        self.text = text
        self.maker = maker

    def read(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=bool() | int() | float() | complex() | None):
                return node.value
            case ast.Name():
                return self._name(node.id)
            case ast.UnaryOp() if type(node.op) in _UNARY:
                return _UNARY[type(node.op)](self._number(node.operand))
            case ast.BinOp() if type(node.op) in _BINARY:
                return self._binary(node)
            case ast.Tuple():
                return tuple(map(self.read, node.elts))
            case ast.List():
                return list(map(self.read, node.elts))
            case ast.Dict() if all(isinstance(key, ast.Constant) and isinstance(key.value, str) for key in node.keys):
                pairs = zip(node.keys, node.values, strict=True)
                named = [(str(key.value), item) for key, item in pairs if isinstance(key, ast.Constant)]
                return {name: _Reader(self.text, self.maker.of(name)).read(item) for name, item in named}
            case ast.Call(func=ast.Name(id=str() as name)):
                return self._call(name, node)
        raise CommandError(
            f"{self._piece(node)} in {self.text!r} is not supported; use numbers with arithmetic, tuples, "
            f"lists, dicts, and {', '.join(MAKERS)}"
        )

    def _piece(self, node: ast.expr) -> str:
        return ast.get_source_segment(self.text, node) or self.text

    def _number(self, node: ast.expr) -> Any:
        found = self.read(node)
        if isinstance(found, (int, float, complex)):
            return found
        raise CommandError(f"{self._piece(node)} in {self.text!r} is not a number; arithmetic works only on numbers")

    def _binary(self, node: ast.BinOp) -> Any:
        left, right = self._number(node.left), self._number(node.right)
        if isinstance(node.op, (ast.Pow, ast.LShift)) and abs(right) > _MAX_POWER:
            raise CommandError(f"{self.text!r}: the right operand of ** and << is at most {_MAX_POWER}")
        return _BINARY[type(node.op)](left, right)

    def _name(self, name: str) -> Any:
        known = {**_CONSTANTS, **self.maker.numbers}
        if name in known:
            return known[name]
        raise CommandError(
            f"unknown name {name} in {self.text!r}; choose from {', '.join(known)}{did_you_mean(name, known)}"
        )

    def _call(self, name: str, node: ast.Call) -> Any:
        if name in _ON_NUMBERS and not node.keywords:
            return _ON_NUMBERS[name](*map(self._number, node.args))
        make = MAKERS.get(name)
        if make is None:
            known = [*MAKERS, *_ON_NUMBERS]
            raise CommandError(
                f"unknown function {name}() in {self.text!r}; choose from {', '.join(known)}{did_you_mean(name, known)}"
            )
        maker = self.maker
        for keyword in node.keywords:
            if keyword.arg != "dtype" or not isinstance(keyword.value, ast.Name):
                raise CommandError(f"{self.text!r}: the only keyword of {name}() is dtype=NAME, such as dtype=float16")
            dtype = getattr(torch, keyword.value.id, None)
            if not isinstance(dtype, torch.dtype):
                raise CommandError(
                    f"{self.text!r}: {keyword.value.id} is not a dtype of torch{_near_dtype(keyword.value.id)}"
                )
            maker = replace(maker, dtypes=(dtype,))
        if name == "load":
            paths = [arg.value if isinstance(arg, ast.Constant) else None for arg in node.args]
            return _load(maker, *paths, convert=True)
        return make(maker, *map(self.read, node.args))


# Tensors --------------------------------------------------------------------------------------------------------


def _near_dtype(name: str) -> str:
    return did_you_mean(name, [known for known in dir(torch) if isinstance(getattr(torch, known), torch.dtype)])


def _shape(sizes: tuple[Any, ...]) -> tuple[int, ...]:
    """Sizes as torch takes them: separate ints or one tuple."""
    shape = tuple(sizes[0]) if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)) else sizes
    if not all(type(size) is int and size >= 0 for size in shape):
        raise CommandError(f"{', '.join(map(repr, shape))} is not a shape; sizes are ints, 0 or more")
    return shape


def _dtype(maker: Maker) -> torch.dtype:
    if not maker.dtypes:
        raise CommandError(
            "the parameter does not determine the dtype; add dtype=NAME, such as zeros(10, dtype=float32)"
        )
    return maker.dtypes[0]


def _converted(made: torch.Tensor, maker: Maker) -> torch.Tensor:
    """The tensor in the parameter's dtype, on the device; numbers that do not fit raise an error and do not wrap."""
    dtype = _dtype(maker)
    converted = made.to(dtype)
    if dtype.is_floating_point or dtype.is_complex:
        lost = made.isfinite() & ~converted.to(torch.complex128 if dtype.is_complex else torch.float64).isfinite()
    else:
        lost = converted.to(made.dtype) != made
    if lost.any():
        raise CommandError(f"{made[lost][0].item()} does not fit {dtype}")
    return converted.to(maker.device)


def _random(maker: Maker, name: str, *shape: Any) -> torch.Tensor:
    dtype = _dtype(maker)
    if not dtype.is_floating_point and not dtype.is_complex:
        raise CommandError(f"{name}() makes real numbers, but the parameter takes {dtype}; use randint(low, high, n)")
    drawn = dtype if dtype in (torch.float64, torch.complex64, torch.complex128) else torch.float32
    make = torch.randn if name == "randn" else torch.rand
    return make(_shape(shape), dtype=drawn, generator=maker.generator).to(dtype).to(maker.device)


def _randint(maker: Maker, *arguments: Any) -> torch.Tensor:
    if len(arguments) < 3:
        raise CommandError("randint() takes the lowest number, the highest plus one, and a shape: randint(0, 10, 1000)")
    low, high, *sizes = arguments
    shape = tuple(sizes)
    drawn = torch.randint(low, high, _shape(shape), generator=maker.generator)
    return _converted(drawn, maker)


def _full(maker: Maker, *arguments: Any) -> torch.Tensor:
    if len(arguments) < 2:
        raise CommandError("full() takes a shape and a value: full(1000, 2.5), full((3, 4), 2.5)")
    *shape, fill = arguments
    wide = torch.float64 if isinstance(fill, float) else torch.complex128 if isinstance(fill, complex) else None
    return _converted(torch.full(_shape(tuple(shape)), fill, dtype=wide), maker)


def _empty(maker: Maker, *shape: Any) -> torch.Tensor:
    """Make a tensor with uninitialized elements: NaN, or bytes of `POISON`, so that elements never written show."""
    dtype = _dtype(maker)
    if (dtype.is_floating_point and dtype.itemsize > 1) or dtype.is_complex:
        return torch.full(_shape(shape), float("nan"), dtype=dtype, device=maker.device)
    return _of_bytes(maker, _shape(shape), 0 if dtype == torch.bool else POISON)


def _of_bytes(maker: Maker, shape: tuple[int, ...], byte: int) -> torch.Tensor:
    made = torch.empty(shape, dtype=_dtype(maker), device=maker.device)
    if made.numel():
        made.reshape(-1).view(torch.uint8).fill_(byte)
    return made


def _arange(maker: Maker, *bounds: Any) -> torch.Tensor:
    if not 1 <= len(bounds) <= 3:
        raise CommandError("arange() takes an end, or start, end and step: arange(1000), arange(0, 1, 0.1)")
    return _converted(
        torch.arange(*bounds, dtype=torch.float64 if any(isinstance(bound, float) for bound in bounds) else None), maker
    )


def _tensor(maker: Maker, *values: Any) -> torch.Tensor:
    if len(values) != 1:
        raise CommandError("tensor() takes one number or list: tensor([1, 2.5, -3]), tensor([[1, 2], [3, 4]])")
    made = torch.tensor(values[0])
    # Integers are exact, other numbers have float64's precision; a value that does not fit the parameter raises.
    wide = torch.float64 if made.is_floating_point() else torch.complex128 if made.is_complex() else made.dtype
    return _converted(torch.tensor(values[0], dtype=wide), maker)


def _load(maker: Maker, path: Any, *more: Any, convert: bool = False) -> torch.Tensor:
    """Read an .npy file unchanged; ``load("file.npy", dtype=...)`` converts it to the dtype."""
    if not isinstance(path, str) or more:
        raise CommandError("load() takes the name of a file: load('x.npy'), load('x.npy', dtype=float32)")
    try:
        array = np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise missing_file(path) from None
    except (ValueError, OSError) as error:  # NumPy treats unknown content as a pickle
        why = (
            error.strerror
            if isinstance(error, OSError)
            else "it has another format, is truncated or holds Python objects"
        )
        raise CommandError(f"{path} cannot be read as an .npy file: {why}; save an array with numpy.save") from None
    if not isinstance(array, np.ndarray):
        raise CommandError(f"{path} holds several arrays (.npz); save one with numpy.save")
    loaded = torch.from_numpy(np.ascontiguousarray(array))
    if convert:
        loaded = loaded.to(_dtype(maker))
    elif maker.dtypes and loaded.dtype not in maker.dtypes:
        name = str(maker.dtypes[0]).removeprefix("torch.")
        fix = f"write load('{path}', dtype={name}) to convert it"
        raise CommandError(f"{path} holds {loaded.dtype}, but the parameter takes {maker.dtypes[0]}; {fix}")
    return loaded.to(maker.device)


#: Tensors by name, with the arguments that each takes before ``dtype=``.
MAKERS: dict[str, Callable[..., torch.Tensor]] = {
    "randn": lambda maker, *shape: _random(maker, "randn", *shape),
    "rand": lambda maker, *shape: _random(maker, "rand", *shape),
    "randint": _randint,
    "zeros": lambda maker, *shape: _of_bytes(maker, _shape(shape), 0),
    "ones": lambda maker, *shape: _full(maker, *shape, 1),
    "full": _full,
    "empty": _empty,
    "arange": _arange,
    "tensor": _tensor,
    "load": _load,
}
