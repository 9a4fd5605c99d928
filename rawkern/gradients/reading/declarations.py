"""Declarations of a kernel: parameters, types, variables, arrays."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rawkern.base.tree import named, parse, text_of
from rawkern.gradients import types
from rawkern.gradients.ir import Array, Place, Value, suffix
from rawkern.gradients.reading.calls import Calls
from rawkern.gradients.reading.groups import Storage, Team
from rawkern.gradients.reading.places import Cell, Lambda, Local, Pointer, Var
from rawkern.gradients.reading.syntax import TYPES, contains, identifier, without, words
from rawkern.gradients.types import Aggregate, Type

DEVICE = {"__constant__", "__device__", "__managed__", "const", "extern", "static", ";", ","}
QUALIFIERS = {"const", "constexpr", "__shared__", "extern", "__restrict__", ";", ","}


class Declarations(Calls):
    """Parameters, types and declared variables."""

    params: list[tuple[str, Type, bool]]
    arrays: dict[str, Array]
    shared: list[Array]
    structs: dict[str, tuple[Aggregate, str]]
    retyped: dict[str, Type]  # arrays that are read as ones of another type
    kept: dict[Any, Array]  # shared arrays by function, name, type and extents
    shared_mem: int  # bytes of dynamic shared memory

    def parameter(self, node: Any) -> None:
        declarator, name = node.child_by_field_name("declarator"), identifier(node.child_by_field_name("declarator"))
        if name in self.file.unclear or name in self.file.options:
            raise self.refuse(node, f"the parameter {name} is a macro, too", "give it a name of its own")
        if declarator is None or name is None or node.type != "parameter_declaration":
            raise self.refuse(node, f"the parameter {text_of(node)!r}", "give it a plain type and a name")
        kind = self.type_of(node.child_by_field_name("type"))
        if words(node) - QUALIFIERS:
            raise self.refuse(node, f"the parameter {name} is {' '.join(words(node) - QUALIFIERS)}", "leave that out")
        if declarator.type == "identifier":
            self.params.append((name, kind, False))
            if kind in types.HALVES:
                raise self.refuse(node, f"the parameter {name} is {kind} by value", "pass a float")
            if isinstance(kind, Aggregate):
                self.in_memory(node, kind)
                self.scopes[-1][name] = self.aggregate(
                    name, kind, lambda path, inner: self.value(node, inner, "param", attr=name + suffix(path))
                )
            else:
                self.scopes[-1][name] = Var(name, kind, self.value(node, kind, "param", attr=name, name=name))
            return
        inner = [c for c in named(declarator) if c.type not in ("type_qualifier", "ms_pointer_modifier")]
        if declarator.type == "array_declarator" or (
            declarator.type == "pointer_declarator" and inner[0].type == "identifier"
        ):
            read = self.retyped.get(name, kind)
            self.in_memory(node, read)
            self.params.append((name, read, True))
            self.arrays[name] = array = Array(name, read, const="const" in words(node))
            unit = len(read.fields) if isinstance(read, Aggregate) and read != kind else 0
            self.scopes[-1][name] = Var(name, None, Pointer(array, unit=unit))
            return
        raise self.refuse(node, f"the parameter {text_of(node)!r}", "use numbers and plain pointers")

    def variable(self, name: str) -> Var:
        """A variable of the device, which a backward gets as a pointer; one number is the first element."""
        node, declarator = self.file.variables[name]
        inner = declarator.child_by_field_name("declarator") if declarator.type == "init_declarator" else declarator
        value, sizes = declarator.child_by_field_name("value"), []
        while inner.type == "array_declarator":
            size = inner.child_by_field_name("size")
            known = self.within_top(lambda of=size: self._extent(of)) if size is not None else None
            sizes.insert(0, len(named(value)) if known is None and value is not None else known or 0)
            inner = inner.child_by_field_name("declarator")
        kind = self.within_top(lambda: self.type_of(node.child_by_field_name("type")))
        if name in self.file.unclear or any(name == n for n, *_ in self.params):
            raise self.refuse(node, f"{name} is also something else in the source", "give it a name of its own")
        plain = inner.type == "identifier" and not words(node) - DEVICE and 0 not in sizes
        if not plain or kind in types.HALVES or (isinstance(kind, Aggregate) and kind not in types.VECTORS.values()):
            raise self.refuse(node, f"the variable {text_of(node)!r} of the device",
                              "declare numbers, vectors or arrays of them, or pass it as a parameter")  # fmt: skip
        if self.file.changes(name):
            raise self.refuse(node, f"{name} is a variable of the device that launches may change",
                              "pass it as a parameter")  # fmt: skip
        self.in_memory(node, kind)
        array = self.arrays.setdefault(name, Array(name, kind, sizes=tuple(sizes[1:] and sizes), const=True))
        at = Pointer(array) if sizes else Cell(Place(array), (self.integer(node, 0),), kind)
        return Var(name, None, at)

    # Declarations -------------------------------------------------------------------------------------------------

    def do_declaration(self, node: Any) -> None:
        self.declare(node)

    def declare(self, node: Any) -> None:
        qualifiers = words(node)
        if "static" in qualifiers and qualifiers & {"__shared__", "constexpr"}:
            qualifiers = qualifiers - {"static"}
        pointers = all("*" in text_of(each).partition("=")[0] for each in node.children_by_field_name("declarator"))
        if qualifiers - QUALIFIERS - ({"volatile"} if pointers else set()):
            raise self.refuse(node, *without(node, qualifiers - QUALIFIERS))
        kind_node = node.child_by_field_name("type")
        if self._declare_group(node, text_of(kind_node), qualifiers):
            return
        auto = kind_node.type == "placeholder_type_specifier"
        if kind_node.type not in (
            *TYPES,
            "struct_specifier",
            "template_type",
            "qualified_identifier",
            "dependent_type",
        ):
            raise self.refuse(node, f"the type {text_of(kind_node)!r}", "use numbers and plain structs")
        if contains(node, ("bitfield_clause", "attribute_specifier", "alignas_specifier", "ERROR")):
            raise self.refuse(node, text_of(node), "write it in simpler terms")
        kind = None if auto else self.type_of(kind_node)
        for each in node.children_by_field_name("declarator"):
            value = each.child_by_field_name("value") if each.type == "init_declarator" else None
            declarator = each.child_by_field_name("declarator") if each.type == "init_declarator" else each
            self._declare(node, declarator, kind, value, qualifiers)

    def _declare_group(self, node: Any, kind: str, qualifiers: set[str]) -> bool:
        """Declare a group of threads, or the memory of a reduction; False for others."""
        storage = kind.endswith("::TempStorage") and "__shared__" in qualifiers
        if not storage and self.group_type(kind) is None:
            return False
        for each in node.children_by_field_name("declarator"):
            name, value = identifier(each), each.child_by_field_name("value")
            found = Storage() if storage else self.expression(value) if value is not None else None
            if name is None or not isinstance(found, Team | Storage):
                raise self.refuse(node, f"the declaration {text_of(node)!r}", "give the group its value there")
            self.scopes[-1][name] = Var(name, None, found)
        return True

    def do_namespace_alias_definition(self, node: Any) -> None:
        self.file.spaces[text_of(named(node)[0])] = text_of(named(node)[1])

    def do_alias_declaration(self, node: Any) -> None:
        self._alias(node, text_of(node.child_by_field_name("name")), node.child_by_field_name("type"))

    def do_type_definition(self, node: Any) -> None:
        self._alias(node, text_of(node.child_by_field_name("declarator")), node.child_by_field_name("type"))

    def _alias(self, node: Any, name: str, kind: Any) -> None:
        """A name for a type within a function."""
        collective = self.collective_type(node, text_of(kind))
        if collective is not None:
            self.scopes[-1][name] = Var(name, None, collective)
        else:
            self.type_names[name] = self.type_of(kind)

    def _declare(self, node: Any, declarator: Any, kind: Type | None, value: Any, qualifiers: set[str]) -> None:
        if declarator.type == "structured_binding_declarator" and value is not None:
            return self._unpacked(node, declarator, value)
        if declarator.type == "reference_declarator" and named(declarator)[0].type == "structured_binding_declarator":
            return self._unpacked(node, named(declarator)[0], value, refers=True)
        name = identifier(declarator)
        if declarator.type == "function_declarator" and named(declarator.child_by_field_name("parameters")):
            # T name(a, b), which reads as a function
            text = f"int x = f{text_of(declarator.child_by_field_name('parameters'))};"
            value = parse(text).children[0].child_by_field_name("declarator").child_by_field_name("value")
            value, declarator = value.child_by_field_name("arguments"), declarator.child_by_field_name("declarator")
        sizes, inner = [], declarator
        while inner.type == "array_declarator":
            size = inner.child_by_field_name("size")
            sizes.insert(0, 0 if size is None else self._extent(size))
            inner = inner.child_by_field_name("declarator")
        if name is not None and inner.type == "reference_declarator" and value is not None and not sizes:
            return self._refer(node, name, kind, value)
        if name is None or inner.type not in ("identifier", "pointer_declarator") or name in self.file.unclear:
            raise self.refuse(node, f"the declaration {text_of(node)!r}", "declare a plain variable")
        if "__shared__" in qualifiers:
            return self._share(node, name, kind, tuple(sizes), value, inner)
        if inner.type == "pointer_declarator" or (kind is None and not sizes):
            found = self.expression(value) if value is not None else None
            pointed = inner.type == "pointer_declarator" or (value is not None and value.type == "pointer_expression")
            found = self.as_pointer(found) if pointed else found
            if isinstance(found, Var) and pointed and text_of(value).lstrip("( ")[:1] == "&":
                if kind is not None and kind != found.type:
                    raise self.refuse(node, f"{name} points to another type", "use the type of the variable")
                self.scopes[-1][name] = found
                return None
            if isinstance(found, Pointer | Local):
                if kind is not None and kind != (
                    found.type if isinstance(found, Pointer) else found.view or found.leaves[0].type
                ):
                    raise self.refuse(node, f"{name} points to another type", "cast the pointer")
                if isinstance(found, Pointer) and "volatile" in qualifiers:
                    found = replace(found, volatile=True)
                self.scopes[-1][name] = Var(name, None, found)
                return None
            if isinstance(found, Team | Lambda):
                self.scopes[-1][name] = Var(name, None, found)
                return None
            if inner.type == "pointer_declarator" or found is None:
                raise self.refuse(node, f"the pointer {name}", "let it point into an array, at its declaration")
            var = self.fresh(name, found.type)  # type: ignore[arg-type]
            self.assign(node, var, found)
        elif sizes:
            sizes[0] = len(named(value)) if not sizes[0] and value is not None else sizes[0]
            var = self.local(node, name, kind, sizes)
            if value is not None and value.type != "initializer_list":
                raise self.refuse(node, f"the initializer {text_of(value)!r}", "use one list in braces")
            if value is not None:
                self.fill(value, var, None, named(value))
        elif value is None:
            var = self.plainly(node, name, kind)  # type: ignore[arg-type]
        elif value.type in ("initializer_list", "argument_list"):
            var = self.construct(value, name, kind, named(value), value.type == "initializer_list")  # type: ignore[arg-type]
        else:
            var = self.made_of(value, name, kind, self.given(value))  # type: ignore[arg-type]
        self.scopes[-1][name] = var
        return None

    def _refer(self, node: Any, name: str, kind: Type | None, value: Any) -> None:
        """Another name for a variable or an element; of what is computed, a variable."""
        found = self.given(value).found
        if name in self.file.unclear or (kind is not None and getattr(found, "type", None) != kind):
            raise self.refuse(node, f"{name} refers to another type", "use the type of what it refers to")
        if isinstance(found, Var) and not isinstance(found.value, Pointer | Local) and found.type is not None:
            self.scopes[-1][name] = found
        elif isinstance(found, Cell):
            self.scopes[-1][name] = Var(name, None, found)
        elif isinstance(found, Value):
            self.scopes[-1][name] = var = self.fresh(name, found.type)
            self.assign(node, var, found)
        else:
            raise self.refuse(node, f"the reference {name}", "declare a variable")

    def _unpacked(self, node: Any, declarator: Any, value: Any, refers: bool = False) -> None:
        """``auto [a, b] = value``, or ``auto& [a, b] = value``, which names the members themselves."""
        found = self.expression(value)
        names = [text_of(each) for each in named(declarator)]
        if not isinstance(found, Var) or len(found.fields) != len(names):
            raise self.refuse(node, f"the declaration {text_of(node)!r}", "take the members one by one")
        for name, member in zip(names, found.fields.values(), strict=True):
            self.scopes[-1][name] = member if refers else member.copied()

    def _extent(self, node: Any) -> int:
        found = self.scalar(node).const
        if found is None or found <= 0:
            raise self.refuse(node, f"the extent {text_of(node)}", "make it a positive constant")
        return found

    def _share(self, node: Any, name: str, kind: Any, sizes: tuple[int, ...], value: Any, inner: Any) -> None:
        if kind is None or value is not None or inner.type != "identifier" or 0 in sizes[1:]:
            raise self.refuse(node, f"the shared array {name}", "declare it with a type and extents")
        self.in_memory(node, kind)
        function = self.called[-1] if self.called else ""
        if 0 in sizes:
            array, unit = self._dynamic(node, name, kind)
        else:
            # A function's own array is one, however often it is called.
            array, unit = self.kept.get((function, name, kind, sizes)), 0
            if array is None:
                taken = {a.name for a in self.shared} | {n for n, *_ in self.params}
                called = next(f"{name}{k}" for k in ("", *(f"_{k}" for k in range(2, 99))) if f"{name}{k}" not in taken)
                array = self.kept[function, name, kind, sizes] = Array(called, kind, True, sizes)
        if array not in self.shared:
            self.shared.append(array)
        at = Pointer(array, unit=unit) if array.sizes else Cell(Place(array), (), kind)
        self.scopes[-1][name] = Var(name, None, at)

    def _dynamic(self, node: Any, name: str, kind: Type) -> tuple[Array, int]:
        """The array of the bytes that a launch gives; all such declarations mean the same."""
        if not self.shared_mem:
            raise self.refuse(
                node,
                f"{name} is dynamic shared memory, and shared_mem is 0",
                "give the bytes of the launch as shared_mem",
            )
        raw = isinstance(kind, str) and not types.is_float(kind) and types.bits(kind) == 8
        read, unit = (self.retyped.get(name, kind), types.size(self.retyped.get(name, kind))) if raw else (kind, 0)
        array = Array(name, read, True, (self.shared_mem // types.size(read),), dynamic=True, raw=raw and read == kind)
        before = next((a for a in self.shared if a.dynamic), array)
        if before.type != array.type or before.raw != array.raw:
            raise self.refuse(node, f"{name} shares its memory with {before.name}, of another type", "use one of them")
        return before, 0 if array.raw else unit
