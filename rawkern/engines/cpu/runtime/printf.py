"""C's printf formats, applied to argument bytes in memory."""

from __future__ import annotations

import ctypes
import re
import struct
from collections.abc import Callable

from rawkern.errors import OutOfBoundsError

_CONVERSION = re.compile(r"%([-+ #0]*)(\*|\d+)?(?:\.(\*|\d*))?(hh|h|ll|l|j|z|t|L)?([diouxXeEfFgGaAcspn%])")


def formatted(template: str, address: int, readable: Callable[[int], int]) -> str:
    """Expand `template` with the arguments stored at `address` as CUDA's vprintf lays them out.

    Arguments lie one after the other, each aligned to its size: 4 bytes for int and its like, 8 for long, double and
    pointers. `readable` says how many bytes may be read from an address on, or -1.
    """
    at = address

    def take(code: str):
        nonlocal at
        size = struct.calcsize(code)
        at = -(-at // size) * size
        value = struct.unpack(code, ctypes.string_at(at, size))[0]
        at += size
        return value

    def expand(match: re.Match) -> str:
        flags, width, precision, length, conversion = match.groups()
        if conversion == "%":
            return "%"
        width = str(take("=i")) if width == "*" else width or ""
        if width.startswith("-"):
            flags, width = flags + "-", width[1:]
        if precision == "*":
            precision = str(take("=i"))
        spec = f"%{flags}{width}" + (
            f".{precision or 0}" if precision is not None and not precision.startswith("-") else ""
        )
        if conversion in "di":
            return (spec + "d") % _narrow(take("=q" if length in ("l", "ll", "j", "z", "t") else "=i"), length, True)
        if conversion in "ouxX":
            value = _narrow(take("=Q" if length in ("l", "ll", "j", "z", "t") else "=I"), length, False)
            return (spec + conversion.replace("u", "d")) % value
        if conversion in "eEfFgG":
            return (spec + conversion) % take("=d")
        if conversion in "aA":
            text = take("=d").hex()
            return f"%{flags}{width}s" % (text.upper() if conversion == "A" else text)
        if conversion == "c":
            return f"%{flags}{width}c" % (take("=i") & 0xFF)
        if conversion == "p":
            return f"%{flags}{width}s" % hex(take("=Q"))
        if conversion == "s":
            pointer = take("=Q")
            return (spec + "s") % (text_at(pointer, readable) if pointer else "(null)")
        take("=Q")  # %n is not supported on the device; it consumes its pointer
        return ""

    return _CONVERSION.sub(expand, template)


def _narrow(value: int, length: str | None, signed: bool) -> int:
    bits = {"hh": 8, "h": 16}.get(length or "")
    if bits is None:
        return value
    value &= (1 << bits) - 1
    return value - (1 << bits) if signed and value >> (bits - 1) else value


def text_at(address: int, readable: Callable[[int], int] = lambda _: -1) -> str:
    """The zero-terminated string at an address, or what of it may be read.

    Raises
    ------
    OutOfBoundsError
        If nothing may be read there.
    """
    most = readable(address)
    if not most:
        raise OutOfBoundsError(
            f"printf is given a string at address {address:#x}, which belongs to no argument or variable of the launch"
        )
    text = ctypes.string_at(address, most).partition(b"\0")[0] if most > 0 else ctypes.string_at(address)
    return text.decode(errors="replace")
