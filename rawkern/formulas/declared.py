"""What the declarations of elementwise operators and reductions have in common: names, parameters, signature."""

from __future__ import annotations

import hashlib
import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch

from rawkern.arguments.scalars import shown
from rawkern.base.forking import Lock
from rawkern.formulas.parameters import Parameter, differentiable, parse_parameters
from rawkern.formulas.statements import names_in

_declared: dict[str, Any] = {}  # by the operator's name
_lock = Lock()


def declared(make: Callable[..., Any], *key: Any) -> Any:
    """One object for one declaration, with its operator: making it again gives the same one.

    Parameters
    ----------
    make : callable
        ``make(qualified, *key)`` returns an object with attributes ``key`` and ``operator``.
    *key
        The declaration, which begins with whether the operator has just the name that follows, a namespace, and a name.
        A name that is not fixed is followed by a hash of the declaration's text: then different declarations may
        have the same name, and a saved program finds the one that it was made with.
    """
    fixed, namespace, name, *rest = key
    text = repr([[str(p) for p in part] if isinstance(part, tuple) else part for part in rest])
    qualified = f"{namespace}::{name}" + ("" if fixed else f"_{hashlib.sha256(text.encode()).hexdigest()[:8]}")
    with _lock:  # another thread's would take this one's operator out of torch's registry
        found = _declared.get(qualified)
        replaced = found is not None and found.operator is not None and not found.operator.operator.current
        if found is None or found.key != key or replaced:
            found = _declared[qualified] = make(qualified, *key)
        return found


def check_texts(kind: str, **given: Any) -> None:
    """Raise TypeError for arguments that are not text; optional ones may be None."""
    for name, value in given.items():
        if not isinstance(value, str) and not (value is None and name in ("backward", "reduce_type")):
            raise TypeError(f"{kind}: {name} is {shown(value)}; pass {_TEXTS.get(name, 'CUDA C as a string')}")


_TEXTS = {
    "in_params": "types and names as a string, such as 'T x, T y'",
    "out_params": "types and names as a string, such as 'T z'",
    "name": "the operator's name as a string", "reduce_type": "the name of a type as a string, such as 'float'",
    "identity": "the expression to start from as a string, such as '0'",
}  # fmt: skip


def qualified_name(kind: str, name: str, example: str) -> tuple[bool, str, str]:
    """Return whether a name has a namespace, which is rawkern's own for ``kind`` where there is none, and the rest.

    Raises
    ------
    ValueError
        One of them is not an identifier.
    """
    namespace, _, short = name.rpartition("::")
    if not (short.isidentifier() and (not namespace or namespace.isidentifier())):
        raise ValueError(f"{kind}: the name {name!r} is not an identifier; write '{example}' or 'mylib::{example}'")
    return bool(namespace), namespace or f"rawkern_{kind}", short


def read_parameters(
    what: str, name: str, in_params: str, out_params: str, *, given_outputs: bool = False
) -> tuple[tuple[Parameter, ...], tuple[Parameter, ...]]:
    """Read inputs and outputs; ``what`` is what they make, with its article.

    With ``given_outputs`` the tensors that a call gives for the outputs say what the inputs leave open.

    Raises
    ------
    ValueError
        One of both is missing, a name stands twice, or nothing says what the letter of an output is.
    """
    inputs = parse_parameters(in_params, f"{name}: in_params")
    outputs = parse_parameters(out_params, f"{name}: out_params")
    if not outputs or not (inputs or given_outputs):
        least = "one output" if given_outputs else "one input and one output"
        raise ValueError(f"{name}: {what} has at least {least}")
    for p in outputs:
        if any(q.name == p.name for q in inputs):
            raise ValueError(f"{name}: {p.name} is an input and an output; give the output a name of its own")
        if p.generic and not given_outputs and not any(q.type == p.type for q in inputs):
            raise ValueError(f"{name}: no input determines {p.type}, the type of the output {p.name}")
    return inputs, outputs


def check_assigned(
    name: str, inputs: Sequence[Parameter], outputs: Sequence[Parameter], what: str, text: str, backward: str | None
) -> None:
    """Raise for statements ``text``, called ``what``, that miss an output, and a backward that misses a gradient."""
    for p in outputs:
        if p.name not in names_in(text):
            raise ValueError(f"{name}: {what} does not assign the output {p.name}")
    known = names_in(backward) if backward is not None else ()
    for grad in sorted(f"grad_{p.name}" for p in inputs if differentiable(p)):
        if backward is not None and grad not in known:
            raise ValueError(f"{name}: backward does not assign {grad}; where it is zero, write {grad} = 0")


#: Functions whose value is of floating point whatever their argument: torch promotes integers for them.
_FLOATING = re.compile(
    r"(?<![\w.])_*(a?(sin|cos|tan)h?|exp(2|10|m1)?|log(2|10|1p)?|r?sqrt|cbrt|erf(c|cx|inv)?|normcdf(inv)?|[lt]gamma|"
    r"(sin|cos)pi|atan2|hypot)f?\s*\("
)


def computes_floats(*texts: str) -> bool:
    """Whether statements call a function of floating-point numbers, but on what they convert to such themselves."""
    for text in texts:
        text = re.sub(r"//[^\n]*|/\*.*?\*/", " ", text, flags=re.S)
        for call in _FLOATING.finditer(text):
            rest = text[call.end() :].lstrip()
            if not re.match(r"\(\s*(float|double)\s*\)|(float|double)\s*\(", rest):
                return True
    return False


def typed(
    function: Callable[..., Any], name: str, inputs: Sequence[Parameter], outputs: int, **others: Any
) -> Callable[..., Any]:
    """Give a function of ``*args`` the name and signature that an operator is defined from.

    Its parameters are a tensor for each input and then ``others``, by their types; it returns so many tensors, or None
    for 0.
    """
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    types = {**{p.name: torch.Tensor for p in inputs}, **others}
    returned: Any = (torch.Tensor if outputs == 1 else tuple[(torch.Tensor,) * outputs]) if outputs else None
    parameters = [inspect.Parameter(each, kind, annotation=annotation) for each, annotation in types.items()]
    function.__signature__ = inspect.Signature(parameters, return_annotation=returned)  # type: ignore[attr-defined]
    function.__annotations__ = {**types, "return": returned}
    function.__name__ = function.__qualname__ = name
    function.of_formula = True  # type: ignore[attr-defined]
    return function
