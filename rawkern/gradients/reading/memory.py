"""Reading and writing variables and memory, as it is put into a block."""

from __future__ import annotations

from typing import Any

from rawkern.base.tree import text_of
from rawkern.gradients import types
from rawkern.gradients.ir import Array, Barrier, Block, Exit, If, Loop, Place, Store, Value, inside, made_of
from rawkern.gradients.reading.context import Context, Either, Stored
from rawkern.gradients.reading.places import Cell, Given, NeedsStart, Pointer, Var, aggregate, fresh
from rawkern.gradients.reading.values import binary, convert
from rawkern.gradients.types import Aggregate, Type

# Reading ----------------------------------------------------------------------------------------------------------


def read(ctx: Context, node: Any, found: Any) -> Any:
    """The value of a variable or place; pointers are values."""
    if isinstance(found, Pointer):
        return found
    if isinstance(found, Var):
        return _read_variable(ctx, node, found)
    if isinstance(found.type, Aggregate):
        return aggregate(
            text_of(node), found.type, lambda path, kind: read(ctx, node, part(ctx, node, found, path, kind))
        )
    return load(ctx, node, found.place, found.index, found.type)


def _read_variable(ctx: Context, node: Any, found: Var) -> Any:
    ctx.note_variable(found)
    if found.whole:
        return found
    if isinstance(found.value, Cell):
        return read(ctx, node, found.value)
    if found.value is not None:
        return found.value
    if found.lost >= 0 and (found.lost, found.name) not in ctx.settings.starts:
        raise NeedsStart((found.lost, found.name))
    if found.apart:
        raise ctx.refuse(node, f"{found.name} points to one of several arrays",
                         "declare it by a choice: = condition ? one : other")  # fmt: skip
    raise ctx.refuse(node, f"{text_of(node)} has no value on some path to here", "give it a value where it is declared")


def valued(ctx: Context, node: Any, found: Any) -> Any:
    """What a call gives, as a value: a reference is read."""
    return read(ctx, node, found) if isinstance(found, (Var, Cell)) else found


def taken(ctx: Context, given: Given) -> Any:
    """The value of an argument."""
    return valued(ctx, given.node, given.found)


def load(ctx: Context, node: Any, place: Place, index: tuple[Value, ...], kind: str) -> Value:
    """What is at a place in memory: what the thread itself has stored there, where that is certain."""
    array = place.array
    ctx.note(array, False)
    value, block = ctx.stored.get(array, {}).get((place, index), (None, None))
    if value is not None and _goes_through(ctx.block, block):
        return _either(ctx, value)
    made = ctx.value(node, kind, "load", index, place)
    if array.private:  # it stays until the thread stores to the array
        ctx.stored[array] = {**ctx.stored.get(array, {}), (place, index): (made, ctx.block)}
    return made


def _either(ctx: Context, found: Value | Either) -> Value:
    """The value of a place, of one side of a branch or the other; made where it is asked for."""
    if isinstance(found, Value):
        return found
    made = found.value
    if made is None:
        branch, a, b = found.branch, _either(ctx, found.then), _either(ctx, found.other)
        made = ctx.within(branch.block, lambda: ctx.value(branch.line, a.type, "result", attr=branch, name=a.name))
        branch.results.append((made, a, b))
        found.value = made
    return made


def stored_on(ctx: Context, side: Block) -> Stored:
    """What has been written when a side of a branch ends."""
    return {
        array: {key: each for key, each in places.items() if _goes_through(side, each[1])}
        for array, places in ctx.stored.items()
    }


def merge_stored(ctx: Context, branch: If, first: Stored, second: Stored) -> None:
    """What has been written after a branch: on both sides, the same or each its own."""
    ctx.stored = {}
    for array, places in first.items():
        for key, (a, block) in places.items():
            b, other = second.get(array, {}).get(key, (None, block))
            if b is not None and a is b and block is other:
                ctx.stored.setdefault(array, {})[key] = a, block
            elif b is not None and not (array.private and _is_read(a, array) and _is_read(b, array)):
                ctx.stored.setdefault(array, {})[key] = Either(branch, a, b), ctx.block


def _is_read(value: Value | Either, array: Array) -> bool:
    return isinstance(value, Value) and value.op == "load" and value.attr.array == array


def _goes_through(here: Block | None, block: Block | None) -> bool:
    """Whether whatever comes here came through a block, in the same iteration of each loop around."""
    while here is not None and here is not block:
        here = None if here.parent is None or isinstance(here.parent, Loop) else here.parent.block
    return here is not None


def part(ctx: Context, node: Any, cell: Cell, path: tuple[str, ...], kind: Type) -> Cell:
    """A field of a vector or struct in memory."""
    if not cell.view:
        return Cell(Place(cell.place.array, (*cell.place.fields, *path)), cell.index, kind)
    at, inner = 0, cell.type
    for step in path:
        fields = inner.fields  # type: ignore[union-attr]
        place = [name for name, _ in fields].index(step)
        at, inner = at + sum(types.count(t) for _, t in fields[:place]), fields[place][1]
    last = cell.index[-1] if at == 0 else binary(ctx, node, "+", cell.index[-1], ctx.integer(node, at))
    return Cell(cell.place, (*cell.index[:-1], last), kind, isinstance(kind, Aggregate))


