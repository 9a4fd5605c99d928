"""Types of functions and of calls, as far as PTX tells: the kind and size of each parameter and result.

Calls pass memory, so a call with other types than the function's would read or write past the end of the caller's
memory.
"""

from __future__ import annotations

from collections.abc import Iterable

from rawkern.engines.cpu.ptx.data import TYPE_BYTES, Function, Instr, Ptx, Sym, Var
from rawkern.engines.cpu.ptx.operands import callee

#: Of each parameter, and of each result: whether it is an array of bytes, as structs are, and its bytes.
Prototype = tuple[tuple[tuple[bool, int], ...], tuple[tuple[bool, int], ...]]

_WORD, _LONG = (False, 4), (False, 8)
#: Functions that every PTX module may call without defining them.
SYSTEM: dict[str, Prototype] = {
    "vprintf": ((_LONG, _LONG), (_WORD,)),
    "__assertfail": ((_LONG, _LONG, _WORD, _LONG, _LONG), ()),
    "malloc": ((_LONG,), (_LONG,)),
    "free": ((_LONG,), ()),
}


def of_function(function: Function) -> Prototype:
    return _kinds(function.params), _kinds(function.returns)


def of_call(caller: Function, call: Instr) -> Prototype | None:
    """What a call passes and takes; None where it names something else than parameters."""
    own = {v.name: v for v in (*function_parameters(caller), *caller.local_vars.values()) if v.space == "param"}
    args = list(call.args)
    results = args.pop(0) if isinstance(args[0], list) else []
    params = args[1] if len(args) > 1 and isinstance(args[1], list) else []
    if not all(isinstance(s, Sym) and not s.offset and s.name in own for s in (*params, *results)):
        return None
    return _kinds(own[s.name] for s in params), _kinds(own[s.name] for s in results)


def function_parameters(function: Function) -> list[Var]:
    """Parameters and results that a function may name in its code; a kernel's are the launch's."""
    return [] if function.entry else [*function.params, *function.returns]


def check_calls(ptx: Ptx, function: Function) -> None:
    """Raise UnsupportedError for a call by name with other types than the function's."""
    for item in function.body:
        if not isinstance(item, Instr) or item.op.base != "call":
            continue
        passed, name = of_call(function, item), callee(item)
        if passed is None:
            raise function.unsupported(item, "it passes something other than parameters")
        if name is None or (name not in ptx.functions and name not in SYSTEM):
            continue  # through a pointer, compared when it runs; or of nothing, which lowering tells
        called = ptx.functions.get(name)
        if called is not None and called.entry:
            raise function.unsupported(item, f"{name} is a kernel")
        takes = SYSTEM[name] if name in SYSTEM else of_function(called)  # type: ignore[arg-type]
        if passed != takes:
            raise function.unsupported(item, f"{name} takes {_shown(takes)}, and is called with {_shown(passed)}")


def _kinds(variables: Iterable[Var]) -> tuple[tuple[bool, int], ...]:
    return tuple((TYPE_BYTES[v.type] == 1, v.size) for v in variables)


def _shown(prototype: Prototype) -> str:
    params, results = (", ".join(f"{n} bytes" if a else f".b{8 * n}" for a, n in part) for part in prototype)
    return f"({params}) -> ({results})"
