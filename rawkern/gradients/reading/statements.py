"""Statements of a kernel to structured SSA: branches, switches, paths that leave."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rawkern.base.tree import named, text_of
from rawkern.gradients import types
from rawkern.gradients.ir import COLLECTIVE, Barrier, Exit, If, Loop, Store, Value
from rawkern.gradients.reading.branching import branch
from rawkern.gradients.reading.context import Context
from rawkern.gradients.reading.groups import Team, group_type
from rawkern.gradients.reading.handlers import expressions, leaving, statements
from rawkern.gradients.reading.places import Pointer, Var, as_pointer
from rawkern.gradients.reading.syntax import BREAKABLE, LOOPS, contains
from rawkern.gradients.reading.values import binary, convert, test

LEAVING = ("return_statement", "continue_statement")
Then = Callable[[], None]

# Plain statements -------------------------------------------------------------------------------------------------


@statements("static_assert_declaration")
def static_assert_declaration(ctx: Context, node: Any) -> None:
    """Nothing: the compiler has seen it."""


@statements("preproc_call")
def preproc_call(ctx: Context, node: Any) -> None:
    raise ctx.refuse(node, text_of(node).strip(), "leave it out")


@statements("compound_statement")
def compound_statement(ctx: Context, node: Any) -> None:
    ctx.scoped(lambda: ctx.sequence(named(node)))


@statements("expression_statement")
def expression_statement(ctx: Context, node: Any) -> None:
    for each in named(node):
        effect(ctx, each)


@expressions("comma_expression")
def comma_expression(ctx: Context, node: Any) -> Any:
    *before, last = named(node)
    for each in before:
        effect(ctx, each)
    return ctx.expression(last)


def effect(ctx: Context, node: Any) -> None:
    """An expression for what it does."""
    if node.type == "comma_expression":
        for each in named(node):
            effect(ctx, each)
    elif node.type == "call_expression":
        ctx.call(node)
    elif not _declares_tile(ctx, node):
        ctx.expression(node)


def _declares_tile(ctx: Context, node: Any) -> bool:
    """Declare ``thread_block_tile<32> t = ...``, which the grammar takes for two comparisons; False for others."""
    left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
    if node.type != "binary_expression" or left.type != "binary_expression":
        return False
    if right.type != "assignment_expression" or group_type(ctx, f"{text_of(left)}>") is None:
        return False
    found, name = ctx.expression(right.child_by_field_name("right")), text_of(right.child_by_field_name("left"))
    if not isinstance(found, Team):
        raise ctx.refuse(node, f"{text_of(right)!r} is not a tile", "use tiled_partition")
    ctx.scopes[-1][name] = Var(name, None, found)
    return True


# Branches ---------------------------------------------------------------------------------------------------------


@statements("if_statement")
def if_statement(ctx: Context, node: Any) -> None:
    clause, parts = node.child_by_field_name("condition"), _parts(node)
    inner = clause.child_by_field_name("value") if clause.type == "condition_clause" else None
    if inner is not None and parts[1] is None and len(named(clause)) == 1 and _reads_behind(inner):
        return _nested(ctx, node, inner, lambda: ctx.scoped(lambda: ctx.sequence([parts[0]])))
    condition = _condition(ctx, node)
    if condition.const is None and any(text_of(c) == "constexpr" for c in node.children if not c.is_named):
        raise ctx.refuse(node, "if constexpr of what is not known when deriving", "write a plain if")
    run = [lambda p=p: None if p is None else ctx.scoped(lambda: ctx.sequence([p])) for p in parts]
    return branch(ctx, node, condition, run[0], run[1])


def _parts(node: Any) -> tuple[Any, Any]:
    """What an if does, and what else, or None."""
    other = node.child_by_field_name("alternative")
    other = named(other)[0] if other is not None and other.type == "else_clause" else other
    return node.child_by_field_name("consequence"), other


def _condition(ctx: Context, node: Any) -> Value:
    clause = node.child_by_field_name("condition")
    inner = clause.child_by_field_name("value") if clause.type == "condition_clause" else clause
    if inner.type == "declaration" or (clause.type == "condition_clause" and len(named(clause)) != 1):
        raise ctx.refuse(node, "a declaration in a condition", "declare the variable before")
    return test(ctx, inner)


def _nested(ctx: Context, node: Any, condition: Any, then: Then) -> None:
    """An if whose condition reads memory after &&: one if in another, so that the last one decides alone."""
    if not _reads_behind(condition):
        return branch(ctx, node, test(ctx, condition), then, lambda: None)
    left, right = (condition.child_by_field_name(f) for f in ("left", "right"))
    return _nested(ctx, node, left, lambda: _nested(ctx, node, right, then))


def _reads_behind(node: Any) -> bool:
    """Whether a condition is an && whose right side reads memory."""
    both = node.type == "binary_expression" and text_of(node.child_by_field_name("operator")) == "&&"
    return both and contains(node.child_by_field_name("right"), ("subscript_expression",))


@statements("switch_statement")
def switch_statement(ctx: Context, node: Any) -> None:
    _switch(ctx, node, (), lambda: None)


def _switch(ctx: Context, node: Any, rest: Sequence[Any], then: Then) -> None:
    """A switch as branches, one by one; each case ends by itself."""
    value = ctx.scalar(node.child_by_field_name("condition").child_by_field_name("value"))
    if types.is_float(value.type):
        raise ctx.refuse(node, "a switch over what is not an integer", "convert it first")
    follow, cases, labels = _following(ctx, rest, then), [], []
    for case in named(node.child_by_field_name("body")):
        if case.type != "case_statement":
            raise ctx.refuse(case, "a statement before the first case", "put it before the switch")
        labels.append(case.child_by_field_name("value"))
        inside = [c for c in named(case) if c != labels[-1]]
        if inside or case.next_named_sibling is None:
            cases.append((labels, _of_case(ctx, case, inside)))
            labels = []
    default = next((inside for labels, inside in cases if None in labels), [])
    chosen = [each for each in cases if None not in each[0]]

    def go(at: int) -> None:
        if at == len(chosen):
            return ctx.scoped(lambda: ctx.sequence(default, follow))
        found = _is_one_of(ctx, node, value, chosen[at][0])
        return branch(
            ctx, node, found, lambda: ctx.scoped(lambda: ctx.sequence(chosen[at][1], follow)), lambda: go(at + 1)
        )

    go(0)


def _is_one_of(ctx: Context, node: Any, value: Value, labels: list[Any]) -> Value:
    """Whether a value is one of a case's."""
    found, *others = [binary(ctx, node, "==", value, ctx.scalar(label)) for label in labels]
    for other in others:
        const = 1 if found.const or other.const else 0 if found.const == other.const == 0 else None
        found = ctx.value(node, "bool", "binary", (found, other), "||", const=const)
    return found


