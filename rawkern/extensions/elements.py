"""Casts, elements, members, lists in braces, sizes."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from rawkern.base.tree import named, text_of
from rawkern.extensions import types as t
from rawkern.extensions.context import OVERLOADED, Context, expression, short
from rawkern.extensions.program import Struct, python_field
from rawkern.extensions.spelling import spelled, type_of
from rawkern.extensions.types import Type
from rawkern.extensions.untranslated import NotTranslated
from rawkern.extensions.values import Value, array_of, converted, integer, typed


@expression("cast_expression")
def cast(f: Context, node: Any) -> Value:
    to = type_of(f, node.child_by_field_name("type"))
    inside = node.child_by_field_name("value")
    return cast_to(f, node, f.value(inside), to)


def cast_to(f: Context, node: Any, value: Value, to: Type) -> Value:
    """A value cast to a type, as ``(T)x``, ``T(x)`` or ``static_cast<T>(x)``."""
    if to.kind == "void":
        return value
    if to.kind == "pointer":
        if value.type.name == "malloc":
            bits = re.search(r"\d+\Z", to.item.name) if to.item.number and to.item.kind != "param" else None
            if bits is None and to.item.kind != "bool":
                raise NotTranslated(f"`{short(node)}`: an array of {to.item}", node)
            size = int(bits[0]) // 8 if bits else 1
            return array_of(to.item, f"({value.code} // {size})")
        if value.type.kind in ("kernel", "null", "any") or value.constant == 0:
            return converted(value, to)
        if value.type.kind == "pointer":
            return reinterpreted(f, value, to)
        if value.type.kind == "array":
            return Value(value.code, to)
        raise NotTranslated(f"`{short(node)}`", node)
    if to.kind == "int" and value.type.kind == "float" and value.type.name in ("float32", "float64"):
        return Value(f"{to.name}({value.code})", t.plain(to))
    if to.kind == "int" and value.type.kind == "int" and value.type.spelled in f.unit.enums:
        return converted(value, t.plain(to))
    if to.kind == "float" and to.name == "float64" and value.constant is not None:
        return Value(repr(float(value.constant)), to)
    if to.kind in ("int", "float", "bool", "param") and not (
        value.type.number or value.type.kind in ("scalar", "enum")
    ):
        if value.type.kind in ("any", "opaque", "pointer", "optional", "dtype", "device_type"):
            return converted(value, t.plain(to))
        raise NotTranslated(f"`{short(node)}`: {value.type} as a number", node)
    found = converted(value, t.plain(to))
    return replace(found, type=t.plain(to)) if to.kind == "int" else found


def reinterpreted(f: Context, value: Value, to: Type) -> Value:
    """A pointer as one to another type."""
    a, b = value.type.item, to.item
    same_ = (a.kind, a.name) == (b.kind, b.name) and a.kind in ("int", "float", "bool", "param", "struct", "void")
    if same_ or b.kind in ("void", "any"):
        code = value.code if same_ else typed(value)
        return Value(code, to, extra=value.extra, lvalue=value.lvalue)
    if b.kind == "struct" and a.kind not in ("struct", "pointer") and value.type.name != "vector":  # memory of objects
        return Value(f"pointer({typed(value)}, 'uint8_t')", Type("pointer", "memory", to.of))
    if b.kind == "pointer" or b.kind == "struct" or a.kind == "struct":
        raise NotTranslated(f"a pointer to {a} as one to {b}")
    return Value(f"pointer({typed(value)}, {spelled(f, b)})", to)


@expression("subscript_expression")
def subscript(f: Context, node: Any) -> Value:
    value = f.value(node.child_by_field_name("argument"))
    indices = named(node.child_by_field_name("indices"))
    if len(indices) != 1:
        raise NotTranslated(f"`{short(node)}`", node)
    index = f.value(indices[0])
    if value.type.kind == "struct":
        return OVERLOADED[0](f, node, "[]", [value, index])
    return element(f, node, value, index)


def element(f: Context, node: Any, value: Value, index: Value) -> Value:
    """``a[i]``."""
    kind = value.type.kind
    if kind == "tensor":
        return Value(f"{value.code}[{index.code}]", t.TENSOR)
    if kind == "sizes":
        at = _positive(index, value)
        return Value(f"{value.code}[{at}]", t.INT64, 0, 2**40, extra=None)
    if kind == "map":
        of, key = value.type.of[-1], converted(index, value.type.of[0]).code
        if of.kind == "ivalue":
            return Value(f"{value.code}[{key}]", of, lvalue=True)
        return Value(f"{value.code}.setdefault({key}, {first_value(node, of)})", of, lvalue=True)
    if kind in ("vector", "array", "any", "list"):
        items = value.extra if isinstance(value.extra, tuple) else None
        if items and index.constant is not None and 0 <= index.constant < len(items) and kind == "array":
            return replace(items[index.constant], lvalue=False)
        return Value(f"{value.code}[{_positive(index, value)}]", value.type.item, lvalue=True)
    if kind == "tuple" and index.constant is not None:
        return Value(f"{value.code}[{index.code}]", value.type.item)
    if kind == "pointer":
        item = value.type.item
        if value.type.name == "vector":
            return Value(f"{value.code}[{_positive(index, value)}]", item, lvalue=True)
        if item.kind in ("void", "any", "opaque", "pointer", "struct"):
            raise NotTranslated(f"`{short(node)}`: an element of a pointer to {item}", node)
        return Value(f"elements({typed(value)})[{index.code}].item()", item)
    if kind == "accessor":
        rest = value.type.of[0]
        if not value.type.name.isdigit():
            raise NotTranslated(f"`{short(node)}`: an element of an accessor whose dimensions are not known", node)
        dims = int(value.type.name)
        if dims == 1:
            return Value(f"{value.code}[{index.code}].item()", rest)
        return Value(f"{value.code}[{index.code}]", Type("accessor", str(dims - 1), (rest,)))
    if kind == "optional" and value.type.item.kind in ("vector", "sizes"):
        raise NotTranslated(f"`{short(node)}`", node)
    raise NotTranslated(f"`{short(node)}`: an element of {value.type}", node)


def first_value(node: Any, type_: Type) -> str:
    """The value that an element of a map begins with."""
    found = t.ZEROS.get(type_.kind)
    if found is None or found == "None":
        raise NotTranslated(f"`{short(node)}`: an element of {type_} that a map may make", node)
    return found


def _positive(index: Value, value: Value) -> str:
    """An index that C++ counts from the front."""
    low, _ = index.limits
    return index.code if not index.type.integral or low >= 0 else f"at({index.code})"


@expression("field_expression")
def member(f: Context, node: Any) -> Value:
    inside, field = node.child_by_field_name("argument"), node.child_by_field_name("field")
    value, name_ = f.value(inside), text_of(field)
    type_ = value.type
    if type_.kind == "pointer" and type_.name == "memory":
        raise NotTranslated(f"`{short(node)}`: a member of an object in a tensor's memory", node)
    if type_.kind == "pointer" and type_.item.kind in ("struct", "properties"):
        type_ = type_.item
    if type_.kind == "pointer" and type_.item.kind == "autograd" and name_ == "saved_data":
        return Value(f"{value.code}.saved_data", Type("map", of=(t.STRING, Type("ivalue"))))
    if type_.kind == "struct":
        struct = struct_of(f, type_)
        of = struct_field(f, struct, name_)
        if of is not None and struct is not None and struct.parameters:
            of = replaced(of, {one.name: found for one, found in zip(struct.parameters, type_.of, strict=False)})
        if of is None:
            raise NotTranslated(f"`{short(node)}`: a member that is not known", node)
        return Value(f"{value.code}.{python_field(name_)}", of, lvalue=True)
    if type_.kind == "dim3" and name_ in "xyz":
        return Value(f"{value.code}.{name_}", t.UINT, lvalue=True)
    if type_.kind == "cuda_vector" and name_ in "xyzw":
        return Value(f"{value.code}.{name_}", t.cuda_vector_item(type_.name), lvalue=True)
    if type_.kind == "properties":
        if name_ in ("maxGridSize", "maxThreadsDim"):
            return Value(f"{value.code}.{name_}", Type("array", of=(t.INT,)))
        of = t.STRING if name_ == "name" else t.SIZE if "Mem" in name_ and "Bus" not in name_ else t.INT
        return Value(f"{value.code}.{name_}", of, 0 if of.kind == "int" else None)
    if type_.kind == "tuple" and name_ in ("first", "second"):
        at = ("first", "second").index(name_)
        return Value(f"{value.code}[{at}]", type_.of[at] if len(type_.of) > at else t.ANY, lvalue=True)
    raise NotTranslated(f"`{short(node)}`: a member of {value.type}", node)


def struct_of(f: Context, type_: Type) -> Struct | None:
    """The struct of a type."""
    name = type_.struct
    return next((one for one in f.unit.structs.values() if one.python == name), None)


def replaced(type_: Type, known: dict[str, Type]) -> Type:
    """The type of a member of a template's instance."""
    if type_.kind == "param" and type_.spelled in known:
        return known[type_.spelled]
    return replace(type_, of=tuple(replaced(one, known) for one in type_.of)) if type_.of else type_


