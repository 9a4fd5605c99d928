"""Arithmetic between numbers that means what C++ means: promotions, limits, overflow."""

from __future__ import annotations

from dataclasses import replace

from rawkern.extensions import types as t
from rawkern.extensions.types import LIMITS, Type
from rawkern.extensions.untranslated import NotTranslated
from rawkern.extensions.values import Value, converted


def _promoted(type_: Type) -> Type:
    if type_.kind == "bool" or type_.name in ("int8", "uint8", "int16", "uint16"):
        return t.INT
    return t.plain(type_)


def common(a: Type, b: Type) -> Type:
    """The type in which C++ computes with numbers of two types."""
    if "param" in (a.kind, b.kind):
        if a.kind == b.kind and a.name != b.name:
            raise NotTranslated(f"arithmetic between numbers of {a} and {b}")
        param, other = (a, b) if a.kind == "param" else (b, a)
        if other.kind == "float" and other.name == "float64":
            return t.DOUBLE
        if other.kind == "float":
            raise NotTranslated(f"arithmetic between a number of {param} and one of {other}; cast one of them")
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
        raise NotTranslated(f"arithmetic with numbers of {a} and {b}")
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
        raise NotTranslated(f"the operator {operator} on {type_}")
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


def _quotient(x: int, y: int) -> int:
    found = abs(x) // abs(y)
    return found if (x < 0) == (y < 0) else -found


def _integers(operator: str, type_: Type, a: Value, b: Value) -> Value:
    (la, ha), (lb, hb) = a.limits, b.limits
    if a.constant is not None and b.constant is not None and (operator not in "/%" or b.constant):
        exact = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__, "&": int.__and__, "|": int.__or__}
        exact |= {"^": int.__xor__, "/": _quotient}
        exact |= {"%": lambda x, y: x - y * _quotient(x, y)}
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
                code, low, high = f"({a.code} // {b.code})", (la // hb if hb else 0), ha // max(lb, 1)
            else:
                code, low, high = f"({a.code} % {b.code})", 0, min(ha, max(hb - 1, 0))
            if low == high and lb == 0:  # not a constant: it may be a division by zero
                return Value(f"{type_.name}{code}", type_)
            return Value(code, type_, low, high)
        bound = max(abs(la), abs(ha))
        low, high = (-bound if la < 0 or lb < 0 else 0), bound
        if operator == "%":
            most = max(abs(lb), abs(hb)) - 1
            beyond = la == LIMITS[type_.name][0] and lb <= -1 <= hb
            bits = f", {type_.name[3:]}" if beyond else ""
            return fitted(f"rem({a.code}, {b.code}{bits})", type_, -min(bound, most) if la < 0 else 0, min(bound, most))
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
        raise NotTranslated(f"the operator {operator} on {a.type}")
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
        raise NotTranslated(f"the sign of a value of {value.type}")
    type_ = _promoted(value.type)
    value = converted(value, type_)
    low, high = value.limits
    if value.constant is not None:
        shown = fitted(str(-value.constant), type_, -high, -low)
        return shown
    return fitted(f"(-{value.code})", type_, -high, -low)
