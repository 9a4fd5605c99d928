"""The text of device functions that stay functions, and of their backwards."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace

from rawkern.gradients.analysis.activity import activity
from rawkern.gradients.backward.forward import Frame
from rawkern.gradients.backward.helpers import HELPERS
from rawkern.gradients.backward.reverse import Reverse
from rawkern.gradients.code import expressions as expr
from rawkern.gradients.code import tree
from rawkern.gradients.code.expressions import Name
from rawkern.gradients.code.names import Names
from rawkern.gradients.code.passes.dce import without_unused
from rawkern.gradients.code.passes.renumbering import finished
from rawkern.gradients.code.tree import Declare, Jump, Parameter, Statement
from rawkern.gradients.ir import Function, Kernel, Store, Value
from rawkern.gradients.reading.syntax import Where

FORCED = "__device__ __forceinline__"


class _Backward(Reverse):
    """The reverse of a function's body."""

    upstream = ""

    def store(self, s: Store, frame: Frame, out: list[Statement]) -> None:
        self.contribute(s.value, Name(self.upstream), out)

    def ends(self, body: list[Statement], result: dict[str, str]) -> None:
        """Append the adjoints of the parameters; `result`: by parameter, where it goes, "" for a return."""
        for item in self.kernel.body.items:
            if isinstance(item, Value) and item.op == "param" and item.attr in result:
                d = self.adjoint(item, body) or expr.number(0.0, self.names.type(item.type))
                body.append(tree.assign(result[item.attr], d) if result[item.attr] else Jump("return", d))


def called_functions(
    called: Set[str], kernel: Kernel, names: Names, where: Where
) -> tuple[list[tree.Function], set[str]]:
    """The functions that a text calls, in an order that compiles, and the helpers that they need."""
    found: list[tree.Function] = []
    used: set[str] = set()
    called = set(called)
    for f in reversed(kernel.functions.values()):  # callers first: what they call is called by the text, too
        reserved = names.reserved | {n for n, _ in f.params}
        parts = []
        if f"{f.name}_backward" in called:
            made, more = _backward_of(f, kernel, Names(reserved, names.double), where)
            check_names({n for n, _ in f.params}, set(), tree.called(made.body), where)
            parts.append(made)
            used |= more
            called |= tree.called(made.body)
        if f.name in called:
            parts.insert(0, _itself(f, Names(reserved, names.double)))
            called |= tree.called(parts[0].body)
        found = [*parts, *found]
    return found, used


def check_names(given: Set[str], gradients: Set[str], called: Set[str], where: Where) -> None:
    """Reject what keeps its name (`given`) and is named as a gradient, or as a function that the text calls."""
    for same in sorted(given & (gradients | called)):
        what = f"a gradient, that of {same.removeprefix('grad_')}" if same in gradients else "a function that it needs"
        raise where.refuse(1, f"{same} is also the name of {what}", "give it another")


def _itself(f: Function, names: Names) -> tree.Function:
    frame = Frame(f.body, None, names)
    result = frame.use(f.result)
    frame.settle()
    body = _returned([*frame.printed(), Jump("return", result)])
    return _finished(tree.Function(f"{FORCED} {names.type(f.type)}", f.name, _parameters(f, names), body), names)


def _backward_of(f: Function, kernel: Kernel, names: Names, where: Where) -> tuple[tree.Function, set[str]]:
    inner = Kernel(
        f.name, kernel.title, [(n, kind, False) for n, kind in f.params], {f.name: f.body.items[-1].place.array}, [],
        f.body, {}, (1, 1, 1), (1, 1, 1),
    )  # fmt: skip
    upstream = names.fresh(f"d_{f.name}")
    outputs = {n: names.fresh(f"d_{n}") if len(f.floats) > 1 else "" for n in f.floats}
    reverse = _Backward(inner, activity(inner, f.floats), names, where, None)
    reverse.upstream = upstream
    frame = Frame(f.body, None, names)
    out: list[Statement] = []
    reverse.block(f.body, frame, out)
    reverse.ends(out, outputs)
    frame.settle()
    kind = "void" if len(outputs) > 1 else names.type(f.type)
    params = [*_parameters(f, names), Parameter(names.type(f.type), upstream)]
    params += [Parameter(f"{names.type(dict(f.params)[n])}&", d) for n, d in outputs.items() if d]
    said = f"// The backward of {f.name}: what {_listed(f.floats)} of {upstream}."
    body = _returned(without_unused([*frame.printed(), *out]))
    made = tree.Function(f"{FORCED} {kind}", f"{f.name}_backward", params, body, comments=[said])
    return _finished(made, names), reverse.helpers


def _finished(f: tree.Function, names: Names) -> tree.Function:
    free = HELPERS.keys() - tree.called(f.body)
    return replace(f, body=finished(f.body, names, {f.name, *(p.name for p in f.parameters)}, free))


def _returned(lines: list[Statement]) -> list[Statement]:
    """Statements at whose end is returned what the line before names."""
    last, before = lines[-1], lines[-2] if len(lines) > 1 else None
    if isinstance(before, Declare) and before.const and last == Jump("return", Name(before.name)):
        return [*lines[:-2], Jump("return", before.value)]
    return lines


def _parameters(f: Function, names: Names) -> list[Parameter]:
    return [Parameter(names.type(kind), n) for n, kind in f.params]


def _listed(names: tuple[str, ...]) -> str:
    return f"{names[0]} gets" if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]} get"
