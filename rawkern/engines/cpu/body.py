"""Body of a PTX function: statements, operands and scopes.

Names declared in nested scopes (inline assembly, call sequences) are made unique, so that later stages see one flat
function.
"""

from __future__ import annotations

import re

from rawkern.engines.cpu.declarations import literal, variable
from rawkern.engines.cpu.ptx import (
    Function,
    Imm,
    Instr,
    Label,
    Loc,
    Mem,
    Not,
    Pair,
    Ptx,
    Reg,
    Special,
    Sym,
    Var,
    Vec,
    describe,
)
from rawkern.errors import UnsupportedError

_LABEL = re.compile(r"([A-Za-z_$%][\w$]*)\s*:(?!:)")
_REG_RANGE = re.compile(r"([\w$%]+)<(\d+)>$")
_NESTED = re.compile(r"[{}]|([A-Za-z_$%][\w$]*)\s*:(?!:)")
_LOC = re.compile(
    r"\.loc\s+(\d+)\s+(\d+)\s+(\d+)"
    r"(?:\s*,\s*function_name\s+([\w$]+)(?:\s*\+\s*(\d+))?\s*,\s*inlined_at\s+(\d+)\s+(\d+)\s+(\d+))?"
)
_BLANK = re.compile(r"[\s;]*")


