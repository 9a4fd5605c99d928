"""Pointers: moved, and what they point to; casts, most of which are of pointers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rawkern.base.tree import text_of
from rawkern.gradients import types
from rawkern.gradients.ir import Place, Value
from rawkern.gradients.reading.context import MOST_LOCAL, Context
from rawkern.gradients.reading.memory import repack
from rawkern.gradients.reading.places import Cell, Local, NeedsType, Pointer, Var, as_pointer, overlaid
from rawkern.gradients.reading.values import binary, convert
from rawkern.gradients.types import Aggregate, Type


def offset(ctx: Context, node: Any, pointer: Any) -> Value:
    """How far a pointer is from the start of its array, in elements."""
    return convert(ctx, node, pointer.offset or ctx.integer(node, 0), "long long")


def advance(ctx: Context, node: Any, pointer: Pointer | Local, by: Value, sign: str) -> Pointer | Local:
    """A pointer plus or minus a number."""
    if isinstance(pointer, Local):
        if by.const is None:
            raise _not_known(ctx, node, "the offset into a local array", pointer.leaves[0])
        width = 1 if pointer.view is None else types.count(pointer.view)
        return replace(pointer, at=pointer.at + (by.const if sign == "+" else -by.const) * width)
    if types.is_float(by.type) or len(pointer.inner) < len(pointer.array.sizes) - 1:
        raise ctx.refuse(node, "this pointer arithmetic", "write an index")
    if types.bits(by.type) < 64 and by.type.startswith("unsigned") and sign == "-":
        by = convert(ctx, node, by, "long long")
    if pointer.array.accessor and pointer.offset is not None:
        raise _beyond(ctx, node, pointer)
    if pointer.unit:
        part = quotient(ctx, node, by, pointer.unit)
        if part is None:
            raise ctx.refuse(node, "an offset is not a multiple of the size of what is read", "index whole elements")
        by = part
    if pointer.view is not None:
        by = binary(ctx, node, "*", by, ctx.integer(node, types.count(pointer.view)))
    if sign == "-":
        by = ctx.value(node, by.type, "unary", (by,), "-")
    return replace(pointer, offset=by if pointer.offset is None else binary(ctx, node, "+", pointer.offset, by))


def _beyond(ctx: Context, node: Any, pointer: Pointer) -> Exception:
    """The error for another element than the one that a pointer was made to, to raise: strides may be any."""
    of = pointer.array.name
    return ctx.refuse(node, f"{text_of(node)!r} counts from an element of the accessor {of}", f"index {of} itself")


def quotient(ctx: Context, node: Any, value: Value, by: int) -> Value | None:
    """A number divided, where it is seen to be a multiple."""
    if by == 1:
        return value
    if value.const is not None:
        return ctx.integer(node, value.const // by) if value.const % by == 0 else None
    if value.op == "cast" and not types.is_float(value.args[0].type) and types.bits(value.type) >= 32:
        return quotient(ctx, node, value.args[0], by)
    if value.op != "binary":
        return None
    if value.attr == "+":
        parts = [quotient(ctx, node, a, by) for a in value.args]
        return None if None in parts else binary(ctx, node, "+", parts[0], parts[1])  # type: ignore[arg-type]
    if value.attr == "<<":
        scale = 1 << (value.args[1].const or 0)
        return binary(ctx, node, "*", value.args[0], ctx.integer(node, scale // by)) if scale % by == 0 else None
    for k in (1, 0) if value.attr == "*" else ():
        part = quotient(ctx, node, value.args[k], by)
        if part is not None:
            return value.args[1 - k] if part.const == 1 else binary(ctx, node, "*", value.args[1 - k], part)
    return None


# What is pointed to -----------------------------------------------------------------------------------------------


def pointee(ctx: Context, node: Any, pointer: Any) -> Any:
    """What a pointer points to."""
    if pointer.type == "this":
        var = ctx.lookup("this")
        if var is None:
            raise ctx.refuse(node, "this outside of a method", "use a variable")
        return var.value
    found = ctx.expression(pointer)
    return found if isinstance(found, Var) and isinstance(found.type, Aggregate) else cell(ctx, node, found, ())


def written_through(ctx: Context, node: Any) -> Any:
    """What a function writes to that is given a pointer."""
    if node.type == "pointer_expression" and text_of(node.child_by_field_name("operator")) == "&":
        return ctx.place(node.child_by_field_name("argument"))
    return cell(ctx, node, as_pointer(ctx.expression(node)), ())


def cell(ctx: Context, node: Any, base: Any, index: tuple[Value, ...]) -> Any:
    """An element of an array, or a row of it: what a pointer with an index, or without one, means."""
    if isinstance(base, Local):
        return _through_local(ctx, node, base, index)
    if isinstance(base, Var) and base.fields and index and base.type is None:
        return _local_element(ctx, node, base, index[0])
    if not isinstance(base, Pointer):
        raise ctx.refuse(node, f"{text_of(node)!r} indexes what is not an array", "index a pointer or array")
    array = base.array
    if any(types.is_float(i.type) for i in index):
        raise ctx.refuse(node, "an index that is not an integer", "convert it first")
    if array.raw or base.unit:
        raise ctx.refuse(node, f"{array.name} is used as of another type", "cast it to a pointer to what it holds")
    if array.shared and not array.sizes:  # the address of a variable
        if base.offset is not None or (index and index[0].const != 0):
            raise ctx.refuse(node, f"{text_of(node)!r} is outside of {array.name}", "use the variable itself")
        return Cell(Place(array), (), base.type)
    if len(base.inner) < max(len(array.sizes) - 1, 0):
        if not index:
            raise ctx.refuse(node, f"{text_of(node)!r} is a row", "index an element")
        return replace(base, offset=None, inner=(*base.inner, *index))
    return _array_element(ctx, node, base, index[0] if index else None)


def _array_element(ctx: Context, node: Any, base: Pointer, index: Value | None) -> Cell:
    if base.array.accessor and base.offset is not None and index is not None and index.const != 0:
        raise _beyond(ctx, node, base)
    last = _last_index(ctx, node, base, index)
    view = base.view if base.view in types.VECTORS.values() else None
    even = view is not None and (base.offset is None or quotient(ctx, node, base.offset, types.count(view)))
    ctx.views.setdefault(base.array.name, set()).add(view if even else None)
    full = (*base.inner, ctx.integer(node, 0) if last is None else last)
    return Cell(Place(base.array), full, base.type, base.view is not None, base.volatile)


def _last_index(ctx: Context, node: Any, base: Pointer, last: Value | None) -> Value | None:
    """An index as one of the array's elements, from its start."""
    if base.view is not None and last is not None:
        last = binary(ctx, node, "*", last, ctx.integer(node, types.count(base.view)))
    if base.offset is None:
        return last
    return base.offset if last is None or last.const == 0 else binary(ctx, node, "+", base.offset, last)


