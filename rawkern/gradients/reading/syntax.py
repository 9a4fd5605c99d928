"""A source as syntax: its functions, structs, macros and constants by name."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rawkern.base.tree import named, parse, text_of
from rawkern.errors import NotDifferentiable
from rawkern.gradients.reading.preprocess import Unclear, defined_by, preprocess

KEYWORDS = frozenset(
    ("if", "else", "for", "while", "do", "return", "continue", "break", "const", "void", "float", "double", "int",
     "unsigned", "true", "false", "threadIdx", "blockIdx", "blockDim", "gridDim", "__shared__", "__device__",
     "__global__")
)  # fmt: skip
#: Names of cooperative groups.
GROUPS = frozenset(
    ("this_thread_block", "tiled_partition", "thread_block", "thread_block_tile", "thread_group", "reduce", "sync")
)
TYPES = frozenset(("primitive_type", "type_identifier", "sized_type_specifier", "placeholder_type_specifier"))


@dataclass(frozen=True)
class Where:
    """Whose text is read: for messages."""

    title: str
    kernel: str
    place: Callable[[int], str]  # what messages call a line

    def refuse(self, node: Any, reason: str, way_out: str) -> NotDifferentiable:
        """The error for what has no derived backward; `node` is a node of the tree, or a line."""
        line = node if isinstance(node, int) else node.start_point[0] + 1
        return NotDifferentiable(f"{self.place(line)}: {self.kernel} has no derived backward: {reason}; {way_out}")


def words(node: Any) -> set[str]:
    """Keywords and qualifiers that stand directly in a node."""
    return {
        text_of(c) for c in node.children if not c.is_named or c.type in ("type_qualifier", "storage_class_specifier")
    }


def identifier(declarator: Any) -> str | None:
    """The name in a declarator, through pointers, arrays and references."""
    while declarator is not None and declarator.type not in ("identifier", "field_identifier", "type_identifier"):
        inner = declarator.child_by_field_name("declarator")
        if inner is None:
            rest = [c for c in named(declarator) if c.type.endswith("declarator") or c.type == "identifier"]
            inner = rest[0] if rest else None
        declarator = inner
    return text_of(declarator) if declarator is not None else None


class File:
    """What a source declares at its top, by name."""

    def __init__(self, text: str, options: tuple[str, ...], where: Where) -> None:
        try:
            self.preprocessed = preprocess(text, options)
        except Unclear as error:
            raise where.refuse(error.line, str(error), "leave the preprocessor out of it") from None
        self.text = self.preprocessed.text
        self.root = parse(self.text)
        self.functions: dict[str, list[tuple[Any, Any]]] = {}  # definition, its template parameters or None
        self.structs: dict[str, Any] = {}
        self.constants: dict[str, tuple[Any, Any]] = {}  # type node, value node
        self.aliases: dict[str, Any] = {}
        self.enumerators: dict[str, int] = {}
        self.enums: set[str] = set()
        self.spaces: dict[str, str] = {}  # other names of namespaces
        self.using: set[str] = set()  # namespaces whose names stand alone
        self.dynamic: dict[str, Any] = {}  # declarations of dynamic shared memory
        #: Names that something here defines in a way that is not followed, so that using one is refused.
        self.unclear: set[str] = set(self.preprocessed.left)
        for node in named(self.root):
            self._declare(node)
        #: Macros of the options, which are there in the derived text, too.
        self.options = frozenset(defined_by(options))
        self.keywords = sorted(KEYWORDS & (self.unclear | self.options))

    def _declare(self, node: Any) -> None:
        if node.type == "linkage_specification":
            body = node.child_by_field_name("body")
            for child in named(body) if body.type == "declaration_list" else [body]:
                self._declare(child)
        elif node.type == "function_definition":
            self.functions.setdefault(function_name(node), []).append((node, None))
        elif node.type == "template_declaration":
            inner = named(node)[-1]
            if inner.type == "function_definition":
                parameters = node.child_by_field_name("parameters")
                self.functions.setdefault(function_name(inner), []).append((inner, parameters))
            else:
                self._unclear(inner)
        elif node.type == "struct_specifier" and node.child_by_field_name("body") is not None:
            self.structs[text_of(node.child_by_field_name("name"))] = node
        elif node.type == "type_definition" and node.child_by_field_name("declarator").type == "type_identifier":
            kind = node.child_by_field_name("type")
            if kind.type == "struct_specifier" and kind.child_by_field_name("body") is not None:
                self.structs[text_of(node.child_by_field_name("declarator"))] = kind
            else:
                self.aliases[text_of(node.child_by_field_name("declarator"))] = kind
        elif node.type == "namespace_alias_definition":
            self.spaces[text_of(named(node)[0])] = text_of(named(node)[1])
        elif node.type == "using_declaration" and text_of(node).split()[1:2] == ["namespace"]:
            self.using.add(text_of(named(node)[-1]))
        elif node.type == "enum_specifier" and self._enumerated(node):
            pass
        elif node.type == "alias_declaration":
            self.aliases[text_of(node.child_by_field_name("name"))] = node.child_by_field_name("type")
        elif node.type == "declaration" and words(node) & {"const", "constexpr"} and "__constant__" not in words(node):
            for each in node.children_by_field_name("declarator"):
                value = each.child_by_field_name("value")
                if each.type == "init_declarator" and value is not None:
                    self.constants[identifier(each) or ""] = (node.child_by_field_name("type"), value)
        elif node.type == "declaration" and {"extern", "__shared__"} <= words(node):
            self.dynamic[identifier(node.child_by_field_name("declarator")) or ""] = node
        elif not _prototype(node):
            self._unclear(node)

    def _unclear(self, node: Any) -> None:
        """Whatever is named in something that is not followed (``#if``, a namespace, a class) may mean anything."""
        if node.type not in ("preproc_include", "preproc_call", "comment", ";"):
            self.unclear |= set(re.findall(r"[A-Za-z_]\w*", _declared(text_of(node))))

    def _enumerated(self, node: Any) -> bool:
        """Take the names of an enum; False if one of its values is more than a number."""
        found, now = {}, -1
        body, name = node.child_by_field_name("body"), node.child_by_field_name("name")
        if body is None or any(text_of(c) in ("class", "struct") for c in node.children):
            return False
        for each in named(body):
            value = each.child_by_field_name("value")
            if each.type != "enumerator" or not (value is None or text_of(value).isdigit()):
                return False
            now = now + 1 if value is None else int(text_of(value))
            found[text_of(each.child_by_field_name("name"))] = now
        self.enumerators |= found
        self.enums |= {text_of(name)} if name is not None else set()
        return True

    def qualified(self, name: str) -> str:
        """The full name of one of cooperative groups; others as they are."""
        first, colons, rest = name.partition("::")
        if colons:
            return f"{self.spaces.get(first.strip(), first.strip())}::{rest}"
        plain = re.split(r"\W", name)[0]
        own = plain in self.functions or plain in self.structs or plain in self.unclear
        return (
            f"cooperative_groups::{name}"
            if plain in GROUPS and self.using & {"cooperative_groups"} and not own
            else name
        )

    def headers(self) -> list[str]:
        """Headers included, as they are spelled."""
        return re.findall(r"^[ \t]*#[ \t]*include[ \t]*(\S+)", self.text, re.M)


def _prototype(node: Any) -> bool:
    """Whether a declaration only announces functions."""
    declared = node.children_by_field_name("declarator") if node.type == "declaration" else []
    return bool(declared) and all(d.type == "function_declarator" for d in declared)


def _declared(text: str) -> str:
    """The names that a piece of text may declare: those before ``(``, ``=``, ``;``, ``{`` or ``[``."""
    return " ".join(re.findall(r"(\w+)\s*(?:[(=;{\[,]|:(?!:))", text))


def function_name(definition: Any) -> str:
    declarator = definition.child_by_field_name("declarator")
    while declarator is not None and declarator.type != "function_declarator":
        inner = declarator.child_by_field_name("declarator")
        declarator = inner if inner is not None else next(iter(named(declarator)), None)
    return re.sub(r"\s", "", text_of(declarator.child_by_field_name("declarator"))) if declarator is not None else ""


def parameters_of(definition: Any) -> list[Any]:
    declarator = definition.child_by_field_name("declarator")
    while declarator.type != "function_declarator":
        declarator = declarator.child_by_field_name("declarator") or named(declarator)[0]
    return named(declarator.child_by_field_name("parameters"))


def contains(node: Any, kinds: tuple[str, ...], stop: tuple[str, ...] = ()) -> bool:
    """Whether a node of one of these types stands in a node, not looking into `stop`."""
    if node.type in kinds:
        return True
    return any(contains(c, kinds, stop) for c in node.children if c.type not in stop)


def assigned(node: Any) -> set[str]:
    """Every name that a piece of text may change: left of assignments, of ++, and all that functions are given."""
    found: set[str] = set()
    if node.type == "assignment_expression":
        found |= _changed(node.child_by_field_name("left"))
    elif node.type == "update_expression":
        found |= _changed(node.child_by_field_name("argument"))
    elif node.type == "call_expression":
        arguments = node.child_by_field_name("arguments")
        found |= set().union(*map(_changed, named(arguments))) if arguments is not None else set()
    for child in node.children:
        found |= assigned(child)
    return found


def moved(node: Any) -> set[str]:
    """Every name that a piece of text assigns to as a whole, or counts up or down."""
    found: set[str] = set()
    if node.type in ("assignment_expression", "update_expression"):
        target = node.child_by_field_name("left" if node.type == "assignment_expression" else "argument")
        found = {text_of(target)} if target.type == "identifier" else set()
    return found.union(*(moved(child) for child in node.children))


def _changed(node: Any) -> set[str]:
    """The variables that change if what an expression means does: not those of an index."""
    if node.type == "identifier":
        return {text_of(node)}
    if node.type in ("subscript_expression", "field_expression"):
        return _changed(node.child_by_field_name("argument"))
    return set().union(*map(_changed, node.children))
