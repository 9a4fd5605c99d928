"""Statements of a kernel to structured SSA: sequences, branches, paths that leave."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from rawkern.gradients.declarations import Declarations
from rawkern.gradients.ir import Barrier, Block, Exit, If, Loop, Store, Value
from rawkern.gradients.places import Pointer, Var
from rawkern.gradients.syntax import contains, named, text_of

LEAVING = ("return_statement", "continue_statement")
LOOPS = ("for_statement", "while_statement", "do_statement")


class Branches(Declarations):
    """Statements; `Repeats` has the loops."""

    body: Block

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


def _acts(item: Any) -> bool:
    """Whether an item does more than compute, so that a thread that has done it takes part in the backward."""
    return isinstance(item, Store | Barrier | If | Loop) or (isinstance(item, Value) and item.op == "shfl")
