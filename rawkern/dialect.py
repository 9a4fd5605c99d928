"""What nvcc takes and NVRTC refuses: read off NVRTC's log, and allowed in a second compilation.

Only what a failed compilation asked for is added, so a source that has declarations of its own, whatever they are,
compiles with these alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from rawkern import diagnostics
from rawkern.source import Source

__all__ = ["HEADER", "Dialect"]

HEADER = "rawkern/nvcc.h"  # the name under which the declarations are included before the source

# Types that every .cu file has from the C library's <sys/types.h>, which nvcc's own headers include.
_TYPES = {
    "uint": "unsigned int", "ulong": "unsigned long", "ushort": "unsigned short",
    "u_int": "unsigned int", "u_long": "unsigned long", "u_short": "unsigned short", "u_char": "unsigned char",
}  # fmt: skip
_DECLARATIONS = {name: f"typedef {of} {name};" for name, of in _TYPES.items()}


@dataclass(frozen=True)
class Dialect:
    """What a source needs beyond NVRTC's own language."""

    names: tuple[str, ...] = ()  # those to declare
    default_device: bool = False  # take functions that are not annotated for __device__ ones

    @property
    def header(self) -> str:
        """The declarations, empty where none is needed."""
        return "".join(f"{_DECLARATIONS[name]}\n" for name in self.names)

    @property
    def options(self) -> tuple[str, ...]:
        """Options for NVRTC."""
        included = (f"-include={HEADER}",) if self.names else ()
        return (*included, "-default-device") if self.default_device else included

    def widened(self, source: Source, log: str) -> Dialect:
        """Return a dialect in which the errors of a log may be none; this one if nothing here helps."""
        problems = diagnostics.problems(log)
        missing = {name for problem in problems if (name := problem.undeclared) in _DECLARATIONS}
        if missing.difference(self.names):
            return replace(self, names=(*self.names, *sorted(missing.difference(self.names))))
        return replace(self, default_device=self.default_device or _host_is_constexpr(source, problems, log))


def _host_is_constexpr(source: Source, problems: list[diagnostics.Problem], log: str) -> bool:
    """Whether all that a log calls host code is constexpr functions, which nvcc's --expt-relaxed-constexpr takes.

    PyTorch's extensions are compiled with that. NVRTC has an option for host code of any kind only.
    """
    host = [problem for problem in problems if problem.is_host_code]
    whole = "Error limit reached" not in log
    return bool(host) and whole and all(diagnostics.is_constexpr(problem, source) for problem in host)
