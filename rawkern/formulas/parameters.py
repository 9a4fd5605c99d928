"""Parameters of elementwise operators and reductions, and the dtypes there are."""

from __future__ import annotations

import keyword
import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from rawkern.arguments.memory import dtype_name
from rawkern.base.ctype import C_NAMES
from rawkern.base.forking import cached_property

# NumPy's names of the dtypes there are: what each is in CUDA C, and the type it is computed in.
_HALF = ("float16", "bfloat16")
_INTEGER = [f"{u}int{bits}" for u in ("", "u") for bits in (8, 16, 32, 64)] + ["bool"]
DTYPES = {
    name: (C_NAMES[name], "float" if name in _HALF else C_NAMES[name])
    for name in (*_HALF, "float32", "float64", *_INTEGER)
} | {name: (f"cuda::std::complex<{real}>",) * 2 for name, real in (("complex64", "float"), ("complex128", "double"))}
INTEGERS = {"char", *(C_NAMES[name] for name in _INTEGER)}
_TAKEN = set("abrkuvV")  # letters that mean something in the kernels
_ALIASES = {"float": "float32", "double": "float64", "int": "int32", "half": "float16"}


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a loop. `type` is a letter, which stands for any dtype, or a key of DTYPES; a `raw` parameter is
    indexed by the statements themselves."""

    name: str
    type: str
    raw: bool = False

    def __str__(self) -> str:
        return f"{'raw ' if self.raw else ''}{self.type} {self.name}"

    @property
    def generic(self) -> bool:
        return self.type not in DTYPES

    @property
    def storage(self) -> str:
        """The type of an element in memory, as the source spells it."""
        return self.type if self.generic else DTYPES[self.type][0]

    @property
    def compute(self) -> str:
        """The type of an element in the statements, as the source spells it inside their function."""
        return self.type if self.generic else DTYPES[self.type][1]

    @property
    def dtype(self) -> torch.dtype | None:
        return None if self.generic else getattr(torch, self.type)


def parse_parameters(text: str, what: str) -> tuple[Parameter, ...]:
    """Read ``"T x, raw float32 y"``, as `cupy.ElementwiseKernel` takes it.

    Raises
    ------
    ValueError
        For a parameter without a name, a type that is neither one letter nor a dtype, or a name given twice.
    """
    found: list[Parameter] = []
    for part in filter(None, (p.strip() for p in text.split(","))):
        words = part.split()
        raw = words[0] == "raw"
        words = [w for w in words[raw:] if w != "const"]
        if len(words) != 2 or not re.fullmatch(r"[A-Za-z_]\w*", words[1]):
            raise ValueError(
                f"{what}: '{part}' is not a parameter; write a type and a name, as in 'T x' or 'float32 a'"
            )
        kind, name = _ALIASES.get(words[0], words[0]), words[1]
        if kind not in DTYPES and not re.fullmatch(r"[A-Za-z]", kind):
            raise ValueError(f"{what}: '{part}' has no known type; a type is a letter or one of {', '.join(DTYPES)}")
        if taken := {kind, name} & {"i", "n", "_ind"} or {kind} & _TAKEN:
            raise ValueError(f"{what}: '{part}' uses the reserved name {taken.pop()}; choose another")
        if keyword.iskeyword(name):
            raise ValueError(f"{what}: '{part}' is named like a Python keyword; write {name}_")
        if any(p.name == name for p in found):
            raise ValueError(f"{what}: the name {name} is used twice")
        found.append(Parameter(name, kind, raw))
    return tuple(found)


@dataclass(eq=False)
class Formula:
    """What the texts of all kernels here are made of: a name, inputs and outputs."""

    name: str
    inputs: tuple[Parameter, ...]
    outputs: tuple[Parameter, ...]

    @cached_property
    def letters(self) -> tuple[str, ...]:
        """The letters that stand for a dtype, in the order of their first use."""
        return tuple(dict.fromkeys(p.type for p in (*self.inputs, *self.outputs) if p.generic))

    @cached_property
    def input_grads(self) -> tuple[Parameter, ...]:
        """What a backward assigns."""
        return tuple(Parameter(f"grad_{p.name}", p.type) for p in self.inputs if differentiable(p))

    @cached_property
    def output_grads(self) -> tuple[Parameter, ...]:
        """What a backward gets."""
        return tuple(Parameter(f"grad_{p.name}", p.type) for p in self.outputs if floating(p))

    @property
    def spelled(self) -> str:
        """``name(T x) -> T y``."""
        taken, made = (", ".join(f"{p.type} {p.name}" for p in ps) for ps in (self.inputs, self.outputs))
        return f"{self.name}({taken}) -> {made}"

    def dtypes(self, tensors: Sequence[torch.Tensor]) -> dict[str, torch.dtype]:
        """What the letters are, given tensors that have their parameters' dtypes: for the inputs, or all."""
        return {p.type: t.dtype for p, t in zip((*self.inputs, *self.outputs), tensors, strict=False) if p.generic}


def complex_header(preamble: str) -> str:
    """What stands before a preamble so that there are complex numbers; CuPy's header has its own by that name."""
    own = re.search(r"#\s*include\s*<cupy/complex", preamble)
    return "#include <cuda/std/complex>\n" + ("" if own else "using cuda::std::complex;\n")


def floating(p: Parameter) -> bool:
    """Whether a parameter can be a real or complex number; a letter can."""
    return p.compute not in INTEGERS


def differentiable(p: Parameter) -> bool:
    """Whether an input has a gradient."""
    return floating(p) and not p.raw


def c_name(what: str, dtype: torch.dtype) -> str:
    """Return what a dtype is in CUDA C; `what` is the operator, for the message."""
    check_dtype(what, "there is no kernel for", dtype)
    return DTYPES[dtype_name(dtype)][0]


def check_dtype(what: str, about: str, dtype: torch.dtype) -> None:
    """Raise for a dtype that is not supported; `about` begins the message."""
    name = dtype_name(dtype)
    if name not in DTYPES:
        raise TypeError(f"{what}: {about} {name}; there is one for {', '.join(DTYPES)}")
