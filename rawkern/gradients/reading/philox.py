"""curand's counter generator: a draw is a function of seed, sequence and position, and so computed again."""

from __future__ import annotations

from typing import Any

from rawkern.base.tree import text_of
from rawkern.gradients.ir import Value
from rawkern.gradients.reading.context import Context
from rawkern.gradients.reading.handlers import cuda_functions
from rawkern.gradients.reading.memory import read
from rawkern.gradients.reading.places import Var, aggregate
from rawkern.gradients.reading.values import binary, convert
from rawkern.gradients.types import PHILOX, VECTORS

WIDE = "unsigned long long"
#: What each draws: the helper's name, the type of the result, how many numbers of the generator that takes.
DRAWS = {
    "curand_uniform": ("philox_uniform", "float", 1), "curand_uniform4": ("philox_uniform4", VECTORS["float4"], 4),
    "curand_normal2": ("philox_normal", VECTORS["float2"], 2),
    "curand_normal4": ("philox_normal", VECTORS["float4"], 4),
    "curand": ("philox_bits", "unsigned int", 1),
}  # fmt: skip


@cuda_functions("curand_init", arguments=4)
def begin(ctx: Context, node: Any, name: str, arguments: list[Any]) -> None:
    state = _state(ctx, node, arguments[3])
    for field, each in zip(("seed", "sequence", "at"), arguments[:3], strict=True):
        state.fields[field].value = convert(ctx, node, ctx.scalar(each), WIDE)
    state.fields["second"].value = ctx.boolean(node, False)


@cuda_functions(*DRAWS, arguments=1)
def draw(ctx: Context, node: Any, name: str, arguments: list[Any]) -> Any:
    helper, kind, count = DRAWS[name]
    state = _state(ctx, node, arguments[0])
    parts = [_drawn(ctx, node, state, helper, "float" if count > 1 else str(kind), k) for k in range(count)]
    _advance(ctx, node, state, count)
    if isinstance(kind, str):
        return parts[0]
    left = iter(parts)
    return aggregate(name, kind, lambda *_: next(left))


def _state(ctx: Context, node: Any, argument: Any) -> Var:
    found = ctx.expression(argument)
    if not isinstance(found, Var) or found.type != PHILOX:
        raise ctx.refuse(
            node,
            f"{text_of(argument)!r} is not a generator of the kernel's own",
            "use a variable curandStatePhilox4_32_10_t, with curand_init(seed, sequence, offset, &state)",
        )
    return found


def _drawn(ctx: Context, node: Any, state: Var, helper: str, kind: str, behind: int) -> Value:
    """The number so far after the state's position."""
    parts = {f: read(ctx, node, v) for f, v in state.fields.items()}
    args, at = [parts["seed"], parts["sequence"]], parts["at"]
    if helper == "philox_uniform4":  # calls that differ in the number alone, so the compiler draws once
        return ctx.value(node, kind, "call", (*args, at, ctx.integer(node, behind)), helper)
    normal = helper == "philox_normal"
    start = behind - behind % 2 if normal else behind
    if start:
        at = binary(ctx, node, "+" if start > 0 else "-", at, _count(ctx, node, abs(start)))
    args.append(at)
    if normal:
        odd = behind % 2
        args.append(ctx.boolean(node, bool(odd)))
    return ctx.value(node, kind, "call", tuple(args), helper)


def _count(ctx: Context, node: Any, number: int) -> Value:
    return ctx.value(node, WIDE, "const", attr=f"{number}ULL", const=number)


def _advance(ctx: Context, node: Any, state: Var, by: int) -> None:
    at = state.fields["at"]
    at.value = binary(ctx, node, "+", read(ctx, node, at), _count(ctx, node, by))


@cuda_functions("curand_normal", arguments=1)
def normal(ctx: Context, node: Any, name: str, arguments: list[Any]) -> Value:
    """One of a pair: the second of the pair drawn before, where there is one."""
    state = _state(ctx, node, arguments[0])
    second = read(ctx, node, state.fields["second"])
    if second.const is None:
        raise ctx.refuse(
            node, "curand_normal, which keeps a second number, in a loop or branch", "use curand_normal2 or 4"
        )
    known: bool = bool(second.const)
    found = _drawn(ctx, node, state, "philox_normal", "float", -1 if known else 0)
    if not known:
        _advance(ctx, node, state, 2)
    state.fields["second"].value = ctx.boolean(node, not known)
    return found
