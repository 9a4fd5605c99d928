"""Functions of the source, put in where they are called: device functions, operators, methods, lambdas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rawkern.base.tree import named, text_of
from rawkern.gradients.ir import Block, Value
from rawkern.gradients.reading.kept import Kept
from rawkern.gradients.reading.overloads import defaults, is_pointer, name_of
from rawkern.gradients.reading.places import Cell, Given, Lambda, Local, Marker, Pointer, Struct, Var
from rawkern.gradients.reading.syntax import contains, function_name, parameters_of, words
from rawkern.gradients.types import Aggregate, Type

DEEPEST = 32  # functions that call one another


class Returned(Exception):
    """The type of what a function returns, found by reading it."""

    def __init__(self, kind: Any) -> None:
        super().__init__(kind)
        self.kind = kind


class Functions(Kept):
    """Calls of the source's own functions."""

    callers: list[list[dict[str, Var]]]
    called: list[str]  # the functions that are being put in
    returned: Var | None
    asked: bool  # whether only the type of what is returned is asked for
    breaking: list[Var | None]
    left: Var | None
    loops: list[int]
    path: str  # the namespace of the function that is read
    struct: Struct | None  # whose method is read

    def inline(self, node: Any, name: str, arguments: Sequence[Any], given: Sequence[Any]) -> Any:
        """What a call of a device function gives."""
        args = self.apart(node, arguments, self.given)
        return self.called_own(node, name, args, given)

    def called_own(self, node: Any, name: str, args: Sequence[Given], given: Sequence[Any]) -> Any:
        """What a call of a device function gives: it is called, or its body is put in its place."""
        function = self.chosen(node, name, self.file.functions[name], args)
        params = parameters_of(function[0])
        args = [self._for(p, a) for p, a in zip(params, args, strict=False)] if len(args) <= len(params) else args
        called = self.as_call(node, name, function, args)
        return called if called is not None else self.put_in(node, name, function, args, given)

    def put_in(
        self, node: Any, name: str, function: tuple[Any, Any], args: Sequence[Given], given: Sequence[Any] = (),
        of: tuple[Struct, Var | Cell | None] | None = None, within: Lambda | None = None,
    ) -> Any:  # fmt: skip
        """The body of a function in place of its call; `of`: the struct and the object whose method it is."""
        definition, template = function
        params = parameters_of(definition)
        late = defaults(params)[len(args) :]
        if len(params) != len(args) + len(late) or definition.has_error:
            raise self.refuse(node, f"the call of {name} with {len(args)} arguments", "pass every argument")
        if len(self.callers) >= DEEPEST:
            raise self.refuse(node, f"{name} calls itself", "write a loop")
        args = [self._for(p, a) for p, a in zip(params, args, strict=False)]
        instance = self.deduced(node, template, params, args, given) if template is not None else []
        args += [Given(each, self.within_top(lambda e=each: self.expression(e))) for each in late]
        before = self.type_names, self.returned, self.path, self.struct, self.scopes
        leaving = self.breaking, self.left, self.asked
        self.callers.append(self.scopes)
        self.called.append(f"{name} at {definition.start_byte}")
        self.breaking, self.left, self.asked = [], None, False
        self._enter(definition, of, within)
        try:
            if template is not None:
                names, numbers = self.bind(definition, template, instance)
                self.type_names = {**self.type_names, **names}
                self.scopes.append(numbers)
                self.called[-1] += f" of {instance}"  # which has shared arrays of its own
            if of is not None:
                self.called[-1] += f" of {of[0].type.name}"
            self.scopes.append({})
            for param, arg in zip(params, args, strict=True):
                self.bind_argument(node, param, arg)
            return self._run(node, name, definition)
        finally:
            self.type_names, self.returned, self.path, self.struct, self.scopes = before
            self.breaking, self.left, self.asked = leaving
            self.callers.pop()
            self.called.pop()

    def _enter(self, definition: Any, of: tuple[Struct, Any] | None, within: Lambda | None) -> None:
        """The names that a function's body sees."""
        if within is not None:
            self.scopes, self.type_names, self.struct = list(within.scopes), within.names, within.struct
            return
        self.scopes, self.type_names, self.struct = [self.scopes[0]], {}, None
        name = of[0].base if of is not None else function_name(definition)
        self.path = self.file.paths.get(name, "")
        if of is not None:
            self.struct, self.type_names = of[0], dict(of[0].names)
            self.scopes += self.members(of[0], of[1])

    def members(self, struct: Struct, this: Var | Cell | None) -> list[dict[str, Var]]:
        """What the names of a struct's members mean in its methods."""
        numbers: dict[str, Var] = {}
        for name, var in struct.numbers.items():
            value = var.value
            if isinstance(value, Value):
                value = self.value(value.line, value.type, "const", attr=value.attr, const=value.const)
            numbers[name] = Var(name, var.type, value)
        own = {"this": Var("this", None, this)} if this is not None else {}
        if isinstance(this, Var):
            own |= this.fields
        elif this is not None:
            own |= {n: Var(n, None, self.part(this.place, this, (n,), kind)) for n, kind in struct.type.fields}
        return [numbers, own]

    def _for(self, param: Any, arg: Given) -> Given:
        """An argument as the parameter takes it: read, unless it is a reference."""
        declarator = param.child_by_field_name("declarator")
        reference = declarator is not None and "reference" in declarator.type
        if isinstance(arg.found, Cell) and not reference:
            return Given(arg.node, self.read(arg.node, arg.found))
        if isinstance(arg.found, Var) and not arg.found.whole and not reference:
            return Given(arg.node, self.read(arg.node, arg.found))
        lasting = reference and "const" not in words(param) and text_of(declarator)[:2] != "&&"
        if lasting and isinstance(arg.found, Value):
            raise self.refuse(arg.node, f"{text_of(arg.node)!r} is passed by reference", "pass a variable")
        return arg

    def bind_argument(self, node: Any, param: Any, arg: Given) -> None:
        """Give a parameter its argument."""
        declarator, name = param.child_by_field_name("declarator"), name_of(param)
        if name is None:
            return
        found = arg.found
        marker = found.value if isinstance(found, Var) and not found.whole else found
        if isinstance(marker, Marker):
            self.scopes[-1][name] = Var(name, None, marker)
            return
        volatile = {"volatile"} if is_pointer(declarator) else set()
        if words(param) - volatile - {"const", "__restrict__", "=", "for", "(", ")", ":"}:
            raise self.refuse(param, f"the parameter {text_of(param)!r}", "use numbers, pointers and references")
        auto = param.child_by_field_name("type").type == "placeholder_type_specifier"
        kind = arg.type if auto else self.type_of(param.child_by_field_name("type"))
        if is_pointer(declarator):
            self._bind_pointer(node, param, name, arg, kind)
        elif "reference" in declarator.type and isinstance(found, (Var, Cell)) and found.type == kind:
            self.scopes[-1][name] = found if isinstance(found, Var) else Var(name, None, found)
        elif declarator.type not in ("identifier", "reference_declarator") or isinstance(kind, tuple):
            raise self.refuse(node, f"the parameter {text_of(param)!r}", "use numbers, pointers and references")
        elif "reference" in declarator.type and "const" not in words(param) and isinstance(found, (Var, Cell)):
            raise self.refuse(node, f"{name} refers to another type", "use the type of the variable")
        else:
            self.scopes[-1][name] = self.made_of(arg.node, name, kind, arg)

    def _bind_pointer(self, node: Any, param: Any, name: str, arg: Given, kind: Any) -> None:
        found = arg.found.value if isinstance(arg.found, Var) and not arg.found.whole else arg.found
        own = arg.type[1] if isinstance(arg.type, tuple) else arg.type
        points = isinstance(found, Pointer | Local) or (isinstance(found, Var) and found.whole)
        if not points or (param.child_by_field_name("type").type != "placeholder_type_specifier" and own != kind):
            raise self.refuse(node, f"{name} points to another type", "use the type of the array")
        if isinstance(found, Pointer) and "volatile" in words(param):
            found = replace(found, volatile=True)
        self.scopes[-1][name] = found if isinstance(found, Var) else Var(name, None, found)

    def _run(self, node: Any, name: str, definition: Any) -> Any:
        """The body of a function whose parameters are bound; what it returns."""
        body = definition.child_by_field_name("body")
        if self.struct is not None and definition.child_by_field_name("type") is None and name == self.struct.base:
            self.initialize(node, definition)
        kind = self._returns(node, definition)
        if kind == "&":
            return self._referred(node, name, body)
        self.returned = None if kind is None else self.fresh(f"{name}_" if name.isidentifier() else "value", kind)
        self.scopes.append({})
        self.sequence(named(body), lambda: None)
        result = self.returned
        if result is None:
            return None
        return result if result.whole else self.read(node, result)

    def _returns(self, node: Any, definition: Any) -> Type | str | None:
        """The type of what a function returns: None for nothing, "&" for a reference."""
        declarator, kind = definition.child_by_field_name("declarator"), definition.child_by_field_name("type")
        outer = declarator.type if declarator is not None else ""
        if outer == "reference_declarator":
            return "&"
        trailing = next((c for c in named(declarator) if c.type == "trailing_return_type"), None) if outer else None
        if trailing is not None:
            kind = named(trailing)[0]
        if kind is not None and text_of(kind) == "void":
            return None
        if kind is not None and outer == "pointer_declarator":
            raise self.refuse(node, "a function that returns a pointer", "return an index")
        if kind is not None and kind.type != "placeholder_type_specifier":
            return self.type_of(kind)
        if not contains(definition.child_by_field_name("body"), ("return_statement",), ("lambda_expression",)):
            return None
        return self.tried(lambda: self._first(definition))

    def _first(self, definition: Any) -> Any:
        """The type of the first value that a function returns."""
        self.returned, self.asked = None, True
        try:
            self.sequence(named(definition.child_by_field_name("body")), lambda: None)
        except Returned as found:
            return found.kind
        finally:
            self.asked = False
        return None

    def _referred(self, node: Any, name: str, body: Any) -> Any:
        """The place that a function returns a reference to."""
        statements = named(body)
        last = statements[-1] if statements else body
        if last.type != "return_statement" or any(contains(s, ("return_statement",)) for s in statements[:-1]):
            raise self.refuse(node, f"{name} returns a reference on several paths", "return a value")
        self.returned = None
        self.scopes.append({})
        found: list[Any] = []
        self.sequence(statements[:-1], lambda: found.append(self.target(named(last)[0])))
        if len(found) != 1:
            raise self.refuse(node, f"{name} returns a reference on several paths", "return a value")
        return found[0]

    def tried(self, make: Any) -> Any:
        """Call, and take back all that it put into the kernel."""
        leaves, block, scopes = self.leaves(), self.block, self.scopes
        before, state = [v.value for v in leaves], (
            self.stored, dict(self.begun), self.returned, self.loops, self.breaking, self.left,
        )  # fmt: skip
        self.block, self.scopes = Block(parent=block.parent), [dict(s) for s in scopes]
        self.loops, self.breaking = list(self.loops), list(self.breaking)
        try:
            return make()
        finally:
            self.block, self.scopes = block, scopes
            self.stored, self.begun, self.returned, self.loops, self.breaking, self.left = state
            for leaf, value in zip(leaves, before, strict=True):
                leaf.value = value

    def asked_for_kind(self, make: Any) -> Any:
        """Call for the type of what is found: there an element that an array does not have is like all others."""
        outer, self.kind_alone = self.kind_alone, True
        try:
            return self.tried(make)
        finally:
            self.kind_alone = outer

    def kind(self, node: Any) -> Any:
        """The type of an expression, which is read for that alone."""
        return self.asked_for_kind(lambda: self.given(node).type)

    def leave(self, node: Any) -> None:
        given = named(node)
        if self.asked:
            found = self.given(given[0]) if given else None
            kind = found.type if found is not None else None
            if found is None or not isinstance(kind, (str, Aggregate)):
                raise self.refuse(node, f"{text_of(node)!r} has no type by itself", "write the type that is returned")
            raise Returned(kind)
        if bool(given) != (self.returned is not None):
            raise self.refuse(node, f"{text_of(node)!r}", "return what the function declares")
        if given and given[0].type == "initializer_list":
            made = self.construct(node, self.returned.name, self.returned.type, named(given[0]), True)  # type: ignore
            self.assign(node, self.returned, made if made.whole else self.read(node, made))
        elif given:
            self.assign(node, self.returned, self.expression(given[0]))

    # Of `Declarations`, `Calls`, `Structs` and `Lowering`.
    def made_of(self, node: Any, name: str, kind: Type, arg: Given) -> Var:
        raise NotImplementedError

    def construct(self, node: Any, name: str, kind: Type, arguments: Sequence[Any], braces: bool) -> Var:
        raise NotImplementedError

    def initialize(self, node: Any, definition: Any) -> None:
        raise NotImplementedError

    def fresh(self, name: str, kind: Type) -> Var:
        raise NotImplementedError

    def assign(self, node: Any, found: Any, right: Any) -> Any:
        raise NotImplementedError

    def sequence(self, nodes: Sequence[Any], then: Any) -> None:
        raise NotImplementedError
