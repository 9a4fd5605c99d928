"""Sources of an extension read: files with their own headers, macros in order, what they declare."""

from __future__ import annotations

import contextlib
import os
import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from rawkern.base.tree import named, parse, text_of
from rawkern.compile.conditions import HOST
from rawkern.compile.declarations import Directive, blanked, declarations
from rawkern.compile.files import read_text
from rawkern.compile.signs import is_host_header
from rawkern.compile.split import HostPart, split
from rawkern.extensions import types as t
from rawkern.extensions.bindings import read_binding
from rawkern.extensions.classes import define_method, operator_name
from rawkern.extensions.conditionals import Conditionals, Outcome
from rawkern.extensions.context import Context
from rawkern.extensions.functions import declared_name, signature, template_parameters
from rawkern.extensions.kept import read_variable
from rawkern.extensions.macros import Expanded, Macro, define, expand, tokens
from rawkern.extensions.program import RESERVED, Function, Kernel, Parameter, Struct, Unit
from rawkern.extensions.spelling import declared_type
from rawkern.extensions.structs import read_enum, read_members
from rawkern.extensions.untranslated import NotTranslated

_VERSION = [int(part) for part in re.findall(r"\d+", torch.__version__)[:3]]
#: Macros that are known when code for the host is read, beside those of the source and of options.
KNOWN = {
    **HOST, "CUDA_VERSION": 12080, "CUDART_VERSION": 12080, "TORCH_VERSION_MAJOR": _VERSION[0],
    "TORCH_VERSION_MINOR": _VERSION[1], "TORCH_VERSION_PATCH": _VERSION[2], "WITH_CUDA": 1, "USE_CUDA": 1,
}  # fmt: skip
_EMPTY = """
    __host__ __device__ __forceinline__ __inline__ __inline __noinline__ inline TORCH_API C10_API C10_EXPORT
    C10_ALWAYS_INLINE C10_HOST_DEVICE C10_UNUSED __restrict__ __restrict C10_RESTRICT __attribute_maybe_unused__
    C10_NOINLINE C10_HOST C10_DEVICE PyMODINIT_FUNC TORCH_LIBRARY_THREAD_UNSAFE_LAZY_INIT CUDA_HOSTDEVICE C10_INLINE
    FORCE_INLINE extern_c
"""


#: Macros of <cstdint>.
_STANDARD = [
    f"#define {sign}INT{bits}_C(c) c ## {sign}{long}" if sign or long else f"#define INT{bits}_C(c) c"
    for bits, long in ((8, ""), (16, ""), (32, ""), (64, "L"))
    for sign in ("", "U")
]
_ALIAS = re.compile(r"\bnamespace\s+(\w+)\s*=\s*((?:\w+::)*\w+)\s*;")
_DEVICE = re.compile(r"\b__device__\b|HOST_?DEVICE|DEVICE")
_WORD = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True, eq=False)
class Postponed:
    """A function of a source, as text."""

    part: HostPart
    text: str
    path: str
    line: int
    unknown: str  # a condition of the preprocessor in it that is not understood


def own_header(path: str, name: str, include_dirs: Sequence[str]) -> str | None:
    """The file of an own header that a file includes."""
    if is_host_header(name):
        return None
    folders = (os.path.dirname(path), *include_dirs)
    files = (os.path.normpath(os.path.join(folder, name)) for folder in folders)
    return next((file for file in files if os.path.isfile(file)), None)


def read_of(path: str, text: str, include_dirs: Sequence[str]) -> tuple[Any, ...]:
    """What a translation takes of a file: its text less the bodies of kernels and what else is for the device alone.

    Where this is the same after an edit, the translation is, too.
    """
    parts = split(text, path).host
    spans = [(part.start, part.end) for part in parts] + [(one.start, one.end) for one in blanked(text)[1]]
    pieces, at = [], 0
    for start, end in sorted(spans):
        if end > at:
            pieces += ["\n" * text.count("\n", at, start), text[max(start, at) : end]]
            at = end
    headers = [own_header(path, part.name, include_dirs) for part in parts if part.kind == "include"]
    return "".join(pieces), declarations(text), _MEMBER.findall(text), _ALIAS.findall(text), headers


