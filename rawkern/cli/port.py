"""``rawkern port``: translates the host functions of a PyTorch extension to a Python module."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from rawkern.cli.setups import Setup, in_setup
from rawkern.cli.text import CommandError, missing_file, plural


def declare(commands: Any) -> None:
    """Add the command's parser."""
    parser = commands.add_parser(
        "port",
        help="translate a PyTorch extension's C++ to Python",
        description="Print the host functions of a PyTorch extension (.cu and .cpp) as a Python module that launches "
        "the kernels of its files through rawkern. rawkern.cpp_extension.load runs the same module. Of a folder, the "
        "extension that its setup.py builds is translated; setup.py is run for that unless it spells out the files.",
    )
    parser.add_argument("sources", nargs="+", metavar="SOURCE", help="a .cu or .cpp file, or a folder with setup.py")
    parser.add_argument("-o", "--output", metavar="FILE", help="write the module there; default: print it")
    parser.add_argument("-I", dest="include_dirs", action="append", default=[], metavar="FOLDER", help="own headers")
    parser.add_argument("-D", dest="defines", action="append", default=[], metavar="NAME[=VALUE]", help="a macro")
    parser.add_argument("--name", default=None, help="the extension's name; default: that of setup.py, or of the file")
    parser.set_defaults(main=main)


def main(options: argparse.Namespace) -> int:
    """Run the command."""
    from rawkern.extensions.modules import Source, translated

    name, sources, include_dirs = options.name, [], list(options.include_dirs)
    defines = [f"-D{one}" for one in options.defines]
    for one in options.sources:
        if os.path.isdir(one):
            found = _chosen(in_setup(one), name)
            name = name or found.name
            sources += found.sources
            include_dirs += [folder for folder in found.include_dirs if os.path.isdir(folder)]
            defines += [flag for flag in found.flags if flag.startswith("-D")]
        elif os.path.isfile(one):
            sources.append(one)
        else:
            raise missing_file(one)
    name = name or os.path.splitext(os.path.basename(sources[0]))[0]
    folder = os.path.dirname(os.path.abspath(options.output)) if options.output else os.getcwd()
    translation = translated(
        [Source(one, cuda=one.endswith((".cu", ".cuh")), written=_beside(one, folder)) for one in sources],
        options=list(dict.fromkeys(defines)),
        include_dirs=include_dirs,
        name=name.rpartition(".")[2],
    )
    if options.output:
        with open(options.output, "w") as file:
            file.write(translation.code)
    else:
        sys.stdout.write(translation.code)
    _report(translation, sys.stderr)
    return 0


def _chosen(found: list[Setup], name: str | None) -> Setup:
    """The extension of a name; the only one where none is named."""
    fitting = [one for one in found if name in (one.name, one.name.rpartition(".")[2])] if name else found
    if len(fitting) == 1 or len(found) == 1:
        return (fitting or found)[0]
    names = ", ".join(one.name for one in found)
    raise CommandError(f"setup.py builds several extensions: {names}; choose one with --name")


def _beside(path: str, folder: str) -> str:
    """A path relative to the folder of a module."""
    return path if os.path.isabs(path) else os.path.relpath(path, folder)


def _report(translation: Any, out: Any) -> None:
    """Print what was translated, and what was not."""
    total = len(translation.functions) + len(translation.untranslated)
    print(f"{len(translation.functions)} of {plural(total, 'function')} translated", file=out)
    for reason in translation.untranslated.values():
        print(f"  {reason}", file=out)
    for note in translation.notes:
        print(f"  {note}", file=out)
