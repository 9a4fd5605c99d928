"""What the compiler makes of a source: a program with its kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rawkern.compile import declarations
from rawkern.compile.files import read_text
from rawkern.compile.source import MACHINE_CODE, Source
from rawkern.errors import UnsupportedError


@dataclass(frozen=True)
class Entry:
    """One kernel of a program."""

    symbol: str  # its name in the code: "_Z5saxpyifPKfPf" or, extern "C", "saxpy"
    name: str  # its C++ name: "saxpy", "ns::k", "axpy<float, 4>"
    params: tuple[str, ...]  # each parameter's full C++ type: "int", "const float*", "float* const*", "ns::Params"


@dataclass(frozen=True)
class Program:
    """A compiled source."""

    source: Source
    arch: str  # "compute_80": code is PTX; "sm_90": code is a cubin
    code: bytes
    entries: tuple[Entry, ...]
    symbols: tuple[tuple[str, str], ...]  # (name expression asked for, symbol)
    log: str  # the compiler's warnings
    key: str  # names it in the cache: same key, same program
    names: Mapping[str, tuple[str, ...]] = field(
        default_factory=dict, compare=False
    )  # parameters', by symbol, if known

    @property
    def ptx(self) -> str:
        """The code as PTX text; UnsupportedError for machine code."""
        if self.code[:4] in MACHINE_CODE:
            raise UnsupportedError(
                f"{self.source.name} is machine code for GPUs, which the CPU engine and its tools cannot run; "
                "pass the CUDA source or its PTX"
            )
        return self.code.decode()


def declared(source: Source) -> tuple[declarations.Declaration, ...]:
    """Return every ``__global__`` function in the text of a source and its local headers."""
    texts = [source.text, *(read_text(path) for path, _ in source.headers)]
    return tuple(kernel for text in texts for kernel in declarations.declarations(text))
