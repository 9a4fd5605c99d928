"""The module of an extension: its sources' host functions as Python, which is what is printed and what runs."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rawkern.base.tree import text_of
from rawkern.extensions import calls, cpp, declarations, elements, flow, literals, loops, names, objects, operators
from rawkern.extensions import statements as plain_statements
from rawkern.extensions.classes import settle
from rawkern.extensions.context import bases
from rawkern.extensions.exports import Exports, bound
from rawkern.extensions.functions import reason_text, translate
from rawkern.extensions.own import settle_references, settle_specializations, settle_structs
from rawkern.extensions.program import ClassBinding, Function, Struct, Translation, Unit
from rawkern.extensions.structs import reached, written
from rawkern.extensions.tidy import double_quoted
from rawkern.extensions.units import Reader
from rawkern.extensions.untranslated import NotTranslated

#: Each of these modules registers the kinds of nodes that it translates.
_TRANSLATORS = (calls, declarations, elements, flow, literals, loops, names, objects, operators, plain_statements)


@dataclass
class Source:
    """A source of an extension."""

    path: str  # "" for text that is not in a file
    text: str | None = None
    name: str = ""
    cuda: bool = True
    written: str = ""  # the path as the module has it, where that is another one


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
    readers = []
    for source, variable in zip(sources, kernels, strict=True):
        unit = Unit(source.path or source.name, variable)
        readers.append(Reader(unit, include_dirs, defined, taken, structs))
        readers[-1].read(os.path.abspath(source.path) if source.path else source.name, source.text)
        units.append(unit)
    words = set(functions or ()).union(*(reader.words for reader in readers))
    for reader in readers:
        reader.finish(words)
    writer = _Writer(units, sources, options, include_dirs, name, functions)
    writer.link()
    found = writer.module(title)
    found.texts = {file: reader.texts[file][0] for reader in readers for file in reader.unit.files}
    return found


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


def _used(name: str, text: str) -> bool:
    return re.search(rf"(?<![\w.]){re.escape(name)}\b", text) is not None


def _expose(unit: Unit, made: ClassBinding) -> None:
    """Let a class be one of Python's: methods that are bound by their own names have others for the sources."""
    struct = unit.structs.get(made.struct)
    if struct is None:
        return
    struct.bound = True
    names = {one.name for one in (*made.methods, *made.static, *made.properties)}
    for one in struct.functions:
        if one.python in names and (one.rebinds or len(struct.methods.get(one.name.rsplit("::", 1)[-1], ())) > 1):
            one.python = f"_{one.python}"


def _bound_words(unit: Unit, made: ClassBinding) -> set[str]:
    """The names of Python that the binding of a class uses."""
    struct = unit.structs.get(made.struct)
    if struct is None:
        return set()
    said = {one.function for one in (*made.methods, *made.static, *made.properties)}
    methods = [one for around in bases(unit, struct) for name in said for one in around.methods.get(name, ())]
    free = [one for name in said for one in unit.functions.get(name, ())]
    return {struct.python, *(one.python for one in (*struct.constructors, *methods, *free))}


