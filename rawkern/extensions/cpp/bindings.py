"""Functions as Python gets them from PYBIND11_MODULE and TORCH_LIBRARY."""

from __future__ import annotations

import contextlib
import functools
import inspect
import operator
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

import torch

from rawkern.base.torch_private import destroy
from rawkern.extensions.cpp.devices import Switch
from rawkern.extensions.cpp.memory import Struct
from rawkern.extensions.cpp.numbers import float32

_LIMITS = {
    f"{'' if signed else 'u'}int{bits}": (-(2 ** (bits - 1)) if signed else 0, 2 ** (bits - signed) - 1)
    for bits in (8, 16, 32, 64)
    for signed in (True, False)
}


class Submodule(ModuleType):
    """What ``def_submodule`` makes."""


class Unfit(TypeError):
    """Arguments that a function does not take."""


class Mismatch(TypeError):
    """An argument that C++ would not take."""


def _tensor(value: Any) -> Any:
    if value is None or isinstance(value, torch.Tensor):
        return value
    raise Mismatch("a tensor")


def _float(value: Any) -> float:
    if isinstance(value, float):
        return value
    if isinstance(value, str | torch.Tensor) and not (isinstance(value, torch.Tensor) and value.dim() == 0):
        raise Mismatch("a number")
    try:
        return float(value)
    except (TypeError, ValueError):
        raise Mismatch("a number") from None


def _single(value: Any) -> float:
    return float32(_float(value))


def _bool(value: Any) -> bool:
    if value is True or value is False:
        return value
    raise Mismatch("True or False")


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    raise Mismatch("a string")


def _as_is(value: Any) -> Any:
    return value


def _integer(name: str) -> Callable[[Any], int]:
    least, most = _LIMITS[name]

    def convert(value: Any) -> int:
        try:
            number = operator.index(value)
        except TypeError:
            raise Mismatch(f"an integer ({name})") from None
        if not least <= number <= most:
            raise Mismatch(f"an integer from {least} to {most} ({name})")
        return number

    return convert