def _of_case(ctx: Context, case: Any, inside: list[Any]) -> list[Any]:
    """The statements of a case, without the break at its end."""
    while len(inside) == 1 and inside[0].type == "compound_statement":
        inside = named(inside[0])
    last = inside[-1].type if inside else ""
    found = inside[:-1] if last == "break_statement" else inside
    if any(contains(s, ("break_statement",), BREAKABLE) for s in found):
        raise ctx.refuse(case, "a break within a case", "put it at the case's end, or write ifs")
    if last not in ("break_statement", *LEAVING) and case.next_named_sibling is not None:
        way_out = "repeat the next's statements in it, and end it with a break"
        raise ctx.refuse(case, "a case that falls into the next", way_out)
    return found


# Paths that leave -------------------------------------------------------------------------------------------------


@leaving("continue_statement")
def continue_statement(ctx: Context, node: Any, rest: Sequence[Any], then: Then) -> bool:
    return True


@leaving("break_statement")
def break_statement(ctx: Context, node: Any, rest: Sequence[Any], then: Then) -> bool:
    if not ctx.breaking or ctx.breaking[-1] is None:
        return False
    ctx.breaking[-1].value = ctx.boolean(node, False)
    return True


def _leaves(node: Any) -> bool:
    """Whether some paths end in a statement."""
    return contains(node, LEAVING, LOOPS) or contains(node, ("break_statement",), BREAKABLE)


@leaving("compound_statement")
def leaving_compound(ctx: Context, node: Any, rest: Sequence[Any], then: Then) -> bool:
    if not _leaves(node):
        return False
    if rest:
        raise ctx.refuse(node, "a return or continue here", "put it into an if of the same block")
    ctx.scoped(lambda: ctx.sequence(named(node), then))
    return True


