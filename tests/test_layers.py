"""Imports run downwards: every one, in functions and for types too, against the table in docs/architecture.md."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "rawkern"
FACE = ("__init__", "__main__")  # the public names, which the command alone uses as users do


def table() -> dict[str, int]:
    """The layer of each module or folder of the package, 0 the highest."""
    text = (ROOT / "docs" / "architecture.md").read_text().partition("## Layers")[2].partition("\n\nThird-party")[0]
    rows = re.findall(r"^\|[^|]*\|([^|]*)\|", text, re.M)
    found = [(module, level) for level, row in enumerate(rows) for module in re.findall(r"`(\w+)(?:/\*)?`", row)]
    assert len(dict(found)) == len(found), "a module stands in two layers"
    return dict(found)


def imports(file: Path) -> Iterator[str]:
    """What a file imports of the package, wherever the import stands, by dotted names below it."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        yield from (name.partition(".")[2] for name in names if name.split(".")[0] == "rawkern")


def home(file: Path) -> str:
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


def test_imports_run_downwards() -> None:
    level = table()
    files = [file for file in PACKAGE.rglob("*.py") if home(file) not in FACE]
    assert sorted(level) == sorted({home(file) for file in files})
    upward = []
    for file in files:
        own = home(file)
        for name in imports(file):
            top = name.partition(".")[0]
            if level.get(top, -1 if own != "cli" else len(level)) < level[own]:
                upward.append(f"{file.relative_to(ROOT)} imports rawkern.{name}")
    assert not upward, "\n".join(upward)
