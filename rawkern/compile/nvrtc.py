"""One run of NVRTC: text in, PTX, cubin, symbols and log out."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from rawkern.compile import helper, pch, shims
from rawkern.compile.dialect import HEADER, Dialect, without_literals
from rawkern.compile.files import own_sources, read_text
from rawkern.compile.hostcode import device_code
from rawkern.compile.source import Source
from rawkern.compile.toolchain import nvrtc, toolchain
from rawkern.errors import CompileError


@dataclass(frozen=True)
class Result:
    """What NVRTC gave back."""

    ok: bool
    log: str
    ptx: str = ""
    cubin: bytes = b""
    lowered: tuple[tuple[str, str], ...] = ()  # (name expression, symbol)
    dialect: Dialect = field(default_factory=Dialect)  # what was declared for it


def run_nvrtc(
    source: Source, arch: str, expressions: Iterable[str] = (), *, append: str = "", extra: tuple[str, ...] = (),
    dialect: Dialect | None = None,
) -> Result:  # fmt: skip
    """Compile a source, for the expressions' symbols, too; one that NVRTC rejects gives a result with its log.

    `append` is put after the source, on lines of its own; `extra` are more options. What nvcc takes and NVRTC does not
    costs a second run; with a `dialect`, there is one run, with that.
    """
    code = device_code(source)
    expressions, given = tuple(dict.fromkeys(expressions)), dialect is not None
    dialect = dialect or Dialect(code.names, code.default_device or source.uses_cutlass, code.light)
    result = _run(source, arch, expressions, append, extra, dialect)
    while not (result.ok or given):
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
    options = [*_options(source, arch), *dialect.options, *extra]
    text = without_literals(code.text) if dialect.literals else code.text

    def compiled(headers: dict[str, str], *more: str) -> Result:
        program = text + append, source.name, headers, expressions, arch.startswith("sm_")
        return _compiled(source, [*options, *more], program, dialect)

    headers = shims.needed(source.local_names) | {HEADER: dialect.header} | dict(code.headers)
    if _is_minimal(code.text, dialect, source.options):
        result = compiled(headers if dialect.options else {}, "-minimal")
        if result.ok or not _MORE.search(result.log):
            return result
    return compiled(headers)


def _compiled(source: Source, options: list[str], program: tuple[Any, ...], dialect: Dialect) -> Result:
    found = None
    if _has_assembly(source):
        try:
            found = helper.compiled(toolchain().library or nvrtc().library, options, *program)
        except helper.Crashed:
            raise CompileError(
                f"{source.title}: NVRTC crashed on this source; it may not support its inline assembly, such as a "
                "shared variable's address converted to global memory: remove one asm statement after the other to "
                "find which",
                file=source.title,
            ) from None
    return Result(*(found or pch.compiled(nvrtc(), source, options, *program)), dialect)


# With -minimal NVRTC leaves out the runtime's types and functions, textures and surfaces, whose names begin so: a third
# of a small kernel's time. A source without an include needs no headers, either, but for what a dialect declares. A
# release of NVRTC that lacks the option names it in its log.
_MORE = re.compile(r"\b(?:cuda|CUDA|CU|tex|surf|__cuda|__i?tex|__i?surf|libraryProperty|minimal)|include")


def _is_minimal(text: str, dialect: Dialect, given: tuple[str, ...]) -> bool:
    """Whether a source with its options has no include, and no name that may be one of those left out."""
    return not dialect.default_device and not any(map(_MORE.search, (text, *given)))


def _has_assembly(source: Source) -> bool:
    """Whether there is any but rawkern's own, which NVRTC is known to take."""
    own = f"{own_sources()}{os.sep}"
    texts = [] if source.name.startswith(own) else [source.text]
    texts += [read_text(path) for path, _ in source.headers if not path.startswith(own)]
    return any(map(re.compile(r"\b(?:__)?asm(?:__)?\b").search, texts))


def include_path(source: Source) -> tuple[str, ...]:
    """Return the directories in which the compiler looks for ``<...>`` includes, in order."""
    return (*source.include_dirs, *toolchain().include_dirs)


# Keywords of nvcc's host compilers that NVRTC lacks; it knows __volatile__ and __inline__. Two have no meaning.
_KEYWORDS = (
    "-D__asm__=asm", "-D__asm=asm", "-D__volatile=volatile", "-D__const__=const", "-D__const=const",
    "-D__signed__=signed", "-D__signed=signed", "-D__extension__=", "-Dregister=",
)  # fmt: skip
# How many cases NVIDIA's CCCL spells out of what it else does by recursion: 10 for nvcc, which is slow at it. NVRTC is
# as slow, and would get 16: half the time of <cooperative_groups.h>, <cuda/std/...> and <cub/cub.cuh>.
_AS_NVCC = "-D_CCCL_META_UNROLL_LIMIT=10"


def _options(source: Source, arch: str) -> list[str]:
    options = [f"-arch={arch}", *_KEYWORDS, _AS_NVCC]
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
