"""A kernel of a PTX module to machine code in memory: through the disk cache, or emitted as LLVM IR and compiled."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import cache
from typing import TYPE_CHECKING

from rawkern.base import cache as disk
from rawkern.base.forking import Lock
from rawkern.base.llvm import FULL, Cpu, LoadedObject, binding, host, object_file, optimization
from rawkern.base.scopes import uncollected
from rawkern.engines.cpu.emit.instrument import Instrument
from rawkern.engines.cpu.needs import ModuleNeeds, Needs
from rawkern.engines.cpu.records import Globals
from rawkern.engines.cpu.runtime.scheduler import BLOCK_BEGINS, SWITCH, scheduler, suffix

# What reads PTX and writes LLVM IR is imported by what does: 60 modules that code from the disk cache does not need.
if TYPE_CHECKING:
    from rawkern.engines.cpu.emit.program import Lowered
    from rawkern.engines.cpu.ptx.data import Ptx


_OWN_NAME = re.compile(rb"rk_\w+")  # of a scheduler's function, or an instrument's
_lock = Lock()
_resident: list[LoadedObject] = []  # schedulers, instruments' own code, functions of the library
_linked: dict[str, int] = {}  # bytes of the library's functions that are found, by symbol
_unloaded: dict[str, bytes] = {}  # object files of those that no kernel has been loaded with yet
#: Functions that are loaded, and that nothing which was loaded later calls yet, by the names it would call them by.
_callable: dict[str, tuple[LoadedObject, str]] = {}
# Instruments whose own code is loaded; where launches enter schedulers that are, by instrument, kind and CPU.
_instruments: set[type[Instrument]] = set()
_schedulers: dict[tuple[type[Instrument], bool, Cpu], list[int]] = {}


@dataclass(frozen=True)
class Code:
    """Machine code of one kernel for one shape of block."""

    object: bytes
    library: tuple[str, ...]  # symbols of shared functions that it calls, which are loaded
    size: int  # bytes of code, with those
    waiting: bool
    shared_static: int
    frame_bytes: int
    recursive: bool
    spins: bool  # warps may wait for those of other blocks
    sites: tuple[str, ...]
    table: dict | None = None  # of the instrument


@cache
def own_version() -> str:
    """What code of another state of the engine, or of what it shares records with, is told from."""
    engine = os.path.dirname(os.path.dirname(__file__))
    base = os.path.join(os.path.dirname(os.path.dirname(engine)), "base")
    return disk.state_of(engine, os.path.join(base, "llvm.py"), os.path.join(base, "records.py"))


def _key(what: str, cpu: Cpu, instrument: type[Instrument], *more: str) -> str:
    """The name of machine code in the disk cache."""
    parts = (*more, _made_by(cpu), instrument.name, optimization.current)
    return f"{what}-{hashlib.sha256(json.dumps(parts).encode()).hexdigest()}"


@cache
def _made_by(cpu: Cpu) -> str:
    """What all machine code for a CPU depends on."""
    parts = cpu.triple, cpu.name, cpu.features, binding().llvm_version_info, own_version()
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


class Translation:
    """A PTX module on its way to machine code; parsed at most once, and not at all when all its code is cached."""

    def __init__(self, text: str, every_variable: bool = False):
        self.text, self._every_variable = text, every_variable
        self.key = hashlib.sha256(text.encode()).hexdigest()
        self._parsed: Ptx | None = None

    def parsed(self) -> Ptx:
        if self._parsed is None:
            from rawkern.engines.cpu.ptx import parser

            self._parsed = parser.parse(self.text)
        return self._parsed

    def globals(self) -> Globals:
        """Layout of the module's variables, from the disk cache where it is there."""
        key = f"globals-{'all-' * self._every_variable}{self.key}-{own_version()}"
        stored = disk.get_record(key)
        if stored is not None:
            fields, image = stored
            pointers = tuple((a, b, c) for a, b, c in fields["pointers"])
            return Globals(fields["offsets"], fields["sizes"], fields["size"], image, pointers)
        from rawkern.engines.cpu.analysis.storage import lay_out_globals

        layout = lay_out_globals(self.parsed(), self._every_variable)
        fields = {"offsets": layout.offsets, "sizes": layout.sizes, "size": layout.size, "pointers": layout.pointers}
        disk.put_record(key, fields, layout.image)
        return layout

    def needs(self) -> ModuleNeeds:
        """What the module's kernels need of a GPU; no code is generated."""
        key = f"needs-{self.key}-{own_version()}"
        stored = disk.get_record(key)
        if stored is not None:
            rows = stored[0]["kernels"].items()
            kernels = {name: Needs(*row, cluster=cluster and tuple(cluster)) for name, (*row, cluster) in rows}
            return ModuleNeeds(**{**stored[0], "kernels": kernels})
        from rawkern.engines.cpu.analysis.storage import needs_of

        found = needs_of(self.parsed())
        disk.put_record(key, {**vars(found), "kernels": {name: astuple(n) for name, n in found.kernels.items()}})
        return found

    def understood(self, kernel: str) -> None:
        """Raise UnsupportedError for a kernel of which something is not understood."""
        from rawkern.engines.cpu.analysis.storage import reached

        reached(self.parsed(), kernel)

    def most_live(self, kernel: str) -> int | None:
        """Registers of 32 bits that a thread's values take at once, at most; None where functions are called."""
        from rawkern.engines.cpu.analysis import control_flow, dataflow
        from rawkern.engines.cpu.analysis.storage import reached

        functions = reached(self.parsed(), kernel)
        return dataflow.most_live(control_flow.build(functions[0])) if len(functions) == 1 else None

    def code(self, kernel: str, layout: Globals, tid_shape: str, instrument: type[Instrument] = Instrument) -> Code:
        """Machine code of `kernel` for blocks of one shape (`grid.shape_of`), compiled or from the disk cache."""
        lie = ["all variables"] * self._every_variable + [layout.moved] * bool(layout.moved)  # where offsets come from
        key = _key("code", host(), instrument, self.key, kernel, tid_shape, *lie)
        stored = disk.get_record(key)
        if stored is not None and link(dict.fromkeys(stored[0]["library"])) is not None:
            fields, body = stored
            fields |= {name: tuple(fields[name]) for name in ("library", "sites")}
            return Code(body, **fields)
        code = self.compile(kernel, layout, tid_shape, instrument)
        fields = {**vars(code)}
        body = fields.pop("object")
        disk.put_record(key, fields, body)
        return code

    def compile(self, kernel: str, layout: Globals, tid_shape: str, instrument: type[Instrument] = Instrument) -> Code:
        cpu = host()
        lowered = self.lower(kernel, layout, tid_shape, cpu, instrument)
        shared = link(lowered.library)
        assert shared is not None
        body = emit(lowered, cpu)
        return Code(
            body,
            tuple(lowered.library),
            len(body) + shared,
            lowered.waiting,
            lowered.shared_static,
            lowered.frame_bytes,
            lowered.recursive,
            "@rk_yield(" in lowered.text,
            tuple(lowered.sites),
            lowered.table,
        )

    def lower(
        self, kernel: str, layout: Globals, tid_shape: str, cpu: Cpu, instrument: type[Instrument] = Instrument
    ) -> Lowered:
        from rawkern.engines.cpu.analysis.plan import make_plan
        from rawkern.engines.cpu.emit.program import lower

        with uncollected:  # hundreds of thousands of objects
            plan = make_plan(self.parsed(), kernel, layout, tid_shape)
            return lower(plan, cpu.arithmetic(), instrument, repr(astuple(cpu)), optimization.current == FULL)


