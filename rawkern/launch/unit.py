"""What launches know of a kernel, and what it is in one build of its source."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from rawkern.arguments.addresses import storage
from rawkern.arguments.signature import Param, Signature, make_signature
from rawkern.compile import lookup, names, programs
from rawkern.compile.programs import Entry, Program
from rawkern.engines.devices import CPU
from rawkern.errors import CompileError, UnsupportedError
from rawkern.launch import level, modes
from rawkern.launch.builds import Build, Unit

if TYPE_CHECKING:
    from rawkern.engines.cpu.checker.findings import Finding
    from rawkern.launch.reports import Report


Compiled = Callable[[Build, tuple[str, ...]], Program]  # a program of a build that has the names that are asked for
_MOST_BEHIND = 64  # tensors of earlier launches that a kernel knows


class Kernel:
    """A kernel of a unit by its name, and what it is in the source as it is now: all that launches know of it.

    What users hold has one of these and its plans, and a plan has the first alone: there is no circle, so all that a
    kernel takes is given back with the last of them.
    """

    __slots__ = ("__weakref__", "asked_name", "found", "unit")

    def __init__(self, unit: Unit, asked_name: str | None) -> None:
        self.unit = unit
        self.asked_name = asked_name  # None where the source has one kernel, and none was asked for
        self.found: State | None = None  # in the last build that was looked at

    @property
    def name(self) -> str:
        """As it was asked for, or as the source has it."""
        if self.asked_name is not None:
            return self.asked_name
        return self.found.entry.name if self.found else "kernel"

    def current(self, args: Sequence[Any], kwargs: Mapping[str, Any], program: Compiled | None = None) -> State:
        """What the kernel is in the source as it is now, for a launch with these arguments."""
        state = self.found
        if state is None or state.build.stale():
            state = self.state(device_of(args, kwargs), program)
        return state

    def build(self) -> Build:
        """The reading of the source as it is now; nothing is compiled."""
        with self.unit.lock:
            return self.unit.current()

    def state(self, device: torch.device | None = None, program: Compiled | None = None) -> State:
        """The state in the build of the source as it is now; what is not compiled is compiled for ``device``.

        With a ``program`` the kernel is looked up in that of a build and ``asked`` names.
        """
        with self.unit.lock:
            build = self.unit.current()
            state = self.found
            if state is None or state.build is not build:
                state = self.found = find(build, self.asked_name, device, program)
            return state


class State:
    """What a kernel is in one build of its source; replaced as a whole, so that a launch sees one of them only."""

    __slots__ = (
        "__weakref__",
        "_behind",
        "_written",
        "asked",
        "build",
        "engine_kernels",
        "entry",
        "name",
        "signature",
        "strided",
    )

    def __init__(
        self, build: Build, entry: Entry, name: str | None, asked: tuple[str, ...], signature: Signature
    ) -> None:
        self.build = build
        self.entry = entry
        self.name = name  # as the user wrote it
        self.asked = asked
        self.signature = signature
        self.strided = build.settings.strided
        self.engine_kernels: dict[object, Any] = {}
        self._written: tuple[frozenset[int] | None] | None = None
        self._behind: list[weakref.ref[torch.Tensor]] = []  # tensors that addresses have led to

    def engine_kernel(self, device: torch.device) -> Any:
        """Load the kernel on a device, once for each mode. Call it under the build's lock."""
        place = modes.place(device)
        found = self.engine_kernels.get(place)
        if found is None:
            same = self.entry_in(self.build.program(self.build.architecture(device), self.asked))
            found = self.build.engine_module(device, self.asked).kernel(
                same.symbol, self.signature, host=self, mode=modes.current()
            )
            self.engine_kernels[place] = found
        return found

    def may_write(self, param: Param) -> bool | None:
        """Whether the kernel may write to what a pointer leads to; None where its code does not tell."""
        if param.const:
            return False
        with self.build.lock:
            if self._written is None:
                self._written = (self._found_written(),)
        written = self._written[0]
        return None if written is None else self.signature.offsets[param.index] in written

    def _found_written(self) -> frozenset[int] | None:
        """Where the parameters stand that lead to what is written, by the code for the CPU engine."""
        from rawkern.engines.cpu.analysis.plan import make_plan
        from rawkern.engines.cpu.analysis.written import written
        from rawkern.engines.cpu.runtime.jit import Translation

        if self.build.source.kind in ("cubin", "fatbin"):
            return None
        try:
            program = self.build.program(self.build.architecture(CPU), self.asked)
            code = Translation(program.ptx)
            return written(make_plan(code.parsed(), self.entry_in(program).symbol, code.globals(), "line"))
        except (CompileError, UnsupportedError, ValueError):
            return None

    def report(self, finding: Finding) -> Report:
        """What was found in a launch, in words."""
        from rawkern.launch import reports

        source = self.build.source
        return reports.report_of(finding, self.entry.name, source, programs.own_files(source))

    def explain(self, finding: Finding) -> Exception:
        """The error of a launch that ends with what was found."""
        from rawkern.launch import reports

        return reports.error_of((self.report(finding),))

    def given(self) -> list[tuple[int, int]]:
        """Start and size in bytes of the memory of tensors that launches may use besides their arguments."""
        return [storage(t) for t in level.also() if t.device.type == "cpu"]

    def reachable(self, address: int, values: Sequence[int | bytes]) -> list[tuple[int, int]]:
        """The same for live tensors to which addresses in `values` lead; `address` is the one wanted.

        Searching all Python objects is slow, so tensors found before are tried first.
        """
        from rawkern.launch import reachable

        before = [t for ref in self._behind if (t := ref()) is not None]
        found = reachable.still_reached(before, values)
        if not any(start <= address < start + size for start, size in map(storage, found)):
            found = reachable.reached((), values, "cpu")
            new = {storage(t)[0] for t in found}
            others = [t for t in before if storage(t)[0] not in new][: max(_MOST_BEHIND - len(found), 0)]
            self._behind = [weakref.ref(t) for t in (*found, *others)]
        return [storage(t) for t in found]

    def led_to(self) -> list[weakref.ref[torch.Tensor]]:
        """The tensors that addresses have led to, in this launch and in some before."""
        return self._behind

    def entry_in(self, program: Program) -> Entry:
        """The kernel in a program for another architecture; its symbol may differ, as that of types of cub's does."""
        same = lookup.by_symbol(program, self.entry.symbol)
        if same is None and self.name is not None:
            same = lookup.entry(program, self.name)
        if same is None or _types(same) != _types(self.entry):
            found = "other parameters for this kernel" if same else "no such kernel"
            raise ValueError(
                f"{self.entry.name}: compiled for {program.arch} the source has {found}; "
                "keep __CUDA_ARCH__ out of its declaration"
            )
        return same


