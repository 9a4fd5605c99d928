"""What kernels are made from, and one reading of it: compiled for the architectures and loaded on the devices used.

When the file or a header of it changes, the unit makes a new build; launches that are under way keep theirs.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import torch

from rawkern.base import frames
from rawkern.base.ctype import StructLayout
from rawkern.base.forking import Lock
from rawkern.compile import programs, source
from rawkern.compile.programs import Program
from rawkern.compile.source import Source, Watch
from rawkern.engines.devices import architecture, engine

PathLike = str | os.PathLike[str]
FOREVER = (1 << 63) - 1
_edits = itertools.count(1)
_last_edit = 0


def last_edit() -> int:
    """The number of the last edit of any source that was noticed; 0 before the first."""
    return _last_edit


@dataclass(frozen=True)
class CuPySettings:
    """What CuPy's classes are told beyond that: who compiles, and how <cuComplex.h> is read.

    NVRTC compiles whatever the backend, and what nvcc or Jitify add to it is there with any.
    """

    backend: str = "nvrtc"
    translate_cucomplex: bool = False
    jitify: bool | None = None

    def __post_init__(self) -> None:
        if self.backend not in ("nvrtc", "nvcc"):
            raise ValueError(f"backend is {self.backend!r}; it is 'nvrtc' or 'nvcc', and NVRTC compiles for both")
        for name in ("translate_cucomplex", "jitify"):
            if not isinstance(getattr(self, name), (bool, int, type(None))):
                raise TypeError(f"{name} is {getattr(self, name)!r}; pass True or False")


@dataclass(frozen=True)
class Settings:
    """All that a unit is made from; what pickling keeps."""

    code: str | None
    path: str | None
    options: tuple[str, ...]
    include_dirs: tuple[str, ...]
    name_expressions: tuple[str, ...]
    cooperative: bool
    strided: bool
    cupy: CuPySettings
    origin: frames.Place | None = field(default=None, compare=False)  # where in Python the code stands
    # Structs of the source whose layouts need not be asked for, by name.
    structs: Mapping[str, StructLayout] = field(default_factory=dict, compare=False, repr=False)
    # Whether autograd hears of what launches write; C++ passes plain pointers, of which it does not.
    tracked: bool = True

    @property
    def title(self) -> str:
        """The file, or where in Python the code stands."""
        return self.path or (frames.spelled(self.origin) if self.origin else "a string")

    def read(self) -> Source:
        """Read the source as it is now."""
        return _read(self.code, self.path, self.options, self.include_dirs, self.cupy, self.origin)


_CUCOMPLEX = re.compile(r"^([ \t]*#[ \t]*include[ \t]*)[<\"]cuComplex\.h[>\"]", re.M)


def _read(
    code: str | None,
    path: PathLike | None,
    options: Sequence[str],
    include_dirs: Sequence[PathLike],
    cupy: CuPySettings,
    origin: frames.Place | None,
) -> Source:
    if path is not None:
        return source.from_path(path, options, include_dirs)
    if cupy.translate_cucomplex and isinstance(code, str):  # CuPy's header has the same functions for complex<T>
        code = _CUCOMPLEX.sub(r"\1<rawkern/cuComplex.h>", code)
    return source.from_text(code, options, include_dirs, origin)  # type: ignore[arg-type]


class Build:
    """One reading of a source with its programs and loaded modules. Its methods are called under the unit's lock."""

    def __init__(self, settings: Settings, read: Source, lock: Lock) -> None:
        self.lock = lock  # the unit's
        self.settings = settings
        self.source = read
        # A string without headers cannot change, and its launches need not look.
        self.watch = Watch(read) if read.path or read.headers or read.missing else None
        #: Until when launches need not ask `changed`, in ns of the monotonic clock; read by native code.
        self.until = ctypes.c_int64(0 if self.watch else FOREVER)
        self._replaced = False
        self._programs: dict[tuple[str, tuple[str, ...]], Program] = {}
        self._modules: dict[tuple[torch.device, tuple[str, ...]], Any] = {}
        self.variables: dict[str, Any] = {}
        self._variables: dict[torch.device, Any] = {}  # where those of the programs on a device lie
        #: Which edit made it, by number; 0 for what was read first.
        self.edit = 0

    def changed(self) -> bool:
        """Whether the file or one of its headers is no longer what was read, as the disk has them now."""
        if self.watch is None:
            return False
        changed = self.watch.look()
        self.until.value = 0 if changed or self._replaced else int(self.watch.next_look * 1e9)
        return changed

    def stale(self) -> bool:
        """Whether a launch has to ask the unit for the build of the source as it is now."""
        return self._replaced or self.changed()

    def replace(self) -> None:
        """Send launches of this build, which has a successor, to look for that."""
        self._replaced = True
        self.until.value = 0

    def architecture(self, device: torch.device) -> str:
        """What a program for the device is compiled for; of compiled code, what runs on the device itself is taken."""
        return architecture(device, self.source)

    def compiled_for(self, asked: tuple[str, ...] = ()) -> str | None:
        """An architecture that there is a program for."""
        return next((known for known, names in self._programs if names == asked), None)

    def program(self, arch: str | None = None, asked: tuple[str, ...] = ()) -> Program:
        """Compile for an architecture; None takes one that is there already, or the CPU engine's.

        ``asked`` are template instances and overloads that the unit's own ``name_expressions`` do not name.
        """
        if arch is None:
            own: str = self.source.cpu_arch
            arch = self.compiled_for(asked) or own
        program = self._programs.get((arch, asked))
        if program is None:
            expressions = (*self.settings.name_expressions, *asked)
            program = self._programs[arch, asked] = programs.compile_program(self.source, arch, expressions)
        return program

    def engine_module(self, device: torch.device, asked: tuple[str, ...] = ()) -> Any:
        """Load the program on a device, once."""
        module = self._modules.get((device, asked))
        if module is None:
            program = self.program(self.architecture(device), asked)
            of = engine(device)
            if device not in self._variables:
                self._variables[device] = of.shared_variables()
            module = of.load_module(program, device=device, variables=self._variables[device])
            self._modules[device, asked] = module
            if self.watch is not None:
                self.until.value = 0  # the file may have been edited meanwhile
        return module