def module_text(lowered: Lowered, cpu: Cpu) -> str:
    """The kernel with its own part of the scheduler."""
    parts = scheduler(lowered.instrument, lowered.waiting, cpu, optimization.current)
    own = parts.own.replace(BLOCK_BEGINS, lowered.block_begins)
    # LLVM takes a declaration only once
    known = {line for line in own.splitlines() if line.startswith("declare")}
    lines = [*_once(own), *(line for line in lowered.text.splitlines() if line not in known)]
    return parts.calls("\n".join(lines))


def _once(text: str) -> list[str]:
    """Lines of a text, each declaration once."""
    lines = text.splitlines()
    return list(dict.fromkeys(x for x in lines if x.startswith("declare"))) + [
        x for x in lines if not x.startswith("declare")
    ]


def emit(lowered: Lowered, cpu: Cpu) -> bytes:
    """Optimize and generate an object file; one for another kind of CPU shows what that takes, and how large it is."""
    scheduled = scheduler(lowered.instrument, lowered.waiting, cpu).names
    known = (*SWITCH, *scheduled, *lowered.instrument.own, *lowered.library)
    return object_file(module_text(lowered, cpu), cpu, lowered.text.count("\n"), known, optimization.current)


def link(functions: Mapping[str, str | None]) -> int | None:
    """Find functions of the library for kernels that are loaded after it, and return how many bytes they have.

    They are compiled from their texts where the disk cache does not have them; None for one that then has no text.
    """
    bodies = {
        symbol: function_object(symbol, text, host()) for symbol, text in functions.items() if symbol not in _linked
    }
    known = {symbol: body for symbol, body in bodies.items() if body is not None}
    if len(known) < len(bodies):
        return None
    _unloaded.update(known)
    _linked.update((symbol, len(body)) for symbol, body in known.items())
    return sum(_linked[symbol] for symbol in functions)


