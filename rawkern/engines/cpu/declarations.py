"""Declarations and literals of PTX: variables with their initialisers, parameter lists, numbers."""

from __future__ import annotations

import re
import struct

from rawkern.engines.cpu.ptx import TYPE_BYTES, Imm, Sym, Var
from rawkern.errors import UnsupportedError

_VAR = re.compile(
    r"\.(global|const|shared|local|param)\b((?:\s*\.(?:align\s+\d+|attribute\s*\([^)]*\)|ptr\b|v\d|managed|[\w]+))*)\s+"
    r"([A-Za-z_$%][\w$.]*)?\s*((?:\[\s*\d*\s*\]\s*)*)(?:=\s*(.*))?$",
    re.S,
)

_DECIMAL = re.compile(r"[+-]?\d+(\.\d*([eE][+-]?\d+)?|[eE][+-]?\d+)")


def variable(text: str, extern: bool = False) -> Var:
    match = _VAR.match(" ".join(text.split()) if "=" not in text else text.strip())
    if match is None:
        raise UnsupportedError(f"PTX variable not understood: {text.strip()[:80]!r}")
    space, mods, name, dims, init = match.groups()
    align, kind, count = 0, "b8", 1
    align_match = re.search(r"\.align\s+(\d+)", mods)
    if align_match:
        align = int(align_match.group(1))
        mods = mods.replace(align_match.group(), " ")
    for word in re.findall(r"\.(\w+)", mods):
        if word in TYPE_BYTES:
            kind = word
        elif re.fullmatch(r"v\d", word):
            count = int(word[1:])
    size = TYPE_BYTES[kind] * count
    for dim in re.findall(r"\[\s*(\d*)\s*\]", dims):
        size *= int(dim) if dim else 0
    values = tuple(_initial(v) for v in re.findall(r"[^\s{},][^{},]*", init)) if init else ()
    return Var(name or "", space, kind, align or TYPE_BYTES[kind], size, values, extern)


def _initial(text: str):
    text = text.strip()
    match = re.fullmatch(r"(generic\()?([A-Za-z_$][\w$]*)\)?(?:\s*\+\s*(\d+))?\)?", text)
    if match:
        return Sym(("generic:" if match.group(1) else "") + match.group(2), int(match.group(3) or 0))
    masked = re.fullmatch(r"(0x\w+)\((.*)\)", text)
    if masked:
        raise UnsupportedError(f"PTX initialiser not supported: {text!r}")
    return literal(text)


def parameters(text: str | None) -> list[Var]:
    parts = [p.strip() for p in (text or "").split(",")]
    return [variable(p if not p.startswith(".reg") else p.replace(".reg", ".param", 1)) for p in parts if p]


def literal(text: str) -> Imm:
    if text[:2] in ("0f", "0F"):
        return Imm(int(text[2:], 16), "f")
    if text[:2] in ("0d", "0D"):
        return Imm(int(text[2:], 16), "d")
    if _DECIMAL.fullmatch(text):  # rounded where it is used in a smaller type
        return Imm(struct.unpack("<Q", struct.pack("<d", float(text)))[0], "d")
    body = text.rstrip("U")
    negative = body.startswith("-")
    digits = body.lstrip("+-").strip()
    try:
        if digits[:2] in ("0x", "0X"):
            value = int(digits, 16)
        elif digits[:2] in ("0b", "0B"):
            value = int(digits, 2)
        elif len(digits) > 1 and digits[0] == "0" and digits.isdigit():
            value = int(digits, 8)
        else:
            value = int(digits)
    except ValueError:
        raise UnsupportedError(f"PTX operand not understood: {text!r}") from None
    return Imm(-value if negative else value, "i")
