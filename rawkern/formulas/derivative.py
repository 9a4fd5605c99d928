"""Derivatives of C statements for one element: those of a kernel of one thread, with the numbers as parameters."""

from __future__ import annotations

import operator
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rawkern.base.ctype import TYPE_NAMES
from rawkern.errors import NotDifferentiable
from rawkern.formulas.parameters import INTEGERS
from rawkern.formulas.statements import NO_COMPLEX, closed, names_in
from rawkern.gradients.backward import helpers
from rawkern.gradients.code import expressions as expr
from rawkern.gradients.code import tree
from rawkern.gradients.code.expressions import Binary, Call, Cast, Index, Literal, Name, Node, Ternary, Unary
from rawkern.gradients.code.printing import rendered
from rawkern.gradients.code.tree import Assign, Declare, Statement
from rawkern.gradients.derive import statements
from rawkern.gradients.ir import COLLECTIVE, Barrier, Exit, Kernel, Value, renumber, walk
from rawkern.gradients.reading.syntax import Where
from rawkern.gradients.rules import ONE, RULES, ZERO, R, Rule

REAL = "real_"  # the name of the type that a derivative of several types is computed in
_MEMORY = {"memory_": "", "grad_memory_": "grad_"}  # how the kernel's arrays begin, and what they stand for
_THREADS = {"threadIdx", "blockIdx", "blockDim", "gridDim", "warpSize"}
_FOLDS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}
_COMPARES = {
    "==": operator.eq, "!=": operator.ne, ">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le,
}  # fmt: skip
_SPELLED = {"saturated", "divided"}  # functions of texts in double, which are operators here
#: 1 / (1 + exp(x)): by the rule of a quotient its derivative is inf / inf where exp(x) is that.
LOGISTIC = Rule("logistic_", (-R * (ONE - R),))


def derive(
    operation: str,
    inputs: Mapping[str, str],
    outputs: Mapping[str, str],
    floating: Collection[str],
    wanted: Iterable[str],
    name: str,
) -> str:
    """Return C statements that assign ``grad_X`` for each X of `wanted`, given ``grad_Y`` for each output Y.

    Outputs start at 0, as those do that a call makes. ``grad_X`` is the sum over the outputs of ``grad_Y * dY/dX``;
    at the boundary of two branches the statements decide which one counts, and fmax/fmin of two variables share their
    gradient equally where they are equal, as torch.maximum does.

    Parameters
    ----------
    operation : str
        C statements that assign the outputs.
    inputs, outputs : mapping of str to str
        Names of the parameters and their C types; a type is a floating one unless it is in `INTEGERS`.
    floating : collection of str
        The outputs that have a gradient.
    wanted : iterable of str
        The inputs to differentiate by.
    name : str
        Of the operator, for messages.

    Raises
    ------
    NotDifferentiable
        For statements that cannot be differentiated.
    """
    where, wanted = _Formula(name, name, str), tuple(wanted)
    kinds = {**inputs, **outputs}
    for x, kind in kinds.items():
        if "complex" in kind:
            raise NotDifferentiable(f"{name}: {NO_COMPLEX.format(x)}")
    if threads := names_in(operation) & _THREADS:
        raise where.refuse(1, f"it names {', '.join(sorted(threads))}", "")
    reals = list(dict.fromkeys(t for t in kinds.values() if t not in INTEGERS))
    real = reals[0] if len(reals) == 1 else REAL
    taken = {"i", "n", *reals, REAL, *kinds, *(f"{start}{x}" for x in kinds for start in ("grad_", *_MEMORY))}
    lines = statements(
        _kernel(operation, inputs, outputs, floating, reals), "formula_", where,
        tuple(f"memory_{x}" for x in wanted), taken, lambda kernel: _of_one_thread(kernel, where),
    )  # fmt: skip
    if helped := tree.called(lines) & helpers.HELPERS.keys() - _SPELLED:
        raise where.refuse(1, f"its derivative needs {', '.join(sorted(helped))}(), which CUDA does not have", "")
    of = {f"{a}{x}": Name(f"{b}{x}") for x in kinds if kinds[x] not in INTEGERS for a, b in _MEMORY.items()}
    lines = _set_at_once(_by_name(lines, of, {p: p for p in of.values()}), [Name(f"grad_{x}") for x in wanted])
    text = "\n".join(rendered(_of_type(lines, real), 0))
    joint = " + ".join(f"{t}()" for t in reals)  # as C computes what is of several types
    return text if len(reals) == 1 else f"using {REAL} = decltype({joint});\n{text}"


