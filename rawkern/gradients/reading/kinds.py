"""Types of a kernel's text: names, instances of templates, structs with what belongs to them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from rawkern.base.tree import named, parse, text_of
from rawkern.gradients import types
from rawkern.gradients.ir import Value
from rawkern.gradients.reading.places import Maker, Struct
from rawkern.gradients.reading.syntax import (
    BY_HAND,
    TENSOR_CORES,
    TYPES,
    function_name,
    identifier,
    parameters_of,
    words,
)  # fmt: skip
from rawkern.gradients.reading.templates import Templates
from rawkern.gradients.types import Aggregate, Type

#: What the members of a struct may be called besides their types.
MEMBERS = {"inline", "static", "constexpr", "const", ";", ",", "explicit", "__forceinline__", "=", "__device__"}


class Kinds(Templates):
    """Types."""

    type_names: dict[str, Any]  # types, and templates of them, by the names that functions and templates give them
    structs: dict[str, tuple[Aggregate, str]]
    made: dict[str, Struct]  # structs by the name of their type
    instances: dict[tuple[Any, ...], Struct]  # by name and arguments of the template

    def type_of(self, node: Any) -> Type:
        """The type that a node of the tree names."""
        while node.type in ("type_descriptor", "dependent_type"):
            if node.child_by_field_name("declarator") is not None:
                raise self.refuse(node, f"the type {text_of(node)!r}", "use numbers and plain structs")
            node = node.child_by_field_name("type") or named(node)[0]
        if node.type == "qualified_identifier":
            return self._qualified(node)
        if node.type == "template_type":
            arguments = named(node.child_by_field_name("arguments"))
            name = text_of(node.child_by_field_name("name"))
            maker = self.type_names.get(name)
            return self.instance(node, maker.name if isinstance(maker, Maker) else name, self.bound(arguments))
        return self.type_named(node, text_of(node))

    def type_named(self, node: Any, text: str) -> Type:
        """The type that a text names."""
        text = text.removeprefix("struct ").removeprefix("const ").removeprefix("typename ").strip()
        if text in self.file.unclear:
            raise self.refuse(
                node,
                f"{text} is defined more than once, or in something that is not followed",
                "give it a name of its own",
            )
        if isinstance(self.type_names.get(text), (str, Aggregate)):
            return self.type_names[text]
        if text in self.file.aliases:
            return self.within_top(lambda: self.type_of(self.file.aliases[text]))
        if text in self.file.structs:
            return self.instance(node, text, ())
        if text in self.file.enums:
            return "int"
        if "<" in text or "::" in text:
            found = parse(f"{text} x;").children[0].child_by_field_name("type")
            if found is not None and found.type in ("template_type", "qualified_identifier"):
                return self.type_of(found)
        kind = types.scalar(text) or types.VECTORS.get(text)
        kind = types.PHILOX if text in types.GENERATORS else kind
        if kind is None:
            raise self.refuse(
                node,
                f"the type {text} is not known",
                "use curandStatePhilox4_32_10_t"
                if text.startswith("curandState")
                else "use float, double, integers, their vectors or plain structs of them",
            )
        return kind

    def _qualified(self, node: Any) -> Type:
        """A type of a namespace, or one that a struct names."""
        scope, name = node.child_by_field_name("scope"), node.child_by_field_name("name")
        plain = self.file.plain(text_of(node).partition("<")[0])
        if plain is not None:
            return self.type_of(name) if name.type != "type_identifier" else self.type_named(node, plain)
        if scope is None or text_of(scope) in ("std", "cuda::std"):
            kind = types.scalar(text_of(name))
            if kind is not None:
                return kind
        elif scope.type == "template_type" or self.known_type(text_of(scope)):
            struct = self.made.get(getattr(self.type_of(scope), "name", ""))
            if struct is not None and text_of(name) in struct.names:
                return struct.names[text_of(name)]
        if "wmma::" in text_of(node).replace(" ", ""):
            raise self.refuse(node, TENSOR_CORES, BY_HAND)
        raise self.refuse(node, f"the type {text_of(node)} is not known", "use numbers and structs of this source")

    def known_type(self, name: str) -> bool:
        """Whether a name is that of a type."""
        plain = self.file.plain(name) if "::" in name else name
        return plain is not None and plain not in self.file.unclear and (
            isinstance(self.type_names.get(plain), (str, Aggregate))
            or plain in self.file.aliases or plain in self.file.structs or plain in self.file.enums
            or types.scalar(plain) is not None or plain in types.VECTORS
        )  # fmt: skip

    def is_type(self, node: Any) -> bool:
        """Whether a name is that of a type, and of nothing else."""
        name = text_of(node)
        return node.type in ("identifier", *TYPES) and self.known_type(name) and self.lookup(name) is None

    def scalar_type(self, node: Any) -> str:
        kind = self.type_of(node)
        if isinstance(kind, Aggregate):
            raise self.refuse(node, f"{kind.name} where a number is expected", "use its fields")
        return kind

    # Structs ------------------------------------------------------------------------------------------------------

    def instance(self, node: Any, base: str, arguments: Sequence[Any]) -> Aggregate:
        """A struct of the source, or an instance of a template of them."""
        plain = self.file.plain(base) if "::" in base else base
        if plain is None or plain not in self.file.structs or plain in self.file.unclear:
            raise self.refuse(node, f"the type {base} is not known", "use numbers and structs of this source")
        definition, template = self.file.structs[plain]
        names, numbers = self.bind(definition, template, arguments)
        given = [*names.values(), *(v.value.const if isinstance(v.value, Value) else v.value for v in numbers.values())]
        key = plain, *given
        if key not in self.instances:
            spelled = "_".join([plain, *(getattr(g, "name", str(g)) for g in given)])
            name = re.sub(r"\W+", "_", spelled).strip("_")
            while name in self.made:
                name += "_"
            made = Struct(Aggregate(name, ()), plain, definition, tuple(given), dict(names), numbers)
            self.within_template(names, numbers, lambda: self._members(made))
            made.names[plain] = made.type
            self.instances[key] = self.made[name] = made
        return self.instances[key].type

    def _members(self, made: Struct) -> None:
        """Read what a struct consists of."""
        node, fields, name = made.node, [], made.type.name
        if any(c.type == "base_class_clause" for c in node.children):
            raise self.refuse(node, f"struct {name} has a base", "put the base's members into it")
        for each in named(node.child_by_field_name("body")):
            template, inner = None, each
            if each.type in ("template_declaration", "friend_declaration"):
                template, inner = each.child_by_field_name("parameters"), named(each)[-1]
            if inner.type == "function_definition":
                called = function_name(inner)
                if called.startswith("~") or "virtual" in words(inner) or not called or not copies(made.base, inner):
                    raise self.refuse(inner, f"struct {name} has {text_of(inner)[:40]!r}", "leave it out")
                table = made.friends if each.type == "friend_declaration" else made.methods
                entries = table.setdefault(called, [])
                if (inner, template) not in entries and inner.child_by_field_name("body") is not None:
                    entries.append((inner, template))
            elif inner.type == "alias_declaration":
                made.names[text_of(inner.child_by_field_name("name"))] = kind = self.type_of(
                    inner.child_by_field_name("type")
                )
                self.type_names[text_of(inner.child_by_field_name("name"))] = kind
            elif inner.type == "field_declaration":
                fields += self._fields(made, inner)
            elif inner.type not in ("access_specifier", "static_assert_declaration"):
                raise self.refuse(each, f"struct {name} has {text_of(each)!r}", "use structs of plain numbers")
        made.type = Aggregate(name, tuple(fields))
        aligned = next((self.scalar(named(c)[0]).const for c in node.children if c.type == "alignas_qualifier"), 1)
        if not aligned or types.size(made.type) % aligned:
            raise self.refuse(
                node, f"struct {name} is aligned to {aligned}", "give it a size that is a multiple of that"
            )
        made.aligned = aligned

    def _fields(self, made: Struct, node: Any) -> list[tuple[str, Type]]:
        """The members of one declaration; what is static and constant is none."""
        found, said = [], words(node)
        declared = node.children_by_field_name("declarator")
        if {"static"} & said and {"const", "constexpr"} & said:
            value = node.child_by_field_name("default_value")
            made.constants[identifier(declared[0]) or ""] = node.child_by_field_name("type"), declared[0], value
            return []
        if said - MEMBERS or "static" in said or not declared:
            raise self.refuse(node, f"struct {made.type.name} has {text_of(node)!r}", "use structs of plain numbers")
        kind = self.type_of(node.child_by_field_name("type"))
        for each in declared:
            inner, own = each, kind
            while inner.type == "array_declarator":
                size = self.scalar(inner.child_by_field_name("size")).const
                if size is None or not 0 < size <= 256:
                    raise self.refuse(each, f"the extent of {text_of(each)}", "make it a constant up to 256")
                own, inner = types.array(own, size), inner.child_by_field_name("declarator")
            if inner.type == "function_declarator":  # declared here, defined elsewhere or not at all
                raise self.refuse(node, f"{text_of(node)!r} is defined elsewhere", "define it in the struct")
            if inner.type != "field_identifier":
                raise self.refuse(
                    node, f"struct {made.type.name} has {text_of(node)!r}", "use structs of plain numbers"
                )
            found.append((text_of(inner), own))
            after = each.next_sibling
            if after is not None and after.type in ("=", "initializer_list"):
                made.initial[text_of(inner)] = after if after.type == "initializer_list" else after.next_sibling
        return found

    def named_in(self, struct: Struct | None, make: Any) -> Any:
        """Call with the types that a struct's names mean."""
        before = self.type_names
        self.type_names = before if struct is None else dict(struct.names)
        try:
            return make()
        finally:
            self.type_names = before

    def in_memory(self, node: Any, kind: Any) -> None:
        """Note a struct that the derived text has to declare, as it lies in memory."""
        if not isinstance(kind, Aggregate) or kind in types.VECTORS.values() or kind.name in self.structs:
            return
        lines = []
        for name, inner in kind.fields:
            extents = ""
            while isinstance(inner, Aggregate) and inner.array:
                extents, inner = f"{extents}[{len(inner.fields)}]", inner.fields[0][1]
            self.in_memory(node, inner)
            lines.append(f"{inner.name if isinstance(inner, Aggregate) else inner} {name}{extents};")
        if not lines:
            raise self.refuse(node, f"{kind.name} has no members", "give it one")
        aligned = self.made[kind.name].aligned if kind.name in self.made else 1
        head = f"struct alignas({aligned}) {kind.name}" if aligned > 1 else f"struct {kind.name}"
        self.structs[kind.name] = kind, f"{head} {{ {' '.join(lines)} }};"

    def struct_of(self, kind: Any) -> Struct | None:
        """What belongs to a type; None for types that are none of the source's structs."""
        return self.made.get(kind.name) if isinstance(kind, Aggregate) else None


def copies(base: str, definition: Any) -> bool:
    """Whether a constructor or assignment, if it is from an object of the same struct, takes over its members alone."""
    params, body = parameters_of(definition), definition.child_by_field_name("body")
    called = function_name(definition)
    if called not in (base, "operator=") or len(params) != 1 or body is None:
        return True
    if text_of(params[0].child_by_field_name("type")).partition("<")[0].strip() != base:
        return True
    name = identifier(params[0].child_by_field_name("declarator"))
    listed = [each for c in named(definition) if c.type == "field_initializer_list" for each in named(c)]
    done = [re.sub(r"\s", "", text_of(each)) for each in (*listed, *named(body))]
    member = rf"(this->)?(\w+)(\({name}\.\2\)|\{{{name}\.\2\}}|={name}\.\2;)|return\*this;"
    found = [re.fullmatch(member, each) for each in done]
    fields = [c for c in named(definition.parent) if c.type == "field_declaration" and "static" not in words(c)]
    count = sum(len(c.children_by_field_name("declarator")) for c in fields)
    return None not in found and len({m[2] for m in found if m is not None and m[2]}) == count
