"""Launches: ``k<T, N><<<grid, block, shared, stream>>>(...)`` to a call of rawkern's kernel."""

from __future__ import annotations

from typing import Any

from rawkern.base.tree import named
from rawkern.extensions import types as t
from rawkern.extensions.context import Context, short
from rawkern.extensions.program import Kernel, Parameter
from rawkern.extensions.spelling import kernel_instance, pieces_of, quoted, spelled, split_name
from rawkern.extensions.types import Type
from rawkern.extensions.untranslated import NotTranslated
from rawkern.extensions.values import Value, converted, typed


def launch(f: Context, node: Any, syntax: Any) -> Value:
    """A launch."""
    parts = named(syntax)
    grid, block = (_size(f.value(one)) for one in parts[:2])
    shared = ""
    if len(parts) > 2:
        value = f.value(parts[2])
        shared = "" if value.constant == 0 else f", {converted(value, t.SIZE).code}"
    if len(parts) > 3:
        stream = f.value(parts[3])
        if stream.type.kind not in ("stream", "null", "any", "nothing") and stream.constant != 0:
            raise NotTranslated(f"`{short(parts[3])}` as a stream", node)
    values = [f.value(one) for one in named(node.child_by_field_name("arguments"))]
    kernel, declared = _kernel(f, node.child_by_field_name("function"), values)
    codes = []
    for k, value in enumerate(values):
        type_ = declared.types[k] if declared is not None and k < len(declared.types) else None
        codes.append(argument(f, value, type_))
    return Value(f"{kernel}[{grid}, {block}{shared}]({', '.join(codes)})", t.VOID)


def _size(value: Value) -> str:
    """Grid or block."""
    if value.type.kind == "dim3":
        inside = value.code[5:-1] if value.code.startswith("dim3(") and value.code.endswith(")") else ""
        if inside and inside.count("(") == inside.count(")") and "," not in _outer(inside):
            return inside
        return value.code
    if value.type.kind == "float":
        return converted(value, t.UINT).code
    if value.items is not None:
        return converted(value, t.DIM3).code
    if value.type.kind in ("int", "any"):
        return value.code
    raise NotTranslated(f"{value.type} as a grid or block")


def _outer(code: str) -> str:
    """Code without what is in brackets."""
    out, depth = [], 0
    for character in code:
        depth -= character in ")]}"
        if not depth:
            out.append(character)
        depth += character in "([{"
    return "".join(out)


def argument(f: Context, value: Value, type_: Type | None) -> str:
    """An argument of a kernel: rawkern checks and converts it, but for what C++ converts and rawkern rejects."""
    if value.options is not None or value.type.kind in ("options", "lambda"):
        raise NotTranslated(f"{value.type} as an argument of a kernel")
    if value.items is not None:
        return f"[{', '.join(one.code for one in value.items)}]"
    if type_ is not None and type_.kind == "int" and value.type.kind in ("float", "int", "bool", "scalar"):
        if value.type.kind in ("float", "scalar"):
            return converted(value, type_).code
        if t.LIMITS[type_.name][0] == 0 and value.limits[0] < 0 and value.type.kind == "int":
            return converted(value, type_).code
        return value.code  # rawkern checks its limits
    if type_ is not None and type_.kind == "bool" and value.type.kind in ("int", "float", "pointer", "optional"):
        return converted(value, t.BOOL).code
    if type_ is not None and type_.kind == "pointer" and value.type.kind in ("null", "nothing"):
        return "None"
    return typed(value) if type_ is not None and type_.kind == "pointer" and type_.item.kind == "void" else value.code