class _Formula(Where):
    """An elementwise expression, for messages."""

    def refuse(self, node: Any, reason: str, way_out: str) -> NotDifferentiable:
        return NotDifferentiable(
            f"{self.kernel}: can't differentiate it: {reason}; pass backward= with the statements for it"
        )


# The kernel -----------------------------------------------------------------------------------------------------------


def _kernel(
    operation: str, inputs: Mapping[str, str], outputs: Mapping[str, str], floating: Collection[str],
    reals: Sequence[str],
) -> str:  # fmt: skip
    """The statements as those of a kernel in double, which takes real numbers from memory."""
    given, first, last = ["int i", "int n"], [], []
    for x, kind in inputs.items():
        given.append(f"{kind} {x}" if kind in INTEGERS else f"const double* memory_{x}")
        first += [] if kind in INTEGERS else [f"const double {x} = memory_{x}[0];"]
    for y, kind in outputs.items():
        first.append(f"{kind if kind in INTEGERS else 'double'} {y} = 0;")
        if y in floating:
            given.append(f"double* memory_{y}")
            last.append(f"memory_{y}[0] = {y};")
    operation = re.sub(rf"\busing {REAL} = decltype\([^;]*\);", "", operation)  # as derivatives have it
    operation = re.sub(r"'([^'\\])'", lambda m: str(ord(m[1])), re.sub(r"\bfloat\b", "double", operation))
    return "\n".join(
        [
            *(f"typedef double {t};" for t in sorted({*reals, REAL} - TYPE_NAMES)),
            f"__global__ void formula_({', '.join(given)}) {{",
            *first, "{", closed(operation), "}", *last, "}",
        ]
    )  # fmt: skip


def _of_one_thread(kernel: Kernel, where: Where) -> Kernel:
    """The kernel, if each element is computed by itself, with the logistic function by its name."""
    for item in walk(kernel.body):
        if isinstance(item, Barrier | Exit) or getattr(item, "op", "") in COLLECTIVE or kernel.shared:
            what = "a 'return' statement" if isinstance(item, Exit) else "what threads do together"
            raise where.refuse(getattr(item, "line", 1), what, "")
    for v in [i for i in walk(kernel.body) if isinstance(i, Value) and i.op == "binary" and i.attr == "/"]:
        x = _exponent(v.args[1])
        if x is not None:
            call = replace(v, op="call", args=(x,), attr=(LOGISTIC, LOGISTIC.name), name=None)
            v.block.items.insert(v.block.items.index(v), call)
            v.attr, v.args = "*", (v.args[0], call)
    renumber(kernel.body)
    return kernel


def _exponent(v: Value) -> Value | None:
    """The x of a value that is 1 + exp(x)."""
    if v.op == "binary" and v.attr == "+":
        for one, e in (v.args, v.args[::-1]):
            e = e.args[0] if e.op == "cast" else e
            if one.op == "const" and float(one.attr.rstrip("fF")) == 1 and e.op == "call" and e.attr[0] is RULES["exp"]:
                return e.args[0]
    return None


# The statements -------------------------------------------------------------------------------------------------------


def _by_name(lines: list[Statement], of: Mapping[str, Name], known: Mapping[Node, Node]) -> list[Statement]:
    """Statements with parameters for what is in memory, which call nothing twice; `known`: constants by value."""

    def change(e: Node) -> Node | None:
        return of.get(e.of.name) if isinstance(e, Index) and isinstance(e.of, Name) else known.get(e)

    found: list[Statement] = []
    known = dict(known)
    for s in lines:
        s = tree.with_expressions(s, lambda e, known=known: expr.mapped(expr.mapped(e, change), known.get))
        for name in tree.declared(s):  # as that of a block around
            known = {e: value for e, value in known.items() if name not in (*expr.names(e), *expr.names(value))}
        if isinstance(s, Declare) and s.const and s.value and s.type == "double":
            if s.value in of.values():
                known[Name(s.name)] = s.value
                continue
            if all(n in known for n in map(Name, expr.names(s.value))):
                known[Name(s.name)] = Name(s.name)
                # other expressions may be of integers, and cost little
                if isinstance(s.value, Call) and s.value.function in RULES:
                    known[s.value] = Name(s.name)
        found.append(tree.with_bodies(s, lambda body, known=known: _by_name(body, of, known)))
    return found


