"""Random host functions in C++, with arguments to call them with."""

from __future__ import annotations

import ctypes
import random
from dataclasses import dataclass, field
from typing import Any

TYPES = {
    "int": ctypes.c_int, "unsigned": ctypes.c_uint, "int64_t": ctypes.c_int64, "size_t": ctypes.c_uint64,
    "uint8_t": ctypes.c_uint8, "int8_t": ctypes.c_int8, "int16_t": ctypes.c_int16, "uint16_t": ctypes.c_uint16,
    "bool": ctypes.c_bool, "float": ctypes.c_float, "double": ctypes.c_double,
}  # fmt: skip
COMMON = ("int", "int", "int", "int64_t", "int64_t", "size_t", "unsigned", "float", "double", "bool", "uint8_t")
INTEGERS = tuple(one for one in TYPES if one not in ("float", "double"))


@dataclass
class Program:
    """A function with its helpers, and the arguments to call it with."""

    name: str
    text: str
    returns: str
    parameters: list[str]
    calls: list[list[Any]] = field(default_factory=list)


class Writer:
    """Writes one program."""

    def __init__(self, number: int) -> None:
        self.random = random.Random(number)
        self.name = f"f{number}"
        self.scopes: list[dict[str, str]] = [{}]
        self.fixed: set[str] = set()  # names that are not assigned
        self.counter = 0
        self.helpers: list[str] = []
        self.functions: list[tuple[str, list[str], str]] = []  # name, types of parameters, kind of the result
        self.changing: list[tuple[str, str]] = []  # functions by reference
        self.macros: list[str] = []
        self.struct = ""
        self.pairs: list[tuple[str, str, str]] = []  # functions with two results
        self.level = 1
        self.loops = 0

    def pick(self, *of: Any) -> Any:
        return self.random.choice(of)

    def new(self, base: str = "v") -> str:
        self.counter += 1
        return f"{base}{self.counter}"

    def visible(self) -> dict[str, str]:
        """The types of all variables by their names, the innermost of each."""
        return {name: type_ for scope in self.scopes for name, type_ in scope.items()}

    def names(self, *, integral: bool | None = None, assigned: bool = False) -> list[str]:
        return [
            name
            for name, type_ in self.visible().items()
            if (integral is None or (type_ in INTEGERS) == integral)
            and type_ in TYPES
            and not (assigned and name in self.fixed)
        ]

    def type_of(self, name: str) -> str:
        return next(scope[name] for scope in reversed(self.scopes) if name in scope)

    # Expressions ---------------------------------------------------------------------------------------------------

    def literal(self, integral: bool) -> str:
        if integral:
            return self.pick(
                "0", "1", "2", "3", "7", "255", "256", "-1", "-3", "1u", "5u", "2L", "1LL", "0x10", "65535", "2147483647",
                "40000", "3UL", "'a'", "true", "010", "1'000", "(-5)", "INT64_C(7)", "sizeof(float)",
                "sizeof(int64_t)", "std::numeric_limits<int>::max()", "(1 << 4)",
            )  # fmt: skip
        return self.pick(
            "0.5", "1.0f", "0.1f", "0.1", "3.0", "-2.5f", "1e-3f", "1e10", "2.f", ".5", "1.5e3", "-0.0", "16777217.0f"
        )

    def integer(self, depth: int) -> str:
        names = self.names(integral=True)
        if depth <= 0:
            return self.pick(*names) if names and self.random.random() < 0.75 else self.literal(True)
        a, b = self.integer(depth - 1), self.integer(depth - 1)
        kind = self.random.randrange(30)
        if kind < 9:
            return f"({a} {self.pick('+', '-', '*', '+', '-')} {b})"
        if kind < 12:
            return f"({a} {self.pick('/', '%')} {self.pick(b, b, self.pick('2', '3', '-4', '32', '7u', '16L'))})"
        if kind == 12:
            return f"({a} {self.pick('&', '|', '^')} {b})"
        if kind == 13:
            return f"({a} {self.pick('<<', '>>')} {self.pick('1', '3', '5', f'({b} & 15)')})"
        if kind == 14:
            return f"{self.pick('-', '~', '+')}{a}" if a[0] not in "-+~" else f"-({a})"
        if kind == 15:
            return (
                f"{self.pick('(int)', '(int64_t)', '(unsigned)', '(uint8_t)', '(size_t)', '(int16_t)', '(char)')}({a})"
            )
        if kind == 16:
            return f"static_cast<{self.pick(*INTEGERS)}>({self.pick(a, self.real(depth - 1))})"
        if kind == 17:
            return f"({self.condition(depth - 1)} ? {a} : {b})"
        if kind == 18:
            type_ = self.pick("int", "int64_t", "unsigned", "size_t")
            return f"std::{self.pick('min', 'max')}<{type_}>({a}, {b})"
        if kind == 19:
            return f"({a} + {self.pick('255', '31', b)} - 1) / {self.pick('256', '32', '8')}"
        if kind == 20:
            return f"(int)({self.real(depth - 1)})"
        if kind == 21 and self.functions:
            return self.call(depth)
        if kind == 22 and self.macros:
            return f"({self.pick(*self.macros)}({a}, {b}))"
        if kind == 23 and (vectors := self.vectors()):
            name, item = self.pick(*vectors)
            found = self.pick(f"{name}.size()", f"{name}[{self.index()}]", f"{name}.back()", f"{name}.front()")
            return f"(int)({found})" if item == "float" else found
        if kind == 24:
            return f"int64_t({a}) * {b}"
        if kind == 26 and (members := self.members()):
            return f"(int)({self.pick(*members)})"
        if kind == 27 and (arrays := self.arrays()):
            return f"(int64_t)({self.pick(*arrays)[0]}[{self.index()}])"
        if kind == 28 and names:
            name = self.pick(*names)
            type_ = self.type_of(name)
            same = self.pick(*(one for one in names if self.type_of(one) == type_))
            return f"std::{self.pick('min', 'max')}({name}, {same})"
        if kind == 29:
            return self.pick(
                f"std::abs((int)({a}))", f"{self.name.upper()}_B", f"({self.condition(0)} ? {a} : {self.literal(True)})"
            )
        if kind == 25:
            return f"(int)std::{self.pick('ceil', 'floor', 'round')}({self.pick(f'(float){a} / 32', f'{a} / 4.0', f'{a} / 3')})"
        return f"({a} - {b})"

    def vectors(self) -> list[tuple[str, str]]:
        """Their names and the types of their elements."""
        return [(name, type_.split()[1]) for name, type_ in self.visible().items() if type_.startswith("vector")]

    def arrays(self) -> list[tuple[str, str]]:
        return [(name, type_.split()[1]) for name, type_ in self.visible().items() if type_.startswith("array")]

    def members(self) -> list[str]:
        return [
            f"{name}.{one}" for name, type_ in self.visible().items() if type_ == self.struct for one in ("a", "b", "c")
        ]

    def index(self) -> str:
        names = [one for one in self.names(integral=True) if self.type_of(one) in ("unsigned", "size_t", "uint8_t")]
        return f"({self.pick(*names)} & 3)" if names and self.random.random() < 0.5 else self.pick("0", "1", "2", "3")

    def call(self, depth: int) -> str:
        name, types, _ = self.pick(*self.functions)
        count = len(types) if self.random.random() < 0.7 else 1
        given = [f"({type_})({self.value(depth - 1, type_)})" for type_ in types[:count]]  # an enumerator is an int
        return f"{name}({', '.join(given)})"

    def real(self, depth: int) -> str:
        names = self.names(integral=False)
        if depth <= 0:
            return self.pick(*names) if names and self.random.random() < 0.75 else self.literal(False)
        a = self.real(depth - 1)
        b = self.real(depth - 1) if self.random.random() < 0.6 else self.integer(depth - 1)
        kind = self.random.randrange(14)
        if kind < 7:
            return f"({a} {self.pick('+', '-', '*', '/')} {b})"
        if kind == 7:
            return f"({self.pick('float', 'double')})({self.pick(a, b)})"
        if kind == 8:
            return f"std::{self.pick('sqrt', 'fabs', 'floor', 'ceil', 'trunc')}({a})"
        if kind == 9:
            return f"({self.condition(depth - 1)} ? {a} : {b})"
        if kind == 10:
            return f"std::{self.pick('min', 'max')}<{self.pick('float', 'double')}>({a}, {b})"
        if kind == 11:
            return f"1.0f / {b}"
        if kind == 12:
            return f"static_cast<float>({self.integer(depth - 1)}) / {self.pick('3', '256', '7.0')}"
        return f"-({a})"

    def condition(self, depth: int) -> str:
        kind = self.random.randrange(10)
        if kind < 5:
            a = self.integer(depth - 1)
            b = self.integer(depth - 1) if self.random.random() < 0.8 else self.real(depth - 1)
            return f"{a} {self.pick('<', '>', '<=', '>=', '==', '!=')} {b}"
        if kind < 7:
            return (
                f"({self.condition(depth - 1)} {self.pick('&&', '||')} {self.condition(depth - 1)})"
                if depth > 0
                else "true"
            )
        if kind == 7:
            return f"!({self.integer(depth - 1)})"
        if kind == 8:
            return f"({self.real(depth - 1)} {self.pick('<', '>=')} {self.real(depth - 1)})"
        return f"({self.integer(depth - 1)} % 2 == 0)"

    def value(self, depth: int, type_: str = "") -> str:
        if type_ in ("float", "double"):
            return self.real(depth) if self.random.random() < 0.8 else self.integer(depth)
        if type_ == "bool" and self.random.random() < 0.5:
            return self.condition(depth)
        return self.integer(depth) if self.random.random() < 0.9 else f"(int64_t)({self.real(depth)})"

    # Statements ----------------------------------------------------------------------------------------------------

    def block(self, count: int) -> str:
        self.scopes.append({})
        self.level += 1
        inside = "".join(self.statement() for _ in range(count))
        self.level -= 1
        self.scopes.pop()
        return "{\n" + inside + "    " * self.level + "}"

    def statement(self) -> str:
        return "    " * self.level + self._statement() + "\n"

    def declare(self) -> str:
        type_, name = self.pick(*COMMON), self.new()
        text = self.value(2, type_)
        form = self.random.randrange(8)
        if form == 0:
            made = f"const {type_} {name} = {text};"
            self.fixed.add(name)
        elif form == 1:
            made = f"{type_} {name}({text});"
        elif form == 2:
            type_ = self.pick("int", "int64_t", "float", "double")
            literal = self.literal(type_ in INTEGERS)
            made = f"auto {name} = static_cast<{type_}>({self.pick(text, literal)});"
        elif form == 3:
            second = self.new()
            made = f"{type_} {name} = {text}, {second} = {self.value(1, type_)};"
            self.scopes[-1][second] = type_
        elif form == 4 and self.names():
            other = self.pick(*self.names())
            type_ = self.type_of(other)
            made = f"auto {name} = {other};"
        elif form == 5:
            item = self.pick("int", "int64_t", "float", "uint8_t")
            type_ = f"vector {item}"
            values = [f"({item})({self.value(1, item)})" for _ in range(4)]
            made = self.pick(
                f"std::vector<{item}> {name} = {{{', '.join(values)}}};",
                f"{item} {name}[4] = {{{', '.join(values[:3])}}};",
                f"std::array<{item}, 4> {name} = {{{', '.join(values)}}};",
                f"std::vector<{item}> {name}(4, {values[0]});",
            )
            if "[4]" in made:
                type_ = f"array {item}"
        else:
            made = f"{type_} {name} = {text};"
        self.scopes[-1][name] = type_
        return made

    def assign(self) -> str:
        names = self.names(assigned=True)
        if not names:
            return self.declare()
        name = self.pick(*names)
        type_ = self.type_of(name)
        if type_ in ("float", "double"):
            return f"{name} {self.pick('=', '+=', '-=', '*=', '/=')} {self.value(2, type_)};"
        if type_ == "bool":
            return f"{name} = {self.value(2, type_)};"
        operator = self.pick("=", "=", "+=", "-=", "*=", "/=", "%=", "|=", "&=", "^=", "<<=", ">>=", "++", "--")
        if operator in ("++", "--"):
            return self.pick(f"{name}{operator};", f"{operator}{name};")
        if operator in ("<<=", ">>="):
            return f"{name} {operator} {self.pick('1', '2', '4')};"
        if operator in ("=", "+=", "-=", "*=") and self.random.random() < 0.2:
            return f"{name} {operator} {self.real(1)};"
        return f"{name} {operator} {self.integer(2)};"

    def _statement(self) -> str:
        kind = self.random.randrange(24)
        if kind < 6 or not self.names():
            return self.declare()
        if kind < 10:
            return self.assign()
        if kind == 10:
            other = f" else {self.block(1)}" if self.random.random() < 0.5 else ""
            return f"if ({self.condition(1)}) {self.block(self.pick(1, 2))}{other}"
        if kind == 11 and self.loops < 2:
            return self.loop()
        if kind == 12:
            return self.switch()
        if kind == 13 and self.changing and (names := self.changeable()):
            function, name = self.pick(*names)
            return f"{function}({name}, {self.value(1)});"
        if kind == 14:
            return self.closure()
        if kind == 15 and (vectors := [*self.vectors(), *self.arrays()]):
            return f"{self.pick(*vectors)[0]}[{self.index()}] {self.pick('=', '+=', '-=')} {self.integer(1)};"
        if kind == 16:
            return self.block(2)
        if kind == 17 and (names := self.names(integral=True, assigned=True)):
            name, made = self.pick(*names), self.new()
            if self.type_of(name) == "bool":
                return self.assign()
            self.scopes[-1][made] = "int64_t"
            return f"int64_t {made} = {self.pick(f'{name}++', f'++{name}', f'{name}--')};"
        if kind == 18 and (names := self.names(assigned=True)):
            name, made = self.pick(*names), self.new("r")
            type_ = self.type_of(name)
            self.scopes[-1][made] = type_
            return f"{type_}& {made} = {name};"
        if kind == 19 and self.struct:
            found = [one[:-2] for one in self.members() if one.endswith(".a")]
            if not found or self.random.random() < 0.3:
                made = self.new("s")
                text = self.pick(
                    f"{self.struct} {made}{{}};",
                    f"auto {made} = {self.pick(*found)};" if found else f"{self.struct} {made} = {{}};",
                )
                self.scopes[-1][made] = self.struct
                return text
            name = self.pick(*found)
            return self.pick(
                f"{name}.{self.pick('a', 'b', 'c')} = {self.integer(1)};",
                f"{name}.set({self.integer(1)});",
                f"{name}.a {self.pick('+=', '-=', '=')} {name}.get({self.integer(1)});",
            )
        if kind == 20 and self.pairs:
            (name, *types), made = self.pick(*self.pairs), [self.new(), self.new()]
            given = ", ".join(self.value(1, one) for one in types)
            self.scopes[-1].update(zip(made, types, strict=True))
            return f"auto [{', '.join(made)}] = {name}({given});"
        if kind == 21 and self.pairs and (names := self.names(assigned=True)):
            name, *types = self.pick(*self.pairs)
            chosen = [self.pick(*names), self.pick(*names)]
            given = ", ".join(self.value(1, one) for one in types)
            return f"std::tie({', '.join(chosen)}) = {name}({given});" if chosen[0] != chosen[1] else self.assign()
        if kind == 22 and (names := self.names(integral=True, assigned=True)):
            name = self.pick(*names)
            same = self.pick(*(one for one in names if self.type_of(one) == self.type_of(name)))
            return f"std::swap({name}, {same});"
        return self.assign()

    def changeable(self) -> list[tuple[str, str]]:
        return [
            (function, name)
            for function, type_ in self.changing
            for name in self.names(assigned=True)
            if self.type_of(name) == type_
        ]

    def loop(self) -> str:
        self.loops += 1
        name, form = self.new("i"), self.random.randrange(5)
        types = {0: ("int",), 1: ("int", "int64_t"), 4: ("int",)}
        type_ = self.pick(*types.get(form, ("int", "int64_t", "size_t", "unsigned", "uint8_t")))
        self.fixed.add(name)
        self.scopes.append({name: type_})
        leave = f"    if ({self.condition(1)}) {self.pick('break', 'continue')};" if self.random.random() < 0.4 else ""
        body = self.block(self.pick(1, 2))
        if leave:
            body = body[:-1] + leave + "\n" + "    " * self.level + "    " + self.assign() + " }"
        self.scopes.pop()
        self.loops -= 1
        end, step = (
            self.pick("4", "5", f"({self.integer(1)} & 7)", "(int)(2.5f)"),
            self.pick(f"{name}++", f"++{name}", f"{name} += 2"),
        )
        if form == 0 and not leave:
            self.scopes[-1][name] = "int"
            return f"int {name} = 0; while ({name} < {self.pick('3', '5')}) {{ {name}++; {body} }}"
        if form == 1:
            return f"for ({type_} {name} = {self.pick('5', f'({self.integer(1)} & 7)')}; {name} {self.pick('> 0', '>= 0', '>= 1')}; {self.pick(f'{name}--', f'{name} -= 2')}) {body}"
        if form == 2 and (vectors := [*self.vectors(), *self.arrays()]):
            return f"for ({self.pick(type_, f'const {type_}&')} {name} : {self.pick(*vectors)[0]}) {body}"
        if form == 4 and not leave:
            return f"int {name} = 0; do {body} while ({name}++ < {self.pick('2', '3')} && {self.condition(1)});"
        return f"for ({type_} {name} = {self.pick('0', '0', '1')}; {name} < {end}; {step}) {body}"

    def switch(self) -> str:
        cases = []
        for k in self.random.sample(["0", "1", "2", "3", "-1", "7"], 3):
            cases.append(f"case {k}: {self.pick('', f'case {k}0: ' if k != '0' else '')}{self.block(1)} break;")
        if self.random.random() < 0.6:
            cases.append(f"default: {self.block(1)}")
        space = "\n" + "    " * self.level
        return f"switch ({self.pick(f'(int)({self.integer(1)} % 4)', f'(int)({self.integer(1)})')}) {{{space}{space.join(cases)}{space}}}"

    def closure(self) -> str:
        name, result = self.new("g"), self.new()
        type_, returned = self.pick("int", "int64_t", "float", "double"), self.pick("int", "int64_t", "double")
        captured = self.pick("&", "=", "&")
        parameter = self.new("p")
        self.scopes.append({parameter: type_})
        inside = ""
        if captured == "&" and self.names(assigned=True) and self.random.random() < 0.5:
            inside = self.assign() + " "
        text = f"auto {name} = [{captured}]({type_} {parameter}){self.pick('', f' -> {returned}')} {{ {inside}return {self.value(1, returned)}; }};"
        self.scopes.pop()
        between = self.assign() + " " if self.names(assigned=True) else ""
        call = f"{returned} {result} = {name}({self.value(1, type_)});"
        self.scopes[-1][result] = returned
        return f"{text} {between}{call}"

    # The program -----------------------------------------------------------------------------------------------------

    def program(self) -> Program:
        self.helpers.append(f"enum {{ {self.name.upper()}_A = 3, {self.name.upper()}_B }};\n")
        for k in range(self.random.randrange(4)):
            self.helper(k)
        self.scopes = [{}]
        types = [self.pick(*COMMON) for _ in range(self.random.randrange(2, 5))]
        names = [self.new("a") for _ in types]
        self.scopes[0] = dict(zip(names, types, strict=True))
        self.scopes.append({})
        returns = self.pick("int", "int64_t", "double", "float", "size_t", "unsigned", "bool")
        body = "".join(self.statement() for _ in range(self.random.randrange(2, 8)))
        end = f"    return {self.value(2, returns)};\n"
        head = f"{returns} {self.name}({', '.join(f'{a} {b}' for a, b in zip(types, names, strict=True))})"
        text = "".join(self.helpers) + f"{head} {{\n{body}{end}}}\n"
        calls = [[self.argument(one) for one in types] for _ in range(8)]
        return Program(self.name, text, returns, types, calls)

    def helper(self, k: int) -> None:
        name, kind = f"{self.name}_h{k}", self.random.randrange(9)
        type_, other = (
            self.pick("int", "int64_t", "unsigned", "float", "double", "uint8_t"),
            self.pick("int", "int64_t", "double"),
        )
        self.scopes = [{"a": type_, "b": other}]
        text = self.value(2, type_)
        if kind == 0:
            self.helpers.append(
                f"#define {name.upper()}(a, b) {self.pick('((a) + (b))', '(a) * (b)', '((a) < (b) ? (a) : (b))', '(((a) + 7) / 8 - (b))')}\n"
            )
            self.macros.append(name.upper())
            return
        if kind == 1:
            self.helpers.append(
                f"static void {name}({type_}& a, {other} b) {{ a {self.pick('=', '+=', '-=')} {text}; }}\n"
            )
            self.changing.append((name, type_))
            return
        if kind == 6 and not self.struct:
            self.struct = f"S{self.name}"
            types = (
                self.pick("int", "int64_t", "float"),
                self.pick("uint8_t", "size_t", "int"),
                self.pick("double", "bool"),
            )
            self.helpers.append(
                f"struct {self.struct} {{ {types[0]} a = {self.literal(types[0] != 'float')}; {types[1]} b; {types[2]} c; "
                f"{types[0]} get({other} n) const {{ return a + n; }} void set({other} n) {{ b = n; a += 1; }} }};\n"
            )
            return
        if kind == 7:
            self.helpers.append(
                f"static std::{self.pick('tuple', 'pair')}<{type_}, {other}> {name}({type_} a, {other} b) "
                f"{{ return {{{type_}({text}), b}}; }}\n"
            )
            self.pairs.append((name, type_, other))
            return
        default = self.pick("2", "-1", "3") if other != "double" else "0.5"
        if kind == 2:
            self.helpers.append(
                f"template <typename T> static T {name}(T a, {other} b = {default}) {{ return a + {self.pick('b', '1', 'a')}; }}\n"
            )
            self.functions.append((name, ["int", other], type_))
            return
        early = f"if ({self.condition(1)}) return {self.value(1, type_)}; " if kind == 3 else ""
        self.helpers.append(f"static {type_} {name}({type_} a, {other} b = {default}) {{ {early}return {text}; }}\n")
        if type_ not in ("float", "double"):
            self.functions.append((name, [type_, other], type_))

    def argument(self, type_: str) -> Any:
        if type_ == "bool":
            return self.pick(True, False)
        if type_ in ("float", "double"):
            value = self.pick(0.0, 1.0, -1.5, 0.1, 3.7, 1e6, -2.25, 100.5, 1e-5, 16777217.0)
            return ctypes.c_float(value).value if type_ == "float" else value
        bits = 8 * ctypes.sizeof(TYPES[type_])
        signed = not type_.startswith(("u", "size"))
        edges = [0, 1, 2, 3, 5, 31, 32, 100, 255, 256, 1000, 65536, 2**31 - 1, 2**32 - 1, 2**40]
        edges += [-1, -2, -7, -32, -1000, -(2**31)] if signed else []
        least, most = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
        small = [one for one in edges if least <= one <= most and abs(one) <= 256]
        return self.pick(*(one for one in edges if least <= one <= most), *small, *small, *small)
