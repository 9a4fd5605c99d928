"""RawModule: CUDA source, from a string or a file, and the kernels and variables in it.

A `Build` is one reading of that source, compiled for as many architectures and loaded on as many devices as are used.
When the file or a header of it changes, the module makes a new Build; launches that are under way keep theirs.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from rawkern import compiler, source
from rawkern.compiler import CPU_ARCH, Program
from rawkern.devices import architecture, default_device, engine, normalised
from rawkern.dynamo import untraced
from rawkern.errors import CompileError
from rawkern.forking import Lock
from rawkern.source import Source, Watch

if TYPE_CHECKING:
    from rawkern.kernel import RawKernel

__all__ = ["Build", "RawModule", "Settings", "load"]

PathLike = str | os.PathLike[str]
FOREVER = (1 << 63) - 1


@dataclass(frozen=True)
class Settings:
    """All that a module is made from; what pickling keeps."""

    code: str | None
    path: str | None
    options: tuple[str, ...]
    include_dirs: tuple[str, ...]
    name_expressions: tuple[str, ...]
    cooperative: bool
    strided: bool

    def read(self) -> Source:
        """Read the source as it is now."""
        if self.path is not None:
            return source.from_path(self.path, self.options, self.include_dirs)
        assert self.code is not None
        return source.from_text(self.code, self.options, self.include_dirs)


class Build:
    """One reading of a source with its programs and loaded modules. Its methods are called under the module's lock."""

    def __init__(self, settings: Settings, read: Source) -> None:
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

    def changed(self) -> bool:
        """Whether the file or one of its headers is no longer what was read."""
        if self.watch is None:
            return False
        changed = self.watch.changed()
        self.until.value = 0 if changed or self._replaced else int(self.watch.next_look * 1e9)
        return changed

    def stale(self) -> bool:
        """Whether a launch has to ask the module for the build of the source as it is now."""
        return self._replaced or self.changed()

    def replace(self) -> None:
        """Send launches of this build, which has a successor, to look for that."""
        self._replaced = True
        self.until.value = 0

    def program(self, arch: str | None = None, asked: tuple[str, ...] = ()) -> Program:
        """Compile for an architecture; None takes one that is there already, or the CPU engine's.

        ``asked`` are template instances and overloads that the module's own ``name_expressions`` do not name.
        """
        if arch is None:
            arch = next((known for known, names in self._programs if names == asked), CPU_ARCH)
        program = self._programs.get((arch, asked))
        if program is None:
            expressions = (*self.settings.name_expressions, *asked)
            program = self._programs[arch, asked] = compiler.compile_program(self.source, arch, expressions)
        return program

    def engine_module(self, device: torch.device, asked: tuple[str, ...] = ()) -> Any:
        """Load the program on a device, once."""
        module = self._modules.get((device, asked))
        if module is None:
            program = self.program(architecture(device), asked)
            module = self._modules[device, asked] = engine(device).load_module(program, device=device)
        return module