def _set_at_once(lines: list[Statement], grads: Sequence[Name]) -> list[Statement]:
    """Statements that set each gradient, to 0 where nothing does; without a constant for that alone."""
    times = Counter(name for s in tree.every(lines) for name in tree.named(s))
    sets = [s for s in lines if isinstance(s, Assign) and s.target in grads and s.sign == "="]
    alone = {s.value.name: s for s in sets if isinstance(s.value, Name) and times[s.value.name] == 2}
    found: list[Statement] = [Assign(grad, ZERO) for grad in grads if grad not in [s.target for s in sets]]
    for s in lines:
        if isinstance(s, Declare) and s.const and s.value and s.name in alone:
            s = Assign(alone.pop(s.name).target, s.value)
            sets = [each for each in sets if each.target != s.target]
            found.append(s)
        elif not (isinstance(s, Assign) and s.target in grads and s.sign == "=") or s in sets:
            found.append(s)
    return found


def _of_type(lines: list[Statement], real: str) -> list[Statement]:
    """Statements in which `real` stands for double."""

    def change(e: Node) -> Node | None:
        match e:
            case Cast("double", of):
                return Cast(real, typed(of))
            case Literal(text) if _number(e) is not None and not text.isdigit():
                return expr.call(real, e)
        return None

    def typed(e: Node) -> Node:
        return expr.mapped(e, change)

    found: list[Statement] = []
    for s in lines:
        s = tree.with_expressions(s, lambda e: typed(_simple(e)))
        if isinstance(s, Declare) and s.type == "double":
            s = replace(s, type=real)
        found.append(tree.with_bodies(s, lambda body: _of_type(body, real)))
    return found


def _simple(e: Node) -> Node:
    """An expression with what follows from the numbers in it, and without the functions that only double has."""

    def change(e: Node) -> Node | None:
        match e:
            case Ternary(test, yes, no) if (found := _known(_simple(test))) is not None:
                return _simple(yes if found else no)
            case Call("pow", (base, exponent)):
                return _power(_simple(base), _simple(exponent))
            case Call(LOGISTIC.name, (x,)):
                return ONE / (ONE + expr.call("exp", _simple(x)))
            case Call("saturated", (x,)):  # see `_SPELLED`
                return expr.call("fmin", expr.call("fmax", _simple(x), ZERO), ONE)
            case Call("divided", (a, b)):
                return _simple(a) / _simple(b)
            case Binary("+" | "-" | "*" | "/" as sign, left, right):
                a, b = _number(left), _number(right)
                whole = expr.integer(left) is not None and expr.integer(right) is not None  # as C computes it
                if a is not None and b is not None and not whole and (b or sign != "/"):
                    return expr.number(_FOLDS[sign](a, b), "double")
        return None

    return expr.mapped(e, change)


def _known(test: Node) -> bool | None:
    """Whether a comparison of numbers holds; None for any other."""
    if not isinstance(test, Binary) or test.sign not in _COMPARES:
        return None
    a, b = _number(test.left), _number(test.right)
    return None if a is None or b is None else _COMPARES[test.sign](a, b)


def _number(e: Node) -> float | None:
    if isinstance(e, Unary) and e.sign == "-":
        found = _number(e.of)
        return None if found is None else -found
    try:
        return float(e.text) if isinstance(e, Literal) and e.text[0] in "0123456789." else None
    except ValueError:
        return None


def _power(base: Node, exponent: Node) -> Node:
    """A power, by products or a root where that is one."""
    n = _number(exponent)
    if n is not None and n in (1, 2, 3, 4) and (n == 1 or isinstance(base, Name)):
        return expr.chained("*", [base] * int(n))
    if n is not None and n in (-1, -2) and (n == -1 or isinstance(base, Name)):
        return ONE / expr.chained("*", [base] * int(-n))
    root = expr.call("sqrt", base)
    return root if n == 0.5 else ONE / root if n == -0.5 else expr.call("pow", base, exponent)
