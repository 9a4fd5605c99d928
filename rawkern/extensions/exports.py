"""What a module binds: the functions of PYBIND11_MODULE, of TORCH_LIBRARY, or all of the host's."""

from __future__ import annotations

import itertools
import keyword
import os
import re
from collections.abc import Sequence
from typing import Any

from rawkern.base.tree import named, parse, text_of
from rawkern.extensions import types as t
from rawkern.extensions.context import Context, bases
from rawkern.extensions.functions import default_code, kind_of, signature, translate
from rawkern.extensions.macros import Expanded
from rawkern.extensions.own import substituted, template_codes
from rawkern.extensions.program import (
    RESERVED,
    Binding,
    ClassBinding,
    EnumBinding,
    Function,
    Registration,
    Struct,
    Translation,
    Unit,
    python_field,
)
from rawkern.extensions.tidy import double_quoted, wrapped
from rawkern.extensions.types import Type
from rawkern.extensions.untranslated import NotTranslated
from rawkern.extensions.values import converted

OTHER = "_exported"  # functions whose names have another meaning in the module
_GETATTR = f"""
def __getattr__(name):
    try:
        return {OTHER}[name]
    except KeyError:
        raise AttributeError(name) from None
""".strip().split("\n")


def bound(units: Sequence[Unit]) -> bool:
    """Whether sources say themselves what they bind."""
    return any(unit.bindings or unit.registrations or unit.classes for unit in units)


def _types_of(one: Function) -> list[tuple[str, str]]:
    return [(kind_of(parameter.type), parameter.type.name) for parameter in one.parameters]


