"""Loops of a kernel to structured SSA: kept, or written out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from rawkern.base.tree import named, text_of
from rawkern.gradients.ir import FIXED, Carried, Loop, Value, substitute, walk
from rawkern.gradients.reading.branching import branch
from rawkern.gradients.reading.context import Context
from rawkern.gradients.reading.functions import bind_argument
from rawkern.gradients.reading.handlers import statements
from rawkern.gradients.reading.places import GOES_ON, Given, Lambda, Local, OfLoop, Pointer, Var, one_array
from rawkern.gradients.reading.pointers import offset
from rawkern.gradients.reading.statements import effect
from rawkern.gradients.reading.syntax import BREAKABLE, CHANGES, assigned, calls, contains, identifier, moved
from rawkern.gradients.reading.values import convert, test

SWAPPED = "make the number of iterations a constant of at most 64, or write an index"
MOST_UNROLLED = 64  # iterations of a loop that is written out


@statements("for_statement")
def for_statement(ctx: Context, node: Any) -> None:
    start, update = node.child_by_field_name("initializer"), node.child_by_field_name("update")
    with ctx.using(scopes=[*ctx.scopes, {}]):
        own = False
        if start is not None and start.type == "declaration":
            ctx.statement(start)
            own = update is not None and _counts(start, update)
        elif start is not None:
            effect(ctx, start)
        _loop(ctx, node, node.child_by_field_name("condition"), update, own)


def _counts(start: Any, update: Any) -> bool:
    """Whether an update only counts on what the loop declares."""
    declared = {identifier(d) for d in start.children_by_field_name("declarator")}
    plain = not contains(update, ("call_expression", "subscript_expression", "field_expression", "pointer_expression"))
    return plain and assigned(update) <= declared


@statements("while_statement")
def while_statement(ctx: Context, node: Any) -> None:
    clause = node.child_by_field_name("condition")
    _loop(ctx, node, clause.child_by_field_name("value") if clause.type == "condition_clause" else clause, None)


@statements("do_statement")
def do_statement(ctx: Context, node: Any) -> None:
    _loop(ctx, node, node.child_by_field_name("condition"), None)


@statements("for_range_loop")
def for_range_loop(ctx: Context, node: Any) -> None:
    """A loop over the elements of a local array or a list, written out."""
    body, right = node.child_by_field_name("body"), node.child_by_field_name("right")
    if contains(body, ("break_statement",), BREAKABLE) or contains(body, ("return_statement",)):
        raise ctx.refuse(node, "a loop over elements that is left early", "write a loop with an index")
    if right.type == "initializer_list":
        elements = [ctx.given(each) for each in named(right)]
    else:
        found = ctx.expression(right)
        if not isinstance(found, Var) or found.type is not None:
            raise ctx.refuse(node, f"a loop over {text_of(right)!r}", "loop over a local array")
        elements = [Given(right, each) for each in found.fields.values()]
    for each in elements:
        with ctx.using(scopes=[*ctx.scopes, {}]):
            bind_argument(ctx, node, node, each)
            ctx.scoped(lambda: ctx.sequence(_statements(body)))


def _statements(body: Any) -> list[Any]:
    return named(body) if body.type == "compound_statement" else [body]


# Loops with a condition -------------------------------------------------------------------------------------------


def _loop(ctx: Context, node: Any, condition: Any, update: Any, own: bool = False) -> None:
    """A loop; `own`: its update changes only what nothing after the loop sees, so it may follow a break."""
    body, late = node.child_by_field_name("body"), node.type == "do_statement"
    returns = contains(body, ("return_statement",))
    breaks = returns or contains(body, ("break_statement",), BREAKABLE)
    if condition is None and not breaks:
        raise ctx.refuse(node, "a loop without condition", "give it one")
    goes_on: Var | None = None
    early = not late and condition is not None and contains(condition, CHANGES)
    if breaks or late or early:  # as a variable of the loop, and part of its condition
        goes_on = Var(GOES_ON, "bool", test(ctx, condition) if early else ctx.boolean(node, True))

    def advance() -> None:
        if update is not None:
            effect(ctx, update)
        if goes_on is not None and (late or early):  # what it changes is changed once for each time it is asked
            goes_on.value = test(ctx, condition)

    def iteration() -> None:
        with ctx.using(breaking=[*ctx.breaking, goes_on]):
            ctx.scoped(lambda: ctx.sequence(_statements(body)))
        if breaks and goes_on is not None and (early or not own):
            branch(ctx, node, goes_on.value, advance, lambda: None)
        else:
            advance()

    def holds() -> Value:
        if goes_on is None:
            return test(ctx, condition)
        return goes_on.value if late or early or condition is None else _and(ctx, node, goes_on.value, condition)

    scopes = [*ctx.scopes, {f"goes on at {node.start_byte}": goes_on}] if goes_on is not None else ctx.scopes
    with ctx.using(scopes=scopes):
        if node.start_byte in ctx.settings.unroll:
            joined = condition is not None and condition.type == "binary_expression" and "&&" in text_of(condition)
            _write_out(ctx, node, holds, iteration, 0, joined or (condition is None and breaks))
            return
        with ctx.using(loops=[*ctx.loops, node.start_byte]):
            visible = {goes_on, *_changing(ctx, node)} - {None}
            if returns:
                visible |= {ctx.left, ctx.returned, *ctx.breaking} - {None}
            _keep(ctx, node, holds, iteration, visible)


def _changing(ctx: Context, node: Any) -> set[Var]:
    """The variables that a loop may change, also through pointers, lambdas, objects and methods."""
    names, called = assigned(node), calls(node)
    for name in called:
        var = ctx.lookup(name)
        if var is not None and isinstance(var.value, Lambda):
            names |= assigned(var.value.node)
        elif var is not None:
            names.add(name)
    if ctx.struct is not None and called & set(ctx.struct.methods):
        names.add("this")
    found = {var for name in names if (var := ctx.lookup(name)) is not None}
    for var in list(found):
        if isinstance(var.value, Local):
            found |= set(var.value.leaves)
        elif isinstance(var.value, Var):
            found.add(var.value)
    return found


def _and(ctx: Context, node: Any, goes_on: Value, condition: Any) -> Value:
    """The condition of a loop that may be left by a break; computed after that as well."""
    if goes_on.const is not None:
        return test(ctx, condition) if goes_on.const else goes_on
    before, begun = len(ctx.block.items), [v.value for v in ctx.leaves()]
    found = test(ctx, condition)
    if [v.value for v in ctx.leaves()] != begun:
        raise ctx.refuse(node, "a break in a loop whose condition calls what changes variables", "call it in the loop")
    if not all(isinstance(i, Value) and i.op not in FIXED for i in ctx.block.items[before:]):
        raise ctx.refuse(node, "a break in a loop whose condition reads memory",
                         "read it into a variable in the loop")  # fmt: skip
    if found.const:
        return goes_on
    return ctx.value(node, "bool", "binary", (goes_on, found), "&&", const=0 if found.const == 0 else None)


# Written out ------------------------------------------------------------------------------------------------------


def _write_out(
    ctx: Context, node: Any, holds: Callable[[], Value], iteration: Callable[[], None], done: int, some: bool
) -> None:
    """The iterations one after the other; after a break that may have been taken, in a branch.

    `some`: a part of the condition may end the loop, also if the rest is not known.
    """
    while True:
        known = holds()
        if known.const is not None and not known.const:
            return
        if done > MOST_UNROLLED:
            reason = f"a loop of more than {MOST_UNROLLED} iterations that has to be written out"
            raise OfLoop(ctx.refuse(node, reason, "make it shorter"))
        done += 1
        if known.const is None:
            breaks = known.op == "result" or (known.op == "binary" and known.attr == "&&")
            if not some and not breaks:
                reason = "a loop whose number of iterations is not known when deriving"
                raise OfLoop(ctx.refuse(node, reason, "make its bounds constants"))

            def rest(done: int = done) -> None:
                iteration()
                _write_out(ctx, node, holds, iteration, done, some)

            return branch(ctx, node, known, rest, lambda: None)
        iteration()


# Kept -------------------------------------------------------------------------------------------------------------


@dataclass
class _Visible:
    """A variable that a loop may change: before it, at the start of an iteration, and what it points into."""

    var: Var
    init: Any
    phi: Any
    pointer: Pointer | None


def _keep(
    ctx: Context, node: Any, holds: Callable[[], Value], iteration: Callable[[], None], visible: set[Any]
) -> None:
    """A loop of the IR; each variable in `visible` that it changes is carried on."""
    made = Loop(node.start_point[0] + 1, ctx.block, node=node.start_byte)
    made.test.parent = made.body.parent = made
    within, names = {leaf for var in visible for leaf in var.leaves()}, moved(node)
    others = {v: v.value for v in ctx.leaves() if v not in within}
    leaves = [_start(ctx, node, made, v, v.name in names) for v in ctx.leaves() if v in within]
    _read_loop(ctx, node, made, holds, iteration)
    for var, value in others.items():
        if var.value is not value:
            raise ctx.refuse(node, f"{var.name} changes in the loop in a way that is not followed",
                             "assign to it in the loop itself")  # fmt: skip
    for leaf in leaves:
        _end(ctx, node, made, leaf)
    steady = {leaf.phi: leaf.init for leaf in leaves if isinstance(leaf.init, Value) and leaf.var.value is leaf.phi}
    for leaf in leaves:
        _leave(ctx, node, made, leaf)
    ctx.block.items += [made, *(c.result for c in made.carried)]
    if steady:
        substitute([*walk(made.test), *walk(made.body), made], steady)
        for each in [c for c in made.carried if c.next is c.phi]:
            raise ctx.refuse(node, f"{each.phi.name} is changed in a way that is not followed", "simplify the loop")


def _read_loop(ctx: Context, node: Any, made: Loop, holds: Callable[[], Value], iteration: Callable[[], None]) -> None:
    begun = [v.value for v in ctx.leaves()]
    made.condition = ctx.within(made.test, holds)
    if [v.value for v in ctx.leaves()] != begun:
        raise ctx.unrollable(node, "the condition of a loop calls what changes variables")
    ctx.within(made.body, iteration)


def _start(ctx: Context, node: Any, made: Loop, var: Var, moves: bool) -> _Visible:
    """Give a variable what it is at the start of an iteration; `moves`: it is assigned to, also as a pointer."""
    if var.value is None and (node.start_byte, var.name) in ctx.settings.starts and isinstance(var.type, str):
        var.value = convert(ctx, node, ctx.integer(node, 0), var.type)
    pointer = var.value if moves and isinstance(var.value, Pointer) else None
    init = var.value if pointer is None else offset(ctx, node, pointer)
    if not isinstance(init, Value):
        return _Visible(var, init, init, None)
    phi = Value(made.line, made.body, type=init.type, op="phi", attr=made, name=var.name)
    if pointer is not None:
        phi.name = f"{var.name}_at"
    var.value = phi if pointer is None else replace(pointer, offset=phi)
    return _Visible(var, init, phi, pointer)


def _end(ctx: Context, node: Any, made: Loop, leaf: _Visible) -> None:
    """How far a pointer has come at the end of an iteration, as what the variable is."""
    var = leaf.var
    if leaf.pointer is not None and not one_array(var.value, leaf.pointer):
        raise ctx.unrollable(node, f"the pointer {var.name} moves to another array in a loop", SWAPPED)
    if leaf.pointer is not None:
        var.value = ctx.within(made.body, lambda: offset(ctx, node, var.value))


def _leave(ctx: Context, node: Any, made: Loop, leaf: _Visible) -> None:
    """Give a variable what it is after a loop."""
    var, init, new = leaf.var, leaf.init, leaf.var.value
    if isinstance(init, Value) and new is None:
        raise ctx.refuse(node, f"{var.name} has no value on some path of the loop", "give it one before")
    if isinstance(init, Value) and new is leaf.phi:
        var.value = init
    elif isinstance(init, Value):
        var.value = Value(made.line, ctx.block, type=init.type, op="result", attr=made, name=leaf.phi.name)
        made.carried.append(Carried(leaf.phi, init, new, var.value))
    elif isinstance(init, Pointer) and new != init:
        raise ctx.unrollable(node, f"the pointer {var.name} moves in a loop", SWAPPED)
    elif init is None:
        var.value, var.lost = None, node.start_byte if isinstance(new, Value) else -1
    if leaf.pointer is not None:
        var.value = replace(leaf.pointer, offset=var.value)
