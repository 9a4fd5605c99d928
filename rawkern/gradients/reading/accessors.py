"""PyTorch's accessors: ``x[i][j]`` of a parameter is an element of an array of several dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rawkern.base.tree import named, text_of
from rawkern.gradients.ir import Array, Value
from rawkern.gradients.reading.context import Context
from rawkern.gradients.reading.places import Pointer, Var
from rawkern.gradients.reading.syntax import words
from rawkern.gradients.reading.templates import bound
from rawkern.gradients.types import Accessor

_NAMES = {
    "PackedTensorAccessor32": "int", "PackedTensorAccessor64": "long long", "PackedTensorAccessor": "long long",
    "GenericPackedTensorAccessor": "long long", "TensorAccessor": "long long",
}  # fmt: skip
_SPACES = frozenset(("torch", "at"))


def is_accessor(ctx: Context, name: Any, scope: Any = None) -> bool:
    """Whether a template, of a namespace, is an accessor of PyTorch's."""
    text = text_of(name)
    if text not in _NAMES or ctx.file.plain(text) is not None:
        return False
    return text_of(scope).replace(" ", "") in _SPACES if scope is not None else bool(_SPACES & ctx.file.using)


def arguments_of(ctx: Context, node: Any) -> list[Any] | None:
    """The arguments of the template of which a type, as it is written, is an accessor; None for other types."""
    scope = node.child_by_field_name("scope") if node.type == "qualified_identifier" else None
    inner = node.child_by_field_name("name") if scope is not None else node
    if inner.type != "template_type" or not is_accessor(ctx, inner.child_by_field_name("name"), scope):
        return None
    return named(inner.child_by_field_name("arguments"))


def accessor_type(ctx: Context, node: Any) -> Accessor:
    """The type that an instance of such a template is."""
    name, given = text_of(node.child_by_field_name("name")), named(node.child_by_field_name("arguments"))
    const = given[0].type == "type_descriptor" and "const" in words(given[0])
    element, dimensions = ctx.scalar_type(given[0]), bound(ctx, given[1:2])
    index = bound(ctx, given[3:4]) if name in ("GenericPackedTensorAccessor", "TensorAccessor") else []
    if len(dimensions) != 1 or not isinstance(dimensions[0], int) or dimensions[0] < 1:
        raise ctx.refuse(node, f"the type {text_of(node)}", "give its elements' type and a number of dimensions")
    return Accessor(element, dimensions[0], index[0] if index else _NAMES[name], const)


def parameter(ctx: Context, node: Any, name: str, kind: Accessor) -> None:
    """A parameter of the kernel that is an accessor."""
    ctx.params.append((name, kind.type, True))
    const = kind.const or "const" in words(node)
    ctx.arrays[name] = array = Array(name, kind.type, sizes=(0,) * kind.dimensions, const=const, accessor=kind.index)
    ctx.scopes[-1][name] = Var(name, None, Pointer(array))


def method(ctx: Context, node: Any, of: Pointer, name: str, arguments: Sequence[Any]) -> Value:
    """What a call of a method of an accessor, or of a row of one, gives: a number of the launch."""
    array = of.array
    if name not in ("size", "stride") or len(arguments) != 1 or of.offset is not None:
        raise ctx.refuse(node, f"{text_of(node)!r} of an accessor", "use its elements, size(k) and stride(k)")
    k = ctx.scalar(arguments[0]).const
    if k is None or not 0 <= k < len(array.sizes) - len(of.inner):
        raise ctx.refuse(node, f"the dimension of {text_of(node)!r}", "name one that it has, by a constant")
    return ctx.value(node, array.accessor, "param", attr=f"{array.name}.{name}({len(of.inner) + k})")
