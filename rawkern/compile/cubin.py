"""What a cubin says of its kernels: registers, memory, barriers, launch bounds; read from its ELF, without a GPU.

The records of section ``.nv.info`` are NVIDIA's own and not documented; the tests compare what is read here with the
compiler's report on every architecture, and with the driver's on a GPU (seen: NVRTC 12.4, 12.9 and 13.0). Spills are
told by the compiler's report alone.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from itertools import pairwise

from rawkern.compile import elf
from rawkern.errors import RawkernError

REPORT = "--ptxas-options=-v"  # makes the compiler's log tell what it used
_RESERVED, _RESERVED_FROM = 1024, 90  # bytes of a block's shared memory that are the driver's, counted in from sm_90 on
_UNKNOWN = 0xFFFFFFFF  # the stack of a recursive function

# Attributes of records of .nv.info.
_MAX_THREADS, _FRAME, _MIN_STACK, _REGISTERS, _REQUIRED_THREADS, _BARRIERS = 0x05, 0x11, 0x12, 0x2F, 0x10, 0x4C


@dataclass(frozen=True)
class Resources:
    """What one kernel uses; memory in bytes."""

    registers: int  # of a thread
    shared: int  # static shared memory of a block
    constant: int  # ``__constant__`` variables of the module
    local: int  # local memory of a thread, without what recursive functions take
    barriers: int  # named barriers of a block; ``__syncthreads()`` is one
    max_threads: int  # the most threads of a block, from ``__launch_bounds__``; 1024 without


def resources(cubin: bytes, arch: str) -> dict[str, Resources]:
    """Return the resources of each kernel of a cubin for an architecture such as ``"sm_90"``, by symbol.

    RawkernError if these are not the bytes of a cubin.
    """
    sections = elf.sections(cubin)
    by_name = {section.name: section for section in sections}
    constant = by_name[".nv.constant3"].size if ".nv.constant3" in by_name else 0
    reserved = _RESERVED if int(arch.strip("sm_af")) >= _RESERVED_FROM else 0
    of_functions: dict[int, dict[str, int]] = {_REGISTERS: {}, _FRAME: {}, _MIN_STACK: {}}
    if ".nv.info" not in by_name:
        raise RawkernError("this cubin does not describe its kernels: it has no section .nv.info")
    for attribute, data in elf.records(cubin, by_name[".nv.info"]):
        if attribute in of_functions:
            if len(data) < 8:
                raise elf.damaged(by_name[".nv.info"].offset, "a record of .nv.info is too short")
            symbol, value = struct.unpack_from("<2I", data)
            of_functions[attribute][elf.symbol(cubin, sections, symbol)] = value
    found = {}
    for name, section in by_name.items():
        if not name.startswith(".nv.info."):
            continue
        kernel = name.removeprefix(".nv.info.")
        own = dict(elf.records(cubin, section))
        bounds = own.get(_REQUIRED_THREADS) or own.get(_MAX_THREADS)
        if (bounds and len(bounds) < 12) or not own.get(_BARRIERS, b"?") or f".text.{kernel}" not in by_name:
            raise elf.damaged(section.offset, f"section {name} has unknown records, or a kernel without code")
        x, y, z = struct.unpack_from("<3I", bounds) if bounds else (1024, 1, 1)
        shared = by_name.get(f".nv.shared.{kernel}")
        frame, stack = (of_functions[attribute].get(kernel, 0) for attribute in (_FRAME, _MIN_STACK))
        # Before CUDA 13 the number of barriers stood among the flags of the code's section.
        barriers = own[_BARRIERS][0] if _BARRIERS in own else by_name[f".text.{kernel}"].flags >> 20 & 0x7F
        found[kernel] = Resources(
            registers=of_functions[_REGISTERS].get(kernel, 0),
            shared=max(shared.size - reserved, 0) if shared else 0,
            constant=constant,
            local=frame if stack == _UNKNOWN else stack,
            barriers=barriers,
            max_threads=x * y * z,
        )
    return found


# The compiler's report ------------------------------------------------------------------------------------------

_ENTRY = re.compile(r"Compiling entry function '([^']+)'")
_SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
_OWN_LINES = re.compile(r"^ptxas (?:info\s*:|\s+\.).*\n?", re.M)


def spills(log: str) -> dict[str, tuple[int, int]]:
    """Bytes of spill stores and loads of each kernel, with the functions it calls, by symbol; from a log with `REPORT`.

    Each kernel has functions that are not inlined for itself; they follow it in the report. Those save registers as
    calls demand, which counts as spills, too.
    """
    starts = [*_ENTRY.finditer(log), None]
    found = {}
    for entry, following in pairwise(starts):
        assert entry is not None
        part = log[entry.end() : following.start() if following else len(log)]
        pairs = [(int(stores), int(loads)) for stores, loads in _SPILLS.findall(part)]
        if pairs:
            found[entry[1]] = sum(stores for stores, _ in pairs), sum(loads for _, loads in pairs)
    return found


def without_report(log: str) -> str:
    """The compiler's warnings: its log without the report."""
    return _OWN_LINES.sub("", log).strip("\n ")
