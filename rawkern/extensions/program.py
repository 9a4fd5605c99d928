"""What the sources of an extension declare: functions, structs, constants, kernels."""

from __future__ import annotations

import keyword
from dataclasses import dataclass, field
from typing import Any

from rawkern.extensions import cpp
from rawkern.extensions.types import ANY, Type
from rawkern.extensions.untranslated import NotTranslated
from rawkern.extensions.values import Value

_WRITTEN = """
    abs all any bool dict enumerate float int isinstance len list max min print range reversed round set sorted str sum
    tuple zip copied torch math warnings rawkern kernels RuntimeError ValueError TypeError IndexError OverflowError
    NotImplementedError self
"""
#: Names that the translation writes into modules, which names of the source must not hide.
RESERVED = frozenset([*keyword.kwlist, *_WRITTEN.split(), *(name for name in vars(cpp) if not name.startswith("_"))])


def python_field(name: str) -> str:
    """The name of a member in Python."""
    return name + "_" if name in RESERVED else name


@dataclass
class Parameter:
    """A parameter of a function, or of a template."""

    name: str  # in C++
    python: str
    type: Type = ANY
    default: Any = None  # the node of its default value
    keyword: str = "value"  # of a template's: "type", "value" or "pack"


@dataclass
class Function:
    """A function for the host."""

    name: str  # with its namespaces
    python: str
    parameters: list[Parameter] = field(default_factory=list)
    template: list[Parameter] = field(default_factory=list)
    returns: Type = ANY
    node: Any = None  # of its definition
    lines: list[int] = field(default_factory=list)
    path: str = ""
    declared: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    unit: Unit | None = None
    owner: Struct | None = None  # of a method
    constructor: bool = False
    const: bool = False  # a method that leaves its object alone
    virtual: bool = False
    pure: bool = False  # virtual, and only those of derived structs have a body
    reason: str = ""  # why it is not translated
    specializes: bool = False  # it is a template's function for the template arguments of these nodes
    template_arguments: list[Any] = field(default_factory=list)
    #: Of a template: the conditions under which one of its specializations is meant, with that function.
    specializations: list[tuple[str, Function]] = field(default_factory=list)
    static: bool = False
    device: bool = False  # it is marked for the device, too
    code: str = ""  # its Python
    rebinds: set[str] = field(default_factory=set)  # parameters by reference that it assigns as a whole
    targets: set[str] = field(default_factory=set)  # pointers to numbers that are references: it says `*name` alone
    variadic: bool = False  # in C's way
    pack_name: str = ""
    pack_types: str = ""
    pack: str = ""  # the Python of the parameters at its end that a template's pack has the types of

    @property
    def line(self) -> int:
        return self.lines[0] if self.lines else 0


@dataclass
class Struct:
    """A struct that the host fills."""

    name: str
    python: str
    fields: dict[str, Type] = field(default_factory=dict)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)  # of members that are arrays
    defaults: dict[str, str] = field(default_factory=dict)
    base: str = ""
    aliases: dict[str, Type] = field(default_factory=dict)
    reason: str = ""
    path: str = ""
    line: int = 0
    parameters: list[Parameter] = field(default_factory=list)  # of a template
    template: bool = False
    special: str = ""  # why it cannot be made: a destructor of its own does something ...
    arguments: list[Any] = field(default_factory=list)  # of a specialization: the nodes of its template arguments
    standing: list[str] = field(default_factory=list)  # and the template's parameters that its own ones stand for
    #: Of a template: its specializations, each with the condition under which it is meant once that is settled.
    specializations: list[tuple[str, Struct]] = field(default_factory=list)
    base_type: Type | None = None
    methods: dict[str, list[Function]] = field(default_factory=dict)  # by name in C++
    constructors: list[Function] = field(default_factory=list)
    initial: dict[str, Any] = field(default_factory=dict)  # first values of members that are made for each object
    constants: dict[str, Any] = field(default_factory=dict)  # static ones: nodes of their type and value
    bound: bool = False  # Python makes objects of it
    autograd: bool = False  # a torch::autograd::Function

    @property
    def functions(self) -> list[Function]:
        return [*self.constructors, *(one for found in self.methods.values() for one in found)]


