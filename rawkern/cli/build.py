"""``rawkern build``: compile a file without a GPU, and show what its kernels use."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from collections.abc import Sequence
from typing import Any

from rawkern.base.ctype import parse
from rawkern.base.gpus import MAX_THREADS, specification
from rawkern.cli.sass import sass
from rawkern.cli.text import CommandError, duration, missing_file, paint, plural, step, table, user_errors, whole
from rawkern.compile import cubin, lookup, programs, source, toolchain
from rawkern.errors import CompileError, RawkernError
from rawkern.launch.occupancy import occupancy

_BLOCKS = (64, 128, 256, 512, 1024)
_NOT_OF_PACKAGES = ("watch", "ptx", "sass", "json", "max_registers", "no_spills", "block", "shared")
_DEFAULT_ARCH = "sm_80"


def declare(commands: Any) -> None:
    """Add the command's parser."""
    parser = commands.add_parser(
        "build",
        help="compile a .cu file without a GPU; show registers, memory and occupancy of its kernels",
        description="Compile a .cu file without a GPU and show what its kernels use. Templates are compiled as the "
        "instances that --kernel names. The exit status is 1 if it does not compile or a limit is exceeded.",
    )
    blocks = ", ".join(map(str, _BLOCKS))
    source_options(parser)
    parser.add_argument("--arch", action="append", default=[], metavar="sm_XY",
                        help=f"architecture; may be repeated (default: {_DEFAULT_ARCH})")  # fmt: skip
    parser.add_argument("--kernel", action="append", default=[], metavar="NAME",
                        help="show only this kernel; also an instance, 'axpy<float, 4>'; may be repeated")  # fmt: skip
    parser.add_argument("--block", action="append", default=[], type=whole(1, MAX_THREADS), metavar="THREADS",
                        help=f"block size for the occupancy; may be repeated (default: {blocks})")  # fmt: skip
    parser.add_argument("--shared", type=whole(0), default=0, metavar="BYTES",
                        help="dynamic shared memory of a block, for the occupancy")  # fmt: skip
    parser.add_argument("--max-registers", type=whole(1), metavar="N",
                        help="fail if a kernel uses more registers per thread")  # fmt: skip
    parser.add_argument("--no-spills", action="store_true", help="fail if a kernel spills registers")
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--ptx", action="store_true", help="print the PTX instead")
    shown.add_argument("--sass", action="store_true", help="print the machine code instead (needs nvdisasm)")
    shown.add_argument("--json", action="store_true", help="print JSON instead")
    parser.add_argument("--package", metavar="DIR",
                        help="write machine code, PTX and a manifest there, for rawkern.load_package")  # fmt: skip
    parser.add_argument("--constant", action="append", default=[], metavar="EXPRESSION",
                        help="keep this constant's value in the package; may be repeated")  # fmt: skip
    parser.add_argument("arguments", nargs="*", default=[], metavar="FILE.cu", help="more sources, with --package")
    parser.add_argument("--watch", action="store_true", help="compile again whenever the file or a header changes")
    parser.set_defaults(main=main)


def source_options(parser: argparse.ArgumentParser) -> None:
    """Add the file and the compiler's options to a parser."""
    parser.add_argument("file", metavar="FILE.cu", help="the CUDA source")
    parser.add_argument("-I", action="append", default=[], metavar="DIR", dest="include_dirs",
                        help="directory for #include; CUDA's own headers need none")  # fmt: skip
    parser.add_argument("-D", action="append", default=[], metavar="NAME=VALUE", dest="macros", help="define a macro")
    parser.add_argument("--option", action="append", default=[], metavar="OPTION", dest="options",
                        help="NVRTC option, such as --option=-use_fast_math; may be repeated")  # fmt: skip


def compile_options(options: argparse.Namespace) -> tuple[str, ...]:
    """The options for NVRTC."""
    return *(f"-D{macro}" for macro in options.macros), *options.options


def read_source(options: argparse.Namespace) -> source.Source:
    """Read the file with the options given."""
    try:
        with user_errors(ValueError, TypeError):
            return source.from_path(options.file, compile_options(options), options.include_dirs)
    except FileNotFoundError:
        raise missing_file(options.file) from None
    except IsADirectoryError:
        raise CommandError(f"{options.file} is a directory; name a file of CUDA source") from None


def main(options: argparse.Namespace) -> int:
    """Run the command."""
    if options.arguments and not options.package:
        raise CommandError(f"build shows one file; remove {options.arguments[0]} (only --package takes several)")
    with user_errors(ValueError):
        archs = [lookup.architecture_name(arch, "sm") for arch in options.arch or [_DEFAULT_ARCH]]
    sources = [_source(options, file) for file in (options.file, *options.arguments)]
    supported = toolchain.nvrtc().architectures
    for arch in archs:
        if int(arch.strip("sm_af")) not in supported:
            names = ", ".join(f"sm_{number}" for number in supported)
            raise CommandError(f"--arch {arch}: this compiler knows {names}")
    if options.package:
        return _package(options, archs, sources)
    if options.constant:
        raise CommandError("--constant goes with --package; module.constant(...) reads one from the source")
    return _watch(options, archs) if options.watch else _once(options, archs, sources[0])