class Body:
    """Parses one function's body into `function`, resolving scopes."""

    def __init__(self, ptx: Ptx, function: Function, files: dict[int, str]):
        self.ptx, self.function, self.files = ptx, function, files
        self.scopes: list[dict[str, str]] = [{}]  # declared name -> unique name
        self.prefixes: list[dict[str, tuple[str, str, int]]] = [{}]  # %r -> (unique prefix, type, count)
        self.count = 0
        self.loc = 0
        self.loc_ids: dict[tuple, int] = {}
        self.cache: dict[str, object] = {}  # operand text -> operand, while no inner scope is open

    def parse(self, text: str) -> None:
        pos, end = 0, len(text)
        while True:
            blank = _BLANK.match(text, pos)
            assert blank is not None
            pos = blank.end()
            if pos >= end:
                return
            char = text[pos]
            if char == "{":
                self.scopes.append({})
                self.prefixes.append({})
                self.cache = {}
                pos += 1
                self._labels_ahead(text, pos)
            elif char == "}":
                self.scopes.pop()
                self.prefixes.pop()
                self.cache = {}
                pos += 1
            elif text.startswith((".loc ", ".loc\t"), pos):
                stop = text.find("\n", pos)
                self._loc(text[pos : stop if stop >= 0 else end])
                pos = stop if stop >= 0 else end
            else:
                label = _LABEL.match(text, pos)
                if label:
                    pos = self._label(label, text)
                    continue
                stop = text.find(";", pos)
                if stop < 0:
                    raise UnsupportedError(f"PTX statement without an end: {text[pos : pos + 60]!r}")
                try:
                    self._statement(text[pos:stop])
                except UnsupportedError as error:
                    raise UnsupportedError(f"{error}; it comes from {describe(self.ptx.locs[self.loc])}") from None
                pos = stop + 1

    def _loc(self, text: str) -> None:
        match = _LOC.match(text)
        if match is None:
            return
        key = match.groups()
        if key not in self.loc_ids:
            file, line, column, _, _, ifile, iline, icolumn = key
            outer = None
            if ifile is not None:
                outer = Loc(self.files.get(int(ifile), "?"), int(iline), int(icolumn))
                for known in reversed(self.ptx.locs):  # the call itself may have been inlined
                    if known and (known.file, known.line, known.column) == (outer.file, outer.line, outer.column):
                        outer = known
                        break
            self.ptx.locs.append(Loc(self.files.get(int(file), "?"), int(line), int(column), outer))
            self.loc_ids[key] = len(self.ptx.locs) - 1
        self.loc = self.loc_ids[key]

    def _labels_ahead(self, text: str, pos: int) -> None:
        """Declare the labels of the scope that begins here, as branches may stand before them."""
        depth = 1
        for match in _NESTED.finditer(text, pos):
            if match.group(1):
                if depth == 1:
                    self._declare(match.group(1))
            elif match.group() == "{":
                depth += 1
            else:
                depth -= 1
                if depth == 0:
                    return

    def _label(self, label: re.Match, text: str) -> int:
        name, pos = label.group(1), label.end()
        rest = text[pos:].lstrip()[:16]
        if rest.startswith((".branchtargets", ".calltargets", ".callprototype")):
            stop = text.index(";", pos)
            statement = text[pos:stop].strip()
            if statement.startswith(".branchtargets"):
                targets = [self._operand(t) for t in statement[len(".branchtargets") :].split(",")]
                self.function.tables[self._declare(name)] = [t.name for t in targets]  # type: ignore[union-attr]
            return stop + 1
        self.function.body.append(Label(self._declare(name) if len(self.scopes) > 1 else name))
        return pos

    def _declare(self, name: str) -> str:
        if len(self.scopes) == 1:
            unique = name
        elif name in self.scopes[-1]:  # a label, declared ahead
            return self.scopes[-1][name]
        else:
            self.count += 1
            unique = f"{name}@{self.count}"
        self.scopes[-1][name] = unique
        return unique

    def _statement(self, text: str) -> None:
        if text[0] == ".":
            text = re.sub(r"^(\.\w+)\.", r"\1 .", text)  # ".reg.b32 f" is ".reg .b32 f"
            word = text.split(None, 1)[0]
            if word == ".reg":
                self._registers(text)
            elif word in (".param", ".local", ".shared"):
                self._variables(text)
            elif word not in (".pragma", ".maxntid"):
                raise UnsupportedError(f"PTX directive not supported: {text!r}")
            return
        guard, negated = None, False
        if text[0] == "@":
            head, text = text.split(None, 1)
            negated = head[1] == "!"
            guard = self._operand(head[2:] if negated else head[1:])
            if not isinstance(guard, Reg):
                raise UnsupportedError(f"PTX guard is no predicate register: {head!r}")
        parts = text.split(None, 1)
        args = [self._operand(a) for a in _split(parts[1])] if len(parts) > 1 else []
        self.function.body.append(Instr(parts[0], args, guard, negated, self.loc))

    def _registers(self, text: str) -> None:
        words = text.split(None, 2)
        kind, names = words[1].lstrip("."), words[2]
        for name in (n.strip() for n in names.split(",")):
            match = _REG_RANGE.match(name)
            if match:
                prefix, count = match.group(1), int(match.group(2))
                unique = prefix
                if len(self.scopes) > 1:
                    self.count += 1
                    unique = f"{prefix}@{self.count}."
                self.prefixes[-1][prefix] = (unique, kind, count)
            else:
                self.function.regs[self._declare(name)] = kind

    def _variables(self, text: str) -> None:
        var = variable(text)
        unique = self._declare(var.name)
        self.function.local_vars[unique] = Var(unique, var.space, var.type, var.align, var.size, var.init)

    def _operand(self, text: str):
        text = text.strip()
        known = self.cache.get(text)
        if known is None:
            known = self.cache[text] = self._make_operand(text)
        return known

    def _make_operand(self, text: str):
        first = text[0]
        if first == "[":
            return self._memory(text[1:-1].strip())
        if first == "{":
            return Vec(tuple(self._operand(a) if a != "_" else None for a in _split(text[1:-1])))
        if first == "(":
            return [self._operand(a) for a in _split(text[1:-1])]
        if first == "!":
            reg = self._operand(text[1:])
            assert isinstance(reg, Reg)
            return Not(reg)
        if "|" in text:
            a, b = (t.strip() for t in text.split("|"))
            return Pair(self._operand(a) if a != "_" else None, self._operand(b) if b != "_" else None)
        if first.isdigit() or first in "+-":
            return literal(text)
        if text == "_":
            return None
        return self._name(text)

    def _memory(self, text: str):
        if "," in text:  # texture coordinates; kept as a list, refused later by instruction name
            return [self._operand(a) for a in _split(text)]
        match = re.fullmatch(r"([\w$%.@]+)\s*(?:\+\s*(-?\s*\w+))?", text)
        if match is None:
            raise UnsupportedError(f"PTX address not understood: [{text}]")
        base = self._operand(match.group(1))
        offset = literal(match.group(2).replace(" ", "")).value if match.group(2) else 0
        if isinstance(base, Sym):
            base, offset = Sym(base.name), offset + base.offset
        return Mem(base, offset)

    def _name(self, text: str):
        match = re.fullmatch(r"([A-Za-z_$%][\w$.]*)\s*(?:\+\s*(-?\w+))?", text)
        if match is None:
            raise UnsupportedError(f"PTX operand not understood: {text!r}")
        name, offset = match.group(1), literal(match.group(2)).value if match.group(2) else 0
        prefix = name.rstrip("0123456789")
        number = name[len(prefix) :]
        for scope, prefixes in zip(reversed(self.scopes), reversed(self.prefixes), strict=True):
            if name in scope:
                unique = scope[name]
                return Reg(unique) if unique in self.function.regs else Sym(unique, offset)
            if number and prefix in prefixes and int(number) < prefixes[prefix][2]:
                unique, kind, _ = prefixes[prefix]
                self.function.regs[unique + number] = kind
                return Reg(unique + number)
        if name[0] == "%":
            return Special(name)
        if name == "WARP_SZ":
            return Imm(32, "i")
        return Sym(name, offset)


def _split(text: str) -> list[str]:
    """Split operands at commas outside of brackets."""
    if "{" not in text and "(" not in text and "[" not in text:
        return [t.strip() for t in text.split(",")] if text.strip() else []  # a call without arguments has "( )"
    parts, depth, start = [], 0, 0
    for i, char in enumerate(text):
        if char in "{([":
            depth += 1
        elif char in "})]":
            depth -= 1
        elif char == "," and depth == 0:
            parts.append(text[start:i].strip())
            start = i + 1
    tail = text[start:].strip()
    if tail:
        parts.append(tail)
    return parts
