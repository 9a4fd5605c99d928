"""Parameters of a kernel: numbers, pointers, accessors, structs; members of structs with pointers, and of lists."""

from __future__ import annotations

from typing import Any

from rawkern.base.tree import named, text_of
from rawkern.gradients import types
from rawkern.gradients.ir import Array, Value, suffix
from rawkern.gradients.reading import accessors
from rawkern.gradients.reading.context import Context
from rawkern.gradients.reading.kinds import in_memory, of_nothing
from rawkern.gradients.reading.places import Pointer, PointerList, Var, aggregate
from rawkern.gradients.reading.syntax import identifier, words
from rawkern.gradients.types import Accessor, Aggregate, Type

QUALIFIERS = {"const", "constexpr", "__grid_constant__", "__shared__", "extern", "__restrict__", ";", ","}


def parameter(ctx: Context, node: Any) -> None:
    """A parameter of the kernel."""
    declarator, name = node.child_by_field_name("declarator"), identifier(node.child_by_field_name("declarator"))
    if name in ctx.file.unclear or name in ctx.file.options:
        raise ctx.refuse(node, f"the parameter {name} is a macro, too", "give it a name of its own")
    if declarator is None or name is None or node.type != "parameter_declaration":
        raise ctx.refuse(node, f"the parameter {text_of(node)!r}", "give it a plain type and a name")
    said = node.child_by_field_name("type")
    kind = "void" if of_nothing(said, declarator) else ctx.parameter_type(said)
    if words(node) - QUALIFIERS:
        raise ctx.refuse(node, f"the parameter {name} is {' '.join(words(node) - QUALIFIERS)}", "leave that out")
    inner = [c for c in named(declarator) if c.type not in ("type_qualifier", "ms_pointer_modifier")]
    if isinstance(kind, Accessor):
        if declarator.type != "identifier":
            raise ctx.refuse(node, f"the parameter {text_of(node)!r}", "take the accessor by value")
        accessors.parameter(ctx, node, name, kind)
    elif declarator.type == "identifier":
        if not types.pointers(kind):
            ctx.params.append((name, kind, False))
        ctx.scopes[-1][name] = _by_value(ctx, node, name, kind)
    elif declarator.type == "array_declarator" or (
        declarator.type == "pointer_declarator" and inner[0].type == "identifier"
    ):
        pointer = _to_array(ctx, node, name, kind, "const" in words(node))
        ctx.params.append((name, pointer.array.type, True))
        ctx.scopes[-1][name] = Var(name, None, pointer)
    elif declarator.type == inner[0].type == "pointer_declarator" and named(inner[0])[-1].type == "identifier":
        ctx.params.append((name, kind, True))
        ctx.lists[name] = PointerList(node, name, kind, "const" in words(node))
        ctx.scopes[-1][name] = Var(name, None, ctx.lists[name])
    else:
        raise ctx.refuse(node, f"the parameter {text_of(node)!r}", "use numbers, pointers and lists of pointers")


def _to_array(ctx: Context, node: Any, name: str, kind: Type, const: bool) -> Pointer:
    """A pointer that a launch gives: to an array of its own."""
    read = ctx.retyped.get(name, kind)
    in_memory(ctx, node, read)
    ctx.arrays[name] = array = Array(name, read, const=const, raw=read == "void")
    return Pointer(array, unit=len(read.fields) if isinstance(read, Aggregate) and read != kind else 0)


def _member(ctx: Context, node: Any, path: tuple[str, ...]) -> str:
    """What a member of a parameter is called, which is a parameter of the derived texts: p_x for p.x."""
    name = "_".join(path)
    if ctx.members.setdefault(name, path) != path or any(name == identifier(p) for p in named(node.parent)):
        reason = f"{name}, as {'.'.join(path)} is called here, is also a parameter"
        raise ctx.refuse(node, reason, "give that another name")
    return name


def listed(ctx: Context, node: Any, found: PointerList, index: Value) -> Pointer:
    """A pointer of a list, by an index that has to be known."""
    at = 0 if ctx.kind_alone and index.const is None else index.const
    if at is None or at < 0:
        way_out = "make it a constant, or the bounds of the loops around it; or pass one array, and where each begins"
        raise ctx.unrollable(node, f"the index of the list {found.name} is not known when deriving", way_out)
    if at not in found.used:
        name = _member(ctx, found.node, (found.name, str(at)))
        found.used[at] = _to_array(ctx, found.node, name, found.kind, found.const)
    return found.used[at]


def _by_value(ctx: Context, node: Any, name: str, kind: Type) -> Var:
    if kind in types.HALVES:
        raise ctx.refuse(node, f"the parameter {name} is {kind} by value", "pass a float")
    if isinstance(kind, str):
        const = None if types.is_float(kind) else dict(ctx.settings.constants).get(name)
        return Var(name, kind, ctx.value(node, kind, "param", attr=name, name=name, const=const))
    if types.pointers(kind):
        return aggregate(name, kind, lambda path, inner: _flat(ctx, node, (name, *path), inner))
    in_memory(ctx, node, kind)
    return aggregate(name, kind, lambda path, inner: ctx.value(node, inner, "param", attr=name + suffix(path)))


def _flat(ctx: Context, node: Any, path: tuple[str, ...], kind: Any) -> Any:
    """A member of a struct with pointers, as a parameter of its own."""
    name = _member(ctx, node, path)
    if kind in types.HALVES:
        raise ctx.refuse(node, f"{'.'.join(path)} is {kind} by value", "pass a float")
    if isinstance(kind, str):
        ctx.params.append((name, kind, False))
        return ctx.value(node, kind, "param", attr=name, name=name)
    pointer = _to_array(ctx, node, name, kind.type, kind.const)
    ctx.params.append((name, pointer.array.type, True))
    return pointer
