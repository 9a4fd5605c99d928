"""Functions of 64-bit unsigned integers, written in a small part of Python, as LLVM IR.

Larger pieces of the runtime, such as the checker's, read better so than as IR text. Known are ``def``, assignments,
``if``, ``while``, ``return``, ``and``/``or``/``not``, one comparison at a time, arithmetic (all of it unsigned, modulo
2^64), calls of each other, of functions of other such modules, and of those below. Other names are integers of the
Python module, or records: ``CHECK.clock[ck]`` is the field ``clock`` of the CHECK record at address ``ck``,
``STATE.clocks[st, w]`` item ``w`` of an array field.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping

from rawkern.engines.cpu.records import Record

_BINARY = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.FloorDiv: "udiv", ast.Mod: "urem", ast.LShift: "shl",
    ast.RShift: "lshr", ast.BitAnd: "and", ast.BitOr: "or", ast.BitXor: "xor",
}  # fmt: skip
_COMPARE = {ast.Eq: "eq", ast.NotEq: "ne", ast.Lt: "ult", ast.LtE: "ule", ast.Gt: "ugt", ast.GtE: "uge"}
DECLARATIONS = """declare i64 @llvm.cttz.i64(i64, i1)
declare i64 @llvm.ctlz.i64(i64, i1)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)"""


def _only_compiled(*_: int) -> int:
    raise NotImplementedError("this function exists in machine code only")


load8 = load16 = load32 = load64 = _only_compiled  # (address): an unaligned value, extended with zeros
store8 = store16 = store32 = store64 = _only_compiled  # (address, value)
lowest_bit = highest_bit = _only_compiled  # (value): number of the lowest, or highest, bit that is set
clear = _only_compiled  # (address, bytes): fill with zeros
elsewhere = _only_compiled  # a function of 64-bit integers that other IR defines under the name that this is given


_OWN = frozenset(name for name, value in globals().items() if value is _only_compiled)


def inline(function: Callable) -> Callable:
    """Mark a function whose code is to stand where it is called."""
    return function


def compiled(source: str, names: Mapping[str, object]) -> str:
    """LLVM IR of the functions in a Python module's `source`; `names` holds its constants and what it imports.

    Other object files see them, but for those that are inlined.
    """
    functions = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
    known = {f.name for f in functions} | {name for name in names if callable(names[name]) and name not in _OWN}
    return "\n".join([DECLARATIONS, *(_Function(f, names, known).text() for f in functions)])


def declared(source: str) -> str:
    """Declarations of the functions that `compiled` makes of a module's `source`."""
    functions = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
    kinds = [(f.name, ", ".join(["i64"] * len(f.args.args))) for f in functions if not f.decorator_list]
    return "\n".join(f"declare i64 @{name}({types})" for name, types in kinds)


