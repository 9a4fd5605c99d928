"""What a source declares, by name: functions, structs, constants, names of types, in namespaces too."""

from __future__ import annotations

import re
from typing import Any

from rawkern.base.tree import named, parse, text_of
from rawkern.gradients.reading.handlers import declarations
from rawkern.gradients.reading.preprocess import Headers, Unclear, defined_by, preprocess
from rawkern.gradients.reading.syntax import Where, assigned, function_name, identifier, words

KEYWORDS = frozenset(
    ("if", "else", "for", "while", "do", "return", "continue", "break", "const", "void", "float", "double", "int",
     "unsigned", "true", "false", "threadIdx", "blockIdx", "blockDim", "gridDim", "__shared__", "__device__",
     "__global__")
)  # fmt: skip
VARIABLES = frozenset(("__constant__", "__device__", "__managed__"))
#: Names of cooperative groups.
GROUPS = frozenset(
    ("this_thread_block", "tiled_partition", "thread_block", "thread_block_tile", "thread_group", "reduce", "sync")
)


class File:
    """What a source declares at its top, by name."""

    def __init__(self, text: str, options: tuple[str, ...], where: Where, headers: Headers | None) -> None:
        try:
            self.preprocessed = preprocess(text, options, headers)
        except Unclear as error:
            raise where.within(error.lines).refuse(error.line, str(error), "leave the preprocessor out of it") from None
        # The grammar wants friend first.
        self.text = re.sub(r"\b((?:__(?:host|device|forceinline)__\s+)+)friend\b", r"friend \1", self.preprocessed.text)
        self.root = parse(self.text)
        self.functions: dict[str, list[tuple[Any, Any]]] = {}  # definition, its template parameters or None
        self.structs: dict[str, tuple[Any, Any]] = {}  # definition, its template parameters or None
        self.constants: dict[str, tuple[Any, Any, Any]] = {}  # type node, declarator, value node
        self.aliases: dict[str, Any] = {}
        self.enumerators: dict[str, int] = {}
        self.enums: dict[str, dict[str, int]] = {}
        self.paths: dict[str, str] = {}  # the namespace of each name
        self.spaces: dict[str, str] = {}  # other names of namespaces
        self.unions: set[str] = set()
        self.using: set[str] = set()  # namespaces whose names stand alone
        self.imported: set[str] = set()  # names of namespaces that do
        self.dynamic: dict[str, Any] = {}  # declarations of dynamic shared memory
        self.variables: dict[str, tuple[Any, Any]] = {}  # of the device: declaration, declarator
        #: Names that something here defines in a way that is not followed, so that using one is rejected.
        self.unclear: set[str] = set(self.preprocessed.left)
        for node in named(self.root):
            self.declare(node, "")
        #: Macros of the options, which are there in the derived text, too.
        self.options = frozenset(defined_by(options))
        self.keywords = sorted(KEYWORDS & (self.unclear | self.options))

    def declare(self, node: Any, path: str) -> None:
        """Take what a node at the top, or in a namespace, declares."""
        handler = declarations.of(node.type)
        if handler is None or handler(self, node, path) is False:
            self.not_followed(node)

    def at(self, name: str, path: str) -> None:
        """Note where a name is; one that is in several namespaces may mean any of them."""
        if self.paths.setdefault(name, path) != path:
            self.unclear.add(name)

    def not_followed(self, node: Any) -> None:
        """Whatever is named in something that is not followed (a class, inline assembly) may mean anything."""
        if node.type not in ("preproc_include", "preproc_call", "comment", ";"):
            self.unclear |= set(re.findall(r"[A-Za-z_]\w*", _declared(text_of(node)))) - KEYWORDS

    def plain(self, name: str) -> str | None:
        """What a name with its namespaces is called here; None if it is not of this source."""
        first, colons, rest = name.removeprefix("::").replace(" ", "").partition("::")
        full = f"{self.spaces.get(first, first)}{colons}{rest}"
        path, _, last = full.rpartition("::")
        own = self.paths.get(last)
        inner = not name.startswith("::") and own is not None and (not path or own.endswith(f"::{path}"))
        return last if own is not None and (own == path or inner) else None

    def full(self, name: str) -> str:
        """A name with its namespaces."""
        return f"{self.paths[name]}::{name}" if self.paths[name] else name

    def enumerator(self, text: str) -> int | None:
        """The number of ``enum::name``; None for what is none."""
        before, _, last = text.replace(" ", "").rpartition("::")
        enum = self.plain(before) if before else None
        return self.enums[enum].get(last) if enum in self.enums and enum not in self.unclear else None

    def sees(self, name: str, path: str) -> bool:
        """Whether a name stands for what the source has by that name, within a namespace."""
        own = self.paths.get(name, "")
        inside = own == "" or path == own or path.startswith(f"{own}::")
        return inside or own in self.using or name in self.imported

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

    def changes(self, name: str) -> bool:
        """Whether a launch may change a variable of the device."""
        return "__constant__" not in words(self.variables[name][0]) and name in assigned(self.root)

    def headers(self) -> list[str]:
        """Headers included, as they are spelled."""
        return re.findall(r"^[ \t]*#[ \t]*include[ \t]*(\S+)", self.text, re.M)


# What a node declares; False for what is not followed -------------------------------------------------------------


@declarations("linkage_specification")
def _linkage(file: File, node: Any, path: str) -> None:
    body = node.child_by_field_name("body")
    for child in named(body) if body.type == "declaration_list" else [body]:
        file.declare(child, path)