def struct_field(f: Context, struct: Any, name_: str) -> Type | None:
    seen: list[Any] = []
    while struct is not None and struct not in seen:
        if name_ in struct.fields:
            return struct.fields[name_]
        seen.append(struct)
        struct = f.unit.structs.get(struct.base)
    return None


@expression("initializer_list")
def braces(f: Context, node: Any) -> Value:
    items = tuple(f.value(one) for one in named(node) if one.type != "initializer_pair")
    if len(items) != len(named(node)):
        raise NotTranslated("members by name in braces", node)
    kinds = {one.type.kind for one in items}
    if kinds == {"int"}:
        item: Type = Type("int", "int64") if any(one.type.name.endswith("64") for one in items) else t.INT
    else:
        item = items[0].type if len(kinds) == 1 else t.ANY
    code = f"[{', '.join(one.code for one in items)}]"
    return Value(code, Type("list", of=(t.plain(item),)), items=items)


@expression("alignof_expression")
def alignment(f: Context, node: Any) -> Value:
    type_ = spelled(f, type_of(f, node.child_by_field_name("type")))
    return Value(f"alignof({type_}, {f.unit.variable})", t.SIZE, 0, 2**16)


@expression("sizeof_expression")
def size(f: Context, node: Any) -> Value:
    inside = node.child_by_field_name("type") or node.child_by_field_name("value")
    if inside.type == "parenthesized_expression":
        inside = named(inside)[0]
    type_ = None
    if inside.type in ("identifier", "field_expression") and f.find(text_of(inside)) is not None:
        variable = f.find(text_of(inside))
        assert variable is not None
        type_ = variable.type
    elif inside.type == "field_expression":
        type_ = f.value(inside).type
    else:
        type_ = type_of(f, inside)
    sizes = {"int8": 1, "uint8": 1, "bool": 1, "int16": 2, "uint16": 2, "int32": 4, "uint32": 4, "int64": 8}
    sizes |= {"uint64": 8, "float32": 4, "float64": 8, "Half": 2, "BFloat16": 2, "__half": 2, "half": 2}
    if type_.kind == "pointer":
        return integer(8, t.SIZE)
    if type_.name in sizes and type_.number:
        return integer(sizes[type_.name], t.SIZE)
    if type_.kind in ("param", "opaque"):
        return Value(f"sizeof({spelled(f, type_)}, {f.unit.variable})", t.SIZE, 0, 2**16)
    if type_.kind == "cuda_vector":
        lanes = int(type_.name[-1])
        item = t.cuda_vector_item(type_.name).name
        if item in sizes:
            return integer(sizes[item] * lanes, t.SIZE)
    if type_.kind in ("struct", "cuda_vector"):
        return Value(f"{f.unit.variable}.constant({'sizeof(' + type_.spelled + ')'!r})", t.SIZE, 0, 2**16)
    raise NotTranslated(f"`{short(node)}`", node)
