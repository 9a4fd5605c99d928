"""What is made of values in parentheses or braces, and of none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rawkern.base.tree import named
from rawkern.extensions import types as t
from rawkern.extensions.context import Context, bases, short
from rawkern.extensions.elements import replaced, struct_of
from rawkern.extensions.iterators import part_of
from rawkern.extensions.overloads import chosen
from rawkern.extensions.program import Struct, python_field
from rawkern.extensions.types import Type
from rawkern.extensions.untranslated import NotTranslated
from rawkern.extensions.values import Value, converted, options_code


def default_of(f: Context, node: Any, type_: Type) -> Value:
    """The value of a variable that is declared without one."""
    defaults = t.ZEROS | {
        "text": "''", "optional": "None", "dim3": "dim3()", "tuple": "None", "dtype": "None", "stream": "None",
        "event": "None",
        "scalar": "0", "device": "None", "kernel": "None", "options": "{}", "sizes": "()",
    }  # fmt: skip
    if type_.kind == "struct":
        return _struct(f, node, type_, [])
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
    raise NotTranslated(f"`{short(node)}`: a variable of {type_}", node)


def from_braces(f: Context, node: Any, type_: Type, braces: Any) -> Value:
    """A value of a type from what braces list: ``T{a, b}``."""
    values = [f.value(one) for one in named(braces)]
    if type_.number:
        return converted(values[0] if values else Value("0", t.INT, 0, 0), type_)
    return construct(f, node, type_, values, braces=True)


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
        if len(values) == 1 and values[0].items is None and _copies(values[0].type, type_):
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
    if len(values) == 1 and not (kind == "opaque" and type_.spelled.startswith("std::")):
        return converted(values[0], type_)
    raise NotTranslated(f"`{short(node)}`: a value of {type_} from {len(values)}", node)


def _vector(f: Context, node: Any, type_: Type, values: list[Value], braces: bool) -> Value:
    if braces:
        return fitting(f, node, Value("", Type("list"), items=tuple(values)), type_)
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
    raise NotTranslated(f"`{short(node)}`: a vector made in this way", node)


def _copies(value: Type, type_: Type) -> bool:
    return value.kind == type_.kind and (value.kind != "struct" or value.struct == type_.struct)


def _check_special(f: Context, node: Any, struct: Struct) -> None:
    for one in bases(f.unit, struct):
        if one.special:
            raise NotTranslated(f"`{short(node)}`: the struct {one.name}, which {one.special}", node)
        for of in one.fields.values():
            while of.kind in ("array", "vector") and of.of:
                of = of.item
            inner = struct_of(f, of) if of.kind == "struct" else None
            if inner is not None:
                _check_special(f, node, inner)


def _struct(f: Context, node: Any, type_: Type, values: list[Value]) -> Value:
    """An object of a struct: by a constructor, or from the values of its members."""
    struct = struct_of(f, type_)
    if struct is None:
        raise NotTranslated(f"`{short(node)}`: a value of {type_}", node)
    _check_special(f, node, struct)
    made = f"new({type_.name})"
    own = [one for one in struct.constructors if one.node is not None or one.reason]
    if own or (struct.constructors and not values):
        one = chosen(node, struct.constructors, [], values)
        if one.reason:
            raise NotTranslated(f"`{short(node)}`: a constructor of {struct.name}: {one.reason}", node)
        if one.template:
            raise NotTranslated(f"`{short(node)}`: a template of constructors", node)
        known = {parameter.name: of for parameter, of in zip(struct.parameters, type_.of, strict=False)}
        arguments = zip(one.parameters, values, strict=False)
        codes = [argument_code(f, node, value, replaced(p.type, known)) for p, value in arguments]
        return Value(f"{made}.{one.python}({', '.join(codes)})", type_)
    if struct.parameters and values:
        raise NotTranslated(f"`{short(node)}`: a struct of a template from a list", node)
    if struct.reason and values:
        raise NotTranslated(f"the struct {struct.name}: {struct.reason}", node)
    if struct.base and values:
        raise NotTranslated(f"`{short(node)}`: a struct with a base from a list", node)
    fields = list(struct.fields.items())
    if struct.constructors and len(values) != len(fields):
        raise NotTranslated(f"`{short(node)}`: some of the members of {struct.name}, whose others are made", node)
    codes = [
        f"{python_field(name)}={fitting(f, node, one, of).code}"
        for (name, of), one in zip(fields, values, strict=False)
    ]
    if struct.bound:
        return Value(f"new({', '.join([type_.name, *codes])})", type_)
    return Value(f"{type_.name}({', '.join(codes)})", type_)


def fitting(f: Context, node: Any, value: Value, type_: Type) -> Value:
    """A value as one of a type; a struct from what braces list, or by a constructor from what it is made of."""
    if type_.kind == "struct" and value.items is not None:
        return construct(f, node, type_, list(value.items), braces=True)
    if type_.kind == "struct" and value.type.kind not in ("struct", "any", "auto"):
        struct = struct_of(f, type_)
        if struct is None or not struct.constructors:
            raise NotTranslated(f"`{short(node)}`: a conversion from {value.type} to {type_}", node)
        return construct(f, node, type_, [value])
    if type_.kind == "vector" and type_.item.kind == "struct" and value.items is not None:
        items = [fitting(f, node, one, type_.item) for one in value.items]
        return converted(replace(value, items=tuple(items)), t.plain(type_))
    if _derived(f, value.type, type_):
        if type_.kind == "pointer":
            return Value(value.code, t.plain(type_))
        raise NotTranslated(f"`{short(node)}`: a copy of the part of {value.type} that is a {type_}", node)
    return converted(value, t.plain(type_))


def _derived(f: Context, type_: Type, base: Type) -> bool:
    """Whether a type is one of a struct that is derived from another one's, or a pointer to it."""
    if type_.kind == base.kind == "pointer":
        return _derived(f, type_.item, base.item)
    if not type_.kind == base.kind == "struct":
        return False
    names = [one.python for one in bases(f.unit, struct_of(f, type_))]
    return base.struct in names[1:]


def argument_code(f: Context, node: Any, value: Value, type_: Type) -> str:
    """The code of an argument for a parameter of a type."""
    if value.type.kind == "address":
        raise NotTranslated(f"`{short(node)}`: the address of a variable", node)
    if type_.kind == "pointer" and value.type.kind == "array":
        raise NotTranslated(f"`{short(node)}`: an array for a pointer", node, "pass a std::vector by reference")
    by_reference = type_.reference and value.lvalue
    if by_reference and (value.type.kind == type_.kind == "struct"):
        same = value.type.struct == type_.struct or _derived(f, value.type, type_)
        return value.code if same else fitting(f, node, value, type_).code
    if (by_reference and type_.kind in ("vector", "map", "cuda_vector", "tuple")) or type_.kind in (
        "auto", "any", "opaque", "lambda",
    ):  # fmt: skip
        return value.code
    return options_code(fitting(f, node, value, type_))
