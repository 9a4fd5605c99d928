"""The extensions that a folder's setup.py builds.

What it says in plain words is read. Else it is run, in a process of its own, where `setup` builds nothing.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rawkern.cli.text import CommandError

PYTHON = [sys.executable]  # what a setup.py is run with
_SECONDS = 120

#: Notes down what `setup` is given, where a GPU and CUDA seem to be there; extensions are those of torch, not made.
_SCRIPT = """
import json, os, runpy, sys
import distutils.core, setuptools, torch
from torch.utils import cpp_extension

made, built = [], []

class Extension(setuptools.Extension):
    def __init__(self, name, sources, *others, **options):
        super().__init__(name, [os.fspath(one) for one in sources])
        macros = [one if isinstance(one, (tuple, list)) else (one, None) for one in options.get("define_macros") or ()]
        flags = options.get("extra_compile_args") or []
        flags = [one for each in flags.values() for one in each] if isinstance(flags, dict) else list(flags)
        flags += ["-D" + name + ("" if value is None else "=" + value) for name, value in macros]
        folders = [os.fspath(one) for one in options.get("include_dirs") or ()]
        self.given = {"name": name, "sources": self.sources, "include_dirs": folders, "flags": flags}
        made.append(self)

def setup(*others, **options):
    built.extend(one for one in options.get("ext_modules") or () if isinstance(one, Extension))

cpp_extension.CUDAExtension = cpp_extension.CppExtension = Extension
setuptools.setup = distutils.core.setup = setup
cpp_extension.CUDA_HOME = cpp_extension.CUDA_HOME or "/usr/local/cuda"
torch.cuda.is_available, torch.cuda.device_count = lambda: True, lambda: 1
torch.cuda.get_device_capability = lambda *device: (8, 0)
sys.argv[:] = ["setup.py", "build_ext", sys.argv[1]]
out = sys.argv.pop()
sys.path.insert(0, os.getcwd())
runpy.run_path("setup.py", run_name="__main__")
with open(out, "w") as file:
    json.dump([one.given for one in built or made], file)
"""


@dataclass
class Setup:
    """An extension of a setup.py."""

    name: str
    sources: list[str]
    include_dirs: list[str] = field(default_factory=list)
    flags: list[str] = field(default_factory=list)  # of the compilers


def in_setup(folder: str) -> list[Setup]:
    """The extensions that a folder's setup.py builds, with the paths of their files."""
    path = os.path.join(folder, "setup.py")
    if not os.path.isfile(path):
        raise CommandError(f"{folder} has no setup.py; name the .cu and .cpp files")
    found = _read(path)
    if found is None or len({one["name"] for one in found}) < max(len(found), 1):
        found = _made(folder, path)
    if not found:
        raise CommandError(f"{path} builds no CUDAExtension; name the .cu and .cpp files")
    return [_placed(folder, one) for one in found]


def _made(folder: str, path: str) -> list[dict[str, Any]]:
    """What a setup.py gives to `setup`."""
    with tempfile.TemporaryDirectory() as place:
        out = os.path.join(place, "found")
        error = _run(folder, [*PYTHON, "-c", _SCRIPT, out])
        if error or not os.path.exists(out):
            said = error or "it ends before"
            raise CommandError(f"{path} does not come to call setup ({said}); name the .cu and .cpp files")
        with open(out) as file:
            return json.load(file)


def _run(folder: str, command: Sequence[str]) -> str:
    """Run a command in a folder; returns the last line of its error, "" where there is none."""
    known = os.environ | {"FORCE_CUDA": "1"}
    known.setdefault("TORCH_CUDA_ARCH_LIST", "8.0")
    try:
        done = subprocess.run(command, cwd=folder, env=known, capture_output=True, text=True, timeout=_SECONDS)
    except subprocess.TimeoutExpired:
        return f"it takes more than {_SECONDS} s"
    return (done.stderr.strip().splitlines() or ["it ends"])[-1] if done.returncode else ""


def _placed(folder: str, one: dict[str, Any]) -> Setup:
    paths = [[os.path.normpath(os.path.join(folder, path)) for path in one[key]] for key in ("sources", "include_dirs")]
    return Setup(one["name"], paths[0], paths[1], one["flags"])


def _read(path: str) -> list[dict[str, Any]] | None:
    """The extensions whose names, sources and options a setup.py spells out; None where it computes some."""
    with open(path) as file:
        tree = ast.parse(file.read(), path)
    known = _constants(tree)
    found = []
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and _called(node) in ("CUDAExtension", "CppExtension")):
            continue
        given: dict[str | None, ast.expr] = {one.arg: one.value for one in node.keywords}
        given |= dict(zip(("name", "sources"), node.args, strict=False))
        name = _value(given.get("name"), known)
        flags = _value(given.get("extra_compile_args", _NONE), known)
        flags = (
            [one for each in flags.values() for one in (each if isinstance(each, list) else [None])]
            if isinstance(flags, dict)
            else flags
        )
        lists = [_value(given.get(key, _NONE), known) for key in ("sources", "include_dirs")] + [flags]
        spelled = all(isinstance(each, list) and all(isinstance(one, str) for one in each) for each in lists)
        if None in given or "define_macros" in given or not isinstance(name, str) or not spelled:
            return None
        found.append(dict(zip(("name", "sources", "include_dirs", "flags"), (name, *lists), strict=True)))
    return found


_NONE = ast.List([])


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
        return values if None not in values else None
    if isinstance(node, ast.Dict):
        return {_value(key, known): _value(one, known) for key, one in zip(node.keys, node.values, strict=True)}
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
