"""Body of a PTX function: statements and operands."""

from __future__ import annotations

from dataclasses import replace

from rawkern.engines.cpu.ptx.constants import constant, unknown
from rawkern.engines.cpu.ptx.data import (
    Function,
    Instr,
    Label,
    Loc,
    Mem,
    Not,
    Pair,
    Part,
    Ptx,
    Reg,
    Special,
    Sym,
    Vec,
    describe,
)
from rawkern.engines.cpu.ptx.declarations import thread_bound, variables
from rawkern.engines.cpu.ptx.decode import decode
from rawkern.engines.cpu.ptx.scopes import Scopes
from rawkern.engines.cpu.ptx.selectors import selected
from rawkern.engines.cpu.ptx.tokens import END, MALFORMED, closing, is_name, semicolon, shown, split
from rawkern.errors import UnsupportedError

_FLAG = Reg("CC.CF")  # the carry flag by the manual's name, which no register can have
_TABLES = (".branchtargets", ".calltargets", ".callprototype")


class Body:
    """Parses one function's body into `function`; `files` are the numbers that ``.loc`` uses."""

    def __init__(self, ptx: Ptx, function: Function, files: dict[int, str]):
        self.ptx, self.function, self.files = ptx, function, files
        self.names = Scopes(function)
        self.loc = 0
        self.loc_ids: dict[tuple, int] = {}
        self.cache: dict[str, object] = {}  # operands of one token, while the scopes stay the same
        self.flag_read: Instr | None = None  # the first instruction that reads the carry flag

    def parse(self, stream: list[str], pos: int) -> int:
        """Parse from after the opening brace to the closing one; returns the place after that.

        A statement that is not understood makes the function one that cannot be used; the others are read nevertheless.
        """
        depth = 1
        while depth:
            token = stream[pos]
            if token == "{":
                depth += 1
                pos += 1
                self.names.open()
                self.cache = {}
                self._labels_ahead(stream, pos)
            elif token == "}":
                depth -= 1
                pos += 1
                self.names.close()
                self.cache = {}
            elif token == ";":
                pos += 1
            elif token == END:
                raise UnsupportedError(f"PTX ends inside a function, {self.function.name}")
            elif token == ".loc":
                pos = self._loc(stream, pos)
            elif stream[pos + 1] == ":" and is_name(token):
                pos = self._label(stream, pos)
            else:
                pos = self._guarded(stream, pos)
        if self.flag_read is not None and _FLAG.name not in self.function.regs and not self.function.rejected:
            place = describe(self.ptx.locs[self.flag_read.loc])
            self.function.rejected = (
                f"{self.flag_read.op} reads the carry flag, which nothing before it sets; it comes from {place}"
            )
        return pos

    def _guarded(self, stream: list[str], pos: int) -> int:
        """One statement; returns the place after its semicolon."""
        stop = _end_of_statement(stream, pos)
        try:
            if stream[stop] != ";":
                raise UnsupportedError(f"PTX statement without an end: {shown(stream[pos:stop])[:60]!r}")
            self._statement(stream[pos:stop])
        except UnsupportedError as error:
            self._reject(str(error))
        except MALFORMED:
            self._reject(f"PTX statement not understood: {shown(stream[pos:stop])[:60]!r}")
        return stop + (stream[stop] == ";")

    def _reject(self, why: str) -> None:
        if not self.function.rejected:
            self.function.rejected = f"{why}; it comes from {describe(self.ptx.locs[self.loc])}"

    def _loc(self, stream: list[str], pos: int) -> int:
        """``.loc file line column [, function_name label [+ offset], inlined_at file line column]``."""
        end = pos + 4
        numbers = stream[pos + 1 : end]
        if stream[end : end + 2] == [",", "function_name"]:
            at = end + 3 + 2 * (stream[end + 3] == "+")
            end = at + 5
            numbers += stream[at + 2 : end]
        before = self.ptx.locs[self.loc]
        if before is not None and not before.line:
            before = before.inlined_at
        key = (*stream[pos + 1 : end], before if stream[pos + 2] == "0" else None)
        if key not in self.loc_ids:
            if not all(map(str.isdecimal, numbers)) or len(numbers) not in (3, 6):
                self._reject(f"PTX line not understood: {shown(stream[pos:end])[:60]!r}")
                return end
            file, line, column, *outer = map(int, numbers)
            place = self._inlined_at(*outer) if outer else None if line else before
            self.ptx.locs.append(Loc(self.files.get(file, "?"), line, column, place))
            self.loc_ids[key] = len(self.ptx.locs) - 1
        self.loc = self.loc_ids[key]
        return end

    def _inlined_at(self, file: int, line: int, column: int) -> Loc:
        """Where code was inlined; the call itself may have been inlined."""
        outer = Loc(self.files.get(file, "?"), line, column)
        for known in reversed(self.ptx.locs):
            if known and (known.file, known.line, known.column) == (outer.file, outer.line, outer.column):
                return known
        return outer

    def _labels_ahead(self, stream: list[str], pos: int) -> None:
        """Declare the labels of the scope that begins here, as branches may stand before them."""
        depth = 1
        while depth and stream[pos] != END:
            token = stream[pos]
            if token == ":" and depth == 1 and is_name(stream[pos - 1]) and stream[pos - 2] != "?":
                self.names.declare(stream[pos - 1])
            depth += (token == "{") - (token == "}")
            pos += 1

    def _label(self, stream: list[str], pos: int) -> int:
        name, kind = stream[pos], stream[pos + 2]
        if kind not in _TABLES:
            self.function.body.append(Label(self.names.declare(name) if self.names.nested else name))
            return pos + 2
        stop = _end_of_statement(stream, pos)
        if kind == ".branchtargets":
            targets = [self._operand(t) for t in split(stream[pos + 3 : stop])]
            if not all(isinstance(t, Sym) for t in targets):
                raise UnsupportedError(f"PTX targets of branches not understood: {shown(stream[pos:stop])[:60]!r}")
            self.function.tables[self.names.declare(name)] = [t.name for t in targets if isinstance(t, Sym)]
        return stop

    def _statement(self, part: list[str]) -> None:
        if part[0][0] == ".":
            self._directive(part)
            return
        guard, negated, at = None, False, 0
        if part[0] == "@":
            negated = part[1:2] == ["!"]
            at = 2 + negated
            guard = self._operand(part[at - 1 : at])
            if not isinstance(guard, Reg):
                raise UnsupportedError(f"PTX guard is not a predicate register: {shown(part[:at])!r}")
        op = "".join(part[at : at + 1])
        if not op or not is_name(op):
            raise UnsupportedError(f"PTX statement not understood: {shown(part)[:60]!r}")
        at += 1
        while at < len(part) and part[at][0] == ".":  # suffixes may stand apart
            op += part[at]
            at += 1
        calls = op in ("call", "call.uni")
        args = [self._list(a) if calls and a[0] == "(" else self._operand(a) for a in split(part[at:])]
        if op.startswith("wgmma.mma_async"):
            args.insert(1, args[0])  # D is also read
        instr = Instr(decode(op), args, guard, negated, self.loc)
        self.function.body += self._call(instr) if calls else self._plain(instr)

    def _directive(self, part: list[str]) -> None:
        if part[0] == ".reg":
            self.names.registers(part)
            self.cache = {}
        elif part[0] in (".param", ".local", ".shared"):
            for var in variables(part):
                unique = self.names.declare(var.name)
                self.function.local_vars[unique] = replace(var, name=unique)
            self.cache = {}
        elif part[0] == ".maxntid":
            self.function.max_threads = thread_bound(part)
        elif part[0] != ".pragma":
            raise UnsupportedError(f"PTX directive not supported: {shown(part)!r}")

    def _list(self, part: list[str]) -> list:
        """The results or arguments of a call."""
        return [self._operand(a) for a in split(_inside(part))]

    def _call(self, instr: Instr) -> list[Instr]:
        """A call whose results and arguments are variables: registers and constants are moved from and to such."""
        lists = {k: list(a) for k, a in enumerate(instr.args) if isinstance(a, list)}
        if all(isinstance(a, Sym) for items in lists.values() for a in items):
            return [instr]
        function = self._called(instr.args[1 if 0 in lists else 0])
        before, after = [], []
        for k, items in lists.items():
            formal = function.params if k else function.returns
            if len(formal) != len(items):
                raise UnsupportedError(f"PTX call of {function.name} with {len(items)} values instead of {len(formal)}")
            for j, var in enumerate(formal):
                value = items[j]
                if isinstance(value, Sym):
                    continue
                name = self.names.unique(var.name)
                self.function.local_vars[name] = replace(var, name=name)
                items[j] = Sym(name)
                if k:
                    before.append(replace(instr, op=decode(f"st.param.{var.type}"), args=[Mem(Sym(name), 0), value]))
                elif value is not None:
                    after.append(replace(instr, op=decode(f"ld.param.{var.type}"), args=[value, Mem(Sym(name), 0)]))
        args = [lists.get(k, a) for k, a in enumerate(instr.args)]
        return [*before, replace(instr, args=args), *after]

    def _plain(self, instr: Instr) -> list[Instr]:
        """An instruction without what only few know: special registers of several parts, and parts of registers."""
        if (
            instr.op.base == "mov"
            and instr.op.count == 4
            and len(instr.args) == 2
            and isinstance(instr.args[1], Special)
        ):
            dest, source = instr.args
            named = zip(dest.items if isinstance(dest, Vec) else (), "xyzw", strict=False)
            moves = [(reg, Special(f"{source.name}.{axis}")) for reg, axis in named if reg is not None]
            return [replace(instr, op=decode(instr.op.text.replace(".v4", "")), args=list(move)) for move in moves]
        if instr.op.base in ("addc", "subc", "madc") or instr.op.has("cc"):
            instr = self._with_flag(instr)
        if not any(isinstance(a, Part) for a in instr.args):
            return [instr]
        return selected(instr, self._temporary)

    def _with_flag(self, instr: Instr) -> Instr:
        """An instruction with the carry flag among its operands: a register that it writes, or reads as the last."""
        dest, *args = instr.args
        if instr.op.base.endswith("c"):
            args.append(_FLAG)
            self.flag_read = self.flag_read or instr
        if instr.op.has("cc"):
            dest = Pair(dest, _FLAG)
            self.function.regs[_FLAG.name] = "pred"
        return replace(instr, args=[dest, *args])

    def _temporary(self) -> Reg:
        name = self.names.unique("%part")
        self.function.regs[name] = "b32"
        return Reg(name)

    def _called(self, target: object) -> Function:
        """The function that a call names, which has to be declared before."""
        name = str(getattr(target, "name", target))
        if name not in self.ptx.functions:
            raise UnsupportedError(self.ptx.unknown.get(name, f"PTX call of {name} with values instead of variables"))
        return self.ptx.functions[name]

    def _operand(self, part: list[str]):
        if len(part) != 1:
            return self._compound(part)
        token = part[0]
        if token in self.cache:
            return self.cache[token]
        if token == "_":
            known = None
        else:
            known = self.names.find(token) if is_name(token) and token != "WARP_SZ" else constant(part)
        self.cache[token] = known
        return known

    def _compound(self, part: list[str]):
        """An operand of several tokens."""
        if not part:
            raise UnsupportedError("PTX operand missing")
        first = part[0]
        if first == "[":
            return self._memory(_inside(part))
        if first == "{":
            return Vec(tuple(self._operand(a) for a in split(_inside(part))))
        if first == "!" and len(part) == 2 and is_name(part[1]):
            reg = self._operand(part[1:])
            if isinstance(reg, Reg):
                return Not(reg)
        elif len(part) == 3 and part[1] == "|" and (is_name(first) or first == "_"):
            pair = [self._operand(part[k : k + 1]) for k in (0, 2)]
            if all(p is None or isinstance(p, Reg) for p in pair):
                return Pair(*pair)  # type: ignore[arg-type]
        elif is_name(first) and first != "WARP_SZ":
            if part[1][0] == ".":  # a special register's suffix that stands apart
                return self._operand([first + part[1], *part[2:]])
            base = self._operand(part[:1])
            if isinstance(base, Sym) and part[1] in ("+", "-"):
                return Sym(base.name, constant(part[1:]).value)
        else:
            return constant(part)
        raise unknown(part)

    def _memory(self, part: list[str]):
        if "," in part:  # texture coordinates; kept as a list; the instruction is rejected later by its name
            return [self._operand(a) for a in split(part)]
        if part and not (is_name(part[0]) and part[0] != "WARP_SZ"):
            return Mem(constant(part), 0)
        base = self._operand(part[:1])
        if isinstance(base, (Reg, Sym)) and (len(part) == 1 or part[1] in ("+", "-")):
            return Mem(base, constant(part[1:]).value if len(part) > 1 else 0)
        raise UnsupportedError(f"PTX address not understood: [{shown(part)}]")


def _inside(part: list[str]) -> list[str]:
    """What is between the brackets with which the tokens begin and should end."""
    if closing(part, 0) != len(part) - 1 or part[-1] not in ")]}":
        raise unknown(part)
    return part[1:-1]


def _end_of_statement(stream: list[str], pos: int) -> int:
    """Where a statement's semicolon stands, or where the scope or the text ends without one."""
    stop, depth = semicolon(stream, pos), 0
    if "}" in stream[pos:stop]:
        for at in range(pos, stop):
            depth += (stream[at] == "{") - (stream[at] == "}")
            if depth < 0:
                return at
    return stop
