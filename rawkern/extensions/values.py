"""Values of C++ as expressions of Python: conversions, and arithmetic that means what C++ means."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from rawkern.extensions import types as t
from rawkern.extensions.refusal import Refused
from rawkern.extensions.types import LIMITS, Type


@dataclass(frozen=True)
class Value:
    """An expression of Python with the type it has in C++, and limits of its integer value where they are known."""

    code: str
    type: Type
    low: int | None = None
    high: int | None = None
    options: Mapping[str, str] | None = None  # of tensor options: keyword and its code
    items: tuple[Value, ...] | None = None  # of a list in braces
    lvalue: bool = False  # it has a name: what takes it by value copies it
    extra: Any = field(default=None, compare=False)

    @property
    def limits(self) -> tuple[int, int]:
        low, high = LIMITS.get(self.type.name, (-math.inf, math.inf))
        return (low if self.low is None else self.low, high if self.high is None else self.high)

    @property
    def constant(self) -> int | None:
        return self.low if self.low is not None and self.low == self.high else None


def integer(number: int, type_: Type = t.INT) -> Value:
    return Value(repr(number), type_, number, number)


def ranged(code: str, type_: Type, low: float, high: float) -> Value:
    """An integer between limits, as far as its type has them."""
    least, most = LIMITS[type_.name]
    return Value(code, type_, int(max(low, least)), int(min(high, most)))


# Conversions ----------------------------------------------------------------------------------------------------


def converted(value: Value, to: Type) -> Value:
    """A value as one of a type, as C++ converts it without a cast."""
    function = _CONVERSIONS.get(to.kind)
    if function is None or value.type.kind == "auto":
        return value
    if value.items is not None and to.kind in ("int", "float", "bool", "tensor", "pointer") and len(value.items) < 2:
        if not value.items:
            zero = {"int": "0", "float": "0.0", "bool": "False"}.get(to.kind, "None")
            return Value(zero, to, 0, 0) if to.kind == "int" else Value(zero, to)
        value = value.items[0]
    return function(value, to)


def _to_int(value: Value, to: Type) -> Value:
    kind = value.type.kind
    if kind == "bool":
        return Value(f"int({value.code})", to, 0, 1)
    if kind == "int":
        low, high = value.limits
        least, most = LIMITS[to.name]
        if least <= low and high <= most:
            return replace(value, type=to, low=low, high=high, lvalue=False)
        if value.constant is not None:
            wrapped = (value.constant - least) % (most - least + 1) + least
            return integer(wrapped, to)
        if low >= 0 and high > most and least == 0:
            return Value(f"{to.name}({value.code})", to)
        kept = (max(low, least), min(high, most)) if least < 0 else (None, None)
        kept = (None, None) if kept[0] == kept[1] else kept
        return Value(f"{to.name}({value.code})", to, *kept)
    if kind in ("float", "param", "scalar"):
        return Value(f"{to.name}({value.code})", to)
    if kind in ("any", "dtype", "device_type", "kernel", "index", "opaque"):
        return Value(value.code, to)
    raise Refused(f"a conversion from {value.type} to {to}")


def _exact(code: str) -> bool:
    """Whether a literal has the same value in single precision."""
    try:
        number = float(code)
        return struct.unpack("f", struct.pack("f", number))[0] == number
    except (ValueError, OverflowError):
        return False


def _to_float(value: Value, to: Type) -> Value:
    kind = value.type.kind
    if to.name not in ("float32", "float64"):
        if value.type.name == to.name:
            return value
        return Value(f"convert({to.spelled!r}, {value.code})", to)
    if kind in ("int", "bool"):
        low, high = value.limits
        if value.constant is not None and _exact(str(value.constant)):
            return Value(repr(float(value.constant)), to)
        exact = max(abs(low), abs(high)) <= 2 ** (24 if to.name == "float32" else 53)
        return Value(f"{'float' if exact or to.name == 'float64' else 'float32'}({value.code})", to)
    if kind == "float":
        wide = value.type.name == "float64"
        if to.name == "float64" or not wide:
            return replace(value, type=to, lvalue=False)
        return Value(value.code, to) if _exact(value.code) else Value(f"float32({value.code})", to)
    if kind in ("param", "scalar", "any"):
        return Value(f"{'float32' if to.name == 'float32' else 'float'}({value.code})", to)
    raise Refused(f"a conversion from {value.type} to {to}")


def _to_bool(value: Value, to: Type) -> Value:
    kind = value.type.kind
    if kind in ("bool", "any"):
        return value
    if kind == "int" and value.constant is not None:
        return Value(str(value.constant != 0), to)
    if kind in ("int", "float", "param", "scalar"):
        return Value(f"({value.code} != 0)", to)
    if kind in ("pointer", "null"):
        return Value(f"(not is_null({value.code}))", to)
    if kind == "optional":
        return Value(f"({value.code} is not None)", to)
    if kind == "tensor":
        raise Refused("a tensor as a condition")
    raise Refused(f"a value of {value.type} as a condition")


def _to_param(value: Value, to: Type) -> Value:
    if value.type == to or (value.type.kind == "param" and value.type.name == to.name):
        return value
    return Value(f"convert({to.name}, {value.code})", to)


def _to_tensor(value: Value, to: Type) -> Value:
    kind = value.type.kind
    if kind in ("tensor", "any"):
        return value
    if kind in ("nothing", "null"):
        return Value("None", to)
    if kind == "scalar" or value.type.number:
        return Value(f"torch.as_tensor({value.code})", to)
    raise Refused(f"a conversion from {value.type} to a tensor")


def _to_optional(value: Value, to: Type) -> Value:
    if value.type.kind in ("optional", "any"):
        return Value(value.code, to)
    if value.type.kind in ("nothing", "null") or (value.items is not None and not value.items):
        return Value("None", to)
    return Value(converted(value, to.item).code, to)


def _to_vector(value: Value, to: Type) -> Value:
    if value.items is not None and len(value.items) == 1:
        one = value.items[0]
        if one.type.kind == "vector" and to.item.kind != "vector":  # a copy of a vector
            return Value(f"list({one.code})", to)
    if value.items is not None:
        return Value(f"[{', '.join(converted(one, to.item).code for one in value.items)}]", to)
    if value.type.kind in ("sizes", "vector", "list"):
        return Value(f"list({value.code})" if value.lvalue or value.type.kind != "vector" else value.code, to)
    if value.type.kind == "any":
        return Value(value.code, to)
    if value.type.kind == "tensor":
        return Value(f"[{value.code}]", to)
    raise Refused(f"a conversion from {value.type} to {to}")


def _to_sizes(value: Value, to: Type) -> Value:
    if value.items is not None:
        inside = ", ".join(converted(one, t.INT64).code for one in value.items)
        return Value(f"({inside}{',' if len(value.items) == 1 else ''})", to)
    if value.type.integral:
        return Value(f"({value.code},)", to)
    if value.type.kind in ("sizes", "vector", "any"):
        return Value(value.code, to)
    raise Refused(f"a conversion from {value.type} to a list of sizes")


def _to_tuple(value: Value, to: Type) -> Value:
    if value.items is not None:
        if to.of and len(to.of) == len(value.items):
            codes = [converted(one, of).code for one, of in zip(value.items, to.of, strict=True)]
        else:
            codes = [one.code for one in value.items]
        return Value(f"({', '.join(codes)}{',' if len(codes) == 1 else ''})", to)
    return Value(value.code, to)


def _to_dim3(value: Value, to: Type) -> Value:
    if value.items is not None:
        return Value(f"dim3({', '.join(converted(one, t.UINT).code for one in value.items)})", to)
    if value.type.kind == "dim3":
        return value
    return Value(f"dim3({converted(value, t.UINT).code})", to)


def _to_device(value: Value, to: Type) -> Value:
    if value.type.kind == "device_type":
        return Value("cuda_device()" if value.code == "'cuda'" else f"torch.device({value.code})", to)
    return value


def _to_struct(value: Value, to: Type) -> Value:
    if value.items is not None:
        return Value(f"{to.name}({', '.join(one.code for one in value.items)})", to)
    return Value(f"copied({value.code})", to) if value.lvalue else value


def _to_pointer(value: Value, to: Type) -> Value:
    kind = value.type.kind
    if kind in ("null", "nothing") or value.constant == 0:
        return Value("None", to)
    if kind in ("pointer", "any", "kernel"):
        return Value(value.code, value.type if kind == "kernel" else to, extra=value.extra)
    if kind == "array":
        return Value(value.code, to)
    raise Refused(f"a conversion from {value.type} to {to}")


def _to_options(value: Value, to: Type) -> Value:
    if value.items is not None:
        parts: dict[str, str] = {}
        for one in value.items:
            parts |= _to_options(one, to).options or {}
        return Value("", to, options=parts)
    if value.type.kind == "dtype":
        return Value("", to, options={"dtype": value.code})
    if value.type.kind == "device":
        return Value("", to, options={"device": value.code})
    if value.type.kind == "device_type":
        return Value("", to, options={"device": _to_device(value, t.DEVICE).code})
    return value


def _to_map(value: Value, to: Type) -> Value:
    if value.items is None:
        return Value(f"dict({value.code})", to)
    pairs = []
    for one in value.items:
        if one.items is None or len(one.items) != 2:
            raise Refused("a map made in this way")
        pairs.append(": ".join(converted(each, of).code for each, of in zip(one.items, to.of, strict=True)))
    return Value("{" + ", ".join(pairs) + "}", to)


def _to_vec(value: Value, to: Type) -> Value:
    if value.items is not None:
        item = t.cuda_vector_item(to.name)
        return Value(f"Vector({', '.join(converted(one, item).code for one in value.items)})", to)
    return Value(f"copied({value.code})", to) if value.lvalue else value


_CONVERSIONS = {
    "int": _to_int, "float": _to_float, "bool": _to_bool, "param": _to_param, "tensor": _to_tensor,
    "optional": _to_optional, "vector": _to_vector, "sizes": _to_sizes, "tuple": _to_tuple, "dim3": _to_dim3,
    "device": _to_device, "struct": _to_struct, "pointer": _to_pointer, "options": _to_options,
    "cuda_vector": _to_vec, "map": _to_map,
}  # fmt: skip


# Arithmetic ------------------------------------------------------------------------------------------------------


def _promoted(type_: Type) -> Type:
    if type_.kind == "bool" or type_.name in ("int8", "uint8", "int16", "uint16"):
        return t.INT
    return t.plain(type_)


def common(a: Type, b: Type) -> Type:
    """The type in which C++ computes with numbers of two types."""
    if "param" in (a.kind, b.kind):
        if a.kind == b.kind and a.name != b.name:
            raise Refused(f"arithmetic between numbers of {a} and {b}")
        param, other = (a, b) if a.kind == "param" else (b, a)
        if other.kind == "float" and other.name == "float64":
            return t.DOUBLE
        if other.kind == "float":
            raise Refused(f"arithmetic between a number of {param} and one of {other}; cast one of them")
        return t.plain(param)
    if "float" in (a.kind, b.kind):
        names = {one.name for one in (a, b) if one.kind == "float"}
        if "float64" in names:
            return t.DOUBLE
        if names == {"float32"} or len(names) > 1:
            return t.FLOAT
        return next(t.plain(one) for one in (a, b) if one.kind == "float")
    a, b = _promoted(a), _promoted(b)
    order = ["int32", "uint32", "int64", "uint64"]
    if a.name not in order or b.name not in order:
        raise Refused(f"arithmetic with numbers of {a} and {b}")
    return Type("int", order[max(order.index(a.name), order.index(b.name))])


def fitted(code: str, type_: Type, low: float, high: float) -> Value:
    """The result of integer arithmetic between limits: checked or wrapped where it may leave its type."""
    least, most = LIMITS[type_.name]
    if least <= low and high <= most:
        return Value(code, type_, int(low), int(high))
    if least == 0:
        return Value(f"{type_.name}({code})", type_)
    low, high = int(max(low, least)), int(min(high, most))
    if low == high:  # the only value that is none too large; the check has to stay
        return Value(f"{type_.name}({code})", type_)
    return Value(f"{type_.name}({code})", type_, low, high)


def arithmetic(operator: str, a: Value, b: Value) -> Value:
    """``a + b`` and the like between numbers."""
    type_ = common(a.type, b.type)
    if operator in ("<<", ">>"):
        return _shift(operator, a, b)
    if operator in ("&", "|", "^", "%") and type_.kind != "int":
        raise Refused(f"the operator {operator} on {type_}")
    a, b = converted(a, type_), converted(b, type_)
    if type_.kind == "int":
        return _integers(operator, type_, a, b)
    code = f"({a.code} {operator} {b.code})"
    if type_.kind == "param":
        return Value(f"convert({type_.name}, {f'div({a.code}, {b.code})' if operator == '/' else code})", type_)
    if operator == "/":
        zero = not _nonzero(b.code)
        code = f"divide({a.code}, {b.code})" if zero else code
    if type_.name == "float64":
        return Value(code, type_)
    return Value(f"float32({code})" if type_.name == "float32" else f"convert({type_.spelled!r}, {code})", type_)


def _nonzero(code: str) -> bool:
    try:
        return float(code) != 0
    except ValueError:
        return False


def _integers(operator: str, type_: Type, a: Value, b: Value) -> Value:
    (la, ha), (lb, hb) = a.limits, b.limits
    if a.constant is not None and b.constant is not None and (operator not in "/%" or b.constant):
        exact = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__, "&": int.__and__, "|": int.__or__}
        exact |= {"^": int.__xor__, "/": lambda x, y: int(math.trunc(x / y)) if abs(x) < 2**52 else x // y}
        exact |= {"%": lambda x, y: int(math.fmod(x, y))}
        number = exact[operator](a.constant, b.constant)
        shown = fitted(str(number), type_, number, number)
        if shown.code == str(number):
            symbol = "//" if operator == "/" else operator
            literal = a.code.lstrip("-").isdigit() and b.code.lstrip("-").isdigit()
            plain = operator not in "/%" or (la >= 0 and lb > 0)
            return shown if literal or not plain else replace(shown, code=f"({a.code} {symbol} {b.code})")
    if operator == "+":
        return fitted(f"({a.code} + {b.code})", type_, la + lb, ha + hb)
    if operator == "-":
        return fitted(f"({a.code} - {b.code})", type_, la - hb, ha - lb)
    if operator == "*":
        ends = (la * lb, la * hb, ha * lb, ha * hb)
        return fitted(f"({a.code} * {b.code})", type_, min(ends), max(ends))
    if operator in "/%":
        if la >= 0 and lb >= 0:
            if operator == "/":
                return Value(f"({a.code} // {b.code})", type_, la // hb if hb else 0, ha // max(lb, 1))
            return Value(f"({a.code} % {b.code})", type_, 0, min(ha, max(hb - 1, 0)))
        bound = max(abs(la), abs(ha))
        low, high = (-bound if la < 0 or lb < 0 else 0), bound
        if operator == "%":
            most = max(abs(lb), abs(hb)) - 1
            return fitted(f"rem({a.code}, {b.code})", type_, -min(bound, most) if la < 0 else 0, min(bound, most))
        return fitted(f"div({a.code}, {b.code})", type_, low, high)
    code = f"({a.code} {operator} {b.code})"
    if la >= 0 and lb >= 0:
        high = min(ha, hb) if operator == "&" else (1 << max(ha.bit_length(), hb.bit_length())) - 1
        return Value(code, type_, 0, high)
    if operator == "&" and (la >= 0 or lb >= 0):
        return Value(code, type_, 0, ha if la >= 0 else hb)
    return Value(code, type_)


def _shift(operator: str, a: Value, b: Value) -> Value:
    type_ = _promoted(a.type)
    if type_.kind != "int" or not b.type.integral:
        raise Refused(f"the operator {operator} on {a.type}")
    a = converted(a, type_)
    (la, ha), (lb, hb) = a.limits, b.limits
    bits = 64 if type_.name.endswith("64") else 32
    if lb < 0 or hb >= bits:
        b = Value(f"shift({b.code}, {bits})", b.type, 0, bits - 1)
        lb, hb = 0, bits - 1
    if operator == ">>":
        return Value(f"({a.code} >> {b.code})", type_, min(la, la >> lb, la >> hb), max(ha >> lb, ha))
    ends = (la << lb, la << hb, ha << lb, ha << hb)
    return fitted(f"({a.code} << {b.code})", type_, min(ends), max(ends))


def compared(operator: str, a: Value, b: Value) -> Value:
    """``a < b`` and the like between numbers."""
    type_ = common(a.type, b.type) if a.type.kind != "bool" or b.type.kind != "bool" else t.BOOL
    if type_.kind == "int":
        a, b = converted(a, type_), converted(b, type_)
        known = _decided(operator, a, b)
        if known is not None:
            return Value(str(known), t.BOOL)
    elif type_.kind == "float" and type_.name == "float32":
        a, b = (converted(one, type_) if one.type.kind == "int" else one for one in (a, b))
    return Value(f"({a.code} {operator} {b.code})", t.BOOL)


def _decided(operator: str, a: Value, b: Value) -> bool | None:
    """What a comparison comes to where both numbers are known."""
    if a.constant is None or b.constant is None:
        return None
    x, y = a.constant, b.constant
    return {"==": x == y, "!=": x != y, "<": x < y, ">": x > y, "<=": x <= y, ">=": x >= y}[operator]


def negative(value: Value) -> Value:
    """``-a``."""
    if value.type.kind == "tensor":
        return Value(f"(-{value.code})", t.TENSOR)
    if value.type.kind == "float":
        return Value(f"-{value.code}" if _nonzero(value.code) else f"(-{value.code})", value.type)
    if value.type.kind == "param":
        return Value(f"convert({value.type.name}, -{value.code})", value.type)
    if not value.type.integral:
        raise Refused(f"the sign of a value of {value.type}")
    type_ = _promoted(value.type)
    value = converted(value, type_)
    low, high = value.limits
    if value.constant is not None:
        shown = fitted(str(-value.constant), type_, -high, -low)
        return shown
    return fitted(f"(-{value.code})", type_, -high, -low)
