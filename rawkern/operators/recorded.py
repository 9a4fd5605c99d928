"""The autograd function of an operator."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from rawkern.arguments.memory import reject_layout
from rawkern.base import generated, operator_state
from rawkern.base import torch_private as private
from rawkern.operators.context import Context
from rawkern.operators.declaration import Declaration
from rawkern.operators.kept import Kept
from rawkern.operators.native import kept_value, watching
from rawkern.operators.recording import trace_through
from rawkern.operators.reverse import Reverse
from rawkern.operators.traced import carried, runs

_NOTHING = (), (), (), ()  # what is kept for an operator that saves all its inputs


def quiet() -> bool:
    """Whether nothing but autograd watches torch's calls on this thread."""
    return not torch.compiler.is_dynamo_compiling() and watching.quiet()


def make_function(reverse: Reverse, forward_mode: Callable[..., Any]) -> Any:
    """The autograd function: ``apply(run, *values, *tensors)``, with ``run(*args)`` below autograd.

    With lists of tensors it is ``apply(run, counts, *values, *tensors)`` with the lists' items among the tensors. It
    returns what the operator does and, if that works in place, the changed arguments first.
    ``forward_mode(run, about, tangents)`` returns the tangents of that.
    """
    decl = reverse.declaration
    offset = 1 + decl.has_lists + len(decl.values)
    kept = _kept(reverse, offset) if decl.finished and not (decl.derived or decl.has_lists) else None
    members: dict[str, Any] = {
        "forward": staticmethod(_forward(decl)),
        "backward": staticmethod(_slow_path(reverse, offset) if decl.has_lists else _quick(reverse, offset, kept)),
        "jvp": staticmethod(_jvp(decl, forward_mode, offset)),
        # What compiled autograd knows a node's backward by, as it knows torch's own Function.
        "_compiled_autograd_key": staticmethod(lambda ctx: (ctx._autograd_function_id,)),
    }
    # torch's Function is for functions that are differentiated at all levels of functorch at once. An operator's
    # Autograd key sees one at a time, as torch's own operators do.
    function = private.called_straight(type(decl.name, (private.SingleLevelFunction,), members))
    if kept is not None:
        grads, is_described = len(decl.outputs), bool(decl.values or decl.described)
        kept.calls.for_backward(function, grads, grads + len(decl.hidden), is_described, offset, len(decl.tensors))
    return function