@declarations("namespace_definition")
def _namespace(file: File, node: Any, path: str) -> None:
    name = node.child_by_field_name("name")
    inner = path if name is None else f"{path}::{_plain(name)}" if path else _plain(name)
    for child in named(node.child_by_field_name("body")):
        file.declare(child, inner)


@declarations("namespace_alias_definition")
def _namespace_alias(file: File, node: Any, path: str) -> None:
    file.spaces[text_of(named(node)[0])] = text_of(named(node)[1])


@declarations("using_declaration")
def _using(file: File, node: Any, path: str) -> None:
    if text_of(node).split()[1:2] == ["namespace"]:
        file.using.add(_plain(named(node)[-1]))
    else:
        file.imported.add(_plain(named(node)[-1]).rpartition("::")[2])


@declarations("static_assert_declaration")
def _static_assert(file: File, node: Any, path: str) -> None:
    """Nothing: the compiler has seen it."""


@declarations("function_definition")
def _function(file: File, node: Any, path: str, parameters: Any = None) -> None:
    name = function_name(node)
    if "<" in name and not name.startswith("operator"):  # a special case of a template
        file.unclear.add(name.partition("<")[0])
    if not name.startswith("operator"):
        file.at(name, path)
    file.functions.setdefault(name, []).append((node, parameters))


@declarations("template_declaration")
def _template(file: File, node: Any, path: str) -> None:
    inner, parameters = named(node)[-1], node.child_by_field_name("parameters")
    if inner.type == "function_definition":
        _function(file, inner, path, parameters)
    elif inner.type in ("struct_specifier", "class_specifier"):
        _struct(file, inner, path, parameters)
    elif not _prototype(inner):
        file.not_followed(inner)


@declarations("struct_specifier", "class_specifier")
def _struct(file: File, node: Any, path: str, parameters: Any = None) -> None:
    name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
    if name is None or name.type != "type_identifier":
        file.unclear |= {_plain(name).partition("<")[0]} if name is not None else set()
    elif body is not None:
        known = text_of(name)
        file.at(known, path)
        file.unclear |= {known} & set(file.structs)
        file.structs[known] = node, parameters


@declarations("union_specifier")
def _union(file: File, node: Any, path: str) -> None:
    name = node.child_by_field_name("name")
    file.unions |= {text_of(name)} if name is not None else set()


@declarations("type_definition")
def _typedef(file: File, node: Any, path: str) -> bool:
    kind, declarator = node.child_by_field_name("type"), node.child_by_field_name("declarator")
    if kind.type == "union_specifier" and declarator.type == "type_identifier":
        file.unions.add(text_of(declarator))
        return True
    if declarator.type != "type_identifier":
        return False
    name = text_of(declarator)
    file.at(name, path)
    if kind.type == "struct_specifier" and kind.child_by_field_name("body") is not None:
        file.structs[name] = kind, None
    else:
        file.aliases[name] = kind
    return True


@declarations("alias_declaration")
def _alias(file: File, node: Any, path: str) -> None:
    name = text_of(node.child_by_field_name("name"))
    file.at(name, path)
    file.aliases[name] = node.child_by_field_name("type")


@declarations("declaration")
def _declaration(file: File, node: Any, path: str) -> bool:
    """Constants, dynamic shared memory and variables of the device."""
    said, declared = words(node), node.children_by_field_name("declarator")
    if said & {"const", "constexpr"} and "__constant__" not in said:
        for each in declared:
            value = each.child_by_field_name("value")
            if each.type == "init_declarator" and value is not None:
                name, declarator = identifier(each) or "", each.child_by_field_name("declarator")
                file.at(name, path)
                file.constants[name] = node.child_by_field_name("type"), declarator, value
    elif {"extern", "__shared__"} <= said:
        file.dynamic[identifier(declared[0]) or ""] = node
    elif said & VARIABLES and not _prototype(node):
        for each in declared:
            name = identifier(each) or ""
            file.at(name, path)
            file.unclear |= {name} & {*file.variables, *file.constants, *file.functions}
            file.variables[name] = node, each
    else:
        return _prototype(node)
    return True


@declarations("enum_specifier")
def _enum(file: File, node: Any, path: str) -> bool:
    """Take the names of an enum; False if one of its values is more than a number."""
    found, now = {}, -1
    body, name = node.child_by_field_name("body"), node.child_by_field_name("name")
    if body is None:
        return False
    for each in named(body):
        value = each.child_by_field_name("value")
        if each.type != "enumerator" or not (value is None or text_of(value).isdigit()):
            return False
        now = now + 1 if value is None else int(text_of(value))
        found[text_of(each.child_by_field_name("name"))] = now
    if name is not None:
        file.at(text_of(name), path)
        file.enums[text_of(name)] = found
    if not any(text_of(c) in ("class", "struct") for c in node.children):
        file.enumerators |= found
    return True


def _plain(node: Any) -> str:
    return re.sub(r"\s", "", text_of(node))


def _prototype(node: Any) -> bool:
    """Whether a declaration only announces functions."""
    declared = node.children_by_field_name("declarator") if node.type == "declaration" else []
    return bool(declared) and all(d.type == "function_declarator" for d in declared)


def _declared(text: str) -> str:
    """The names that a piece of text may declare: those before ``(``, ``=``, ``;``, ``{`` or ``[``."""
    return " ".join(re.findall(r"(\w+)\s*(?:[(=;{\[,]|:(?!:))", text))