class RawModule:
    """CUDA source with any number of kernels, compiled at first use for the device of the tensors.

    Parameters
    ----------
    code : str, optional
        The source. Give this or ``path``.
    path : path, optional
        A source file. When it or a local header it includes changes, the next launch recompiles it; while it does
        not compile, each launch raises `CompileError`.
    options : sequence of str
        NVRTC options, such as ``("-use_fast_math", "-DTILE=32")``. The architecture is not among them.
    include_dirs : sequence of paths
        Where ``#include`` looks. CUDA's own headers are found without.
    name_expressions : sequence of str, optional
        Template instances to compile with the rest. Instances asked for later, through `get_function`, are compiled
        apart and have ``__device__`` variables of their own.
    enable_cooperative_groups : bool
        Launch cooperatively, so that ``grid.sync()`` works.
    strided : bool
        Accept tensors that are not contiguous; the kernel gets their pointers and has to know their strides.

    Raises
    ------
    TypeError, ValueError, FileNotFoundError
        For settings that cannot work. The source itself is compiled later: `CompileError` comes at the first use.

    Notes
    -----
    A module pickles as its settings (a file by its path) and may be used from several threads. A copy is the module
    itself.
    """

    @untraced
    def __init__(
        self,
        code: str | None = None,
        *,
        path: PathLike | None = None,
        options: Sequence[str] = (),
        include_dirs: Sequence[PathLike] = (),
        name_expressions: Iterable[str] | None = None,
        enable_cooperative_groups: bool = False,
        strided: bool = False,
    ) -> None:
        if (code is None) == (path is None):
            got = "neither" if code is None else "both"
            raise TypeError(f"give the CUDA source as code, or path= for a file; got {got}")
        expressions = () if name_expressions is None or isinstance(name_expressions, str) else tuple(name_expressions)
        if isinstance(name_expressions, str) or not all(isinstance(each, str) for each in expressions):
            raise TypeError(f"name_expressions is {name_expressions!r}; pass a sequence of strings")
        # The first reading checks the settings; it is compiled later, if it still holds then.
        first = (
            source.from_path(path, options, include_dirs)
            if path is not None
            else source.from_text(code, options, include_dirs)  # type: ignore[arg-type]
        )
        folders = (*(os.path.abspath(os.fspath(folder)) for folder in include_dirs), *_implied(first, include_dirs))
        settings = Settings(code, first.path, first.options, folders, expressions, enable_cooperative_groups, strided)
        self._start(settings, first)

    def _start(self, settings: Settings, first: Source | None) -> None:
        self._settings = settings
        self._first = first
        self._build: Build | None = None
        self._lock = Lock()
        self._kernels: weakref.WeakSet[RawKernel] = weakref.WeakSet()
        self._functions: dict[str, RawKernel] = {}
        ALIVE.add(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return of_settings, (self._settings,)

    def __copy__(self) -> RawModule:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> RawModule:
        return self

    def __repr__(self) -> str:
        where = self._settings.path or "a string"
        return f"<RawModule from {where}>"

    # Kernels ------------------------------------------------------------------------------------------------------

    @untraced
    def get_function(self, name: str) -> RawKernel:
        """Return a kernel by name.

        Parameters
        ----------
        name : str
            ``"saxpy"``, with its namespace where the bare name is not unique; a template instance,
            ``"axpy<float, 4>"``; or an overload by its parameter types, ``"axpy(int, float*)"``.

        Returns
        -------
        RawKernel
            The same object each time.

        Raises
        ------
        ValueError
            There is no such kernel, or more than one; the message lists those there are.
        CompileError
            The source does not compile.
        """
        if not isinstance(name, str):
            raise TypeError(f"get_function takes the kernel's name as a string, got {type(name).__name__}")
        from rawkern.kernel import RawKernel

        with self._lock:
            kernel = self._functions.get(name)
            if kernel is None:
                kernel = RawKernel._of(self, name)
                kernel._find()
                self._functions[name] = kernel
            return kernel

    @untraced
    def __getattr__(self, name: str) -> RawKernel:
        # Python, copy, pickle and notebooks ask for names with an underscore; none of them may start a compilation.
        if name.startswith("_"):
            raise AttributeError(
                f"RawModule has no attribute {name!r}; for a kernel of that name: get_function({name!r})"
            )
        try:
            kernel = self.get_function(name)
        except ValueError as error:
            raise AttributeError(str(error)) from None
        self.__dict__[name] = kernel
        return kernel

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *(name for name in self.kernels if name.isidentifier())]

    @property
    def kernels(self) -> tuple[str, ...]:
        """The compiled kernels, and the templates found in the source."""
        with self._lock:
            build = self._current()
            templates = compiler.templates(build.source)
            try:
                entries = build.program().entries
            except CompileError as error:
                if error.line is not None or not templates:  # templates alone make no program, and are no mistake
                    raise
                entries = ()
            return tuple(dict.fromkeys((*(entry.name for entry in entries), *templates)))

    # Variables ----------------------------------------------------------------------------------------------------

    @untraced
    def get_global(self, name: str, device: torch.device | str | int | None = None) -> torch.Tensor:
        """Return a ``__device__`` or ``__constant__`` variable as a tensor on its own memory.

        Writing to the tensor writes to the variable. It belongs to the code as it is compiled now: after an edit, ask
        again.

        Parameters
        ----------
        name : str
            The variable, with its namespace.
        device : torch.device, str or int, optional
            Whose copy of the variable; by default the current CUDA device's if there is one, else the CPU's.

        Returns
        -------
        torch.Tensor
            In the variable's element type and shape: ``float a[3][31]`` is float32 of shape (3, 31), a single number
            of shape (1,). A vector such as ``float4`` adds a dimension of its numbers, a type that torch has not, such
            as a struct, one of its bytes (uint8). Pointers are addresses (int64).

        Raises
        ------
        ValueError
            There is no such variable.
        """
        from rawkern import variables

        where = default_device() if device is None else normalised(device)
        with self._lock:
            return variables.view(self._current(), name, where)

    # Compiling --------------------------------------------------------------------------------------------------

    @untraced
    def compile(self) -> None:
        """Compile now what the first use would, for the current CUDA device if there is one, else for the CPU.

        Raises
        ------
        CompileError
            The source does not compile, or it has templates alone and ``name_expressions`` names none.
        """
        with self._lock:
            self._current().program(architecture(default_device()))

    @untraced
    def reload(self) -> None:
        """Read and compile the source now, whether or not it has changed.

        Raises
        ------
        CompileError
            It does not compile; launches raise the same until it is mended.
        """
        with self._lock:
            arch = next((arch for arch, asked in self._build._programs if not asked), None) if self._build else None
            self._first = None
            self._renew()
            self._current().program(arch)

    def _current(self) -> Build:
        """Return the build of the source as it is now. Call it under the lock."""
        if self._build is None or self._build.changed():
            self._renew()
        assert self._build is not None
        return self._build

    def _renew(self) -> None:
        read, self._first = self._first or self._settings.read(), None
        build = Build(self._settings, read)
        if build.changed():  # edited since the module was made
            build = Build(self._settings, self._settings.read())
        if self._build is not None:
            self._build.replace()
        self._build = build


