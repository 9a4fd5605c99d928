"""Values of C++ as expressions of Python: conversions, and arithmetic that means what C++ means."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from rawkern.extensions import types as t
from rawkern.extensions.types import LIMITS, Type
from rawkern.extensions.untranslated import NotTranslated

_EFFECTS = re.compile(r"[\w\]]\(|:=")  # a call, an assignment


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
    def limits(self) -> tuple[Any, Any]:
        low, high = LIMITS.get(self.type.name, (-math.inf, math.inf))
        return (low if self.low is None else self.low, high if self.high is None else self.high)

    @property
    def constant(self) -> int | None:
        """The value where it is known, and computing it neither changes nor raises anything."""
        known = self.low is not None and self.low == self.high and _EFFECTS.search(self.code) is None
        return self.low if known else None


def integer(number: int, type_: Type = t.INT) -> Value:
    return Value(repr(number), type_, number, number)


def ranged(code: str, type_: Type, low: float, high: float) -> Value:
    """An integer between limits, as far as its type has them."""
    least, most = LIMITS[type_.name]
    return Value(code, type_, int(max(low, least)), int(min(high, most)))


def options_code(value: Value) -> str:
    """Tensor options as a dict; the code of any other value."""
    if value.options is None:
        return value.code
    if value.code and not value.options:
        return value.code
    parts = [f"**{value.code}"] if value.code else []
    return "{" + ", ".join([*parts, *(f"{key!r}: {code}" for key, code in value.options.items())]) + "}"


def copy_of(value: Value, made: Value) -> str:
    """The code of a value that was made of another one; a copy of what C++ copies, where that is still the other."""
    if not value.lvalue or value.code != made.code:
        return made.code
    kind, item = value.type.kind, value.type.item.kind
    if kind == "map":
        return f"copied({made.code})" if any(one.kind in _PARTS for one in value.type.of) else f"dict({made.code})"
    if kind == "vector" and item not in _PARTS:
        return f"list({made.code})"
    return f"copied({made.code})" if kind in _PARTS and _has_parts(value.type) else made.code


#: Kinds of values that have parts, which may be changed.
_PARTS = ("vector", "array", "tuple", "map", "struct", "cuda_vector", "any")


def _has_parts(type_: Type) -> bool:
    return type_.kind in _PARTS and (type_.kind not in ("tuple", "any") or any(map(_has_parts, type_.of)))


def typed(value: Value) -> str:
    """The code of a pointer of `data_ptr<T>()` where no kernel's parameter checks that the tensor is one of T."""
    item = value.type.item
    made = value.code.startswith(("pointer(", "allocated(", "typed(")) or value.code == "None"
    if value.type.kind != "pointer" or not item.number or made or "vector" in (value.type.name, value.extra):
        return value.code
    return f"typed({value.code}, {item.name if item.kind == 'param' else repr(item.spelled or t.TEXTS[item.name])})"


def array_of(item: Type, count: str) -> Value:
    """An array of numbers on the heap."""
    return Value(f"[{t.ZEROS[item.kind]}] * {count}", Type("pointer", "vector", (item,)), extra="vector")


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
        own = value.type.name
        if own.startswith("u") and high > LIMITS[own[1:]][1]:  # the same bits as a signed number, -1 among them
            inner = Value(f"signed({value.code}, {own[4:]})", Type("int", own[1:]))
            return replace(_to_int(inner, to), lvalue=False)
        kept = (max(low, least), min(high, most)) if least < 0 else (None, None)
        kept = (None, None) if kept[0] == kept[1] else kept
        return Value(f"{to.name}({value.code})", to, *kept)
    if kind in ("float", "param", "scalar"):
        return Value(f"{to.name}({value.code})", to)
    if kind in ("any", "dtype", "device_type", "kernel", "index", "opaque"):
        return Value(value.code, to)
    if (
        kind == "pointer"
        and LIMITS[to.name][1] >= LIMITS["int64"][1]
        and "vector" not in (value.type.name, value.extra)
    ):
        return Value(f"memory_address({value.code})", to, 0, LIMITS["int64"][1])
    raise NotTranslated(f"a conversion from {value.type} to {to}")


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
    raise NotTranslated(f"a conversion from {value.type} to {to}")


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
    if kind in ("optional", "string"):  # std::string is not a condition, a pointer to characters is
        return Value(f"({value.code} is not None)", to)
    if kind == "tensor":
        raise NotTranslated("a tensor as a condition")
    raise NotTranslated(f"a value of {value.type} as a condition")


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
    raise NotTranslated(f"a conversion from {value.type} to a tensor")


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
            return Value(copy_of(replace(one, lvalue=True), one), to)
    if value.items is not None:
        codes = [copy_of(one, converted(one, to.item)) for one in value.items]
        if to.name.isdigit() and len(codes) < int(to.name):  # std::array: zeros after them
            zero = t.ZEROS.get(to.item.kind)
            if zero is None or to.item.kind in _PARTS or to.item.kind == "string":
                raise NotTranslated(f"an array of {to.item} with fewer values than elements")
            codes += [zero] * (int(to.name) - len(codes))
        return Value(f"[{', '.join(codes)}]", to)
    if value.type.kind == "vector":
        return Value(copy_of(value, value), to)
    if value.type.kind in ("sizes", "list"):
        return Value(f"list({value.code})", to)
    if value.type.kind == "any":
        return Value(value.code, to)
    if value.type.kind == "tensor":
        return Value(f"[{value.code}]", to)
    raise NotTranslated(f"a conversion from {value.type} to {to}")


def _to_sizes(value: Value, to: Type) -> Value:
    if value.items is not None:
        inside = ", ".join(converted(one, t.INT64).code for one in value.items)
        return Value(f"({inside}{',' if len(value.items) == 1 else ''})", to)
    if value.type.integral:
        return Value(f"({value.code},)", to)
    if value.type.kind in ("sizes", "vector", "any") or (value.type.kind == "array" and value.type.item.integral):
        return Value(value.code, to)
    raise NotTranslated(f"a conversion from {value.type} to a list of sizes")


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
        raise NotTranslated(f"a list as a {to}")
    if value.type.kind == "struct" and value.type.struct != to.struct:
        raise NotTranslated(f"a conversion from {value.type} to {to}")
    return Value(f"copied({value.code})", to) if value.lvalue else value


def _to_pointer(value: Value, to: Type) -> Value:
    kind = value.type.kind
    if kind in ("null", "nothing") or value.constant == 0:
        return Value("None", to)
    if kind == "pointer" and to.item.kind == "void":
        return Value(typed(value), to, extra=value.extra)
    if kind in ("pointer", "any", "kernel"):
        return Value(
            value.code, value.type if kind == "kernel" or value.type.name == "vector" else to, extra=value.extra
        )
    if kind == "array" and value.type.item == to.item:
        return Value(value.code, Type("pointer", "vector", to.of), extra="vector")
    raise NotTranslated(f"a conversion from {value.type} to {to}")


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
            raise NotTranslated("a map made in this way")
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