def _source(options: argparse.Namespace, file: str) -> source.Source:
    read = read_source(argparse.Namespace(**{**vars(options), "file": file}))
    if read.binary is not None:
        raise CommandError(f"{file} is a {read.kind} file, which is already compiled; pass the CUDA source")
    return read


def _package(options: argparse.Namespace, archs: Sequence[str], sources: Sequence[source.Source]) -> int:
    given = [f"--{name.replace('_', '-')}" for name in _NOT_OF_PACKAGES if getattr(options, name)]
    if given:
        raise CommandError(f"--package only writes files and shows no kernels; remove {', '.join(given)}")
    if not options.arch:
        raise CommandError("--package needs the target architectures, such as --arch sm_80 --arch sm_90")
    try:
        from rawkern.cli import package  # it imports torch

        return package.write(options, list(dict.fromkeys(archs)), sources)
    except CompileError as error:
        print(error, file=sys.stderr)
        return 1


def _watch(options: argparse.Namespace, archs: Sequence[str]) -> int:
    """Rebuild after each change, until Ctrl-C."""
    said = ""
    while True:
        try:
            read, said = read_source(options), ""
        except (CommandError, OSError) as error:  # deleted for a moment, or saved in an encoding that is not UTF-8
            if str(error) != said:
                print(error, file=sys.stderr)
            said = str(error)
            time.sleep(source.Watch.INTERVAL)
            continue
        watch = source.Watch(read)
        print(paint(f"{time.strftime('%H:%M:%S')}  {options.file}", "green"), flush=True)
        try:
            _once(options, archs, read)
        except (CommandError, RawkernError) as error:  # for example a kernel that was renamed
            print(error, file=sys.stderr)
        sys.stdout.flush()
        with step("waiting for a change; Ctrl-C ends"):
            while not watch.changed():
                time.sleep(watch.INTERVAL)


def _once(options: argparse.Namespace, archs: Sequence[str], read: source.Source) -> int:
    try:
        built = [_compile(options, read, arch) for arch in dict.fromkeys(archs)]
    except CompileError as error:
        if options.json:
            place = {"file": error.file, "line": error.line, "column": error.column}
            print(json.dumps({"file": options.file, "error": {"message": str(error), **place}}, indent=2))
        print(error, file=sys.stderr)
        if "has no kernel that" in str(error) and (names := programs.templates(read)) and not options.kernel:
            print(f"hint: --kernel '{_example(read, names[0])}' compiles an instance", file=sys.stderr)
        return 1
    reports = [report for _, report in built]
    for report in reports:
        if report["warnings"]:
            print(report["warnings"], file=sys.stderr)
    broken = _broken(options, reports)
    if options.ptx or options.sass:
        print("\n".join(_listing(options, read, program, report) for program, report in built))
    elif options.json:
        print(json.dumps({"file": options.file, "builds": reports, "exceeded": broken}, indent=2))
    else:
        _print(options, read, reports)
    for line in broken:
        print(line, file=sys.stderr)
    return 1 if broken else 0


# Compiling ------------------------------------------------------------------------------------------------------


def _compile(options: argparse.Namespace, read: source.Source, arch: str) -> tuple[programs.Program, dict[str, Any]]:
    """The program for one architecture, and its report, which ``--json`` prints unchanged."""
    reporting = dataclasses.replace(read, options=(*read.options, cubin.REPORT))
    start = time.perf_counter()
    with step(f"compiling {options.file} for {arch}"):
        program = programs.compile_program(reporting, arch, _expressions(options))
    seconds = time.perf_counter() - start
    found, spilled = cubin.resources(program.code, arch), cubin.spills(program.log)
    spec = specification(arch)
    kernels = []
    names = [entry.name for entry in program.entries]
    for entry in _chosen(options, program):
        used, (stores, loads) = found[entry.symbol], spilled.get(entry.symbol, (0, 0))
        needs = {"registers": used.registers, "shared": used.shared + options.shared, "barriers": used.barriers,
                 "max_threads": used.max_threads}  # fmt: skip
        kernels.append({
            "name": lookup.full_name(entry) if names.count(entry.name) > 1 else entry.name,
            "symbol": entry.symbol, "signature": _signature(program, entry), **dataclasses.asdict(used),
            "spill_stores": stores, "spill_loads": loads,
            "occupancy": [{"threads": threads, **dataclasses.asdict(occupancy(spec, threads, **needs))}
                          for threads in options.block or _BLOCKS if spec],
        })  # fmt: skip
    warnings = cubin.without_report(program.log)
    return program, {"arch": arch, "seconds": seconds, "warnings": warnings, "kernels": kernels}


