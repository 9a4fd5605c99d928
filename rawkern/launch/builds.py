"""What a module is made from, and one reading of it: compiled for the architectures and loaded on the devices used.

Launches that are under way keep the reading they have started with.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import torch

from rawkern.base.forking import Lock
from rawkern.compile import programs, source
from rawkern.compile.programs import CPU_ARCH, Program
from rawkern.compile.source import Source, Watch
from rawkern.engines.devices import architecture, engine

__all__ = ["Build", "Settings"]

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

    def __init__(self, settings: Settings, read: Source, lock: Lock) -> None:
        self.lock = lock  # the module's
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

    def compiled_for(self, asked: tuple[str, ...] = ()) -> str | None:
        """An architecture that there is a program for."""
        return next((known for known, names in self._programs if names == asked), None)

    def program(self, arch: str | None = None, asked: tuple[str, ...] = ()) -> Program:
        """Compile for an architecture; None takes one that is there already, or the CPU engine's.

        ``asked`` are template instances and overloads that the module's own ``name_expressions`` do not name.
        """
        if arch is None:
            arch = self.compiled_for(asked) or CPU_ARCH
        program = self._programs.get((arch, asked))
        if program is None:
            expressions = (*self.settings.name_expressions, *asked)
            program = self._programs[arch, asked] = programs.compile_program(self.source, arch, expressions)
        return program

    def engine_module(self, device: torch.device, asked: tuple[str, ...] = ()) -> Any:
        """Load the program on a device, once."""
        module = self._modules.get((device, asked))
        if module is None:
            program = self.program(architecture(device), asked)
            module = self._modules[device, asked] = engine(device).load_module(program, device=device)
        return module
