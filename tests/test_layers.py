"""Imports run downwards: every one, in functions and for types too, by docs/architecture.md's table."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "rawkern"
FACE = ("__init__", "__main__")  # the public names, which the command alone uses as users do


def table() -> dict[str, int]:
    """The layer of each module or folder of the package, 0 the highest."""
    text = (ROOT / "docs" / "architecture.md").read_text().partition("## Layers")[2].partition("\n\nThird-party")[0]
    rows = re.findall(r"^\|[^|]*\|([^|]*)\|", text, re.M)
    found = [(module, level) for level, row in enumerate(rows) for module in re.findall(r"`([\w/]+?)(?:/\*)?`", row)]
    assert len(dict(found)) == len(found), "a module stands in two layers"
    return {module.replace("/", "."): level for module, level in found}


def name_of(file: Path) -> str:
    return ".".join(file.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")


def home(module: str, level: dict[str, int]) -> str:
    """The entry of the table for a module: the longest that fits."""
    parts = module.split(".")
    return next((e for n in range(len(parts), 0, -1) if (e := ".".join(parts[:n])) in level), "")


def graph() -> dict[str, set[str]]:
    """Each module with those that it imports, wherever the import stands; by dotted names below the package."""
    files = {name_of(file): file for file in PACKAGE.rglob("*.py")}
    found = {}
    for module, file in files.items():
        names = set()
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
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