class Exports:
    """Writes the lines that bind functions to names."""

    def __init__(
        self,
        units: list[Unit],
        own: list[tuple[Unit, Function]],
        name: str,
        exported: Sequence[str] | None,
        found: Translation,
    ) -> None:
        self.units, self.own, self.name, self.exported, self.found = units, own, name, exported, found
        self.assigned: set[tuple[str, str]] = set()  # submodule and name
        self.taken = {one.python for _, one in own}
        self.classes = {one.python for unit in units for one in unit.structs.values() if one.bound}

    def lines(self) -> list[str]:
        lines = [line for unit in self.units for one in unit.submodules.items() for line in self._submodule(*one)]
        if self.exported is not None:
            for name in self.exported:
                found = [one for _, one in self.own if one.name.rsplit("::", 1)[-1] == name]
                if not found:
                    raise ValueError(f"there is no function {name!r} in the sources")
                lines.append(self._bind(Binding(name, name), found[0]))
        elif not bound(self.units):
            for _, one in self.own:
                if not one.template and not one.static:
                    bare, shown = one.name.rsplit("::", 1)[-1], one.python.removeprefix("_")
                    lines.append(self._bind(Binding(bare if shown == f"{bare}_" else shown, one.name), one))
        for unit in self.units:
            for binding in unit.bindings if self.exported is None else ():
                line = self._binding(unit, binding)
                if line:
                    lines.append(line)
        lines += [line for unit in self.units for one in unit.classes for line in self._class(unit, one)]
        lines += [line for unit in self.units for one in unit.enumerations for line in self._enumeration(unit, one)]
        lines += [line for unit in self.units for line in self._attributes(unit)]
        if any(re.search(rf"^{OTHER}\[", line, re.M) for line in lines):  # a lambda's line is below its function
            lines = [f"{OTHER} = {{}}", *lines, "", "", *_GETATTR]
        return lines + [line if line.startswith((" ", "def ")) else double_quoted(line) for line in self._libraries()]

    def _kinds(self, one: Function) -> list[str]:
        """What the parameters of a function are converted from."""
        return [kind_of(parameter.type, self.classes) for parameter in one.parameters]

    def _submodule(self, path: str, doc: str) -> list[str]:
        """The lines that make a submodule."""
        parent, _, name = path.rpartition(".")
        given = f"{f'{self.name}.{path}'!r}{f', {doc!r}' if doc else ''}"
        return wrapped(double_quoted(f"{self._target(parent, name, other=True)} = Submodule({given})"))

    def _target(self, module: str, name: str, *, other: bool = False) -> str:
        """What a name of the module, or of a submodule, is assigned as; it is exported."""
        self.assigned.add((module, name))
        if not module:
            self.found.exports.append(name)
            return f"{OTHER}[{name!r}]" if other or name in RESERVED else name
        first, *rest = module.split(".")
        place = ".".join([f"{OTHER}[{first!r}]", *rest])
        return f"vars({place})[{name!r}]" if keyword.iskeyword(name) else f"{place}.{name}"

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
        one = self._overloads(unit, binding, found)[0]
        if len(found) > 1 and binding.names and binding.overload is None:
            one = next((each for each in found if len(each.parameters) == len(binding.names)), one)
        return self._bind(binding, one)

    def _overloads(self, unit: Unit, binding: Binding, found: list[Function]) -> list[Function]:
        """Of several functions those that a binding means; all where the types that it gives fit none."""
        if binding.overload is None or len(found) < 2:
            return found
        try:
            wanted = signature(unit, "rk", "rk", Expanded(f"void rk({binding.overload}) {{}}", []), unit.path)
        except NotTranslated:
            return found
        meant = [one for one in found if _types_of(one) == _types_of(wanted)]
        if not meant:
            self.found.notes.append(f"{binding.name}: no {binding.function} takes ({binding.overload})")
        return meant or found

    def _lambda(self, unit: Unit, binding: Binding) -> str:
        """A lambda of a binding, as a function of its own."""
        one, body = self._lambda_function(unit, binding.name, binding.code, binding.lines)
        return body + "\n\n\n" + self._bind(binding, one)

    def _lambda_function(self, unit: Unit, name: str, node: Any, lines: list[int]) -> tuple[Function, str]:
        """A lambda as a function, and its Python."""
        match = re.match(r"\[[^\]]*\]\s*(\(.*)", text_of(node), re.S)
        text = f"auto rk_lambda {match[1]}" if match else ""
        line = lines[min(node.start_point[0], len(lines) - 1)] if lines else 0
        expanded = Expanded(text, [line + k for k in range(text.count("\n") + 1)])
        names = itertools.chain([f"_{name}"], (f"_{name}_{k}" for k in itertools.count(2)))
        python = next(one for one in names if one not in self.taken)
        self.taken.add(python)
        try:
            one = signature(unit, name, python, expanded, unit.path)
            one.code = translate(unit, one)
            self.found.functions.append(name)
        except NotTranslated as error:
            reason = f"{name} is not translated: {os.path.basename(unit.path)}:{line}: {error.what}"
            self.found.untranslated[name] = reason
            self.found.reasons[name] = error
            one = Function(name, python, reason=reason)
            one.code = f"def {python}(*arguments, **keywords):\n    raise rawkern.errors.UnsupportedError({reason!r})"
        return one, one.code

    def _class(self, unit: Unit, made: ClassBinding) -> list[str]:
        """The lines that make a class one of Python's."""
        struct = unit.structs.get(made.struct)
        if struct is None or struct.parameters:
            self.found.notes.append(f"the class {made.name}: {made.struct} is not in these sources")
            return []
        before: list[str] = []
        parts = [struct.python, repr(made.name)]
        inits = []
        for types, binding in made.constructors:
            found = [one for one in struct.constructors if len(one.parameters) == len(types)]
            exact = [one for one in found if [str(p.type) for p in one.parameters] == types]
            if (exact or found) and (one := (exact or found)[0]).node is not None:
                inits.append(self._method(struct, binding, one))
            elif types:
                self.found.notes.append(f"the constructor {made.name}({', '.join(types)}) is not in these sources")
            elif struct.constructors:
                inits.append(f"{struct.python}.{struct.constructors[0].python}")
        if inits:
            parts.append(f"init=[{', '.join(inits)}]")
        every: dict[str, list[str]] = {}
        for binding in made.methods:
            every.setdefault(binding.name, []).extend(self._methods(unit, struct, binding, before))
        static: dict[str, list[str]] = {}
        for binding in made.static:
            static.setdefault(binding.name, []).extend(self._methods(unit, struct, binding, before))
        of: dict[str, list[str]] = {}
        for binding in made.properties:
            of.setdefault(binding.name, []).extend(self._methods(unit, struct, binding, before))
        for word, group in (("methods", every), ("static", static), ("properties", of)):
            several = {one: list(dict.fromkeys(found)) for one, found in group.items() if found}
            codes = {
                one: found[0] if len(found) == 1 else f"overloaded({', '.join(found)})"
                for one, found in several.items()
            }
            if codes:
                parts.append(f"{word}={{{', '.join(f'{name!r}: {code}' for name, code in codes.items())}}}")
        fields = {name: python_field(of_) for name, of_ in made.fields.items() if python_field(of_) != name}
        if fields:
            parts.append(f"fields={fields!r}")
        if made.namespace:
            parts.append(f"namespace={made.namespace!r}")
        if made.namespace:
            return [*before, *wrapped(double_quoted(f"expose({', '.join(parts)})"))]
        target = self._target(made.module, made.name)
        return [*before, *wrapped(double_quoted(f"{target} = expose({', '.join(parts)})"))]

    def _enumeration(self, unit: Unit, made: EnumBinding) -> list[str]:
        """The lines that make an enumeration one of Python's."""
        f = Context(unit, Function(made.name, ""))
        try:
            codes = {name: f.value(node).code for name, node in made.values.items()}
        except NotTranslated as error:
            self.found.notes.append(f"the enumeration {made.name}: {error.what}")
            return []
        names = made.values if made.exported else ()
        listed = ", ".join(f"{name!r}: {code}" for name, code in codes.items())
        target = self._target(made.module, made.name)
        others = [f"{self._target(made.module, one, other=True)} = {target}.{one}" for one in names]
        line = double_quoted(f"{target} = enum.IntEnum({made.name!r}, {{{listed}}})")
        return [*wrapped(line), *map(double_quoted, others)]

    def _attributes(self, unit: Unit) -> list[str]:
        """The lines for values that a module has."""
        lines = []
        for name, node in unit.attributes.items():
            try:
                code = Context(unit, Function(name, "")).value(node).code
            except NotTranslated as error:
                self.found.notes.append(f"the attribute {name}: {error.what}")
                continue
            module, _, bare = name.rpartition(".")
            lines += wrapped(double_quoted(f"{self._target(module, bare)} = {code}"))
        return lines

    def _methods(self, unit: Unit, struct: Struct, binding: Binding, before: list[str]) -> list[str]:
        """The code of the methods that a line of a class binds."""
        if binding.code is not None:
            exports = list(self.found.exports)
            name, binding.name = binding.name, f"{struct.python}_{binding.name}"
            lines = self._lambda(unit, binding)
            code, binding.name, self.found.exports[:] = binding.name, name, exports
            before += ["", "", *lines.split("\n"), ""]
            return [code]
        found = [one for around in bases(unit, struct) for one in around.methods.get(binding.function, [])]
        free = [one for one in unit.functions.get(binding.function, []) if not found and not one.template]
        if not found and not free:
            self.found.notes.append(f"{binding.name} of the class {struct.name} is not in these sources")
        found = self._overloads(unit, binding, found)
        named_ = [one for one in found if len(one.parameters) == len(binding.names)]
        found = (named_ or found) if binding.names else found
        return [self._method(struct, binding, one) for one in found] or [
            self._bound(binding, one, self._kinds(one), []) for one in free
        ]

    def _method(self, struct: Struct, binding: Binding, one: Function) -> str:
        """The code of a method as Python has it, which checks its arguments."""
        code = f"{struct.python}.{one.python}"
        if one.reason:
            return code
        called = f"by_value({code}{', nothing=True' if one.returns.kind == 'void' else ''})" if one.rebinds else code
        kinds = [*([] if one.static else ["any"]), *self._kinds(one)]
        names = binding.names if len(binding.names) == len(one.parameters) else []
        parts = [called, repr(kinds)]
        if names:
            parts.append(f"names={['self', *names] if not one.static else names!r}")
        if defaults := self._defaults(binding, one, names):
            parts.append("defaults={" + ", ".join(f"{key!r}: {code}" for key, code in defaults.items()) + "}")
        if binding.doc:
            parts.append(f"doc={binding.doc!r}")
        parts.append(f"name={binding.name!r}")
        return f"bind({', '.join(parts)})"

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
            known, codes = template_codes(f, root, one, arguments, [])
        except NotTranslated as error:
            self.found.notes.append(f"{binding.name}: {error.what}")
            return ""
        kinds = [kind_of(substituted(parameter.type, known), self.classes) for parameter in one.parameters]
        return self._line(binding, one, kinds, [f"template=[{', '.join(codes)}]"])

    def _bind(self, binding: Binding, one: Function) -> str:
        return self._line(binding, one, self._kinds(one), [])

    def _line(self, binding: Binding, one: Function, kinds: list[str], more: list[str]) -> str:
        code = self._bound(binding, one, kinds, more)
        several = (binding.module, binding.name) in self.assigned
        target = self._target(binding.module, binding.name)
        if several:  # of which that is called that fits
            code = f"overloaded({target}, {code})"
        return "\n".join(wrapped(double_quoted(f"{target} = {code}")))

    def _bound(self, binding: Binding, one: Function, kinds: list[str], more: list[str]) -> str:
        if one.reason:
            return one.python
        names = binding.names if len(binding.names) == len(kinds) else []
        defaults = self._defaults(binding, one, names)
        parts = [_callable(one), repr(kinds), *more]
        own = [parameter.python for parameter in one.parameters]
        if names and names != own:
            parts.append(f"names={names!r}")
        if defaults:
            parts.append("defaults={" + ", ".join(f"{key!r}: {code}" for key, code in defaults.items()) + "}")
        if binding.doc:
            parts.append(f"doc={binding.doc!r}")
        if binding.name != one.python:
            parts.append(f"name={binding.name!r}")
        return f"bind({', '.join(parts)})"

    def _defaults(self, binding: Binding, one: Function, names: list[str]) -> dict[str, str]:
        found: dict[str, str] = {}
        unit = one.unit or self.units[0]
        f = Context(unit, Function(binding.name, ""))
        if not binding.names and self.exported is None and bound(self.units):
            return {}  # pybind11 does not see the defaults of C++
        for k, parameter in enumerate(one.parameters):
            key = names[k] if names else parameter.python
            text = binding.defaults.get(key)
            if text is not None:
                node = named(parse(f"auto rk = {text};"))[0].child_by_field_name("declarator")
                try:
                    found[key] = converted(f.value(node.child_by_field_name("value")), t.plain(parameter.type)).code
                except (NotTranslated, AttributeError):
                    if text in ("None", "py::none()"):
                        found[key] = "None"
                    else:
                        self.found.notes.append(f"{binding.name}: the default {text} of {key}; pass a value")
            elif not binding.names and parameter.default is not None:
                try:
                    found[key] = default_code(f, parameter)
                except NotTranslated as error:
                    self.found.notes.append(f"{binding.name}: the default of {key} ({error.what}); pass a value")
        return found

    def _libraries(self) -> list[str]:
        every: list[Registration] = [one for unit in self.units for one in unit.registrations]
        lines: list[str] = []
        for unit in self.units:
            for one in (each for each in unit.registrations if each.code is not None):
                name = re.sub(r"\W", "_", f"{one.namespace}_{one.text.partition('(')[0]}_{one.key}".rstrip("_"))
                function, body = self._lambda_function(unit, name, one.code, one.lines)
                one.function = function.name
                self.own.append((unit, function))
                lines += ["", "", *body.split("\n"), ""]
        spaces = list(dict.fromkeys(one.namespace for one in every))
        for k, space in enumerate(spaces):
            library = "library" if k == 0 else f"library_{k + 1}"
            shown = self.name if space == "TORCH_EXTENSION_NAME" else space
            lines.append(f"{library} = Library({shown!r}, {self.name!r})")
            for one in sorted((one for one in every if one.namespace == space), key=lambda one: one.what != "def"):
                code = self._registered(one)
                if one.what == "def":
                    schema = one.text if "(" in one.text else self._schema(one)
                    if schema and code.removeprefix("by_value(") in self._differentiated():
                        name = schema.partition("(")[0]
                        lines.append(f"{library}.define({schema!r})")
                        lines.append(f"{library}.implement({name!r}, {code}, 'CompositeImplicitAutograd')")
                    elif schema:
                        lines.append(f"{library}.define({schema!r}{f', {code}' if code else ''})")
                elif code:
                    lines.append(f"{library}.implement({one.text!r}, {code}, {one.key!r})")
            lines.append(f"{library}.finish()")
        return lines

    def _differentiated(self) -> set[str]:
        """The functions that call a torch::autograd::Function, themselves or through others."""
        words = {one.python: set(re.findall(r"\w+", one.code)) for _, one in self.own}
        classes = {one.python for unit in self.units for one in unit.structs.values() if one.autograd}
        found = {name for name, said in words.items() if "apply" in said and said & classes}
        size = -1
        while found and size != len(found):
            size = len(found)
            found |= {name for name, said in words.items() if said & found}
        return found

    def _registered(self, one: Registration) -> str:
        if not one.function:
            return ""
        function = next((f for _, f in self.own if f.name.rsplit("::", 1)[-1] == one.function and not f.template), None)
        if function is None:
            self.found.notes.append(
                f"{one.text.partition('(')[0]}: its function {one.function} is not in these sources"
            )
            return ""
        return _callable(function)

    def _schema(self, one: Registration) -> str:
        """A schema from a function's types, as torch makes it."""
        function = next((f for _, f in self.own if f.name.rsplit("::", 1)[-1] == one.function), None)
        if function is None or (function.reason and not function.parameters):
            return ""
        inputs = [f"{_schema_type(p.type)} _{k}" for k, p in enumerate(function.parameters)]
        of = function.returns
        returned = "()" if of.kind == "void" else _schema_type(of)
        return f"{one.text}({', '.join(inputs)}) -> {returned}"


def _callable(one: Function) -> str:
    """A function as callers have it: without the references that it returns."""
    if not one.rebinds or one.reason:
        return one.python
    return f"by_value({one.python}{', nothing=True' if one.returns.kind == 'void' else ''})"


def _schema_type(type_: Type) -> str:
    if type_.kind == "optional":
        return _schema_type(type_.item) + "?"
    if type_.kind == "vector":
        return _schema_type(type_.item) + "[]"
    if type_.kind == "tuple":
        return f"({', '.join(map(_schema_type, type_.of))})"
    table = {"tensor": "Tensor", "int": "int", "float": "float", "bool": "bool", "string": "str", "sizes": "int[]"}
    return table.get(type_.kind, "Scalar")