class _Function:
    """One function on its way to IR; local variables are stack slots, which LLVM makes values of."""

    def __init__(self, node: ast.FunctionDef, names: Mapping[str, object], known: set[str]):
        self.node, self.names, self.known = node, names, known
        self.lines: list[str] = []
        self.count = 0
        self.params = [a.arg for a in node.args.args]
        stored = {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        self.locals = [*self.params, *sorted(stored - set(self.params))]
        self.loops: list[tuple[str, str]] = []

    def text(self) -> str:
        entry = [f"%{name}.slot = alloca i64" for name in self.locals]
        entry += [f"store i64 %{name}, ptr %{name}.slot" for name in self.params]
        self.body(self.node.body)
        self.lines.append("ret i64 0")
        params = ", ".join(f"i64 %{name}" for name in self.params)
        inlined = self.node.decorator_list
        how, inline = ("internal ", "alwaysinline") if inlined else ("", "noinline")
        head = f"define {how}i64 @{self.node.name}({params}) {inline} {{"
        return "\n".join([head, "entry:", *entry, *self.lines, "}"])

    def fresh(self, prefix: str = "t") -> str:
        self.count += 1
        return f"%.{prefix}{self.count}"

    def let(self, text: str) -> str:
        ref = self.fresh()
        self.lines.append(f"{ref} = {text}")
        return ref

    def label(self, name: str) -> None:
        self.lines += [f"br label {name}", f"{name[1:]}:"]

    def body(self, statements: list[ast.stmt]) -> None:
        for statement in statements:
            self.statement(statement)

    def statement(self, s: ast.stmt) -> None:
        if isinstance(s, ast.Assign) and isinstance(s.targets[0], ast.Name) and len(s.targets) == 1:
            self.lines.append(f"store i64 {self.value(s.value)}, ptr %{s.targets[0].id}.slot")
        elif isinstance(s, ast.Assign) and isinstance(s.targets[0], ast.Subscript):
            address, bits = self.place(s.targets[0])
            self.call(f"store{bits}", [address, self.value(s.value)])
        elif isinstance(s, ast.AugAssign) and isinstance(s.target, ast.Subscript):
            address, bits = self.place(s.target)
            old = self.call(f"load{bits}", [address])
            new = self.let(f"{_BINARY[type(s.op)]} i64 {old}, {self.value(s.value)}")
            self.call(f"store{bits}", [address, new])
        elif isinstance(s, ast.AugAssign) and isinstance(s.target, ast.Name):
            new = self.value(ast.BinOp(ast.Name(s.target.id, ast.Load()), s.op, s.value))
            self.lines.append(f"store i64 {new}, ptr %{s.target.id}.slot")
        elif isinstance(s, ast.If):
            yes, no, out = self.fresh("yes"), self.fresh("no"), self.fresh("out")
            self.branch(s.test, yes, no)
            self.lines.append(f"{yes[1:]}:")
            self.body(s.body)
            self.lines += [f"br label {out}", f"{no[1:]}:"]
            self.body(s.orelse)
            self.label(out)
        elif isinstance(s, ast.While):
            head, inside, out = self.fresh("head"), self.fresh("inside"), self.fresh("out")
            self.label(head)
            self.branch(s.test, inside, out)
            self.lines.append(f"{inside[1:]}:")
            self.loops.append((head, out))
            self.body(s.body)
            self.loops.pop()
            self.lines += [f"br label {head}", f"{out[1:]}:"]
        elif isinstance(s, ast.Return):
            self.lines += [f"ret i64 {self.value(s.value) if s.value else 0}", f"{self.fresh('dead')[1:]}:"]
        elif isinstance(s, (ast.Break, ast.Continue)):
            target = self.loops[-1][isinstance(s, ast.Break)]
            self.lines += [f"br label {target}", f"{self.fresh('dead')[1:]}:"]
        elif isinstance(s, ast.Expr):
            if not isinstance(s.value, ast.Constant):  # a docstring
                self.value(s.value)
        else:
            raise SyntaxError(f"{self.node.name}: {ast.unparse(s)!r} is not in the part of Python that is compiled")

    def branch(self, test: ast.expr, yes: str, no: str) -> None:
        """Go to one of two labels; ``and`` and ``or`` evaluate no more than they must."""
        if isinstance(test, ast.BoolOp):
            for part in test.values[:-1]:
                on = self.fresh("on")
                self.branch(part, *((on, no) if isinstance(test.op, ast.And) else (yes, on)))
                self.lines.append(f"{on[1:]}:")
            self.branch(test.values[-1], yes, no)
        elif isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            self.branch(test.operand, no, yes)
        elif isinstance(test, ast.Compare) and len(test.ops) == 1:
            a, b = self.value(test.left), self.value(test.comparators[0])
            self.choose(f"{_COMPARE[type(test.ops[0])]} i64 {a}, {b}", yes, no)
        else:
            self.choose(f"ne i64 {self.value(test)}, 0", yes, no)

    def choose(self, comparison: str, yes: str, no: str) -> None:
        c = self.let(f"icmp {comparison}")
        self.lines.append(f"br i1 {c}, label {yes}, label {no}")

    def value(self, x: ast.expr) -> str:
        if isinstance(x, ast.Constant) and isinstance(x.value, int):
            return str(x.value)
        if isinstance(x, ast.Name):
            if x.id in self.locals:
                return self.let(f"load i64, ptr %{x.id}.slot")
            constant = self.names[x.id]
            if not isinstance(constant, int):
                raise SyntaxError(f"{self.node.name}: {x.id} is {constant!r}, not an integer")
            return str(constant)
        if isinstance(x, ast.BinOp):
            a, b = self.value(x.left), self.value(x.right)
            return self.let(f"{_BINARY[type(x.op)]} i64 {a}, {b}")
        if isinstance(x, (ast.Compare, ast.BoolOp, ast.UnaryOp)):
            yes, no, out = self.fresh("yes"), self.fresh("no"), self.fresh("out")
            self.branch(x, yes, no)
            self.lines += [f"{yes[1:]}:", f"br label {out}", f"{no[1:]}:"]
            self.label(out)
            return self.let(f"phi i64 [ 1, {yes} ], [ 0, {no} ]")
        if isinstance(x, ast.Subscript):
            address, bits = self.place(x)
            return self.call(f"load{bits}", [address])
        if isinstance(x, ast.Call) and isinstance(x.func, ast.Name):
            return self.call(x.func.id, [self.value(a) for a in x.args])
        raise SyntaxError(f"{self.node.name}: {ast.unparse(x)!r} is not in the part of Python that is compiled")

    def place(self, x: ast.Subscript) -> tuple[str, int]:
        """Address of ``RECORD.field[pointer]`` or ``RECORD.field[pointer, index]``, and its width in bits."""
        assert isinstance(x.value, ast.Attribute) and isinstance(x.value.value, ast.Name)
        record, field = self.names[x.value.value.id], x.value.attr
        assert isinstance(record, Record)
        bits = 32 if re.search(r"\bi32\b", dict(record.fields)[field]) else 64
        at = x.slice.elts if isinstance(x.slice, ast.Tuple) else [x.slice]
        address = self.let(f"add i64 {self.value(at[0])}, {record.offset(field)}")
        if len(at) > 1:
            scaled = self.let(f"mul i64 {self.value(at[1])}, {bits // 8}")
            address = self.let(f"add i64 {address}, {scaled}")
        return address, bits

    def call(self, name: str, args: list[str]) -> str:
        if name in self.known:
            return self.let(f"call i64 @{name}({', '.join(f'i64 {a}' for a in args)})")
        kind, bits = name.rstrip("0123456789"), name.lstrip("loadstre")
        p = self.let(f"inttoptr i64 {args[0]} to ptr") if kind in ("load", "store", "clear") else ""
        if kind == "load":
            got = self.let(f"load i{bits}, ptr {p}, align 1")
            return got if bits == "64" else self.let(f"zext i{bits} {got} to i64")
        if kind == "store":
            v = args[1] if bits == "64" else self.let(f"trunc i64 {args[1]} to i{bits}")
            self.lines.append(f"store i{bits} {v}, ptr {p}, align 1")
            return "0"
        if name == "lowest_bit":
            return self.let(f"call i64 @llvm.cttz.i64(i64 {args[0]}, i1 false)")
        if name == "highest_bit":
            zeros = self.let(f"call i64 @llvm.ctlz.i64(i64 {args[0]}, i1 false)")
            return self.let(f"sub i64 63, {zeros}")
        if name == "clear":
            self.lines.append(f"call void @llvm.memset.p0.i64(ptr {p}, i8 0, i64 {args[1]}, i1 false)")
            return "0"
        raise SyntaxError(f"{self.node.name} calls {name}, which is not known")
