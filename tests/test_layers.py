"""Imports run downwards and in no circle: every one, in functions and for types too, by docs/architecture.md's table."""

from __future__ import annotations

import ast
import re
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "rawkern"
FOREIGN = {"_fields", "_base", "_schema", "_version"}  # names of NamedTuple, tensors and operators
FACE = ("__init__", "__main__")  # the public names, which the command alone uses as users do


def table() -> dict[str, int]:
    """The layer of each module or folder of the package, 0 the highest."""
    text = (ROOT / "docs" / "architecture.md").read_text().partition("## Layers")[2].partition("\n\nThird-party")[0]
    rows = re.findall(r"^\|[^|]*\|([^|]*)\|", text, re.M)
    found = [(module, level) for level, row in enumerate(rows) for module in re.findall(r"`([\w/]+?)(?:/\*)?`", row)]
    assert len(dict(found)) == len(found), "a module is in two layers"
    return {module.replace("/", "."): level for module, level in found}


def name_of(file: Path) -> str:
    return ".".join(file.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")


def home(module: str, level: dict[str, int]) -> str:
    """The entry of the table for a module: the longest that fits."""
    parts = module.split(".")
    return next((e for n in range(len(parts), 0, -1) if (e := ".".join(parts[:n])) in level), "")


@cache
def trees() -> dict[Path, ast.Module]:
    return {file: ast.parse(file.read_text()) for file in PACKAGE.rglob("*.py")}


@cache
def graph() -> dict[str, set[str]]:
    """Each module with those that it imports, wherever the import stands; by dotted names below the package."""
    files = {name_of(file): file for file in trees()}
    found = {}
    for module, file in files.items():
        names = set()
        for node in ast.walk(trees()[file]):
            if isinstance(node, ast.ImportFrom):
                assert node.module and not node.level, f"{module}: a relative import"
                names |= {(node.module, alias.name) for alias in node.names}
            elif isinstance(node, ast.Import):
                names |= {(alias.name, "") for alias in node.names}
        own = {
            (base.partition(".")[2], f"{base}.{name}".partition(".")[2])
            for base, name in names
            if base.split(".")[0] == "rawkern"
        }
        found[module] = {full if full in files else base for base, full in own} - {module}
    return found


def test_every_module_has_a_layer() -> None:
    level = table()
    files = [file for file in PACKAGE.rglob("*.py") if name_of(file) not in FACE]
    modules = [
        name_of(file) for file in files if file.name != "__init__.py" or len(ast.parse(file.read_text()).body) > 1
    ]
    assert not [module for module in modules if not home(module, level)]
    assert not [entry for entry in level if entry not in {home(module, level) for module in modules}]


def test_imports_run_downwards() -> None:
    level = table()
    upward = [
        f"{module} imports {other}"
        for module, others in graph().items()
        for other in others
        if module not in FACE
        and (level[home(other, level)] < level[home(module, level)] if other else home(module, level) != "cli")
    ]
    assert not upward, "\n".join(upward)


def test_imports_are_in_no_circle() -> None:
    try:
        TopologicalSorter({m: others - {""} for m, others in graph().items() if m not in FACE}).prepare()
    except CycleError as error:
        raise AssertionError(" imports ".join(reversed(error.args[1]))) from None


def private_names(tree: ast.AST) -> set[str]:
    """Names with an underscore that a module gives to what it defines: functions, classes, attributes of its objects."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(node.id if isinstance(node, ast.Name) else node.attr)
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__slots__":
            found |= set(ast.literal_eval(node.value))
    return {name for name in found if name.startswith("_") and not name.startswith("__")} - FOREIGN


def test_nothing_reaches_into_private_names_of_other_modules() -> None:
    own = {file: private_names(tree) for file, tree in trees().items()}
    reaches = []
    for file, tree in trees().items():
        others = set().union(*(names for other, names in own.items() if other != file)) - own[file]
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rawkern"):
                names = [alias.name for alias in node.names if alias.name.startswith("_") and alias.name != "_version"]
                names = [name for name in names if not name.startswith("__")]
            else:
                names = [node.attr] if isinstance(node, ast.Attribute) and node.attr in others else []
            reaches += [f"{file.relative_to(ROOT)}:{node.lineno} {name}" for name in names]
    assert not reaches, "\n".join(reaches)
