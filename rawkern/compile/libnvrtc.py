"""NVRTC's library, called through ctypes: no package but NVIDIA's own is needed to compile."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rawkern.base.forking import cached_property, compiling

_Handle = ctypes.c_void_p
_Size = ctypes.POINTER(ctypes.c_size_t)
_Texts = ctypes.POINTER(ctypes.c_char_p)
_Numbers = ctypes.POINTER(ctypes.c_int)
# All of them return a code, 0 for success.
_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "Version": (_Numbers, _Numbers),
    "GetNumSupportedArchs": (_Numbers,),
    "GetSupportedArchs": (_Numbers,),
    "CreateProgram": (ctypes.POINTER(_Handle), ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int, _Texts, _Texts),
    "AddNameExpression": (_Handle, ctypes.c_char_p),
    "CompileProgram": (_Handle, ctypes.c_int, _Texts),
    "GetLoweredName": (_Handle, ctypes.c_char_p, _Texts),
    "DestroyProgram": (ctypes.POINTER(_Handle),),
    **{f"Get{name}Size": (_Handle, _Size) for name in ("ProgramLog", "PTX", "CUBIN")},
    **{f"Get{name}": (_Handle, ctypes.c_char_p) for name in ("ProgramLog", "PTX", "CUBIN")},
}

#: Whether a source compiled, the log, its PTX and its cubin, and the symbols of expressions.
Compiled = tuple[bool, str, str, bytes, tuple[tuple[str, str], ...]]


class NvrtcError(Exception):
    """What NVRTC calls an error, such as NVRTC_ERROR_COMPILATION."""


class Nvrtc:
    """A loaded NVRTC. OSError if the file is not there or cannot be loaded, AttributeError if it is something else.

    Parameters
    ----------
    library
        Its path, or a bare name that the system's loader knows.
    """

    def __init__(self, library: str) -> None:
        self.library = library
        loaded = ctypes.CDLL(library)
        self._functions = {name: getattr(loaded, f"nvrtc{name}") for name in _FUNCTIONS}
        for name, arguments in _FUNCTIONS.items():
            self._functions[name].argtypes = arguments
        self._error_text = loaded.nvrtcGetErrorString
        self._error_text.argtypes, self._error_text.restype = (ctypes.c_int,), ctypes.c_char_p
        self._loaded = loaded
        self._preload_builtins()

    def _preload_builtins(self) -> None:
        """Load the library that NVRTC opens by name while it compiles: wheels lie where no loader looks."""
        major, minor = self.version
        beside = os.path.join(os.path.dirname(os.path.realpath(self.library)), f"libnvrtc-builtins.so.{major}.{minor}")
        if os.path.isabs(self.library) and os.path.isfile(beside):
            ctypes.CDLL(beside)

    def call(self, name: str, *arguments: Any) -> None:
        """Call ``nvrtcNAME``; NvrtcError if it fails."""
        code = self._functions[name](*arguments)
        if code:
            raise NvrtcError((self._error_text(code) or b"").decode() or f"NVRTC's error {code}")

    @cached_property
    def version(self) -> tuple[int, int]:
        """The release, such as (13, 0)."""
        major, minor = ctypes.c_int(), ctypes.c_int()
        self.call("Version", major, minor)
        return major.value, minor.value

    def reserve_headers(self, size: int) -> None:
        """Let precompiled headers have so many bytes; releases that have them know the function."""
        reserve = self._loaded.nvrtcSetPCHHeapSize
        reserve.argtypes = (ctypes.c_size_t,)
        reserve(size)  # if that fails, headers that need more than usual are compiled each time

    @cached_property
    def architectures(self) -> tuple[int, ...]:
        """The compute capabilities that it compiles for, such as (75, 80, 90), rising."""
        count = ctypes.c_int()
        self.call("GetNumSupportedArchs", count)
        found = (ctypes.c_int * count.value)()
        self.call("GetSupportedArchs", found)
        return tuple(sorted(found))

    @contextlib.contextmanager
    def program(self, text: str, name: str, headers: Mapping[str, str]) -> Iterator[Program]:
        """Make a program of a source with its name, and headers by the names they are included by."""
        handle = _Handle()
        contents, names = _texts(list(headers.values())), _texts(list(headers))
        self.call("CreateProgram", handle, _encoded(text), _encoded(name), len(headers), contents, names)
        try:
            yield Program(self, handle)
        finally:
            self.call("DestroyProgram", handle)

    def compiled(
        self, options: Sequence[str], text: str, name: str, headers: Mapping[str, str], expressions: Sequence[str],
        machine_code: bool,
    ) -> Compiled:  # fmt: skip
        """Compile a source with its name and headers, and look up expressions."""
        with compiling(), self.program(text, name, headers) as program:
            for expression in expressions:
                program.expect(expression)
            try:
                program.compile(options)
            except NvrtcError as error:
                return False, program.log or str(error), "", b"", ()
            symbols = tuple((expression, program.symbol(expression)) for expression in expressions)
            return True, program.log, program.ptx, program.cubin if machine_code else b"", symbols


class Program:
    """A source that NVRTC holds."""

    def __init__(self, nvrtc: Nvrtc, handle: ctypes.c_void_p) -> None:
        self._nvrtc = nvrtc
        self._handle = handle

    def expect(self, expression: str) -> None:
        """Have the name of a function or variable compiled and its symbol known; before `compile`."""
        self._nvrtc.call("AddNameExpression", self._handle, _encoded(expression))

    def compile(self, options: Sequence[str]) -> None:
        """Compile; NvrtcError if the source does not compile, with the reasons in `log`."""
        self._nvrtc.call("CompileProgram", self._handle, len(options), _texts(options))

    def symbol(self, expression: str) -> str:
        """What an expression is called in the code."""
        found = ctypes.c_char_p()
        self._nvrtc.call("GetLoweredName", self._handle, _encoded(expression), found)
        return (found.value or b"").decode()

    @property
    def log(self) -> str:
        """What the compiler said."""
        return self._text("ProgramLog")

    @property
    def ptx(self) -> str:
        """The PTX."""
        return self._text("PTX")

    @property
    def cubin(self) -> bytes:
        """Machine code, b"" if it was compiled for a virtual architecture."""
        return self._bytes("CUBIN")

    def _text(self, what: str) -> str:
        # What the assembler adds to a log comes after a NUL.
        return self._bytes(what).decode(errors="replace").replace("\0", "").strip()

    def _bytes(self, what: str) -> bytes:
        size = ctypes.c_size_t()
        self._nvrtc.call(f"Get{what}Size", self._handle, size)
        data = ctypes.create_string_buffer(size.value)
        if size.value:
            self._nvrtc.call(f"Get{what}", self._handle, data)
        return data.raw


def _texts(texts: Sequence[str]) -> ctypes.Array[ctypes.c_char_p]:
    return (ctypes.c_char_p * len(texts))(*map(_encoded, texts))


def _encoded(text: str) -> bytes:
    """A text as the compiler gets it; a path's bytes that are not UTF-8 are what they are on disk."""
    try:
        return text.encode(errors="surrogateescape")
    except UnicodeEncodeError as error:
        part = text[max(error.start - 40, 0) : error.end + 40]
        raise ValueError(f"{part!r} has an unpaired surrogate, which is not a character") from None
