"""Loops of a kernel to structured SSA: kept, or written out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from rawkern.base.tree import named, text_of
from rawkern.gradients.ir import FIXED, Carried, Loop, Value, substitute, walk
from rawkern.gradients.reading.branches import BREAKABLE, Branches
from rawkern.gradients.reading.places import GOES_ON, Given, Lambda, Local, NeedsUnrolling, OfLoop, Pointer, Var
from rawkern.gradients.reading.syntax import assigned, calls, contains, identifier, moved

MOST_UNROLLED = 64  # iterations of a loop that is written out
CHANGES = ("assignment_expression", "update_expression")


class Repeats(Branches):
    """Loops."""

    unroll: frozenset[int]  # the loops that are written out
    loops: list[int]  # those around what is read

    def do_for_statement(self, node: Any) -> None:
        def run() -> None:
            start = node.child_by_field_name("initializer")
            if start is not None:
                self.declare(start) if start.type == "declaration" else self.effect(start)
            update = node.child_by_field_name("update")
            own = start is not None and start.type == "declaration" and update is not None and _counts(start, update)
            self.loop(node, node.child_by_field_name("condition"), update, own)

        self.scoped(run)

    def do_for_range_loop(self, node: Any) -> None:
        """A loop over the elements of a local array or a list, written out."""
        body, right = node.child_by_field_name("body"), node.child_by_field_name("right")
        if contains(body, ("break_statement",), BREAKABLE) or contains(body, ("return_statement",)):
            raise self.refuse(node, "a loop over elements that is left early", "write a loop with an index")
        if right.type == "initializer_list":
            elements = [self.given(each) for each in named(right)]
        else:
            found = self.expression(right)
            if not isinstance(found, Var) or found.type is not None:
                raise self.refuse(node, f"a loop over {text_of(right)!r}", "loop over a local array")
            elements = [Given(right, each) for each in found.fields.values()]
        statements = named(body) if body.type == "compound_statement" else [body]
        for each in elements:
            self.scoped(lambda e=each: self._with_element(node, e, statements))

    def _with_element(self, node: Any, element: Given, statements: Sequence[Any]) -> None:
        self.bind_argument(node, node, element)
        self.scoped(lambda: self.sequence(statements, lambda: None))

    def do_while_statement(self, node: Any) -> None:
        clause = node.child_by_field_name("condition")
        self.loop(node, clause.child_by_field_name("value") if clause.type == "condition_clause" else clause, None)

    def do_do_statement(self, node: Any) -> None:
        self.loop(node, node.child_by_field_name("condition"), None)

    def loop(self, node: Any, condition: Any, update: Any, own: bool = False) -> None:
        """A loop; `own`: its update changes only what nothing behind the loop sees, so it may follow a break."""
        body, late = node.child_by_field_name("body"), node.type == "do_statement"
        statements = named(body) if body.type == "compound_statement" else [body]
        returns = contains(body, ("return_statement",))
        breaks = returns or contains(body, ("break_statement",), BREAKABLE)
        if condition is None and not breaks:
            raise self.refuse(node, "a loop without condition", "give it one")
        scopes = self.scopes
        goes_on: Var | None = None
        early = not late and condition is not None and contains(condition, CHANGES)
        if breaks or late or early:  # as a variable of the loop, and part of its condition
            begins = self.test(condition) if early else self.value(node, "bool", "const", attr="true", const=1)
            goes_on = Var(GOES_ON, "bool", begins)
            self.scopes = [*scopes, {f"goes on at {node.start_byte}": goes_on}]

        def advance() -> None:
            if update is not None:
                self.effect(update)
            if goes_on is not None and (late or early):  # what it changes is changed once for each time it is asked
                goes_on.value = self.test(condition)

        def iteration() -> None:
            self.breaking.append(goes_on)
            self.scoped(lambda: self.sequence(statements, lambda: None))
            self.breaking.pop()
            if breaks and goes_on is not None and (early or not own):
                self.branch(node, goes_on.value, advance, lambda: None)
            else:
                advance()

        def test() -> Value:
            if goes_on is None:
                return self.test(condition)
            return goes_on.value if late or early or condition is None else self._and(node, goes_on.value, condition)

        if node.start_byte in self.unroll:
            joined = condition is not None and condition.type == "binary_expression" and "&&" in text_of(condition)
            self._written_out(node, test, iteration, 0, joined or (condition is None and breaks))
        else:
            self.loops.append(node.start_byte)
            visible = self._changing(node)
            visible |= {goes_on} if goes_on is not None else set()
            if returns:
                visible |= {v for v in (self.left, self.returned, *self.breaking) if v is not None}
            self._kept(node, test, iteration, visible)
            self.loops.pop()
        self.scopes = scopes

    def _changing(self, node: Any) -> set[Var]:
        """The variables that a loop may change, also through pointers, lambdas, objects and methods."""
        names, called = assigned(node), calls(node)
        for name in called:
            var = self.lookup(name)
            if var is not None and isinstance(var.value, Lambda):
                names |= assigned(var.value.node)
            elif var is not None:
                names.add(name)
        if self.struct is not None and called & set(self.struct.methods):
            names.add("this")
        found = {var for name in names if (var := self.lookup(name)) is not None}
        for var in list(found):
            if isinstance(var.value, Local):
                found |= set(var.value.leaves)
            elif isinstance(var.value, Var):
                found.add(var.value)
        return found

    def _and(self, node: Any, goes_on: Value, condition: Any) -> Value:
        """The condition of a loop that may be left by a break; computed after that as well."""
        if goes_on.const is not None:
            return self.test(condition) if goes_on.const else goes_on
        before, begun = len(self.block.items), [v.value for v in self.leaves()]
        found = self.test(condition)
        if [v.value for v in self.leaves()] != begun:
            raise self.refuse(
                node, "a break in a loop whose condition calls what changes variables", "call it in the loop"
            )
        if not all(isinstance(i, Value) and i.op not in FIXED for i in self.block.items[before:]):
            raise self.refuse(
                node, "a break in a loop whose condition reads memory", "read it into a variable in the loop"
            )
        if found.const:
            return goes_on
        return self.value(node, "bool", "binary", (goes_on, found), "&&", const=0 if found.const == 0 else None)

    def _written_out(
        self, node: Any, test: Callable[[], Value], iteration: Callable[[], None], done: int, some: bool
    ) -> None:
        """The iterations one after the other; behind a break that may have been taken, in a branch.

        `some`: a part of the condition may end the loop, also if the rest is not known.
        """
        while True:
            known = test()
            if known.const is not None and not known.const:
                return
            if done > MOST_UNROLLED:
                raise OfLoop(
                    self.refuse(
                        node,
                        f"a loop of more than {MOST_UNROLLED} iterations that has to be written out",
                        "make it shorter",
                    )
                )
            done += 1
            if known.const is None:
                breaks = known.op == "result" or (known.op == "binary" and known.attr == "&&")
                if not some and not breaks:
                    raise OfLoop(
                        self.refuse(
                            node,
                            "a loop whose number of iterations is not known when deriving",
                            "make its bounds constants",
                        )
                    )

                def rest(done: int = done) -> None:
                    iteration()
                    self._written_out(node, test, iteration, done, some)

                return self.branch(node, known, rest, lambda: None)
            iteration()

    def _kept(self, node: Any, test: Callable[[], Value], iteration: Callable[[], None], visible: set[Var]) -> None:
        line, moving = node.start_point[0] + 1, moved(node)
        made = Loop(line, self.block, node=node.start_byte)
        made.test.parent = made.body.parent = made
        within = {leaf for var in visible for leaf in var.leaves()}
        leaves, others = ([v for v in self.leaves() if (v in within) == inside] for inside in (True, False))
        for var in leaves:
            if var.value is None and (node.start_byte, var.name) in self.starts and isinstance(var.type, str):
                var.value = self.converted(node, self.integer(node, 0), var.type)
        before, steady = [v.value for v in leaves], [v.value for v in others]
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
        begun = [v.value for v in self.leaves()]
        made.condition = self.within(made.test, test)
        if [v.value for v in self.leaves()] != begun:
            raise self.unrollable(node, "the condition of a loop calls what changes variables")
        self.within(made.body, iteration)
        for var, value in zip(others, steady, strict=True):
            if var.value is not value:
                raise self.refuse(node, f"{var.name} changes in the loop in a way that is not followed",
                                  "assign to it in the loop itself")  # fmt: skip
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
                var.value, var.lost = None, node.start_byte if isinstance(new, Value) else -1
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

    def unrollable(
        self, node: Any, reason: str, way_out: str = "make the bounds of the loops around it constants"
    ) -> Exception:
        error = self.refuse(node, reason, way_out)
        left = [each for each in self.loops if each not in self.unroll]
        return NeedsUnrolling(tuple(left[::-1]), error) if left else error


def _counts(start: Any, update: Any) -> bool:
    """Whether an update only counts on what the loop declares."""
    declared = {identifier(d) for d in start.children_by_field_name("declarator")}
    plain = not contains(update, ("call_expression", "subscript_expression", "field_expression", "pointer_expression"))
    return plain and assigned(update) <= declared
