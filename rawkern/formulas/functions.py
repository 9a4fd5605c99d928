"""C's mathematical functions as SymPy knows them."""

from __future__ import annotations

import functools
import importlib
from types import SimpleNamespace
from typing import Any


@functools.cache
def symbolic() -> Any:
    """Return SymPy (slow to import), and functions whose derivatives are written so that they don't overflow."""
    sympy: Any = importlib.import_module("sympy")  # its types say less than Any

    class Sigmoid(sympy.Function):  # 1 / (1 + exp(-x)): by the quotient rule its derivative is inf / inf far from 0
        def fdiff(self, argindex: int = 1) -> Any:
            return self * (1 - self)

    class Power(sympy.Function):  # SymPy's own derivative of x**y is y * x**y / x, which is 0 / 0 at 0
        def fdiff(self, argindex: int = 1) -> Any:
            x, y = self.args
            if argindex == 1:
                return sympy.Piecewise((sympy.Integer(0), sympy.Eq(y, 0)), (y * Power(x, y - 1), True))
            return sympy.Piecewise((sympy.Integer(0), sympy.And(sympy.Eq(x, 0), y >= 0)), (self * sympy.log(x), True))

    class Step(sympy.Function):  # floor, ceil, trunc, rint, round: constant between its jumps
        def fdiff(self, argindex: int = 1) -> Any:
            return sympy.Integer(0)

    # A function that C has, which SymPy's terms would compute less exactly. SymPy's printers look for ...Base.
    class CFunctionBase(sympy.Function):
        derivatives: tuple[Any, ...]  # by each argument, as functions of the arguments

        def _eval_is_extended_real(self) -> bool:
            return True

        def fdiff(self, argindex: int = 1) -> Any:
            return self.derivatives[argindex - 1](*self.args)

    def c_function(name: str, *derivatives: Any) -> Any:
        return type(name, (CFunctionBase,), {"derivatives": derivatives, "nargs": len(derivatives)})

    class IsNan(sympy.logic.boolalg.BooleanFunction):  # which SymPy's own terms do not know
        @classmethod
        def eval(cls, x: Any) -> Any:
            return sympy.false if x.is_number and x.is_finite else None

    return SimpleNamespace(sympy=sympy, Sigmoid=Sigmoid, Power=Power, Step=Step, IsNan=IsNan, c_function=c_function)


@functools.cache
def functions() -> dict[str, Any]:
    """Return what each C function is in SymPy; the variants for float (`expf`, `__expf`) are found by their names."""
    s = symbolic()
    sp = s.sympy
    same = ("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh")
    table: dict[str, Any] = {n: getattr(sp, n) for n in (*same, "exp", "log", "erf", "erfc")}
    table |= {
        "sqrt": sp.sqrt,
        "rsqrt": lambda x: 1 / sp.sqrt(x),
        "exp2": lambda x: sp.exp(x * sp.log(2)),
        "exp10": lambda x: sp.exp(x * sp.log(10)),
        "log2": lambda x: sp.log(x) / sp.log(2),
        "log10": lambda x: sp.log(x) / sp.log(10),
        "fma": lambda x, y, z: x * y + z,
        "pow": lambda x, y: _power(x, y),
        "fabs": sp.Abs,
        "abs": sp.Abs,
        "fmax": lambda x, y: _larger(x, y),
        "max": lambda x, y: _larger(x, y),
        "fmin": lambda x, y: -_larger(-x, -y),
        "min": lambda x, y: -_larger(-x, -y),
        "saturate": lambda x: _larger(sp.Integer(0), -_larger(-x, sp.Integer(-1))),
        "fdivide": lambda x, y: x / y,
    }
    table |= {n: (lambda x, n=n: s.Step(sp.Symbol(n), x)) for n in ("floor", "ceil", "trunc", "rint", "round")}
    c = s.c_function
    table["expm1"] = c("expm1", sp.exp)
    table["log1p"] = c("log1p", lambda x: 1 / (1 + x))
    table["normcdf"] = c("normcdf", lambda x: sp.exp(-x * x / 2) / sp.sqrt(2 * sp.pi))
    table["sinpi"] = c("sinpi", lambda x: sp.pi * table["cospi"](x))
    table["cospi"] = c("cospi", lambda x: -sp.pi * table["sinpi"](x))
    table["cbrt"] = c("cbrt", lambda x: 1 / (3 * table["cbrt"](x) ** 2))
    table["atan2"] = c("atan2", lambda y, x: _angle(y, x, x), lambda y, x: _angle(y, x, -y))
    table["hypot"] = c("hypot", lambda x, y: x / table["hypot"](x, y), lambda x, y: y / table["hypot"](x, y))
    table["fmod"] = c("fmod", lambda x, y: sp.Integer(1), lambda x, y: -table["rint"]((x - table["fmod"](x, y)) / y))
    return table


def _power(x: Any, y: Any) -> Any:
    s = symbolic()
    return x**y if y.is_Rational else s.Power(x, y)


def _angle(y: Any, x: Any, by: Any) -> Any:
    """The derivative of atan2, which is 0 at the origin, as in torch."""
    sp = symbolic().sympy
    return sp.Piecewise((sp.Integer(0), sp.And(sp.Eq(x, 0), sp.Eq(y, 0))), (by / (x * x + y * y), True))


def _larger(x: Any, y: Any) -> Any:
    sp = symbolic().sympy
    if x.is_number or y.is_number:  # a bound has no gradient to share: at it, the gradient is 0, as relu's is
        bound, value = (x, y) if x.is_number else (y, x)
        return sp.Piecewise((value, value > bound), (bound, True))
    nan = symbolic().IsNan  # a NaN is no maximum: the other is
    return sp.Piecewise((x, sp.Or(x > y, nan(y))), (y, sp.Or(y > x, nan(x))), ((x + y) / 2, True))
