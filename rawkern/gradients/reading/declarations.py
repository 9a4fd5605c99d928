"""Declarations: variables, arrays, and names of types."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from rawkern.base.tree import named, parse, text_of
from rawkern.gradients import types
from rawkern.gradients.ir import Array, Carried, Loop, Place, Value
from rawkern.gradients.reading.context import MOST_VARIABLES, Context
from rawkern.gradients.reading.groups import Storage, Team, collective_type, group_type
from rawkern.gradients.reading.handlers import declarators, globals_, statements
from rawkern.gradients.reading.kinds import in_memory
from rawkern.gradients.reading.memory import assign
from rawkern.gradients.reading.objects import construct, fill, local, made_of, plainly
from rawkern.gradients.reading.parameters import QUALIFIERS
from rawkern.gradients.reading.places import Cell, Given, Lambda, Local, Pointer, Var, as_pointer, fresh
from rawkern.gradients.reading.pointers import cell
from rawkern.gradients.reading.shared import fits, private, share
from rawkern.gradients.reading.syntax import INSTEAD_OF_UNIONS, TYPES, contains, extents_of, identifier, without, words
from rawkern.gradients.reading.values import binary
from rawkern.gradients.types import Aggregate, Type

MOST_ZEROS = 8  # elements of an array in memory that are set to 0 one by one
DEVICE = {"__constant__", "__device__", "__managed__", "const", "extern", "static", ";", ","}
NAMED = (*TYPES, "struct_specifier", "template_type", "qualified_identifier", "dependent_type")


@dataclass(frozen=True)
class Declared:
    """One variable of a declaration."""

    node: Any  # the declaration
    declarator: Any
    kind: Type | None  # None: auto
    value: Any  # what it begins with, or None
    qualifiers: set[str]

    @property
    def name(self) -> str:
        return identifier(self.declarator) or ""

    @property
    def shared(self) -> bool:
        return "__shared__" in self.qualifiers


# Outside of the kernel's body -------------------------------------------------------------------------------------


@globals_("dynamic")
def dynamic_shared(ctx: Context, name: str) -> Var:
    """The bytes that a launch gives each block."""
    ctx.within_top(lambda: declare(ctx, ctx.file.dynamic[name]))
    return ctx.scopes[0][name]


@globals_("variable")
def device_variable(ctx: Context, name: str) -> Var:
    """A variable of the device, which a backward gets as a pointer; one number is the first element."""
    node, declarator = ctx.file.variables[name]
    value, own = declarator.child_by_field_name("value"), declarator.type == "init_declarator"
    given, inner = extents_of(declarator.child_by_field_name("declarator") if own else declarator)
    listed = len(named(value)) if value is not None else 0
    sizes = [ctx.within_top(lambda of=size: _extent(ctx, of)) if size is not None else listed for size in given]
    kind = ctx.within_top(lambda: ctx.type_of(node.child_by_field_name("type")))
    if name in ctx.file.unclear or any(name == n for n, *_ in ctx.params):
        raise ctx.refuse(node, f"{name} is also something else in the source", "give it a name of its own")
    plain = inner.type == "identifier" and not words(node) - DEVICE and 0 not in sizes
    if not plain or kind in types.HALVES or (isinstance(kind, Aggregate) and kind not in types.VECTORS.values()):
        raise ctx.refuse(node, f"the variable {text_of(node)!r} of the device",
                          "declare numbers, vectors or arrays of them, or pass it as a parameter")  # fmt: skip
    if ctx.file.changes(name):
        raise ctx.refuse(node, f"{name} is a variable of the device that launches may change",
                          "pass it as a parameter")  # fmt: skip
    in_memory(ctx, node, kind)
    array = ctx.arrays.setdefault(name, Array(name, kind, sizes=tuple(sizes[1:] and sizes), const=True))
    at = Pointer(array) if sizes else Cell(Place(array), (ctx.integer(node, 0),), kind)
    return Var(name, None, at)


# Declarations -----------------------------------------------------------------------------------------------------


@statements("declaration")
def declare(ctx: Context, node: Any) -> None:
    qualifiers, kind_node = words(node), node.child_by_field_name("type")
    if "static" in qualifiers and qualifiers & {"__shared__", "constexpr"}:
        qualifiers = qualifiers - {"static"}
    pointers = all("*" in text_of(each).partition("=")[0] for each in node.children_by_field_name("declarator"))
    if qualifiers - QUALIFIERS - ({"volatile"} if pointers else set()):
        raise ctx.refuse(node, *without(node, qualifiers - QUALIFIERS))
    if _declare_group(ctx, node, text_of(kind_node), qualifiers):
        return
    if kind_node.type == "union_specifier":
        raise ctx.refuse(node, f"{text_of(kind_node)!r} is a union", INSTEAD_OF_UNIONS)
    if kind_node.type not in NAMED:
        raise ctx.refuse(node, f"the type {text_of(kind_node)!r}", "use numbers and plain structs")
    if contains(node, ("bitfield_clause", "attribute_specifier", "alignas_specifier", "ERROR")):
        raise ctx.refuse(node, text_of(node), "write it in simpler terms")
    auto = kind_node.type == "placeholder_type_specifier" or (text_of(kind_node) == "void" and pointers)
    kind = None if auto else ctx.type_of(kind_node)
    for each in node.children_by_field_name("declarator"):
        value = each.child_by_field_name("value") if each.type == "init_declarator" else None
        declarator = each.child_by_field_name("declarator") if each.type == "init_declarator" else each
        _declare(ctx, Declared(node, declarator, kind, value, qualifiers))


def _declare(ctx: Context, declared: Declared) -> None:
    handler = declarators.of(declared.declarator.type)
    if handler is None:
        raise _not_plain(ctx, declared)
    handler(ctx, declared)


def _not_plain(ctx: Context, declared: Declared) -> Exception:
    return ctx.refuse(declared.node, f"the declaration {text_of(declared.node)!r}", "declare a plain variable")


def _declare_group(ctx: Context, node: Any, kind: str, qualifiers: set[str]) -> bool:
    """Declare a group of threads, or the memory of a reduction; False for others."""
    storage = kind.endswith("::TempStorage") and "__shared__" in qualifiers
    if not storage and group_type(ctx, kind) is None:
        return False
    for each in node.children_by_field_name("declarator"):
        name, value = identifier(each), each.child_by_field_name("value")
        found = Storage() if storage else ctx.expression(value) if value is not None else None
        if name is None or not isinstance(found, Team | Storage):
            raise ctx.refuse(node, f"the declaration {text_of(node)!r}", "give the group its value there")
        ctx.scopes[-1][name] = Var(name, None, found)
    return True


@declarators("identifier")
def declare_variable(ctx: Context, declared: Declared) -> None:
    """``T name``, ``T name = value``, ``T name{values}``"""
    node, name, kind, value = declared.node, declared.name, declared.kind, declared.value
    if name in ctx.file.unclear:
        raise _not_plain(ctx, declared)
    if declared.shared:
        var = _share(ctx, declared, ())
    elif kind is None:
        var = _deduced(ctx, declared)
    elif value is None:
        var = plainly(ctx, node, name, kind)
    elif value.type in ("initializer_list", "argument_list"):
        var = construct(ctx, value, name, kind, named(value), value.type == "initializer_list")
    else:
        var = made_of(ctx, value, name, kind, ctx.given(value))
    ctx.scopes[-1][name] = var


@declarators("pointer_declarator")
def declare_pointer(ctx: Context, declared: Declared) -> None:
    """``T* name = value``"""
    if declared.name in ctx.file.unclear or not declared.name:
        raise _not_plain(ctx, declared)
    if declared.shared:
        raise _shared_refusal(ctx, declared)
    ctx.scopes[-1][declared.name] = _deduced(ctx, declared)


def _deduced(ctx: Context, declared: Declared) -> Var:
    """A variable for a pointer, or for what `auto` means; what is the address of an object is the object itself."""
    node, name, kind, value = declared.node, declared.name, declared.kind, declared.value
    found = ctx.expression(value) if value is not None else None
    is_pointer = declared.declarator.type == "pointer_declarator"
    if is_pointer or (value is not None and value.type == "pointer_expression"):
        found = as_pointer(found)
        if isinstance(found, Var) and text_of(value).lstrip("( ")[:1] == "&":
            if kind is not None and kind != found.type:
                raise ctx.refuse(node, f"{name} points to another type", "use the type of the variable")
            return found
    if isinstance(found, Pointer | Local):
        if kind is not None and kind != Given(value, found).type[1]:
            raise ctx.refuse(node, f"{name} points to another type", "cast the pointer")
        if isinstance(found, Pointer) and "volatile" in declared.qualifiers:
            found = replace(found, volatile=True)
        return Var(name, None, found)
    if isinstance(found, Team | Lambda):
        return Var(name, None, found)
    if is_pointer or found is None:
        raise ctx.refuse(node, f"the pointer {name}", "let it point into an array, at its declaration")
    var = fresh(name, found.type)  # type: ignore[arg-type]
    assign(ctx, node, var, found)
    return var


@declarators("array_declarator")
def declare_array(ctx: Context, declared: Declared) -> None:
    """``T name[extents]``, with values in braces"""
    node, name, value = declared.node, declared.name, declared.value
    given, inner = extents_of(declared.declarator)
    sizes = [0 if size is None else _extent(ctx, size) for size in given]
    if inner.type == "pointer_declarator":
        return declare_pointer(ctx, replace(declared, declarator=inner))
    if inner.type != "identifier" or name in ctx.file.unclear:
        raise _not_plain(ctx, declared)
    if declared.shared:
        ctx.scopes[-1][name] = _share(ctx, declared, tuple(sizes))
        return None
    sizes[0] = len(named(value)) if not sizes[0] and value is not None else sizes[0]
    if value is not None and value.type != "initializer_list":
        raise ctx.refuse(node, f"the initializer {text_of(value)!r}", "use one list in braces")
    at: int = inner.start_byte
    kind = declared.kind
    lies = at in ctx.settings.in_memory or (kind is not None and max(sizes) > MOST_VARIABLES and fits(kind, sizes))
    if lies and kind is not None:
        pointer = private(ctx, node, name, kind, sizes)
        ctx.scopes[-1][name] = Var(name, None, pointer)
        if value is not None:
            _fill_memory(ctx, node, pointer, sizes, value)
        elif isinstance(kind, Aggregate):
            _construct_memory(ctx, node, pointer, sizes, kind)
        return None
    var = local(ctx, node, name, kind, sizes)
    if value is not None:
        fill(ctx, value, var, None, named(value))
    if kind is not None and fits(kind, sizes) and (isinstance(kind, str) or value is None):
        ctx.local_arrays.update({part: at for part in _parts(var)})
    ctx.scopes[-1][name] = var
    return None


def _parts(var: Var) -> list[Var]:
    """A local array, its rows and elements."""
    return [var, *(part for each in var.fields.values() for part in _parts(each))]


def _fill_memory(ctx: Context, node: Any, pointer: Pointer, sizes: Sequence[int], value: Any) -> None:
    """Give an array in memory the values of a list in braces, zeros where there are none."""
    given = named(value) if value is not None else []
    if len(given) > sizes[0]:
        raise ctx.refuse(node, f"the initializer {text_of(value)!r} of {sizes[0]} elements", "use one list in braces")
    listed = len(given) if len(sizes) == 1 and sizes[0] - len(given) > MOST_ZEROS else sizes[0]
    if listed < sizes[0]:
        _zeros(ctx, node, pointer, listed, sizes[0])
    for k in range(listed):
        each = given[k] if k < len(given) else None
        place = cell(ctx, node, pointer, (ctx.integer(node, k),))
        if len(sizes) > 1:
            _fill_memory(ctx, node, place, sizes[1:], each)
        else:
            assign(ctx, node, place, ctx.integer(node, 0) if each is None else ctx.scalar(each))


def _zeros(ctx: Context, node: Any, pointer: Pointer, first: int, end: int) -> None:
    """A loop that sets elements to 0."""
    made = Loop(node.start_point[0] + 1, ctx.block, node=node.start_byte)
    made.test.parent = made.body.parent = made
    k = Value(made.line, made.body, op="phi", attr=made, name="k")
    result = Value(made.line, ctx.block, op="result", attr=made, name="k")

    def iteration() -> Value:
        assign(ctx, node, cell(ctx, node, pointer, (k,)), ctx.integer(node, 0))
        return binary(ctx, node, "+", k, ctx.integer(node, 1))

    made.condition = ctx.within(made.test, lambda: binary(ctx, node, "<", k, ctx.integer(node, end)))
    made.carried.append(Carried(k, ctx.integer(node, first), ctx.within(made.body, iteration), result))
    ctx.block.items += [made, result]


def _construct_memory(ctx: Context, node: Any, pointer: Pointer, sizes: Sequence[int], kind: Aggregate) -> None:
    """Give the objects of an array in memory what their constructor sets, or nothing."""
    for k in range(sizes[0]):
        place = cell(ctx, node, pointer, (ctx.integer(node, k),))
        if len(sizes) > 1:
            _construct_memory(ctx, node, place, sizes[1:], kind)
            continue
        begun = plainly(ctx, node, text_of(node), kind)
        members = [leaf.value is not None for leaf in begun.leaves()]
        if all(members):
            assign(ctx, node, place, begun)
        elif any(members):
            raise ctx.refuse(node, f"{kind.name} begins with values of some members", "give all of them values")


def _share(ctx: Context, declared: Declared, sizes: tuple[int, ...]) -> Var:
    if declared.kind is None or declared.value is not None or 0 in sizes[1:]:
        raise _shared_refusal(ctx, declared)
    return share(ctx, declared.node, declared.name, declared.kind, sizes)


def _shared_refusal(ctx: Context, declared: Declared) -> Exception:
    return ctx.refuse(declared.node, f"the shared array {declared.name}", "declare it with a type and extents")


@declarators("function_declarator")
def declare_constructed(ctx: Context, declared: Declared) -> None:
    """``T name(a, b)``, which reads as a function"""
    parameters = declared.declarator.child_by_field_name("parameters")
    if not named(parameters):
        raise _not_plain(ctx, declared)
    text = f"int x = f{text_of(parameters)};"
    value = parse(text).children[0].child_by_field_name("declarator").child_by_field_name("value")
    inner = declared.declarator.child_by_field_name("declarator")
    _declare(ctx, replace(declared, declarator=inner, value=value.child_by_field_name("arguments")))


@declarators("reference_declarator")
def declare_reference(ctx: Context, declared: Declared) -> None:
    """Another name for a variable or an element; of what is computed, a variable."""
    node, name, kind, value = declared.node, declared.name, declared.kind, declared.value
    if named(declared.declarator)[0].type == "structured_binding_declarator":
        return _unpacked(ctx, declared, named(declared.declarator)[0], True)
    if value is None or not name:
        raise _not_plain(ctx, declared)
    found = ctx.given(value).found
    if name in ctx.file.unclear or (kind is not None and getattr(found, "type", None) != kind):
        raise ctx.refuse(node, f"{name} refers to another type", "use the type of what it refers to")
    if isinstance(found, Var) and not isinstance(found.value, Pointer | Local) and found.type is not None:
        ctx.scopes[-1][name] = found
    elif isinstance(found, Cell) or (isinstance(found, Pointer) and found.accesses):
        ctx.scopes[-1][name] = Var(name, None, found)
    elif isinstance(found, Value):
        ctx.scopes[-1][name] = var = fresh(name, found.type)
        assign(ctx, node, var, found)
    else:
        raise ctx.refuse(node, f"the reference {name}", "declare a variable")
    return None


@declarators("structured_binding_declarator")
def declare_members(ctx: Context, declared: Declared) -> None:
    _unpacked(ctx, declared, declared.declarator, False)


def _unpacked(ctx: Context, declared: Declared, declarator: Any, refers: bool) -> None:
    """``auto [a, b] = value``, or ``auto& [a, b] = value``, which names the members themselves."""
    if declared.value is None:
        raise _not_plain(ctx, declared)
    found = ctx.expression(declared.value)
    names = [text_of(each) for each in named(declarator)]
    if not isinstance(found, Var) or len(found.fields) != len(names):
        raise ctx.refuse(declared.node, f"the declaration {text_of(declared.node)!r}", "take the members one by one")
    for name, member in zip(names, found.fields.values(), strict=True):
        ctx.scopes[-1][name] = member if refers else member.copied()


def _extent(ctx: Context, node: Any) -> int:
    found = ctx.scalar(node).const
    if found is None or found <= 0:
        raise ctx.refuse(node, f"the extent {text_of(node)}", "make it a positive constant")
    return found


# Names of types ---------------------------------------------------------------------------------------------------


@statements("namespace_alias_definition")
def namespace_alias(ctx: Context, node: Any) -> None:
    ctx.file.spaces[text_of(named(node)[0])] = text_of(named(node)[1])


@statements("alias_declaration")
def alias_declaration(ctx: Context, node: Any) -> None:
    _alias(ctx, node, text_of(node.child_by_field_name("name")), node.child_by_field_name("type"))


@statements("type_definition")
def type_definition(ctx: Context, node: Any) -> None:
    _alias(ctx, node, text_of(node.child_by_field_name("declarator")), node.child_by_field_name("type"))


def _alias(ctx: Context, node: Any, name: str, kind: Any) -> None:
    """A name for a type within a function."""
    collective = collective_type(ctx, node, text_of(kind))
    if collective is not None:
        ctx.scopes[-1][name] = Var(name, None, collective)
    else:
        ctx.type_names[name] = ctx.type_of(kind)
