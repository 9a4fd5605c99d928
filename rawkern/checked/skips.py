"""Barriers that threads end without: a mistake, unless the source has them return there.

``if (i >= n) return;`` and what follows compiles to what ``if (i < n) { ... }`` at the end of a kernel does; only the
source says which it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rawkern.base import tree
from rawkern.compile.diagnostics import text_of

if TYPE_CHECKING:
    from rawkern.compile.source import Source
    from rawkern.engines.cpu.checker.findings import Finding

CONTROL = ("if_statement", "for_statement", "while_statement", "do_statement", "switch_statement")


def without_returns(found: Iterable[Finding], source: Source) -> list[Finding]:
    """The findings but for threads that end without a barrier because the source has them return."""
    kept = []
    for finding in found:
        if finding.kind == "SKIPPED_BARRIER":
            assert finding.other is not None
            if not _goes_past(finding.other.site["lines"], source):
                continue
            finding = replace(finding, other=None)
        kept.append(finding)
    return kept


def _goes_past(lines: Sequence[tuple[str, int]], source: Source) -> bool:
    """Whether the code at a line, or where that was inlined, is a branch or a loop, and has no way to return."""
    statements = [node for file, line in lines for node in _outermost(tree.parse(text_of(file, source)), line)]
    return bool(statements) and not any(map(_returns, statements))


def _outermost(root: Any, line: int) -> Iterator[Any]:
    """The branches and loops that a line has part in, but for those inside of others."""
    work = [root]
    while work:
        node = work.pop()
        if node.start_point[0] < line <= node.end_point[0] + 1:
            if node.type in CONTROL:
                yield node
            else:
                work += node.children


def _returns(node: Any) -> bool:
    work = [node]
    while work:
        node = work.pop()
        if node.type in ("return_statement", "goto_statement", "ERROR"):
            return True
        if node.type != "lambda_expression":
            work.extend(node.children)
    return False