class Unit:
    """A source with its settings, which a module and all its kernels share; it pickles as the settings."""

    def __init__(self, settings: Settings, first: Source | None = None) -> None:
        self.settings = settings
        self.lock = Lock()  # held while something is compiled or loaded
        self._first = first
        self._build: Build | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return Unit, (self.settings,)

    def standing(self, origin: frames.Place | None, structs: Mapping[str, StructLayout] = MappingProxyType({})) -> Unit:
        """The same source, not read yet, for another place in Python, with known structs."""
        return Unit(replace(self.settings, origin=origin, structs=dict(structs)))

    def untracked(self) -> Unit:
        """The same source, of whose launches autograd does not hear."""
        return Unit(replace(self.settings, tracked=False), self._first)

    def current(self) -> Build:
        """Return the build of the source as it is now. Call it under the lock."""
        if self._build is None or self._build.changed():
            self._renew()
        assert self._build is not None
        return self._build

    def reload(self) -> None:
        """Read and compile the source now, for the architecture it has been compiled for."""
        with self.lock:
            arch = self._build.compiled_for() if self._build else None
            self._first = None
            self._renew()
            self.current().program(arch)

    def _renew(self) -> None:
        read, self._first = self._first or self.settings.read(), None
        build = Build(self.settings, read, self.lock)
        if build.changed():  # edited since the unit was made
            build = Build(self.settings, self.settings.read(), self.lock)
        if self._build is not None:
            self._build.replace()
            build.edit = self._build.edit if build.source == self._build.source else _next_edit()
        self._build = build


def _next_edit() -> int:
    global _last_edit
    _last_edit = next(_edits)
    return _last_edit


def make_unit(
    code: str | None,
    path: PathLike | None,
    options: Sequence[str],
    include_dirs: Sequence[PathLike],
    name_expressions: Iterable[str] | None,
    cooperative: bool,
    strided: bool,
    cupy: CuPySettings,
) -> Unit:
    """Check what `RawModule` and `RawKernel` are given; the source is read, and compiled at the first use."""
    if (code is None) == (path is None):
        got = "neither" if code is None else "both"
        raise TypeError(f"give the CUDA source as code, or path= for a file; got {got}")
    expressions = () if name_expressions is None or isinstance(name_expressions, str) else tuple(name_expressions)
    if isinstance(name_expressions, str) or not all(isinstance(each, str) for each in expressions):
        raise TypeError(f"name_expressions is {name_expressions!r}; pass a sequence of strings")
    origin = frames.caller() if path is None else None
    # The first reading checks the settings; it is compiled later, if it still holds then.
    first = _read(code, path, options, include_dirs, cupy, origin)
    if first.binary is not None and expressions:
        raise ValueError(f"name_expressions are for CUDA source; {first.name} is already compiled")
    folders = (*(os.path.abspath(os.fspath(folder)) for folder in include_dirs), *_implied(first, include_dirs))
    settings = Settings(code, first.path, first.options, folders, expressions, cooperative, strided, cupy, origin)
    return Unit(settings, first)


def _implied(first: Source, include_dirs: Sequence[PathLike]) -> tuple[str, ...]:
    """Include directories that came as -I options and were removed from the options.

    The current directory of a string is not among them: it is determined again where the unit is unpickled.
    """
    given = {os.path.abspath(os.fspath(folder)) for folder in include_dirs}
    implied = os.getcwd() if first.path is None else None
    return tuple(folder for folder in first.include_dirs if folder not in given and folder != implied)
