"""``rawkern build --package``: compiles kernels for several architectures into files that a wheel can ship."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from rawkern._version import __version__
from rawkern.base.ctype import CType, StructLayout, parse
from rawkern.cli.text import CommandError, amount, step, table, user_errors
from rawkern.compile import declarations, elf, names, packages, programs, toolchain
from rawkern.compile.program import declared
from rawkern.compile.source import Source
from rawkern.errors import UnsupportedError
from rawkern.launch import variables
from rawkern.launch.builds import Build, CuPySettings, make_unit


def write(options: argparse.Namespace, archs: Sequence[str], sources: Sequence[Source]) -> int:
    """Write a package of each source into the folder that ``--package`` names; returns the exit status."""
    stems = [Path(source.name).stem for source in sources]
    for stem in stems:
        if stems.count(stem) > 1:
            raise CommandError(f"two sources are named {stem}, so their output files would collide; rename one")
    asked = [_instances(source, options.kernel) for source in sources]
    for name in options.kernel:
        if not any(name in found for found in asked):
            raise CommandError(f"--kernel {name}: no file has a template or overloaded kernel of that name; "
                          "the package always includes the other kernels")  # fmt: skip
    made = [_made(source, instances, archs, options.constant) for source, instances in zip(sources, asked, strict=True)]
    folder = Path(options.package)
    folder.mkdir(parents=True, exist_ok=True)
    rows = [row for stem, (package, files) in zip(stems, made, strict=True)
            for row in _written(folder, stem, package, files)]  # fmt: skip
    print(table(("file", "for", "kernels", "size"), rows, left=(0, 1)))
    return 0


def _instances(source: Source, given: Sequence[str]) -> tuple[str, ...]:
    """The instances and overloads of this source's kernels."""
    there = {name for kernel in declared(source) for name in (kernel.name, kernel.name.rpartition("::")[2])}
    asked = [name for name in given if "<" in name or "(" in name]
    return tuple(name for name in asked if re.split(r"[<(]", name)[0].strip().removeprefix("::") in there)


def _made(
    source: Source, instances: tuple[str, ...], archs: Sequence[str], expressions: Sequence[str]
) -> tuple[packages.Package, list[bytes]]:
    """The manifest of a source, and the files it lists."""
    unit = make_unit(None, source.name, source.options, source.include_dirs, instances, False, False, CuPySettings())
    with unit.lock:
        build = unit.current()
        plain = [int(arch.removeprefix("sm_")) for arch in archs if arch[-1].isdigit()]
        # PTX for 90a or 100f runs on no GPU that its machine code does not cover.
        virtual = [*([f"compute_{max(plain)}"] if plain else []), source.cpu_arch]
        codes, files, structs = [], [], {}
        for arch in dict.fromkeys([*archs, *virtual]):
            with step(f"compiling {source.name} for {arch}"):
                program = build.program(arch)
            data = (
                _without_paths(program.ptx, source).encode()
                if arch.startswith("compute")
                else _without_folders(program.code, source)
            )
            files.append(data)
            codes.append(_code(program, data, source, expressions))
            for text in (text for entry in program.entries for text in entry.params):
                _note_structs(parse(text), program, structs)
        major, minor = toolchain.toolchain().version
        package = packages.Package(
            rawkern=__version__, toolkit=f"NVRTC {major}.{minor}", options=source.options,
            sources=tuple(_own_names(source).values()), templates=_templates(source), structs=structs,
            variables=_variables(build, virtual), codes=tuple(codes),
        )  # fmt: skip
    return package, files


def _code(program: programs.Program, data: bytes, source: Source, expressions: Sequence[str]) -> packages.Code:
    kind = "cubin" if program.arch.startswith("sm") else "ptx"
    with user_errors(ValueError):
        constants = {each: programs.constant(source, program.arch, each) for each in expressions}
    return packages.Code(
        file=f"{Path(source.name).stem}.{program.arch}.{kind}", arch=program.arch, sha256=packages.sha256(data),
        kernels=program.entries,
        parameters=tuple(programs.parameter_names(program, entry) for entry in program.entries),
        instances=dict(program.symbols), constants=constants,
    )  # fmt: skip


