"""Numbers of PTX: literals, and the constant expressions allowed in their place."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from functools import lru_cache

from rawkern.engines.cpu.ptx.data import Imm
from rawkern.engines.cpu.ptx.tokens import shown
from rawkern.errors import UnsupportedError

_FLOAT = re.compile(r"(?:\d+\.\d*|\.\d+)(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+")
_INTEGER = re.compile(r"(?:0[xX](?P<x>[0-9a-fA-F]+)|0[bB](?P<b>[01]+)|0(?P<o>[0-7]+)|(?P<d>0|[1-9]\d*))U?")
_LEVELS = (("||",), ("&&",), ("|",), ("^",), ("&",), ("==", "!="), ("<", "<=", ">", ">="), ("<<", ">>"), ("+", "-"),
           ("*", "/", "%"))  # fmt: skip
_BASES = {"x": 16, "b": 2, "o": 8, "d": 10}


@lru_cache(maxsize=4096)
def literal(token: str) -> Imm:
    """A number without a sign."""
    if token[:2] in ("0f", "0F") and len(token) == 10:
        return Imm(_hexadecimal(token), "f")
    if token[:2] in ("0d", "0D") and len(token) == 18:
        return Imm(_hexadecimal(token), "d")
    if _FLOAT.fullmatch(token):  # rounded where it is used in a smaller type
        return Imm(struct.unpack("<Q", struct.pack("<d", float(token)))[0], "d")
    if token == "WARP_SZ":
        return Imm(32, "i")
    match = _INTEGER.fullmatch(token)
    if match is None or match.lastgroup is None:
        raise unknown([token])
    return Imm(int(match[match.lastgroup], _BASES[match.lastgroup]), "i")


def constant(part: list[str]) -> Imm:
    """A number with or without a sign, or an expression of integers.

    Raises
    ------
    UnsupportedError
        Where the tokens are not a constant.
    """
    if len(part) == 1 or (len(part) == 2 and part[0] == "+"):
        return literal(part[-1])
    if len(part) == 2 and part[0] == "-":
        number = literal(part[1])
        if number.kind == "d":
            return Imm(number.value ^ 1 << 63, "d")
        if number.kind == "i":
            return Imm(-number.value, "i")
    reader = _Reader(part)
    result = reader.choice()
    if reader.at < len(part):
        raise unknown(part)
    return Imm(result.value, "i")


@dataclass(frozen=True)
class _Integer:
    """64 bits, signed or not."""

    number: int
    signed: bool = True

    @property
    def value(self) -> int:
        bits = self.number & (1 << 64) - 1
        return bits - (1 << 64) if self.signed and bits >> 63 else bits


class _Reader:
    """Evaluates an expression as the assembler does: integers of 64 bits, unsigned after ``%`` and ``~``, after the
    suffix U, and where an operand is."""

    def __init__(self, part: list[str]):
        self.part, self.at = part, 0

    def next(self) -> str:
        return self.part[self.at] if self.at < len(self.part) else ""

    def take(self, token: str) -> None:
        if self.next() != token:
            raise unknown(self.part)
        self.at += 1

    def choice(self) -> _Integer:
        condition = self.binary(0)
        if self.next() != "?":
            return condition
        self.take("?")
        first = self.choice()
        self.take(":")
        second = self.choice()
        return first if condition.value else second

    def binary(self, level: int) -> _Integer:
        if level == len(_LEVELS):
            return self.unary()
        left = self.binary(level + 1)
        while self.next() in _LEVELS[level]:
            op = self.next()
            self.at += 1
            left = self.combined(op, left, self.binary(level + 1))
        return left

    def combined(self, op: str, left: _Integer, right: _Integer) -> _Integer:
        signed = left.signed if op in ("<<", ">>") else left.signed and right.signed and op != "%"
        a, b = _Integer(left.number, signed).value, _Integer(right.number, signed).value
        if op in ("/", "%"):
            if b == 0:
                raise unknown(self.part)
            quotient = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
            return _Integer(quotient if op == "/" else a - b * quotient, signed)
        if op in ("<<", ">>"):
            if not 0 <= b < 64:
                raise unknown(self.part)
            return _Integer(a << b if op == "<<" else a >> b, signed)
        truths = {"==": a == b, "!=": a != b, "<": a < b, "<=": a <= b, ">": a > b, ">=": a >= b}
        truths |= {"&&": a != 0 and b != 0, "||": a != 0 or b != 0}
        if op in truths:
            return _Integer(int(truths[op]))
        return _Integer({"+": a + b, "-": a - b, "*": a * b, "&": a & b, "|": a | b, "^": a ^ b}[op], signed)

    def unary(self) -> _Integer:
        token = self.next()
        self.at += 1
        if token in ("+", "-", "~"):
            value = self.unary()
            number = {"+": value.number, "-": -value.number, "~": ~value.number}[token]
            return _Integer(number, value.signed and token != "~")
        if token == "!":
            return _Integer(int(not self.unary().value))
        if token == "(":
            kind = self.next()
            if kind in (".s64", ".u64"):
                self.at += 1
                self.take(")")
                return _Integer(self.unary().number, kind == ".s64")
            value = self.choice()
            self.take(")")
            return value
        value = literal(token) if token else None
        if value is None or value.kind != "i":
            raise unknown(self.part)
        return _Integer(value.value, value.value < 1 << 63 and not token.endswith("U"))


def _hexadecimal(token: str) -> int:
    try:
        return int(token[2:], 16)
    except ValueError:
        raise unknown([token]) from None


def unknown(part: list[str]) -> UnsupportedError:
    return UnsupportedError(f"PTX operand not understood: {shown(part)!r}")
