"""C statements followed with SymPy expressions for values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from rawkern.base.ctype import TYPE_NAMES
from rawkern.base.tree import named, parse, text_of
from rawkern.errors import NotDifferentiable
from rawkern.formulas.functions import functions, symbolic
from rawkern.formulas.parameters import INTEGERS


def values_after(operation: str, inputs: Mapping[str, str], outputs: Mapping[str, str], name: str) -> dict[str, Any]:
    """Return what each variable is after the statements, as a SymPy expression of the inputs (real symbols)."""
    reader = _Reader(name, inputs, outputs)
    reader.run(_parse(operation, {**inputs, **outputs, "i": "int", "n": "int"}, name))
    return reader.values


def _parse(operation: str, parameters: Mapping[str, str], name: str) -> Any:
    """Return the tree of the statements, a compound one."""
    types = "".join(
        f"typedef double {t}; " for t in sorted({*parameters.values(), REAL} - TYPE_NAMES) if t.isidentifier()
    )
    declared = ", ".join(f"{t} {x}" for x, t in parameters.items())
    root = parse(f"{types}void statements_({declared}) {{ {operation}\n; }}")
    *before, function = named(root)
    if root.has_error or function.type != "function_definition" or any(n.type != "type_definition" for n in before):
        raise NotDifferentiable(
            f"{name}: can't read the formula to differentiate it{_first_error(root)}; "
            "pass backward= with the statements for it"
        )
    return function.child_by_field_name("body")


def _first_error(node: Any) -> str:
    """Where a tree has its first error, for messages."""
    if node.is_missing:
        return f" ({node.type!r} is missing)"
    if node.type == "ERROR" and len(text_of(node)) < 40:
        return f" (at {text_of(node)!r})"
    return next(filter(None, map(_first_error, node.children)), "") if node.has_error else ""


REAL = "real_"  # the name of the type that a derivative of several types is computed in
_INTEGER = re.compile(r"(.*\b)?(bool|int|long|short|char|unsigned|signed|u?int\d+_t|size_t|ptrdiff_t)")
_TRUTHS = ("<", "<=", ">", ">=", "==", "!=", "&&", "||")


class _Reader:
    """Follows the statements with SymPy expressions for values."""

    def __init__(self, name: str, inputs: Mapping[str, str], outputs: Mapping[str, str]) -> None:
        sp = symbolic().sympy
        self.name = name
        self.types = {**inputs, **outputs}
        self.reals = {"float", "double", REAL, *self.types.values()} - INTEGERS
        self.symbols = {x: sp.Symbol(x, real=True) for x in [*inputs, "i", "n"]}
        self.integers = {x for x, t in self.types.items() if t in INTEGERS} | {"i", "n"}
        self.bools = {x for x, t in self.types.items() if t == "bool"}
        self.values: dict[str, Any] = {**dict.fromkeys(outputs, sp.Integer(0)), **self.symbols}

    def refuse(self, what: str) -> NotDifferentiable:
        return NotDifferentiable(f"{self.name}: can't differentiate {what}; pass backward= with the statements for it")

    def run(self, node: Any) -> None:
        kind, parts = node.type, _parts(node)
        if kind in ("compound_statement", "expression_statement", "comma_expression", "else_clause"):
            for each in parts:
                self.run(each)
        elif kind == "declaration":
            for each in node.children_by_field_name("declarator"):
                self.declare(node.child_by_field_name("type"), each)
        elif kind == "assignment_expression":
            op = _operator(node)
            self.store(parts[0], self.value(parts[1]) if op == "=" else self.binary(op[:-1], *parts))
        elif kind == "if_statement":
            self.branch(*parts)
        elif kind == "update_expression":
            self.store(parts[0], self.number(parts[0]) + (1 if _operator(node) == "++" else -1))
        elif kind != "alias_declaration" or text_of(parts[0]) != REAL:
            raise self.refuse(f"a {kind.removesuffix('_statement').replace('_', ' ')!r} statement")

    def declare(self, kind: Any, declarator: Any) -> None:
        target, *value = _parts(declarator) if declarator.type == "init_declarator" else [declarator]
        name = text_of(target)
        if target.type != "identifier":
            raise self.refuse(f"the array or pointer {name}")
        if name in self.types:
            raise self.refuse(f"{name}, which hides the parameter of that name")
        word = self.type_word(kind)
        if word == "auto":
            word = "int" if all(map(self.integral, value)) else "float"
        found = list(map(self.value, value))
        for names, words in ((self.integers, ("bool", "int")), (self.bools, ("bool",))):
            names.discard(name)  # of another block
            if word in words:
                names.add(name)
        self.values.pop(name, None)
        for each in found:
            self.store(target, each)

    def type_word(self, kind: Any) -> str:
        """What a type is: "bool", "int" for any integer, "float" for any other number, "auto"."""
        text = " ".join(text_of(kind).removeprefix("const ").split())
        if text in ("bool", "auto"):
            return text
        if _INTEGER.fullmatch(text):
            return "int"
        if text not in self.reals:
            raise self.refuse(f"the type {text}")
        return "float"

    def store(self, target: Any, value: Any) -> None:
        if target.type != "identifier":
            raise self.refuse("an assignment to an element or member")
        name = text_of(target)
        if name in self.symbols:
            raise self.refuse(f"an assignment to the input {name}")
        if name in self.bools:
            value = self.truth(value)
        elif is_truth(value):
            value = self.counted(value)
        elif name in self.integers and not value.is_integer:
            value = symbolic().Step(symbolic().sympy.Symbol("trunc"), value)
        self.values[name] = value

    def branch(self, clause: Any, yes: Any, no: Any = None) -> None:
        if len(_parts(clause)) != 1:
            raise self.refuse(f"the condition {text_of(clause)}")
        condition = self.condition(_parts(clause)[0])
        before = dict(self.values)
        self.run(yes)
        taken, self.values = self.values, dict(before)
        if no is not None:
            self.run(no)
        for name in taken.keys() & self.values.keys():
            if taken[name] != self.values[name]:
                self.values[name] = self.either(condition, taken[name], self.values[name])
        for name in taken.keys() ^ self.values.keys():
            self.values.pop(name, None)  # assigned on one way only: reading it later is an error

    def either(self, condition: Any, yes: Any, no: Any) -> Any:
        sp = symbolic().sympy
        if is_truth(yes) and is_truth(no):
            return sp.Or(sp.And(condition, yes), sp.And(sp.Not(condition), no))
        return sp.Piecewise((yes, condition), (no, True))

    def condition(self, node: Any) -> Any:
        return self.truth(self.value(node))

    def truth(self, value: Any) -> Any:
        return value if is_truth(value) else symbolic().sympy.Ne(value, 0)

    def value(self, node: Any) -> Any:
        sp = symbolic().sympy
        kind, parts, text = node.type, _parts(node), text_of(node)
        if kind == "identifier":
            if text not in self.values:
                raise self.refuse(f"'{text}', which is no parameter and has no value here")
            return self.values[text]
        if kind in ("true", "false"):
            return sp.true if kind == "true" else sp.false
        if kind in ("number_literal", "char_literal"):
            return _number(text, self)
        if kind == "unary_expression" and _operator(node) == "!":
            return sp.Not(self.condition(*parts))
        if kind == "unary_expression" and _operator(node) in ("+", "-"):
            return self.number(*parts) * (-1 if _operator(node) == "-" else 1)
        if kind == "conditional_expression":
            return self.either(self.condition(parts[0]), self.number(parts[1]), self.number(parts[2]))
        if kind == "binary_expression":
            return self.binary(_operator(node), *parts)
        if cast := self.cast_of(node):
            return self.cast(*cast)
        if kind == "call_expression":
            return self.call(node)
        raise self.refuse(f"'{text}'")

    def cast_of(self, node: Any) -> tuple[str, Any] | None:
        """Type and value of a cast of any spelling; None for what is none."""
        if node.type == "cast_expression":
            kind, value = _parts(node)
            return self.type_word(kind), value
        if node.type != "call_expression":
            return None
        kind, *given = _call(node)
        if kind.type == "template_function" and text_of(named(kind)[0]) == "static_cast":
            kind = named(named(kind)[1])[0]
        elif text_of(kind) not in self.reals and not _INTEGER.fullmatch(text_of(kind)):
            return None
        return (self.type_word(kind), given[0]) if len(given) == 1 else None

    def cast(self, kind: str, node: Any) -> Any:
        if kind == "bool":
            return self.condition(node)
        value = self.number(node)
        if kind == "int" and not value.is_integer:
            return symbolic().Step(symbolic().sympy.Symbol("trunc"), value)
        return value

    def number(self, node: Any) -> Any:
        """Return a value to compute with: a comparison counts as 1 or 0."""
        value = self.value(node)
        return self.counted(value) if is_truth(value) else value

    def counted(self, truth: Any) -> Any:
        sp = symbolic().sympy
        return sp.Piecewise((sp.Integer(1), truth), (sp.Integer(0), True))

    def binary(self, op: str, first: Any, second: Any) -> Any:
        s = symbolic()
        sp = s.sympy
        if op in ("&&", "||"):
            return (sp.And if op == "&&" else sp.Or)(self.condition(first), self.condition(second))
        left, right = self.number(first), self.number(second)
        compare = {"<": sp.Lt, "<=": sp.Le, ">": sp.Gt, ">=": sp.Ge, "==": sp.Eq, "!=": sp.Ne}
        if op in compare:
            return compare[op](left, right)
        if op == "+":
            return left + right
        if op == "-":
            return left - right
        if op == "*":
            return left * right
        if op == "/":
            if self.integral(first) and self.integral(second):
                raise self.refuse("a division of integers, which C rounds towards zero")
            return left * _reciprocal(right)
        raise self.refuse(f"the operator '{op}'")

    def integral(self, node: Any) -> bool:
        """Whether an expression has an integer type in C."""
        kind, parts, text = node.type, _parts(node), text_of(node)
        if kind == "number_literal":
            return re.fullmatch(r"[-+]?(0x[\da-f]+|\d+)[ul]*", text.lower()) is not None
        if kind == "identifier":
            return text in self.integers
        if kind == "binary_expression":
            return _operator(node) in _TRUTHS or all(map(self.integral, parts))
        if cast := self.cast_of(node):
            return cast[0] in ("bool", "int")
        if kind == "conditional_expression":
            return all(map(self.integral, parts[1:]))
        if kind == "call_expression":
            callee, *given = _call(node)
            return _name(callee) in ("abs", "max", "min") and all(map(self.integral, given))
        if kind == "unary_expression":
            return _operator(node) == "!" or self.integral(*parts)
        return kind in ("char_literal", "true", "false")

    def call(self, node: Any) -> Any:
        callee, *given = _call(node)
        name = _name(callee)
        table = functions()
        plain = name.removeprefix("__")
        found = table.get(plain) or (table.get(plain[:-1]) if plain.endswith("f") else None)
        if found is None:
            raise self.refuse(f"the function {name}()")
        arguments = [self.number(a) for a in given]
        try:
            return found(*arguments)
        except TypeError:
            raise self.refuse(f"{name}() with {len(arguments)} arguments") from None


def _parts(node: Any) -> list[Any]:
    """The children that mean something, without the parentheses around them."""
    return [_parts(c)[0] if c.type == "parenthesized_expression" else c for c in named(node)]


def _operator(node: Any) -> str:
    return text_of(node.child_by_field_name("operator"))


def _call(node: Any) -> list[Any]:
    """What is called, and the arguments."""
    return [node.child_by_field_name("function"), *_parts(node.child_by_field_name("arguments"))]


def _name(callee: Any) -> str:
    """The name of a function of CUDA's, which may be std's or global."""
    return re.sub(r"^(?:\s*std\b)?\s*::\s*", "", text_of(callee))


def is_truth(value: Any) -> bool:
    """Whether an expression is a condition and no number."""
    sp = symbolic().sympy
    return isinstance(value, sp.logic.boolalg.Boolean) and not isinstance(value, sp.Expr)


def _reciprocal(x: Any) -> Any:
    s = symbolic()
    if x.is_Add:  # 1 + exp(u)
        rest = x - 1
        if rest.func is s.sympy.exp:
            return s.Sigmoid(-rest.args[0])
    return 1 / x


def _number(text: str, reader: _Reader) -> Any:
    sp = symbolic().sympy
    bare = text.lower()
    try:
        if re.fullmatch("'[^\\\\]'", text):
            return sp.Integer(ord(text[1]))
        if whole := re.fullmatch(r"([-+]?(?:0x[0-9a-f]+|0[0-7]*))[ul]*", bare):
            return sp.Integer(int(whole[1], 16 if "x" in whole[1] else 8))
        return sp.Rational(bare.rstrip("ful"))
    except (TypeError, ValueError):
        raise reader.refuse(f"the constant {text}") from None