def _local_element(ctx: Context, node: Any, base: Var, index: Value) -> Var:
    """An element of a local array."""
    which = "0" if ctx.kind_alone else str(index.const)
    if which not in base.fields:
        raise _not_known(ctx, node, f"the index of the local array {base.name}", base)
    return base.fields[which]


def _through_local(ctx: Context, node: Any, base: Local, index: tuple[Value, ...]) -> Var:
    """What a pointer into local variables points to; a vector of them has them for its fields."""
    at = index[0].const if index else 0
    if ctx.kind_alone:
        base, at = replace(base, at=0), 0
    if at is None:
        raise _not_known(ctx, node, "the index into a local array", base.leaves[0])
    width = 1 if base.view is None else types.count(base.view)
    found = base.leaves[base.at + at * width : base.at + (at + 1) * width]
    if at < 0 or len(found) != width:
        raise ctx.refuse(node, f"{text_of(node)!r} is outside of the local array", "index an element of it")
    return found[0] if base.view is None else overlaid(found[0].name, base.view, iter(found))


def _not_known(ctx: Context, node: Any, what: str, part: Var) -> Exception:
    """The error for an index of a local array, or of a part of it, to raise."""
    way_out = (
        "make the bounds of the loops around it constants; or make the array one of numbers of one type that has, "
        f"with its gradient, at most {MOST_LOCAL:,} bytes"
    )
    return ctx.unrollable(node, f"{what} is not known when deriving", way_out, ctx.local_arrays.get(part))


def into(ctx: Context, element: Var) -> Any:
    """A pointer to an element of a local array, or to a number in an object of such alone."""
    for scope in reversed(ctx.scopes):
        for var in scope.values():
            leaves = var.leaves()
            alike = var.type is None or len({v.type for v in leaves}) == 1
            if var.fields and alike and element in leaves:
                return Local(tuple(leaves), leaves.index(element))
    return element


# Casts ------------------------------------------------------------------------------------------------------------


def seen_as(ctx: Context, node: Any, found: Any, kind: Type) -> Any:
    """A pointer, cast to one to another type: a vector of the elements, or from that to the elements again."""
    found = _members(found, kind)
    if isinstance(found, Pointer) and (found.array.raw or _of_another_type(ctx, found, kind)):
        raise NeedsType(found.array.name, kind)
    if isinstance(found, Pointer) and found.unit and kind == found.array.type:
        return replace(found, unit=0)
    if isinstance(found, (Pointer, Local)) and not getattr(found, "unit", 0):
        own = found.array.type if isinstance(found, Pointer) else found.leaves[0].type
        if kind == own:
            return found.viewed(None)
        if isinstance(kind, Aggregate) and set(types.scalars(kind)) == {own} and types.count(kind) > 1:
            return found.viewed(kind)
        bytes_alone = types.packed(kind, own)
        if bytes_alone is not None:
            return found.viewed(bytes_alone)
    raise ctx.refuse(node, f"the cast {text_of(node)!r}",
                     "cast pointers only to vectors of their elements, such as float4 of float")  # fmt: skip


def _of_another_type(ctx: Context, found: Pointer, kind: Type) -> bool:
    """Whether dynamic shared memory, declared as of integers, is cast to the floats that it is used as."""
    own = found.array.type
    if not found.array.dynamic or found.array.name in ctx.retyped or not isinstance(own, str) or types.is_float(own):
        return False
    return types.is_float(kind) and types.size(kind) % types.size(own) == 0


def _members(found: Any, kind: Type) -> Any:
    """An object of numbers of one type as a pointer to the first; what is no such object is left as it is."""
    if not isinstance(found, Var) or not found.fields:
        return found
    bytes_alone = types.packed(found.type, types.scalars(kind)[0])
    if bytes_alone is not None:
        repack(found, bytes_alone)
    leaves = found.leaves()
    return Local(tuple(leaves)) if len({v.type for v in leaves}) == 1 else found