def _templates(source: Source) -> tuple[declarations.Declaration, ...]:
    templates = programs.templates(source)
    return tuple(one for one in declared(source) if one.name in templates)


def _note_structs(kind: CType | None, program: programs.Program, structs: dict[str, StructLayout]) -> None:
    """Add the layouts of the structs in a parameter's type, and in their members; declared types have none."""
    if kind is None:
        return
    _note_structs(kind.target, program, structs)
    _note_structs(kind.element, program, structs)
    if kind.kind != "struct" or kind.name in structs:
        return
    with contextlib.suppress(UnsupportedError):
        structs[kind.name] = programs.struct_layout(program, kind.name)
        for member in structs[kind.name].members:
            _note_structs(parse(member.type), program, structs)


def _variables(build: Build, archs: Sequence[str]) -> dict[str, tuple[str, str, tuple[int, ...]]]:
    """All variables of the generated PTX; variables of functions, which have no C++ name, as bytes."""
    found = {}
    for symbol in {symbol: None for arch in archs for symbol in variables.symbols(build.program(arch).ptx)}:
        name = names.strip_anonymous(names.demangle(symbol))
        found[name] = symbol, "", ()
        with contextlib.suppress(ValueError):
            variable = variables.describe(build, name)
            found[name] = variable.symbol, variable.type, variable.shape
    return found


# Line tables ----------------------------------------------------------------------------------------------------------


def _own_names(source: Source) -> dict[str, str]:
    """The source and its headers under paths relative to the source's folder, which reveal nothing of this machine."""
    here = os.path.dirname(source.name)
    return {path: os.path.relpath(path, here).replace(os.sep, "/") for path in (source.name, *dict(source.headers))}


def _without_paths(ptx: str, source: Source) -> str:
    own = _own_names(source)

    def renamed(match: re.Match[str]) -> str:
        path = os.path.normpath(match[2])
        return f'{match[1]}"{own.get(path, os.path.basename(path))}"'

    return re.sub(r'^(\s*\.file\s+\d+\s+)"([^"\n]*)"', renamed, ptx, flags=re.M)


def _without_folders(cubin: bytes, source: Source) -> bytes:
    """Machine code whose line table has no paths of this machine; the replacements have the same length."""
    files = (source.name, *dict(source.headers))
    roots = {os.getcwd(), *map(os.path.dirname, files), *source.include_dirs, *toolchain.toolchain().include_dirs}
    found = re.compile(b"(?:" + b"|".join(re.escape(os.fsencode(root)) for root in roots - {"/"}) + rb")[^\0]*(?=\0)")

    def renamed(match: re.Match[bytes]) -> bytes:
        path = os.fsdecode(match[0])
        name = os.fsencode(os.path.basename(path)) if path in files else b""
        return b".".ljust(len(match[0]) - len(name), b"/") + name

    data = bytearray(cubin)
    for section in elf.sections(cubin):
        if section.name == ".debug_line":
            part = slice(section.offset, section.offset + section.size)
            data[part] = found.sub(renamed, cubin[part])
    return bytes(data)


# Files ----------------------------------------------------------------------------------------------------------------


def _written(
    folder: Path, stem: str, package: packages.Package, files: Sequence[bytes]
) -> Iterator[tuple[object, ...]]:
    """Write files and manifest; remove an earlier build's files that it does not list."""
    manifest = folder / f"{stem}.json"
    before = _listed(manifest)
    for code, data in zip(package.codes, files, strict=True):
        _put(folder / code.file, data)
        yield code.file, code.arch, len(code.kernels), amount(len(data))
    _put(manifest, packages.text(package).encode())
    for file in before - {code.file for code in package.codes}:
        (folder / file).unlink(missing_ok=True)


def _listed(manifest: Path) -> set[str]:
    """The files of an earlier build."""
    try:
        found = json.loads(manifest.read_bytes())["codes"]
        return {code["file"] for code in found if code["file"] == os.path.basename(code["file"])}
    except (OSError, ValueError, KeyError, TypeError):
        return set()


def _put(file: Path, data: bytes) -> None:
    """Replace a file atomically: a reader sees the old content or the new."""
    whole = file.with_name(f".{file.name}.{os.getpid()}")
    whole.write_bytes(data)
    whole.replace(file)
