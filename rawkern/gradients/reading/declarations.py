"""Declarations of a kernel: parameters, types, variables, arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rawkern.gradients import types
from rawkern.gradients.ir import Array, Place, Value
from rawkern.gradients.reading.calls import Calls
from rawkern.gradients.reading.groups import Storage, Team
from rawkern.gradients.reading.places import Cell, Local, Pointer, Var
from rawkern.gradients.reading.syntax import TYPES, contains, identifier, named, text_of, words
from rawkern.gradients.types import Aggregate, Type

#: What a reference may refer to.
PLACES = ("identifier", "subscript_expression", "field_expression", "pointer_expression", "parenthesized_expression")
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
            if isinstance(kind, Aggregate):
                raise self.refuse(node, f"the parameter {name} is a struct by value", "pass its numbers one by one")
            if kind in types.HALVES:
                raise self.refuse(node, f"the parameter {name} is {kind} by value", "pass a float")
            self.scopes[-1][name] = Var(name, kind, self.value(node, kind, "param", attr=name, name=name))
            return
        inner = [c for c in named(declarator) if c.type not in ("type_qualifier", "ms_pointer_modifier")]
        if declarator.type == "array_declarator" or (
            declarator.type == "pointer_declarator" and inner[0].type == "identifier"
        ):
            read = self.retyped.get(name, kind)
            self.params.append((name, read, True))
            self.arrays[name] = array = Array(name, read, const="const" in words(node))
            unit = len(read.fields) if isinstance(read, Aggregate) and read != kind else 0
            self.scopes[-1][name] = Var(name, None, Pointer(array, unit=unit))
            return
        raise self.refuse(node, f"the parameter {text_of(node)!r}", "use numbers and plain pointers")

    # Types --------------------------------------------------------------------------------------------------------

    def type_of(self, node: Any) -> Type:
        """The type that a node of the tree names."""
        return self.type_named(node, text_of(node))

    def type_named(self, node: Any, text: str) -> Type:
        text = text.removeprefix("struct ").removeprefix("const ").strip()
        if text in self.file.unclear:
            raise self.refuse(
                node,
                f"{text} is defined more than once, or in something that is not followed",
                "give it a name of its own",
            )
        if text in self.type_names:
            return self.type_names[text]
        if text in self.file.aliases:
            return self.type_of(self.file.aliases[text])
        if text in self.file.structs:
            return self._struct(text)
        if text in self.file.enums:
            return "int"
        kind = types.scalar(text) or types.VECTORS.get(text)
        kind = types.PHILOX if text in types.GENERATORS else kind
        if kind is None:
            raise self.refuse(
                node,
                f"the type {text} is not known",
                "use float, double, integers, their vectors or plain structs of them",
            )
        return kind

    def is_type(self, node: Any) -> bool:
        """Whether a name is that of a type, and of nothing else."""
        name = text_of(node)
        known = name in self.type_names or name in self.file.aliases or types.scalar(name) is not None
        return node.type in ("identifier", *TYPES) and known and self.lookup(name) is None

    def on_compound_literal_expression(self, node: Any) -> Any:
        var = self.fresh("literal", self.type_of(node.child_by_field_name("type")))
        self._fill(node, var, node.child_by_field_name("value"))
        return var if var.fields else self.read(node, var)

    def scalar_type(self, node: Any) -> str:
        kind = self.type_of(node)
        if isinstance(kind, Aggregate):
            raise self.refuse(node, f"{kind.name} where a number is expected", "use its fields")
        return kind

    def _struct(self, name: str) -> Aggregate:
        if name in self.structs:
            return self.structs[name][0]
        node, fields = self.file.structs[name], []
        for each in named(node.child_by_field_name("body")):
            plain = all(d.type == "field_identifier" for d in each.children_by_field_name("declarator"))
            if each.type != "field_declaration" or not plain or words(each) - {";", ","}:
                raise self.refuse(each, f"struct {name} has {text_of(each)!r}", "use structs of plain numbers")
            kind = self.type_of(each.child_by_field_name("type"))
            fields += [(text_of(d), kind) for d in each.children_by_field_name("declarator")]
        made = Aggregate(name, tuple(fields))
        aligned = next((text_of(named(c)[0]) for c in node.children if c.type == "alignas_qualifier"), "1")
        if not aligned.isdigit() or types.size(made) % int(aligned):
            raise self.refuse(
                node, f"struct {name} is aligned to {aligned}", "give it a size that is a multiple of that"
            )
        self.structs[name] = made, text_of(node.parent if node.parent.type == "type_definition" else node)
        return made

    # Declarations -------------------------------------------------------------------------------------------------

    def do_declaration(self, node: Any) -> None:
        self.declare(node)

    def declare(self, node: Any) -> None:
        qualifiers = words(node)
        if "static" in qualifiers and qualifiers & {"__shared__", "constexpr"}:
            qualifiers = qualifiers - {"static"}
        if qualifiers - QUALIFIERS:
            raise self.refuse(node, f"{text_of(node)!r}: {' '.join(sorted(qualifiers - QUALIFIERS))}", "leave that out")
        kind_node = node.child_by_field_name("type")
        if self._declare_group(node, text_of(kind_node), qualifiers):
            return
        auto = kind_node.type == "placeholder_type_specifier"
        if kind_node.type not in TYPES and kind_node.type != "struct_specifier":
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
        name = identifier(declarator)
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
            if isinstance(found, Pointer | Local):
                if kind is not None and kind != (
                    found.type if isinstance(found, Pointer) else found.view or found.leaves[0].type
                ):
                    raise self.refuse(node, f"{name} points to another type", "cast the pointer")
                self.scopes[-1][name] = Var(name, None, found)
                return None
            if isinstance(found, Team):
                self.scopes[-1][name] = Var(name, None, found)
                return None
            if inner.type == "pointer_declarator" or found is None:
                raise self.refuse(node, f"the pointer {name}", "let it point into an array, at its declaration")
            var = self.fresh(name, found.type)
            self.assign(node, var, found)
        elif sizes:
            var = self._local(node, name, kind, sizes)
            if value is not None:
                self._fill(node, var, value)
        else:
            var = self.fresh(name, kind)  # type: ignore[arg-type]
            if value is not None and value.type == "initializer_list":
                self._fill(node, var, value)
            elif value is not None:
                self.assign(node, var, self.expression(value))
        self.scopes[-1][name] = var
        return None

    def _refer(self, node: Any, name: str, kind: Type | None, value: Any) -> None:
        """Another name for a variable or an element; of what is computed, a variable."""
        found = self.target(value) if value.type in PLACES else self.expression(value)
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

    def _extent(self, node: Any) -> int:
        found = self.scalar(node).const
        if found is None or found <= 0:
            raise self.refuse(node, f"the extent {text_of(node)}", "make it a positive constant")
        return found

    def _share(self, node: Any, name: str, kind: Any, sizes: tuple[int, ...], value: Any, inner: Any) -> None:
        if kind is None or value is not None or inner.type != "identifier" or 0 in sizes[1:]:
            raise self.refuse(node, f"the shared array {name}", "declare it with a type and extents")
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

    def fresh(self, name: str, kind: Type) -> Var:
        return self.aggregate(name, kind, lambda *_: None) if isinstance(kind, Aggregate) else Var(name, kind)

    def _local(self, node: Any, name: str, kind: Any, sizes: Sequence[int]) -> Var:
        if not sizes:
            return self.fresh(name, kind)
        if sizes[0] == 0 or sizes[0] > 256:
            raise self.refuse(node, f"the local array {name}", "give it up to 256 elements")
        var = Var(name, None)
        var.fields = {str(k): self._local(node, f"{name}_{k}", kind, sizes[1:]) for k in range(sizes[0])}
        return var

    def _fill(self, node: Any, var: Var, value: Any) -> None:
        """An initializer in braces; what it leaves out is 0."""
        given = named(value) if value.type == "initializer_list" else None
        if given is None or len(given) > len(var.fields or [0]):
            raise self.refuse(node, f"the initializer {text_of(value)!r}", "use one list in braces")
        if not var.fields:
            self.assign(node, var, self.scalar(given[0]) if given else self.integer(node, 0))
            return
        for k, each in enumerate(var.fields.values()):
            if k < len(given) and given[k].type != "initializer_list":
                self.assign(node, each, self.expression(given[k]))
            elif k < len(given):
                self._fill(node, each, given[k])
            else:
                for leaf in each.leaves():
                    self.assign(node, leaf, self.integer(node, 0))
