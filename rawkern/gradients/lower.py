"""Statements of a kernel to structured SSA; device functions are put in where they are called."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from rawkern.gradients import types
from rawkern.gradients.declarations import Declarations
from rawkern.gradients.ir import (
    Array,
    Barrier,
    Block,
    Carried,
    Exit,
    If,
    Kernel,
    Loop,
    Store,
    Value,
    children,
    walk,
)
from rawkern.gradients.places import NeedsUnrolling, Pointer, Var
from rawkern.gradients.syntax import (
    File,
    Where,
    assigned,
    contains,
    moved,
    named,
    parameters_of,
    text_of,
)
from rawkern.gradients.types import Aggregate, Type

LEAVING = ("return_statement", "continue_statement")
LOOPS = ("for_statement", "while_statement", "do_statement")
MOST_UNROLLED = 64  # iterations of a loop that is written out


class Lowering(Declarations):
    """One reading of a kernel."""

    def __init__(
        self,
        file: File,
        where: Where,
        block: tuple[int, int, int],
        grid: tuple[int | None, int | None, int | None],
        unroll: frozenset[int],
        shared_mem: int,
        retyped: dict[str, Type],
    ) -> None:
        self.file, self.where = file, where
        self.block_shape, self.grid_shape = block, grid
        self.unroll, self.shared_mem, self.retyped = unroll, shared_mem, retyped
        self.views: dict[str, set[Aggregate | None]] = {}
        self.kept: dict[Any, Array] = {}
        self.body = self.block = Block()
        self.scopes: list[dict[str, Var]] = [{}]
        self.callers: list[list[dict[str, Var]]] = []
        self.called: list[str] = []
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
            self.parameter(node)
        self.sequence(named(definition.child_by_field_name("body")), lambda: None)
        self._widen()
        count(self.body)
        return Kernel(
            self.where.kernel, self.where.title, self.params, self.arrays, self.shared, self.body, self.structs,
            self.block_shape, self.grid_shape,
        )  # fmt: skip

    def _widen(self) -> None:
        """Make values of half precision floats, which are rounded where that matters."""
        same: dict[Value, Value] = {}
        items = list(walk(self.body))
        for item in items:
            for value in (item, *_after(item)):
                if isinstance(value, Value) and value.type in types.HALVES:
                    value.type = "float"
        for item in items:
            if isinstance(item, Value) and item.op == "cast" and item.args[0].type == item.type:
                same[item] = item.args[0]
                item.block.items.remove(item)
        if same:
            substitute(items, same)

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
            if node.type not in LOOPS and contains(node, LEAVING, LOOPS):
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
            if isinstance(a, Pointer) and isinstance(b, Pointer) and replace(a, offset=None) == replace(b, offset=None):
                first_at, other_at = (
                    self.within(side, lambda p=p: self.offset(node, p)) for side, p in ((made.then, a), (made.other, b))
                )
                at = self.value(node, "long long", "result", attr=made)
                made.results.append((at, first_at, other_at))
                var.value = replace(a, offset=at)
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
        line, moving = node.start_point[0] + 1, moved(node)
        made = Loop(line, self.block, node=node.start_byte)
        made.test.parent = made.body.parent = made
        visible = {var for name in names if (var := self.lookup(name)) is not None}
        leaves = [v for v in self.leaves() if v in {leaf for var in visible for leaf in var.leaves()}]
        before = [v.value for v in leaves]
        pointers: dict[Var, Pointer] = {}
        for k, (var, init) in enumerate(zip(leaves, before, strict=True)):
            if isinstance(init, Pointer) and var.name in moving:
                pointers[var] = init
                before[k] = init = self.offset(node, init)
            if isinstance(init, Value):
                var.value = Value(line, made.body, type=init.type, op="phi", attr=made, name=var.name)
        phis = [v.value for v in leaves]
        for var, phi in zip(leaves, phis, strict=True):
            if var in pointers:
                phi.name = f"{var.name}_at"
                var.value = replace(pointers[var], offset=phi)
        made.condition = self.within(made.test, lambda: self.truth(self.scalar(condition)))
        self.within(made.body, iteration)
        for var, start in pointers.items():
            if not isinstance(var.value, Pointer) or replace(var.value, offset=start.offset) != start:
                raise self.refuse(node, f"the pointer {var.name} moves to another array in a loop", "write an index")
            var.value = self.within(made.body, lambda p=var.value: self.offset(node, p))
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
                    result = Value(line, self.block, type=init.type, op="result", attr=made, name=phi.name)
                    made.carried.append(Carried(phi, init, new, result))
                    var.value = result
                if var in pointers:
                    var.value = replace(pointers[var], offset=var.value)
            elif isinstance(init, Pointer) and new != init:
                raise self.refuse(node, f"the pointer {var.name} moves in a loop", "write an index")
            elif init is None:
                var.value = None
        self.block.items.append(made)
        self.block.items += [c.result for c in made.carried]
        while drop:
            substitute([*walk(made.test), *walk(made.body), made], drop)
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


def _after(item: Any) -> tuple[Value, ...]:
    """The variables of a loop, which stand in no block."""
    return tuple(c.phi for c in item.carried) if isinstance(item, Loop) else ()


def _acts(item: Any) -> bool:
    """Whether an item does more than compute, so that a thread that has done it takes part in the backward."""
    return isinstance(item, Store | Barrier | If | Loop) or (isinstance(item, Value) and item.op == "shfl")


def substitute(items: Sequence[Any], drop: dict[Value, Value]) -> None:
    """Put other values for some: what a variable had before a loop for one that the loop leaves alone."""

    def new(value: Value) -> Value:
        while value in drop:
            value = drop[value]
        return value

    for item in items:
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
