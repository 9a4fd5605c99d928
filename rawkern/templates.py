"""Template kernels: names of instances from dtypes and numbers, and types deduced from a launch's arguments."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch

from rawkern.base.ctype import C_NAMES
from rawkern.base.dynamo import untraced
from rawkern.base.nearest import did_you_mean
from rawkern.compile import programs
from rawkern.compile.declarations import Declaration
from rawkern.kernel import RawKernel
from rawkern.launch.builds import Build, Unit

_TYPE = re.compile(r"(?:typename|class)\s+(\w+)$")
_QUALIFIERS = re.compile(r"\b(?:const|volatile|__restrict__|__restrict|__grid_constant__)\b")


class Module(Protocol):
    """What has template kernels: `rawkern.module.RawModule`."""

    unit: Unit

    def get_function(self, name: str) -> RawKernel: ...


def instance_name(name: str, arguments: Sequence[Any]) -> str:
    """The name of an instance: ``("axpy", (torch.float32, 4))`` is ``"axpy<float, 4>"``.

    TypeError for an argument that is not a dtype, number or string.
    """
    return f"{name}<{', '.join(_spelled(name, each) for each in arguments)}>" if arguments else name


def _spelled(name: str, argument: Any) -> str:
    if isinstance(argument, str):
        return argument
    if isinstance(argument, (bool, np.bool_)):
        return str(bool(argument)).lower()
    if isinstance(argument, (int, np.integer)):
        return str(int(argument))
    spelled = None
    if isinstance(argument, torch.dtype):
        spelled = _type_of(argument)
    elif isinstance(argument, (np.dtype, type)):
        with contextlib.suppress(TypeError):  # a class that stands for no dtype
            spelled = _type_of(np.dtype(argument))
    if spelled is None:
        named = str(argument).removeprefix("torch.")
        such = f", such as {next(iter(complex_types(named).values()))!r}" if named in _COMPLEX else ""
        raise TypeError(
            f"the template argument {argument!r} of {name} has no name in CUDA C that is known here; "
            f"pass a dtype of torch or NumPy, a number, or the text as the source spells it{such}"
        )
    return spelled


def _type_of(dtype: Any) -> str | None:
    """What a dtype of torch or NumPy is in CUDA C; None where the source has to say, as for complex numbers."""
    return C_NAMES.get(str(dtype).removeprefix("torch."))


class TemplateKernel:
    """A template kernel of a module, launched as `RawKernel` is; arguments decide its types.

    Each of its parameters has to be a type ``T`` that a kernel's parameter has as ``T*``, ``T&`` or ``T``, or have a
    default. Pointers and numbers of NumPy and torch have a dtype; Python's numbers follow what those say.
    """

    def __init__(self, module: Module, name: str, attributes: Mapping[str, Any] | None = None) -> None:
        self.module = module
        self.name = name
        self._attributes = dict(attributes or {})
        #: The source as it was last read, and its instances by the arguments' dtypes.
        self._known: tuple[Build | None, dict[tuple[Any, ...], RawKernel]] = (None, {})

    @property
    def __name__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[Any, ...]:
        return TemplateKernel, (self.module, self.name, self._attributes)

    def __repr__(self) -> str:
        return f"<template {self.name}>"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # Python, copy and notebooks ask for those, also while nothing is set yet
            raise AttributeError(f"a template kernel has no attribute {name!r}")
        with self.module.unit.lock:
            declared = programs.template_declarations(self.module.unit.current().source, self.name)
        example = next((found for one in declared if (found := one.instance())), f"{self.name}<...>")
        raise AttributeError(
            f"{self.name} is a template, and only its instances have {name!r}; "
            f'name one, such as get_function("{example}").{name}'
        )

    def configured(self, **attributes: Any) -> TemplateKernel:
        """Return this template with launch attributes, as `RawKernel.configured` has them."""
        return TemplateKernel(self.module, self.name, {**self._attributes, **attributes})

    @untraced
    def __call__(self, grid: Any, block: Any, args: Sequence[Any], **options: Any) -> None:
        """Launch in CuPy's form."""
        self.instance(args, {})(grid, block, args, **options)

    @untraced
    def __getitem__(self, key: Any) -> Callable[..., None]:
        """Settle the launch: ``kernel[grid, block]`` or ``kernel[grid, block, shared_mem]``."""
        return functools.partial(self._launch, key)

    @untraced
    def forall(self, n: int, *, block: int | None = None) -> Callable[..., None]:
        """Settle a launch of one dimension whose threads cover ``n`` elements."""
        return functools.partial(self._cover, n, block)

    @untraced
    def _launch(self, key: Any, /, *args: Any, **kwargs: Any) -> None:
        self.instance(args, kwargs)[key](*args, **kwargs)

    @untraced
    def _cover(self, n: int, block: int | None, /, *args: Any, **kwargs: Any) -> None:
        self.instance(args, kwargs).forall(n, block=block)(*args, **kwargs)

    @untraced
    def instance(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> RawKernel:
        """Return the instance for a launch with these arguments; TypeError where they do not tell which."""
        build, instances = self._known
        if build is None or build.stale():
            with self.module.unit.lock:
                build, instances = self._known = self.module.unit.current(), {}
        key = (*[getattr(a, "dtype", None) for a in args], *[(k, getattr(v, "dtype", None)) for k, v in kwargs.items()])
        kernel = instances.get(key)
        if kernel is None:
            name = self._deduced(build, args, kwargs)
            kernel = instances[key] = self.module.get_function(name).configured(**self._attributes)
        return kernel

    def _deduced(self, build: Build, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        declared = programs.template_declarations(build.source, self.name)
        count = len(args) + len(kwargs)
        fitting = [one for one in declared if len(one.params) == count]
        if len({(one.template_params, one.types) for one in fitting}) != 1:
            forms = "; ".join(f"{self.name}({', '.join(one.types)})" for one in declared)
            raise TypeError(f"{count} arguments do not select one overload of template {self.name}: {forms}")
        one = fitting[0]
        for name in kwargs:
            if name not in one.params:
                forms = f"{self.name}({', '.join(one.types)})"
                raise TypeError(f"{self.name} has no parameter '{name}': {forms}{did_you_mean(name, one.params)}")
        given = {k: kwargs.get(str(name), None) if k >= len(args) else args[k] for k, name in enumerate(one.params)}
        found: list[str] = []
        for text in one.template_params:
            if "=" in text:
                break
            match = _TYPE.match(text)
            spelled = self._type(match[1], one, given, build) if match else None
            if spelled is None:
                example = one.instance(found) or f"{one.name}<...>"
                raise TypeError(
                    f"{self.name}: the arguments do not determine its template parameter '{text}'; name an instance, "
                    f'such as get_function("{example}")'
                )
            found.append(spelled)
        name = f"{one.name}<{', '.join(found)}>"
        return name if len(declared) == 1 else f"{name}({', '.join(_instantiated(one, found))})"

    def _type(self, letter: str, one: Declaration, given: Mapping[int, Any], build: Build) -> str | None:
        """The type of a template parameter by the arguments of the parameters that are of it."""
        dtypes: dict[str, str] = {}
        for k, text in enumerate(one.types):
            if _is_of(text, letter, one.params[k]) and (dtype := _dtype_of(given[k])) is not None:
                dtypes.setdefault(dtype, one.params[k] or f"arg{k}")
        if len(dtypes) > 1:
            listed = ", ".join(f"'{name}' is {dtype}" for dtype, name in dtypes.items())
            raise TypeError(f"{self.name}: its parameters of type {letter} get arguments of several dtypes: {listed}")
        if not dtypes:
            return None
        dtype, name = next(iter(dtypes.items()))
        if (spelled := _type_of(dtype)) is not None:
            return spelled
        if dtype in _COMPLEX:
            return self._complex(dtype, name, one, build)
        way = "name an instance with the type that the source has for it"
        if dtype.startswith("float8"):
            way = f"pass {name}.view(torch.uint8), and {letter} is unsigned char"
        raise TypeError(f"{self.name}: argument '{name}' is {dtype}, for which CUDA C has no type; {way}")

    def _complex(self, dtype: str, name: str, one: Declaration, build: Build) -> str:
        """The complex type that the source uses, of the several that CUDA C has."""
        types = complex_types(dtype)
        texts = build.source.texts()
        used = [types[key] for key, word in _COMPLEX_WORDS.items() if key in types and any(map(word.search, texts))]
        if len(used) == 1:
            return used[0]
        what = "uses several of them" if used else "uses none of them: #include <cuda/std/complex>"
        choice = used[0] if used else next(iter(types.values()))
        raise TypeError(
            f"{self.name}: argument '{name}' is {dtype}, which is {' or '.join(types.values())} in CUDA C, and the "
            f'source {what}; name an instance, such as get_function("{one.name}<{choice}>")'
        )


# Types of complex numbers, and what in a source says that it uses them.
_COMPLEX = {"complex64": "float", "complex128": "double", "complex32": "__half"}
_COMPLEX_WORDS = {
    "std": re.compile(r"\bcuda::std::complex\b|<cuda/std/complex>"),
    "cuComplex": re.compile(r"\bcu(?:Float|Double)?Complex\b(?!\.h>)|[</]cuComplex\.h>"),
}


def complex_types(dtype: str) -> dict[str, str]:
    """The types of a complex dtype in CUDA C."""
    own = {"complex64": {"cuComplex": "cuFloatComplex"}, "complex128": {"cuComplex": "cuDoubleComplex"}}
    return {"std": f"cuda::std::complex<{_COMPLEX[dtype]}>", **own.get(dtype, {})}


def _instantiated(one: Declaration, found: Sequence[str]) -> list[str]:
    """The types of an instance's parameters, which tell overloads apart."""
    letters = {match[1]: spelled for text, spelled in zip(one.template_params, found, strict=False)
               if (match := _TYPE.match(text))}  # fmt: skip
    types = []
    for text, name in zip(one.types, one.params, strict=True):
        bare = re.sub(rf"\b{name}\b\s*(\[\s*\])?$", lambda match: "*" if match[1] else "", text) if name else text
        types.append(re.sub(r"\b[A-Za-z_]\w*\b", lambda match: letters.get(match[0], match[0]), bare).strip())
    return types


def _dtype_of(value: Any) -> str | None:
    """The name of a dtype of torch's, NumPy's or CuPy's."""
    dtype = getattr(value, "dtype", None)
    return None if dtype is None else str(dtype).removeprefix("torch.")


def _is_of(text: str, letter: str, name: str | None) -> bool:
    """Whether a parameter is of type T, T*, T& or T[]."""
    words = re.findall(r"\w+|\S", _QUALIFIERS.sub(" ", text))
    rest = words[1:]
    if name in rest:
        rest.remove(name)
    return words[:1] == [letter] and "".join(rest) in ("", "*", "&", "[]")