def _lambdas(unit: Unit) -> list[Any]:
    """The lambdas that a source binds."""
    bound = [*unit.bindings, *unit.registrations]
    bound += [one for made in unit.classes for one in (*made.methods, *made.static, *made.properties)]
    return [one.code for one in bound if one.code is not None]


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
        self.structs: list[Struct] = []
        self.methods: list[tuple[Struct, Function]] = []  # that are not yet translated
        self.code: dict[str, list[str]] = {}  # of the methods of each class
        self.own: list[tuple[Unit, Function]] = [
            (unit, one) for unit in units for all_ in unit.functions.values() for one in all_
        ]

    def link(self) -> None:
        """Let each unit see the functions, structs and constants of the others that it has none of its own for."""
        seen: dict[tuple[str, int], str] = {}
        kept = []
        launching = self._launching()
        for unit, one in self.own:  # a header that several sources include: one function, unless it launches
            key = (one.path, one.line)
            if key in seen and one.path != unit.path and one.name not in launching:
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
                for name, variable in other.variables.items():
                    unit.variables.setdefault(name, variable)
                for name, struct in other.structs.items():
                    unit.structs.setdefault(name, struct)
        for unit in self.units:
            settle(unit)
        self.structs = list({id(one): one for unit in self.units for one in unit.structs.values()}.values())
        self.methods = [(struct, one) for struct in self.structs for one in struct.functions]
        settle_references([*self.own, *((one.unit or self.units[0], one) for _, one in self.methods)])
        settle_specializations(self.own)
        settle_structs(self.units)
        for unit in self.units:
            for binding in unit.bindings:
                self._rename(binding.name)
            for made in unit.classes:
                _expose(unit, made)
        if self.exported is not None:
            for name in self.exported:
                self._rename(name)
        elif not bound(self.units):
            for _, one in self.own:
                if not one.template and not one.static:
                    self._rename(one.python)

    def _launching(self) -> set[str]:
        """Functions that use the kernels of the source they are in, themselves or through others."""
        words = {
            one.name: set(re.findall(r"\w+|<<<|::", text_of(one.node))) if one.node is not None else set()
            for _, one in self.own
        }
        kernels = {name for unit in self.units for name in unit.kernels}
        found = {name for name, said in words.items() if "<<<" in said or said & kernels}
        size = -1
        while size != len(found):
            size = len(found)
            bare = {name.rsplit("::", 1)[-1] for name in found}
            found |= {name for name, said in words.items() if said & bare}
        return found

    def _rename(self, name: str) -> None:
        """Keep a name for what is exported: the function of that name gets another one."""
        for _, one in self.own:
            if one.python == name:
                one.python = f"_{name}"

    def module(self, title: str) -> Translation:
        bodies = self._bodies()
        exports = Exports(self.units, self.own, self.name, self.exported, self.found).lines()
        late = "\n".join(code for unit in self.units for code in unit.late.values())
        structs = written(self.structs, "\n".join([*bodies, *exports, late]), self.code)
        text = "\n".join([*bodies, *exports, *structs])
        constants = self._constants(text)
        text = "\n".join([text, *constants])
        said = title or f"The host functions of {self._titles()}, translated from C++ by rawkern."
        parts = [f'"""{said}"""']
        parts.append("")
        parts.append("from __future__ import annotations")
        imports = [
            f"import {one}" for one in ("enum", "functools", "math", "warnings") if re.search(rf"\b{one}\.", text)
        ]
        parts += ["", *imports] if imports else []
        parts += ["", "import torch", "", self._imports(text), ""]
        parts += self._kernels(text)
        parts += ["", *constants] if constants else []
        parts += [line for block in structs for line in ("", "", block)]
        late = [f"{name} = {code}" for unit in self.units for name, code in unit.late.items() if _used(name, text)]
        parts += ["", "", *late] if late else []
        parts += [line for block in bodies for line in ("", "", block)]
        if exports:
            parts += ["", "", *exports]
        self.found.code = re.sub(r"\n{4,}", "\n\n\n", "\n".join(parts)).strip("\n") + "\n"
        self.found.notes = [note for unit in self.units for note in unit.notes]
        return self.found

    def _bodies(self) -> list[str]:
        """The functions' Python; of those for the device as well, only what others call."""
        found: dict[int, str] = {}
        waiting = [(k, unit, one) for k, (unit, one) in enumerate(self.own)]
        words: set[str] = {word for unit in self.units for made in unit.classes for word in _bound_words(unit, made)}
        words |= {word for unit in self.units for node in _lambdas(unit) for word in re.findall(r"\w+", text_of(node))}
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
            classes = reached(self.structs, words)
            waiting_methods, used = self.methods, False
            self.methods = []
            for struct, one in waiting_methods:
                if struct.python not in classes or not (one.python in words or struct.autograd):
                    self.methods.append((struct, one))
                    continue
                used = True
                if one.pure:
                    continue
                code = self._function(one.unit or self.units[0], one)
                self.code.setdefault(struct.python, []).append(code)
                words |= set(re.findall(r"\w+", code))
            if len(rest) == len(waiting) and not used:
                break
            waiting = rest
        self.own = [pair for k, pair in enumerate(self.own) if k in found]
        return [found[k] for k in sorted(found)]

    def _titles(self) -> str:
        return ", ".join(os.path.basename(one.path or one.name) for one in self.sources)

    def _function(self, unit: Unit, one: Function) -> str:
        try:
            if one.reason:
                raise NotTranslated(one.reason)
            one.code = translate(unit, one)
            self.found.functions.append(one.name)
            return one.code
        except NotTranslated as error:
            text = reason_text(one, error)
            self.found.untranslated[one.name] = text
            self.found.reasons[one.name] = error
        except Exception as error:  # a fault of the translation is that of one function, too
            text = reason_text(one, NotTranslated(f"its translation failed ({type(error).__name__}: {error})"))
            self.found.untranslated[one.name] = text
        one.reason = text
        head = f"def {one.python}(*arguments, **keywords):\n"
        head = f"@staticmethod\n{head}" if one.owner is not None and one.static else head
        return head + f"    raise rawkern.errors.UnsupportedError(\n        {text!r}\n    )"

    def _constants(self, text: str) -> list[str]:
        every = [pair for unit in self.units for pair in unit.definitions.items()]
        text += "\n".join(code for unit in self.units for name, code in unit.late.items() if _used(name, text))
        used: set[int] = set()
        while more := {k for k, (name, _) in enumerate(every) if k not in used and _used(name, text)}:
            used |= more
            text += "".join(f"\n{every[k][1]}" for k in more)  # what a constant is made of
        return list(dict.fromkeys(f"{every[k][0]} = {every[k][1]}" for k in sorted(used)))

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
        files = list(zip(self.units, self.sources, strict=True))
        of_device = {unit.variable for unit, source in files if source.cuda}
        for unit, source in files:
            # A source for the host may need the compiler, too: for the size of a type.
            if not re.search(rf"\b{unit.variable}\b", text) or (not source.cuda and unit.variable in of_device):
                continue
            if source.path:
                path = double_quoted(repr(source.written or source.path))
                lines.append(f"{unit.variable} = Kernels({path}{double_quoted(more)})")
            else:
                body = (source.text or "").replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
                lines.append(f'{unit.variable} = Kernels(code="""\n{body}"""{more})')
        return lines
