"""Derivatives of the C statements of an elementwise operator, through SymPy.

SymPy differentiates what the statements say, and what comes out is C again. Only straight code can be differentiated:
declarations, assignments, `if`, `?:` and the functions of `functions`. Anything else is an error that names it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from rawkern.errors import NotDifferentiable
from rawkern.formulas.functions import symbolic
from rawkern.formulas.parameters import INTEGERS
from rawkern.formulas.statements import REAL, is_truth, values_after

#: Why a formula has no derivative, with a parameter's name.
NO_COMPLEX = "{} is complex, and derivatives are derived of real numbers; pass backward= with the statements for it"


def names_in(text: str) -> set[str]:
    """Return the identifiers that stand in a piece of C, comments and strings aside."""
    text = re.sub(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\])*\"", " ", text, flags=re.S)
    return set(re.findall(r"(?<![\w.])[A-Za-z_]\w*", text))


def closed(statements: str) -> str:
    """Return statements after which others can stand on the same line: what ends in a comment ends its line."""
    statements = statements.rstrip().rstrip(";")
    return f"{statements}\n;" if re.search(r"(//|^\s*#)[^\n]*\Z", statements, re.M) else f"{statements};"


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
    where two branches meet the formula decides which one counts, and fmax/fmin of two variables share their gradient
    equally where they are equal, as torch.maximum does.

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
        For statements that SymPy cannot be given.
    """
    for x, kind in {**inputs, **outputs}.items():
        if "complex" in kind:
            raise NotDifferentiable(f"{name}: {NO_COMPLEX.format(x)}")
    sp = symbolic().sympy
    values = values_after(operation, inputs, outputs, name)
    grads = {}
    for x in wanted:
        total = sp.Integer(0)
        for y in outputs:
            if y not in floating:
                continue
            total += sp.Symbol(f"grad_{y}", real=True) * sp.diff(values[y], sp.Symbol(x, real=True))
        grads[f"grad_{x}"] = _zeros_out(_numbers_out(total))
    types = list(dict.fromkeys(t for t in (*inputs.values(), *outputs.values()) if t not in INTEGERS))
    if len(types) == 1:
        return _print(grads, types[0])
    joint = " + ".join(f"{t}()" for t in types)  # as C computes what is of several types
    return f"using {REAL} = decltype({joint});\n{_print(grads, REAL)}"


def _numbers_out(expression: Any) -> Any:
    """Turn what has a value, like sqrt(pi), into that value."""
    sp = symbolic().sympy
    keep = lambda e: e.is_number and e.is_Atom and (e.is_Rational or e.is_Float)  # noqa: E731
    return expression.replace(
        lambda e: getattr(e, "is_number", False) and e.is_real and not keep(e), lambda e: sp.N(e, 20)
    )


def _zeros_out(expression: Any) -> Any:
    """Let what is 0 under a condition be that, whatever it is multiplied by: 0 times an infinite slope is not 0."""
    sp = symbolic().sympy

    def chosen(product: Any) -> Any:
        factors = list(product.args)
        for k, each in enumerate(factors):
            if isinstance(each, sp.Piecewise) and any(value == 0 for value, _ in each.args):
                rest = sp.Mul(*factors[:k], *factors[k + 1 :])
                return sp.Piecewise(*((chosen(value * rest) if value != 0 else value, c) for value, c in each.args))
        return product

    return expression.replace(lambda e: e.is_Mul, chosen)


def _print(grads: dict[str, Any], real: str) -> str:
    """Return C statements for the expressions, with what they share computed once."""
    sp = symbolic().sympy
    # The base of a power is printed several times, so it is to be a variable: what cse sees twice becomes one.
    powers = {p for e in grads.values() for p in e.atoms(sp.Pow) if p.exp.is_Integer and abs(p.exp) >= 2}
    bases = sorted({p.base for p in powers if not p.base.is_Symbol}, key=sp.default_sort_key)
    names = (sp.Symbol(f"t{k}_", real=True) for k in range(10**6))
    shared, expressions = sp.cse([*bases, *grads.values()], symbols=names)
    expressions = expressions[len(bases) :]
    printer = _printer(real)
    lines = [f"const {'bool' if is_truth(e) else real} {symbol} = {printer.doprint(e)};" for symbol, e in shared]
    lines += [f"{grad} = {printer.doprint(value)};" for grad, value in zip(grads, expressions, strict=True)]
    return "\n".join(lines)


@functools.cache
def _printer(real: str) -> Any:
    from sympy import Rational
    from sympy.printing.c import C99CodePrinter
    from sympy.printing.precedence import PRECEDENCE

    half = Rational(1, 2)

    class Printer(C99CodePrinter):
        def _print_Integer(self, e: Any) -> str:
            return f"{real}({int(e)})"

        def _print_Rational(self, e: Any) -> str:
            return f"{real}({float(e)!r})"

        def _print_Float(self, e: Any) -> str:
            return f"{real}({float(e)!r})"

        def _print_Pow(self, e: Any) -> str:
            base = self.parenthesize(e.base, PRECEDENCE["Func"])
            if e.exp.is_Integer and 2 <= abs(int(e.exp)) <= 4:
                product = "*".join([base] * abs(int(e.exp)))
                return f"({product})" if e.exp > 0 else f"({real}(1)/({product}))"
            if e.exp == -1:
                return f"({real}(1)/{base})"
            if e.exp in (half, -half):
                root = f"sqrt({self._print(e.base)})"
                return root if e.exp > 0 else f"({real}(1)/{root})"
            return f"pow({self._print(e.base)}, {self._print(e.exp)})"

        def _print_Sigmoid(self, e: Any) -> str:
            return f"({real}(1)/({real}(1) + exp({self._print(-e.args[0])})))"

        def _print_Power(self, e: Any) -> str:
            return f"pow({self._print(e.args[0])}, {self._print(e.args[1])})"

        def _print_CFunctionBase(self, e: Any) -> str:
            return f"{type(e).__name__}({', '.join(map(self._print, e.args))})"

        def _print_IsNan(self, e: Any) -> str:
            return f"isnan({self._print(e.args[0])})"

        def _print_Step(self, e: Any) -> str:
            return f"{e.args[0].name}({self._print(e.args[1])})"

        def _print_sign(self, e: Any) -> str:
            inner = self._print(e.args[0])
            return f"{real}(({inner} > {real}(0)) - ({inner} < {real}(0)))"

        def _print_Piecewise(self, e: Any) -> str:
            text = self._print(e.args[-1][0])
            for value, condition in reversed(e.args[:-1]):
                text = f"({self._print(condition)} ? {self._print(value)} : {text})"
            return text

        def _print_Abs(self, e: Any) -> str:
            return f"fabs({self._print(e.args[0])})"

    return Printer()