@dataclass
class Kernel:
    """A ``__global__`` function."""

    name: str  # with its namespaces
    template: list[Parameter] = field(default_factory=list)
    types: list[Type] = field(default_factory=list)
    is_template: bool = False
    names: list[str] = field(default_factory=list)
    overloads: list[Kernel] = field(default_factory=list)  # others of its name

    def meant(self, given: int, count: int | None = None) -> Kernel:
        """The overload that so many template arguments, and arguments, are for."""
        every = [self, *self.overloads]
        fitting = [one for one in every if count in (None, len(one.types))] or every
        return next((one for one in fitting if len(one.template) == given), fitting[0])


@dataclass
class Unit:
    """A source with the headers of its own that it includes."""

    path: str
    variable: str = "kernels"  # what holds its kernels in the module
    functions: dict[str, list[Function]] = field(default_factory=dict)  # by name without namespaces
    structs: dict[str, Struct] = field(default_factory=dict)
    methods: dict[str, list[Function]] = field(default_factory=dict)  # of all structs
    constants: dict[str, Value] = field(default_factory=dict)
    lazy: dict[str, tuple[Any, list[int]]] = field(default_factory=dict)  # constants whose value is not yet translated
    variables: dict[str, Any] = field(default_factory=dict)  # those of the file that are not constant, as Variable
    late: dict[str, str] = field(default_factory=dict)  # their lines of the module, which may name structs
    aliases: dict[str, Any] = field(default_factory=dict)  # name to the node of a type
    kernels: dict[str, Kernel] = field(default_factory=dict)
    definitions: dict[str, str] = field(default_factory=dict)  # lines of the module for constants
    members: dict[str, str] = field(default_factory=dict)  # static constants of structs, with the type's text
    enums: set[str] = field(default_factory=set)
    namespaces: set[str] = field(default_factory=set)
    files: list[str] = field(default_factory=list)  # the source and its own headers
    bindings: list[Binding] = field(default_factory=list)
    classes: list[ClassBinding] = field(default_factory=list)
    enumerations: list[EnumBinding] = field(default_factory=list)
    attributes: dict[str, Any] = field(default_factory=dict)  # of the module: name to the node of the value
    submodules: dict[str, str] = field(default_factory=dict)  # "a.b" to the docstring
    registrations: list[Registration] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # what was not understood outside of functions


@dataclass
class Binding:
    """A function under the name that PYBIND11_MODULE gives it."""

    name: str
    function: str  # in C++
    template: str = ""  # arguments of its instance, as text
    overload: str | None = None  # the types of its parameters, as text, where it is one of several
    doc: str = ""
    names: list[str] = field(default_factory=list)
    defaults: dict[str, str] = field(default_factory=dict)  # name to the text of C++
    code: Any = None  # the node of a lambda instead of a function
    line: int = 0
    lines: list[int] = field(default_factory=list)
    module: str = ""  # the submodule, as in `Unit.submodules`


@dataclass
class ClassBinding:
    """A class under the name that ``py::class_`` or ``torch::class_`` gives it."""

    name: str
    struct: str  # in C++
    namespace: str = ""  # of torch.classes
    constructors: list[tuple[list[str], Binding]] = field(default_factory=list)  # types of parameters
    methods: list[Binding] = field(default_factory=list)
    static: list[Binding] = field(default_factory=list)
    fields: dict[str, str] = field(default_factory=dict)  # name to the member
    properties: list[Binding] = field(default_factory=list)
    module: str = ""
    line: int = 0


@dataclass
class EnumBinding:
    """An enumeration under the name that ``py::enum_`` gives it."""

    name: str
    values: dict[str, Any] = field(default_factory=dict)  # name to the node of the enumerator
    module: str = ""
    exported: bool = False  # its enumerators are names of the module, too


@dataclass
class Registration:
    """A line of TORCH_LIBRARY."""

    namespace: str
    what: str  # "def" or "impl"
    text: str  # schema or name
    function: str = ""
    key: str = ""
    code: Any = None  # the node of a lambda instead of a function
    lines: list[int] = field(default_factory=list)


@dataclass
class Translation:
    """What the translation of sources makes."""

    code: str = ""  # the module's Python
    functions: list[str] = field(default_factory=list)  # translated, by their names in C++
    untranslated: dict[str, str] = field(default_factory=dict)  # the others, with the reason
    notes: list[str] = field(default_factory=list)
    texts: dict[str, str] = field(default_factory=dict)  # the files that were read
    exports: list[str] = field(default_factory=list)
    reasons: dict[str, NotTranslated] = field(default_factory=dict)

    @property
    def files(self) -> list[str]:
        return list(self.texts)
