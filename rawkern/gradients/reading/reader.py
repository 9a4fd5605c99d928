"""A kernel's text read for one shape of launches: which loops are written out, which arrays are of vectors."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from rawkern.base.tree import text_of
from rawkern.errors import NotDifferentiable
from rawkern.gradients.ir import Item, Kernel, Store, Value, clone, walk
from rawkern.gradients.reading.context import Context, Settings
from rawkern.gradients.reading.lower import lowered
from rawkern.gradients.reading.places import NeedsStart, NeedsType, NeedsUnrolling, OfLoop, ReadAgain, Unroll
from rawkern.gradients.reading.preprocess import Headers
from rawkern.gradients.reading.source import File
from rawkern.gradients.reading.syntax import Where, identifier, parameters_of
from rawkern.gradients.types import Type

LONG = 1000  # values of a kernel of which loops are not written out for local arrays that can be in memory
Made = TypeVar("Made")
Shape = tuple[int, int, int]
Failed = NotDifferentiable | ReadAgain  # why a kernel is not read with some settings


@dataclass(frozen=True)
class Launched:
    """The launches that a derivation is for: block dimensions, axes of the grid with one block, shared memory."""

    block: Shape
    units: tuple[bool, bool, bool] | None = None  # None: those that the kernel, or what it may call, does not mention
    shared_mem: int = 0  # dynamic, in bytes
    constants: Mapping[str, int] = field(default_factory=dict)  # parameters that have these values


@dataclass(frozen=True)
class _Reading:
    """A kernel as it was read, which stays as it is; `views`: what its arrays are cast to."""

    kernel: Kernel
    views: Mapping[str, Any]


@dataclass
class Reader:
    """Reads a kernel, again where that asks for it; `name` may be an instance of a template, ``axpy<float, 4>``."""

    text: str
    name: str
    where: Where
    options: Sequence[str]
    launched: Launched
    vectors: bool = True  # whether an array that is only read through a cast to vectors becomes one of them
    outline: bool = True  # whether device functions that compute a number from numbers stay functions
    updated: frozenset[str] = frozenset()  # arrays of which += reads what there is and sets the sum
    headers: Headers | None = None
    outlined: bool = False  # whether any function stays one
    assume: bool = True  # whether parameters have the values of `Launched.constants`

    _read: dict[Settings, _Reading | Failed] = field(default_factory=dict)  # the readings so far
    _written_for: frozenset[int] = frozenset()  # local arrays for which loops are written out

    def __post_init__(self) -> None:
        forced = [o for o in self.options if o.startswith(("-include", "--pre-include"))]
        if forced:  # which is there in the derived text, too
            raise self.where.refuse(1, f"the option {forced[0]} includes a header", "write that as an #include")
        self.file = File(self.text, tuple(self.options), self.where, self.headers)
        self.where = self.where.within(self.file.preprocessed.lines)
        self.base, self.arguments, self.overload = self._called()
        text = self.file.text
        for name, found in self.file.functions.items():
            for node, _ in found if name != self.base else ():
                own = text_of(node)
                text = text.replace(own, "") if own.startswith("__global__") else text
        if not self.assume:
            self.launched = replace(self.launched, constants={})
        x, y, z = (not re.search(rf"\b(blockIdx|gridDim)\s*\.\s*{axis}\b", text) for axis in "xyz")
        launched, self.units = self.launched, self.launched.units or (x, y, z)
        along_x, along_y, along_z = (1 if unit else None for unit in self.units)
        self.settings = Settings(
            launched.block, (along_x, along_y, along_z), launched.shared_mem, frozenset(launched.constants.items()),
            outline=self.outline, updated=self.updated,
        )  # fmt: skip

    def variant(self, outline: bool, updated: frozenset[str]) -> Reader:
        """One of the same source that begins again, and reads nothing twice."""
        other = copy(self)
        own = self.settings
        other.settings = Settings(own.block, own.grid, own.shared_mem, own.constants, outline=outline, updated=updated)
        other.outlined, other._written_for = False, frozenset()
        return other

    def settle(self, make: Callable[[Kernel], Made | Unroll]) -> Made:
        """Call with the kernel; loops that this asks for, or the reading, are written out.

        Raises
        ------
        NotDifferentiable
            The kernel is not read in any way.
        """
        while True:
            read = self._typed()
            if isinstance(read, _Reading) and self._written_for and sum(1 for _ in walk(read.kernel.body)) > LONG:
                written_out, self.settings = self.settings, self._in_memory(self._written_for)
                try:
                    return self.settle(make)
                except NotDifferentiable:
                    self.settings = written_out
            found = make(clone(read.kernel)) if isinstance(read, _Reading) else read
            if isinstance(found, NeedsStart):
                self.settings = replace(self.settings, starts=self.settings.starts | {found.start})
            elif isinstance(found, NeedsUnrolling):
                self.settings = self._unrolled(found.asked)
            elif isinstance(found, Unroll):
                self.settings = self._unrolled(found)
            elif isinstance(found, OfLoop):
                raise found.reason
            elif isinstance(found, NotDifferentiable | ReadAgain):
                raise found
            else:
                return found

    def _unrolled(self, asked: Unroll) -> Settings:
        """With the fewest loops written out that help; where none can be, with a local array in memory."""
        single = [frozenset({node}) for node in asked.nodes]
        several = [frozenset(asked.nodes[:k]) for k in range(2, len(asked.nodes) + 1)]
        reasons: list[Exception] = []
        for nodes in (*single, *several):
            if not nodes <= self.settings.unroll:
                reason = self._hindered(nodes)
                if reason is None:
                    self._written_for |= frozenset() if asked.array is None else {asked.array}
                    return replace(self.settings, unroll=self.settings.unroll | nodes)
                reasons.append(reason)
        if asked.array is not None:
            return self._in_memory(frozenset({asked.array}))
        others = [r for r in reasons if not isinstance(r, OfLoop)]  # what else is in the way says more
        raise others[0] if others else asked.reason

    def _in_memory(self, arrays: frozenset[int]) -> Settings:
        """With local arrays in memory, and no loops written out but those that ask for it then."""
        self._written_for = frozenset()
        return replace(self.settings, in_memory=self.settings.in_memory | arrays, unroll=frozenset())

    def again(self, more: frozenset[int] = frozenset()) -> Kernel | None:
        """Another copy of the kernel that `settle` called with, with more loops written out; None where none can be."""
        found = self._written_out(more)
        return clone(found.kernel) if isinstance(found, _Reading) else None

    def _written_out(self, more: frozenset[int]) -> _Reading | Failed:
        return self._reading(replace(self.settings, unroll=self.settings.unroll | more))

    def _items(self) -> list[Item]:
        """What the kernel consists of; nothing where it is not read."""
        found = self._reading(self.settings)
        return list(walk(found.kernel.body)) if isinstance(found, _Reading) else []

    def added_and_read(self) -> frozenset[str]:
        """Arrays that the kernel adds to with += and reads or sets as well."""
        items = self._items()
        own = [i for i in items if isinstance(i, Store) and not i.place.array.shared]
        used = {i.place.array.name for i in own if not i.adds}
        used |= {i.attr.array.name for i in items if isinstance(i, Value) and i.op == "load"}
        return frozenset(i.place.array.name for i in own if i.adds == "plain") & used

    def overwritten(self) -> bool:
        """Whether the kernel reads global memory that it writes."""
        items = self._items()
        written = {i.place.array for i in items if isinstance(i, Store) and not i.place.array.shared}
        return any(isinstance(i, Value) and i.op == "load" and i.attr.array in written for i in items)

    def _hindered(self, nodes: frozenset[int]) -> Exception | None:
        """Why loops cannot be written out: by trying."""
        found = self._written_out(nodes)
        if isinstance(found, NeedsUnrolling):
            asked = found.asked
            return None if asked.nodes or asked.array is not None else asked.reason
        return found if isinstance(found, NotDifferentiable | OfLoop) else None

    def _typed(self) -> _Reading | Failed:
        """The kernel with arrays of the types that it reads them as."""
        while isinstance(found := self._reading(self.settings), NeedsType):
            if found.array in dict(self.settings.retyped):
                return self.where.refuse(
                    1, f"{found.array} is cast to several types", "give each a pointer of its own to the same type"
                )
            self.settings = self._retyped(found.array, found.kind)
        if not isinstance(found, _Reading):
            return found
        for name, seen in found.views.items() if self.vectors else ():
            view = next(iter(seen))
            if len(seen) == 1 and view and name in found.kernel.arrays and name not in dict(self.settings.retyped):
                viewed = self._reading(self._retyped(name, view))
                if isinstance(viewed, _Reading):  # else its elements are read one by one
                    found, self.settings = viewed, self._retyped(name, view)
        return found

    def _retyped(self, array: str, kind: Type) -> Settings:
        return replace(self.settings, retyped=self.settings.retyped | {(array, kind)})

    def _called(self) -> tuple[str, list[str], str | None]:
        """The name of the kernel's definition, its template's arguments, and the types that select an overload."""
        name, selects, types = self.file.preprocessed.expanded(self.name).partition("(")
        base, _, rest = name.partition("<")
        arguments = [a.strip() for a in rest.rpartition(">")[0].split(",")] if rest else []
        plain = (self.file.plain(base) or "") if "::" in base else base.strip()
        return plain, arguments, types.rpartition(")")[0] if selects else None

    def _definition(self) -> tuple[Any, Any]:
        """The kernel's definition and its template's parameters, among all functions of its name."""
        found = self.file.functions.get(self.base, [])
        kernels = [f for f in found if _is_kernel(f[0])] if len(found) > 1 else found
        if self.overload is not None:
            wanted = re.sub(r"\s", "", self.overload)
            kernels = [f for f in kernels if re.sub(r"\s", "", ",".join(map(_unnamed, parameters_of(f[0])))) == wanted]
        if len(kernels) > 1:
            types = ", ".join(map(_unnamed, parameters_of(kernels[0][0])))
            raise self.where.refuse(1, f"{self.base} has several overloads", f"name one of them: {self.base}({types})")
        if not kernels:
            reason = "no function of this name, with these parameter types, is at the top level of the source"
            raise self.where.refuse(
                1, reason, "define the kernel there, and spell its parameter types as the source does"
            )
        return kernels[0]

    def _reading(self, settings: Settings) -> _Reading | Failed:
        """The kernel as it is read so, or why it is not."""
        if settings not in self._read:
            try:
                self._read[settings] = self._lowered(settings)
            except (NotDifferentiable, ReadAgain) as error:
                self._read[settings] = error.with_traceback(None)
        found = self._read[settings]
        self.outlined |= isinstance(found, _Reading) and bool(found.kernel.functions)
        return found

    def _lowered(self, settings: Settings) -> _Reading:
        file, where, base = self.file, self.where, self.base
        if file.keywords:
            raise where.refuse(1, f"macros redefine {', '.join(file.keywords)}", "use names of their own")
        definition = self._definition()
        if base in file.unclear:
            raise where.refuse(1, f"{base} is also something else in the source", "give it a name of its own")
        ctx = Context(file, where, settings)
        return _Reading(lowered(ctx, *definition, self.arguments), ctx.views)


def _is_kernel(definition: Any) -> bool:
    head = definition.text[: definition.child_by_field_name("declarator").start_byte - definition.start_byte]
    return b"__global__" in head


def _unnamed(parameter: Any) -> str:
    """The type of a parameter as it is written: ``const float* __restrict__ x`` as ``const float*``."""
    declarator = parameter.child_by_field_name("declarator")
    name = identifier(declarator) if declarator is not None else None
    text = re.sub(rf"\b(__restrict(__)?{'|' + name if name else ''})\b", "", text_of(parameter))
    return re.sub(r"\s*\*\s*", "*", " ".join(text.split()))
