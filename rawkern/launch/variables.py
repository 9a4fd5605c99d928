"""Variables of a module, ``__device__`` and ``__constant__``, as torch tensors on their own memory."""

from __future__ import annotations

import ctypes
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from rawkern.base import cache, ctype
from rawkern.base.nearest import did_you_mean
from rawkern.compile import packages, programs
from rawkern.compile.compile import PROBE, VARIABLES, probe_of, probe_type
from rawkern.compile.names import demangle, strip_anonymous
from rawkern.compile.nvrtc import run_nvrtc
from rawkern.errors import CompileError, LaunchError

if TYPE_CHECKING:
    from rawkern.launch.builds import Build
    from rawkern.launch.unit import State

# A variable at file scope: ".global .align 4 .b8 table[128];" - the probes and printf's texts are not the user's.
_DECLARED = re.compile(
    r"^\.(?:(?:visible|weak|common|extern) \.)?(?P<space>global|const) [^;={]*?\.[a-z]+\d+ (?P<symbol>[\w$]+)", re.M
)
_HIDDEN = re.compile(r"\$|__rawkern|_Z15__rawkern|__cudart|__assert")
_POINTER = re.compile(r"\([*&]\s*(?P<bounds>(?:\[\d+\])*)\)")  # "float (*) [3]", "int (* [4])(int)"
_BOUNDS = re.compile(r"\s*(?P<bounds>(?:\[\d+\]\s*)+)\Z")


@dataclass(frozen=True)
class Variable:
    """A variable's symbol in the code, its element type and its shape."""

    symbol: str
    type: str  # "float", "ns::P", as the compiler has it
    shape: tuple[int, ...]  # the bounds of an array, outermost first; () for anything else
    dtype: torch.dtype  # uint8, its bytes, where torch has no such type
    expression: str = ""  # what a program is asked for that is to hold it; "" where there is nothing to ask


def view(build: Build, name: str, device: torch.device) -> torch.Tensor:
    """Return a variable's memory on one device as a tensor of its shape. Call it under the build's lock.

    ValueError if there is no such variable; the message lists those there are.
    """
    if not isinstance(name, str):
        raise TypeError(f"get_global takes the variable's name as a string, got {type(name).__name__}")
    variable = describe(build, name)
    module = _holder(build, device, variable)
    try:
        address, nbytes = module.global_view(variable.symbol)
    except (KeyError, LaunchError):
        if build.source.binary is None:
            raise
        meant = did_you_mean(name, map(demangle, symbols(build.source.text)))
        raise ValueError(f"{build.source.name} has no variable {name!r}{meant}") from None
    elements = _bytes(address, nbytes, device, module).view(variable.dtype)
    # What has no dtype of its own, a vector or a struct, is the last dimension: its numbers or its bytes.
    split = elements.numel() != math.prod(variable.shape)
    return elements.view(*variable.shape, -1) if split and variable.shape else elements.view(variable.shape or (-1,))


def _holder(build: Build, device: torch.device, variable: Variable) -> Any:
    """A module of the source that has the variable: all of them have the same one."""
    try:
        module = build.engine_module(device)
        if build.source.binary is None and variable.expression:
            module.global_view(variable.symbol)
        return module
    except (KeyError, LaunchError):  # of a template that no kernel of the source uses
        return build.engine_module(device, (variable.expression,))
    except CompileError as error:
        if error.line is not None or not variable.expression:
            raise
        return build.engine_module(device, (variable.expression,))  # a source of templates alone


def _ptx(build: Build) -> str:
    """The program for the CPU, which may have no kernel."""
    try:
        return build.program(build.source.cpu_arch).code.decode()
    except CompileError as error:
        if error.line is not None:  # what does not compile at all says so here
            raise
        return build.program(build.source.cpu_arch, (VARIABLES,)).code.decode()


