"""CUDA C to a tree of syntax, through tree-sitter, which does not ask what a name means where C++ does.

Three of its readings are wrong if a name is not what it was taken for: ``(a) + b * c`` is a cast of ``+b`` to a
type a, ``(T) - b`` a difference with a variable T, and ``x < a && b > (c)`` a call of the template ``x<a && b>``; and
``(T&)x = y`` is the cast of an assignment. Such places are written so that they have no other reading, ``a + b * c``,
``(const T) - b``, ``(x) < a && b > (c)`` and ``((T&)x) = y``, and read again; lines stay where they are.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from rawkern.base.ctype import TYPE_NAMES

_DECLARED = """
    (parameter_declaration declarator: (identifier) @variable)
    (optional_parameter_declaration declarator: (identifier) @variable)
    (declaration declarator: (identifier) @variable)
    (init_declarator declarator: (identifier) @variable)
    (pointer_declarator declarator: (identifier) @variable)
    (reference_declarator (identifier) @variable)
    (array_declarator declarator: (identifier) @variable)
    (for_range_loop declarator: (identifier) @variable)
    (structured_binding_declarator (identifier) @variable)
    (enumerator name: (identifier) @variable)
    (field_declaration declarator: (field_identifier) @field)
    (array_declarator declarator: (field_identifier) @field)
    (struct_specifier name: (type_identifier) @type)
    (class_specifier name: (type_identifier) @type)
    (enum_specifier name: (type_identifier) @type)
    (type_definition declarator: (type_identifier) @type)
    (alias_declaration name: (type_identifier) @type)
    (type_parameter_declaration (type_identifier) @type)
    (optional_type_parameter_declaration name: (type_identifier) @type)
    (function_declarator declarator: [(identifier) (field_identifier)] @function)
"""
_DOUBTFUL = """
    (cast_expression "(" @open type: (type_descriptor . type: (type_identifier) @cast .) ")" @close)
    (cast_expression type: (type_descriptor type: (type_identifier) @name @whole declarator: (_)))
    (parenthesized_expression "(" @open . (identifier) @number .)
    (cast_expression type: (type_descriptor declarator: (abstract_reference_declarator))
        value: (assignment_expression left: (_) @target)) @assigned
    (template_function name: (identifier) @name) @whole
    (field_expression field: (template_method name: (field_identifier) @method)) @whole
"""


@functools.cache
def _sitter() -> tuple[Any, Any, Any]:
    """Functions: from text to a tree, and from a tree to what matches each of the queries."""
    import tree_sitter
    import tree_sitter_cuda

    cuda = tree_sitter.Language(tree_sitter_cuda.language())
    declared, doubtful = tree_sitter.Query(cuda, _DECLARED), tree_sitter.Query(cuda, _DOUBTFUL)
    return (
        lambda data: tree_sitter.Parser(cuda).parse(data).root_node,  # a parser is one thread's
        lambda root: tree_sitter.QueryCursor(declared).captures(root),
        lambda root: [found for _, found in tree_sitter.QueryCursor(doubtful).matches(root)],
    )


def parse(text: str) -> Any:
    """The root of the tree of a source, which lines count from."""
    read, declared, doubtful = _sitter()
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{text[max(error.start - 20, 0) : error.end + 20]!r} has an unpaired surrogate") from None
    while True:
        root = read(data)
        places = doubtful(root)
        changes = sorted(set(_changes(places, declared(root))), reverse=True) if places else []
        if not changes:
            return root
        for start, end, instead in changes:
            data = data[:start] + instead + data[end:]


def _changes(places: list[dict[str, list[Any]]], declared: dict[str, list[Any]]) -> Iterator[tuple[int, int, bytes]]:
    """What to put where: places with their start and end."""
    known = {kind: {node.text.decode() for node in nodes} for kind, nodes in declared.items()}
    types = known.get("type", set()) | TYPE_NAMES
    functions, variables = known.get("function", set()), known.get("variable", set())
    values = variables - types - functions
    fields = (known.get("field", set()) | set("xyzw")) - functions
    for found in places:
        node = {name: nodes[0] for name, nodes in found.items()}
        text = {name: each.text.decode() for name, each in node.items() if name != "whole"}
        if "assigned" in node:
            start, end = node["assigned"].start_byte, node["target"].end_byte
            yield start, start, b"("
            yield end, end, b")"
        elif text.get("cast") in values:
            yield node["open"].start_byte, node["open"].end_byte, b" "
            yield node["close"].start_byte, node["close"].end_byte, b" "
        elif text.get("number") in types - variables:
            yield node["open"].end_byte, node["open"].end_byte, b"const "
        elif text.get("name") in values or text.get("method") in fields:
            start, end = node["whole"].start_byte, (node.get("name") or node["method"]).end_byte
            yield start, start, b"("
            yield end, end, b")"


def text_of(node: Any) -> str:
    return node.text.decode()


def named(node: Any) -> list[Any]:
    """The children that mean something."""
    return [child for child in node.named_children if child.type != "comment"]
