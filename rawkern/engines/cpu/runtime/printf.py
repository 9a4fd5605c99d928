"""C's printf formats, applied to argument bytes in memory."""

from __future__ import annotations

import ctypes
import re
import struct
from collections.abc import Callable

from rawkern.errors import LaunchError, OutOfBoundsError

_CONVERSION = re.compile(r"%([-+ #0]*)(\*|\d+)?(?:\.(\*|\d*))?(hh|h|ll|l|j|z|t|L)?([diouxXeEfFgGaAcspn%])", re.ASCII)
MOST = 1 << 20  # characters of one call, as many as CUDA's buffer for all of them holds unless it is made larger

Readable = Callable[[int], int]  # how many bytes may be read from an address on, -1 if unknown


def formatted(template: str, address: int, readable: Readable) -> str:
    """Expand `template` with the arguments stored at `address` as CUDA's vprintf lays them out.

    Arguments lie one after the other, each aligned to its size: 4 bytes for int and its like, 8 for long, double and
    pointers.

    Raises
    ------
    OutOfBoundsError
        If an argument or a string lies where nothing may be read.
    LaunchError
        If the text is longer than `MOST`.
    """
    at, end, made = address, None, 0

    def take(code: str):
        nonlocal at, end
        size = struct.calcsize(code)
        at = -(-at // size) * size
        if end is None:
            room = readable(address)
            end = address + room if room >= 0 else 1 << 64
        if at + size > end:
            raise OutOfBoundsError(f"printf reads an argument at address {at:#x}, {_OUTSIDE}")
        value = struct.unpack(code, ctypes.string_at(at, size))[0]
        at += size
        return value

    def expand(match: re.Match) -> str:
        nonlocal made
        text = one(match)
        made += len(text)
        if made > MOST:
            raise _too_long()
        return text

    def one(match: re.Match) -> str:
        flags, width, precision, length, conversion = match.groups()
        if conversion == "%":
            return "%"
        width = str(take("=i")) if width == "*" else width or ""
        if width.startswith("-"):
            flags, width = flags + "-", width[1:]
        if precision == "*":
            precision = str(take("=i"))
        if precision is not None and precision.startswith("-"):
            precision = None
        if (width or precision) and max(len(x.lstrip("0")) for x in (width, precision or "")) > len(str(MOST)):
            raise _too_long()
        spec = f"%{flags}{width}" + (f".{precision or 0}" if precision is not None else "")
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
            most = None if precision is None else int(precision or 0)
            return (spec + "s") % (text_at(pointer, readable, most) if pointer else "(null)")
        take("=Q")  # %n is not supported on the device; it consumes its pointer
        return ""

    return _CONVERSION.sub(expand, template)


def _narrow(value: int, length: str | None, signed: bool) -> int:
    bits = {"hh": 8, "h": 16}.get(length or "")
    if bits is None:
        return value
    value &= (1 << bits) - 1
    return value - (1 << bits) if signed and value >> (bits - 1) else value


_OUTSIDE = "which is not in the memory of any argument or variable of the launch"


def _too_long() -> LaunchError:
    return LaunchError(f"printf: one call prints more than {MOST} characters; split it")


def text_at(address: int, readable: Readable = lambda _: -1, most: int | None = None) -> str:
    """The zero-terminated string at an address, or the first `most` bytes of one.

    Raises
    ------
    OutOfBoundsError
        If nothing may be read there, or not up to the string's end.
    LaunchError
        If it is longer than `MOST`.
    """
    room = readable(address)
    if not room and most != 0:
        raise OutOfBoundsError(f"printf gets a string at address {address:#x}, {_OUTSIDE}")
    if room < 0 and most is None:
        return ctypes.string_at(address).decode(errors="replace")
    end = min(x for x in (room if room >= 0 else None, most, MOST + 1) if x is not None)
    data, step = b"", 256
    while len(data) < end:
        part, zero, _ = ctypes.string_at(address + len(data), min(step, end - len(data))).partition(b"\0")
        data += part
        if zero:
            break
        step *= 2
    else:
        if end == MOST + 1:
            raise _too_long()
        if end != most:
            raise OutOfBoundsError(
                f"printf gets a string at address {address:#x} without a terminating zero in its {room} bytes of memory"
            )
    return data.decode(errors="replace")
