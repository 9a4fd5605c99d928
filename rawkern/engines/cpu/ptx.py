"""PTX text to plain data: functions, variables, instructions with their operands and source lines.

Nothing is interpreted here. Names declared in nested scopes (inline assembly, call sequences) are made
unique, so that later stages see one flat function.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from rawkern.errors import UnsupportedError


@dataclass(frozen=True, slots=True)
class Reg:
    name: str


@dataclass(frozen=True, slots=True)
class Special:
    """A special register such as ``%tid.x``."""

    name: str


@dataclass(frozen=True, slots=True)
class Imm:
    """An immediate: ``kind`` is ``"i"`` (integer), ``"f"`` (float32 bits) or ``"d"`` (float64 bits)."""

    value: int
    kind: str


@dataclass(frozen=True, slots=True)
class Sym:
    """A variable, parameter, function or label, with a byte offset where one is written (``name+8``)."""

    name: str
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Mem:
    """``[base + offset]``; the base is a register, a symbol or an immediate address."""

    base: Reg | Sym | Imm
    offset: int


@dataclass(frozen=True, slots=True)
class Vec:
    """``{a, b, ...}``; an element is None where PTX writes ``_``."""

    items: tuple


@dataclass(frozen=True, slots=True)
class Pair:
    """A destination ``d|p``."""

    first: Reg | None
    second: Reg | None


@dataclass(frozen=True, slots=True)
class Not:
    """A negated predicate source ``!p``."""

    reg: Reg


@dataclass(slots=True)
class Instr:
    op: str
    args: list
    guard: Reg | None = None
    negated: bool = False
    loc: int = 0  # index into Ptx.locs; 0 is unknown

    def __str__(self) -> str:
        return self.op


@dataclass(slots=True)
class Label:
    name: str


@dataclass(frozen=True, slots=True)
class Var:
    """A variable or parameter: ``size`` in bytes (0 for ``name[]``); ``init`` holds numbers and Syms."""

    name: str
    space: str
    type: str
    align: int
    size: int
    init: tuple = ()
    extern: bool = False


@dataclass(frozen=True, slots=True)
class Loc:
    """A CUDA source position; ``inlined_at`` is the Loc of the call that this code was inlined into."""

    file: str
    line: int
    column: int
    inlined_at: Loc | None = None
    function: str = ""


@dataclass
class Function:
    name: str
    entry: bool
    params: list[Var]
    returns: list[Var]
    body: list[Instr | Label] = field(default_factory=list)
    regs: dict[str, str] = field(default_factory=dict)  # register -> "b32", "f64", "pred", ...
    local_vars: dict[str, Var] = field(default_factory=dict)  # .local, .shared, .param, by name
    directives: dict[str, tuple[int, ...]] = field(default_factory=dict)  # maxntid, reqntid, ...
    tables: dict[str, list[str]] = field(default_factory=dict)  # .branchtargets
    prototypes: dict[str, tuple[list[Var], list[Var]]] = field(default_factory=dict)
    defined: bool = True


@dataclass
class Ptx:
    functions: dict[str, Function]
    variables: dict[str, Var]
    locs: list[Loc | None]
    version: int
    target: str


TYPE_BYTES = {
    "pred": 1, "b8": 1, "u8": 1, "s8": 1, "b16": 2, "u16": 2, "s16": 2, "f16": 2, "bf16": 2,
    "b32": 4, "u32": 4, "s32": 4, "f32": 4, "f16x2": 4, "bf16x2": 4,
    "b64": 8, "u64": 8, "s64": 8, "f64": 8, "b128": 16, "texref": 8, "samplerref": 8, "surfref": 8,
}  # fmt: skip

_NAME = r"[\w$%.@]+"
_ID = re.compile(r"[A-Za-z_$%][\w$.]*")
_LABEL = re.compile(r"([A-Za-z_$%][\w$]*)\s*:(?!:)")
_REG_RANGE = re.compile(r"([\w$%]+)<(\d+)>$")
_LOC = re.compile(
    r"\.loc\s+(\d+)\s+(\d+)\s+(\d+)(?:\s*,\s*function_name\s+([\w$]+)(?:\s*\+\s*(\d+))?\s*,\s*inlined_at\s+(\d+)\s+(\d+)\s+(\d+))?"
)
_FILE = re.compile(r'^\s*\.file\s+(\d+)\s+"([^"]*)"', re.M)
_VAR = re.compile(
    r"\.(global|const|shared|local|param)\b((?:\s*\.(?:align\s+\d+|attribute\s*\([^)]*\)|ptr\b|v\d|managed|[\w]+))*)\s+"
    r"([A-Za-z_$%][\w$.]*)?\s*((?:\[\s*\d*\s*\]\s*)*)(?:=\s*(.*))?$",
    re.S,
)
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
_FUNC = re.compile(
    r"\.(entry|func)\s*(?:\.noreturn\s*)?(?:\(([^)]*)\)\s*)?([A-Za-z_$%][\w$]*)\s*(?:\(([^)]*)\))?([^{;]*)([{;])", re.S
)


def parse(text: str) -> Ptx:
    """Parse a PTX module.

    Raises
    ------
    UnsupportedError
        Where the text holds a construct that is not known, with the PTX line.
    """
    text = _COMMENT.sub("", text)
    files = {int(n): name for n, name in _FILE.findall(text)}
    labels = _debug_strings(text)
    result = Ptx({}, {}, [None], 0, "")
    pos, end = 0, len(text)
    skip = re.compile(r"\s*(?:\.(?:visible|weak|extern|common|hidden)\b\s*)*")
    while True:
        head = skip.match(text, pos)
        assert head is not None
        extern = ".extern" in head.group()
        pos = head.end()
        if pos >= end:
            return result
        if text.startswith((".entry", ".func"), pos):
            match = _FUNC.match(text, pos)
            if match is None:
                raise UnsupportedError(f"PTX function header not understood: {text[pos : pos + 80]!r}")
            function = _function_header(match)
            pos = match.end()
            if match.group(6) == "{":
                close = _closing_brace(text, pos)
                _Body(result, function, files, labels).parse(text[pos:close])
                pos = close + 1
            else:
                function.defined = False
            if function.defined or function.name not in result.functions:
                result.functions[function.name] = function
        elif text.startswith((".global", ".const", ".shared"), pos):
            stop = text.index(";", pos)
            var = _variable(text[pos:stop], extern)
            result.variables[var.name] = var
            pos = stop + 1
        elif text.startswith(".section", pos):
            pos = _closing_brace(text, text.index("{", pos) + 1) + 1
        elif text.startswith(".alias", pos):
            raise UnsupportedError(f"PTX directive not supported: {text[pos : text.index(';', pos)]}")
        else:  # a directive of one line
            stop = text.find("\n", pos)
            line = text[pos : stop if stop >= 0 else end]
            if line.startswith(".version"):
                major, minor = line.split()[1].split(".")
                result.version = int(major) * 10 + int(minor)
            elif line.startswith(".target"):
                result.target = line.split()[1].rstrip(",")
            elif not line.startswith((".address_size", ".file", ".pragma", ".loc", "}", ";")):
                raise UnsupportedError(f"PTX directive not supported: {line.strip()!r}")
            pos = stop + 1 if stop >= 0 else end


def _closing_brace(text: str, pos: int) -> int:
    depth = 1
    for match in re.compile(r'[{}]|"[^"]*"').finditer(text, pos):
        if match.group() == "{":
            depth += 1
        elif match.group() == "}":
            depth -= 1
            if depth == 0:
                return match.start()
    raise UnsupportedError("PTX ends inside a function")


def _debug_strings(text: str) -> dict[str, str]:
    """Map labels of ``.debug_str`` (``$L__info_string0``) to their text: names of inlined functions."""
    start = text.find(".section\t.debug_str")
    if start < 0:
        return {}
    body = text[start : _closing_brace(text, text.index("{", start) + 1)]
    result = {}
    for name, data in re.findall(r"(\$L__info_string\d+):\s*((?:\.b8[^\n]*\n\s*)+)", body):
        codes = [int(v) for v in re.findall(r"\b\d+\b", data.replace(".b8", " "))]
        result[name] = bytes(codes).split(b"\0")[0].decode(errors="replace")
    return result


def _variable(text: str, extern: bool = False) -> Var:
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
    return _immediate(text)


def _params(text: str | None) -> list[Var]:
    parts = [p.strip() for p in (text or "").split(",")]
    return [_variable(p if not p.startswith(".reg") else p.replace(".reg", ".param", 1)) for p in parts if p]


def _function_header(match: re.Match) -> Function:
    kind, returns, name, params, rest, _ = match.groups()
    directives = {
        d: tuple(int(v) for v in re.findall(r"\d+", values))
        for d, values in re.findall(
            r"\.(maxntid|reqntid|minnctapersm|maxnreg|maxclusterrank|reqnctapercluster)([\s\d,]*)", rest
        )
    }
    return Function(name, kind == "entry", _params(params), _params(returns), directives=directives)


def _immediate(text: str) -> Imm:
    if text[:2] in ("0f", "0F"):
        return Imm(int(text[2:], 16), "f")
    if text[:2] in ("0d", "0D"):
        return Imm(int(text[2:], 16), "d")
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


class _Body:
    """Parses one function's body into `function`, resolving scopes."""

    def __init__(self, ptx: Ptx, function: Function, files: dict[int, str], strings: dict[str, str]):
        self.ptx, self.function, self.files, self.strings = ptx, function, files, strings
        self.scopes: list[dict[str, str]] = [{}]  # declared name -> unique name
        self.prefixes: list[dict[str, tuple[str, str, int]]] = [{}]  # %r -> (unique prefix, type, count)
        self.count = 0
        self.loc = 0
        self.loc_ids: dict[tuple, int] = {}
        self.cache: dict[str, object] = {}  # operand text -> operand, while no inner scope is open

    def parse(self, text: str) -> None:
        pos, end = 0, len(text)
        blank = re.compile(r"[\s;]*")
        while True:
            pos = blank.match(text, pos).end()  # type: ignore[union-attr]
            if pos >= end:
                return
            char = text[pos]
            if char == "{":
                self.scopes.append({})
                self.prefixes.append({})
                self.cache = {}
                pos += 1
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
                self._statement(text[pos:stop])
                pos = stop + 1

    def _loc(self, text: str) -> None:
        match = _LOC.match(text)
        if match is None:
            return
        key = match.groups()
        if key not in self.loc_ids:
            file, line, column, name, _, ifile, iline, icolumn = key
            outer, inner = None, ""
            if ifile is not None:
                outer = Loc(self.files.get(int(ifile), "?"), int(iline), int(icolumn))
                for known in reversed(self.ptx.locs):  # the call itself may have been inlined
                    if known and (known.file, known.line, known.column) == (outer.file, outer.line, outer.column):
                        outer = known
                        break
                inner = self.strings.get(name, "")
            self.ptx.locs.append(Loc(self.files.get(int(file), "?"), int(line), int(column), outer, inner))
            self.loc_ids[key] = len(self.ptx.locs) - 1
        self.loc = self.loc_ids[key]

    def _label(self, label: re.Match, text: str) -> int:
        name, pos = label.group(1), label.end()
        rest = text[pos:].lstrip()[:16]
        if rest.startswith((".branchtargets", ".calltargets", ".callprototype")):
            stop = text.index(";", pos)
            statement = text[pos:stop].strip()
            if statement.startswith(".branchtargets"):
                self.function.tables[name] = [t.strip() for t in statement[len(".branchtargets") :].split(",")]
            elif statement.startswith(".callprototype"):
                match = re.fullmatch(
                    r"\.callprototype\s*(?:\(([^)]*)\))?\s*_\s*(?:\(([^)]*)\))?[\s.\w]*", statement, re.S
                )
                if match is None:
                    raise UnsupportedError(f"PTX prototype not understood: {statement!r}")
                self.function.prototypes[name] = (_params(match.group(1)), _params(match.group(2)))
            return stop + 1
        self.function.body.append(Label(self._declare(name) if len(self.scopes) > 1 else name))
        return pos

    def _declare(self, name: str) -> str:
        if len(self.scopes) == 1:
            unique = name
        elif name in self.scopes[-1]:  # a label used before it stands
            return self.scopes[-1][name]
        else:
            self.count += 1
            unique = f"{name}@{self.count}"
        self.scopes[-1][name] = unique
        return unique

    def _statement(self, text: str) -> None:
        if text[0] == ".":
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
        var = _variable(text)
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
            return _immediate(text)
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
        offset = _immediate(match.group(2).replace(" ", "")).value if match.group(2) else 0
        if isinstance(base, Sym):
            base, offset = Sym(base.name), offset + base.offset
        return Mem(base, offset)

    def _name(self, text: str):
        match = re.fullmatch(r"([A-Za-z_$%][\w$.]*)\s*(?:\+\s*(-?\w+))?", text)
        if match is None:
            raise UnsupportedError(f"PTX operand not understood: {text!r}")
        name, offset = match.group(1), _immediate(match.group(2)).value if match.group(2) else 0
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
        return [t.strip() for t in text.split(",")]
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
