"""CUDA source to program: PTX or a cubin, its kernels and their exact types; kept in memory and on disk."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import replace

from rawkern.base import cache
from rawkern.base.ctype import StructLayout
from rawkern.base.forking import Lock
from rawkern.compile.declarations import Declaration
from rawkern.compile.files import own_sources
from rawkern.compile.hostcode import device_code
from rawkern.compile.program import Entry, Program, declared
from rawkern.compile.source import Source, Watch
from rawkern.compile.toolchain import toolchain
from rawkern.errors import UnsupportedError

# What compiles is imported where it is called: 15 modules that a program from the disk cache does not need.

_FORMAT = 3  # raised when what is stored, or how it is compiled, changes
_ARCH = re.compile(r"(?:compute|sm)_\d+[af]?\Z")


# --- In memory -------------------------------------------------------------------------------------------

_PROGRAMS_KEPT = 512
_programs: OrderedDict[str, Program] = OrderedDict()
_running: dict[str, Lock] = {}
_lock = Lock()


def compile_program(source: Source, arch: str, name_expressions: tuple[str, ...] = ()) -> Program:
    """Compile a source for one architecture, or fetch it from the memory or disk cache.

    `arch` is ``"compute_80"`` for PTX, ``"sm_90"`` for a cubin. `name_expressions` are template instances
    (``"axpy<float, 4>"``) and overloads (``"axpy(int, float*)"``) that must be in the program. CompileError if it does
    not compile, has no kernel, or lacks one of the instances.
    """
    if not _ARCH.match(arch):
        raise ValueError(f"unknown architecture {arch!r}; use 'sm_90' for a cubin or 'compute_80' for PTX")
    name_expressions = tuple(dict.fromkeys(name_expressions))
    key = _key(source, arch, name_expressions)
    program = _remembered(key) or _made(source, arch, name_expressions, key)
    # The same device code from another place, or among other code for the host, is the same program; its messages and
    # lines are those of its own source.
    same = program.source == source and program.source.origin == source.origin
    return program if same else replace(program, source=source)


def _made(source: Source, arch: str, name_expressions: tuple[str, ...], key: str) -> Program:
    with _lock:
        mine = _running.setdefault(key, Lock())
    with mine:  # one thread compiles, others that want the same wait for it
        program = _remembered(key) or (source.binary is None and _stored(key, source, arch)) or None
        if program is None and source.binary is not None:
            from rawkern.compile import packages, precompiled

            program = (packages if source.kind == "manifest" else precompiled).program(source, arch, key)
        elif program is None:
            from rawkern.compile.compile import build

            program = build(source, arch, name_expressions, key)
            if not Watch(source).changed():
                _store(program)
            else:  # the compiler may have read other headers than the key tells of: an edit has come in between
                key = ""
        with _lock:
            _running.pop(program.key, None)
            if key:
                _programs[key] = program
            while len(_programs) > _PROGRAMS_KEPT:
                _programs.popitem(last=False)
    return program


def templates(source: Source) -> tuple[str, ...]:
    """Return the names of the template kernels in a source and its local headers, found by reading the text."""
    return tuple(dict.fromkeys(kernel.name for kernel in _declared(source) if kernel.template))


def template_declarations(source: Source, name: str) -> tuple[Declaration, ...]:
    """Return the template kernels of a name, with or without its namespace; none where a kernel has the name, too."""
    every = {kernel.name for kernel in _declared(source)}
    meant = called(source, name, every)
    named = [kernel for kernel in _declared(source) if kernel.name in meant]
    return tuple(named) if all(kernel.template for kernel in named) else ()


_INLINE = re.compile(r"\binline\s+namespace\b\s*(?:\[\[.*?\]\]\s*)?(\w+)|::\s*inline\s+(\w+)\s*(?=[:{])", re.S)


def called(source: Source, name: str, known: Iterable[str]) -> list[str]:
    """Return those of the names, full ones, that a name means.

    It may lack namespaces that are inline, or else all namespaces.
    """
    known = list(known)
    if name in known:
        return [name]
    spaces = {one or other for text in source.texts() if "inline" in text for one, other in _INLINE.findall(text)}

    def short(full: str) -> str:
        plain = re.match(r"[^<(]*", full)
        assert plain is not None
        parts = plain[0].split("::")
        return (
            "::".join([*(part for part in parts[:-1] if part.strip() not in spaces), parts[-1]]) + full[plain.end() :]
        )

    found = [full for full in known if short(full) == short(name)] if spaces else []
    return found or [full for full in known if full.rpartition("::")[2] == name]


def _declared(source: Source) -> tuple[Declaration, ...]:
    if source.kind != "manifest":
        return declared(source)
    from rawkern.compile import packages

    return packages.package(source).templates


def own_files(source: Source) -> frozenset[str]:
    """Return the user's files, as the code's line tables call them.

    They do not include rawkern's own headers, which elementwise expressions use.
    """
    if source.kind == "manifest":
        from rawkern.compile import packages

        return frozenset(packages.package(source).sources)
    own = f"{own_sources()}{os.sep}"
    headers = [path for path, _ in source.headers if source.name.startswith(own) or not path.startswith(own)]
    return frozenset((source.name, *headers))


def parameter_names(program: Program, entry: Entry) -> tuple[str, ...]:
    """Return the names of a kernel's parameters; ``arg0``, ``arg1`` ... stand for those that have none."""
    source, known = program.source, program.names.get(entry.symbol)
    if known is not None:
        return known
    if source.kind == "manifest":
        from rawkern.compile import packages

        return packages.parameter_names(source, entry)
    if source.binary is not None:
        return tuple(f"arg{i}" for i in range(len(entry.params)))
    from rawkern.compile import layout

    return layout.parameter_names(source, entry, key_of(source))


