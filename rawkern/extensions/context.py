"""The translation of one function: what is written, which names there are, and who translates what."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from rawkern.base.tree import named, text_of
from rawkern.extensions import types as t
from rawkern.extensions.program import RESERVED, Function, Parameter, Struct, Unit, python_field
from rawkern.extensions.syntax import assigned_names, nodes_in, references, root_name, through_references
from rawkern.extensions.types import Type
from rawkern.extensions.untranslated import NotTranslated
from rawkern.extensions.values import Value, converted


@dataclass
class Variable:
    """A name of C++ in scope."""

    python: str
    type: Type
    low: int | None = None
    high: int | None = None
    #: or "type": an alias or a type parameter; "function": a lambda; "reference": `python` is what it refers to
    kind: str = "value"
    extra: Any = None
    depth: int = 0  # of the Python function that it belongs to
    null: bool = False


OF_MODULE = -1  # the depth of variables of the module


Handler = Callable[["Context", Any], Any]
EXPRESSIONS: dict[str, Handler] = {}
STATEMENTS: dict[str, Handler] = {}


#: How an expression is translated whose value is not used, or is returned, or is that of a new variable.
RUN: dict[str, Handler] = {}
RETURNED: dict[str, Handler] = {}
DECLARED: dict[str, Callable[[Context, str, Any], Any]] = {}
#: How an operator of values is translated, some of which are objects of structs.
OVERLOADED: list[Callable[[Context, Any, str, list[Value]], Value]] = []
#: How the members of an object get their first values in a constructor.
CONSTRUCTED: list[Callable[[Context], None]] = []


def declared(kind: str) -> Callable[[Any], Any]:
    """Register how a variable is declared with an expression of this kind of node."""

    def register(handler: Any) -> Any:
        DECLARED[kind] = handler
        return handler

    return register


def expression(*kinds: str) -> Callable[[Handler], Handler]:
    """Register the translation of expressions of these kinds of node."""

    def register(handler: Handler) -> Handler:
        EXPRESSIONS.update(dict.fromkeys(kinds, handler))
        return handler

    return register


def statement(*kinds: str) -> Callable[[Handler], Handler]:
    """Register the translation of statements of these kinds of node."""

    def register(handler: Handler) -> Handler:
        STATEMENTS.update(dict.fromkeys(kinds, handler))
        return handler

    return register


def bases(unit: Unit, struct: Struct | None) -> list[Struct]:
    """A struct and those that it is derived from, the innermost last."""
    found: list[Struct] = []
    while struct is not None and struct not in found:
        found.append(struct)
        struct = unit.structs.get(struct.base)
    return found


def members(unit: Unit, owner: Struct, static: bool) -> dict[str, Variable]:
    """What the names of a struct mean in its methods."""
    found: dict[str, Variable] = {}
    for one in reversed(bases(unit, owner)):
        found |= {parameter.name: Variable(parameter.python, parameter.type) for parameter in one.parameters}
        for name in (parameter.name for parameter in one.parameters if parameter.keyword != "value"):
            found[name].kind = "type"
        found |= {name: Variable(name, type_, kind="type") for name, type_ in one.aliases.items()}
        if not static:
            found |= {
                name: Variable(f"self.{python_field(name)}", type_, kind="reference")
                for name, type_ in one.fields.items()
            }
    return found


def changeable(function: Function) -> list[Parameter]:
    """The parameters through which a function may change what its caller has."""
    return [one for one in function.parameters if one.type.reference and not one.type.const]


def in_place(parameter: Parameter) -> bool:
    """Whether what is passed for a parameter by reference may be changed in its elements or members."""
    return parameter.type.kind in ("vector", "struct", "map", "array", "cuda_vector", "auto", "any")


def _object(parameter: Parameter) -> bool:
    return parameter.type.kind == "pointer" and parameter.type.item.kind == "struct"


def changed_by_calls(unit: Unit, node: Any, *, whole: bool = False) -> set[str]:
    """Names that functions of the sources change, which take them by reference; `whole`: that they assign."""
    found: set[str] = set()
    for one in nodes_in(node):
        if one.type != "call_expression":
            continue
        called = one.child_by_field_name("function")
        of_object = called.type == "field_expression"
        name = text_of(called.child_by_field_name("field") if of_object else called)
        name = re.sub(r"\s*<.*", "", name, flags=re.S).rsplit("::", 1)[-1]
        methods = [each for each in unit.methods.get(name, ()) if not (each.const or each.static)]
        for each in methods if not whole else ():  # they may change any member
            if of_object:
                found.add(root_name(called.child_by_field_name("argument")))
            if each.owner is not None:
                found |= each.owner.fields.keys()
        for function in (*(() if of_object else unit.functions.get(name, ())), *unit.methods.get(name, ())):
            arguments = one.child_by_field_name("arguments")
            for parameter, argument in zip(function.parameters, named(arguments) if arguments else (), strict=False):
                inside = not whole and (
                    _object(parameter) or (in_place(parameter) and parameter in changeable(function))
                )
                if inside or parameter.name in function.rebinds:
                    found.add(root_name(argument))
    return found - {""}


class Context:
    """One function being translated."""

    def __init__(self, unit: Unit, function: Function) -> None:
        self.unit, self.function = unit, function
        self.globals = {one.python for all_ in unit.functions.values() for one in all_}
        self.out: list[str] = []
        self.level = 1
        self.depth = 0  # of functions in functions
        self.scopes: list[dict[str, Variable]] = [{}]
        if function.owner is not None:
            self.scopes.insert(0, members(unit, function.owner, function.static))
        self.taken: list[set[str]] = [set()]  # names of each Python function
        self.assigned: set[str] = set()  # names of C++ that are assigned after their declaration
        self.references: list[tuple[str, Any]] | None = None  # those that it declares, once they are asked for
        self.returns: list[Type] = [function.returns]
        self.rebound: list[str] = []  # parameters that are returned, since the caller's are assigned
        self.nonlocals: list[set[str]] = [set()]
        self.of_module: list[set[str]] = [set()]  # variables of the module that each function assigns
        self.updates: list[list[Any]] = []  # of the for loops around, which a `continue` runs
        self.breakable: list[str] = []
        self.tail: list[str] = []  # how lambdas that are written in place return
        self.declared = dict(function.declared)
        self.temporaries = 0
        self.struct_helpers: set[str] = set()

    # Writing ------------------------------------------------------------------------------------------------------

    def emit(self, line: str) -> None:
        self.out.append("    " * self.level + line)

    @contextlib.contextmanager
    def block(self, head: str) -> Iterator[None]:
        """An indented block after a line."""
        self.emit(head)
        self.level += 1
        before = len(self.out)
        try:
            yield
        finally:
            if len(self.out) == before:
                self.emit("pass")
            self.level -= 1

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        """Names of a block of C++."""
        self.scopes.append({})
        try:
            yield
        finally:
            self.scopes.pop()

    # Names --------------------------------------------------------------------------------------------------------

    def find(self, name: str) -> Variable | None:
        for scope in reversed(self.scopes):
            if name in scope:
                return scope[name]
        return self.unit.variables.get(name)

    def python_name(self, name: str) -> str:
        """A name of Python for a new name of C++, that hides none which is in use."""
        made = name + "_" if name in RESERVED or name == self.unit.variable else name
        used = {variable.python for scope in self.scopes for variable in scope.values()}
        base, k = made, 1
        while made in used or made in self.globals:
            k += 1
            made = f"{base}_{k}"
        return made

    def declare(self, name: str, type_: Type, **more: Any) -> Variable:
        """A new name in the innermost scope."""
        here = self.scopes[-1].get(name)
        if here is not None and more.get("kind", "value") == "value" and here.depth == self.depth:
            python = here.python
        else:
            python = self.python_name(name)
        variable = Variable(python, t.plain(type_) if type_.kind != "auto" else type_, depth=self.depth, **more)
        self.scopes[-1][name] = variable
        return variable

    def temporary(self, base: str = "value") -> str:
        self.temporaries += 1
        return f"{base}_{self.temporaries}_"

    def writes(self, variable: Variable) -> None:
        """An assignment to a variable, which may belong to a function around."""
        if variable.depth == OF_MODULE:
            self.of_module[-1].add(variable.python)
        elif variable.depth != self.depth:
            self.nonlocals[-1].add(variable.python)

    def changed(self, node: Any) -> set[str]:
        """Names of C++ that a part of the function may change."""
        if self.references is None:
            whole = self.function.node
            self.references = references(whole) if whole is not None else []
        return through_references(assigned_names(node) | changed_by_calls(self.unit, node), self.references)

    def scope_lines(self) -> list[str]:
        """The statements that say whose variables the innermost function assigns."""
        words = (("nonlocal", self.nonlocals[-1]), ("global", self.of_module[-1]))
        return [f"{'    ' * self.level}{word} {', '.join(sorted(names))}" for word, names in words if names]

    # Translating ----------------------------------------------------------------------------------------------------

    def value(self, node: Any) -> Value:
        handler = EXPRESSIONS.get(node.type)
        if handler is None or (node.has_error and node.type == "ERROR"):
            raise NotTranslated(f"`{short(node)}` ({node.type.replace('_', ' ')})", node)
        try:
            found = handler(self, node)
        except NotTranslated as error:
            if error.row is None:
                error.row = node.start_point[0]
            raise
        return found

    def of_type(self, node: Any, type_: Type) -> Value:
        """The value of an expression, as one of a type."""
        value = self.value(node)
        try:
            return converted(value, type_)
        except NotTranslated as error:
            if error.row is None:
                error.row = node.start_point[0]
            raise

    def condition(self, node: Any) -> str:
        return self.of_type(node, t.BOOL).code

    def statement(self, node: Any) -> None:
        handler = STATEMENTS.get(node.type)
        if handler is None:
            raise NotTranslated(f"`{short(node)}` ({node.type.replace('_', ' ')})", node)
        try:
            handler(self, node)
        except NotTranslated as error:
            if error.row is None:
                error.row = node.start_point[0]
            raise

    def statements(self, nodes: list[Any]) -> None:
        for node in nodes:
            self.statement(node)

    def body(self, node: Any) -> None:
        """The statements of a block or the one statement, in a scope of its own."""
        with self.scope():
            if node.type == "compound_statement":
                self.statements(named(node))
            else:
                self.statement(node)

    def line(self, row: int) -> int:
        lines = self.function.lines
        return lines[min(row, len(lines) - 1)] if lines else row + 1


def short(node: Any, most: int = 60) -> str:
    """The text of a node, short."""
    text = " ".join(text_of(node).split())
    return text if len(text) <= most else text[: most - 3] + "..."