def load(
    path: PathLike,
    *,
    options: Sequence[str] = (),
    include_dirs: Sequence[PathLike] = (),
    name_expressions: Iterable[str] | None = None,
    enable_cooperative_groups: bool = False,
    strided: bool = False,
) -> RawModule:
    """Return the module of a ``.cu`` file; a bare name, such as ``"square"``, is one of rawkern's own files.

    Parameters
    ----------
    path : path
        The file; a bare name without suffix is looked up here first, then among rawkern's own.
    options, include_dirs, name_expressions, enable_cooperative_groups, strided
        As for `RawModule`.

    Returns
    -------
    RawModule
        It is compiled at its first use, and again when the file or a local header it includes has changed.

    Raises
    ------
    FileNotFoundError
        There is no such file.
    """
    return RawModule(
        path=_find(path),
        options=options,
        include_dirs=include_dirs,
        name_expressions=name_expressions,
        enable_cooperative_groups=enable_cooperative_groups,
        strided=strided,
    )


# Where rawkern's own sources are ------------------------------------------------------------------------------


def own_sources() -> Path:
    """The directory of rawkern's own ``.cu`` files: inside an installed package, beside it in a source tree."""
    package = Path(__file__).resolve().parent
    inside = package / "cuda_src"
    return inside if inside.is_dir() else package.parent / "cuda_src"


def _find(path: PathLike) -> str:
    text = os.fspath(path)
    bare = isinstance(path, str) and os.sep not in text and not text.endswith((".cu", ".cuh"))
    if not bare or os.path.isfile(text):
        return text
    folder = own_sources()
    if (folder / f"{text}.cu").is_file():
        return str(folder / f"{text}.cu")
    there = ", ".join(sorted(file.stem for file in folder.glob("*.cu")))
    raise FileNotFoundError(
        f"{text!r} is neither a file nor one of rawkern's own sources ({there or 'none'}); a file's name ends in .cu"
    )


def _implied(first: Source, include_dirs: Sequence[PathLike]) -> tuple[str, ...]:
    """Include directories that came as -I options, which are no options any more.

    The current directory of a string is not among them: it is found anew where the module is unpickled.
    """
    given = {os.path.abspath(os.fspath(folder)) for folder in include_dirs}
    implied = os.getcwd() if first.path is None else None
    return tuple(folder for folder in first.include_dirs if folder not in given and folder != implied)


def of_settings(settings: Settings) -> RawModule:
    """Make a module whose settings have been checked before."""
    module = RawModule.__new__(RawModule)
    module._start(settings, None)
    return module


ALIVE: weakref.WeakSet[RawModule] = weakref.WeakSet()