@leaving("switch_statement")
def leaving_switch(ctx: Context, node: Any, rest: Sequence[Any], then: Then) -> bool:
    if not contains(node, LEAVING, LOOPS):
        return False
    _switch(ctx, node, rest, then)
    return True


@leaving("if_statement")
def leaving_if(ctx: Context, node: Any, rest: Sequence[Any], then: Then) -> bool:
    if not _leaves(node):
        return False
    condition, parts = _condition(ctx, node), _parts(node)
    alone = parts[1] is None and [c.type for c in _inside(parts[0])] == ["return_statement"]
    if alone and ctx.block is ctx.body and not ctx.callers and not any(map(_acts, ctx.body.items)):
        ctx.block.items.append(Exit(node.start_point[0] + 1, ctx.block, condition=condition))
        ctx.sequence(rest, then)
        return True
    follow = _following(ctx, rest, then)
    go = [lambda p=p: ctx.scoped(lambda: ctx.sequence(_inside(p), follow)) for p in parts]
    branch(ctx, node, condition, go[0], go[1])
    return True


def _inside(part: Any) -> list[Any]:
    return [] if part is None else named(part) if part.type == "compound_statement" else [part]


def _acts(item: Any) -> bool:
    """Whether an item does more than compute, so that a thread that has done it takes part in the backward."""
    return isinstance(item, Store | Barrier | If | Loop) or (isinstance(item, Value) and item.op in COLLECTIVE)


@leaving("declaration")
def choosing(ctx: Context, node: Any, rest: Sequence[Any], then: Then) -> bool:
    """A pointer to one of two arrays, by a choice: what follows, for each of them."""
    choice = _choice(ctx, node)
    if choice is None:
        return False

    def go(side: str) -> Then:
        def run() -> None:
            with ctx.using(scopes=[dict(scope) for scope in ctx.scopes]):
                with ctx.using(sides={**ctx.sides, choice.start_byte: choice.child_by_field_name(side)}):
                    ctx.statement(node)
                ctx.sequence(rest, then)

        return run

    branch(ctx, node, test(ctx, choice.child_by_field_name("condition")), go("consequence"), go("alternative"))
    return True


def _choice(ctx: Context, node: Any) -> Any:
    """In a declaration of a pointer to one of two arrays, what chooses between them."""
    single = [c for c in named(node) if c.type == "init_declarator"]
    value = single[0].child_by_field_name("value") if len(single) == 1 else None
    while value is not None and value.type == "parenthesized_expression":
        value = named(value)[0]
    if value is None or value.type != "conditional_expression" or value.start_byte in ctx.sides:
        return None
    sides = [value.child_by_field_name(f) for f in ("consequence", "alternative")]
    if any(side is None or side.type in ("number_literal", "true", "false", "char_literal") for side in sides):
        return None
    a, b = (ctx.asked_for_kind(lambda s=s: as_pointer(ctx.expression(s))) for s in sides)
    return value if isinstance(a, Pointer) and isinstance(b, Pointer) and a.array != b.array else None


def _following(ctx: Context, rest: Sequence[Any], then: Then) -> Then:
    """What comes after a statement, for each of its paths that goes on."""
    scopes = [dict(scope) for scope in ctx.scopes]

    def follow() -> None:
        with ctx.using(scopes=[dict(scope) for scope in scopes]):
            ctx.sequence(rest, then)

    return follow


@leaving(*LOOPS)
def leaving_loop(ctx: Context, node: Any, rest: Sequence[Any], then: Then) -> bool:
    """A loop with a return: a break of all loops around it; what follows is for those that have not left."""
    if not contains(node, ("return_statement",)):
        return False
    follow, left = _following(ctx, rest, then), ctx.left
    if left is None:
        left = Var("left", "bool", ctx.boolean(node, False))
        for leaf in ctx.returned.leaves() if ctx.returned else []:
            if leaf.value is None and isinstance(leaf.type, str):
                leaf.value = convert(ctx, node, ctx.integer(node, 0), leaf.type)
    with ctx.using(left=left, scopes=[*ctx.scopes, {f"left at {node.start_byte}": left}]):
        ctx.statement(node)
    branch(ctx, node, left.value, lambda: None, follow)
    return True
