"""One run of NVRTC: text in, PTX, cubin, symbols and log out."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from rawkern.base.forking import compiling
from rawkern.compile import shims
from rawkern.compile.dialect import HEADER, Dialect
from rawkern.compile.hostcode import device_code
from rawkern.compile.libnvrtc import NvrtcError
from rawkern.compile.source import Source
from rawkern.compile.toolchain import nvrtc, toolchain


@dataclass(frozen=True)
class Result:
    """What NVRTC gave back."""

    ok: bool
    log: str
    ptx: str = ""
    cubin: bytes = b""
    lowered: tuple[tuple[str, str], ...] = ()  # (name expression, symbol)


def run_nvrtc(
    source: Source, arch: str, expressions: Iterable[str] = (), *, append: str = "", extra: tuple[str, ...] = ()
) -> Result:
    """Compile a source, for the expressions' symbols, too; one that NVRTC refuses gives a result with its log.

    `append` is put after the source, on lines of its own; `extra` are more options. What nvcc takes and NVRTC does not
    costs a second run.
    """
    code = device_code(source)
    expressions, dialect = tuple(dict.fromkeys(expressions)), Dialect(code.names, code.default_device, code.light)
    result = _run(source, arch, expressions, append, extra, dialect)
    while not result.ok:
        wider = dialect.widened(source, result.log)
        if wider == dialect:
            break
        again = _run(source, arch, expressions, append, extra, wider)
        if HEADER in again.log:  # what was declared for the source is in the way of its own
            break
        result, dialect = again, wider
    return result


def _run(
    source: Source, arch: str, expressions: tuple[str, ...], append: str, extra: tuple[str, ...], dialect: Dialect
) -> Result:
    code = device_code(source)
    headers = shims.needed(source.local_names) | {HEADER: dialect.header} | dict(code.headers)
    with nvrtc().program(code.text + append, source.name, headers) as program:
        for expression in expressions:
            program.expect(expression)
        try:
            with compiling():
                program.compile((*_options(source, arch), *dialect.options, *extra))
        except NvrtcError as error:
            return Result(False, program.log or str(error))
        lowered = tuple((expression, program.symbol(expression)) for expression in expressions)
        cubin = program.cubin if arch.startswith("sm_") else b""
        return Result(True, program.log, program.ptx, cubin, lowered)


def include_path(source: Source) -> tuple[str, ...]:
    """Return the directories in which the compiler looks for ``<...>`` includes, in order."""
    return (*source.include_dirs, *toolchain().include_dirs)


# Keywords of the host compilers behind nvcc that NVRTC lacks; it knows __volatile__ and __inline__.
_KEYWORDS = ("-D__asm__=asm", "-D__asm=asm", "-D__volatile=volatile")


def _options(source: Source, arch: str) -> list[str]:
    options = [f"-arch={arch}", *_KEYWORDS]
    if not any(re.match(r"--?std\b", option) for option in source.options):
        options.append("-std=c++17")
    debug = {"-lineinfo", "--generate-line-info", "-G", "--device-debug"}
    if not debug.intersection(source.options):
        # Lets an error on the CPU, and Nsight Compute, name the CUDA line; machine code is the same with it.
        options.append("-lineinfo")
    if toolchain().version >= (12, 9):  # the first to know the option
        # Where there is a driver, NVRTC keeps machine code and takes that of the same source without -ftz=true for
        # it (seen with 13.0). rawkern has a cache of its own, whose key holds the options.
        options.append("-no-cache")
    if "--device-int128" not in source.options and "-device-int128" not in source.options:
        options.append("--device-int128")  # as nvcc has it
    return [*options, *source.options, *(f"-I{folder}" for folder in include_path(source))]
