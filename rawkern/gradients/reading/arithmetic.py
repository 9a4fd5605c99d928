"""Operators and functions of numbers, and of pointers, while a kernel is read."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from rawkern.base.tree import text_of
from rawkern.gradients import types
from rawkern.gradients.ir import Block, If, Value
from rawkern.gradients.reading.accesses import LITERALS
from rawkern.gradients.reading.places import Local, Pointer, Var
from rawkern.gradients.reading.targets import Targets
from rawkern.gradients.rules import PAIRS, TESTS, rule_of, spelled


class Arithmetic(Targets):
    """What is computed with values at hand."""

    def scalar(self, node: Any) -> Value:
        """An expression that has to be a number."""
        return self.number(node, self.expression(node))

    def number(self, node: Any, found: Any) -> Value:
        """What an expression gave, if that is a number."""
        if not isinstance(found, Value):
            raise self.refuse(node, f"{text_of(node)!r} is used as a number", "write its elements one by one")
        return found

    def within_top(self, make: Any) -> Any:
        """Call with the names of the file's top only."""
        scopes, self.scopes = self.scopes, self.scopes[:1]
        try:
            return make()
        finally:
            self.scopes = scopes

    def halves(self, node: Any, kind: str, compute: Callable[..., Value], *args: Value) -> Value:
        """What is computed with a half-precision type: as float, and rounded; tests are of type bool."""
        found = compute(*(self.converted(node, a, "float") for a in args))
        return self.converted(node, found, kind) if found.type == "float" else found

    def as_pointer(self, found: Any) -> Any:
        """A local array as a pointer to its first element."""
        return Local(tuple(found.leaves())) if isinstance(found, Var) and found.fields and found.type is None else found

    def null(self, node: Any, found: Any, sign: str) -> Value:
        """Whether a pointer parameter is null."""
        if not isinstance(found, Pointer) or found.offset is not None or found.array.shared:
            raise self.refuse(node, f"the comparison {text_of(node)!r}", "compare a parameter with nullptr")
        return self.value(node, "bool", "special", attr=f"({found.array.name} {sign} nullptr)")

    def operate(self, node: Any, sign: str, a: Any, b: Any) -> Any:
        raise NotImplementedError

    def operated(self, node: Any, sign: str, args: Any) -> Any:
        raise NotImplementedError

    def given(self, node: Any) -> Any:
        raise NotImplementedError

    def taken(self, given: Any) -> Any:
        raise NotImplementedError

    def binary(self, node: Any, sign: str, a: Value, b: Value) -> Value:
        shift = sign in ("<<", ">>")
        kind = types.promoted(a.type) if shift else types.common(a.type, b.type)
        if types.is_float(kind) and sign not in ("+", "-", "*", "/", "<", ">", "<=", ">=", "==", "!="):
            raise self.refuse(node, f"the operator {sign} on {kind}", "write it in simpler terms")
        if sign not in ("+", "-", "*", "/", "%", "<<", ">>", "&", "|", "^", "<", ">", "<=", ">=", "==", "!="):
            raise self.refuse(node, f"the operator {sign} is not known", "write it in simpler terms")
        if kind in types.HALVES:
            if any(re.match(r"__CUDA_NO_(HALF|BFLOAT16)_", name) for name in self.file.preprocessed.macros):
                raise self.refuse(node, f"{sign} of {kind} without operators of it", "convert to float")
            if a.type != b.type:
                raise self.refuse(node, f"{sign} of {a.type} and {b.type}", "convert one to the other's type")
            return self.halves(node, kind, lambda x, y: self.binary(node, sign, x, y), a, b)
        a = self.converted(node, a, kind)
        b = self.converted(node, b, types.promoted(b.type) if shift else kind)
        test = sign in ("<", ">", "<=", ">=", "==", "!=")
        const = None
        if a.const is not None and b.const is not None and not types.is_float(kind):
            const = _folded(sign, a.const, b.const)
        if const is not None and not (0 if kind.startswith("unsigned") else -(2**31)) <= const < 2**31:
            const = None
        if const is not None and not test and a.op == b.op == "const" and kind in LITERALS:
            return self.value(node, kind, "const", attr=f"{const}{LITERALS[kind]}", const=const)
        if not types.is_float(kind) and (same := _unchanged(sign, a, b)) is not None:
            return same
        return self.value(node, "bool" if test else kind, "binary", (a, b), sign, const=const)

    def moved(self, node: Any, pointer: Any, by: Value, sign: str) -> Any:
        if isinstance(pointer, Local):
            if by.const is None:
                raise self.unrollable(node, "the offset into a local array is not known when deriving")
            width = 1 if pointer.view is None else types.count(pointer.view)
            return replace(pointer, at=pointer.at + (by.const if sign == "+" else -by.const) * width)
        array = pointer.array
        if types.is_float(by.type) or len(pointer.inner) < len(array.sizes) - 1:
            raise self.refuse(node, "this pointer arithmetic", "write an index")
        if types.bits(by.type) < 64 and by.type.startswith("unsigned") and sign == "-":
            by = self.converted(node, by, "long long")
        if pointer.unit:
            part = self.quotient(node, by, pointer.unit)
            if part is None:
                raise self.refuse(
                    node, "an offset that is no multiple of the size of what is read", "index whole elements"
                )
            by = part
        if pointer.view is not None:
            by = self.binary(node, "*", by, self.integer(node, types.count(pointer.view)))
        if sign == "-":
            by = self.value(node, by.type, "unary", (by,), "-")
        offset = by if pointer.offset is None else self.binary(node, "+", pointer.offset, by)
        return replace(pointer, offset=offset)

    def quotient(self, node: Any, value: Value, by: int) -> Value | None:
        if value.const is not None:
            return self.integer(node, value.const // by) if value.const % by == 0 else None
        if value.op == "cast" and not types.is_float(value.args[0].type) and types.bits(value.type) >= 32:
            return self.quotient(node, value.args[0], by)
        if value.op != "binary" or value.attr not in ("+", "*", "<<"):
            return None
        if value.attr == "+":
            parts = [self.quotient(node, a, by) for a in value.args]
            return None if None in parts else self.binary(node, "+", parts[0], parts[1])  # type: ignore[arg-type]
        if value.attr == "<<":
            scale = 1 << (value.args[1].const or 0)
            return self.binary(node, "*", value.args[0], self.integer(node, scale // by)) if scale % by == 0 else None
        for k in (1, 0):
            part = self.quotient(node, value.args[k], by)
            if part is not None and part.const == 1:
                return value.args[1 - k]
            if part is not None:
                return self.binary(node, "*", value.args[1 - k], part)
        return None

    def test(self, node: Any) -> Value:
        """Whether an expression is true; a pointer parameter is where it is not null."""
        found = self.expression(node)
        if isinstance(found, Pointer):
            return self.null(node, found, "!=")
        return self.truth(self.number(node, found))

    def truth(self, value: Value) -> Value:
        if types.is_float(value.type) or value.type == "bool":
            return self.converted(value.line, value, "bool")
        return self.binary(value.line, "!=", value, self.integer(value.line, 0))

    def within(self, block: Block, make: Any) -> Any:
        """Call with another block at hand."""
        outer, self.block = self.block, block
        try:
            return make()
        finally:
            self.block = outer

    def alone(self, block: Block, make: Any) -> tuple[Any, dict[Var, Any]]:
        """`within` for what may be left out when the kernel runs: also the variables that it gives new values."""
        leaves = self.leaves()
        before = [v.value for v in leaves]
        found = self.within(block, make)
        changed = {v: v.value for v, old in zip(leaves, before, strict=True) if v.value is not old}
        for var, old in zip(leaves, before, strict=True):
            var.value = old
        return found, changed

    def change(self, node: Any, made: If, then: dict[Var, Any], other: dict[Var, Any]) -> None:
        """Give variables that a side of a branch changes the value of the side that is taken."""
        for var in {**then, **other}:
            a, b = then.get(var, var.value), other.get(var, var.value)
            if a is b or a == b:
                var.value = a
                continue
            if not isinstance(a, Value) or not isinstance(b, Value):
                raise self.refuse(node, f"{var.name} changes within ?:, && or ||", "write an if")
            var.value = self.value(node, a.type, "result", attr=made, name=var.name)
            made.results.append((var.value, a, b))

    def leaves(self) -> list[Var]:
        raise NotImplementedError

    def math(self, node: Any, name: str, args: list[Value]) -> Value | None:
        """A call of a function of the table; None for one that is not there."""
        found = rule_of(name)
        if name in ("max", "min", "abs") and args and not any(types.is_float(a.type) for a in args):
            kind = args[0].type if len(args) == 1 else types.common(args[0].type, args[1].type)
            args = [self.converted(node, a, kind) for a in args]
            return self.value(node, kind, "call", tuple(args), name)
        if name in PAIRS and len(args) == 2:
            return self.value(node, PAIRS[name], "call", tuple(args), name)
        if name in TESTS and len(args) == 1:
            return self.value(node, TESTS[name], "call", tuple(args), name)
        if found is None:
            return None
        rule, kind = found
        if len(args) != len(rule.derivatives):
            raise self.refuse(node, f"{name} takes {len(rule.derivatives)} arguments", "see CUDA's manual")
        if kind is None:
            kinds = {a.type for k, a in enumerate(args) if k != rule.whole}
            kind = "float" if kinds == {"float"} else "double"
            if "double" not in kinds and kinds != {"float"}:
                if name in ("max", "min", "pow", "abs") or not kinds & {"float"}:
                    raise self.refuse(
                        node, f"{name} of {' and '.join(sorted(kinds))}", "convert the arguments to one floating type"
                    )
                raise self.refuse(node, f"{name} of {' and '.join(sorted(kinds))}", "convert the arguments to float")
        args = [self.converted(node, a, "int" if k == rule.whole else kind) for k, a in enumerate(args)]
        text = name if kind == "float" and name.startswith("__") else spelled(rule, kind)
        return self.value(node, kind, "call", tuple(args), (rule, text))


def _unchanged(sign: str, a: Value, b: Value) -> Value | None:
    """The operand that an operator on integers leaves as it is, with a literal 0 or 1 as the other: x + 0, x * 1."""
    left, right = (v.const if v.op == "const" else None for v in (a, b))
    if right == (1 if sign in ("*", "/") else 0) and sign in ("+", "-", "*", "/", "<<", ">>", "|", "^"):
        return a
    if left == (1 if sign == "*" else 0) and sign in ("+", "*", "|", "^"):
        return b
    return next((v for v, n in ((a, left), (b, right)) if n == 0 and sign in ("*", "&")), None)


def _folded(sign: str, a: int, b: int) -> int | None:
    """The result of an integer operator on what is known; None where C leaves it open."""
    if sign in "/%" and (b <= 0 or a < 0):
        return None
    if sign in ("<<", ">>") and not (0 <= b < 31 and a >= 0):
        return None
    if sign in ("&", "|", "^") and (a < 0 or b < 0):
        return None
    return int(_FOLDS[sign](a, b))


_FOLDS = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.floordiv, "%": operator.mod,
    "<<": operator.lshift, ">>": operator.rshift, "<": operator.lt, ">": operator.gt, "<=": operator.le,
    ">=": operator.ge, "==": operator.eq, "!=": operator.ne, "&": operator.and_, "|": operator.or_, "^": operator.xor,
}  # fmt: skip
