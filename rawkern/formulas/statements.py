"""C statements followed with SymPy expressions for values; pycparser reads them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from rawkern.errors import NotDifferentiable
from rawkern.formulas.functions import functions, symbolic
from rawkern.formulas.parameters import INTEGERS


def values_after(operation: str, inputs: Mapping[str, str], outputs: Mapping[str, str], name: str) -> dict[str, Any]:
    """Return what each variable is after the statements, as a SymPy expression of the inputs (real symbols)."""
    reader = _Reader(name, inputs, outputs)
    reader.run(_parse(operation, {*inputs.values(), *outputs.values()}, name))
    return reader.values


def _parse(operation: str, types: set[str], name: str) -> Any:
    """Return pycparser's tree of the statements."""
    from pycparser import c_parser

    text = re.sub(r"//[^\n]*|/\*.*?\*/", " ", operation, flags=re.S)
    text = re.sub(rf"\busing {REAL} = [^;]*;", " ", text)
    types = types | {"float", "double", REAL}
    known = "|".join(sorted(map(re.escape, types | INTEGERS), key=len, reverse=True))
    text = re.sub(rf"static_cast\s*<\s*({known})\s*>\s*\(", r"(\1)(", text)
    text = re.sub(rf"(?<![\w.])({known})\s*\((?!\s*\*)", r"(\1)(", text)  # C has no T(x) and float(x)
    text = text.replace("std::", "").replace("::", "")
    text = re.sub(r"\bauto\b", "double", text)
    real = [t for t in sorted(types - INTEGERS - {"float", "double"}) if re.fullmatch(r"\w+", t)]
    typedefs = "typedef int bool; " + "".join(f"typedef double {t}; " for t in real)
    try:
        tree = c_parser.CParser().parse(f"{typedefs} void statements_() {{ {text.rstrip().rstrip(';')}; }}")
    except Exception as error:  # pycparser's own class moved between its releases
        raise NotDifferentiable(
            f"{name}: can't read the formula to differentiate it ({error}); pass backward= with the statements for it"
        ) from None
    return tree.ext[-1].body


REAL = "real_"  # the name of the type that a derivative of several types is computed in
_INTEGER_WORDS = ("int", "long", "short", "char", "unsigned", "signed")
_TRUTHS = ("<", "<=", ">", ">=", "==", "!=", "&&", "||")


