"""Code for repeated launches: checks, packing and launch of one signature in one function, with nothing in between.

`make` in the generated text makes that function for one launch configuration on one device. The function does what
`Signature.plain` and the engine's launch do, and hands over what is not plain.

What torch's guard tells in one call: the tensors are of the same classes, dtypes, devices, sizes, strides, dispatch
keys (the conj and neg bits, functorch and tracing are such keys; fake tensor and proxy modes are none) and
requires_grad as those it was made of. Those passed the checks one by one, so what the guard lets through would, too.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from rawkern import _torch_private as private
from rawkern import binder
from rawkern.values import FLOAT_LIMITS, by_value

if TYPE_CHECKING:
    from rawkern.signature import Param, Signature

__all__ = ["Go", "Inline", "maker"]

Go = Callable[..., None]
Guard = Callable[..., bool]
Make = Callable[..., Go]


class Inline(NamedTuple):
    """An engine's launch on torch's current stream as code; ``{values}`` stands for the parameters' values.

    Attributes
    ----------
    tests : tuple of str
        What has to hold for this way of launching.
    pack : tuple of str
        Lines that store the values, before anything happens, or find that one is out of range and run ``{otherwise}``;
        where there are none, values are compared with their ranges before.
    launch : tuple of str
        Lines that launch.
    names : dict
        What the code uses.
    """

    tests: tuple[str, ...]
    pack: tuple[str, ...]
    launch: tuple[str, ...]
    names: dict[str, Any]


EXACT = 1 << 53  # up to here, ints are doubles without rounding
_guards = private.tensor_guards
_serial = itertools.count(1)


def guard_of(written: tuple[torch.Tensor, ...], *checked: torch.Tensor) -> Guard | None:
    """A function that tells whether tensors are, but for their addresses, like these, which have been checked.

    None where these were let through for another reason than what the guard looks at: inside an operator, or without
    grad mode. The guard compares classes exactly, holds no reference to the tensors, and refuses one tensor twice.
    """
    if private.dispatch_modes() or private.jit_tracing() or any(t.requires_grad for t in written):
        return None
    try:
        guard = _guards(*checked, dynamic_dims_sizes=None, dynamic_dims_strides=None).check
        return guard if guard(*checked) is True else None
    except Exception:  # another torch: the checks one by one do the same
        return None


OTHERWISE = "return other(go, args, kwargs)"


def maker(
    signature: Signature, inline: Inline, *, strided: bool, watched: bool, nulls: tuple[int, ...] = ()
) -> Make | None:
    """Return ``make(kernel, current, changed, other, index, **inline.names)``; None if the signature has no fast path.

    ``make`` returns the function that launches. The parameters of ``make``: a kernel, the state of it that this is
    for, a function that tells whether there has to be a new state, one that gets the function made, args and kwargs
    where this one does not launch, and the device's index.

    Parameters
    ----------
    strided
        Whether tensors may have any strides.
    watched
        Whether ``changed()`` has to be asked.
    nulls
        Positions of the pointers that are None at each launch.
    """
    pointers = [param for param in signature.params if param.is_pointer and param.index not in nulls]
    if not pointers or not all(binder.is_plain(param.ctype) for param in signature.params):
        return None
    space = binder.names() | {"guard_of": guard_of, "strided": strided}
    body = _checks(signature, pointers, space, inline, watched, nulls)
    written = "".join(f"a{p.index}, " for p in pointers if not p.const)
    body += [*inline.pack, *([f"bump(({written}))"] if written else []), *inline.launch]
    values = ", ".join(binder.value_of(param, nulls) for param in signature.params)
    lines = [
        f"# {signature}",
        f"def make(kernel, current, changed, other, index, {', '.join(inline.names)}):",
        "    guard, misses = None, 0",
        "    def go(*args, **kwargs):",
        "        nonlocal guard, misses",
        *(f"        {line}".replace("{values}", values).replace("{otherwise}", OTHERWISE) for line in body),
        "    return go",
    ]
    text = "\n".join(lines) + "\n"
    return binder.run(text, f"<rawkern launch {signature.name} {next(_serial)}>", space)["make"]


def _checks(
    signature: Signature,
    pointers: Sequence[Param],
    space: dict[str, Any],
    inline: Inline,
    watched: bool,
    nulls: tuple[int, ...],
) -> list[str]:
    """Lines that hand over unless the arguments are plain, and set ``pN`` to addresses."""
    first = ["kernel._state is current", *(["not changed()"] if watched else []), "not kwargs"]
    first += [f"a{index} is None" for index in nulls]
    # The guard asks for strides, and a nested tensor's refusal of that ends the process.
    first += [f"not a{param.index}.is_nested" for param in pointers]
    for param in signature.params:
        if not param.is_pointer:
            first += _value_tests(signature, param, space, not inline.pack)
    tests = [test for param in pointers for test in binder.pointer_tests(param, space)]
    tests.append("index == " + " == ".join(f"a{p.index}.get_device()" for p in pointers))
    if not private.only_cuda():
        tests.append(f"(a{pointers[0].index}.is_cuda if index >= 0 else a{pointers[0].index}.is_cpu)")
    tests.append("(not (modes() or tracing()) or state.level == 1)")
    addresses = [*map(binder.address_test, pointers), *binder.alignment_tests(pointers)]
    passed = ", ".join(f"a{p.index}" for p in pointers)
    written = "".join(f"a{p.index}, " for p in pointers if not p.const)
    guarded = f"plain and (guard is None or not guard({passed}) or modes())" if _guards is not None else "plain"
    lines = [
        "try:",
        f"    {''.join(f'a{p.index}, ' for p in signature.params)}= args",
        f"    plain = {_all(first)}",
        f"    if {guarded}:",
        f"        plain = {_all(tests)}",
    ]
    if _guards is not None:
        # Where sizes change all the time a guard is only in the way, so new ones become rare.
        lines += ["        if plain:", "            misses += 1"]
        lines.append("            if not misses & (misses - 1) or not misses & 63:")
        lines.append(f"                guard = guard_of(({written}), {passed}) or guard")
    lines.append(f"    plain = plain and {_all([*addresses, *inline.tests])}")
    lines += ["except (RuntimeError, ValueError, AttributeError):", "    plain = False"]
    return [*lines, "if not plain:", "    {otherwise}"]


def _all(tests: Sequence[str]) -> str:
    return "(\n                " + "\n                and ".join(tests) + "\n            )"


def _value_tests(signature: Signature, param: Param, space: dict[str, Any], ranges: bool) -> list[str]:
    """What a plain value is. Others, numbers of NumPy among them, go the general way, which converts or refuses."""
    ctype, name = param.ctype, f"a{param.index}"
    if ctype.kind == "int" and ctype.size <= 8:
        return [f"type({name}) is int", *([f"{ctype.low} <= {name} <= {ctype.high}"] if ranges else [])]
    if ctype.kind == "bool":
        return [f"({name} is True or {name} is False)"]
    if ctype.kind == "struct":
        return [f"type({name}) is bytes", f"len({name}) == {ctype.size}"]
    if ctype.kind in ("float", "half"):
        limit = FLOAT_LIMITS[ctype.name]
        most = int(min(limit, EXACT))
        test = f" and {-limit!r} <= {name} <= {limit!r}" if ranges and limit < math.inf else ""
        return [f"(type({name}) is float{test} or type({name}) is int and {-most} <= {name} <= {most})"]
    where = signature.wheres[param.index]
    space[f"value{param.index}"] = lambda value: by_value(ctype, value, where)
    return ["state.level != 2", f"({name} := value{param.index}({name})) is not None"]
