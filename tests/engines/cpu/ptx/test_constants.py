"""Numbers and constant expressions of PTX, compared with what NVRTC's assembler makes of them."""

from __future__ import annotations

import struct

import pytest

import rawkern
from rawkern.engines.cpu.ptx.constants import constant, literal
from rawkern.engines.cpu.ptx.data import Imm
from rawkern.engines.cpu.ptx.tokens import tokens
from rawkern.errors import UnsupportedError

INTEGERS = [
    "7", "-7", "+7", "- 7", "0x1F", "0X1fU", "017", "0b1011", "18446744073709551615", "0xFFFFFFFFFFFFFFFF", "WARP_SZ",
    "(7)", "((1 + 2)) * 3", "1 + 2 * 3", "10 - 4 - 3", "-7 / 2", "7 / -2", "-7 % 3", "7 % -3", "-1 / 2U",
    "18446744073709551615 / 2", "1 << 40", "-1 >> 4", "0xFFFFFFFFFFFFFFFF >> 4", "-1 >> 4U", "~5", "~0U >> 60", "!5",
    "!0 + 3", "- - 3", "~-1", "6 & 3 | 8 ^ 1", "1 | 2 == 2", "3 & 6 == 2", "(0xf0 & 0xcc) | 0xaa", "5 > 3 && 2 > 1",
    "0 || 0", "0 && 1 || 1", "1 <= 1", "2 >= 3", "2 != 3", "-1 < 0U", "-1 < 0", "1 ? 2 : 3", "0 ? 2 : 1 ? 5 : 6",
    "(-1 & -1) >> 60", "(-1 | 0) / 2", "(-2 ^ 1) < 0", "(5 % 7 - 6) >> 60", "(5 % 7 - 6) / 2", "(-1 << 1) / 2", "~0 / 2", "(1 ? -1 : 2U) / 2",
    "-(1U) / 2", "-1 == 0xFFFFFFFFFFFFFFFF", "(-5 > 3U) - 2 < 0", "!5 - 1 < 0", "2 - 3 * 1U < 0", "(1 < 2) - 2 < 0", "1 << 63", "-1 >> 63",
    "(.u64) -1 >> 60", "(.s64) 0xFFFFFFFFFFFFFFFF >> 60", "WARP_SZ * 4 - 1", "9223372036854775807 + 1",
]  # fmt: skip


def _value(text: str) -> Imm:
    return constant(tokens(text)[:-1])


def test_integers_are_those_of_the_assembler():
    values = b"".join(struct.pack("<Q", _value(text).bits(64)) for text in INTEGERS)
    variable = f".visible .global .align 8 .b64 v[{len(INTEGERS)}] = {{{', '.join(INTEGERS)}}};"
    module = f"ret; }} {variable} .visible .entry other() {{"  # a module's declarations cannot be written otherwise
    code = f'extern "C" __global__ void k() {{ asm volatile(R"({module})"); }}'
    assert values in rawkern.RawKernel(code).cubin("sm_80")


@pytest.mark.parametrize(
    "text, value",
    [("1.5", 1.5), ("-1.5", -1.5), ("+.25", 0.25), ("2.", 2.0), ("1e3", 1000.0), ("-1.5E-1", -0.15), ("-0.0", -0.0)],
)
def test_decimal_numbers(text, value):
    assert _value(text) == Imm(struct.unpack("<Q", struct.pack("<d", value))[0], "d")


def test_numbers_in_bits():
    assert literal("0f3F800000") == Imm(0x3F800000, "f")
    assert literal("0Dbff0000000000000") == Imm(0xBFF0000000000000, "d")


@pytest.mark.parametrize(
    "text",
    ["12z", "0b2", "08", "0x", "0fz3800000", "1 +", "(1", "1)", "1 2", "1 / 0", "1 % 0", "1 << 64", "1 ? 2", "a + 1",
     "1.5 + 1", "-0f3F800000", "(.u32) 1", "1 ~ 2", "()", "1 = 2"],
)  # fmt: skip
def test_what_is_not_a_constant(text):
    with pytest.raises(UnsupportedError, match="PTX operand not understood: '"):
        _value(text)