def _expressions(options: argparse.Namespace) -> tuple[str, ...]:
    """The kernels that the compiler needs by name: instances and overloads."""
    return tuple(name for name in options.kernel if "<" in name or "(" in name)


def _chosen(options: argparse.Namespace, program: programs.Program) -> list[programs.Entry]:
    if not options.kernel:
        return list(program.entries)
    chosen = []
    for name in options.kernel:
        with user_errors(ValueError):
            entry = lookup.entry(program, name)
        if entry is None:
            raise CommandError(f"{options.file}: {lookup.unknown(program, name)}")
        chosen.append(entry)
    return list(dict.fromkeys(chosen))


def _signature(program: programs.Program, entry: programs.Entry) -> str:
    names = programs.parameter_names(program, entry)
    params = [parse(text).declare(name) for text, name in zip(entry.params, names, strict=True)]
    return f"void {entry.name}({', '.join(params)})"


# Output --------------------------------------------------------------------------------------------------------


def _print(options: argparse.Namespace, read: source.Source, reports: Sequence[dict[str, Any]]) -> None:
    kernels = [(report["arch"], kernel) for report in reports for kernel in report["kernels"]]
    times = ", ".join(f"{report['arch']} in {duration(report['seconds'])}" for report in reports)
    print(f"{options.file}: {plural(len(reports[0]['kernels']), 'kernel')}, compiled for {times}\n")
    for signature in dict.fromkeys(kernel["signature"] for _, kernel in kernels):
        print(f"  {signature}")
    blocks = options.block or _BLOCKS
    head = ("kernel", "arch", "registers", "spills", "shared", "constant", "local", *blocks)
    order = {name: i for i, name in enumerate(dict.fromkeys(kernel["name"] for _, kernel in kernels))}
    rows = []
    for arch, kernel in sorted(kernels, key=lambda pair: order[pair[1]["name"]]):
        spills = kernel["spill_stores"], kernel["spill_loads"]
        used = (kernel[what] for what in ("shared", "constant", "local"))
        shares = map(_share, kernel["occupancy"] or [None] * len(blocks))
        shown = "/".join(map(str, spills)) if any(spills) else 0
        rows.append((kernel["name"], arch, kernel["registers"], shown, *used, *shares))
    print("\n" + table(head, rows, left=(0, 1)))
    dynamic = f" with {options.shared} bytes of dynamic shared memory" if options.shared else ""
    print("\nin bytes: spills (stores/loads), shared, constant and local memory")
    print(f"by threads of a block{dynamic}: occupancy, the share of a multiprocessor's warps,")
    print("limited by w(arps), b(locks), r(egisters), s(hared memory) or B(arriers)")
    if not options.kernel and (left := programs.templates(read)):
        print(f"templates: {', '.join(left)}; name an instance, such as --kernel '{_example(read, left[0])}'")


def _example(read: source.Source, template: str) -> str:
    found = next((one.instance() for one in programs.template_declarations(read, template)), None)
    return found or f"{template}<...>"


_LETTERS = {"warps": "w", "blocks": "b", "registers": "r", "shared": "s", "barriers": "B", "threads": "-"}


def _share(found: dict[str, Any] | None) -> str:
    """An occupancy for the table: "75% r"; a block that cannot run is "-", an unknown architecture "?"."""
    if found is None:
        return "?"
    if found["blocks"] == 0:
        return "-"
    limits = "" if found["share"] == 1 else " " + "".join(_LETTERS[limit] for limit in found["limits"])
    return f"{100 * found['share']:.0f}%{limits}"


def _listing(
    options: argparse.Namespace, read: source.Source, program: programs.Program, report: dict[str, Any]
) -> str:
    """PTX or machine code of one architecture."""
    if options.sass:
        symbols = {kernel["symbol"] for kernel in report["kernels"]} if options.kernel else None
        return f"// {options.file} for {program.arch}\n{sass(program.code, symbols)}"
    virtual = lookup.architecture_name(program.arch, "compute")
    ptx = programs.compile_program(read, virtual, _expressions(options)).ptx
    return f"// {options.file} for {virtual}\n{ptx.strip()}"


def _broken(options: argparse.Namespace, reports: Sequence[dict[str, Any]]) -> list[str]:
    """What exceeds the limits given."""
    lines = []
    for arch, kernel in ((report["arch"], kernel) for report in reports for kernel in report["kernels"]):
        used, stores, loads = kernel["registers"], kernel["spill_stores"], kernel["spill_loads"]
        if options.max_registers is not None and used > options.max_registers:
            lines.append(f"{kernel['name']} ({arch}): {used} registers, the limit is {options.max_registers}")
        if options.no_spills and (stores or loads):
            lines.append(f"{kernel['name']} ({arch}): spills {stores} bytes of stores and {loads} of loads")
    return lines
