"""CUDA's functions of half precision: computed as float and rounded, so that the table of derivatives has them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from rawkern.base.tree import text_of
from rawkern.gradients import types
from rawkern.gradients.ir import Value
from rawkern.gradients.reading.places import Var
from rawkern.gradients.reading.views import Views
from rawkern.gradients.types import VECTORS, Aggregate

_SIGNS = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
_TESTS = {"gt": ">", "lt": "<", "ge": ">=", "le": "<=", "eq": "==", "ne": "!="}
_NAMED = {"max": "fmaxf", "min": "fminf", "fma": "fmaf", "abs": "fabsf"}
#: Behind h and h2.
_FUNCTIONS = ("exp", "exp2", "exp10", "log", "log2", "log10", "sqrt", "rsqrt", "sin", "cos", "tanh", "floor", "ceil",
              "trunc", "rint")  # fmt: skip
_OF_ONE = re.compile(r"h(2?)(\w+)\Z")
_OF_MANY = re.compile(r"__h(\w+?)(2?)(?:_rn)?\Z")
_TO_HALF = re.compile(r"__(?:float|double)2(half|bfloat16)(?:_rn)?\Z")
_TO_PAIR = re.compile(r"(?:__floats2(half|bfloat16)2_rn|__halves2(half|bfloat16)2|make_(half|bfloat16)2)\Z")
_TO_EQUAL = re.compile(r"(?:__float2(half|bfloat16)2_rn|__(half)2half2|__(bfloat16)2bfloat162)\Z")
_FROM_PAIR = re.compile(r"__(low|high)2(float|half|bfloat16)\Z")


class Halves(Views):
    """Calls of the functions of <cuda_fp16.h> and <cuda_bf16.h>."""

    def half_call(self, node: Any, name: str, args: Sequence[Any]) -> Any:
        """What such a function returns; None for others."""
        if name in ("__half2float", "__bfloat162float") and len(args) == 1:
            return self.converted(node, self._one(node, args[0]), "float")
        if (found := _TO_HALF.match(name)) and len(args) == 1:
            return self.converted(node, self._one(node, args[0]), _kind(found[1]))
        if name in ("__half22float2", "__bfloat1622float2") and len(args) == 1:
            return self._pair(node, VECTORS["float2"], *self._parts(node, args[0]))
        if name in ("__float22half2_rn", "__float22bfloat162_rn") and len(args) == 1:
            pair = VECTORS["__half2" if "half" in name else "__nv_bfloat162"]
            return self._pair(node, pair, *self._parts(node, args[0]))
        if (found := _TO_PAIR.match(name)) and len(args) == 2:
            return self._pair(node, VECTORS[_kind(found[1] or found[2] or found[3]) + "2"], *args)
        if (found := _TO_EQUAL.match(name)) and len(args) == 1:
            return self._pair(node, VECTORS[_kind(found[1] or found[2] or found[3]) + "2"], args[0], args[0])
        if (found := _FROM_PAIR.match(name)) and len(args) == 1:
            part = self._parts(node, args[0])[found[1] == "high"]
            return self.converted(node, part, "float" if found[2] == "float" else _kind(found[2]))
        return self._computed(node, name, args)

    def _computed(self, node: Any, name: str, args: Sequence[Any]) -> Any:
        one, many = _OF_ONE.match(name), _OF_MANY.match(name)
        if one is not None and (one[2] in _FUNCTIONS or one[2] == "rcp") and len(args) == 1:
            of = "rcp" if one[2] == "rcp" else f"{one[2]}f"
            return self._each(node, bool(one[1]), lambda a: self._by_name(node, of, [a]), args)
        if many is None:
            return None
        what, pairs = many[1], bool(many[2])
        if what in _SIGNS and len(args) == 2:
            return self._each(node, pairs, lambda a, b: self.binary(node, _SIGNS[what], a, b), args)
        if what in _TESTS and len(args) == 2 and not pairs:
            return self._each(node, False, lambda a, b: self.binary(node, _TESTS[what], a, b), args)
        if what == "neg" and len(args) == 1:
            return self._each(node, pairs, lambda a: self.value(node, "float", "unary", (a,), "-"), args)
        if what in _NAMED and len(args) == {"fma": 3, "abs": 1}.get(what, 2):
            return self._each(node, pairs, lambda *each: self._by_name(node, _NAMED[what], list(each)), args)
        return None

    def _by_name(self, node: Any, name: str, args: list[Value]) -> Value:
        if name == "rcp":
            return self.binary(node, "/", self.value(node, "float", "const", attr="1.0f"), args[0])
        found = self.math(node, name, args)
        assert found is not None, name
        return found

    def _each(self, node: Any, pairs: bool, compute: Callable[..., Value], args: Sequence[Any]) -> Any:
        """Compute with numbers of half precision, or with both parts of pairs."""
        if not pairs:
            values = [self._one(node, a) for a in args]
            kinds = {v.type for v in values}
            if len(kinds) != 1 or not kinds & set(types.HALVES):
                raise self.refuse(node, f"{text_of(node)!r} of {' and '.join(sorted(kinds))}", "convert the arguments")
            return self.halves(node, kinds.pop(), compute, *values)
        kind = args[0].type if isinstance(args[0], Var) else None
        parts = [self._parts(node, a) for a in args]
        if not isinstance(kind, Aggregate) or any(getattr(a, "type", None) != kind for a in args):
            raise self.refuse(node, f"{text_of(node)!r} of several types", "convert the arguments")
        half = parts[0][0].type
        return self._pair(node, kind, *(self.halves(node, half, compute, *each) for each in zip(*parts, strict=True)))

    def operate(self, node: Any, sign: str, a: Any, b: Any) -> Any:
        """An operator on pairs of half precision; None for others."""
        if not (isinstance(a, Var) and isinstance(b, Var) and sign in _SIGNS.values()):
            return None
        pairs = {VECTORS["__half2"], VECTORS["__nv_bfloat162"]}
        if a.type != b.type or a.type not in pairs:
            return None
        return self._each(node, True, lambda x, y: self.binary(node, sign, x, y), (a, b))

    def _one(self, node: Any, value: Any) -> Value:
        if not isinstance(value, Value):
            raise self.refuse(node, f"{text_of(node)!r} of what is no number", "pass a number")
        return value

    def _parts(self, node: Any, value: Any) -> list[Value]:
        if not isinstance(value, Var) or set(value.fields) != {"x", "y"}:
            raise self.refuse(node, f"{text_of(node)!r} of what is no pair", "pass a value of two numbers")
        return [self.read(node, part) for part in value.fields.values()]

    def _pair(self, node: Any, kind: Aggregate, x: Any, y: Any) -> Var:
        parts = {"x": self._one(node, x), "y": self._one(node, y)}
        return self.aggregate(kind.name, kind, lambda path, inner: self.converted(node, parts[path[0]], inner))


def _kind(name: str) -> str:
    return "__half" if name == "half" else "__nv_bfloat16"