class Reader:
    """Reads a source and its headers into a unit."""

    main = ""

    def __init__(
        self,
        unit: Unit,
        include_dirs: Sequence[str],
        defined: dict[str, str],
        taken: set[str],
        structs: dict[tuple[str, int], Struct],
    ) -> None:
        self.structs = structs  # those of all units, by file and position
        self.unit, self.include_dirs = unit, tuple(include_dirs)
        self.taken = taken  # names of Python's functions in all units
        self.macros: dict[str, Macro] = {name: Macro(None, ()) for name in _EMPTY.split()}
        self.macros |= {"Py_BEGIN_ALLOW_THREADS": Macro(None, ("{",)), "Py_END_ALLOW_THREADS": Macro(None, ("}",))}
        self.macros |= dict(found for one in _STANDARD if (found := define(one)) is not None)
        for name, text in defined.items():
            self.macros[name] = Macro(None, tuple(tokens(text)))
        self.defaults: dict[tuple[str, int], list[Any]] = {}
        self.seen: set[str] = set()
        self.aliases: dict[str, str] = {}  # of namespaces
        self.words: set[str] = set()  # those of code for the host
        self.postponed: list[Postponed] = []
        self.templates: list[Postponed] = []  # of functions that are only declared
        self.variables: list[tuple[str, Any, Any, Any]] = []  # of the file: name, declaration, declarator, first value
        self.later: list[tuple[HostPart, str, Expanded | None, str, int, str]] = []
        self.conditionals = Conditionals(KNOWN, defined)
        self.outcomes: dict[str, Outcome] = {}
        self.texts: dict[str, tuple[str, tuple[Directive, ...]]] = {}

    def read(self, path: str, text: str | None = None) -> None:
        """Read a file, and the own headers that it includes, once each."""
        if path in self.seen:
            return
        if not self.seen:
            self.main = path
        self.seen.add(path)
        self._scan(path, text)
        text, directives = self.texts[path]
        outcome = self.outcomes[path]
        self._kernels(text)
        for name, type_ in _MEMBER.findall(text):
            self.unit.members.setdefault(type_, name)
        dead = outcome.dead
        clean = _clean(text, directives, dead)
        self.aliases.update(_ALIAS.findall(clean))
        starts = [0, *(match.end() for match in re.finditer("\n", text))]
        parts = [p for p in split(text, path).host if not any(a <= p.start < b for a, b in dead)]
        macros = [p for p in parts if p.kind == "macro"]
        defined = 0
        for part in parts:
            if part.kind == "macro":
                continue
            while defined < len(macros) and macros[defined].start < part.end:
                self._macro(text[macros[defined].start : macros[defined].end])
                defined += 1
            if part.kind == "include":
                file = own_header(path, part.name, self.include_dirs)
                if file is not None:
                    self.read(file)
                continue
            unknown = next((said for at, said in outcome.unknown if part.start <= at < part.end), "")
            self._part(part, clean, path, _line(starts, part.start), unknown)
        for one in macros[defined:]:
            self._macro(text[one.start : one.end])

    def _scan(self, path: str, text: str | None = None) -> None:
        """Go through the conditions of a file and of the own headers that it includes, once each."""
        if path in self.texts:
            return
        if text is None:
            self.unit.files.append(path)
            text = read_text(path)
        directives = tuple(blanked(text)[1])
        self.texts[path] = text, directives

        def include(name: str) -> None:
            file = own_header(path, name, self.include_dirs)
            if file is not None:
                self._scan(file)

        self.outcomes[path] = self.conditionals.pass_through(directives, include)

    def _macro(self, text: str) -> None:
        found = define(text)
        if found is None:
            return
        name, macro = found
        if name in self.macros and self.macros[name] != macro:  # what comes before means the old one
            self._read_postponed(None)
        self.macros[name] = macro

    def _kernels(self, text: str) -> None:
        for one in declarations(text):
            bare = one.name.rsplit("::", 1)[-1]
            kernel, known = _kernel(self.unit, one), self.unit.kernels.get(bare)
            if known is None:
                self.unit.kernels[bare] = kernel
                continue
            every = [known, *known.overloads]
            same = [k for k, each in enumerate(every) if _signature(each) == _signature(kernel)]
            if same and not one.definition:
                continue
            first, *others = (
                [kernel, *(each for k, each in enumerate(every) if k not in same)] if same else [*every, kernel]
            )
            first.overloads = others
            self.unit.kernels[bare] = first

    def _part(self, part: HostPart, clean: str, path: str, line: int, unknown: str) -> None:
        text = clean[part.start : part.end]
        if part.kind in ("function", "template"):
            device = path != self.main or _DEVICE.search(text.split("{")[0]) is not None
            postponed = Postponed(part, text, path, line, unknown)
            if device:  # it is for the host if something there calls it
                self.postponed.append(postponed)
            else:
                self._function(postponed, device)
            return
        handler: Callable[..., None] | None = {
            "struct": self._struct, "using": self._using, "variable": self._variable, "binding": self._binding,
            "declaration": self._declaration,
        }.get(part.kind)  # fmt: skip
        if handler is not None:
            self.words.update(_WORD.findall(text))
            try:
                handler(part, text, path, line)
            except Exception as error:  # what needs it will say so
                said = f"{type(error).__name__}: {error}"
                self.unit.notes.append(f"{os.path.basename(path)}:{line}: {part.name} is not understood ({said})")

    def _read_postponed(self, words: set[str] | None) -> None:
        """Read those functions for the device that the host's code names, or all."""
        found = True
        while found:
            named_ = [one for one in self.postponed if words is None or one.part.name.rsplit("::", 1)[-1] in words]
            self.postponed = [one for one in self.postponed if one not in named_]
            for one in named_:
                self._function(one, device=True)
            found = bool(named_) and words is not None
            if words is not None:
                words |= self.words

    def _expanded(self, text: str, line: int) -> Expanded:
        for name, space in self.aliases.items():
            if name in text:
                text = re.sub(rf"\b{name}\s*::", f"{space}::", text)
        return expand(text, line, self.macros)

    def _function(self, postponed: Postponed, device: bool) -> None:
        part, text, path, line = postponed.part, postponed.text, postponed.path, postponed.line
        bare = part.name.rsplit("::", 1)[-1]
        if re.search(r"\b__global__\b", text.split("{")[0]) or not (bare.isidentifier() or operator_name(bare)):
            return
        if bare.startswith("PyInit"):
            return
        self.words.update(_WORD.findall(text))
        owner = next((each for each in _METHOD.findall(text.split("{")[0]) if each in self.unit.structs), "")
        if owner:
            if self.unit.structs[owner].specializations:
                self.unit.structs[owner].special = "is specialized in a method"
            with contextlib.suppress(NotTranslated):  # who calls it says so
                define_method(self.unit, self.unit.structs[owner], self._expanded(text, line), path)
            return
        python = self._python(operator_name(bare) or bare)
        try:
            found = signature(self.unit, part.name, python, self._expanded(text, line), path)
        except Exception as error:  # it is that of one function alone
            what = error.what if isinstance(error, NotTranslated) else f"its head ({type(error).__name__}: {error})"
            found = Function(part.name, python, path=path, lines=[line], unit=self.unit, reason=what)
            found.parameters = [Parameter("", "arguments")]
            found.variadic = True
        if postponed.unknown:
            found.reason = found.reason or f"`{postponed.unknown}`, a condition that is not understood"
        found.device = device
        self.unit.functions.setdefault(bare, []).append(found)

    def _python(self, bare: str) -> str:
        base = bare + "_" if bare in RESERVED or bare == self.unit.variable else bare
        made, k = base, 1
        while made in self.taken:
            k += 1
            made = f"{base}_{k}"
        self.taken.add(made)
        return made

    def _declaration(self, part: HostPart, text: str, path: str, line: int) -> None:
        """A template whose specializations are defined; default values of a function that is defined elsewhere."""
        if re.match(r"template\s*<\s*\w", text):
            self.templates.append(Postponed(part, text, path, line, ""))
        if "=" not in text or "__global__" in text:
            return
        try:
            root = parse(self._expanded(text, line).text)
        except NotTranslated:
            return
        stack = [root]
        while stack:
            one = stack.pop()
            if one.type == "function_declarator":
                values = [
                    each.child_by_field_name("default_value")
                    for each in named(one.child_by_field_name("parameters"))
                    if each.type in ("parameter_declaration", "optional_parameter_declaration")
                ]
                self.defaults[part.name.rsplit("::", 1)[-1], len(values)] = values
                return
            stack += one.children

    def _using(self, part: HostPart, text: str, path: str, line: int) -> None:
        try:
            root = parse(self._expanded(text, line).text)
        except NotTranslated:
            return
        for one in named(root):
            if one.type == "alias_declaration":
                self.unit.aliases[text_of(one.child_by_field_name("name"))] = one.child_by_field_name("type")
            elif one.type == "type_definition":
                name = one.child_by_field_name("declarator")
                of = one.child_by_field_name("type")
                if of is not None and of.type == "enum_specifier" and of.child_by_field_name("body") is not None:
                    read_enum(self.unit, of, self.taken)
                    self.unit.enums.update([text_of(name)] if name is not None else [])
                    continue
                if name is not None and name.type == "type_identifier":
                    self.unit.aliases[text_of(name)] = one.child_by_field_name("type")

    def _variable(self, part: HostPart, text: str, path: str, line: int) -> None:
        if re.search(r"\b(?:__device__|__constant__|__shared__)\b", text):
            return
        if "RegisterOperators" in text:
            self._binding(part, text, path, line)
            return
        try:
            expanded = self._expanded(text, line)
            root = parse(expanded.text)
        except NotTranslated:
            return
        for node in named(root):
            if node.type != "declaration":
                continue
            said = t.words(node)
            constant = "const" in said or "constexpr" in said
            for k, one in enumerate(node.children):
                if node.field_name_for_child(k) != "declarator":
                    continue
                given = one.type == "init_declarator"
                declarator = one.child_by_field_name("declarator") if given else one
                around = "array" if declarator.type == "array_declarator" else ""
                name, value = declared_name(declarator), one.child_by_field_name("value") if given else None
                if name and constant and given:
                    self.unit.lazy[name] = ((node.child_by_field_name("type"), value, around), expanded.lines)
                elif name and not constant and not around and "extern" not in said:
                    self.variables.append((name, node, declarator, value))

    def _struct(self, part: HostPart, text: str, path: str, line: int) -> None:
        try:
            expanded = self._expanded(text, line)
        except NotTranslated:
            return
        stack = [parse(expanded.text)]
        while stack:
            node = stack.pop(0)
            if node.type == "enum_specifier":
                read_enum(self.unit, node, self.taken)
                alias = node.parent.child_by_field_name("declarator") if node.parent.type == "type_definition" else None
                self.unit.enums.update([text_of(alias)] if alias is not None else [])
                return
            if node.type in ("struct_specifier", "class_specifier") and node.child_by_field_name("body") is not None:
                self._members(node, part.name, (path, part.start), line, expanded)
                return
            stack = [*node.children, *stack]

    def _members(self, node: Any, full: str, where: tuple[str, int], line: int, expanded: Expanded) -> None:
        name = node.child_by_field_name("name")
        if name is None:
            return
        if name.type != "type_identifier":
            self._specialization(node, where, line, expanded)
            return
        struct = self.structs.get(where)
        known = struct is not None
        if struct is None:
            template = node.parent is not None and node.parent.type == "template_declaration"
            struct = Struct(full, self._python(text_of(name)), path=where[0], line=line, template=template)
            self.structs[where] = struct
        other = self.unit.structs.get(text_of(name))
        if other is not None and other is not struct and other.name != struct.name:
            other.special = struct.special = "has the name of another one"
        self.unit.structs[text_of(name)] = struct  # its methods may name it

        def nested(inner: Any) -> None:
            if inner.type == "enum_specifier":
                read_enum(self.unit, inner, self.taken)
            elif (inner_name := inner.child_by_field_name("name")) is not None:
                place = where[0], where[1] + inner.start_byte
                self._members(inner, f"{full}::{text_of(inner_name)}", place, line, expanded)

        if not known:
            read_members(self.unit, struct, node, expanded, where[0], nested)

    def _specialization(self, node: Any, where: tuple[str, int], line: int, expanded: Expanded) -> None:
        """A specialization of a template of structs, which has members of its own."""
        name = node.child_by_field_name("name")
        bare = text_of(name).partition("<")[0]
        primary = self.unit.structs.get(bare)
        if primary is None:
            return
        primary.special = "is specialized"  # until all that are there are known to be alike
        struct = self.structs.get(where)
        if struct is None:
            struct = Struct(text_of(name), self._python(bare), path=where[0], line=line, template=True)
            struct.arguments = named(name.child_by_field_name("arguments")) if name.type == "template_type" else []
            primary.specializations.append(("", struct))
            self.structs[where] = struct
            self.unit.structs[struct.python] = struct

            def nested(inner: Any) -> None:
                struct.reason = "it has types of its own"

            read_members(self.unit, struct, node, expanded, where[0], nested)
        self.unit.structs[struct.python] = struct

    def _binding(self, part: HostPart, text: str, path: str, line: int) -> None:
        try:
            read_binding(self.unit, part.name, self._expanded(text, line), text)
        except NotTranslated as error:
            self.unit.notes.append(f"{os.path.basename(path)}:{line}: {error.what}")

    def finish(self, words: set[str]) -> None:
        """Read the rest, some of whose names are among words, and give functions and variables their values."""
        used = {token for macro in self.macros.values() for token in macro.body}
        self._read_postponed(words | self.words | used)
        for one in self.templates:
            same = self.unit.functions.get(one.part.name.rsplit("::", 1)[-1], [])
            if same and all(each.specializes for each in same):
                self._function(one, device=False)
        for variable in self.variables:
            name, node, declarator, value = variable
            with contextlib.suppress(NotTranslated):  # a function that uses it says what it is
                read_variable(self.unit, name, self._python(name), node, declarator, value)
        for name, found in self.unit.functions.items():
            for one in found:
                values = self.defaults.get((name, len(one.parameters)))
                for parameter, value in zip(one.parameters, values or (), strict=False):
                    if parameter.default is None:
                        parameter.default = value