def describe(build: Build, name: str) -> Variable:
    """Ask the compiler for a variable's symbol and type."""
    known = build.variables.get(name)
    if known is not None:
        return known
    if build.source.kind == "manifest":
        return _packaged(build, name)
    if build.source.binary is not None:  # its types are gone: bytes, under the symbol or the C++ name
        there = symbols(build.source.text)
        return Variable(next((one for one in there if demangle(one) == name), name), "", (), torch.uint8)
    key = f"{_FORMAT}-{programs.key_of(build.source)}"
    every = cache.kept(f"variables-{key}", lambda: _ask_all(build))
    found = every.get(name) or cache.kept(f"variable-{key}-{cache.digest(name)}", lambda: _ask(build, name))
    symbol, spelled, expression = found
    pointer = _POINTER.search(spelled)
    bounds = pointer or _BOUNDS.search(spelled)
    shape = tuple(map(int, re.findall(r"\d+", bounds["bounds"]))) if bounds else ()
    element = re.sub(r"\b(?:const|volatile)\b", "", "void*" if pointer else _BOUNDS.sub("", spelled)).strip()
    variable = build.variables[name] = Variable(symbol, element, shape, _dtype(element), expression)
    return variable


_FORMAT = 1  # raised when what is kept of variables, or how it is asked for, changes
_Asked = tuple[str, str, str]  # a variable's symbol, its type in full, and a `Variable.expression`


def _ask_all(build: Build) -> dict[str, _Asked]:
    """What the compiler says of all variables of a plain name that the source declares; none if it rejects any."""
    ptx = _ptx(build)
    managed = set(_MANAGED.findall(ptx))
    said = {word for text in build.source.texts() for word in re.findall(r"\w+", text)}
    spelled = [strip_anonymous(demangle(symbol)) for symbol in symbols(ptx) if symbol not in managed]
    names = [name for name in spelled if re.fullmatch(r"[\w:]+", name) and said.issuperset(name.split("::"))]
    asked = {name: (f"&{name}", probe_of(f"decltype({name})")) for name in names}
    expressions = [each for pair in asked.values() for each in pair]
    result = run_nvrtc(build.source, build.source.cpu_arch, expressions, append=PROBE)
    if not result.ok:
        return {}
    lowered = dict(result.lowered)
    return {
        name: (lowered[address], strip_anonymous(probe_type(lowered[probe])), address)
        for name, (address, probe) in asked.items()
    }


def _ask(build: Build, name: str) -> _Asked:
    """What the compiler says of one variable; ValueError if there is none of the name."""
    address, probe = f"&{name}", probe_of(f"decltype({name})")
    ptx, expression = _ptx(build), address
    result = run_nvrtc(build.source, build.source.cpu_arch, (address, probe), append=PROBE)
    if "A __managed__ variable cannot be used as" in result.log:  # nor does it have a constant address
        probe, expression = probe_of(f"decltype(({name}))"), VARIABLES
        result = run_nvrtc(build.source, build.source.cpu_arch, (probe,), append=PROBE)
    lowered = dict(result.lowered)
    spelled = strip_anonymous(probe_type(lowered[probe])) if result.ok else ""
    if expression == VARIABLES:
        spelled = re.sub(r"\s*\(&\)|&\Z", "", spelled)  # the type is that of a reference
    if not result.ok or ("(" in spelled and _POINTER.search(spelled) is None):
        own = (symbol for symbol in symbols(ptx) if not symbol.startswith("__unnamed_"))  # those are literals
        there = [strip_anonymous(demangle(symbol)) for symbol in own]
        meant = did_you_mean(name, there) if not spelled else ""
        wrong = f"{name!r} is a function" if spelled else f"there is no variable {name!r}"
        raise ValueError(f"{wrong}; the source has these variables: {', '.join(there) or 'none'}{meant}")
    return lowered.get(address) or _managed(ptx, name), spelled, expression


_MANAGED = re.compile(r"^\.(?:visible |weak )?global \.attribute\(\.managed\) [^;={]*?\.[a-z]+\d+ ([\w$]+)", re.M)


