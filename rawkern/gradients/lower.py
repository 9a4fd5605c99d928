"""Statements of a kernel to structured SSA; device functions are put in where they are called."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rawkern.gradients import types
from rawkern.gradients.calls import Calls
from rawkern.gradients.expressions import Cell, NeedsUnrolling, Pointer, Var
from rawkern.gradients.ir import (
    Array,
    Barrier,
    Block,
    Carried,
    Exit,
    If,
    Kernel,
    Loop,
    Place,
    Store,
    Value,
    children,
    walk,
)
from rawkern.gradients.syntax import (
    TYPES,
    File,
    Where,
    assigned,
    contains,
    identifier,
    named,
    parameters_of,
    text_of,
    words,
)
from rawkern.gradients.types import Aggregate, Type

LEAVING = ("return_statement", "continue_statement")
LOOPS = ("for_statement", "while_statement", "do_statement")
MOST_UNROLLED = 64  # iterations of a loop that is written out
_QUALIFIERS = {"const", "constexpr", "__shared__", "extern", "__restrict__", ";", ","}


class Lowering(Calls):
    """One reading of a kernel."""

    def __init__(
        self,
        file: File,
        where: Where,
        block: tuple[int, int, int],
        grid: tuple[int | None, int | None, int | None],
        unroll: frozenset[int],
    ) -> None:
        self.file, self.where = file, where
        self.block_shape, self.grid_shape = block, grid
        self.unroll = unroll
        self.body = self.block = Block()
        self.scopes: list[dict[str, Var]] = [{}]
        self.callers: list[list[dict[str, Var]]] = []
        self.type_names: dict[str, Type] = {}
        self.loops: list[int] = []
        self.shared: list[Array] = []
        self.computed: dict[Block, dict[Any, Value]] = {}
        self.returned: Var | None = None
        self.structs: dict[str, tuple[Aggregate, str]] = {}
        self.params: list[tuple[str, Type, bool]] = []
        self.arrays: dict[str, Array] = {}

    def kernel(self, definition: Any, template: Any, arguments: Sequence[str]) -> Kernel:
        """Read a kernel, an instance of a template with these arguments."""
        if definition.has_error:
            raise self.refuse(definition, "its text is not understood", "write it in simpler terms")
        self.bind_template(definition, template, arguments)
        self.scopes.append({})
        for node in parameters_of(definition):
            self._parameter(node)
        self.sequence(named(definition.child_by_field_name("body")), lambda: None)
        count(self.body)
        return Kernel(
            self.where.kernel, self.where.title, self.params, self.arrays, self.shared, self.body, self.structs,
            self.block_shape, self.grid_shape,
        )  # fmt: skip

    def _parameter(self, node: Any) -> None:
        declarator, name = node.child_by_field_name("declarator"), identifier(node.child_by_field_name("declarator"))
        if name in self.file.macros or name in self.file.unclear:
            raise self.refuse(node, f"the parameter {name} is a macro, too", "give it a name of its own")
        if declarator is None or name is None or node.type != "parameter_declaration":
            raise self.refuse(node, f"the parameter {text_of(node)!r}", "give it a plain type and a name")
        kind = self.type_of(node.child_by_field_name("type"))
        if words(node) - _QUALIFIERS:
            raise self.refuse(node, f"the parameter {name} is {' '.join(words(node) - _QUALIFIERS)}", "leave that out")
        if declarator.type == "identifier":
            self.params.append((name, kind, False))
            if isinstance(kind, Aggregate):
                raise self.refuse(node, f"the parameter {name} is a struct by value", "pass its numbers one by one")
            self.scopes[-1][name] = Var(name, kind, self.value(node, kind, "param", attr=name, name=name))
            return
        inner = [c for c in named(declarator) if c.type != "type_qualifier"]
        if declarator.type == "array_declarator" or (
            declarator.type == "pointer_declarator" and inner[0].type == "identifier"
        ):
            self.params.append((name, kind, True))
            self.arrays[name] = array = Array(name, kind, const="const" in words(node))
            self.scopes[-1][name] = Var(name, None, Pointer(array))
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
        if text in self.file.macros:
            return self.type_named(node, self.file.macros[text])
        if text in self.file.aliases:
            return self.type_of(self.file.aliases[text])
        if text in self.file.structs:
            return self._struct(text)
        kind = types.scalar(text) or types.VECTORS.get(text)
        if kind is None:
            raise self.refuse(
                node,
                f"the type {text} is not known",
                "use float, double, integers, their vectors or plain structs of them",
            )
        return kind

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
        self.structs[name] = made, text_of(node.parent if node.parent.type == "type_definition" else node)
        return made

    # Statements ---------------------------------------------------------------------------------------------------

    def sequence(self, nodes: Sequence[Any], then: Callable[[], None]) -> None:
        """Read statements, and what comes then on every path that does not leave."""
        for at, node in enumerate(nodes):
            if node.type == "return_statement":
                return self.leave(node)
            if node.type == "continue_statement":
                return None
            if node.type in LOOPS and contains(node, ("return_statement",)):
                raise self.refuse(node, "a return in a loop", "let the loop run to its end, or test beforehand")
            if contains(node, LEAVING, LOOPS):
                return self._leaving(node, nodes[at + 1 :], then)
            self.statement(node)
        return then()

    def _leaving(self, node: Any, rest: Sequence[Any], then: Callable[[], None]) -> None:
        """A statement after which some paths do not go on: those that do take the rest with them."""
        if node.type == "compound_statement" and not rest:
            return self.scoped(lambda: self.sequence(named(node), then))
        if node.type != "if_statement":
            raise self.refuse(node, "a return or continue here", "put it into an if of the same block")
        condition = self._condition(node)
        parts = [node.child_by_field_name("consequence"), self._alternative(node)]
        only = [c for c in (named(parts[0]) if parts[0].type == "compound_statement" else [parts[0]])]
        alone = parts[1] is None and [c.type for c in only] == ["return_statement"]
        if alone and self.block is self.body and not self.callers and not any(map(_acts, self.body.items)):
            self.block.items.append(Exit(node.start_point[0] + 1, self.block, condition=condition))
            return self.sequence(rest, then)
        scopes = [dict(scope) for scope in self.scopes]

        def go(part: Any) -> Callable[[], None]:
            def follow() -> None:
                inner, self.scopes = self.scopes, [dict(scope) for scope in scopes]
                self.sequence(rest, then)
                self.scopes = inner

            def run() -> None:
                inside = [] if part is None else named(part) if part.type == "compound_statement" else [part]
                self.scoped(lambda: self.sequence(inside, follow))

            return run

        return self.branch(node, condition, go(parts[0]), go(parts[1]))

    def _condition(self, node: Any) -> Value:
        clause = node.child_by_field_name("condition")
        inner = clause.child_by_field_name("value") if clause.type == "condition_clause" else clause
        if inner.type == "declaration" or (clause.type == "condition_clause" and len(named(clause)) != 1):
            raise self.refuse(node, "a declaration in a condition", "declare the variable before")
        return self.truth(self.scalar(inner))

    def _alternative(self, node: Any) -> Any:
        found = node.child_by_field_name("alternative")
        return named(found)[0] if found is not None and found.type == "else_clause" else found

    def scoped(self, make: Callable[[], None]) -> None:
        scopes = self.scopes
        self.scopes = [*scopes, {}]
        make()
        self.scopes = scopes

    def statement(self, node: Any) -> None:
        handler = getattr(self, f"do_{node.type}", None)
        if handler is None:
            raise self.refuse(
                node, f"{text_of(node).splitlines()[0]!r} ({node.type.replace('_', ' ')})", "write it in simpler terms"
            )
        handler(node)

    def do_compound_statement(self, node: Any) -> None:
        self.scoped(lambda: self.sequence(named(node), lambda: None))

    def do_expression_statement(self, node: Any) -> None:
        for each in named(node):
            self.effect(each)

    def effect(self, node: Any) -> None:
        """An expression for what it does."""
        if node.type == "comma_expression":
            for each in named(node):
                self.effect(each)
        elif node.type == "call_expression":
            self.call(node)
        else:
            self.expression(node)

    def do_preproc_call(self, node: Any) -> None:
        if text_of(node).split()[:2] not in (["#pragma", "unroll"], ["#pragma", "nounroll"]):
            raise self.refuse(node, text_of(node).strip(), "leave it out")

    def do_if_statement(self, node: Any) -> None:
        if any(text_of(c) == "constexpr" for c in node.children if not c.is_named):
            raise self.refuse(node, "if constexpr", "write a plain if")
        condition = self._condition(node)
        parts = [node.child_by_field_name("consequence"), self._alternative(node)]
        run = [lambda p=p: None if p is None else self.scoped(lambda: self.sequence([p], lambda: None)) for p in parts]
        self.branch(node, condition, run[0], run[1])

    def leaves(self) -> list[Var]:
        """Every scalar variable in sight, of callers too."""
        scopes = [*self.scopes, *(s for each in self.callers for s in each)]
        found = [leaf for scope in scopes for var in scope.values() for leaf in var.leaves()]
        found += self.returned.leaves() if self.returned else []
        return list(dict.fromkeys(found))

    def branch(self, node: Any, condition: Value, then: Callable[[], None], other: Callable[[], None]) -> None:
        """An if: both sides from the same state, variables that differ after them merged."""
        if condition.const is not None:
            return then() if condition.const else other()
        made = If(node.start_point[0] + 1, self.block, condition=condition)
        made.then.parent = made.other.parent = made
        leaves = self.leaves()
        before = [v.value for v in leaves]
        self.within(made.then, then)
        first = [v.value for v in leaves]
        for var, value in zip(leaves, before, strict=True):
            var.value = value
        self.within(made.other, other)
        self.block.items.append(made)
        for var, a in zip(leaves, first, strict=True):
            b = var.value
            if a is b or a == b:
                continue
            var.value = None
            if isinstance(a, Value) and isinstance(b, Value):
                var.value = self.value(node, a.type, "result", attr=made, name=var.name)
                made.results.append((var.value, a, b))
        return None

    # Loops --------------------------------------------------------------------------------------------------------

    def do_for_statement(self, node: Any) -> None:
        def run() -> None:
            start = node.child_by_field_name("initializer")
            if start is not None:
                self.declare(start) if start.type == "declaration" else self.effect(start)
            self.loop(node, node.child_by_field_name("condition"), node.child_by_field_name("update"))

        self.scoped(run)

    def do_while_statement(self, node: Any) -> None:
        clause = node.child_by_field_name("condition")
        self.loop(node, clause.child_by_field_name("value") if clause.type == "condition_clause" else clause, None)

    def loop(self, node: Any, condition: Any, update: Any) -> None:
        body = node.child_by_field_name("body")
        if condition is None:
            raise self.refuse(node, "a loop without condition", "give it one")
        statements = named(body) if body.type == "compound_statement" else [body]

        def iteration() -> None:
            self.scoped(lambda: self.sequence(statements, lambda: None))
            if update is not None:
                self.effect(update)

        if node.start_byte in self.unroll:
            for _ in range(MOST_UNROLLED + 1):
                known = self.truth(self.scalar(condition)).const
                if known is None:
                    raise self.refuse(
                        node,
                        "a loop whose number of iterations is not known when deriving",
                        "make its bounds constants",
                    )
                if not known:
                    return
                iteration()
            raise self.refuse(
                node, f"a loop of more than {MOST_UNROLLED} iterations that has to be written out", "make it shorter"
            )
        self.loops.append(node.start_byte)
        self._kept(node, condition, iteration, assigned(node))
        self.loops.pop()

    def _kept(self, node: Any, condition: Any, iteration: Callable[[], None], names: set[str]) -> None:
        line = node.start_point[0] + 1
        made = Loop(line, self.block, node=node.start_byte)
        made.test.parent = made.body.parent = made
        visible = {var for name in names if (var := self.lookup(name)) is not None}
        leaves = [v for v in self.leaves() if v in {leaf for var in visible for leaf in var.leaves()}]
        before = [v.value for v in leaves]
        for var, init in zip(leaves, before, strict=True):
            if isinstance(init, Value):
                var.value = Value(line, made.body, type=init.type, op="phi", attr=made, name=var.name)
        phis = [v.value for v in leaves]
        made.condition = self.within(made.test, lambda: self.truth(self.scalar(condition)))
        self.within(made.body, iteration)
        drop: dict[Value, Value] = {}
        for var, init, phi in zip(leaves, before, phis, strict=True):
            new = var.value
            if isinstance(init, Value):
                var.value = init
                if new is phi:
                    drop[phi] = init
                elif new is None:
                    raise self.refuse(node, f"{var.name} has no value on some path of the loop", "give it one before")
                else:
                    result = Value(line, self.block, type=init.type, op="result", attr=made, name=var.name)
                    made.carried.append(Carried(phi, init, new, result))
                    var.value = result
            elif isinstance(init, Pointer) and new != init:
                raise self.refuse(node, f"the pointer {var.name} moves in a loop", "write an index")
            elif init is None:
                var.value = None
        self.block.items.append(made)
        self.block.items += [c.result for c in made.carried]
        while drop:
            substitute(made, drop)
            again = {c.phi: c.init for c in made.carried if c.next is c.phi}
            drop = again
            for each in [c for c in made.carried if c.phi in again]:
                raise self.refuse(
                    node, f"{each.phi.name} is changed in a way that is not followed", "simplify the loop"
                )

    def unrollable(self, node: Any, reason: str) -> Exception:
        error = self.refuse(node, reason, "make the bounds of the loops around it constants")
        left = [each for each in self.loops if each not in self.unroll]
        return NeedsUnrolling(left[-1], error) if left else error

    # Declarations -------------------------------------------------------------------------------------------------

    def do_declaration(self, node: Any) -> None:
        self.declare(node)

    def declare(self, node: Any) -> None:
        qualifiers = words(node)
        if qualifiers - _QUALIFIERS:
            raise self.refuse(
                node, f"{text_of(node)!r}: {' '.join(sorted(qualifiers - _QUALIFIERS))}", "leave that out"
            )
        kind_node = node.child_by_field_name("type")
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

    def _declare(self, node: Any, declarator: Any, kind: Type | None, value: Any, qualifiers: set[str]) -> None:
        name = identifier(declarator)
        sizes, inner = [], declarator
        while inner.type == "array_declarator":
            size = inner.child_by_field_name("size")
            sizes.insert(0, 0 if size is None else self._extent(size))
            inner = inner.child_by_field_name("declarator")
        if (
            name is None
            or inner.type not in ("identifier", "pointer_declarator")
            or name in self.file.macros
            or name in self.file.unclear
        ):
            raise self.refuse(node, f"the declaration {text_of(node)!r}", "declare a plain variable")
        if "__shared__" in qualifiers:
            return self._share(node, name, kind, tuple(sizes), value, inner)
        if inner.type == "pointer_declarator" or (kind is None and not sizes):
            found = self.expression(value) if value is not None else None
            if isinstance(found, Pointer):
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

    def _extent(self, node: Any) -> int:
        found = self.scalar(node).const
        if found is None or found <= 0:
            raise self.refuse(node, f"the extent {text_of(node)}", "make it a positive constant")
        return found

    def _share(self, node: Any, name: str, kind: Any, sizes: tuple[int, ...], value: Any, inner: Any) -> None:
        if (
            kind is None
            or value is not None
            or inner.type != "identifier"
            or 0 in sizes[1:]
            or any(a.name == name for a in self.shared)
        ):
            raise self.refuse(node, f"the shared array {name}", "declare it once, with a type and extents")
        array = Array(name, kind, True, sizes)
        self.shared.append(array)
        self.scopes[-1][name] = Var(name, None, Pointer(array) if sizes else Cell(Place(array), (), kind))

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


def _acts(item: Any) -> bool:
    """Whether an item does more than compute, so that a thread that has done it takes part in the backward."""
    return isinstance(item, Store | Barrier | If | Loop) or (isinstance(item, Value) and item.op == "shfl")


def substitute(loop: Loop, drop: dict[Value, Value]) -> None:
    """Put what a variable had before the loop for one that the loop leaves alone."""

    def new(value: Value) -> Value:
        while value in drop:
            value = drop[value]
        return value

    for item in [*walk(loop.test), *walk(loop.body), loop]:
        if isinstance(item, Value):
            item.args = tuple(map(new, item.args))
        elif isinstance(item, Loop):
            for c in item.carried:
                c.init, c.next = new(c.init), new(c.next)
        elif isinstance(item, If):
            item.results = [(r, new(a), new(b)) for r, a, b in item.results]
        elif hasattr(item, "index"):
            item.index, item.value = tuple(map(new, item.index)), new(item.value)
        if isinstance(item, If | Loop | Exit):
            item.condition = new(item.condition)


def count(block: Block, start: int = 0) -> int:
    """Number the items in the order of the text."""
    for item in block.items:
        item.order = start = start + 1
        for inner in children(item):
            start = count(inner, start)
        if isinstance(item, If | Loop):
            item.last = start
    return start
