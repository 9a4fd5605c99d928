"""What is made of values in parentheses or braces, and of none."""

from __future__ import annotations

from typing import Any

from rawkern.extensions import types as t
from rawkern.extensions.context import Context, short
from rawkern.extensions.elements import python_field, struct_of
from rawkern.extensions.iterators import part_of
from rawkern.extensions.program import Struct
from rawkern.extensions.refusal import Refused
from rawkern.extensions.types import Type
from rawkern.extensions.values import Value, converted


def default_of(f: Context, node: Any, type_: Type) -> Value:
    """The value of a variable that is declared without one."""
    defaults = t.ZEROS | {
        "text": "''", "optional": "None", "dim3": "dim3()", "tuple": "None", "dtype": "None", "stream": "None",
        "scalar": "0", "device": "None", "kernel": "None", "options": "{}", "sizes": "()",
    }  # fmt: skip
    if type_.kind == "struct":
        _refuse_special(f, node, type_)
        return Value(f"{type_.name}()", type_)
    if type_.kind == "properties":
        return Value("device_properties()", type_)
    if type_.kind == "cuda_vector":
        return Value(f"Vector({', '.join(['0'] * int(type_.name[-1]))})", type_)
    if type_.kind == "param":
        return Value(f"convert({type_.name}, 0)", type_)
    if type_.kind == "vector" and type_.name.isdigit():  # std::array
        inner = default_of(f, node, type_.item).code
        code = (
            f"[{inner} for _ in range({type_.name})]" if "(" in inner or "[" in inner else f"[{inner}] * {type_.name}"
        )
        return Value(code, type_)
    if type_.kind in defaults:
        return Value(defaults[type_.kind], type_)
    if type_.kind == "opaque":
        return Value("{}", type_)  # an object of a struct without members, such as a functor
    raise Refused(f"`{short(node)}`: a variable of {type_}", node)


def construct(f: Context, node: Any, type_: Type, values: list[Value], *, braces: bool = False) -> Value:
    """``T x(a, b)`` or ``T{a, b}``."""
    kind = type_.kind
    if kind == "dim3":
        if len(values) == 1 and values[0].type.kind == "dim3":
            return values[0]
        return Value(f"dim3({', '.join(converted(one, t.UINT).code for one in values)})", t.DIM3)
    if kind == "vector":
        return _vector(f, node, type_, values, braces)
    if kind == "sizes" and len(values) == 1:
        return converted(values[0], type_)
    if kind in ("struct", "cuda_vector"):
        if len(values) == 1 and values[0].type.kind == kind and values[0].items is None:
            return converted(values[0], type_)
        if kind == "cuda_vector":
            return converted(Value("", Type("list"), items=tuple(values)), type_)
        return _struct(f, node, type_, values)
    if kind == "tensor_arg" and len(values) == 3:
        return Value(f"({', '.join(one.code for one in values)})", type_)
    if kind == "tuple":
        return converted(Value("", Type("list"), items=tuple(values)), type_)
    if not values:
        return default_of(f, node, type_)
    if kind == "auto":
        return values[0]
    if kind == "options":
        return converted(values[0], type_)
    if kind == "string":
        return values[0]
    if kind == "device":
        if values[0].type.kind == "string":
            return Value(f"torch.device({values[0].code})", type_)
        if len(values) == 2:
            index = values[1].code
            return Value(
                f"cuda_device({index})" if values[0].code == "'cuda'" else f"torch.device({values[0].code})", type_
            )
        return converted(values[0], type_)
    if len(values) == 1:
        return converted(values[0], type_)
    if kind == "opaque" and not values:
        return Value("{}", type_)
    raise Refused(f"`{short(node)}`: a value of {type_} from {len(values)}", node)


def _vector(f: Context, node: Any, type_: Type, values: list[Value], braces: bool) -> Value:
    if braces:
        return converted(Value("", Type("list"), items=tuple(values)), type_)
    if not values:
        return Value("[]", type_)
    if len(values) == 1 and values[0].items is not None:
        return converted(values[0], type_)
    if len(values) == 1 and values[0].type.kind in ("vector", "sizes", "tuple", "list"):
        return converted(values[0], type_)
    if values[0].type.kind == "iterator" and len(values) == 2:
        return Value(f"list({part_of(values[0], values[1])})", type_)
    if values[0].type.integral and len(values) <= 2:
        fill = converted(values[1], type_.item).code if len(values) == 2 else default_of(f, node, type_.item).code
        if type_.item.kind in ("vector", "struct", "tuple"):
            return Value(f"[{fill} for _ in range({values[0].code})]", type_)
        return Value(f"[{fill}] * {values[0].code}", type_)
    raise Refused(f"`{short(node)}`: a vector made in this way", node)


def _refuse_special(f: Context, node: Any, type_: Type) -> None:
    struct = struct_of(f, type_)
    bases: list[Struct] = []
    while struct is not None and struct not in bases:
        bases.append(struct)
        if struct.special:
            raise Refused(f"`{short(node)}`: the struct {struct.name}, which {struct.special}", node)
        for of in struct.fields.values():
            while of.kind == "array":
                of = of.item
            if of.kind == "struct":
                _refuse_special(f, node, of)
        struct = f.unit.structs.get(struct.base)


def _struct(f: Context, node: Any, type_: Type, values: list[Value]) -> Value:
    _refuse_special(f, node, type_)
    struct = struct_of(f, type_)
    if struct is None or (struct.parameters and values):
        raise Refused(f"`{short(node)}`: a struct of a template from a list", node)
    if struct.refused and values:
        raise Refused(f"the struct {struct.name}: {struct.refused}", node)
    if struct.base and values:
        raise Refused(f"`{short(node)}`: a struct with a base from a list", node)
    fields = list(struct.fields.items())
    codes = [f"{python_field(name)}={converted(one, of).code}" for (name, of), one in zip(fields, values, strict=False)]
    return Value(f"{type_.name}({', '.join(codes)})", type_)


def fitting(f: Context, node: Any, value: Value, type_: Type) -> Value:
    """A value as one of a type; a struct from what braces list."""
    if type_.kind == "struct" and value.items is not None:
        return construct(f, node, type_, list(value.items), braces=True)
    return converted(value, t.plain(type_))
