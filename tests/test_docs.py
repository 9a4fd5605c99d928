"""The pages of docs/ that speak of operators: their code runs, and their table is complete."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import torch

import rawkern

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "operators.md").read_text()


def test_code(device: str) -> None:
    """The blocks run one after the other, on tensors of the device; they compare with torch themselves."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    assert len(blocks) == 5
    names: dict = {"__name__": "page"}
    torch.manual_seed(0)
    for block in blocks:
        assert "assert_close" in block
        with torch.device(device):
            exec(compile(block, "docs/operators.md", "exec"), names)
    assert names["x"].device.type == device


def test_table() -> None:
    """There is a row for each operator, with its signature."""
    rows = re.findall(r"^\| `(\w+\(.*?\))` \|", PAGE, re.M)
    assert sorted(rows) == sorted(map(call, (n for n, home in rawkern._HOME.items() if home.startswith("ops."))))


def call(name: str) -> str:
    """How an operator is called: parameters and defaults, without types."""
    parameters, bare = [], True
    for p in inspect.signature(getattr(rawkern, name)).parameters.values():
        if p.kind is p.KEYWORD_ONLY and bare:
            parameters.append("*")
            bare = False
        default = f'"{p.default}"' if isinstance(p.default, str) else p.default
        parameters.append(p.name if p.default is p.empty else f"{p.name}={default}")
    return f"{name}({', '.join(parameters)})"