def find(build: Build, name: str | None, device: torch.device | None, compiled: Compiled | None = None) -> State:
    """The kernel of a name, or the only one, in a build; what is not compiled is compiled for `device`.

    With `compiled` it is looked up in that program, which need not be the one that runs.

    Raises
    ------
    CompileError, ValueError
        The source does not compile, or has no such kernel.
    """
    asked: tuple[str, ...] = ()
    if name is not None and name not in build.settings.name_expressions and "<" in name.partition("(")[0]:
        asked = (name,) if build.source.binary is None else ()  # what is compiled has what it has
    arch = build.architecture(device) if device is not None else None
    compiled = compiled or (lambda build, asked: build.program(arch, asked))
    program = compiled(build, asked)
    entry = lookup.entry(program, name)
    if entry is None and name is not None and "(" in name and build.source.binary is None:
        # An overload by types as the source spells them (typedefs, macros): the compiler has to read them.
        asked = (name,)
        program = compiled(build, asked)
        entry = lookup.entry(program, name)
    if entry is None:
        raise ValueError(lookup.unknown(program, name))
    parameters = programs.parameter_names(program, entry)
    known = build.settings.structs
    signature = make_signature(entry, parameters, lambda name: known.get(name) or programs.struct_layout(program, name))
    signature = signature if build.settings.tracked else replace(signature, tracked=False)
    return State(build, entry, name, asked, signature)


def device_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.device | None:
    """Guess where a launch will run, so that the first compilation is for that; binding decides."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, torch.Tensor) and value.device.type in ("cpu", "cuda"):
            return CPU if value.device.type == "cpu" else value.device
    return None


def _types(entry: Entry) -> tuple[str, ...]:
    return tuple(map(names.for_any_architecture, entry.params))