def _sequence(inner: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def convert(value: Any) -> list[Any]:
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise Mismatch("a list")
        return [inner(one) for one in value]

    return convert


def _optional(inner: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else inner(value)


def _object(cls: type[Any]) -> Callable[[Any], Any]:
    of = cls.__module__, cls.__qualname__

    def convert(value: Any) -> Any:
        # an object from before an edit has the class of that name of then
        if isinstance(value, cls) or any((one.__module__, one.__qualname__) == of for one in type(value).__mro__):
            return value
        raise Mismatch(f"an object of the class {cls.__name__}")

    return convert


def _converter(kind: str, classes: Mapping[str, Any]) -> Callable[[Any], Any]:
    if kind.endswith("?"):
        return _optional(_converter(kind[:-1], classes))
    if kind.endswith("[]"):
        return _sequence(_converter(kind[:-2], classes))
    if kind in _LIMITS:
        return _integer(kind)
    if isinstance(cls := classes.get(kind), type):
        return _object(cls)
    table = {"Tensor": _tensor, "float64": _float, "float32": _single, "bool": _bool, "str": _text}
    return table.get(kind, _as_is)


def _is_exact(kind: str, value: Any) -> bool:
    """Whether pybind11 takes a value without a conversion: no integer for a floating-point number."""
    if kind.endswith("?"):
        return value is None or _is_exact(kind[:-1], value)
    if kind.endswith("[]") and isinstance(value, Sequence):
        return all(_is_exact(kind[:-2], one) for one in value)
    return isinstance(value, float) or not kind.startswith("float")


def bind(
    function: Callable[..., Any],
    kinds: Sequence[str],
    *,
    template: Sequence[Any] = (),
    names: Sequence[str] = (),
    defaults: Mapping[str, Any] | None = None,
    doc: str = "",
    name: str = "",
) -> Callable[..., Any]:
    """A function as a module of pybind11 has it.

    Parameters
    ----------
    function : callable
        The translated function.
    kinds : sequence of str
        The types of its parameters: ``"Tensor"``, ``"int32"``, ``"Tensor?"``, ``"Tensor[]"``, the name of a class
        of the function's module ...
    template : sequence
        The arguments of a template's instance, which the function takes first.
    names : sequence of str
        The names that ``py::arg`` gives; without, those of the function.
    defaults : mapping
        Values of parameters, by these names.
    doc, name : str
        Docstring and name.

    Returns
    -------
    callable
        It takes what pybind11 takes: another type, or a number out of limits, is a TypeError.
    """
    shown = name or function.__name__
    signature = inspect.signature(function)
    first = len(template)
    taken = list(signature.parameters.values())[first : first + len(kinds)]
    own = [one.name for one in taken]
    named = list(names) or own
    given = dict(defaults or {})
    classes = getattr(inspect.unwrap(function), "__globals__", {})
    converters = tuple(_converter(kind, classes) for kind in kinds)
    places = {one: k for k, one in enumerate(named)}
    count = len(converters)

    def call(*arguments: Any, **keywords: Any) -> Any:
        if keywords or len(arguments) != count:
            arguments = complete(arguments, keywords)
        try:
            return function(*template, *[one(value) for one, value in zip(converters, arguments, strict=True)])
        except Mismatch as error:
            raise mismatch(arguments, error) from None

    def exactly(*arguments: Any, **keywords: Any) -> Any:
        values = complete(arguments, keywords)
        if not all(map(_is_exact, kinds, values)):
            raise Unfit(f"{shown}() converts its arguments")
        return call(*values)

    def complete(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[Any, ...]:
        values = list(arguments)
        unknown = [one for one in keywords if one not in places or places[one] < len(arguments)]
        for one in named[len(values) :]:
            if one in keywords:
                values.append(keywords[one])
            elif one in given:
                values.append(given[one])
            else:
                raise Unfit(f"{shown}() is missing its argument {one!r}; it takes ({', '.join(named)})")
        if unknown or len(values) > count:
            raise Unfit(
                f"{shown}() takes ({', '.join(named)}), it was called with {len(arguments)} arguments"
                + (f" and {', '.join(unknown)}" if unknown else "")
            )
        return tuple(values)

    def mismatch(arguments: tuple[Any, ...], error: Mismatch) -> TypeError:
        for one, convert, value in zip(named, converters, arguments, strict=True):
            try:
                convert(value)
            except Mismatch as found:
                got = (
                    f"{type(value).__name__} {value!r}"
                    if isinstance(value, int | float | str)
                    else type(value).__name__
                )
                return Unfit(f"{shown}(): the argument {one!r} is {got}, C++ takes {found}")
        return Unfit(str(error))

    functools.update_wrapper(call, function)
    call.exactly = exactly  # type: ignore[attr-defined]
    call.__name__ = call.__qualname__ = shown
    call.__doc__ = doc or function.__doc__
    parameters = [
        one.replace(name=new, default=given.get(new, inspect.Parameter.empty))
        for one, new in zip(taken, named, strict=True)
    ]
    hints = dict(function.__annotations__)
    call.__annotations__ = {new: hints[old] for old, new in zip(own, named, strict=True) if old in hints}
    if "return" in hints:
        call.__annotations__["return"] = hints["return"]
    with contextlib.suppress(ValueError):  # a default before a parameter without one
        call.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return call


def by_value(function: Callable[..., Any], *, nothing: bool = False) -> Callable[..., Any]:
    """A function that returns what it assigns by reference after its value, with that value alone, or with nothing."""

    @functools.wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        result = function(*arguments, **keywords)
        return None if nothing else result[0]

    return call


def overloaded(*functions: Callable[..., Any]) -> Callable[..., Any]:
    """Several functions under one name: the first that takes the arguments is called, at first as they are."""
    functions = tuple(one for each in functions for one in getattr(each, "overloads", (each,)))

    @functools.wraps(functions[0])
    def call(*arguments: Any, **keywords: Any) -> Any:
        for one in (*(getattr(each, "exactly", each) for each in functions), *functions[:-1]):
            try:
                return one(*arguments, **keywords)
            except Unfit:
                continue
        return functions[-1](*arguments, **keywords)

    call.overloads = functions  # type: ignore[attr-defined]
    return call


def expose(
    cls: type[Any],
    name: str,
    *,
    init: Sequence[Callable[..., Any]] = (),
    methods: Mapping[str, Callable[..., Any]] | None = None,
    static: Mapping[str, Callable[..., Any]] | None = None,
    properties: Mapping[str, Callable[..., Any]] | None = None,
    fields: Mapping[str, str] | None = None,
    namespace: str = "",
) -> type[Any]:
    """``py::class_<T>(m, "T").def(...)``: a struct's class, as Python makes objects of it.

    Parameters
    ----------
    cls : type
        The class of the struct.
    name : str
        Its name in Python.
    init : sequence of callable
        Its constructors.
    methods, static, properties : mapping
        What is bound, by name.
    fields : mapping
        Members under other names than their own.
    namespace : str
        That of ``torch.classes`` where ``torch::class_`` puts it.

    Returns
    -------
    type
        The class.
    """
    if "__exposed__" in vars(cls):  # under another name before
        cls = type(name, (cls,), {})
    cls.__exposed__ = True
    construct = overloaded(*init) if init else None

    def __init__(self: Any, *arguments: Any, **keywords: Any) -> None:
        Struct.__init__(self)
        if construct is not None:
            construct(self, *arguments, **keywords)
        elif arguments or keywords:
            raise TypeError(f"{name}() takes no arguments")

    cls.__init__ = __init__
    cls.__name__ = cls.__qualname__ = name
    for one, function in (methods or {}).items():
        setattr(cls, one, function)
    for one, function in (static or {}).items():
        setattr(cls, one, staticmethod(function))
    for one, function in (properties or {}).items():
        setattr(cls, one, property(function))
    for one, member in (fields or {}).items():
        setattr(cls, one, property(operator.attrgetter(member), _setter(member)))
    if namespace:
        setattr(getattr(torch.classes, namespace), name, cls)
    return cls


def _setter(member: str) -> Callable[[Any, Any], None]:
    return lambda self, value: setattr(self, member, value)


# torch.library ------------------------------------------------------------------------------------------------------

_kept: dict[str, Library] = {}  # by extension and namespace


class Library:
    """``TORCH_LIBRARY``: operators of a namespace of torch, defined again when an extension is loaded again."""

    def __init__(self, namespace: str, owner: str) -> None:
        self.namespace = namespace
        old = _kept.pop(f"{owner}/{namespace}", None)
        if old is not None:
            destroy(old.library, [f"{namespace}::{name}" for name in old.defined])
        self.library = torch.library.Library(namespace, "FRAGMENT")
        _kept[f"{owner}/{namespace}"] = self
        self.kinds: dict[str, dict[str, Callable[..., Any]]] = {}
        self.defined: set[str] = set()

    def define(self, schema: str, function: Callable[..., Any] | None = None) -> None:
        """``m.def(schema, function)``."""
        name = schema.partition("(")[0].strip()
        name = name.rpartition("::")[2]
        self.library.define(schema.rpartition("::")[2] if "::" in schema.partition("(")[0] else schema)
        self.defined.add(name)
        if function is not None:
            self.implement(name, function, "")

    def implement(self, name: str, function: Callable[..., Any], key: str) -> None:
        """``m.impl(name, function)`` for a dispatch key; "" for all devices."""
        self.kinds.setdefault(name.rpartition("::")[2], {})[key] = function

    def finish(self) -> None:
        """Register: a CPU's tensors take what there is for CUDA, as `is_cuda` has it."""
        for name, found in self.kinds.items():
            everywhere = found.pop("", None)
            if everywhere is not None:
                self.library.impl(name, everywhere, "CompositeExplicitAutograd")
            for kind in ("", "Autograd"):
                cuda, cpu = found.pop(f"{kind}CUDA", None), found.pop(f"{kind}CPU", None)
                if cuda is not None:
                    self.library.impl(name, cuda, f"{kind}CUDA")
                    self.library.impl(name, _either(cuda, cpu), f"{kind}CPU")
                elif cpu is not None:
                    self.library.impl(name, cpu, f"{kind}CPU")
            for key, function in found.items():
                self.library.impl(name, function, key)


def _either(cuda: Callable[..., Any], cpu: Callable[..., Any] | None) -> Callable[..., Any]:
    @functools.wraps(cuda)
    def call(*arguments: Any) -> Any:
        return (cuda if cpu is None or Switch.cpu_as_cuda else cpu)(*arguments)

    return call
