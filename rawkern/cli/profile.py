"""``rawkern profile``: counts the work of a file's kernel, or of every launch of a Python program."""

from __future__ import annotations

import argparse
import os
import runpy
import sys
from typing import TYPE_CHECKING, Any

from rawkern.cli import ncu
from rawkern.cli.build import read_source, source_options
from rawkern.cli.run import ARGUMENTS, device_named, launch_of, launch_options
from rawkern.cli.text import CommandError, missing_file, step, user_errors

if TYPE_CHECKING:
    from rawkern.profiling.report import Report


def declare(commands: Any) -> None:
    """Add the command's parser."""
    parser = commands.add_parser(
        "profile",
        help="count the work of each line of a kernel, and show what makes it slow; needs no GPU",
        description="Launch a kernel like `rawkern run`, count the work of each line, and show what makes it slow. For "
        "FILE.py, a Python program, all launches are counted; its arguments follow --.",
        epilog=ARGUMENTS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    source_options(parser)
    parser.add_argument("kernel", metavar="KERNEL", nargs="?", help="its name, or an instance: 'axpy<float, 4>'")
    launch_options(parser)
    parser.add_argument("--device", metavar="NAME", help="GPU for the occupancy and lower-bound estimates, such as "
                        "h200; or where to launch: cpu, cuda or cuda:1 (default: cuda if there is one)")  # fmt: skip
    parser.add_argument("--sample", metavar="N", type=int, help="count only N blocks of each larger launch, for "
                        "large grids; counts are those of the sample")  # fmt: skip
    parser.add_argument("--html", metavar="FILE", help="write a page with sources, heat map and findings")
    parser.add_argument("--json", metavar="FILE", help="write all counters as JSON; - for stdout")
    parser.add_argument("--csv", metavar="FILE", help="write all counters as CSV")
    parser.add_argument("--trace", metavar="FILE", help="write the times on GPUs as FILE.trace.json, for Perfetto")
    parser.add_argument(
        "--compare", metavar="FILE", help="show what has changed since that JSON; exit status 1 if worse"
    )
    parser.add_argument("--ncu", action="store_true", help="also run it under Nsight Compute and show its figures "
                        "next to rawkern's; needs a GPU, and permission to read its counters")  # fmt: skip
    parser.set_defaults(main=main)


def main(options: argparse.Namespace) -> int:
    """Run the command."""
    script = options.file.endswith(".py")
    if options.kernel is None and options.arguments:  # argparse misses it if options come before it
        options.kernel, *options.arguments = options.arguments
    if not script and options.kernel is None:
        raise CommandError(f"name the kernel of {options.file} to launch")
    if options.trace and not options.trace.endswith(".trace.json"):
        raise CommandError(f"--trace {options.trace}: the name of a trace ends with .trace.json")
    if options.ncu:
        ncu.program()  # raises before anything runs
    report = _of_script(options) if script else _of_kernel(options)
    for path in (options.html, options.csv, options.json, options.trace):
        if path and path != "-":
            with user_errors(ValueError):
                report.save(path)
    if options.json == "-":
        import json

        print(json.dumps(report.as_dict(), indent=1))
    else:
        print(report)
    if options.ncu:
        print(f"\n{_beside_ncu(options, report, script)}", file=sys.stderr if options.json == "-" else sys.stdout)
    if not options.compare:
        return 0
    with user_errors(ValueError):
        changes = report.compare(options.compare)
    print(f"\nSince {options.compare}:\n{changes}", file=sys.stderr if options.json == "-" else sys.stdout)
    return 1 if changes else 0


def _beside_ncu(options: argparse.Namespace, report: Report, script: bool) -> str:
    data = report.as_dict()
    kernels = {launch["kernel"] for launch in data["launches"]}
    with step("running under ncu"):
        theirs = ncu.run(_script_words(options) if script else _run_words(options), data["counters"], kernels)
    return ncu.beside(data["launches"], theirs)


def _script_words(options: argparse.Namespace) -> list[str]:
    return [options.file, *([] if options.kernel is None else [options.kernel]), *options.arguments]


def _run_words(options: argparse.Namespace) -> list[str]:
    """The arguments of ``python -m rawkern run`` for the same launch."""
    place = _gpu(options)[1]
    words = ["-m", "rawkern", "run", options.file, options.kernel, *options.arguments, "--device", place or "cuda"]
    for flag, values in (("-I", options.include_dirs), ("-D", options.macros), ("--option", options.options)):
        words += [f"{flag}={value}" if flag == "--option" else f"{flag}{value}" for value in values]
    for name in ("grid", "block", "forall", "shared", "cluster", "seed"):
        if (value := getattr(options, name)) is not None:
            words += [f"--{name}", str(value)]
    return [*words, *(["--cooperative"] if options.cooperative else [])]


def _gpu(options: argparse.Namespace) -> tuple[str | None, str | None]:
    """The GPU to compare with, and the device to launch on, as named by ``--device``."""
    name = options.device
    if name is None or name.split(":")[0] in ("cpu", "cuda"):
        return None, name
    return name, None


def _of_kernel(options: argparse.Namespace) -> Report:
    read_source(options)  # the file and options, before torch is imported
    with step("importing torch"):
        import rawkern

    gpu, place = _gpu(options)
    with user_errors(ValueError):
        profile = rawkern.profile(device=gpu, sample=options.sample)
    with step(f"compiling {options.file}"):
        launch = launch_of(options, device_named(place), margins=False)
    with step(f"running {options.kernel}"), user_errors(TypeError, ValueError, OverflowError), profile as report:
        launch.go()
    return report


def _of_script(options: argparse.Namespace) -> Report:
    """Run a program as Python would and count every launch; the report is made even if the program fails or exits."""
    if not os.path.isfile(options.file):
        raise missing_file(options.file)
    given = [name for name in ("grid", "block", "forall") if getattr(options, name) is not None]
    if given:
        raise CommandError(f"--{given[0]} needs a kernel; {options.file} makes its own launches")
    import rawkern

    gpu, place = _gpu(options)
    if place is not None:
        raise CommandError(f"--device {place}: {options.file} chooses its tensors' device; name a GPU such as h200")
    with user_errors(ValueError):
        profile = rawkern.profile(device=gpu, sample=options.sample)
    before = sys.argv, sys.path[:]
    sys.argv = _script_words(options)
    sys.path.insert(0, os.path.dirname(os.path.abspath(options.file)))
    try:
        with profile as report:
            runpy.run_path(options.file, run_name="__main__")
    except SystemExit as end:
        if end.code not in (None, 0):
            print(f"{options.file} ended with {end.code}", file=sys.stderr)
    finally:
        sys.argv, sys.path[:] = before
    return report
