"""``rawkern port``: translates the host functions of a PyTorch extension to a Python module."""

from __future__ import annotations

import argparse
import ast
import os
import sys
from typing import Any

from rawkern.cli.text import CommandError, missing_file, plural


def declare(commands: Any) -> None:
    """Add the command's parser."""
    parser = commands.add_parser(
        "port",
        help="translate a PyTorch extension's C++ to Python",
        description="Print the host functions of a PyTorch extension (.cu and .cpp) as a Python module that launches "
        "the kernels of its files through rawkern. rawkern.cpp_extension.load runs the same module. For a folder, the "
        "extensions that its setup.py builds are translated.",
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
    for one in options.sources:
        if os.path.isdir(one):
            found, files, folders = in_setup(one)
            name = name or found
            sources += files
            include_dirs += folders
        elif os.path.isfile(one):
            sources.append(one)
        else:
            raise missing_file(one)
    name = name or os.path.splitext(os.path.basename(sources[0]))[0]
    folder = os.path.dirname(os.path.abspath(options.output)) if options.output else os.getcwd()
    translation = translated(
        [Source(one, cuda=one.endswith((".cu", ".cuh")), written=_beside(one, folder)) for one in sources],
        options=[f"-D{one}" for one in options.defines],
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


# setup.py ------------------------------------------------------------------------------------------------------------


def in_setup(folder: str) -> tuple[str, list[str], list[str]]:
    """The name, sources and include folders of the CUDAExtension in a folder's setup.py."""
    path = os.path.join(folder, "setup.py")
    if not os.path.isfile(path):
        raise CommandError(f"{folder} has no setup.py; name the .cu and .cpp files")
    with open(path) as file:
        tree = ast.parse(file.read(), path)
    known = _constants(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _called(node) in ("CUDAExtension", "CppExtension"):
            keywords = {one.arg: one.value for one in node.keywords if one.arg}
            positional = dict(zip(("name", "sources"), node.args, strict=False))
            given = {**positional, **keywords}
            name, sources = _value(given.get("name"), known), _value(given.get("sources"), known)
            if isinstance(sources, list) and all(isinstance(one, str) for one in sources):
                files = [os.path.join(folder, one) for one in sources]
                folders = _value(given.get("include_dirs"), known)
                dirs = [os.path.join(folder, one) for one in folders or [] if isinstance(one, str)]
                return name if isinstance(name, str) else os.path.basename(os.path.abspath(folder)), files, dirs
            raise CommandError(f"{path}:{node.lineno}: the sources of this extension are computed; name the files")
    raise CommandError(f"{path} has no CUDAExtension; name the .cu and .cpp files")


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _constants(tree: ast.Module) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            value = _value(node.value, found)
            if value is not None:
                found[node.targets[0].id] = value
    return found


def _value(node: ast.expr | None, known: dict[str, Any]) -> Any:
    """The value of a constant expression with names and os.path.join; None for anything else."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        return known.get(node.id)
    if isinstance(node, ast.List | ast.Tuple):
        values = [_value(one, known) for one in node.elts]
        return [one for one in values if one is not None] if None not in values else None
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        a, b = _value(node.left, known), _value(node.right, known)
        return a + b if type(a) is type(b) and isinstance(a, str | list) else None
    if isinstance(node, ast.JoinedStr):
        parts = [
            one.value if isinstance(one, ast.Constant) else _value(getattr(one, "value", None), known)
            for one in node.values
        ]
        texts = [one for one in parts if isinstance(one, str)]
        return "".join(texts) if len(texts) == len(parts) else None
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "join":
        parts = [_value(one, known) for one in node.args]
        texts = [one for one in parts if isinstance(one, str)]
        return os.path.join(*texts) if texts and len(texts) == len(parts) else None
    return None
