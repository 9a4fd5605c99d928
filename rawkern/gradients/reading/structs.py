"""Objects of structs: how they are made, their members and methods; lambdas called."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rawkern.base.tree import named, text_of
from rawkern.gradients import types
from rawkern.gradients.reading.methods import Methods
from rawkern.gradients.reading.places import Cell, Given, Lambda, Struct, Var
from rawkern.gradients.types import Aggregate, Type

LIMITS = {
    ("float", "max"): "3.402823466e+38f", ("float", "lowest"): "-3.402823466e+38f",
    ("float", "min"): "1.175494351e-38f", ("float", "epsilon"): "1.192092896e-07f",
    ("float", "infinity"): "INFINITY", ("int", "max"): "2147483647",
    ("double", "max"): "1.7976931348623157e+308", ("double", "lowest"): "-1.7976931348623157e+308",
    ("double", "min"): "2.2250738585072014e-308", ("double", "epsilon"): "2.2204460492503131e-16",
    ("double", "infinity"): "(double)INFINITY",
}  # fmt: skip


class Structs(Methods):
    """Objects."""

    # How they are made --------------------------------------------------------------------------------------------

    def fresh(self, name: str, kind: Type) -> Var:
        """A variable without a value."""
        return self.aggregate(name, kind, lambda *_: None) if isinstance(kind, Aggregate) else Var(name, kind)

    def made_of(self, node: Any, name: str, kind: Type, arg: Given) -> Var:
        """A variable of a type, of one value."""
        if arg.found is None:
            return self.construct(node, name, kind, named(arg.node), True)
        kind = types.of_packed(arg.type, kind) or kind
        if isinstance(kind, Aggregate) and arg.type != kind:
            return self.construct(node, name, kind, [arg], False)
        var = self.fresh(name, kind)
        self.assign(node, var, self.taken(arg))
        return var

    def repack(self, var: Var, kind: Aggregate) -> None:
        """Make a vector that has no value yet one that is there for its bytes."""
        if all(leaf.value is None for leaf in var.leaves()):
            var.type, var.fields = kind, self.fresh(var.name, kind).fields

    def construct(self, node: Any, name: str, kind: Type, arguments: Sequence[Any], braces: bool) -> Var:
        """``T name(arguments)`` or ``T name{arguments}``."""
        if isinstance(kind, str):
            var = Var(name, kind)
            if len(arguments) > 1:
                raise self.refuse(node, f"{text_of(node)!r} of several values", "give one")
            self.assign(node, var, self.scalar(arguments[0]) if arguments else self.integer(node, 0))
            return var
        struct = self.struct_of(kind)
        makers = struct.methods.get(struct.base, []) if struct is not None else []
        pairs = any(each.type == "initializer_pair" for each in arguments if not isinstance(each, Given))
        args = [] if pairs else self.apart(node, arguments, self.given)
        if len(args) == 1 and args[0].type == kind:
            return self.made_of(node, name, kind, args[0])
        var = self.fresh(name, kind)
        if struct is not None and makers and (args or any(self.ranks(m, []) is not None for m in makers)):
            function = self.named_in(struct, lambda: self.chosen(node, struct.base, makers, args))
            self.put_in(node, struct.base, function, args, (), (struct, var))
        elif not args and not pairs:
            self.begin(node, var, struct, True)
        elif braces and not makers:
            self.fill(node, var, kind, [a if pairs else b for a, b in zip(arguments, args or arguments, strict=True)])
        else:
            raise self.refuse(node, f"{text_of(node)!r} makes no {kind.name}", "use one of its constructors")
        return var

    def plainly(self, node: Any, name: str, kind: Type) -> Var:
        """``T name;``"""
        struct = self.struct_of(kind)
        makers = struct.methods.get(struct.base, []) if struct is not None else []
        if makers:
            return self.construct(node, name, kind, (), False)
        var = self.fresh(name, kind)
        if isinstance(kind, Aggregate):
            self.begin(node, var, struct, False)
        return var

    def begin(self, node: Any, var: Var, struct: Struct | None, zero: bool) -> None:
        """Give an object what its members begin with; the others zeros or nothing."""
        for name, member in var.fields.items():
            initial = struct.initial.get(name) if struct is not None else None
            inner = self.struct_of(member.type)
            if initial is not None and struct is not None:
                self.within_struct(struct, var, lambda i=initial, m=member: self.set_member(node, m, i))
            elif inner is not None:
                made = (
                    self.construct(node, name, inner.type, (), False) if zero else self.plainly(node, name, inner.type)
                )
                self.assign(node, member, made)
            elif member.whole:
                self.begin(node, member, None, zero)
            elif zero:
                self.assign(node, member, self.integer(node, 0))

    def within_struct(self, struct: Struct, var: Var, make: Any) -> None:
        """Call with a struct's names."""
        before = self.scopes, self.type_names, self.struct
        self.scopes, self.struct = [self.scopes[0], *self.members(struct, var)], struct
        self.type_names = dict(struct.names)
        try:
            make()
        finally:
            self.scopes, self.type_names, self.struct = before

    def set_member(self, node: Any, member: Var, value: Any) -> None:
        """Give a member the value of an initializer."""
        arguments = named(value) if value.type in ("argument_list", "initializer_list") else [value]
        if member.whole and (member.type is None or self.struct_of(member.type) is None):
            self.fill(node, member, member.type, self.apart(node, arguments, self.given))
            return
        made = self.construct(value, member.name, member.type, arguments, value.type == "initializer_list")  # type: ignore[arg-type]
        self.assign(node, member, made if made.whole else made.value)

    def initialize(self, node: Any, definition: Any) -> None:
        """What a constructor does before its body."""
        struct, this = self.struct, self.lookup("this")
        assert struct is not None and this is not None
        listed = next((c for c in named(definition) if c.type == "field_initializer_list"), None)
        given = {text_of(named(each)[0]): named(each)[-1] for each in (named(listed) if listed is not None else [])}
        if set(given) == {struct.base}:
            values = named(given[struct.base])
            made = self.construct(node, "object", struct.type, values, given[struct.base].type == "initializer_list")
            self.assign(node, this.value, made)
            return
        if set(given) - set(this.value.fields):
            raise self.refuse(definition, f"{struct.type.name} begins with {', '.join(given)}", "set members in it")
        for name, member in this.value.fields.items():
            inner = self.struct_of(member.type)
            if name in given:
                self.set_member(node, member, given[name])
            elif name in struct.initial:
                self.within_struct(
                    struct, this.value, lambda n=name, m=member: self.set_member(node, m, struct.initial[n])
                )
            elif inner is not None:
                self.assign(node, member, self.plainly(node, name, inner.type))

    def fill(self, node: Any, var: Var, kind: Any, given: Sequence[Any]) -> None:
        """Give an aggregate or local array the elements of a list in braces; those left out begin as usual."""
        struct = self.struct_of(kind)
        names = list(var.fields)
        if len(given) > len(names):
            raise self.refuse(
                node, f"the initializer {text_of(node)!r} of {len(names)} elements", "use one list in braces"
            )
        values: dict[str, Any] = {}
        for k, each in enumerate(given):
            if isinstance(each, Given) or each.type != "initializer_pair":
                values[names[k]] = self.given(each)
            else:  # .name = value
                values[text_of(each.child_by_field_name("designator")).lstrip(".")] = self.given(
                    each.child_by_field_name("value")
                )
        for name, member in var.fields.items():
            arg = values.get(name)
            if arg is None and struct is not None and name in struct.initial:
                self.within_struct(struct, var, lambda n=name, m=member: self.set_member(node, m, struct.initial[n]))
            elif arg is None and not member.whole:
                self.assign(node, member, self.integer(node, 0))
            elif arg is None or arg.found is None:
                inner = named(arg.node) if arg is not None else []
                if member.whole and self.struct_of(member.type) is None:
                    self.fill(node, member, member.type, inner)
                else:
                    made = self.construct(node, name, member.type, inner, True)  # type: ignore[arg-type]
                    self.assign(node, member, made if made.whole else made.value)
            elif member.whole and member.type is not None:
                self.assign(node, member, self.made_of(node, name, member.type, arg))
            else:
                self.assign(node, member, self.taken(arg))

    def on_compound_literal_expression(self, node: Any) -> Any:
        kind = self.type_of(node.child_by_field_name("type"))
        var = self.construct(node, "literal", kind, named(node.child_by_field_name("value")), True)
        return var if var.whole else self.read(node, var)

    def constant(self, node: Any, kind: Any, declarator: Any, value: Any) -> Any:
        sizes, inner = [], declarator
        while inner.type == "array_declarator":
            size = inner.child_by_field_name("size")
            sizes.insert(0, self.scalar(size).const if size is not None else len(named(value)))
            inner = inner.child_by_field_name("declarator")
        if value is None or None in sizes or inner.type not in ("identifier", "field_identifier"):
            raise self.refuse(node, f"the constant {text_of(declarator)}", "declare it as a number or array")
        if not sizes and kind.type == "placeholder_type_specifier":
            return self.expression(value)
        if not sizes:
            made = self.made_of(node, text_of(inner), self.type_of(kind), self.given(value))
            return made if made.whole else made.value
        var = self.local(node, text_of(inner), self.type_of(kind), sizes)
        self.fill(value, var, None, named(value))
        return var

    def on_qualified_identifier(self, node: Any) -> Any:
        """A constant of a namespace or a struct."""
        scope, name = node.child_by_field_name("scope"), node.child_by_field_name("name")
        plain = self.file.plain(text_of(node))
        if plain is not None and plain in self.file.constants and plain not in self.file.unclear:
            return self.within_top(lambda: self.constant(node, *self.file.constants[plain]))
        number = self.file.enumerator(text_of(node))
        if number is not None:
            return self.integer(node, number)
        known = scope is not None and (scope.type == "template_type" or self.known_type(text_of(scope)))
        struct = self.struct_of(self.scope_type(scope)) if known else None
        if struct is None or text_of(name) not in struct.constants:
            raise self.refuse(node, f"{text_of(node)} is not known", "use constants of this source")
        return self.member_constant(node, struct, text_of(name))

    def scope_type(self, scope: Any) -> Type:
        """The type that stands before ``::``."""
        return self.type_of(scope) if scope.type == "template_type" else self.type_named(scope, text_of(scope))

    def member_constant(self, node: Any, struct: Struct, name: str) -> Any:
        before = self.scopes, self.type_names
        self.scopes, self.type_names = [self.scopes[0], *self.members(struct, None)], dict(struct.names)
        try:
            return self.constant(node, *struct.constants[name])
        finally:
            self.scopes, self.type_names = before

    def limit(self, node: Any, kind: Any, name: str) -> Any:
        """``std::numeric_limits<T>::name()``"""
        text = LIMITS.get((kind, name))
        if text is None:
            raise self.refuse(node, f"the call of {text_of(node)}", "write the number")
        if kind in ("float", "double"):
            number = self.value(node, kind, "const", attr=text.lstrip("-"))
            return self.value(node, kind, "unary", (number,), "-") if text[0] == "-" else number
        return self.value(node, kind, "const", attr=text, const=int(text))

    def local(self, node: Any, name: str, kind: Any, sizes: Sequence[int]) -> Var:
        """A local array."""
        if not sizes:
            return self.plainly(node, name, kind)
        if not 0 < sizes[0] <= 256:
            raise self.refuse(node, f"the local array {name}", "give it up to 256 elements")
        var = Var(name, None)
        var.fields = {str(k): self.local(node, f"{name}_{k}", kind, sizes[1:]) for k in range(sizes[0])}
        return var

    # What is called -----------------------------------------------------------------------------------------------

    def operator(self, node: Any, name: str, found: Any, arguments: list[Any]) -> Any:
        struct = self.struct_of(found.type)
        if struct is None or name not in struct.methods:
            raise self.refuse(node, f"{name} of {found.type.name}", "use its fields")
        return self.method(node, struct, Given(node, found), name, self.apart(node, arguments, self.given))

    def called_object(self, node: Any, this: Given, arguments: Sequence[Any]) -> Any:
        """What the call of a lambda or of an object gives."""
        found = this.found.value if isinstance(this.found, Var) and not this.found.whole else this.found
        args = self.apart(node, arguments, self.given)
        if isinstance(found, Lambda):
            return self.put_in(node, "a lambda", (found.node, None), args, within=found)
        struct = self.struct_of(getattr(found, "type", None))
        if struct is None or "operator()" not in struct.methods:
            raise self.refuse(node, f"the call of the variable {text_of(this.node)}", "write a __device__ function")
        return self.method(node, struct, Given(this.node, found), "operator()", args)

    def of_object(self, node: Any, this: Given, member: Any, arguments: Sequence[Any]) -> Any:
        """What the call of a method gives."""
        name, given = member, []
        while name.type in ("dependent_name", "template_method"):
            if name.type == "template_method":
                given = self.bound(named(name.child_by_field_name("arguments")))
            name = name.child_by_field_name("name") or named(name)[0]
        struct = self.struct_of(this.type)
        if struct is None or text_of(name) not in struct.methods:
            raise self.refuse(node, f"the call of {text_of(this.node)}.{text_of(name)}", "write a __device__ function")
        found = this.found
        if isinstance(found, Var) and isinstance(found.value, Cell):
            found = found.value
        return self.method(
            node, struct, Given(this.node, found), text_of(name), self.apart(node, arguments, self.given), given
        )
