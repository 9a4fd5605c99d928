"""Maps the compiler's errors in generated code to the user's expression."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from rawkern.errors import CompileError
from rawkern.formulas.parameters import Parameter
from rawkern.formulas.statements import closed


def in_formula(
    error: CompileError, name: str, source: str, parts: Mapping[str, str], inputs: Sequence[Parameter]
) -> CompileError:
    """The error with the user's expression instead of the generated source; unchanged if it is elsewhere.

    `parts` are the user's texts by description; the source has each as `closed` returns it.
    """
    if error.line is None:
        return error
    for what, text in parts.items():
        for before in ("\nreturn ", "\n"):
            at = source.find(f"{before}{closed(text)}\n}}")
            first = source.count("\n", 0, at + 1) + 1
            if at >= 0 and first <= error.line <= first + text.count("\n"):
                return _told(
                    error, name, source, what, text.split("\n"), error.line - first, before.strip("\n"), inputs
                )
    return error


def _told(
    error: CompileError, name: str, source: str, what: str, lines: Sequence[str], k: int, before: str,
    inputs: Sequence[Parameter],
) -> CompileError:  # fmt: skip
    message = str(error)
    headline, rest = message.split("\n", 1)[0], message.partition(error.excerpt)[2] if error.excerpt else ""
    said = headline.rpartition(f"line {error.line}: ")[2]
    column = None if error.column is None else error.column - (len(before) if not k else 0)
    excerpt = [f"  {lines[k]}"] + ([f"  {' ' * (column - 1)}^"] if column is not None and column > 0 else [])
    hint = re.match(r"\n(hint: [^\n]*(?:\n  [^\n]*)*)", rest)
    hints = [hint[1]] if hint else []
    if not hints and said.startswith("no operator") and "<cuda/std/complex>" in source:
        hints = ["hint: a number beside a complex one has its type: T(2) * x"]
    elif not hints:
        hints = [
            f"hint: {p.name} is raw, so {what} has to index it: {p.name}[i]"
            for p in inputs
            if p.raw and re.search(rf"\b{p.name}\b(?!\s*[\[.])", lines[k])
        ][:1]
    found = CompileError(
        "\n".join([f"{error.file}: {name}: {what} does not compile: {said}", *excerpt, *hints]),
        file=error.file, line=error.line, column=error.column, excerpt="\n".join(excerpt), log=error.log,
    )  # fmt: skip
    return found
