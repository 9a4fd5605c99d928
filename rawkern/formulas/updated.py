"""Which outputs of an elementwise formula their old values matter to."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any

from rawkern.base.tree import parse, text_of
from rawkern.formulas.statements import names_in

_SETS = {"sincos", "sincosf", "sincospi", "sincospif", "modf", "modff", "frexp", "frexpf", "remquo", "remquof"}
_UNCLEAR = ("preproc", "goto", "labeled", "lambda", "asm", "gnu_asm", "try", "ERROR")


def updated(operation: str, outputs: Sequence[str]) -> tuple[str, ...]:
    """Return the outputs that statements read before they set them, or do not set in every case.

    What cannot be told counts as read, such as an output whose address is taken.
    """
    if all(_set_at_once(operation, y) for y in outputs):
        return ()
    body = parse(f"void statements_() {{ {operation}\n; }}")
    if body.has_error or _has_unclear(body):
        return tuple(outputs)
    reader = _Reader(outputs)
    done = reader.run(body, frozenset())
    return tuple(y for y in outputs if y in reader.found or y not in done)


def _set_at_once(operation: str, y: str) -> bool:
    """Whether the first statement that names an output sets it, which a quick look shows for most expressions."""
    text = re.sub(r"//[^\n]*|/\*.*?\*/", " ", operation, flags=re.S)
    if re.search(r"[#{}]|\b(?:for|while|do|switch|case|goto|return|asm)\b", text):
        return False
    first = next((each for each in text.split(";") if y in names_in(each)), "")
    found = re.fullmatch(rf"\s*{y}\s*=(?!=)(.*)", first, re.S)
    return found is not None and y not in names_in(found[1])


def _has_unclear(node: Any) -> bool:
    return node.type.startswith(_UNCLEAR) or any(map(_has_unclear, node.named_children))


class _Reader:
    """Follows statements; `found` are the outputs whose old values count so far."""

    def __init__(self, outputs: Collection[str]) -> None:
        self.outputs = frozenset(outputs)
        self.found: set[str] = set()

    def run(self, node: Any, done: frozenset[str]) -> frozenset[str]:
        """Follow a statement or expression before which `done` have been set; return what has been set after it."""
        kind, field = node.type, node.child_by_field_name
        if kind == "identifier":
            self.found |= ({text_of(node)} & self.outputs) - done
            return done
        if kind == "assignment_expression" and text_of(field("operator")) == "=" and field("left").type == "identifier":
            return self.run(field("right"), done) | ({text_of(field("left"))} & self.outputs)
        if kind == "call_expression" and text_of(field("function")).rpartition("::")[2] in _SETS:
            return self._called(field("arguments"), done)
        if kind in ("if_statement", "conditional_expression"):
            done = self.run(field("condition"), done)
            other = field("alternative")
            return self.run(field("consequence"), done) & (self.run(other, done) if other is not None else done)
        if kind == "binary_expression" and text_of(field("operator")) in ("&&", "||"):
            done = self.run(field("left"), done)
            self.run(field("right"), done)
            return done
        if kind == "return_statement":
            self._sequence(node, done)
            self.found |= self.outputs - done
            return self.outputs
        if kind in ("break_statement", "continue_statement"):
            return self.outputs  # what is left of the loop's body has no bearing on what comes after the loop
        after = self._sequence(node, done)
        return done if kind in ("for_statement", "while_statement", "do_statement", "switch_statement") else after

    def _sequence(self, node: Any, done: frozenset[str]) -> frozenset[str]:
        for child in node.named_children:
            done = self.run(child, done)
        return done

    def _called(self, arguments: Any, done: frozenset[str]) -> frozenset[str]:
        """The arguments of a function that sets what it is given the addresses of."""
        addressed = set()
        for each in arguments.named_children:
            of = each.child_by_field_name("argument") if each.type == "pointer_expression" else None
            if of is not None and text_of(each).startswith("&") and of.type == "identifier":
                addressed.add(text_of(of))
            else:
                done = self.run(each, done)
        return done | (addressed & self.outputs)