def _kernel(f: Context, node: Any, values: list[Value]) -> tuple[str, Kernel | None]:
    """The kernel of a launch, as code, and what is known of it."""
    while node.type == "parenthesized_expression":
        node = named(node)[0]
    name, arguments = ("", None) if node.type == "field_expression" else split_name(node)
    variable = f.find(name)
    if variable is not None:
        return variable.python, None
    bare = name.rsplit("::", 1)[-1]
    kernel = f.unit.kernels.get(bare)
    if kernel is None:
        value = f.value(node)
        if value.type.kind in ("kernel", "any", "pointer"):
            return value.code, None
        raise NotTranslated(f"`{short(node)}`: a kernel that is not in these sources", node)
    kernel = kernel.meant(len(arguments or []), len(values))
    if not kernel.is_template:
        return f"{f.unit.variable}[{kernel.name!r}]", kernel
    given = len(arguments or [])
    if given < len(kernel.template):
        text = _deduced(f, node, kernel, kernel.name, arguments or [], values)
    else:
        text = kernel_instance(f, node, kernel, arguments or [])
    return f"{f.unit.variable}[{text}]", kernel


def _deduced(f: Context, node: Any, kernel: Kernel, name: str, arguments: list[Any], values: list[Value]) -> str:
    """An instance whose further arguments C++ deduces from those of the launch."""
    pieces: list[tuple[bool, str]] = [(False, name + "<")]
    for one in arguments:
        pieces += [*pieces_of(f, one), (False, ", ")]
    for parameter in kernel.template[len(arguments) :]:
        if parameter.keyword == "pack":
            pieces[-1] = (False, pieces[-1][1].removesuffix(", "))
            for value in values[len(kernel.types) - 1 :]:
                more = f"more_types({value.type.name})" if value.type.kind == "pack" else ""
                pieces += [(True, more)] if more else [(False, ", "), *_text(spelled(f, t.plain(value.type)))]
            pieces.append((False, ", "))
            continue
        code = deduce(f, parameter, kernel.types, values)
        if code is None:
            if parameter.default is not None:
                continue
            raise NotTranslated(f"`{short(node)}`: the template argument {parameter.name}, which is not deduced", node)
        pieces += [*_text(code), (False, ", ")]
    pieces[-1] = (False, ">") if pieces[-1] == (False, ", ") else pieces[-1]
    return quoted(pieces)


def _text(code: str) -> list[tuple[bool, str]]:
    return [(False, code[1:-1])] if code[:1] in "'\"" else [(True, code)]


def deduce(f: Context, parameter: Parameter, types: list[Type], values: list[Value]) -> str | None:
    """Code for the text of the type that a template's parameter has by the types of arguments; None if not told."""
    for type_, value in zip(types, values, strict=False):
        found = matched(type_, value.type, parameter.name)
        if found is not None and found.kind not in ("any", "auto", "list"):
            return spelled(f, found)
    return None


def matched(pattern: Type, given: Type, name: str) -> Type | None:
    if pattern.kind in ("param", "opaque") and pattern.spelled == name:
        return t.plain(given)
    if pattern.kind == given.kind and pattern.of and given.of:
        for a, b in zip(pattern.of, given.of, strict=False):
            if (found := matched(a, b, name)) is not None:
                return found
    if pattern.kind == "opaque" and given.kind == "accessor" and given.of:
        return given.of[0] if name in pattern.spelled else None
    return None


def launch_call(f: Context, node: Any) -> Value:
    """``cudaLaunchKernel(kernel, grid, block, args, shared, stream)``."""
    arguments = named(node.child_by_field_name("arguments"))
    if len(arguments) not in (5, 6):
        raise NotTranslated(f"`{short(node)}`", node)
    kernel, grid, block = (f.value(one) for one in arguments[:3])
    packed = f.value(arguments[3])
    if packed.type.kind != "arguments":
        raise NotTranslated(f"`{short(arguments[3])}`: arguments of a launch that are not listed", node)
    shared = f.value(arguments[4])
    more = "" if shared.constant == 0 else f", {shared.code}"
    return Value(f"{kernel.code}[{_size(grid)}, {_size(block)}{more}](*{packed.code})", t.INT, 0, 0)
