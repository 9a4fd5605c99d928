"""What nvcc takes and NVRTC refuses: read off NVRTC's log, and allowed in a second compilation.

Types and standard headers that nvcc includes by itself, or has from headers for the host, and constexpr functions
without ``__device__``. Only what a failed compilation asked for is added, so a source that has declarations of its
own, whatever they are, compiles with these alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from rawkern import diagnostics, shims
from rawkern.source import Source

__all__ = ["HEADER", "Dialect"]

HEADER = "rawkern/nvcc.h"  # the name under which the declarations are included before the source


def _declaration(name: str) -> str:
    """Return what declares a name that a source lacks, "" where nothing here does."""
    if name in shims.C_TYPES:
        return f"typedef {shims.C_TYPES[name]} {name};\n"
    header = shims.header_of(name)
    return f"#include <{header}>\n" if header else ""


@dataclass(frozen=True)
class Dialect:
    """What a source needs beyond NVRTC's own language."""

    names: tuple[str, ...] = ()  # those to declare
    default_device: bool = False  # take functions that are not annotated for __device__ ones

    @property
    def header(self) -> str:
        """The declarations, empty where none is needed."""
        return "".join(map(_declaration, self.names))

    @property
    def options(self) -> tuple[str, ...]:
        """Options for NVRTC."""
        included = (f"-include={HEADER}",) if self.names else ()
        return (*included, "-default-device") if self.default_device else included

    def widened(self, source: Source, log: str) -> Dialect:
        """Return a dialect in which the errors of a log may be none; this one if nothing here helps."""
        problems = diagnostics.problems(log)
        missing = {problem.undeclared for problem in problems if _declaration(problem.undeclared)}.difference(
            self.names
        )
        if missing:
            return replace(self, names=(*self.names, *sorted(missing)))
        return replace(self, default_device=self.default_device or _host_is_constexpr(source, problems, log))


def _host_is_constexpr(source: Source, problems: list[diagnostics.Problem], log: str) -> bool:
    """Whether all that a log calls host code is constexpr functions, which nvcc's --expt-relaxed-constexpr takes.

    PyTorch's extensions are compiled with that. NVRTC has an option for host code of any kind only.
    """
    host = [problem for problem in problems if problem.is_host_code]
    whole = "Error limit reached" not in log
    return bool(host) and whole and all(diagnostics.is_constexpr(problem, source) for problem in host)
