"""Casts: of numbers, and of pointers, where an array of numbers is read and written as one of vectors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rawkern.base.tree import text_of
from rawkern.gradients import types
from rawkern.gradients.ir import Value
from rawkern.gradients.reading.places import Local, NeedsType, Pointer, Var
from rawkern.gradients.reading.structs import Structs
from rawkern.gradients.reading.syntax import TYPES
from rawkern.gradients.types import Aggregate, Type

CASTS = ("static_cast", "reinterpret_cast", "const_cast")


class Views(Structs):
    """Conversions."""

    def on_cast_expression(self, node: Any) -> Any:
        return self.cast(node, node.child_by_field_name("type"), node.child_by_field_name("value"))

    def cast(self, node: Any, kind: Any, value: Any) -> Any:
        """A cast, of any spelling, to the type that a node of the tree names."""
        declarator = None
        if kind.type == "type_descriptor":
            declarator, kind = kind.child_by_field_name("declarator"), kind.child_by_field_name("type")
        if declarator is None:
            return self.converted(node, self.scalar(value), self.scalar_type(kind))
        if declarator.type != "abstract_pointer_declarator" or declarator.child_by_field_name("declarator") is not None:
            raise self.refuse(node, f"the cast {text_of(node)!r}", "cast to a pointer to numbers or vectors")
        return self.seen_as(node, self.expression(value), self.type_of(kind))

    def seen_as(self, node: Any, found: Any, kind: Type) -> Any:
        """A pointer, cast to one to another type: a vector of the elements, or from that to the elements again."""
        if isinstance(found, Var) and found.fields:
            bytes_alone = types.packed(found.type, types.scalars(kind)[0])
            if bytes_alone is not None:
                self.repack(found, bytes_alone)
            leaves = found.leaves()
            found = Local(tuple(leaves)) if len({v.type for v in leaves}) == 1 else found
        if isinstance(found, Pointer) and found.array.raw:
            raise NeedsType(found.array.name, kind)
        if isinstance(found, Pointer) and found.unit and kind == found.array.type:
            return replace(found, unit=0)
        if isinstance(found, (Pointer, Local)) and not getattr(found, "unit", 0):
            own = found.array.type if isinstance(found, Pointer) else found.leaves[0].type
            scalars = isinstance(kind, Aggregate) and set(types.scalars(kind)) == {own}
            if kind == own or (scalars and types.count(kind) > 1):
                return found.viewed(None if kind == own else kind)
            bytes_alone = types.packed(kind, own)
            if bytes_alone is not None:
                return found.viewed(bytes_alone)
        raise self.refuse(
            node,
            f"the cast {text_of(node)!r}",
            "cast pointers only to vectors of their elements, such as float4 of float",
        )

    def on_sizeof_expression(self, node: Any) -> Value:
        kind, value = node.child_by_field_name("type"), node.child_by_field_name("value")
        if kind is not None and kind.child_by_field_name("declarator") is not None:
            raise self.refuse(node, text_of(node), "write the number of bytes")
        if kind is None and value is not None and value.type == "parenthesized_expression":
            inner = value.named_children[0]
            known = inner.type == "identifier" and self.lookup(text_of(inner)) is None
            kind = inner if known or inner.type in TYPES else None
        found = self.type_of(kind) if kind is not None else self.kind(value)
        if isinstance(found, tuple) or found is None:
            raise self.refuse(node, text_of(node), "write the number of bytes")
        size = types.size(found)
        return self.value(node, "unsigned long long", "const", attr=f"{size}ULL", const=size)