def struct_layout(program: Program, type_name: str) -> StructLayout:
    """Return size, alignment and members of a struct that the source defines; UnsupportedError if it does not."""
    if program.source.kind == "manifest":
        from rawkern.compile import packages

        return packages.struct_layout(program.source, type_name)
    if program.source.binary is not None:
        raise UnsupportedError(f"{program.source.name} does not have the layout of {type_name}")
    from rawkern.compile import layout

    return layout.struct_layout(program.source, type_name, key_of(program.source))


def constant(source: Source, arch: str, expression: str) -> bool | int | float:
    """Return the value of a constant expression in terms of a source; ValueError if it is none."""
    if source.kind == "manifest":
        from rawkern.compile import packages

        return packages.constant(source, arch, expression)
    if source.binary is not None:
        raise UnsupportedError(f"{source.name} is already compiled; constants need the CUDA source")
    arch = arch.replace("sm_", "compute_")  # the same to the source, and no machine code is made
    from rawkern.compile import constants

    return constants.value(source, arch, expression, _key(source, arch, ()))


def key_of(source: Source) -> str:
    """Return the cache's key of a source's program for the CPU, under which more answers of the compiler are kept."""
    return _key(source, source.cpu_arch, ())


def _key(source: Source, arch: str, name_expressions: tuple[str, ...]) -> str:
    if source.binary is None:
        code = device_code(source)  # an edit of a host function leaves it alone
        changed = {path for path, _ in code.headers}
        headers = [(path, _even(text)) for path, text in code.headers]
        headers += [one for one in source.headers if one[0] not in changed]
        text = [_even(code.text), headers, code.names, code.default_device or source.uses_cutlass, code.light]
        compiler = toolchain().identity
    else:
        text, compiler = [source.text, source.headers], ""
    given = source.path, source.options, source.include_dirs, sorted(source.local_names), name_expressions
    parts = [_FORMAT, _version(), compiler, arch, *given, text]
    return "program-" + hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _even(text: str) -> str:
    """A text without the spaces at its lines' ends, which are where code for the host was."""
    return text if 'R"' in text else _ENDS.sub("", text)


_ENDS = re.compile(r"(?<![ \\])[ ]+(?=\n)")


@functools.cache
def _version() -> str:
    return cache.state_of(os.path.dirname(__file__))


def _remembered(key: str) -> Program | None:
    with _lock:
        program = _programs.get(key)
        if program is not None:
            _programs.move_to_end(key)
        return program


def _stored(key: str, source: Source, arch: str) -> Program | None:
    stored = cache.get_record(key)
    if stored is None:
        return None
    meta, code = stored
    try:
        entries = tuple(Entry(symbol, name, tuple(params)) for symbol, name, params in meta["entries"])
        symbols = tuple((name, symbol) for name, symbol in meta["symbols"])
        names = {symbol: tuple(names) for symbol, names in meta["names"].items()}
        return Program(source, arch, code, entries, symbols, meta["log"], key, names)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _store(program: Program) -> None:
    from rawkern.compile import layout

    entries = [(entry.symbol, entry.name, entry.params) for entry in program.entries]
    names = {entry.symbol: layout.names_in_text(program.source, entry) for entry in program.entries}
    fields = {"entries": entries, "symbols": program.symbols, "log": program.log}
    fields["names"] = {symbol: found for symbol, found in names.items() if found is not None}
    cache.put_record(program.key, fields, program.code)