def function_object(symbol: str, text: str | None, cpu: Cpu) -> bytes | None:
    """The object file of a function of the library, from the disk cache or compiled from its source."""
    key = _key("function", cpu, Instrument, symbol)
    body = disk.get(key)
    if body is None and text is not None:
        body = function_code(text, cpu)
        disk.put(key, body)
    return body


def function_code(text: str, cpu: Cpu) -> bytes:
    """Compile a function of the library."""
    known = tuple(re.findall(r"^declare .*@([\w.$]+)\(", text, re.M))
    return object_file(text, cpu, text.count("\n"), known, optimization.current)


@cache
def scheduler_object(instrument: type[Instrument], waiting: bool, cpu: Cpu) -> tuple[bytes, list[str]]:
    """The object file of what kernels share of the scheduler, and the functions it has for them."""
    key = _key("scheduler", cpu, instrument, str(waiting))
    stored = disk.get_record(key)
    if stored is not None:
        return stored[1], stored[0]["functions"]
    parts = scheduler(instrument, waiting, cpu)
    body = object_file("\n".join(_once(parts.shared)), cpu, known=(*SWITCH, *instrument.own))
    disk.put_record(key, {"functions": parts.names}, body)
    return body, list(parts.names)


@cache
def instrument_object(instrument: type[Instrument], cpu: Cpu) -> tuple[bytes, list[str]]:
    """An instrument's own object file, and the functions it has for kernels."""
    key = _key("instrument", cpu, instrument)
    stored = disk.get_record(key)
    if stored is not None:
        return stored[1], stored[0]["functions"]
    text = "\n".join(_once(instrument.runtime()))
    functions = re.findall(r"^define i64 @(\w+)\(", text, re.M)
    body = object_file(text, cpu, known=instrument.own)
    disk.put_record(key, {"functions": functions}, body)
    return body, functions


class Loaded(LoadedObject):
    """Machine code of a kernel."""

    def __init__(self, code: Code, instrument: type[Instrument] = Instrument):
        self.enter, self.go = load_shared(code, instrument)
        _offer(code.library, code.object)
        super().__init__(code.object)
        self.code = self.address("rk_start_block" if code.waiting else "rk_row")


def load_shared(code: Code, instrument: type[Instrument]) -> list[int]:
    """Load what a kernel shares with those that are loaded after it; return where launches enter the scheduler.

    What is not there yet is loaded at once, as an engine of LLVM's takes as long as a function: callers first. The
    scheduler calls the instrument's own code, and the library's functions one another alone.
    """
    key = instrument, code.waiting, host()
    with _lock:
        bodies: list[bytes] = []
        offered: dict[str, str] = {}
        if key not in _schedulers:
            body, functions = scheduler_object(*key)
            bodies.append(body)
            after = suffix(*key)
            offered |= {f"{name}{after}": name for name in functions} | {name: name for name in SWITCH}
        if instrument.own and instrument not in _instruments:
            body, functions = instrument_object(instrument, host())
            bodies.append(body)
            offered |= {name: name for name in functions}
        missing = [symbol for symbol in reversed(code.library) if symbol in _unloaded]  # it has callees first
        bodies += (_unloaded[symbol] for symbol in missing)
        offered |= {symbol: symbol for symbol in missing}
        if bodies:
            _offer(code.library, *bodies)
            loaded = LoadedObject(*bodies)
            _resident.append(loaded)  # before others may find it
            _callable.update((called, (loaded, name)) for called, name in offered.items())
            if key not in _schedulers:
                _schedulers[key] = loaded.addresses("rk_enter", "rk_go")
            _instruments.add(instrument)
            for symbol in missing:
                del _unloaded[symbol]
        return _schedulers[key]


def _offer(library: Sequence[str], *bodies: bytes) -> None:
    """Let object files call functions that are loaded: LLVM is told of those that they call, a few of hundreds.

    Those of the library are given; of a scheduler's and an instrument's it is told if the files hold their names.
    """
    names = {*library, *(name.decode() for body in bodies for name in _OWN_NAME.findall(body))}
    known = _callable.copy()  # another thread may be here
    wanted: dict[LoadedObject, dict[str, str]] = {}
    for called in names & known.keys():
        loaded, name = known[called]
        wanted.setdefault(loaded, {})[called] = name
    for loaded, told in wanted.items():
        loaded.offer(told)
        for called in told:
            _callable.pop(called, None)