def _managed(ptx: str, name: str) -> str:
    """The symbol of a ``__managed__`` variable."""
    there = {symbol: strip_anonymous(demangle(symbol)) for symbol in _MANAGED.findall(ptx)}
    last = name.rpartition("::")[2].strip()
    whole = [symbol for symbol, spelled in there.items() if spelled == name.removeprefix("::")]
    found = whole or [symbol for symbol, spelled in there.items() if spelled.rpartition("::")[2] == last]
    if len(found) != 1:
        raise ValueError(f"{name!r} may be several __managed__ variables; pass one of {', '.join(there.values())}")
    return found[0]


def _packaged(build: Build, name: str) -> Variable:
    known = packages.package(build.source).variables
    if name not in known:
        there = f"{', '.join(known) or 'none'}{did_you_mean(name, known)}"
        raise ValueError(f"there is no variable {name!r}; {build.source.name} has these variables: {there}")
    symbol, element, shape = known[name]
    return Variable(symbol, element, shape, _dtype(element))


def symbols(ptx: str, spaces: Sequence[str] = ("global", "const")) -> list[str]:
    """The user's variables in a program."""
    found = [match["symbol"] for match in _DECLARED.finditer(ptx) if match["space"] in spaces]
    return [symbol for symbol in found if not _HIDDEN.match(symbol)]


def _dtype(element: str) -> torch.dtype:
    """The torch dtype of a C type; vectors count as their elements, and structs and pointers as bytes and addresses."""
    if element.endswith("*"):
        return torch.int64
    parsed = ctype.parse(element)
    if parsed.kind == "vector" and parsed.element is not None:
        parsed = parsed.element
    names = parsed.dtypes
    # A C type may stand for several dtypes of one width (char: int8, uint8, bool); the first is its own.
    found = getattr(torch, names[0], None) if names else None
    return found if isinstance(found, torch.dtype) else torch.uint8


def _bytes(address: int, nbytes: int, device: torch.device, owner: Any) -> torch.Tensor:
    return on_gpu(address, nbytes, device, owner) if device.type == "cuda" else on_host(address, nbytes, owner)


def on_host(address: int, nbytes: int, owner: Any) -> torch.Tensor:
    memory = (ctypes.c_char * nbytes).from_address(address)
    memory.owner = owner  # type: ignore[attr-defined]  # the tensor keeps the buffer, the buffer keeps the module
    return torch.frombuffer(memory, dtype=torch.uint8)


class _CudaMemory:
    """GPU memory in the form that torch takes without a copy."""

    def __init__(self, address: int, nbytes: int, owner: Any) -> None:
        self.owner = owner
        self.__cuda_array_interface__ = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (address, False),
            "strides": None,
            "version": 3,
        }


def on_gpu(address: int, nbytes: int, device: torch.device, owner: Any) -> torch.Tensor:
    return torch.as_tensor(_CudaMemory(address, nbytes, owner), device=device)


def every(state: State, device: torch.device, spaces: Sequence[str] = ("global", "const")) -> list[torch.Tensor]:
    """Return the bytes of all variables of a kernel's program on one device. Call it under the module's lock.

    ``spaces`` are "global" for ``__device__``, which launches may write, too, and "const" for ``__constant__``.
    """
    build, source = state.build, state.build.source
    declares = source.headers or source.binary is not None
    if not declares and not re.search("__(?:device|managed|constant)__", source.text):
        return []
    if source.kind == "manifest":
        there = [symbol for symbol, _, _ in packages.package(source).variables.values()]
    else:
        arch = build.architecture(device).replace("sm_", "compute_")
        there = symbols(build.program(arch, state.asked).ptx, spaces)
    module, found = build.engine_module(device, state.asked), []
    for symbol in there:
        try:
            address, nbytes = module.global_view(symbol)
        except (KeyError, LaunchError):  # this architecture's code does not use it
            continue
        if nbytes:
            found.append(_bytes(address, nbytes, device, module))
    return found
