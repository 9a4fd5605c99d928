"""Device functions that stay functions: those that compute a number from numbers, whatever calls them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rawkern.errors import NotDifferentiable
from rawkern.gradients import types
from rawkern.gradients.ir import Array, Block, Function, If, Place, Store, Value, inside, operands, walk
from rawkern.gradients.reading.overloads import Overloads, name_of
from rawkern.gradients.reading.places import Given, NeedsStart, NeedsType, NeedsUnrolling, OfLoop
from rawkern.gradients.reading.syntax import parameters_of, words
from rawkern.gradients.rules import PAIRS, TESTS, Rule

_PURE = ("const", "param", "unary", "binary", "cast", "call", "select", "result")
_OF_INTEGERS = {*PAIRS, *TESTS, "max", "min", "abs"}
_BOUNDS = ("fmax", "fmin")  # whose ties the caller decides, by what it passes


class Kept(Overloads):
    """Calls that stay calls."""

    keep: bool  # whether any do
    own: dict[str, Function | None]  # by name; None: put in where they are called
    asked: bool

    def as_call(self, node: Any, name: str, function: tuple[Any, Any], args: Sequence[Given]) -> Value | None:
        """The call of a function that stays one; None if it is put in.

        A variable that a loop carries on is told by what happens to it, so it does not go into a function that way.
        """
        definition, template = function
        if not self.keep or template is not None or len(self.file.functions[name]) > 1 or "::" in name:
            return None
        if name not in self.own:
            self.own[name] = None  # if it calls itself
            understood = self._understood(node, name, definition)
            del self.own[name]  # after those that it calls
            self.own[name] = understood
        found = self.own[name]
        if found is None or len(args) != len(found.params):
            return None
        values = [arg.found for arg in args]
        if not all(isinstance(v, Value) for v in values):
            return None
        floats = [v for v, (_, kind) in zip(values, found.params, strict=True) if types.is_float(kind)]
        if any(v.op == "phi" for v in floats) or all(v.op == "const" for v in floats):
            return None
        given = tuple(self.converted(node, v, kind) for v, (_, kind) in zip(values, found.params, strict=True))
        return self.value(node, found.type, "call", given, (found, name))

    def _understood(self, node: Any, name: str, definition: Any) -> Function | None:
        """What a function computes, if that is a number from numbers alone."""
        params: list[tuple[str, str]] = []
        names, self.type_names = self.type_names, {}
        try:
            for param in parameters_of(definition):
                declarator, called = param.child_by_field_name("declarator"), name_of(param)
                kind = self.type_of(param.child_by_field_name("type"))
                plain = declarator is not None and declarator.type == "identifier" and not words(param) - {"const"}
                if not plain or called is None or not isinstance(kind, str) or kind in types.HALVES:
                    return None
                params.append((called, kind))
            body = Block()
            result = self.tried(lambda: self._result(node, name, definition, params, body))
        except (NotDifferentiable, NeedsUnrolling, NeedsStart, NeedsType, OfLoop):
            return None
        finally:
            self.type_names = names
        if not isinstance(result, Value) or result.type not in ("float", "double") or not _numbers_alone(body, result):
            return None
        floats = sum(types.is_float(kind) for _, kind in params)
        bounds = any(isinstance(i, Value) and i.op == "call" and i.attr[0].name in _BOUNDS
                     for i in walk(body) if not isinstance(getattr(i, "attr", None), str))  # fmt: skip
        if not floats or (bounds and floats > 1):
            return None
        out = Array(name, result.type)
        zero = Value(result.line, body, type="int", op="const", attr="0", const=0)
        body.items += [zero, Store(result.line, body, place=Place(out), index=(zero,), value=result)]
        return Function(name, result.type, tuple(params), body, result)

    def _result(self, node: Any, name: str, definition: Any, params: list[tuple[str, str]], body: Block) -> Any:
        self.block = body
        args = [Given(node, self.value(node, kind, "param", attr=n, name=n)) for n, kind in params]
        return self.put_in(node, name, (definition, None), args)

    # Of `Functions` and `Accesses`.
    def put_in(self, node: Any, name: str, function: tuple[Any, Any], args: Sequence[Given]) -> Any: ...
    def tried(self, make: Any) -> Any: ...


def _numbers_alone(body: Block, result: Value) -> bool:
    """Whether what is computed there is computed from the parameters alone, and nothing else happens."""
    for item in walk(body):
        if isinstance(item, Value):
            known = not isinstance(item.attr, str) or item.op != "call" or item.attr in _OF_INTEGERS
            if item.op not in _PURE or item.type in types.HALVES or not known:
                return False
            if item.op == "call" and not isinstance(item.attr, str) and not isinstance(item.attr[0], Rule | Function):
                return False
        elif not isinstance(item, If):
            return False
        if not all(a.op == "const" or inside(a.block, body) for a in operands(item)):
            return False
    return result.op == "const" or inside(result.block, body)
