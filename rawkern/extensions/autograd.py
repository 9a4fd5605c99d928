"""``torch::autograd::Function`` of C++ as one of Python's: forward, backward and what their context has."""

from __future__ import annotations

from typing import Any

from rawkern.extensions import types as t
from rawkern.extensions.construction import argument_code
from rawkern.extensions.context import Context, short
from rawkern.extensions.overloads import chosen
from rawkern.extensions.program import Struct
from rawkern.extensions.spelling import type_of
from rawkern.extensions.types import Type
from rawkern.extensions.untranslated import NotTranslated
from rawkern.extensions.values import Value

_LISTS = ("save_for_backward", "mark_dirty", "mark_non_differentiable")
_INTEGERS, _DOUBLES, _TENSORS = (Type("vector", of=(of,)) for of in (t.INT64, t.DOUBLE, t.TENSOR))
_SAVED = {
    "toInt": t.INT64, "toDouble": t.DOUBLE, "toBool": t.BOOL, "toTensor": t.TENSOR, "toIntVector": _INTEGERS,
    "toIntList": _INTEGERS, "toDoubleVector": _DOUBLES, "toDoubleList": _DOUBLES, "toTensorVector": _TENSORS,
    "toTensorList": _TENSORS, "toStringRef": t.STRING, "toStringView": t.STRING, "toScalarType": t.DTYPE,
    "toDevice": t.DEVICE, "toScalar": t.SCALAR,
}  # fmt: skip


def apply(f: Context, node: Any, struct: Struct, nodes: list[Any]) -> Value:
    """``F::apply(...)``."""
    functions = struct.methods.get("forward", [])
    if struct.parameters or len(functions) != 1:
        raise NotTranslated(f"`{short(node)}`: a template of torch::autograd::Function", node)
    forward = functions[0]
    if forward.reason or not forward.parameters:
        raise NotTranslated(f"`{short(node)}`: forward of {struct.name}", node)
    values = [Value("ctx", forward.parameters[0].type), *(f.value(one) for one in nodes)]
    chosen(node, functions, [], values)
    codes = []
    for parameter, value, one in zip(forward.parameters[1:], values[1:], nodes, strict=False):
        if parameter.type.kind == "vector" and parameter.type.item.kind in ("tensor", "optional"):
            raise NotTranslated(f"`{short(node)}`: a list of tensors, which Python's apply does not look into", node)
        codes.append(argument_code(f, one, value, parameter.type))
    if len(codes) < len(forward.parameters) - 1:
        raise NotTranslated(f"`{short(node)}`: default values of forward", node)
    code = f"{struct.python}.apply({', '.join(codes)})"
    returned = t.plain(forward.returns)
    return Value(f"list({code})" if returned.kind == "vector" else code, returned)


def context_method(f: Context, node: Any, value: Value, name: str, of: Any, nodes: list[Any]) -> Value | None:
    """A method of ``AutogradContext``."""
    given = [f.value(one) for one in nodes]
    if name in _LISTS:
        inside = given[0].items
        codes = [one.code for one in inside] if inside is not None else [f"*{given[0].code}"]
        return Value(f"{value.code}.{name}({', '.join(codes)})", t.VOID)
    if name == "get_saved_variables":
        return Value(f"list({value.code}.saved_tensors)", _TENSORS)
    if name == "set_materialize_grads":
        return Value(f"{value.code}.set_materialize_grads({given[0].code})", t.VOID)
    if name == "needs_input_grad" and given[0].constant is not None:
        return Value(f"{value.code}.needs_input_grad[{_input(f, node, given[0].constant)}]", t.BOOL)
    return None


def _input(f: Context, node: Any, index: int) -> int:
    """Which argument of forward the tensor of an index is: C++ counts tensors alone."""
    owner = f.function.owner
    forward = owner.methods.get("forward", [None])[0] if owner is not None else None
    kinds = [one.type.kind for one in forward.parameters[1:]] if forward is not None else []
    tensors = [k for k, kind in enumerate(kinds) if kind == "tensor"]
    if "optional" in kinds or index >= len(tensors):
        raise NotTranslated(f"`{short(node)}`", node)
    return tensors[index]


def saved_method(f: Context, node: Any, value: Value, name: str, of: Any, nodes: list[Any]) -> Value | None:
    """A method of what ``saved_data`` has under a name."""
    if name in _SAVED:
        return Value(value.code, _SAVED[name], lvalue=True)
    if name in ("to", "toOptional") and of:
        found = type_of(f, of[0])
        return Value(value.code, Type("optional", of=(found,)) if name == "toOptional" else found, lvalue=True)
    if name == "toCustomClass" and of:
        return Value(value.code, Type("pointer", of=(type_of(f, of[0]),)), lvalue=True)
    return Value(f"({value.code} is None)", t.BOOL) if name == "isNone" else None
