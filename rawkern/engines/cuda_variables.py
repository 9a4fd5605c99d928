"""Variables of a module's programs on one GPU, where each loaded program has memory of its own.

In C++ there is one variable of a name. The memory of the program that was loaded first is that one; around each launch
of another program's kernel, its variables are copied from there and back, on the launch's stream.
"""

from __future__ import annotations

import ctypes
import functools
import re
from dataclasses import dataclass
from typing import Any

from rawkern.base.libcuda import libcuda
from rawkern.compile import elf
from rawkern.compile.program import Program
from rawkern.errors import LaunchError

_DECLARED = re.compile(
    r"^\.(?:(?:visible|weak|common) \.)?(?P<space>global|const) [^;={]*?\.[a-z]+\d+ (?P<symbol>[\w$]+)[^;=]*"
    r"(?:= (?P<starts>[^;]*))?;",
    re.M,
)
_ADDRESS = re.compile(r"(?<![\w.])[A-Za-z_$]")  # a name among first values; numbers begin with a digit
_COMPILERS = re.compile(r"\$|__unnamed|\.")  # numbered in each program


@dataclass(frozen=True)
class Copy:
    """A variable of a program, and the memory that stands for it."""

    own: int
    home: int
    size: int
    constant: bool


class Variables:
    """Where the variables of a module's programs are, by symbol; used under the lock of the module's build."""

    def __init__(self) -> None:
        self._homes: dict[str, tuple[int, int]] = {}  # address and size

    def add(self, module: Any, program: Program) -> dict[str, Copy]:
        """Take in a program that has been loaded; return what of it an earlier one has, by symbol."""
        copies = {}
        for symbol, constant in _variables(program).items():
            try:
                own, size = module.own_view(symbol)
            except LaunchError:
                continue
            home, same = self._homes.setdefault(symbol, (own, size))
            if home != own and size and size == same:
                copies[symbol] = Copy(own, home, size, constant)
        return copies


def _variables(program: Program) -> dict[str, bool]:
    """The symbols of a program's variables, and whether each is constant.

    One that starts with an address is the program's own: it leads to the program's own variables and functions.
    """
    if program.code[:4] == elf.MAGIC:
        found = elf.variables(program.code)
    else:
        text = program.ptx
        found = {
            match["symbol"]: match["space"] == "const"
            for match in _DECLARED.finditer(text)
            if not _ADDRESS.search(match["starts"] or "")
        }
    return {symbol: constant for symbol, constant in found.items() if not _COMPILERS.match(symbol)}


def copy_in(copies: dict[str, Copy], stream: int) -> None:
    """Give a program's variables the values that they have; in the module's context."""
    for each in copies.values():
        _copy(each.own, each.home, each.size, stream)


def copy_back(copies: dict[str, Copy], stream: int) -> None:
    """Take back what a launch may have changed."""
    for each in copies.values():
        if not each.constant:
            _copy(each.home, each.own, each.size, stream)


def _copy(to: int, start: int, size: int, stream: int) -> None:
    status = _memcpy()(to, start, size, stream)
    if status:
        raise LaunchError(f"a variable of the module could not be copied for the launch (driver error {status})")


@functools.cache
def _memcpy() -> Any:
    function = libcuda().cuMemcpyDtoDAsync_v2
    function.argtypes = ctypes.c_uint64, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p
    return function