_METHOD = re.compile(r"(\w+)\s*(?:<[^<>()]*>)?\s*::\s*(?:~?\w+|operator\s*(?:\(\s*\)|[^\w\s(]+))\s*\(")
_MEMBER = re.compile(
    r"\bconstexpr\s+(?:static\s+|inline\s+)*(?:const\s+)?(\w[\w:]*(?:\s+(?:int|long|char))*)\s+(\w+)\s*[={]"
)


def _line(starts: list[int], at: int) -> int:
    return bisect_right(starts, at)


def _clean(text: str, directives: Any, dead: list[tuple[int, int]]) -> str:
    """A text with spaces over directives and what they leave out."""
    spans = [(one.start, one.end) for one in directives] + dead
    pieces, at = [], 0
    for start, end in sorted(spans):
        if end <= at:
            continue
        start = max(start, at)
        pieces += [text[at:start], re.sub(r"[^\n]", " ", text[start:end])]
        at = end
    return "".join([*pieces, text[at:]])


def _signature(kernel: Kernel) -> tuple[Any, ...]:
    """What tells overloads of a kernel apart."""
    return len(kernel.template), tuple(str(one) for one in kernel.types)


def _kernel(unit: Unit, one: Any) -> Kernel:
    """What is known of a kernel, by its declaration."""
    kernel = Kernel(one.name, is_template=one.template)
    f = Context(unit, Function(one.name, ""))
    try:
        if one.template:
            root = parse(f"template <{', '.join(one.template_params)}> void rk_f() {{}}")
            node = named(root)[0]
            kernel.template = template_parameters(f, node.child_by_field_name("parameters"))
        text = re.sub(r"__restrict__|__restrict|__grid_constant__|\bRESTRICT\b", "", ", ".join(one.types))
        root = parse(f"void rk_f({text}) {{}}")
        node = named(root)[0].child_by_field_name("declarator")
        for each in named(node.child_by_field_name("parameters")):
            if each.type in ("parameter_declaration", "optional_parameter_declaration"):
                inner = each.child_by_field_name("declarator")
                try:
                    kernel.types.append(declared_type(f, each.child_by_field_name("type"), inner, each))
                except NotTranslated:
                    kernel.types.append(t.ANY)
            elif each.type != "comment":
                kernel.types.append(t.ANY)
    except (NotTranslated, AttributeError, IndexError):
        kernel.types = []
    return kernel