def _forward(decl: Declaration) -> Callable[..., Any]:
    places = {p.name: f"p{i}" for i, p in enumerate(decl.params)}
    hidden = [f"r{i}" for i in range(len(decl.returned) - len(decl.hidden), len(decl.returned))]
    names = dict(places)
    names |= {name: f"r{i}" for i, name in enumerate(decl.returned)}
    values = "".join(f"{places[p.name]}, " for p in decl.values)
    if decl.has_lists:
        lines = [f"def forward(ctx, run, counts, {values}*flat):", "    items, lengths = iter(flat), iter(counts)"]
        for p in decl.tensors:
            take = "[next(items) for _ in range(next(lengths))]" if p.kind == "list" else "next(items)"
            lines.append(f"    {places[p.name]} = {take}")
    else:
        lines = [f"def forward(ctx, run, {values}{''.join(f'{places[p.name]}, ' for p in decl.tensors)}):"]
    returned = ", ".join(f"r{i}" for i in range(len(decl.returned)))
    call = ", ".join(places.values())
    called = f"{f'{returned} = ' if returned else ''}run({call})"
    if decl.derived:
        lines += ["    with runs() as traces:", f"        {called}", f"    args = {call},"]
    else:
        lines.append(f"    {called}")
    starred = {p.name: "*" if p.kind == "list" else "" for p in decl.params}
    saved = "".join(f"{starred.get(name, '')}{names[name]}, " for name in decl.save)
    if decl.save_for:  # ctx.needs_input_grad is that of apply's arguments
        index = {p.name: 1 + decl.has_lists + len(decl.values) + i for i, p in enumerate(decl.tensors)}
        parts = []
        for name in decl.save:
            wanted = " or ".join(f"ctx.needs_input_grad[{index[needed]}]" for needed in decl.save_for.get(name, ()))
            parts.append(f"{names[name]} if {wanted} else None" if wanted else names[name])
        keep = ", ".join(parts)
    else:
        keep = saved
    about = f"({values}), {_each(decl, places, 'shape')}, {_each(decl, places, 'dtype')}"
    kept = bool(values or decl.described)
    lines += [
        *([f"    ctx.save_for_backward({keep})"] if saved else []),
        "    ctx.materialize_grads = False",
        *(["    ctx.trace = traces[0] if len(traces) == 1 and traces[0].fits(args) else None"] if decl.derived else []),
        *([f"    ctx.about = {about}, {'counts' if decl.has_lists else '()'}"] if kept else []),
        "    if run.watched:",
        f"        ctx.run, run.saved = run, ({saved})",
    ]
    results = [f"{starred[p.name]}{places[p.name]}" for p in decl.mutated] if decl.in_place else []
    if results:
        lines.append(f"    ctx.mark_dirty({', '.join(results)})")
    results += [f"r{i}" for i in range(len(decl.returned))]
    if hidden:
        lines.append(f"    ctx.mark_non_differentiable({', '.join(hidden)})")
    many = len(results) > 1 or results[0].startswith("*")
    lines.append(f"    return {', '.join(results)}{',' if many else ''}")
    text = "\n".join(lines) + "\n"
    return generated.run(text, f"<rawkern autograd {decl.qualified}>", {"runs": runs})["forward"]


def described(decl: Declaration, args: Sequence[Any]) -> Any:
    """What the autograd function keeps of a call besides tensors, as its forward does; None for nothing."""
    if not (decl.values or decl.described):
        return None
    by_name = {p.name: a for p, a in zip(decl.params, args, strict=True)}
    values = tuple(kept_value(by_name[p.name]) for p in decl.values)
    tensors = [by_name[p.name] for p in decl.described]
    return values, *(tuple(None if t is None else getattr(t, what) for t in tensors) for what in ("shape", "dtype")), ()


def _each(decl: Declaration, places: dict[str, str], what: str) -> str:
    """A tuple of an attribute of the tensors that are described, flat."""
    parts = []
    for p in decl.described:
        name = places[p.name]
        if p.kind == "list":
            parts.append(f"*[t.{what} for t in {name}], ")
        else:
            parts.append(f"{name}.{what}, " if p.kind == "tensor" else f"None if {name} is None else {name}.{what}, ")
    return f"({''.join(parts)})"


def restored(decl: Declaration, saved: Sequence[Any], about: Any) -> tuple[Any, Any, Any, Any]:
    """Values, shapes and dtypes of all tensors (flat), and counts, from what the autograd function keeps."""
    values, shapes, dtypes, counts = about
    if decl.has_lists:
        return about
    by_name = dict(zip(decl.save, saved, strict=True))
    some, others = iter(shapes), iter(dtypes)
    shapes, dtypes = [], []
    for p in decl.tensors:
        if decl.keeps(p):
            t = by_name[p.name]
            shapes.append(None if t is None else t.shape)
            dtypes.append(None if t is None else t.dtype)
        else:
            shapes.append(next(some))
            dtypes.append(next(others))
    return values, tuple(shapes), tuple(dtypes), counts


