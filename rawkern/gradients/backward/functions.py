"""The text of device functions that stay functions, and of their backwards."""

from __future__ import annotations

import re
from collections.abc import Set

from rawkern.gradients.analysis.activity import activity
from rawkern.gradients.backward import helpers
from rawkern.gradients.backward.forward import Frame
from rawkern.gradients.backward.reverse import Reverse
from rawkern.gradients.code.expressions import bare
from rawkern.gradients.code.names import Names
from rawkern.gradients.code.passes.dce import without_unused
from rawkern.gradients.code.passes.renumbering import finished
from rawkern.gradients.code.tree import Assign, Declare, Jump, Statement, rendered
from rawkern.gradients.ir import Function, Kernel, Store, Value
from rawkern.gradients.reading.syntax import Where
from rawkern.gradients.rules import number


class _Backward(Reverse):
    """The reverse of a function's body."""

    upstream = ""

    def store(self, s: Store, frame: Frame, out: list[Statement]) -> None:
        self.contribute(s.value, self.upstream, out)

    def ends(self, body: list[Statement], result: dict[str, str]) -> None:
        """Put what the parameters get behind the lines; `result`: by parameter, where it goes, "" for a return."""
        for item in self.kernel.body.items:
            if isinstance(item, Value) and item.op == "param" and item.attr in result:
                d = self.adjoint(item, body) or number(0.0, self.names.type(item.type))
                body.append(Assign(result[item.attr], d) if result[item.attr] else Jump("return", d))


def texts(code: str, kernel: Kernel, names: Names, where: Where) -> tuple[list[str], set[str]]:
    """The functions that a text calls, in an order that compiles, and the helpers that they need."""
    found: list[str] = []
    used: set[str] = set()
    for f in reversed(kernel.functions.values()):  # callers first: what they call is called by the text, too
        reserved = names.reserved | {n for n, _ in f.params}
        parts = []
        if re.search(rf"\b{f.name}_backward\(", code):
            lines, more = _text_of_backward(f, kernel, Names(reserved, names.double), where)
            check_names({n for n, _ in f.params}, set(), lines.partition("{")[2], where)
            parts.append(lines)
            used |= more
        code += "".join(parts)
        if re.search(rf"\b{f.name}\(", code):
            parts.insert(0, _text(f, Names(reserved, names.double)))
            code += parts[0]
        found = [*parts, *found]
    return found, used


def check_names(given: Set[str], gradients: Set[str], code: str, where: Where) -> None:
    """Refuse what keeps its name (`given`) and is named as a gradient, or as a function that the text calls."""
    called = set(re.findall(r"(?<![\w.])(\w+)\(", code))
    for same in sorted(given & (gradients | called)):
        what = f"a gradient, that of {same.removeprefix('grad_')}" if same in gradients else "a function that it needs"
        raise where.refuse(1, f"{same} is also the name of {what}", "give it another")


def _text(f: Function, names: Names) -> str:
    frame = Frame(f.body, None, names)
    result = frame.use(f.result)
    frame.settle()
    head = f"__device__ __forceinline__ {names.type(f.type)} {f.name}({', '.join(_parameters(f, names))}) {{"
    lines = _returned([*frame.printed(), Jump("return", bare(result))])
    return "\n".join([head, *_rendered(lines, names, head), "}", ""])


def _text_of_backward(f: Function, kernel: Kernel, names: Names, where: Where) -> tuple[str, set[str]]:
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
    params = [*_parameters(f, names), f"{names.type(f.type)} {upstream}"]
    params += [f"{names.type(dict(f.params)[n])}& {d}" for n, d in outputs.items() if d]
    said = f"// The backward of {f.name}: what {_listed(f.floats)} of {upstream}."
    head = f"__device__ __forceinline__ {kind} {f.name}_backward({', '.join(params)}) {{"
    if len(head) > 120:
        head = f"__device__ __forceinline__ {kind} {f.name}_backward(\n    " + ",\n    ".join(params) + ") {"
    lines = _returned(without_unused([*frame.printed(), *out]))
    return "\n".join([said, head, *_rendered(lines, names, head), "}", ""]), reverse.helpers


def _rendered(lines: list[Statement], names: Names, head: str) -> list[str]:
    return rendered(finished(lines, names, head, helpers.unused("\n".join(rendered(lines)))))


def _returned(lines: list[Statement]) -> list[Statement]:
    """Statements at whose end is returned what the line before names."""
    last, before = lines[-1], lines[-2] if len(lines) > 1 else None
    named = isinstance(before, Declare) and before.const and isinstance(last, Jump) and last.value == before.name
    return [*lines[:-2], Jump("return", before.value)] if named and isinstance(before, Declare) else lines


def _parameters(f: Function, names: Names) -> list[str]:
    return [f"{names.type(kind)} {n}" for n, kind in f.params]


def _listed(names: tuple[str, ...]) -> str:
    return f"{names[0]} gets" if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]} get"
