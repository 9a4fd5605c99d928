"""What a backward is, is decided on its tree: how the printer spells that, and names, change nothing else."""

from __future__ import annotations

import ast
import functools
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import rawkern
from rawkern.gradients import code, text
from rawkern.gradients.code import printing
from rawkern.gradients.code.names import Names
from tests.gradients.all_cases import CASES

#: Kernels with several elements a thread, rows, gradients handed on, sums of loops, tiles, blocks that share work.
NAMES = ("saxpy", "stencil", "softmax", "matmul", "csr", "piecewise", "layer_norm", "fused_add_rms_norm", "conv2d",
         "bodies", "maxima")  # fmt: skip
FOLDER = Path(code.__file__).parents[1]


def derived(name: str) -> Any:
    case = CASES[name]
    kernel = rawkern.RawKernel(case.source, case.name)
    return kernel.derive(block=case.block, wrt=case.wrt, shared_mem=case.shared_mem, max_iterations=case.max_iterations)


as_it_is = functools.cache(derived)


@pytest.mark.parametrize("name", NAMES)
def test_no_decision_rests_on_spelling(name, monkeypatch) -> None:
    trees: list[Any] = []

    def kept(function: Any) -> str:
        trees.append(function)
        return printing.function(function)

    plain = as_it_is(name)
    simple, expression = printing.simple, printing.expression
    monkeypatch.setattr(text, "function", kept)
    monkeypatch.setattr(printing, "simple", lambda s: simple(s).replace("const ", "").replace(" = ", "  =  "))
    monkeypatch.setattr(printing, "expression", lambda e: f"( {expression(e)} )")
    other = derived(name)
    assert "const float d_" not in other.source and other.source != plain.source
    monkeypatch.undo()
    assert plain.source.endswith(printing.function(replace(trees[-1], comments=[])))
    for each in ("parameters", "handed", "exchanged", "saved", "atomics", "shared_mem"):
        assert getattr(other, each) == getattr(plain, each)
    assert other.sets.keys() == plain.sets.keys()


@pytest.mark.parametrize("name", NAMES)
def test_no_decision_rests_on_the_names_of_variables(name, monkeypatch) -> None:
    plain, fresh = as_it_is(name).source, Names.fresh

    def other(self: Names, hint: str) -> str:
        found = fresh(self, f"q{hint}")
        self.hints[found] = hint
        return found

    monkeypatch.setattr(Names, "fresh", other)
    assert words(derived(name).source) == words(plain)


def words(source: str) -> list[str]:
    """The words of a text without the numbers of names, and without the q of those that keep it, as parameters do."""
    return re.sub(r"_\d+|q|\n// ", "", source).split()


def test_no_pass_reads_text() -> None:
    files = [*FOLDER.glob("backward/*.py"), *FOLDER.glob("code/passes/*.py"), FOLDER / "code/tree.py",
             FOLDER / "code/expressions.py", FOLDER / "analysis/recompute_slice.py"]  # fmt: skip
    for file in files:
        if file.stem == "helpers":  # text that it has as text
            continue
        imports = {
            name
            for node in ast.walk(ast.parse(file.read_text()))
            if isinstance(node, ast.Import | ast.ImportFrom)
            for name in (*(a.name for a in node.names), getattr(node, "module", None))
        }
        assert not {"re", "ast", "printing", printing.__name__} & imports, file