def _slow_path(reverse: Reverse, offset: int) -> Callable[..., Any]:
    decl = reverse.declaration
    visible = len(decl.outputs)
    nothing = (None,) * offset

    def slow_path(ctx: Any, *grads: torch.Tensor | None, saved: Any = None) -> tuple[torch.Tensor | None, ...]:
        saved = ctx.saved_tensors if saved is None else saved  # torch.utils.checkpoint lets them be read once
        needs = ctx.needs_input_grad[offset:]
        values, shapes, dtypes, counts = restored(decl, saved, getattr(ctx, "about", _NOTHING))
        grads = grads[:visible]
        if all(grad is None for grad in grads):
            return nothing + (None,) * len(needs)
        if reverse.function is None:
            raise NotImplementedError(
                f"{decl.qualified} has no backward; define one with @{decl.name}.backward, or have it derived from the "
                'CUDA: rawkern.op(..., backward="derive")'
            )
        for name, grad in zip(decl.outputs, grads, strict=True):
            if grad is not None:
                reject_layout(decl.qualified, f"grad_{name}", grad)
        if torch.compiler.is_dynamo_compiling():
            found = reverse.call(grads, saved, values, needs, shapes, counts)
        else:
            with carried.by(getattr(ctx, "trace", None)):
                if watching.look(*grads, *saved) is False:
                    with operator_state.inside_op():
                        found = reverse.compute(grads, saved, values, needs, shapes, counts)
                else:
                    found = reverse.call(grads, saved, values, needs, shapes, counts)
        return nothing + reverse.checked(found, shapes, dtypes, counts)

    return slow_path


def _quick(reverse: Reverse, offset: int, reverse_kept: Kept | None) -> Callable[..., Any]:
    """Write the backward for plain tensors while nothing else watches; all others take the slow path.

    Native code calls it with what it has read already of what is saved.
    """
    decl = reverse.declaration
    grads = [f"g{i}" for i in range(len(decl.outputs))]
    saved = [f"s{i}" for i in range(len(decl.save))]
    found = [f"f{i}" for i in range(len(decl.params))]
    kept = [f for f, p in zip(found, decl.params, strict=True) if p.is_tensor]
    values = [p.name for p in decl.values]
    asked, at = [], iter(range(len(kept)))
    for p in decl.params:
        asked.append(f"needs[{offset + next(at)}]" if p.is_tensor else "False")
    shape, dtype = (_told(decl, what) for what in ("shape", "dtype"))
    shapes = [shape.get(p.name, "None") for p in decl.params]
    give = [g if decl.strided else f"{g} if {g} is None or {g}.is_contiguous() else {g}.contiguous()" for g in grads]
    pairs = [f"{f}, s{decl.save.index(p.name)}" for f, p in zip(kept, decl.tensors, strict=True) if decl.keeps(p)]
    fits = [f"watching.fit({', '.join(pairs)})"] if pairs else []
    fits += [
        f"({f} is None or type({f}) is Tensor and {f}.shape == {shape[p.name]} and {f}.dtype is {dtype[p.name]})"
        for f, p in zip(kept, decl.tensors, strict=True)
        if not decl.keeps(p)
    ]
    nothing = [f"{f} is None" for f, p in zip(found, decl.params, strict=True) if not p.is_tensor]
    unpack = f"{', '.join(saved)}{',' if len(saved) == 1 else ''} = " if saved else ""
    described = "values, shapes, dtypes, _ = ctx.about" if values or decl.described else ""
    about = "*values, *shapes, *dtypes, " if described else ""
    arguments = f"{', '.join((*grads, *saved))}, {about}*ctx.needs_input_grad"
    back = f"return {'None, ' * offset}{'' if len(kept) == 1 else '*'}found"
    keeps = reverse_kept is not None
    body = [
        "class OwnContext(Context):",  # most backwards ask for no shapes
        "    __slots__ = ('node',)",
        "    @property",
        "    def needs_input_grad(self):",
        "        needs = self.node.needs_input_grad",
        f"        return ({', '.join(asked)},)",
        "    @property",
        "    def shapes(self):",
        f"        {unpack}self.saved_tensors",
        f"        {described.replace('ctx', 'self.node')}" if described else "",
        f"        return ({', '.join(shapes)},)",
        f"def backward(ctx, {', '.join(grads)}, {'*hidden, ' if decl.hidden else ''}saved=None):",
        f"    {unpack}saved = ctx.saved_tensors if saved is None else saved",
        f"    if compiling() or reverse.function is None or {' and '.join(f'{g} is None' for g in grads)}:",
        f"        return slow_path(ctx, {', '.join(grads)}, saved=saved)",
        f"    {described}" if described else "",
        *(
            [
                f"    found = calls.call({arguments})",
                "    if found is not None and found is not NotImplemented:",
                f"        {back}",
            ]
            if keeps
            else []
        ),
        f"    if watching.look({', '.join((*grads, *saved))}) is not False:",
        f"        return slow_path(ctx, {', '.join(grads)}, saved=saved)",
        *(
            [
                f"    if found is None and (found := learn(({arguments},))) is not None:",
                f"        {back}",
            ]
            if keeps
            else []
        ),
        "    about = OwnContext()",
        "    about.node = ctx",
        "    about.saved_tensors = saved",
        *[f"    about.{name} = values[{i}]" for i, name in enumerate(values)],
        f"    found = reverse.function(about, {', '.join(give)})",
        f"    {kept[0]} = found" if len(kept) == 1 else "",
        f"    if {' and '.join(fits)}:" if len(kept) == 1 else "",
        f"        return {'None, ' * offset}{kept[0]}" if len(kept) == 1 else "",
        f"    if type(found) is tuple and len(found) == {len(found)}:",
        f"        {', '.join(found)}, = found",
        f"        if {' and '.join([*nothing, *fits])}:",
        f"            return {'None, ' * offset}{', '.join(kept)}",
        f"    return {'None, ' * offset}*reverse.fitting(",
        f"        found, ctx.needs_input_grad[{offset}:], ({', '.join(shape.values())},), "
        f"({', '.join(dtype.values())},), ()",
        "    )",
    ]
    space = {
        "calls": reverse_kept and reverse_kept.calls,
        "learn": reverse_kept and reverse_kept.learn,
        "Context": Context,
        "Tensor": torch.Tensor,
        "slow_path": _slow_path(reverse, offset),
        "compiling": torch.compiler.is_dynamo_compiling,
        "reverse": reverse,
        "watching": watching,
    }
    text = "\n".join(line for line in body if line) + "\n"
    return generated.run(text, f"<rawkern backward {decl.qualified}>", space)["backward"]


