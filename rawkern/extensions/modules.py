"""The module of an extension: its sources' host functions as Python, which is what is printed and what runs."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rawkern.base.tree import named, parse, text_of
from rawkern.extensions import calls as _calls  # noqa: F401 - registers what it translates
from rawkern.extensions import cpp
from rawkern.extensions import flow as _flow  # noqa: F401
from rawkern.extensions import types as t
from rawkern.extensions.context import Context
from rawkern.extensions.expressions import python_field
from rawkern.extensions.functions import default_code, kind_of, refusal_text, signature, tidy, translate
from rawkern.extensions.macros import Expanded
from rawkern.extensions.own import template_codes
from rawkern.extensions.program import Binding, Function, Registration, Struct, Unit
from rawkern.extensions.refusal import Refused
from rawkern.extensions.types import Type
from rawkern.extensions.units import Reader
from rawkern.extensions.values import converted


@dataclass
class Source:
    """A source of an extension."""

    path: str  # "" for text that stands in no file
    text: str | None = None
    name: str = ""
    cuda: bool = True


@dataclass
class Translation:
    """What `translated` makes of sources."""

    code: str = ""  # the module's Python
    functions: list[str] = field(default_factory=list)  # translated, by their names in C++
    refused: dict[str, str] = field(default_factory=dict)  # the others, with the reason
    notes: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)  # everything that was read
    exports: list[str] = field(default_factory=list)
    reasons: dict[str, Refused] = field(default_factory=dict)


def translated(
    sources: Sequence[Source],
    *,
    options: Sequence[str] = (),
    include_dirs: Sequence[str] = (),
    name: str = "extension",
    functions: Sequence[str] | None = None,
    title: str = "",
) -> Translation:
    """Translate the sources of an extension to one module."""
    units, taken = [], set()
    structs: dict[tuple[str, int], Struct] = {}
    defined = _defined(options)
    kernels = _variables(sources)
    for source, variable in zip(sources, kernels, strict=True):
        unit = Unit(source.path or source.name, variable)
        reader = Reader(unit, include_dirs, defined, taken, structs)
        reader.read(os.path.abspath(source.path) if source.path else source.name, source.text)
        reader.finish()
        units.append(unit)
    writer = _Writer(units, sources, options, include_dirs, name, functions)
    writer.link()
    return writer.module(title)


def _defined(options: Sequence[str]) -> dict[str, str]:
    found = {}
    for one in options:
        match = re.match(r"-D\s*(\w+)(?:=(.*))?\Z", one, re.S)
        if match:
            found[match[1]] = match[2] if match[2] is not None else "1"
    return found


def _variables(sources: Sequence[Source]) -> list[str]:
    """A name for the kernels of each source."""
    cuda = [one for one in sources if one.cuda]
    if len(cuda) < 2:
        return ["kernels"] * len(sources)
    made: list[str] = []
    for one in sources:
        base = re.sub(r"\W", "_", os.path.splitext(os.path.basename(one.path or one.name))[0]) + "_kernels"
        base = "_" + base if base[0].isdigit() else base
        k, name = 1, base
        while name in made:
            k += 1
            name = f"{base}_{k}"
        made.append(name)
    return made


class _Writer:
    def __init__(
        self,
        units: list[Unit],
        sources: Sequence[Source],
        options: Sequence[str],
        include_dirs: Sequence[str],
        name: str,
        exported: Sequence[str] | None,
    ) -> None:
        self.units, self.sources, self.options, self.include_dirs = units, sources, options, include_dirs
        self.name, self.exported = name, exported
        self.found = Translation()
        self.own: list[tuple[Unit, Function]] = [
            (unit, one) for unit in units for all_ in unit.functions.values() for one in all_
        ]

    def link(self) -> None:
        """Let each unit see the functions, structs and constants of the others that it has none of its own for."""
        seen: dict[tuple[str, int], str] = {}
        kept = []
        for unit, one in self.own:  # a header that several sources include
            key = (one.path, one.line)
            if key in seen and one.path != unit.path:
                one.python = seen[key]
                continue
            seen[key] = one.python
            kept.append((unit, one))
        self.own = kept
        every = [(unit, {name: list(found) for name, found in unit.functions.items()}) for unit in self.units]
        for unit in self.units:
            own = {name: {one.python for one in found} for name, found in unit.functions.items()}
            for other, functions in every:
                if other is unit:
                    continue
                for name, found in functions.items():
                    public = [one for one in found if not one.static and one.python not in own.get(name, ())]
                    if public:
                        unit.functions[name] = [*unit.functions.get(name, []), *public]
                        own.setdefault(name, set()).update(one.python for one in public)
                for name, struct in other.structs.items():
                    unit.structs.setdefault(name, struct)
        for binding in (one for unit in self.units for one in unit.bindings):
            self._rename(binding.name)
        if self.exported is not None:
            for name in self.exported:
                self._rename(name)
        elif not self.bound:
            for _, one in self.own:
                if not one.template and not one.static:
                    self._rename(one.python)

    @property
    def bound(self) -> bool:
        return any(unit.bindings or unit.registrations for unit in self.units)

    def _rename(self, name: str) -> None:
        """Keep a name for what is exported: the function of that name gets another one."""
        for _, one in self.own:
            if one.python == name:
                one.python = f"_{name}"

    def module(self, title: str) -> Translation:
        bodies = self._bodies()
        exports = self._exports()
        structs = self._structs()
        text = "\n".join([*bodies, *exports, *structs])
        constants = self._constants(text)
        text = "\n".join([text, *constants])
        said = title or f"The host functions of {self._titles()}, translated from C++ by rawkern."
        parts = [f'"""{said}"""']
        parts.append("")
        parts.append("from __future__ import annotations\n")
        parts += [f"import {one}" for one in ("math", "warnings") if re.search(rf"\b{one}\.", text)]
        parts += ["", "import torch", "", self._imports(text), ""]
        parts += self._kernels(text)
        parts += [""] + constants if constants else []
        for block in [*structs, *bodies]:
            parts += ["", "", block]
        if exports:
            parts += ["", "", *exports]
        self.found.code = re.sub(r"\n{4,}", "\n\n\n", "\n".join(parts)).strip("\n") + "\n"
        self.found.notes = [note for unit in self.units for note in unit.notes]
        self.found.files = list(dict.fromkeys(file for unit in self.units for file in unit.files))
        return self.found

    def _bodies(self) -> list[str]:
        """The functions' Python; of those for the device as well, only what others call."""
        found: dict[int, str] = {}
        waiting = [(k, unit, one) for k, (unit, one) in enumerate(self.own)]
        words: set[str] = set()
        named_ = {each.function for unit in self.units for each in (*unit.bindings, *unit.registrations)}
        named_ |= set(self.exported or ())
        while True:
            rest = []
            for k, unit, one in waiting:
                if one.device and one.python not in words and one.name.rsplit("::", 1)[-1] not in named_:
                    rest.append((k, unit, one))
                    continue
                found[k] = self._function(unit, one)
                words |= set(re.findall(r"\w+", found[k]))
            if len(rest) == len(waiting):
                break
            waiting = rest
        self.own = [pair for k, pair in enumerate(self.own) if k in found]
        return [found[k] for k in sorted(found)]

    def _titles(self) -> str:
        return ", ".join(os.path.basename(one.path or one.name) for one in self.sources)

    def _function(self, unit: Unit, one: Function) -> str:
        try:
            if one.refused:
                raise Refused(one.refused)
            one.code = translate(unit, one)
            self.found.functions.append(one.name)
            return one.code
        except Refused as error:
            text = refusal_text(one, error)
            self.found.refused[one.name] = text
            self.found.reasons[one.name] = error
        except RecursionError:
            text = f"{one.name} is not translated: it is nested too deeply"
            self.found.refused[one.name] = text
        one.refused = text
        return f"def {one.python}(*arguments, **keywords):\n    raise rawkern.errors.UnsupportedError(\n        {text!r}\n    )"

    def _structs(self) -> list[str]:
        """The structs that functions use, those they are made of first."""
        structs = list({one.python: one for unit in self.units for one in unit.structs.values()}.values())
        used = {one.python for one in structs if one.used}
        by_name = {one.name.rsplit("::", 1)[-1]: one for one in structs}
        for _ in structs:
            for one in structs:
                if one.python in used:
                    used |= {by_name[one.base].python} if one.base in by_name else set()
                    used |= {inner for type_ in one.fields.values() for inner in _structs_in(type_)}
        out, done = [], set()

        def write(struct: Struct) -> None:
            if struct.python in done or struct.python not in used:
                return
            done.add(struct.python)
            if struct.base in by_name:
                write(by_name[struct.base])
            for type_ in struct.fields.values():
                for inner in _structs_in(type_):
                    found = next((one for one in structs if one.python == inner), None)
                    if found is not None:
                        write(found)
            base = by_name[struct.base].python if struct.base in by_name else "Struct"
            lines = [f"class {struct.python}({base}):"]
            lines += [
                f"    {python_field(name)} = {self._default(struct, name, type_)}"
                for name, type_ in struct.fields.items()
            ]
            out.append("\n".join(lines if len(lines) > 1 else [*lines, "    pass"]))

        for one in structs:
            write(one)
        return out

    def _default(self, struct: Struct, name: str, type_: Type) -> str:
        if name in struct.defaults:
            return struct.defaults[name]
        return self._zero(type_)

    def _zero(self, type_: Type) -> str:
        if type_.kind == "array":
            try:
                f = Context(self.units[0], Function("", ""))
                count = f.value(named(named(parse(f"int rk = {type_.name};"))[0])[-1].child_by_field_name("value")).code
            except (Refused, AttributeError, IndexError):
                count = "0"
            inner = self._zero(type_.item)
            return (
                f"[{inner} for _ in range({count})]"
                if type_.item.kind in ("array", "struct")
                else f"[{inner}] * {count}"
            )
        if type_.kind == "struct":
            return f"{type_.name}()"
        if type_.kind == "cuda_vector":
            return f"Vector({', '.join(['0'] * int(type_.name[-1]))})"
        return {"int": "0", "float": "0.0", "bool": "False"}.get(type_.kind, "None")

    def _constants(self, text: str) -> list[str]:
        lines = []
        for unit in self.units:
            for name, code in unit.definitions.items():
                if re.search(rf"(?<![\w.]){re.escape(name)}\b", text):
                    lines.append(f"{name} = {code}")
        return list(dict.fromkeys(lines))

    def _imports(self, text: str) -> str:
        names = sorted(
            name for name in vars(cpp) if not name.startswith("_") and re.search(rf"(?<![\w.]){name}\b(?!=[^=])", text)
        )
        names = [one for one in dict.fromkeys(["Kernels", *names]) if callable(getattr(cpp, one))]
        errors = "import rawkern.errors\n" if "rawkern.errors." in text else ""
        line = f"from rawkern.extensions.cpp import {', '.join(names)}"
        if len(line) > 120:
            line = "from rawkern.extensions.cpp import (\n" + "".join(f"    {one},\n" for one in names) + ")"
        return errors + line

    def _kernels(self, text: str) -> list[str]:
        lines = []
        more = f", options={list(self.options)!r}" if self.options else ""
        more += f", include_dirs={[str(one) for one in self.include_dirs]!r}" if self.include_dirs else ""
        for unit, source in zip(self.units, self.sources, strict=True):
            if not source.cuda or not re.search(rf"\b{unit.variable}\b", text):
                continue
            if source.path:
                lines.append(f"{unit.variable} = Kernels({source.path!r}{more})")
            else:
                body = (source.text or "").replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
                lines.append(f'{unit.variable} = Kernels(code="""\n{body}"""{more})')
        return lines

    # Exports ----------------------------------------------------------------------------------------------------------

    def _exports(self) -> list[str]:
        lines: list[str] = []
        if self.exported is not None:
            for name in self.exported:
                found = [one for _, one in self.own if one.name.rsplit("::", 1)[-1] == name]
                if not found:
                    raise ValueError(f"there is no function {name!r} in the sources")
                lines.append(self._bind(Binding(name, name), found[0]))
        elif not self.bound:
            for _, one in self.own:
                if not one.template and not one.static:
                    lines.append(self._bind(Binding(one.python.removeprefix("_"), one.name), one))
        for unit in self.units:
            for binding in unit.bindings if self.exported is None else ():
                line = self._binding(unit, binding)
                if line:
                    lines.append(line)
        lines += self._libraries()
        return lines

    def _binding(self, unit: Unit, binding: Binding) -> str:
        if binding.code is not None:
            return self._lambda(unit, binding)
        found = unit.functions.get(binding.function, [])
        if binding.template and found:
            return self._instance(unit, binding, found[0])
        found = [one for one in found if not one.template] or found
        if not found:
            self.found.notes.append(f"{binding.name}: its function {binding.function} is not in these sources")
            return ""
        one = found[0]
        if len(found) > 1 and binding.names:
            one = next((each for each in found if len(each.parameters) == len(binding.names)), one)
        return self._bind(binding, one)

    def _lambda(self, unit: Unit, binding: Binding) -> str:
        """A lambda of a binding, as a function of its own."""
        code = text_of(binding.code)
        match = re.match(r"\[[^\]]*\]\s*(\(.*)", code, re.S)
        text = f"auto rk_lambda {match[1]}" if match else ""
        line = binding.lines[min(binding.code.start_point[0], len(binding.lines) - 1)] if binding.lines else 0
        expanded = Expanded(text, [line + k for k in range(text.count("\n") + 1)])
        python = f"_{binding.name}"
        try:
            one = signature(unit, binding.name, python, expanded, unit.path)
            body = translate(unit, one)
            self.found.functions.append(binding.name)
        except Refused as error:
            reason = f"{binding.name} is not translated: {os.path.basename(unit.path)}:{line}: {error.what}"
            self.found.refused[binding.name] = reason
            self.found.reasons[binding.name] = error
            body = f"def {python}(*arguments, **keywords):\n    raise rawkern.errors.UnsupportedError({reason!r})"
            one = Function(binding.name, python, refused=reason)
        return body + "\n\n\n" + self._bind(binding, one)

    def _instance(self, unit: Unit, binding: Binding, one: Function) -> str:
        f = Context(unit, Function(binding.name, ""))
        root = parse(f"int rk = rk_f<{binding.template}>();")
        arguments: list[Any] = []
        stack = [root]
        while stack:
            node = stack.pop(0)
            if node.type == "template_argument_list":
                arguments = named(node)
                break
            stack += node.children
        try:
            _, codes = template_codes(f, root, one, arguments, [])
        except Refused as error:
            self.found.notes.append(f"{binding.name}: {error.what}")
            return ""
        made = f"functools.partial({one.python}, {', '.join(codes)})"
        kinds = [kind_of(parameter.type) for parameter in one.parameters]
        self.found.exports.append(binding.name)
        return f"{binding.name} = bind({made}, {kinds!r}, name={binding.name!r})"

    def _bind(self, binding: Binding, one: Function) -> str:
        self.found.exports.append(binding.name)
        if one.refused:
            return f"{binding.name} = {one.python}"
        kinds = [kind_of(parameter.type) for parameter in one.parameters]
        names = binding.names if len(binding.names) == len(kinds) else []
        defaults = self._defaults(binding, one, names)
        parts = [one.python, repr(kinds)]
        own = [parameter.python for parameter in one.parameters]
        if names and names != own:
            parts.append(f"names={names!r}")
        if defaults:
            parts.append("defaults={" + ", ".join(f"{key!r}: {code}" for key, code in defaults.items()) + "}")
        if binding.doc:
            parts.append(f"doc={binding.doc!r}")
        if binding.name != one.python:
            parts.append(f"name={binding.name!r}")
        return tidy(f"{binding.name} = bind({', '.join(parts)})")

    def _defaults(self, binding: Binding, one: Function, names: list[str]) -> dict[str, str]:
        found: dict[str, str] = {}
        unit = one.unit or self.units[0]
        f = Context(unit, Function(binding.name, ""))
        if not binding.names and self.exported is None and self.bound:
            return {}  # pybind11 does not see the defaults of C++
        for k, parameter in enumerate(one.parameters):
            key = names[k] if names else parameter.python
            text = binding.defaults.get(key)
            if text is not None:
                node = named(parse(f"auto rk = {text};"))[0].child_by_field_name("declarator")
                try:
                    found[key] = converted(f.value(node.child_by_field_name("value")), t.plain(parameter.type)).code
                except (Refused, AttributeError):
                    found[key] = {"None": "None", "py::none()": "None"}.get(text, "None")
            elif not binding.names and parameter.default is not None:
                found[key] = default_code(f, parameter)
        return found

    def _libraries(self) -> list[str]:
        every: list[Registration] = [one for unit in self.units for one in unit.registrations]
        lines: list[str] = []
        spaces = list(dict.fromkeys(one.namespace for one in every))
        for k, space in enumerate(spaces):
            library = "library" if k == 0 else f"library_{k + 1}"
            shown = self.name if space == "TORCH_EXTENSION_NAME" else space
            lines.append(f"{library} = Library({shown!r}, {self.name!r})")
            for one in sorted((one for one in every if one.namespace == space), key=lambda one: one.what != "def"):
                code = self._registered(one)
                if one.what == "def":
                    schema = one.text if "(" in one.text else self._schema(one)
                    if schema:
                        lines.append(f"{library}.define({schema!r}{f', {code}' if code else ''})")
                elif code:
                    lines.append(f"{library}.implement({one.text!r}, {code}, {one.key!r})")
            lines.append(f"{library}.finish()")
        return lines

    def _registered(self, one: Registration) -> str:
        if not one.function:
            return ""
        function = next((f for _, f in self.own if f.name.rsplit("::", 1)[-1] == one.function and not f.template), None)
        if function is None:
            self.found.notes.append(
                f"{one.text.partition('(')[0]}: its function {one.function} is not in these sources"
            )
            return ""
        return function.python

    def _schema(self, one: Registration) -> str:
        """A schema from a function's types, as torch makes it."""
        function = next((f for _, f in self.own if f.name.rsplit("::", 1)[-1] == one.function), None)
        if function is None or (function.refused and not function.parameters):
            return ""
        inputs = [f"{_schema_type(p.type)} _{k}" for k, p in enumerate(function.parameters)]
        of = function.returns
        returned = "()" if of.kind == "void" else _schema_type(of)
        return f"{one.text}({', '.join(inputs)}) -> {returned}"


def _schema_type(type_: Type) -> str:
    if type_.kind == "optional":
        return _schema_type(type_.item) + "?"
    if type_.kind == "vector":
        return _schema_type(type_.item) + "[]"
    if type_.kind == "tuple":
        return f"({', '.join(map(_schema_type, type_.of))})"
    table = {"tensor": "Tensor", "int": "int", "float": "float", "bool": "bool", "string": "str", "sizes": "int[]"}
    return table.get(type_.kind, "Scalar")


def _structs_in(type_: Type) -> set[str]:
    if type_.kind == "struct":
        return {type_.name}
    return {name for one in type_.of for name in _structs_in(one)} if type_.kind == "array" else set()