class _Reader:
    """Follows the statements with SymPy expressions for values."""

    def __init__(self, name: str, inputs: Mapping[str, str], outputs: Mapping[str, str]) -> None:
        sp = symbolic().sympy
        self.name = name
        self.types = {**inputs, **outputs}
        self.symbols = {x: sp.Symbol(x, real=True) for x in [*inputs, "i", "n"]}
        self.integers = {x for x, t in self.types.items() if t in INTEGERS} | {"i", "n"}
        self.bools = {x for x, t in self.types.items() if t == "bool"}
        self.values: dict[str, Any] = dict(self.symbols)

    def refuse(self, what: str) -> NotDifferentiable:
        return NotDifferentiable(f"{self.name}: can't differentiate {what}; pass backward= with the statements for it")

    def run(self, node: Any) -> None:
        kind = type(node).__name__
        if node is None or kind in ("EmptyStatement", "Typedef"):
            return
        if kind == "Compound":
            for child in node.block_items or ():
                self.run(child)
        elif kind == "DeclList":
            for child in node.decls:
                self.run(child)
        elif kind == "Decl":
            if type(node.type).__name__ != "TypeDecl":
                raise self.refuse(f"the array or pointer {node.name}")
            if node.name in self.types:
                raise self.refuse(f"{node.name}, which hides the parameter of that name")
            kind = getattr(node.type.type, "names", [""])[-1]
            for names, words in ((self.integers, ("bool", *_INTEGER_WORDS)), (self.bools, ("bool",))):
                names.discard(node.name)  # of another block
                if kind in words:
                    names.add(node.name)
            self.values.pop(node.name, None)
            if node.init is not None:
                self.store(node, self.value(node.init))
        elif kind == "Assignment":
            self.assign(node)
        elif kind == "If":
            self.branch(node)
        elif kind == "UnaryOp" and node.op in ("p++", "++", "p--", "--"):
            self.store(node.expr, self.number(node.expr) + (1 if "+" in node.op else -1))
        else:
            raise self.refuse(f"a '{kind.lower()}' statement")

    def assign(self, node: Any) -> None:
        value = self.value(node.rvalue)
        if node.op != "=":
            value = self.binary(node.op[:-1], self.number(node.lvalue), self.number(node.rvalue), node)
        self.store(node.lvalue, value)

    def store(self, target: Any, value: Any) -> None:
        if type(target).__name__ not in ("ID", "Decl"):
            raise self.refuse("an assignment to an element or member")
        if target.name in self.symbols:
            raise self.refuse(f"an assignment to the input {target.name}")
        if target.name in self.bools:
            value = self.truth(value)
        elif is_truth(value):
            value = self.counted(value)
        elif target.name in self.integers and not value.is_integer:
            value = symbolic().Step(symbolic().sympy.Symbol("trunc"), value)
        self.values[target.name] = value

    def branch(self, node: Any) -> None:
        condition = self.condition(node.cond)
        before = dict(self.values)
        self.run(node.iftrue)
        taken, self.values = self.values, dict(before)
        self.run(node.iffalse)
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
        kind = type(node).__name__
        if kind == "ID":
            if node.name in ("true", "false"):
                return sp.true if node.name == "true" else sp.false
            if node.name not in self.values:
                raise self.refuse(f"'{node.name}', which is no parameter and has no value here")
            return self.values[node.name]
        if kind == "Constant":
            return _number(node.value, self)
        if kind == "Cast":
            return self.cast(node)
        if kind == "UnaryOp":
            if node.op == "!":
                return sp.Not(self.condition(node.expr))
            if node.op in ("+", "-"):
                value = self.number(node.expr)
                return -value if node.op == "-" else value
        if kind == "TernaryOp":
            return self.either(self.condition(node.cond), self.number(node.iftrue), self.number(node.iffalse))
        if kind == "BinaryOp":
            if node.op in ("&&", "||"):
                join = sp.And if node.op == "&&" else sp.Or
                return join(self.condition(node.left), self.condition(node.right))
            return self.binary(node.op, self.number(node.left), self.number(node.right), node)
        if kind == "FuncCall":
            return self.call(node)
        raise self.refuse(f"'{getattr(node, 'op', kind.lower())}'")

    def cast(self, node: Any) -> Any:
        kind = _type_word(node)
        if kind == "bool":
            return self.condition(node.expr)
        value = self.number(node.expr)
        if kind in _INTEGER_WORDS and not value.is_integer:
            return symbolic().Step(symbolic().sympy.Symbol("trunc"), value)
        return value

    def number(self, node: Any) -> Any:
        """Return a value to compute with: a comparison counts as 1 or 0."""
        value = self.value(node)
        return self.counted(value) if is_truth(value) else value

    def counted(self, truth: Any) -> Any:
        sp = symbolic().sympy
        return sp.Piecewise((sp.Integer(1), truth), (sp.Integer(0), True))

    def binary(self, op: str, left: Any, right: Any, node: Any) -> Any:
        s = symbolic()
        sp = s.sympy
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
            if self.integral(getattr(node, "left", None) or node.lvalue) and self.integral(
                getattr(node, "right", None) or node.rvalue
            ):
                raise self.refuse("a division of integers, which C rounds towards zero")
            return left * _reciprocal(right)
        raise self.refuse(f"the operator '{op}'")

    def integral(self, node: Any) -> bool:
        """Whether an expression has an integer type in C."""
        kind = type(node).__name__
        if kind == "Constant":
            return node.type in ("int", "unsigned int", "long int", "long long int", "unsigned long long int")
        if kind == "ID":
            return node.name in self.integers
        if kind == "BinaryOp":
            return node.op in _TRUTHS or (self.integral(node.left) and self.integral(node.right))
        if kind == "Cast":
            return _type_word(node) in ("bool", *_INTEGER_WORDS)
        if kind == "TernaryOp":
            return self.integral(node.iftrue) and self.integral(node.iffalse)
        if kind == "FuncCall":
            return node.name.name in ("abs", "max", "min") and all(map(self.integral, node.args.exprs))
        return kind == "UnaryOp" and (node.op == "!" or self.integral(node.expr))

    def call(self, node: Any) -> Any:
        name = node.name.name if type(node.name).__name__ == "ID" else "?"
        table = functions()
        plain = name.removeprefix("__")
        found = table.get(plain) or (table.get(plain[:-1]) if plain.endswith("f") else None)
        if found is None:
            raise self.refuse(f"the function {name}()")
        arguments = [self.number(a) for a in (node.args.exprs if node.args else ())]
        try:
            return found(*arguments)
        except TypeError:
            raise self.refuse(f"{name}() with {len(arguments)} arguments") from None


def _type_word(cast: Any) -> str:
    """The last word of the type that a cast is to."""
    return getattr(getattr(cast.to_type.type, "type", None), "names", ["?"])[-1]


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
        if whole := re.fullmatch(r"(0x[0-9a-f]+|0[0-7]*)[ul]*", bare):
            return sp.Integer(int(whole[1], 16 if "x" in whole[1] else 8))
        return sp.Rational(bare.rstrip("ful"))
    except (TypeError, ValueError):
        raise reader.refuse(f"the constant {text}") from None