def _kept(reverse: Reverse, offset: int) -> Kept:
    """What the backward launches: called with gradients, what is saved, values, shapes, dtypes and what is needed."""
    decl = reverse.declaration
    ends = [len(decl.outputs), len(decl.save), len(decl.values), len(decl.described), len(decl.described), offset]
    ends = [0, *itertools.accumulate(ends)]

    def gradients(*args: Any) -> Any:
        grads, saved, *about, _ = (args[a:b] for a, b in itertools.pairwise(ends))
        values, shapes, dtypes, counts = restored(decl, saved, (*about, ()))
        found = reverse.compute(grads, saved, values, args[ends[-1] :], shapes, counts)
        found = reverse.checked(found, shapes, dtypes, counts)
        return found[0] if len(found) == 1 else found

    count = ends[-1] + len(decl.tensors)
    return Kept(count, lambda args: trace_through(f"{decl.qualified}_backward", gradients, args))


def _told(decl: Declaration, what: str) -> dict[str, str]:
    """Expressions for the shapes or dtypes of tensors in a backward, from what is saved or else kept."""
    kept = iter(range(len(decl.described)))
    found = {}
    for p in decl.tensors:
        if not decl.keeps(p):
            found[p.name] = f"{what}s[{next(kept)}]"
            continue
        name = f"s{decl.save.index(p.name)}"
        found[p.name] = f"{name}.{what}" if p.kind == "tensor" else f"(None if {name} is None else {name}.{what})"
    return found


def _jvp(decl: Declaration, forward_mode: Callable[..., Any], offset: int) -> Callable[..., Any]:
    def jvp(ctx: Any, *tangents: torch.Tensor | None) -> Any:
        about = restored(decl, ctx.run.saved, getattr(ctx, "about", _NOTHING))
        return forward_mode(ctx.run, about, tangents[offset:])

    return jvp
