"""CUDA C as a tree: random expressions are read as C means them, whatever their names are taken for."""

from __future__ import annotations

import random

import pytest

from rawkern.base.tree import named, parse, text_of

_DECLARED = """
typedef double T;
struct P { int a; float count; };
template <int N> int pick(int);
void f(int a, int b, int c, int x, int y, P p, P *q, const int *v) {
"""
_LEVELS = (
    ("||",),
    ("&&",),
    ("|",),
    ("^",),
    ("&",),
    ("==", "!="),
    ("<", ">", "<=", ">="),
    ("<<", ">>"),
    ("+", "-"),
    ("*", "/", "%"),
)


def read(text: str) -> str:
    """An expression with all its parentheses."""
    root = parse(f"{_DECLARED} x = {text}; }}")
    assert not root.has_error, text
    statement = named(named(root)[-1].child_by_field_name("body"))[0]
    return _spelled(named(named(statement)[0])[1])


def _spelled(node) -> str:
    parts = named(node)
    if node.type == "parenthesized_expression":
        return _spelled(parts[0])
    if node.type == "cast_expression":
        return f"[{text_of(parts[0]).removeprefix('const ')} {_spelled(parts[1])}]"
    if node.type in ("binary_expression", "unary_expression", "pointer_expression"):
        sign = text_of(node.child_by_field_name("operator"))
        return f"({sign.join(map(_spelled, parts)) if len(parts) == 2 else sign + _spelled(parts[0])})"
    if node.type == "conditional_expression":
        return f"({_spelled(parts[0])}?{_spelled(parts[1])}:{_spelled(parts[2])})"
    if node.type == "call_expression":
        return f"{text_of(parts[0])}({','.join(map(_spelled, named(parts[1])))})"
    return text_of(node).replace(" ", "").replace("(v)", "v")


def written(depth: int, level: int, rng: random.Random) -> tuple[str, str]:
    """A random operand for an operator of a level: its text, and that with all parentheses."""
    kind = rng.random()
    space = rng.choice(("", " "))
    if depth == 0 or kind < 0.15:
        text = rng.choice(("a", "b", "c", "p.a", "q->count", "v[a]", "2", "f(x)"))
        return text, text
    if kind < 0.35:
        text, meant = written(depth - 1, -1, rng)
        return f"({text})", meant
    if kind < 0.45:
        text, meant = written(depth - 1, len(_LEVELS), rng)
        sign = rng.choice("-!")
        return (f"{sign} {text}", f"({sign}{meant})") if not text.startswith(("-", "2")) else (text, meant)
    if kind < 0.55:
        text, meant = written(depth - 1, len(_LEVELS), rng)
        cast = rng.choice(("float", "T"))
        return f"({cast}){space}{text}", f"[{cast} {meant}]"
    if kind < 0.6 and level < 0:
        (a, b, c), meant = zip(*(written(depth - 1, k, rng) for k in (0, -1, -1)), strict=True)
        return f"{a} ? {b} : {c}", "({}?{}:{})".format(*meant)
    at = rng.randrange(max(level, 0), len(_LEVELS)) if level < len(_LEVELS) else None
    if at is None:
        text, meant = written(depth - 1, -1, rng)
        return f"({text})", meant
    (left, one), (right, two) = written(depth - 1, at, rng), written(depth - 1, at + 1, rng)
    sign = rng.choice(_LEVELS[at])
    return f"{left}{space}{sign}{' ' if right[0] in '-+&' else space}{right}", f"({one}{sign}{two})"


@pytest.mark.parametrize("seed", range(4))
def test_random_expressions(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(500):
        text, meant = written(rng.randint(1, 5), -1, rng)
        assert read(text) == meant, text


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("(a)+b*(c)", "(a+(b*c))"),
        ("((a)+(b)*(c))", "(a+(b*c))"),
        ("(T)-a*b", "([T (-a)]*b)"),
        ("a<b&&c>(x)", "((a<b)&&(c>x))"),
        ("p.a < b || q->count > (c)", "((p.a<b)||(q->count>c))"),
        ("a < b ? c : x > (y)", "((a<b)?c:(x>y))"),
        ("pick<3>(a) + (pick<2>)(b)", "(pick<3>(a)+(pick<2>)(b))"),
        ("(half)-a*b", "([half (-a)]*b)"),
        ("static_cast<T>(a)", "static_cast<T>(a)"),
    ],
)
def test_names_decide(text: str, meant: str) -> None:
    assert read(text) == meant


def test_variables_of_loops_and_bindings() -> None:
    root = parse("void f(P p) { auto [a, b] = p; for (float v : p.all) g((a)+b*v, (v)-a*b, v < a && b > (1)); }")
    text = text_of(root)
    assert " a +b*v,  v -a*b, (v) < a && b > (1)" in text


def test_lines_stay() -> None:
    root = parse("void f(int a, int b) {\n  a = (a)+b\n  *2;\n}\nvoid g() {}\n")
    assert [node.start_point[0] for node in named(root)] == [0, 4]
