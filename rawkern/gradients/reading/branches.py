"""Statements of a kernel to structured SSA: sequences, branches, paths that leave."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from rawkern.base.tree import named, text_of
from rawkern.gradients import types
from rawkern.gradients.ir import COLLECTIVE, Barrier, Block, Exit, If, Loop, Store, Value
from rawkern.gradients.reading.choices import Choices, reads_behind
from rawkern.gradients.reading.groups import Team
from rawkern.gradients.reading.places import Pointer, Var
from rawkern.gradients.reading.syntax import WAYS_OUT, contains

LEAVING = ("return_statement", "continue_statement")
LOOPS = ("for_statement", "while_statement", "do_statement", "for_range_loop")
BREAKABLE = (*LOOPS, "switch_statement")


class Branches(Choices):
    """Statements; `Repeats` has the loops."""

    body: Block
    breaking: list[Var | None]  # of the loops around: whether they go on, where they have a break
    left: Var | None  # whether the function has returned, in a loop with a return

    def sequence(self, nodes: Sequence[Any], then: Callable[[], None]) -> None:
        """Read statements, and what comes then on every path that does not leave."""
        for at, node in enumerate(nodes):
            if node.type == "return_statement":
                self.leave(node)
                for var in [v for v in self.breaking if v is not None]:
                    var.value = self.value(node, "bool", "const", attr="false", const=0)
                if self.left is not None:
                    self.left.value = self.value(node, "bool", "const", attr="true", const=1)
                return None
            if node.type == "continue_statement":
                return None
            if node.type == "break_statement" and self.breaking and self.breaking[-1] is not None:
                self.breaking[-1].value = self.value(node, "bool", "const", attr="false", const=0)
                return None
            if node.type in LOOPS and contains(node, ("return_statement",)):
                return self._returning(node, nodes[at + 1 :], then)
            if node.type not in LOOPS and (
                contains(node, LEAVING, LOOPS)
                or (node.type != "switch_statement" and contains(node, ("break_statement",), BREAKABLE))
            ):
                return self._leaving(node, nodes[at + 1 :], then)
            choice = self.choice(node)
            if choice is not None:
                return self.choosing(node, choice, nodes[at + 1 :], then)
            self.statement(node)
        return then()

    def _returning(self, node: Any, rest: Sequence[Any], then: Callable[[], None]) -> None:
        """A loop with a return: a break of all loops around it; what follows is for those that have not left."""
        follow, outer = self._following(rest, then), self.left
        if outer is None:
            self.left = Var("left", "bool", self.value(node, "bool", "const", attr="false", const=0))
            for leaf in self.returned.leaves() if self.returned else []:
                if leaf.value is None and isinstance(leaf.type, str):
                    leaf.value = self.converted(node, self.integer(node, 0), leaf.type)
        left = self.left
        self.scoped(lambda: self._statement_with(f"left at {node.start_byte}", left, node))  # type: ignore[arg-type]
        self.left = outer
        self.branch(node, left.value, lambda: None, follow)  # type: ignore[union-attr]

    def _statement_with(self, name: str, var: Var, node: Any) -> None:
        self.scopes[-1][name] = var
        self.statement(node)

    def _leaving(self, node: Any, rest: Sequence[Any], then: Callable[[], None]) -> None:
        """A statement after which some paths do not go on: those that do take the rest with them."""
        if node.type == "compound_statement" and not rest:
            return self.scoped(lambda: self.sequence(named(node), then))
        if node.type == "switch_statement":
            return self._switch(node, rest, then)
        if node.type != "if_statement":
            if not hasattr(self, f"do_{node.type}"):
                self.statement(node)
            raise self.refuse(node, "a return or continue here", "put it into an if of the same block")
        condition = self._condition(node)
        parts = [node.child_by_field_name("consequence"), self._alternative(node)]
        only = [c for c in (named(parts[0]) if parts[0].type == "compound_statement" else [parts[0]])]
        alone = parts[1] is None and [c.type for c in only] == ["return_statement"]
        if alone and self.block is self.body and not self.callers and not any(map(_acts, self.body.items)):
            self.block.items.append(Exit(node.start_point[0] + 1, self.block, condition=condition))
            return self.sequence(rest, then)
        follow = self._following(rest, then)

        def go(part: Any) -> Callable[[], None]:
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
        return self.test(inner)

    def _following(self, rest: Sequence[Any], then: Callable[[], None]) -> Callable[[], None]:
        """What comes behind a statement, for each of its paths that goes on."""
        scopes = [dict(scope) for scope in self.scopes]

        def follow() -> None:
            inner, self.scopes = self.scopes, [dict(scope) for scope in scopes]
            self.sequence(rest, then)
            self.scopes = inner

        return follow

    def do_switch_statement(self, node: Any) -> None:
        self._switch(node, (), lambda: None)

    def _switch(self, node: Any, rest: Sequence[Any], then: Callable[[], None]) -> None:
        """A switch as branches, one by one; each case ends by itself."""
        value = self.scalar(node.child_by_field_name("condition").child_by_field_name("value"))
        if types.is_float(value.type):
            raise self.refuse(node, "a switch over what is no integer", "convert it first")
        follow, cases, labels = self._following(rest, then), [], []
        for case in named(node.child_by_field_name("body")):
            if case.type != "case_statement":
                raise self.refuse(case, "a statement before the first case", "put it before the switch")
            labels.append(case.child_by_field_name("value"))
            statements = [c for c in named(case) if c != labels[-1]]
            if not statements and case.next_named_sibling is not None:
                continue
            cases.append((labels, self._of_case(case, statements)))
            labels = []
        default = next((statements for labels, statements in cases if None in labels), [])
        chosen = [each for each in cases if None not in each[0]]

        def go(at: int) -> None:
            if at == len(chosen):
                return self.scoped(lambda: self.sequence(default, follow))
            tests = [self.binary(node, "==", value, self.scalar(label)) for label in chosen[at][0]]
            test = tests[0]
            for other in tests[1:]:
                const = 1 if test.const or other.const else 0 if test.const == other.const == 0 else None
                test = self.value(node, "bool", "binary", (test, other), "||", const=const)
            return self.branch(
                node, test, lambda: self.scoped(lambda: self.sequence(chosen[at][1], follow)), lambda: go(at + 1)
            )

        go(0)

    def _of_case(self, case: Any, statements: list[Any]) -> list[Any]:
        """The statements of a case, without the break at its end."""
        inner = statements
        while len(inner) == 1 and inner[0].type == "compound_statement":
            inner = named(inner[0])
        ends = bool(inner) and inner[-1].type == "break_statement"
        found = inner[:-1] if ends else inner
        leaves = bool(inner) and inner[-1].type in LEAVING
        if any(contains(s, ("break_statement",), BREAKABLE) for s in found):
            raise self.refuse(case, "a break within a case", "put it at the case's end, or write ifs")
        if not ends and not leaves and case.next_named_sibling is not None:
            way_out = "repeat the next's statements in it, and end it with a break"
            raise self.refuse(case, "a case that falls into the next", way_out)
        return found

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
            way_out = WAYS_OUT.get(node.type, "write it in simpler terms")
            raise self.refuse(node, f"{text_of(node).splitlines()[0]!r} ({node.type.replace('_', ' ')})", way_out)
        handler(node)

    def do_static_assert_declaration(self, node: Any) -> None:
        """Nothing: the compiler has seen it."""

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
        elif (tile := self._tile_declared(node)) is not None:
            self.scopes[-1][tile[0]] = Var(tile[0], None, tile[1])
        else:
            self.expression(node)

    def _tile_declared(self, node: Any) -> tuple[str, Team] | None:
        """``thread_block_tile<32> t = ...``, which the grammar takes for two comparisons."""
        left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
        if node.type != "binary_expression" or left.type != "binary_expression":
            return None
        if right.type != "assignment_expression" or self.group_type(f"{text_of(left)}>") is None:
            return None
        found = self.expression(right.child_by_field_name("right"))
        if not isinstance(found, Team):
            raise self.refuse(node, f"{text_of(right)!r} is no tile", "use tiled_partition")
        return text_of(right.child_by_field_name("left")), found

    def do_preproc_call(self, node: Any) -> None:
        raise self.refuse(node, text_of(node).strip(), "leave it out")

    def do_if_statement(self, node: Any) -> None:
        clause, alone = node.child_by_field_name("condition"), self._alternative(node) is None
        inner = clause.child_by_field_name("value") if clause.type == "condition_clause" else None
        if inner is not None and alone and len(named(clause)) == 1 and reads_behind(inner):
            part = node.child_by_field_name("consequence")
            return self.asked_behind(node, inner, lambda: self.scoped(lambda: self.sequence([part], lambda: None)))
        condition = self._condition(node)
        if condition.const is None and any(text_of(c) == "constexpr" for c in node.children if not c.is_named):
            raise self.refuse(node, "if constexpr of what is not known when deriving", "write a plain if")
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
        before, stored = [v.value for v in leaves], self.stored
        self.stored = dict(stored)
        self.within(made.then, then)
        first, first_stored = [v.value for v in leaves], self.stored_on(made.then)
        for var, value in zip(leaves, before, strict=True):
            var.value = value
        self.stored = dict(stored)
        self.within(made.other, other)
        self.block.items.append(made)
        self.merge_stored(made, first_stored, self.stored_on(made.other))
        for var, a in zip(leaves, first, strict=True):
            b = var.value
            if a is b or a == b:
                continue
            a, b = (self._instead(side, v, a, b) for side, v in ((made.then, a), (made.other, b)))
            var.value, var.apart = None, isinstance(a, Pointer) and isinstance(b, Pointer)
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

    def _instead(self, side: Block, value: Any, a: Any, b: Any) -> Any:
        """What a variable without a value has on one side of a branch: nothing may read it there."""
        other = b if value is a else a
        if value is not None or not isinstance(other, Value):
            return value
        return self.within(side, lambda: self.converted(other.line, self.integer(other.line, 0), other.type))


def _acts(item: Any) -> bool:
    """Whether an item does more than compute, so that a thread that has done it takes part in the backward."""
    return isinstance(item, Store | Barrier | If | Loop) or (isinstance(item, Value) and item.op in COLLECTIVE)