# Writing ----------------------------------------------------------------------------------------------------------


def assign(ctx: Context, node: Any, found: Any, right: Any) -> Any:
    """Give a variable or a place in memory its value; an aggregate field by field."""
    if isinstance(found, Cell) and isinstance(found.type, Aggregate):
        if not isinstance(right, Var) or right.type != found.type:
            raise _other_type(ctx, node)
        for path, leaf in _paths(right):
            write(ctx, node, part(ctx, node, found, path, leaf.type), read(ctx, node, leaf))  # type: ignore[arg-type]
        return right
    if isinstance(found, Var) and found.whole:
        return _assign_members(ctx, node, found, right)
    if isinstance(right, Pointer) and isinstance(found, Var) and isinstance(found.value, Pointer):
        ctx.note(found, True)
        found.value = right
        return right
    value, kind = computed(ctx, node, right), found.type
    if not isinstance(kind, str):
        raise ctx.refuse(node, f"{text_of(node)!r} assigns a number to what is not one", "assign an element or a field")
    value = convert(ctx, node, value, kind)
    if isinstance(found, Cell):
        write(ctx, node, found, value)
        return value
    if value.name is None and value.op not in ("const", "param", "special"):
        value.name = found.name
    ctx.note(found, True)
    found.value = value
    return value


def _assign_members(ctx: Context, node: Any, found: Var, right: Any) -> Var:
    packed = types.of_packed(right.type, found.type) if isinstance(right, Var) else None
    if packed is not None:
        repack(found, packed)
    if not isinstance(right, Var) or found.type is None or right.type != found.type:
        raise _other_type(ctx, node)
    ctx.note_variable(found, True)
    for (_, leaf), (_, value) in zip(_paths(found), _paths(right), strict=True):
        leaf.value = value.value
    return found


def _other_type(ctx: Context, node: Any) -> Exception:
    return ctx.refuse(node, f"{text_of(node)!r} assigns another type", "assign a value of the same type")


def computed(ctx: Context, node: Any, value: Any) -> Value:
    """A value that has to be a number, to compute with it."""
    if not isinstance(value, Value):
        raise ctx.refuse(node, f"{text_of(node)!r} computes with what is not a number", "use numbers")
    return value


def _paths(var: Var, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Var]]:
    if not var.fields:
        return [(path, var)]
    return [each for name, inner in var.fields.items() for each in _paths(inner, (*path, name))]


def repack(var: Var, kind: Aggregate) -> None:
    """Make a vector that has no value yet one that is there for its bytes."""
    if all(leaf.value is None for leaf in var.leaves()):
        var.type, var.fields = kind, fresh(var.name, kind).fields


def write(ctx: Context, node: Any, cell: Cell, value: Value, adds: str = "") -> None:
    """A store."""
    array, key = cell.place.array, (cell.place, cell.index)
    if array.const:
        raise ctx.refuse(node, f"{array.name} is const", "write to another array")
    ctx.note(array, True)
    if cell.volatile:
        _in_step(ctx, node, cell)
    made = Store(node.start_point[0] + 1, ctx.block, place=cell.place, index=cell.index, value=value, adds=adds)
    ctx.block.items.append(made)
    if adds:
        made.reads_own_store = adds == "plain" and key in ctx.own_stores and inside(ctx.block, ctx.own_stores[key])
    else:
        ctx.own_stores[key] = ctx.block
    if (not array.shared or array.private) and not adds:
        same = {k: v for k, v in ctx.stored.get(array, {}).items() if k[1] == cell.index}
        ctx.stored[array] = {**same, key: (value, ctx.block)}
    elif not array.shared or array.private:
        ctx.stored[array] = {}
    if cell.volatile:
        barrier(ctx, node, "__syncwarp()")


def barrier(ctx: Context, node: Any, text: str) -> None:
    ctx.block.items.append(Barrier(node.start_point[0] + 1, ctx.block, text=text))
    ctx.stored, ctx.own_stores = {}, {}


def _in_step(ctx: Context, node: Any, cell: Cell) -> None:
    """The lanes of a warp have read what they store by, before one of them stores it; as volatile was meant."""
    block: Block | None = ctx.block
    together = cell.place.array.shared and not any(isinstance(i, Exit) for i in ctx.body.items)
    while together and block is not None and block.parent is not None:
        together = made_of(block.parent.condition, lambda v: _same_in_warps(v, ctx.settings.block))
        block = block.parent.block
    if not together:
        raise ctx.refuse(node, f"{cell.place.array.name} is volatile where parts of a warp may write to it",
                         "use __syncwarp, or shuffles")  # fmt: skip
    barrier(ctx, node, "__syncwarp()")


def _same_in_warps(v: Value, block: tuple[int, int, int]) -> bool | tuple[Value, ...]:
    """Whether a value is the same for the lanes of a warp; or what that rests on."""
    if v.op == "special":
        return not v.attr.startswith("threadIdx")
    if v.op == "binary" and v.attr in ("<", ">=") and block[1:] == (1, 1):
        first, last = v.args[0], v.args[1].const
        while first.op == "cast":
            first = first.args[0]
        if (first.op, first.attr) == ("special", "threadIdx.x") and last is not None and last % 32 == 0:
            return True
    return v.op in ("cast", "unary", "binary", "select") and v.args
